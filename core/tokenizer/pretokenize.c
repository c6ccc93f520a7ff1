/* pretokenize.c - each step cuts every span of the step before it. */
#include <tokenizer/pretokenize.h>

#include <base/memory.h>
#include <base/text.h>

typedef struct text_cut {
    uint32_t start, end;
    bool match;
} text_cut_t;

static void step_free(split_step_t *step)
{
    regex_free(step->regex);
    mem_free(step->string);
}

lh_status_t pretokenizer_add(pretokenizer_t *p, split_step_t step)
{
    split_step_t *steps = mem_grow(p->steps, &p->room, p->count + 1, sizeof(*steps));
    if (steps == NULL) {
        step_free(&step);
        return LH_NO_MEMORY;
    }
    p->steps = steps;
    steps[p->count++] = step;
    return LH_OK;
}

void pretokenizer_free(pretokenizer_t *p)
{
    for (size_t i = 0; i < p->count; i++)
        step_free(&p->steps[i]);
    mem_free(p->steps);
    *p = (pretokenizer_t){0};
}

lh_status_t pretokenize_scratch_open(const pretokenizer_t *p, pretokenize_scratch_t *s)
{
    *s = (pretokenize_scratch_t){0};
    s->matches = mem_array(p->count, sizeof(*s->matches));
    if (s->matches == NULL) return LH_NO_MEMORY;
    for (; s->match_count < p->count; s->match_count++) {
        const regex_t *regex = p->steps[s->match_count].regex;
        if (regex == NULL) continue;
        const lh_status_t status = regex_match_new(regex, &s->matches[s->match_count]);
        if (status != LH_OK) {
            pretokenize_scratch_close(s);
            return status;
        }
    }
    return LH_OK;
}

void pretokenize_scratch_close(pretokenize_scratch_t *s)
{
    for (size_t i = 0; i < s->match_count; i++)
        regex_match_free(s->matches[i]);
    mem_free(s->matches);
    mem_free(s->cuts);
    mem_free(s->lists[0].spans);
    mem_free(s->lists[1].spans);
    *s = (pretokenize_scratch_t){0};
}

static lh_status_t append_span(struct span_list *list, size_t start, size_t end)
{
    if (start == end) return LH_OK;
    if (list->count == list->room) {
        text_span_t *spans = mem_grow(list->spans, &list->room, list->count + 1, sizeof(*spans));
        if (spans == NULL) return LH_NO_MEMORY;
        list->spans = spans;
    }
    list->spans[list->count++] = (text_span_t){(uint32_t)start, (uint32_t)end};
    return LH_OK;
}

static lh_status_t append_cut(pretokenize_scratch_t *s, const split_step_t *step, size_t start,
                              size_t end, bool match)
{
    if (start == end) return LH_OK;
    if (s->cut_count == s->cut_room) {
        text_cut_t *cuts = mem_grow(s->cuts, &s->cut_room, s->cut_count + 1, sizeof(*cuts));
        if (cuts == NULL) return LH_NO_MEMORY;
        s->cuts = cuts;
    }
    s->cuts[s->cut_count++] = (text_cut_t){(uint32_t)start, (uint32_t)end, match != step->invert};
    return LH_OK;
}

/* All pieces of a known pattern are matches: nothing lies between. */
static lh_status_t cut_by_pattern(const pretokenizer_t *p, const split_step_t *step,
                                  pretokenize_scratch_t *s, const char *text, text_span_t span)
{
    lh_status_t status = LH_OK;
    for (size_t at = span.start; at < span.end && status == LH_OK;) {
        const size_t next = pattern_next(step->pattern, &p->classes, text, span.end, at);
        status = append_cut(s, step, at, next, true);
        at = next;
    }
    return status;
}

static lh_status_t cut_by_regex(const split_step_t *step, regex_match_t *match,
                                pretokenize_scratch_t *s, const char *text, text_span_t span)
{
    lh_assert(match != NULL);
    /* the pattern sees the span as a text of its own, as lookahead and ^ must */
    const size_t length = span.end - span.start;

    for (size_t at = 0; at < length;) {
        size_t start, end;
        lh_status_t status = regex_find(step->regex, match, text + span.start, length, at, &start,
                                        &end);
        if (status == LH_OK)
            status = append_cut(s, step, span.start + at, span.start + start, false);
        if (status == LH_OK)
            status = append_cut(s, step, span.start + start, span.start + end, true);
        if (status != LH_OK) return status;
        at = end;
    }
    return LH_OK;
}

static lh_status_t cut_by_string(const split_step_t *step, pretokenize_scratch_t *s,
                                 const char *text, text_span_t span)
{
    lh_assert(step->string_length > 0);
    for (size_t at = span.start; at < span.end;) {
        const char *found = memmem(text + at, span.end - at, step->string, step->string_length);
        const size_t start = found == NULL ? span.end : (size_t)(found - text);
        const size_t end = found == NULL ? span.end : start + step->string_length;
        lh_status_t status = append_cut(s, step, at, start, false);
        if (status == LH_OK) status = append_cut(s, step, start, end, true);
        if (status != LH_OK) return status;
        at = end;
    }
    return LH_OK;
}

static bool is_byte_digit(unsigned char byte)
{
    /* the characters that stand for these bytes are numbers: ² ³ ¹ ¼ ½ ¾ */
    static const unsigned char others[] = {0xB2, 0xB3, 0xB9, 0xBC, 0xBD, 0xBE};
    return (byte >= '0' && byte <= '9') || memchr(others, byte, sizeof(others)) != NULL;
}

static bool are_three_digits(const char *text, size_t left)
{
    if (left < 3) return false;
    for (size_t i = 0; i < 3; i++)
        if (text[i] < '0' || text[i] > '9') return false;
    return true;
}

/* Whether what starts at p is a match, and its size: one character, one byte or three digits. */
static bool is_match(const pretokenizer_t *p, split_by_t by, const char *at, const char *end,
                     uint32_t *size)
{
    *size = 1;
    if (by == SPLIT_BYTE_DIGITS) return is_byte_digit((unsigned char)*at);
    if (by == SPLIT_THREE_DIGITS) {
        const bool three = are_three_digits(at, (size_t)(end - at));
        *size = three ? 3 : 1;
        return three;
    }
    const uint32_t c = utf8_decode((const unsigned char *)at, (const unsigned char *)end, size);
    return (class_of(&p->classes, c) & (by == SPLIT_DIGITS ? CLASS_NUMBER : CLASS_PUNCTUATION)) !=
           0;
}

static lh_status_t cut_by_class(const pretokenizer_t *p, const split_step_t *step,
                                pretokenize_scratch_t *s, const char *text, text_span_t span)
{
    size_t between = span.start;

    for (size_t at = span.start; at < span.end;) {
        uint32_t size;
        if (!is_match(p, step->by, text + at, text + span.end, &size)) {
            at += size;
            continue;
        }
        lh_status_t status = append_cut(s, step, between, at, false);
        if (status == LH_OK) status = append_cut(s, step, at, at + size, true);
        if (status != LH_OK) return status;
        at += size;
        between = at;
    }
    return append_cut(s, step, between, span.end, false);
}

static lh_status_t pretokenize_cut(const pretokenizer_t *p, size_t index, pretokenize_scratch_t *s,
                                   const char *text, text_span_t span)
{
    lh_assert(index < s->match_count);
    const split_step_t *step = &p->steps[index];

    s->cut_count = 0;
    switch (step->by) {
    case SPLIT_PATTERN: return cut_by_pattern(p, step, s, text, span);
    case SPLIT_REGEX: return cut_by_regex(step, s->matches[index], s, text, span);
    case SPLIT_STRING: return cut_by_string(step, s, text, span);
    default: return cut_by_class(p, step, s, text, span);
    }
}

static lh_status_t join_next(const pretokenize_scratch_t *s, struct span_list *out)
{
    size_t i = 0;
    while (i < s->cut_count) {
        /* a match goes with what follows, unless that is a match as well */
        const bool joins = s->cuts[i].match && i + 1 < s->cut_count && !s->cuts[i + 1].match;
        const lh_status_t status = append_span(out, s->cuts[i].start,
                                               s->cuts[joins ? i + 1 : i].end);
        if (status != LH_OK) return status;
        i += joins ? 2 : 1;
    }
    return LH_OK;
}

static lh_status_t pretokenize_keep(const split_step_t *step, const pretokenize_scratch_t *s,
                                    struct span_list *out)
{
    if (step->behaviour == SPLIT_WITH_NEXT) return join_next(s, out);

    bool previous_match = false;
    for (size_t i = 0; i < s->cut_count; i++) {
        const text_cut_t *c = &s->cuts[i];
        bool joins = false;
        if (step->behaviour == SPLIT_WITH_PREVIOUS) joins = c->match && !previous_match;
        if (step->behaviour == SPLIT_CONTIGUOUS) joins = c->match == previous_match;
        previous_match = c->match;

        if (step->behaviour == SPLIT_REMOVED && c->match) continue;
        if (joins && i > 0) {
            lh_assert(out->count > 0);
            out->spans[out->count - 1].end = c->end;
            continue;
        }
        const lh_status_t status = append_span(out, c->start, c->end);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

/* The usual case without a list of cuts between. */
static lh_status_t isolate_pattern(const pretokenizer_t *p, const split_step_t *step,
                                   const char *text, text_span_t span, struct span_list *out)
{
    for (size_t at = span.start; at < span.end;) {
        const size_t next = pattern_next(step->pattern, &p->classes, text, span.end, at);
        const lh_status_t status = append_span(out, at, next);
        if (status != LH_OK) return status;
        at = next;
    }
    return LH_OK;
}

lh_status_t pretokenize(const pretokenizer_t *p, pretokenize_scratch_t *s, const char *text,
                        size_t length, const struct span_list **out)
{
    lh_assert(s->match_count == p->count);
    struct span_list *from = &s->lists[0], *to = &s->lists[1];
    /* A tokenizer's normalizer decides how much longer a text is here than where it was read. */
    if (length > UINT32_MAX)
        return fail(LH_INVALID, "a text of %zu bytes behind its normalizer, at most %u are cut",
                    length, UINT32_MAX);

    from->count = 0;
    lh_status_t status = append_span(from, 0, length);
    for (size_t i = 0; i < p->count && status == LH_OK; i++) {
        const split_step_t *step = &p->steps[i];
        const bool simple = step->by == SPLIT_PATTERN && step->behaviour == SPLIT_ISOLATED;
        to->count = 0;
        for (size_t k = 0; k < from->count && status == LH_OK; k++) {
            if (simple) {
                status = isolate_pattern(p, step, text, from->spans[k], to);
                continue;
            }
            status = pretokenize_cut(p, i, s, text, from->spans[k]);
            if (status == LH_OK) status = pretokenize_keep(step, s, to);
        }
        struct span_list *swap = from;
        from = to;
        to = swap;
    }
    if (status == LH_OK) *out = from;
    return status;
}

/* The GPT-2, Llama-3 and Qwen2 patterns by hand. A byte that is not UTF-8 counts
 * as a character that is neither letter, number nor space. */
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
    lh_assert(pattern < PATTERN_COUNT);
    return texts[pattern];
}

pattern_t pattern_find(const char *text, size_t length)
{
    for (pattern_t p = 0; p < PATTERN_COUNT; p++)
        if (strlen(texts[p]) == length && memcmp(texts[p], text, length) == 0) return p;
    return PATTERN_UNKNOWN;
}

/* The class of the character at p (letter, number, space or 0) and its size. */
static inline uint8_t scan_look(const scan_t *s, const unsigned char *p, uint32_t *size)
{
    return class_of(s->classes, utf8_decode(p, s->end, size)) & CLASS_KNOWN;
}

/* The end of the run of characters of one class. */
static inline const unsigned char *scan_run(const scan_t *s, const unsigned char *p, uint8_t class)
{
    while (p < s->end) {
        uint32_t size;
        if (scan_look(s, p, &size) != class) break;
        p += size;
    }
    return p;
}

static inline uint8_t scan_lower(uint8_t c, bool fold)
{
    return fold && c >= 'A' && c <= 'Z' ? c | 0x20 : c;
}

/* The length of 's, 't, 're, 've, 'm, 'll or 'd at p, which points at an apostrophe; 0: none. With
 * fold, capitals too, and the long s, which is an s without its case. */
static size_t scan_contraction(const scan_t *s, const unsigned char *p, bool fold)
{
    const size_t left = (size_t)(s->end - p);
    if (left < 2) return 0;

    const uint8_t a = scan_lower(p[1], fold);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if (left < 3) return 0;
    const uint8_t b = scan_lower(p[2], fold);
    if ((a == 'r' || a == 'v') && b == 'e') return 3;
    if (a == 'l' && b == 'l') return 3;
    return fold && p[1] == 0xC5 && p[2] == 0xBF ? 3 : 0;
}

/* \s+(?!\S)|\s+ : a run of white space but for its last character, which goes with what follows;
 * all of it at the end of the text or if it is one character long. */
static const unsigned char *scan_spaces(const scan_t *s, const unsigned char *p)
{
    const unsigned char *last = p, *at = p;
    uint32_t size;

    while (at < s->end && scan_look(s, at, &size) == CLASS_SPACE) {
        last = at;
        at += size;
    }
    return at == s->end || last == p ? at : last;
}

static const unsigned char *next_gpt2(const scan_t *s, const unsigned char *p)
{
    if (*p == '\'') {
        const size_t length = scan_contraction(s, p, false);
        if (length > 0) return p + length;
    }
    uint32_t size;
    uint8_t class = scan_look(s, p, &size);
    if (*p == ' ' && p + 1 < s->end) {
        uint32_t next_size;
        const uint8_t next = scan_look(s, p + 1, &next_size);
        if (next != CLASS_SPACE) {
            size += next_size;
            class = next;
        }
    }
    return class == CLASS_SPACE ? scan_spaces(s, p) : scan_run(s, p + size, class);
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

    for (const unsigned char *at = p; at < s->end && scan_look(s, at, &size) == CLASS_SPACE;
         at += size)
        if (is_line_end(*at)) line_end = at + 1;
    return line_end != NULL ? line_end : scan_spaces(s, p);
}

static const unsigned char *scan_digits(const scan_t *s, const unsigned char *p, int most)
{
    uint32_t size;
    for (int i = 0; i < most && p < s->end && scan_look(s, p, &size) == CLASS_NUMBER; i++)
        p += size;
    return p;
}

static const unsigned char *next_llama3(const scan_t *s, const unsigned char *p, int most_digits)
{
    uint32_t size, next_size = 0;
    const uint8_t class = scan_look(s, p, &size);

    if (class == CLASS_LETTER) return scan_run(s, p + size, CLASS_LETTER);
    if (class == CLASS_NUMBER) return scan_digits(s, p, most_digits);
    if (*p == '\'') {
        const size_t length = scan_contraction(s, p, true);
        if (length > 0) return p + length;
    }
    const unsigned char *after = p + size;
    const uint8_t next = after < s->end ? scan_look(s, after, &next_size) : CLASS_SPACE;
    if (next == CLASS_LETTER && !is_line_end(*p))
        return scan_run(s, after + next_size, CLASS_LETTER);

    if (class == CLASS_SPACE && (*p != ' ' || next != 0)) return spaces_by_line(s, p);
    after = scan_run(s, after, 0);
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
