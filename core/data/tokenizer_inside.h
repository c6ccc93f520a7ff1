/* data/tokenizer_inside.h - what a loaded tokenizer is made of. For the readers of its file kinds
 * only; everybody else sees tokenizer.h. */
#ifndef DATA_TOKENIZER_INSIDE_H
#define DATA_TOKENIZER_INSIDE_H

#include <data/added_tokens.h>
#include <data/bpe.h>
#include <data/json_parse.h>
#include <data/normalize.h>
#include <data/piece_table.h>
#include <data/pretokenize.h>
#include <data/tokenizer.h>

typedef enum spelled_as { /* how the pieces of a vocabulary are written */
                          SPELLED_AS_TEXT,
                          SPELLED_AS_BYTES,   /* tiktoken: raw                          */
                          SPELLED_BYTE_LEVEL, /* one character of the alphabet per byte */
} spelled_as_t;

typedef struct decode_replace {
    char *from, *to; /* owned */
} decode_replace_t;

enum { DECODE_REPLACES = 8 };

typedef struct decoder {
    bool byte_level;    /* characters of the alphabet are bytes       */
    bool byte_fallback; /* <0xNN> are bytes                           */
    bool join;          /* a space between tokens                     */
    bool fused;         /* what is stripped is the whole text         */
    decode_replace_t replaces[DECODE_REPLACES];
    size_t replace_count;
    char strip[8]; /* UTF-8 of the character cut at both ends, up to so many times; "": none */
    uint32_t strip_start, strip_stop;
    bool strip_all; /* all at the start                                      */
    bool by_type;   /* sentencepiece: by_type decides, not the spelling      */
    char *surface;  /* what an unknown token is written as; NULL: its spelling */
} decoder_t;

enum { /* what a sentencepiece is, by id */
       PIECE_NORMAL = 1,
       PIECE_UNKNOWN,
       PIECE_CONTROL,
       PIECE_USER,
       PIECE_UNUSED,
       PIECE_BYTE,
};

struct tokenizer {
    const char *kind; /* static */
    tokenizer_limits_t limits;
    spelled_as_t spelled;
    piece_table_t pieces; /* of the model, as the file spells them                       */
    piece_table_t raw;    /* byte-level with ignore_merges: the same as the bytes they are */
    uint8_t *types;       /* PIECE_*, by id; NULL unless sentencepiece                   */
    bpe_t bpe;
    normalizer_t normalizer;
    pretokenizer_t pretokenizer;
    bool cuts; /* the pretokenizer has steps                                   */
    added_tokens_t added;
    piece_table_t added_pieces; /* of added tokens: id to content                            */
    uint8_t *skipped;           /* by id: decoding may skip it                               */
    decoder_t decoder;
    tokenizer_special_t special;
    int32_t vocab_size;
    char **files;
    size_t file_count, file_room;
};

/* Readers: each fills a zeroed tokenizer whose limits are set; the caller frees it if they fail. */
lh_status_t tokenizer_read_json(tokenizer_t *t, const char *path, json_t *root) LH_MUST_CHECK;
lh_status_t tokenizer_read_pair(tokenizer_t *t, const char *path, json_t *vocabulary) LH_MUST_CHECK;
lh_status_t tokenizer_read_sentencepiece(tokenizer_t *t, const char *path, const char *bytes,
                                         size_t length) LH_MUST_CHECK;
lh_status_t tokenizer_read_ranks(tokenizer_t *t, const char *path, const char *bytes,
                                 size_t length) LH_MUST_CHECK;

/* Parts that several readers share. */
/* A piece of the model, and a merge, within the limits. */
lh_status_t tokenizer_add_piece(tokenizer_t *t, const char *path, uint32_t id, const char *bytes,
                                size_t length) LH_MUST_CHECK;
lh_status_t tokenizer_join(tokenizer_t *t, const char *path, uint32_t left, uint32_t right,
                           uint32_t rank, uint32_t made) LH_MUST_CHECK;
lh_status_t tokenizer_add_file(tokenizer_t *t, const char *path) LH_MUST_CHECK;
lh_status_t tokenizer_load_json(const tokenizer_t *t, const char *path, json_t **out) LH_MUST_CHECK;
/* Refuses an id below 0 or at or above the limit. */
lh_status_t tokenizer_check_id(const tokenizer_t *t, const char *path, json_int_t id,
                               const char *piece) LH_MUST_CHECK;
/* {"piece": id, ...} */
lh_status_t tokenizer_read_vocabulary(tokenizer_t *t, const char *path,
                                      json_t *vocabulary) LH_MUST_CHECK;
/* The symbols of bytes and characters, once all pieces are there. */
lh_status_t tokenizer_bytes_from_alphabet(tokenizer_t *t, const char *path) LH_MUST_CHECK;
lh_status_t tokenizer_bytes_from_fallback(tokenizer_t *t, const char *path) LH_MUST_CHECK;
lh_status_t tokenizer_characters(tokenizer_t *t) LH_MUST_CHECK;
/* Finds out which characters stand side by side in pieces, and sets bpe.by_words if texts may be
 * cut where none do. Once all merges are there. */
lh_status_t tokenizer_cut_words(tokenizer_t *t) LH_MUST_CHECK;
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
lh_status_t tokenizer_load_config(tokenizer_t *t, const char *path, json_t **out) LH_MUST_CHECK;
/* bos, eos, pad and eod from the config and from well-known names. */
void tokenizer_find_special(tokenizer_t *t, json_t *config);

#endif
