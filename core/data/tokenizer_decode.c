/* tokenizer_decode.c - ids back to bytes, by the decoder that the file describes. */
#include <base/digest.h>
#include <base/memory.h>
#include <data/tokenizer_inside.h>

static const char replacement[] = "\xEF\xBF\xBD"; /* U+FFFD */

/* One call of tokenizer_decode. */
typedef struct decoding {
    const tokenizer_t *t;
    text_t *out;
    size_t start;      /* of what this call appended                                      */
    size_t bytes_from; /* where the run of byte tokens at the end of out starts           */
    bool at_start;     /* sentencepiece: the mark of the dummy prefix may still come       */
} decoding_t;

/* Byte tokens in a row are UTF-8 together, or one U+FFFD each. */
static void end_bytes(decoding_t *d)
{
    const size_t count = d->out->length - d->bytes_from;

    if (count > 0 && !d->out->failed && !utf8_valid(d->out->data + d->bytes_from, count)) {
        d->out->length = d->bytes_from;
        for (size_t i = 0; i < count; i++)
            text_append(d->out, replacement);
    }
    d->bytes_from = d->out->length;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

/* The byte that "<0xNN>" stands for, or -1. */
static int byte_of_piece(const tokenizer_t *t, uint32_t id, piece_t piece)
{
    if (piece.length != 6 || memcmp(piece.bytes, "<0x", 3) != 0 || piece.bytes[5] != '>') return -1;
    if (t->decoder.by_type && t->types[id] != PIECE_BYTE) return -1;
    const int high = hex_digit(piece.bytes[3]), low = hex_digit(piece.bytes[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* A token with a character outside the alphabet, such as an added one, is written as it is spelt.
 */
static void append_byte_level(piece_t piece, text_t *out)
{
    const unsigned char *p = (const unsigned char *)piece.bytes, *end = p + piece.length;
    const size_t before = out->length;

    while (p < end) {
        uint32_t size;
        const int byte = byte_of_character(utf8_decode(p, end, &size));
        if (byte < 0) {
            out->length = before;
            text_append_n(out, piece.bytes, piece.length);
            return;
        }
        text_append_n(out, &(char){(char)byte}, 1);
        p += size;
    }
}

static void append_replaced(const decoder_t *decoder, piece_t piece, text_t *out)
{
    for (size_t at = 0; at < piece.length;) {
        const decode_replace_t *hit = NULL;
        for (size_t i = 0; i < decoder->replace_count && hit == NULL; i++) {
            const size_t size = strlen(decoder->replaces[i].from);
            if (size <= piece.length - at &&
                memcmp(piece.bytes + at, decoder->replaces[i].from, size) == 0)
                hit = &decoder->replaces[i];
        }
        text_append_n(out, hit == NULL ? piece.bytes + at : hit->to,
                      hit == NULL ? 1 : strlen(hit->to));
        at += hit == NULL ? 1 : strlen(hit->from);
    }
}

/* At the start of a text sentencepiece drops the mark that the dummy prefix made; where extra
 * spaces are removed, all of them. */
static piece_t without_prefix(decoding_t *d, piece_t piece)
{
    const decoder_t *decoder = &d->t->decoder;
    const size_t size = strlen(decoder->strip);
    bool seen = false;

    if (d->out->length > d->start) d->at_start = false;
    while (d->at_start && size > 0 && piece.length >= size && !(seen && !decoder->strip_all) &&
           memcmp(piece.bytes, decoder->strip, size) == 0) {
        piece.bytes += size;
        piece.length -= size;
        seen = true;
        if (!decoder->strip_all) break;
    }
    if (seen && !decoder->strip_all) d->at_start = false;
    return piece;
}

static void append_token(decoding_t *d, uint32_t id, piece_t piece)
{
    const decoder_t *decoder = &d->t->decoder;

    if (decoder->byte_level) {
        append_byte_level(piece, d->out);
        return;
    }
    const int byte = decoder->byte_fallback ? byte_of_piece(d->t, id, piece) : -1;
    if (byte >= 0) {
        text_append_n(d->out, &(char){(char)byte}, 1);
        return;
    }
    end_bytes(d);
    if (decoder->surface != NULL && d->t->types[id] == PIECE_UNKNOWN) {
        text_append(d->out, decoder->surface);
    } else {
        if (decoder->by_type) piece = without_prefix(d, piece);
        append_replaced(decoder, piece, d->out);
    }
    d->bytes_from = d->out->length;
}

static void strip(const decoder_t *decoder, text_t *out, size_t start)
{
    const size_t size = strlen(decoder->strip);
    if (size == 0 || decoder->by_type || out->failed || out->data == NULL) return;

    size_t cut = 0;
    for (uint32_t i = 0; i < decoder->strip_start && out->length - start - cut >= size &&
                         memcmp(out->data + start + cut, decoder->strip, size) == 0;
         i++)
        cut += size;
    memmove(out->data + start, out->data + start + cut, out->length - start - cut);
    out->length -= cut;
    for (uint32_t i = 0; i < decoder->strip_stop && out->length - start >= size &&
                         memcmp(out->data + out->length - size, decoder->strip, size) == 0;
         i++)
        out->length -= size;
    out->data[out->length] = '\0';
}

static bool find_piece(const tokenizer_t *t, uint32_t id, piece_t *out)
{
    return piece_table_get(&t->added_pieces, id, out) || piece_table_get(&t->pieces, id, out);
}

size_t tokenizer_open_bytes(const tokenizer_t *t, const int32_t *ids, size_t count)
{
    const bool runs = t->decoder.byte_fallback && !t->decoder.byte_level &&
                      t->spelled != SPELLED_AS_BYTES;
    size_t open = 0;
    for (; runs && open < count; open++) {
        const int32_t id = ids[count - 1 - open];
        piece_t piece;
        if (id < 0 || id >= t->vocab_size) break;
        const bool silent = t->skipped[id] || !find_piece(t, (uint32_t)id, &piece);
        if (!silent && byte_of_piece(t, (uint32_t)id, piece) < 0) break;
    }
    return open;
}

lh_status_t tokenizer_decode(const tokenizer_t *t, const int32_t *ids, size_t count,
                             bool skip_special, text_t *out)
{
    decoding_t d = {t, out, out->length, out->length, true};
    bool first = true;

    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= t->vocab_size)
            return fail(LH_INVALID, "token %zu is %d; the tokenizer's ids are 0 to %d", i, ids[i],
                        t->vocab_size - 1);
    for (size_t i = 0; i < count; i++) {
        const uint32_t id = (uint32_t)ids[i];
        piece_t piece;
        if (skip_special && t->skipped[id]) continue;
        if (!find_piece(t, id, &piece)) continue; /* the file leaves a hole here */
        if (t->decoder.join && !first) text_append(out, " ");
        first = false;
        if (t->spelled == SPELLED_AS_BYTES)
            text_append_n(out, piece.bytes, piece.length);
        else
            append_token(&d, id, piece);
    }
    if (t->decoder.byte_fallback) end_bytes(&d);
    strip(&t->decoder, out, d.start);
    return text_status(out);
}

lh_status_t tokenizer_digest(const tokenizer_t *t, uint64_t *out)
{
    text_t all = {0};
    for (uint32_t id = 0; id < (uint32_t)t->vocab_size; id++) {
        piece_t piece;
        if (find_piece(t, id, &piece) && t->decoder.byte_level)
            append_byte_level(piece, &all);
        else if (find_piece(t, id, &piece))
            text_append_n(&all, piece.bytes, piece.length);
        const uint64_t end = all.length; /* tells "a", "bc" from "ab", "c" */
        text_append_n(&all, (const char *)&end, sizeof(end));
    }
    const lh_status_t status = text_status(&all);
    if (status == LH_OK) *out = xxh3(all.data, all.length);
    text_free(&all);
    return status;
}
