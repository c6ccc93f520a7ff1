/* train_ranks_test.c - what ranks say of themselves comes to one text, the same on all of them, and their
 * numbers to sums and to the least of them. */
#include <unit/base/scratch_files.h>

#include <string.h>

#include <session/train_comm.h>

enum { RANKS = 5 };
static const char *said[RANKS];

static lh_status_t gather(void *context, const void *mine, size_t bytes, void *all)
{
    assert_null(context);
    assert_string_equal(mine, said[2]);
    for (size_t r = 0; r < RANKS; r++)
        (void)snprintf((char *)all + r * bytes, bytes, "%s", said[r]);
    return LH_OK;
}

static void says(const char *const texts[RANKS], const char *expected)
{
    const train_ranks_t ranks = {.rank = 2, .size = RANKS, .gather = gather};
    train_agree_t a;
    text_t out = {0};
    memcpy(said, texts, sizeof(said));
    assert_int_equal(train_agree_new(&ranks, &a), LH_OK);
    assert_int_equal(train_agree_text(&a, said[2], &out), LH_OK);
    assert_string_equal(out.data, expected);
    text_free(&out);
    train_agree_free(&a);
}

static void equal_devices_are_said_once(void **state)
{
    (void)state;
    says((const char *[]){"x", "x", "x", "x", "x"}, "x");
    says((const char *[]){"x", "x", "y", "x", "x"}, "ranks 0 to 1: x; rank 2: y; ranks 3 to 4: x");
    says((const char *[]){"x", "y", "y", "y", "y"}, "rank 0: x; ranks 1 to 4: y");
}

static void alone_it_is_what_it_says(void **state)
{
    (void)state;
    train_agree_t a;
    text_t out = {0};
    assert_int_equal(train_agree_new(NULL, &a), LH_OK);
    assert_int_equal(train_agree_text(&a, "cpu", &out), LH_OK);
    assert_string_equal(out.data, "cpu");
    text_free(&out);
    train_agree_free(&a);
}

static const double numbers[RANKS][2] = {{3, 1}, {2, 8}, {5, 0.5}, {-1, 4}, {7, 0.25}};

static lh_status_t gather_numbers(void *context, const void *mine, size_t bytes, void *all)
{
    assert_null(context);
    assert_int_equal(bytes, sizeof(numbers[2]));
    assert_memory_equal(mine, numbers[2], bytes);
    memcpy(all, numbers, sizeof(numbers));
    return LH_OK;
}

static void numbers_are_added_and_the_least_is_kept(void **state)
{
    (void)state;
    const train_ranks_t ranks = {.rank = 2, .size = RANKS, .gather = gather_numbers};
    train_agree_t a;
    double values[2] = {numbers[2][0], numbers[2][1]};
    assert_int_equal(train_agree_new(&ranks, &a), LH_OK);
    assert_int_equal(train_agree_sum(&a, values, 2), LH_OK);
    assert_true(values[0] == 16 && values[1] == 13.75);
    assert_true(train_agree_least(&a, 2, 0) == -1);
    assert_true(train_agree_least(&a, 2, 1) == 0.25);
    train_agree_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_devices_are_said_once),
        cmocka_unit_test(alone_it_is_what_it_says),
        cmocka_unit_test(numbers_are_added_and_the_least_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
