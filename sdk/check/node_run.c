/* node_run.c - one arena, a mirror of it here, a prepared kernel for each node. */
#include "node_run.h"

#include <math.h>
#include <stdio.h>

#include <base/memory.h>
#include <graph/recording.h>
#include <longhaul/dtype.h>
#include <ops/ops_view.h>

#include "check.h"

static const uint64_t patience_ns = 60000000000ull;
enum {
    CANARY = 0xff,
    BETWEEN = 0x3f
}; /* of every byte that nobody set: not-a-number in all floating dtypes */

/* One launch, or zeros in places[0]. */
typedef struct step {
    const lh_kernel_t *kernel; /* NULL: zeros */
    lh_prepared_t *prepared;
    lh_place_t places[OP_SLOTS];
    lh_launch_t launch;
    lh_memory_t *scratch;
    uint64_t bytes; /* of zeros */
    bool backward;
} step_t;

typedef struct lot { /* where a value lies */
    uint64_t offset, bytes, rows, width, pitch;
    lh_dtype_t dtype;
    bool present, given; /* by node_run_set */
} lot_t;

struct node_run {
    node_run_how_t how;
    const recording_t *r;
    lot_t *lots;       /* by value */
    lh_value_t *owner; /* by value: in whose memory it lies */
    step_t *steps;     /* [step_count] of one node, or of a view as many as it has copies */
    uint32_t step_count;
    uint64_t bytes;
    char *before, *after; /* the arena as set, and as the last run left it */
    lh_memory_t *arena, *pinned;
    void *arena_address, *pinned_address;
};

static char lacking[64];

const char *node_run_lacking(void)
{
    return lacking;
}

lh_status_t opened_open(const plugin_t *plugin, const lh_host_t *host, const void *config,
                        opened_t *out)
{
    const lh_device_api_t *api = plugin->device;
    const lh_stream_how_t how = {.struct_size = sizeof(how), .role = LH_STREAM_COMPUTE};
    opened_t o = {.plugin = plugin, .host = host, .config = config};
    o.properties.struct_size = sizeof(o.properties);
    lh_status_t status = api->open(host, config, 0, &o.device);
    if (status == LH_OK) status = api->properties(o.device, &o.properties);
    if (status == LH_OK) status = api->stream_new(o.device, &how, &o.stream);
    if (status == LH_OK) status = api->event_new(o.device, &o.event);
    if (status == LH_OK && api->native != NULL) status = api->native(o.stream, &o.queue);
    if (status == LH_OK)
        *out = o;
    else
        opened_close(&o);
    return status;
}

void opened_close(opened_t *o)
{
    const lh_device_api_t *api = o->plugin->device;
    if (o->event != NULL) api->event_free(o->event);
    if (o->stream != NULL) api->stream_free(o->stream);
    if (o->device != NULL) api->close(o->device);
    o->device = NULL;
    o->stream = NULL;
    o->event = NULL;
}

lh_status_t opened_wait(opened_t *o)
{
    const lh_status_t status = o->plugin->device->record(o->stream, o->event);
    return status == LH_OK ? o->plugin->device->test(o->event, patience_ns) : status;
}

/* ---- where values lie ---- */

static bool is_read(const recording_t *r, lh_value_t v)
{
    for (uint32_t n = 1; n < r->node_count; n++)
        for (uint32_t s = 0; s < node_slots(&r->nodes[n]); s++)
            if ((s < r->nodes[n].op->in_count && r->nodes[n].slots[s] == v) ||
                r->nodes[n].adds_to[s] == v)
                return true;
    return false;
}

static bool is_left_out(const recording_t *r, lh_value_t v)
{
    const graph_value_t *value = &r->values[v];
    if (value->kind != VALUE_RESULT || v == r->output) return value->kind == VALUE_NONE;
    const graph_node_t *node = &r->nodes[value->node];
    const uint32_t alias = node->op->alias[value->slot];
    if (alias != 0 && node->slots[alias - 1] != 0) return false; /* goes with its input */
    return r->nodes[value->node].op->optional[value->slot] && !is_read(r, v);
}

static lh_value_t owner_of(const recording_t *r, lh_value_t v)
{
    for (;;) {
        const graph_value_t *value = &r->values[v];
        if (value->kind != VALUE_RESULT && value->kind != VALUE_GRADIENT) return v;
        const graph_node_t *node = &r->nodes[value->node];
        const uint32_t alias = node->op->alias[value->slot];
        if (node->adds_to[value->slot] != 0)
            v = node->adds_to[value->slot];
        else if (alias != 0)
            v = node->slots[alias - 1];
        else
            return v;
    }
}

static lot_t lot_of(const node_run_t *n, const lh_arg_t *arg)
{
    lot_t lot = {.dtype = arg->dtype, .rows = 1, .width = 1, .present = true};
    for (uint32_t i = 0; i + 1 < arg->rank; i++)
        lot.rows *= arg->shape[i];
    if (arg->rank > 0) lot.width = arg->shape[arg->rank - 1];
    lot.pitch = lot.width + (arg->rank == 2 ? n->how.pad : 0);
    lot.bytes = lot.rows * lot.pitch * lh_dtype_bytes(arg->dtype);
    return lot;
}

static void lay_out(node_run_t *n)
{
    const uint64_t unit = n->how.on->properties.alignment_bytes > 64
                              ? n->how.on->properties.alignment_bytes
                              : 64;
    uint64_t at = n->how.shift * unit;
    for (lh_value_t v = 1; v < n->r->value_count; v++) {
        n->owner[v] = owner_of(n->r, v);
        if (n->owner[v] != v || is_left_out(n->r, v)) continue;
        n->lots[v] = lot_of(n, &n->r->values[v].arg);
        n->lots[v].offset = at;
        at += (n->lots[v].bytes + 2 * unit - 1) / unit * unit;
    }
    n->bytes = at + unit;
}

static const lot_t *lot_at(const node_run_t *n, lh_value_t v)
{
    return &n->lots[n->owner[v]];
}

bool node_run_has(const node_run_t *n, lh_value_t v)
{
    return lot_at(n, v)->present;
}

uint64_t node_run_elements(const node_run_t *n, lh_value_t v)
{
    const lot_t *lot = lot_at(n, v);
    return lot->rows * lot->width;
}

/* ---- numbers ---- */

static void number_write(lh_dtype_t dtype, char *to, double value)
{
    const float single = (float)value;
    const int32_t whole = isfinite(value) ? (int32_t)value : -1;
    const uint16_t half = dtype == LH_DTYPE_F16 ? lh_f32_to_f16(single) : lh_f32_to_bf16(single);
    switch (dtype) {
    case LH_DTYPE_F32: memcpy(to, &single, 4); break;
    case LH_DTYPE_F64: memcpy(to, &value, 8); break;
    case LH_DTYPE_I32: memcpy(to, &whole, 4); break;
    case LH_DTYPE_BF16:
    case LH_DTYPE_F16: memcpy(to, &half, 2); break;
    default: memset(to, CANARY, lh_dtype_bytes(dtype)); break;
    }
}

static double number_read(lh_dtype_t dtype, const char *from)
{
    float single = 0;
    double value = 0;
    int32_t whole = 0;
    uint16_t half = 0;
    switch (dtype) {
    case LH_DTYPE_F32: memcpy(&single, from, 4); return (double)single;
    case LH_DTYPE_F64: memcpy(&value, from, 8); return value;
    case LH_DTYPE_I32: memcpy(&whole, from, 4); return whole;
    case LH_DTYPE_BF16: memcpy(&half, from, 2); return (double)lh_bf16_to_f32(half);
    case LH_DTYPE_F16: memcpy(&half, from, 2); return (double)lh_f16_to_f32(half);
    default: return 0;
    }
}

void node_run_set(node_run_t *n, lh_value_t v, const double *values)
{
    lot_t *lot = &n->lots[n->owner[v]];
    const uint64_t size = lh_dtype_bytes(lot->dtype);
    /* Numbers, as a kernel that goes on between rows would hand not-a-numbers through. */
    memset(n->before + lot->offset, BETWEEN, lot->bytes);
    lot->given = true;
    for (uint64_t row = 0; row < lot->rows; row++)
        for (uint64_t c = 0; c < lot->width; c++)
            number_write(lot->dtype, n->before + lot->offset + (row * lot->pitch + c) * size,
                         values[row * lot->width + c]);
}

void node_run_get(const node_run_t *n, lh_value_t v, double *values)
{
    const lot_t *lot = lot_at(n, v);
    const uint64_t size = lh_dtype_bytes(lot->dtype);
    for (uint64_t row = 0; row < lot->rows; row++)
        for (uint64_t c = 0; c < lot->width; c++)
            values[row * lot->width + c] = number_read(
                lot->dtype, n->after + lot->offset + (row * lot->pitch + c) * size);
}

bool node_run_kept_between(const node_run_t *n)
{
    for (lh_value_t v = 1; v < n->r->value_count; v++) {
        const lot_t *lot = &n->lots[v];
        const uint64_t size = lh_dtype_bytes(lot->dtype);
        for (uint64_t row = 0; lot->present && row < lot->rows; row++)
            for (uint64_t b = lot->width * size; b < lot->pitch * size; b++)
                if ((uint8_t)n->after[lot->offset + row * lot->pitch * size + b] !=
                    (lot->given ? BETWEEN : CANARY))
                    return false;
    }
    return true;
}

/* ---- kernels ---- */

static void args_of(const node_run_t *n, const graph_node_t *node, lh_arg_t *args)
{
    for (uint32_t s = 0; s < node_slots(node); s++) {
        const lh_value_t v = node->slots[s];
        args[s] = (lh_arg_t){0};
        if (v == 0 || is_left_out(n->r, v)) continue;
        args[s] = n->r->values[v].arg;
        uint64_t stride = 1;
        for (uint32_t i = args[s].rank; i-- > 0; stride *= args[s].shape[i])
            args[s].stride[i] = stride;
        if (args[s].rank == 2) args[s].stride[0] += n->how.pad;
        const bool output = s >= node->op->in_count;
        const bool adds = n->how.add && n->r->values[v].kind == VALUE_GRADIENT;
        if (output && (node->adds_to[s] != 0 || adds)) args[s].flags |= LH_ARG_ADD;
        if (output) args[s].alias_slot = node->op->alias[s];
    }
}

static bool dtypes_match(const lh_kernel_t *row, const lh_arg_t *args, uint32_t count)
{
    for (uint32_t s = 0; s < count; s++)
        if (row->dtypes[s] != LH_DTYPE_NONE && args[s].dtype != LH_DTYPE_NONE &&
            row->dtypes[s] != args[s].dtype)
            return false;
    return true;
}

/* The first row that matches and says yes, as the core chooses. */
static lh_status_t try_rows(node_run_t *n, const plugin_t *plugin, const lh_kernel_desc_t *desc,
                            step_t *step, lh_kernel_plan_t *plan)
{
    const opened_t *on = n->how.on;
    for (uint32_t i = 0; i < plugin->kernel_count; i++) {
        const lh_kernel_t *row = &plugin->kernels[i];
        if (strcmp(row->op, desc->op) != 0) continue;
        if (row->device == NULL ? plugin != on->plugin : strcmp(row->device, on->plugin->name) != 0)
            continue;
        if (!dtypes_match(row, desc->args, desc->arg_count)) continue;
        if (row->fits != NULL &&
            row->fits(on->host, on->device, on->config, desc) == LH_UNSUPPORTED)
            continue;
        *plan = (lh_kernel_plan_t){.struct_size = sizeof(*plan)};
        const lh_status_t status = row->prepare(on->host, on->device, desc, plan, &step->prepared);
        if (status == LH_UNSUPPORTED) continue;
        step->kernel = row;
        return status;
    }
    return LH_UNSUPPORTED;
}

static lh_place_t place_of(const node_run_t *n, lh_value_t v)
{
    const lot_t *lot = lot_at(n, v);
    return (lh_place_t){n->arena, lot->offset,
                        n->arena_address == NULL ? NULL : (char *)n->arena_address + lot->offset};
}

/* A step for one call; its launch points into it, so steps do not move. */
static lh_status_t prepare_call(node_run_t *n, const char *op, const void *attributes,
                                const lh_arg_t *args, const lh_place_t *places, uint32_t count)
{
    opened_t *on = n->how.on;
    step_t *step = &n->steps[n->step_count++];
    lh_kernel_plan_t plan;
    void *address = NULL;
    const lh_kernel_desc_t desc = {.struct_size = sizeof(desc),
                                   .flags = LH_KERNEL_ORDERED,
                                   .op = op,
                                   .attributes = attributes,
                                   .args = args,
                                   .arg_size = sizeof(args[0]),
                                   .arg_count = count,
                                   .scratch_limit_bytes = (uint64_t)1 << 32,
                                   .stream = on->stream};
    lh_status_t status = try_rows(n, on->plugin, &desc, step, &plan);
    for (uint32_t i = 0; i < n->how.other_count && status == LH_UNSUPPORTED; i++)
        status = try_rows(n, n->how.others[i], &desc, step, &plan);
    if (status == LH_UNSUPPORTED) (void)snprintf(lacking, sizeof(lacking), "%s", desc.op);
    if (status == LH_OK && plan.scratch_bytes > 0)
        status = on->plugin->device->alloc(on->device, LH_SPACE_DEVICE, plan.scratch_bytes,
                                           &step->scratch, &address);
    if (status != LH_OK) return status;
    memcpy(step->places, places, count * sizeof(*places));
    step->launch = (lh_launch_t){.struct_size = sizeof(step->launch),
                                 .arg_count = count,
                                 .args = step->places,
                                 .scratch = {step->scratch, 0, address},
                                 .stream = on->stream,
                                 .queue = &on->queue};
    if (step->kernel->bind == NULL) return LH_OK;
    return step->kernel->bind(step->prepared, &step->launch, &step->launch.bound);
}

static lh_place_t place_behind(lh_place_t at, uint64_t bytes)
{
    at.offset += bytes;
    if (at.address != NULL) at.address = (char *)at.address + bytes;
    return at;
}

/* Zeros in the rows of a value, and not between them. */
static void zeros_add(node_run_t *n, lh_value_t v)
{
    const lot_t *lot = lot_at(n, v);
    const uint64_t size = lh_dtype_bytes(lot->dtype);
    for (uint64_t row = 0; row < lot->rows; row++) {
        step_t *step = &n->steps[n->step_count++];
        step->places[0] = place_behind(place_of(n, v), row * lot->pitch * size);
        step->bytes = lot->width * size;
    }
}

/* A view is the copies that it stands for. */
static lh_status_t prepare_view(node_run_t *n, const graph_node_t *node, const lh_arg_t *args)
{
    lh_status_t status = LH_OK;
    op_move_t move;
    const uint32_t out = node->op->in_count;
    const bool adds = node->adds_to[out] != 0;
    if (node->op->view == VIEW_COLUMNS_GRAD && !adds) zeros_add(n, node->slots[out]);
    for (uint32_t i = 0;
         status == LH_OK && op_view_move(node->op->view, node->attributes, args, i, &move); i++) {
        const uint64_t size = lh_dtype_bytes(move.from.dtype);
        const lh_place_t places[] = {
            place_behind(place_of(n, node->slots[move.in]), move.from_at * size),
            place_behind(place_of(n, node->slots[move.out]), move.to_at * size)};
        lh_arg_t parts[] = {move.from, move.to};
        if (adds || move.add) parts[1].flags = LH_ARG_ADD;
        status = prepare_call(n, "copy", NULL, parts, places, 2);
    }
    return status;
}

static lh_status_t prepare_node(node_run_t *n, uint32_t index)
{
    const graph_node_t *node = &n->r->nodes[index];
    lh_arg_t args[OP_SLOTS];
    lh_place_t places[OP_SLOTS] = {0};
    args_of(n, node, args);
    for (uint32_t s = 0; s < node_slots(node); s++)
        if (args[s].dtype != LH_DTYPE_NONE) places[s] = place_of(n, node->slots[s]);
    const uint32_t first = n->step_count;
    const lh_status_t status = node->op->view != 0
                                   ? prepare_view(n, node, args)
                                   : prepare_call(n, node->op->row.name, node->attributes, args,
                                                  places, node_slots(node));
    for (uint32_t i = first; i < n->step_count; i++)
        n->steps[i].backward = node->backward;
    return status;
}

/* The most steps that a recording may have. */
static uint64_t steps_most(const node_run_t *n)
{
    uint64_t count = n->r->node_count;
    for (uint32_t i = 1; i < n->r->node_count; i++) {
        const graph_node_t *node = &n->r->nodes[i];
        op_move_t move;
        lh_arg_t args[OP_SLOTS];
        if (node->op->view == 0) continue;
        args_of(n, node, args);
        for (uint32_t m = 0; op_view_move(node->op->view, node->attributes, args, m, &move); m++)
            count++;
        if (node->op->view == VIEW_COLUMNS_GRAD)
            count += n->r->values[node->slots[node->op->in_count]].arg.shape[0];
    }
    return count;
}

static lh_status_t make_memory(node_run_t *n)
{
    const lh_device_api_t *api = n->how.on->plugin->device;
    n->before = mem_new(n->bytes);
    n->after = mem_new(n->bytes);
    if (n->before == NULL || n->after == NULL) return LH_NO_MEMORY;
    memset(n->before, CANARY, n->bytes);
    for (lh_value_t v = 1; v < n->r->value_count; v++) {
        const graph_value_t *value = &n->r->values[v];
        if (value->kind == VALUE_CONSTANT && n->lots[v].present)
            memcpy(n->before + n->lots[v].offset, value->constant,
                   value->constant_count * sizeof(float));
    }
    lh_status_t status = api->alloc(n->how.on->device, LH_SPACE_DEVICE, n->bytes, &n->arena,
                                    &n->arena_address);
    if (status == LH_OK)
        status = api->alloc(n->how.on->device, LH_SPACE_PINNED, n->bytes, &n->pinned,
                            &n->pinned_address);
    return status;
}

lh_status_t node_run_new(const node_run_how_t *how, const recording_t *r, node_run_t **out)
{
    node_run_t *n = mem_new(sizeof(*n));
    if (n == NULL) return LH_NO_MEMORY;
    n->how = *how;
    n->r = r;
    n->lots = mem_array(r->value_count, sizeof(*n->lots));
    n->owner = mem_array(r->value_count, sizeof(*n->owner));
    n->steps = mem_array(steps_most(n), sizeof(*n->steps));
    lh_status_t status = LH_NO_MEMORY;
    if (n->lots != NULL && n->owner != NULL && n->steps != NULL) {
        lay_out(n);
        status = make_memory(n);
    }
    for (uint32_t i = 1; i < r->node_count && status == LH_OK; i++)
        status = prepare_node(n, i);
    if (status == LH_OK)
        *out = n;
    else
        node_run_free(n);
    return status;
}

void node_run_free(node_run_t *n)
{
    const lh_device_api_t *api = n->how.on->plugin->device;
    for (uint32_t i = 0; i < n->step_count; i++) {
        if (n->steps[i].prepared != NULL && n->steps[i].kernel != NULL)
            n->steps[i].kernel->release(n->steps[i].prepared);
        if (n->steps[i].scratch != NULL) api->release(n->steps[i].scratch);
    }
    if (n->arena != NULL) api->release(n->arena);
    if (n->pinned != NULL) api->release(n->pinned);
    mem_free(n->before);
    mem_free(n->after);
    mem_free(n->lots);
    mem_free(n->owner);
    mem_free(n->steps);
    mem_free(n);
}

lh_status_t node_run_go(node_run_t *n, bool forward_only)
{
    check_alive();
    opened_t *on = n->how.on;
    const lh_device_api_t *api = on->plugin->device;
    const lh_place_t here = {n->pinned, 0, n->pinned_address};
    const lh_place_t there = {n->arena, 0, n->arena_address};
    memcpy(n->pinned_address, n->before, n->bytes);
    lh_status_t status = api->copy(on->stream, &there, &here, n->bytes);
    for (uint32_t i = 0; i < n->step_count && status == LH_OK; i++) {
        step_t *step = &n->steps[i];
        if (forward_only && step->backward) continue;
        status = step->kernel == NULL ? api->fill(on->stream, &step->places[0], 0, step->bytes)
                                      : step->kernel->launch(step->prepared, &step->launch);
    }
    if (status == LH_OK) status = opened_wait(on);
    if (status == LH_OK) status = api->copy(on->stream, &here, &there, n->bytes);
    if (status == LH_OK) status = opened_wait(on);
    if (status == LH_OK) memcpy(n->after, n->pinned_address, n->bytes);
    return status;
}
