/* subword/double_array.h - a set of strings that is made once and then walked through byte by
 * byte: the trie in which the models look for all pieces that a text starts with.
 *
 * A trie as a double array (Aoe, 1989): a node's child by a byte is the unit at base + byte, and is
 * one if that unit says that the node is its parent. So a step is one look at 16 bytes, where a
 * list of siblings is several. The price is that nothing is added once it is made; for that there
 * is piece_trie_t. */
#ifndef SUBWORD_DOUBLE_ARRAY_H
#define SUBWORD_DOUBLE_ARRAY_H

#include <base/status.h>

/* A node, or a place that none has taken. */
typedef struct array_unit {
    uint32_t base;   /* where children are, by byte  */
    uint32_t parent; /* ARRAY_NONE: no node is here  */
    int32_t value;   /* -1: no string ends here      */
} array_unit_t;

enum { ARRAY_ROOT = 0, ARRAY_NONE = 0x7FFFFFFF };

/* Never changes once it is made: shared by threads. Zero-initialise; an empty one has no units and
 * must not be walked through. */
typedef struct double_array {
    /* [count]; behind every base that a node has are 256 units, so a step needs no check */
    array_unit_t *units;
    size_t count, room;
} double_array_t;

/* What goes in: strings with a value of at least 0 each, none empty, none twice. Bytes are
 * borrowed until the array is made. */
typedef struct array_entry {
    const char *bytes;
    uint32_t length;
    int32_t value;
} array_entry_t;

/* Sorts the entries. Without any the array is a root without children. What would take more than
 * ARRAY_MOST units, which is a gigabyte, is refused; `path` is for the sentence. */
enum { ARRAY_MOST = 1 << 26 };
lh_status_t double_array_make(const char *path, array_entry_t *entries, size_t count,
                              double_array_t *out) LH_MUST_CHECK;
void double_array_free(double_array_t *a);

/* The child of a node by a byte; NULL: it has none. The first node is ARRAY_ROOT. */
static inline const array_unit_t *double_array_step(const double_array_t *a, uint32_t *node,
                                                    unsigned char byte)
{
    const uint32_t at = a->units[*node].base + byte;
    const array_unit_t *unit = &a->units[at];
    if (unit->parent != *node) return NULL;
    *node = at;
    return unit;
}

/* The length of the longest string that text starts with and its value; 0 if none does. */
size_t double_array_longest(const double_array_t *a, const char *text, size_t length,
                            int32_t *value);

#endif
