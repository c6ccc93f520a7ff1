/* charsmap.c - reads and walks the double array (Darts-clone) inside a precompiled charsmap.
 * Nothing in it is trusted: every index is checked where it is used. */
#include <data/charsmap.h>

#include <base/memory.h>

static uint32_t read_u32(const char *bytes)
{
    const unsigned char *b = (const unsigned char *)bytes;
    return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

lh_status_t charsmap_read(const char *path, const char *bytes, size_t length, charsmap_t *out)
{
    charsmap_t map = {0};
    if (length == 0) {
        *out = map;
        return LH_OK;
    }
    if (length < 4)
        return fail(LH_INVALID, "%s: the charsmap has %zu bytes; it starts with 4", path, length);
    const uint32_t trie_bytes = read_u32(bytes);
    if (trie_bytes % 4 != 0 || trie_bytes == 0 || trie_bytes >= length - 4)
        return fail(LH_INVALID, "%s: the charsmap's trie has %u bytes of the map's %zu", path,
                    trie_bytes, length);
    if (bytes[length - 1] != '\0')
        return fail(LH_INVALID, "%s: the charsmap's last replacement has no end", path);

    map.unit_count = trie_bytes / 4;
    map.string_bytes = length - 4 - trie_bytes;
    map.units = mem_array(map.unit_count, sizeof(*map.units));
    map.strings = mem_text_n(bytes + 4 + trie_bytes, map.string_bytes);
    if (map.units == NULL || map.strings == NULL) {
        charsmap_free(&map);
        return LH_NO_MEMORY;
    }
    for (size_t i = 0; i < map.unit_count; i++)
        map.units[i] = read_u32(bytes + 4 + i * 4);
    *out = map;
    return LH_OK;
}

void charsmap_free(charsmap_t *m)
{
    mem_free(m->units);
    mem_free(m->strings);
    *m = (charsmap_t){0};
}

static uint32_t unit_offset(uint32_t unit)
{
    return (unit >> 10) << ((unit & (1u << 9)) >> 6);
}

size_t charsmap_longest(const charsmap_t *m, const char *text, size_t length, const char **to)
{
    if (m->unit_count == 0) return 0;

    size_t longest = 0;
    uint32_t at = unit_offset(m->units[0]);
    for (size_t i = 0; i < length; i++) {
        const uint32_t byte = (unsigned char)text[i];
        at ^= byte;
        if (at >= m->unit_count) break;
        const uint32_t unit = m->units[at];
        if ((unit & ((1u << 31) | 0xFF)) != byte) break;
        at ^= unit_offset(unit);
        if ((unit >> 8 & 1) == 0) continue;
        if (at >= m->unit_count) break;
        const uint32_t start = m->units[at] & 0x7FFFFFFF;
        if (start >= m->string_bytes) break;
        *to = m->strings + start;
        longest = i + 1;
    }
    return longest;
}
