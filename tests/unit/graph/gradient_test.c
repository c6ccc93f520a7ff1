/* gradient_test.c - every op's gradient against central differences, in double precision.
 *
 * A case records one op: its floating inputs are parameters named like their slots, its integer
 * inputs the run-time inputs. How numbers are compared stands in differences.h. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <base/philox.h>
#include <base/status.h>
#include <graph/gradient.h>
#include <ops/ops_collective.h>

#include "differences.h"
#include <longhaul/ops.h>

#include <cmocka.h> /* last: it has a fail() of its own */

typedef union attributes {
    uint32_t struct_size;
    lh_matmul_t matmul;
    lh_norm_t norm;
    lh_activate_t activate;
    lh_rope_t rope;
    lh_attention_t attention;
    lh_top_k_t top_k;
    lh_columns_t columns;
    lh_concat_t concat;
    lh_repeat_t repeat;
    lh_heads_t heads;
    op_collective_t collective;
    struct {
        uint32_t struct_size, reserved;
        double beta;
    } swish;
} attributes_t;

enum { MAX_INPUTS = 6, TOKENS = TEST_TOKENS };

typedef struct input {
    uint32_t rank; /* 0: left out, or a run-time input */
    uint64_t shape[2];
    bool constant; /* F32, not differentiated: frequencies, slopes */
} input_t;

typedef struct gradient_case {
    const char *op;
    const char *what;
    attributes_t attributes;
    input_t in[MAX_INPUTS];
} gradient_case_t;

#define M(rows, columns)          \
    {                             \
        2, {rows, columns}, false \
    }
#define V(n)          \
    {                 \
        1, {n}, false \
    }
#define CONSTANT(n)  \
    {                \
        1, {n}, true \
    }
#define NOTHING       \
    {                 \
        0, {0}, false \
    }
#define MATMUL(ta, tb, act)                                     \
    {                                                           \
        .matmul = { sizeof(lh_matmul_t), ta, tb, LH_ACT_##act } \
    }
#define ACT(f)                                            \
    {                                                     \
        .activate = { sizeof(lh_activate_t), LH_ACT_##f } \
    }
#define NORM(one_plus)                                \
    {                                                 \
        .norm = { sizeof(lh_norm_t), one_plus, 1e-5 } \
    }
#define ROPE(h, d, p, i, inv)                             \
    {                                                     \
        .rope = { sizeof(lh_rope_t), h, d, p, i, inv, 0 } \
    }
#define ATTEND(...)                                                        \
    {                                                                      \
        .attention = {.struct_size = sizeof(lh_attention_t), __VA_ARGS__ } \
    }
#define QKV(h, kv, d) M(TOKENS, (h) * (d)), M(TOKENS, (kv) * (d)), M(TOKENS, (kv) * (d))
#define T TOKENS

static const gradient_case_t cases[] = {
    {"copy", "a matrix", {0}, {M(T, 5)}},
    {"matmul", "plain", MATMUL(0, 0, NONE), {M(T, 5), M(5, 3)}},
    {"matmul", "b transposed", MATMUL(0, 1, NONE), {M(T, 5), M(3, 5)}},
    {"matmul", "a transposed", MATMUL(1, 0, NONE), {M(5, T), M(5, 3)}},
    {"matmul", "both transposed", MATMUL(1, 1, NONE), {M(5, T), M(3, 5)}},
    {"matmul", "bias", MATMUL(0, 1, NONE), {M(T, 5), M(3, 5), V(3)}},
    {"matmul", "bias and silu", MATMUL(0, 1, SILU), {M(T, 5), M(3, 5), V(3)}},
    {"matmul", "gelu, a transposed", MATMUL(1, 0, GELU), {M(5, T), M(5, 3)}},
    {"matmul", "tanh gelu", MATMUL(0, 0, GELU_TANH), {M(T, 5), M(5, 3), V(3)}},
    {"matmul", "tanh, both transposed", MATMUL(1, 1, TANH), {M(5, T), M(3, 5), V(3)}},
    {"matmul", "one row", MATMUL(0, 1, NONE), {M(1, 4), M(2, 4), V(2)}},
    {"matmul",
     "scales, bias and silu",
     MATMUL(0, 1, SILU),
     {M(T, 5), M(3, 5), V(3), CONSTANT(1), CONSTANT(1)}},
    {"embed", "tokens that repeat", {0}, {NOTHING, M(5, 4)}},
    {"rms_norm", "plain", NORM(0), {M(T, 6), V(6)}},
    {"rms_norm", "one plus w", NORM(1), {M(T, 6), V(6)}},
    {"rms_norm", "one row", NORM(0), {M(1, 9), V(9)}},
    {"rms_norm", "groups of columns", NORM(0), {M(T, 6), V(3)}},
    {"rms_norm", "groups, one plus w", NORM(1), {M(3, 8), V(2)}},
    {"top_k", "two of five", {.top_k = {sizeof(lh_top_k_t), 2, 0, 0}}, {M(T, 5)}},
    {"top_k", "all", {.top_k = {sizeof(lh_top_k_t), 3, 3, 0}}, {M(T, 3)}},
    {"layer_norm", "with bias", NORM(0), {M(T, 6), V(6), V(6)}},
    {"layer_norm", "without bias", NORM(0), {M(T, 6), V(6)}},
    {"layer_norm", "one plus w", NORM(1), {M(3, 8), V(8), V(8)}},
    {"add_rms_norm", "plain", NORM(0), {M(T, 6), M(T, 6), V(6)}},
    {"add_rms_norm", "one plus w", NORM(1), {M(T, 6), M(T, 6), V(6)}},
    {"rope", "half-split", ROPE(2, 6, 3, 0, 0), {M(T, 12), NOTHING, CONSTANT(3)}},
    {"rope", "interleaved", ROPE(2, 6, 3, 1, 0), {M(T, 12), NOTHING, CONSTANT(3)}},
    {"rope", "partial", ROPE(2, 6, 2, 0, 0), {M(T, 12), NOTHING, CONSTANT(2)}},
    {"rope", "partial, interleaved, inverse", ROPE(1, 8, 2, 1, 1), {M(T, 8), NOTHING, CONSTANT(2)}},
    {"rope", "inverse", ROPE(3, 4, 2, 0, 1), {M(T, 12), NOTHING, CONSTANT(2)}},
    {"rope",
     "magnitude",
     {.rope = {sizeof(lh_rope_t), 2, 4, 2, 0, 0, 1.25}},
     {M(T, 8), NOTHING, CONSTANT(2)}},
    {"attention", "documents", ATTEND(.heads = 2, .kv_heads = 2, .head_dim = 4), {QKV(2, 2, 4)}},
    {"attention", "grouped", ATTEND(.heads = 4, .kv_heads = 2, .head_dim = 3), {QKV(4, 2, 3)}},
    {"attention", "one key head", ATTEND(.heads = 3, .kv_heads = 1, .head_dim = 2), {QKV(3, 1, 2)}},
    {"attention",
     "window",
     ATTEND(.heads = 2, .kv_heads = 1, .head_dim = 4, .window = 2),
     {QKV(2, 1, 4)}},
    {"attention",
     "slopes",
     ATTEND(.heads = 2, .kv_heads = 2, .head_dim = 4),
     {QKV(2, 2, 4), NOTHING, CONSTANT(2)}},
    {"attention",
     "soft cap",
     ATTEND(.heads = 2, .kv_heads = 2, .head_dim = 4, .soft_cap = 1.5),
     {QKV(2, 2, 4)}},
    {"attention",
     "soft cap, slopes, window, grouped",
     ATTEND(.heads = 4, .kv_heads = 2, .head_dim = 3, .window = 3, .soft_cap = 2),
     {QKV(4, 2, 3), NOTHING, CONSTANT(4)}},
    {"attention",
     "full",
     ATTEND(.heads = 2, .kv_heads = 2, .head_dim = 4, .full = 1),
     {QKV(2, 2, 4)}},
    {"attention",
     "a scale of its own",
     ATTEND(.heads = 2, .kv_heads = 2, .head_dim = 4, .scale = 0.2),
     {QKV(2, 2, 4)}},
    {"attention",
     "values wider than keys",
     ATTEND(.heads = 2, .kv_heads = 1, .head_dim = 3, .value_dim = 5),
     {M(T, 6), M(T, 3), M(T, 5)}},
    {"activate", "none", ACT(NONE), {M(T, 5)}},
    {"activate", "silu", ACT(SILU), {M(T, 5)}},
    {"activate", "gelu", ACT(GELU), {M(T, 5)}},
    {"activate", "tanh gelu", ACT(GELU_TANH), {M(T, 5)}},
    {"activate", "tanh", ACT(TANH), {M(T, 5)}},
    {"add", "two matrices", {0}, {M(T, 5), M(T, 5)}},
    {"multiply", "two matrices", {0}, {M(T, 5), M(T, 5)}},
    {"multiply", "a factor per row", {0}, {M(T, 5), M(T, 1)}},
    {"multiply", "a factor per column", {0}, {M(T, 5), V(5)}},
    {"multiply", "a single column", {0}, {M(T, 1), M(T, 1)}},
    {"scale", "one factor", {0}, {M(T, 5), V(1)}},
    {"dot", "two vectors", {0}, {V(5), V(5)}},
    {"mean_rows", "a matrix", {0}, {M(T, 5)}},
    {"gate", "silu", ACT(SILU), {M(T, 5), M(T, 5)}},
    {"gate", "tanh gelu", ACT(GELU_TANH), {M(T, 5), M(T, 5)}},
    {"gate", "none", ACT(NONE), {M(T, 5), M(T, 5)}},
    {"columns", "all", {.columns = {sizeof(lh_columns_t), 0, 0, 0, 0}}, {M(T, 5)}},
    {"columns", "some", {.columns = {sizeof(lh_columns_t), 1, 1, 3, 0}}, {M(T, 5)}},
    {"columns", "of heads", {.columns = {sizeof(lh_columns_t), 3, 1, 2, 0}}, {M(T, 12)}},
    {"columns", "the last of heads", {.columns = {sizeof(lh_columns_t), 2, 2, 0, 0}}, {M(3, 6)}},
    {"concat", "two", {.concat = {sizeof(lh_concat_t), 1, 0, 0}}, {M(T, 5), M(T, 2)}},
    {"concat",
     "four",
     {.concat = {sizeof(lh_concat_t), 0, 0, 0}},
     {M(3, 1), M(3, 4), M(3, 2), M(3, 3)}},
    {"concat", "heads", {.concat = {sizeof(lh_concat_t), 2, 0, 0}}, {M(T, 6), M(T, 2), M(T, 4)}},
    {"concat", "one for all", {.concat = {sizeof(lh_concat_t), 3, 1, 0}}, {M(T, 6), M(T, 2)}},
    {"concat", "shared by one", {.concat = {sizeof(lh_concat_t), 1, 1, 0}}, {M(3, 2), M(3, 2)}},
    {"repeat", "thrice", {.repeat = {sizeof(lh_repeat_t), 3}}, {M(T, 2)}},
    {"heads", "cut", {.heads = {sizeof(lh_heads_t), 0, 2}}, {M(T, 6)}},
    {"heads", "joined", {.heads = {sizeof(lh_heads_t), 0, 6}}, {M(8, 3)}},
    {"heads", "as they are", {.heads = {sizeof(lh_heads_t), 0, 3}}, {M(8, 3)}},
    {"acme.swish", "steep", {.swish = {16, 0, 2.5}}, {M(T, 5)}},
    {"acme.swish", "flat", {.swish = {16, 0, 0.25}}, {M(3, 9)}},
};
enum { CASES = sizeof(cases) / sizeof(cases[0]) };

static op_table_t *ops;

static int load(void **state)
{
    (void)state;
    ops = test_ops();
    return 0;
}

static int unload(void **state)
{
    (void)state;
    op_table_free(ops);
    return 0;
}

/* Parameters are named like the case's slots. */
static lh_status_t param_shape(void *context, const char *name, uint64_t *shape, uint32_t *rank)
{
    const gradient_case_t *c = context;
    const uint32_t slot = op_slot(op_table_find(ops, c->op), name);
    shape[0] = c->in[slot].shape[0];
    shape[1] = c->in[slot].shape[1];
    *rank = c->in[slot].rank;
    return LH_OK;
}

static lh_value_t record_input(recording_t *r, const gradient_case_t *c, uint32_t slot)
{
    lh_graph_t *g = &r->graph;
    if (c->in[slot].rank == 0) return 0;
    if (!c->in[slot].constant) return g->api->param(g, op_table_find(ops, c->op)->slot_name[slot]);
    float values[8];
    for (uint64_t i = 0; i < c->in[slot].shape[0]; i++)
        values[i] = (float)(0.3 / (1.0 + (double)i));
    return g->api->constant(g, values, c->in[slot].shape[0]);
}

/* The case's op and, where it has two outputs that carry data, their sum. */
static void record_case(recording_t *r, const gradient_case_t *c)
{
    lh_graph_t *g = &r->graph;
    const op_t *op = op_table_find(ops, c->op);
    lh_value_t in[MAX_INPUTS] = {0}, more[OP_SLOTS] = {0};
    for (uint32_t s = 0; s < op->in_count && s < MAX_INPUTS; s++)
        in[s] = record_input(r, c, s);
    const void *attributes = c->attributes.struct_size == 0 ? NULL : &c->attributes;
    r->output = g->api->op(g, c->op, attributes, in, op->in_count, more);
    if (op->out_count > 1 && !op->optional[op->in_count + 1] &&
        r->values[more[0]].arg.dtype == LH_DTYPE_F64)
        r->output = lh_add(g, r->output, more[0]);
}

static recording_t *new_recording(const gradient_case_t *c)
{
    return test_recording(ops, param_shape, (void *)c);
}

static void check_case(const gradient_case_t *c, bool add)
{
    recording_t *r = new_recording(c);
    record_case(r, c);
    differentiated_t d = {.r = r, .op = c->op, .what = c->what};
    differentiate(&d);
    check_differences(&d, add);
    recording_free(r);
}

static void gradients_agree_with_central_differences(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++)
        check_case(&cases[i], false);
}

static void gradients_add_to_what_is_there_when_asked(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++)
        check_case(&cases[i], true);
}

/* Cross-entropy is no chain of gradients: ce_grad is the gradient of ce_loss(ce_stats) in one, and
 * cross_entropy gives its own beside the loss. */
static void cross_entropy_is_checked(bool in_one)
{
    enum { VOCABULARY = 5 };
    static const gradient_case_t c = {"ce_stats", "", {0}, {M(T, VOCABULARY)}};
    static const double weights[TOKENS] = {0.5, 0, 0.25, 1, 0.125, 0.75, 0.3};
    recording_t *r = new_recording(&c);
    lh_graph_t *g = &r->graph;
    const lh_value_t logits = g->api->param(g, "logits");
    lh_value_t found;
    if (in_one) {
        r->output = g->api->op(g, "cross_entropy", NULL, &logits, 1, &found);
    } else {
        const lh_value_t stats = g->api->op(g, "ce_stats", NULL, &logits, 1, NULL);
        r->output = g->api->op(g, "ce_loss", NULL, &stats, 1, NULL);
        const lh_value_t in[] = {logits, 0, stats, 0};
        found = g->api->op(g, "ce_grad", NULL, in, 4, NULL);
    }
    const uint64_t one = 1;
    const lh_value_t seed = recording_argument(r, LH_DTYPE_F64, 1, &one);
    assert_int_equal(recording_status(r), LH_OK);

    const interpreter_how_t how = {.host = test_host(),
                                   .device = test_plugin("devices", "reference")};
    interpreter_t *it;
    assert_int_equal(interpreter_new(&how, r, &it), LH_OK);
    for (lh_value_t v = 1; v < r->value_count; v++)
        if (r->values[v].kind == VALUE_PARAM || v == seed)
            for (uint64_t i = 0; i < test_elements(r, v); i++)
                ((double *)interpreter_at(it, v))[i] = v == seed ? 1 : philox_normal(7, v, i);
    memcpy(interpreter_at(it, g->api->input(g, LH_INPUT_LABELS)), test_tokens, sizeof(test_tokens));
    memcpy(interpreter_at(it, g->api->input(g, LH_INPUT_WEIGHTS)), weights, sizeof(weights));
    assert_int_equal(interpreter_run(it, false), LH_OK);

    double saved[TOKENS * VOCABULARY], *x = interpreter_at(it, logits);
    memcpy(saved, interpreter_at(it, found), sizeof(saved));
    for (size_t i = 0; i < TOKENS * VOCABULARY; i++) {
        const double expected = central_difference(it, r, seed, &x[i]);
        if (!(fabs(saved[i] - expected) <= 1e-7))
            fail_msg("logit %zu: %.12g, differences say %.12g", i, saved[i], expected);
    }
    interpreter_free(it);
    recording_free(r);
}

static void ce_grad_agrees_with_central_differences(void **state)
{
    (void)state;
    cross_entropy_is_checked(false);
}

static void cross_entropy_agrees_with_central_differences(void **state)
{
    (void)state;
    cross_entropy_is_checked(true);
}

/* ---- communication: two simulated ranks ---- */

enum { RANKS = 2, ROWS = 4, WIDTH = 3 };
typedef double ranks_t[RANKS][ROWS * RANKS * WIDTH];

/* What each op means, on all ranks at once. n elements come in on each rank. */
static size_t simulate(const char *op, ranks_t x, size_t n, ranks_t y)
{
    const size_t cut = n / RANKS;
    for (size_t r = 0; r < RANKS; r++)
        for (size_t i = 0; i < n * RANKS; i++) {
            if (strcmp(op, "all_reduce") == 0 && i < n) y[r][i] = x[0][i] + x[1][i];
            if (strcmp(op, "copy") == 0 && i < n) y[r][i] = x[r][i];
            if (strcmp(op, "reduce_scatter") == 0 && i < cut)
                y[r][i] = x[0][r * cut + i] + x[1][r * cut + i];
            if (strcmp(op, "all_gather") == 0) y[r][i] = x[i / n][i % n];
            if (strcmp(op, "all_to_all") == 0 && i < n) y[r][i] = x[i / cut][r * cut + i % cut];
        }
    return strcmp(op, "all_gather") == 0 ? n * RANKS : strcmp(op, "reduce_scatter") == 0 ? cut : n;
}

/* The op that the gradient recorded: "copy" where it passed through. */
static const char *recorded_gradient(const char *op)
{
    static const gradient_case_t c = {"copy", "", {0}, {M(ROWS, WIDTH)}};
    const op_collective_t how = {.struct_size = sizeof(how), .group = 1, .ways = RANKS};
    recording_t *r = new_recording(&c);
    const lh_value_t x = r->graph.api->param(&r->graph, "x");
    r->output = r->graph.api->op(&r->graph, op, &how, &x, 1, NULL);
    assert_int_equal(recording_status(r), LH_OK);
    differentiated_t d = {.r = r, .op = op};
    differentiate(&d);
    const graph_node_t *first = &r->nodes[2];
    const char *name = first->op->row.name;
    recording_free(r);
    return name;
}

/* sum over ranks of op(x) . g must be sum over ranks of x . gradient(g), for every x: here for
 * random ones. What is the same on all ranks (x of replicate, y of all_reduce) counts once. */
static void check_adjoint(const char *op)
{
    ranks_t x, y, g, gx;
    const char *forward = strcmp(op, "replicate") == 0 ? "copy" : op;
    const bool same_x = strcmp(op, "replicate") == 0, same_y = strcmp(op, "all_reduce") == 0;
    for (size_t r = 0; r < RANKS; r++)
        for (size_t i = 0; i < ROWS * RANKS * WIDTH; i++) {
            x[r][i] = philox_normal(3, same_x ? 0 : r, i);
            g[r][i] = philox_normal(3, same_y ? 10 : 10 + r, i);
        }
    const size_t n = (size_t)ROWS * WIDTH;
    const size_t m = simulate(forward, x, n, y);
    const char *gradient = recorded_gradient(op);
    assert_int_equal(simulate(gradient, g, m, gx), n);

    double left = 0, right = 0;
    for (size_t r = 0; r < RANKS; r++) {
        for (size_t i = 0; i < m && (r == 0 || !same_y); i++)
            left += y[r][i] * g[r][i];
        for (size_t i = 0; i < n && (r == 0 || !same_x); i++)
            right += x[r][i] * gx[r][i];
    }
    if (!(fabs(left - right) <= 1e-12 * fabs(left) + 1e-12))
        fail_msg("%s: gradient %s gives %.12g, expected %.12g", op, gradient, right, left);
}

static const char *const collectives[] = {"all_reduce", "replicate", "reduce_scatter", "all_gather",
                                          "all_to_all"};
enum { COLLECTIVE_CASES = sizeof(collectives) / sizeof(collectives[0]) };

static void gradients_of_communication_are_its_transpose(void **state)
{
    (void)state;
    for (size_t i = 0; i < COLLECTIVE_CASES; i++)
        check_adjoint(collectives[i]);
}

static lh_value_t pair_record(recording_t *r, const char *op, uint32_t tag, lh_value_t x)
{
    op_collective_t how = {
        .struct_size = sizeof(how), .group = 1, .ways = RANKS, .peer = 1, .tag = tag};
    if (x == 0) how.rows = ROWS;
    if (x == 0) how.columns = WIDTH;
    return r->graph.api->op(&r->graph, op, &how, x == 0 ? NULL : &x, x != 0, NULL);
}

static void node_is(const recording_t *r, uint32_t n, const char *op, uint32_t tag)
{
    const op_collective_t *how = r->nodes[n].attributes;
    assert_string_equal(r->nodes[n].op->row.name, op);
    assert_true(how->peer == 1 && how->tag == tag && how->ways == RANKS && how->group == 1);
    if (strcmp(op, "recv") == 0) assert_true(how->rows == ROWS && how->columns == WIDTH);
}

/* x is sent, y is what comes: the way back sends y's gradient and takes that of x, the last first.
 */
static void what_is_sent_comes_back_and_what_comes_is_sent_back(void **state)
{
    enum { SEND = 1, RECEIVE, SEND_BACK, RECEIVE_BACK, COPY, NODES };
    static const gradient_case_t c = {"copy", "", {0}, {M(ROWS, WIDTH)}};
    (void)state;
    recording_t *r = new_recording(&c);
    const lh_value_t x = r->graph.api->param(&r->graph, "x");
    assert_int_equal(pair_record(r, "send", 5, x), 0);
    r->output = pair_record(r, "recv", 6, 0);
    assert_int_equal(recording_status(r), LH_OK);
    differentiated_t d = {.r = r, .op = "send"};
    differentiate(&d);
    assert_int_equal(r->node_count, NODES);
    node_is(r, SEND, "send", 5);
    node_is(r, RECEIVE, "recv", 6);
    node_is(r, SEND_BACK, "send", 6);
    node_is(r, RECEIVE_BACK, "recv", 5);
    assert_int_equal(r->nodes[SEND_BACK].slots[0], d.seed);
    assert_string_equal(r->nodes[COPY].op->row.name, "copy"); /* which can add to a store */
    assert_int_equal(r->nodes[COPY].slots[0], r->nodes[RECEIVE_BACK].slots[0]);
    assert_int_equal(r->values[r->nodes[COPY].slots[1]].kind, VALUE_GRADIENT);
    recording_free(r);
}

static bool none_wanted(void *context, const char *name)
{
    (void)context, (void)name;
    return false;
}

/* What comes may depend on another rank's parameters; what is sent depends on this one's. */
static void frozen_parameters_that_are_sent_take_nothing_back(void **state)
{
    static const gradient_case_t c = {"copy", "", {0}, {M(ROWS, WIDTH)}};
    const uint64_t shape[] = {ROWS, WIDTH};
    lh_value_t none;
    (void)state;
    recording_t *r = new_recording(&c);
    (void)pair_record(r, "send", 5, r->graph.api->param(&r->graph, "x"));
    r->output = pair_record(r, "recv", 6, 0);
    const lh_value_t seed = recording_argument(r, LH_DTYPE_F64, 2, shape);
    assert_int_equal(gradient_append(r, seed, 0, none_wanted, NULL, &none), LH_OK);
    assert_int_equal(r->node_count, 4);
    node_is(r, 3, "send", 6);
    recording_free(r);
}

static bool has_case(const char *op)
{
    for (size_t i = 0; i < COLLECTIVE_CASES; i++)
        if (strcmp(collectives[i], op) == 0) return true;
    for (size_t i = 0; i < CASES; i++)
        if (strcmp(cases[i].op, op) == 0) return true;
    /* Their gradients are recorded where nothing comes or nothing is made: the tests of both
     * above. */
    if (strcmp(op, "send") == 0 || strcmp(op, "recv") == 0) return true;
    /* What they take only route makes: block_gradient_test.c. */
    static const char *const routed[] = {"gather_rows", "scatter_rows", "grouped_matmul"};
    for (size_t i = 0; i < sizeof(routed) / sizeof(routed[0]); i++)
        if (strcmp(routed[i], op) == 0) return true;
    /* It takes two of its inputs for constants, which differences would not: PEFT's gradients are what
     * it is compared with (integration.lora_test). */
    return strcmp(op, "dora_scale") == 0;
}

/* An op that takes matrices of one shape needs no case. */
static void check_by_guess(const op_t *op)
{
    gradient_case_t c = {.op = op->row.name, .what = "by guess"};
    for (uint32_t i = 0; i < op->in_count && i < MAX_INPUTS; i++)
        c.in[i] = (input_t)M(T, 5);
    recording_t *r = new_recording(&c);
    record_case(r, &c);
    if (recording_status(r) != LH_OK)
        fail_msg("op %s has a gradient that no case here checks", op->row.name);
    recording_free(r);
    check_case(&c, false);
}

static void every_op_with_a_gradient_has_a_case(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < op_table_count(ops); i++) {
        const op_t *op = op_table_at(ops, i);
        if (op->row.gradient != NULL && !has_case(op->row.name)) check_by_guess(op);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_with_a_gradient_has_a_case),
        cmocka_unit_test(gradients_agree_with_central_differences),
        cmocka_unit_test(gradients_add_to_what_is_there_when_asked),
        cmocka_unit_test(ce_grad_agrees_with_central_differences),
        cmocka_unit_test(cross_entropy_agrees_with_central_differences),
        cmocka_unit_test(gradients_of_communication_are_its_transpose),
        cmocka_unit_test(what_is_sent_comes_back_and_what_comes_is_sent_back),
        cmocka_unit_test(frozen_parameters_that_are_sent_take_nothing_back),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
