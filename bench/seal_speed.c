/* seal_speed.c - `seal_speed BYTES [ROOM]`: how fast one thread seals and opens frames of `security = private` with
 * so many bytes of payload, as a line of JSON for bench/rdma. A second of the processor's time each, so that others on
 * the machine count for little. Frames lie behind each other in ROOM bytes (16 MiB), as a sender's do, and so do
 * payloads; both in memory as the transport's frames have it, and a device's arenas: huge pages where there are any.
 *
 * `openssl speed` works in place on one buffer, which a cache holds, while a frame's way begins and ends in memory. So
 * two more figures say what memory leaves: the same cipher, keyed once, from the same payloads to the same frames and
 * back, and nothing else: no heads, no tags, and a frame read where it lies. With a ROOM of 256 KiB all four are the
 * cache's. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <openssl/evp.h>

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
    EVP_CIPHER_CTX *bare; /* of the direction that is measured */
    uint8_t *frames;      /* [count][bytes + IB_SEAL_OVER], each from a line's begin on */
    uint8_t *data;        /* [count][bytes] */
    uint32_t bytes, count;
} rig_t;

/* As in the transport: a multiple of 64. */
static uint64_t frame_stride(const rig_t *r)
{
    return ((uint64_t)r->bytes + IB_SEAL_OVER + 63) / 64 * 64;
}

static uint8_t *frame_of(const rig_t *r, uint64_t n)
{
    return r->frames + n % r->count * frame_stride(r);
}

static uint8_t *data_of(const rig_t *r, uint64_t n)
{
    return r->data + n % r->count * r->bytes;
}

static bool seal(rig_t *r, uint64_t n)
{
    const uint64_t at = n % r->count;
    const ib_frame_t head = {.message = n, .bytes = r->bytes, .last = true};
    return ib_keys_at(&r->keys, at) &&
           ib_seal_frame(r->cipher, &r->keys.now, at, &head, data_of(r, n), frame_of(r, n));
}

static bool open_again(rig_t *r, uint64_t n)
{
    ib_frame_t head;
    const uint64_t at = n % r->count;
    return ib_keys_at(&r->keys, at) &&
           ib_open_head(r->cipher, &r->keys.now, at, frame_of(r, n), &head) &&
           ib_open_payload(r->cipher, &r->keys.now, at, frame_of(r, n), r->bytes, data_of(r, n));
}

static bool bare_begin(rig_t *r, bool opens)
{
    const uint8_t key[IB_SEAL_KEY] = {1}, nonce[IB_NONCE_BYTES] = {2};
    return EVP_CipherInit_ex(r->bare, EVP_aes_128_gcm(), NULL, key, nonce, opens ? 0 : 1) == 1;
}

static bool bare_seal(rig_t *r, uint64_t n)
{
    int length;
    return EVP_CipherUpdate(r->bare, frame_of(r, n) + IB_SEAL_OVER, &length, data_of(r, n),
                            (int)r->bytes) == 1;
}

static bool bare_open(rig_t *r, uint64_t n)
{
    int length;
    return EVP_CipherUpdate(r->bare, data_of(r, n), &length, frame_of(r, n) + IB_SEAL_OVER,
                            (int)r->bytes) == 1;
}

/* Bytes a second of one second, behind a round that counts for nothing: its pages are new. */
static double speed(rig_t *r, bool (*act)(rig_t *r, uint64_t n))
{
    uint64_t n = 0, done = 0;
    for (; n < r->count; n++)
        if (!act(r, n)) exit(1);
    const double begin = now_s();
    for (; done % 16 != 0 || now_s() < begin + 1; n++, done++)
        if (!act(r, n)) exit(1);
    return (double)done * r->bytes / (now_s() - begin);
}

int main(int argc, char **argv)
{
    const unsigned long bytes = argc > 1 ? strtoul(argv[1], NULL, 10) : 0;
    const unsigned long room = argc > 2 ? strtoul(argv[2], NULL, 10) : ROOM;
    if (bytes == 0 || bytes > room || room > INT_MAX) return 2;
    rig_t r = {.bytes = (uint32_t)bytes, .count = (uint32_t)(room / bytes)};
    r.cipher = ib_cipher_new();
    r.bare = EVP_CIPHER_CTX_new();
    r.frames = ib_seal_map(r.count * frame_stride(&r));
    r.data = ib_seal_map((uint64_t)r.count * r.bytes);
    if (r.cipher == NULL || r.bare == NULL || r.frames == NULL || r.data == NULL) return 1;
    /* Memory that nobody has written is one page of zeros, which the first cache holds. */
    memset(r.data, 1, (uint64_t)r.count * r.bytes);
    const double sealed = speed(&r, seal), opened = speed(&r, open_again);
    if (!bare_begin(&r, false)) return 1;
    const double bare_sealed = speed(&r, bare_seal);
    if (!bare_begin(&r, true)) return 1;
    const double bare_opened = speed(&r, bare_open);
    (void)printf("{\"seal_bytes_per_second\": %.0f, \"open_bytes_per_second\": %.0f, "
                 "\"bare_seal_bytes_per_second\": %.0f, \"bare_open_bytes_per_second\": %.0f}\n",
                 sealed, opened, bare_sealed, bare_opened);
    ib_cipher_free(r.cipher);
    EVP_CIPHER_CTX_free(r.bare);
    ib_seal_unmap(r.frames, r.count * frame_stride(&r));
    ib_seal_unmap(r.data, (uint64_t)r.count * r.bytes);
    return 0;
}
