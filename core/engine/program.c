/* program.c - a program's values, its inputs and outputs, and its runs.
 *
 * In this order: what a flow is written with (inputs, outputs, parameters, gradients, constants),
 * the build, then runs. The host is at most two runs ahead of the device: inputs have two staging
 * slots, and two events say which runs are past. Being further ahead would take more pinned memory
 * and hide nothing more. */
#include <engine/program.h>

#include <base/dtype.h>
#include <base/memory.h>
#include <graph/op_table.h>
#include <program/packing.h>
#include <program/schedule.h>

/* The engine owns the program once it is listed. */
lh_status_t program_empty(engine_t *e, weights_t *w, const program_how_t *how, program_t **out)
{
    program_t *p = mem_new(sizeof(*p));
    if (p == NULL) return LH_NO_MEMORY;
    p->engine = e;
    p->weights = w;
    p->how = *how;
    p->round_micro_batches = how->schedule == NULL ? 1 : how->schedule->round_micro_batches;
    p->rounds = how->schedule == NULL ? 0 : how->schedule->rounds;
    p->how.schedule = NULL; /* the caller's, who may free it */
    if (how->schedule != NULL) p->how.micro_batches = how->schedule->micro_batches;
    lh_status_t status = flow_new(&p->flow);
    if (status == LH_OK && !checked_mul(how->sequences, how->rows, &p->tokens))
        status = fail(LH_INVALID, "%llu sequences of %llu tokens are too many",
                      (unsigned long long)how->sequences, (unsigned long long)how->rows);
    if (status == LH_OK) status = engine_program_add(e, p, p->flow);
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

static void instances_free(program_t *p)
{
    for (uint32_t i = 0; i < p->instance_count; i++) {
        mem_free(p->instances[i].parameters);
        mem_free(p->instances[i].values);
    }
    mem_free(p->instances);
    mem_free(p->gradients);
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
    instances_free(p);
    flow_free(p->flow);
    mem_free(p);
}

/* Takes a place in an allocation; false after a failure, which the flow keeps. */
static bool program_take(program_t *p, allocation_t *allocation, uint64_t bytes, uint64_t *offset)
{
    if (p->flow->status == LH_OK)
        p->flow->status = allocation_take(allocation, bytes, engine_alignment(p->engine), offset);
    return p->flow->status == LH_OK;
}

/* Takes device memory, and a place in pinned memory for each staging slot. */
uint32_t program_input_value(program_t *p, uint32_t which, const lh_arg_t *arg)
{
    lh_assert(which < PROGRAM_INPUTS);
    program_input_t *in = &p->inputs[which];
    if (in->bytes != 0) return in->value;

    const uint64_t bytes = flow_arg_bytes(arg);
    engine_t *e = p->engine;
    if (!program_take(p, &e->inputs, bytes, &in->offset)) return 0;
    for (uint32_t i = 0; i < STAGING_SLOTS; i++)
        if (!program_take(p, &e->pinned, bytes, &in->pinned[i])) return 0;
    in->arg = *arg;
    const uint32_t buffer = flow_buffer(p->flow, &e->inputs, in->offset, bytes);
    in->value = buffer == 0 ? 0 : flow_value(p->flow, arg, buffer, 0);
    if (in->value != 0) in->bytes = bytes;
    return in->value;
}

/* What a step of training is told by: some numbers, which may be read while the next step is queued,
 * so they have two slots. Logits and statistics of tokens are large, and read at once. */
static bool output_is_figure(uint32_t which)
{
    return which != OUTPUT_LOGITS && which != OUTPUT_STATS;
}

/* An output that accumulates needs no zeros, as the first micro-batch of a step writes it. */
uint32_t program_output_value(program_t *p, uint32_t which, const lh_arg_t *arg, bool accumulates)
{
    lh_assert(which < OUTPUTS);
    program_output_t *out = &p->outputs[which];
    if (out->bytes != 0) return out->value;

    const uint64_t bytes = flow_arg_bytes(arg);
    engine_t *e = p->engine;
    if (!program_take(p, &e->outputs, bytes, &out->offset) ||
        !program_take(p, &e->pinned, bytes, &out->pinned[0]))
        return 0;
    out->pinned[1] = out->pinned[0];
    if (output_is_figure(which) && !program_take(p, &e->pinned, bytes, &out->pinned[1])) return 0;
    const uint32_t buffer = flow_buffer(p->flow, &e->outputs, out->offset, bytes);
    if (buffer == 0) return 0;
    p->flow->buffers[buffer].accumulates = accumulates;
    out->value = flow_value(p->flow, arg, buffer, 0);
    if (out->value != 0) out->bytes = bytes;
    return out->value;
}

/* Where the flow's buffer of a shard is noted, so that each is made once; NULL after a failure. The
 * table grows, as stores may be added while a program is written. */
static uint32_t *store_slot(program_t *p, const store_t *store, uint32_t parameter)
{
    const weights_t *w = p->weights;
    const uint32_t count = w->parameters->count;
    lh_assert(parameter < count);
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

/* There is one buffer for each shard. Values of weights are kept (no call of this program writes
 * them), and gradients accumulate over micro-batches; in the optimizer step both are plain
 * memory. */
uint32_t program_store_value(program_t *p, const store_t *store, uint32_t parameter)
{
    lh_assert(parameter < p->weights->parameters->count);
    const parameter_t *param = &p->weights->parameters->items[parameter];
    const uint32_t storage = param->storage;
    const store_shard_t *shard = &store->shards[storage];
    flow_t *f = p->flow;
    if (f->status != LH_OK) return 0;
    if (!shard->present) {
        f->status = fail(LH_INVALID, "parameter '%s' has no %s", param->name, store->name);
        return 0;
    }
    uint32_t *slot = store_slot(p, store, storage);
    if (slot == NULL) {
        f->status = LH_NO_MEMORY;
        return 0;
    }
    if (*slot == 0) {
        *slot = flow_buffer(f, &store->allocation, shard->offset,
                            shard->elements * lh_dtype_bytes(shard->dtype));
        if (*slot == 0) return 0;
        f->buffers[*slot].kept = store->holds == LH_HOLDS_VALUE && p->how.use != USE_UPDATE;
        f->buffers[*slot].accumulates = store == p->weights->grad && p->how.use != USE_UPDATE;
    }
    const bool whole = shard->elements == param->elements;
    const lh_arg_t arg = flow_arg(shard->dtype, whole ? param->rank : 1,
                                  whole ? param->shape : &shard->elements);
    const uint32_t buffer = f->buffers[*slot].joined != 0 ? f->buffers[*slot].joined : *slot;
    return flow_value(f, &arg, buffer, shard->offset - f->buffers[buffer].offset);
}

/* The instance of the part that the flow is at, in a direction; NULL: there is none yet. */
static gathered_instance_t *instance_find(program_t *p, bool backward)
{
    const flow_t *f = p->flow;
    for (uint32_t i = 0; i < p->instance_count; i++) {
        gathered_instance_t *v = &p->instances[i];
        if (v->part == f->part && v->block == f->block && v->backward == backward) return v;
    }
    return NULL;
}

/* Lists every parameter of the part with a value of its shape. A tied parameter gets memory of its
 * own here. */
static lh_status_t instance_fill(program_t *p, gathered_instance_t *v)
{
    const parameters_t *parameters = p->weights->parameters;
    v->parameters = mem_array(parameters->count, sizeof(*v->parameters));
    v->values = mem_array(parameters->count, sizeof(*v->values));
    if (v->parameters == NULL || v->values == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < parameters->count; i++) {
        const parameter_t *item = &parameters->items[i];
        if (item->part != v->part || (item->part == LH_PART_BLOCK && item->block != v->block))
            continue;
        const lh_arg_t arg = flow_arg(p->weights->compute, item->rank, item->shape);
        v->parameters[v->count] = i;
        v->values[v->count++] = flow_in_arena(p->flow, &arg, ARENA_GATHERED);
    }
    return p->flow->status;
}

/* A new instance, with a value in the arena for each of its parameters. NULL after a failure. */
static gathered_instance_t *instance_new(program_t *p, bool backward)
{
    gathered_instance_t *list = mem_grow(p->instances, &p->instance_capacity,
                                         p->instance_count + 1u, sizeof(*list));
    if (list == NULL) {
        p->flow->status = LH_NO_MEMORY;
        return NULL;
    }
    p->instances = list;
    gathered_instance_t *v = &p->instances[p->instance_count++];
    *v = (gathered_instance_t){
        .part = p->flow->part, .block = p->flow->block, .backward = backward};
    p->flow->status = instance_fill(p, v);
    return p->flow->status == LH_OK ? v : NULL;
}

/* The flow value of a parameter for the instance that the flow is in, where weights_t.gathered. 0
 * after a failure. A block's values are dropped after its forward pass and gathered again for its
 * way back; the embedding and the head, whose chunks go there and back, have one instance for
 * both. */
static uint32_t gathered_value(program_t *p, uint32_t parameter)
{
    flow_t *f = p->flow;
    const bool backward = f->backward && f->part == LH_PART_BLOCK;
    gathered_instance_t *v = instance_find(p, backward);
    if (v == NULL) v = instance_new(p, backward);
    for (uint32_t i = 0; v != NULL && i < v->count; i++)
        if (v->parameters[i] == parameter) return v->values[i];
    if (f->status == LH_OK)
        f->status = fail(LH_INVALID, "parameter '%s' is read by a part that does not list it",
                         p->weights->parameters->items[parameter].name);
    return 0;
}

/* The flow value that a parameter's gradient is added into, where weights_t.bucketed: a whole form
 * that each run writes anew, and that lives until its sum over ranks is in the owners' shards. */
static uint32_t bucket_gradient(program_t *p, uint32_t parameter)
{
    flow_t *f = p->flow;
    const parameter_t *item = &p->weights->parameters->items[parameter];
    if (p->gradients == NULL)
        p->gradients = mem_array(p->weights->parameters->count, sizeof(*p->gradients));
    if (p->gradients == NULL) {
        f->status = LH_NO_MEMORY;
        return 0;
    }
    uint32_t *value = &p->gradients[item->storage];
    const lh_arg_t arg = flow_arg(p->weights->grad->shards[item->storage].dtype, item->rank,
                                  item->shape);
    if (*value == 0) {
        *value = flow_in_arena(f, &arg, ARENA_BUCKETS);
        if (*value == 0) return 0;
        flow_buffer_t *buffer = &f->buffers[f->values[*value].buffer];
        buffer->accumulates = true;
        buffer->each_micro = true;
    }
    return flow_value(f, &arg, f->values[*value].buffer, f->values[*value].offset);
}

uint32_t program_parameter(program_t *p, uint32_t parameter)
{
    lh_assert(parameter < p->weights->parameters->count);
    if (p->flow->status != LH_OK) return 0;
    if (p->weights->gathered) return gathered_value(p, parameter);
    return program_store_value(p, p->weights->value, parameter);
}

uint32_t program_gradient(program_t *p, uint32_t parameter)
{
    lh_assert(parameter < p->weights->parameters->count);
    if (p->flow->status != LH_OK) return 0;
    if (p->weights->bucketed) return bucket_gradient(p, parameter);
    return program_store_value(p, p->weights->grad, parameter);
}

/* Each value gets a buffer of its own: constants are few, and only read. */
uint32_t program_constant_value(program_t *p, const graph_value_t *v)
{
    flow_t *f = p->flow;
    uint64_t offset;
    if (f->status == LH_OK)
        f->status = engine_constant(p->engine, v->constant, v->constant_count, &offset);
    if (f->status != LH_OK) return 0;
    const lh_arg_t arg = flow_arg(LH_DTYPE_F32, 1, &v->constant_count);
    const uint32_t buffer = flow_buffer(f, &p->engine->constants, offset, flow_arg_bytes(&arg));
    return buffer == 0 ? 0 : flow_value(f, &arg, buffer, 0);
}

/* After a failure the recording is freed, so that the caller need not. */
lh_status_t program_keep(program_t *p, recording_t *r)
{
    lh_assert(r != NULL);
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
    lh_assert(r->value_count > 0);
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

/* Numbers the buffers of weights and gradients by parameter, as these lie in every store: one behind
 * the other. order: [buffer_count] zeros. */
static void neighbours_number(const program_t *p, uint32_t *order)
{
    const uint32_t count = p->weights->parameters->count;
    const flow_value_t *values = p->flow->values;
    for (uint32_t s = 0; s < p->store_count; s++)
        for (uint32_t i = 0; i < count; i++)
            order[p->store_buffers[(size_t)s * count + i]] = i + 1;
    for (uint32_t i = 0; i < p->instance_count; i++)
        for (uint32_t k = 0; k < p->instances[i].count; k++)
            order[values[p->instances[i].values[k]].buffer] = p->instances[i].parameters[k] + 1;
    for (uint32_t i = 0; p->gradients != NULL && i < count; i++)
        if (p->gradients[i] != 0) order[values[p->gradients[i]].buffer] = i + 1;
    order[0] = 0;
}

lh_status_t program_pack(program_t *p)
{
    engine_t *e = p->engine;
    if (e->device == NULL || (e->properties.flags & LH_DEVICE_PACKS) == 0) return LH_OK;
    uint32_t *order = mem_array(p->flow->buffer_count, sizeof(*order));
    if (order == NULL) return LH_NO_MEMORY;
    neighbours_number(p, order);
    const packing_how_t how = {
        .alignment = engine_alignment(e), .order = order, .offers = call_list_offers, .device = e};
    const lh_status_t status = packing_apply(p->flow, &how);
    mem_free(order);
    return status;
}

/* Finds the most that a row of the schedule leaves to later rows: activations that it makes and
 * they use. */
static lh_status_t frames_measure(program_t *p)
{
    const flow_t *f = p->flow;
    uint64_t *left = mem_array(p->row_count + 1u, sizeof(*left));
    if (left == NULL) return LH_NO_MEMORY;
    for (uint32_t b = 1; b < f->buffer_count; b++) {
        const flow_buffer_t *buffer = &f->buffers[b];
        if (buffer->allocation != NULL || buffer->arena != ARENA_ACTIVATIONS || buffer->first == 0)
            continue;
        const uint32_t row = f->calls[buffer->first].row;
        lh_assert(row <= p->row_count);
        if (row != f->calls[buffer->last].row) left[row] += buffer->bytes;
        if (left[row] > p->frame_bytes) p->frame_bytes = left[row];
    }
    mem_free(left);
    return LH_OK;
}

lh_status_t program_finish(program_t *p)
{
    /* Without a device nothing will have a place, and laying out arenas would be most of the
     * work. */
    const bool laid = p->engine->device != NULL;
    lh_status_t status = laid ? flow_finish(p->flow, engine_alignment(p->engine)) : p->flow->status;
    if (status == LH_OK && laid) status = frames_measure(p);
    maps_free(p);
    if (status != LH_OK) return status;
    for (uint32_t i = 0; i < ARENAS; i++)
        if (p->engine->arenas[i].bytes < p->flow->arena_bytes[i])
            p->engine->arenas[i].bytes = p->flow->arena_bytes[i];
    return LH_OK;
}

/* Whether a step has runs that add to what its first run wrote. */
static bool has_later_runs(const program_t *p)
{
    return (p->how.use == USE_TRAIN || p->how.use == USE_SCORE) && p->rounds != 1;
}

/* Makes one list, and a second one where later runs add to what the first wrote. */
lh_status_t program_choose(program_t *p)
{
    lh_assert(!p->engine->planned);
    const lh_status_t status = call_list_choose(p->engine, p->flow, false, &p->lists[0]);
    if (status != LH_OK || !has_later_runs(p)) return status;
    return call_list_choose(p->engine, p->flow, true, &p->lists[1]);
}

/* Events are made here, as no step may make any. */
lh_status_t program_place(program_t *p)
{
    lh_assert(p->engine->planned);
    engine_t *e = p->engine;
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < STAGING_SLOTS; i++)
        status = e->api->event_new(e->device, &p->done[i]);
    for (uint32_t i = 0; status == LH_OK && i < PROGRAM_INPUTS; i++)
        for (uint32_t s = 0; status == LH_OK && s < STAGING_SLOTS; s++)
            if (p->inputs[i].bytes != 0)
                status = e->api->event_new(e->device, &p->inputs[i].copied[s]);
    for (uint32_t i = 0; status == LH_OK && i < 2; i++)
        status = call_list_place(e, p->flow, &p->lists[i]);
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

/* An input that is given again before a run is written into the same slot, else into the other one,
 * whose copy of two runs ago may still be queued. */
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
    memcpy(allocation_place(&e->pinned, in->pinned[slot]).address, host, bytes);
    in->slot = slot;
    in->dirty = true;
    return LH_OK;
}

/* Queues copies of the inputs that were given since the last run; the others are on the device
 * already. */
static lh_status_t inputs_copy(program_t *p)
{
    engine_t *e = p->engine;
    for (uint32_t i = 0; i < PROGRAM_INPUTS; i++) {
        program_input_t *in = &p->inputs[i];
        if (!in->dirty) continue;
        const lh_place_t to = allocation_place(&e->inputs, in->offset);
        const lh_place_t from = allocation_place(&e->pinned, in->pinned[in->slot]);
        lh_status_t status = e->api->copy(e->stream, &to, &from, in->bytes);
        if (status == LH_OK) status = e->api->record(e->stream, in->copied[in->slot]);
        if (status != LH_OK) return status;
        in->busy[in->slot] = true;
        in->dirty = false;
    }
    return LH_OK;
}

/* Queues copies of all outputs into the slot of the step at hand, and marks the run's end. */
static lh_status_t outputs_copy(program_t *p)
{
    lh_assert(p->steps > 0);
    engine_t *e = p->engine;
    const uint32_t slot = (p->steps - 1) % STAGING_SLOTS;
    for (uint32_t i = 0; i < OUTPUTS; i++) {
        const program_output_t *out = &p->outputs[i];
        if (out->bytes == 0) continue;
        const lh_place_t to = allocation_place(&e->pinned, out->pinned[slot]);
        const lh_place_t from = allocation_place(&e->outputs, out->offset);
        const lh_status_t status = e->api->copy(e->stream, &to, &from, out->bytes);
        if (status != LH_OK) return status;
    }
    return e->api->record(e->stream, p->done[p->runs % STAGING_SLOTS]);
}

lh_status_t program_run(program_t *p, uint32_t micro_batch)
{
    lh_assert(p->engine->built);
    lh_assert(p->rounds == 0 || micro_batch < p->rounds);
    lh_status_t status = LH_OK;
    /* An event may be recorded again only once it is past. */
    if (p->runs >= STAGING_SLOTS)
        status = engine_await(p->engine, p->done[p->runs % STAGING_SLOTS]);
    if (status == LH_OK) status = inputs_copy(p);
    p->engine->micro_batch = micro_batch;
    p->engine->last_micro = micro_batch + 1 >= p->rounds;
    if (status == LH_OK)
        status = call_list_run(p->engine, &p->lists[micro_batch > 0 && has_later_runs(p) ? 1 : 0]);
    if (micro_batch == 0) p->steps++;
    if (status == LH_OK) status = outputs_copy(p);
    if (status == LH_OK) p->runs_of[(p->steps - 1) % STAGING_SLOTS] = ++p->runs;
    return status;
}

/* A run that failed is not under way: whoever waits for it hears why. */
uint32_t program_under_way(const program_t *p)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < STAGING_SLOTS; i++)
        count += p->runs > i && p->engine->api->test(p->done[i], 0) == LH_AGAIN;
    return count;
}

/* The first number of an output in a slot, as F32; 0 where the program has no such output. */
static lh_status_t scalar_of(const program_t *p, uint32_t which, uint32_t slot, float *out)
{
    lh_assert(which < OUTPUTS);
    const program_output_t *o = &p->outputs[which];
    *out = 0;
    if (o->bytes == 0) return LH_OK;
    return dtype_convert(LH_DTYPE_F32, out, p->flow->values[o->value].arg.dtype,
                         allocation_place(&p->engine->pinned, o->pinned[slot]).address, 1);
}

/* OUTPUT_LOSS has two numbers: what is minimised, and the part of it that is cross-entropy. In
 * device memory the cross-entropy and the model's own losses are two outputs. */
static lh_status_t loss_output(const program_t *p, uint32_t slot, float loss[2])
{
    float extra = 0;
    lh_status_t status = scalar_of(p, OUTPUT_LOSS, slot, &loss[1]);
    if (status == LH_OK) status = scalar_of(p, OUTPUT_EXTRA, slot, &extra);
    loss[0] = loss[1] + extra;
    return status;
}

/* A step's end is the event of its last run, unless that event was recorded again since: it was past
 * then. */
lh_status_t program_output_of(program_t *p, uint32_t which, uint32_t back, void *host,
                              uint64_t bytes)
{
    lh_assert(back == 0 || (back < STAGING_SLOTS && output_is_figure(which)));
    const uint64_t expected = program_output_bytes(p, which);
    if (expected == 0 || bytes != expected)
        return fail(LH_INVALID, "output %u has %llu bytes, not %llu", which,
                    (unsigned long long)expected, (unsigned long long)bytes);
    if (p->steps <= back)
        return fail(LH_INVALID, "output %u is asked for before the program ran", which);

    const uint32_t slot = (p->steps - 1 - back) % STAGING_SLOTS;
    const uint64_t last = p->runs_of[slot];
    lh_assert(last > 0 && last <= p->runs);
    if (p->runs - last < STAGING_SLOTS) {
        const lh_status_t status = engine_await(p->engine, p->done[(last - 1) % STAGING_SLOTS]);
        if (status != LH_OK) return status;
    }
    if (which == OUTPUT_LOSS) return loss_output(p, slot, host);
    memcpy(host, allocation_place(&p->engine->pinned, p->outputs[which].pinned[slot]).address,
           bytes);
    return LH_OK;
}

lh_status_t program_output(program_t *p, uint32_t which, void *host, uint64_t bytes)
{
    return program_output_of(p, which, 0, host, bytes);
}

uint64_t program_frame_bytes(const program_t *p)
{
    return p->frame_bytes;
}

uint32_t program_legs(const program_t *p, uint32_t *most)
{
    *most = p->legs;
    return p->leg_blocks;
}

bool program_halves(const program_t *p)
{
    return p->halves;
}

void program_cost(const program_t *p, program_cost_t *out)
{
    *out = (program_cost_t){0};
    const call_list_t *list = &p->lists[has_later_runs(p) ? 1 : 0];
    out->calls = list->count;
    for (uint32_t i = 0; i < list->count; i++) {
        const kernel_t *kernel = list->calls[i].kernel;
        if (kernel == NULL) continue;
        out->flops += kernel->cost.flops;
        out->bytes += kernel->cost.bytes;
    }
}

/* How a call is done, for reports: the kernel's name, "start" or "wait" of a transfer, "fill". */
static const char *call_kernel(const exec_call_t *call)
{
    if (call->kernel != NULL) return call->kernel->plan.name;
    switch (call->source->kind) {
    case FLOW_COLLECTIVE: return "start";
    case FLOW_WAIT: return "wait";
    default: return "fill";
    }
}

/* The part that a call belongs to, by its name in reports. engine.c compares these names as
 * pointers. */
static const char *part_text(const program_t *p, uint32_t part)
{
    if (p->how.use == USE_UPDATE) return "update";
    switch (part) {
    case LH_PART_EMBED: return "embed";
    case LH_PART_BLOCK: return "blocks";
    default: return "head";
    }
}

/* Bytes of a fill, or of what a transfer moves, which are counted where the transfer is started. */
static double call_bytes(const exec_call_t *call)
{
    if (call->source->kind == FLOW_COLLECTIVE)
        return (double)transfer_bytes(call->source->transfer);
    return (double)call->bytes;
}

bool program_call(const program_t *p, bool later, uint32_t i, program_call_t *out)
{
    const call_list_t *list = &p->lists[later ? 1 : 0];
    if (i >= list->count) return false;
    const exec_call_t *call = &list->calls[i];
    const kernel_t *kernel = call->kernel;
    *out = (program_call_t){.part = part_text(p, call->source->part),
                            .kernel = call_kernel(call),
                            .transfer = call->source->transfer,
                            .waits = call->source->kind == FLOW_WAIT,
                            .last_only = call->source->last_only,
                            .block = call->source->block,
                            .backward = call->source->backward,
                            .bytes = call_bytes(call),
                            .ns = call->ns};
    if (kernel == NULL) return true;
    out->op = kernel->op;
    out->attributes = kernel->attributes;
    out->args = kernel->args;
    out->arg_count = kernel->arg_count;
    out->flops = kernel->cost.flops;
    out->bytes = kernel->cost.bytes;
    return true;
}

const recording_t *program_block(const program_t *p)
{
    return p->block;
}
