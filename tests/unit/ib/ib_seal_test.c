/* ib_seal_test.c - frames of `security = private`: keys and frames against another implementation
 * (Python's hmac and cryptography, by the formulas of ib_seal.c) and RFC 7748, every bit of a
 * frame, and the memory that frames lie in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ib_seal.h"

enum { BYTES = 5, FRAME = IB_SEAL_OVER + BYTES };
static const uint64_t sequence = 65536 + 3; /* the second key */
static const ib_frame_t head = {.message = 7,
                                .offset = 1ull << 33,
                                .bytes = BYTES,
                                .index = 2,
                                .tag = 0x11223344,
                                .last = true};

static ib_keys_t counted_keys(void)
{
    ib_keys_t k = {.generation = 0};
    for (uint8_t i = 0; i < IB_SESSION_BYTES; i++)
        k.secret[i] = i;
    return k;
}

static void a_frame_is_what_another_implementation_makes(void **state)
{
    static const uint8_t expected[FRAME] = {
        0xe4, 0x60, 0x09, 0x23, 0xde, 0x1e, 0x74, 0x64, 0x2c, 0x24, 0xbd, 0x6e, 0x1a, 0x78,
        0x27, 0xd2, 0x09, 0x1a, 0x43, 0x3a, 0x75, 0xdc, 0xb3, 0x6d, 0xb9, 0x47, 0x85, 0x13,
        0xfb, 0x73, 0x7c, 0x86, 0x9d, 0xee, 0x46, 0xf0, 0xc4, 0x8f, 0x09, 0x58, 0xe6, 0xac,
        0x31, 0x5b, 0xdf, 0x94, 0x20, 0x0c, 0x1f, 0x92, 0xb3, 0x23, 0x93, 0xea, 0xb2, 0x99,
        0xcd, 0x24, 0x8d, 0xc9, 0x91, 0x0f, 0xc4, 0xa0, 0x50, 0xca, 0xe3, 0xfd, 0xea};
    uint8_t frame[FRAME];
    ib_keys_t k = counted_keys();
    ib_cipher_t *x = ib_cipher_new();
    (void)state;
    assert_true(x != NULL && ib_keys_at(&k, sequence));
    assert_true(ib_seal_frame(x, &k.now, sequence, &head, "chunk", frame));
    assert_memory_equal(frame, expected, FRAME);
    ib_cipher_free(x);
}

static bool opens(ib_cipher_t *x, const ib_key_t *key, uint64_t number, const uint8_t *frame)
{
    ib_frame_t h;
    char text[BYTES];
    return ib_open_head(x, key, number, frame, &h) && h.message == head.message &&
           h.offset == head.offset && h.bytes == BYTES && h.index == head.index &&
           h.tag == head.tag && h.last && ib_open_payload(x, key, number, frame, BYTES, text) &&
           memcmp(text, "chunk", BYTES) == 0;
}

static void every_bit_and_the_place_are_sealed(void **state)
{
    uint8_t frame[FRAME];
    ib_keys_t k = counted_keys();
    ib_cipher_t *x = ib_cipher_new();
    (void)state;
    assert_true(x != NULL && ib_keys_at(&k, sequence));
    assert_true(ib_seal_frame(x, &k.now, sequence, &head, "chunk", frame));
    assert_true(opens(x, &k.now, sequence, frame));
    assert_false(opens(x, &k.now, sequence + 1, frame));
    for (uint32_t bit = 0; bit < 8 * FRAME; bit++) {
        frame[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(opens(x, &k.now, sequence, frame));
        frame[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_true(ib_keys_at(&k, sequence - 65536)); /* the first key */
    assert_false(opens(x, &k.now, sequence, frame));
    ib_cipher_free(x);
}

/* One that has had another key, or has just refused a frame, makes and opens what a new one does. */
static void a_cipher_goes_from_key_to_key(void **state)
{
    const uint64_t numbers[] = {sequence - 65536, sequence};
    uint8_t expected[2][FRAME], frame[FRAME];
    ib_keys_t keys[] = {counted_keys(), counted_keys()};
    ib_cipher_t *used = ib_cipher_new();
    (void)state;
    for (int i = 0; i < 2; i++) {
        ib_cipher_t *x = ib_cipher_new();
        assert_true(x != NULL && ib_keys_at(&keys[i], numbers[i]));
        assert_true(ib_seal_frame(x, &keys[i].now, numbers[i], &head, "chunk", expected[i]));
        ib_cipher_free(x);
    }
    assert_true(used != NULL);
    for (int i = 0; i < 8; i++) {
        const int own = i / 2 % 2, other = 1 - own;
        assert_true(ib_seal_frame(used, &keys[own].now, numbers[own], &head, "chunk", frame));
        assert_memory_equal(frame, expected[own], FRAME);
        assert_false(opens(used, &keys[other].now, numbers[own], frame));
        assert_true(opens(used, &keys[own].now, numbers[own], frame));
        frame[FRAME - 1] ^= 1;
        assert_false(opens(used, &keys[own].now, numbers[own], frame));
    }
    ib_cipher_free(used);
}

/* Around the pieces that a payload is opened in, to places that begin at no line; nothing is written beside
 * it. The frame is that of one call of the library. */
static void a_payload_of_any_length_is_opened_where_it_belongs(void **state)
{
    enum { MOST = 40000, GUARD = 64 };
    static const uint32_t lengths[] = {0,     1,     15,    16,    17,    95,    96,    97,
                                       4095,  4096,  8191,  8192,  8193,  12288, 16383, 16384,
                                       16385, 24576, 24577, 32768, 39999, MOST};
    static uint8_t text[MOST], frame[IB_SEAL_OVER + MOST], room[GUARD + MOST + GUARD];
    ib_keys_t k = counted_keys();
    ib_cipher_t *x = ib_cipher_new();
    (void)state;
    assert_true(x != NULL && ib_keys_at(&k, sequence));
    for (uint32_t i = 0; i < MOST; i++)
        text[i] = (uint8_t)(i * 31 + i / 251);
    for (uint32_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        const uint32_t bytes = lengths[i];
        const ib_frame_t whole = {.bytes = bytes};
        uint8_t *to = room + i * 3 % GUARD;
        ib_frame_t got;
        assert_true(ib_seal_frame(x, &k.now, sequence, &whole, text, frame));
        memset(room, 0xa5, sizeof(room));
        assert_true(ib_open_head(x, &k.now, sequence, frame, &got) && got.bytes == bytes);
        assert_true(ib_open_payload(x, &k.now, sequence, frame, bytes, to));
        assert_memory_equal(to, text, bytes);
        for (uint8_t *at = room; at < to; at++)
            assert_int_equal(*at, 0xa5);
        for (uint8_t *at = to + bytes; at < room + sizeof(room); at++)
            assert_int_equal(*at, 0xa5);
        for (uint32_t at = 0; at < bytes; at += 4099) { /* a bit of each piece */
            frame[IB_SEAL_OVER + at] ^= 4;
            assert_false(ib_open_payload(x, &k.now, sequence, frame, bytes, to));
            frame[IB_SEAL_OVER + at] ^= 4;
        }
    }
    ib_cipher_free(x);
}

/* RFC 7748, 6.1: Alice's private and public key. */
static void a_share_is_that_of_the_standard(void **state)
{
    static const uint8_t own[IB_SHARE_BYTES] = {0x77, 0x07, 0x6d, 0x0a, 0x73, 0x18, 0xa5, 0x7d,
                                                0x3c, 0x16, 0xc1, 0x72, 0x51, 0xb2, 0x66, 0x45,
                                                0xdf, 0x4c, 0x2f, 0x87, 0xeb, 0xc0, 0x99, 0x2a,
                                                0xb1, 0x77, 0xfb, 0xa5, 0x1d, 0xb9, 0x2c, 0x2a};
    static const uint8_t shown[IB_SHARE_BYTES] = {0x85, 0x20, 0xf0, 0x09, 0x89, 0x30, 0xa7, 0x54,
                                                  0x74, 0x8b, 0x7d, 0xdc, 0xb4, 0x3e, 0xf7, 0x5a,
                                                  0x0d, 0xbf, 0x3a, 0x0d, 0x26, 0x38, 0x1a, 0xf4,
                                                  0xeb, 0xa4, 0xa9, 0x8e, 0xaa, 0x9b, 0x4e, 0x6a};
    uint8_t out[IB_SHARE_BYTES];
    (void)state;
    assert_true(ib_share_make(own, out));
    assert_memory_equal(out, shown, IB_SHARE_BYTES);
}

static void both_ends_have_the_same_keys_and_nobody_else(void **state)
{
    const uint8_t a[IB_SHARE_BYTES] = {1}, b[IB_SHARE_BYTES] = {2}, zeros[IB_SHARE_BYTES] = {0};
    uint8_t session[IB_SESSION_BYTES] = {3}, share_a[IB_SHARE_BYTES], share_b[IB_SHARE_BYTES];
    ib_keys_t out_a, in_a, out_b, in_b;
    (void)state;
    assert_true(ib_share_make(a, share_a) && ib_share_make(b, share_b));
    assert_true(ib_keys_agree(session, a, share_a, share_b, true, &out_a, &in_a));
    assert_true(ib_keys_agree(session, b, share_b, share_a, false, &out_b, &in_b));
    assert_memory_equal(out_a.secret, in_b.secret, IB_SESSION_BYTES);
    assert_memory_equal(in_a.secret, out_b.secret, IB_SESSION_BYTES);
    assert_memory_not_equal(in_a.secret, out_a.secret, IB_SESSION_BYTES);
    session[0]++; /* who does not know it, but has seen both shares and made one */
    assert_true(ib_keys_agree(session, b, share_b, share_a, false, &out_b, &in_b));
    assert_memory_not_equal(out_a.secret, in_b.secret, IB_SESSION_BYTES);
    assert_false(ib_keys_agree(session, a, share_a, zeros, true, &out_a, &in_a));
}

/* Whether huge pages are asked for there; -1: the kernel does not tell. */
static int asks_for_huge_pages(const uint8_t *at)
{
    char line[512];
    unsigned long begin = 0, end = 0, one, two;
    int asks = -1;
    FILE *f = fopen("/proc/self/smaps", "r");
    while (f != NULL && asks < 0 && fgets(line, sizeof(line), f) != NULL) {
        if (sscanf(line, "%lx-%lx", &one, &two) == 2) {
            begin = one;
            end = two;
        }
        const bool is_there = (uintptr_t)at >= begin && (uintptr_t)at < end;
        if (is_there && strncmp(line, "VmFlags:", 8) == 0) asks = strstr(line, " hg") != NULL;
    }
    if (f != NULL) (void)fclose(f);
    return asks;
}

static void frames_lie_in_huge_pages(void **state)
{
    enum { PAGE = 2 << 20, LONG = 2 * PAGE + 64, SHORT = 100 };
    static const uint8_t zeros[SHORT];
    unsigned char there;
    (void)state;
    uint8_t *frames = ib_seal_map(LONG), *few = ib_seal_map(SHORT);
    assert_true(frames != NULL && few != NULL);
    assert_int_equal((uintptr_t)frames % PAGE, 0);
    assert_memory_equal(frames, zeros, SHORT);
    assert_memory_equal(frames + LONG - SHORT, zeros, SHORT);
    assert_memory_equal(few, zeros, SHORT);
    memset(frames, 1, LONG);
    memset(few, 1, SHORT);
    if (access("/sys/kernel/mm/transparent_hugepage/enabled", F_OK) == 0)
        assert_int_not_equal(asks_for_huge_pages(frames), 0);
    ib_seal_unmap(frames, LONG);
    assert_true(mincore(frames, 1, &there) != 0 && errno == ENOMEM);
    assert_true(mincore(frames + LONG / PAGE * PAGE, 1, &there) != 0 && errno == ENOMEM);
    ib_seal_unmap(few, SHORT);
    assert_true(mincore(few, 1, &there) != 0 && errno == ENOMEM);
    ib_seal_unmap(NULL, LONG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_frame_is_what_another_implementation_makes),
        cmocka_unit_test(every_bit_and_the_place_are_sealed),
        cmocka_unit_test(a_cipher_goes_from_key_to_key),
        cmocka_unit_test(a_payload_of_any_length_is_opened_where_it_belongs),
        cmocka_unit_test(a_share_is_that_of_the_standard),
        cmocka_unit_test(both_ends_have_the_same_keys_and_nobody_else),
        cmocka_unit_test(frames_lie_in_huge_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
