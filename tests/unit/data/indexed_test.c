/* indexed_test.c - the pair of .bin and .idx, written and read, hostile and not. */
#include <unit/base/scratch_files.h>

#include <base/sys.h>
#include <data/indexed.h>

/* Documents 5 6 7 | (empty) | 8 9 in a vocabulary of 5000, laid out by hand from the format's page.
 */
static const unsigned char expected_idx[] = {
    'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0,                      /* magic      */
    1,   0,   0,   0,   0,   0,   0,   0,                         /* version    */
    8,                                                            /* uint16     */
    2,   0,   0,   0,   0,   0,   0,   0,                         /* sequences  */
    4,   0,   0,   0,   0,   0,   0,   0,                         /* boundaries */
    3,   0,   0,   0,   2,   0,   0,   0,                         /* lengths    */
    0,   0,   0,   0,   0,   0,   0,   0, 6, 0, 0, 0, 0, 0, 0, 0, /* offsets */
    0,   0,   0,   0,   0,   0,   0,   0, 1, 0, 0, 0, 0, 0, 0, 0, /* boundaries */
    1,   0,   0,   0,   0,   0,   0,   0, 2, 0, 0, 0, 0, 0, 0, 0,
};
static const unsigned char expected_bin[] = {5, 0, 6, 0, 7, 0, 8, 0, 9, 0};

static void write_small(scratch_t *s, const char *name, uint32_t vocab)
{
    static const int32_t a[] = {5, 6, 7}, b[] = {8, 9};
    indexed_writer_t *w;
    assert_int_equal(indexed_writer_open(scratch_path(s, name), vocab, &w), LH_OK);
    assert_int_equal(indexed_writer_add(w, a, 3), LH_OK);
    assert_int_equal(indexed_writer_add(w, NULL, 0), LH_OK);
    assert_int_equal(indexed_writer_add(w, b, 2), LH_OK);
    assert_int_equal(indexed_writer_commit(w), LH_OK);
}

static void the_bytes_are_those_of_the_format(void **state)
{
    scratch_t *s = *state;
    write_small(s, "small", 5000);
    size_t length;
    char *idx = scratch_read(scratch_path(s, "small.idx"), &length);
    assert_int_equal(length, sizeof(expected_idx));
    assert_memory_equal(idx, expected_idx, length);
    mem_free(idx);
    char *bin = scratch_read(scratch_path(s, "small.bin"), &length);
    assert_int_equal(length, sizeof(expected_bin));
    assert_memory_equal(bin, expected_bin, length);
    mem_free(bin);
    assert_false(file_exists(scratch_path(s, "small.bin.tmp")));
    assert_false(file_exists(scratch_path(s, "small.idx.tmp")));
    assert_false(file_exists(scratch_path(s, "small.lengths.tmp")));
}

static void the_vocabulary_decides_the_dtype(void **state)
{
    static const struct {
        uint32_t vocab, code;
    } rows[] = {{65499, INDEXED_UINT16}, {65500, INDEXED_INT32}};
    for (int i = 0; i < 2; i++) {
        write_small(*state, "dtype", rows[i].vocab);
        indexed_t *set;
        int32_t ids[3];
        assert_int_equal(indexed_open(scratch_path(*state, "dtype"), rows[i].vocab, &set), LH_OK);
        assert_int_equal(set->dtype_code, rows[i].code);
        assert_int_equal(set->documents, 3);
        assert_int_equal(set->sequences, 2);
        assert_int_equal(set->tokens, 5);
        assert_int_equal(indexed_read(set, 0, 1, 2, ids), LH_OK);
        assert_int_equal(ids[0], 6);
        assert_int_equal(ids[1], 7);
        indexed_close(set);
    }
}

static void a_document_longer_than_any_buffer_comes_back(void **state)
{
    enum { COUNT = 1200000 };
    int32_t *ids = mem_array(COUNT, sizeof(*ids)), *back = mem_array(COUNT, sizeof(*ids));
    indexed_writer_t *w;
    indexed_t *set;
    for (int32_t i = 0; i < COUNT; i++)
        ids[i] = (int32_t)((uint32_t)i * 2654435761u % 70000u);
    assert_int_equal(indexed_writer_open(scratch_path(*state, "long"), 70000, &w), LH_OK);
    assert_int_equal(indexed_writer_add(w, ids, COUNT), LH_OK);
    assert_int_equal(indexed_writer_commit(w), LH_OK);
    assert_int_equal(indexed_open(scratch_path(*state, "long"), 70000, &set), LH_OK);
    assert_int_equal(indexed_read(set, 0, 0, COUNT, back), LH_OK);
    assert_memory_equal(ids, back, COUNT * sizeof(*ids));
    indexed_close(set);
    mem_free(back);
    mem_free(ids);
}

static void an_id_outside_the_vocabulary_is_not_written(void **state)
{
    static const int32_t rows[] = {-1, 10, 65536 + 3};
    for (int i = 0; i < 3; i++) {
        indexed_writer_t *w;
        assert_int_equal(indexed_writer_open(scratch_path(*state, "bad"), 10, &w), LH_OK);
        assert_int_equal(indexed_writer_add(w, &rows[i], 1), LH_INVALID);
        indexed_writer_discard(w);
    }
    assert_string_equal(fail_reason(), "token id 65539, the vocabulary has 10");
    assert_false(file_exists(scratch_path(*state, "bad.bin.tmp")));
    assert_false(file_exists(scratch_path(*state, "bad.lengths.tmp")));
}

static void an_id_outside_the_vocabulary_is_refused_when_it_is_read(void **state)
{
    indexed_t *set;
    int32_t ids[2];
    write_small(*state, "gather", 5000);
    assert_int_equal(indexed_open(scratch_path(*state, "gather"), 9, &set), LH_OK);
    assert_int_equal(indexed_read(set, 1, 0, 1, ids), LH_OK);
    assert_int_equal(indexed_read(set, 1, 0, 2, ids), LH_INVALID);
    assert_non_null(
        strstr(fail_reason(), "gather.bin: token id 9 at byte 8, the vocabulary has 9"));
    indexed_close(set);
}

typedef struct damage {
    size_t at; /* byte of the index that is replaced by `bytes`, or its new length if cut */
    bool cut;
    unsigned char bytes[8];
    size_t count;
    const char *sentence;
} damage_t;

static void a_damaged_index_is_refused_before_it_is_used(void **state)
{
    /* clang-format off */
    static const damage_t rows[] = {
        {0, true, {0}, 0, "bad.idx: 0 bytes, an index has at least 34"},
        {33, true, {0}, 0, "bad.idx: 33 bytes, an index has at least 34"},
        {89, true, {0}, 0, "bad.idx: 89 bytes, but 34 + 12 x 2 sequences + 8 x 4 boundaries are wanted"},
        {91, true, {0}, 0, "bad.idx: 91 bytes, but 34 + 12 x 2 sequences + 8 x 4 boundaries are wanted"},
        {6, false, {'Y'}, 1, "bad.idx: its first 9 bytes are "},
        {8, false, {1}, 1, "bad.idx: its first 9 bytes are "},
        {9, false, {2}, 1, "bad.idx: version 2 at byte 9, expected 1"},
        {17, false, {0}, 1, "bad.idx: dtype code 0 at byte 17, expected 1 to 8"},
        {17, false, {9}, 1, "bad.idx: dtype code 9 at byte 17, expected 1 to 8"},
        {17, false, {7}, 1, "bad.idx: dtype code 7 at byte 17 is float32, token ids are whole numbers"},
        /* 12 x 2^62 and 8 x 2^61 are 0 in 64 bits: the size would seem to fit */
        {18, false, {2, 0, 0, 0, 0, 0, 0, 0x40}, 8, "bad.idx: 90 bytes, but 34 + 12 x 4611686018427387906 "},
        {26, false, {4, 0, 0, 0, 0, 0, 0, 0x20}, 8,
         "bad.idx: 90 bytes, but 34 + 12 x 2 sequences + 8 x 2305843009213693956 "},
        {34, false, {0xff, 0xff, 0xff, 0xff}, 4, "bad.idx: sequence 0 has -1 tokens at byte 34, expected 0 or more"},
        {38, false, {0xff, 0xff, 0xff, 0x7f}, 4, "bad.idx: sequence 1 has 2147483647 tokens at byte 6, but "},
        {42, false, {2}, 1, NULL}, /* sequences may overlap, as long as they lie in the .bin */
        {42, false, {1}, 1,
         "bad.idx: sequence 0 begins at 1 of the .bin, expected at least 0 and a multiple of 2"},
        {42, false, {8}, 1, "bad.idx: sequence 0 has 3 tokens at byte 8, but "},
        {50, false, {8}, 1, "bad.idx: sequence 1 has 2 tokens at byte 8, but "},
        {50, false, {0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, 8,
         "bad.idx: sequence 1 has 2 tokens at byte 18446744073709551614, but "},
        {58, false, {1}, 1, "bad.idx: document boundary 0 is 1; boundaries go from 0 up to 2 and never down"},
        {66, false, {2}, 1, "bad.idx: document boundary 2 is 1; boundaries go from 0 up to 2 and never down"},
        {74, false, {0}, 1, "bad.idx: document boundary 2 is 0; boundaries go from 0 up to 2 and never down"},
        {82, false, {1}, 1, "bad.idx: the last document boundary, 3, is 1; expected the number of sequences, 2"},
        {82, false, {3}, 1, "bad.idx: document boundary 3 is 3; boundaries go from 0 up to 2 and never down"},
    };
    /* clang-format on */
    scratch_t *s = *state;
    (void)scratch_write(s, "bad.bin", expected_bin, sizeof(expected_bin));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        unsigned char bytes[sizeof(expected_idx) + 8] = {0};
        size_t length = sizeof(expected_idx);
        memcpy(bytes, expected_idx, length);
        if (rows[i].cut)
            length = rows[i].at;
        else
            memcpy(bytes + rows[i].at, rows[i].bytes, rows[i].count);
        (void)scratch_write(s, "bad.idx", bytes, length);
        indexed_t *set;
        const lh_status_t status = indexed_open(scratch_path(s, "bad"), 5000, &set);
        if (rows[i].sentence == NULL && status == LH_OK) {
            indexed_close(set);
            continue;
        }
        if (status != LH_INVALID || rows[i].sentence == NULL ||
            strncmp(behind_folder(s, fail_reason()), rows[i].sentence, strlen(rows[i].sentence)) !=
                0)
            FAIL_TEST("row %zu: %d %s\n", i, status, fail_reason());
    }
}

static void a_short_bin_and_a_missing_one_are_refused(void **state)
{
    scratch_t *s = *state;
    indexed_t *set;
    (void)scratch_write(s, "short.idx", expected_idx, sizeof(expected_idx));
    assert_int_equal(indexed_open(scratch_path(s, "short"), 5000, &set), LH_IO);
    assert_non_null(strstr(fail_reason(), "short.bin: cannot open"));
    (void)scratch_write(s, "short.bin", expected_bin, sizeof(expected_bin) - 1);
    assert_int_equal(indexed_open(scratch_path(s, "short"), 5000, &set), LH_INVALID);
    assert_non_null(strstr(fail_reason(), "short.bin has 9 bytes"));
}

/* A .bin that shrinks after it was checked is an error of the read, not a signal. */
static void a_bin_that_shrinks_later_is_a_sentence(void **state)
{
    scratch_t *s = *state;
    indexed_t *set;
    int32_t ids[2];
    write_small(s, "shrinks", 5000);
    assert_int_equal(indexed_open(scratch_path(s, "shrinks"), 5000, &set), LH_OK);
    assert_int_equal(truncate(scratch_path(s, "shrinks.bin"), 8), 0);
    assert_int_equal(indexed_read(set, 1, 0, 2, ids), LH_CORRUPT);
    assert_non_null(strstr(fail_reason(), "shrinks.bin: has 8 bytes, at least "));
    indexed_close(set);
}

static int fails_left;
static int failing_fsync(int fd)
{
    return --fails_left == 0 ? -1 : sys_real.fsync(fd);
}

/* Every fsync fails in its turn: the old pair is whole, or no index is there. */
static void a_failed_sync_never_leaves_a_mixed_pair(void **state)
{
    scratch_t *s = *state;
    sys_t faulty = sys_real;
    faulty.fsync = failing_fsync;
    for (int at = 1;; at++) {
        static const int32_t other[] = {1, 2, 3, 4};
        write_small(s, "pair", 5000);
        indexed_writer_t *w;
        assert_int_equal(indexed_writer_open(scratch_path(s, "pair"), 5000, &w), LH_OK);
        assert_int_equal(indexed_writer_add(w, other, 4), LH_OK);
        fails_left = at;
        sys_use(&faulty);
        const lh_status_t status = indexed_writer_commit(w);
        sys_use(NULL);
        assert_false(file_exists(scratch_path(s, "pair.bin.tmp")));
        assert_false(file_exists(scratch_path(s, "pair.idx.tmp")));
        assert_false(file_exists(scratch_path(s, "pair.lengths.tmp")));
        if (status == LH_OK) {
            assert_int_equal(at, 5); /* two files and the folder twice */
            break;
        }
        if (!file_exists(scratch_path(s, "pair.idx"))) continue;
        indexed_t *set;
        assert_int_equal(indexed_open(scratch_path(s, "pair"), 5000, &set), LH_OK);
        assert_true(set->tokens == (at < 4 ? 5 : 4));
        indexed_close(set);
    }
}

static int failing_rename(const char *from, const char *to)
{
    return --fails_left == 0 ? -1 : sys_real.rename(from, to);
}

static void an_old_index_never_stands_beside_new_tokens(void **state)
{
    static const int32_t other[] = {1, 2, 3, 4};
    scratch_t *s = *state;
    sys_t faulty = sys_real;
    indexed_writer_t *w;
    faulty.rename = failing_rename;
    write_small(s, "half", 5000);
    assert_int_equal(indexed_writer_open(scratch_path(s, "half"), 5000, &w), LH_OK);
    assert_int_equal(indexed_writer_add(w, other, 4), LH_OK);
    fails_left = 2; /* the tokens are renamed, the index is not */
    sys_use(&faulty);
    assert_int_equal(indexed_writer_commit(w), LH_IO);
    sys_use(NULL);
    assert_false(file_exists(scratch_path(s, "half.idx")));
    assert_false(file_exists(scratch_path(s, "half.idx.tmp")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bytes_are_those_of_the_format),
        cmocka_unit_test(the_vocabulary_decides_the_dtype),
        cmocka_unit_test(a_document_longer_than_any_buffer_comes_back),
        cmocka_unit_test(an_id_outside_the_vocabulary_is_not_written),
        cmocka_unit_test(an_id_outside_the_vocabulary_is_refused_when_it_is_read),
        cmocka_unit_test(a_damaged_index_is_refused_before_it_is_used),
        cmocka_unit_test(a_short_bin_and_a_missing_one_are_refused),
        cmocka_unit_test(a_bin_that_shrinks_later_is_a_sentence),
        cmocka_unit_test(a_failed_sync_never_leaves_a_mixed_pair),
        cmocka_unit_test(an_old_index_never_stands_beside_new_tokens),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
