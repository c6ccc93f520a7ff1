/* legs_test.c - blocks in legs and halves (engine/part_legs.h, part_halves.h): the bits of whole ones, and
 * where a block may be cut. */
#include "golden.h"

#include <math.h>

#include <base/memory.h>
#include <engine/engine.h>
#include <engine/model_program.h>
#include <engine/part_legs.h>
#include <engine/program.h>
#include <engine/weights.h>
#include <longhaul/ops.h>
#include <program/schedule.h>

enum { TOKENS = GOLDEN_BATCH * GOLDEN_SEQUENCE, ROW = GOLDEN_SEQUENCE + 1 };

static const golden_model_t *const llama = &golden_models[0];

/* Weights of a block, one of each leg of four. */
static const char *const leg_weights[] = {"wq", "wo", "w_up", "w_down"};
enum { LEGS = 4, LEG_BLOCKS = 2 };

/* What a step whose blocks may go in legs made, and where calls add to gradients of their weights and of
 * the embedding: the first and the last. */
typedef struct legs_trained {
    float *gradients, loss;
    uint64_t elements;
    uint32_t blocks, legs;
    bool halves;
    uint32_t calls[LEG_BLOCKS][LEGS][2], embedding[2];
} legs_trained_t;

static void gradient_calls(const rig_t *rig, const program_t *p, uint32_t index, uint32_t out[2])
{
    const store_t *store = rig->weights->grad;
    const flow_t *f = p->flow;
    for (uint32_t c = 1; c < f->call_count; c++)
        for (uint32_t s = 0; s < flow_call_slots(&f->calls[c]); s++) {
            const flow_buffer_t *b = &f->buffers[f->values[f->calls[c].slots[s]].buffer];
            if (f->calls[c].slots[s] == 0 || b->allocation != &store->allocation ||
                b->offset != store->shards[index].offset)
                continue;
            if (out[0] == 0) out[0] = c;
            out[1] = c;
        }
    assert_true(out[0] > 0);
}

/* Of the weights of legs, and of the embedding's first parameter. */
static void all_gradient_calls(const rig_t *rig, const program_t *p, legs_trained_t *out)
{
    const parameters_t *parameters = rig->parameters;
    uint32_t index = 0;
    for (uint32_t b = 0; b < LEG_BLOCKS; b++)
        for (uint32_t i = 0; i < LEGS; i++) {
            assert_true(
                parameters_find_local(parameters, LH_PART_BLOCK, b, leg_weights[i], &index));
            gradient_calls(rig, p, index, out->calls[b][i]);
        }
    for (index = 0; parameters->items[index].part != LH_PART_EMBED;)
        index++;
    gradient_calls(rig, p, parameters->items[index].storage, out->embedding);
}

/* Some weights of no trained model: waves. */
static void waves(const rig_t *rig)
{
    for (uint32_t i = 0; i < rig->parameters->count; i++) {
        const parameter_t *p = &rig->parameters->items[i];
        if (p->storage != i) continue;
        float *values = mem_array(p->elements, sizeof(*values));
        assert_non_null(values);
        for (uint64_t k = 0; k < p->elements; k++)
            values[k] = 0.2f * sinf((float)(7 * i + k));
        OK(weights_write(rig->weights, SPACE_PARAMETER, i, 0, p->elements, LH_DTYPE_F32, values));
        mem_free(values);
    }
}

/* How blocks go: so many of the first in legs, the first one back in halves if it can. */
typedef struct legs_how {
    uint32_t blocks;
    bool halves;
    uint32_t recompute;
    lh_dtype_t compute;
    uint64_t rows;               /* of a sequence                                              */
    const rig_option_t *options; /* instead of the golden model's, whose weights are not known */
} legs_how_t;

/* The first golden batch breadth-first, a sequence each. */
static legs_trained_t train_in_legs(const golden_model_t *m, const legs_how_t *legs)
{
    rig_t rig;
    schedule_t *schedule;
    legs_trained_t out = {0};
    int32_t batch[GOLDEN_BATCH * ROW];
    golden_batch(m, 0, batch);
    rig_open(&rig, m->plugin, legs->options != NULL ? legs->options : golden_options(m),
             legs->compute);
    assert_true(rig.parameters->blocks >= LEG_BLOCKS);
    OK(schedule_breadth(rig.parameters->blocks, legs->blocks, PART_LEGS, legs->halves, GOLDEN_BATCH,
                        &schedule));
    const program_how_t how = {.use = USE_TRAIN,
                               .sequences = 1,
                               .rows = legs->rows,
                               .recompute = legs->recompute,
                               .schedule = schedule};
    program_t *train = rig_program(&rig, &how);
    schedule_free(schedule);
    OK(engine_build(rig.engine));
    if (legs->options != NULL)
        waves(&rig);
    else
        golden_weights(m, &rig);
    rig_batches(train, batch, GOLDEN_BATCH, 1, legs->rows, TOKENS);
    OK(program_run(train, 0));
    out.loss = rig_loss(train);
    out.gradients = rig_gradients(&rig);
    out.elements = rig.parameters->elements;
    out.blocks = program_legs(train, &out.legs);
    out.halves = program_halves(train);
    all_gradient_calls(&rig, train, &out);
    rig_close(&rig);
    return out;
}

/* Whether the embedding's gradient is complete before the first block's weights have any; else it is
 * complete behind them. */
static bool embedding_ahead(const legs_trained_t *t)
{
    uint32_t ahead = 0, behind = 0;
    for (uint32_t i = 0; i < LEGS; i++) {
        assert_true(t->embedding[1] > t->calls[1][i][1]);
        ahead += t->embedding[1] < t->calls[0][i][0];
        behind += t->embedding[1] > t->calls[0][i][1];
    }
    assert_true(ahead == LEGS || behind == LEGS);
    return ahead == LEGS;
}

static void same_bits(const legs_trained_t *a, const legs_trained_t *b)
{
    assert_true(a->elements == b->elements);
    assert_memory_equal(a->gradients, b->gradients, a->elements * sizeof(float));
    assert_memory_equal(&a->loss, &b->loss, sizeof(a->loss));
}

/* Whether gradients of one weight are complete before the first of another is begun. */
static bool leg_apart(const legs_trained_t *t, uint32_t block, uint32_t later, uint32_t earlier)
{
    return t->calls[block][later][1] < t->calls[block][earlier][0];
}

/* In four legs each of which has some of the weights, or where a block is computed again in three, as
 * what the feed-forward hands on is too wide to be kept: no bit is another. The last model's
 * feed-forward reads the attention's norm, so its blocks then go whole. In halves the embedding's gradient
 * is complete before the first block's weights have any; of two blocks that are computed again, the second
 * leaves no room for that. */
static void blocks_in_legs_have_the_bits_of_whole_ones(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        uint32_t recompute, legs;
        bool halves;
        lh_dtype_t compute;
    } cases[] = {{"llama", RECOMPUTE_NONE, 4, true, LH_DTYPE_F32},
                 {"llama", RECOMPUTE_SELECTIVE, 3, false, LH_DTYPE_F32},
                 {"llama", RECOMPUTE_FULL, 3, false, LH_DTYPE_BF16},
                 {"gpt2", RECOMPUTE_NONE, 4, true, LH_DTYPE_F32},
                 {"gptneox", RECOMPUTE_FULL, 3, false, LH_DTYPE_F32},
                 {"falcon-7b-kind", RECOMPUTE_FULL, 0, false, LH_DTYPE_F32}};
    for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const golden_model_t *m = golden_models;
        while (strcmp(m->name, cases[i].model) != 0)
            m++;
        if (!golden_there(m)) continue;
        legs_how_t how = {
            .recompute = cases[i].recompute, .compute = cases[i].compute, .rows = GOLDEN_SEQUENCE};
        legs_trained_t whole = train_in_legs(m, &how);
        how.blocks = LEG_BLOCKS;
        legs_trained_t legs = train_in_legs(m, &how);
        how.halves = true;
        legs_trained_t halves = train_in_legs(m, &how);
        assert_int_equal(whole.blocks, 0);
        assert_int_equal(legs.blocks, cases[i].legs > 0 ? LEG_BLOCKS : 0);
        assert_int_equal(legs.legs, cases[i].legs);
        assert_int_equal(halves.legs, cases[i].legs);
        for (uint32_t b = 0; b < LEG_BLOCKS; b++)
            for (uint32_t k = 1; k < LEGS; k++) {
                assert_false(leg_apart(&whole, b, k, k - 1));
                assert_int_equal(leg_apart(&legs, b, k, k - 1), k < cases[i].legs);
                assert_int_equal(leg_apart(&halves, b, k, k - 1), k < cases[i].legs);
            }
        assert_false(whole.halves || legs.halves || embedding_ahead(&legs));
        assert_int_equal(halves.halves, cases[i].halves);
        assert_int_equal(embedding_ahead(&halves), cases[i].halves);
        same_bits(&legs, &whole);
        same_bits(&halves, &whole);
        mem_free(whole.gradients);
        mem_free(legs.gradients);
        mem_free(halves.gradients);
    }
}

/* Of twenty blocks the others leave that room, though they are computed again. */
static void halves_of_a_block_that_is_computed_again_have_its_bits(void **state)
{
    (void)state;
    static const rig_option_t options[] = {
        {"blocks", "20"},  {"hidden", "32"}, {"ffn", "56"},         {"heads", "4"},
        {"kv_heads", "2"}, {"vocab", "131"}, {"max_tokens", "128"}, {NULL, NULL}};
    for (uint32_t r = RECOMPUTE_SELECTIVE; r <= RECOMPUTE_FULL; r++) {
        legs_how_t how = {.recompute = r, .compute = LH_DTYPE_F32, .rows = 8, .options = options};
        legs_trained_t whole = train_in_legs(llama, &how);
        how.blocks = LEG_BLOCKS;
        how.halves = true;
        legs_trained_t halves = train_in_legs(llama, &how);
        assert_true(halves.halves && halves.legs == 3);
        assert_true(embedding_ahead(&halves));
        assert_true(whole.loss > 0);
        same_bits(&halves, &whole);
        mem_free(whole.gradients);
        mem_free(halves.gradients);
    }
}

/* ---- blocks of the test's own, with a llama's weights ---- */

/* Columns of a wide product are what the second product works on; or the second product lies beside the
 * first; or the first and the last of three products have a weight each, but in the last block one; or
 * nothing of all that. Or that is the first block alone, and the others are a narrow product; or the
 * wide product's weight is the embedding's; or a norm's weight is a product's bias, too. */
enum { OF_COLUMNS, BESIDE, TIED, PLAIN, WIDE_FIRST, OF_EMBEDDING, TWICE };
static const rig_t *own_rig; /* whose model has these blocks */
static uint32_t own_kind;

/* Lets a row's parameter be another one. */
static void row_tie(lh_param_t *rows, uint32_t count, const char *name, const char *to)
{
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(rows[i].name, name) == 0) rows[i].tied_to = to;
}

/* The plugin's rows, and where some are tied the second product's once more for each class. */
static lh_status_t own_describe(lh_model_t *m, lh_model_info_t *out)
{
    static lh_param_t rows[32];
    static const uint8_t classes[] = {0, 1};
    OK(own_rig->model_plugin->model->describe(m, out));
    if (own_kind != TIED && own_kind != OF_EMBEDDING) return LH_OK;
    assert_true(out->param_size == sizeof(rows[0]) && out->param_count < 32);
    memcpy(rows, out->params, out->param_count * sizeof(rows[0]));
    if (own_kind == OF_EMBEDDING) {
        row_tie(rows, out->param_count, "w_up", "embed");
        out->params = rows;
        return LH_OK;
    }
    for (uint32_t i = 0; i < out->param_count; i++) {
        if (strcmp(rows[i].name, "wo") != 0) continue;
        rows[i].classes = 1u << classes[0];
        rows[out->param_count] = rows[i];
        rows[out->param_count].classes = 1u << classes[1];
        rows[out->param_count].tied_to = "blocks.1.wq";
    }
    out->params = rows;
    out->param_count++;
    out->block_classes = classes;
    return LH_OK;
}

static lh_value_t own_record(lh_model_t *m, lh_graph_t *g, uint32_t part, uint32_t block,
                             lh_value_t x)
{
    if (part != LH_PART_BLOCK) return own_rig->model_plugin->model->record(m, g, part, block, x);
    if (own_kind == TIED) {
        const lh_value_t first = lh_linear(g, x, g->api->param(g, "wq"), 0);
        const lh_value_t second = lh_linear(g, first, g->api->param(g, "wk"), 0);
        return lh_add(g, x, lh_linear(g, second, g->api->param(g, "wo"), 0));
    }
    if (own_kind == WIDE_FIRST && block > 0)
        return lh_add(g, x, lh_linear(g, x, g->api->param(g, "wo"), 0));
    if (own_kind == TWICE) {
        const lh_value_t gain = g->api->param(g, "attn_norm");
        const lh_value_t some = lh_linear(g, x, g->api->param(g, "wq"), gain);
        return lh_add(g, x, lh_rms_norm(g, some, gain, 1e-5));
    }
    const uint64_t width = own_rig->parameters->hidden;
    const lh_value_t from = own_kind == OF_EMBEDDING ? lh_linear(g, x, g->api->param(g, "wq"), 0)
                                                     : x;
    const lh_value_t wide = lh_linear(g, from, g->api->param(g, "w_up"), 0);
    if (own_kind == OF_COLUMNS) {
        const lh_value_t some = lh_columns(g, wide, 0, width);
        return lh_add(g, x, lh_linear(g, some, g->api->param(g, "wo"), 0));
    }
    const lh_value_t second = lh_linear(g, wide, g->api->param(g, "w_down"), 0);
    if (own_kind != BESIDE) return lh_add(g, x, second);
    const lh_value_t both = lh_concat(g, wide, second, 1);
    return lh_add(g, x, lh_columns(g, both, 80, width)); /* some of either */
}

static const lh_model_api_t own_api = {
    .struct_size = sizeof(own_api), .describe = own_describe, .record = own_record};

/* Into how many legs blocks are cut at most; *blocks: how many are; *halves: whether the first one goes
 * back in halves. Of eight blocks, or of two where these differ. */
static uint32_t own_legs(uint32_t kind, uint32_t recompute, bool frozen, uint32_t *blocks,
                         bool *halves)
{
    const bool differ = kind == TIED || kind == WIDE_FIRST;
    const rig_option_t options[] = {{"blocks", differ ? "2" : "8"},
                                    {"hidden", "32"},
                                    {"ffn", kind == OF_EMBEDDING ? "131" : "96"},
                                    {"heads", "4"},
                                    {"vocab", "131"},
                                    {"max_tokens", "128"},
                                    {NULL, NULL}};
    rig_t rig;
    schedule_t *schedule;
    uint32_t legs, embedding = 0;
    const rig_how_t opened = {
        .model = llama->plugin, .options = options, .compute = LH_DTYPE_F32, .api = &own_api};
    own_rig = &rig;
    own_kind = kind;
    rig_open_how(&rig, &opened);
    while (rig.parameters->items[embedding].part != LH_PART_EMBED)
        embedding++;
    if (frozen) weights_freeze(rig.weights, embedding);
    OK(schedule_breadth(rig.parameters->blocks, LEG_BLOCKS, PART_LEGS, true, GOLDEN_BATCH,
                        &schedule));
    const program_how_t how = {.use = USE_TRAIN,
                               .sequences = 1,
                               .rows = GOLDEN_SEQUENCE,
                               .recompute = recompute,
                               .schedule = schedule};
    const program_t *train = rig_program(&rig, &how);
    schedule_free(schedule);
    *blocks = program_legs(train, &legs);
    *halves = program_halves(train);
    rig_close(&rig);
    return legs;
}

/* Between the products of the first kind there is a place on either side of the columns. Behind them 32
 * columns would cross and 96 be kept, which is more than two hidden states; before them 96 do. Those of
 * the other kind would be put together across any place. */
static void legs_part_nothing_from_what_it_lies_in(void **state)
{
    (void)state;
    static const struct {
        uint32_t kind, recompute, legs;
    } cases[] = {{OF_COLUMNS, RECOMPUTE_NONE, 2},
                 {OF_COLUMNS, RECOMPUTE_FULL, 0},
                 {BESIDE, RECOMPUTE_NONE, 0}};
    for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t blocks;
        bool halves;
        assert_int_equal(own_legs(cases[i].kind, cases[i].recompute, false, &blocks, &halves),
                         cases[i].legs);
        assert_int_equal(blocks, cases[i].legs > 0 ? LEG_BLOCKS : 0);
    }
}

/* What is taken apart is put together by copies where not all of its gradients are made in one go. An
 * embedding that stays has no sum to hide. */
static void halves_are_of_blocks_that_need_no_more_copies(void **state)
{
    (void)state;
    static const struct {
        uint32_t kind;
        bool frozen, halves;
    } cases[] = {{PLAIN, false, true}, {PLAIN, true, false}, {OF_COLUMNS, false, false}};
    for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t blocks;
        bool halves;
        assert_int_equal(own_legs(cases[i].kind, RECOMPUTE_NONE, cases[i].frozen, &blocks, &halves),
                         2);
        assert_int_equal(halves, cases[i].halves);
    }
}

/* The embedding's way back stands between the halves, and one half of all micro-batches before the other:
 * a weight that is summed on either side would be summed in another order. */
static void halves_change_no_sum(void **state)
{
    (void)state;
    static const struct {
        uint32_t kind, legs;
    } cases[] = {{OF_EMBEDDING, 3}, {TWICE, 0}};
    for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t blocks;
        bool halves;
        assert_int_equal(own_legs(cases[i].kind, RECOMPUTE_NONE, false, &blocks, &halves),
                         cases[i].legs);
        assert_false(halves);
    }
}

/* The second half would take 128 columns of a token, as many as the first block keeps; the other one has
 * kept 32. */
static void halves_take_no_more_than_later_blocks_leave(void **state)
{
    (void)state;
    uint32_t blocks;
    bool halves;
    assert_int_equal(own_legs(WIDE_FIRST, RECOMPUTE_NONE, false, &blocks, &halves), 2);
    assert_int_equal(blocks, 1);
    assert_false(halves);
}

/* Both blocks share a recording, but in the second its first and its last product add to one gradient. */
static void blocks_are_cut_by_their_own_ties(void **state)
{
    (void)state;
    uint32_t blocks;
    bool halves;
    assert_int_equal(own_legs(TIED, RECOMPUTE_NONE, false, &blocks, &halves), 3);
    assert_int_equal(blocks, 1);
}

/* Feeds the golden rows `r` at a time, and compares each row's logits with those of scoring. */
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_in_legs_have_the_bits_of_whole_ones),
        cmocka_unit_test(halves_of_a_block_that_is_computed_again_have_its_bits),
        cmocka_unit_test(legs_part_nothing_from_what_it_lies_in),
        cmocka_unit_test(halves_are_of_blocks_that_need_no_more_copies),
        cmocka_unit_test(halves_change_no_sum),
        cmocka_unit_test(halves_take_no_more_than_later_blocks_leave),
        cmocka_unit_test(blocks_are_cut_by_their_own_ties),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
