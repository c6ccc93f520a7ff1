/* tokenizer/tokenizer_sentencepiece.h - reads a sentencepiece model of the BPE kind: pieces with
 * scores, and the rules for spaces. */
#ifndef TOKENIZER_TOKENIZER_SENTENCEPIECE_H
#define TOKENIZER_TOKENIZER_SENTENCEPIECE_H

#include <tokenizer/tokenizer_parts.h>

/* As tokenizer_read_json: fills a zeroed tokenizer whose limits are set, from the file's bytes,
 * which are the caller's. */
lh_status_t tokenizer_read_sentencepiece(tokenizer_t *t, const char *path, const char *bytes,
                                         size_t length) LH_MUST_CHECK;

#endif
