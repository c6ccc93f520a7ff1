/* packs_test.c - conversations in rows: each whole and once an epoch, answers alone weighed, and the
 * same whatever was asked before. */
#include <unit/base/scratch_files.h>

#include <data/batches.h>
#include <data/packs.h>

enum { SEQUENCE = 24, VOCAB = 60000, DOCUMENTS = 300, MOST = 4 * SEQUENCE };

/* Document d: 1 + d % 5 ids that are no answer, 1 + d % 7 that are, and for every third 2 more that
 * are none. Ids count on, so that each tells where it stands. */
static uint64_t parts_of(uint64_t d, int32_t lengths[3])
{
    lengths[0] = 1 + (int32_t)(d % 5);
    lengths[1] = 1 + (int32_t)(d % 7);
    lengths[2] = 2;
    return d % 3 == 0 ? 3 : 2;
}

static void write_set(scratch_t *s, const char *name)
{
    indexed_writer_t *w;
    int32_t next = 1;
    assert_int_equal(indexed_writer_open(scratch_path(s, name), VOCAB, &w), LH_OK);
    for (uint64_t d = 0; d < DOCUMENTS; d++) {
        int32_t lengths[3], ids[16];
        const uint64_t parts = parts_of(d, lengths);
        int32_t count = 0;
        for (uint64_t i = 0; i < parts; i++)
            for (int32_t k = 0; k < lengths[i]; k++)
                ids[count++] = next++;
        assert_int_equal(indexed_writer_add_parts(w, ids, lengths, parts), LH_OK);
    }
    assert_int_equal(indexed_writer_commit(w), LH_OK);
}

typedef struct rows {
    int32_t tokens[MOST], labels[MOST], positions[MOST], starts[MOST + 1];
    float weights[MOST];
    batch_rows_t batch;
} rows_t;

static batch_rows_t *rows_init(rows_t *r)
{
    memset(r, 0xee, sizeof(*r));
    r->batch = (batch_rows_t){r->tokens, r->labels, r->positions, r->weights, r->starts, MOST};
    return &r->batch;
}

static batches_t *open_set(scratch_t *s, bool packing, uint64_t samples)
{
    static char name[] = "talk", split[] = "1,0,0";
    const job_data_t data = {.train = name, .split = split, .seed = 7, .packing = packing};
    const batches_how_t how = {.data = &data,
                               .folder = s->folder,
                               .sequence = SEQUENCE,
                               .phase = PHASE_SFT,
                               .samples = samples,
                               .vocab = VOCAB,
                               .eod = -1};
    batches_t *b = NULL;
    if (batches_open(&how, &b) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    return b;
}

/* By the first id of a document: its number and lengths. */
static uint64_t document_of(int32_t first, int32_t lengths[3])
{
    int32_t at = 1;
    for (uint64_t d = 0; d < DOCUMENTS; d++) {
        const uint64_t parts = parts_of(d, lengths);
        if (at == first) return d;
        for (uint64_t i = 0; i < parts; i++)
            at += lengths[i];
    }
    FAIL_TEST("no document begins with id %d\n", first);
    return 0;
}

/* Looks at a row's documents; *places: what they take of it. seen [DOCUMENTS]. */
static void row_check(const rows_t *r, uint32_t *seen, uint64_t *places)
{
    uint64_t d = 0;
    for (*places = 0; r->starts[d] < SEQUENCE; d++) {
        const int32_t at = r->starts[d];
        int32_t lengths[3];
        if (r->tokens[at] == 0) break; /* what is left */
        const uint64_t document = document_of(r->tokens[at], lengths);
        const uint64_t parts = parts_of(document, lengths);
        const int32_t count = lengths[0] + lengths[1] + (parts == 3 ? lengths[2] : 0);
        assert_true(at + count - 1 <= SEQUENCE);
        for (int32_t k = 0; k + 1 < count; k++) {
            assert_int_equal(r->tokens[at + k], r->tokens[at] + k);
            assert_int_equal(r->labels[at + k], r->tokens[at] + k + 1);
            assert_int_equal(r->positions[at + k], k);
            const bool answer = k + 1 >= lengths[0] && k + 1 < lengths[0] + lengths[1];
            assert_true(r->weights[at + k] == (answer ? 1.0f : 0.0f));
        }
        seen[document]++;
        *places += (uint64_t)count - 1;
    }
    for (uint64_t k = *places; k < SEQUENCE; k++)
        assert_true(r->tokens[k] == 0 && r->weights[k] == 0);
}

static void each_document_is_in_each_epoch_once_and_whole(void **state)
{
    scratch_t *s = *state;
    write_set(s, "talk");
    for (int packing = 0; packing < 2; packing++) {
        batches_t *b = open_set(s, packing != 0, 0);
        const uint64_t rows = batches_samples(b);
        uint32_t seen[DOCUMENTS] = {0};
        uint64_t used = 0;
        assert_false(batches_weigh_all(b));
        for (uint64_t i = 0; i < rows; i++) {
            rows_t r;
            uint64_t places;
            assert_int_equal(batches_fill(b, i, 1, rows_init(&r)), LH_OK);
            row_check(&r, seen, &places);
            used += places;
        }
        for (uint64_t d = 0; d < DOCUMENTS; d++)
            assert_int_equal(seen[d], 1);
        if (packing == 0) assert_int_equal(rows, DOCUMENTS);
        /* Documents take 6.6 places of 24 on average, and at most a tenth of a row is left. */
        if (packing != 0) assert_true((double)used > 0.9 * (double)(rows * SEQUENCE));
        batches_close(b);
    }
}

static void a_row_does_not_depend_on_what_was_asked_before(void **state)
{
    scratch_t *s = *state;
    rows_t one, other;
    write_set(s, "talk");
    batches_t *b = open_set(s, true, 500), *again = open_set(s, true, 500);
    assert_true(batches_samples(b) >= 500);
    assert_int_equal(batches_fill(b, 3, 4, rows_init(&one)), LH_OK);
    assert_int_equal(batches_fill(again, 499, 1, rows_init(&other)), LH_OK);
    assert_int_equal(batches_fill(again, 3, 4, rows_init(&other)), LH_OK);
    assert_memory_equal(one.tokens, other.tokens, sizeof(one.tokens));
    assert_memory_equal(one.weights, other.weights, sizeof(one.weights));
    assert_memory_equal(one.starts, other.starts, sizeof(one.starts));
    /* The bound of documents holds for every row. */
    const uint64_t most = batches_documents_per_sample(b);
    for (uint64_t i = 0; i < 500; i++) {
        rows_init(&one)->max_documents = most;
        assert_int_equal(batches_fill(b, i, 1, &one.batch), LH_OK);
    }
    batches_close(b);
    batches_close(again);
}

/* A run that is resumed with more steps goes on in the order that it has begun with. */
static void more_epochs_leave_those_before_them_as_they_are(void **state)
{
    scratch_t *s = *state;
    rows_t few, many;
    write_set(s, "talk");
    batches_t *one = open_set(s, true, 0);
    const uint64_t rows = batches_samples(one);
    batches_t *four = open_set(s, true, 3 * rows + 1);
    assert_true(batches_samples(four) > 3 * rows);
    for (uint64_t i = 0; i < rows; i++) {
        assert_int_equal(batches_fill(one, i, 1, rows_init(&few)), LH_OK);
        assert_int_equal(batches_fill(four, i, 1, rows_init(&many)), LH_OK);
        assert_memory_equal(few.tokens, many.tokens, sizeof(few.tokens));
        assert_memory_equal(few.weights, many.weights, sizeof(few.weights));
    }
    batches_close(one);
    batches_close(four);
}

static void long_ones_are_refused_cut_or_left_out(void **state)
{
    scratch_t *s = *state;
    indexed_t *set;
    packs_t *p;
    write_set(s, "talk");
    assert_int_equal(indexed_open(scratch_path(s, "talk"), VOCAB, &set), LH_OK);
    packs_how_t how = {
        .set = set, .name = "talk", .end = DOCUMENTS, .sequence = 8, .together = true};
    assert_int_equal(packs_new(&how, &p), LH_INVALID);
    assert_non_null(
        strstr(fail_reason(), "has 10 tokens, a sequence of [train] sequence = 8 takes 9"));
    how.too_long = TOO_LONG_CUT;
    assert_int_equal(packs_new(&how, &p), LH_OK);
    assert_true(p->cut > 0 && p->left_out == 0);
    packs_free(p);
    how.too_long = TOO_LONG_SKIP;
    assert_int_equal(packs_new(&how, &p), LH_OK);
    assert_true(p->cut == 0 && p->left_out > 0);
    packs_free(p);
    how.too_long = TOO_LONG_CUT; /* what is left must reach an answer */
    how.sequence = 3;
    assert_int_equal(packs_new(&how, &p), LH_OK);
    assert_true(p->cut > 0 && p->left_out > 0);
    packs_free(p);
    indexed_close(set);
}

/* A pair stands in a row as two documents in turn, and weighs 1 and -1 where the answers are. */
static void pairs_stand_beside_each_other(void **state)
{
    scratch_t *s = *state;
    static rows_t rows;
    static char name[] = "pairs", split[] = "1,0,0";
    const int32_t lengths[] = {2, 3, 0, 2, 1}, long_ones[] = {4, 16, 0, 4, 9};
    int32_t ids[33];
    indexed_writer_t *w;
    batches_t *b = NULL;
    for (int32_t i = 0; i < 33; i++)
        ids[i] = i + 1;
    assert_int_equal(indexed_writer_open(scratch_path(s, name), VOCAB, &w), LH_OK);
    assert_int_equal(indexed_writer_add_parts(w, ids, lengths, 5), LH_OK);
    assert_int_equal(indexed_writer_add_parts(w, ids, long_ones, 5), LH_OK);
    assert_int_equal(indexed_writer_commit(w), LH_OK);
    const job_data_t data = {.train = name, .split = split, .too_long = TOO_LONG_CUT};
    batches_how_t how = {.data = &data,
                         .folder = s->folder,
                         .sequence = SEQUENCE,
                         .phase = PHASE_DPO,
                         .vocab = VOCAB,
                         .eod = -1};
    if (batches_open(&how, &b) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    assert_int_equal(batches_samples(b), 2);
    assert_int_equal(batches_documents_per_sample(b), 3);
    for (uint64_t i = 0; i < 2; i++) {
        assert_int_equal(batches_fill(b, i, 1, rows_init(&rows)), LH_OK);
        double sum = 0, all = 0;
        for (int k = 0; k < SEQUENCE; k++) {
            sum += (double)rows.weights[k];
            all += rows.weights[k] != 0;
        }
        if (rows.starts[1] == 4) { /* the short one: 4 places, 2, and what is left */
            assert_int_equal(rows.starts[2], 6);
            assert_int_equal(rows.tokens[4], 6);
            assert_true(rows.weights[1] == 1 && rows.weights[5] == -1 && rows.weights[4] == 0);
            assert_true(sum == 2 && all == 4);
        } else { /* 19 + 12 places cut to 12 + 12 */
            assert_int_equal(rows.starts[1], 12);
            assert_int_equal(rows.starts[2], SEQUENCE);
            assert_true(sum == 0 && all == 18);
        }
    }
    batches_close(b);
    b = NULL;
    how.phase = PHASE_SFT;
    assert_int_equal(batches_open(&how, &b), LH_INVALID);
    assert_non_null(strstr(fail_reason(), "has two answers to choose from"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_document_is_in_each_epoch_once_and_whole),
        cmocka_unit_test(a_row_does_not_depend_on_what_was_asked_before),
        cmocka_unit_test(more_epochs_leave_those_before_them_as_they_are),
        cmocka_unit_test(long_ones_are_refused_cut_or_left_out),
        cmocka_unit_test(pairs_stand_beside_each_other),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
