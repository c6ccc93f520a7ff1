/* tcp_frame.c - frames to bytes and back. Nothing here allocates or trusts a length.
 *
 * Bytes are written one by one in little-endian order and not as structs: the two ends may be
 * compiled for different processors, and padding is nobody's. The head's own checksum is looked at
 * before any field is, so that a flipped bit is told as such and not as a strange length. */
#include "tcp_frame.h"

#include <longhaul/crc32c.h>

#define MAGIC 0x3150434c48474e4cull /* "LNGHLCP1" */

/* Little-endian, byte by byte. */
static void put32(uint8_t *out, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        out[i] = (uint8_t)(v >> 8 * i);
}

static void put64(uint8_t *out, uint64_t v)
{
    put32(out, (uint32_t)v);
    put32(out + 4, (uint32_t)(v >> 32));
}

static uint32_t get32(const uint8_t *in)
{
    return (uint32_t)in[0] | (uint32_t)in[1] << 8 | (uint32_t)in[2] << 16 | (uint32_t)in[3] << 24;
}

static uint64_t get64(const uint8_t *in)
{
    return get32(in) | (uint64_t)get32(in + 4) << 32;
}

/* Of the first 48 bytes with the checksum's own four as zeroes. */
static uint32_t head_crc(const uint8_t in[HEAD_BYTES])
{
    static const uint8_t zero[4];
    return lh_crc32c(lh_crc32c(lh_crc32c(0, in, 4), zero, 4), in + 8, HEAD_PROVEN - 8);
}

void frame_write(const frame_t *f, uint8_t out[HEAD_BYTES])
{
    put32(out, (uint32_t)f->type | (uint32_t)f->stream << 16);
    put64(out + 8, f->sequence);
    put32(out + 16, f->message);
    put32(out + 20, f->grants);
    put64(out + 24, f->offset);
    put64(out + 32, f->total);
    put32(out + 40, f->length);
    put32(out + 44, f->tag);
    memcpy(out + 48, f->seal, SEAL_BYTES);
    put32(out + 4, head_crc(out));
}

/* What no sender of ours writes. Whether a frame is in place is the stream's to say. */
static const char *frame_check(const frame_t *f)
{
    static const uint32_t exact[FRAME_TYPES] = {
        [FRAME_HELLO] = HELLO_BYTES, [FRAME_WELCOME] = WELCOME_BYTES};
    if (f->type == 0 || f->type >= FRAME_TYPES) return "a frame of a type that does not exist";
    if (f->stream >= STREAMS_MAX) return "a frame of a stream that can't be";
    if (f->type == FRAME_PAD)
        return f->length > 0 && f->length <= PAD_BYTES ? NULL : "padding of a wrong length";
    if (f->type != FRAME_DATA)
        return f->length == exact[f->type] ? NULL : "a control frame of a wrong length";
    if (f->length > PAYLOAD_MAX) return "a frame that is too long";
    if (f->total > MESSAGE_MAX) return "a message that is too long";
    if (f->offset > f->total || f->length > f->total - f->offset)
        return "a frame that lies outside of its message";
    /* It would never end the message. */
    if (f->length == 0 && f->total > 0) return "a frame of nothing";
    return NULL;
}

/* *out is written only if all of it is good. */
const char *frame_read(const uint8_t in[HEAD_BYTES], frame_t *out)
{
    if (get32(in + 4) != head_crc(in)) return "a head that does not match its checksum";
    if (in[1] != 0) return "a frame with unknown flags";
    const frame_t f = {
        .type = in[0],
        .stream = (uint16_t)(get32(in) >> 16),
        .sequence = get64(in + 8),
        .message = get32(in + 16),
        .grants = get32(in + 20),
        .offset = get64(in + 24),
        .total = get64(in + 32),
        .length = get32(in + 40),
        .tag = get32(in + 44),
    };
    const char *wrong = frame_check(&f);
    if (wrong != NULL) return wrong;
    *out = f;
    memcpy(out->seal, in + 48, SEAL_BYTES);
    return NULL;
}

/* The seal's other bytes are zero: what nobody checks could carry something. */
bool frame_crc_is(const frame_t *f, uint32_t crc)
{
    static const uint8_t zero[SEAL_BYTES - 4];
    return get32(f->seal) == crc && memcmp(f->seal + 4, zero, sizeof(zero)) == 0;
}

void frame_set_crc(frame_t *f, uint32_t crc)
{
    put32(f->seal, crc);
}

/* magic, version, security, job, epoch, rank, service, serial, direction, to, stream, streams, step,
 * 0, token */
void greeting_write(const greeting_t *g, uint8_t out[HELLO_BYTES])
{
    const uint32_t words[] = {g->hello.epoch,     g->hello.rank, g->hello.service, g->hello.serial,
                              g->hello.direction, g->to,         g->stream,        g->streams};
    put64(out, MAGIC);
    put32(out + 8, FRAMES_VERSION);
    put32(out + 12, g->security);
    put64(out + 16, g->hello.job);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        put32(out + 24 + 4 * i, words[i]);
    put32(out + 56, g->step);
    put32(out + 60, 0);
    memcpy(out + 64, g->token, TOKEN_BYTES);
}

bool greeting_is_of_other_version(const uint8_t in[HELLO_BYTES])
{
    return get64(in) == MAGIC && get32(in + 8) != FRAMES_VERSION;
}

/* Every field has to be one that a rank could send: what is left after this is only whether it is
 * the right one. */
const char *greeting_read(const uint8_t in[HELLO_BYTES], greeting_t *out)
{
    if (get64(in) != MAGIC) return "a greeting of something else";
    if (get32(in + 8) != FRAMES_VERSION) return "a greeting of another version";
    if (get32(in + 60) != 0) return "a greeting with unknown fields";
    greeting_t g = {.security = get32(in + 12),
                    .hello = {.job = get64(in + 16),
                              .epoch = get32(in + 24),
                              .rank = get32(in + 28),
                              .service = get32(in + 32),
                              .serial = get32(in + 36),
                              .direction = get32(in + 40)},
                    .to = get32(in + 44),
                    .stream = get32(in + 48),
                    .streams = get32(in + 52),
                    .step = get32(in + 56)};
    if (g.security > LH_SECURITY_PRIVATE) return "a greeting with unknown security";
    if (g.hello.service < LH_SERVICE_CONTROL || g.hello.service > LH_SERVICE_BULK)
        return "a greeting for an unknown service";
    if (g.hello.direction == 0 || g.hello.direction > (LH_SEND | LH_RECEIVE))
        return "a greeting with an unknown direction";
    if (g.streams == 0 || g.streams > STREAMS_MAX || g.stream >= g.streams || g.step > STREAMS_MAX)
        return "a greeting with streams that can't be";
    memcpy(g.token, in + 64, TOKEN_BYTES);
    *out = g;
    return NULL;
}

void welcome_write(const welcome_t *w, uint8_t out[WELCOME_BYTES])
{
    put32(out, w->answer);
    put32(out + 4, w->streams);
    memcpy(out + 8, w->token, TOKEN_BYTES);
}

/* A refusal has no token, and but for REFUSED_VERSION no streams. */
const char *welcome_read(const uint8_t in[WELCOME_BYTES], welcome_t *out)
{
    const welcome_t w = {.answer = get32(in), .streams = get32(in + 4)};
    if (w.answer >= REFUSED_ANSWERS) return "an unknown answer";
    if (w.answer == WELCOME && (w.streams == 0 || w.streams > STREAMS_MAX))
        return "a welcome with streams that can't be";
    *out = w;
    memcpy(out->token, in + 8, TOKEN_BYTES);
    return NULL;
}

const char *welcome_reason(uint32_t answer)
{
    static const char *const text[REFUSED_ANSWERS] = {
        [REFUSED_JOB] = "it belongs to another job",
        [REFUSED_EPOCH] = "it is in another epoch of the job",
        [REFUSED_RANK] = "it is another rank than the one dialled, or does not believe ours",
        [REFUSED_SECURITY] = "it listens with another level of security",
        [REFUSED_TWICE] = "it has such a connection already",
        [REFUSED_HOST] = "it did not admit it",
        [REFUSED_VERSION] = "it speaks another version of frames",
        [REFUSED_STREAM] = "it knows no connection that this stream could join",
    };
    return answer < REFUSED_ANSWERS && text[answer] != NULL ? text[answer]
                                                            : "for an unknown reason";
}
