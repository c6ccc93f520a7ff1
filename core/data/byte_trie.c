/* byte_trie.c - nodes with sibling lists behind a table of first bytes. */
#include <data/byte_trie.h>

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
