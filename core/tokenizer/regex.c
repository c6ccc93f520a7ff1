/* regex.c - PCRE2 with Unicode classes, compiled ahead of time, with limits on what a match may
 * cost. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <tokenizer/regex.h>

#include <pcre2.h>

#include <base/memory.h>
#include <base/text.h>

enum {
    MATCH_STEPS = 10000000,
    MATCH_DEPTH = 100000,
    MATCH_HEAP_KIB = 65536,
    JIT_STACK_FIRST = 32768,
    JIT_STACK_MOST = 1 << 20,
    PATTERN_MOST = 65536, /* bytes */
};

/* PCRE2's heap is ours. */
static void *take(PCRE2_SIZE bytes, void *context)
{
    (void)context;
    return mem_lend(bytes);
}

static void give(void *memory, void *context)
{
    (void)context;
    mem_free(memory);
}

struct regex {
    pcre2_general_context *heap;
    pcre2_code *code;
    char *pattern; /* as in the file, for sentences */
};

struct regex_match {
    pcre2_general_context *heap;
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

/* PCRE2's \s has U+180E, which is no White_Space; the engines that the patterns were written for go
 * by the property. */
static void translate(const char *pattern, size_t length, text_t *out)
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

static lh_status_t compile(const char *path, const text_t *pattern, regex_t *r)
{
    /* In Oniguruma's Ruby syntax ^ and $ always look at lines. */
    const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_MULTILINE |
                             PCRE2_NEVER_BACKSLASH_C;
    int error = 0;
    PCRE2_SIZE at = 0;

    r->heap = pcre2_general_context_create(take, give, NULL);
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

lh_status_t regex_new(const char *path, const char *pattern, size_t length, regex_t **out)
{
    if (length == 0 || length > PATTERN_MOST)
        return fail(LH_INVALID, "%s: a pattern of %zu bytes; 1 to %d are supported", path, length,
                    PATTERN_MOST);
    regex_t *r = mem_new(sizeof(*r));
    if (r == NULL) return LH_NO_MEMORY;

    text_t translated = {0};
    translate(pattern, length, &translated);
    lh_status_t status = text_status(&translated);
    if (status != LH_OK) goto free_text;
    status = LH_NO_MEMORY;
    r->pattern = mem_text_n(pattern, length);
    if (r->pattern != NULL) status = compile(path, &translated, r);

free_text:
    text_free(&translated);
    if (status != LH_OK) {
        regex_free(r);
        return status;
    }
    *out = r;
    return LH_OK;
}

void regex_free(regex_t *r)
{
    if (r == NULL) return;
    pcre2_code_free(r->code);
    if (r->heap != NULL) pcre2_general_context_free(r->heap);
    mem_free(r->pattern);
    mem_free(r);
}

lh_status_t regex_match_new(const regex_t *r, regex_match_t **out)
{
    regex_match_t *m = mem_new(sizeof(*m));
    if (m == NULL) return LH_NO_MEMORY;

    m->heap = pcre2_general_context_create(take, give, NULL);
    if (m->heap != NULL) {
        m->data = pcre2_match_data_create_from_pattern(r->code, m->heap);
        m->context = pcre2_match_context_create(m->heap);
        m->stack = pcre2_jit_stack_create(JIT_STACK_FIRST, JIT_STACK_MOST, m->heap);
    }
    if (m->data == NULL || m->context == NULL || m->stack == NULL) {
        regex_match_free(m);
        return fail(LH_NO_MEMORY, "out of memory for matching '%s'", r->pattern);
    }
    (void)pcre2_set_match_limit(m->context, MATCH_STEPS);
    (void)pcre2_set_depth_limit(m->context, MATCH_DEPTH);
    (void)pcre2_set_heap_limit(m->context, MATCH_HEAP_KIB);
    pcre2_jit_stack_assign(m->context, NULL, m->stack);
    *out = m;
    return LH_OK;
}

void regex_match_free(regex_match_t *m)
{
    if (m == NULL) return;
    if (m->data != NULL) pcre2_match_data_free(m->data);
    if (m->context != NULL) pcre2_match_context_free(m->context);
    if (m->stack != NULL) pcre2_jit_stack_free(m->stack);
    if (m->heap != NULL) pcre2_general_context_free(m->heap);
    mem_free(m);
}

lh_status_t regex_find(const regex_t *r, regex_match_t *m, const char *text, size_t length,
                       size_t from, size_t *start, size_t *end)
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
        from = bounds[1] > from ? bounds[1] : from + 1; /* \K can make a match that is empty */
    }
    return LH_OK;
}
