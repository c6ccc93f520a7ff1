/* tcp_stream_fuzz.c - what a peer may send on an open connection: frames made from the input, with
 * sequence and checksums made right unless the input says otherwise, cut at odd places. Nothing may
 * be written outside of the receives that are posted, and each of them ends once. */
#include <bare_host.h>
#include <fuzz/fuzz.h>

#include <string.h>

#include <longhaul/crc32c.h>
#include <tcp.h>

enum { RECEIVES = 5, ROOM = 4096, GUARD = 64, SENDS = 3, SMALL = 12 };
static const uint64_t room_of[RECEIVES] = {ROOM, 0, 100, ROOM, 7};

static const lh_world_t world = {.struct_size = sizeof(world), .size = 2};
static const lh_host_t host = {.struct_size = sizeof(host),
                               .world = &world,
                               .fail = bare_fail,
                               .alloc = bare_alloc,
                               .release = bare_release,
                               .count = bare_count};

typedef struct bench {
    lh_transport_t transport;
    tcp_config_t config;
    lh_conn_t *conn;
    stream_t *stream;
    uint8_t *buffers[RECEIVES];
    uint32_t posted;
    uint8_t out[64];
} bench_t;

static void post(bench_t *b)
{
    lh_conn_t *c = b->conn;
    if (b->posted == RECEIVES || c->state >= CONN_ENDING) return;
    const uint32_t message = c->recv_end++;
    c->recvs[message % DEPTH] = (operation_t){
        .data = b->buffers[message], .bytes = room_of[message], .cookie = message, .tag = message};
    b->posted++;
    receive_posted(c, message);
}

static void bench_open(bench_t *b)
{
    memset(b, 0, sizeof(*b));
    b->transport.host = &host;
    b->transport.config = &b->config;
    b->transport.epoll = b->transport.timer = -1;
    FUZZ_ASSERT(conn_new(&b->transport, &b->conn) == LH_OK);
    FUZZ_ASSERT(stream_new(&b->transport, STAGE_BYTES, &b->stream) == LH_OK);
    lh_conn_t *c = b->conn;
    c->stream_count = c->open_count = 1;
    c->state = CONN_UP;
    c->tuning.chunk_bytes = EAGER_BYTES;
    stream_adopt(c, b->stream, 0);
    b->stream->state = STREAM_OPEN;
    b->transport.open_streams = 1;
    for (uint32_t i = 0; i < RECEIVES; i++) {
        b->buffers[i] = malloc(room_of[i] + GUARD);
        FUZZ_ASSERT(b->buffers[i] != NULL);
        memset(b->buffers[i], 0x5a, room_of[i] + GUARD);
    }
    for (uint32_t i = 0; i < SENDS; i++)
        c->sends[c->send_end++] = (operation_t){.data = b->out, .bytes = sizeof(b->out), .tag = i};
}

static void bench_close(bench_t *b)
{
    lh_wire_event_t events[2 * RECEIVES + SENDS + 8];
    sink_t sink = {(char *)events, sizeof(events[0]), sizeof(events) / sizeof(events[0]), 0};
    uint32_t received = 0;
    conn_break(b->conn, LH_CANCELLED, "over");
    conn_tell(b->conn, &sink);
    FUZZ_ASSERT(sink.count > 0 && events[sink.count - 1].type == LH_WIRE_DRAINED);
    for (uint32_t i = 0; i < sink.count; i++) {
        if (events[i].type != LH_WIRE_RECEIVED) continue;
        FUZZ_ASSERT(events[i].cookie == received && events[i].bytes <= room_of[received]);
        received++;
    }
    FUZZ_ASSERT(received == b->posted);
    for (uint32_t i = 0; i < RECEIVES; i++) {
        for (uint32_t k = 0; k < GUARD; k++)
            FUZZ_ASSERT(b->buffers[i][room_of[i] + k] == 0x5a);
        free(b->buffers[i]);
    }
    conn_free(b->conn);
}

static void feed(bench_t *b, const uint8_t *bytes, size_t length, size_t piece)
{
    stream_t *s = b->stream;
    while (length > 0 && b->conn->state == CONN_UP) {
        size_t n = s->stage_size - s->stage_last;
        if (n > piece) n = piece;
        if (n > length) n = length;
        memcpy(s->stage + s->stage_last, bytes, n);
        s->stage_last += (uint32_t)n;
        bytes += n;
        length -= n;
        if (!stream_eat(s)) return;
    }
}

/* -128 to 127, as numbers of messages wrap. */
static uint32_t signed_byte(uint8_t byte)
{
    return byte < 128 ? byte : byte - 256u;
}

/* A frame of 12 bytes of input: type, flags, message, grants, offset, total, length (2), payload.
 */
static size_t make_frame(bench_t *b, const uint8_t *in, uint8_t *out)
{
    frame_t f = {.type = in[0] % (FRAME_TYPES + 1),
                 .stream = in[1] & 1,
                 .sequence = b->stream->in_sequence + (in[1] >> 1 & 1),
                 .message = b->conn->recv_first + signed_byte(in[2]),
                 .grants = signed_byte(in[3]) * ((in[1] & 0x80) != 0 ? (uint32_t)DEPTH : 1u),
                 .offset = in[4] * 8u,
                 .total = in[5] * 8u + (in[1] >> 2 & 7),
                 .length = in[6],
                 .tag = in[7] % 8u};
    if (in[1] & 0x20) f.tag = f.message;
    if (in[1] & 0x40) f.length = (uint32_t)f.total;
    if (f.type != FRAME_DATA && f.type != FRAME_PAD) f.length = 0;
    if (f.length > 2100) f.length = 2100;
    memset(out + HEAD_BYTES, in[8], f.length);
    frame_set_crc(&f, lh_crc32c(0, out + HEAD_BYTES, f.length) ^ (in[9] == 255 ? 1u : 0u));
    frame_write(&f, out);
    if (in[10] == 255) out[in[11] % HEAD_BYTES] ^= 1;
    return HEAD_BYTES + f.length;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static bench_t b;
    static uint8_t frame[HEAD_BYTES + 4096];
    bench_open(&b);
    const size_t piece = size > 0 ? 1u + bytes[0] * 5u : 1;
    for (size_t at = 1; at + SMALL <= size && b.conn->state == CONN_UP; at += SMALL) {
        if (bytes[at + 11] % 3 == 0) post(&b);
        if (bytes[at] == 0xff)
            feed(&b, bytes + at, SMALL, piece); /* as it is */
        else
            feed(&b, frame, make_frame(&b, bytes + at, frame), piece);
    }
    bench_close(&b);
    return 0;
}
