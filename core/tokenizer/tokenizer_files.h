/* tokenizer/tokenizer_json.h - reads a Hugging Face tokenizer.json: its model and its added tokens. Fills a zeroed tokenizer whose limits are set; the
 * caller frees it if that fails. Bytes and JSON values are the caller's. */
#ifndef TOKENIZER_TOKENIZER_JSON_H
#define TOKENIZER_TOKENIZER_JSON_H

#include <tokenizer/tokenizer_parts.h>

/* root: the file's object. */
lh_status_t tokenizer_read_json(tokenizer_t *t, const char *path,
                                const json_value_t *root) LH_MUST_CHECK;

#endif
