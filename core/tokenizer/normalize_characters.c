/* normalize_characters.c - what becomes of each character, by Unicode's categories.
 *
 * A rule maps a character to none, one, two or three. Where the reference goes by tables of an older
 * Unicode than utf8proc's, characters that were assigned since may differ. */
#include <tokenizer/normalize_characters.h>

#include <utf8proc.h>

#include <tokenizer/unicode_patterns.h>

enum { MADE_MOST = 3 };

static bool is_in(uint32_t c, uint32_t first, uint32_t last)
{
    return c >= first && c <= last;
}

/* The blocks that BERT cuts into single characters. */
static bool is_chinese(uint32_t c)
{
    return is_in(c, 0x4E00, 0x9FFF) || is_in(c, 0x3400, 0x4DBF) || is_in(c, 0x20000, 0x2A6DF) ||
           is_in(c, 0x2A700, 0x2B73F) || is_in(c, 0x2B740, 0x2B81F) || is_in(c, 0x2B920, 0x2CEAF) ||
           is_in(c, 0xF900, 0xFAFF) || is_in(c, 0x2F800, 0x2FA1F);
}

static utf8proc_category_t category_of(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c);
}

static bool is_mark(uint32_t c)
{
    const utf8proc_category_t category = category_of(c);
    return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
           category == UTF8PROC_CATEGORY_ME;
}

/* What BERT takes for control characters: categories Cc, Cf and Co. */
static bool is_control(uint32_t c)
{
    const utf8proc_category_t category = category_of(c);
    return category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF ||
           category == UTF8PROC_CATEGORY_CO;
}

/* White space becomes a space, what cannot be seen goes. */
static size_t map_clean(uint32_t c, uint32_t *made)
{
    const bool space = c == '\t' || c == '\n' || c == '\r';
    if (c == 0 || c == 0xFFFD || (!space && is_control(c))) return 0;
    *made = space || unicode_class(c) == CLASS_SPACE ? ' ' : c;
    return 1;
}

/* The rules of neural machine translation, which sentencepiece's charsmaps have as well. */
static size_t map_nmt(uint32_t c, uint32_t *made)
{
    static const uint32_t spaces[] = {0x09,   0x0A,   0x0C,   0x0D,   0x1680,
                                      0x2028, 0x2029, 0x2581, 0xFEFF, 0xFFFD};
    if (is_in(c, 0x01, 0x08) || c == 0x0B || is_in(c, 0x0E, 0x1F) || c == 0x7F || c == 0x8F ||
        c == 0x9F)
        return 0;
    *made = is_in(c, 0x200B, 0x200F) ? ' ' : c;
    for (size_t i = 0; i < sizeof(spaces) / sizeof(*spaces); i++)
        if (c == spaces[i]) *made = ' ';
    return 1;
}

/* U+0130, the capital I with a dot, is the one whose small form is two characters. */
static size_t map_lower(uint32_t c, uint32_t *made)
{
    made[0] = c == 0x130 ? 'i' : (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
    made[1] = 0x307;
    return c == 0x130 ? 2 : 1;
}

/* How many characters become of one. */
static size_t map_character(character_rule_t rule, uint32_t c, uint32_t made[MADE_MOST])
{
    made[0] = c;
    switch (rule) {
    case RULE_LOWER: return map_lower(c, made);
    case RULE_NO_MARKS: return is_mark(c) ? 0 : 1;
    case RULE_NO_ACCENTS: return category_of(c) == UTF8PROC_CATEGORY_MN ? 0 : 1;
    case RULE_NMT: return map_nmt(c, made);
    case RULE_CLEAN: return map_clean(c, made);
    case RULE_CHINESE:
        if (!is_chinese(c)) return 1;
        made[0] = made[2] = ' ';
        made[1] = c;
        return 3;
    }
    return 1;
}

/* Appends the printable ASCII that the text starts with, of which no rule but RULE_LOWER changes
 * anything; returns its length. */
static size_t append_printable(character_rule_t rule, const char *text, size_t length, text_t *out)
{
    size_t size = 0;
    while (size < length && text[size] >= 0x20 && text[size] < 0x7F)
        size++;
    if (size == 0) return 0;
    const size_t start = out->length;
    text_append_n(out, text, size);
    if (rule != RULE_LOWER || out->failed) return size;
    for (size_t i = start; i < out->length; i++) {
        const char c = out->data[i];
        out->data[i] = (char)(c | (c >= 'A' && c <= 'Z' ? 0x20 : 0));
    }
    return size;
}

lh_status_t normalize_characters(character_rule_t rule, const char *text, size_t length,
                                 text_t *out)
{
    const unsigned char *p = (const unsigned char *)text, *end = p + length;

    while (p < end) {
        uint32_t size, made[MADE_MOST];
        p += append_printable(rule, (const char *)p, (size_t)(end - p), out);
        if (p == end) break;
        const uint32_t c = text_utf8_decode(p, end, &size);
        if (c == TEXT_UTF8_BAD) {
            text_append_n(out, (const char *)p, size);
            p += size;
            continue;
        }
        const size_t count = map_character(rule, c, made);
        for (size_t i = 0; i < count; i++) {
            char bytes[4];
            text_append_n(out, bytes, text_utf8_encode(made[i], bytes));
        }
        p += size;
    }
    return text_status(out);
}

bool normalize_changes_ascii(character_rule_t rule, const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (rule == RULE_LOWER && c >= 'A' && c <= 'Z') return true;
        if ((rule == RULE_NMT || rule == RULE_CLEAN) && (c < 0x20 || c == 0x7F)) return true;
    }
    return false;
}

bool normalize_drops(character_rule_t rule, const char *text, size_t length)
{
    lh_assert(length > 0);
    const unsigned char *p = (const unsigned char *)text;
    uint32_t size, made[MADE_MOST];
    const uint32_t c = text_utf8_decode(p, p + length, &size);
    return c != TEXT_UTF8_BAD && map_character(rule, c, made) == 0;
}

static bool is_space_at(const char *text, size_t length, size_t at, uint32_t *size)
{
    const unsigned char *p = (const unsigned char *)text;
    return unicode_class(text_utf8_decode(p + at, p + length, size)) == CLASS_SPACE;
}

bool normalize_starts_with_space(const char *text, size_t length)
{
    uint32_t size;
    lh_assert(length > 0);
    return is_space_at(text, length, 0, &size);
}

lh_status_t normalize_strip(bool left, bool right, const char *text, size_t length, text_t *out)
{
    uint32_t size;
    size_t start = 0;

    while (left && start < length && is_space_at(text, length, start, &size))
        start += size;
    while (right && length > start) {
        size_t at = length - 1;
        while (at > start && text_utf8_follows(text[at]))
            at--;
        if (!is_space_at(text, length, at, &size) || at + size != length) break;
        length = at;
    }
    text_append_n(out, text + start, length - start);
    return text_status(out);
}
