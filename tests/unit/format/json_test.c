/* json_test.c - lines, documents and what is written, hostile or not. */
#include <unit/base/comma_locale.h>
#include <unit/base/scratch_files.h>

#include <jansson.h>

#include <base/text.h>
#include <format/json.h>

typedef struct good {
    const char *line, *text;
} good_t;

typedef struct bad {
    const char *line, *reason;
} bad_t;

static json_document_t *line_held;

static int forget_line(void **state)
{
    (void)state;
    json_free(line_held);
    return 0;
}

/* From memory that ends where the line does: the sanitizer sees a byte read behind it. */
static bool take(const char *line, size_t length, const char **text, size_t *text_length)
{
    char *exact = malloc(length == 0 ? 1 : length);
    memcpy(exact, line, length);
    const lh_status_t status = json_line_text(exact, length, "text", &line_held, text, text_length);
    free(exact);
    if (status != LH_OK) assert_int_equal(status, LH_INVALID);
    return status == LH_OK;
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
        const char *text;
        size_t length;
        if (!take(rows[i].line, strlen(rows[i].line), &text, &length))
            FAIL_TEST("row %zu: %s\n", i, fail_reason());
        assert_int_equal(length, strlen(rows[i].text));
        assert_memory_equal(text, rows[i].text, length);
    }
}

static void an_escaped_nul_is_a_character(void **state)
{
    (void)state;
    const char *text;
    size_t length;
    assert_true(take("{\"text\":\"a\\u0000b\"}", 19, &text, &length));
    assert_int_equal(length, 3);
    assert_memory_equal(text, "a\0b", 3);
}

static void a_bad_line_is_refused_with_the_place_and_the_reason(void **state)
{
    (void)state;
    static const bad_t rows[] = {
        {"[1]", "a list found, an object was expected"},
        {"hello", "at byte 1, 'h': unexpected character, expected a JSON value"},
        {"{}", "key 'text' is missing"},
        {"{\"Text\":\"a\"}", "key 'text' is missing"},
        {"{\"a\":{\"text\":\"inner\"}}", "key 'text' is missing"},
        {"{\"text\":5}", "key 'text' holds a number, a text was expected"},
        {"{\"text\":null}", "key 'text' holds null, a text was expected"},
        {"{\"text\":[\"a\"]}", "key 'text' holds a list, a text was expected"},
        {"{\"text\":{}}", "key 'text' holds an object, a text was expected"},
        {"{\"text\":true}", "key 'text' holds true or false, a text was expected"},
        {"{\"text\":\"a\",\"text\":\"b\"}", "key 'text' stands twice"},
        {"{\"text\":\"a\",\"te\\u0078t\":\"b\"}", "key 'text' stands twice"},
        {"{\"text\":\"a\"", "at byte 12: unexpected end of data"},
        {"{\"text\":\"abc", "at byte 13: unexpected end of data"},
        {"{\"text\":\"abc\\", "at byte 14: unexpected end of data"},
        {"{\"text\":\"a\"} x", "at byte 14, 'x': unexpected content after document"},
        {"{\"text\":\"a\",}", "at byte 12, ',': trailing comma is not allowed"},
        {"{\"text\" \"a\"}", "at byte 9, '\"': unexpected character, expected ':' after key"},
        {"{\"text\":\"a\" \"b\":1}", "at byte 13, '\"': unexpected character, expected ',' or '}'"},
        {"{\"n\":[1 2],\"text\":\"a\"}",
         "at byte 9, '2': unexpected character, expected ',' or ']'"},
        {"{\"n\":[1,],\"text\":\"a\"}", "at byte 8, ',': trailing comma is not allowed"},
        {"{\"n\":[1},\"text\":\"a\"}", "at byte 8, '}': unexpected character, expected ',' or ']'"},
        {"{\"n\":01,\"text\":\"a\"}", "at byte 6, '0': number with leading zero is not allowed"},
        {"{\"n\":1.,\"text\":\"a\"}", "at byte 8, ',': no digit after decimal point"},
        {"{\"n\":-,\"text\":\"a\"}", "at byte 7, ',': no digit after sign"},
        {"{\"n\":1e+,\"text\":\"a\"}", "at byte 10, '\"': no digit after exponent sign"},
        {"{\"n\":nul,\"text\":\"a\"}", "at byte 6, 'n': invalid literal, expected 'null'"},
        {"{\"n\":,\"text\":\"a\"}", "at byte 6, ',': unexpected character, expected a JSON value"},
        {"{\"n\"", "at byte 5: unexpected end of data"},
        {"{\"n\":", "at byte 6: unexpected end of data"},
        {"{\"text\":", "at byte 9: unexpected end of data"},
        {"{\"text\":\"\\x41\"}", "at byte 10, '\\': invalid escaped sequence in string"},
        {"{\"text\":\"\\u12g4\"}", "at byte 10, '\\': invalid escaped sequence in string"},
        {"{\"text\":\"\\u12", "at byte 14: unexpected end of data"},
        {"{\"text\":\"\\ud800\"}", "at byte 10, '\\': no low surrogate in string"},
        {"{\"text\":\"\\ud800\\u0041\"}", "at byte 10, '\\': invalid low surrogate in string"},
        {"{\"text\":\"\\udc00\"}", "at byte 10, '\\': invalid high surrogate in string"},
        {"{\"a\":\"\\udead\",\"text\":\"b\"}", "at byte 7, '\\': invalid high surrogate in string"},
        {"{\"text\":\"a\tb\"}", "at byte 11, 0x09: unexpected control character in string"},
        {"{\"text\":\"\x80\"}", "at byte 10, 0x80: invalid UTF-8 encoding in string"},
        {"{\"text\":\"\xc0\xaf\"}", "at byte 10, 0xc0: invalid UTF-8 encoding in string"},
        {"{\"text\":\"\xe0\x80\xaf\"}", "at byte 10, 0xe0: invalid UTF-8 encoding in string"},
        {"{\"text\":\"\xed\xa0\x80\"}", "at byte 10, 0xed: invalid UTF-8 encoding in string"},
        {"{\"text\":\"\xf0\x8f\xbf\xbf\"}", "at byte 10, 0xf0: invalid UTF-8 encoding in string"},
        {"{\"text\":\"\xf4\x90\x80\x80\"}", "at byte 10, 0xf4: invalid UTF-8 encoding in string"},
        {"{\"text\":\"\xf5\x80\x80\x80\"}", "at byte 10, 0xf5: invalid UTF-8 encoding in string"},
        {"{\"text\":\"12345678\xe2\x82\"}", "at byte 18, 0xe2: invalid UTF-8 encoding in string"},
        {"\xef\xbb\xbf{\"text\":\"a\"}",
         "at byte 1, 0xef: UTF-8 byte order mark (BOM) is not supported"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *text;
        size_t length;
        if (take(rows[i].line, strlen(rows[i].line), &text, &length))
            FAIL_TEST("row %zu was taken: %s\n", i, rows[i].line);
        assert_string_equal(fail_reason(), rows[i].reason);
    }
}

static void a_raw_nul_byte_is_refused(void **state)
{
    (void)state;
    const char *text;
    size_t length;
    assert_false(take("{\"text\":\"a\0b\"}", 14, &text, &length));
    assert_string_equal(fail_reason(), "at byte 11, 0x00: unexpected control character in string");
    assert_false(take("{\"text\":\"a\\\0b\"}", 15, &text, &length));
    assert_false(take("\0{\"text\":\"a\"}", 13, &text, &length));
    assert_string_equal(fail_reason(),
                        "at byte 1, 0x00: unexpected character, expected a JSON value");
}

static void sixty_four_levels_are_enough_and_one_more_is_refused(void **state)
{
    (void)state;
    char line[256];
    const char *text;
    size_t length;
    for (int levels = JSON_DEPTH; levels <= JSON_DEPTH + 1; levels++) {
        char *at = line + sprintf(line, "{\"d\":");
        for (int i = 1; i < levels; i++)
            *at++ = '[';
        for (int i = 1; i < levels; i++)
            *at++ = ']';
        at += sprintf(at, ",\"text\":\"x\"}");
        const bool taken = take(line, (size_t)(at - line), &text, &length);
        assert_int_equal(taken, levels == JSON_DEPTH);
    }
    assert_string_equal(fail_reason(), "at byte 70, ']': nested deeper than 64 levels");
}

static void a_bomb_of_brackets_is_refused_at_once(void **state)
{
    (void)state;
    const size_t length = 4 << 20;
    char *line = mem_new(length);
    const char *text;
    size_t text_length;
    assert_non_null(line);
    memset(line, '[', length);
    memcpy(line, "{\"a\":", 5);
    assert_false(take(line, length, &text, &text_length));
    assert_string_equal(fail_reason(), "at byte 70, '[': nested deeper than 64 levels");
    mem_free(line);
}

/* Every prefix of a good line is bad, and no byte behind it is touched (the sanitizer watches). */
static void a_line_cut_anywhere_is_refused(void **state)
{
    (void)state;
    static const char line[] = "{\"a\":[1.5e3,\"\\u00e9\",{\"b\":null}],\"text\":\"\\ud83d\\ude00 "
                               "\u20ac \\n\",\"c\":true}";
    for (size_t cut = 0; cut + 1 < sizeof(line); cut++) {
        const char *text;
        size_t length;
        assert_false(take(line, cut, &text, &length));
    }
}

static void white_space_alone_is_a_blank_line(void **state)
{
    (void)state;
    assert_true(json_line_blank("", 0));
    assert_true(json_line_blank(" \t\r", 3));
    assert_false(json_line_blank("\0", 1));
    assert_false(json_line_blank(" {", 2));
}

static lh_status_t parse(const char *text, uint64_t most, json_document_t **out)
{
    return json_parse("x.json", text, strlen(text), most, out);
}

static void what_readers_of_files_trip_over_is_refused(void **state)
{
    (void)state;
    static const bad_t rows[] = {
        {"", "x.json: not JSON: nothing stands there"},
        {"[]", "x.json: [] found, a JSON object was expected"},
        {"3", "x.json: 3 found, a JSON object was expected"},
        {"{\"a\":1,\"b\":{\"c\":2,\"d\":3,\"c\":4}}", "x.json: key 'c' stands twice"},
        {"{\"a\":1,\"\\u0061\":1}", "x.json: key 'a' stands twice"},
        {"{\"a\":\"b\\u0000\"}", "x.json: \\u0000 is not allowed in its texts"},
        {"{\"a\\u0000\":1}", "x.json: \\u0000 is not allowed in its texts"},
        {"{\"a\":NaN}",
         "x.json: not JSON, line 1 column 6, 'N': unexpected character, expected a JSON value"},
        {"{\"a\":1e999}",
         "x.json: not JSON, line 1 column 6, '1': number is infinity when parsed as double"},
        {"{\"a\":1}\n{",
         "x.json: not JSON, line 2 column 1, '{': unexpected content after document"},
        {"{\"a\":[1,2,3,4,5,6,7,8,9]}", "x.json: more than 9 values in its JSON"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_document_t *d = NULL;
        if (parse(rows[i].line, 9, &d) != LH_INVALID) FAIL_TEST("taken: %s\n", rows[i].line);
        assert_string_equal(fail_reason(), rows[i].reason);
    }
}

/* Zeros behind one another: a value every two bytes. */
static void too_many_values_are_refused_before_they_are_held(void **state)
{
    (void)state;
    enum { BYTES = 8 << 20, MOST = 1000 };
    char *text = mem_new(BYTES);
    json_document_t *d = NULL;
    memcpy(text, "{\"a\":[", 6);
    for (size_t i = 6; i < BYTES; i++)
        text[i] = i % 2 == 0 ? '0' : ',';
    memcpy(text + BYTES - 4, "0]} ", 4);
    const uint64_t before = mem_count();
    assert_int_equal(json_parse("x.json", text, BYTES, MOST, &d), LH_INVALID);
    assert_string_equal(fail_reason(), "x.json: more than 1000 values in its JSON");
    assert_true(mem_count() - before <= 3); /* the text, its first values, and no more */
    assert_int_equal(json_parse("x.json", text, BYTES, UINT64_MAX, &d), LH_OK);
    assert_int_equal(json_size(json_member(json_root(d), "a")), (BYTES - 8) / 2);
    json_free(d);
    mem_free(text);
}

static void whole_numbers_are_exact(void **state)
{
    (void)state;
    static const struct {
        const char *digits;
        bool whole;
        int64_t value;
    } rows[] = {{"0", true, 0},
                {"-0", true, 0},
                {"9007199254740993", true, 9007199254740993},
                {"9223372036854775807", true, INT64_MAX},
                {"-9223372036854775808", true, INT64_MIN},
                {"9223372036854775808", false, 0},
                {"18446744073709551616", false, 0},
                {"1.0", false, 0},
                {"1e3", false, 0}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char text[64];
        uint64_t count;
        json_document_t *d;
        (void)snprintf(text, sizeof(text), "{\"n\": %s}", rows[i].digits);
        assert_int_equal(parse(text, 10, &d), LH_OK);
        const json_value_t *n = json_member(json_root(d), "n");
        assert_true(json_is_numeric(n));
        assert_int_equal(json_is_whole(n), rows[i].whole);
        assert_true(json_whole(n) == rows[i].value);
        assert_int_equal(json_count(n, &count), rows[i].whole && rows[i].value >= 0);
        json_free(d);
    }
}

static void questions_take_what_is_not_there(void **state)
{
    (void)state;
    json_document_t *d;
    char found[JSON_FOUND];
    assert_int_equal(parse("{\"list\": [[1], {\"b\": 2}, 3], \"nil\": null}", 99, &d), LH_OK);
    const json_value_t *list = json_member(json_root(d), "list");
    size_t seen = 0;
    for (json_walk_t w = json_walk(list); json_next(&w); seen++) {
        assert_ptr_equal(w.value, json_item(list, seen));
        assert_int_equal(w.index, seen);
        assert_null(w.key);
    }
    assert_int_equal(seen, 3);
    assert_int_equal(json_whole(json_member(json_item(list, 1), "b")), 2);
    assert_null(json_item(list, 3));
    assert_null(json_member(list, "b"));
    assert_null(json_text(list));
    assert_true(json_is_nil(json_member(json_root(d), "nil")));
    assert_false(json_is_nil(NULL));
    assert_int_equal(json_size(NULL), 0);
    for (json_walk_t w = json_walk(NULL); json_next(&w);)
        FAIL_TEST("%s", "nothing has a member\n");
    json_found(list, found);
    assert_string_equal(found, "[[1],{\"b\":2},3]");
    json_found(NULL, found);
    assert_string_equal(found, "nothing");
    json_free(d);
    json_free(NULL);
}

static void write_all_kinds(json_writer_t *w)
{
    json_open(w, NULL, '{');
    json_put_text(w, "t\"\\\n\x01", "na\u00efve \xff\U0001f600");
    json_put_text_n(w, "n", "a\0b", 3);
    json_put_u64(w, "u", UINT64_MAX);
    json_put_real(w, "r", 1e-5);
    json_put_real(w, "nan", __builtin_nan(""));
    json_open(w, "l", '[');
    json_put_flag(w, NULL, true);
    json_open(w, NULL, '{');
    json_close(w);
    json_open(w, NULL, '[');
    json_close(w);
    json_put_as_is(w, NULL, "[1]");
    json_close(w);
    json_put_nil(w, "z");
    json_close(w);
}

static void all_styles_say_the_same_to_another_reader(void **state)
{
    (void)state;
    static const int styles[] = {JSON_TIGHT, JSON_SPACED, 1, 2};
    for (size_t i = 0; i < 4; i++) {
        text_t text = {0};
        json_writer_t w = {.to = &text, .style = styles[i]};
        write_all_kinds(&w);
        /* jansson holds no number of 64 bits without a sign */
        char *big = strstr(text.data, "18446744073709551615");
        memcpy(big, "17", 2);
        memset(big + 2, ' ', 18);
        json_t *root = json_loadb(text.data, text.length, JSON_ALLOW_NUL, NULL);
        assert_non_null(root);
        assert_string_equal(json_string_value(json_object_get(root, "t\"\\\n\x01")),
                            "na\u00efve \ufffd\U0001f600");
        assert_int_equal(json_string_length(json_object_get(root, "n")), 3);
        assert_true(json_real_value(json_object_get(root, "r")) == 1e-5);
        assert_true(json_is_null(json_object_get(root, "nan")));
        assert_int_equal(json_array_size(json_object_get(root, "l")), 4);
        assert_int_equal(json_object_size(root), 7);
        json_decref(root);
        text_free(&text);
    }
}

static void the_style_says_what_stands_between(void **state)
{
    (void)state;
    static const json_layout_t lines = {"\n", ",\n"};
    static const struct {
        int style;
        const json_layout_t *layout;
        const char *text;
    } rows[] = {{JSON_TIGHT, NULL, "{\"a\":1,\"b\":[2,3],\"c\":{}}"},
                {JSON_SPACED, NULL, "{\"a\": 1, \"b\": [2, 3], \"c\": {}}"},
                {1, NULL, "{\n \"a\": 1,\n \"b\": [\n  2,\n  3\n ],\n \"c\": {}\n}"},
                {JSON_SPACED, &lines, "{\n\"a\": 1,\n\"b\": [2, 3],\n\"c\": {}}"}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        text_t text = {0};
        json_writer_t w = {.to = &text, .style = rows[i].style};
        json_open_as(&w, NULL, '{', rows[i].layout);
        json_put_u64(&w, "a", 1);
        json_open(&w, "b", '[');
        json_put_u64(&w, NULL, 2);
        json_put_u64(&w, NULL, 3);
        json_close(&w);
        json_open(&w, "c", '{');
        json_close(&w);
        json_close(&w);
        assert_string_equal(text.data, rows[i].text);
        text_free(&text);
    }
}

/* What was read and is written again is the same text. */
static void a_value_comes_back_as_it_stood(void **state)
{
    (void)state;
    static const char text[] = "{\"a\":[1,-2,18446744073709551615,0.1,1e-05,10000.0,true,false,"
                               "null,\"\\u0001\\\"\"],\"b\":{}}";
    json_document_t *d;
    text_t again = {0};
    json_writer_t w = {.to = &again, .style = JSON_TIGHT};
    assert_int_equal(parse(text, 99, &d), LH_OK);
    json_put_value(&w, NULL, json_root(d));
    assert_string_equal(again.data, text);
    text_free(&again);
    json_free(d);
}

/* `longhaul status --json` puts a file's document, which anybody may have written, in its own. */
static void the_deepest_document_has_room_in_another(void **state)
{
    (void)state;
    char text[256], *at = text + sprintf(text, "{\"d\":");
    for (int i = 1; i < JSON_DEPTH; i++)
        *at++ = '[';
    for (int i = 1; i < JSON_DEPTH; i++)
        *at++ = ']';
    (void)sprintf(at, "}");
    json_document_t *d;
    text_t again = {0};
    json_writer_t w = {.to = &again, .style = JSON_TIGHT};
    assert_int_equal(parse(text, 99, &d), LH_OK);
    json_open(&w, NULL, '{');
    json_put_value(&w, "run", json_root(d));
    json_close(&w);
    assert_memory_equal(again.data, "{\"run\":", 7);
    assert_memory_equal(again.data + 7, text, strlen(text));
    text_free(&again);
    json_free(d);
}

static void reals_are_written_as_people_do(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } reals[] = {
        {10000, "10000.0"},     {1e-5, "1e-05"}, {0.1, "0.1"},     {0, "0.0"},
        {500000.5, "500000.5"}, {1e16, "1e+16"}, {-1.25, "-1.25"}, {1.0 / 3, "0.3333333333333333"}};
    for (size_t i = 0; i < sizeof(reals) / sizeof(reals[0]); i++) {
        char text[JSON_REAL_TEXT];
        comma_locale = i % 2 == 0;
        json_real_text(reals[i].value, text);
        comma_locale = false;
        assert_string_equal(text, reals[i].text);
    }
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
        cmocka_unit_test(what_readers_of_files_trip_over_is_refused),
        cmocka_unit_test(too_many_values_are_refused_before_they_are_held),
        cmocka_unit_test(whole_numbers_are_exact),
        cmocka_unit_test(questions_take_what_is_not_there),
        cmocka_unit_test(all_styles_say_the_same_to_another_reader),
        cmocka_unit_test(the_style_says_what_stands_between),
        cmocka_unit_test(a_value_comes_back_as_it_stood),
        cmocka_unit_test(the_deepest_document_has_room_in_another),
        cmocka_unit_test(reals_are_written_as_people_do),
    };
    return cmocka_run_group_tests(tests, NULL, forget_line);
}
