/* model_loss_test.c - a loss that a model adds itself is minimised with the cross-entropy. The
 * model is llama with the mean square of each block's output as a loss; the op and its kernels are
 * the test's own. So is one whose row says that it is costly: selective recomputation keeps it. */
#include "golden.h"

#include <math.h>
#include <stdlib.h>

#include <base/memory.h>
#include <engine/engine.h>
#include <engine/model_program.h>
#include <engine/program.h>
#include <engine/weights.h>
#include <longhaul/ops.h>

enum { TOKENS = GOLDEN_BATCH * GOLDEN_SEQUENCE, ROW = GOLDEN_SEQUENCE + 1 };

/* test.mean_square x -> y: [t, w] F32 to [1]; test.mean_square_grad gy x -> gx. */
static lh_status_t mean_shape(LH_UNUSED const lh_host_t *host, LH_UNUSED const void *attributes,
                              lh_arg_t *args, LH_UNUSED uint32_t count)
{
    args[1] = (lh_arg_t){.dtype = args[0].dtype, .rank = 1, .shape = {1}, .stride = {1}};
    return LH_OK;
}

static lh_status_t mean_grad_shape(LH_UNUSED const lh_host_t *host,
                                   LH_UNUSED const void *attributes, lh_arg_t *args,
                                   LH_UNUSED uint32_t count)
{
    args[2] = args[1];
    return LH_OK;
}

static void mean_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                          const lh_value_t *from, LH_UNUSED const bool *wanted, lh_value_t *into)
{
    const lh_value_t in[] = {from[0], forward[0]};
    into[0] = g->api->op(g, "test.mean_square_grad", attributes, in, 2, NULL);
}

/* What the kernels promise, and whether kernels without that promise are asked for. */
static uint32_t promised = LH_KERNEL_ORDERED;
static bool unordered;

struct lh_prepared {
    uint64_t elements;
    bool gradient;
};

static lh_status_t mean_prepare(LH_UNUSED const lh_host_t *host, LH_UNUSED lh_device_t *d,
                                const lh_kernel_desc_t *desc, lh_kernel_plan_t *plan,
                                lh_prepared_t **out)
{
    const lh_arg_t *x = &desc->args[desc->arg_count - 2];
    lh_prepared_t *k = malloc(sizeof(*k));
    *k = (lh_prepared_t){x->shape[0] * x->shape[1], desc->arg_count == 3};
    LH_FILL(lh_kernel_plan_t, plan, .flags = promised, .name = "mean_square.test");
    *out = k;
    return LH_OK;
}

static lh_status_t mean_launch(lh_prepared_t *k, const lh_launch_t *call)
{
    const float *x = call->args[k->gradient ? 1 : 0].address;
    float *y = call->args[k->gradient ? 2 : 1].address;
    double sum = 0;
    for (uint64_t i = 0; i < k->elements && !k->gradient; i++)
        sum += (double)x[i] * (double)x[i];
    if (!k->gradient) y[0] = (float)(sum / (double)k->elements);
    for (uint64_t i = 0; i < k->elements && k->gradient; i++)
        y[i] = *(const float *)call->args[0].address * 2 * x[i] / (float)k->elements;
    return LH_OK;
}

/* test.same x -> y: y = x, gx = gy. */
static lh_status_t same_shape(LH_UNUSED const lh_host_t *host, LH_UNUSED const void *attributes,
                              lh_arg_t *args, LH_UNUSED uint32_t count)
{
    args[1] = args[0];
    return LH_OK;
}

static void same_gradient(LH_UNUSED lh_graph_t *g, LH_UNUSED const void *attributes,
                          LH_UNUSED const lh_value_t *forward, const lh_value_t *from,
                          LH_UNUSED const bool *wanted, lh_value_t *into)
{
    into[0] = from[0];
}

static lh_status_t same_launch(lh_prepared_t *k, const lh_launch_t *call)
{
    memcpy(call->args[1].address, call->args[0].address, k->elements * sizeof(float));
    return LH_OK;
}

static void mean_release(lh_prepared_t *k)
{
    free(k);
}

enum { MEAN, MEAN_GRAD, SAME, OPS };
static lh_op_t ops[OPS] = {
    [MEAN] = {.name = "test.mean_square",
              .slots = "x -> y",
              .shape = mean_shape,
              .gradient = mean_gradient},
    [MEAN_GRAD] = {.name = "test.mean_square_grad",
                   .slots = "gy x -> gx",
                   .shape = mean_grad_shape},
    [SAME] = {.name = "test.same",
              .slots = "x -> y",
              .shape = same_shape,
              .gradient = same_gradient},
};
static bool same_first;    /* the loss is of test.same(output) */
static uint32_t recompute; /* of the program */

/* What is wrong with a sum over blocks; RIGHT: there is none. */
enum {
    RIGHT,
    UNREAD,
    UNADDED,
    READ_IN_A_BLOCK,
    ADDED_IN_THE_HEAD,
    OF_ROWS,
    IN_LOGITS,
    UNEVEN,
    UNUSED
};
static int wrong;

static rig_t *recorded; /* whose model record() is */

/* A block adds a number to "sum"; the head reads it and makes a loss of it. */
static lh_value_t record_sum(lh_graph_t *g, uint32_t part, uint32_t block, lh_value_t y)
{
    static const float ones[2] = {1, 1};
    const lh_value_t one = g->api->constant(g, ones, wrong == UNEVEN ? 1 + block : 1);
    if (part == LH_PART_BLOCK && wrong == READ_IN_A_BLOCK) (void)g->api->total(g, "sum", 1);
    if (part == LH_PART_BLOCK && wrong != UNADDED) g->api->accumulate(g, "sum", one);
    if (part != LH_PART_HEAD || wrong == UNREAD) return y;
    if (wrong == ADDED_IN_THE_HEAD) g->api->accumulate(g, "sum", one);
    const lh_value_t total = g->api->total(g, "sum", 1);
    const lh_value_t in[] = {y, total};
    if (wrong == IN_LOGITS) return g->api->op(g, "scale", NULL, in, 2, NULL);
    if (wrong == OF_ROWS)
        g->api->loss(g, "rows", g->api->op(g, "test.mean_square", NULL, &y, 1, NULL));
    if (wrong != UNUSED) g->api->loss(g, "own", total);
    return y;
}

enum { NO_BIAS, GIVEN, MADE };
static int bias; /* of the head: none, a constant, what a call makes of one */

/* Logits with a bias of [vocab] constants, as they are or doubled. */
static lh_value_t record_biased(lh_graph_t *g, lh_value_t x)
{
    enum { MOST = 4096 };
    static float numbers[MOST];
    static const float two = 2;
    const uint64_t vocab = recorded->parameters->vocab;
    assert_true(vocab <= MOST);
    for (uint64_t i = 0; i < vocab; i++)
        numbers[i] = (float)i;
    const lh_value_t in[] = {g->api->constant(g, numbers, vocab), g->api->constant(g, &two, 1)};
    const lh_value_t b = bias == MADE ? g->api->op(g, "scale", NULL, in, 2, NULL) : in[0];
    return lh_linear(g, x, g->api->param(g, "head"), b);
}

static lh_value_t record(lh_model_t *m, lh_graph_t *g, uint32_t part, uint32_t block, lh_value_t x)
{
    if (bias != NO_BIAS && part == LH_PART_HEAD) return record_biased(g, x);
    const lh_value_t y = recorded->model_plugin->model->record(m, g, part, block, x);
    if (wrong != RIGHT) return record_sum(g, part, block, y);
    if (part != LH_PART_BLOCK) return y;
    const lh_value_t of = same_first ? g->api->op(g, "test.same", NULL, &y, 1, NULL) : y;
    g->api->loss(g, "square", g->api->op(g, "test.mean_square", NULL, &of, 1, NULL));
    return y;
}

typedef struct built {
    rig_t rig;
    program_t *train;
    int32_t batch[GOLDEN_BATCH * ROW];
    lh_kernel_t kernels[OPS];
    lh_model_api_t api;
    plugin_t parts;
} built_t;

/* Without memory and kernels. */
static lh_status_t record_status(built_t *b, uint32_t micro_batches, bool with_loss)
{
    const golden_model_t *m = &golden_models[0];
    for (uint32_t i = 0; i < OPS; i++)
        b->kernels[i] = (lh_kernel_t){.op = ops[i].name,
                                      .device = rig_device(),
                                      .prepare = mean_prepare,
                                      .launch = i == SAME ? same_launch : mean_launch,
                                      .release = mean_release};
    b->parts = (plugin_t){
        .name = "parts", .ops = ops, .op_count = OPS, .kernels = b->kernels, .kernel_count = OPS};
    const rig_how_t how = {.model = m->plugin,
                           .options = m->options,
                           .compute = LH_DTYPE_F32,
                           .api = with_loss ? &b->api : NULL,
                           .unordered = unordered,
                           .parts = &b->parts};
    recorded = &b->rig;
    b->api = (lh_model_api_t){.struct_size = sizeof(b->api)};
    host_t *host;
    registry_t *registry;
    const plugin_t *llama;
    OK(host_new(&host));
    OK(registry_new(LH_TEST_PLUGINS, host, &registry));
    OK(registry_load(registry, LH_KIND_MODEL, "llama", &llama));
    b->api = *llama->model;
    b->api.record = record;
    registry_free(registry);
    host_free(host);

    rig_open_how(&b->rig, &how);
    const program_how_t program = {.use = USE_TRAIN,
                                   .sequences = GOLDEN_BATCH / micro_batches,
                                   .rows = GOLDEN_SEQUENCE,
                                   .recompute = recompute,
                                   .micro_batches = micro_batches};
    return program_new(b->rig.engine, b->rig.weights, &program, &b->train);
}

static void record_program(built_t *b, uint32_t micro_batches, bool with_loss)
{
    OK(record_status(b, micro_batches, with_loss));
}

static void sums_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    static const struct {
        int what;
        const char *sentence;
    } cases[] = {
        {UNREAD, "blocks add to sum 'sum', which the head does not read"},
        {UNADDED, "the head reads sum 'sum' of 1 values, to which no block adds"},
        {READ_IN_A_BLOCK, "a block reads sum 'sum'; only the head may"},
        {ADDED_IN_THE_HEAD, "the head adds to sum 'sum'; only embedding and blocks may"},
        {OF_ROWS, "loss 'rows' of the head depends on rows"},
        {IN_LOGITS, "the head's logits depend on sum 'sum'; only losses may"},
        {UNEVEN, "block 1 adds 2 values to sum 'sum', others 1"},
        {UNUSED, "the head reads sum 'sum', and no loss depends on it"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        built_t b = {0};
        wrong = cases[i].what;
        assert_int_not_equal(record_status(&b, 1, true), LH_OK);
        if (strstr(fail_reason(), cases[i].sentence) == NULL) print_error("%s\n", fail_reason());
        assert_non_null(strstr(fail_reason(), cases[i].sentence));
        rig_close(&b.rig);
    }
    wrong = RIGHT;
}

/* The product is recorded anew for a chunk of rows, without the calls before it. */
static void a_heads_bias_that_a_call_makes_is_refused(void **state)
{
    (void)state;
    for (bias = GIVEN; bias <= MADE; bias++) {
        built_t b = {0};
        assert_int_equal(record_status(&b, 1, true), bias == GIVEN ? LH_OK : LH_UNSUPPORTED);
        if (bias == MADE)
            assert_non_null(strstr(fail_reason(), "with one or a constant as its bias"));
        rig_close(&b.rig);
    }
    bias = NO_BIAS;
}

static void build(built_t *b, uint32_t micro_batches, bool with_loss)
{
    record_program(b, micro_batches, with_loss);
    OK(engine_build(b->rig.engine));
    golden_weights(&golden_models[0], &b->rig);
    golden_batch(&golden_models[0], 0, b->batch);
}

static void run(built_t *b, uint32_t micro_batches, float loss[2])
{
    const uint64_t sequences = GOLDEN_BATCH / micro_batches;
    for (uint32_t i = 0; i < micro_batches; i++) {
        rig_batch(b->train, b->batch + i * sequences * ROW, sequences, GOLDEN_SEQUENCE, TOKENS);
        OK(program_run(b->train, i));
    }
    OK(program_output(b->train, OUTPUT_LOSS, loss, 2 * sizeof(float)));
}

enum { ELEMENTS = 56 * 32 };

static void read_gradient(built_t *b, uint32_t parameter, float *out)
{
    OK(weights_read(b->rig.weights, SPACE_GRAD, parameter, 0, ELEMENTS, LH_DTYPE_F32, out));
}

/* Along the gradient itself the loss rises by its squared length. */
static void gradients_are_slopes_of_both_losses_together(void **state)
{
    (void)state;
    if (strcmp(rig_device(), "fake") == 0) skip(); /* the test's kernels are synchronous */
    built_t b = {0};
    uint32_t up;
    float w[ELEMENTS], g[ELEMENTS], moved[ELEMENTS], loss[2], above[2], below[2];
    build(&b, 1, true);
    assert_true(parameters_find(b.rig.parameters, "blocks.0.w_up", &up));
    run(&b, 1, loss);
    assert_true(loss[0] > loss[1] + 0.01f);
    read_gradient(&b, up, g);
    OK(weights_read(b.rig.weights, SPACE_PARAMETER, up, 0, ELEMENTS, LH_DTYPE_F32, w));
    double squares = 0;
    for (uint32_t i = 0; i < ELEMENTS; i++)
        squares += (double)g[i] * (double)g[i];
    const float step = (float)(2e-3 / squares);
    for (int side = -1; side <= 1; side += 2) {
        for (uint32_t i = 0; i < ELEMENTS; i++)
            moved[i] = w[i] + (float)side * step * g[i];
        OK(weights_write(b.rig.weights, SPACE_PARAMETER, up, 0, ELEMENTS, LH_DTYPE_F32, moved));
        run(&b, 1, side > 0 ? above : below);
    }
    const double slope = ((double)above[0] - (double)below[0]) / (2 * (double)step);
    /* Losses of about 5 in F32, 4e-3 apart. */
    assert_true(fabs(slope / squares - 1) < 2e-3);
    rig_close(&b.rig);
}

static void the_models_loss_is_averaged_over_micro_batches(void **state)
{
    (void)state;
    if (strcmp(rig_device(), "fake") == 0) skip();
    built_t one = {0}, two = {0}, without = {0};
    float a[2], b[2], c[2], of_one[ELEMENTS], of_two[ELEMENTS], of_none[ELEMENTS];
    uint32_t up;
    build(&one, 1, true);
    run(&one, 1, a);
    assert_true(parameters_find(one.rig.parameters, "blocks.0.w_up", &up));
    read_gradient(&one, up, of_one);
    rig_close(&one.rig);
    build(&two, 2, true);
    run(&two, 2, b);
    read_gradient(&two, up, of_two);
    rig_close(&two.rig);
    build(&without, 1, false);
    run(&without, 1, c);
    read_gradient(&without, up, of_none);
    rig_close(&without.rig);

    assert_true(fabsf(a[0] - b[0]) < 1e-5f * a[0]);
    assert_true(a[1] == c[1] && c[0] == c[1]);
    double same = 0, other = 0, norm = 0;
    for (uint32_t i = 0; i < ELEMENTS; i++) {
        same += pow((double)of_one[i] - (double)of_two[i], 2);
        other += pow((double)of_one[i] - (double)of_none[i], 2);
        norm += pow((double)of_one[i], 2);
    }
    assert_true(sqrt(same) < 1e-5 * sqrt(norm));
    assert_true(sqrt(other) > 1e-2 * sqrt(norm));
}

/* Calls of test.same in a step with that flag, and the step's gradient. */
static uint32_t same_calls(uint32_t flags, float *gradient)
{
    built_t b = {0};
    uint32_t calls = 0, up;
    float loss[2];
    ops[SAME].flags = flags;
    build(&b, 1, true);
    program_call_t call;
    for (uint32_t i = 0; program_call(b.train, false, i, &call); i++)
        calls += call.op != NULL && strcmp(call.op->row.name, "test.same") == 0;
    run(&b, 1, loss);
    assert_true(parameters_find(b.rig.parameters, "blocks.0.w_up", &up));
    read_gradient(&b, up, gradient);
    rig_close(&b.rig);
    return calls;
}

static void a_plugins_costly_op_is_not_computed_again(void **state)
{
    (void)state;
    if (strcmp(rig_device(), "fake") == 0) skip();
    static float again[ELEMENTS], kept[ELEMENTS];
    same_first = true;
    recompute = RECOMPUTE_SELECTIVE;
    const uint32_t with = same_calls(0, again), without = same_calls(LH_OP_COSTLY, kept);
    same_first = false;
    recompute = RECOMPUTE_NONE;
    assert_true(without > 0);
    assert_int_equal(with, 2 * without);
    assert_memory_equal(again, kept, sizeof(kept));
}

static void a_kernel_that_promises_no_order_is_taken_where_that_is_asked_for(void **state)
{
    (void)state;
    if (strcmp(rig_device(), "fake") == 0) skip();
    built_t with = {0}, without = {0};
    float loss[2];
    promised = 0;
    record_program(&without, 1, true);
    assert_int_equal(engine_build(without.rig.engine), LH_UNSUPPORTED);
    assert_non_null(
        strstr(fail_reason(), "mean_square.test does not promise equal bits every time"));
    rig_close(&without.rig);
    unordered = true;
    build(&with, 1, true);
    run(&with, 1, loss);
    assert_true(loss[0] > loss[1]);
    rig_close(&with.rig);
    unordered = false;
    promised = LH_KERNEL_ORDERED;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_that_make_no_sense_are_refused),
        cmocka_unit_test(a_heads_bias_that_a_call_makes_is_refused),
        cmocka_unit_test(gradients_are_slopes_of_both_losses_together),
        cmocka_unit_test(the_models_loss_is_averaged_over_micro_batches),
        cmocka_unit_test(a_plugins_costly_op_is_not_computed_again),
        cmocka_unit_test(a_kernel_that_promises_no_order_is_taken_where_that_is_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
