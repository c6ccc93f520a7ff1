/* subword/bpe.h - byte-pair encoding of one piece of text.
 *
 * A text is first written as symbols, one for each byte or character. Then the two neighbours whose
 * pair has the lowest rank in the list of merges become one symbol, the leftmost two among equals,
 * and so on until no two neighbours make a pair. What is left are the ids. This is the greedy order
 * of Sennrich et al. (2016), which every reference implementation keeps to; another order would
 * give other ids.
 *
 * A bpe_t is filled by the reader of a file and then only read, so threads share it. What an encode
 * writes to lies in a bpe_scratch_t, one for each thread. */
#ifndef SUBWORD_BPE_H
#define SUBWORD_BPE_H

#include <subword/token_pieces.h>
#include <subword/word_cache.h>

/* No symbol: symbols are below 2^31, so that an id fits an int32_t and the top bit of a pair is
 * free. */
enum { BPE_NONE = 0x7FFFFFFF };
/* A slot of the table of merges that holds none. It is no pair, as no symbol is UINT32_MAX. */
#define BPE_FREE UINT64_MAX

/* Where in its piece a character stands, above its 21 bits, where symbols depend on that: behind
 * another one, and at the end. */
enum { BPE_CONTINUES = 1 << 21, BPE_ENDS = 1 << 22 };

typedef struct bpe_merge {
    uint64_t pair; /* left symbol << 32 | right symbol; BPE_FREE: an empty slot */
    uint32_t rank; /* lower is joined earlier                                   */
    uint32_t made; /* the symbol of both                                        */
} bpe_merge_t;

/* What a symbol stands for that is not the id of a piece. A symbol below bpe_t.first_alias is a
 * piece's id; one from there on is an alias: a character that stands inside of pieces without being
 * one itself, which is joined like any other but is written as unknown where it is left alone; or a
 * piece that is taken whole from the text and never joined further. */
typedef struct bpe_alias {
    int32_t id;         /* what is written; -1: the character as an unknown one */
    uint32_t character; /* of an unknown one                                    */
} bpe_alias_t;

/* How texts become ids, as a file says it. Owned by the tokenizer; the arrays in it are freed by
 * bpe_free. */
typedef struct bpe {
    /* A text starts as one symbol for each character; false: one for each byte. */
    bool characters;
    /* Of BPE_CONTINUES and BPE_ENDS those on which the symbol of a character or byte depends: both
     * are in the table below then, with their place. 0: neither. */
    uint32_t places;
    /* A text that is one of these pieces is taken at once, without joining; NULL: none is. It is a
     * table of the tokenizer's. */
    const piece_table_t *whole;
    /* The symbol of each byte, BPE_NONE where it has none: where texts start as bytes, and with
     * byte_fallback those that an unknown character is written as. */
    uint32_t bytes[256];
    /* An unknown character becomes its bytes' symbols. */
    bool byte_fallback;
    /* What an unknown character becomes without byte_fallback; BPE_NONE: it is left out. */
    uint32_t unknown;
    /* A run of unknown characters is one id and not one each. */
    bool fuse_unknown;
    /* A text may be cut into words where `neighbours` says so, without changing its ids. Set by
     * tokenizer_cut_words once all merges are known. */
    bool by_words;
    /* Which characters stand side by side in a piece; valid where by_words is set. */
    piece_neighbours_t neighbours;
    /* The symbol of each character, where a text starts as characters: a hash table with open
     * addressing, at most half full. The symbol of a free slot is BPE_NONE. */
    struct bpe_character {
        uint32_t character, symbol;
    } * table; /* open addressing; symbol BPE_NONE is free */
    size_t table_size, characters_known;
    /* The merges by their pair: a hash table with open addressing, at most half full, so a search
     * for a pair that is none soon meets a free slot. */
    bpe_merge_t *merges; /* open addressing */
    size_t merge_slots, merge_count;
    /* Aliases have the symbols from here on, in the order in which they were added. It is the
     * number of pieces, which therefore have all been read before the first alias is made. */
    uint32_t first_alias;
    bpe_alias_t *aliases;
    size_t alias_count, alias_room;
    /* Pieces that are taken from a text before it is cut into characters, as sentencepiece does
     * with those that a user has defined. */
    piece_trie_t frozen; /* strings taken before all else; the value is an alias's index */
    bool has_frozen;
    /* By symbol: pieces that take part in joins but are written as the two that they were joined
     * from, as sentencepiece has it for those of type unused. NULL: there are none. */
    uint8_t *unused;
} bpe_t;

/* The slot that holds a pair, or the free one where it would go. Inline as it is the innermost step
 * of every encode: about two looks for each symbol of a text. The factor is 2^64 divided by the
 * golden ratio, which spreads pairs of small ids over the upper half of the product (Fibonacci
 * hashing). */
static inline size_t bpe_merge_slot(const bpe_t *b, uint64_t pair)
{
    const size_t mask = b->merge_slots - 1;
    size_t slot = (size_t)((pair * 0x9E3779B97F4A7C15u) >> 32) & mask;
    while (b->merges[slot].pair != pair && b->merges[slot].pair != BPE_FREE)
        slot = (slot + 1) & mask;
    return slot;
}

/* What one thread writes to while it encodes. It is kept from text to text: symbols and heap grow
 * to the longest piece so far, and the cache remembers what short pieces became. */
typedef struct bpe_scratch {
    /* [room] the piece at hand, count of them */
    struct bpe_symbol *symbols;
    /* [3 * room] joins that are possible, for long pieces only */
    uint64_t *heap;
    size_t heap_count;
    size_t room; /* symbols that fit */
    size_t count;
    uint64_t *undo; /* by symbol: the pair last seen for an unused piece */
    /* [WORD_SLOTS] short texts and their ids */
    word_cached_t *cache;
} bpe_scratch_t;

void bpe_start(bpe_t *b); /* no symbols, no merges */
/* Leaves b as if nothing had ever been in it. */
void bpe_free(bpe_t *b);
/* A later merge of the same pair replaces an earlier one, as in the reference readers. */
lh_status_t bpe_add_merge(bpe_t *b, uint32_t left, uint32_t right, uint32_t rank,
                          uint32_t made) LH_MUST_CHECK;
/* The last symbol that is given for a character counts. */
lh_status_t bpe_add_character(bpe_t *b, uint32_t character, uint32_t symbol) LH_MUST_CHECK;
/* BPE_NONE: the character is neither a piece nor a part of one. */
uint32_t bpe_find_character(const bpe_t *b, uint32_t character);
/* Makes a new symbol. first_alias must be set. */
lh_status_t bpe_add_alias(bpe_t *b, bpe_alias_t alias, uint32_t *symbol) LH_MUST_CHECK;

/* Takes the memory of the cache, 2 MiB; needs b complete. */
lh_status_t bpe_scratch_open(const bpe_t *b, bpe_scratch_t *s) LH_MUST_CHECK;
void bpe_scratch_close(bpe_scratch_t *s);

/* Appends the ids of a piece. `readable` bytes, at least length, may be read from text. out has
 * room for length more ids already: nothing is allocated unless the piece is longer than any
 * before. */
lh_status_t bpe_encode(const bpe_t *b, bpe_scratch_t *s, const char *text, size_t length,
                       size_t readable, token_ids_t *out) LH_MUST_CHECK;
/* As bpe_encode, for a text that is not cut yet: cut into words where no join can cross. */
lh_status_t bpe_encode_text(const bpe_t *b, bpe_scratch_t *s, const char *text, size_t length,
                            token_ids_t *out) LH_MUST_CHECK;

#endif
