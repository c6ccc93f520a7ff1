/* tokenizer/tokenizer_sentencepiece.h - reads a sentencepiece model, BPE or unigram. Fills a zeroed
 * tokenizer whose limits are set; the caller frees it if that fails. Bytes and JSON values are the
 * caller's. */
#ifndef TOKENIZER_TOKENIZER_SENTENCEPIECE_H
#define TOKENIZER_TOKENIZER_SENTENCEPIECE_H

#include <tokenizer/tokenizer_parts.h>

lh_status_t tokenizer_read_sentencepiece(tokenizer_t *t, const char *path, const char *bytes,
                                         size_t length) LH_MUST_CHECK;

#endif
