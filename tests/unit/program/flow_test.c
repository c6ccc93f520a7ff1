/* flow_test.c - which outputs take the place of inputs in memory; what a recorded send and a
 * recorded receive become. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#undef fail

#include <graph/op_table.h>
#include <graph/recorder.h>
#include <longhaul/graph.h>
#include <ops/ops_collective.h>
#include <program/flow.h>

enum { ROWS = 8, WIDTH = 40, ALIGNMENT = 64 };

/* The way of logits through a head: made from x, turned into their gradient, which is used. */
typedef struct head {
    op_table_t *ops;
    flow_t *flow;
    uint32_t logits, gradient;
} head_t;

static allocation_t inputs = {.name = "inputs"}, outputs = {.name = "outputs"};

static uint32_t in_allocation(flow_t *f, const allocation_t *a, const lh_arg_t *arg)
{
    return flow_value(f, arg, flow_buffer(f, a, 0, flow_arg_bytes(arg)), 0);
}

static lh_arg_t matrix(lh_dtype_t dtype, uint64_t rows, uint64_t columns)
{
    const uint64_t shape[] = {rows, columns};
    return flow_arg(dtype, 2, shape);
}

static void copy(head_t *h, uint32_t from, uint32_t to)
{
    const uint32_t slots[] = {from, to};
    flow_kernel(h->flow, op_table_find(h->ops, "copy"), NULL, slots);
}

/* Up to the gradient: logits in one dtype, their gradient in another. */
static head_t head_new(lh_dtype_t logits, lh_dtype_t gradient)
{
    head_t h = {0};
    assert_int_equal(op_table_new(&h.ops), LH_OK);
    assert_int_equal(flow_new(&h.flow), LH_OK);
    flow_t *f = h.flow;
    const uint64_t rows = ROWS, one = 1;
    const lh_arg_t x = matrix(LH_DTYPE_F32, ROWS, WIDTH), made = matrix(logits, ROWS, WIDTH),
                   back = matrix(gradient, ROWS, WIDTH);
    const lh_arg_t labels = flow_arg(LH_DTYPE_I32, 1, &rows),
                   weights = flow_arg(LH_DTYPE_F32, 1, &rows),
                   loss = flow_arg(LH_DTYPE_F32, 1, &one);
    h.logits = flow_activation(f, &made);
    h.gradient = flow_activation(f, &back);
    copy(&h, in_allocation(f, &inputs, &x), h.logits);
    const uint32_t slots[] = {h.logits, in_allocation(f, &inputs, &labels),
                              in_allocation(f, &inputs, &weights),
                              in_allocation(f, &outputs, &loss), h.gradient};
    flow_kernel(f, op_table_find(h.ops, "cross_entropy"), NULL, slots);
    return h;
}

static void finish(head_t *h)
{
    const lh_arg_t out = matrix(LH_DTYPE_F32, ROWS, WIDTH);
    copy(h, h->gradient, in_allocation(h->flow, &outputs, &out));
    assert_int_equal(flow_finish(h->flow, ALIGNMENT), LH_OK);
}

static bool same_place(const head_t *h)
{
    const flow_value_t *v = h->flow->values;
    return v[h->logits].buffer == v[h->gradient].buffer;
}

static void head_free(head_t *h)
{
    flow_free(h->flow);
    op_table_free(h->ops);
}

static void a_gradient_lies_over_logits_that_are_read_no_more(void **state)
{
    (void)state;
    head_t h = head_new(LH_DTYPE_BF16, LH_DTYPE_BF16);
    finish(&h);
    assert_true(same_place(&h));
    assert_int_equal(h.flow->arena_bytes[ARENA_ACTIVATIONS], ROWS * WIDTH * 2);
    head_free(&h);
}

static void of_another_dtype_it_has_a_place_of_its_own(void **state)
{
    (void)state;
    head_t h = head_new(LH_DTYPE_F32, LH_DTYPE_BF16);
    finish(&h);
    assert_false(same_place(&h));
    assert_int_equal(h.flow->arena_bytes[ARENA_ACTIVATIONS], ROWS * WIDTH * (4 + 2));
    head_free(&h);
}

/* A later call that reads the logits, or a part of them, finds them. */
static void logits_that_are_read_again_stay(void **state)
{
    (void)state;
    for (uint32_t part = 0; part < 2; part++) {
        head_t h = head_new(LH_DTYPE_F32, LH_DTYPE_F32);
        const lh_arg_t out = matrix(LH_DTYPE_F32, part == 0 ? ROWS : 2, WIDTH);
        const uint32_t read = part == 0 ? h.logits : flow_rows(h.flow, h.logits, 3, 2);
        copy(&h, read, in_allocation(h.flow, &outputs, &out));
        finish(&h);
        assert_false(same_place(&h));
        head_free(&h);
    }
}

static void logits_that_the_program_gives_out_stay(void **state)
{
    (void)state;
    head_t h = head_new(LH_DTYPE_F32, LH_DTYPE_F32);
    h.flow->buffers[h.flow->values[h.logits].buffer].allocation = &outputs;
    finish(&h);
    assert_false(same_place(&h));
    head_free(&h);
}

/* Rows of a larger value: what lies beside them is another's. */
static void rows_of_a_larger_value_are_not_taken(void **state)
{
    (void)state;
    head_t h = head_new(LH_DTYPE_F32, LH_DTYPE_F32);
    flow_value_t *v = &h.flow->values[h.logits];
    h.flow->buffers[v->buffer].bytes *= 2;
    finish(&h);
    assert_false(same_place(&h));
    head_free(&h);
}

static lh_status_t turned_shape(LH_UNUSED const lh_host_t *host, LH_UNUSED const void *attributes,
                                lh_arg_t *args, LH_UNUSED uint32_t count)
{
    args[1] = args[0];
    return LH_OK;
}

static uint32_t leaf_in_inputs(void *context, const graph_value_t *value)
{
    return in_allocation(context, &inputs, &value->arg);
}

/* Equal constants of all programs are one place, and an input stays until it is given again. */
static void an_op_in_place_leaves_inputs_and_constants_as_they_are(void **state)
{
    (void)state;
    static const lh_op_t row = {.name = "test.turned", .slots = "x -> x", .shape = turned_shape};
    static const float number = 1;
    for (uint32_t constant = 0; constant < 2; constant++) {
        head_t h = {0};
        recording_t *r;
        assert_int_equal(op_table_new(&h.ops), LH_OK);
        assert_int_equal(op_table_add(h.ops, &row, sizeof(row), 1, "test"), LH_OK);
        assert_int_equal(flow_new(&h.flow), LH_OK);
        const recording_how_t how = {
            .ops = h.ops, .tokens = ROWS, .compute = LH_DTYPE_F32, .accumulate = LH_DTYPE_F32};
        assert_int_equal(recorder_new(&how, &r), LH_OK);
        lh_graph_t *g = &r->graph;
        const lh_value_t x = constant == 1 ? g->api->constant(g, &number, 1)
                                           : g->api->input(g, LH_INPUT_WEIGHTS);
        const lh_value_t y = g->api->op(g, "test.turned", NULL, &x, 1, NULL);
        assert_int_equal(recording_status(r), LH_OK);
        uint32_t map[3] = {0};
        flow_source_t s = {.flow = h.flow,
                           .recording = r,
                           .copy = op_table_find(h.ops, "copy"),
                           .map = map,
                           .leaf = leaf_in_inputs,
                           .context = h.flow};
        assert_int_equal(r->value_count, sizeof(map) / sizeof(map[0]));
        flow_node(&s, 1);
        assert_int_equal(h.flow->status, LH_OK);
        const flow_value_t *v = h.flow->values;
        const flow_call_t *call = &h.flow->calls[h.flow->call_count - 1];
        assert_ptr_equal(h.flow->buffers[v[map[x]].buffer].allocation, &inputs);
        assert_int_not_equal(v[map[y]].buffer, v[map[x]].buffer);
        assert_int_equal(v[call->slots[0]].buffer, v[map[y]].buffer); /* still in place */
        recording_free(r);
        head_free(&h);
    }
}

/* Both ends recorded by one rank: x goes to rank 2 of 3, y comes from rank 1, and the sum of y with
 * itself is the output. */
typedef struct exchange_scene {
    head_t h;
    recording_t *r;
    lh_value_t x, y, sum;
    uint32_t map[8];
} exchange_scene_t;

static void scene_write(exchange_scene_t *e)
{
    op_collective_t send = {
        .struct_size = sizeof(send), .group = LH_GROUP_DATA, .ways = 3, .peer = 2, .tag = 7};
    op_collective_t receive = send;
    receive.peer = 1;
    receive.rows = ROWS;
    receive.columns = WIDTH;
    *e = (exchange_scene_t){0};
    assert_int_equal(op_table_new(&e->h.ops), LH_OK);
    assert_int_equal(flow_new(&e->h.flow), LH_OK);
    const recording_how_t how = {
        .ops = e->h.ops, .tokens = ROWS, .compute = LH_DTYPE_F32, .accumulate = LH_DTYPE_F32};
    const uint64_t shape[] = {ROWS, WIDTH};
    assert_int_equal(recorder_new(&how, &e->r), LH_OK);
    lh_graph_t *g = &e->r->graph;
    e->x = recording_argument(e->r, LH_DTYPE_F32, 2, shape);
    assert_int_equal(g->api->op(g, "send", &send, &e->x, 1, NULL), 0);
    e->y = g->api->op(g, "recv", &receive, NULL, 0, NULL);
    const lh_value_t in[] = {e->y, e->y};
    e->sum = g->api->op(g, "add", NULL, in, 2, NULL);
    assert_int_equal(recording_status(e->r), LH_OK);
    const lh_arg_t arg = matrix(LH_DTYPE_F32, ROWS, WIDTH);
    e->map[e->x] = in_allocation(e->h.flow, &inputs, &arg);
    e->map[e->sum] = in_allocation(e->h.flow, &outputs, &arg);
    flow_source_t s = {.flow = e->h.flow,
                       .recording = e->r,
                       .copy = op_table_find(e->h.ops, "copy"),
                       .map = e->map,
                       .leaf = leaf_in_inputs,
                       .context = e->h.flow};
    for (uint32_t n = 1; n < e->r->node_count; n++)
        flow_node(&s, n);
    assert_int_equal(e->h.flow->status, LH_OK);
}

static void scene_free(exchange_scene_t *e)
{
    recording_free(e->r);
    head_free(&e->h);
}

static void transfer_is(const flow_call_t *call, uint32_t kind, uint32_t op)
{
    const transfer_t *t = call->transfer;
    assert_int_equal(call->kind, kind);
    assert_int_equal(t->op, op);
    assert_int_equal(t->group, LH_GROUP_DATA);
    assert_int_equal(t->ways, 3);
    assert_int_equal(t->tag, 7);
    assert_int_equal(t->dtype, LH_DTYPE_F32);
    assert_int_equal(t->elements, ROWS * WIDTH);
    assert_int_equal(call->moved.read_count, op == COLLECTIVE_SEND);
    assert_int_equal(call->moved.write_count, op == COLLECTIVE_RECEIVE);
}

/* A copy, a start, a wait; a start, a wait; the sum. */
static void a_send_reads_a_copy_and_a_receive_writes_its_result(void **state)
{
    enum { COPY = 1, SEND, SENT, RECEIVE, RECEIVED, SUM, CALLS };
    (void)state;
    exchange_scene_t e;
    scene_write(&e);
    flow_t *f = e.h.flow;
    assert_int_equal(flow_finish(f, ALIGNMENT), LH_OK);
    assert_int_equal(f->call_count, CALLS);
    const flow_call_t *c = f->calls;
    assert_string_equal(c[COPY].op->row.name, "copy");
    transfer_is(&c[SEND], FLOW_COLLECTIVE, COLLECTIVE_SEND);
    transfer_is(&c[SENT], FLOW_WAIT, COLLECTIVE_SEND);
    transfer_is(&c[RECEIVE], FLOW_COLLECTIVE, COLLECTIVE_RECEIVE);
    transfer_is(&c[RECEIVED], FLOW_WAIT, COLLECTIVE_RECEIVE);
    assert_ptr_equal(c[SEND].transfer, c[SENT].transfer);
    assert_ptr_equal(c[RECEIVE].transfer, c[RECEIVED].transfer);
    assert_int_equal(c[SEND].transfer->to, 2);
    assert_int_equal(c[RECEIVE].transfer->from, 1);

    const uint32_t sent = f->moved[c[SEND].moved.reads], got = f->moved[c[RECEIVE].moved.writes];
    assert_int_equal(sent, c[COPY].slots[1]);
    assert_int_equal(c[COPY].slots[0], e.map[e.x]);
    assert_int_equal(got, e.map[e.y]);
    assert_int_equal(c[SUM].slots[0], got);
    const flow_buffer_t *from = &f->buffers[f->values[sent].buffer],
                        *to = &f->buffers[f->values[got].buffer];
    assert_true(from->first == COPY && from->last == SENT);
    assert_true(to->first == RECEIVE && to->last == SUM);
    assert_int_equal(from->offset, to->offset); /* their lives do not meet */
    assert_int_equal(f->arena_bytes[ARENA_ACTIVATIONS], ROWS * WIDTH * sizeof(float));
    scene_free(&e);
}

/* As long as either is under way it has its memory for itself. */
static void what_is_under_way_has_memory_of_its_own(void **state)
{
    (void)state;
    exchange_scene_t e;
    scene_write(&e);
    flow_t *f = e.h.flow;
    const flow_call_t wait = f->calls[3];
    assert_int_equal(wait.kind, FLOW_WAIT);
    memmove(&f->calls[3], &f->calls[4], 3 * sizeof(wait)); /* the send is waited for last */
    f->calls[6] = wait;
    assert_int_equal(flow_finish(f, ALIGNMENT), LH_OK);
    assert_int_equal(f->arena_bytes[ARENA_ACTIVATIONS], 2 * ROWS * WIDTH * sizeof(float));
    scene_free(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gradient_lies_over_logits_that_are_read_no_more),
        cmocka_unit_test(of_another_dtype_it_has_a_place_of_its_own),
        cmocka_unit_test(logits_that_are_read_again_stay),
        cmocka_unit_test(logits_that_the_program_gives_out_stay),
        cmocka_unit_test(rows_of_a_larger_value_are_not_taken),
        cmocka_unit_test(an_op_in_place_leaves_inputs_and_constants_as_they_are),
        cmocka_unit_test(a_send_reads_a_copy_and_a_receive_writes_its_result),
        cmocka_unit_test(what_is_under_way_has_memory_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
