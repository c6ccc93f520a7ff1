/* crc32c_test.c - CRC-32C against published values and its definition, by every way of the processor.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <longhaul/crc32c.h>

#include <cmocka.h>

enum { READ_BYTES = 48 };

/* The definition: a division, bit by bit. */
static uint32_t crc_by_bit(uint32_t crc, const uint8_t *bytes, size_t length)
{
    crc = ~crc;
    for (size_t i = 0; i < length; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
    }
    return ~crc;
}

/* RFC 3720, B.4, and the check value of the catalogue of CRCs. */
static void the_values_are_the_published_ones(void **state)
{
    (void)state;
    static const uint8_t read_command[READ_BYTES] = {
        0x01, 0xc0, [16] = 0x14, [22] = 0x04, [27] = 0x14, [31] = 0x18, [32] = 0x28, [40] = 0x02};
    uint8_t zeros[32] = {0}, ones[32], up[32], down[32];
    memset(ones, 0xff, sizeof(ones));
    for (uint8_t i = 0; i < 32; i++) {
        up[i] = i;
        down[i] = (uint8_t)(31 - i);
    }
    lh_crc32c_way_t ways[LH_CRC32C_WAYS];
    const size_t count = lh_crc32c_ways(ways);
    assert_in_range(count, 1, LH_CRC32C_WAYS);
    for (size_t w = 0; w < count; w++) {
        assert_int_equal(ways[w](0, (const uint8_t *)"123456789", 9), 0xe3069283u);
        assert_int_equal(ways[w](0, zeros, sizeof(zeros)), 0x8a9136aau);
        assert_int_equal(ways[w](0, ones, sizeof(ones)), 0x62a8ab43u);
        assert_int_equal(ways[w](0, up, sizeof(up)), 0x46dd794eu);
        assert_int_equal(ways[w](0, down, sizeof(down)), 0x113fdb5cu);
        assert_int_equal(ways[w](0, read_command, sizeof(read_command)), 0xd9963a56u);
    }
    assert_int_equal(lh_crc32c(0, "123456789", 9), 0xe3069283u);
    assert_int_equal(lh_crc32c(lh_crc32c(0, "1234", 4), "56789", 5), 0xe3069283u);
}

static void every_way_is_the_division_at_any_length_and_place(void **state)
{
    (void)state;
    lh_crc32c_way_t ways[LH_CRC32C_WAYS];
    const size_t count = lh_crc32c_ways(ways);
    uint8_t bytes[5000];
    uint32_t random = 11;
    for (size_t i = 0; i < sizeof(bytes); i++) {
        random = random * 1664525u + 1013904223u;
        bytes[i] = (uint8_t)(random >> 24);
    }
    for (size_t w = 0; w < count; w++)
        for (size_t length = 0; length < 4900; length += length < 300 ? 1 : 37)
            assert_int_equal(ways[w](77, bytes + length % 17, length),
                             crc_by_bit(77, bytes + length % 17, length));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_values_are_the_published_ones),
        cmocka_unit_test(every_way_is_the_division_at_any_length_and_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
