/* json_lines_test.c - lines of files, plain and compressed, hostile and not. */
#include <unit/base/scratch_files.h>

#include <base/file.h>
#include <base/text.h>
#include <zlib.h>
#include <zstd.h>

#include <data/byte_source.h>
#include <data/input_lines.h>

enum { LINE_BYTES = 1 << 20 };
static uint64_t window_bytes = UINT64_C(1) << 31;

/* Texts of the files joined with '|'; where a line is bad, its sentence behind '!'. */
static void read_all(const char *const *paths, uint32_t count, uint64_t line_bytes, text_t *out)
{
    input_texts_t *lines;
    assert_int_equal(input_texts_open(paths, count, "text", line_bytes, window_bytes, &lines),
                     LH_OK);
    for (;;) {
        const char *text;
        size_t length;
        bool end;
        const lh_status_t status = input_texts_next(lines, &text, &length, &end);
        if (status != LH_OK) text_printf(out, "!%d %s", status, fail_reason());
        if (status != LH_OK || end) break;
        text_append_n(out, text, length);
        text_append(out, "|");
    }
    input_texts_close(lines);
    assert_int_equal(text_status(out), LH_OK);
}

static void check(scratch_t *s, const char *content, size_t length, const char *expected)
{
    const char *path = scratch_write(s, "a.jsonl", content, length);
    text_t got = {0}, wanted = {0};
    read_all(&path, 1, 40, &got);
    for (const char *at = expected; *at != '\0'; at++) { /* '@' stands for the file's path */
        if (*at == '@')
            text_append(&wanted, path);
        else
            text_append_n(&wanted, at, 1);
    }
    assert_string_equal(got.data == NULL ? "" : got.data, wanted.data == NULL ? "" : wanted.data);
    text_free(&got);
    text_free(&wanted);
}

#define CHECK(content, expected) check(*state, content, sizeof(content) - 1, expected)

static void line_ends_blank_lines_and_marks_make_no_difference(void **state)
{
    CHECK("", "");
    CHECK("\n\n \t\r\n", "");
    CHECK("{\"text\":\"a\"}", "a|");
    CHECK("{\"text\":\"a\"}\n{\"text\":\"b\"}\n", "a|b|");
    CHECK("{\"text\":\"a\"}\r\n\r\n{\"text\":\"b\"}\r\n", "a|b|");
    CHECK("\xef\xbb\xbf{\"text\":\"a\"}\n", "a|");
    CHECK("\xef\xbb\xbf", "");
    CHECK("\n \n{\"text\":\"\"}\n", "|");
}

static void a_bad_line_is_named_by_file_and_line(void **state)
{
    CHECK("{\"text\":\"a\"}\n\n{\"a\":1}\n", "a|!-1 @:3: key 'text' is missing");
    CHECK("null\n", "!-1 @:1: null found, an object was expected");
    CHECK("\n\xef\xbb\xbf{\"text\":\"a\"}\n",
          "!-1 @:2: at byte 1, 0xef: UTF-8 byte order mark (BOM) is not supported");
    CHECK("{\"text\":\"a\"}\n{\"text\":\"b", "a|!-1 @:2: at byte 11: unexpected end of data");
    CHECK("\xff\xfe{\n", "!-1 @:1: at byte 1, 0xff: UTF-16 encoding is not supported");
}

static void a_line_of_exactly_the_limit_is_read_and_a_longer_one_is_not(void **state)
{
    /* 40 bytes and 41 bytes */
    CHECK("{\"text\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}\n", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaa|");
    CHECK("{\"text\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaa|");
    CHECK("{\"text\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}\n", "!-1 @:1: longer than 40 bytes");
    CHECK("{\"text\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}", "!-1 @:1: longer than 40 bytes");
}

static void a_huge_line_is_passed_over_without_being_held(void **state)
{
    scratch_t *s = *state;
    const size_t length = 24 << 20;
    char *bytes = mem_new(length);
    assert_non_null(bytes);
    memset(bytes, 'x', length);
    memcpy(bytes + length - 15, "\n{\"text\":\"end\"}", 15);
    const char *path = scratch_write(s, "huge.jsonl", bytes, length);
    mem_free(bytes);

    line_reader_t *reader;
    line_t line;
    bool end;
    assert_int_equal(line_reader_new(&path, 1, LINE_BYTES, window_bytes, &reader), LH_OK);
    assert_int_equal(line_reader_next(reader, &line, &end), LH_OK);
    assert_true(line.too_long);
    assert_int_equal(line.number, 1);
    assert_int_equal(line_reader_next(reader, &line, &end), LH_OK);
    assert_false(line.too_long);
    assert_int_equal(line.number, 2);
    assert_int_equal(line.length, 14);
    assert_int_equal(line_reader_next(reader, &line, &end), LH_OK);
    assert_true(end);
    assert_int_equal(line_reader_taken(reader), length);
    line_reader_free(reader);
}

static void make_gzip(scratch_t *s, const char *name, const char *text, int members)
{
    for (int i = 0; i < members; i++) {
        gzFile f = gzopen(scratch_path(s, name), i == 0 ? "wb" : "ab");
        assert_non_null(f);
        assert_int_equal(gzwrite(f, text, (unsigned)strlen(text)), strlen(text));
        assert_int_equal(gzclose(f), Z_OK);
    }
}

static size_t make_zstd(scratch_t *s, const char *name, const char *text, int frames)
{
    char out[4096];
    size_t at = 0;
    for (int i = 0; i < frames; i++) {
        const size_t made = ZSTD_compress(out + at, sizeof(out) - at, text, strlen(text), 3);
        assert_false(ZSTD_isError(made));
        at += made;
    }
    (void)scratch_write(s, name, out, at);
    return at;
}

static void compressed_files_read_as_plain_ones(void **state)
{
    scratch_t *s = *state;
    static const char *const names[] = {"a.jsonl.gz", "a.jsonl.zst", "no-suffix"};
    for (int i = 0; i < 3; i++) {
        if (i == 0)
            make_gzip(s, names[i], "{\"text\":\"a\"}\n{\"text\":\"b\"}\n", 2);
        else
            (void)make_zstd(s, names[i], "{\"text\":\"a\"}\n{\"text\":\"b\"}\n", 2);
        text_t got = {0};
        const char *path = scratch_path(s, names[i]);
        read_all(&path, 1, LINE_BYTES, &got);
        assert_string_equal(got.data, "a|b|a|b|");
        text_free(&got);
    }
}

static void check_bytes(scratch_t *s, const char *name, const void *bytes, size_t length,
                        const char *expected)
{
    text_t got = {0};
    const char *path = scratch_write(s, name, bytes, length);
    read_all(&path, 1, LINE_BYTES, &got);
    assert_string_equal(got.data == NULL ? "" : got.data, expected);
    text_free(&got);
}

/* As pzstd writes: each frame behind a skippable one, which holds the frame's length. */
static void frames_that_hold_no_data_are_passed_over(void **state)
{
    static const unsigned char skip[] = {0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 22, 0, 0, 0};
    unsigned char file[512];
    size_t length = 0;
    for (unsigned i = 0; i < 3; i++) {
        memcpy(file + length, skip, sizeof(skip));
        file[length] = (unsigned char)(skip[0] + 15 * (i % 2)); /* any of sixteen magic numbers */
        length += sizeof(skip);
        if (i == 2) break;
        const size_t made = ZSTD_compress(file + length, sizeof(file) - length,
                                          "{\"text\":\"a\"}\n", 13, 3);
        assert_false(ZSTD_isError(made));
        length += made;
    }
    check_bytes(*state, "p.jsonl.zst", file, length, "a|a|");
    check_bytes(*state, "p", file, length, "a|a|");
    check_bytes(*state, "p.jsonl.zst", file, sizeof(skip), "");
}

/* zstd --long=31: a frame with a window of 2 GiB, and one raw block. */
static void a_zstd_frame_may_look_back_as_far_as_the_limit_goes(void **state)
{
    static const unsigned char frame[] = "\x28\xb5\x2f\xfd\x00\xa8\x69\x00\x00{\"text\":\"a\"}\n";
    check_bytes(*state, "long.jsonl.zst", frame, sizeof(frame) - 1, "a|");

    text_t got = {0};
    const char *path = scratch_path(*state, "long.jsonl.zst");
    window_bytes -= 1;
    read_all(&path, 1, LINE_BYTES, &got);
    window_bytes += 1;
    assert_non_null(strstr(got.data, "long.jsonl.zst: zstd data with a window of more than "
                                     "2147483647 bytes, [limits] window_bytes"));
    text_free(&got);
}

/* As tapes and block devices leave it; members may follow. */
static void zeros_between_and_behind_gzip_members_are_padding(void **state)
{
    scratch_t *s = *state;
    static const char zeros[300000];
    size_t length;
    make_gzip(s, "m.gz", "{\"text\":\"a\"}\n", 1);
    char *member = scratch_read(scratch_path(s, "m.gz"), &length);
    char *file = mem_new(2 * length + sizeof(zeros) + 5);
    memcpy(file, member, length);
    check_bytes(s, "z.jsonl.gz", file, length + 1, "a|");
    check_bytes(s, "z.jsonl.gz", file, length + sizeof(zeros), "a|");
    memcpy(file + length + sizeof(zeros), member, length);
    check_bytes(s, "z.jsonl.gz", file, 2 * length + sizeof(zeros) + 5, "a|a|");
    mem_free(file);
    mem_free(member);
}

static void cut_file(scratch_t *s, const char *name, size_t length)
{
    assert_int_equal(truncate(scratch_path(s, name), (off_t)length), 0);
}

static void a_cut_or_damaged_stream_is_a_failure_not_an_end(void **state)
{
    scratch_t *s = *state;
    text_t got = {0};
    make_gzip(s, "cut.gz", "{\"text\":\"a\"}\n", 1);
    cut_file(s, "cut.gz", 20);
    const char *path = scratch_path(s, "cut.gz");
    read_all(&path, 1, LINE_BYTES, &got);
    assert_non_null(strstr(got.data, "cut.gz: ends at byte 20 inside a gzip stream"));
    assert_non_null(strstr(got.data, "!-13 "));
    text_free(&got);

    const size_t length = make_zstd(s, "cut.zst", "{\"text\":\"a\"}\n", 1);
    cut_file(s, "cut.zst", length - 2);
    path = scratch_path(s, "cut.zst");
    read_all(&path, 1, LINE_BYTES, &got);
    assert_non_null(strstr(got.data, "inside a zstd stream"));
    text_free(&got);

    make_gzip(s, "junk.gz", "{\"text\":\"a\"}\n", 1);
    FILE *f = fopen(scratch_path(s, "junk.gz"), "ab");
    assert_int_equal(fwrite("junk", 1, 4, f), 4);
    assert_int_equal(fclose(f), 0);
    path = scratch_path(s, "junk.gz");
    read_all(&path, 1, LINE_BYTES, &got);
    assert_non_null(strstr(got.data, "junk.gz: damaged gzip data before byte"));
    text_free(&got);
}

static void a_name_that_promises_another_content_is_refused(void **state)
{
    scratch_t *s = *state;
    text_t got = {0};
    const char *path = scratch_write(s, "plain.jsonl.gz", "{\"text\":\"a\"}\n", 13);
    read_all(&path, 1, LINE_BYTES, &got);
    assert_non_null(strstr(got.data, "the name ends in .gz, but the content is not gzip"));
    text_free(&got);
}

static void files_follow_one_another_and_each_counts_its_own_lines(void **state)
{
    scratch_t *s = *state;
    char a[512], b[512];
    (void)strcpy(a,
                 scratch_write(s, "1.jsonl", "{\"text\":\"a\"}", 12)); /* no newline at its end */
    (void)strcpy(b, scratch_write(s, "2.jsonl", "\xef\xbb\xbf{\"text\":\"b\"}\n7\n", 18));
    const char *const paths[] = {a, b};
    text_t got = {0}, wanted = {0};
    read_all(paths, 2, LINE_BYTES, &got);
    text_printf(&wanted, "a|b|!-1 %s:2: a number found, an object was expected", b);
    assert_string_equal(got.data, wanted.data);
    text_free(&got);
    text_free(&wanted);
}

static void the_digest_is_that_of_the_file_as_stored(void **state)
{
    scratch_t *s = *state;
    make_gzip(s, "d.gz", "{\"text\":\"a\"}\n", 1);
    const char *path = scratch_path(s, "d.gz");
    char expected[SHA256_TEXT];
    assert_int_equal(file_digest(path, expected), LH_OK);
    line_reader_t *reader;
    line_t line;
    bool end = false;
    assert_int_equal(line_reader_new(&path, 1, LINE_BYTES, window_bytes, &reader), LH_OK);
    while (!end)
        assert_int_equal(line_reader_next(reader, &line, &end), LH_OK);
    assert_string_equal(line_reader_files(reader)[0].sha256, expected);
    line_reader_free(reader);
}

static void a_missing_file_and_a_folder_are_sentences(void **state)
{
    scratch_t *s = *state;
    text_t got = {0};
    const char *path = scratch_path(s, "none.jsonl");
    read_all(&path, 1, LINE_BYTES, &got);
    assert_non_null(strstr(got.data, "none.jsonl: cannot open: No such file"));
    text_free(&got);
    path = s->folder;
    read_all(&path, 1, LINE_BYTES, &got);
    assert_non_null(strstr(got.data, "not a regular file"));
    text_free(&got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(line_ends_blank_lines_and_marks_make_no_difference),
        cmocka_unit_test(a_bad_line_is_named_by_file_and_line),
        cmocka_unit_test(a_line_of_exactly_the_limit_is_read_and_a_longer_one_is_not),
        cmocka_unit_test(a_huge_line_is_passed_over_without_being_held),
        cmocka_unit_test(compressed_files_read_as_plain_ones),
        cmocka_unit_test(frames_that_hold_no_data_are_passed_over),
        cmocka_unit_test(a_zstd_frame_may_look_back_as_far_as_the_limit_goes),
        cmocka_unit_test(zeros_between_and_behind_gzip_members_are_padding),
        cmocka_unit_test(a_cut_or_damaged_stream_is_a_failure_not_an_end),
        cmocka_unit_test(a_name_that_promises_another_content_is_refused),
        cmocka_unit_test(files_follow_one_another_and_each_counts_its_own_lines),
        cmocka_unit_test(the_digest_is_that_of_the_file_as_stored),
        cmocka_unit_test(a_missing_file_and_a_folder_are_sentences),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
