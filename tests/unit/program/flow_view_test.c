/* flow_view_test.c - what columns, concatenation, repetition and heads become in a flow: views, copies
 * of parts, makers that write into columns; and what devices are asked before. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <base/memory.h>
#include <base/status.h>
#include <graph/gradient.h>
#include <graph/recorder.h>
#include <longhaul/ops.h>
#include <ops/ops_view.h>
#include <program/flow.h>

#include <cmocka.h> /* last: it has a fail() of its own */

enum { ROWS = 6, WIDTH = 24, HALF = WIDTH / 2, SIZE = sizeof(float), ALIGNMENT = 64 };

/* x [ROWS, WIDTH] through a part, there and back. */
typedef struct part {
    op_table_t *ops;
    recording_t *r;
    flow_t *flow;
    flow_source_t source;
    uint32_t *map;
    lh_value_t x, seed, gradient;
    uint32_t in, from_above; /* flow values of x and seed */
    bool picky;              /* the device has no kernel for rows that lie apart */
} part_t;

static bool is_apart(const lh_arg_t *arg)
{
    return arg->dtype != LH_DTYPE_NONE && arg->rank == 2 && arg->stride[0] != arg->shape[1];
}

/* x, and a number of each of its columns. */
static lh_status_t counted_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                 uint32_t arg_count)
{
    (void)host, (void)attributes, (void)arg_count;
    args[1] = args[0];
    args[2] = (lh_arg_t){.dtype = LH_DTYPE_F32, .rank = 1, .shape = {args[0].shape[1]}};
    return LH_OK;
}

static const lh_op_t counted = {
    .name = "test.counted", .slots = "x -> y n?", .shape = counted_shape};

static bool offers(void *device, const op_t *op, const void *attributes, const lh_arg_t *args)
{
    (void)attributes;
    const part_t *p = device;
    if (strcmp(op->row.name, counted.name) == 0)
        return args[2].dtype == LH_DTYPE_NONE || !is_apart(&args[0]);
    if (!p->picky || op == op_table_find(p->ops, "copy")) return true;
    for (uint32_t i = 0; i < op->in_count + op->out_count; i++)
        if (is_apart(&args[i])) return false;
    return true;
}

static void part_open(part_t *p)
{
    const uint64_t shape[] = {ROWS, WIDTH};
    const bool picky = p->picky;
    *p = (part_t){.picky = picky};
    assert_int_equal(op_table_new(&p->ops), LH_OK);
    const recording_how_t how = {.ops = p->ops,
                                 .tokens = ROWS,
                                 .compute = LH_DTYPE_F32,
                                 .accumulate = LH_DTYPE_F32,
                                 .offers = offers,
                                 .device = p};
    assert_int_equal(recorder_new(&how, &p->r), LH_OK);
    p->x = recording_argument(p->r, LH_DTYPE_F32, 2, shape);
}

static bool wants(void *context, const char *name)
{
    (void)context, (void)name;
    return true;
}

/* Differentiates what was recorded and writes it into a flow. */
static void part_write(part_t *p, lh_value_t output)
{
    recording_t *r = p->r;
    r->output = output;
    if (recording_status(r) != LH_OK) fail_msg("%s", fail_reason());
    const uint32_t forward_end = r->node_count;
    const lh_arg_t y = r->values[output].arg;
    p->seed = recording_argument(r, LH_DTYPE_F32, y.rank, y.shape);
    assert_int_equal(gradient_append(r, p->seed, p->x, wants, NULL, &p->gradient), LH_OK);
    assert_int_equal(flow_new(&p->flow), LH_OK);
    p->map = mem_array(r->value_count, sizeof(*p->map));
    p->source = (flow_source_t){.flow = p->flow,
                                .recording = r,
                                .copy = op_table_find(p->ops, "copy"),
                                .map = p->map,
                                .outside = output};
    const lh_arg_t x = flow_arg(LH_DTYPE_F32, 2, (const uint64_t[]){ROWS, WIDTH});
    p->map[p->x] = p->in = flow_activation(p->flow, &x);
    p->map[p->seed] = p->from_above = flow_activation(p->flow, &y);
    for (uint32_t n = 1; n < r->node_count; n++) {
        if (n == forward_end) { /* another walk */
            p->source.first_call = p->flow->call_count;
            p->source.first_value = p->flow->value_count;
            p->source.first_buffer = p->flow->buffer_count;
            p->source.outside = p->gradient;
        }
        flow_node(&p->source, n);
    }
    assert_int_equal(p->flow->status, LH_OK);
}

static void part_close(part_t *p)
{
    mem_free(p->map);
    flow_free(p->flow);
    recording_free(p->r);
    op_table_free(p->ops);
}

static uint32_t calls_of(const part_t *p, const char *op, bool adds)
{
    uint32_t count = 0;
    for (uint32_t c = 1; c < p->flow->call_count; c++) {
        const flow_call_t *call = &p->flow->calls[c];
        if (call->kind != FLOW_KERNEL || strcmp(call->op->row.name, op) != 0) continue;
        count += !adds || call->add != 0;
    }
    return count;
}

static uint32_t fills_of(const part_t *p)
{
    uint32_t count = 0;
    for (uint32_t c = 1; c < p->flow->call_count; c++)
        count += p->flow->calls[c].kind == FLOW_FILL;
    return count;
}

static const flow_value_t *value_of(const part_t *p, lh_value_t v)
{
    assert_int_not_equal(p->map[v], 0);
    return &p->flow->values[p->map[v]];
}

/* y = silu(x's first half) times the second. */
static lh_value_t gated(part_t *p, lh_value_t x, lh_value_t halves[2])
{
    lh_graph_t *g = &p->r->graph;
    halves[0] = lh_columns(g, x, 0, HALF);
    halves[1] = lh_columns(g, x, HALF, HALF);
    return lh_multiply(g, lh_activate(g, halves[0], LH_ACT_SILU), halves[1]);
}

static void columns_are_views_and_their_gradients_one_value_without_zeros(void **state)
{
    (void)state;
    part_t p = {0};
    lh_value_t halves[2];
    part_open(&p);
    part_write(&p, gated(&p, p.x, halves));
    for (uint32_t i = 0; i < 2; i++) {
        const flow_value_t *half = value_of(&p, halves[i]);
        assert_int_equal(half->buffer, p.flow->values[p.in].buffer);
        assert_int_equal(half->offset, i * HALF * SIZE);
        assert_int_equal(half->arg.shape[1], HALF);
        assert_int_equal(half->arg.stride[0], WIDTH);
    }
    assert_int_equal(calls_of(&p, "copy", false), 0);
    assert_int_equal(fills_of(&p), 0);
    assert_int_equal(calls_of(&p, "add", false), 0);
    /* Both gradients are written where they belong. */
    const uint32_t whole = value_of(&p, p.gradient)->buffer;
    uint32_t writers = 0;
    for (uint32_t c = 1; c < p.flow->call_count; c++) {
        const flow_call_t *call = &p.flow->calls[c];
        const flow_value_t *made = &p.flow->values[call->slots[call->op->in_count]];
        if (made->buffer != whole) continue;
        assert_int_equal(made->arg.stride[0], WIDTH);
        assert_int_equal(call->add, 0);
        writers++;
    }
    assert_int_equal(writers, 2);
    assert_int_equal(value_of(&p, p.gradient)->arg.stride[0], WIDTH);
    part_close(&p);
}

static void a_device_that_wants_dense_rows_gets_copies(void **state)
{
    (void)state;
    part_t p = {.picky = true};
    lh_value_t halves[2];
    part_open(&p);
    part_write(&p, gated(&p, p.x, halves));
    for (uint32_t c = 1; c < p.flow->call_count; c++) {
        const flow_call_t *call = &p.flow->calls[c];
        for (uint32_t i = 0; strcmp(call->op->row.name, "copy") != 0 && i < flow_call_slots(call);
             i++)
            assert_false(call->slots[i] != 0 && is_apart(&p.flow->values[call->slots[i]].arg));
    }
    /* Each half once for each of its readers: there activate and multiply; back activate_grad and
     * multiply. And two gradients into their columns. */
    assert_int_equal(calls_of(&p, "copy", false), 4 + 2);
    assert_int_equal(calls_of(&p, "copy", true), 0);
    assert_int_equal(fills_of(&p), 0);
    part_close(&p);
}

/* The device counts the columns of dense rows only, and does not count where nobody asks. */
static void a_sum_over_blocks_asks_for_an_output(void **state)
{
    (void)state;
    for (uint32_t asks = 0; asks < 2; asks++) {
        part_t p = {0};
        part_open(&p);
        assert_int_equal(op_table_add(p.ops, &counted, sizeof(counted), 1, "test"), LH_OK);
        lh_graph_t *g = &p.r->graph;
        const lh_value_t half = lh_columns(g, p.x, HALF, HALF);
        lh_value_t n = 0;
        (void)g->api->op(g, counted.name, NULL, &half, 1, &n);
        if (asks == 1) g->api->accumulate(g, "load", n);
        part_write(&p, lh_activate(g, p.x, LH_ACT_SILU));
        assert_int_equal(value_of(&p, half)->arg.stride[0], WIDTH);
        assert_int_equal(calls_of(&p, "copy", false), asks);
        part_close(&p);
    }
}

static void columns_that_nobody_takes_have_a_gradient_of_zero(void **state)
{
    (void)state;
    part_t p = {0};
    part_open(&p);
    lh_graph_t *g = &p.r->graph;
    part_write(&p, lh_activate(g, lh_columns(g, p.x, 4, HALF), LH_ACT_SILU));
    assert_int_equal(fills_of(&p), 1);
    assert_int_equal(calls_of(&p, "copy", false), 1);
    /* Zeros first: the maker may not have written before. */
    for (uint32_t c = 1; c < p.flow->call_count; c++)
        if (p.flow->calls[c].kind == FLOW_FILL)
            assert_string_equal(p.flow->calls[c + 1].op->row.name, "copy");
    part_close(&p);
}

static void columns_that_are_taken_twice_have_a_sum(void **state)
{
    (void)state;
    part_t p = {0};
    part_open(&p);
    lh_graph_t *g = &p.r->graph;
    const lh_value_t a = lh_activate(g, lh_columns(g, p.x, 0, HALF + 4), LH_ACT_SILU);
    const lh_value_t b = lh_activate(g, lh_columns(g, p.x, HALF - 4, HALF + 4), LH_ACT_TANH);
    part_write(&p, lh_multiply(g, a, b));
    assert_int_equal(fills_of(&p), 1);
    assert_int_equal(calls_of(&p, "copy", false), 2);
    assert_int_equal(calls_of(&p, "copy", true), 1);
    part_close(&p);
}

static void makers_write_into_what_is_joined(void **state)
{
    (void)state;
    part_t p = {0};
    part_open(&p);
    lh_graph_t *g = &p.r->graph;
    const lh_value_t a = lh_activate(g, p.x, LH_ACT_SILU), b = lh_activate(g, p.x, LH_ACT_TANH);
    const lh_value_t both = lh_concat(g, a, b, 1);
    part_write(&p, lh_activate(g, both, LH_ACT_GELU));
    assert_int_equal(calls_of(&p, "copy", false), 0);
    assert_int_equal(value_of(&p, a)->buffer, value_of(&p, both)->buffer);
    assert_int_equal(value_of(&p, b)->buffer, value_of(&p, both)->buffer);
    assert_int_equal(value_of(&p, b)->offset, WIDTH * SIZE);
    assert_int_equal(value_of(&p, b)->arg.stride[0], 2 * WIDTH);
    part_close(&p);
}

/* x is not made here; one value can't stand in two columns; odd columns are no good for vectors. */
static void what_can_not_be_written_there_is_copied(void **state)
{
    (void)state;
    part_t p = {0};
    part_open(&p);
    lh_graph_t *g = &p.r->graph;
    const lh_value_t a = lh_activate(g, p.x, LH_ACT_SILU);
    const lh_value_t odd = lh_activate(g, lh_columns(g, p.x, 0, 3), LH_ACT_SILU);
    const lh_value_t first = lh_concat(g, lh_concat(g, p.x, a, 1), a, 1);
    part_write(&p, lh_activate(g, lh_concat(g, odd, first, 1), LH_ACT_TANH));
    /* x; a, again; odd and what was joined before it, whose columns are views. */
    assert_int_equal(value_of(&p, a)->arg.stride[0], 2 * WIDTH);
    uint32_t forward = 0;
    for (uint32_t c = 1; c < p.flow->call_count; c++)
        forward += p.flow->calls[c].op != NULL &&
                   strcmp(p.flow->calls[c].op->row.name, "copy") == 0 &&
                   p.flow->values[p.flow->calls[c].slots[1]].buffer !=
                       value_of(&p, p.gradient)->buffer;
    assert_true(forward >= 4);
    part_close(&p);
}

static void heads_are_the_same_memory_or_one_copy(void **state)
{
    (void)state;
    part_t p = {0};
    part_open(&p);
    lh_graph_t *g = &p.r->graph;
    const lh_columns_t of_heads = {sizeof(of_heads), 3, 2, 4, 0};
    const lh_value_t some = g->api->op(g, "columns", &of_heads, &p.x, 1, NULL);
    const lh_value_t rows = lh_heads(g, some, 4);
    const lh_value_t apart = lh_heads(g, lh_columns(g, p.x, 0, HALF), 4);
    part_write(&p, lh_multiply(g, rows, apart));
    assert_int_equal(value_of(&p, rows)->buffer, value_of(&p, some)->buffer);
    assert_int_equal(value_of(&p, rows)->arg.shape[0], ROWS * 3);
    assert_int_not_equal(value_of(&p, apart)->buffer, p.flow->values[p.in].buffer);
    part_close(&p);
}

/* A copy is numbers at places: each op, on rows that lie apart, against its formula. */
static uint64_t place_in(const lh_arg_t *part, uint64_t element)
{
    uint64_t at = 0;
    for (uint32_t i = part->rank; i-- > 0; element /= part->shape[i])
        at += element % part->shape[i] * part->stride[i];
    return at;
}

static uint64_t elements_of(const lh_arg_t *arg)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i < arg->rank; i++)
        n *= arg->shape[i];
    return n;
}

enum { MOST = 256 };

static void moves_run(uint32_t view, const void *how, const lh_arg_t *args, float (*at)[MOST])
{
    op_move_t m;
    for (uint32_t i = 0; op_view_move(view, how, args, i, &m); i++) {
        assert_int_equal(elements_of(&m.from), elements_of(&m.to));
        assert_int_equal(m.from.rank, m.to.rank);
        for (uint64_t e = 0; e < elements_of(&m.from); e++) {
            float *y = &at[m.out][m.to_at + place_in(&m.to, e)];
            const float x = at[m.in][m.from_at + place_in(&m.from, e)];
            *y = m.add ? *y + x : x;
        }
    }
}

/* [rows, columns], PAD further apart, holding 100 row + column. */
enum { PAD = 3 };
static lh_arg_t padded(uint64_t rows, uint64_t columns, float *at)
{
    lh_arg_t arg = flow_arg(LH_DTYPE_F32, 2, (const uint64_t[]){rows, columns});
    arg.stride[0] += PAD;
    assert_true(rows * arg.stride[0] <= MOST);
    for (uint64_t i = 0; i < rows * arg.stride[0]; i++)
        at[i] = -1;
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t c = 0; c < columns; c++)
            at[i * arg.stride[0] + c] = (float)(100 * i + c);
    return arg;
}

static float at_of(const lh_arg_t *arg, const float *at, uint64_t row, uint64_t column)
{
    return at[row * arg->stride[0] + column];
}

static void copies_are_what_the_formulas_say(void **state)
{
    (void)state;
    static float at[5][MOST];
    lh_arg_t args[OP_SLOTS] = {0};

    const lh_columns_t columns = {sizeof(columns), 3, 1, 2, 12};
    args[0] = padded(3, 12, at[0]);
    args[1] = padded(3, 6, at[1]);
    moves_run(VIEW_COLUMNS, &columns, args, at);
    for (uint64_t r = 0; r < 3; r++)
        for (uint64_t c = 0; c < 6; c++)
            assert_true(at_of(&args[1], at[1], r, c) == (float)(100 * r + c / 2 * 4 + 1 + c % 2));
    assert_true(at[1][6] == -1.0f); /* between rows */

    args[0] = padded(3, 6, at[0]);
    args[1] = padded(3, 12, at[1]);
    memset(at[1], 0, sizeof(at[1]));
    moves_run(VIEW_COLUMNS_GRAD, &columns, args, at);
    for (uint64_t c = 0; c < 12; c++) {
        const bool taken = c % 4 == 1 || c % 4 == 2;
        assert_true(at_of(&args[1], at[1], 2, c) ==
                    (taken ? (float)(200 + c / 4 * 2 + c % 4 - 1) : 0.0f));
    }

    const lh_repeat_t repeat = {sizeof(repeat), 3};
    args[0] = padded(2, 4, at[0]);
    args[1] = padded(2, 12, at[1]);
    moves_run(VIEW_REPEAT, &repeat, args, at);
    for (uint64_t c = 0; c < 12; c++)
        assert_true(at_of(&args[1], at[1], 1, c) == (float)(100 + c % 4));
    args[0] = padded(2, 12, at[0]);
    args[1] = padded(2, 4, at[1]);
    moves_run(VIEW_REPEAT_GRAD, &repeat, args, at);
    for (uint64_t c = 0; c < 4; c++)
        assert_true(at_of(&args[1], at[1], 1, c) == (float)(300 + 3 * c + 12));

    const lh_concat_t concat = {sizeof(concat), 2, 1, 0};
    args[0] = padded(2, 6, at[0]);
    args[1] = padded(2, 2, at[1]);
    args[3] = padded(2, 2, at[3]); /* c is left out */
    args[4] = padded(2, 12, at[4]);
    moves_run(VIEW_CONCAT, &concat, args, at);
    static const float expected[] = {100, 101, 102, 100, 101, 100, 103, 104, 105, 100, 101, 101};
    for (uint64_t c = 0; c < 12; c++)
        assert_true(at_of(&args[4], at[4], 1, c) == expected[c]);
}

static void heads_are_copied_there_and_back(void **state)
{
    (void)state;
    static float at[2][MOST];
    lh_arg_t args[OP_SLOTS] = {0};
    args[0] = padded(2, 6, at[0]);
    args[1] = padded(6, 2, at[1]);
    moves_run(VIEW_HEADS, &(lh_heads_t){sizeof(lh_heads_t), 0, 2}, args, at);
    for (uint64_t i = 0; i < 6; i++)
        assert_true(at_of(&args[1], at[1], i, 1) == (float)(i / 3 * 100 + i % 3 * 2 + 1));
    args[0] = padded(6, 2, at[0]);
    args[1] = padded(2, 6, at[1]);
    moves_run(VIEW_HEADS, &(lh_heads_t){sizeof(lh_heads_t), 0, 6}, args, at);
    for (uint64_t c = 0; c < 6; c++)
        assert_true(at_of(&args[1], at[1], 1, c) == (float)((3 + c / 2) * 100 + c % 2));
}

static void shapes_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    static const struct {
        lh_columns_t how;
        const char *sentence;
    } wrong[] = {
        {{sizeof(lh_columns_t), 5, 0, 0, 0}, "24 columns are not 5 equal parts"},
        {{sizeof(lh_columns_t), 1, 24, 0, 0}, "columns 24 to 24 of 24"},
        {{sizeof(lh_columns_t), 2, 4, 9, 0}, "columns 4 to 13 of 12"},
        {{sizeof(lh_columns_t), 1, 0, 4, 20}, "expected"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        part_t p = {0};
        part_open(&p);
        lh_graph_t *g = &p.r->graph;
        assert_int_equal(g->api->op(g, "columns", &wrong[i].how, &p.x, 1, NULL), 0);
        assert_int_equal(recording_status(p.r), LH_INVALID);
        assert_non_null(strstr(fail_reason(), wrong[i].sentence));
        part_close(&p);
    }
    part_t p = {0};
    part_open(&p);
    assert_int_equal(lh_heads(&p.r->graph, p.x, 7), 0);
    assert_int_equal(recording_status(p.r), LH_INVALID);
    assert_non_null(strstr(fail_reason(), "[6, 24] can't be rows of 7"));
    part_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_are_views_and_their_gradients_one_value_without_zeros),
        cmocka_unit_test(a_device_that_wants_dense_rows_gets_copies),
        cmocka_unit_test(a_sum_over_blocks_asks_for_an_output),
        cmocka_unit_test(columns_that_nobody_takes_have_a_gradient_of_zero),
        cmocka_unit_test(columns_that_are_taken_twice_have_a_sum),
        cmocka_unit_test(makers_write_into_what_is_joined),
        cmocka_unit_test(what_can_not_be_written_there_is_copied),
        cmocka_unit_test(heads_are_the_same_memory_or_one_copy),
        cmocka_unit_test(copies_are_what_the_formulas_say),
        cmocka_unit_test(heads_are_copied_there_and_back),
        cmocka_unit_test(shapes_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
