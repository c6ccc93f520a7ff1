/* tokenizer/tokenizer_pair.h - reads GPT-2's pair of files, a vocabulary as JSON and merges as
 * lines of text, and tiktoken's single file, whose ranks are vocabulary and merges in one. */
#ifndef TOKENIZER_TOKENIZER_PAIR_H
#define TOKENIZER_TOKENIZER_PAIR_H

#include <tokenizer/tokenizer_parts.h>

/* As tokenizer_read_json: each fills a zeroed tokenizer whose limits are set. The merges are looked
 * for beside `path`, the vocabulary's file. */
lh_status_t tokenizer_read_pair(tokenizer_t *t, const char *path,
                                const json_value_t *vocabulary) LH_MUST_CHECK;
/* The bytes are the file's, the caller's. */
lh_status_t tokenizer_read_ranks(tokenizer_t *t, const char *path, const char *bytes,
                                 size_t length) LH_MUST_CHECK;

#endif
