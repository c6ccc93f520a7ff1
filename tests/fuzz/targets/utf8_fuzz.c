/* utf8_fuzz.c - UTF-8 against a decoder made of ranges, and the Unicode forms: each is reached at
 * the first try. The first byte chooses the form. */
#include <fuzz/fuzz.h>

#include <string.h>

#include <base/memory.h>
#include <tokenizer/normalize.h>
#include <tokenizer/unicode_patterns.h>

/* Table 3-7 of the Unicode standard, written down anew. */
static size_t well_formed(const uint8_t *p, size_t left)
{
#define IN(i, low, high) (left > (i) && p[i] >= (low) && p[i] <= (high))
    if (p[0] <= 0x7F) return 1;
    if (p[0] >= 0xC2 && p[0] <= 0xDF) return IN(1, 0x80, 0xBF) ? 2 : 0;
    if (p[0] == 0xE0) return IN(1, 0xA0, 0xBF) && IN(2, 0x80, 0xBF) ? 3 : 0;
    if (p[0] == 0xED) return IN(1, 0x80, 0x9F) && IN(2, 0x80, 0xBF) ? 3 : 0;
    if (p[0] >= 0xE1 && p[0] <= 0xEF) return IN(1, 0x80, 0xBF) && IN(2, 0x80, 0xBF) ? 3 : 0;
    if (p[0] < 0xF0 || p[0] > 0xF4) return 0;
    const uint8_t low = p[0] == 0xF0 ? 0x90 : 0x80, high = p[0] == 0xF4 ? 0x8F : 0xBF;
    return IN(1, low, high) && IN(2, 0x80, 0xBF) && IN(3, 0x80, 0xBF) ? 4 : 0;
#undef IN
}

static bool check_utf8(const uint8_t *bytes, size_t size)
{
    bool valid = true;
    for (size_t at = 0; at < size;) {
        uint32_t length;
        const uint32_t c = text_utf8_decode(bytes + at, bytes + size, &length);
        const size_t wanted = well_formed(bytes + at, size - at);
        FUZZ_ASSERT((c == TEXT_UTF8_BAD) == (wanted == 0));
        FUZZ_ASSERT(length == (wanted == 0 ? 1 : wanted));
        valid &= wanted != 0;
        at += length;
    }
    FUZZ_ASSERT(text_utf8_valid((const char *)bytes, size) == valid);
    return valid;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size == 0) return 0;
    const uint8_t form = bytes[0];
    fuzz_part_t text;
    fuzz_cut(bytes + 1, size - 1, 0, &text, 1);
    const bool valid = check_utf8((const uint8_t *)text.bytes, text.size);

    normalizer_t n = {0};
    normalize_scratch_t s;
    const char *once, *twice;
    size_t once_size, twice_size;
    FUZZ_ASSERT(normalizer_add(&n, (normalize_step_t){.by = NORMALIZE_UNICODE,
                                                      .compose = (form & 1) != 0,
                                                      .compatible = (form & 2) != 0}) == LH_OK);
    FUZZ_ASSERT(normalize_scratch_open(&n, &s) == LH_OK);
    if (fuzz_accepted(normalize(&n, &s, text.bytes, text.size, &once, &once_size))) {
        FUZZ_ASSERT(valid ? text_utf8_valid(once, once_size) : once_size == text.size);
        char *copy = mem_text_n(once, once_size);
        if (fuzz_accepted(normalize(&n, &s, copy, once_size, &twice, &twice_size)))
            FUZZ_ASSERT(twice_size == once_size && memcmp(copy, twice, twice_size) == 0);
        mem_free(copy);
    }
    normalize_scratch_close(&s);
    normalizer_free(&n);
    fuzz_parts_free(&text, 1);
    return 0;
}
