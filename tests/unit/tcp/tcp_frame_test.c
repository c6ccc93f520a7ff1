/* Frames and greetings to bytes and back, and what is refused; CRC32C against its definition. */
#include "tcp_kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <tcp_frame.h>

#include <cmocka.h>

static frame_t sample(void)
{
    frame_t f = {.type = FRAME_DATA,
                 .stream = 3,
                 .sequence = 0x0123456789abcdefu,
                 .message = 0xfffffffeu,
                 .grants = 12,
                 .offset = 1 << 20,
                 .total = 3 << 20,
                 .length = 65536,
                 .tag = 0xdeadbeefu};
    frame_set_crc(&f, 0x01020304u);
    return f;
}

static void a_head_survives_the_wire(void **state)
{
    (void)state;
    uint8_t bytes[HEAD_BYTES];
    const frame_t f = sample();
    frame_t g;
    frame_write(&f, bytes);
    assert_null(frame_read(bytes, &g));
    assert_int_equal(g.type, FRAME_DATA);
    assert_int_equal(g.stream, f.stream);
    assert_int_equal(g.sequence, f.sequence);
    assert_int_equal(g.message, f.message);
    assert_int_equal(g.grants, f.grants);
    assert_int_equal(g.offset, f.offset);
    assert_int_equal(g.total, f.total);
    assert_int_equal(g.length, f.length);
    assert_int_equal(g.tag, f.tag);
    assert_true(frame_crc_is(&g, 0x01020304u));
    assert_int_equal(bytes[8], 0xef); /* little-endian */
}

static void every_flipped_bit_of_a_head_is_seen(void **state)
{
    (void)state;
    uint8_t bytes[HEAD_BYTES];
    const frame_t f = sample();
    frame_t g;
    for (int bit = 0; bit < HEAD_BYTES * 8; bit++) {
        frame_write(&f, bytes);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        const char *wrong = frame_read(bytes, &g);
        assert_true(wrong != NULL || !frame_crc_is(&g, 0x01020304u));
    }
}

static void heads_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    uint8_t bytes[HEAD_BYTES];
    frame_t g;
    frame_t bad[11];
    for (int i = 0; i < 11; i++)
        bad[i] = sample();
    bad[0].type = 0;
    bad[1].type = FRAME_TYPES;
    bad[2].length = PAYLOAD_MAX + 1;
    bad[3].total = MESSAGE_MAX + 1;
    bad[4].offset = UINT64_MAX - 10; /* and a sum that wraps */
    bad[5].length = (3 << 20) - (1 << 20) + 1;
    bad[6].length = 0;
    bad[7].stream = STREAMS_MAX;
    bad[8].type = FRAME_HELLO; /* of a length that is not a greeting's */
    bad[9] = (frame_t){.type = FRAME_PAD};
    bad[10] = (frame_t){.type = FRAME_PAD, .length = PAD_BYTES + 1};
    for (int i = 0; i < 11; i++) {
        frame_write(&bad[i], bytes);
        assert_non_null(frame_read(bytes, &g));
    }
}

static void greetings_survive_and_bad_ones_are_refused(void **state)
{
    (void)state;
    uint8_t bytes[HELLO_BYTES];
    greeting_t g = {.hello = {.job = 5,
                              .epoch = 6,
                              .rank = 7,
                              .service = LH_SERVICE_BULK,
                              .serial = 8,
                              .direction = LH_SEND},
                    .to = 9,
                    .security = LH_SECURITY_PROVEN,
                    .stream = 1,
                    .streams = 4,
                    .step = 3,
                    .token = "0123456789abcde"};
    greeting_t h;
    greeting_write(&g, bytes);
    assert_null(greeting_read(bytes, &h));
    assert_memory_equal(&g, &h, offsetof(greeting_t, token) + TOKEN_BYTES);
    greeting_t bad[6] = {g, g, g, g, g, g};
    bad[0].security = LH_SECURITY_PRIVATE + 1;
    bad[1].hello.service = 0;
    bad[2].hello.direction = 4;
    bad[3].stream = 4;
    bad[4].streams = STREAMS_MAX + 1;
    bad[5].step = STREAMS_MAX + 1;
    for (int i = 0; i < 6; i++) {
        greeting_write(&bad[i], bytes);
        assert_non_null(greeting_read(bytes, &h));
    }
    greeting_write(&g, bytes);
    bytes[0] ^= 1;
    assert_non_null(greeting_read(bytes, &h));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_head_survives_the_wire),
        cmocka_unit_test(every_flipped_bit_of_a_head_is_seen),
        cmocka_unit_test(heads_that_make_no_sense_are_refused),
        cmocka_unit_test(greetings_survive_and_bad_ones_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
