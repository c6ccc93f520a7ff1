/* pretokenize_test.c - the hand-made scanners cut text like the patterns they stand for. */
#include <unit/base/scratch_files.h>

#include <base/philox.h>
#include <base/text.h>
#include <tokenizer/pretokenize.h>

enum { ROUNDS = 4000, CHARACTERS = 40 };

static uint64_t draw(uint64_t *counter, uint64_t below)
{
    return (uint64_t)(philox_uniform(9, 2, (*counter)++) * (double)below);
}

/* Without the blocks that newer versions of Unicode add to: the two libraries may know different
 * ones. */
static uint32_t random_character(uint64_t *counter)
{
    static const uint32_t often[] = {
        ' ',    ' ',    '\n', '\r', '\t',  '\'',   's',   'S',    't',    'r',     'e',    'L',
        'l',    'v',    'D',  'm',  '1',   '2',    '!',   '_',    0x17F,  0xA0,    0x3000, 0x180E,
        0x200B, 0x2028, 0x85, 0xBD, 0x660, 0x2160, 0x301, 0x3042, 0x4E00, 0x1F600, 0xFFFD, 0x0B};
    static const uint32_t limits[] = {0x80, 0x250, 0x2100, 0x10000, 0x11000};

    if (draw(counter, 3) > 0) return often[draw(counter, sizeof(often) / sizeof(*often))];
    const uint32_t c = (uint32_t)draw(counter, limits[draw(counter, 5)]);
    return c >= 0xD800 && c <= 0xDFFF ? 'x' : c;
}

static void cut(const pretokenizer_t *p, pretokenize_scratch_t *s, const char *text, size_t length,
                const struct span_list **out)
{
    if (pretokenize(p, s, true, &text, &length, out) != LH_OK) FAIL_TEST("%s\n", fail_reason());
}

static void scanners_cut_random_unicode_as_pcre2_does(void **state)
{
    uint64_t counter = 0;
    (void)state;

    for (pattern_t pattern = 0; pattern < PATTERN_COUNT; pattern++) {
        const char *text = pattern_text(pattern);
        pretokenizer_t by_hand = {0}, by_regex = {0};
        pretokenize_scratch_t hand, regex;
        split_step_t step = {.by = SPLIT_REGEX};
        unicode_classes_fill(&by_hand.classes);
        assert_int_equal(pattern_regex_new("test", text, strlen(text), &step.regex), LH_OK);
        assert_int_equal(pretokenizer_add(&by_regex, step), LH_OK);
        assert_int_equal(
            pretokenizer_add(&by_hand, (split_step_t){.by = SPLIT_PATTERN, .pattern = pattern}),
            LH_OK);
        assert_int_equal(pretokenize_scratch_open(&by_hand, &hand), LH_OK);
        assert_int_equal(pretokenize_scratch_open(&by_regex, &regex), LH_OK);

        for (int round = 0; round < ROUNDS; round++) {
            char bytes[CHARACTERS * 4];
            size_t length = 0;
            const uint64_t characters = draw(&counter, CHARACTERS);
            for (uint64_t i = 0; i < characters; i++)
                length += text_utf8_encode(random_character(&counter), bytes + length);
            const struct span_list *a, *b;
            cut(&by_hand, &hand, bytes, length, &a);
            cut(&by_regex, &regex, bytes, length, &b);
            size_t k = 0;
            while (k < a->count && k < b->count && a->spans[k].end == b->spans[k].end)
                k++;
            if (k < a->count || k < b->count)
                FAIL_TEST("pattern %d, piece %zu: by hand %u to %u, by PCRE2 to %u: '%.*s'\n",
                          (int)pattern, k, a->spans[k].start, a->spans[k].end, b->spans[k].end,
                          (int)(length - a->spans[k].start), bytes + a->spans[k].start);
        }
        pretokenize_scratch_close(&hand);
        pretokenize_scratch_close(&regex);
        pretokenizer_free(&by_hand);
        pretokenizer_free(&by_regex);
    }
}

static void every_pattern_is_found_by_its_text(void **state)
{
    (void)state;
    for (pattern_t pattern = 0; pattern < PATTERN_COUNT; pattern++)
        assert_int_equal(pattern_find(pattern_text(pattern), strlen(pattern_text(pattern))),
                         pattern);
    assert_int_equal(pattern_find("\\s+", 3), PATTERN_UNKNOWN);
}

/* What a step, which is given away, makes of a text: pieces with a | behind each. */
static void check_pieces(split_step_t step, const char *text, const char *pieces)
{
    pretokenizer_t p = {0};
    pretokenize_scratch_t s;
    const struct span_list *list;
    text_t made = {0};
    assert_int_equal(pretokenizer_add(&p, step), LH_OK);
    assert_int_equal(pretokenize_scratch_open(&p, &s), LH_OK);
    cut(&p, &s, text, strlen(text), &list);
    for (size_t k = 0; k < list->count; k++) {
        const text_span_t span = list->spans[k];
        text_append_n(&made, text + span.start, span.end - span.start);
        text_append(&made, "|");
    }
    assert_string_equal(made.data, pieces);
    text_free(&made);
    pretokenize_scratch_close(&s);
    pretokenizer_free(&p);
}

/* Expected pieces as Hugging Face's documentation of SplitDelimiterBehavior shows them. */
static void each_behaviour_cuts_as_documented(void **state)
{
    static const struct {
        split_behaviour_t behaviour;
        const char *pieces;
    } rows[] = {
        {SPLIT_REMOVED, "the|final|countdown|"},
        {SPLIT_ISOLATED, "the|-|final|-|-|countdown|"},
        {SPLIT_WITH_PREVIOUS, "the-|final-|-|countdown|"},
        {SPLIT_WITH_NEXT, "the|-final|-|-countdown|"},
        {SPLIT_CONTIGUOUS, "the|-|final|--|countdown|"},
    };
    static const char text[] = "the-final--countdown";
    (void)state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        const split_step_t step = {.by = SPLIT_STRING,
                                   .behaviour = rows[i].behaviour,
                                   .string = mem_text("-"),
                                   .string_length = 1};
        check_pieces(step, text, rows[i].pieces);
    }
}

static void a_pattern_that_explodes_is_stopped(void **state)
{
    static const char pattern[] = "(a+)+[bc]";
    char text[4000];
    pattern_regex_t *regex;
    pattern_match_t *match;
    size_t start, end;
    bool found;
    (void)state;

    memset(text, 'a', sizeof(text));
    assert_int_equal(pattern_regex_new("test", pattern, strlen(pattern), &regex), LH_OK);
    assert_int_equal(pattern_match_new(regex, &match), LH_OK);
    assert_int_equal(
        pattern_regex_find(regex, match, text, sizeof(text), 0, false, &found, &start, &end),
        LH_INVALID);
    assert_non_null(strstr(fail_reason(), "gave up at byte 0"));
    pattern_match_free(match);
    pattern_regex_free(regex);
}

/* Expected pieces are those of Hugging Face's tokenizers 0.23.3, whose patterns are Oniguruma's. */
static void patterns_are_read_as_oniguruma_reads_them(void **state)
{
    static const struct {
        const char *pattern;
        split_behaviour_t behaviour;
        bool invert;
        const char *text, *pieces;
    } rows[] = {
        {"(?=(\\d{3})+(?!\\d))", SPLIT_ISOLATED, false, "12345678", "12|345|678|"},
        {"(?=[A-Z])", SPLIT_WITH_PREVIOUS, false, "aBcD", "a|Bc|D|"},
        {"(?=[A-Z])", SPLIT_WITH_NEXT, false, "ABc", "A|Bc|"},
        {"(?=[A-Z])", SPLIT_CONTIGUOUS, true, "ABc", "A|Bc|"},
        {"(?=[A-Z])", SPLIT_WITH_PREVIOUS, true, "ABc", "A|Bc|"},
        {"x*", SPLIT_ISOLATED, false, "axxb", "a|xx|b|"},
        {"x*|b", SPLIT_REMOVED, false, "axxb", "a|b|"},
        {"\\w+", SPLIT_ISOLATED, false, "e\u0301\u0940x \u00b2\u2460",
         "e\u0301\u0940x| |\u00b2|\u2460|"},
        {"[\\w']+", SPLIT_REMOVED, false, "e\u0301'x!\u00b2", "!\u00b2|"},
        {"\\b", SPLIT_ISOLATED, false, "ab e\u0301", "ab| |e\u0301|"},
        {"\\h+", SPLIT_ISOLATED, false, "xyfaz", "xy|fa|z|"},
        {"\\v", SPLIT_REMOVED, false, "a\nb\vc", "a\nb|c|"},
        {"[[:punct:]]", SPLIT_REMOVED, false, "a\u2581b", "a|b|"},
        {"a{,2}b", SPLIT_REMOVED, false, "xaaby", "x|y|"},
        {"(?m)a.", SPLIT_REMOVED, false, "xa\ny", "x|y|"},
        {"[]a]+", SPLIT_REMOVED, false, "xa]y", "x|y|"},
    };
    static const char *const refused[] = {"[\\p{L}&&[^a]]", "[a[bc]]", "[^\\W_]", "a{2}+", "a{2}?"};
    (void)state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        split_step_t step = {
            .by = SPLIT_REGEX, .behaviour = rows[i].behaviour, .invert = rows[i].invert};
        assert_int_equal(
            pattern_regex_new("test", rows[i].pattern, strlen(rows[i].pattern), &step.regex),
            LH_OK);
        check_pieces(step, rows[i].text, rows[i].pieces);
    }
    for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++) {
        pattern_regex_t *regex;
        assert_int_equal(pattern_regex_new("test", refused[i], strlen(refused[i]), &regex),
                         LH_UNSUPPORTED);
        assert_non_null(strstr(fail_reason(), "which is not supported"));
    }
}

static void a_text_that_spans_cannot_hold_is_refused(void **state)
{
    const pretokenizer_t none = {0};
    const struct span_list *list;
    pretokenize_scratch_t scratch;
    (void)state;

    assert_int_equal(pretokenize_scratch_open(&none, &scratch), LH_OK);
    const char *text = "";
    size_t length = (size_t)UINT32_MAX + 1;
    assert_int_equal(pretokenize(&none, &scratch, true, &text, &length, &list), LH_INVALID);
    assert_non_null(strstr(fail_reason(), "4294967296 bytes behind its normalizer"));
    pretokenize_scratch_close(&scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scanners_cut_random_unicode_as_pcre2_does),
        cmocka_unit_test(every_pattern_is_found_by_its_text),
        cmocka_unit_test(each_behaviour_cuts_as_documented),
        cmocka_unit_test(a_pattern_that_explodes_is_stopped),
        cmocka_unit_test(patterns_are_read_as_oniguruma_reads_them),
        cmocka_unit_test(a_text_that_spans_cannot_hold_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
