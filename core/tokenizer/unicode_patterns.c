/* unicode_patterns.c - what texts are cut by.
 *
 * Classes come from utf8proc's tables and are written down for the first 2,048 characters. A
 * pattern of a file goes to PCRE2, compiled ahead of time and with limits on what a match may cost,
 * as the file may be hostile: a pattern that backtracks without end makes the text refused and not
 * the program hang. The three best known patterns have scanners by hand, which the tests hold
 * against PCRE2. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <tokenizer/unicode_patterns.h>

#include <string.h>

#include <pcre2.h>
#include <utf8proc.h>

#include <base/memory.h>
#include <base/text.h>

/* The property White_Space of Unicode, which utf8proc does not have. */
static bool is_white_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

/* By general category; those that are not named, such as symbols, are 0. */
static const uint8_t category_class[] = {
    [UTF8PROC_CATEGORY_LU] = CLASS_LETTER | CLASS_WORD,
    [UTF8PROC_CATEGORY_LL] = CLASS_LETTER | CLASS_WORD,
    [UTF8PROC_CATEGORY_LT] = CLASS_LETTER | CLASS_WORD,
    [UTF8PROC_CATEGORY_LM] = CLASS_LETTER | CLASS_WORD,
    [UTF8PROC_CATEGORY_LO] = CLASS_LETTER | CLASS_WORD,
    [UTF8PROC_CATEGORY_MN] = CLASS_WORD,
    [UTF8PROC_CATEGORY_MC] = CLASS_WORD,
    [UTF8PROC_CATEGORY_ME] = CLASS_WORD,
    [UTF8PROC_CATEGORY_ND] = CLASS_NUMBER | CLASS_WORD,
    [UTF8PROC_CATEGORY_NL] = CLASS_NUMBER | CLASS_WORD,
    [UTF8PROC_CATEGORY_NO] = CLASS_NUMBER,
    [UTF8PROC_CATEGORY_PC] = CLASS_PUNCTUATION | CLASS_WORD,
    [UTF8PROC_CATEGORY_PD] = CLASS_PUNCTUATION,
    [UTF8PROC_CATEGORY_PS] = CLASS_PUNCTUATION,
    [UTF8PROC_CATEGORY_PE] = CLASS_PUNCTUATION,
    [UTF8PROC_CATEGORY_PI] = CLASS_PUNCTUATION,
    [UTF8PROC_CATEGORY_PF] = CLASS_PUNCTUATION,
    [UTF8PROC_CATEGORY_PO] = CLASS_PUNCTUATION,
    [UTF8PROC_CATEGORY_CO] = 0,
};

/* Word characters beyond letters, marks, decimal digits and connectors: circled and squared letters
 * are alphabetic, and the two joiners belong to words. */
static bool is_other_word(uint32_t c)
{
    return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) ||
           (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
           (c >= 0x1F170 && c <= 0x1F189);
}

/* White space comes first, as some of it is of a category that would say otherwise (U+0085 is a
 * control character). */
uint8_t unicode_class(uint32_t character)
{
    if (character >= TEXT_UTF8_BAD) return 0;
    if (is_white_space(character)) return CLASS_SPACE;

    uint8_t class = category_class[utf8proc_category((utf8proc_int32_t)character)];
    /* Unicode calls $ + < = > ^ ` | and ~ symbols; Hugging Face's Punctuation counts all of
     * ASCII's. */
    if (character < 0x80 && character > 0x20 && character != 0x7F && (class & CLASS_WORD) == 0)
        class |= CLASS_PUNCTUATION;
    if (is_other_word(character)) class |= CLASS_WORD;
    return class;
}

void unicode_classes_fill(unicode_classes_t *out)
{
    for (uint32_t c = 0; c < UNICODE_COMMON; c++)
        out->of[c] = unicode_class(c);
}

/* Limits of one match, and of a pattern's length. A text or pattern that reaches one is refused;
 * real ones stay far below. */
enum {
    MATCH_STEPS = 10000000,
    MATCH_DEPTH = 100000,
    MATCH_HEAP_KIB = 65536,
    JIT_STACK_FIRST = 32768,
    JIT_STACK_MOST = 1 << 20,
    PATTERN_MOST = 65536, /* bytes */
};

/* PCRE2's memory is counted and freed as ours is, so that tests that let each allocation fail reach
 * it. */
static void *pcre_take(PCRE2_SIZE bytes, void *context)
{
    (void)context;
    return mem_lend(bytes);
}

static void pcre_give(void *memory, void *context)
{
    (void)context;
    mem_free(memory);
}

/* The heap is named by the compiled code, which allocates from it: freed last. */
struct pattern_regex {
    pcre2_general_context *heap;
    pcre2_code *code;
    char *pattern; /* as in the file, for sentences */
};

/* One thread's. The context holds the limits and the stack. */
struct pattern_match {
    pcre2_general_context *heap;
    pcre2_match_data *data;
    pcre2_match_context *context;
    /* machine code of PCRE2 runs on it; its own would be 32 KiB */
    pcre2_jit_stack *stack;
};

/* PCRE2's \s has U+180E, which is no White_Space; the engines that the patterns were written for go
 * by the property. */
static void regex_translate(const char *pattern, size_t length, text_t *out)
{
    for (size_t i = 0; i < length; i++) {
        const bool escape = pattern[i] == '\\' && i + 1 < length;
        if (escape && pattern[i + 1] == 's')
            text_append(out, "\\p{White_Space}");
        else if (escape && pattern[i + 1] == 'S')
            text_append(out, "\\P{White_Space}");
        else
            text_append_n(out, pattern + i, escape ? 2 : 1);
        if (escape) i++;
    }
}

/* Fills r->heap and r->code; what was made stays in r on failure, for pattern_regex_free. \C, which
 * takes one byte whatever it is, would cut inside of characters: it is refused. */
static lh_status_t regex_compile(const char *path, const text_t *pattern, pattern_regex_t *r)
{
    /* In Oniguruma's Ruby syntax ^ and $ always look at lines. */
    const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_MULTILINE |
                             PCRE2_NEVER_BACKSLASH_C;
    int error = 0;
    PCRE2_SIZE at = 0;

    r->heap = pcre2_general_context_create(pcre_take, pcre_give, NULL);
    pcre2_compile_context *how = r->heap == NULL ? NULL : pcre2_compile_context_create(r->heap);
    if (how == NULL) return LH_NO_MEMORY;
    r->code = pcre2_compile((PCRE2_SPTR)pattern->data, pattern->length, options, &error, &at, how);
    pcre2_compile_context_free(how);
    if (r->code == NULL && error == PCRE2_ERROR_HEAP_FAILED)
        return fail(LH_NO_MEMORY, "out of memory: %s: a pattern", path);
    if (r->code == NULL) {
        char reason[160] = "";
        (void)pcre2_get_error_message(error, (PCRE2_UCHAR *)reason, sizeof(reason));
        return fail(LH_INVALID, "%s: the pattern '%s' can't be used: %s", path, r->pattern, reason);
    }
    (void)pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE); /* without it matching is only slower */
    return LH_OK;
}

lh_status_t pattern_regex_new(const char *path, const char *pattern, size_t length,
                              pattern_regex_t **out)
{
    if (length == 0 || length > PATTERN_MOST)
        return fail(LH_INVALID, "%s: a pattern of %zu bytes; 1 to %d are supported", path, length,
                    PATTERN_MOST);
    pattern_regex_t *r = mem_new(sizeof(*r));
    if (r == NULL) return LH_NO_MEMORY;

    text_t translated = {0};
    regex_translate(pattern, length, &translated);
    lh_status_t status = text_status(&translated);
    if (status != LH_OK) goto free_text;
    status = LH_NO_MEMORY;
    r->pattern = mem_text_n(pattern, length);
    if (r->pattern != NULL) status = regex_compile(path, &translated, r);

free_text:
    text_free(&translated);
    if (status != LH_OK) {
        pattern_regex_free(r);
        return status;
    }
    *out = r;
    return LH_OK;
}

void pattern_regex_free(pattern_regex_t *r)
{
    if (r == NULL) return;
    pcre2_code_free(r->code);
    if (r->heap != NULL) pcre2_general_context_free(r->heap);
    mem_free(r->pattern);
    mem_free(r);
}

lh_status_t pattern_match_new(const pattern_regex_t *r, pattern_match_t **out)
{
    pattern_match_t *m = mem_new(sizeof(*m));
    if (m == NULL) return LH_NO_MEMORY;

    m->heap = pcre2_general_context_create(pcre_take, pcre_give, NULL);
    if (m->heap != NULL) {
        m->data = pcre2_match_data_create_from_pattern(r->code, m->heap);
        m->context = pcre2_match_context_create(m->heap);
        m->stack = pcre2_jit_stack_create(JIT_STACK_FIRST, JIT_STACK_MOST, m->heap);
    }
    if (m->data == NULL || m->context == NULL || m->stack == NULL) {
        pattern_match_free(m);
        return fail(LH_NO_MEMORY, "out of memory for matching '%s'", r->pattern);
    }
    (void)pcre2_set_match_limit(m->context, MATCH_STEPS);
    (void)pcre2_set_depth_limit(m->context, MATCH_DEPTH);
    (void)pcre2_set_heap_limit(m->context, MATCH_HEAP_KIB);
    pcre2_jit_stack_assign(m->context, NULL, m->stack);
    *out = m;
    return LH_OK;
}

void pattern_match_free(pattern_match_t *m)
{
    if (m == NULL) return;
    if (m->data != NULL) pcre2_match_data_free(m->data);
    if (m->context != NULL) pcre2_match_context_free(m->context);
    if (m->stack != NULL) pcre2_jit_stack_free(m->stack);
    if (m->heap != NULL) pcre2_general_context_free(m->heap);
    mem_free(m);
}

lh_status_t pattern_regex_find(const pattern_regex_t *r, pattern_match_t *m, const char *text,
                               size_t length, size_t from, size_t *start, size_t *end)
{
    lh_assert(from <= length);
    *start = *end = length;
    while (from < length) {
        const int found = pcre2_match(r->code, (PCRE2_SPTR)text, length, from, PCRE2_NOTEMPTY,
                                      m->data, m->context);
        if (found == PCRE2_ERROR_NOMATCH) return LH_OK;
        if (found < 0) {
            char reason[160] = "";
            (void)pcre2_get_error_message(found, (PCRE2_UCHAR *)reason, sizeof(reason));
            return fail(LH_INVALID, "the tokenizer's pattern '%s' gave up at byte %zu: %s",
                        r->pattern, from, reason);
        }
        const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(m->data);
        if (bounds[1] > bounds[0] && bounds[0] >= from) {
            *start = bounds[0];
            *end = bounds[1];
            return LH_OK;
        }
        /* An empty match is none: the search goes on behind it, at least a byte further, so it
         * ends. */
        from = bounds[1] > from ? bounds[1] : from + 1; /* \K can make a match that is empty */
    }
    return LH_OK;
}

/* The GPT-2, Llama 3 and Qwen2 patterns by hand. The alternatives of a pattern are tried in order
 * at one place, so a scanner decides by the first one or two characters which of them it is. A byte
 * that is not UTF-8 counts as a character that is neither letter, number nor space. */
#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define AFTER_DIGITS "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define BEFORE_DIGITS "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"

static const char *const texts[PATTERN_COUNT] = {
    [PATTERN_GPT2] = CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    [PATTERN_LLAMA3] = BEFORE_DIGITS "\\p{N}{1,3}" AFTER_DIGITS,
    [PATTERN_QWEN2] = BEFORE_DIGITS "\\p{N}" AFTER_DIGITS,
};

/* The classes that the scanners tell apart. */
enum { CLASS_KNOWN = CLASS_LETTER | CLASS_NUMBER | CLASS_SPACE };

/* A text up to its end; where a scanner stands in it is passed by hand. */
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
    return unicode_class_of(s->classes, text_utf8_decode(p, s->end, size)) & CLASS_KNOWN;
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

/* Where a piece that begins at p ends. A single space goes with what follows, whatever that is but
 * white space; the class of what follows decides how far the run goes. */
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

/* The two that the patterns of Llama 3 and Qwen2 name; other line ends are white space like any. */
static bool is_line_end(unsigned char c)
{
    return c == '\r' || c == '\n';
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ : a run of white space up to its last line end, as \s* takes as much as
 * it can and gives back until a line end follows; without a line end as scan_spaces. */
static const unsigned char *spaces_by_line(const scan_t *s, const unsigned char *p)
{
    const unsigned char *line_end = NULL;
    uint32_t size;

    for (const unsigned char *at = p; at < s->end && scan_look(s, at, &size) == CLASS_SPACE;
         at += size)
        if (is_line_end(*at)) line_end = at + 1;
    return line_end != NULL ? line_end : scan_spaces(s, p);
}

/* \p{N}{1,most} */
static const unsigned char *scan_digits(const scan_t *s, const unsigned char *p, int most)
{
    uint32_t size;
    for (int i = 0; i < most && p < s->end && scan_look(s, p, &size) == CLASS_NUMBER; i++)
        p += size;
    return p;
}

/* Where a piece that begins at p ends, in the order of the pattern: letters; digits; a contraction;
 * one character of another kind with letters behind it; white space; and else a run of what is
 * neither, with a space before it and line ends behind it. */
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

/* Qwen2's pattern is Llama 3's with single digits. */
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
