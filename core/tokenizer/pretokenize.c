/* pretokenize.c - each step cuts every span of the step before it.
 *
 * A step goes over a span in two passes: first it is cut into matches and what lies between (cuts),
 * then the behaviour says which of these become spans of their own, which are joined to a neighbour
 * and which vanish. Known patterns whose matches stay as they are, the usual case, need no list of
 * cuts. */
#include <tokenizer/pretokenize.h>

#include <base/memory.h>
#include <base/text.h>

/* A match of a step, or what lies between two. */
typedef struct text_cut {
    uint32_t start, end;
    bool match;
} text_cut_t;

/* Frees what a step owns, of whichever kind it is. */
static void split_step_free(split_step_t *step)
{
    pattern_regex_free(step->regex);
    mem_free(step->string);
}

lh_status_t pretokenizer_add(pretokenizer_t *p, split_step_t step)
{
    split_step_t *steps = mem_grow(p->steps, &p->room, p->count + 1, sizeof(*steps));
    if (steps == NULL) {
        split_step_free(&step);
        return LH_NO_MEMORY;
    }
    p->steps = steps;
    steps[p->count++] = step;
    return LH_OK;
}

void pretokenizer_free(pretokenizer_t *p)
{
    for (size_t i = 0; i < p->count; i++)
        split_step_free(&p->steps[i]);
    mem_free(p->steps);
    *p = (pretokenizer_t){0};
}

lh_status_t pretokenize_scratch_open(const pretokenizer_t *p, pretokenize_scratch_t *s)
{
    *s = (pretokenize_scratch_t){0};
    s->matches = mem_array(p->count, sizeof(*s->matches));
    if (s->matches == NULL) return LH_NO_MEMORY;
    for (; s->match_count < p->count; s->match_count++) {
        const pattern_regex_t *regex = p->steps[s->match_count].regex;
        if (regex == NULL) continue;
        const lh_status_t status = pattern_match_new(regex, &s->matches[s->match_count]);
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
        pattern_match_free(s->matches[i]);
    mem_free(s->matches);
    mem_free(s->cuts);
    text_free(&s->marked);
    mem_free(s->lists[0].spans);
    mem_free(s->lists[1].spans);
    *s = (pretokenize_scratch_t){0};
}

/* Nothing is appended for an empty span: a piece without bytes would have no ids. */
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

/* Here invert turns matches into what lies between and the other way round, so that all behind it
 * need not know of it. An empty match cuts what lies around it. */
static lh_status_t append_cut(pretokenize_scratch_t *s, const split_step_t *step, size_t start,
                              size_t end, bool match)
{
    if (start == end && !match) return LH_OK;
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

static lh_status_t cut_by_regex(const split_step_t *step, pattern_match_t *match,
                                pretokenize_scratch_t *s, const char *text, text_span_t span)
{
    lh_assert(match != NULL);
    /* the pattern sees the span as a text of its own, as lookahead and ^ must */
    const size_t length = span.end - span.start;

    bool found = true;
    size_t at = 0, end;

    for (bool behind = false; found; behind = true, at = end) {
        size_t start;
        lh_status_t status = pattern_regex_find(step->regex, match, text + span.start, length, at,
                                                behind, &found, &start, &end);
        if (status == LH_OK)
            status = append_cut(s, step, span.start + at, span.start + start, false);
        if (status == LH_OK && found)
            status = append_cut(s, step, span.start + start, span.start + end, true);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

/* Matches of a string from left to right, which do not overlap. */
static lh_status_t cut_by_string(const split_step_t *step, pretokenize_scratch_t *s,
                                 const char *text, text_span_t span)
{
    lh_assert(step->string_length > 0);
    for (size_t at = span.start; at < span.end;) {
        const char *found = memmem(text + at, span.end - at, step->string, step->string_length);
        const size_t start = found == NULL ? span.end : (size_t)(found - text);
        const size_t end = found == NULL ? span.end : start + step->string_length;
        lh_status_t status = append_cut(s, step, at, start, false);
        if (status == LH_OK && found != NULL) status = append_cut(s, step, start, end, true);
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
    const uint32_t c = text_utf8_decode((const unsigned char *)at, (const unsigned char *)end,
                                        size);
    const int class = by == SPLIT_DIGITS   ? CLASS_NUMBER
                      : by == SPLIT_SPACES ? CLASS_SPACE
                                           : CLASS_PUNCTUATION;
    return (unicode_class_of(&p->classes, c) & class) != 0;
}

/* Every character of the class is a match of its own; SPLIT_CONTIGUOUS joins them later. */
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

/* The regex \w+|[^\w\s]+ by hand: runs of word characters, of others, and of white space, which is
 * the match. */
static lh_status_t cut_by_words(const pretokenizer_t *p, const split_step_t *step,
                                pretokenize_scratch_t *s, const char *text, text_span_t span)
{
    const unsigned char *end = (const unsigned char *)text + span.end;
    size_t start = span.start;
    int run = -1; /* the class that the run at hand has; 0: none of the two */
    lh_status_t status = LH_OK;

    for (size_t at = span.start; at < span.end && status == LH_OK;) {
        uint32_t size;
        const uint32_t c = text_utf8_decode((const unsigned char *)text + at, end, &size);
        const int class = unicode_class_of(&p->classes, c) & (CLASS_SPACE | CLASS_WORD);
        if (run >= 0 && class != run) {
            status = append_cut(s, step, start, at, run == CLASS_SPACE);
            start = at;
        }
        run = class;
        at += size;
    }
    return status == LH_OK ? append_cut(s, step, start, span.end, run == CLASS_SPACE) : status;
}

/* So many characters each. */
static lh_status_t cut_by_length(const split_step_t *step, pretokenize_scratch_t *s,
                                 const char *text, text_span_t span)
{
    lh_assert(step->characters > 0);
    const unsigned char *p = (const unsigned char *)text;
    lh_status_t status = LH_OK;

    for (size_t at = span.start, start = at; at < span.end && status == LH_OK; start = at) {
        for (size_t i = 0; i < step->characters && at < span.end; i++) {
            uint32_t size;
            (void)text_utf8_decode(p + at, p + span.end, &size);
            at += size;
        }
        status = append_cut(s, step, start, at, true);
    }
    return status;
}

/* Fills s->cuts with what step `index` finds in the span: without holes, in order; matches of a
 * pattern may be empty. */
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
    case SPLIT_WORDS: return cut_by_words(p, step, s, text, span);
    case SPLIT_LENGTH: return cut_by_length(step, s, text, span);
    default: return cut_by_class(p, step, s, text, span);
    }
}

/* SPLIT_WITH_NEXT, which looks a cut ahead where the others look back. */
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

/* Makes spans of the cuts, by the step's behaviour. A cut joins the one before it in the last span
 * of out, which is of the same span of the text: a step never joins what an earlier one has cut
 * apart. */
static lh_status_t pretokenize_keep(const split_step_t *step, const pretokenize_scratch_t *s,
                                    struct span_list *out)
{
    if (step->behaviour == SPLIT_WITH_NEXT) return join_next(s, out);

    bool previous_match = false, open = false; /* open: the last cut stands in out */
    for (size_t i = 0; i < s->cut_count; i++) {
        const text_cut_t *c = &s->cuts[i];
        bool joins = false;
        if (step->behaviour == SPLIT_WITH_PREVIOUS) joins = c->match && !previous_match;
        if (step->behaviour == SPLIT_CONTIGUOUS) joins = c->match == previous_match;
        previous_match = c->match;

        if (step->behaviour == SPLIT_REMOVED && c->match) continue;
        if (joins && open) {
            lh_assert(out->count > 0);
            out->spans[out->count - 1].end = c->end;
            continue;
        }
        const lh_status_t status = append_span(out, c->start, c->end);
        if (status != LH_OK) return status;
        open = c->end > c->start;
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

void pretokenize_mark(const pretokenizer_t *p, bool first, const char *text, size_t length,
                      text_t *out)
{
    const size_t size = strlen(p->mark);
    const bool has_mark = length > 0 &&
                          (text[0] == ' ' || (length >= size && memcmp(text, p->mark, size) == 0));
    if (!has_mark && (p->prepend == PREPEND_ALWAYS || (p->prepend == PREPEND_FIRST && first)))
        text_append(out, p->mark);
    for (size_t at = 0; at < length;) {
        const char *space = memchr(text + at, ' ', length - at);
        const size_t end = space == NULL ? length : (size_t)(space - text);
        text_append_n(out, text + at, end - at);
        if (space != NULL) text_append(out, p->mark);
        at = end + 1;
    }
}

/* Writes every span of `from` into s->marked, with marks, and cuts it before each mark where the
 * step has a string. The spans of `to` are of that text. */
static lh_status_t rewrite_spans(const pretokenizer_t *p, const split_step_t *step,
                                 pretokenize_scratch_t *s, bool first, const char *text,
                                 const struct span_list *from, struct span_list *to)
{
    text_t *marked = &s->marked;
    lh_status_t status = LH_OK;

    marked->length = 0;
    marked->failed = false;
    for (size_t k = 0; k < from->count && status == LH_OK; k++) {
        const text_span_t span = from->spans[k];
        const size_t start = marked->length;
        pretokenize_mark(p, first && span.start == 0, text + span.start, span.end - span.start,
                         marked);
        status = text_status(marked);
        if (status == LH_OK && marked->length > UINT32_MAX)
            status = fail(LH_INVALID, "a text of more than %u bytes behind its pretokenizer",
                          UINT32_MAX);
        if (status != LH_OK) return status;
        const text_span_t made = {(uint32_t)start, (uint32_t)marked->length};
        s->cut_count = 0;
        if (step->string == NULL) {
            status = append_span(to, made.start, made.end);
            continue;
        }
        status = cut_by_string(step, s, marked->data, made);
        if (status == LH_OK) status = pretokenize_keep(step, s, to);
    }
    return status;
}

/* Begins with one span, the whole text; each step fills the other list from this one. */
lh_status_t pretokenize(const pretokenizer_t *p, pretokenize_scratch_t *s, bool first,
                        const char **at, size_t *at_length, const struct span_list **out)
{
    const char *text = *at;
    const size_t length = *at_length;
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
        if (step->by == SPLIT_METASPACE) {
            status = rewrite_spans(p, step, s, first, text, from, to);
            text = s->marked.data == NULL ? "" : s->marked.data;
            *at_length = s->marked.length;
        }
        for (size_t k = 0; k < from->count && status == LH_OK && step->by != SPLIT_METASPACE; k++) {
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
    *at = text;
    if (status == LH_OK) *out = from;
    return status;
}
