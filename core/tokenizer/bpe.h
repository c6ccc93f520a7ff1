/* tokenizer/bpe.h - byte-pair encoding of one piece of text: symbols of bytes or characters, joined pair
 * by pair, lowest rank first and leftmost on ties. A bpe_t is built once and then only read. */
#ifndef TOKENIZER_BPE_H
#define TOKENIZER_BPE_H

#include <tokenizer/token_pieces.h>

enum { BPE_NONE = 0x7FFFFFFF };
#define BPE_FREE UINT64_MAX

typedef struct bpe_merge {
    uint64_t pair; /* left symbol << 32 | right symbol; BPE_FREE: an empty slot */
    uint32_t rank; /* lower is joined earlier                                   */
    uint32_t made; /* the symbol of both                                        */
} bpe_merge_t;

/* A symbol is a piece's id, or an alias: a character that is no piece by itself but begins some
 * (written as unknown), or a piece that is never joined further. */
typedef struct bpe_alias {
    int32_t id;         /* what is written; -1: the character as an unknown one */
    uint32_t character; /* of an unknown one                                    */
} bpe_alias_t;

typedef struct bpe {
    bool characters;            /* text starts as characters; false: as bytes                 */
    const piece_table_t *whole; /* a text that is one of these is taken at once; NULL: none   */
    uint32_t bytes[256];        /* symbol of a byte, alone or for an unknown character        */
    bool byte_fallback;         /* an unknown character becomes its bytes                     */
    uint32_t unknown;           /* symbol of an unknown character; BPE_NONE: it is left out    */
    bool fuse_unknown;          /* a run of unknown characters is one id                      */
    bool by_words;              /* a text may be cut where `neighbours` says                  */
    piece_neighbours_t neighbours;
    struct bpe_character {
        uint32_t character, symbol;
    } * table; /* open addressing; symbol BPE_NONE is free */
    size_t table_size, characters_known;
    bpe_merge_t *merges; /* open addressing */
    size_t merge_slots, merge_count;
    uint32_t first_alias;
    bpe_alias_t *aliases;
    size_t alias_count, alias_room;
    piece_trie_t frozen; /* strings taken before all else; the value is an alias's index */
    bool has_frozen;
    uint8_t *unused; /* by symbol: pieces that may be joined but are written as their parts; NULL */
} bpe_t;

static inline size_t bpe_merge_slot(const bpe_t *b, uint64_t pair)
{
    const size_t mask = b->merge_slots - 1;
    size_t slot = (size_t)((pair * 0x9E3779B97F4A7C15u) >> 32) & mask;
    while (b->merges[slot].pair != pair && b->merges[slot].pair != BPE_FREE)
        slot = (slot + 1) & mask;
    return slot;
}

/* What one thread needs: symbols of a piece, and a cache from short pieces to their ids. */
typedef struct bpe_scratch {
    struct bpe_symbol *symbols;
    uint64_t *heap;
    size_t heap_count;
    size_t room; /* symbols that fit */
    size_t count;
    uint64_t *undo; /* by symbol: the pair last seen for an unused piece */
    struct bpe_cached *cache;
} bpe_scratch_t;

void bpe_start(bpe_t *b); /* no symbols, no merges */
void bpe_free(bpe_t *b);
/* A later merge of the same pair replaces an earlier one, as in the reference readers. */
lh_status_t bpe_add_merge(bpe_t *b, uint32_t left, uint32_t right, uint32_t rank,
                          uint32_t made) LH_MUST_CHECK;
lh_status_t bpe_add_character(bpe_t *b, uint32_t character, uint32_t symbol) LH_MUST_CHECK;
uint32_t bpe_find_character(const bpe_t *b, uint32_t character);
lh_status_t bpe_add_alias(bpe_t *b, bpe_alias_t alias, uint32_t *symbol) LH_MUST_CHECK;

lh_status_t bpe_scratch_open(const bpe_t *b, bpe_scratch_t *s) LH_MUST_CHECK;
void bpe_scratch_close(bpe_scratch_t *s);

/* Appends the ids of a piece. `readable` bytes, at least length, may be read from text. out has
 * room for length more ids already: nothing is allocated unless the piece is longer than any
 * before. */
lh_status_t bpe_encode(const bpe_t *b, bpe_scratch_t *s, const char *text, size_t length,
                       size_t readable, token_ids_t *out) LH_MUST_CHECK;
/* The same for a text that is not cut yet: cut into words where no join can cross. */
lh_status_t bpe_encode_text(const bpe_t *b, bpe_scratch_t *s, const char *text, size_t length,
                            token_ids_t *out) LH_MUST_CHECK;

#endif
