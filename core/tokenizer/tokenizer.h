/* tokenizer/tokenizer.h - text to token ids and back, as the reference implementation of each file
 * kind does it, id for id.
 *
 * A loaded tokenizer never changes and is shared by threads; what an encode needs to write lies in
 * a scratch object, one per thread. What a file asks for and is not known here is refused when it
 * is loaded: a stage that was left out would change every id in silence.
 *
 * For "Hello<|endoftext|>" a byte-level tokenizer goes these ways, with ids that are made up:
 *
 *     Hello<|endoftext|>  ->  Hello | <|endoftext|>  ->  Hel lo | <|endoftext|>  ->  12 7 50256 */
#ifndef TOKENIZER_TOKENIZER_H
#define TOKENIZER_TOKENIZER_H

#include <subword/token_pieces.h>

typedef struct tokenizer tokenizer_t;
typedef struct tokenizer_scratch tokenizer_scratch_t;

/* path: a tokenizer.json; a vocab.json, encoder.json or NAME-vocab.json with merges.txt, vocab.bpe
 * or NAME-merges.txt beside it (either of the two may be named); a sentencepiece model; llama2.c's
 * tokenizer.bin; a tiktoken rank file; or a folder that holds one of tokenizer.json,
 * tokenizer.model, vocab.json, encoder.json, tokenizer.bin (taken in this order). The kind is told
 * by the content. limits may be NULL. */
lh_status_t tokenizer_load(const char *path, const tokenizer_limits_t *limits,
                           tokenizer_t **out) LH_MUST_CHECK;
void tokenizer_free(tokenizer_t *t); /* NULL does nothing */

/* A model's table of embeddings needs at least so many rows; ids may have holes below. */
int32_t tokenizer_vocab_size(const tokenizer_t *t); /* largest id + 1 */
/* Valid as long as the tokenizer. */
const tokenizer_special_t *tokenizer_special(const tokenizer_t *t);
/* For messages, such as "byte-level BPE", "BPE with byte fallback", "tiktoken". */
const char *tokenizer_kind(const tokenizer_t *t);
/* The id of a piece or an added token as the file spells it ("<|endoftext|>"); -1 if unknown. */
int32_t tokenizer_find(const tokenizer_t *t, const char *piece);

/* XXH3-64 of the piece of each id: bytes where the decoder is byte-level, else as the file spells
 * it. */
lh_status_t tokenizer_digest(const tokenizer_t *t, uint64_t *out) LH_MUST_CHECK;

/* Valid as long as the tokenizer. */
const tokenizer_frame_t *tokenizer_frame(const tokenizer_t *t);

/* The files the tokenizer was made from: the vocabulary first, then merges and
 * tokenizer_config.json where they were read. For hashing, and for export to copy. */
size_t tokenizer_file_count(const tokenizer_t *t);
const char *tokenizer_file(const tokenizer_t *t, size_t index);

/* For one thread at a time, with the tokenizer that it was made for, which must outlive it. Holds a
 * cache of pieces, so it is kept from document to document; results do not depend on what was
 * encoded before. */
lh_status_t tokenizer_scratch_new(const tokenizer_t *t, tokenizer_scratch_t **out) LH_MUST_CHECK;
void tokenizer_scratch_free(tokenizer_scratch_t *scratch);

/* Appends the ids of a text of UTF-8 to out. Begin and end tokens are the caller's to add. Bytes
 * that are not UTF-8 are taken as U+FFFD each, except by byte-level kinds, which keep the bytes. */
lh_status_t tokenizer_encode(const tokenizer_t *t, tokenizer_scratch_t *scratch, const char *text,
                             size_t length, token_spelling_t spelling,
                             token_ids_t *out) LH_MUST_CHECK;

/* How many ids at the end are a run of byte tokens, which are UTF-8 together or U+FFFD each: what
 * they stand for is only known once the run has ended. */
size_t tokenizer_open_bytes(const tokenizer_t *t, const int32_t *ids, size_t count);

/* Appends the bytes that the ids stand for; an id outside the vocabulary is refused. Special tokens
 * are written as they are spelt unless skip_special. Byte-level kinds give back the bytes as they
 * are, UTF-8 or not. */
lh_status_t tokenizer_decode(const tokenizer_t *t, const int32_t *ids, size_t count,
                             bool skip_special, text_t *out) LH_MUST_CHECK;

#endif
