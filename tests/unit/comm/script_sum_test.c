/* script_sum_test.c - the sums of a step, and blocks of INT8: the same bits by every level of
 * instructions, and nothing lost but what is kept as an error. */
#include <comm/quantize.h>
#include <comm/script.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <longhaul/dtype.h>

#include <cmocka.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static void every_level_of_instructions_gives_the_same_bits(void **state)
{
    (void)state;
    enum { ELEMENTS = 1000 };
    float in[3][ELEMENTS], out[3][ELEMENTS];
    float added[3][ELEMENTS];
    uint16_t narrow[ELEMENTS], rounded[3][ELEMENTS];
    uint32_t seed = 1;
    for (uint32_t i = 0; i < 3 * ELEMENTS; i++) {
        seed = seed * 1664525u + 1013904223u;
        memcpy(&in[i / ELEMENTS][i % ELEMENTS], &seed, sizeof(seed)); /* NaN and infinity too */
        narrow[i % ELEMENTS] = (uint16_t)(seed >> 13);
    }
    const sum_source_t sources[] = {{in[0], LH_DTYPE_F32},
                                    {narrow, LH_DTYPE_BF16},
                                    {in[1], LH_DTYPE_F32},
                                    {in[2], LH_DTYPE_F32}};
    for (uint32_t level = 0; level < 3; level++) {
        script_sum_level(level);
        for (uint32_t i = 0; i < ELEMENTS; i++)
            added[level][i] = (float)i;
        script_sum(&(sum_target_t){.data = out[level], .dtype = LH_DTYPE_F32}, sources, 4,
                   ELEMENTS - 1);
        script_sum(&(sum_target_t){.data = rounded[level], .dtype = LH_DTYPE_BF16}, sources, 2,
                   ELEMENTS - 1);
        const sum_target_t to = {added[level], LH_DTYPE_F32, LH_DTYPE_BF16, true, NULL};
        script_sum(&to, sources, 2, ELEMENTS - 1);
    }
    for (uint32_t i = 0; i < ELEMENTS - 1; i++) {
        const float sum = ((in[0][i] + lh_bf16_to_f32(narrow[i])) + in[1][i]) + in[2][i];
        const uint16_t two = lh_f32_to_bf16(in[0][i] + lh_bf16_to_f32(narrow[i]));
        for (uint32_t level = 0; level < 3; level++) {
            if (sum == sum) assert_memory_equal(&out[level][i], &sum, sizeof(sum));
            if (sum != sum) assert_true(out[level][i] != out[level][i]);
            const float wide = lh_bf16_to_f32(two), with = (float)i + wide;
            if (wide != wide) continue;
            assert_int_equal(rounded[level][i], two);
            assert_memory_equal(&added[level][i], &with, sizeof(with));
        }
    }
}

/* What a block can't hold goes wrong on all ranks alike and once only; what is too little is sent
 * when there is enough of it. */
static void blocks_keep_what_they_lose(void **state)
{
    (void)state;
    enum { N = 100, STEPS = 1000 };
    char block[sizeof(float) + N], other[sizeof(float) + N];
    float values[N], errors[N] = {0}, errors_plain[N] = {0}, sent[N];
    double sums[N] = {0};
    for (uint32_t i = 0; i < N; i++)
        values[i] = (i % 3 == 0 ? -1.0f : 1.0f) * expf(-0.2f * (float)i);
    for (uint32_t step = 0; step < STEPS; step++) {
        quantize_level(1);
        quantize_pack(values, errors, N, block);
        quantize_level(0);
        quantize_pack(values, errors_plain, N, other);
        assert_memory_equal(block, other, sizeof(block));
        assert_memory_equal(errors, errors_plain, sizeof(errors));
        quantize_unpack(block, N, sent);
        for (uint32_t i = 0; i < N; i++)
            sums[i] += (double)sent[i];
    }
    quantize_level(1);
    /* A step of the scale is 1 / 127; what is smaller than half of that is not sent at first. */
    for (uint32_t i = 0; i < N; i++)
        assert_true(fabs(sums[i] / STEPS - (double)values[i]) < 0.51 / 127 / STEPS + 1e-7);
    memcpy(errors_plain, errors, sizeof(errors));
    static const float wrong[] = {INFINITY, -INFINITY, NAN, 3e38f};
    for (uint32_t k = 0; k < COUNT(wrong); k++) {
        values[7] = wrong[k];
        quantize_pack(values, errors, N, block);
        quantize_unpack(block, N, sent);
        for (uint32_t i = 0; i < N; i++)
            assert_true(isnan(sent[i]));
        assert_memory_equal(errors, errors_plain, sizeof(errors));
    }
    memset(errors, 0, sizeof(errors));
    for (uint32_t i = 0; i < N; i++)
        values[i] = 1e-38f;
    quantize_pack(values, errors, N, block);
    quantize_unpack(block, N, sent);
    for (uint32_t i = 0; i < N; i++)
        assert_true(sent[i] == 0 && errors[i] == 1e-38f);
    assert_int_equal(quantize_bytes(0), 0);
    assert_int_equal(quantize_bytes(1), 5);
    assert_int_equal(quantize_bytes(129), 137);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_keep_what_they_lose),
        cmocka_unit_test(every_level_of_instructions_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
