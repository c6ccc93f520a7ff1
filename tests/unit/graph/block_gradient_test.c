/* block_gradient_test.c - gradients of whole blocks against central differences: values used
 * several times, gradients that pass through unchanged, fused ops, losses of a model's own. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <base/status.h>
#include <graph/fusion.h>

#include "differences.h"
#include <longhaul/ops.h>

#include <cmocka.h> /* last: it has a fail() of its own */

enum { HIDDEN = 6, HEADS = 2, KV_HEADS = 1, HEAD_DIM = 4, FFN = 5, EXPERTS = 4, PICKS = 2 };

static const struct {
    const char *name;
    uint64_t rows, columns, depth; /* 0: there is no such dimension */
} params[] = {
    {"norm1", HIDDEN, 0, 0},
    {"norm2", HIDDEN, 0, 0},
    {"bias", HIDDEN, 0, 0},
    {"wq", HEADS *HEAD_DIM, HIDDEN, 0},
    {"wk", KV_HEADS *HEAD_DIM, HIDDEN, 0},
    {"wv", KV_HEADS *HEAD_DIM, HIDDEN, 0},
    {"wo", HIDDEN, HEADS *HEAD_DIM, 0},
    {"gate", FFN, HIDDEN, 0},
    {"up", FFN, HIDDEN, 0},
    {"down", HIDDEN, FFN, 0},
    {"square", HIDDEN, HIDDEN, 0},
    {"shift", TEST_TOKENS, HIDDEN, 0},
    {"one", 1, 0, 0},
    {"head norm", HEAD_DIM / 2, 0, 0},
    {"router", EXPERTS, HIDDEN, 0},
    {"experts up", EXPERTS, FFN, HIDDEN},
    {"experts down", EXPERTS, FFN, HIDDEN},
};

static lh_status_t param_shape(void *context, const char *name, uint64_t *shape, uint32_t *rank)
{
    (void)context;
    for (size_t i = 0; i < sizeof(params) / sizeof(params[0]); i++)
        if (strcmp(params[i].name, name) == 0) {
            shape[0] = params[i].rows;
            shape[1] = params[i].columns;
            shape[2] = params[i].depth;
            *rank = params[i].columns == 0 ? 1 : params[i].depth == 0 ? 2 : 3;
            return LH_OK;
        }
    return LH_INVALID;
}

#define PARAM(name) g->api->param(g, name)
#define LINEAR(x, name) lh_linear(g, x, PARAM(name), 0)

static lh_value_t attend(lh_graph_t *g, lh_value_t n)
{
    static const float frequencies[HEAD_DIM / 2] = {1, 0.1f};
    const lh_rope_t turn_q = {.struct_size = sizeof(turn_q), .heads = HEADS, .head_dim = HEAD_DIM};
    const lh_rope_t turn_k = {
        .struct_size = sizeof(turn_k), .heads = KV_HEADS, .head_dim = HEAD_DIM};
    const lh_attention_t how = {
        .struct_size = sizeof(how), .heads = HEADS, .kv_heads = KV_HEADS, .head_dim = HEAD_DIM};
    const lh_value_t f = g->api->constant(g, frequencies, HEAD_DIM / 2);
    const lh_value_t q = lh_rotate(g, LINEAR(n, "wq"), f, &turn_q);
    const lh_value_t k = lh_rotate(g, LINEAR(n, "wk"), f, &turn_k);
    return LINEAR(lh_attend(g, q, k, LINEAR(n, "wv"), &how), "wo");
}

/* Norm, rotary grouped-query attention, gated feed-forward: q, k and v, then gate and up, share an
 * input. */
static lh_value_t llama_block(lh_graph_t *g, lh_value_t x)
{
    x = lh_add(g, x, attend(g, lh_rms_norm(g, x, PARAM("norm1"), 1e-5)));
    const lh_value_t n = lh_rms_norm(g, x, PARAM("norm2"), 1e-5);
    const lh_value_t f = lh_activate(g, LINEAR(n, "gate"), LH_ACT_SILU);
    return lh_add(g, x, LINEAR(lh_multiply(g, f, LINEAR(n, "up")), "down"));
}

/* Biases, layer norm, an activation behind a matmul. */
static lh_value_t gpt2_block(lh_graph_t *g, lh_value_t x)
{
    const lh_norm_t how = {sizeof(how), 0, 1e-5};
    const lh_value_t in[] = {x, PARAM("norm1"), PARAM("bias")};
    const lh_value_t n = g->api->op(g, "layer_norm", &how, in, 3, NULL);
    const lh_value_t u = lh_linear(g, n, PARAM("square"), PARAM("bias"));
    return lh_add(g, x, LINEAR(lh_activate(g, u, LH_ACT_GELU_TANH), "square"));
}

/* One norm feeds attention and feed-forward; both are added to x, as in Falcon. */
static lh_value_t parallel_block(lh_graph_t *g, lh_value_t x)
{
    const lh_value_t n = lh_rms_norm(g, x, PARAM("norm1"), 1e-5);
    const lh_value_t m = LINEAR(lh_activate(g, LINEAR(n, "up"), LH_ACT_GELU), "down");
    return lh_add(g, lh_add(g, x, attend(g, n)), m);
}

/* x's gradient passes through an add unchanged and meets sums of matmuls: nothing may be added onto
 * memory that the other branch still reads. */
static lh_value_t braid(lh_graph_t *g, lh_value_t x)
{
    const lh_value_t a = LINEAR(x, "square");
    const lh_value_t b = lh_add(g, x, a);
    const lh_value_t c = lh_add(g, a, LINEAR(b, "square"));
    const lh_value_t d = lh_add(g, c, c);
    return lh_add(g, lh_add(g, d, LINEAR(x, "square")), lh_multiply(g, x, x));
}

/* The gradient of h goes to x and to a alike. b's is added to x's before a's is read: not in that
 * memory. */
static lh_value_t held_twice(lh_graph_t *g, lh_value_t x)
{
    const lh_value_t a = LINEAR(lh_activate(g, x, LH_ACT_TANH), "square");
    const lh_value_t b = LINEAR(x, "square");
    const lh_value_t h = lh_add(g, x, a);
    return lh_add(g, LINEAR(h, "square"), b);
}

/* Activations and products that others use too: a fusion must leave them there. */
static lh_value_t used_elsewhere(lh_graph_t *g, lh_value_t x)
{
    const lh_value_t u = LINEAR(x, "square");
    const lh_value_t f = lh_activate(g, u, LH_ACT_SILU);
    const lh_value_t gated = lh_multiply(g, f, LINEAR(x, "square"));
    const lh_value_t sum = lh_add(g, lh_add(g, gated, f), u);
    const lh_value_t n = lh_rms_norm(g, sum, PARAM("norm1"), 1e-5);
    return lh_add(g, sum, lh_add(g, n, lh_rms_norm(g, sum, PARAM("norm2"), 1e-5)));
}

/* An activation times itself: fused with the product it would be gone, and is its other factor. */
static lh_value_t squared(lh_graph_t *g, lh_value_t x)
{
    const lh_value_t f = lh_activate(g, LINEAR(x, "up"), LH_ACT_SILU);
    return lh_add(g, x, LINEAR(lh_multiply(g, f, f), "down"));
}

/* Parameters that no matmul touches: added, spread over rows, used twice. */
static lh_value_t odd_parameters(lh_graph_t *g, lh_value_t x)
{
    const lh_value_t shifted = lh_add(g, lh_add(g, x, PARAM("shift")), PARAM("shift"));
    const lh_value_t in[] = {lh_multiply(g, shifted, PARAM("norm1")), PARAM("one")};
    return lh_multiply(g, g->api->op(g, "scale", NULL, in, 2, NULL), PARAM("norm1"));
}

/* A norm of each half of a head, as of q and k. */
static lh_value_t norms_of_groups(lh_graph_t *g, lh_value_t x)
{
    const lh_value_t q = lh_rms_norm(g, LINEAR(x, "wq"), PARAM("head norm"), 1e-5);
    return lh_add(g, x, LINEAR(q, "wo"));
}

/* Of EXPERTS experts each token has k, by the largest shares of its router; favour [EXPERTS] is added
 * to what the router says, NULL: nothing. */
static lh_value_t experts_of(lh_graph_t *g, lh_value_t x, bool shared, uint32_t k,
                             const float *favour)
{
    const lh_top_k_t top = {.struct_size = sizeof(top), .k = k};
    const lh_route_t route = {sizeof(route), EXPERTS};
    const lh_picks_t picks = {sizeof(picks), k};
    const lh_grouped_t up = {sizeof(up), 1}, down = {sizeof(down), 0};
    const lh_value_t bias = favour == NULL ? 0 : g->api->constant(g, favour, EXPERTS);
    const lh_value_t logits = lh_linear(g, x, PARAM("router"), bias);
    const lh_value_t all = g->api->op(g, "softmax", NULL, &logits, 1, NULL);
    lh_value_t ids, offsets;
    const lh_value_t shares = g->api->op(g, "top_k", &top, &all, 1, &ids);
    const lh_value_t order = g->api->op(g, "route", &route, &ids, 1, &offsets);
    const lh_value_t of_x[] = {x, order};
    const lh_value_t rows = g->api->op(g, "gather_rows", &picks, of_x, 2, NULL);
    const lh_value_t of_up[] = {rows, PARAM("experts up"), offsets};
    const lh_value_t wide = g->api->op(g, "grouped_matmul", &up, of_up, 3, NULL);
    const lh_value_t of_down[] = {lh_activate(g, wide, LH_ACT_SILU), PARAM("experts down"),
                                  offsets};
    const lh_value_t made = g->api->op(g, "grouped_matmul", &down, of_down, 3, NULL);
    const lh_value_t of_made[] = {made, order, shares};
    return g->api->op(g, "scatter_rows", &picks, of_made, shared ? 3 : 2, NULL);
}

static lh_value_t experts(lh_graph_t *g, lh_value_t x, bool shared)
{
    return experts_of(g, x, shared, PICKS, NULL);
}

/* More than any router's say, as its weights and what it sees are at most 1. */
#define FAVOURED (3.0f * HIDDEN)

static lh_value_t all_to_one(lh_graph_t *g, lh_value_t x)
{
    static const float favour[EXPERTS] = {[2] = FAVOURED};
    return lh_add(g, x, experts_of(g, x, true, 1, favour));
}

/* The first and the last have all tokens; between them stand two without any. */
static lh_value_t two_without_a_token(lh_graph_t *g, lh_value_t x)
{
    static const float favour[EXPERTS] = {FAVOURED, 0, 0, FAVOURED};
    return lh_add(g, x, experts_of(g, x, true, 2, favour));
}

static lh_value_t routed(lh_graph_t *g, lh_value_t x)
{
    return lh_add(g, x, experts(g, x, true));
}

static lh_value_t routed_without_shares(lh_graph_t *g, lh_value_t x)
{
    return lh_add(g, experts(g, x, true), experts(g, x, false));
}

static lh_value_t third_party(lh_graph_t *g, lh_value_t x)
{
    const struct {
        uint32_t struct_size, reserved;
        double beta;
    } how = {16, 0, 1.75};
    const lh_value_t u = LINEAR(x, "square");
    return lh_add(g, x, g->api->op(g, "acme.swish", &how, &u, 1, NULL));
}

/* One product is taken apart, of which one column is taken twice and one never; heads are normed as rows,
 * and one is repeated beside all. */
static lh_value_t taken_apart(lh_graph_t *g, lh_value_t x)
{
    const lh_norm_t norm = {sizeof(norm), 0, 1e-5};
    const lh_concat_t shared = {sizeof(shared), HEADS, 1, 0};
    const lh_columns_t of_heads = {sizeof(of_heads), HEADS, 1, 2, 0};
    const lh_value_t q = LINEAR(x, "wq");
    const lh_value_t of_norm[] = {lh_heads(g, q, HEAD_DIM / 2), PARAM("head norm")};
    const lh_value_t normed = lh_heads(g, g->api->op(g, "layer_norm", &norm, of_norm, 2, NULL),
                                       HEADS * HEAD_DIM);
    const lh_value_t inner = g->api->op(g, "columns", &of_heads, &normed, 1, NULL);
    const lh_value_t of_all[] = {inner, lh_columns(g, q, 3, 2)};
    const lh_value_t wide = g->api->op(g, "concat", &shared, of_all, 2, NULL);
    const lh_value_t both = lh_multiply(g, lh_columns(g, q, 0, 4), lh_columns(g, wide, 2, 4));
    return lh_add(g, x, LINEAR(lh_add(g, lh_repeat(g, both, 2), q), "wo"));
}

/* The input's gradient is the one from above. */
static lh_value_t untouched(lh_graph_t *g, lh_value_t x)
{
    (void)g;
    return x;
}

static const struct {
    const char *what;
    lh_value_t (*record)(lh_graph_t *g, lh_value_t x);
    const char *fused[3]; /* ops that the fused recording has */
    const char *gone[3];  /* ops that it has no longer         */
} blocks[] = {
    {"llama",
     llama_block,
     {"add_rms_norm", "gate", "rms_norm_grad_add"},
     {"activate", "multiply", "rms_norm_grad"}},
    {"gpt2",
     gpt2_block,
     {"matmul", "layer_norm_grad_add"},
     {"activate", "layer_norm_grad", "rms_norm_grad_add"}},
    {"parallel", parallel_block, {"matmul", "rms_norm_grad_add"}, {"activate"}},
    {"braid", braid, {NULL}, {NULL}},
    {"held twice", held_twice, {"activate"}, {NULL}},
    {"used elsewhere", used_elsewhere, {"add_rms_norm", "rms_norm", "multiply"}, {"activate"}},
    {"squared activation", squared, {"matmul", "multiply"}, {"activate", "gate"}},
    {"odd parameters", odd_parameters, {NULL}, {NULL}},
    {"a third party's op", third_party, {"acme.swish"}, {NULL}},
    {"norms of groups", norms_of_groups, {"rms_norm"}, {NULL}},
    {"routed experts", routed, {"scatter_rows"}, {NULL}},
    {"routed without shares", routed_without_shares, {"scatter_rows"}, {NULL}},
    {"all tokens to one expert", all_to_one, {"scatter_rows"}, {NULL}},
    {"experts without a token", two_without_a_token, {"scatter_rows"}, {NULL}},
    {"taken apart", taken_apart, {NULL}, {NULL}},
    {"nothing", untouched, {NULL}, {NULL}},
};
enum { BLOCKS = sizeof(blocks) / sizeof(blocks[0]) };

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

static differentiated_t record(size_t i)
{
    static const uint64_t shape[] = {TEST_TOKENS, HIDDEN};
    differentiated_t d = {.op = "block", .what = blocks[i].what};
    d.r = test_recording(ops, param_shape, NULL);
    d.input = recording_argument(d.r, LH_DTYPE_F64, 2, shape);
    d.r->output = blocks[i].record(&d.r->graph, d.input);
    return d;
}

static void blocks_agree_with_central_differences(void **state)
{
    (void)state;
    for (size_t i = 0; i < BLOCKS; i++) {
        differentiated_t d = record(i);
        differentiate(&d);
        check_differences(&d, false);
        check_differences(&d, true);
        recording_free(d.r);
    }
}

/* A device that has a kernel for every call but those of one op. */
static bool lacks_one(void *lacking, const op_t *op, const void *attributes, const lh_arg_t *args)
{
    (void)args;
    if (lacking == NULL || strcmp(op->row.name, lacking) != 0)
        return strcmp(op->row.name, "linear") != 0;
    return strcmp(op->row.name, "matmul") == 0 &&
           ((const lh_matmul_t *)attributes)->activation == LH_ACT_NONE;
}

static lh_status_t fuse(recording_t *r, const char *lacking)
{
    r->how.offers = lacks_one;
    r->how.device = (void *)(uintptr_t)lacking;
    return fusion_apply(r);
}

/* The reverse pass, and what can be fused in it. */
static void differentiate_and_fuse(differentiated_t *d)
{
    const uint32_t forward_end = d->r->node_count;
    differentiate(d);
    assert_int_equal(fusion_apply_backward(d->r, d->input_gradient), LH_OK);
    for (uint32_t n = 1; n < d->r->node_count; n++)
        assert_int_equal(d->r->nodes[n].backward, n >= forward_end);
    for (uint32_t n = forward_end + 1; n < d->r->node_count; n++)
        if (d->r->nodes[n - 1].gradient_of != 0)
            assert_in_range(d->r->nodes[n].gradient_of, 1, d->r->nodes[n - 1].gradient_of);
    if (forward_end > 1) /* else there is nothing to go back through */
        assert_in_range(d->r->nodes[d->r->node_count - 1].gradient_of, 1, forward_end - 1);
}

static bool has_op(const recording_t *r, const char *name)
{
    for (uint32_t n = 1; n < r->node_count; n++)
        if (strcmp(r->nodes[n].op->row.name, name) == 0) return true;
    return false;
}

static void fused_blocks_agree_with_central_differences(void **state)
{
    (void)state;
    for (size_t i = 0; i < BLOCKS; i++) {
        differentiated_t d = record(i);
        assert_int_equal(fuse(d.r, NULL), LH_OK);
        differentiate_and_fuse(&d);
        for (size_t f = 0; f < 3; f++) {
            assert_true(blocks[i].fused[f] == NULL || has_op(d.r, blocks[i].fused[f]));
            assert_true(blocks[i].gone[f] == NULL || !has_op(d.r, blocks[i].gone[f]));
        }
        check_differences(&d, false);
        check_differences(&d, true);
        recording_free(d.r);
    }
}

/* gate is of use without gate_grad too: its gradient is recorded as other ops. */
static void a_fused_op_without_a_kernel_is_recorded_as_its_parts(void **state)
{
    (void)state;
    static const struct {
        size_t block;
        const char *lacking, *part, *fused;
    } rows[] = {
        {0, "add_rms_norm", "rms_norm", "add_rms_norm"},
        {0, "gate", "multiply", "gate"},
        {0, "gate_grad", "gate", "gate_grad"},
        {1, "matmul", "activate", "gate"},
        {0, "rms_norm_grad_add", "rms_norm_grad", "rms_norm_grad_add"},
        {1, "layer_norm_grad_add", "layer_norm_grad", "layer_norm_grad_add"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        differentiated_t d = record(rows[i].block);
        assert_int_equal(fuse(d.r, rows[i].lacking), LH_OK);
        differentiate_and_fuse(&d);
        assert_true(has_op(d.r, rows[i].part));
        assert_false(has_op(d.r, rows[i].fused));
        check_differences(&d, false);
        recording_free(d.r);
    }
}

/* A fused recording computes the same output as its parts. */
static void fusion_leaves_the_output_as_it_was(void **state)
{
    (void)state;
    const lh_plugin_t *acme = test_plugin("parts", "acme_ops");
    const interpreter_how_t how = {.host = test_host(),
                                   .device = test_plugin("devices", "reference"),
                                   .plugins = &acme,
                                   .plugin_count = 1};
    for (size_t i = 0; i < BLOCKS; i++) {
        differentiated_t parts = record(i), fused = record(i);
        assert_int_equal(fuse(fused.r, NULL), LH_OK);
        interpreter_t *a, *b;
        assert_int_equal(interpreter_new(&how, parts.r, &a), LH_OK);
        assert_int_equal(interpreter_new(&how, fused.r, &b), LH_OK);
        test_fill(a, parts.r);
        test_fill(b, fused.r);
        assert_int_equal(interpreter_run(a, true), LH_OK);
        assert_int_equal(interpreter_run(b, true), LH_OK);
        assert_memory_equal(interpreter_at(a, parts.r->output), interpreter_at(b, fused.r->output),
                            test_elements(parts.r, parts.r->output) * sizeof(double));
        interpreter_free(a);
        interpreter_free(b);
        recording_free(parts.r);
        recording_free(fused.r);
    }
}

static const double *numbers_of(interpreter_t *it, const recording_t *r, const char *name)
{
    for (lh_value_t v = 1; v < r->value_count; v++)
        if (r->values[v].kind == VALUE_PARAM && strcmp(r->values[v].name, name) == 0)
            return interpreter_at(it, v);
    fail_msg("no parameter %s", name);
    return NULL;
}

/* What an expert makes of a token, added to y with that share. */
static void expert_add(interpreter_t *it, const recording_t *r, uint64_t expert, double share,
                       const double *x, double *y)
{
    const double *up = numbers_of(it, r, "experts up") + expert * FFN * HIDDEN;
    const double *down = numbers_of(it, r, "experts down") + expert * FFN * HIDDEN;
    for (uint64_t f = 0; f < FFN; f++) {
        double wide = 0;
        for (uint64_t h = 0; h < HIDDEN; h++)
            wide += up[f * HIDDEN + h] * x[h];
        for (uint64_t h = 0; h < HIDDEN; h++)
            y[h] += share * wide / (1 + exp(-wide)) * down[f * HIDDEN + h];
    }
}

/* Every token through every expert, and those that it did not pick left out: no order, no rows that
 * move. A share is picked where fewer than PICKS are larger. */
static void routed_experts_are_the_sum_over_all_experts(void **state)
{
    (void)state;
    const interpreter_how_t how = {.host = test_host(),
                                   .device = test_plugin("devices", "reference")};
    static const uint64_t shape[] = {TEST_TOKENS, HIDDEN};
    recording_t *r = test_recording(ops, param_shape, NULL);
    const lh_value_t input = recording_argument(r, LH_DTYPE_F64, 2, shape);
    r->output = experts(&r->graph, input, true);
    interpreter_t *it;
    assert_int_equal(recording_status(r), LH_OK);
    assert_int_equal(interpreter_new(&how, r, &it), LH_OK);
    test_fill(it, r);
    assert_int_equal(interpreter_run(it, true), LH_OK);
    const double *router = numbers_of(it, r, "router"), *found = interpreter_at(it, r->output);
    uint64_t tokens_of[EXPERTS] = {0};
    for (uint64_t t = 0; t < TEST_TOKENS; t++) {
        const double *x = (const double *)interpreter_at(it, input) + t * HIDDEN;
        double share[EXPERTS], sum = 0, y[HIDDEN] = {0};
        for (uint64_t e = 0; e < EXPERTS; e++) {
            share[e] = 0;
            for (uint64_t h = 0; h < HIDDEN; h++)
                share[e] += router[e * HIDDEN + h] * x[h];
            share[e] = exp(share[e]);
            sum += share[e];
        }
        for (uint64_t e = 0; e < EXPERTS; e++) {
            uint32_t larger = 0;
            for (uint64_t other = 0; other < EXPERTS; other++)
                larger += share[other] > share[e];
            if (larger >= PICKS) continue;
            tokens_of[e]++;
            expert_add(it, r, e, share[e] / sum, x, y);
        }
        for (uint64_t h = 0; h < HIDDEN; h++)
            assert_true(fabs(found[t * HIDDEN + h] - y[h]) < 1e-12 * (1 + fabs(y[h])));
    }
    assert_int_not_equal(tokens_of[0], tokens_of[1]); /* the counts differ */
    interpreter_free(it);
    recording_free(r);
}

/* How many rows each expert gets. */
static void check_counts(lh_value_t (*block)(lh_graph_t *g, lh_value_t x),
                         const int32_t expected[EXPERTS])
{
    const interpreter_how_t how = {.host = test_host(),
                                   .device = test_plugin("devices", "reference")};
    static const uint64_t shape[] = {TEST_TOKENS, HIDDEN};
    recording_t *r = test_recording(ops, param_shape, NULL);
    r->output = block(&r->graph, recording_argument(r, LH_DTYPE_F64, 2, shape));
    interpreter_t *it;
    assert_int_equal(recording_status(r), LH_OK);
    assert_int_equal(interpreter_new(&how, r, &it), LH_OK);
    test_fill(it, r);
    assert_int_equal(interpreter_run(it, true), LH_OK);
    uint32_t seen = 0;
    for (uint32_t n = 1; n < r->node_count; n++) {
        const graph_node_t *node = &r->nodes[n];
        if (strcmp(node->op->row.name, "route") != 0) continue;
        const int32_t *offsets = interpreter_at(it, node->slots[node->op->in_count + 1]);
        for (uint32_t e = 0; e < EXPERTS; e++)
            assert_int_equal(offsets[e + 1] - offsets[e], expected[e]);
        seen++;
    }
    assert_int_equal(seen, 1);
    interpreter_free(it);
    recording_free(r);
}

static void some_experts_have_no_token(void **state)
{
    (void)state;
    check_counts(all_to_one, (const int32_t[EXPERTS]){0, 0, TEST_TOKENS, 0});
    check_counts(two_without_a_token, (const int32_t[EXPERTS]){TEST_TOKENS, 0, 0, TEST_TOKENS});
}

/* Three gradients into one norm's output are one accumulator, not two adds. */
static void gradients_of_shared_inputs_add_in_place(void **state)
{
    (void)state;
    differentiated_t d = record(0);
    differentiate(&d);
    uint32_t chained = 0, adds = 0;
    for (uint32_t n = 1; n < d.r->node_count; n++) {
        const graph_node_t *node = &d.r->nodes[n];
        if (!node->backward) continue;
        for (uint32_t s = 0; s < OP_SLOTS; s++)
            chained += node->adds_to[s] != 0;
        adds += strcmp(node->op->row.name, "add") == 0;
    }
    assert_int_equal(chained, 3); /* k and v onto q; up onto gate */
    assert_int_equal(adds, 2);    /* the two residuals            */
    recording_free(d.r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_agree_with_central_differences),
        cmocka_unit_test(fused_blocks_agree_with_central_differences),
        cmocka_unit_test(a_fused_op_without_a_kernel_is_recorded_as_its_parts),
        cmocka_unit_test(fusion_leaves_the_output_as_it_was),
        cmocka_unit_test(routed_experts_are_the_sum_over_all_experts),
        cmocka_unit_test(some_experts_have_no_token),
        cmocka_unit_test(gradients_of_shared_inputs_add_in_place),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
