/* pattern_fuzz.c - the hand-made scanners of the known patterns against PCRE2 with the same
 * patterns. The first byte chooses one. */
#include <fuzz/fuzz.h>

#include <string.h>

#include <tokenizer/pretokenize.h>
#include <tokenizer/unicode_patterns.h>

static unicode_classes_t classes;
static pattern_regex_t *regexes[PATTERN_COUNT];
static pattern_match_t *matches[PATTERN_COUNT];

static pattern_regex_t *unassigned;
static pattern_match_t *unassigned_match;

/* PCRE2 and utf8proc may be of different versions of Unicode: what PCRE2 does not know yet is a
 * letter to the other, and no fault of the scanner. */
static bool knows_all(const fuzz_part_t *text)
{
    static const char pattern[] = "\\p{Cn}";
    size_t start, end;
    bool found;
    if (unassigned == NULL) {
        FUZZ_ASSERT(pattern_regex_new("fuzz", pattern, sizeof(pattern) - 1, &unassigned) == LH_OK);
        FUZZ_ASSERT(pattern_match_new(unassigned, &unassigned_match) == LH_OK);
    }
    FUZZ_ASSERT(pattern_regex_find(unassigned, unassigned_match, text->bytes, text->size, 0, false,
                                   &found, &start, &end) == LH_OK);
    return !found;
}

static void prepare(pattern_t p)
{
    const char *text = pattern_text(p);
    if (regexes[p] != NULL) return;
    unicode_classes_fill(&classes);
    FUZZ_ASSERT(pattern_find(text, strlen(text)) == p);
    FUZZ_ASSERT(pattern_regex_new("fuzz", text, strlen(text), &regexes[p]) == LH_OK);
    FUZZ_ASSERT(pattern_match_new(regexes[p], &matches[p]) == LH_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size == 0 || size > 4096) return 0;
    const pattern_t p = (pattern_t)(bytes[0] % PATTERN_COUNT);
    fuzz_part_t text;
    prepare(p);
    fuzz_cut(bytes + 1, size - 1, 0, &text, 1);
    /* PCRE2 skips what is no UTF-8. */
    const bool valid = text_utf8_valid(text.bytes, text.size) && knows_all(&text);
    for (size_t at = 0; at < text.size;) {
        const size_t next = pattern_next(p, &classes, text.bytes, text.size, at);
        FUZZ_ASSERT(next > at && next <= text.size);
        if (valid) {
            size_t start, end;
            bool found;
            FUZZ_ASSERT(pattern_regex_find(regexes[p], matches[p], text.bytes, text.size, at, false,
                                           &found, &start, &end) == LH_OK);
            FUZZ_ASSERT(found && start == at && end == next);
        }
        at = next;
    }
    fuzz_parts_free(&text, 1);
    return 0;
}
