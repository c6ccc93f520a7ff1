/* batch_share_test.c - the global batch over ranks: the same list of sequences for any number of
 * them, and padding that counts nothing. */
#include <unit/base/scratch_files.h>

#include <data/batches.h>
#include <data/indexed.h>

enum { SEQUENCE = 8, VOCAB = 1000, EOD = 999, ROWS = 4 };

static void ranks_together_see_the_batch_once_and_in_order(void **state)
{
    (void)state;
    for (uint64_t batch = 1; batch <= 24; batch++)
        for (uint64_t micro = 1; micro <= batch; micro++)
            for (uint32_t ranks = 1; ranks <= 9; ranks++) {
                uint64_t next = 0;
                const batch_share_t first = batch_share(batch, micro, 0, ranks);
                for (uint32_t r = 0; r < ranks; r++) {
                    const batch_share_t s = batch_share(batch, micro, r, ranks);
                    assert_int_equal(s.rows, first.rows);
                    assert_int_equal(s.micro_batches, first.micro_batches);
                    assert_int_equal(s.first, next);
                    uint64_t held = 0;
                    for (uint64_t i = 0; i < s.micro_batches; i++) {
                        const uint64_t rows = batch_share_rows(&s, i);
                        assert_true(rows <= s.rows);
                        if (rows > 0) assert_int_equal(s.first + i * s.rows, next + held);
                        held += rows;
                    }
                    assert_int_equal(held, s.count);
                    next += s.count;
                }
                assert_int_equal(next, batch);
                assert_true(first.rows <= micro && first.rows >= 1);
                /* No pass could be left out: the largest share needs it. */
                const uint64_t largest = (batch + ranks - 1) / ranks;
                assert_int_equal(first.micro_batches, (largest + micro - 1) / micro);
            }
}

static void one_rank_takes_micro_batches_as_they_are(void **state)
{
    (void)state;
    const batch_share_t s = batch_share(24, 8, 0, 1);
    assert_int_equal(s.first, 0);
    assert_int_equal(s.count, 24);
    assert_int_equal(s.rows, 8);
    assert_int_equal(s.micro_batches, 3);
}

static batches_t *open_corpus(scratch_t *s, uint32_t documents)
{
    indexed_writer_t *w;
    assert_int_equal(indexed_writer_open(scratch_path(s, "corpus"), VOCAB, &w), LH_OK);
    for (int32_t d = 0; d < 60; d++) {
        const int32_t ids[] = {d, d + 1, EOD};
        assert_int_equal(indexed_writer_add(w, ids, 3), LH_OK);
    }
    assert_int_equal(indexed_writer_commit(w), LH_OK);
    const job_data_t data = {
        .train = (char[]){"corpus"}, .split = (char[]){"1"}, .seed = 7, .documents = documents};
    const batches_how_t how = {.data = &data,
                               .folder = s->folder,
                               .sequence = SEQUENCE,
                               .samples = 10,
                               .vocab = VOCAB,
                               .eod = EOD};
    batches_t *b = NULL;
    if (batches_open(&how, &b) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    return b;
}

typedef struct rows {
    int32_t tokens[ROWS * SEQUENCE], labels[ROWS * SEQUENCE], positions[ROWS * SEQUENCE];
    float weights[ROWS * SEQUENCE];
    int32_t starts[ROWS * SEQUENCE + 1];
    batch_rows_t batch;
} rows_t;

static rows_t *fill(rows_t *r, batches_t *b, uint64_t used, uint64_t max_documents)
{
    memset(r, 0xee, sizeof(*r));
    r->batch = (batch_rows_t){r->tokens,  r->labels, r->positions,
                              r->weights, r->starts, max_documents};
    assert_int_equal(batches_fill(b, 2, used, &r->batch), LH_OK);
    batches_pad(b, used, ROWS, &r->batch);
    return r;
}

static void padding_is_documents_of_its_own_without_weight(void **state)
{
    scratch_t *s = *state;
    rows_t r, full;
    for (uint32_t documents = 0; documents < 2; documents++) {
        batches_t *b = open_corpus(s, documents == 0 ? DOCUMENTS_JOINED : DOCUMENTS_APART);
        fill(&full, b, ROWS, ROWS * SEQUENCE);
        for (uint64_t used = 0; used < ROWS; used++) {
            fill(&r, b, used, ROWS * SEQUENCE);
            const uint64_t at = used * SEQUENCE;
            assert_memory_equal(r.tokens, full.tokens, at * sizeof(int32_t));
            assert_memory_equal(r.weights, full.weights, at * sizeof(float));
            for (uint64_t k = at; k < ROWS * SEQUENCE; k++) {
                assert_int_equal(r.tokens[k], 0);
                assert_int_equal(r.labels[k], 0);
                assert_int_equal(r.positions[k], k % SEQUENCE);
                assert_true(r.weights[k] == 0);
            }
            uint64_t d = 0;
            for (; (uint64_t)r.starts[d] < at; d++)
                assert_int_equal(r.starts[d], full.starts[d]);
            for (uint64_t row = used; row < ROWS; row++)
                assert_int_equal(r.starts[d++], row * SEQUENCE);
            for (; d <= ROWS * SEQUENCE; d++)
                assert_int_equal(r.starts[d], ROWS * SEQUENCE);
        }
        batches_close(b);
    }
}

static void padding_has_room_where_a_document_is_a_row(void **state)
{
    scratch_t *s = *state;
    rows_t r;
    batches_t *b = open_corpus(s, DOCUMENTS_JOINED);
    fill(&r, b, 1, ROWS);
    for (uint64_t d = 0; d <= ROWS; d++)
        assert_int_equal(r.starts[d], d * SEQUENCE);
    /* Without room the padding belongs to the document before it. */
    fill(&r, b, 2, 3);
    const int32_t starts[] = {0, SEQUENCE, 2 * SEQUENCE, ROWS * SEQUENCE};
    assert_memory_equal(r.starts, starts, sizeof(starts));
    batches_close(b);
}

int main(void)
{
#define FACT(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_together_see_the_batch_once_and_in_order),
        cmocka_unit_test(one_rank_takes_micro_batches_as_they_are),
        FACT(padding_is_documents_of_its_own_without_weight),
        FACT(padding_has_room_where_a_document_is_a_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
