/* dtype_test.c - conversion between floating dtypes, against values known from IEEE 754 and
 * bfloat16. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <base/dtype.h>
#include <base/status.h>

#include <cmocka.h> /* last: it has a fail() of its own */

static const struct {
    float value;
    uint16_t f16, bf16;
} known[] = {
    {0.0f, 0x0000, 0x0000},           {-0.0f, 0x8000, 0x8000},    {1.0f, 0x3c00, 0x3f80},
    {-2.0f, 0xc000, 0xc000},          {65504.0f, 0x7bff, 0x4780}, /* largest half; bfloat16 rounds
                              to 65536 */
    {65519.996f, 0x7bff, 0x4780},     /* under the tie: not infinite            */
    {65520.0f, 0x7c00, 0x4780},       /* the tie goes to the even one: infinity */
    {5.9604645e-8f, 0x0001, 0x3380},  /* smallest subnormal half, 2^-24         */
    {2.9802322e-8f, 0x0000, 0x3300},  /* half of it: tie to even                */
    {8.940697e-8f, 0x0002, 0x33c0},   /* one and a half: tie to even            */
    {6.1035156e-5f, 0x0400, 0x3880},  /* smallest normal half                   */
    {1.0009766f, 0x3c01, 0x3f80},     /* 1 + 2^-10                              */
    {1.00048828125f, 0x3c00, 0x3f80}, /* 1 + 2^-11: tie to even                 */
    {1.00390625f, 0x3c04, 0x3f80},    /* 1 + 2^-8: bfloat16's tie to even       */
    {1.01171875f, 0x3c0c, 0x3f82},    /* 1 + 3 2^-8: tie to even, up            */
    {INFINITY, 0x7c00, 0x7f80},
};

static void values_round_to_nearest_with_ties_to_even(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        assert_int_equal(lh_f32_to_f16(known[i].value), known[i].f16);
        assert_int_equal(lh_f32_to_bf16(known[i].value), known[i].bf16);
    }
}

static void every_16_bit_value_comes_back_as_it_was(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        const float half = lh_f16_to_f32((uint16_t)bits), brain = lh_bf16_to_f32((uint16_t)bits);
        if (!isnan(half)) assert_int_equal(lh_f32_to_f16(half), bits);
        if (!isnan(brain)) assert_int_equal(lh_f32_to_bf16(brain), bits);
        if (isnan(half)) assert_true(isnan(lh_f16_to_f32(lh_f32_to_f16(half))));
        if (isnan(brain)) assert_true(isnan(lh_bf16_to_f32(lh_f32_to_bf16(brain))));
    }
}

static void arrays_convert_between_floating_dtypes_only(void **state)
{
    (void)state;
    const float from[] = {1.5f, -2, 0.25f};
    uint16_t bf16[3];
    double f64[3];
    assert_int_equal(dtype_convert(LH_DTYPE_BF16, bf16, LH_DTYPE_F32, from, 3), LH_OK);
    assert_int_equal(dtype_convert(LH_DTYPE_F64, f64, LH_DTYPE_BF16, bf16, 3), LH_OK);
    for (size_t i = 0; i < 3; i++)
        assert_true(f64[i] == from[i]);
    assert_int_equal(dtype_convert(LH_DTYPE_I32, bf16, LH_DTYPE_F32, from, 1), LH_UNSUPPORTED);
    assert_string_equal(fail_reason(), "no conversion from F32 to I32");
}

static void names_are_found_again(void **state)
{
    (void)state;
    for (lh_dtype_t d = LH_DTYPE_F32; d <= LH_DTYPE_I8; d++) {
        lh_dtype_t found;
        assert_true(dtype_find(lh_dtype_name(d), &found));
        assert_int_equal(found, d);
        assert_true(lh_dtype_bytes(d) > 0);
    }
    lh_dtype_t found;
    assert_false(dtype_find("F128", &found));
    assert_int_equal(lh_dtype_bytes(LH_DTYPES + 1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_round_to_nearest_with_ties_to_even),
        cmocka_unit_test(every_16_bit_value_comes_back_as_it_was),
        cmocka_unit_test(arrays_convert_between_floating_dtypes_only),
        cmocka_unit_test(names_are_found_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
