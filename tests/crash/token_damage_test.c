/* token_damage_test.c - a pair of token files that was damaged after prepare made it is never
 * trained on: bits of the index, lengths of both; and the bits of the .bin are found where it is
 * read whole. */
#include <unit/base/scratch_files.h>

#include <fcntl.h>
#include <stdlib.h>

#include <crash/crash_states.h>

#include <base/sys.h>
#include <data/batches.h>
#include <data/indexed.h>
#include <data/prepare.h>
#include <torture.h>

enum { DOCUMENTS = 200, VOCAB = 1000, CI_FLIPS = 10000, TORTURE_FLIPS = 1000000 };

static uint64_t seed = 20261122, flips = CI_FLIPS;

/* As prepare ends: the pair, then what it says of it. */
static void write_pair(scratch_t *s)
{
    indexed_writer_t *w;
    pair_sums_t sums;
    assert_int_equal(indexed_writer_open(scratch_path(s, "corpus"), VOCAB, &w), LH_OK);
    for (int d = 0; d < DOCUMENTS; d++) {
        int32_t ids[16];
        for (int k = 0; k < 16; k++)
            ids[k] = (d * 7 + k) % VOCAB;
        assert_int_equal(indexed_writer_add(w, ids, (uint64_t)(d % 16)), LH_OK);
    }
    assert_int_equal(indexed_writer_finish(w, &sums), LH_OK);
    assert_int_equal(indexed_writer_commit(w), LH_OK);
    text_t text = {0};
    json_writer_t json = {.to = &text};
    json_open(&json, NULL, '{');
    prepare_record_put(&json, s->folder, "corpus", &sums);
    json_close(&json);
    (void)scratch_text(s, "prepare.json", text.data);
    text_free(&text);
}

static lh_status_t open_pair(scratch_t *s)
{
    char train[] = "corpus", split[] = "1,0,0";
    const job_data_t data = {.train = train, .split = split, .seed = 1};
    const batches_how_t how = {.data = &data,
                               .folder = s->folder,
                               .split = SPLIT_TRAIN,
                               .sequence = 8,
                               .samples = 4,
                               .vocab = VOCAB,
                               .eod = -1};
    batches_t *b;
    const lh_status_t status = batches_open(&how, &b);
    if (status == LH_OK) batches_close(b);
    return status;
}

static lh_status_t read_whole(scratch_t *s)
{
    prepare_record_t record;
    lh_status_t status = prepare_record_read(s->folder, &record);
    assert_int_equal(status, LH_OK);
    status = prepare_record_check_bin(&record);
    prepare_record_free(&record);
    return status;
}

static void flip(int fd, uint64_t bit)
{
    unsigned char byte;
    assert_int_equal(pread(fd, &byte, 1, (off_t)(bit / 8)), 1);
    byte ^= (unsigned char)(1u << bit % 8);
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)(bit / 8)), 1);
}

static void find_flips(scratch_t *s, const char *name, uint64_t count,
                       lh_status_t (*found)(scratch_t *s))
{
    const uint64_t begin = seed;
    const int fd = open(scratch_path(s, name), O_RDWR);
    assert_true(fd >= 0);
    const uint64_t bits = (uint64_t)lseek(fd, 0, SEEK_END) * 8;
    for (uint64_t n = 0; n < count; n++) {
        const uint64_t bit = crash_random(&seed) % bits;
        flip(fd, bit);
        if (found(s) != LH_CORRUPT || strstr(fail_reason(), "prepare it again") == NULL)
            FAIL_TEST("%s, bit %llu: %s\n", name, (unsigned long long)bit, fail_reason());
        flip(fd, bit);
    }
    assert_int_equal(found(s), LH_OK);
    assert_int_equal(close(fd), 0);
    print_message("%s: %llu flipped bits of %llu found, seed %llu\n", name,
                  (unsigned long long)count, (unsigned long long)count, (unsigned long long)begin);
}

static void every_flipped_bit_of_an_index_is_found_when_it_is_opened(void **state)
{
    write_pair(*state);
    find_flips(*state, "corpus.idx", flips, open_pair);
}

static void every_flipped_bit_of_the_tokens_is_found_where_they_are_read_whole(void **state)
{
    write_pair(*state);
    find_flips(*state, "corpus.bin", flips / 10, read_whole);
}

static void every_other_length_is_found(void **state)
{
    static const char *const names[] = {"corpus.idx", "corpus.bin"};
    scratch_t *s = *state;
    write_pair(s);
    for (int i = 0; i < 2; i++) {
        size_t whole;
        char *bytes = scratch_read(scratch_path(s, names[i]), &whole);
        for (size_t length = 0; length < whole; length += 3) {
            (void)scratch_write(s, names[i], bytes, length);
            assert_int_equal(open_pair(s), LH_CORRUPT);
        }
        (void)scratch_write(s, names[i], bytes, whole);
        assert_int_equal(open_pair(s), LH_OK);
        mem_free(bytes);
    }
}

/* Who made it elsewhere, or with an older version, has no digest. */
static void a_pair_of_which_nothing_is_said_is_opened_as_it_is(void **state)
{
    scratch_t *s = *state;
    write_pair(s);
    (void)scratch_text(s, "prepare.json", "{\"output\": \"corpus\", \"documents\": 200}");
    assert_int_equal(open_pair(s), LH_OK);
    assert_int_equal(unlink(scratch_path(s, "prepare.json")), 0);
    assert_int_equal(open_pair(s), LH_OK);
}

static void what_is_said_of_another_pair_is_nothing(void **state)
{
    char other[600];
    scratch_t *s = *state;
    write_pair(s);
    for (int i = 0; i < 2; i++) {
        (void)snprintf(other, sizeof(other), "%s/other.%s", s->folder, i == 0 ? "idx" : "bin");
        assert_int_equal(rename(scratch_path(s, i == 0 ? "corpus.idx" : "corpus.bin"), other), 0);
    }
    prepare_record_t record;
    assert_int_equal(prepare_record_find(scratch_path(s, "other"), NULL, &record), LH_OK);
    assert_null(record.summary);
}

/* The pair lies elsewhere, what is said of it in the pipeline's folder; both names lead there. */
static void a_pair_in_another_folder_is_found_by_its_file(void **state)
{
    scratch_t *s = *state;
    char linked[600];
    prepare_record_t record;
    write_pair(s);
    assert_int_equal(mkdir(scratch_path(s, "far"), 0700), 0);
    (void)snprintf(linked, sizeof(linked), "%s/far/corpus.idx", s->folder);
    assert_int_equal(symlink(scratch_path(s, "corpus.idx"), linked), 0);
    (void)snprintf(linked, sizeof(linked), "%s/far/corpus", s->folder);
    assert_int_equal(prepare_record_find(linked, s->folder, &record), LH_OK);
    assert_non_null(record.summary);
    prepare_record_free(&record);
}

/* It may be another program's: verify, which asks for it, refuses it; training warns. */
static void a_summary_that_is_damaged_tells_of_no_pair(void **state)
{
    static const char *const texts[] = {
        "{\"pair\":", "{\"pair\": {}}", "{\"pair\": 1}",
        "{\"pair\": {\"prefix\": \"corpus\", \"idx\": {\"bytes\": -1, \"sha256\": \"\"}}}"};
    scratch_t *s = *state;
    write_pair(s);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        (void)scratch_text(s, "prepare.json", texts[i]);
        prepare_record_t record;
        assert_int_not_equal(prepare_record_read(s->folder, &record), LH_OK);
        assert_non_null(strstr(fail_reason(), "prepare.json: "));
        assert_int_equal(prepare_record_find(scratch_path(s, "corpus"), NULL, &record), LH_OK);
        assert_null(record.summary);
    }
}

static int choose(void **state)
{
    (void)state;
    const char *wanted = getenv("LONGHAUL_SEED");
    if (torture_wanted()) flips = TORTURE_FLIPS;
    if (wanted != NULL) seed = strtoull(wanted, NULL, 10);
    return 0;
}

int main(void)
{
#define FACT(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        FACT(every_flipped_bit_of_an_index_is_found_when_it_is_opened),
        FACT(every_flipped_bit_of_the_tokens_is_found_where_they_are_read_whole),
        FACT(every_other_length_is_found),
        FACT(a_pair_of_which_nothing_is_said_is_opened_as_it_is),
        FACT(what_is_said_of_another_pair_is_nothing),
        FACT(a_pair_in_another_folder_is_found_by_its_file),
        FACT(a_summary_that_is_damaged_tells_of_no_pair),
    };
    return cmocka_run_group_tests(tests, choose, NULL);
}
