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
    bool empty;    /* a match may be of no character */
};

/* One thread's. The context holds the limits and the stack. */
struct pattern_match {
    pcre2_general_context *heap;
    pcre2_match_data *data;
    pcre2_match_context *context;
    /* machine code of PCRE2 runs on it; its own would be 32 KiB */
    pcre2_jit_stack *stack;
};

/* What Oniguruma, which the patterns of tokenizer files are written for, takes for a word. PCRE2's
 * own \w has no marks before 10.43, and all numbers at any time. */
#define WORD_NAMED                                                                         \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-" \
    "\\x{1F169}\\x{1F170}-\\x{1F189}"
#define WORD WORD_NAMED "\\xB2\\xB3\\xB9\\xBC-\\xBE" /* outside of [..] six numbers, too */
#define BORDER "(?:(?<=[" WORD "])(?![" WORD "])|(?<![" WORD "])(?=[" WORD "]))"
#define NO_BORDER "(?:(?<=[" WORD "])(?=[" WORD "])|(?<![" WORD "])(?![" WORD "]))"
#define SPACE "\\p{White_Space}" /* PCRE2's \s has U+180E, too */

/* Escapes that mean something else in PCRE2, outside and inside of [..]; NULL: cannot be said. */
static const struct {
    char letter;
    const char *outside, *inside;
} escapes[] = {
    {'s', SPACE, SPACE},
    {'S', "\\P{White_Space}", "\\P{White_Space}"},
    {'w', "[" WORD "]", WORD_NAMED},
    {'W', "[^" WORD "]", NULL},
    {'b', BORDER, "\\b"},
    {'B', NO_BORDER, NULL},
    {'h', "[0-9A-Fa-f]", "0-9A-Fa-f"},
    {'H', "[^0-9A-Fa-f]", NULL},
    {'v', "\\x0B", "\\x0B"},
    {'Q', NULL, NULL},
};

/* Classes with a name, which stand inside of [..]. */
static const struct {
    const char *name, *means;
} named_classes[] = {
    {"[:alpha:]", "\\p{Alphabetic}"},
    {"[:alnum:]", "\\p{Alphabetic}\\p{Nd}"},
    {"[:upper:]", "\\p{Uppercase}"},
    {"[:lower:]", "\\p{Lowercase}"},
    {"[:punct:]", "\\p{P}\\p{S}"},
    {"[:space:]", SPACE},
    {"[:word:]", WORD_NAMED},
    {"[:digit:]", "\\p{Nd}"},
    {"[:xdigit:]", "0-9A-Fa-f"},
    {"[:cntrl:]", "\\p{Cc}"},
    {"[:graph:]", "[:graph:]\\x{180E}"},
    {"[:print:]", "[:print:]"},
};

/* Each of these appends what the pattern at `p` begins with, as PCRE2 has it, and returns how many
 * bytes it took; 0: it cannot be said there. */
static size_t translate_as_is(const char *p, size_t count, text_t *out)
{
    text_append_n(out, p, count);
    return count;
}

static size_t translate_escape(const char *p, bool in_class, text_t *out)
{
    for (size_t i = 0; i < sizeof(escapes) / sizeof(*escapes); i++) {
        if (escapes[i].letter != p[1]) continue;
        const char *means = in_class ? escapes[i].inside : escapes[i].outside;
        if (means != NULL) text_append(out, means);
        return means == NULL ? 0 : 2;
    }
    return translate_as_is(p, 2, out);
}

/* A [ inside of [..]: but for a named class it begins a class in the class, which PCRE2 does not
 * have. */
static size_t translate_named_class(const char *p, size_t left, text_t *out)
{
    for (size_t i = 0; i < sizeof(named_classes) / sizeof(*named_classes); i++) {
        const size_t size = strlen(named_classes[i].name);
        if (left < size || memcmp(p, named_classes[i].name, size) != 0) continue;
        text_append(out, named_classes[i].means);
        return size;
    }
    return 0;
}

/* {n}, {n,m}, {n,} and {,m}. A + behind it repeats once more and a ? behind {n} makes it optional,
 * which PCRE2 has as possessive and lazy. */
static size_t translate_interval(const char *p, size_t left, text_t *out)
{
    size_t low = 1, size;
    while (low < left && p[low] >= '0' && p[low] <= '9')
        low++;
    size = low;
    const bool comma = size < left && p[size] == ',';
    if (comma) size++;
    while (size < left && p[size] >= '0' && p[size] <= '9')
        size++;
    const bool empty = low == 1 && (!comma || size == 2);
    if (empty || size == left || p[size] != '}') return translate_as_is(p, 1, out);
    size++;
    if (size < left && (p[size] == '+' || (p[size] == '?' && !comma))) return 0;
    if (low > 1) return translate_as_is(p, size, out);
    text_append(out, "{0");
    text_append_n(out, p + 1, size - 1);
    return size;
}

/* (?imx-imx) and (?imx-imx: with Ruby's m, by which a dot is a line feed, too. */
static size_t translate_group(const char *p, size_t left, text_t *out)
{
    size_t size = 2;
    if (left < 3 || p[1] != '?') return translate_as_is(p, 1, out);
    while (size < left && (p[size] == '-' || (p[size] >= 'a' && p[size] <= 'z')))
        size++;
    if (size == left || (p[size] != ')' && p[size] != ':')) return translate_as_is(p, 2, out);
    for (size_t i = 0; i < size; i++)
        text_append_n(out, p[i] == 'm' ? "s" : p + i, 1);
    return size;
}

/* What begins a class: a ^ and a ] there do not end it. */
static size_t translate_class_start(const char *p, size_t left, text_t *out)
{
    size_t size = 1;
    if (size < left && p[size] == '^') size++;
    if (size < left && p[size] == ']') {
        text_append_n(out, p, size);
        text_append(out, "\\]");
        return size + 1;
    }
    return translate_as_is(p, size, out);
}

static lh_status_t regex_translate(const char *path, const char *pattern, size_t length,
                                   text_t *out)
{
    bool in_class = false;
    for (size_t at = 0, took; at < length; at += took) {
        const char *p = pattern + at;
        const size_t left = length - at;
        const bool twice = left > 1 && p[0] == '&' && p[1] == '&';
        if (*p == '\\' && left > 1)
            took = translate_escape(p, in_class, out);
        else if (in_class && *p == '[')
            took = translate_named_class(p, left, out);
        else if (in_class)
            took = twice ? 0 : translate_as_is(p, 1, out);
        else if (*p == '[')
            took = translate_class_start(p, left, out);
        else if (*p == '{')
            took = translate_interval(p, left, out);
        else
            took = *p == '(' ? translate_group(p, left, out) : translate_as_is(p, 1, out);
        if (took == 0)
            return fail(LH_UNSUPPORTED,
                        "%s: the pattern '%.*s' has '%.*s' at byte %zu, which is not supported",
                        path, (int)length, pattern, left < 4 ? (int)left : 4, p, at);
        if (*p == '[' && !in_class)
            in_class = true;
        else if (*p == ']')
            in_class = false;
    }
    return text_status(out);
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
    uint32_t empty = 1;
    (void)pcre2_pattern_info(r->code, PCRE2_INFO_MATCHEMPTY, &empty);
    r->empty = empty != 0;
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
    lh_status_t status = regex_translate(path, pattern, length, &translated);
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

/* As Oniguruma's iterator has it: an empty match where the last one ended is none, and the search
 * goes on a character further, whatever else might begin there. */
lh_status_t pattern_regex_find(const pattern_regex_t *r, pattern_match_t *m, const char *text,
                               size_t length, size_t from, bool behind, bool *found, size_t *start,
                               size_t *end)
{
    lh_assert(from <= length);
    *start = *end = length;
    *found = false;
    while (from < length || r->empty) {
        const int count = pcre2_match(r->code, (PCRE2_SPTR)text, length, from, 0, m->data,
                                      m->context);
        if (count == PCRE2_ERROR_NOMATCH) return LH_OK;
        if (count < 0) {
            char reason[160] = "";
            (void)pcre2_get_error_message(count, (PCRE2_UCHAR *)reason, sizeof(reason));
            return fail(LH_INVALID, "the tokenizer's pattern '%s' gave up at byte %zu: %s",
                        r->pattern, from, reason);
        }
        const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(m->data);
        /* \K can make a match that ends before it starts. */
        const bool proper = bounds[1] >= bounds[0] && bounds[0] >= from;
        *found = proper && (bounds[1] > bounds[0] || bounds[0] > from || !behind);
        if (*found) {
            *start = bounds[0];
            *end = bounds[1];
            return LH_OK;
        }
        if (from == length) return LH_OK;
        uint32_t size;
        const unsigned char *p = (const unsigned char *)text;
        (void)text_utf8_decode(p + from, p + length, &size);
        from += size;
        behind = false;
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
