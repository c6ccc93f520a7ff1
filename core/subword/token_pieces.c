/* token_pieces.c - an arena of bytes with a hash of ids over it, a trie with sibling lists behind a
 * table of first bytes, pairs of characters as bits, and GPT-2's alphabet of bytes. */
#include <subword/token_pieces.h>

#include <stdlib.h>

#include <base/digest.h>
#include <base/memory.h>
#include <base/text.h>

void token_ids_free(token_ids_t *ids)
{
    mem_free(ids->ids);
    *ids = (token_ids_t){0};
}

lh_status_t token_ids_reserve(token_ids_t *out, size_t more)
{
    int32_t *ids = mem_grow(out->ids, &out->capacity, out->count + more, sizeof(*ids));
    if (ids == NULL) return LH_NO_MEMORY;
    out->ids = ids;
    return LH_OK;
}

lh_status_t token_ids_add(token_ids_t *out, int32_t id)
{
    const lh_status_t status = token_ids_reserve(out, 1);
    if (status == LH_OK) out->ids[out->count++] = id;
    return status;
}

lh_status_t token_ids_parse(const char *text, token_ids_t *out)
{
    lh_status_t status = LH_OK;
    for (const char *at = text; status == LH_OK && *text != '\0';) {
        char *end;
        const long id = strtol(at, &end, 10);
        const size_t blanks = strspn(end, " ");
        if (end == at || id < 0 || id > INT32_MAX || (end[blanks] != ',' && end[blanks] != '\0'))
            return fail(LH_INVALID,
                        "ids '%s': token ids separated by commas are expected, not '%s'", text, at);
        status = token_ids_add(out, (int32_t)id);
        if (end[blanks] == '\0') break;
        at = end + blanks + 1;
    }
    return status;
}

/* Nodes lie in one array and name each other by index, as the array moves when it grows. */
static lh_status_t trie_node_new(piece_trie_t *t, uint8_t byte, uint32_t sibling, uint32_t *out)
{
    struct trie_node *nodes = mem_grow(t->nodes, &t->room, t->count + 2, sizeof(*nodes));
    if (nodes == NULL) return LH_NO_MEMORY;
    t->nodes = nodes;
    if (t->count == 0) t->count = 1; /* node 0 means none */
    nodes[t->count] = (struct trie_node){.sibling = sibling, .value = -1, .byte = byte};
    *out = (uint32_t)t->count++;
    return LH_OK;
}

/* 0: none */
static uint32_t child_of(const piece_trie_t *t, uint32_t node, uint8_t byte)
{
    uint32_t child = t->nodes[node].child;
    while (child != 0 && t->nodes[child].byte != byte)
        child = t->nodes[child].sibling;
    return child;
}

/* A new child comes first in its parent's list. On failure nodes without a value may be left, which
 * change nothing. */
lh_status_t piece_trie_add(piece_trie_t *t, const char *bytes, size_t length, int32_t value)
{
    lh_assert(length > 0 && value >= 0);
    lh_status_t status = LH_OK;
    uint32_t node = t->first[(uint8_t)bytes[0]];

    if (node == 0) {
        status = trie_node_new(t, (uint8_t)bytes[0], 0, &node);
        if (status != LH_OK) return status;
        t->first[(uint8_t)bytes[0]] = node;
    }
    for (size_t i = 1; i < length; i++) {
        uint32_t next = child_of(t, node, (uint8_t)bytes[i]);
        if (next == 0) {
            status = trie_node_new(t, (uint8_t)bytes[i], t->nodes[node].child, &next);
            if (status != LH_OK) return status;
            t->nodes[node].child = next;
        }
        node = next;
    }
    if (t->nodes[node].value < 0) t->nodes[node].value = value;
    return LH_OK;
}

/* Goes down as far as the text leads and remembers the last node with a value on the way. */
size_t piece_trie_longest(const piece_trie_t *t, const char *text, size_t length, int32_t *value)
{
    size_t longest = 0;
    uint32_t node = length == 0 ? 0 : t->first[(uint8_t)text[0]];

    for (size_t i = 1; node != 0; i++) {
        if (t->nodes[node].value >= 0) {
            longest = i;
            *value = t->nodes[node].value;
        }
        node = i < length ? child_of(t, node, (uint8_t)text[i]) : 0;
    }
    return longest;
}

void piece_trie_free(piece_trie_t *t)
{
    mem_free(t->nodes);
    *t = (piece_trie_t){0};
}

/* The id must be one that has a piece. */
static piece_t piece_at(const piece_table_t *t, uint32_t id)
{
    return (piece_t){t->bytes + t->places[id].start, t->places[id].length};
}

bool piece_table_get(const piece_table_t *t, uint32_t id, piece_t *out)
{
    if (id >= t->count || t->places[id].length == PIECE_ABSENT) return false;
    *out = piece_at(t, id);
    return true;
}

static const uint64_t HASH_HALF = (uint64_t)UINT32_MAX << 32;

/* The slot that holds the spelling, or the free one where it would go. The half of the hash in the
 * slot spares most looks at other pieces' bytes. */
static size_t table_slot(const piece_table_t *t, uint64_t hash, const char *bytes, size_t length)
{
    const size_t mask = t->slot_count - 1;
    size_t slot = (size_t)hash & mask;

    for (; t->slots[slot] != 0; slot = (slot + 1) & mask) {
        if (((t->slots[slot] ^ hash) & HASH_HALF) != 0) continue;
        const piece_t piece = piece_at(t, (uint32_t)t->slots[slot] - 1);
        if (piece.length == length && memcmp(piece.bytes, bytes, length) == 0) break;
    }
    return slot;
}

int32_t piece_table_find(const piece_table_t *t, const char *bytes, size_t length)
{
    if (t->slot_count == 0) return -1;
    return (int32_t)(uint32_t)t->slots[table_slot(t, digest_xxh3(bytes, length), bytes, length)] -
           1;
}

/* Four times the slots, as a vocabulary is read once and grows to its full size; all pieces are
 * hashed again. */
static lh_status_t grow_slots(piece_table_t *t)
{
    const size_t count = t->slot_count == 0 ? 1024 : t->slot_count * 4;
    uint64_t *slots = mem_array(count, sizeof(*slots));
    if (slots == NULL) return LH_NO_MEMORY;

    mem_free(t->slots);
    t->slots = slots;
    t->slot_count = count;
    for (uint32_t id = 0; id < t->count; id++) {
        piece_t piece;
        if (!piece_table_get(t, id, &piece)) continue;
        const uint64_t hash = digest_xxh3(piece.bytes, piece.length);
        slots[table_slot(t, hash, piece.bytes, piece.length)] = (hash & HASH_HALF) | (id + 1);
    }
    return LH_OK;
}

/* Room for a piece of this id and length in each of the three arrays, so that piece_table_add can't
 * fail in between. */
static lh_status_t table_reserve(piece_table_t *t, uint32_t id, size_t length)
{
    if (t->bytes_used + length >= PIECE_ABSENT)
        return fail(LH_NO_MEMORY, "a vocabulary of more than %d bytes is not supported",
                    PIECE_ABSENT);
    char *bytes = mem_grow(t->bytes, &t->bytes_room, t->bytes_used + length + 1, 1);
    if (bytes == NULL) return LH_NO_MEMORY;
    t->bytes = bytes;

    struct piece_place *places = mem_grow(t->places, &t->room, (size_t)id + 1, sizeof(*places));
    if (places == NULL) return LH_NO_MEMORY;
    t->places = places;
    return t->pieces * 2 >= t->slot_count ? grow_slots(t) : LH_OK;
}

/* Both refusals come before anything is changed but room for the piece. */
lh_status_t piece_table_add(piece_table_t *t, const char *path, uint32_t id, const char *bytes,
                            size_t length)
{
    piece_t other;
    if (piece_table_get(t, id, &other))
        return fail(LH_INVALID, "%s: the pieces '%.*s' and '%.*s' both have the id %u", path,
                    (int)other.length, other.bytes, (int)length, bytes, id);
    const lh_status_t status = table_reserve(t, id, length);
    if (status != LH_OK) return status;

    lh_assert(t->pieces < t->slot_count && id < t->room);
    const uint64_t hash = digest_xxh3(bytes, length);
    const size_t slot = table_slot(t, hash, bytes, length);
    if (t->slots[slot] != 0)
        return fail(LH_INVALID, "%s: the piece '%.*s' is there twice, with the ids %u and %u", path,
                    (int)length, bytes, (uint32_t)t->slots[slot] - 1, id);
    memcpy(t->bytes + t->bytes_used, bytes, length);
    /* Ids that were jumped over have no piece, until one is added for them. */
    for (; t->count <= id; t->count++)
        t->places[t->count].length = PIECE_ABSENT;
    t->places[id] = (struct piece_place){(uint32_t)t->bytes_used, (uint32_t)length};
    t->slots[slot] = (hash & HASH_HALF) | (id + 1);
    t->bytes_used += length;
    t->pieces++;
    return LH_OK;
}

void piece_table_free(piece_table_t *t)
{
    mem_free(t->bytes);
    mem_free(t->places);
    mem_free(t->slots);
    *t = (piece_table_t){0};
}

/* Neighbours: pairs of characters as bits. A character is its bytes as a number, the first one
 * lowest, so that a part of one is a number as well.
 *
 * Of these bits there are so many for each piece, at least 4 Ki and at most 16 Mi, which is 2
 * MiB. */
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

/* More bits for more pieces keep the share of them that are set, and with it that of cuts that are
 * missed, about the same. */
lh_status_t piece_neighbours_open(piece_neighbours_t *n, size_t pieces)
{
    uint32_t log2 = BITS_LEAST_LOG2;
    while (log2 < BITS_MOST_LOG2 && pieces * BITS_PER_PIECE > (size_t)1 << log2)
        log2++;
    *n = (piece_neighbours_t){.shift = 64 - log2};
    if (pieces == 0) return LH_OK;
    n->pairs = mem_new((size_t)1 << log2 >> 3);
    return n->pairs == NULL ? LH_NO_MEMORY : LH_OK;
}

void piece_neighbours_close(piece_neighbours_t *n)
{
    mem_free(n->pairs);
    n->pairs = NULL;
}

/* The number of the bit of a pair. */
static uint64_t hash_of(const piece_neighbours_t *n, uint32_t left, uint32_t right)
{
    return (((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u) >> n->shift;
}

static bool has_pair(const piece_neighbours_t *n, uint32_t left, uint32_t right)
{
    const uint64_t hash = hash_of(n, left, right);
    return (n->pairs[hash >> 6] >> (hash & 63) & 1) != 0;
}

/* Of parts[], which says beside which characters a look for parts is worth it. */
static size_t part_slot(uint32_t character)
{
    return character * 0x9E3779B1u >> 20;
}

/* The next character of a piece, or what the piece has of it: bytes that follow without a first
 * byte are the tail of one, up to three; a first byte with less than its followers is the head of
 * one. */
static unit_t next_unit(const char *piece, size_t length, size_t *at)
{
    lh_assert(*at < length);
    const size_t start = *at;
    const unsigned char first = (unsigned char)piece[start];
    const bool tail = text_utf8_follows(piece[start]);
    const size_t most = tail ? 3 : text_utf8_size(first);
    unit_t unit = {.bytes = first, .tail = tail};
    size_t size = 1;

    for (; size < most && start + size < length; size++) {
        const char byte = piece[start + size];
        if (!text_utf8_follows(byte)) break;
        unit.bytes |= (uint32_t)(unsigned char)byte << (8 * size);
    }
    unit.head = !tail && size < most;
    *at = start + size;
    return unit;
}

void piece_neighbours_add_ascii(piece_neighbours_t *n, unsigned char left, unsigned char right)
{
    n->ascii[left][right >> 6] |= 1ull << (right & 63);
}

/* A pair of two whole ASCII characters has a bit of its own, any other one of the hash. Where one
 * of the two is a part of a character, its whole neighbour is marked, as the text that is cut later
 * has whole characters only. */
static void add_pair(piece_neighbours_t *n, unit_t left, unit_t right)
{
    if ((left.bytes | right.bytes) < 0x80) {
        piece_neighbours_add_ascii(n, (unsigned char)left.bytes, (unsigned char)right.bytes);
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

void piece_neighbours_add(piece_neighbours_t *n, const char *piece, size_t length)
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
static bool meet_in_parts(const piece_neighbours_t *n, uint32_t left, uint32_t right,
                          uint32_t right_size)
{
    uint32_t tail = left;
    /* All tails of the left character, from its whole down to its last byte, beside all heads of
     * the right one: at most 4 x 4 pairs. */
    do {
        for (uint32_t size = 1; size <= right_size; size++)
            if (has_pair(n, tail, right & UINT32_MAX >> (32 - 8 * size))) return true;
        tail >>= 8;
    } while (tail != 0);
    return false;
}

/* Whether some piece has the two beside each other, or might have. Without pairs (only ASCII is
 * told) all beyond ASCII meet, but for a space mark behind another character: with no mark inside
 * of pieces a word begins there. */
static bool characters_meet(const piece_neighbours_t *n, uint32_t left, uint32_t right,
                            uint32_t right_size)
{
    if ((left | right) < 0x80) return (n->ascii[left][right >> 6] >> (right & 63) & 1) != 0;
    if (n->pairs == NULL) return right != MARK || left == MARK;
    if (has_pair(n, left, right)) return true;
    const bool in_parts = (n->parts[part_slot(left)] & BEFORE_PART) != 0 ||
                          (n->parts[part_slot(right)] & AFTER_PART) != 0 ||
                          n->part_heads[right & 0xFF] != 0;
    return in_parts && meet_in_parts(n, left, right, right_size);
}

/* The character as the number of its bytes, not decoded: comparing and hashing need no more. */
static uint32_t character_at(const unsigned char *p, uint32_t *size)
{
    *size = text_utf8_size(*p);
    switch (*size) {
    case 1: return p[0];
    case 2: return p[0] | (uint32_t)p[1] << 8;
    case 3: return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16;
    default: return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    }
}

/* Goes on as long as the two characters at hand may be inside of one piece. */
size_t piece_neighbours_word(const piece_neighbours_t *n, const char *text, size_t length)
{
    lh_assert(length > 0);
    const unsigned char *p = (const unsigned char *)text, *end = p + length;
    uint32_t size, left = character_at(p, &size);

    for (p += size; p < end; p += size) {
        const uint32_t right = character_at(p, &size);
        if (!characters_meet(n, left, right, size)) break;
        left = right;
    }
    return (size_t)(p - (const unsigned char *)text);
}

/* Bytes that stand for themselves in the alphabet: what Latin-1 prints, without the spaces and the
 * soft hyphen. */
static bool is_printable_byte(uint32_t byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
           (byte >= 0xAE && byte <= 0xFF);
}

/* Printable bytes are themselves; the 68 others follow each other from U+0100 on, in order. */
uint32_t piece_character_of_byte(uint8_t byte)
{
    if (is_printable_byte(byte)) return byte;
    /* the others, in order, follow U+0100: 0-32, 127-160, 173 */
    return 0x100u + (byte <= 32 ? byte : byte <= 160 ? byte - 94u : 67u);
}

/* The inverse: 33 from 0 on, 34 from 127 on, and the soft hyphen, 173. */
int piece_byte_of_character(uint32_t character)
{
    if (character < 0x100) return is_printable_byte(character) ? (int)character : -1;
    const uint32_t n = character - 0x100;
    if (n > 67) return -1;
    return n <= 32 ? (int)n : n <= 66 ? (int)n + 94 : 173;
}

bool piece_append_bytes(piece_t piece, text_t *out)
{
    const unsigned char *p = (const unsigned char *)piece.bytes, *end = p + piece.length;
    const size_t before = out->length;

    for (uint32_t size; p < end; p += size) {
        const int byte = piece_byte_of_character(text_utf8_decode(p, end, &size));
        if (byte < 0) {
            out->length = before;
            return false;
        }
        text_append_n(out, &(char){(char)byte}, 1);
    }
    return true;
}
