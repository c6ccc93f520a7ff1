/* utf8_test.c - what is UTF-8 and what it says, with the C library's iconv as the judge. */
#include <unit/base/scratch_files.h>

#include <iconv.h>

#include <base/text.h>

static iconv_t to_characters, to_bytes;

static int open_judges(void **state)
{
    (void)state;
    to_characters = iconv_open("UTF-32LE", "UTF-8");
    to_bytes = iconv_open("UTF-8", "UTF-32LE");
    return to_characters == (iconv_t)-1 || to_bytes == (iconv_t)-1;
}

static int close_judges(void **state)
{
    (void)state;
    return iconv_close(to_characters) + iconv_close(to_bytes);
}

/* Bytes of the first character by the judge; 0: it is none. */
static size_t judged(const char *bytes, size_t length, uint32_t *character)
{
    for (size_t size = 1; size <= length && size <= 4; size++) {
        char *from = (char *)(uintptr_t)bytes, *to = (char *)character;
        size_t from_left = size, to_left = 4;
        (void)iconv(to_characters, NULL, NULL, NULL, NULL);
        if (iconv(to_characters, &from, &from_left, &to, &to_left) == 0) return size;
    }
    return 0;
}

static void every_character_is_written_and_read_as_the_c_library_does(void **state)
{
    (void)state;
    for (uint32_t c = 1; c < TEXT_UTF8_BAD; c++) {
        if (c >= 0xD800 && c <= 0xDFFF) continue;
        char ours[5] = "", theirs[4];
        char *from = (char *)&c, *to = theirs;
        size_t from_left = 4, to_left = 4;
        uint32_t length;
        assert_int_equal(iconv(to_bytes, &from, &from_left, &to, &to_left), 0);
        const size_t bytes = text_utf8_encode(c, ours);
        assert_int_equal(bytes, 4 - to_left);
        assert_memory_equal(ours, theirs, bytes);
        const unsigned char *p = (const unsigned char *)ours;
        assert_int_equal(text_utf8_decode(p, p + bytes, &length), c);
        assert_int_equal(length, bytes);
        assert_int_equal(text_utf8_character(ours), bytes);
        assert_int_equal(text_utf8_count(ours, bytes), 1);
        for (size_t i = 0; i < bytes; i++)
            assert_int_equal(text_utf8_follows(ours[i]), i > 0);
        for (size_t cut = 1; cut < bytes; cut++)
            assert_int_equal(text_utf8_decode(p, p + cut, &length), TEXT_UTF8_BAD);
    }
}

/* All first and second bytes, behind them those at the edges of what may follow. */
static void what_is_no_utf8_is_known_as_such(void **state)
{
    (void)state;
    static const unsigned char edges[] = {0x7F, 0x80, 0xBF, 0xC0};
    for (uint32_t i = 0; i < 256u * 256 * 16; i++) {
        const unsigned char text[] = {(unsigned char)(i >> 12), (unsigned char)(i >> 4),
                                      edges[i >> 2 & 3], edges[i & 3], 0};
        uint32_t wanted = TEXT_UTF8_BAD, length;
        if (text[0] == 0) continue;
        const size_t bytes = judged((const char *)text, 4, &wanted);
        if (bytes == 0) wanted = TEXT_UTF8_BAD;
        if (text_utf8_decode(text, text + 4, &length) != wanted)
            FAIL_TEST("%02x %02x %02x %02x\n", text[0], text[1], text[2], text[3]);
        assert_int_equal(length, bytes == 0 ? 1 : bytes);
        if (text[1] != 0) assert_int_equal(text_utf8_character((const char *)text), bytes);
    }
}

static void text_is_good_up_to_its_first_bad_byte(void **state)
{
    (void)state;
    static const char text[] = "0123456789 na\u00efve \u4e16\U0001f600 0123456789";
    const size_t length = sizeof(text) - 1;
    char copy[sizeof(text)];
    assert_true(text_utf8_valid(text, length));
    assert_int_equal(text_utf8_prefix("", 0), 0);
    for (size_t at = 0; at < length; at++) {
        if (((unsigned char)text[at] & 0xC0) == 0x80) continue;
        memcpy(copy, text, sizeof(copy));
        copy[at] = (char)0xFF;
        assert_int_equal(text_utf8_prefix(copy, length), at);
        assert_false(text_utf8_valid(copy, length));
    }
    assert_int_equal(text_utf8_ascii(text, length), 13);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_character_is_written_and_read_as_the_c_library_does),
        cmocka_unit_test(what_is_no_utf8_is_known_as_such),
        cmocka_unit_test(text_is_good_up_to_its_first_bad_byte),
    };
    return cmocka_run_group_tests(tests, open_judges, close_judges);
}
