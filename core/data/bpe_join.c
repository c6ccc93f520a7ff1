/* bpe_join.c - joins the symbols of a piece: short pieces by looking for the lowest rank again and
 * again, long ones with a heap. */
#include <data/bpe_join.h>

#include <base/memory.h>
#include <data/unicode.h>

enum { SHORT_SYMBOLS = 40 }; /* up to here a scan of all ranks is faster than a heap */
#define NO_RANK UINT32_MAX   /* of two that cannot be joined */
#define NOWHERE UINT32_MAX

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
        s->undo[merge->made] = BPE_UNDO_SEEN | pair;
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

lh_status_t bpe_join(const bpe_t *b, bpe_scratch_t *s, const char *text, size_t length)
{
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
    return LH_OK;
}
