/* data/bpe_join.h - the symbols of a piece, joined as far as they go. For bpe_encode.c only. */
#ifndef DATA_BPE_JOIN_H
#define DATA_BPE_JOIN_H

#include <data/bpe.h>

typedef struct bpe_symbol {
    uint32_t symbol;
    uint32_t rank, made; /* of this and the next one, while they are joined */
    uint32_t previous, next;
} bpe_symbol_t;

#define BPE_UNDO_SEEN (1ull << 63) /* symbols are below 2^31 */

/* Leaves s->count symbols in s->symbols. */
lh_status_t bpe_join(const bpe_t *b, bpe_scratch_t *s, const char *text,
                     size_t length) LH_MUST_CHECK;

#endif
