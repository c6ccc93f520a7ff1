/* quantity_test.c - values with units, against figures worked out by hand. */
#include <unit/base/scratch_files.h>

#include <locale.h>

#include <config/quantity.h>

typedef struct whole {
    const char *text;
    uint64_t value;
} whole_t;

static const whole_t counts[] = {
    {"0", 0},
    {"007", 7},
    {"1k", 1000},
    {"1.5k", 1500},
    {"0.25M", 250000},
    {"2G", 2000000000},
    {"1T", 1000000000000},
    {"18446744073709551615", UINT64_MAX},
};
static const whole_t sizes[] = {
    {"0", 0},    {"1KiB", 1024},      {"64MiB", 67108864}, {"1.5GiB", 1610612736},  {"4096", 4096},
    {"17B", 17}, {"5GB", 5000000000}, {"1kB", 1000},       {"2TiB", 2199023255552},
};
static const whole_t times[] = {
    {"0", 0},
    {"10us", 10000},
    {"250ms", 250000000},
    {"1.5s", 1500000000},
    {"10min", 600000000000},
    {"1h", 3600000000000},
    {"7d", 604800000000000},
    {"3ns", 3},
};
static const whole_t rates[] = {
    {"0", 0},
    {"8bps", 1},
    {"400Gbps", 50000000000},
    {"100Mbps", 12500000},
    {"12.5GB/s", 12500000000},
    {"1GiB/s", 1073741824},
};

static const char *const not_counts[] = {
    "",
    "k",
    "-1",
    "+1",
    "1 k",
    "1K",
    "0.5",
    "1.",
    ".5",
    "1e3",
    "0x10",
    "1.5",
    "1kk",
    "1KiB",
    "1_000",
    "1.2.3k",
    "18446744073709551616",
    "20000000000G",
    " 1",
    "1 ",
};
static const char *const not_sizes[] = {"1k",   "1Kib",  "1KB",
                                        "0.1B", "-4KiB", "1.00000000000001TiB"};
static const char *const not_times[] = {"250", "1m", "1.5ns", "1 s", "s", "99999999999d"};
static const char *const not_rates[] = {"100", "1bps", "1Gb", "1.5bps"};

#define COUNT(t) (sizeof(t) / sizeof((t)[0]))

static void check_rows(const whole_t *rows, size_t count, bool (*parse)(const char *, uint64_t *))
{
    for (size_t i = 0; i < count; i++) {
        uint64_t value = 12345;
        if (!parse(rows[i].text, &value) || value != rows[i].value)
            FAIL_TEST("%s is %llu\n", rows[i].text, (unsigned long long)value);
    }
}

static void check_refused(const char *const *rows, size_t count,
                          bool (*parse)(const char *, uint64_t *))
{
    for (size_t i = 0; i < count; i++) {
        uint64_t value = 12345;
        if (parse(rows[i], &value) || value != 12345) FAIL_TEST("'%s' was taken\n", rows[i]);
    }
}

static void a_quantity_is_read_in_the_unit_it_is_written_in(void **state)
{
    (void)state;
    check_rows(counts, COUNT(counts), quantity_u64);
    check_rows(sizes, COUNT(sizes), quantity_bytes);
    check_rows(times, COUNT(times), quantity_duration);
    check_rows(rates, COUNT(rates), quantity_rate);
}

static void what_is_no_quantity_is_refused_and_writes_nothing(void **state)
{
    (void)state;
    check_refused(not_counts, COUNT(not_counts), quantity_u64);
    check_refused(not_sizes, COUNT(not_sizes), quantity_bytes);
    check_refused(not_times, COUNT(not_times), quantity_duration);
    check_refused(not_rates, COUNT(not_rates), quantity_rate);
}

static void any_takes_every_unit(void **state)
{
    (void)state;
    check_rows(counts, COUNT(counts), quantity_any);
    check_rows(sizes, COUNT(sizes), quantity_any);
    check_rows(times, COUNT(times), quantity_any);
    check_rows(rates, COUNT(rates), quantity_any);
}

static void a_signed_number_has_its_own_ends(void **state)
{
    (void)state;
    int64_t value;
    assert_true(quantity_i64("-9223372036854775808", &value));
    assert_true(value == INT64_MIN);
    assert_true(quantity_i64("9223372036854775807", &value));
    assert_true(value == INT64_MAX);
    assert_true(quantity_i64("-2k", &value));
    assert_int_equal(value, -2000);
    assert_false(quantity_i64("9223372036854775808", &value));
    assert_false(quantity_i64("-9223372036854775809", &value));
    assert_false(quantity_i64("--1", &value));
}

static void a_number_is_decimal_and_finite(void **state)
{
    static const struct {
        const char *text;
        double value;
    } rows[] = {
        {"0.1", 0.1}, {"3e-4", 3e-4},  {"-1", -1},       {".5", 0.5},
        {"5.", 5},    {"+2E+3", 2000}, {"1e308", 1e308},
    };
    static const char *const refused[] = {"",    "nan", "inf", "-inf", "0x1p3", "1e999", "3 e-4",
                                          "3e-", "e5",  ".",   "1,5",  "1.5x",  "- 1",   " 1"};
    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        double value = 12345;
        if (!quantity_f64(rows[i].text, &value) || value != rows[i].value)
            FAIL_TEST("%s is %g\n", rows[i].text, value);
    }
    for (size_t i = 0; i < COUNT(refused); i++) {
        double value = 12345;
        if (quantity_f64(refused[i], &value)) FAIL_TEST("'%s' was taken\n", refused[i]);
    }
}

static void a_number_does_not_ask_the_locale(void **state)
{
    double value = 0;
    (void)state;
    if (setlocale(LC_ALL, "de_DE.UTF-8") == NULL && setlocale(LC_ALL, "de_DE.utf8") == NULL)
        print_message("no German locale here: read in the C locale only\n");
    assert_true(quantity_f64("2.5", &value));
    assert_true(value == 2.5);
    (void)setlocale(LC_ALL, "C");
}

static void a_choice_is_one_of_its_words_whole(void **state)
{
    uint32_t index;
    bool yes;
    (void)state;
    assert_true(quantity_choice("tree", "ring|tree|direct", &index));
    assert_int_equal(index, 1);
    assert_true(quantity_choice("direct", "ring|tree|direct", &index));
    assert_int_equal(index, 2);
    assert_false(quantity_choice("rin", "ring|tree", &index));
    assert_false(quantity_choice("ring|tree", "ring|tree", &index));
    assert_false(quantity_choice("", "ring||tree", &index));
    assert_true(quantity_bool("yes", &yes) && yes);
    assert_true(quantity_bool("no", &yes) && !yes);
    assert_false(quantity_bool("true", &yes));
    assert_false(quantity_bool("Yes", &yes));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_quantity_is_read_in_the_unit_it_is_written_in),
        cmocka_unit_test(what_is_no_quantity_is_refused_and_writes_nothing),
        cmocka_unit_test(any_takes_every_unit),
        cmocka_unit_test(a_signed_number_has_its_own_ends),
        cmocka_unit_test(a_number_is_decimal_and_finite),
        cmocka_unit_test(a_number_does_not_ask_the_locale),
        cmocka_unit_test(a_choice_is_one_of_its_words_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
