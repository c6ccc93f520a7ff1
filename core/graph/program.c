/* program.c - a program's inputs and outputs, and its runs. */
#include <graph/program.h>

#include <base/checked.h>
#include <base/memory.h>
#include <tensor/dtype.h>

lh_status_t program_empty(engine_t *e, weights_t *w, const program_how_t *how, program_t **out)
{
    program_t *p = mem_new(sizeof(*p));
    if (p == NULL) return LH_NO_MEMORY;
    p->engine = e;
    p->weights = w;
    p->how = *how;
    p->lanes = how->lanes == 0 ? 1 : how->lanes;
    lh_status_t status = flow_new(&p->flow);
    if (status == LH_OK && !checked_mul(how->sequences, how->rows, &p->tokens))
        status = fail(LH_INVALID, "%llu sequences of %llu tokens are too many",
                      (unsigned long long)how->sequences, (unsigned long long)how->rows);
    if (status == LH_OK) status = engine_program_add(e, p);
    if (status != LH_OK) {
        program_free(p);
        return status;
    }
    *out = p;
    return LH_OK;
}

static void maps_free(program_t *p)
{
    for (uint32_t i = 0; i < p->map_count; i++)
        mem_free(p->maps[i]);
    mem_free(p->maps);
    p->maps = NULL;
    p->map_count = 0;
    p->map_capacity = 0;
}

void program_free(program_t *p)
{
    if (p == NULL) return;
    const lh_device_api_t *api = p->engine->api;
    for (uint32_t i = 0; i < 2; i++)
        call_list_free(p->engine, &p->lists[i]);
    for (uint32_t i = 0; i < PROGRAM_INPUTS; i++)
        for (uint32_t s = 0; s < STAGING_SLOTS; s++)
            if (p->inputs[i].copied[s] != NULL) api->event_free(p->inputs[i].copied[s]);
    for (uint32_t i = 0; i < STAGING_SLOTS; i++)
        if (p->done[i] != NULL) api->event_free(p->done[i]);
    maps_free(p);
    for (uint32_t i = 0; i < p->recording_count; i++)
        recording_free(p->recordings[i]);
    mem_free(p->recordings);
    mem_free(p->store_buffers);
    flow_free(p->flow);
    mem_free(p);
}

static bool take(program_t *p, region_t *region, uint64_t bytes, uint64_t *offset)
{
    if (p->flow->status == LH_OK)
        p->flow->status = region_take(region, bytes, engine_alignment(p->engine), offset);
    return p->flow->status == LH_OK;
}

uint32_t program_input_value(program_t *p, uint32_t which, const lh_arg_t *arg)
{
    program_input_t *in = &p->inputs[which];
    if (in->bytes != 0) return in->value;

    const uint64_t bytes = arg_bytes(arg);
    engine_t *e = p->engine;
    if (!take(p, &e->inputs, bytes, &in->offset)) return 0;
    for (uint32_t i = 0; i < STAGING_SLOTS; i++)
        if (!take(p, &e->pinned, bytes, &in->pinned[i])) return 0;
    in->arg = *arg;
    const uint32_t buffer = flow_buffer(p->flow, &e->inputs, in->offset, bytes);
    in->value = buffer == 0 ? 0 : flow_value(p->flow, arg, buffer, 0);
    if (in->value != 0) in->bytes = bytes;
    return in->value;
}

uint32_t program_output_value(program_t *p, uint32_t which, const lh_arg_t *arg, bool accumulates)
{
    program_output_t *out = &p->outputs[which];
    if (out->bytes != 0) return out->value;

    const uint64_t bytes = arg_bytes(arg);
    engine_t *e = p->engine;
    if (!take(p, &e->outputs, bytes, &out->offset) || !take(p, &e->pinned, bytes, &out->pinned))
        return 0;
    const uint32_t buffer = flow_buffer(p->flow, &e->outputs, out->offset, bytes);
    if (buffer == 0) return 0;
    p->flow->buffers[buffer].accumulates = accumulates;
    out->value = flow_value(p->flow, arg, buffer, 0);
    if (out->value != 0) out->bytes = bytes;
    return out->value;
}

/* Stores may be added while a program is written, so the table grows with them. */
static uint32_t *store_slot(program_t *p, const store_t *store, uint32_t parameter)
{
    const weights_t *w = p->weights;
    const uint32_t count = w->parameters->count;
    if (p->store_count < w->store_count) {
        uint32_t *bigger = mem_resize(p->store_buffers,
                                      (size_t)p->store_count * count * sizeof(*bigger),
                                      (size_t)w->store_count * count * sizeof(*bigger));
        if (bigger == NULL) return NULL;
        p->store_buffers = bigger;
        p->store_count = w->store_count;
    }
    for (uint32_t i = 0; i < w->store_count; i++)
        if (w->stores[i] == store) return &p->store_buffers[(size_t)i * count + parameter];
    return NULL;
}

uint32_t program_store_value(program_t *p, const store_t *store, uint32_t parameter)
{
    const parameter_t *param = &p->weights->parameters->items[parameter];
    const uint32_t storage = param->storage;
    const store_piece_t *piece = &store->pieces[storage];
    flow_t *f = p->flow;
    if (f->status != LH_OK) return 0;
    if (!piece->present) {
        f->status = fail(LH_INVALID, "parameter '%s' has no %s", param->name, store->name);
        return 0;
    }
    uint32_t *slot = store_slot(p, store, storage);
    if (slot == NULL) {
        f->status = LH_NO_MEMORY;
        return 0;
    }
    if (*slot == 0) {
        *slot = flow_buffer(f, &store->region, piece->offset,
                            piece->elements * dtype_bytes(piece->dtype));
        if (*slot == 0) return 0;
        f->buffers[*slot].kept = store->holds == LH_HOLDS_VALUE && p->how.use != USE_UPDATE;
        f->buffers[*slot].accumulates = store == p->weights->grad && p->how.use != USE_UPDATE;
    }
    const bool whole = piece->elements == param->elements;
    const lh_arg_t arg = flow_arg(piece->dtype, whole ? param->rank : 1,
                                  whole ? param->shape : &piece->elements);
    return flow_value(f, &arg, *slot, 0);
}

uint32_t program_parameter(program_t *p, uint32_t parameter)
{
    exchange_t *x = p->engine->exchange;
    if (p->flow->status != LH_OK) return 0;
    if (x != NULL && x->value != NULL) return x->value(x, p, parameter);
    return program_store_value(p, p->weights->value, parameter);
}

uint32_t program_gradient(program_t *p, uint32_t parameter)
{
    exchange_t *x = p->engine->exchange;
    if (p->flow->status != LH_OK) return 0;
    if (x != NULL && x->gradient != NULL) return x->gradient(x, p, parameter);
    return program_store_value(p, p->weights->grad, parameter);
}

uint32_t program_constant_value(program_t *p, const graph_value_t *v)
{
    flow_t *f = p->flow;
    uint64_t offset;
    if (f->status == LH_OK)
        f->status = engine_constant(p->engine, v->constant, v->constant_count, &offset);
    if (f->status != LH_OK) return 0;
    const lh_arg_t arg = flow_arg(LH_DTYPE_F32, 1, &v->constant_count);
    const uint32_t buffer = flow_buffer(f, &p->engine->constants, offset, arg_bytes(&arg));
    return buffer == 0 ? 0 : flow_value(f, &arg, buffer, 0);
}

lh_status_t program_keep(program_t *p, recording_t *r)
{
    recording_t **list = mem_grow(p->recordings, &p->recording_capacity, p->recording_count + 1u,
                                  sizeof(*list));
    if (list == NULL) {
        recording_free(r);
        return LH_NO_MEMORY;
    }
    p->recordings = list;
    p->recordings[p->recording_count++] = r;
    return LH_OK;
}

uint32_t *program_map(program_t *p, const recording_t *r)
{
    uint32_t **maps = mem_grow(p->maps, &p->map_capacity, p->map_count + 1u, sizeof(*maps));
    if (maps != NULL) p->maps = maps;
    uint32_t *map = maps == NULL ? NULL : mem_array(r->value_count, sizeof(*map));
    if (map == NULL) {
        p->flow->status = LH_NO_MEMORY;
        return NULL;
    }
    p->maps[p->map_count++] = map;
    return map;
}

lh_status_t program_finish(program_t *p)
{
    const lh_status_t status = flow_finish(p->flow, engine_alignment(p->engine));
    maps_free(p);
    if (status != LH_OK) return status;
    for (uint32_t i = 0; i < ARENAS; i++)
        if (p->engine->arenas[i].bytes < p->flow->arena_bytes[i])
            p->engine->arenas[i].bytes = p->flow->arena_bytes[i];
    return LH_OK;
}

static bool has_micro_batches(const program_t *p)
{
    return p->how.use == USE_TRAIN || p->how.use == USE_SCORE;
}

lh_status_t program_choose(program_t *p)
{
    const lh_status_t status = call_list_choose(p->engine, p->flow, false, &p->lists[0]);
    if (status != LH_OK || !has_micro_batches(p)) return status;
    return call_list_choose(p->engine, p->flow, true, &p->lists[1]);
}

lh_status_t program_place(program_t *p)
{
    engine_t *e = p->engine;
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < STAGING_SLOTS; i++)
        status = e->api->event_new(e->device, &p->done[i]);
    for (uint32_t i = 0; status == LH_OK && i < PROGRAM_INPUTS; i++)
        for (uint32_t s = 0; status == LH_OK && s < STAGING_SLOTS; s++)
            if (p->inputs[i].bytes != 0)
                status = e->api->event_new(e->device, &p->inputs[i].copied[s]);
    for (uint32_t i = 0; status == LH_OK && i < 2; i++) {
        call_list_place(e, p->flow, &p->lists[i]);
        status = call_list_capture(e, &p->lists[i]);
    }
    return status;
}

bool program_has_input(const program_t *p, uint32_t which)
{
    return which < PROGRAM_INPUTS && p->inputs[which].bytes != 0;
}

uint64_t program_input_bytes(const program_t *p, uint32_t which)
{
    return which < PROGRAM_INPUTS ? p->inputs[which].bytes : 0;
}

uint64_t program_output_bytes(const program_t *p, uint32_t which)
{
    if (which >= OUTPUTS) return 0;
    return which == OUTPUT_LOSS && p->outputs[which].bytes != 0 ? 2 * sizeof(float)
                                                                : p->outputs[which].bytes;
}

lh_status_t program_input(program_t *p, uint32_t which, const void *host, uint64_t bytes)
{
    if (!program_has_input(p, which)) return LH_OK;
    program_input_t *in = &p->inputs[which];
    if (bytes != in->bytes)
        return fail(LH_INVALID, "input %u has %llu bytes; the program takes %llu", which,
                    (unsigned long long)bytes, (unsigned long long)in->bytes);

    engine_t *e = p->engine;
    const uint32_t slot = in->dirty ? in->slot : (in->slot + 1) % STAGING_SLOTS;
    if (in->busy[slot]) {
        const lh_status_t status = engine_await(e, in->copied[slot]);
        if (status != LH_OK) return status;
        in->busy[slot] = false;
    }
    memcpy(region_place(&e->pinned, in->pinned[slot]).address, host, bytes);
    in->slot = slot;
    in->dirty = true;
    return LH_OK;
}

static lh_status_t inputs_copy(program_t *p)
{
    engine_t *e = p->engine;
    for (uint32_t i = 0; i < PROGRAM_INPUTS; i++) {
        program_input_t *in = &p->inputs[i];
        if (!in->dirty) continue;
        const lh_place_t to = region_place(&e->inputs, in->offset);
        const lh_place_t from = region_place(&e->pinned, in->pinned[in->slot]);
        lh_status_t status = e->api->copy(e->stream, &to, &from, in->bytes);
        if (status == LH_OK) status = e->api->record(e->stream, in->copied[in->slot]);
        if (status != LH_OK) return status;
        in->busy[in->slot] = true;
        in->dirty = false;
    }
    return LH_OK;
}

static lh_status_t outputs_copy(program_t *p)
{
    engine_t *e = p->engine;
    for (uint32_t i = 0; i < OUTPUTS; i++) {
        const program_output_t *out = &p->outputs[i];
        if (out->bytes == 0) continue;
        const lh_place_t to = region_place(&e->pinned, out->pinned);
        const lh_place_t from = region_place(&e->outputs, out->offset);
        const lh_status_t status = e->api->copy(e->stream, &to, &from, out->bytes);
        if (status != LH_OK) return status;
    }
    return e->api->record(e->stream, p->done[p->runs % STAGING_SLOTS]);
}

lh_status_t program_run(program_t *p, uint32_t micro_batch)
{
    lh_status_t status = LH_OK;
    /* An event may be recorded again only once it is past. */
    if (p->runs >= STAGING_SLOTS)
        status = engine_await(p->engine, p->done[p->runs % STAGING_SLOTS]);
    if (status == LH_OK) status = inputs_copy(p);
    p->engine->micro_batch = micro_batch;
    p->engine->last_micro = (micro_batch + 1) * p->lanes >= p->how.micro_batches;
    if (status == LH_OK)
        status = call_list_run(p->engine,
                               &p->lists[micro_batch > 0 && has_micro_batches(p) ? 1 : 0]);
    if (status == LH_OK) status = outputs_copy(p);
    if (status == LH_OK) p->runs++;
    return status;
}

static lh_status_t scalar_of(const program_t *p, uint32_t which, float *out)
{
    const program_output_t *o = &p->outputs[which];
    *out = 0;
    if (o->bytes == 0) return LH_OK;
    return dtype_convert(LH_DTYPE_F32, out, p->flow->values[o->value].arg.dtype,
                         region_place(&p->engine->pinned, o->pinned).address, 1);
}

/* The program keeps the cross-entropy and the model's own losses apart. */
static lh_status_t loss_output(const program_t *p, float loss[2])
{
    float extra = 0;
    lh_status_t status = scalar_of(p, OUTPUT_LOSS, &loss[1]);
    if (status == LH_OK) status = scalar_of(p, OUTPUT_EXTRA, &extra);
    loss[0] = loss[1] + extra;
    return status;
}

lh_status_t program_output(program_t *p, uint32_t which, void *host, uint64_t bytes)
{
    const uint64_t expected = program_output_bytes(p, which);
    if (expected == 0 || bytes != expected)
        return fail(LH_INVALID, "output %u has %llu bytes, not %llu", which,
                    (unsigned long long)expected, (unsigned long long)bytes);
    if (p->runs == 0)
        return fail(LH_INVALID, "output %u is asked for before the program ran", which);

    const lh_status_t status = engine_await(p->engine, p->done[(p->runs - 1) % STAGING_SLOTS]);
    if (status != LH_OK) return status;
    if (which == OUTPUT_LOSS) return loss_output(p, host);
    memcpy(host, region_place(&p->engine->pinned, p->outputs[which].pinned).address, bytes);
    return LH_OK;
}

void program_cost(const program_t *p, program_cost_t *out)
{
    *out = (program_cost_t){0};
    const call_list_t *list = &p->lists[has_micro_batches(p) ? 1 : 0];
    out->calls = list->count;
    for (uint32_t i = 0; i < list->count; i++) {
        const kernel_t *kernel = list->calls[i].kernel;
        if (kernel == NULL) continue;
        out->flops += kernel->cost.flops;
        out->bytes += kernel->cost.bytes;
        /* Ops that do more arithmetic than they move data. */
        if (kernel->cost.flops > 8 * kernel->cost.bytes) out->matmul_flops += kernel->cost.flops;
    }
}
