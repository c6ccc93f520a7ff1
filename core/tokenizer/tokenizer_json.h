/* tokenizer/tokenizer_json.h - reads a Hugging Face tokenizer.json with a BPE model. What it does
 * not know it refuses: a stage left out would give other ids in silence. */
#ifndef TOKENIZER_TOKENIZER_JSON_H
#define TOKENIZER_TOKENIZER_JSON_H

#include <tokenizer/tokenizer_parts.h>

/* Readers: each fills a zeroed tokenizer whose limits are set; the caller frees it if they fail.
 * `root` is the file's object, the caller's. */
lh_status_t tokenizer_read_json(tokenizer_t *t, const char *path,
                                const json_value_t *root) LH_MUST_CHECK;

#endif
