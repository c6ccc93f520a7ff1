/* tokenizer_words.c - where a text may be cut before its pieces are joined. */
#include <base/memory.h>
#include <data/tokenizer_inside.h>

static bool has_mark_inside(piece_t piece)
{
    static const char mark[] = "\xE2\x96\x81";

    for (size_t i = 1; i + 3 <= piece.length; i++) {
        if (memcmp(piece.bytes + i, mark, 3) != 0) continue;
        if (i < 3 || memcmp(piece.bytes + i - 3, mark, 3) != 0) return true;
    }
    return false;
}

static bool any_has_mark_inside(const piece_table_t *pieces)
{
    for (uint32_t id = 0; id < pieces->count; id++) {
        piece_t piece;
        if (piece_table_get(pieces, id, &piece) && has_mark_inside(piece)) return true;
    }
    return false;
}

static bool is_byte_symbol(const bpe_t *b, uint64_t symbol)
{
    for (size_t byte = 0; byte < 256; byte++)
        if (b->bytes[byte] == symbol) return true;
    return false;
}

/* True if a byte's piece takes part in a join. */
static bool joins_bytes(const bpe_t *b)
{
    uint32_t low = UINT32_MAX, high = 0; /* mostly a run of ids, which no join has */

    for (size_t byte = 0; byte < 256; byte++) {
        if (b->bytes[byte] < low) low = b->bytes[byte];
        if (b->bytes[byte] > high) high = b->bytes[byte];
    }
    for (size_t slot = 0; slot < b->merge_slots; slot++) {
        const uint64_t pair = b->merges[slot].pair, left = pair >> 32, right = pair & UINT32_MAX;
        if (pair == BPE_FREE) continue;
        if (left >= low && left <= high && is_byte_symbol(b, left)) return true;
        if (right >= low && right <= high && is_byte_symbol(b, right)) return true;
    }
    return false;
}

/* Unknown bytes may be one id, or be left out so that their neighbours meet. */
static bool has_unknown_bytes(const bpe_t *b)
{
    for (size_t byte = 0; byte < 0xF5; byte++)
        if (b->bytes[byte] == BPE_NONE && byte != 0xC0 && byte != 0xC1) return true;
    return false;
}

/* Unknown characters next to each other may be one id: no cut beside them. */
static void join_unknown(bpe_t *b)
{
    for (unsigned char c = 0; c < 128; c++) {
        if (bpe_find_character(b, c) < b->first_alias) continue;
        for (unsigned char other = 0; other < 128; other++) {
            neighbours_add_ascii(&b->neighbours, c, other);
            neighbours_add_ascii(&b->neighbours, other, c);
        }
    }
}

static lh_status_t add_pieces(tokenizer_t *t)
{
    text_t bytes = {0};

    for (uint32_t id = 0; id < t->pieces.count; id++) {
        piece_t piece;
        if (!piece_table_get(&t->pieces, id, &piece)) continue;
        if (t->spelled == SPELLED_BYTE_LEVEL) {
            if (!tokenizer_piece_bytes(piece, &bytes)) continue;
            piece = (piece_t){bytes.data, bytes.length};
        }
        neighbours_add(&t->bpe.neighbours, piece.bytes, piece.length);
    }
    const lh_status_t status = text_status(&bytes);
    text_free(&bytes);
    return status;
}

lh_status_t tokenizer_cut_words(tokenizer_t *t)
{
    bpe_t *b = &t->bpe;
    const bool unknown = b->characters && !b->byte_fallback;

    if (b->unused != NULL) return LH_OK; /* how they are written depends on the whole text */
    if (!b->characters && has_unknown_bytes(b)) return LH_OK;
    if (b->byte_fallback && joins_bytes(b)) return LH_OK;
    if (unknown && (b->unknown == BPE_NONE || bpe_find_character(b, 0x2581) >= b->first_alias ||
                    any_has_mark_inside(&t->pieces)))
        return LH_OK;

    lh_status_t status = neighbours_open(&b->neighbours, unknown ? 0 : t->pieces.pieces);
    if (status == LH_OK) status = add_pieces(t);
    if (status != LH_OK) return status;
    if (unknown) join_unknown(b);
    b->by_words = true;
    return LH_OK;
}
