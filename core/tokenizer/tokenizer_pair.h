/* tokenizer/tokenizer_pair.h - reads GPT-2's two files: a vocabulary as JSON and merges as lines of text. */
#ifndef TOKENIZER_TOKENIZER_PAIR_H
#define TOKENIZER_TOKENIZER_PAIR_H

#include <tokenizer/tokenizer_parts.h>

lh_status_t tokenizer_read_pair(tokenizer_t *t, const char *path,
                                const json_value_t *vocabulary) LH_MUST_CHECK;
lh_status_t tokenizer_read_ranks(tokenizer_t *t, const char *path, const char *bytes,
                                 size_t length) LH_MUST_CHECK;

#endif
