/* subword/token_pieces.h - tokens as ids and as pieces, the bytes that a vocabulary spells them
 * with: lists of ids, a table of pieces by id and by spelling, a trie for the longest piece that a
 * text starts with, and which characters stand side by side in pieces. */
#ifndef SUBWORD_TOKEN_PIECES_H
#define SUBWORD_TOKEN_PIECES_H

#include <base/text.h>

/* What a file may ask for before it is refused. Zero fields mean the default. A tokenizer's file
 * comes with a model from whoever published it: limits keep a hostile one from filling the memory,
 * and what goes over one is refused with a sentence that says so. */
typedef struct tokenizer_limits {
    uint64_t file_bytes;  /* of each file that is read; default 256 MiB        */
    uint32_t vocabulary;  /* every id is below this; default 4,194,304         */
    uint32_t token_bytes; /* of a piece or an added token; default 4096        */
    uint32_t merges;      /* default 8,388,608                                 */
} tokenizer_limits_t;

/* Ids of tokens with a meaning of their own; -1: the tokenizer has none. eod ends a document in
 * training data: <|endoftext|> and the like, or eos where there is nothing else. They are read from
 * the file or its tokenizer_config.json, else guessed by well-known names. */
typedef struct tokenizer_special {
    int32_t bos, eos, eod, unk, pad;
} tokenizer_special_t;

/* What the post_processor of a tokenizer.json puts around a text that stands alone: a template's ids
 * before it and behind it; where there is none, what add_bos_token and add_eos_token of a
 * tokenizer_config.json say. No command adds it by itself: the job's keys say what stands there. */
typedef struct tokenizer_frame {
    int32_t *before, *after;
    size_t before_count, after_count;
} tokenizer_frame_t;

/* A growing list of ids. Zero-initialise; ids stay valid until the next encode into it. */
typedef struct token_ids {
    int32_t *ids;
    size_t count, capacity;
} token_ids_t;

/* Room for so many more, which may then be written without a check. */
lh_status_t token_ids_reserve(token_ids_t *ids, size_t more) LH_MUST_CHECK;
lh_status_t token_ids_add(token_ids_t *ids, int32_t id) LH_MUST_CHECK;
/* Adds those of a text like "5, 17,3". Whether a model has such ids is not looked at. */
lh_status_t token_ids_parse(const char *text, token_ids_t *ids) LH_MUST_CHECK;
void token_ids_free(token_ids_t *ids);

/* Whether a text that spells a special token becomes that token. */
typedef enum token_spelling {
    SPELLING_AS_REFERENCE, /* yes for what tokenizer.json and tokenizer_config.json list, else no */
    SPELLING_IS_TEXT,      /* never: for documents of unknown origin                              */
    SPELLING_IS_TOKEN,     /* always: for chat templates and prompts                              */
} token_spelling_t;

/* A set of strings with a value each, by their bytes. The children of a node are a list of
 * siblings: most nodes have few, and a table for each would be mostly empty. The first byte alone
 * has a table, as it is looked up at every place of a text. Zero-initialise. */
typedef struct piece_trie {
    struct trie_node {
        uint32_t child, sibling; /* 0: none  */
        int32_t value;           /* -1: none */
        uint8_t byte;
    } * nodes;
    size_t count, room;
    uint32_t first[256]; /* node of the first byte; 0: no string starts with it */
} piece_trie_t;

/* length > 0, value >= 0. A string that is there keeps its first value. */
lh_status_t piece_trie_add(piece_trie_t *t, const char *bytes, size_t length,
                           int32_t value) LH_MUST_CHECK;
/* The length of the longest string that text starts with and its value; 0 if none does. */
size_t piece_trie_longest(const piece_trie_t *t, const char *text, size_t length, int32_t *value);
void piece_trie_free(piece_trie_t *t);

/* The pieces of a vocabulary: bytes by id, id by bytes. */
typedef struct piece {
    const char *bytes; /* valid until the table grows or is freed */
    size_t length;
} piece_t;

/* A vocabulary in both directions. All bytes lie in one arena and a piece is a place in it, so a
 * table of 200,000 pieces is three blocks of memory. Ids may have holes; an id is never taken out.
 * Zero-initialise. */
typedef struct piece_table {
    char *bytes;
    size_t bytes_used, bytes_room;
    /* by id */
    struct piece_place {
        uint32_t start, length;
    } * places; /* by id; length PIECE_ABSENT where no piece has the id */
    /* count: the largest id + 1 */
    size_t count, room;
    /* Hash of the spelling to its id. Half of the hash is kept beside the id, so that nearly all
     * looks at a wrong piece end without a look at its bytes. */
    uint64_t *slots; /* open addressing; upper half of the hash | id + 1; 0 is free */
    /* pieces: how many there are, which is less than count where ids have holes */
    size_t slot_count, pieces;
} piece_table_t;

enum { PIECE_ABSENT = 0x7FFFFFFF };

/* Refuses an id or a spelling that is there already; `path` is for the sentence. */
lh_status_t piece_table_add(piece_table_t *t, const char *path, uint32_t id, const char *bytes,
                            size_t length) LH_MUST_CHECK;
/* -1: no piece has this spelling. */
int32_t piece_table_find(const piece_table_t *t, const char *bytes, size_t length);
/* False if no piece has the id. */
bool piece_table_get(const piece_table_t *t, uint32_t id, piece_t *out);
void piece_table_free(piece_table_t *t);

/* Places of piece_neighbours_t.parts. */
enum { NEIGHBOUR_HASHES = 1 << 12 };

/* Which characters stand side by side in some piece of a vocabulary. Where two never do, no join
 * crosses, and a text may be cut between them without becoming other ids. With the pieces _th, he
 * and _a (_ for the mark of a space) the text _the_a is cut into two words, as no piece has e
 * beside the mark:
 *
 *     _the | _a
 *
 * Texts must be UTF-8; pieces may begin and end inside of a character. Pairs are bits of a hash:
 * two that fall on one bit make a cut less than there might be, and never a wrong one. */
typedef struct piece_neighbours {
    /* Of two ASCII characters, by the left one: a bit for each right one. Exact, as most text is
     * ASCII. */
    uint64_t ascii[128][2];
    /* Of all others: a bit for each hash of two. NULL: beyond ASCII all stand side by side, but for
     * a space mark (U+2581) behind another character. */
    uint64_t *pairs;
    /* of the hash, so that it is a number of a bit */
    uint32_t shift;
    /* By hash of a character: whether pieces begin or end inside of a character beside it. Mostly
     * 0, and then parts need not be looked for. */
    uint8_t parts[NEIGHBOUR_HASHES];
    /* By the first byte of the right character: pieces hold only parts of both. */
    uint8_t part_heads[256];
} piece_neighbours_t;

/* `pieces` is how many will be added, more or less; 0: only ASCII is to be told. */
lh_status_t piece_neighbours_open(piece_neighbours_t *n, size_t pieces) LH_MUST_CHECK;
void piece_neighbours_close(piece_neighbours_t *n);
/* Adds all pairs of neighbours in a piece. */
void piece_neighbours_add(piece_neighbours_t *n, const char *piece, size_t length);
/* Keeps two ASCII characters from being cut apart for a reason that no piece shows. */
void piece_neighbours_add_ascii(piece_neighbours_t *n, unsigned char left, unsigned char right);

/* Where the first word of a text (UTF-8, whole characters, at least one) ends: before the first
 * character that does not stand beside the one before it in any piece. */
size_t piece_neighbours_word(const piece_neighbours_t *n, const char *text, size_t length);

/* GPT-2's alphabet of bytes, which byte-level vocabularies are spelt with: every byte has a
 * printable character, so that a piece is text in a JSON file whatever bytes it is. */
uint32_t piece_character_of_byte(uint8_t byte);
/* The byte that a character stands for, or -1. */
int piece_byte_of_character(uint32_t character);
/* Appends the bytes that a byte-level piece stands for; false, with nothing appended, where it has
 * a character outside of the alphabet. */
bool piece_append_bytes(piece_t piece, text_t *out);

#endif
