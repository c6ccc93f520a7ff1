/* interpreter.c - memory for each value, a prepared kernel for each node, launched in order. */
#include "interpreter.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>
#undef fail /* cmocka's; the core's fail() is meant here */

#include <base/memory.h>
#include <base/status.h>
#include <base/sys.h>
#include <graph/recording.h>
#include <longhaul/dtype.h>
#include <ops/ops_view.h>

typedef struct step {
    const lh_kernel_t *kernel;
    lh_prepared_t *prepared;
    lh_place_t places[OP_SLOTS];
    void *scratch;
    uint32_t slots;
} step_t;

struct interpreter {
    const interpreter_how_t *how;
    const recording_t *r;
    lh_device_t *device;
    lh_stream_t *stream;
    void **memory;     /* by value; owned where it is a value's own */
    lh_value_t *owner; /* by value: in whose memory it lies         */
    step_t *steps;     /* by node                                   */
};

static uint64_t value_bytes(const lh_arg_t *arg)
{
    uint64_t n = lh_dtype_bytes(arg->dtype);
    for (uint32_t i = 0; i < arg->rank; i++)
        n *= arg->shape[i];
    return n;
}

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

static lh_status_t make_memory(interpreter_t *it)
{
    const recording_t *r = it->r;
    for (lh_value_t v = 1; v < r->value_count; v++) {
        it->owner[v] = owner_of(r, v);
        if (it->owner[v] != v || is_left_out(r, v)) continue;
        const graph_value_t *value = &r->values[v];
        it->memory[v] = mem_new(value_bytes(&value->arg));
        if (it->memory[v] == NULL) return LH_NO_MEMORY;
        if (value->kind == VALUE_CONSTANT)
            memcpy(it->memory[v], value->constant, value->constant_count * sizeof(float));
    }
    return LH_OK;
}

static void args_of(const interpreter_t *it, const graph_node_t *node, lh_arg_t *args)
{
    for (uint32_t s = 0; s < node_slots(node); s++) {
        const lh_value_t v = node->slots[s];
        args[s] = (lh_arg_t){0};
        if (v == 0 || is_left_out(it->r, v)) continue;
        args[s] = it->r->values[v].arg;
        const bool accumulates = it->how->add && it->r->values[v].kind == VALUE_GRADIENT;
        if (s >= node->op->in_count && (node->adds_to[s] != 0 || accumulates))
            args[s].flags |= LH_ARG_ADD;
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

static lh_status_t try_plugin(interpreter_t *it, const lh_plugin_t *plugin,
                              const lh_kernel_desc_t *desc, step_t *step, lh_kernel_plan_t *plan)
{
    for (uint32_t i = 0; i < plugin->kernel_count; i++) {
        const lh_kernel_t *row = &plugin->kernels[i];
        if (strcmp(row->op, desc->op) != 0) continue;
        if (row->device != NULL && strcmp(row->device, it->how->device->name) != 0) continue;
        if (!dtypes_match(row, desc->args, desc->arg_count)) continue;
        *plan = (lh_kernel_plan_t){.struct_size = sizeof(*plan)};
        const lh_status_t status = row->prepare(it->how->host, it->device, desc, plan,
                                                &step->prepared);
        if (status == LH_UNSUPPORTED) continue;
        step->kernel = row;
        return status;
    }
    return LH_UNSUPPORTED;
}

static lh_status_t prepare_node(interpreter_t *it, uint32_t n)
{
    const graph_node_t *node = &it->r->nodes[n];
    step_t *step = &it->steps[n];
    lh_arg_t args[OP_SLOTS];
    args_of(it, node, args);
    step->slots = node_slots(node);

    const lh_kernel_desc_t desc = {.struct_size = sizeof(desc),
                                   .flags = LH_KERNEL_ORDERED,
                                   .op = node->op->row.name,
                                   .attributes = node->attributes,
                                   .args = args,
                                   .arg_size = sizeof(args[0]),
                                   .arg_count = step->slots,
                                   .scratch_limit_bytes = UINT64_MAX,
                                   .stream = it->stream};
    lh_kernel_plan_t plan;
    lh_status_t status = try_plugin(it, it->how->device, &desc, step, &plan);
    for (uint32_t i = 0; i < it->how->plugin_count && status == LH_UNSUPPORTED; i++)
        status = try_plugin(it, it->how->plugins[i], &desc, step, &plan);
    if (status == LH_UNSUPPORTED)
        return fail(status, "no kernel of device %s for op %s", it->how->device->name, desc.op);
    if (status != LH_OK) return status;

    step->scratch = mem_new(plan.scratch_bytes + 1);
    if (step->scratch == NULL) return LH_NO_MEMORY;
    for (uint32_t s = 0; s < step->slots; s++)
        if (args[s].dtype != LH_DTYPE_NONE) {
            step->places[s].address = interpreter_at(it, node->slots[s]);
            step->places[s].memory = step->places[s].address;
        }
    return LH_OK;
}

lh_status_t interpreter_new(const interpreter_how_t *how, const recording_t *r, interpreter_t **out)
{
    interpreter_t *it = mem_new(sizeof(*it));
    if (it == NULL) return LH_NO_MEMORY;
    it->how = how;
    it->r = r;
    it->memory = mem_array(r->value_count, sizeof(void *));
    it->owner = mem_array(r->value_count, sizeof(lh_value_t));
    it->steps = mem_array(r->node_count, sizeof(step_t));
    const lh_stream_how_t stream = {.struct_size = sizeof(stream), .role = LH_STREAM_COMPUTE};
    lh_status_t status = it->memory == NULL || it->owner == NULL || it->steps == NULL
                             ? LH_NO_MEMORY
                             : how->device->device->open(how->host, NULL, 0, &it->device);
    if (status == LH_OK) status = how->device->device->stream_new(it->device, &stream, &it->stream);
    if (status == LH_OK) status = make_memory(it);
    for (uint32_t n = 1; n < r->node_count && status == LH_OK; n++)
        if (r->nodes[n].op->view == 0) status = prepare_node(it, n);
    if (status != LH_OK) {
        interpreter_free(it);
        return status;
    }
    *out = it;
    return LH_OK;
}

void interpreter_free(interpreter_t *it)
{
    for (uint32_t n = 1; it->steps != NULL && n < it->r->node_count; n++) {
        if (it->steps[n].prepared != NULL) it->steps[n].kernel->release(it->steps[n].prepared);
        mem_free(it->steps[n].scratch);
    }
    for (lh_value_t v = 1; it->memory != NULL && v < it->r->value_count; v++)
        mem_free(it->memory[v]);
    if (it->stream != NULL) it->how->device->device->stream_free(it->stream);
    if (it->device != NULL) it->how->device->device->close(it->device);
    mem_free(it->memory);
    mem_free(it->owner);
    mem_free(it->steps);
    mem_free(it);
}

void *interpreter_at(interpreter_t *it, lh_value_t v)
{
    return it->memory[it->owner[v]];
}

/* The place of an element of a move, counted row by row. */
static uint64_t place_in(const lh_arg_t *part, uint64_t element)
{
    uint64_t at = 0;
    for (uint32_t i = part->rank; i-- > 0; element /= part->shape[i])
        at += element % part->shape[i] * part->stride[i];
    return at;
}

/* What a view stands for, by elements: F64, or of any dtype where nothing is added. */
static void run_view(interpreter_t *it, const graph_node_t *node)
{
    lh_arg_t args[OP_SLOTS];
    op_move_t move;
    args_of(it, node, args);
    const uint32_t out = node->op->in_count;
    const bool adds = node->adds_to[out] != 0;
    if (node->op->view == VIEW_COLUMNS_GRAD && !adds)
        memset(interpreter_at(it, node->slots[out]), 0, value_bytes(&args[out]));
    for (uint32_t i = 0; op_view_move(node->op->view, node->attributes, args, i, &move); i++) {
        const uint64_t size = lh_dtype_bytes(move.from.dtype), n = value_bytes(&move.from) / size;
        const char *from = interpreter_at(it, node->slots[move.in]);
        char *to = interpreter_at(it, node->slots[move.out]);
        for (uint64_t e = 0; e < n; e++) {
            const char *x = from + (move.from_at + place_in(&move.from, e)) * size;
            char *y = to + (move.to_at + place_in(&move.to, e)) * size;
            lh_assert(move.from.dtype == LH_DTYPE_F64 || !(move.add || adds));
            if (move.add || adds)
                *(double *)(void *)y += *(const double *)(const void *)x;
            else
                memcpy(y, x, size);
        }
    }
}

lh_status_t interpreter_run(interpreter_t *it, bool forward_only)
{
    const lh_native_t no_queue = {.kind = ""};
    for (uint32_t n = 1; n < it->r->node_count; n++) {
        step_t *step = &it->steps[n];
        if (forward_only && it->r->nodes[n].backward) continue;
        if (step->kernel == NULL) {
            run_view(it, &it->r->nodes[n]);
            continue;
        }
        const lh_launch_t call = {.struct_size = sizeof(call),
                                  .arg_count = step->slots,
                                  .args = step->places,
                                  .scratch = {.memory = step->scratch, .address = step->scratch},
                                  .stream = it->stream,
                                  .queue = &no_queue};
        const lh_status_t status = step->kernel->launch(step->prepared, &call);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

const lh_plugin_t *test_plugin(const char *folder, const char *name)
{
    char path[4096];
    (void)snprintf(path, sizeof(path), "%s/%s/%s.so", LH_TEST_PLUGINS, folder, name);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL); /* stays open: plugins are not unloaded */
    const lh_plugin_t *plugin = library == NULL ? NULL : dlsym(library, LH_PLUGIN_SYMBOL);
    if (plugin == NULL) {
        print_error("%s\n", dlerror());
        _fail(__FILE__, __LINE__);
    }
    return plugin;
}

static lh_status_t host_fail(const lh_host_t *host, lh_status_t status, const char *fmt, ...)
{
    (void)host;
    char text[512];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return fail(status, "%s", text);
}

static void *host_alloc(const lh_host_t *host, size_t bytes, size_t alignment)
{
    (void)host, (void)alignment;
    return mem_new(bytes);
}

static void host_release(const lh_host_t *host, void *memory)
{
    (void)host;
    mem_free(memory);
}

static uint64_t host_now(const lh_host_t *host)
{
    (void)host;
    return sys()->now_ns();
}

const lh_host_t *test_host(void)
{
    static const lh_host_t host = {.struct_size = sizeof(host),
                                   .abi_version = LH_ABI_VERSION,
                                   .fail = host_fail,
                                   .alloc = host_alloc,
                                   .release = host_release,
                                   .now_ns = host_now};
    return &host;
}
