/* flow_view_run_test.c - random recordings of columns, concatenations, heads, repetitions and ops by
 * element: as flows, whose values are views and whose makers write into columns, they compute to the bit
 * what the interpreter of recordings computes, there and back, whole or in two legs, whatever the device
 * offers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <base/digest.h>
#include <base/memory.h>
#include <base/philox.h>
#include <base/status.h>
#include <graph/gradient.h>
#include <longhaul/dtype.h>
#include <longhaul/ops.h>
#include <program/flow.h>

#include "differences.h"

#include <cmocka.h> /* last: it has a fail() of its own */

enum { ROWS = 6, WIDTH = 12, VALUES = 24, NODES = 14, MOST = 2048, GRAPHS = 400 };

/* Which calls a device has kernels for. */
enum { OFFERS_ALL, OFFERS_DENSE, OFFERS_SOME, DEVICES };

typedef struct run {
    op_table_t *ops;
    recording_t *r;
    uint64_t seed, drawn;
    uint32_t device;
    lh_value_t x, from_above, gradient;
    uint32_t forward_end; /* nodes from here on are the way back */
    lh_value_t pool[VALUES];
    uint32_t count;
    flow_t *flow;
    uint32_t *map;
    char *arena;
    /* x, its seed, y and gx lie in allocations, in this order */
    allocation_t places[4];
} run_t;

static uint64_t draw(run_t *run, uint64_t below)
{
    return digest_xxh3(&(uint64_t[]){run->seed, run->drawn++}, 2 * sizeof(uint64_t)) % below;
}

static bool offers(void *device, const op_t *op, const void *attributes, const lh_arg_t *args)
{
    (void)attributes;
    const run_t *run = device;
    bool apart = false;
    for (uint32_t i = 0; i < op->in_count + op->out_count; i++)
        apart = apart || (args[i].rank == 2 && args[i].stride[0] != args[i].shape[1]);
    if (!apart || run->device == OFFERS_ALL) return true;
    if (run->device == OFFERS_DENSE) return false;
    return digest_xxh3(args, (op->in_count + op->out_count) * sizeof(*args)) % 2 == 0;
}

/* ---- recordings ---- */

static lh_arg_t arg_of(const run_t *run, lh_value_t v)
{
    return run->r->values[v].arg;
}

static lh_value_t some(run_t *run)
{
    return run->pool[draw(run, run->count)];
}

/* Another value of that many rows, or the same. */
static lh_value_t beside(run_t *run, lh_value_t v, bool alike)
{
    for (uint32_t tries = 0; tries < 8; tries++) {
        const lh_value_t other = some(run);
        const lh_arg_t a = arg_of(run, v), b = arg_of(run, other);
        if (a.shape[0] == b.shape[0] && (!alike || a.shape[1] == b.shape[1])) return other;
    }
    return v;
}

static uint32_t divisor(run_t *run, uint64_t of)
{
    uint32_t d = (uint32_t)draw(run, 4) + 1;
    while (of % d != 0)
        d--;
    return d;
}

static lh_value_t some_columns(run_t *run, lh_value_t x)
{
    lh_graph_t *g = &run->r->graph;
    const uint64_t w = arg_of(run, x).shape[1];
    const uint32_t groups = draw(run, 2) == 0 ? 1 : divisor(run, w);
    const uint64_t part = w / groups, from = draw(run, part);
    const lh_columns_t how = {sizeof(how), groups, from, draw(run, part - from + 1), 0};
    return g->api->op(g, "columns", &how, &x, 1, NULL);
}

/* Halves, taken and used, as of fused matrices. */
static lh_value_t halves(run_t *run, lh_value_t x)
{
    lh_graph_t *g = &run->r->graph;
    const uint64_t w = arg_of(run, x).shape[1];
    if (w % 2 != 0) return x;
    const lh_value_t a = lh_activate(g, lh_columns(g, x, 0, w / 2), LH_ACT_TANH);
    return lh_multiply(g, a, lh_columns(g, x, w / 2, w / 2));
}

static lh_value_t joined(run_t *run, lh_value_t a)
{
    lh_graph_t *g = &run->r->graph;
    lh_value_t in[4] = {a};
    const uint32_t n = (uint32_t)draw(run, 3) + 2;
    uint32_t groups = draw(run, 2) == 0 ? 1 : divisor(run, arg_of(run, a).shape[1]);
    const bool shared = draw(run, 4) == 0;
    for (uint32_t i = 1; i < n; i++) {
        in[i] = beside(run, a, false);
        if (arg_of(run, in[i]).shape[1] % groups != 0 && !(shared && i == 1)) groups = 1;
    }
    const lh_concat_t how = {sizeof(how), groups, shared, 0};
    return g->api->op(g, "concat", &how, in, n, NULL);
}

static lh_value_t other_rows(run_t *run, lh_value_t x)
{
    const lh_arg_t arg = arg_of(run, x);
    const uint64_t w = arg.shape[1];
    const bool join = draw(run, 2) == 0;
    const uint64_t width = join ? w * divisor(run, arg.shape[0]) : w / divisor(run, w);
    return lh_heads(&run->r->graph, x, width);
}

static lh_value_t node(run_t *run)
{
    lh_graph_t *g = &run->r->graph;
    const lh_value_t x = some(run);
    switch (draw(run, 9)) {
    case 0: return some_columns(run, x);
    case 1: return halves(run, x);
    case 2:
    case 3: return joined(run, x);
    case 4: return other_rows(run, x);
    case 5: return lh_repeat(g, x, (uint32_t)draw(run, 3) + 1);
    case 6: return lh_add(g, x, beside(run, x, true));
    case 7: return lh_multiply(g, x, beside(run, x, true));
    default: return lh_activate(g, x, LH_ACT_TANH);
    }
}

static uint64_t elements_of(const lh_arg_t *arg)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i < arg->rank; i++)
        n *= arg->shape[i];
    return n;
}

/* The last node is the output. */
static void record(run_t *run)
{
    static const uint64_t shape[] = {ROWS, WIDTH};
    run->r = test_recording(run->ops, NULL, NULL);
    run->r->how.offers = offers;
    run->r->how.device = run;
    run->pool[run->count++] = run->x = recording_argument(run->r, LH_DTYPE_F64, 2, shape);
    run->pool[run->count++] = lh_activate(&run->r->graph, run->x, LH_ACT_SILU);
    for (uint32_t i = 0; i < NODES; i++) {
        const lh_value_t made = node(run);
        if (recording_status(run->r) != LH_OK) fail_msg("%s", fail_reason());
        const lh_arg_t arg = arg_of(run, made);
        if (elements_of(&arg) <= MOST && run->count < VALUES) run->pool[run->count++] = made;
    }
    run->r->output = run->pool[run->count - 1];
}

/* ---- the flow ---- */

static uint32_t placed(run_t *run, uint32_t place, const lh_arg_t *arg)
{
    flow_t *f = run->flow;
    const uint64_t bytes = flow_arg_bytes(arg);
    run->places[place] = (allocation_t){.name = "place", .bytes = bytes, .address = mem_new(bytes)};
    return flow_value(f, arg, flow_buffer(f, &run->places[place], 0, bytes), 0);
}

static void copied_out(run_t *run, flow_source_t *s, lh_value_t v, uint32_t place)
{
    const lh_arg_t arg = flow_arg(LH_DTYPE_F64, arg_of(run, v).rank, arg_of(run, v).shape);
    const uint32_t slots[] = {flow_mapped(s, v), placed(run, place, &arg)};
    flow_kernel(run->flow, s->copy, NULL, slots);
}

/* Nodes [begin, end), in a walk of their own; again: over what they made before. */
static void walk(run_t *run, flow_source_t *s, uint32_t begin, uint32_t end, bool again)
{
    const recording_t *r = run->r;
    s->first_call = run->flow->call_count;
    s->first_value = run->flow->value_count;
    s->first_buffer = run->flow->buffer_count;
    s->outside = begin < run->forward_end ? r->output : run->gradient;
    for (uint32_t n = begin; n < end; n++) {
        if (again) run->map[r->nodes[n].slots[r->nodes[n].op->in_count]] = 0;
        flow_node(s, n);
    }
}

/* The first node of the way back that belongs to the gradient of one in front of `cut`. */
static uint32_t back_of(const run_t *run, uint32_t cut)
{
    uint32_t n = run->forward_end;
    while (n < run->r->node_count &&
           (run->r->nodes[n].gradient_of == 0 || run->r->nodes[n].gradient_of >= cut))
        n++;
    return n;
}

/* There and back, in legs that are cut in front of node `cut` (1: whole), and perhaps there again before
 * each leg's way back. */
static void flow_write(run_t *run, uint32_t cut, bool again)
{
    recording_t *r = run->r;
    assert_int_equal(flow_new(&run->flow), LH_OK);
    run->map = mem_array(r->value_count, sizeof(*run->map));
    flow_source_t s = {.flow = run->flow,
                       .recording = r,
                       .copy = op_table_find(run->ops, "copy"),
                       .map = run->map};
    const lh_arg_t x = arg_of(run, run->x), above = arg_of(run, run->from_above);
    const uint32_t back = back_of(run, cut);
    run->map[run->x] = placed(run, 0, &x);
    run->map[run->from_above] = placed(run, 1, &above);
    walk(run, &s, 1, cut, false);
    walk(run, &s, cut, run->forward_end, false);
    copied_out(run, &s, r->output, 2);
    run->flow->turn = run->flow->call_count;
    if (again) walk(run, &s, cut, run->forward_end, true);
    walk(run, &s, run->forward_end, back, false);
    if (again) walk(run, &s, 1, cut, true);
    walk(run, &s, back, r->node_count, false);
    copied_out(run, &s, run->gradient, 3);
    assert_int_equal(run->flow->status, LH_OK);
    assert_int_equal(flow_finish(run->flow, 64), LH_OK);
    run->arena = mem_new(run->flow->arena_bytes[ARENA_ACTIVATIONS] + 1);
    memset(run->arena, 0xff, run->flow->arena_bytes[ARENA_ACTIVATIONS] + 1);
}

static void *address_of(const run_t *run, uint32_t value)
{
    const flow_value_t *v = &run->flow->values[value];
    const flow_buffer_t *b = &run->flow->buffers[v->buffer];
    char *from = b->allocation != NULL ? b->allocation->address : run->arena;
    return from + b->offset + v->offset;
}

static const lh_kernel_t *kernel_of(const lh_plugin_t *device, const char *op)
{
    for (uint32_t i = 0; i < device->kernel_count; i++)
        if (strcmp(device->kernels[i].op, op) == 0) return &device->kernels[i];
    fail_msg("no kernel for %s", op);
    return NULL;
}

static void call_run(const run_t *run, const flow_call_t *call, const lh_plugin_t *device,
                     lh_device_t *opened)
{
    lh_arg_t args[OP_SLOTS] = {0};
    lh_place_t places[OP_SLOTS] = {0};
    if (call->kind == FLOW_FILL) {
        memset(address_of(run, call->slots[0]), 0,
               flow_arg_bytes(&run->flow->values[call->slots[0]].arg));
        return;
    }
    for (uint32_t i = 0; i < flow_call_slots(call); i++) {
        if (call->slots[i] == 0) continue;
        args[i] = run->flow->values[call->slots[i]].arg;
        args[i].flags = (call->add >> i & 1u) != 0 ? LH_ARG_ADD : 0;
        places[i].address = address_of(run, call->slots[i]);
        places[i].memory = places[i].address;
    }
    const lh_kernel_t *kernel = kernel_of(device, call->op->row.name);
    const lh_kernel_desc_t desc = {.struct_size = sizeof(desc),
                                   .flags = LH_KERNEL_ORDERED,
                                   .op = call->op->row.name,
                                   .attributes = call->attributes,
                                   .args = args,
                                   .arg_size = sizeof(args[0]),
                                   .arg_count = flow_call_slots(call),
                                   .scratch_limit_bytes = UINT64_MAX};
    lh_kernel_plan_t plan = {.struct_size = sizeof(plan)};
    lh_prepared_t *prepared;
    assert_int_equal(kernel->prepare(test_host(), opened, &desc, &plan, &prepared), LH_OK);
    assert_int_equal(plan.scratch_bytes, 0);
    const lh_launch_t launch = {
        .struct_size = sizeof(launch), .arg_count = flow_call_slots(call), .args = places};
    assert_int_equal(kernel->launch(prepared, &launch), LH_OK);
    kernel->release(prepared);
}

static void close_run(run_t *run)
{
    for (uint32_t i = 0; i < 4; i++)
        mem_free(run->places[i].address);
    mem_free(run->arena);
    mem_free(run->map);
    flow_free(run->flow);
    recording_free(run->r);
}

static void compare(run_t *run, const void *found, const void *expected, uint64_t elements,
                    const char *what)
{
    const double *a = found, *b = expected;
    for (uint64_t i = 0; i < elements; i++)
        if (!(a[i] == b[i]))
            fail_msg("graph %d, device %u: element %d of %s is %.17g, the recording's %.17g",
                     (int)run->seed, run->device, (int)i, what, a[i], b[i]);
}

static void run_one(op_table_t *ops, uint64_t seed, uint32_t device, const lh_plugin_t *reference,
                    lh_device_t *opened)
{
    run_t run = {.ops = ops, .seed = seed, .device = device};
    record(&run);
    run.forward_end = run.r->node_count;
    differentiated_t d = {.r = run.r, .input = run.x, .op = "views", .what = "random"};
    differentiate(&d);
    run.from_above = d.seed;
    run.gradient = d.input_gradient;
    if (run.gradient == 0) { /* x is the output, or nothing depends on it */
        recording_free(run.r);
        return;
    }
    const interpreter_how_t how = {.host = test_host(), .device = reference};
    interpreter_t *it;
    assert_int_equal(interpreter_new(&how, run.r, &it), LH_OK);
    test_fill(it, run.r);
    assert_int_equal(interpreter_run(it, false), LH_OK);

    const uint32_t cut = seed % 2 == 0 ? 1 : 1 + (uint32_t)draw(&run, run.forward_end - 1);
    flow_write(&run, cut, seed % 3 == 0);
    const lh_value_t given[] = {run.x, run.from_above};
    for (uint32_t i = 0; i < 2; i++)
        memcpy(run.places[i].address, interpreter_at(it, given[i]), run.places[i].bytes);
    for (uint32_t c = 1; c < run.flow->call_count; c++)
        call_run(&run, &run.flow->calls[c], reference, opened);
    compare(&run, run.places[2].address, interpreter_at(it, run.r->output),
            test_elements(run.r, run.r->output), "the output");
    compare(&run, run.places[3].address, interpreter_at(it, run.gradient),
            test_elements(run.r, run.gradient), "the gradient");
    interpreter_free(it);
    close_run(&run);
}

static void flows_compute_what_recordings_say(void **state)
{
    (void)state;
    op_table_t *ops = test_ops();
    const lh_plugin_t *reference = test_plugin("devices", "reference");
    lh_device_t *opened;
    assert_int_equal(reference->device->open(test_host(), NULL, 0, &opened), LH_OK);
    for (uint64_t seed = 0; seed < GRAPHS; seed++)
        for (uint32_t device = 0; device < DEVICES; device++)
            run_one(ops, seed, device, reference, opened);
    reference->device->close(opened);
    op_table_free(ops);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(flows_compute_what_recordings_say)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
