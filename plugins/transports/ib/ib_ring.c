/* ib_ring.c - see ib_ring.h. */
#include "ib_ring.h"

static const uint32_t kind_shift = 30, last_bit = 1u << 29, number_shift = IB_INDEX_BITS;
static const uint32_t index_mask = (1u << IB_INDEX_BITS) - 1;
static const uint32_t number_mask = (1u << IB_NUMBER_BITS) - 1;
static const uint32_t notice_mask = 0xffff;
/* Of IB_AWAY, whose kind is IB_SHARE's: the queue pair's index and 1, so that it is never 0. */
static const uint32_t pair_mask = 31, count_shift = 5, turn_shift = 5 + IB_COUNT_BITS;
static const uint32_t count_mask = (1u << IB_COUNT_BITS) - 1, turn_mask = (1u << IB_TURN_BITS) - 1;
LH_STATIC_ASSERT(5 + IB_COUNT_BITS + IB_TURN_BITS == 30,
                 "an immediate has 32 bits, 2 of them a kind");
LH_STATIC_ASSERT(IB_PAIRS_MOST < 32, "an index and 1 have 5 bits");

uint32_t ib_immediate_write(const ib_immediate_t *from)
{
    const uint32_t kind = from->kind << kind_shift;
    if (from->kind == IB_NOTICE) return kind | (from->number & notice_mask);
    if (from->kind == IB_AWAY)
        return (uint32_t)IB_SHARE << kind_shift | (from->turn & turn_mask) << turn_shift |
               (from->number & count_mask) << count_shift | (from->index + 1);
    if (from->kind >= IB_GOODBYE) return kind;
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
    } else if (out->kind == IB_SHARE && word << 2 != 0) {
        out->kind = IB_AWAY;
        out->index = (word & pair_mask) - 1;
        out->number = word >> count_shift & count_mask;
        out->turn = word >> turn_shift & turn_mask;
        if (out->index >= IB_PAIRS_MOST) return false;
    }
    return ib_immediate_write(out) == word;
}

int32_t ib_turn_ahead(uint32_t known, uint32_t low)
{
    const int32_t more = (int32_t)((low - known) & turn_mask);
    return more > (int32_t)(turn_mask / 2) ? more - (int32_t)turn_mask - 1 : more;
}

uint64_t ib_count_find(uint64_t done, uint32_t low)
{
    return done + ((low - (uint32_t)done) & count_mask);
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
    if (granted > c->used + IB_RECEIVES) return false;
    if (granted > c->granted) c->granted = granted;
    return true;
}

bool ib_credits_renew(ib_credits_t *c, uint64_t done, uint64_t taken, uint64_t arrived)
{
    if (taken < done || taken > c->used) return false;
    *c = (ib_credits_t){.granted = taken + IB_RECEIVES,
                        .used = taken,
                        .posted = arrived + IB_RECEIVES,
                        .told = arrived + IB_RECEIVES};
    return true;
}

uint64_t ib_credits_left(const ib_credits_t *c)
{
    return c->granted > c->used ? c->granted - c->used : 0;
}

bool ib_credits_for_chunk(const ib_credits_t *c, uint32_t words)
{
    return ib_credits_left(c) >= 2 + (uint64_t)words;
}

bool ib_credits_due(const ib_credits_t *c)
{
    return c->posted - c->told >= IB_RECEIVES / 2;
}

bool ib_credits_for_notice(const ib_credits_t *c, bool waited)
{
    return waited || ib_credits_left(c) >= 2;
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

uint32_t ib_frames(uint64_t window, uint64_t chunk, uint32_t threads)
{
    const uint64_t chunks = window / chunk, beside = 2 + 2 * (uint64_t)threads;
    if (chunks > IB_FRAMES_MOST || chunks + beside > IB_FRAMES_MOST) return IB_FRAMES_MOST;
    return chunks + beside < IB_FRAMES_LEAST ? IB_FRAMES_LEAST : (uint32_t)(chunks + beside);
}

bool ib_frames_due(uint32_t frames, uint64_t more)
{
    return more >= (frames + 15) / 16;
}

/* Little-endian, field by field: the two ends may be compiled for different processors. */
static void field_put(uint8_t **at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        *(*at)++ = (uint8_t)(value >> 8 * i);
}

static uint64_t field_get(const uint8_t **at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t) * (*at)++ << 8 * i;
    return value;
}

/* Of a later turn the board's eight bytes are the count and the key, and the key's four the turn.
 * The two bytes before the places: ports 2 bits, a later turn 1, first 1. The last byte before the
 * hello: security 2 bits, direction 2, service 3, asks 1. */
bool ib_greeting_write(const ib_greeting_t *from, uint8_t out[IB_GREETING_BYTES])
{
    const lh_hello_t *h = &from->hello;
    uint8_t *at = out;
    if (h->service > 7 || h->direction > 3 || h->reserved != 0 ||
        from->ports - 1 >= IB_PORTS_MOST || (from->turn > 0 && from->first))
        return false;
    field_put(&at, IB_MAGIC, 4);
    field_put(&at, from->token, 4);
    const bool later = from->turn > 0;
    field_put(&at, later ? (uint32_t)from->board | (uint64_t)from->key << 32 : from->board, 8);
    field_put(&at, later ? from->turn : from->key, 4);
    field_put(&at, (from->ports - 1) | (later ? 4u : 0) | (from->first ? 8u : 0), 2);
    field_put(&at, from->index | (from->pairs - 1) << 4, 1);
    field_put(&at, from->security | h->direction << 2 | h->service << 4 | (from->asks ? 128u : 0),
              1);
    field_put(&at, h->job, 8);
    field_put(&at, h->epoch, 4);
    field_put(&at, h->rank, 4);
    field_put(&at, h->serial, 4);
    memcpy(at, from->mac, IB_MAC_BYTES);
    return true;
}

bool ib_greeting_read(const void *data, size_t bytes, ib_greeting_t *out)
{
    const uint8_t *at = data;
    if (data == NULL || bytes < IB_GREETING_BYTES || field_get(&at, 4) != IB_MAGIC) return false;
    *out = (ib_greeting_t){.token = (uint32_t)field_get(&at, 4)};
    const uint64_t board = field_get(&at, 8);
    const uint32_t word = (uint32_t)field_get(&at, 4), more = (uint32_t)field_get(&at, 2);
    const bool later = (more & 4) != 0;
    out->first = (more & 8) != 0;
    if (more > 15 || (later && (word == 0 || out->first))) return false;
    out->ports = (more & 3) + 1;
    out->board = later ? (uint32_t)board : board;
    out->key = later ? (uint32_t)(board >> 32) : word;
    out->turn = later ? word : 0;
    const uint32_t place = (uint32_t)field_get(&at, 1), bits = (uint32_t)field_get(&at, 1);
    out->index = place & 15;
    out->pairs = (place >> 4) + 1;
    out->security = bits & 3;
    out->asks = bits >> 7 != 0;
    out->hello.direction = bits >> 2 & 3;
    out->hello.service = bits >> 4 & 7;
    out->hello.job = field_get(&at, 8);
    out->hello.epoch = (uint32_t)field_get(&at, 4);
    out->hello.rank = (uint32_t)field_get(&at, 4);
    out->hello.serial = (uint32_t)field_get(&at, 4);
    memcpy(out->mac, at, IB_MAC_BYTES);
    return out->index < out->pairs && out->board <= UINT64_MAX - sizeof(ib_board_t);
}

void ib_challenge_write(const uint8_t nonce[IB_NONCE_BYTES], uint8_t out[IB_CHALLENGE_BYTES])
{
    uint8_t *at = out;
    field_put(&at, IB_CHALLENGE_MAGIC, 4);
    memcpy(at, nonce, IB_NONCE_BYTES);
}

bool ib_challenge_read(const void *data, size_t bytes, uint8_t nonce[IB_NONCE_BYTES])
{
    const uint8_t *at = data;
    if (data == NULL || bytes < IB_CHALLENGE_BYTES || field_get(&at, 4) != IB_CHALLENGE_MAGIC)
        return false;
    memcpy(nonce, at, IB_NONCE_BYTES);
    return true;
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
