/* number_bits_test.c - narrow floating point: every 16-bit pattern comes back, and what lies
 * between two of them goes to the nearer one, at a tie to the even one. */
#include <unit/base/scratch_files.h>

#include <math.h>

#include <base/dtype.h>

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static void every_pattern_comes_back(void **state)
{
    (void)state;
    static const lh_dtype_t narrow[] = {LH_DTYPE_BF16, LH_DTYPE_F16};
    for (int d = 0; d < 2; d++)
        for (uint32_t i = 0; i < 65536; i++) {
            const uint16_t from = (uint16_t)i;
            uint16_t back = 0;
            float wide;
            assert_int_equal(dtype_convert(LH_DTYPE_F32, &wide, narrow[d], &from, 1), LH_OK);
            assert_int_equal(dtype_convert(narrow[d], &back, LH_DTYPE_F32, &wide, 1), LH_OK);
            assert_int_equal(back, from);
        }
}

/* The value by the format's definition, in double. */
static double half_value(uint16_t x)
{
    const int exponent = (x >> 10) & 31;
    const double fraction = x & 1023, sign = (x & 0x8000) != 0 ? -1 : 1;
    return sign * (exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25));
}

static double bf16_value(uint16_t x)
{
    const int exponent = (x >> 7) & 255;
    const double fraction = x & 127, sign = (x & 0x8000) != 0 ? -1 : 1;
    return sign * (exponent == 0 ? ldexp(fraction, -133) : ldexp(128 + fraction, exponent - 134));
}

static void check_between(uint16_t low, double (*value)(uint16_t), uint16_t (*round)(float))
{
    const uint16_t high = (uint16_t)(low + 1);
    const double a = value(low), b = value(high);
    const float middle = (float)((a + b) / 2);
    assert_true((double)middle == (a + b) / 2); /* one more bit fits a float */
    assert_int_equal(round(middle), (low & 1) == 0 ? low : high);
    assert_int_equal(round(nextafterf(middle, (float)a)), low);
    assert_int_equal(round(nextafterf(middle, (float)b)), high);
}

static void what_lies_between_goes_to_the_nearer_and_ties_to_even(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 0x7bff; i++) {
        check_between((uint16_t)i, half_value, lh_f32_to_f16);
        check_between((uint16_t)(i | 0x8000), half_value, lh_f32_to_f16);
    }
    for (uint32_t i = 0; i < 0x7f7f; i++) {
        check_between((uint16_t)i, bf16_value, lh_f32_to_bf16);
        check_between((uint16_t)(i | 0x8000), bf16_value, lh_f32_to_bf16);
    }
    for (uint32_t i = 0; i < 0x7c00; i++)
        assert_true((double)lh_f16_to_f32((uint16_t)i) == half_value((uint16_t)i));
}

static void the_ends_of_the_range_hold(void **state)
{
    (void)state;
    assert_int_equal(lh_f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(lh_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(lh_f32_to_f16(-INFINITY), 0xfc00);
    assert_int_equal(lh_f32_to_f16(0x1p-25f), 0);
    assert_int_equal(lh_f32_to_f16(0x1.000002p-25f), 1);
    assert_int_equal(lh_f32_to_f16(-0.0f), 0x8000);
    assert_int_equal(lh_f32_to_bf16(3.4e38f), 0x7f80);
    assert_int_equal(lh_f32_to_bf16(INFINITY), 0x7f80);
    float nan; /* its payload lies where BF16 has no room */
    const uint32_t bits = 0x7f800001;
    memcpy(&nan, &bits, sizeof(nan));
    assert_true((lh_f32_to_bf16(nan) & 0x7fff) > 0x7f80);
    assert_true((lh_f32_to_f16(nan) & 0x7fff) > 0x7c00);
    assert_int_equal(bits_of(lh_bf16_to_f32(0x3f80)), 0x3f800000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pattern_comes_back),
        cmocka_unit_test(what_lies_between_goes_to_the_nearer_and_ties_to_even),
        cmocka_unit_test(the_ends_of_the_range_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
