/* json_record_test.c - one line of JSON, hostile or not. */
#include <unit/data/scratch_files.h>

#include <data/json_record.h>

typedef struct good {
    const char *line, *text;
} good_t;

typedef struct bad {
    const char *line, *reason;
} bad_t;

static char reason[JSON_REASON];

static bool take(const char *line, size_t length, char *copy, char **text, size_t *text_length)
{
    memcpy(copy, line, length);
    return json_record_text(copy, length, "text", text, text_length, reason);
}

static void a_text_is_taken_out_and_decoded(void **state)
{
    (void)state;
    static const good_t rows[] = {
        {"{\"text\": \"abc\"}", "abc"},
        {"  {\"a\":[1,-2.5e+3,{\"text\":\"no\"}],\"text\":\"yes\"}  \r", "yes"},
        {"{\"text\": \"\"}", ""},
        {"{\"text\": \"\\\"\\\\\\/\\b\\f\\n\\r\\t\"}", "\"\\/\b\f\n\r\t"},
        {"{\"text\": \"\\u0041\\u00e9\\u20AC\\ud83d\\ude00!\"}", "A\u00e9\u20ac\U0001f600!"},
        {"{\"\\u0074ext\": \"key by escape\"}", "key by escape"},
        {"{\"text\": \"na\u00efve \u4e16\u754c \U0001f600\"}",
         "na\u00efve \u4e16\u754c \U0001f600"},
        {"{\"n\": NaN, \"i\": -Infinity, \"text\": \"x\", \"z\": null}", "x"},
        {"{\"text\":\"a long one without any escapes in it\",\"b\":true}",
         "a long one without any escapes in it"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char copy[256], *text;
        size_t length;
        if (!take(rows[i].line, strlen(rows[i].line), copy, &text, &length))
            FAIL_TEST("row %zu: %s\n", i, reason);
        assert_int_equal(length, strlen(rows[i].text));
        assert_memory_equal(text, rows[i].text, length);
    }
}

static void an_escaped_nul_is_a_character(void **state)
{
    (void)state;
    char copy[64], *text;
    size_t length;
    assert_true(take("{\"text\":\"a\\u0000b\"}", 19, copy, &text, &length));
    assert_int_equal(length, 3);
    assert_memory_equal(text, "a\0b", 3);
}

static void a_bad_line_is_refused_with_the_place_and_the_reason(void **state)
{
    (void)state;
    static const bad_t rows[] = {
        {"[1]", "at byte 1: '[' found, an object in braces is expected"},
        {"hello", "at byte 1: 'h' found, an object in braces is expected"},
        {"{}", "key 'text' is missing"},
        {"{\"Text\":\"a\"}", "key 'text' is missing"},
        {"{\"a\":{\"text\":\"inner\"}}", "key 'text' is missing"},
        {"{\"text\":5}", "at byte 9: key 'text' holds a number, a string is expected"},
        {"{\"text\":null}", "at byte 9: key 'text' holds null, a string is expected"},
        {"{\"text\":[\"a\"]}", "at byte 9: key 'text' holds an array, a string is expected"},
        {"{\"text\":{}}", "at byte 9: key 'text' holds an object, a string is expected"},
        {"{\"text\":true}", "at byte 9: key 'text' holds true or false, a string is expected"},
        {"{\"text\":\"a\",\"text\":\"b\"}", "at byte 19: key 'text' stands twice"},
        {"{\"text\":\"a\",\"te\\u0078t\":\"b\"}", "at byte 24: key 'text' stands twice"},
        {"{\"text\":\"a\"", "at byte 12: the line ends, ',' or '}' is expected"},
        {"{\"text\":\"abc", "at byte 13: the line ends inside a string"},
        {"{\"text\":\"abc\\", "at byte 14: the line ends inside a string"},
        {"{\"text\":\"a\"} x", "at byte 14: 'x' found, the end of the line is expected"},
        {"{\"text\":\"a\",}", "at byte 13: '}' found, a key in quotes is expected"},
        {"{\"text\" \"a\"}", "at byte 9: '\"' found, ':' is expected"},
        {"{\"text\":\"a\" \"b\":1}", "at byte 13: '\"' found, ',' or '}' is expected"},
        {"{\"n\":[1 2],\"text\":\"a\"}", "at byte 9: '2' found, ',' or ']' is expected"},
        {"{\"n\":[1,],\"text\":\"a\"}", "at byte 9: ']' found, a value is expected"},
        {"{\"n\":[1},\"text\":\"a\"}", "at byte 8: '}' found, ',' or ']' is expected"},
        {"{\"n\":01,\"text\":\"a\"}", "at byte 7: '1' found, ',' or '}' is expected"},
        {"{\"n\":1.,\"text\":\"a\"}", "at byte 8: ',' found, a digit is expected"},
        {"{\"n\":-,\"text\":\"a\"}", "at byte 7: ',' found, a digit is expected"},
        {"{\"n\":1e+,\"text\":\"a\"}", "at byte 9: ',' found, a digit is expected"},
        {"{\"n\":nul,\"text\":\"a\"}", "at byte 6: 'n' found, a value is expected"},
        {"{\"n\":,\"text\":\"a\"}", "at byte 6: ',' found, a value is expected"},
        {"{\"n\"", "at byte 5: the line ends, ':' is expected"},
        {"{\"n\":", "at byte 6: the line ends, a value is expected"},
        {"{\"text\":", "at byte 9: the line ends, a value is expected"},
        {"{\"text\":\"\\x41\"}",
         "at byte 11: 'x' found, one of \"\\/bfnrtu behind a backslash is expected"},
        {"{\"text\":\"\\u12g4\"}", "at byte 11: \\u needs four hexadecimal digits"},
        {"{\"text\":\"\\u12", "at byte 11: \\u needs four hexadecimal digits"},
        {"{\"text\":\"\\ud800\"}",
         "at byte 11: \\ud800 is the first half of a surrogate pair alone"},
        {"{\"text\":\"\\ud800\\u0041\"}",
         "at byte 11: \\ud800 is the first half of a surrogate pair alone"},
        {"{\"text\":\"\\udc00\"}",
         "at byte 11: \\udc00 is the second half of a surrogate pair alone"},
        {"{\"a\":\"\\udead\",\"text\":\"b\"}",
         "at byte 8: \\udead is the second half of a surrogate pair alone"},
        {"{\"text\":\"a\tb\"}", "at byte 11: control character 0x09 inside a string"},
        {"{\"text\":\"\x80\"}", "at byte 10: byte 0x80 is not UTF-8"},
        {"{\"text\":\"\xc0\xaf\"}", "at byte 10: byte 0xc0 is not UTF-8"},
        {"{\"text\":\"\xe0\x80\xaf\"}", "at byte 10: byte 0xe0 is not UTF-8"},
        {"{\"text\":\"\xed\xa0\x80\"}", "at byte 10: byte 0xed is not UTF-8"},
        {"{\"text\":\"\xf0\x8f\xbf\xbf\"}", "at byte 10: byte 0xf0 is not UTF-8"},
        {"{\"text\":\"\xf4\x90\x80\x80\"}", "at byte 10: byte 0xf4 is not UTF-8"},
        {"{\"text\":\"\xf5\x80\x80\x80\"}", "at byte 10: byte 0xf5 is not UTF-8"},
        {"{\"text\":\"12345678\xe2\x82\"}", "at byte 18: byte 0xe2 is not UTF-8"},
        {"\xef\xbb\xbf{\"text\":\"a\"}",
         "at byte 1: byte 0xef found, an object in braces is expected"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char copy[256], *text;
        size_t length;
        if (take(rows[i].line, strlen(rows[i].line), copy, &text, &length))
            FAIL_TEST("row %zu was taken: %s\n", i, rows[i].line);
        assert_string_equal(reason, rows[i].reason);
    }
}

static void a_raw_nul_byte_is_refused(void **state)
{
    (void)state;
    char copy[64], *text;
    size_t length;
    assert_false(take("{\"text\":\"a\0b\"}", 14, copy, &text, &length));
    assert_string_equal(reason, "at byte 11: NUL byte inside a string");
    assert_false(take("{\"text\":\"a\\\0b\"}", 15, copy, &text, &length));
    assert_false(take("\0{\"text\":\"a\"}", 13, copy, &text, &length));
    assert_string_equal(reason, "at byte 1: byte 0x00 found, an object in braces is expected");
}

static void sixty_four_levels_are_enough_and_one_more_is_refused(void **state)
{
    (void)state;
    char line[256], *text;
    size_t length;
    for (int levels = JSON_DEPTH; levels <= JSON_DEPTH + 1; levels++) {
        char *at = line + sprintf(line, "{\"d\":");
        for (int i = 1; i < levels; i++)
            *at++ = '[';
        for (int i = 1; i < levels; i++)
            *at++ = ']';
        at += sprintf(at, ",\"text\":\"x\"}");
        const bool taken = json_record_text(line, (size_t)(at - line), "text", &text, &length,
                                            reason);
        assert_int_equal(taken, levels == JSON_DEPTH);
    }
    assert_string_equal(reason, "at byte 69: nested deeper than 64 levels");
}

static void a_bomb_of_brackets_is_refused_at_once(void **state)
{
    (void)state;
    const size_t length = 4 << 20;
    char *line = mem_new(length), *text;
    size_t text_length;
    assert_non_null(line);
    memset(line, '[', length);
    memcpy(line, "{\"a\":", 5);
    assert_false(json_record_text(line, length, "text", &text, &text_length, reason));
    assert_string_equal(reason, "at byte 69: nested deeper than 64 levels");
    mem_free(line);
}

/* Every prefix of a good line is bad, and no byte behind it is touched (the sanitizer watches). */
static void a_line_cut_anywhere_is_refused(void **state)
{
    (void)state;
    static const char line[] = "{\"a\":[1.5e3,\"\\u00e9\",{\"b\":null}],\"text\":\"\\ud83d\\ude00 "
                               "\u20ac \\n\",\"c\":true}";
    for (size_t cut = 0; cut + 1 < sizeof(line); cut++) {
        char *copy = malloc(cut + 1), *text;
        size_t length;
        memcpy(copy, line, cut);
        char *exact = realloc(copy, cut == 0 ? 1 : cut);
        assert_false(json_record_text(exact, cut, "text", &text, &length, reason));
        free(exact);
    }
}

static void white_space_alone_is_a_blank_line(void **state)
{
    (void)state;
    assert_true(json_record_blank("", 0));
    assert_true(json_record_blank(" \t\r", 3));
    assert_false(json_record_blank("\0", 1));
    assert_false(json_record_blank(" {", 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_is_taken_out_and_decoded),
        cmocka_unit_test(an_escaped_nul_is_a_character),
        cmocka_unit_test(a_bad_line_is_refused_with_the_place_and_the_reason),
        cmocka_unit_test(a_raw_nul_byte_is_refused),
        cmocka_unit_test(sixty_four_levels_are_enough_and_one_more_is_refused),
        cmocka_unit_test(a_bomb_of_brackets_is_refused_at_once),
        cmocka_unit_test(a_line_cut_anywhere_is_refused),
        cmocka_unit_test(white_space_alone_is_a_blank_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
