/* ib_ring.c - see ib_ring.h. */
#include "ib_ring.h"

static const uint32_t kind_shift = 30, last_bit = 1u << 29, number_shift = IB_INDEX_BITS;
static const uint32_t index_mask = (1u << IB_INDEX_BITS) - 1;
static const uint32_t number_mask = (1u << IB_NUMBER_BITS) - 1;
static const uint32_t notice_mask = 0xffff;

uint32_t ib_immediate_write(const ib_immediate_t *from)
{
    const uint32_t kind = from->kind << kind_shift;
    if (from->kind == IB_NOTICE) return kind | (from->number & notice_mask);
    if (from->kind == IB_GOODBYE) return kind;
    return kind | (from->last ? last_bit : 0) | (from->number & number_mask) << number_shift |
           (from->index & index_mask);
}

/* What is written again must be the same word, so no bit is without a meaning. */
bool ib_immediate_read(uint32_t word, ib_immediate_t *out)
{
    *out = (ib_immediate_t){.kind = word >> kind_shift};
    if (out->kind == IB_CHUNK) {
        out->last = (word & last_bit) != 0;
        out->number = word >> number_shift & number_mask;
        out->index = word & index_mask;
    } else if (out->kind == IB_NOTICE) {
        out->number = word & notice_mask;
    }
    return out->kind <= IB_GOODBYE && ib_immediate_write(out) == word;
}

int32_t ib_grants_new(uint64_t known, uint64_t used, uint32_t low)
{
    const uint32_t more = (low - (uint32_t)known) & notice_mask;
    if (known < used || known - used > IB_DEPTH) return -1;
    return more <= IB_DEPTH - (uint32_t)(known - used) ? (int32_t)more : -1;
}

bool ib_grant_read(const ib_board_t *board, uint64_t index, ib_grant_t *out)
{
    memcpy(out, &board->grants[index % IB_DEPTH], sizeof(*out));
    return out->number == index + 1 && out->address <= UINT64_MAX - out->bytes;
}

void ib_credits_begin(ib_credits_t *c)
{
    *c = (ib_credits_t){.granted = IB_RECEIVES, .posted = IB_RECEIVES, .told = IB_RECEIVES};
}

bool ib_credits_take(ib_credits_t *c, uint64_t granted)
{
    if (granted < c->granted || granted > c->used + IB_RECEIVES) return false;
    c->granted = granted;
    return true;
}

bool ib_credits_for_chunk(const ib_credits_t *c)
{
    return c->granted - c->used >= 2;
}

bool ib_credits_due(const ib_credits_t *c)
{
    return c->posted - c->told >= IB_RECEIVES / 2;
}

bool ib_credits_for_notice(const ib_credits_t *c)
{
    return c->granted - c->used >= (ib_credits_due(c) ? 1 : 2);
}

bool ib_inbox_take(ib_inbox_t *b, uint32_t index, bool last, uint64_t bytes)
{
    if (bytes > b->room - b->bytes) return false;
    if (last && b->total != 0) return false;
    if (b->total != 0 && index >= b->total) return false;
    if (last) b->total = index + 1;
    b->bytes += bytes;
    b->seen++;
    return b->total == 0 || b->seen <= b->total;
}

uint64_t ib_number_find(uint64_t first, uint64_t end, uint32_t low)
{
    const uint64_t number = first + ((low - (uint32_t)first) & number_mask);
    return number < end ? number : UINT64_MAX;
}

uint64_t ib_chunks(uint64_t bytes, uint64_t chunk)
{
    return bytes == 0 ? 1 : (bytes - 1) / chunk + 1;
}

bool ib_greeting_read(const void *data, size_t bytes, ib_greeting_t *out)
{
    if (data == NULL || bytes < sizeof(*out)) return false;
    memcpy(out, data, sizeof(*out));
    return out->magic == IB_MAGIC && out->receives == IB_RECEIVES && out->pairs >= 1 &&
           out->pairs <= IB_PAIRS_MOST && out->index < out->pairs &&
           out->board <= UINT64_MAX - sizeof(ib_board_t);
}

lh_status_t ib_goodbye_read(const ib_board_t *board, char *out)
{
    uint32_t length;
    lh_status_t status;
    memcpy(&length, &board->length, sizeof(length));
    memcpy(&status, &board->status, sizeof(status));
    if (length > IB_REASON) length = IB_REASON;
    memcpy(out, board->reason, length);
    out[length] = '\0';
    for (uint32_t i = 0; i < length; i++)
        if (out[i] < ' ' || out[i] > '~') out[i] = '?';
    const bool known = status == LH_TRUNCATED || status == LH_MISMATCH || status == LH_CORRUPT ||
                       status == LH_IO || status == LH_INVALID;
    return known ? status : LH_PEER_LOST;
}

void ib_goodbye_write(ib_board_t *board, lh_status_t status, const char *reason)
{
    const size_t length = strlen(reason);
    board->status = status;
    board->length = (uint32_t)(length < IB_REASON ? length : IB_REASON);
    memcpy(board->reason, reason, board->length);
}
