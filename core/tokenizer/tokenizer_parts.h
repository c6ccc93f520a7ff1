/* tokenizer/tokenizer_parts.h - what a loaded tokenizer is made of, and what the readers of several
 * file kinds do alike. For the readers and tokenizer.c only; everybody else sees tokenizer.h.
 *
 * A tokenizer is loaded in three steps. tokenizer.c tells the kind of a file and calls its reader
 * (tokenizer_files, tokenizer_sentencepiece). The reader fills the struct below with
 * the help of the functions at the end: pieces first, then the symbols that texts start with, then
 * merges, then added and special tokens. tokenizer.c finishes it. */
#ifndef TOKENIZER_TOKENIZER_PARTS_H
#define TOKENIZER_TOKENIZER_PARTS_H

#include <format/json.h>
#include <subword/bpe.h>
#include <subword/token_pieces.h>
#include <subword/unigram.h>
#include <subword/wordpiece.h>
#include <tokenizer/decode_steps.h>
#include <tokenizer/normalize.h>
#include <tokenizer/pretokenize.h>
#include <tokenizer/unicode_patterns.h>

/* What makes ids of a piece of text. */
typedef enum token_model { MODEL_BPE, MODEL_UNIGRAM, MODEL_WORDPIECE } token_model_t;

/* Decides what symbols a text starts with and how ids become text again. */
typedef enum spelled_as { /* how the pieces of a vocabulary are written */
                          SPELLED_AS_TEXT,
                          SPELLED_AS_BYTES,   /* tiktoken: raw                          */
                          SPELLED_BYTE_LEVEL, /* one character of the alphabet per byte */
} spelled_as_t;

/* A token that is cut out of a text before anything else happens to it: special ones and whatever
 * the author of a file has added to the vocabulary of the model. Flags as in tokenizer.json. */
typedef struct added_token {
    int32_t id;
    char *content; /* owned; UTF-8 without NUL */
    size_t length;
    /* Decoding may skip it. */
    bool special;
    /* The token is found in a text only when asked for (SPELLING_IS_TOKEN), as the file does not
     * list it as a token that texts are searched for. */
    bool implicit;
    /* The token is looked for in normalized text, and not in the text as it came. */
    bool normalized;
    /* The token counts only where no word character stands beside it. */
    bool single_word;
    /* The token takes the white space before it, or behind it, along. */
    bool lstrip, rstrip;
} added_token_t;

/* All added tokens, and the two tries by which they are found: in the text as it came, and between
 * those matches in normalized text. */
typedef struct added_tokens {
    added_token_t *tokens;
    size_t count, room;
    size_t searched;              /* tokens that SPELLING_AS_REFERENCE looks for */
    piece_trie_t raw, normalized; /* values are indices into tokens */
} added_tokens_t;

/* Where tokenizer_find_added found a token; start == end == length where it found none. */
typedef struct added_match {
    int32_t id;        /* -1: none */
    size_t start, end; /* of what it takes, with white space that belongs to it */
    size_t next;       /* where the search goes on: white space may belong to two */
} added_match_t;

/* How pieces become text again. The decoder of a tokenizer.json is a list of steps, but for the one
 * that most have, ByteLevel alone; that and sentencepiece's are flags. */
typedef struct decoder {
    /* Of a tokenizer.json; where there are any, of the rest only byte_fallback counts. */
    decode_steps_t steps;
    /* The characters of tokens are GPT-2's alphabet of bytes. It goes before all else. */
    bool byte_level;
    /* Tokens that are spelt <0xNN> are bytes. */
    bool byte_fallback;
    /* Tokens stand with a space between them: what is done without a decoder. */
    bool join;
    /* sentencepiece: what becomes a space; "": nothing does */
    char mark[8];
    /* sentencepiece: the mark that is dropped at the start of a text; "": none */
    char strip[8];
    /* of sentencepiece, where extra spaces are removed: all marks at the start of a text are
     * dropped, not just one */
    bool strip_all;
    /* sentencepiece: a piece's type, not its spelling, says whether it is a byte */
    bool by_type;
    /* What the unknown token of a sentencepiece model is written as; owned. NULL: as it is
     * spelt. */
    char *surface;
} decoder_t;

enum { /* what a sentencepiece is, by id */
       PIECE_NORMAL = 1,
       PIECE_UNKNOWN,
       PIECE_CONTROL,
       PIECE_USER,
       PIECE_UNUSED,
       PIECE_BYTE,
};

/* All of a loaded tokenizer. A reader fills it from zero, except for limits, the empty bpe, unknown
 * and the table of classes; tokenizer_finish in tokenizer.c does the rest. The order here is that of the
 * way from text to ids. */
typedef struct tokenizer tokenizer_t;
struct tokenizer {
    const char *kind; /* static */
    tokenizer_limits_t limits;
    /* How pieces are spelt: decides how texts start and how ids are decoded. */
    spelled_as_t spelled;
    /* The model's vocabulary, as the file spells it. */
    piece_table_t pieces;
    /* The same pieces as the bytes that they stand for; filled only for byte-level files that say
     * ignore_merges, which take whole pieces of text. */
    piece_table_t raw;
    /* [pieces.count] PIECE_*, by id; NULL unless it is a sentencepiece model. */
    uint8_t *types;
    /* Of these the one of `model` is filled. bpe.whole points to pieces or raw above, so the struct
     * is never moved. */
    token_model_t model;
    bpe_t bpe;
    unigram_t unigram;
    wordpiece_t wordpiece;
    /* Of a BPE file that marks where in its word a piece stands: what is spelt before one that does
     * not begin it, and behind one that ends it. Owned; NULL: nothing. */
    char *continuing, *ending;
    /* The id that text outside of the vocabulary becomes; -1: none. */
    int32_t unknown;
    normalizer_t normalizer;
    pretokenizer_t pretokenizer;
    /* The pretokenizer has steps, so texts are cut; false: they are encoded whole. */
    bool cuts;
    added_tokens_t added;
    /* Contents of added tokens by id, for decoding; an added token need not be in pieces. */
    piece_table_t added_pieces;
    /* [vocab_size] */
    uint8_t *skipped; /* by id: decoding may skip it                               */
    decoder_t decoder;
    tokenizer_special_t special;
    tokenizer_frame_t frame; /* its arrays are owned */
    int32_t vocab_size;
    /* [file_count] paths that it was read from, owned; for digests and for export */
    char **files;
    size_t file_count, file_room;
};

/* The functions from here on are for readers. What one refuses, it refuses with a sentence that
 * names the file `path`; the caller frees the tokenizer then.
 *
 * A piece of the model, within the limit of bytes. */
lh_status_t tokenizer_add_piece(tokenizer_t *t, const char *path, uint32_t id, const char *bytes,
                                size_t length) LH_MUST_CHECK;
/* A merge by its symbols, within the limit of merges. */
lh_status_t tokenizer_join(tokenizer_t *t, const char *path, uint32_t left, uint32_t right,
                           uint32_t rank, uint32_t made) LH_MUST_CHECK;
/* Notes a file that the tokenizer was read from. */
lh_status_t tokenizer_add_file(tokenizer_t *t, const char *path) LH_MUST_CHECK;
/* Base64 with padding; out has room for length / 4 * 3 bytes. The bytes written, or -1. */
long tokenizer_base64(const char *text, size_t length, char *out);
/* A file within the limits; the caller frees *out with json_free. */
lh_status_t tokenizer_load_json(const tokenizer_t *t, const char *path,
                                json_document_t **out) LH_MUST_CHECK;
/* Refuses an id below 0 or at or above the limit. */
lh_status_t tokenizer_check_id(const tokenizer_t *t, const char *path, int64_t id,
                               const char *piece) LH_MUST_CHECK;
/* {"piece": id, ...}. Aliases of bpe have their numbers behind these. */
lh_status_t tokenizer_read_vocabulary(tokenizer_t *t, const char *path,
                                      const json_value_t *vocabulary) LH_MUST_CHECK;
/* The symbols of bytes and characters, once all pieces are there: of bytes that pieces spell by
 * GPT-2's alphabet, of bytes that have pieces "<0x00>" to "<0xFF>" (to the model that is set), and
 * of characters that are pieces. */
lh_status_t tokenizer_bytes_from_alphabet(tokenizer_t *t, const char *path) LH_MUST_CHECK;
lh_status_t tokenizer_bytes_from_fallback(tokenizer_t *t, const char *path) LH_MUST_CHECK;
lh_status_t tokenizer_characters(tokenizer_t *t) LH_MUST_CHECK;
/* In the place of these: characters, or bytes by the alphabet, as they are spelt at each place of a
 * word, where t->continuing or t->ending is set. */
lh_status_t tokenizer_placed_characters(tokenizer_t *t) LH_MUST_CHECK;
/* `where` is "merge 17" or "merges.txt:18"; length of left and right in bytes. */
lh_status_t tokenizer_add_merge(tokenizer_t *t, const char *where, const char *left,
                                size_t left_length, const char *right, size_t right_length,
                                uint32_t rank) LH_MUST_CHECK;
/* An added token. Takes over token.content, also on failure. Refuses a content that another id has,
 * and an id that another content has; the same one twice counts once. */
lh_status_t tokenizer_add_token(tokenizer_t *t, const char *path,
                                added_token_t token) LH_MUST_CHECK;
/* A token that decoding may skip and that a text only becomes when asked for. */
lh_status_t tokenizer_add_special(tokenizer_t *t, const char *path, uint32_t id, const char *bytes,
                                  size_t length) LH_MUST_CHECK;
/* A token with the flags of its JSON object. ordinary_normalized: where the object does not say, a
 * token that is not special is looked for after normalising. */
lh_status_t tokenizer_read_token(tokenizer_t *t, const char *path, int32_t id, const char *content,
                                 const json_value_t *entry, bool ordinary_normalized) LH_MUST_CHECK;
/* Pieces are spelt in GPT-2's alphabet and decoded from it; texts are cut by the pattern
 * (PATTERN_UNKNOWN: by none). */
lh_status_t tokenizer_use_byte_level(tokenizer_t *t, pattern_t pattern) LH_MUST_CHECK;
/* Reads tokenizer_config.json beside path where there is one (*out is NULL otherwise). */
lh_status_t tokenizer_load_config(tokenizer_t *t, const char *path,
                                  json_document_t **out) LH_MUST_CHECK;
/* Sets t->special: bos, eos, pad and unk from the config (NULL: none), else from well-known names.
 * Once all pieces and added tokens are there. */
void tokenizer_find_special(tokenizer_t *t, const json_value_t *config);
/* The id of a piece or an added token as the file spells it; -1: none. */
int32_t tokenizer_id_of(const tokenizer_t *t, const char *piece);

/* The first added token in the text at or after `from`; leftmost, then longest, as Hugging Face's
 * AddedVocabulary finds them. `among` is a->raw or a->normalized. What lies before `floor` was
 * taken by the match before, with white space behind it; the token found does not reach in
 * there. */
added_match_t tokenizer_find_added(const added_tokens_t *a, const piece_trie_t *among,
                                   token_spelling_t spelling, const char *text, size_t length,
                                   size_t floor, size_t from);

/* Finds out which characters stand side by side in pieces, and sets bpe.by_words if texts may be
 * cut where none do. Once all merges are there. */
lh_status_t tokenizer_cut_words(tokenizer_t *t) LH_MUST_CHECK;
void tokenizer_free_added(added_tokens_t *a);

#endif
