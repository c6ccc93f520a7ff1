/* bpe_encode.c - ids of a piece: what its symbols are written as once they are joined, and what
 * short pieces became before. */
#include <base/memory.h>
#include <data/bpe_join.h>
#include <data/unicode.h>

enum {
    CACHE_SLOTS = 1 << 15,
    CACHE_BYTES = 24, /* longest text that is remembered */
    CACHE_IDS = 9,
    WORD_TAG = 0x80, /* beside the length: of a word in a longer piece */
};

/* One cache line each. A slot holds the last text that fell on it. */
typedef struct bpe_cached {
    uint64_t key[CACHE_BYTES / 8]; /* the text, padded with zeros */
    uint8_t tag, count;            /* tag: the length, 0: empty   */
    int32_t ids[CACHE_IDS];
} bpe_cached_t;

lh_status_t bpe_scratch_open(const bpe_t *b, bpe_scratch_t *s)
{
    *s = (bpe_scratch_t){0};
    s->cache = mem_array(CACHE_SLOTS, sizeof(*s->cache));
    if (s->cache == NULL) return LH_NO_MEMORY;
    if (b->unused == NULL) return LH_OK;
    s->undo = mem_array(b->first_alias, sizeof(*s->undo));
    return s->undo == NULL ? LH_NO_MEMORY : LH_OK;
}

void bpe_scratch_close(bpe_scratch_t *s)
{
    mem_free(s->symbols);
    mem_free(s->heap);
    mem_free(s->undo);
    mem_free(s->cache);
    *s = (bpe_scratch_t){0};
}

static void write_id(const bpe_t *b, int32_t id, size_t start, token_ids_t *out)
{
    const bool fused = b->fuse_unknown && id == (int32_t)b->unknown && out->count > start &&
                       out->ids[out->count - 1] == id;
    if (!fused) out->ids[out->count++] = id;
}

static void write_symbol(const bpe_t *b, uint32_t symbol, size_t start, token_ids_t *out)
{
    if (symbol < b->first_alias) {
        write_id(b, (int32_t)symbol, start, out);
        return;
    }
    const bpe_alias_t *alias = &b->aliases[symbol - b->first_alias];
    if (alias->id >= 0) {
        write_id(b, alias->id, start, out);
    } else if (b->byte_fallback) {
        char bytes[4];
        const size_t size = utf8_encode(alias->character, bytes);
        for (size_t i = 0; i < size; i++)
            write_id(b, (int32_t)b->bytes[(uint8_t)bytes[i]], start, out);
    } else if (b->unknown != BPE_NONE) {
        write_id(b, (int32_t)b->unknown, start, out);
    }
}

/* An unused piece is written as the two that were joined, and so on. The heap's memory serves as
 * the stack: parts get shorter at each step, so there are never more than there were symbols. */
static void write_parts(const bpe_t *b, bpe_scratch_t *s, uint32_t symbol, size_t start,
                        token_ids_t *out)
{
    size_t depth = 0;

    s->heap[depth++] = symbol;
    while (depth > 0) {
        const uint32_t part = (uint32_t)s->heap[--depth];
        const uint64_t pair = part < b->first_alias && b->unused[part] ? s->undo[part] : 0;
        if (pair == 0) {
            write_symbol(b, part, start, out);
            continue;
        }
        s->heap[depth++] = pair & UINT32_MAX;
        s->heap[depth++] = (pair & ~BPE_UNDO_SEEN) >> 32;
    }
}

static lh_status_t encode_joined(const bpe_t *b, bpe_scratch_t *s, const char *text, size_t length,
                                 token_ids_t *out)
{
    const size_t start = out->count;
    const lh_status_t status = bpe_join(b, s, text, length);
    if (status != LH_OK) return status;

    for (size_t i = 0; i < s->count; i++) {
        if (b->unused != NULL)
            write_parts(b, s, s->symbols[i].symbol, start, out);
        else
            write_symbol(b, s->symbols[i].symbol, start, out);
    }
    return LH_OK;
}

static bool take_whole(const bpe_t *b, const char *text, size_t length, token_ids_t *out)
{
    const int32_t id = b->whole == NULL ? -1 : piece_table_find(b->whole, text, length);
    if (id >= 0) out->ids[out->count++] = id;
    return id >= 0;
}

static void key_of(const char *text, size_t length, size_t readable, uint64_t key[3])
{
    key[0] = key[1] = key[2] = 0;
    if (readable < CACHE_BYTES) {
        memcpy(key, text, length);
        return;
    }
    memcpy(key, text, CACHE_BYTES);
    for (size_t i = 0; i < 3; i++) {
        const size_t from = i * 8;
        if (length <= from)
            key[i] = 0;
        else if (length < from + 8)
            key[i] &= UINT64_MAX >> (64 - (length - from) * 8); /* little endian */
    }
}

static size_t cache_slot(const uint64_t key[3])
{
    uint64_t h = key[0] * 0x9E3779B97F4A7C15u;
    h ^= (key[1] + 0x632BE59BD9B4E019u) * 0xC2B2AE3D27D4EB4Fu;
    h ^= key[2] * 0x165667B19E3779F9u;
    h ^= h >> 29;
    return (size_t)((h * 0xBF58476D1CE4E5B9u) >> 49) & (CACHE_SLOTS - 1);
}

/* A piece, or a word of one, which is no longer than what is remembered. Words are not looked for
 * as a whole. */
static lh_status_t encode_short(const bpe_t *b, bpe_scratch_t *s, const char *text, size_t length,
                                size_t readable, bool is_word, token_ids_t *out)
{
    const uint8_t tag = (uint8_t)(length | (is_word && b->whole != NULL ? WORD_TAG : 0));
    uint64_t key[3];
    key_of(text, length, readable, key);
    bpe_cached_t *cached = &s->cache[cache_slot(key)];
    const bool same = ((cached->key[0] ^ key[0]) | (cached->key[1] ^ key[1]) |
                       (cached->key[2] ^ key[2])) == 0;
    if (same && cached->tag == tag) {
        for (size_t i = 0; i < cached->count; i++)
            out->ids[out->count + i] = cached->ids[i];
        out->count += cached->count;
        return LH_OK;
    }
    const size_t start = out->count;
    if (is_word || !take_whole(b, text, length, out)) {
        const lh_status_t status = encode_joined(b, s, text, length, out);
        if (status != LH_OK) return status;
    }
    if (out->count - start > CACHE_IDS) return LH_OK;
    cached->tag = tag;
    cached->count = (uint8_t)(out->count - start);
    memcpy(cached->key, key, sizeof(key));
    memcpy(cached->ids, out->ids + start, cached->count * sizeof(*cached->ids));
    return LH_OK;
}

/* A word of one character: nothing to join or to remember. Only with byte_fallback, where an
 * unknown one has no part in its neighbours. */
static void encode_character(const bpe_t *b, const char *text, size_t size, token_ids_t *out)
{
    const unsigned char *p = (const unsigned char *)text;
    uint32_t decoded;
    const uint32_t symbol = bpe_find_character(b, utf8_decode(p, p + size, &decoded));

    if (symbol != BPE_NONE) {
        write_symbol(b, symbol, out->count, out);
        return;
    }
    for (size_t i = 0; i < size; i++)
        out->ids[out->count++] = (int32_t)b->bytes[p[i]];
}

static lh_status_t encode_words(const bpe_t *b, bpe_scratch_t *s, const char *text, size_t length,
                                size_t readable, token_ids_t *out)
{
    const bool lone = b->byte_fallback && !b->has_frozen;
    lh_status_t status = LH_OK;

    for (size_t at = 0; at < length && status == LH_OK;) {
        const size_t size = neighbours_word(&b->neighbours, text + at, length - at);
        const unsigned char first = (unsigned char)text[at];
        if (lone && first >= 0x80 && size == utf8_size(first))
            encode_character(b, text + at, size, out);
        else if (size <= CACHE_BYTES)
            status = encode_short(b, s, text + at, size, readable - at, true, out);
        else
            status = encode_joined(b, s, text + at, size, out);
        at += size;
    }
    return status;
}

lh_status_t bpe_encode(const bpe_t *b, bpe_scratch_t *s, const char *text, size_t length,
                       size_t readable, token_ids_t *out)
{
    if (length == 0) return LH_OK;
    if (length <= CACHE_BYTES && b->unused == NULL)
        return encode_short(b, s, text, length, readable, false, out);
    if (take_whole(b, text, length, out)) return LH_OK;
    if (b->by_words && (b->characters || utf8_valid(text, length)))
        return encode_words(b, s, text, length, readable, out);
    return encode_joined(b, s, text, length, out);
}

lh_status_t bpe_encode_text(const bpe_t *b, bpe_scratch_t *s, const char *text, size_t length,
                            token_ids_t *out)
{
    if (b->by_words && b->whole == NULL) return encode_words(b, s, text, length, length, out);
    return bpe_encode(b, s, text, length, length, out);
}
