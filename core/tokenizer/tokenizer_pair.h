/* tokenizer/tokenizer_pair.h - reads GPT-2's two files and tiktoken's one. Fills a zeroed tokenizer whose limits are set; the
 * caller frees it if that fails. Bytes and JSON values are the caller's. */
#ifndef TOKENIZER_TOKENIZER_PAIR_H
#define TOKENIZER_TOKENIZER_PAIR_H

#include <tokenizer/tokenizer_parts.h>

/* A vocabulary as JSON and merges as lines of text, which are looked for beside `path`, the
 * vocabulary's file. */
lh_status_t tokenizer_read_pair(tokenizer_t *t, const char *path,
                                const json_value_t *vocabulary) LH_MUST_CHECK;
/* tiktoken's single file, whose ranks are vocabulary and merges in one. */
lh_status_t tokenizer_read_ranks(tokenizer_t *t, const char *path, const char *bytes,
                                 size_t length) LH_MUST_CHECK;

#endif
