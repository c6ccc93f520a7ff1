/* pattern_fuzz.c - the hand-made scanners of the known patterns against PCRE2 with the same
 * patterns. The first byte chooses one. */
#include <fuzz/fuzz.h>

#include <string.h>

#include <data/pattern_scan.h>
#include <data/regex.h>

static unicode_classes_t classes;
static regex_t *regexes[PATTERN_COUNT];
static regex_match_t *matches[PATTERN_COUNT];

static void prepare(pattern_t p)
{
    const char *text = pattern_text(p);
    if (regexes[p] != NULL) return;
    unicode_classes_fill(&classes);
    FUZZ_ASSERT(pattern_find(text, strlen(text)) == p);
    FUZZ_ASSERT(regex_new("fuzz", text, strlen(text), &regexes[p]) == LH_OK);
    FUZZ_ASSERT(regex_match_new(regexes[p], &matches[p]) == LH_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size == 0 || size > 4096) return 0;
    const pattern_t p = (pattern_t)(bytes[0] % PATTERN_COUNT);
    fuzz_part_t text;
    prepare(p);
    fuzz_cut(bytes + 1, size - 1, 0, &text, 1);
    const bool valid = utf8_valid(text.bytes, text.size); /* PCRE2 skips what is not */
    for (size_t at = 0; at < text.size;) {
        const size_t next = pattern_next(p, &classes, text.bytes, text.size, at);
        FUZZ_ASSERT(next > at && next <= text.size);
        if (valid) {
            size_t start, end;
            FUZZ_ASSERT(regex_find(regexes[p], matches[p], text.bytes, text.size, at, &start,
                                   &end) == LH_OK);
            FUZZ_ASSERT(start == at && end == next);
        }
        at = next;
    }
    fuzz_parts_free(&text, 1);
    return 0;
}
