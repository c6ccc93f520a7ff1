/* tokenizer/tokenizer_parts.h - what the readers of several file kinds do alike. */
#ifndef TOKENIZER_TOKENIZER_PARTS_H
#define TOKENIZER_TOKENIZER_PARTS_H

#include <tokenizer/tokenizer_inside.h>

/* A piece of the model, and a merge, within the limits. */
lh_status_t tokenizer_add_piece(tokenizer_t *t, const char *path, uint32_t id, const char *bytes,
                                size_t length) LH_MUST_CHECK;
lh_status_t tokenizer_join(tokenizer_t *t, const char *path, uint32_t left, uint32_t right,
                           uint32_t rank, uint32_t made) LH_MUST_CHECK;
lh_status_t tokenizer_add_file(tokenizer_t *t, const char *path) LH_MUST_CHECK;
lh_status_t tokenizer_load_json(const tokenizer_t *t, const char *path,
                                json_document_t **out) LH_MUST_CHECK;
/* Refuses an id below 0 or at or above the limit. */
lh_status_t tokenizer_check_id(const tokenizer_t *t, const char *path, int64_t id,
                               const char *piece) LH_MUST_CHECK;
/* {"piece": id, ...} */
lh_status_t tokenizer_read_vocabulary(tokenizer_t *t, const char *path,
                                      const json_value_t *vocabulary) LH_MUST_CHECK;
/* The symbols of bytes and characters, once all pieces are there. */
lh_status_t tokenizer_bytes_from_alphabet(tokenizer_t *t, const char *path) LH_MUST_CHECK;
lh_status_t tokenizer_bytes_from_fallback(tokenizer_t *t, const char *path) LH_MUST_CHECK;
lh_status_t tokenizer_characters(tokenizer_t *t) LH_MUST_CHECK;
/* A byte-level piece as the bytes that it stands for; false if it has other characters, too. Look
 * at text_status(out) at the end. */
bool tokenizer_piece_bytes(piece_t piece, text_t *out);
/* `where` is "merge 17" or "merges.txt:18"; length of left and right in bytes. */
lh_status_t tokenizer_add_merge(tokenizer_t *t, const char *where, const char *left,
                                size_t left_length, const char *right, size_t right_length,
                                uint32_t rank) LH_MUST_CHECK;
/* Takes over token.content. Refuses a content that another id has. */
lh_status_t tokenizer_add_token(tokenizer_t *t, const char *path,
                                added_token_t token) LH_MUST_CHECK;
/* GPT-2's, with the byte-level decoder. */
lh_status_t tokenizer_use_byte_level(tokenizer_t *t, pattern_t pattern) LH_MUST_CHECK;
/* Reads tokenizer_config.json beside path where there is one (*out is NULL otherwise). */
lh_status_t tokenizer_load_config(tokenizer_t *t, const char *path,
                                  json_document_t **out) LH_MUST_CHECK;
/* bos, eos, pad and eod from the config and from well-known names. */
void tokenizer_find_special(tokenizer_t *t, const json_value_t *config);

#endif
