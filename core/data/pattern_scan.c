/* pattern_scan.c - the GPT-2, Llama-3 and Qwen2 patterns by hand. A byte that is not UTF-8 counts
 * as a character that is neither letter, number nor space. */
#include <data/pattern_scan.h>

#include <base/text.h>

#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define AFTER_DIGITS "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define BEFORE_DIGITS "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"

static const char *const texts[PATTERN_COUNT] = {
    [PATTERN_GPT2] = CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    [PATTERN_LLAMA3] = BEFORE_DIGITS "\\p{N}{1,3}" AFTER_DIGITS,
    [PATTERN_QWEN2] = BEFORE_DIGITS "\\p{N}" AFTER_DIGITS,
};

enum { CLASS_KNOWN = CLASS_LETTER | CLASS_NUMBER | CLASS_SPACE };

typedef struct scan {
    const unicode_classes_t *classes;
    const unsigned char *end;
} scan_t;

const char *pattern_text(pattern_t pattern)
{
    return texts[pattern];
}

pattern_t pattern_find(const char *text, size_t length)
{
    for (pattern_t p = 0; p < PATTERN_COUNT; p++)
        if (strlen(texts[p]) == length && memcmp(texts[p], text, length) == 0) return p;
    return PATTERN_UNKNOWN;
}

/* The class of the character at p (letter, number, space or 0) and its size. */
static inline uint8_t look(const scan_t *s, const unsigned char *p, uint32_t *size)
{
    return class_of(s->classes, utf8_decode(p, s->end, size)) & CLASS_KNOWN;
}

/* The end of the run of characters of one class. */
static inline const unsigned char *run(const scan_t *s, const unsigned char *p, uint8_t class)
{
    while (p < s->end) {
        uint32_t size;
        if (look(s, p, &size) != class) break;
        p += size;
    }
    return p;
}

static inline uint8_t lower(uint8_t c, bool fold)
{
    return fold && c >= 'A' && c <= 'Z' ? c | 0x20 : c;
}

/* The length of 's, 't, 're, 've, 'm, 'll or 'd at p, which points at an apostrophe; 0: none. With
 * fold, capitals too, and the long s, which is an s without its case. */
static size_t contraction(const scan_t *s, const unsigned char *p, bool fold)
{
    const size_t left = (size_t)(s->end - p);
    if (left < 2) return 0;

    const uint8_t a = lower(p[1], fold);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if (left < 3) return 0;
    const uint8_t b = lower(p[2], fold);
    if ((a == 'r' || a == 'v') && b == 'e') return 3;
    if (a == 'l' && b == 'l') return 3;
    return fold && p[1] == 0xC5 && p[2] == 0xBF ? 3 : 0;
}

/* \s+(?!\S)|\s+ : a run of white space but for its last character, which goes with what follows;
 * all of it at the end of the text or if it is one character long. */
static const unsigned char *spaces(const scan_t *s, const unsigned char *p)
{
    const unsigned char *last = p, *at = p;
    uint32_t size;

    while (at < s->end && look(s, at, &size) == CLASS_SPACE) {
        last = at;
        at += size;
    }
    return at == s->end || last == p ? at : last;
}

static const unsigned char *next_gpt2(const scan_t *s, const unsigned char *p)
{
    if (*p == '\'') {
        const size_t length = contraction(s, p, false);
        if (length > 0) return p + length;
    }
    uint32_t size;
    uint8_t class = look(s, p, &size);
    if (*p == ' ' && p + 1 < s->end) {
        uint32_t next_size;
        const uint8_t next = look(s, p + 1, &next_size);
        if (next != CLASS_SPACE) {
            size += next_size;
            class = next;
        }
    }
    return class == CLASS_SPACE ? spaces(s, p) : run(s, p + size, class);
}

static bool is_line_end(unsigned char c)
{
    return c == '\r' || c == '\n';
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ */
static const unsigned char *spaces_by_line(const scan_t *s, const unsigned char *p)
{
    const unsigned char *line_end = NULL;
    uint32_t size;

    for (const unsigned char *at = p; at < s->end && look(s, at, &size) == CLASS_SPACE; at += size)
        if (is_line_end(*at)) line_end = at + 1;
    return line_end != NULL ? line_end : spaces(s, p);
}

static const unsigned char *digits(const scan_t *s, const unsigned char *p, int most)
{
    uint32_t size;
    for (int i = 0; i < most && p < s->end && look(s, p, &size) == CLASS_NUMBER; i++)
        p += size;
    return p;
}

static const unsigned char *next_llama3(const scan_t *s, const unsigned char *p, int most_digits)
{
    uint32_t size, next_size = 0;
    const uint8_t class = look(s, p, &size);

    if (class == CLASS_LETTER) return run(s, p + size, CLASS_LETTER);
    if (class == CLASS_NUMBER) return digits(s, p, most_digits);
    if (*p == '\'') {
        const size_t length = contraction(s, p, true);
        if (length > 0) return p + length;
    }
    const unsigned char *after = p + size;
    const uint8_t next = after < s->end ? look(s, after, &next_size) : CLASS_SPACE;
    if (next == CLASS_LETTER && !is_line_end(*p)) return run(s, after + next_size, CLASS_LETTER);

    if (class == CLASS_SPACE && (*p != ' ' || next != 0)) return spaces_by_line(s, p);
    after = run(s, after, 0);
    while (after < s->end && is_line_end(*after))
        after++;
    return after;
}

size_t pattern_next(pattern_t pattern, const unicode_classes_t *classes, const char *text,
                    size_t length, size_t from)
{
    const scan_t s = {classes, (const unsigned char *)text + length};
    const unsigned char *p = (const unsigned char *)text + from;

    const unsigned char *next = pattern == PATTERN_GPT2
                                    ? next_gpt2(&s, p)
                                    : next_llama3(&s, p, pattern == PATTERN_QWEN2 ? 1 : 3);
    return (size_t)(next - (const unsigned char *)text);
}
