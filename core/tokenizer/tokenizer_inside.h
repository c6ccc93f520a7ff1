/* tokenizer/tokenizer_inside.h - what a loaded tokenizer is made of. For the readers of its file kinds
 * only; everybody else sees tokenizer.h. */
#ifndef TOKENIZER_TOKENIZER_INSIDE_H
#define TOKENIZER_TOKENIZER_INSIDE_H

#include <format/json.h>
#include <tokenizer/added_tokens.h>
#include <tokenizer/bpe.h>
#include <tokenizer/byte_trie.h>
#include <tokenizer/normalize.h>
#include <tokenizer/pretokenize.h>
#include <tokenizer/tokenizer.h>

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

/* Parts that several readers share. */

#endif
