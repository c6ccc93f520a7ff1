/* The seal of frames: what it opens, what it does not, and that no two frames look alike. */
#include "tcp_kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <tcp_seal.h>

#include <cmocka.h>

enum { BYTES = 1000, HEAD = 48 };
static const uint8_t secret[SECRET_BYTES] = "thirty-two bytes of a secret ...";
static kit_end_t host; /* of which only the services are used */

static seal_t *seal_of(bool encrypts, bool opens)
{
    seal_t *s = NULL;
    assert_int_equal(seal_new(&host.host.api, secret, encrypts, opens, &s), LH_OK);
    return s;
}

static void close_up(seal_t *s, uint64_t sequence, const uint8_t *plain, uint8_t *out,
                     uint8_t tag[16])
{
    uint8_t head[HEAD] = {1, 2, 3};
    assert_true(seal_begin(s, sequence, head, HEAD));
    assert_true(seal_add(s, plain, out, BYTES));
    assert_true(seal_end(s, tag));
}

static bool open_up(seal_t *s, uint64_t sequence, uint8_t flip, uint8_t *bytes, const uint8_t *tag)
{
    uint8_t head[HEAD] = {1, 2, 3};
    head[40] = flip;
    assert_true(seal_begin(s, sequence, head, HEAD));
    for (size_t at = 0, piece = 1; at < BYTES; at += piece, piece = piece * 3 % 97 + 1) {
        if (piece > BYTES - at) piece = BYTES - at;
        assert_true(seal_add(s, bytes + at, bytes + at, piece));
    }
    return seal_check(s, tag);
}

static void frames_open_in_any_pieces_also_after_the_key_has_changed(void **state)
{
    (void)state;
    uint8_t plain[BYTES], bytes[BYTES], tag[16];
    kit_fill(plain, BYTES, 1);
    for (int encrypts = 0; encrypts < 2; encrypts++) {
        seal_t *out = seal_of(encrypts != 0, false), *in = seal_of(encrypts != 0, true);
        for (uint64_t sequence = 0; sequence < 4 * 65536; sequence += 32767) {
            memcpy(bytes, plain, BYTES);
            close_up(out, sequence, plain, bytes, tag);
            assert_int_equal(memcmp(bytes, plain, BYTES) == 0, !encrypts);
            assert_true(open_up(in, sequence, 0, bytes, tag));
            assert_memory_equal(bytes, plain, BYTES);
        }
        seal_free(out);
        seal_free(in);
    }
}

static void equal_frames_do_not_look_alike(void **state)
{
    (void)state;
    static const uint64_t sequences[] = {0, 1, 256, 65535, 65536, 131072};
    uint8_t plain[BYTES] = {0}, bytes[6][BYTES], tag[16];
    seal_t *out = seal_of(true, false);
    for (size_t i = 0; i < 6; i++) {
        close_up(out, sequences[i], plain, bytes[i], tag);
        for (size_t k = 0; k < i; k++)
            assert_memory_not_equal(bytes[i], bytes[k], 32);
    }
    seal_free(out);
}

static void another_head_sequence_or_payload_does_not_open(void **state)
{
    (void)state;
    uint8_t plain[BYTES] = {7}, bytes[BYTES], tag[16];
    for (int encrypts = 0; encrypts < 2; encrypts++)
        for (int what = 0; what < 4; what++) {
            seal_t *out = seal_of(encrypts != 0, false), *in = seal_of(encrypts != 0, true);
            memcpy(bytes, plain, BYTES);
            close_up(out, 5, plain, bytes, tag);
            if (what == 1) bytes[BYTES - 1] ^= 1;
            if (what == 2) tag[3] ^= 1;
            assert_false(open_up(in, what == 0 ? 6 : 5, what == 3, bytes, tag));
            seal_free(out);
            seal_free(in);
        }
}

int main(void)
{
    if (kit_load() != 0) return 1;
    kit_open(&host, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_open_in_any_pieces_also_after_the_key_has_changed),
        cmocka_unit_test(equal_frames_do_not_look_alike),
        cmocka_unit_test(another_head_sequence_or_payload_does_not_open),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kit_close(&host);
    return failed;
}
