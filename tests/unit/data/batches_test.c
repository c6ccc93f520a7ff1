/* batches_test.c - rows of a batch, blends, and that a sample depends on nothing but its index. */
#include <unit/base/scratch_files.h>

#include <unistd.h>

#include <data/batches.h>
#include <data/indexed.h>
#include <data/samples.h>

enum { SEQUENCE = 16, VOCAB = 50000, EOD = 49999 };

/* Document d has length d % 7 + 1 with an eod as its last token; the ids tell where they stand. */
static void write_set(scratch_t *s, const char *name, int documents, int32_t first_id)
{
    indexed_writer_t *w;
    int32_t next = first_id;
    assert_int_equal(indexed_writer_open(scratch_path(s, name), VOCAB, &w), LH_OK);
    for (int d = 0; d < documents; d++) {
        int32_t ids[8];
        const int length = d % 7 + 1;
        for (int k = 0; k < length - 1; k++)
            ids[k] = next++;
        ids[length - 1] = EOD;
        assert_int_equal(indexed_writer_add(w, ids, (uint64_t)length), LH_OK);
    }
    assert_int_equal(indexed_writer_commit(w), LH_OK);
}

typedef struct rows {
    batch_rows_t batch;
    int32_t tokens[8 * SEQUENCE], labels[8 * SEQUENCE], positions[8 * SEQUENCE];
    float weights[8 * SEQUENCE];
    int32_t starts[8 * SEQUENCE + 1];
} rows_t;

static rows_t *rows_init(rows_t *r, uint64_t max_documents)
{
    memset(r, 0xee, sizeof(*r));
    r->batch = (batch_rows_t){r->tokens,  r->labels, r->positions,
                              r->weights, r->starts, max_documents};
    return r;
}

static batches_t *open_set(scratch_t *s, job_data_t data, uint32_t split, uint64_t samples)
{
    char whole[] = "1,0,0";
    if (data.split == NULL) data.split = whole;
    data.seed = 1234;
    const batches_how_t how = {.data = &data,
                               .folder = s->folder,
                               .split = split,
                               .sequence = SEQUENCE,
                               .samples = samples,
                               .vocab = VOCAB,
                               .eod = EOD};
    batches_t *b = NULL;
    if (batches_open(&how, &b) != LH_OK) FAIL_TEST("%s\n", fail_reason());
    return b;
}

/* The second split finds the pair as it was read for the first, whatever became of the files. */
static void splits_of_one_pair_share_it(void **state)
{
    scratch_t *s = *state;
    rows_t r, alone;
    char split[] = "90,10,0", list[] = "corpus";
    const job_data_t data = {.train = list, .split = split, .seed = 1234};
    batches_t *train = NULL, *valid = NULL;
    write_set(s, "corpus", 200, 0);
    valid = open_set(s, data, SPLIT_VALID, 0);
    assert_int_equal(batches_fill(valid, 0, 1, &rows_init(&alone, 3)->batch), LH_OK);
    batches_close(valid);

    batches_how_t how = {.data = &data,
                         .folder = s->folder,
                         .sequence = SEQUENCE,
                         .samples = 10,
                         .vocab = VOCAB,
                         .eod = EOD};
    assert_int_equal(batches_open(&how, &train), LH_OK);
    assert_int_equal(unlink(scratch_path(s, "corpus.idx")), 0);
    how.split = SPLIT_VALID;
    how.samples = 0;
    assert_int_equal(batches_open(&how, &valid), LH_IO);
    how.beside = train;
    how.vocab = VOCAB + 1; /* checked against another one */
    assert_int_equal(batches_open(&how, &valid), LH_IO);
    how.vocab = VOCAB;
    assert_int_equal(batches_open(&how, &valid), LH_OK);
    batches_close(train); /* in any order */
    assert_int_equal(batches_fill(valid, 0, 1, &rows_init(&r, 3)->batch), LH_OK);
    assert_memory_equal(r.tokens, alone.tokens, sizeof(r.tokens));
    batches_close(valid);
}

static void joined_rows_are_one_segment_each(void **state)
{
    scratch_t *s = *state;
    rows_t r;
    write_set(s, "corpus", 200, 0);
    batches_t *b = open_set(s, (job_data_t){.train = (char[]){"corpus"}}, SPLIT_TRAIN, 10);
    assert_int_equal(batches_fill(b, 3, 2, &rows_init(&r, 3)->batch), LH_OK);
    for (int i = 0; i < 2 * SEQUENCE; i++) {
        assert_int_equal(r.positions[i], i % SEQUENCE);
        assert_true(r.weights[i] == 1.0f);
        if (i % SEQUENCE != SEQUENCE - 1) assert_int_equal(r.labels[i], r.tokens[i + 1]);
    }
    const int32_t starts[] = {0, SEQUENCE, 2 * SEQUENCE, 2 * SEQUENCE};
    assert_memory_equal(r.starts, starts, sizeof(starts));
    batches_close(b);
}

static void documents_apart_restart_behind_each_eod(void **state)
{
    scratch_t *s = *state;
    rows_t r;
    const job_data_t data = {.train = (char[]){"corpus"}, .documents = DOCUMENTS_APART};
    write_set(s, "corpus", 200, 0);
    batches_t *b = open_set(s, data, SPLIT_TRAIN, 10);
    assert_int_equal(batches_fill(b, 0, 4, &rows_init(&r, 4 * SEQUENCE)->batch), LH_OK);
    int32_t documents = 0, position = 0;
    for (int i = 0; i < 4 * SEQUENCE; i++) {
        if (i % SEQUENCE == 0 || r.tokens[i - 1] == EOD) {
            assert_int_equal(r.starts[documents++], i);
            position = 0;
        }
        assert_int_equal(r.positions[i], position++);
        assert_true(r.weights[i] == (r.tokens[i] == EOD ? 0.0f : 1.0f));
    }
    assert_true(documents > 8);
    for (int i = documents; i <= 4 * SEQUENCE; i++)
        assert_int_equal(r.starts[i], 4 * SEQUENCE);

    assert_int_equal(batches_fill(b, 0, 4, &rows_init(&r, (uint64_t)documents - 1)->batch),
                     LH_INVALID);
    assert_int_equal(batches_fill(b, 0, 4, &rows_init(&r, (uint64_t)documents)->batch), LH_OK);
    assert_true((uint64_t)documents <= 4 * batches_documents_per_sample(b));
    batches_close(b);
}

static void documents_apart_are_found_without_an_eod_too(void **state)
{
    scratch_t *s = *state;
    rows_t with, without;
    job_data_t data = {.train = (char[]){"corpus"}, .split = (char[]){"1"}, .seed = 1234};
    data.documents = DOCUMENTS_APART;
    batches_how_t how = {.data = &data, .folder = s->folder, .sequence = SEQUENCE, .samples = 10};
    how.vocab = VOCAB;
    write_set(s, "corpus", 200, 0);
    for (int i = 0; i < 2; i++) {
        batches_t *b;
        how.eod = i == 0 ? EOD : -1;
        assert_int_equal(batches_open(&how, &b), LH_OK);
        rows_t *r = rows_init(i == 0 ? &with : &without, 4 * SEQUENCE);
        assert_int_equal(batches_fill(b, 0, 4, &r->batch), LH_OK);
        batches_close(b);
    }
    assert_memory_equal(with.starts, without.starts, sizeof(int32_t) * (4 * SEQUENCE + 1));
    assert_memory_equal(with.weights, without.weights, sizeof(float) * 4 * SEQUENCE);
}

/* A run that stops and goes on, or another number of rows at a time, sees the same samples. */
static void a_sample_depends_on_its_index_alone(void **state)
{
    scratch_t *s = *state;
    rows_t all, one;
    write_set(s, "a", 300, 0);
    write_set(s, "b", 300, 10000);
    const job_data_t data = {.train = (char[]){"a:0.7, b:0.3"}, .documents = DOCUMENTS_APART};
    batches_t *b = open_set(s, data, SPLIT_TRAIN, 40);
    for (uint64_t first = 0; first < 40; first += 8) {
        batches_t *again = open_set(s, data, SPLIT_TRAIN, 40);
        assert_int_equal(batches_fill(b, first, 8, &rows_init(&all, 8 * SEQUENCE)->batch), LH_OK);
        for (uint64_t i = 8; i-- > 0;) {
            assert_int_equal(batches_fill(again, first + i, 1, &rows_init(&one, SEQUENCE)->batch),
                             LH_OK);
            assert_memory_equal(all.tokens + i * SEQUENCE, one.tokens, SEQUENCE * 4);
            assert_memory_equal(all.labels + i * SEQUENCE, one.labels, SEQUENCE * 4);
            assert_memory_equal(all.positions + i * SEQUENCE, one.positions, SEQUENCE * 4);
            assert_memory_equal(all.weights + i * SEQUENCE, one.weights, SEQUENCE * 4);
        }
        batches_close(again);
    }
    assert_int_equal(batches_samples(b), 40);
    assert_int_equal(batches_fill(b, 39, 2, &rows_init(&all, 8 * SEQUENCE)->batch), LH_INVALID);
    assert_string_equal(fail_reason(), "sample 40 is asked for, there are 40");
    batches_close(b);
}

static void a_blend_takes_each_set_by_its_weight(void **state)
{
    scratch_t *s = *state;
    rows_t r;
    uint64_t from_b = 0;
    write_set(s, "a", 300, 0);
    write_set(s, "b", 300, 10000);
    batches_t *b = open_set(s, (job_data_t){.train = (char[]){"a:3, b:1"}}, SPLIT_TRAIN, 200);
    for (uint64_t i = 0; i < 200; i++) {
        assert_int_equal(batches_fill(b, i, 1, &rows_init(&r, 1)->batch), LH_OK);
        for (int k = 0; k < SEQUENCE; k++) {
            if (r.tokens[k] == EOD) continue;
            from_b += r.tokens[k] >= 10000 ? 1 : 0;
            break;
        }
    }
    assert_int_equal(from_b, 50);
    batches_close(b);
}

static void splits_share_no_sequence_and_an_own_set_is_whole(void **state)
{
    scratch_t *s = *state;
    write_set(s, "corpus", 700, 0);
    job_data_t data = {.train = (char[]){"corpus"}, .split = (char[]){"8,1,1"}};
    uint64_t counts[3];
    for (uint32_t split = SPLIT_TRAIN; split <= SPLIT_TEST; split++) {
        batches_t *b = open_set(s, data, split, 0);
        counts[split] = batches_samples(b);
        batches_close(b);
    }
    /* 100 rounds of lengths 1 to 7 are 2800 tokens; a sample takes 16 and one shared */
    assert_int_equal(counts[SPLIT_TRAIN], (2240 - 1) / SEQUENCE);
    assert_int_equal(counts[SPLIT_VALID], (280 - 1) / SEQUENCE);
    assert_int_equal(counts[SPLIT_TEST], (280 - 1) / SEQUENCE);
    data.valid = (char[]){"corpus"};
    batches_t *b = open_set(s, data, SPLIT_VALID, 0);
    assert_int_equal(batches_samples(b), (2800 - 1) / SEQUENCE);
    batches_close(b);
}

/* Megatron's build_blending_indices, written out again in the plainest way. */
static void blending_agrees_with_the_plain_rule(void **state)
{
    (void)state;
    samples_blend_list_t list;
    samples_blend_t blend;
    assert_int_equal(samples_blend_parse("a:0.125,b:0.5,c:0.25,d:0.125,e:0.37", &list), LH_OK);
    assert_int_equal(samples_blend_new(&list, 5000, &blend), LH_OK);
    double taken[5] = {0};
    for (uint64_t i = 0; i < 5000; i++) {
        uint32_t best = 0;
        for (uint32_t k = 1; k < 5; k++) {
            const double at = i < 1 ? 1 : (double)i;
            if (list.parts[k].weight * at - taken[k] > list.parts[best].weight * at - taken[best])
                best = k;
        }
        assert_int_equal(blend.set[i], best);
        assert_int_equal(blend.sample[i], (uint32_t)taken[best]);
        taken[best]++;
    }
    samples_blend_free(&blend);
    samples_blend_list_free(&list);
}

/* Figures of tests/reference/blending.py. */
static void blending_agrees_with_figures_made_in_python(void **state)
{
    (void)state;
    static const uint16_t expected[] = {0, 1, 0, 2, 0, 1, 0, 0, 1, 0, 0, 1, 0, 2, 0, 1, 0, 0, 1, 0};
    samples_blend_list_t list;
    samples_blend_t blend;
    assert_int_equal(samples_blend_parse("a:0.6, b:0.3, c:0.1", &list), LH_OK);
    assert_int_equal(samples_blend_new(&list, 20, &blend), LH_OK);
    assert_memory_equal(blend.set, expected, sizeof(expected));
    assert_int_equal(samples_blend_wanted(list.parts[2].weight, 1000), 102);
    samples_blend_free(&blend);
    samples_blend_list_free(&list);
}

static void a_list_of_sets_is_read_or_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *sentence;
    } bad[] = {
        {"", "no data set is named"},
        {"a, b", "0 of 2 data sets have a weight; each needs one, as in a:0.7, b:0.3"},
        {"a:1, b", "1 of 2 data sets have a weight; each needs one, as in a:0.7, b:0.3"},
        {"a:x", "data set 'a:x': 'x' is no weight, a number above 0 is expected"},
        {"a:", "data set 'a:': '' is no weight, a number above 0 is expected"},
        {"a:0, b:1", "data set 'a:0': '0' is no weight, a number above 0 is expected"},
        {"a:-1, b:1", "data set 'a:-1': '-1' is no weight, a number above 0 is expected"},
        {"a:nan, b:1", "data set 'a:nan': 'nan' is no weight, a number above 0 is expected"},
        {":1, b:1", "a data set of a blend has no name"},
    };
    samples_blend_list_t list;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(samples_blend_parse(bad[i].text, &list), LH_INVALID);
        assert_string_equal(fail_reason(), bad[i].sentence);
    }
    assert_int_equal(samples_blend_parse(" corpus a :3 ,/x:y/b: 1 ", &list), LH_OK);
    assert_int_equal(list.count, 2);
    assert_string_equal(list.parts[0].name, "corpus a");
    assert_string_equal(list.parts[1].name, "/x:y/b");
    assert_true(list.parts[0].weight == 0.75);
    samples_blend_list_free(&list);
}

/* Step by step, sample by sample: no range of batches is known but as a set of samples. */
static uint64_t walk(const batch_skips_t *s, uint64_t cursor, uint64_t steps, uint64_t batch)
{
    while (steps > 0) {
        bool touched = false;
        for (uint64_t k = cursor; k < cursor + batch; k++)
            for (uint32_t i = 0; i < s->count; i++)
                touched = touched ||
                          (k / batch + 1 >= s->rows[i].first && k / batch + 1 <= s->rows[i].last);
        if (touched) {
            cursor++; /* until nothing of the batch is in a range */
            continue;
        }
        cursor += batch;
        steps--;
    }
    return cursor;
}

static void skipped_batches_are_what_a_walk_over_samples_leaves_out(void **state)
{
    batch_skips_t s;
    (void)state;
    static const char *const lists[] = {"1", "2..3", "1..4, 6, 8..9", "5, 6, 7..20", " 3 .. 4 ,9"};
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        assert_int_equal(batch_skips_parse(lists[i], &s), LH_OK);
        for (uint64_t batch = 1; batch <= 5; batch++)
            for (uint64_t cursor = 0; cursor < 60; cursor++)
                for (uint64_t steps = 1; steps < 12; steps++)
                    assert_int_equal(batch_skips_after(&s, cursor, steps, batch),
                                     walk(&s, cursor, steps, batch));
    }
    assert_int_equal(batch_skips_parse(NULL, &s), LH_OK);
    assert_int_equal(batch_skips_after(&s, 7, 3, 4), 19);
    static const char *const wrong[] = {"0", "3..2",    "2, 2", "4, 3", "1..",         "..2",
                                        "x", "1..2..3", "-1",   "1 2",  "999999999999"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_int_equal(batch_skips_parse(wrong[i], &s), LH_INVALID);
    char many[512] = "1";
    for (int i = 2; i <= 65; i++) {
        assert_int_equal(batch_skips_parse(many, &s), LH_OK);
        assert_int_equal(s.count, i - 1);
        (void)snprintf(many + strlen(many), sizeof(many) - strlen(many), ",%d", 2 * i);
    }
    assert_int_equal(batch_skips_parse(many, &s), LH_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits_of_one_pair_share_it),
        cmocka_unit_test(joined_rows_are_one_segment_each),
        cmocka_unit_test(documents_apart_restart_behind_each_eod),
        cmocka_unit_test(documents_apart_are_found_without_an_eod_too),
        cmocka_unit_test(a_sample_depends_on_its_index_alone),
        cmocka_unit_test(a_blend_takes_each_set_by_its_weight),
        cmocka_unit_test(splits_share_no_sequence_and_an_own_set_is_whole),
        cmocka_unit_test(blending_agrees_with_the_plain_rule),
        cmocka_unit_test(blending_agrees_with_figures_made_in_python),
        cmocka_unit_test(a_list_of_sets_is_read_or_refused),
        cmocka_unit_test(skipped_batches_are_what_a_walk_over_samples_leaves_out),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
