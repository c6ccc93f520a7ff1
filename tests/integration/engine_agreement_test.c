/* engine_agreement_test.c - what must not change a result: recomputation, the head's chunks, how a
 * batch is cut into micro-batches, generation with a cache; and what a step must not do. */
#include "../torture.h"
#include "golden.h"

#include <math.h>

#include <base/memory.h>
#include <engine/engine.h>
#include <engine/model_program.h>
#include <engine/program.h>
#include <engine/weights.h>
#include <longhaul/ops.h>
#include <program/schedule.h>

enum { TOKENS = GOLDEN_BATCH * GOLDEN_SEQUENCE, ROW = GOLDEN_SEQUENCE + 1 };

static const golden_model_t *const llama = &golden_models[0];

static void open_llama(rig_t *rig, lh_dtype_t compute)
{
    rig_open(rig, llama->plugin, llama->options, compute);
}

typedef struct trained {
    float *gradients;
    uint64_t elements;
    float loss;
    memory_report_t memory;
    uint32_t fused, parts,
        in_place; /* calls of cross_entropy and ce_grad; of them over their logits */
} trained_t;

static void loss_calls_count(const program_t *p, trained_t *out)
{
    for (uint32_t i = 1; i < p->flow->call_count; i++) {
        const flow_call_t *call = &p->flow->calls[i];
        const char *name = call->kind == FLOW_KERNEL ? call->op->row.name : "";
        const bool fused = strcmp(name, "cross_entropy") == 0;
        if (!fused && strcmp(name, "ce_grad") != 0) continue;
        out->fused += fused;
        out->parts += !fused;
        out->in_place += p->flow->values[call->slots[0]].buffer ==
                         p->flow->values[call->slots[4]].buffer;
    }
}

/* The first golden batch, in micro-batches of how->sequences. */
static trained_t train_once_on(const program_how_t *how, lh_dtype_t compute, const char *lacking)
{
    rig_t rig;
    trained_t out = {0};
    int32_t batch[GOLDEN_BATCH * ROW];
    const rig_how_t opened = {
        .model = llama->plugin, .options = llama->options, .compute = compute, .lacking = lacking};
    golden_batch(llama, 0, batch);
    rig_open_how(&rig, &opened);
    program_t *train = rig_program(&rig, how);
    OK(engine_build(rig.engine));
    loss_calls_count(train, &out);
    golden_weights(llama, &rig);
    for (uint32_t m = 0; m < GOLDEN_BATCH / how->sequences; m++) {
        rig_batch(train, batch + m * how->sequences * ROW, how->sequences, how->rows, TOKENS);
        OK(program_run(train, m));
    }
    out.loss = rig_loss(train);
    out.gradients = rig_gradients(&rig);
    out.elements = rig.parameters->elements;
    engine_memory(rig.engine, &out.memory);
    rig_close(&rig);
    return out;
}

static trained_t train_once(const program_how_t *how, lh_dtype_t compute)
{
    return train_once_on(how, compute, NULL);
}

static const program_how_t whole_batch = {
    .use = USE_TRAIN, .sequences = GOLDEN_BATCH, .rows = GOLDEN_SEQUENCE};

static double relative_difference(const trained_t *a, const trained_t *b)
{
    double difference = 0, norm = 0;
    for (uint64_t i = 0; i < a->elements; i++) {
        const double x = (double)a->gradients[i], y = (double)b->gradients[i];
        difference += (x - y) * (x - y);
        norm += x * x;
    }
    assert_true(norm > 0);
    return sqrt(difference / norm);
}

static void recomputation_changes_no_bit_and_saves_memory(void **state)
{
    (void)state;
    const lh_dtype_t dtypes[] = {LH_DTYPE_F32, LH_DTYPE_BF16};
    for (uint32_t d = 0; d < 2; d++) {
        program_how_t how = whole_batch;
        how.head_chunk = 32;
        trained_t none = train_once(&how, dtypes[d]);
        uint64_t saved = none.memory.saved_bytes;
        for (uint32_t r = RECOMPUTE_SELECTIVE; r <= RECOMPUTE_FULL; r++) {
            how.recompute = r;
            trained_t other = train_once(&how, dtypes[d]);
            assert_memory_equal(other.gradients, none.gradients, none.elements * sizeof(float));
            assert_memory_equal(&other.loss, &none.loss, sizeof(none.loss));
            assert_true(other.memory.saved_bytes < saved);
            saved = other.memory.saved_bytes;
            mem_free(other.gradients);
        }
        mem_free(none.gradients);
    }
}

static void the_heads_chunks_change_rounding_only(void **state)
{
    (void)state;
    trained_t one = train_once(&whole_batch, LH_DTYPE_F32);
    const uint64_t chunks[] = {64, 48, 7};
    for (uint32_t i = 0; i < 3; i++) {
        program_how_t how = whole_batch;
        how.head_chunk = chunks[i];
        trained_t other = train_once(&how, LH_DTYPE_F32);
        /* Sums of 128 terms in F32 in another order. */
        assert_true(relative_difference(&one, &other) < 2e-6);
        assert_true(fabsf(one.loss - other.loss) < 2e-6f * one.loss);
        mem_free(other.gradients);
    }
    mem_free(one.gradients);
}

/* Logits in F32 and in the compute dtype, and the loss in one pass or, on a device without a kernel for
 * that, in three: the same bits. The gradient lies over the logits where both are of one dtype. */
static void the_loss_in_one_pass_has_the_bits_of_its_parts(void **state)
{
    (void)state;
    static const struct {
        lh_dtype_t compute;
        bool narrow, in_place;
    } cases[] = {
        {LH_DTYPE_F32, false, true}, {LH_DTYPE_BF16, false, false}, {LH_DTYPE_BF16, true, true}};
    for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        program_how_t how = whole_batch;
        how.head_chunk = 48;
        how.narrow_logits = cases[i].narrow;
        trained_t one = train_once(&how, cases[i].compute);
        trained_t three = train_once_on(&how, cases[i].compute, "cross_entropy");
        assert_true(one.fused == 3 && one.parts == 0 && three.fused == 0 && three.parts == 3);
        assert_int_equal(one.in_place, cases[i].in_place ? 3 : 0);
        assert_int_equal(three.in_place, one.in_place);
        assert_memory_equal(one.gradients, three.gradients, one.elements * sizeof(float));
        assert_memory_equal(&one.loss, &three.loss, sizeof(one.loss));
        mem_free(one.gradients);
        mem_free(three.gradients);
    }
}

/* BF16 keeps eight bits of a logit, which are a few units here: losses and gradients move by less than
 * what BF16 costs anyway. The head's chunk is the whole batch, so that its memory is the step's. */
static void logits_in_the_compute_dtype_cost_rounding_and_save_memory(void **state)
{
    (void)state;
    program_how_t how = whole_batch;
    how.head_chunk = TOKENS;
    trained_t wide = train_once(&how, LH_DTYPE_BF16);
    how.narrow_logits = true;
    trained_t narrow = train_once(&how, LH_DTYPE_BF16);
    const double distance = relative_difference(&wide, &narrow);
    assert_true(distance > 0 && distance < 3e-2);
    assert_true(fabsf(wide.loss - narrow.loss) < 2e-3f * wide.loss);
    assert_true(narrow.memory.total_bytes < wide.memory.total_bytes);
    mem_free(wide.gradients);
    mem_free(narrow.gradients);
}

static void micro_batches_add_up_to_the_batch(void **state)
{
    (void)state;
    trained_t one = train_once(&whole_batch, LH_DTYPE_F32);
    const uint64_t sizes[] = {2, 1};
    for (uint32_t i = 0; i < 2; i++) {
        program_how_t how = whole_batch;
        how.sequences = sizes[i];
        trained_t other = train_once(&how, LH_DTYPE_F32);
        assert_true(relative_difference(&one, &other) < 2e-6);
        assert_true(fabsf(one.loss - other.loss) < 2e-6f * one.loss);
        mem_free(other.gradients);
    }
    mem_free(one.gradients);
}

static void decode_compare(const golden_model_t *m, uint64_t r)
{
    rig_t rig;
    int32_t batch[GOLDEN_BATCH * ROW];
    golden_batch(m, 0, batch);
    rig_open(&rig, m->plugin, golden_options(m), LH_DTYPE_F32);
    const program_how_t score_how = {
        .use = USE_SCORE, .sequences = GOLDEN_BATCH, .rows = GOLDEN_SEQUENCE, .wants_logits = true};
    const program_how_t how = {
        .use = USE_DECODE, .sequences = GOLDEN_BATCH, .rows = r, .capacity = 40};
    const program_how_t one = {
        .use = USE_DECODE, .sequences = GOLDEN_BATCH, .rows = 1, .capacity = 40};
    program_t *score = rig_program(&rig, &score_how);
    program_t *prefill = rig_program(&rig, &how), *decode = rig_program(&rig, &one);
    OK(engine_build(rig.engine));
    golden_weights(m, &rig);
    rig_batch(score, batch, GOLDEN_BATCH, GOLDEN_SEQUENCE, TOKENS);
    OK(program_run(score, 0));

    const uint64_t vocab = rig.parameters->vocab;
    float *expected = mem_array(TOKENS * vocab, 4), *got = mem_array(GOLDEN_BATCH * r * vocab, 4);
    OK(program_output(score, OUTPUT_LOGITS, expected, TOKENS * vocab * 4));
    for (uint64_t at = 0; at < GOLDEN_SEQUENCE;) {
        const uint64_t n = at + r <= GOLDEN_SEQUENCE ? r : 1;
        program_t *p = n == r ? prefill : decode;
        int32_t ids[TOKENS], positions[TOKENS], lengths[GOLDEN_BATCH];
        for (uint64_t s = 0; s < GOLDEN_BATCH; s++) {
            lengths[s] = (int32_t)at;
            for (uint64_t j = 0; j < n; j++) {
                ids[s * n + j] = batch[s * ROW + at + j];
                positions[s * n + j] = (int32_t)(at + j);
            }
        }
        OK(program_input(p, LH_INPUT_TOKENS, ids, GOLDEN_BATCH * n * 4));
        OK(program_input(p, LH_INPUT_POSITIONS, positions, GOLDEN_BATCH * n * 4));
        OK(program_input(p, LH_INPUT_LENGTHS, lengths, sizeof(lengths)));
        OK(program_run(p, 0));
        OK(program_output(p, OUTPUT_LOGITS, got, GOLDEN_BATCH * n * vocab * 4));
        for (uint64_t s = 0; s < GOLDEN_BATCH; s++)
            for (uint64_t j = 0; j < n * vocab; j++) {
                const float e = expected[(s * GOLDEN_SEQUENCE + at) * vocab + j];
                assert_true(fabsf(got[s * n * vocab + j] - e) < 2e-5f);
            }
        at += n;
    }
    mem_free(expected);
    mem_free(got);
    rig_close(&rig);
}

/* A row at a time is what takes long on a device of doubles or of delays. */
static void generation_sees_the_logits_of_scoring(void **state)
{
    (void)state;
    const bool every = torture_wanted() || strcmp(rig_device(), "cpu") == 0;
    for (uint32_t m = 0; m < GOLDEN_MODELS; m++) {
        if (every || m < GOLDEN_FIRST) decode_compare(&golden_models[m], 1);
        decode_compare(&golden_models[m], 7);
    }
}

static void a_gradient_that_is_not_finite_changes_nothing(void **state)
{
    (void)state;
    rig_t rig;
    int32_t batch[GOLDEN_BATCH * ROW];
    golden_batch(llama, 0, batch);
    open_llama(&rig, LH_DTYPE_BF16);
    program_t *update = rig_update(&rig, 0.1);
    program_t *train = rig_program(&rig, &whole_batch);
    OK(engine_build(rig.engine));
    golden_weights(llama, &rig);
    uint32_t wo;
    assert_true(parameters_find(rig.parameters, "blocks.1.wo", &wo));
    float before[1024], after[1024];
    bool applied;

    rig_batch(train, batch, GOLDEN_BATCH, GOLDEN_SEQUENCE, 1e-44);
    OK(program_run(train, 0));
    OK(weights_read(rig.weights, SPACE_PARAMETER, wo, 0, 1024, LH_DTYPE_F32, before));
    (void)rig_step(update, 1, 3e-3, 1.0, &applied);
    assert_false(applied);
    OK(weights_read(rig.weights, SPACE_PARAMETER, wo, 0, 1024, LH_DTYPE_F32, after));
    assert_memory_equal(before, after, sizeof(before));
    OK(weights_read(rig.weights, SPACE_STATE, wo, 0, 1024, LH_DTYPE_F32, after));
    for (uint32_t i = 0; i < 1024; i++)
        assert_true(after[i] == 0);

    rig_batch(train, batch, GOLDEN_BATCH, GOLDEN_SEQUENCE, TOKENS);
    OK(program_run(train, 0));
    (void)rig_step(update, 1, 3e-3, 1.0, &applied);
    assert_true(applied);
    OK(weights_read(rig.weights, SPACE_PARAMETER, wo, 0, 1024, LH_DTYPE_F32, after));
    assert_memory_not_equal(before, after, sizeof(before));
    rig_close(&rig);
}

static void frozen_parameters_stay_and_the_others_learn_the_same(void **state)
{
    (void)state;
    trained_t free_ones = train_once(&whole_batch, LH_DTYPE_F32);
    rig_t rig;
    int32_t batch[GOLDEN_BATCH * ROW];
    golden_batch(llama, 0, batch);
    open_llama(&rig, LH_DTYPE_F32);
    uint32_t wq;
    assert_true(parameters_find(rig.parameters, "blocks.0.wq", &wq));
    weights_freeze(rig.weights, wq);
    program_t *train = rig_program(&rig, &whole_batch);
    OK(engine_build(rig.engine));
    golden_weights(llama, &rig);
    rig_batch(train, batch, GOLDEN_BATCH, GOLDEN_SEQUENCE, TOKENS);
    OK(program_run(train, 0));
    uint64_t at = 0;
    float got[8192];
    for (uint32_t i = 0; i < rig.parameters->count; i++) {
        const uint64_t n = rig.parameters->items[i].elements;
        weights_shard_t shard;
        assert_int_equal(weights_shard(rig.weights, SPACE_GRAD, i, &shard), i != wq);
        if (i != wq) {
            OK(weights_read(rig.weights, SPACE_GRAD, i, 0, n, LH_DTYPE_F32, got));
            assert_memory_equal(got, free_ones.gradients + at, n * sizeof(float));
        }
        at += n;
    }
    mem_free(free_ones.gradients);
    rig_close(&rig);
}

static void open_with_variants(rig_t *rig, const char *variants)
{
    const rig_how_t how = {.model = llama->plugin,
                           .options = llama->options,
                           .compute = LH_DTYPE_F32,
                           .variants = variants};
    rig_open_how(rig, &how);
}

/* A kernel's line of engine_variants names it, and a build that follows the lines chooses the same.
 */
static void variants_are_chosen_again_or_the_build_is_refused(void **state)
{
    (void)state;
    rig_t rig;
    text_t said = {0}, again = {0}, other = {0};
    open_llama(&rig, LH_DTYPE_F32);
    (void)rig_program(&rig, &whole_batch);
    OK(engine_plan(rig.engine));
    engine_variants(rig.engine, &said);
    rig_close(&rig);

    open_with_variants(&rig, said.data);
    (void)rig_program(&rig, &whole_batch);
    OK(engine_plan(rig.engine));
    engine_variants(rig.engine, &again);
    assert_string_equal(said.data, again.data);
    rig_close(&rig);

    const char *at = strstr(said.data, " = ");
    text_append_n(&other, said.data, (size_t)(at - said.data));
    text_append(&other, " = another.kernel 7\n");
    open_with_variants(&rig, other.data);
    (void)rig_program(&rig, &whole_batch);
    assert_int_equal(engine_plan(rig.engine), LH_UNSUPPORTED);
    assert_non_null(strstr(fail_reason(), "has no kernel for"));
    rig_close(&rig);
    text_free(&said);
    text_free(&again);
    text_free(&other);
}

static void a_profile_tells_where_the_time_went(void **state)
{
    (void)state;
    rig_t rig;
    int32_t batch[GOLDEN_BATCH * ROW];
    golden_batch(llama, 0, batch);
    open_llama(&rig, LH_DTYPE_F32);
    program_t *train = rig_program(&rig, &whole_batch);
    OK(engine_build(rig.engine));
    golden_weights(llama, &rig);
    rig_batch(train, batch, GOLDEN_BATCH, GOLDEN_SEQUENCE, TOKENS);
    OK(program_run(train, 0));
    const float loss = rig_loss(train);
    OK(engine_profile(rig.engine, true));
    OK(program_run(train, 0));
    OK(program_run(train, 0));
    assert_true(rig_loss(train) == loss);
    profile_row_t *rows;
    uint32_t count;
    uint64_t calls = 0;
    program_cost_t cost;
    OK(engine_profile_rows(rig.engine, &rows, &count));
    OK(engine_profile(rig.engine, false));
    program_cost(train, &cost);
    for (uint32_t i = 0; i < count; i++) {
        calls += rows[i].calls;
        assert_true(i == 0 || rows[i].ns <= rows[i - 1].ns);
    }
    assert_true(rows[0].ns > 0);
    assert_int_equal(calls, 2 * cost.calls);
    /* 6 FLOPs for each weight of a matrix and token, and the attention. */
    const double matrices = 2 * (32 * 32 * 2 + 32 * 16 * 2 + 32 * 56 * 3) + 131 * 32;
    assert_true(cost.flops > 6 * matrices * TOKENS && cost.flops < 8 * matrices * TOKENS);
    mem_free(rows);
    rig_close(&rig);
}

/* Of memory that the host reaches some pages are touched; what lies elsewhere is all there. */
static void memory_out_of_the_hosts_reach_is_what_the_device_gave(void **state)
{
    (void)state;
    rig_t rig;
    memory_report_t planned, measured;
    open_llama(&rig, LH_DTYPE_F32);
    (void)rig_program(&rig, &whole_batch);
    OK(engine_build(rig.engine));
    golden_weights(llama, &rig);
    engine_memory(rig.engine, &planned);
    engine_memory_measured(rig.engine, &measured);
    const bool reached = (engine_properties(rig.engine)->flags & LH_DEVICE_HOST_ACCESS) != 0;
    for (uint32_t k = 0; k < MEMORY_KINDS; k++) {
        if (k == MEMORY_LIBRARY || k == MEMORY_PINNED) continue;
        assert_in_range(measured.bytes[k], reached ? 0 : planned.bytes[k], planned.bytes[k]);
    }
    assert_int_equal(measured.bytes[MEMORY_PARAMETERS], planned.bytes[MEMORY_PARAMETERS]);
    rig_close(&rig);
}

/* What is minimised, in doubles: the cross-entropy from the statistics of an F64 program, and the
 * model's own losses. */
static double loss_of(program_t *score)
{
    double stats[TOKENS][3], sum = 0, own = 0;
    OK(program_run(score, 0));
    OK(program_output(score, OUTPUT_STATS, stats, sizeof(stats)));
    for (uint32_t t = 0; t < TOKENS; t++)
        sum += log(stats[t][1]) + stats[t][0] - stats[t][2];
    if (program_output_bytes(score, OUTPUT_EXTRA) == sizeof(own))
        OK(program_output(score, OUTPUT_EXTRA, &own, sizeof(own)));
    return sum / TOKENS + own;
}

static void gradient_probe(rig_t *rig, program_t *score, uint32_t i, uint64_t element)
{
    double value, gradient;
    OK(weights_read(rig->weights, SPACE_PARAMETER, i, element, 1, LH_DTYPE_F64, &value));
    OK(weights_read(rig->weights, SPACE_GRAD, i, element, 1, LH_DTYPE_F64, &gradient));
    const double step = 1e-5, up = value + step, down = value - step;
    OK(weights_write(rig->weights, SPACE_PARAMETER, i, element, 1, LH_DTYPE_F64, &up));
    const double above = loss_of(score);
    OK(weights_write(rig->weights, SPACE_PARAMETER, i, element, 1, LH_DTYPE_F64, &down));
    const double below = loss_of(score);
    OK(weights_write(rig->weights, SPACE_PARAMETER, i, element, 1, LH_DTYPE_F64, &value));
    /* Central differences in double: the error of the step, 1e-10, and of the sum, 1e-11. */
    const double slope = (above - below) / (2 * step);
    if (!(fabs(slope - gradient) < 1e-8 + 1e-6 * fabs(gradient)))
        print_error("%s[%llu]: slope %.12g, gradient %.12g\n", rig->parameters->items[i].name,
                    (unsigned long long)element, slope, gradient);
    assert_true(fabs(slope - gradient) < 1e-8 + 1e-6 * fabs(gradient));
}

/* Of six parameters one, another one in each model; in torture all. */
static void gradients_are_slopes_of_the_loss(void **state)
{
    enum { EACH = 6 };
    const uint32_t step = torture_wanted() ? 1 : EACH;
    (void)state;
    if (strcmp(rig_device(), "reference") != 0) skip(); /* only it computes in doubles */
    for (uint32_t m = 0; m < GOLDEN_MODELS; m++) {
        rig_t rig;
        int32_t batch[GOLDEN_BATCH * ROW];
        golden_batch(&golden_models[m], 0, batch);
        rig_open(&rig, golden_models[m].plugin, golden_options(&golden_models[m]), LH_DTYPE_F64);
        program_how_t how = whole_batch;
        how.head_chunk = 48;
        how.recompute = RECOMPUTE_SELECTIVE;
        program_t *train = rig_program(&rig, &how);
        how.use = USE_SCORE;
        program_t *score = rig_program(&rig, &how);
        OK(engine_build(rig.engine));
        golden_weights(&golden_models[m], &rig);
        rig_batch(train, batch, GOLDEN_BATCH, GOLDEN_SEQUENCE, TOKENS);
        rig_batch(score, batch, GOLDEN_BATCH, GOLDEN_SEQUENCE, TOKENS);
        OK(program_run(train, 0));
        for (uint32_t i = m % step; i < rig.parameters->count; i += step)
            if (rig.parameters->items[i].storage == i)
                gradient_probe(&rig, score, i, rig.parameters->items[i].elements * 2 / 3);
        rig_close(&rig);
    }
}

/* Independent of the planner: lifetimes are found again from the calls. */
static void overlaps_find(const flow_t *f)
{
    uint32_t checked = 0;
    for (uint32_t c = 1; c < f->call_count; c++)
        for (uint32_t a = 1; a < f->buffer_count; a++)
            for (uint32_t b = a + 1; b < f->buffer_count; b++) {
                const flow_buffer_t *x = &f->buffers[a], *y = &f->buffers[b];
                if (x->allocation != NULL || y->allocation != NULL || x->first == 0 ||
                    y->first == 0)
                    continue;
                if (x->first > c || x->last < c || y->first > c || y->last < c) continue;
                checked++;
                assert_true(x->offset + x->bytes <= y->offset || y->offset + y->bytes <= x->offset);
            }
    assert_true(checked > 100);
}

static void live_activations_never_overlap(void **state)
{
    (void)state;
    rig_t rig;
    const program_t *programs[3];
    open_llama(&rig, LH_DTYPE_BF16);
    for (uint32_t r = RECOMPUTE_NONE; r <= RECOMPUTE_FULL; r++) {
        program_how_t how = whole_batch;
        how.recompute = r;
        how.head_chunk = 48;
        programs[r - RECOMPUTE_NONE] = rig_program(&rig, &how);
    }
    OK(engine_plan(rig.engine));
    for (uint32_t i = 0; i < 3; i++)
        overlaps_find(programs[i]->flow);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recomputation_changes_no_bit_and_saves_memory),
        cmocka_unit_test(the_heads_chunks_change_rounding_only),
        cmocka_unit_test(the_loss_in_one_pass_has_the_bits_of_its_parts),
        cmocka_unit_test(logits_in_the_compute_dtype_cost_rounding_and_save_memory),
        cmocka_unit_test(micro_batches_add_up_to_the_batch),
        cmocka_unit_test(generation_sees_the_logits_of_scoring),
        cmocka_unit_test(a_gradient_that_is_not_finite_changes_nothing),
        cmocka_unit_test(frozen_parameters_stay_and_the_others_learn_the_same),
        cmocka_unit_test(variants_are_chosen_again_or_the_build_is_refused),
        cmocka_unit_test(a_profile_tells_where_the_time_went),
        cmocka_unit_test(memory_out_of_the_hosts_reach_is_what_the_device_gave),
        cmocka_unit_test(gradients_are_slopes_of_the_loss),
        cmocka_unit_test(live_activations_never_overlap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
