/* layout_test.c - what ranks hold and what they own: weights and states saved by any number of
 * ranks at any stage load into any other, bit for bit, and an evaluation is the same bits for any
 * number.
 */
#include "../torture.h"
#include "rig.h"

#include <stdio.h>
#include <stdlib.h>

#include <base/dtype.h>
#include <base/file.h>
#include <base/memory.h>
#include <data/batches.h>
#include <data/indexed.h>
#include <engine/weights.h>
#include <session/evaluation.h>
#include <session/snapshot.h>

static const rig_option_t tied[] = {
    {"blocks", "2"},   {"hidden", "8"}, {"ffn", "12"},        {"heads", "2"},  {"kv_heads", "1"},
    {"head_dim", "4"}, {"vocab", "53"}, {"max_tokens", "32"}, {"tied", "yes"}, {NULL, NULL}};
static const rig_option_t untied[] = {
    {"blocks", "2"},   {"hidden", "8"}, {"ffn", "12"},        {"heads", "2"}, {"kv_heads", "1"},
    {"head_dim", "4"}, {"vocab", "53"}, {"max_tokens", "32"}, {"tied", "no"}, {NULL, NULL}};

/* ---- a rank's weights and states ------------------------------------------------------------- */

enum { MOST = 8 };
enum { STATE_ELEMENT, STATE_ROW, STATE_SCALAR, STATES };
static const char *const state_names[STATES] = {"exp_avg", "row", "scale"};

/* How much of the data a rank keeps: all, its part of states and master, its part of all. */
enum { KEEP_ALL, KEEP_STATES_CUT, KEEP_CUT, KEEPS };

typedef struct layout {
    uint32_t rank, ranks, keep;
    lh_dtype_t compute;
    const rig_option_t *options;
} layout_t;

/* Every third parameter has states that span it and so one owner; the others are cut anywhere. */
static bool is_whole(uint32_t parameter)
{
    return parameter % 3 == 1;
}

static lh_slice_t part_of(const layout_t *l, uint32_t parameter, uint64_t elements)
{
    const uint64_t place = (l->rank + parameter) % l->ranks;
    if (is_whole(parameter)) return (lh_slice_t){0, place == 0 ? elements : 0};
    return (lh_slice_t){elements * place / l->ranks, elements * (place + 1) / l->ranks};
}

static uint64_t state_elements(const parameter_t *p, uint32_t state)
{
    return state == STATE_ELEMENT ? p->elements : state == STATE_ROW ? p->rows : 1;
}

static void add_state(rig_t *rig, const layout_t *l, uint32_t state)
{
    weights_t *w = rig->weights;
    store_t *s;
    OK(weights_store_add(w, state_names[state], LH_HOLDS_STATE, &s));
    s->state = state;
    for (uint32_t i = 0; i < w->parameters->count; i++) {
        const parameter_t *p = &w->parameters->items[i];
        if (p->storage != i || (state != STATE_ELEMENT && !is_whole(i))) continue;
        const lh_slice_t slice = l->keep == KEEP_ALL ? (lh_slice_t){0, p->elements}
                                                     : part_of(l, i, p->elements);
        const uint64_t held = slice.end - slice.begin;
        if (held == 0) continue;
        OK(weights_shard_add(w, s, i, LH_DTYPE_F32, slice,
                             state == STATE_ELEMENT ? held : state_elements(p, state)));
    }
}

static void add_master(rig_t *rig, const layout_t *l)
{
    weights_t *w = rig->weights;
    OK(weights_store_add(w, "master", LH_HOLDS_MASTER, &w->master));
    for (uint32_t i = 0; i < w->parameters->count; i++) {
        const parameter_t *p = &w->parameters->items[i];
        if (p->storage != i) continue;
        const lh_slice_t slice = l->keep == KEEP_ALL ? (lh_slice_t){0, p->elements}
                                                     : part_of(l, i, p->elements);
        OK(weights_shard_add(w, w->master, i, LH_DTYPE_F32, slice, slice.end - slice.begin));
    }
}

static void open_layout(rig_t *rig, const layout_t *l)
{
    rig_open(rig, "llama", l->options, l->compute);
    weights_t *w = rig->weights;
    const uint32_t count = w->parameters->count;
    w->owned = mem_array(count, sizeof(*w->owned));
    assert_non_null(w->owned);
    for (uint32_t i = 0; i < count; i++)
        w->owned[i] = part_of(l, i, w->parameters->items[i].elements);
    if (l->keep == KEEP_CUT) OK(weights_value_cut(w, w->owned));
    if (l->compute == LH_DTYPE_BF16) add_master(rig, l);
    for (uint32_t s = 0; s < STATES; s++)
        add_state(rig, l, s);
    OK(engine_build(rig->engine));
}

/* ---- what every element is ------------------------------------------------------------------- */

static float truth(uint32_t space, uint32_t parameter, uint64_t element)
{
    return (float)(space * 65536 + parameter * 1024 + element) * 0.001f + 1;
}

/* Writes the truth into what is held, or checks that it is there. */
static void instance(rig_t *rig, uint32_t space, uint32_t parameter, bool check)
{
    weights_shard_t e;
    if (!weights_shard(rig->weights, space, parameter, &e) || e.elements == 0) return;
    const bool like = e.elements == e.slice.end - e.slice.begin;
    const uint64_t begin = like ? e.slice.begin : 0;
    const uint32_t named = space == SPACE_VALUE ? SPACE_PARAMETER : space;
    float *values = mem_array(e.elements, sizeof(*values));
    if (check)
        OK(weights_read(rig->weights, space, parameter, begin, e.elements, LH_DTYPE_F32, values));
    for (uint64_t k = 0; k < e.elements; k++) {
        float want = truth(named, parameter, begin + k);
        if (e.dtype == LH_DTYPE_BF16) {
            uint16_t narrow;
            OK(dtype_convert(LH_DTYPE_BF16, &narrow, LH_DTYPE_F32, &want, 1));
            OK(dtype_convert(LH_DTYPE_F32, &want, LH_DTYPE_BF16, &narrow, 1));
        }
        if (check)
            assert_true(values[k] == want);
        else
            values[k] = truth(named, parameter, begin + k);
    }
    if (!check)
        OK(weights_write(rig->weights, space, parameter, begin, e.elements, LH_DTYPE_F32, values));
    mem_free(values);
}

static void instance_all(rig_t *rig, bool check)
{
    for (uint32_t i = 0; i < rig->parameters->count; i++) {
        if (rig->parameters->items[i].storage != i) continue;
        instance(rig, SPACE_VALUE, i, check);
        instance(rig, SPACE_PARAMETER, i, check);
        for (uint32_t s = 0; s < STATES; s++)
            instance(rig, SPACE_STATE + s, i, check);
    }
}

/* ---- worlds ---------------------------------------------------------------------------------- */

static void save(const char *folder, layout_t l)
{
    rig_t rigs[MOST];
    writer_t *writers[MOST];
    snapshot_t *snapshots[MOST];
    const checkpoint_meta_t meta = {.run = "layout", .step = 5};
    for (l.rank = 0; l.rank < l.ranks; l.rank++) {
        const writer_how_t how = {.folder = folder, .rank = l.rank, .ranks = l.ranks};
        OK(writer_start(&how, &writers[l.rank]));
        OK(writer_open(writers[l.rank]));
        writer_session(writers[l.rank], 77);
        open_layout(&rigs[l.rank], &l);
        instance_all(&rigs[l.rank], false);
        OK(snapshot_new(rigs[l.rank].weights, NULL, &snapshots[l.rank]));
        OK(writer_layout(writers[l.rank], snapshots[l.rank]->tensors, snapshots[l.rank]->count));
    }
    for (uint32_t r = 0; r < l.ranks; r++) {
        OK(writer_begin(writers[r]));
        OK(snapshot_take(snapshots[r], writers[r]));
        OK(writer_submit(writers[r], &meta));
    }
    for (uint32_t r = 0; r < l.ranks; r++) {
        writer_result_t result;
        OK(writer_wait(writers[r], &result));
        assert_string_equal(result.reason, "");
        writer_close(writers[r]);
        snapshot_free(snapshots[r]);
        rig_close(&rigs[r]);
    }
}

static void load(const char *folder, layout_t l)
{
    checkpoint_t *c = NULL;
    OK(checkpoint_open_latest(folder, &c));
    assert_non_null(c);
    for (l.rank = 0; l.rank < l.ranks; l.rank++) {
        rig_t rig;
        snapshot_t *snapshot;
        open_layout(&rig, &l);
        OK(snapshot_new(rig.weights, NULL, &snapshot));
        OK(snapshot_load(snapshot, c, true));
        instance_all(&rig, true);
        snapshot_free(snapshot);
        rig_close(&rig);
    }
    /* Evaluation and generation: one process, weights alone. */
    rig_t rig;
    rig_open(&rig, "llama", l.options, l.compute);
    OK(engine_build(rig.engine));
    bool found;
    OK(snapshot_load_newest(rig.weights, folder, "", &found));
    assert_true(found);
    instance_all(&rig, true);
    rig_close(&rig);
    checkpoint_close(c);
}

static int make_folder(void **state)
{
    char *folder = malloc(64);
    if (folder == NULL) return -1;
    (void)snprintf(folder, 64, "/tmp/longhaul-test-XXXXXX");
    *state = folder;
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static int remove_folder(void **state)
{
    const lh_status_t status = folder_remove(*state);
    free(*state);
    return status == LH_OK ? 0 : -1;
}

/* Every so many of the loads: all with LONGHAUL_TORTURE=1. A device has little to do with what is in a
 * file: the cpu's are more than the others'. */
static uint32_t one_load_of(void)
{
    if (torture_wanted()) return 1;
    return strcmp(rig_device(), "cpu") == 0 ? 2 : 5;
}

/* What `fake` delays is no other with each way of saving: every other one of them. */
static bool is_saved(uint32_t way, uint32_t a)
{
    return torture_wanted() || strcmp(rig_device(), "fake") != 0 || (way + a) % 2 == 0;
}

/* Each way of saving once, and from it to the others: in all, every number of ranks and every way
 * of keeping meet each other. */
static void any_layout_loads_what_any_layout_saved(void **state)
{
    static const uint32_t counts[] = {1, 2, 3, 4, 8};
    enum { COUNTS = sizeof(counts) / sizeof(counts[0]) };
    const char *top = *state;
    uint32_t number = 0;
    for (uint32_t way = 0; way < 4; way++)
        for (uint32_t a = 0; a < COUNTS; a++) {
            layout_t l = {.ranks = counts[a],
                          .keep = (way + a) % KEEPS,
                          .compute = (way & 1) != 0 ? LH_DTYPE_BF16 : LH_DTYPE_F32,
                          .options = (way & 2) != 0 ? untied : tied};
            char folder[128];
            if (!is_saved(way, a)) continue;
            (void)snprintf(folder, sizeof(folder), "%s/%u", top, number++);
            save(folder, l);
            for (uint32_t b = 0; b < COUNTS; b++) {
                if ((a + b + way) % one_load_of() != 0) continue;
                l.ranks = counts[b];
                l.keep = (a + b + way) % KEEPS;
                load(folder, l);
            }
        }
}

static void what_is_owned_but_not_held_is_refused(void **state)
{
    (void)state;
    rig_t rig;
    snapshot_t *snapshot;
    const layout_t l = {
        .rank = 1, .ranks = 2, .keep = KEEP_CUT, .compute = LH_DTYPE_F32, .options = untied};
    open_layout(&rig, &l);
    rig.weights->owned[0].begin = 0;
    rig.weights->owned[0].end = rig.parameters->items[0].elements;
    assert_int_equal(snapshot_new(rig.weights, NULL, &snapshot), LH_INVALID);
    assert_non_null(strstr(fail_reason(), "are this rank's to save, it holds"));
    rig_close(&rig);
}

/* ---- evaluation ------------------------------------------------------------------------------ */

enum { SEQUENCE = 8, SEQUENCES = 2, DOCUMENTS = SEQUENCE * SEQUENCES };

static batches_t *open_corpus(const char *folder)
{
    indexed_writer_t *w;
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/corpus", folder);
    OK(indexed_writer_open(path, 53, &w));
    for (int32_t d = 0; d < 40; d++) {
        const int32_t ids[] = {d % 50, (d * 7) % 50, (d * 3 + 1) % 50, 52};
        OK(indexed_writer_add(w, ids, 4));
    }
    OK(indexed_writer_commit(w));
    const job_data_t data = {.train = (char[]){"corpus"},
                             .split = (char[]){"1"},
                             .seed = 3,
                             .documents = DOCUMENTS_APART};
    const batches_how_t how = {
        .data = &data, .folder = folder, .sequence = SEQUENCE, .vocab = 53, .eod = 52};
    batches_t *b = NULL;
    OK(batches_open(&how, &b));
    return b;
}

typedef struct table { /* of what ranks gave, where they run one after the other */
    evaluation_sum_t sums[MOST][64];
    uint32_t ranks, rank, gathers;
    size_t most, at; /* bytes that a gather takes; that this rank has given */
} table_t;

static lh_status_t gather(void *context, const void *mine, size_t bytes, void *all)
{
    table_t *t = context;
    assert_true(bytes <= (t->most > 0 ? t->most : sizeof(t->sums[0]) - t->at));
    assert_true(t->at + bytes <= sizeof(t->sums[0]));
    memcpy((char *)t->sums[t->rank] + t->at, mine, bytes);
    for (uint32_t r = 0; r < t->ranks; r++)
        memcpy((char *)all + r * bytes, (char *)t->sums[r] + t->at, bytes);
    t->at += bytes;
    t->gathers++;
    return LH_OK;
}

/* The result that each rank of `ranks` gets: run twice, the second time all have given. most: sums
 * that a gather takes of each; 0: any. */
static evaluation_sum_t evaluate(const char *folder, uint32_t ranks, uint64_t runs, size_t most)
{
    static table_t table;
    evaluation_sum_t result = {0, 0}, sum;
    table = (table_t){.ranks = ranks, .most = most * sizeof(sum)};
    for (uint32_t i = 0; i < 2 * ranks; i++) {
        rig_t rig;
        rig_open(&rig, "llama", untied, LH_DTYPE_F32);
        const train_ranks_t me = {.rank = i % ranks,
                                  .size = ranks,
                                  .most = table.most,
                                  .context = &table,
                                  .gather = gather};
        table.rank = me.rank;
        table.at = 0;
        session_t session = {.engine = rig.engine, .weights = rig.weights};
        const evaluation_how_t how = {.session = &session,
                                      .sequences = SEQUENCES,
                                      .rows = SEQUENCE,
                                      .max_documents = DOCUMENTS,
                                      .ranks = &me};
        evaluation_t *e;
        OK(evaluation_new(&how, &e));
        OK(engine_build(rig.engine));
        OK(weights_initialize(rig.weights, 11, 0.3));
        batches_t *data = open_corpus(folder);
        OK(evaluation_split(e, data, runs, &sum));
        if (i >= ranks && i > ranks) assert_memory_equal(&sum, &result, sizeof(sum));
        result = sum;
        batches_close(data);
        evaluation_free(e);
        rig_close(&rig);
    }
    if (most == 0)
        assert_int_equal(table.gathers, ranks > 1 ? 2 * ranks : 0);
    else
        assert_true(table.gathers > 2 * ranks);
    return result;
}

static void an_evaluation_is_the_same_bits_for_any_number_of_ranks(void **state)
{
    for (uint64_t runs = 0; runs <= 5; runs += 5) {
        const evaluation_sum_t alone = evaluate(*state, 1, runs, 0);
        assert_true(alone.tokens > 0 && alone.nll > 0);
        for (uint32_t ranks = 2; ranks <= 4; ranks++) {
            const evaluation_sum_t shared = evaluate(*state, ranks, runs, 0);
            assert_memory_equal(&shared, &alone, sizeof(alone));
        }
    }
}

static void an_evaluation_has_more_sums_than_one_gather_takes(void **state)
{
    const evaluation_sum_t alone = evaluate(*state, 1, 0, 0);
    for (size_t most = 1; most <= 2; most++) {
        const evaluation_sum_t shared = evaluate(*state, 2, 0, most);
        assert_memory_equal(&shared, &alone, sizeof(alone));
    }
}

int main(void)
{
#define FACT(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        FACT(any_layout_loads_what_any_layout_saved),
        FACT(an_evaluation_is_the_same_bits_for_any_number_of_ranks),
        FACT(an_evaluation_has_more_sums_than_one_gather_takes),
        cmocka_unit_test(what_is_owned_but_not_held_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
