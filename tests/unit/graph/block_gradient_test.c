/* block_gradient_test.c - gradients of whole blocks against central differences: values used
 * several times, gradients that pass through unchanged, fused ops, losses of a model's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <base/status.h>
#include <graph/fusion.h>

#include "differences.h"
#include <longhaul/ops.h>

#include <cmocka.h> /* last: it has a fail() of its own */

enum { HIDDEN = 6, HEADS = 2, KV_HEADS = 1, HEAD_DIM = 4, FFN = 5 };

static const struct {
    const char *name;
    uint64_t rows, columns; /* 0: a vector */
} params[] = {
    {"norm1", HIDDEN, 0},
    {"norm2", HIDDEN, 0},
    {"bias", HIDDEN, 0},
    {"wq", HEADS *HEAD_DIM, HIDDEN},
    {"wk", KV_HEADS *HEAD_DIM, HIDDEN},
    {"wv", KV_HEADS *HEAD_DIM, HIDDEN},
    {"wo", HIDDEN, HEADS *HEAD_DIM},
    {"gate", FFN, HIDDEN},
    {"up", FFN, HIDDEN},
    {"down", HIDDEN, FFN},
    {"square", HIDDEN, HIDDEN},
    {"shift", TEST_TOKENS, HIDDEN},
    {"one", 1, 0},
};

static lh_status_t param_shape(void *context, const char *name, uint64_t *shape, uint32_t *rank)
{
    (void)context;
    for (size_t i = 0; i < sizeof(params) / sizeof(params[0]); i++)
        if (strcmp(params[i].name, name) == 0) {
            shape[0] = params[i].rows;
            shape[1] = params[i].columns;
            *rank = params[i].columns == 0 ? 1 : 2;
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

/* Parameters that no matmul touches: added, spread over rows, used twice. */
static lh_value_t odd_parameters(lh_graph_t *g, lh_value_t x)
{
    const lh_value_t shifted = lh_add(g, lh_add(g, x, PARAM("shift")), PARAM("shift"));
    const lh_value_t in[] = {lh_multiply(g, shifted, PARAM("norm1")), PARAM("one")};
    return lh_multiply(g, g->api->op(g, "scale", NULL, in, 2, NULL), PARAM("norm1"));
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
    {"llama", llama_block, {"add_rms_norm", "gate"}, {"activate", "multiply"}},
    {"gpt2", gpt2_block, {"matmul"}, {"activate"}},
    {"parallel", parallel_block, {"matmul"}, {"activate"}},
    {"braid", braid, {NULL}, {NULL}},
    {"held twice", held_twice, {"activate"}, {NULL}},
    {"used elsewhere", used_elsewhere, {"add_rms_norm", "rms_norm", "multiply"}, {"activate"}},
    {"odd parameters", odd_parameters, {NULL}, {NULL}},
    {"a third party's op", third_party, {"acme.swish"}, {NULL}},
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

static bool has_all(void *context, const op_t *op, const void *attributes, const lh_arg_t *args,
                    uint32_t arg_count)
{
    (void)context, (void)op, (void)attributes, (void)args, (void)arg_count;
    return true;
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
        assert_int_equal(recording_fuse(d.r, has_all, NULL), LH_OK);
        for (size_t f = 0; f < 3; f++) {
            assert_true(blocks[i].fused[f] == NULL || has_op(d.r, blocks[i].fused[f]));
            assert_true(blocks[i].gone[f] == NULL || !has_op(d.r, blocks[i].gone[f]));
        }
        differentiate(&d);
        check_differences(&d, false);
        check_differences(&d, true);
        recording_free(d.r);
    }
}

static bool lacks_one(void *context, const op_t *op, const void *attributes, const lh_arg_t *args,
                      uint32_t arg_count)
{
    (void)args, (void)arg_count;
    if (strcmp(op->row.name, context) != 0) return true;
    return strcmp(op->row.name, "matmul") == 0 &&
           ((const lh_matmul_t *)attributes)->activation == LH_ACT_NONE;
}

/* gate is no use in training without gate_grad. */
static void a_fused_op_without_a_kernel_is_recorded_as_its_parts(void **state)
{
    (void)state;
    static const struct {
        size_t block;
        const char *lacking, *part, *fused;
    } rows[] = {
        {0, "add_rms_norm", "rms_norm", "add_rms_norm"},
        {0, "gate", "multiply", "gate"},
        {0, "gate_grad", "multiply", "gate"},
        {1, "matmul", "activate", "gate"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        differentiated_t d = record(rows[i].block);
        assert_int_equal(recording_fuse(d.r, lacks_one, (void *)rows[i].lacking), LH_OK);
        assert_true(has_op(d.r, rows[i].part));
        assert_false(has_op(d.r, rows[i].fused));
        differentiate(&d);
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
        assert_int_equal(recording_fuse(fused.r, has_all, NULL), LH_OK);
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
        cmocka_unit_test(gradients_of_shared_inputs_add_in_place),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
