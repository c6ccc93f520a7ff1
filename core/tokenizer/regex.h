/* tokenizer/regex.h - patterns of tokenizer files, run by PCRE2 the way their authors' engines run them.
 */
#ifndef TOKENIZER_REGEX_H
#define TOKENIZER_REGEX_H

#include <base/status.h>

typedef struct regex regex_t;             /* never changes: shared by threads */
typedef struct regex_match regex_match_t; /* one per thread and pattern       */

/* `path` is the file that the pattern stands in, for sentences. */
lh_status_t regex_new(const char *path, const char *pattern, size_t length,
                      regex_t **out) LH_MUST_CHECK;
void regex_free(regex_t *r);

lh_status_t regex_match_new(const regex_t *r, regex_match_t **out) LH_MUST_CHECK;
void regex_match_free(regex_match_t *m);

/* The first match in text[from, length): writes *start == *end == length if there is none. Matching
 * costs a bounded number of steps; beyond that the text is refused. */
lh_status_t regex_find(const regex_t *r, regex_match_t *m, const char *text, size_t length,
                       size_t from, size_t *start, size_t *end) LH_MUST_CHECK;

#endif
