/* bpe.c - the symbols and joins of a byte-pair encoding, as hash tables. */
#include <data/bpe.h>

#include <base/memory.h>

enum { FIRST_SLOTS = 1024 };

void bpe_start(bpe_t *b)
{
    *b = (bpe_t){.unknown = BPE_NONE};
    for (size_t i = 0; i < 256; i++)
        b->bytes[i] = BPE_NONE;
}

void bpe_free(bpe_t *b)
{
    mem_free(b->table);
    mem_free(b->merges);
    mem_free(b->aliases);
    mem_free(b->unused);
    byte_trie_free(&b->frozen);
    neighbours_close(&b->neighbours);
    *b = (bpe_t){0};
}

static lh_status_t grow_merges(bpe_t *b)
{
    const size_t old_slots = b->merge_slots, slots = old_slots == 0 ? FIRST_SLOTS : old_slots * 2;
    bpe_merge_t *old = b->merges, *merges = mem_array(slots, sizeof(*merges));
    if (merges == NULL) return LH_NO_MEMORY;

    for (size_t i = 0; i < slots; i++)
        merges[i].pair = BPE_FREE;
    b->merges = merges;
    b->merge_slots = slots;
    for (size_t i = 0; i < old_slots; i++)
        if (old[i].pair != BPE_FREE) merges[bpe_merge_slot(b, old[i].pair)] = old[i];
    mem_free(old);
    return LH_OK;
}

lh_status_t bpe_add_merge(bpe_t *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t made)
{
    if (b->merge_count * 2 >= b->merge_slots) {
        const lh_status_t status = grow_merges(b);
        if (status != LH_OK) return status;
    }
    const uint64_t pair = (uint64_t)left << 32 | right;
    bpe_merge_t *merge = &b->merges[bpe_merge_slot(b, pair)];

    if (merge->pair == BPE_FREE) b->merge_count++;
    *merge = (bpe_merge_t){pair, rank, made};
    return LH_OK;
}

static size_t character_slot(const bpe_t *b, uint32_t character)
{
    const size_t mask = b->table_size - 1;
    size_t slot = (character * 0x9E3779B1u >> 7) & mask;
    while (b->table[slot].symbol != BPE_NONE && b->table[slot].character != character)
        slot = (slot + 1) & mask;
    return slot;
}

uint32_t bpe_find_character(const bpe_t *b, uint32_t character)
{
    return b->table_size == 0 ? BPE_NONE : b->table[character_slot(b, character)].symbol;
}

static lh_status_t grow_characters(bpe_t *b)
{
    const size_t old_size = b->table_size, size = old_size == 0 ? FIRST_SLOTS : old_size * 2;
    struct bpe_character *old = b->table, *table = mem_array(size, sizeof(*table));
    if (table == NULL) return LH_NO_MEMORY;

    for (size_t i = 0; i < size; i++)
        table[i].symbol = BPE_NONE;
    b->table = table;
    b->table_size = size;
    for (size_t i = 0; i < old_size; i++)
        if (old[i].symbol != BPE_NONE) table[character_slot(b, old[i].character)] = old[i];
    mem_free(old);
    return LH_OK;
}

lh_status_t bpe_add_character(bpe_t *b, uint32_t character, uint32_t symbol)
{
    if (b->characters_known * 2 >= b->table_size) {
        const lh_status_t status = grow_characters(b);
        if (status != LH_OK) return status;
    }
    struct bpe_character *place = &b->table[character_slot(b, character)];
    if (place->symbol == BPE_NONE) b->characters_known++;
    *place = (struct bpe_character){character, symbol};
    return LH_OK;
}

lh_status_t bpe_add_alias(bpe_t *b, bpe_alias_t alias, uint32_t *symbol)
{
    bpe_alias_t *aliases = mem_grow(b->aliases, &b->alias_room, b->alias_count + 1,
                                    sizeof(*aliases));
    if (aliases == NULL) return LH_NO_MEMORY;
    b->aliases = aliases;
    *symbol = b->first_alias + (uint32_t)b->alias_count;
    aliases[b->alias_count++] = alias;
    return LH_OK;
}
