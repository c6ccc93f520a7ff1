/* tokenizer/tokenizer_files.h - reads the files of BPE tokenizers: Hugging Face's tokenizer.json (its
 * model and its added tokens), GPT-2's two files, tiktoken's one. Each fills a zeroed tokenizer whose
 * limits are set; the caller frees it if that fails. Bytes and JSON values are the caller's. */
#ifndef TOKENIZER_TOKENIZER_FILES_H
#define TOKENIZER_TOKENIZER_FILES_H

#include <tokenizer/tokenizer_parts.h>

/* tokenizer.json; root: the file's object. */
lh_status_t tokenizer_read_json(tokenizer_t *t, const char *path,
                                const json_value_t *root) LH_MUST_CHECK;
/* GPT-2's: a vocabulary as JSON and merges as lines of text, which are looked for beside `path`, the
 * vocabulary's file. */
lh_status_t tokenizer_read_pair(tokenizer_t *t, const char *path,
                                const json_value_t *vocabulary) LH_MUST_CHECK;
/* tiktoken's single file, whose ranks are vocabulary and merges in one. */
lh_status_t tokenizer_read_ranks(tokenizer_t *t, const char *path, const char *bytes,
                                 size_t length) LH_MUST_CHECK;

#endif
