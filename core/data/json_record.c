/* json_record.c - an iterative JSON scanner that keeps one string. */
#include <data/json_record.h>

#include <stdarg.h>
#include <stdio.h>

typedef struct scan {
    const char *begin;
    char *at, *end;
    uint64_t objects; /* bit d: level d + 1 is an object, else an array */
    uint32_t depth;
    char *reason;
} scan_t;

typedef struct span {
    char *text;
    size_t length;
} span_t;

LH_PRINTF(2, 3) static bool refuse(const scan_t *s, const char *fmt, ...)
{
    const int head = snprintf(s->reason, JSON_REASON,
                              "at byte %zu: ", (size_t)(s->at - s->begin) + 1);
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(s->reason + head, (size_t)(JSON_REASON - head), fmt, args);
    va_end(args);
    return false;
}

/* A byte as a person can read it: a terminal is not to be steered by a document. */
static bool refuse_byte(const scan_t *s, const char *expected)
{
    if (s->at == s->end) return refuse(s, "the line ends, %s is expected", expected);
    const unsigned char c = (unsigned char)*s->at;
    if (c > 0x20 && c < 0x7f) return refuse(s, "'%c' found, %s is expected", c, expected);
    return refuse(s, "byte 0x%02x found, %s is expected", c, expected);
}

enum { ONES = 0x01 };
#define EVERY(byte) (UINT64_MAX / 255 * (byte))

static uint64_t has_zero(uint64_t w)
{
    return (w - EVERY(ONES)) & ~w & EVERY(0x80);
}

/* Length of the UTF-8 sequence at p, 0 if it is not one (overlong, surrogate, too large, cut). */
static size_t utf8_length(const unsigned char *p, const unsigned char *end)
{
    static const struct {
        unsigned char low, high, second_low, second_high, length;
    } rows[] = {
        {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3},
        {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4},
        {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
    };
    if (p[0] < 0x80) return 1;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (p[0] < rows[i].low || p[0] > rows[i].high) continue;
        const size_t length = rows[i].length;
        if ((size_t)(end - p) < length) return 0;
        if (p[1] < rows[i].second_low || p[1] > rows[i].second_high) return 0;
        for (size_t k = 2; k < length; k++)
            if ((p[k] & 0xc0) != 0x80) return 0;
        return length;
    }
    return 0;
}

static bool check_utf8(scan_t *s)
{
    const unsigned char *p = (const unsigned char *)s->at, *end = (const unsigned char *)s->end;
    while (p < end) {
        uint64_t word;
        while (end - p >= 8 && (memcpy(&word, p, 8), (word & EVERY(0x80)) == 0))
            p += 8;
        if (p == end) break;
        const size_t length = utf8_length(p, end);
        if (length == 0) {
            s->at += p - (const unsigned char *)s->at;
            return refuse(s, "byte 0x%02x is not UTF-8", *p);
        }
        p += length;
    }
    return true;
}

static void skip_space(scan_t *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\r' || *s->at == '\n'))
        s->at++;
}

/* First byte at or behind p that is a quote, a backslash or a control character; end if none. */
static char *plain_end(char *p, const char *end)
{
    uint64_t w;
    while (end - p >= 8) {
        memcpy(&w, p, 8);
        const uint64_t control = (w - EVERY(0x20)) & ~w & EVERY(0x80);
        if ((control | has_zero(w ^ EVERY('"')) | has_zero(w ^ EVERY('\\'))) != 0) break;
        p += 8;
    }
    while (p < end && *p != '"' && *p != '\\' && (unsigned char)*p >= 0x20)
        p++;
    return p;
}

static bool hex4(const char *p, const char *end, uint32_t *out)
{
    if (end - p < 4) return false;
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned char c = (unsigned char)p[i], letter = c | 0x20;
        if (c >= '0' && c <= '9')
            value = value * 16 + (uint32_t)(c - '0');
        else if (letter >= 'a' && letter <= 'f')
            value = value * 16 + (uint32_t)(letter - 'a') + 10;
        else
            return false;
    }
    *out = value;
    return true;
}

static char *utf8_put(char *to, uint32_t code)
{
    if (code < 0x80) {
        *to++ = (char)code;
        return to;
    }
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const unsigned char heads[] = {0, 0xc0, 0xe0, 0xf0};
    *to++ = (char)(heads[more] | (code >> (6 * more)));
    for (int i = more - 1; i >= 0; i--)
        *to++ = (char)(0x80 | ((code >> (6 * i)) & 0x3f));
    return to;
}

/* at stands on the u of an escape; a pair of surrogates is read as one character. */
static bool unicode_escape(scan_t *s, char **to)
{
    uint32_t code, low;
    if (!hex4(s->at + 1, s->end, &code)) return refuse(s, "\\u needs four hexadecimal digits");
    if (code >= 0xdc00 && code <= 0xdfff)
        return refuse(s, "\\u%04x is the second half of a surrogate pair alone", code);
    size_t length = 5;
    if (code >= 0xd800 && code <= 0xdbff) {
        const bool pair = s->end - s->at >= 11 && s->at[5] == '\\' && s->at[6] == 'u' &&
                          hex4(s->at + 7, s->end, &low) && low >= 0xdc00 && low <= 0xdfff;
        if (!pair) return refuse(s, "\\u%04x is the first half of a surrogate pair alone", code);
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        length = 11;
    }
    *to = utf8_put(*to, code);
    s->at += length;
    return true;
}

/* at stands behind the backslash. */
static bool escape(scan_t *s, char **to)
{
    static const char from[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t";
    if (s->at == s->end) return refuse(s, "the line ends inside a string");
    if (*s->at == 'u') return unicode_escape(s, to);
    const char *found = *s->at == '\0' ? NULL : strchr(from, *s->at);
    if (found == NULL) return refuse_byte(s, "one of \"\\/bfnrtu behind a backslash");
    *(*to)++ = means[found - from];
    s->at++;
    return true;
}

/* at stands on the opening quote; decodes in place, which never grows. */
static bool string(scan_t *s, span_t *out)
{
    char *to = ++s->at;
    out->text = to;
    for (;;) {
        char *stop = plain_end(s->at, s->end);
        const size_t run = (size_t)(stop - s->at);
        if (to != s->at) memmove(to, s->at, run);
        to += run;
        s->at = stop;
        if (stop == s->end) return refuse(s, "the line ends inside a string");
        if (*stop == '"') break;
        if (*stop == '\0') return refuse(s, "NUL byte inside a string");
        if (*stop != '\\')
            return refuse(s, "control character 0x%02x inside a string", (unsigned char)*stop);
        s->at++;
        if (!escape(s, &to)) return false;
    }
    out->length = (size_t)(to - out->text);
    s->at++;
    return true;
}

static bool digits(scan_t *s)
{
    const char *first = s->at;
    while (s->at < s->end && *s->at >= '0' && *s->at <= '9')
        s->at++;
    return s->at > first ? true : refuse_byte(s, "a digit");
}

static bool word(scan_t *s, const char *text)
{
    const size_t length = strlen(text);
    if ((size_t)(s->end - s->at) < length || memcmp(s->at, text, length) != 0) return false;
    s->at += length;
    return true;
}

static bool number(scan_t *s)
{
    if (word(s, "-Infinity")) return true;
    if (*s->at == '-') s->at++;
    if (s->at < s->end && *s->at == '0')
        s->at++;
    else if (!digits(s))
        return false;
    if (s->at < s->end && *s->at == '.') {
        s->at++;
        if (!digits(s)) return false;
    }
    if (s->at < s->end && (*s->at == 'e' || *s->at == 'E')) {
        s->at++;
        if (s->at < s->end && (*s->at == '+' || *s->at == '-')) s->at++;
        return digits(s);
    }
    return true;
}

static const char *kind_of(char c)
{
    switch (c) {
    case '{': return "an object";
    case '[': return "an array";
    case '"': return "a string";
    case 't':
    case 'f': return "true or false";
    case 'n': return "null";
    default: return "a number";
    }
}

/* A value that holds no others. */
static bool scalar(scan_t *s)
{
    static const char *const words[] = {"true", "false", "null", "NaN", "Infinity"};
    span_t unused;
    if (*s->at == '"') return string(s, &unused);
    if (*s->at == '-' || (*s->at >= '0' && *s->at <= '9')) return number(s);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (word(s, words[i])) return true;
    return refuse_byte(s, "a value");
}

static bool enter(scan_t *s)
{
    if (s->depth == JSON_DEPTH) return refuse(s, "nested deeper than %d levels", JSON_DEPTH);
    const uint64_t bit = UINT64_C(1) << s->depth;
    s->objects = *s->at == '{' ? s->objects | bit : s->objects & ~bit;
    s->depth++;
    s->at++;
    return true;
}

static bool in_object(const scan_t *s)
{
    return (s->objects >> (s->depth - 1) & 1) != 0;
}

typedef struct wanted {
    const char *key;
    size_t key_length;
    span_t value;
    bool found;
} wanted_t;

/* "key": up to where the value begins. *here says that the value is the wanted one. */
static bool key(scan_t *s, const wanted_t *w, bool *here)
{
    span_t name;
    if (s->at == s->end || *s->at != '"') return refuse_byte(s, "a key in quotes");
    if (!string(s, &name)) return false;
    *here = s->depth == 1 && name.length == w->key_length &&
            memcmp(name.text, w->key, w->key_length) == 0;
    if (*here && w->found) return refuse(s, "key '%.64s' stands twice", w->key);
    skip_space(s);
    if (s->at == s->end || *s->at != ':') return refuse_byte(s, "':'");
    s->at++;
    skip_space(s);
    return true;
}

static bool wanted_value(scan_t *s, wanted_t *w)
{
    if (s->at == s->end) return refuse_byte(s, "a value");
    if (*s->at != '"')
        return refuse(s, "key '%.64s' holds %s, a string is expected", w->key, kind_of(*s->at));
    w->found = true;
    return string(s, &w->value);
}

/* Members and elements until the outermost object is closed. */
static bool contents(scan_t *s, wanted_t *w)
{
    bool first = true; /* nothing stands yet in the level that was entered */
    while (s->depth > 0) {
        skip_space(s);
        const char close = in_object(s) ? '}' : ']';
        if (s->at < s->end && *s->at == close) {
            s->at++;
            s->depth--;
            first = false;
            continue;
        }
        if (!first) {
            if (s->at == s->end || *s->at != ',')
                return refuse_byte(s, close == '}' ? "',' or '}'" : "',' or ']'");
            s->at++;
            skip_space(s);
        }
        bool here = false;
        if (in_object(s) && !key(s, w, &here)) return false;
        first = s->at < s->end && !here && (*s->at == '{' || *s->at == '[');
        if (s->at == s->end) return refuse_byte(s, "a value");
        if (!(here ? wanted_value(s, w) : first ? enter(s) : scalar(s))) return false;
    }
    return true;
}

bool json_record_blank(const char *line, size_t length)
{
    scan_t s = {.at = (char *)(uintptr_t)line, .end = (char *)(uintptr_t)line + length};
    skip_space(&s);
    return s.at == s.end;
}

bool json_record_text(char *line, size_t length, const char *wanted_key, char **text,
                      size_t *text_length, char reason[JSON_REASON])
{
    scan_t s = {.begin = line, .at = line, .end = line + length, .reason = reason};
    wanted_t w = {.key = wanted_key, .key_length = strlen(wanted_key)};
    if (!check_utf8(&s)) return false;
    skip_space(&s);
    if (s.at == s.end || *s.at != '{') return refuse_byte(&s, "an object in braces");
    if (!enter(&s) || !contents(&s, &w)) return false;
    skip_space(&s);
    if (s.at != s.end) return refuse_byte(&s, "the end of the line");
    if (!w.found) {
        (void)snprintf(reason, JSON_REASON, "key '%.64s' is missing", wanted_key);
        return false;
    }
    *text = w.value.text;
    *text_length = w.value.length;
    return true;
}
