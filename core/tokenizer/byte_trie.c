/* byte_trie.c - nodes with sibling lists behind a table of first bytes. */
#include <tokenizer/byte_trie.h>

#include <base/digest.h>
#include <base/memory.h>

static lh_status_t node_new(byte_trie_t *t, uint8_t byte, uint32_t sibling, uint32_t *out)
{
    struct trie_node *nodes = mem_grow(t->nodes, &t->room, t->count + 2, sizeof(*nodes));
    if (nodes == NULL) return LH_NO_MEMORY;
    t->nodes = nodes;
    if (t->count == 0) t->count = 1; /* node 0 means none */
    nodes[t->count] = (struct trie_node){.sibling = sibling, .value = -1, .byte = byte};
    *out = (uint32_t)t->count++;
    return LH_OK;
}

static uint32_t child_of(const byte_trie_t *t, uint32_t node, uint8_t byte)
{
    uint32_t child = t->nodes[node].child;
    while (child != 0 && t->nodes[child].byte != byte)
        child = t->nodes[child].sibling;
    return child;
}

lh_status_t byte_trie_add(byte_trie_t *t, const char *bytes, size_t length, int32_t value)
{
    lh_assert(length > 0 && value >= 0);
    lh_status_t status = LH_OK;
    uint32_t node = t->first[(uint8_t)bytes[0]];

    if (node == 0) {
        status = node_new(t, (uint8_t)bytes[0], 0, &node);
        if (status != LH_OK) return status;
        t->first[(uint8_t)bytes[0]] = node;
    }
    for (size_t i = 1; i < length; i++) {
        uint32_t next = child_of(t, node, (uint8_t)bytes[i]);
        if (next == 0) {
            status = node_new(t, (uint8_t)bytes[i], t->nodes[node].child, &next);
            if (status != LH_OK) return status;
            t->nodes[node].child = next;
        }
        node = next;
    }
    if (t->nodes[node].value < 0) t->nodes[node].value = value;
    return LH_OK;
}

size_t byte_trie_longest(const byte_trie_t *t, const char *text, size_t length, int32_t *value)
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

void byte_trie_free(byte_trie_t *t)
{
    mem_free(t->nodes);
    *t = (byte_trie_t){0};
}

/* An arena of bytes with a hash of ids over it. */
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
static size_t slot_of(const piece_table_t *t, uint64_t hash, const char *bytes, size_t length)
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
    return (int32_t)(uint32_t)t->slots[slot_of(t, xxh3(bytes, length), bytes, length)] - 1;
}

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
        const uint64_t hash = xxh3(piece.bytes, piece.length);
        slots[slot_of(t, hash, piece.bytes, piece.length)] = (hash & HASH_HALF) | (id + 1);
    }
    return LH_OK;
}

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
    const uint64_t hash = xxh3(bytes, length);
    const size_t slot = slot_of(t, hash, bytes, length);
    if (t->slots[slot] != 0)
        return fail(LH_INVALID, "%s: the piece '%.*s' is there twice, with the ids %u and %u", path,
                    (int)length, bytes, (uint32_t)t->slots[slot] - 1, id);
    memcpy(t->bytes + t->bytes_used, bytes, length);
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
