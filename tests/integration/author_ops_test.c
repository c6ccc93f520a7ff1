/* author_ops_test.c - what the host does with the core's ops it does with a third party's, whose rows
 * alone say so: sdk/examples/acme_smooth in a model with llama's parameters. Its op for rows is kept
 * by selective recomputation and generates from a cache, its residual is fused and its cap of the
 * logits is walked in chunks. */
#include "golden.h"

#include <math.h>
#include <stdio.h>

#include <base/memory.h>
#include <engine/engine.h>
#include <engine/model_program.h>
#include <engine/program.h>
#include <engine/weights.h>
#include <longhaul/ops.h>

enum { TOKENS = GOLDEN_BATCH * GOLDEN_SEQUENCE, ROW = GOLDEN_SEQUENCE + 1, ELEMENTS = 56 * 32 };

static const golden_model_t *const llama = &golden_models[0];

static struct {
    host_t *host;
    registry_t *registry;
    const plugin_t *model, *acme;
    rig_t rig;
    lh_model_api_t api;
    plugin_t parts;
    lh_kernel_t kernels[32];
    int32_t batch[GOLDEN_BATCH * ROW];
    bool named;         /* the model records acme.add_activated by its name, not its parts */
    bool reads_step;    /* a block asks for what only updates are given */
    lh_dtype_t compute; /* 0: F32 */
    const char *form;   /* of acme.smooth with a cache; NULL: its own */
    lh_op_t ops[16];
} b;

#define LINEAR(x, name) lh_linear(g, x, g->api->param(g, name), 0)
#define RMS(x, name) lh_rms_norm(g, x, g->api->param(g, name), 1e-5)

static lh_value_t record(lh_model_t *m, lh_graph_t *g, uint32_t part, uint32_t block, lh_value_t x)
{
    const struct {
        uint32_t struct_size, window;
    } smooth = {8, 5};
    const struct {
        uint32_t struct_size, reserved;
        double bound;
    } cap = {16, 0, 2.0};
    if (part == LH_PART_BLOCK) {
        if (b.reads_step) (void)g->api->input(g, LH_INPUT_STEP);
        const lh_value_t q = LINEAR(RMS(x, "attn_norm"), "wq");
        x = lh_add(g, x, LINEAR(g->api->op(g, "acme.smooth", &smooth, &q, 1, NULL), "wo"));
        const lh_value_t u = LINEAR(LINEAR(RMS(x, "ffn_norm"), "w_up"), "w_down");
        const lh_activate_t silu = {sizeof(silu), LH_ACT_SILU};
        const lh_value_t in[] = {x, u};
        if (b.named) return g->api->op(g, "acme.add_activated", &silu, in, 2, NULL);
        return lh_add(g, x, lh_activate(g, u, LH_ACT_SILU));
    }
    const lh_value_t y = b.rig.model_plugin->model->record(m, g, part, block, x);
    return part == LH_PART_HEAD ? g->api->op(g, "acme.cap", &cap, &y, 1, NULL) : y;
}

static const char *other_form(LH_UNUSED const void *attributes)
{
    return b.form;
}

/* The example's ops and, but for those of the op `lacking`, its kernels. */
static void open_rig(const char *lacking)
{
    b.api = *b.model->model;
    b.api.record = record;
    b.parts = *b.acme;
    b.parts.kernel_count = 0;
    assert_true(b.acme->kernel_count < sizeof(b.kernels) / sizeof(b.kernels[0]));
    for (uint32_t i = 0; i < b.acme->kernel_count; i++)
        if (lacking == NULL || strcmp(b.acme->kernels[i].op, lacking) != 0)
            b.kernels[b.parts.kernel_count++] = b.acme->kernels[i];
    b.parts.kernels = b.kernels;
    assert_true(b.acme->op_count <= sizeof(b.ops) / sizeof(b.ops[0]));
    for (uint32_t i = 0; i < b.acme->op_count && b.form != NULL; i++) {
        b.ops[i] = b.acme->ops[i];
        if (b.ops[i].cached != NULL) b.ops[i].cached = other_form;
        b.parts.ops = b.ops;
    }
    const rig_how_t how = {.model = llama->plugin,
                           .options = llama->options,
                           .compute = b.compute != 0 ? b.compute : LH_DTYPE_F32,
                           .api = &b.api,
                           .parts = &b.parts};
    rig_open_how(&b.rig, &how);
    golden_batch(llama, 0, b.batch);
}

typedef struct trained {
    float gradient[ELEMENTS], loss[2];
    uint32_t smooth, cap, fused, activate; /* calls of a step */
} trained_t;

static void train(const char *lacking, uint32_t recompute, uint64_t head_chunk, trained_t *out)
{
    const program_how_t how = {.use = USE_TRAIN,
                               .sequences = GOLDEN_BATCH,
                               .rows = GOLDEN_SEQUENCE,
                               .recompute = recompute,
                               .head_chunk = head_chunk};
    program_t *p = NULL;
    program_call_t call;
    uint32_t up;
    open_rig(lacking);
    OK(program_new(b.rig.engine, b.rig.weights, &how, &p));
    OK(engine_build(b.rig.engine));
    golden_weights(llama, &b.rig);
    rig_batch(p, b.batch, GOLDEN_BATCH, GOLDEN_SEQUENCE, TOKENS);
    *out = (trained_t){.smooth = 0};
    for (uint32_t i = 0; program_call(p, false, i, &call); i++) {
        const char *name = call.op == NULL ? "" : call.op->row.name;
        out->smooth += strcmp(name, "acme.smooth") == 0;
        out->cap += strcmp(name, "acme.cap") == 0;
        out->fused += strcmp(name, "acme.add_activated") == 0;
        out->activate += strcmp(name, "activate") == 0;
    }
    OK(program_run(p, 0));
    OK(program_output(p, OUTPUT_LOSS, out->loss, sizeof(out->loss)));
    assert_true(parameters_find(b.rig.parameters, "blocks.0.w_up", &up));
    OK(weights_read(b.rig.weights, SPACE_GRAD, up, 0, ELEMENTS, LH_DTYPE_F32, out->gradient));
    rig_close(&b.rig);
}

static double distance(const trained_t *x, const trained_t *y)
{
    double difference = 0, norm = 0;
    for (uint32_t i = 0; i < ELEMENTS; i++) {
        difference += pow((double)x->gradient[i] - (double)y->gradient[i], 2);
        norm += pow((double)x->gradient[i], 2);
    }
    assert_true(norm > 0);
    return sqrt(difference / norm);
}

static void what_is_costly_is_kept_by_selective_recomputation(void **state)
{
    (void)state;
    static trained_t none, selective, full;
    train(NULL, RECOMPUTE_NONE, 0, &none);
    train(NULL, RECOMPUTE_SELECTIVE, 0, &selective);
    train(NULL, RECOMPUTE_FULL, 0, &full);
    assert_true(none.smooth > 0);
    assert_int_equal(selective.smooth, none.smooth);
    assert_int_equal(full.smooth, 2 * none.smooth);
    assert_memory_equal(selective.gradient, none.gradient, sizeof(none.gradient));
    assert_memory_equal(full.gradient, none.gradient, sizeof(none.gradient));
}

static void an_op_is_fused_where_it_has_a_kernel_and_only_there(void **state)
{
    (void)state;
    static trained_t fused, parts;
    train(NULL, RECOMPUTE_NONE, 0, &fused);
    train("acme.add_activated", RECOMPUTE_NONE, 0, &parts);
    assert_true(fused.fused > 0 && fused.activate == 0);
    assert_int_equal(parts.fused, 0); /* an activation, by itself or behind its matmul */
    assert_true(distance(&fused, &parts) < 2e-6);
    assert_true(fabsf(fused.loss[0] - parts.loss[0]) < 2e-6f * fused.loss[0]);
}

/* Recorded by its name the op is what its expand() says where the device has no kernel for it; with
 * one, by its own gradient, the loss and the slopes are the same. */
static void an_op_without_a_kernel_is_recorded_as_its_parts(void **state)
{
    (void)state;
    static trained_t whole, parts, recorded;
    train("acme.add_activated", RECOMPUTE_NONE, 0, &recorded);
    b.named = true;
    train(NULL, RECOMPUTE_NONE, 0, &whole);
    train("acme.add_activated", RECOMPUTE_NONE, 0, &parts);
    b.named = false;
    assert_true(whole.fused > 0 && whole.activate == 0);
    assert_int_equal(parts.fused, 0);
    assert_int_equal(parts.activate, recorded.activate);
    assert_memory_equal(parts.gradient, recorded.gradient, sizeof(parts.gradient));
    assert_memory_equal(parts.loss, recorded.loss, sizeof(parts.loss));
    assert_true(distance(&whole, &parts) < 2e-6);
    assert_true(fabsf(whole.loss[0] - parts.loss[0]) < 2e-6f * parts.loss[0]);
}

static void an_op_by_element_is_cut_with_the_head(void **state)
{
    (void)state;
    static trained_t whole, chunks;
    train(NULL, RECOMPUTE_NONE, TOKENS, &whole);
    train(NULL, RECOMPUTE_NONE, 48, &chunks);
    assert_int_equal(whole.cap, 1);
    assert_int_equal(chunks.cap, 3);
    assert_true(distance(&whole, &chunks) < 2e-6);
}

/* Row by row, from the cache, the logits of scoring. */
static void generation_sees_the_logits_of_scoring(void **state)
{
    (void)state;
    open_rig(NULL);
    const program_how_t all = {
        .use = USE_SCORE, .sequences = GOLDEN_BATCH, .rows = GOLDEN_SEQUENCE, .wants_logits = true};
    const program_how_t one = {
        .use = USE_DECODE, .sequences = GOLDEN_BATCH, .rows = 1, .capacity = GOLDEN_SEQUENCE};
    program_t *score = NULL, *decode = NULL;
    OK(program_new(b.rig.engine, b.rig.weights, &all, &score));
    OK(program_new(b.rig.engine, b.rig.weights, &one, &decode));
    OK(engine_build(b.rig.engine));
    golden_weights(llama, &b.rig);
    rig_batch(score, b.batch, GOLDEN_BATCH, GOLDEN_SEQUENCE, TOKENS);
    OK(program_run(score, 0));
    const uint64_t vocab = b.rig.parameters->vocab;
    float *expected = mem_array(TOKENS * vocab, 4), *got = mem_array(GOLDEN_BATCH * vocab, 4);
    OK(program_output(score, OUTPUT_LOGITS, expected, TOKENS * vocab * 4));
    for (uint64_t at = 0; at < GOLDEN_SEQUENCE; at++) {
        int32_t ids[GOLDEN_BATCH], places[GOLDEN_BATCH];
        for (uint64_t s = 0; s < GOLDEN_BATCH; s++) {
            ids[s] = b.batch[s * ROW + at];
            places[s] = (int32_t)at;
        }
        OK(program_input(decode, LH_INPUT_TOKENS, ids, sizeof(ids)));
        OK(program_input(decode, LH_INPUT_LENGTHS, places, sizeof(places)));
        OK(program_run(decode, 0));
        OK(program_output(decode, OUTPUT_LOGITS, got, GOLDEN_BATCH * vocab * 4));
        for (uint64_t s = 0; s < GOLDEN_BATCH; s++)
            for (uint64_t j = 0; j < vocab; j++)
                assert_true(fabsf(got[s * vocab + j] -
                                  expected[(s * GOLDEN_SEQUENCE + at) * vocab + j]) < 2e-5f);
    }
    mem_free(expected);
    mem_free(got);
    rig_close(&b.rig);
}

static void a_model_that_reads_the_step_s_numbers_is_refused(void **state)
{
    (void)state;
    const program_how_t how = {
        .use = USE_TRAIN, .sequences = GOLDEN_BATCH, .rows = GOLDEN_SEQUENCE};
    program_t *p = NULL;
    open_rig(NULL);
    b.reads_step = true;
    assert_int_equal(program_new(b.rig.engine, b.rig.weights, &how, &p), LH_UNSUPPORTED);
    b.reads_step = false;
    assert_string_equal(fail_reason(), "the model's part 2, block 0 reads the step's numbers, "
                                       "which only updates are given");
    rig_close(&b.rig);
}

/* A form with a cache is given the op's attributes, and what the op has of the form's inputs. */
static void a_form_with_a_cache_that_does_not_fit_is_refused(void **state)
{
    (void)state;
    static const char *const wrong[][2] = {
        {"acme.add_activated", "acme.smooth can't generate: there is nothing for input u of "
                               "acme.add_activated, its form with a cache"},
        {"attention_cached", "acme.smooth can't generate: its attributes have 8 bytes, and "
                             "attention_cached, its form with a cache, expects "},
    };
    const program_how_t one = {
        .use = USE_DECODE, .sequences = GOLDEN_BATCH, .rows = 1, .capacity = GOLDEN_SEQUENCE};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        program_t *decode = NULL;
        b.form = wrong[i][0];
        open_rig(NULL);
        assert_int_equal(program_new(b.rig.engine, b.rig.weights, &one, &decode), LH_INVALID);
        assert_int_equal(strncmp(fail_reason(), wrong[i][1], strlen(wrong[i][1])), 0);
        rig_close(&b.rig);
    }
    b.form = NULL;
}

/* ---- update rules ---- */

static const plugin_t *zero;
static lh_optimizer_t *optimizer;

/* The update by a rule of all parameters, without a program that makes gradients. */
static lh_status_t update_open(const lh_rule_t *rule, program_t **update)
{
    const optimizer_rule_t rules = {rule, NULL};
    const optimizer_group_t group = {0, 0.1};
    open_rig(NULL);
    OK(registry_load(b.registry, LH_KIND_OPTIMIZER, "zero0", &zero));
    OK(zero->optimizer->open(zero->host, b.rig.optimizer_config, &optimizer));
    const update_how_t how = {.optimizer = {.api = zero->optimizer,
                                            .optimizer = optimizer,
                                            .rules = &rules,
                                            .rule_count = 1,
                                            .groups = &group,
                                            .group_count = 1,
                                            .rounds = 1}};
    return update_new(b.rig.engine, b.rig.weights, &how, update);
}

static void update_close(void)
{
    zero->optimizer->close(optimizer);
    rig_close(&b.rig);
}

static const char *refusal_of(const lh_rule_t *rule)
{
    static char reason[512];
    program_t *update = NULL;
    const bool made = update_open(rule, &update) == LH_OK;
    (void)snprintf(reason, sizeof(reason), "%s", made ? "" : fail_reason());
    update_close();
    return reason;
}

/* Master and moment are changed in place. */
static lh_value_t sgd(lh_graph_t *g, lh_value_t grad, lh_value_t master, lh_value_t *states)
{
    const lh_sgd_t how = {.struct_size = sizeof(how), .momentum = 0.9};
    const lh_value_t in[] = {grad, master, states[0]};
    lh_value_t more[2];
    const lh_value_t y = g->api->op(g, "sgd", &how, in, 3, more);
    states[0] = more[0];
    return y;
}

#define RULE(name, result)                                                                        \
    static lh_value_t name(LH_UNUSED const void *config, lh_graph_t *g,                           \
                           LH_UNUSED const lh_piece_t *piece, lh_value_t grad, lh_value_t master, \
                           lh_value_t *states, LH_UNUSED lh_value_t *value)                       \
    {                                                                                             \
        const lh_value_t y = sgd(g, grad, master, states);                                        \
        return y == 0 ? 0 : (result);                                                             \
    }
RULE(record_late, lh_add(g, y, master))
RULE(record_old_state, (states[0] = master, y))
RULE(record_no_state, (states[0] = 0, y))
RULE(record_nothing_known, y + 1000)
RULE(record_one_number, g->api->constant(g, (const float[]){1}, 1))
RULE(record_value_in_master, (*value = y, y))
RULE(record_value_in_state, (*value = states[0] = lh_add(g, y, y), y))
RULE(record_value_that_is_read, (*value = lh_add(g, y, y), lh_add(g, *value, y)))
RULE(record_value_as_it_was, (*value = master, y))

static void what_a_rule_gives_back_is_checked(void **state)
{
    static const struct {
        lh_value_t (*record)(const void *config, lh_graph_t *g, const lh_piece_t *piece,
                             lh_value_t grad, lh_value_t master, lh_value_t *states,
                             lh_value_t *value);
        const char *sentence;
        lh_dtype_t compute;
    } wrong[] = {
        {record_late, ": op add reads what sgd, which works in place, has written over",
         LH_DTYPE_F32},
        {record_old_state, ": its new m is what op sgd, which works in place, has written over",
         LH_DTYPE_F32},
        {record_no_state, ": it records no new m", LH_DTYPE_F32},
        {record_nothing_known, ": it records no new master", LH_DTYPE_F32},
        {record_one_number, ": its new master has another shape", LH_DTYPE_F32},
        {record_value_in_master,
         ": its new value is F32 in an input's memory, and more is made of it; expected BF16, or "
         "what an op makes for that alone",
         LH_DTYPE_BF16},
        {record_value_in_state,
         ": its new value is F32, and more is made of it; expected BF16, or what an op makes for "
         "that alone",
         LH_DTYPE_BF16},
        {record_value_that_is_read,
         ": its new value is F32, and more is made of it; expected BF16, or what an op makes for "
         "that alone",
         LH_DTYPE_BF16},
        {record_value_as_it_was, ": its new value is made by no op, expected what an op makes",
         LH_DTYPE_BF16},
    };
    static const lh_rule_state_t states[] = {
        {.name = "m", .dtype = LH_DTYPE_F32, .extent = LH_EXTENT_ELEMENT},
        {.name = "m", .dtype = LH_DTYPE_F32, .extent = LH_EXTENT_ELEMENT},
    };
    (void)state;
    lh_rule_t rule = {.name = "author",
                      .grain = LH_GRAIN_ELEMENT,
                      .states = states,
                      .state_size = sizeof(states[0]),
                      .state_count = 1};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        rule.record = wrong[i].record;
        b.compute = wrong[i].compute;
        const char *said = refusal_of(&rule);
        if (strstr(said, wrong[i].sentence) == NULL) print_error("%zu: '%s'\n", i, said);
        assert_non_null(strstr(said, wrong[i].sentence));
    }
    b.compute = 0;
    rule.state_count = 2;
    assert_string_equal(refusal_of(&rule), "rule 'author' has two states 'm'");
}

/* Of the last two steps it keeps the masters, each in the place of the next. */
static lh_value_t record_history(LH_UNUSED const void *config, lh_graph_t *g,
                                 LH_UNUSED const lh_piece_t *piece, lh_value_t grad,
                                 lh_value_t master, lh_value_t *states, LH_UNUSED lh_value_t *value)
{
    states[1] = states[0];
    states[0] = master;
    return lh_add(g, master, grad);
}

static void a_rule_keeps_what_its_results_take_the_place_of(void **state)
{
    enum { STEPS = 3 };
    static const lh_rule_state_t states[] = {
        {.name = "m", .dtype = LH_DTYPE_F32, .extent = LH_EXTENT_ELEMENT},
        {.name = "n", .dtype = LH_DTYPE_F32, .extent = LH_EXTENT_ELEMENT},
    };
    static float grad[ELEMENTS], masters[STEPS + 1][ELEMENTS], kept[ELEMENTS];
    const lh_rule_t rule = {.name = "author",
                            .grain = LH_GRAIN_ELEMENT,
                            .states = states,
                            .state_size = sizeof(states[0]),
                            .state_count = 2,
                            .record = record_history};
    program_t *update = NULL;
    uint32_t up;
    (void)state;
    OK(update_open(&rule, &update));
    OK(engine_build(b.rig.engine));
    golden_weights(llama, &b.rig);
    assert_true(parameters_find(b.rig.parameters, "blocks.0.w_up", &up));
    for (uint32_t i = 0; i < ELEMENTS; i++)
        grad[i] = (float)(i % 7 + 1);
    OK(weights_write(b.rig.weights, SPACE_GRAD, up, 0, ELEMENTS, LH_DTYPE_F32, grad));
    OK(weights_read(b.rig.weights, SPACE_PARAMETER, up, 0, ELEMENTS, LH_DTYPE_F32, masters[0]));
    for (uint32_t step = 1; step <= STEPS; step++) {
        (void)rig_step(update, step, 0.1, 0, NULL);
        OK(weights_read(b.rig.weights, SPACE_PARAMETER, up, 0, ELEMENTS, LH_DTYPE_F32,
                        masters[step]));
        assert_memory_not_equal(masters[step], masters[step - 1], sizeof(kept));
        for (uint32_t k = 0; k < 2 && k < step; k++) {
            OK(weights_read(b.rig.weights, SPACE_STATE + k, up, 0, ELEMENTS, LH_DTYPE_F32, kept));
            assert_memory_equal(kept, masters[step - 1 - k], sizeof(kept));
        }
    }
    update_close();
}

static int load(void **state)
{
    (void)state;
    OK(host_new(&b.host));
    OK(registry_new(LH_TEST_PLUGINS, b.host, &b.registry));
    OK(registry_load(b.registry, LH_KIND_MODEL, "llama", &b.model));
    OK(registry_load(b.registry, LH_KIND_PARTS, "acme_smooth", &b.acme));
    return 0;
}

static int unload(void **state)
{
    (void)state;
    registry_free(b.registry);
    host_free(b.host);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_costly_is_kept_by_selective_recomputation),
        cmocka_unit_test(an_op_is_fused_where_it_has_a_kernel_and_only_there),
        cmocka_unit_test(an_op_without_a_kernel_is_recorded_as_its_parts),
        cmocka_unit_test(an_op_by_element_is_cut_with_the_head),
        cmocka_unit_test(generation_sees_the_logits_of_scoring),
        cmocka_unit_test(a_model_that_reads_the_step_s_numbers_is_refused),
        cmocka_unit_test(a_form_with_a_cache_that_does_not_fit_is_refused),
        cmocka_unit_test(what_a_rule_gives_back_is_checked),
        cmocka_unit_test(a_rule_keeps_what_its_results_take_the_place_of),
    };
    if (strcmp(rig_device(), "fake") == 0) return 77; /* the example has no kernels for it */
    return cmocka_run_group_tests(tests, load, unload);
}
