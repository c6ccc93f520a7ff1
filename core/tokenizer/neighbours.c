/* neighbours.c - pairs of characters as bits. A character is its bytes as a number, the first one
 * lowest, so that a part of one is a number as well. */
#include <tokenizer/neighbours.h>

#include <base/memory.h>
#include <tokenizer/unicode.h>

enum { BITS_PER_PIECE = 8, BITS_LEAST_LOG2 = 12, BITS_MOST_LOG2 = 24 };
enum { MARK = 0x8196E2 }; /* U+2581 */

enum {                  /* of parts[] */
       BEFORE_PART = 1, /* a piece ends inside of the character after this one   */
       AFTER_PART = 2,  /* a piece begins inside of the character before this one */
};

/* One character of a piece, or the part of one that the piece has. */
typedef struct unit {
    uint32_t bytes;
    bool tail, head; /* lacks its first bytes, its last */
} unit_t;

lh_status_t neighbours_open(neighbours_t *n, size_t pieces)
{
    uint32_t log2 = BITS_LEAST_LOG2;
    while (log2 < BITS_MOST_LOG2 && pieces * BITS_PER_PIECE > (size_t)1 << log2)
        log2++;
    *n = (neighbours_t){.shift = 64 - log2};
    if (pieces == 0) return LH_OK;
    n->pairs = mem_new((size_t)1 << log2 >> 3);
    return n->pairs == NULL ? LH_NO_MEMORY : LH_OK;
}

void neighbours_close(neighbours_t *n)
{
    mem_free(n->pairs);
    n->pairs = NULL;
}

static uint64_t hash_of(const neighbours_t *n, uint32_t left, uint32_t right)
{
    return (((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u) >> n->shift;
}

static bool has_pair(const neighbours_t *n, uint32_t left, uint32_t right)
{
    const uint64_t hash = hash_of(n, left, right);
    return (n->pairs[hash >> 6] >> (hash & 63) & 1) != 0;
}

static size_t part_slot(uint32_t character)
{
    return character * 0x9E3779B1u >> 20;
}

static unit_t next_unit(const char *piece, size_t length, size_t *at)
{
    lh_assert(*at < length);
    const size_t start = *at;
    const unsigned char first = (unsigned char)piece[start];
    const bool tail = (first & 0xC0) == 0x80;
    const size_t most = tail ? 3 : utf8_size(first);
    unit_t unit = {.bytes = first, .tail = tail};
    size_t size = 1;

    for (; size < most && start + size < length; size++) {
        const unsigned char byte = (unsigned char)piece[start + size];
        if ((byte & 0xC0) != 0x80) break;
        unit.bytes |= (uint32_t)byte << (8 * size);
    }
    unit.head = !tail && size < most;
    *at = start + size;
    return unit;
}

void neighbours_add_ascii(neighbours_t *n, unsigned char left, unsigned char right)
{
    n->ascii[left][right >> 6] |= 1ull << (right & 63);
}

static void add_pair(neighbours_t *n, unit_t left, unit_t right)
{
    if ((left.bytes | right.bytes) < 0x80) {
        neighbours_add_ascii(n, (unsigned char)left.bytes, (unsigned char)right.bytes);
        return;
    }
    if (n->pairs == NULL) return;
    const uint64_t hash = hash_of(n, left.bytes, right.bytes);
    n->pairs[hash >> 6] |= 1ull << (hash & 63);
    if (left.tail && right.head)
        n->part_heads[right.bytes & 0xFF] = 1;
    else if (right.head)
        n->parts[part_slot(left.bytes)] |= BEFORE_PART;
    else if (left.tail)
        n->parts[part_slot(right.bytes)] |= AFTER_PART;
}

void neighbours_add(neighbours_t *n, const char *piece, size_t length)
{
    size_t at = 0;
    if (length == 0) return;
    unit_t left = next_unit(piece, length, &at);
    while (at < length) {
        const unit_t right = next_unit(piece, length, &at);
        add_pair(n, left, right);
        left = right;
    }
}

/* True if a piece has the end of the left one beside the start of the right one. */
static bool meet_in_parts(const neighbours_t *n, uint32_t left, uint32_t right, uint32_t right_size)
{
    uint32_t tail = left;
    do {
        for (uint32_t size = 1; size <= right_size; size++)
            if (has_pair(n, tail, right & UINT32_MAX >> (32 - 8 * size))) return true;
        tail >>= 8;
    } while (tail != 0);
    return false;
}

static bool meet(const neighbours_t *n, uint32_t left, uint32_t right, uint32_t right_size)
{
    if ((left | right) < 0x80) return (n->ascii[left][right >> 6] >> (right & 63) & 1) != 0;
    if (n->pairs == NULL) return right != MARK || left == MARK;
    if (has_pair(n, left, right)) return true;
    const bool in_parts = (n->parts[part_slot(left)] & BEFORE_PART) != 0 ||
                          (n->parts[part_slot(right)] & AFTER_PART) != 0 ||
                          n->part_heads[right & 0xFF] != 0;
    return in_parts && meet_in_parts(n, left, right, right_size);
}

static uint32_t character_at(const unsigned char *p, uint32_t *size)
{
    *size = utf8_size(*p);
    switch (*size) {
    case 1: return p[0];
    case 2: return p[0] | (uint32_t)p[1] << 8;
    case 3: return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16;
    default: return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    }
}

size_t neighbours_word(const neighbours_t *n, const char *text, size_t length)
{
    lh_assert(length > 0);
    const unsigned char *p = (const unsigned char *)text, *end = p + length;
    uint32_t size, left = character_at(p, &size);

    for (p += size; p < end; p += size) {
        const uint32_t right = character_at(p, &size);
        if (!meet(n, left, right, size)) break;
        left = right;
    }
    return (size_t)(p - (const unsigned char *)text);
}
