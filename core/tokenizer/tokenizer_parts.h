/* tokenizer/tokenizer_parts.h - what a loaded tokenizer is made of, and what the readers of several
 * file kinds do alike. For the readers and tokenizer.c only; everybody else sees tokenizer.h. */
#ifndef TOKENIZER_TOKENIZER_PARTS_H
#define TOKENIZER_TOKENIZER_PARTS_H

#include <format/json.h>
#include <tokenizer/bpe.h>
#include <tokenizer/normalize.h>
#include <tokenizer/pretokenize.h>
#include <tokenizer/token_pieces.h>
#include <tokenizer/unicode_patterns.h>

typedef enum spelled_as { /* how the pieces of a vocabulary are written */
                          SPELLED_AS_TEXT,
                          SPELLED_AS_BYTES,   /* tiktoken: raw                          */
                          SPELLED_BYTE_LEVEL, /* one character of the alphabet per byte */
} spelled_as_t;

typedef struct added_token {
    int32_t id;
    char *content; /* owned; UTF-8 without NUL */
    size_t length;
    bool special;        /* decoding may skip it                                     */
    bool implicit;       /* found in text only when asked for: SPELLING_IS_TOKEN     */
    bool normalized;     /* looked for after normalising                             */
    bool single_word;    /* not beside a word character                              */
    bool lstrip, rstrip; /* takes the white space before, after                      */
} added_token_t;

typedef struct added_tokens {
    added_token_t *tokens;
    size_t count, room;
    size_t searched;              /* tokens that SPELLING_AS_REFERENCE looks for */
    piece_trie_t raw, normalized; /* values are indices into tokens */
} added_tokens_t;

typedef struct added_match {
    int32_t id;        /* -1: none */
    size_t start, end; /* of what it takes, with white space that belongs to it */
    size_t next;       /* where the search goes on: white space may belong to two */
} added_match_t;

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

typedef struct tokenizer {
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
} tokenizer_t;

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
/* `where` is "merge 17" or "merges.txt:18"; length of left and right in bytes. */
lh_status_t tokenizer_add_merge(tokenizer_t *t, const char *where, const char *left,
                                size_t left_length, const char *right, size_t right_length,
                                uint32_t rank) LH_MUST_CHECK;
/* Takes over token.content. Refuses a content that another id has. */
lh_status_t tokenizer_add_token(tokenizer_t *t, const char *path,
                                added_token_t token) LH_MUST_CHECK;
/* A token that decoding may skip and that a text only becomes when asked for. */
lh_status_t tokenizer_add_special(tokenizer_t *t, const char *path, uint32_t id, const char *bytes,
                                  size_t length) LH_MUST_CHECK;
/* A token with the flags of its JSON object. ordinary_normalized: where the object does not say, a
 * token that is not special is looked for after normalising. */
lh_status_t tokenizer_read_token(tokenizer_t *t, const char *path, int32_t id, const char *content,
                                 const json_value_t *entry, bool ordinary_normalized) LH_MUST_CHECK;
/* GPT-2's, with the byte-level decoder. */
lh_status_t tokenizer_use_byte_level(tokenizer_t *t, pattern_t pattern) LH_MUST_CHECK;
/* Reads tokenizer_config.json beside path where there is one (*out is NULL otherwise). */
lh_status_t tokenizer_load_config(tokenizer_t *t, const char *path,
                                  json_document_t **out) LH_MUST_CHECK;
/* bos, eos, pad and eod from the config and from well-known names. */
void tokenizer_find_special(tokenizer_t *t, const json_value_t *config);
/* The id of a piece or an added token as the file spells it; -1: none. */
int32_t tokenizer_id_of(const tokenizer_t *t, const char *piece);

/* The first match at or after `from`; leftmost, then longest. `among` is a->raw or a->normalized.
 * What lies before `floor` was taken by the match before. */
added_match_t tokenizer_find_added(const added_tokens_t *a, const piece_trie_t *among,
                                   token_spelling_t spelling, const char *text, size_t length,
                                   size_t floor, size_t from);

/* Finds out which characters stand side by side in pieces, and sets bpe.by_words if texts may be
 * cut where none do. Once all merges are there. */
lh_status_t tokenizer_cut_words(tokenizer_t *t) LH_MUST_CHECK;
void tokenizer_free_added(added_tokens_t *a);

#endif
