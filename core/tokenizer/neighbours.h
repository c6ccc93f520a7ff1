/* tokenizer/neighbours.h - which characters stand side by side in some piece of a vocabulary. Where two
 * never do, no join crosses, and a text may be cut between them without becoming other ids. Texts
 * must be UTF-8; pieces may begin and end inside of a character. */
#ifndef TOKENIZER_NEIGHBOURS_H
#define TOKENIZER_NEIGHBOURS_H

#include <base/status.h>

enum { NEIGHBOUR_HASHES = 1 << 12 };

typedef struct neighbours {
    uint64_t ascii[128][2]; /* by the left one; a bit per right one                              */
    uint64_t *pairs;        /* a bit per hash of two; NULL: beyond ASCII all stand side by side,
                               but for a space mark (U+2581) after another character             */
    uint32_t shift;         /* of the hash                                                       */
    uint8_t parts[NEIGHBOUR_HASHES]; /* by hash of a character: what pieces cut beside it        */
    uint8_t part_heads[256];         /* by first byte: pieces hold only parts of both            */
} neighbours_t;

/* `pieces` is how many will be added, more or less; 0: only ASCII is to be told. */
lh_status_t neighbours_open(neighbours_t *n, size_t pieces) LH_MUST_CHECK;
void neighbours_close(neighbours_t *n);
void neighbours_add(neighbours_t *n, const char *piece, size_t length);
void neighbours_add_ascii(neighbours_t *n, unsigned char left, unsigned char right);

/* Where the first word of a text (UTF-8, whole characters, at least one) ends: before the first
 * character that does not stand beside the one before it in any piece. */
size_t neighbours_word(const neighbours_t *n, const char *text, size_t length);

#endif
