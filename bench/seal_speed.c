/* seal_speed.c - `seal_speed BYTES`: how fast one thread seals and opens frames of `security = private` with so
 * many bytes of payload, as a line of JSON for bench/rdma. A second of the processor's time each, so that others on the
 * machine count for little; frames lie behind each other in 16 MiB, as a sender's do. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <ib_seal.h>

enum { ROOM = 16 << 20 };

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct rig {
    ib_cipher_t *cipher;
    ib_keys_t keys;
    uint8_t *frames; /* [count][bytes + IB_SEAL_OVER] */
    char *data;      /* [count][bytes] */
    uint32_t bytes, count;
} rig_t;

static bool seal(rig_t *r, uint64_t n)
{
    const uint64_t at = n % r->count;
    const ib_frame_t head = {.message = n, .bytes = r->bytes, .last = true};
    return ib_keys_at(&r->keys, at) &&
           ib_seal_frame(r->cipher, &r->keys.now, at, &head, r->data + at * r->bytes,
                         r->frames + at * (r->bytes + IB_SEAL_OVER));
}

static bool open_again(rig_t *r, uint64_t n)
{
    ib_frame_t head;
    const uint64_t at = n % r->count;
    const uint8_t *frame = r->frames + at * (r->bytes + IB_SEAL_OVER);
    return ib_open_head(r->cipher, &r->keys.now, at, frame, &head) &&
           ib_open_payload(r->cipher, &r->keys.now, at, frame, r->bytes, r->data + at * r->bytes);
}

/* Bytes a second of one second. */
static double speed(rig_t *r, bool (*act)(rig_t *r, uint64_t n))
{
    uint64_t n = 0;
    const double begin = now_s();
    while (n % 16 != 0 || now_s() < begin + 1) {
        if (!act(r, n)) exit(1);
        n++;
    }
    return (double)n * r->bytes / (now_s() - begin);
}

int main(int argc, char **argv)
{
    rig_t r = {.bytes = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0};
    if (r.bytes == 0 || r.bytes > ROOM) return 2;
    r.count = ROOM / r.bytes;
    r.cipher = ib_cipher_new();
    r.frames = calloc(r.count, r.bytes + IB_SEAL_OVER);
    r.data = calloc(r.count, r.bytes);
    if (r.cipher == NULL || r.frames == NULL || r.data == NULL) return 1;
    const double sealed = speed(&r, seal);
    const double opened = speed(&r, open_again);
    (void)printf("{\"seal_bytes_per_second\": %.0f, \"open_bytes_per_second\": %.0f}\n", sealed,
                 opened);
    ib_cipher_free(r.cipher);
    free(r.frames);
    free(r.data);
    return 0;
}
