/* sampling_test.c - what may be picked, how often, and that a seed decides it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <session/generation.h>

#include <cmocka.h>

static const float logits[6] = {1.0f, 3.0f, 2.0f, 3.0f, -1.0f, 0.0f};

static sampler_t *make(bool greedy, double temperature, uint64_t top_k, double top_p, uint64_t seed)
{
    const sampling_t how = {greedy, temperature, top_k, top_p, seed};
    sampler_t *s;
    assert_int_equal(generation_sampler_new(&how, 6, &s), LH_OK);
    return s;
}

static void greedy_takes_the_likeliest_and_of_equals_the_first(void **state)
{
    (void)state;
    sampler_t *s = make(true, 0, 0, 1, 0);
    assert_int_equal(generation_sampler_pick(s, logits, 0), 1);
    generation_sampler_free(s);
}

static void frequencies_follow_the_softmax(void **state)
{
    (void)state;
    enum { DRAWS = 200000 };
    sampler_t *s = make(false, 0.7, 0, 1, 42);
    double count[6] = {0}, total = 0;
    for (uint64_t i = 0; i < DRAWS; i++)
        count[generation_sampler_pick(s, logits, i)]++;
    for (int i = 0; i < 6; i++)
        total += exp((double)logits[i] / 0.7);
    for (int i = 0; i < 6; i++) {
        const double p = exp((double)logits[i] / 0.7) / total;
        /* five standard deviations of a binomial: one false alarm in three million */
        const double slack = 5 * sqrt(p * (1 - p) / DRAWS);
        assert_true(fabs(count[i] / DRAWS - p) < slack);
    }
    generation_sampler_free(s);
}

static void top_k_leaves_only_the_k_likeliest(void **state)
{
    (void)state;
    sampler_t *s = make(false, 5, 3, 1, 7);
    for (uint64_t i = 0; i < 1000; i++) {
        const uint32_t id = generation_sampler_pick(s, logits, i);
        assert_true(id == 1 || id == 2 || id == 3);
    }
    generation_sampler_free(s);
}

static void top_p_leaves_the_smallest_set_that_reaches_it(void **state)
{
    (void)state;
    /* both 3s hold 0.35 + 0.35 of the mass at temperature 1, the 2 another 0.13 */
    sampler_t *s = make(false, 1, 0, 0.7, 7);
    for (uint64_t i = 0; i < 1000; i++) {
        const uint32_t id = generation_sampler_pick(s, logits, i);
        assert_true(id == 1 || id == 3);
    }
    generation_sampler_free(s);
}

static void a_seed_and_an_index_decide_the_token(void **state)
{
    (void)state;
    sampler_t *a = make(false, 1, 0, 1, 5), *b = make(false, 1, 0, 1, 5);
    sampler_t *c = make(false, 1, 0, 1, 6);
    int differ = 0;
    for (uint64_t i = 0; i < 100; i++) {
        const uint32_t id = generation_sampler_pick(a, logits, i);
        assert_int_equal(id, generation_sampler_pick(b, logits, i));
        differ += id != generation_sampler_pick(c, logits, i);
    }
    assert_true(differ > 20);
    generation_sampler_free(a);
    generation_sampler_free(b);
    generation_sampler_free(c);
}

static void impossible_settings_are_refused(void **state)
{
    (void)state;
    sampler_t *s;
    const sampling_t cold = {false, 0, 0, 1, 0}, none = {false, 1, 0, 0, 0};
    assert_int_equal(generation_sampler_new(&cold, 6, &s), LH_INVALID);
    assert_string_equal(fail_reason(),
                        "temperature 0 is not above 0; for the likeliest token use greedy");
    assert_int_equal(generation_sampler_new(&none, 6, &s), LH_INVALID);
    assert_string_equal(fail_reason(), "top_p 0 is not in (0, 1]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_likeliest_and_of_equals_the_first),
        cmocka_unit_test(frequencies_follow_the_softmax),
        cmocka_unit_test(top_k_leaves_only_the_k_likeliest),
        cmocka_unit_test(top_p_leaves_the_smallest_set_that_reaches_it),
        cmocka_unit_test(a_seed_and_an_index_decide_the_token),
        cmocka_unit_test(impossible_settings_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
