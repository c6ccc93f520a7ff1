/* bpe_encode.c - joins the symbols of a piece: short pieces by looking for the lowest rank again
 * and again, long ones with a heap; and remembers what short pieces became. */
#include <base/memory.h>
#include <data/bpe.h>
#include <data/unicode.h>

enum {
    SHORT_SYMBOLS = 40, /* up to here a scan of all ranks is faster than a heap */
    CACHE_SLOTS = 1 << 15,
    CACHE_BYTES = 24, /* longest text that is remembered */
    CACHE_IDS = 9,
};
#define NO_RANK UINT32_MAX
#define UNDO_SEEN (1ull << 63) /* symbols are below 2^31 */

/* One cache line each. A slot holds the last text that fell on it. */
typedef struct bpe_cached {
    uint64_t key[CACHE_BYTES / 8]; /* the text, padded with zeros */
    uint8_t length, count;         /* length 0: empty             */
    int32_t ids[CACHE_IDS];
} bpe_cached_t;

typedef struct bpe_symbol {
    uint32_t symbol;
    uint32_t rank, made; /* of this and the next one; NO_RANK if they can't be joined */
    uint32_t previous, next;
} bpe_symbol_t;
#define NOWHERE UINT32_MAX

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

/* Every symbol stands for one byte of text or more. The heap sees each pair once at the start and
 * two more at every join. */
static lh_status_t reserve(bpe_scratch_t *s, size_t symbols)
{
    if (symbols <= s->room) return LH_OK;
    const size_t room = symbols < 4096 ? 4096 : symbols + symbols / 2;
    bpe_symbol_t *fresh = mem_array(room, sizeof(*fresh));
    uint64_t *heap = mem_array(room, 3 * sizeof(*heap));
    if (fresh == NULL || heap == NULL) {
        mem_free(fresh);
        mem_free(heap);
        return LH_NO_MEMORY;
    }
    mem_free(s->symbols);
    mem_free(s->heap);
    s->symbols = fresh;
    s->heap = heap;
    s->room = room;
    return LH_OK;
}

static void append_symbol(bpe_scratch_t *s, uint32_t symbol)
{
    s->symbols[s->count++].symbol = symbol;
}

static void append_unknown(const bpe_t *b, bpe_scratch_t *s, const char *text, size_t length)
{
    if (b->byte_fallback) {
        for (size_t i = 0; i < length; i++)
            append_symbol(s, b->bytes[(uint8_t)text[i]]);
        return;
    }
    if (b->unknown == BPE_NONE) return;
    if (b->fuse_unknown && s->count > 0 && s->symbols[s->count - 1].symbol == b->unknown) return;
    append_symbol(s, b->unknown);
}

static void split_characters(const bpe_t *b, bpe_scratch_t *s, const char *text, size_t length)
{
    const unsigned char *p = (const unsigned char *)text, *end = p + length;

    while (p < end) {
        int32_t alias = 0;
        const size_t frozen = b->has_frozen ? byte_trie_longest(&b->frozen, (const char *)p,
                                                                (size_t)(end - p), &alias)
                                            : 0;
        if (frozen > 0) {
            append_symbol(s, b->first_alias + (uint32_t)alias);
            p += frozen;
            continue;
        }
        uint32_t size;
        const uint32_t symbol = bpe_find_character(b, utf8_decode(p, end, &size));
        if (symbol != BPE_NONE)
            append_symbol(s, symbol);
        else
            append_unknown(b, s, (const char *)p, size);
        p += size;
    }
}

static void split_bytes(const bpe_t *b, bpe_scratch_t *s, const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        const uint32_t symbol = b->bytes[(uint8_t)text[i]];
        if (symbol != BPE_NONE)
            append_symbol(s, symbol);
        else
            append_unknown(b, s, text + i, 1);
    }
}

static void look_up(const bpe_t *b, bpe_scratch_t *s, uint32_t left, uint32_t right,
                    bpe_symbol_t *out)
{
    const uint64_t pair = (uint64_t)left << 32 | right;
    const bpe_merge_t *merge = &b->merges[bpe_merge_slot(b, pair)];

    out->rank = merge->pair == pair ? merge->rank : NO_RANK;
    out->made = merge->made;
    if (out->rank != NO_RANK && b->unused != NULL && b->unused[merge->made])
        s->undo[merge->made] = UNDO_SEEN | pair;
}

static void join_short(const bpe_t *b, bpe_scratch_t *s)
{
    bpe_symbol_t *symbols = s->symbols;
    size_t count = s->count;

    for (size_t i = 0; i + 1 < count; i++)
        look_up(b, s, symbols[i].symbol, symbols[i + 1].symbol, &symbols[i]);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (symbols[i].rank < symbols[best].rank) best = i;
        if (symbols[best].rank == NO_RANK) break;

        symbols[best].symbol = symbols[best].made;
        count--;
        memmove(&symbols[best + 1], &symbols[best + 2], (count - best - 1) * sizeof(*symbols));
        if (best > 0)
            look_up(b, s, symbols[best - 1].symbol, symbols[best].symbol, &symbols[best - 1]);
        if (best + 1 < count)
            look_up(b, s, symbols[best].symbol, symbols[best + 1].symbol, &symbols[best]);
    }
    s->count = count;
}

static void heap_push(bpe_scratch_t *s, uint64_t entry)
{
    size_t i = s->heap_count++;
    while (i > 0 && s->heap[(i - 1) / 2] > entry) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = entry;
}

static uint64_t heap_pop(bpe_scratch_t *s)
{
    const uint64_t top = s->heap[0], last = s->heap[--s->heap_count];
    size_t i = 0;

    for (size_t child = 1; child < s->heap_count; child = 2 * i + 1) {
        if (child + 1 < s->heap_count && s->heap[child + 1] < s->heap[child]) child++;
        if (s->heap[child] >= last) break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

/* Looks up what `at` and the next symbol make; entries are rank << 32 | place, so that the lowest
 * rank comes first and the leftmost place among equals. */
static void offer(const bpe_t *b, bpe_scratch_t *s, uint32_t at)
{
    bpe_symbol_t *symbol = &s->symbols[at];

    symbol->rank = NO_RANK;
    if (symbol->next == NOWHERE) return;
    look_up(b, s, symbol->symbol, s->symbols[symbol->next].symbol, symbol);
    if (symbol->rank != NO_RANK) heap_push(s, (uint64_t)symbol->rank << 32 | at);
}

static void join_long(const bpe_t *b, bpe_scratch_t *s)
{
    bpe_symbol_t *symbols = s->symbols;
    const uint32_t count = (uint32_t)s->count;

    s->heap_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        symbols[i].previous = i == 0 ? NOWHERE : i - 1;
        symbols[i].next = i + 1 == count ? NOWHERE : i + 1;
        offer(b, s, i);
    }
    while (s->heap_count > 0) {
        const uint64_t entry = heap_pop(s);
        const uint32_t at = (uint32_t)entry;
        if (symbols[at].rank != (uint32_t)(entry >> 32)) continue; /* joined since */

        const uint32_t gone = symbols[at].next;
        symbols[at].symbol = symbols[at].made;
        symbols[at].next = symbols[gone].next;
        symbols[gone].rank = NO_RANK;
        if (symbols[at].next != NOWHERE) symbols[symbols[at].next].previous = at;
        if (symbols[at].previous != NOWHERE) offer(b, s, symbols[at].previous);
        offer(b, s, at);
    }
    size_t kept = 0;
    for (uint32_t i = 0; i != NOWHERE; i = symbols[i].next)
        symbols[kept++].symbol = symbols[i].symbol;
    s->count = kept;
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
        s->heap[depth++] = (pair & ~UNDO_SEEN) >> 32;
    }
}

static lh_status_t join(const bpe_t *b, bpe_scratch_t *s, const char *text, size_t length,
                        token_ids_t *out)
{
    const size_t start = out->count;

    if (b->whole != NULL) {
        const int32_t id = piece_table_find(b->whole, text, length);
        if (id >= 0) {
            out->ids[out->count++] = id;
            return LH_OK;
        }
    }
    const lh_status_t status = reserve(s, length + 1);
    if (status != LH_OK) return status;
    s->count = 0;
    if (b->characters)
        split_characters(b, s, text, length);
    else
        split_bytes(b, s, text, length);

    if (b->merge_slots > 0 && s->count > SHORT_SYMBOLS)
        join_long(b, s);
    else if (b->merge_slots > 0)
        join_short(b, s);
    for (size_t i = 0; i < s->count; i++) {
        if (b->unused != NULL)
            write_parts(b, s, s->symbols[i].symbol, start, out);
        else
            write_symbol(b, s->symbols[i].symbol, start, out);
    }
    return LH_OK;
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

lh_status_t bpe_encode(const bpe_t *b, bpe_scratch_t *s, const char *text, size_t length,
                       size_t readable, token_ids_t *out)
{
    if (length == 0) return LH_OK;
    if (length > CACHE_BYTES || b->unused != NULL) return join(b, s, text, length, out);

    uint64_t key[3];
    key_of(text, length, readable, key);
    bpe_cached_t *cached = &s->cache[cache_slot(key)];
    const bool same = ((cached->key[0] ^ key[0]) | (cached->key[1] ^ key[1]) |
                       (cached->key[2] ^ key[2])) == 0;
    if (same && cached->length == length) {
        for (size_t i = 0; i < cached->count; i++)
            out->ids[out->count + i] = cached->ids[i];
        out->count += cached->count;
        return LH_OK;
    }
    const size_t start = out->count;
    const lh_status_t status = join(b, s, text, length, out);
    if (status != LH_OK || out->count - start > CACHE_IDS) return status;
    cached->length = (uint8_t)length;
    cached->count = (uint8_t)(out->count - start);
    memcpy(cached->key, key, sizeof(key));
    memcpy(cached->ids, out->ids + start, cached->count * sizeof(*cached->ids));
    return LH_OK;
}

/* Where the first word of a text ends: before the next run of space marks (U+2581) or between two
 * characters that no piece has side by side. */
static size_t word_end(const bpe_t *b, const char *text, size_t length)
{
    static const char mark[] = "\xE2\x96\x81";
    size_t i = 0;

    while (i + 3 <= length && memcmp(text + i, mark, 3) == 0)
        i += 3;
    unsigned char previous = 0xFF; /* whatever follows the marks belongs to them */
    for (; i < length; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c == 0xE2 && i + 3 <= length && memcmp(text + i, mark, 3) == 0) return i;
        if ((c | previous) < 0x80 && (b->inside[previous][c >> 6] >> (c & 63) & 1) == 0) return i;
        previous = c;
    }
    return length;
}

lh_status_t bpe_encode_text(const bpe_t *b, bpe_scratch_t *s, const char *text, size_t length,
                            token_ids_t *out)
{
    if (!b->by_words) return bpe_encode(b, s, text, length, length, out);

    lh_status_t status = LH_OK;
    for (size_t at = 0; at < length && status == LH_OK;) {
        const size_t size = word_end(b, text + at, length - at);
        status = bpe_encode(b, s, text + at, size, length - at, out);
        at += size;
    }
    return status;
}
