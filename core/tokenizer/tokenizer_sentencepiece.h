/* tokenizer/tokenizer_sentencepiece.h - reads a sentencepiece model, BPE or unigram, or what
 * llama2.c exports of one. Fills a zeroed tokenizer whose limits are set; the caller frees it if that
 * fails. Bytes and JSON values are the caller's. */
#ifndef TOKENIZER_TOKENIZER_SENTENCEPIECE_H
#define TOKENIZER_TOKENIZER_SENTENCEPIECE_H

#include <tokenizer/tokenizer_parts.h>

lh_status_t tokenizer_read_sentencepiece(tokenizer_t *t, const char *path, const char *bytes,
                                         size_t length) LH_MUST_CHECK;

/* llama2.c's tokenizer.bin: whether a file begins as one, and its reader, for those alone. */
bool tokenizer_is_llama2c(const char *bytes, size_t length);
lh_status_t tokenizer_read_llama2c(tokenizer_t *t, const char *path, const char *bytes,
                                   size_t length) LH_MUST_CHECK;

#endif
