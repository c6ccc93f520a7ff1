/* bpe.c - the tables of a byte-pair encoding, and the joins of a piece.
 *
 * A piece goes through up to three short cuts before anything is joined: the cache of short texts,
 * a look whether the whole piece is in the vocabulary (where the file asks for that), and a cut
 * into words where no join can cross. What is left is joined in one of two ways that give the same
 * symbols: up to SHORT_SYMBOLS by looking for the lowest rank again and again, which is quadratic
 * but has no other cost, and beyond by a heap, so that a text of a million characters without a
 * space takes n log n steps and not n^2.
 *
 * With the merges u+g (rank 1), h+ug (2) and h+u (3), a piece goes this way:
 *
 *     h u g s   ->   h ug s   ->   hug s */
#include <subword/bpe.h>

#include <base/memory.h>
#include <base/text.h>

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
    piece_trie_free(&b->frozen);
    piece_neighbours_close(&b->neighbours);
    *b = (bpe_t){0};
}

/* Doubles the table and puts every merge into its new slot. */
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

/* The ranks need not be dense or unique: sentencepiece's scores give the same rank to many
 * pairs. */
lh_status_t bpe_add_merge(bpe_t *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t made)
{
    if (b->merge_count * 2 >= b->merge_slots) {
        const lh_status_t status = grow_merges(b);
        if (status != LH_OK) return status;
    }
    lh_assert(b->merge_count * 2 < b->merge_slots);
    const uint64_t pair = (uint64_t)left << 32 | right;
    lh_assert(pair != BPE_FREE);
    bpe_merge_t *merge = &b->merges[bpe_merge_slot(b, pair)];

    if (merge->pair == BPE_FREE) b->merge_count++;
    *merge = (bpe_merge_t){pair, rank, made};
    return LH_OK;
}

/* As bpe_merge_slot, with 2^32 divided by the golden ratio. */
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
    lh_assert(symbol != BPE_NONE);
    if (b->characters_known * 2 >= b->table_size) {
        const lh_status_t status = grow_characters(b);
        if (status != LH_OK) return status;
    }
    lh_assert(b->characters_known * 2 < b->table_size);
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

/* A symbol of the piece at hand. rank and made are of its pair with the symbol behind it, so that
 * each pair is looked up once and again only where a join has changed it. previous and next are
 * used for long pieces alone: short ones are moved together instead. */
typedef struct bpe_symbol {
    uint32_t symbol;
    uint32_t rank, made; /* of this and the next one, while they are joined */
    uint32_t previous, next;
} bpe_symbol_t;

#define BPE_UNDO_SEEN (1ull << 63) /* symbols are below 2^31 */

enum { SHORT_SYMBOLS = 40 }; /* up to here a scan of all ranks is faster than a heap */
#define NO_RANK UINT32_MAX   /* of two that cannot be joined */
#define NOWHERE UINT32_MAX

/* Room for a piece of so many symbols. Nothing of the last piece is kept: it is written out before
 * the next one comes. The heap sees each pair once at the start and at most two new ones at every
 * join, hence three entries for each symbol. */
static lh_status_t join_reserve(bpe_scratch_t *s, size_t symbols)
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

/* A character without a symbol, by what the file says of such: its bytes as symbols of their own,
 * or one symbol for unknown, which a run of them may share, or nothing at all. */
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

/* The place of a character that begins at `at`, as far as symbols depend on it. */
static uint32_t character_place(const bpe_t *b, size_t at, size_t size, size_t length)
{
    const uint32_t place = (at > 0 ? BPE_CONTINUES : 0u) | (at + size == length ? BPE_ENDS : 0u);
    return b->places & place;
}

/* The symbols that a text starts with where pieces are made of characters. Frozen pieces come
 * first: they are looked for at every character, as a cut into characters would hide them. */
static void split_characters(const bpe_t *b, bpe_scratch_t *s, const char *text, size_t length)
{
    const unsigned char *const begin = (const unsigned char *)text, *p = begin, *end = p + length;

    while (p < end) {
        int32_t alias = 0;
        const size_t frozen = b->has_frozen ? piece_trie_longest(&b->frozen, (const char *)p,
                                                                 (size_t)(end - p), &alias)
                                            : 0;
        if (frozen > 0) {
            append_symbol(s, b->first_alias + (uint32_t)alias);
            p += frozen;
            continue;
        }
        uint32_t size;
        const uint32_t c = text_utf8_decode(p, end, &size);
        const uint32_t place = character_place(b, (size_t)(p - begin), size, length);
        const uint32_t symbol = bpe_find_character(b, c | place);
        if (symbol != BPE_NONE)
            append_symbol(s, symbol);
        else
            append_unknown(b, s, (const char *)p, size);
        p += size;
    }
}

/* The same where pieces are made of bytes. UTF-8 does not matter here. */
static void split_bytes(const bpe_t *b, bpe_scratch_t *s, const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        const uint8_t byte = (uint8_t)text[i];
        const uint32_t place = character_place(b, i, 1, length);
        const uint32_t symbol = b->places == 0 ? b->bytes[byte]
                                               : bpe_find_character(b, byte | place);
        if (symbol != BPE_NONE)
            append_symbol(s, symbol);
        else
            append_unknown(b, s, text + i, 1);
    }
}

/* What the pair makes and its rank, NO_RANK where it makes nothing. Where some pieces are written
 * as the parts that they were joined from, the pair is noted for them; the last one that was seen
 * counts, as in sentencepiece. */
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

/* The first of the lowest ranks is the leftmost, as < keeps an earlier one. */
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

/* A binary heap with the smallest entry on top. Entries are never taken out of its middle: a join
 * that a later one has made impossible is found out when it comes to the top. */
static void heap_push(bpe_scratch_t *s, uint64_t entry)
{
    size_t i = s->heap_count++;
    while (i > 0 && s->heap[(i - 1) / 2] > entry) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = entry;
}

/* Takes the top out and lets the last entry sink from there to its place. */
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
static void join_offer(const bpe_t *b, bpe_scratch_t *s, uint32_t at)
{
    bpe_symbol_t *symbol = &s->symbols[at];

    symbol->rank = NO_RANK;
    if (symbol->next == NOWHERE) return;
    look_up(b, s, symbol->symbol, s->symbols[symbol->next].symbol, symbol);
    if (symbol->rank != NO_RANK) heap_push(s, (uint64_t)symbol->rank << 32 | at);
}

/* Symbols are a doubly linked list over the array, so a join takes one out without moving the rest.
 * An entry of the heap is stale once its symbol was joined with another: its rank no longer
 * matches, as a symbol that is gone has NO_RANK and a changed one the rank of its new pair. */
static void join_long(const bpe_t *b, bpe_scratch_t *s)
{
    bpe_symbol_t *symbols = s->symbols;
    const uint32_t count = (uint32_t)s->count;

    s->heap_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        symbols[i].previous = i == 0 ? NOWHERE : i - 1;
        symbols[i].next = i + 1 == count ? NOWHERE : i + 1;
        join_offer(b, s, i);
    }
    while (s->heap_count > 0) {
        const uint64_t entry = heap_pop(s);
        const uint32_t at = (uint32_t)entry;
        if (symbols[at].rank != (uint32_t)(entry >> 32)) continue; /* joined since */

        /* The left symbol takes over what both make; the right one leaves the list. The pairs on
         * both sides are new ones now. */
        const uint32_t gone = symbols[at].next;
        symbols[at].symbol = symbols[at].made;
        symbols[at].next = symbols[gone].next;
        symbols[gone].rank = NO_RANK;
        if (symbols[at].next != NOWHERE) symbols[symbols[at].next].previous = at;
        if (symbols[at].previous != NOWHERE) join_offer(b, s, symbols[at].previous);
        join_offer(b, s, at);
    }
    /* The first symbol is never joined away, as a join keeps the left one: the list begins
     * there. */
    size_t kept = 0;
    for (uint32_t i = 0; i != NOWHERE; i = symbols[i].next)
        symbols[kept++].symbol = symbols[i].symbol;
    s->count = kept;
}

/* Leaves s->count symbols in s->symbols. */
static lh_status_t bpe_join(const bpe_t *b, bpe_scratch_t *s, const char *text, size_t length)
{
    const lh_status_t status = join_reserve(s, length + 1);
    if (status != LH_OK) return status;
    s->count = 0;
    if (b->characters)
        split_characters(b, s, text, length);
    else
        split_bytes(b, s, text, length);

    lh_assert(s->count <= s->room);
    if (b->merge_slots > 0 && s->count > SHORT_SYMBOLS)
        join_long(b, s);
    else if (b->merge_slots > 0)
        join_short(b, s);
    return LH_OK;
}

/* Beside the length in a slot of the cache: of a word in a longer piece. */
enum { WORD_TAG = 0x80 };

lh_status_t bpe_scratch_open(const bpe_t *b, bpe_scratch_t *s)
{
    *s = (bpe_scratch_t){0};
    s->cache = mem_array(WORD_SLOTS, sizeof(*s->cache));
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

/* Appends an id. `start` is where this piece began in out: a run of unknown characters is one id
 * only within a piece. */
static void write_id(const bpe_t *b, int32_t id, size_t start, token_ids_t *out)
{
    const bool fused = b->fuse_unknown && id == (int32_t)b->unknown && out->count > start &&
                       out->ids[out->count - 1] == id;
    if (!fused) out->ids[out->count++] = id;
}

/* The ids of a symbol: its own, or what its alias is written as. An unknown character may be four
 * ids, its bytes, and never more than it has bytes: that is the room that callers have made. */
static void write_symbol(const bpe_t *b, uint32_t symbol, size_t start, token_ids_t *out)
{
    if (symbol < b->first_alias) {
        write_id(b, (int32_t)symbol, start, out);
        return;
    }
    lh_assert(symbol - b->first_alias < b->alias_count);
    const bpe_alias_t *alias = &b->aliases[symbol - b->first_alias];
    if (alias->id >= 0) {
        write_id(b, alias->id, start, out);
    } else if (b->byte_fallback) {
        char bytes[4];
        const size_t size = text_utf8_encode(alias->character, bytes);
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
        lh_assert(depth + 2 <= 3 * s->room);
        s->heap[depth++] = pair & UINT32_MAX;
        s->heap[depth++] = (pair & ~BPE_UNDO_SEEN) >> 32;
    }
}

/* Joins a text without any short cut and appends its ids. */
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

/* A piece that stands in the vocabulary as it is, for files that say so (ignore_merges,
 * tiktoken). */
static bool take_whole(const bpe_t *b, const char *text, size_t length, token_ids_t *out)
{
    const int32_t id = b->whole == NULL ? -1 : piece_table_find(b->whole, text, length);
    if (id >= 0) out->ids[out->count++] = id;
    return id >= 0;
}

/* Encodes a piece, or a word of one, that is short enough for the cache. Words are not looked for
 * as a whole in the vocabulary, as a piece would be, so both have their own tags where that
 * matters. What became more than WORD_IDS ids is not remembered. */
static lh_status_t encode_short(const bpe_t *b, bpe_scratch_t *s, const char *text, size_t length,
                                size_t readable, bool is_word, token_ids_t *out)
{
    const uint8_t tag = (uint8_t)(length | (is_word && b->whole != NULL ? WORD_TAG : 0));
    uint64_t key[3];
    word_key(text, length, readable, key);
    word_cached_t *cached = &s->cache[word_slot(key)];
    if (word_is(cached, key, tag)) {
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
    if (out->count - start > WORD_IDS) return LH_OK;
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
    const uint32_t symbol = bpe_find_character(b, text_utf8_decode(p, p + size, &decoded));

    if (symbol != BPE_NONE) {
        write_symbol(b, symbol, out->count, out);
        return;
    }
    for (size_t i = 0; i < size; i++)
        out->ids[out->count++] = (int32_t)b->bytes[p[i]];
}

/* A text word by word, cut where no piece of the vocabulary has the two characters beside each
 * other. No join can cross such a place, so the ids are those of the whole, and words are short,
 * repeat themselves and come out of the cache. */
static lh_status_t encode_words(const bpe_t *b, bpe_scratch_t *s, const char *text, size_t length,
                                size_t readable, token_ids_t *out)
{
    /* Words of a single character that is not ASCII, as in Japanese, need neither the cache nor a
     * join. */
    const bool lone = b->byte_fallback && !b->has_frozen;
    lh_status_t status = LH_OK;

    for (size_t at = 0; at < length && status == LH_OK;) {
        const size_t size = piece_neighbours_word(&b->neighbours, text + at, length - at);
        const unsigned char first = (unsigned char)text[at];
        if (lone && first >= 0x80 && size == text_utf8_size(first))
            encode_character(b, text + at, size, out);
        else if (size <= WORD_BYTES)
            status = encode_short(b, s, text + at, size, readable - at, true, out);
        else
            status = encode_joined(b, s, text + at, size, out);
        at += size;
    }
    return status;
}

/* Where some pieces are written as their parts (unused), nothing is cached: what they are written
 * as depends on all pairs that were seen in the text. */
lh_status_t bpe_encode(const bpe_t *b, bpe_scratch_t *s, const char *text, size_t length,
                       size_t readable, token_ids_t *out)
{
    if (length == 0) return LH_OK;
    if (length <= WORD_BYTES && b->unused == NULL)
        return encode_short(b, s, text, length, readable, false, out);
    if (take_whole(b, text, length, out)) return LH_OK;
    if (b->by_words && (b->characters || text_utf8_valid(text, length)))
        return encode_words(b, s, text, length, readable, out);
    return encode_joined(b, s, text, length, out);
}

/* A text that no pretokenizer has cut is usually too long for the cache as a whole, but not its
 * words. */
lh_status_t bpe_encode_text(const bpe_t *b, bpe_scratch_t *s, const char *text, size_t length,
                            token_ids_t *out)
{
    lh_assert(out->capacity - out->count >= length);
    if (b->by_words && b->whole == NULL) return encode_words(b, s, text, length, length, out);
    return bpe_encode(b, s, text, length, length, out);
}
