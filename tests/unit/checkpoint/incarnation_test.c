/* incarnation_test.c - the number of a start stands in a folder's names, the highest counts, and what a later
 * start has gone on without is renamed to what nobody loads. */
#include <unit/checkpoint/small_state.h>

#include <errno.h>
#include <string.h>

#include <base/sys.h>
#include <checkpoint/checkpoint_folder.h>
#include <checkpoint/incarnation.h>

#define RUN "00112233445566778899aabbccddeeff"

static void write_number(const scratch_t *s, uint64_t number, const char *run)
{
    incarnation_t value = {.number = number};
    (void)snprintf(value.run, sizeof(value.run), "%s", run);
    assert_int_equal(incarnation_write(s->folder, &value), LH_OK);
}

static void read_number(const scratch_t *s, uint64_t number, const char *run)
{
    incarnation_t found;
    assert_int_equal(incarnation_read(s->folder, &found), LH_OK);
    assert_int_equal(found.number, number);
    assert_string_equal(found.run, run);
}

static void the_last_that_was_written_is_read(void **state)
{
    scratch_t *s = *state;
    incarnation_t found = {.number = 5};
    assert_int_equal(incarnation_read(scratch_path(s, "missing"), &found), LH_OK);
    assert_int_equal(found.number, 0);
    read_number(s, 0, "");
    write_number(s, 3, RUN);
    read_number(s, 3, RUN);
    write_number(s, 1000, RUN);
    read_number(s, 1000, RUN);
    assert_false(file_exists(scratch_path(s, ".incarnation-000000000003-" RUN)));
}

static void of_several_the_highest_counts(void **state)
{
    scratch_t *s = *state;
    scratch_text(s, ".incarnation-000000000007-", "");
    scratch_text(s, ".incarnation-000000000012-" RUN, "");
    scratch_text(s, ".incarnation-000000000002-" RUN, "");
    read_number(s, 12, RUN);
}

static void other_names_are_none(void **state)
{
    scratch_t *s = *state;
    static const char *const names[] = {
        ".incarnation-",
        ".incarnation-9",
        ".incarnation--" RUN,
        ".incarnation-9x-" RUN,
        ".incarnation-000000000009-" RUN "0",
        ".incarnation-000000000009-xyz",
        ".incarnation-9999999999999999-" RUN,
        ".incarnation-1000000000001-" RUN,
        "incarnation-000000000009-" RUN,
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        scratch_text(s, names[i], "");
    read_number(s, 0, "");
    write_number(s, 4, RUN);
    read_number(s, 4, RUN);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        assert_true(file_exists(scratch_path(s, names[i])));
}

/* The largest, which somebody has made up: starts go on, though of two of them nothing tells any more. */
static void at_the_end_of_numbers_starts_go_on(void **state)
{
    scratch_t *s = *state;
    incarnation_t found;
    scratch_text(s, ".incarnation-999999999999-" RUN, "");
    for (int i = 0; i < 3; i++) {
        assert_int_equal(incarnation_read(s->folder, &found), LH_OK);
        const uint64_t next = incarnation_after(found.number);
        assert_int_equal(next, INCARNATION_MOST);
        write_number(s, next, RUN);
        read_number(s, next, RUN);
    }
    assert_false(file_exists(scratch_path(s, ".incarnation-999999999999-" RUN)));
}

static void of_two_starts_of_one_run_that_with_the_larger_number_is_later(void **state)
{
    (void)state;
    static const struct {
        incarnation_t a, b;
        bool later;
    } cases[] = {
        {{3, RUN}, {2, RUN}, true},  {{2, RUN}, {3, RUN}, false}, {{2, RUN}, {2, RUN}, false},
        {{2, RUN}, {0, RUN}, false}, {{0, RUN}, {2, RUN}, false}, {{3, RUN}, {2, "ab"}, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(incarnation_later(&cases[i].a, &cases[i].b), cases[i].later);
}

/* And may say anything. */
static void a_manifest_says_which_start_has_made_it(void **state)
{
    (void)state;
    static const struct {
        double said;
        uint64_t number;
    } cases[] = {{7, 7}, {0, 0}, {-3, 0}, {1e12, INCARNATION_MOST}, {1e12 + 1, 0}, {1e300, 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const checkpoint_scalar_t scalar = {MANIFEST_INCARNATION, cases[i].said};
        const manifest_t m = {.meta = {.run = RUN, .scalars = &scalar, .scalar_count = 1}};
        const incarnation_t made = incarnation_of(&m);
        assert_int_equal(made.number, cases[i].number);
        assert_string_equal(made.run, RUN);
    }
    const manifest_t none = {.meta = {.step = 1}};
    const incarnation_t made = incarnation_of(&none);
    assert_int_equal(made.number, 0);
    assert_string_equal(made.run, "");
}

/* A manifest may be anybody's. */
static void a_run_that_is_no_id_does_not_lead_elsewhere(void **state)
{
    scratch_t *s = *state;
    write_number(s, 2, "../../elsewhere");
    read_number(s, 2, "");
}

static int sync_that_fails(int fd)
{
    (void)fd;
    errno = EIO;
    return -1;
}

static void what_is_not_on_the_disk_is_not_told_as_written(void **state)
{
    scratch_t *s = *state;
    const incarnation_t value = {.number = 2, .run = RUN};
    sys_t table = sys_real;
    write_number(s, 1, RUN);
    scratch_text(s, CHECKPOINT_POINTER, ""); /* so that the folders above are not synced first */
    table.fsync = sync_that_fails;
    sys_use(&table);
    const lh_status_t status = incarnation_write(s->folder, &value);
    sys_use(NULL);
    assert_int_equal(status, LH_IO);
    assert_true(file_exists(scratch_path(s, ".incarnation-000000000001-" RUN)));
}

static void a_stale_step_is_never_loaded_and_never_lost(void **state)
{
    scratch_t *s = *state;
    assert_int_equal(small_save(s->folder, 10, 0), LH_OK);
    checkpoint_set_stale(s->folder, 20); /* it is not there */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(small_save(s->folder, 20, 0), LH_OK);
        assert_int_equal(small_latest(s->folder), 20);
        checkpoint_set_stale(s->folder, 20);
        assert_int_equal(small_latest(s->folder), 10);
    }
    assert_true(file_exists(scratch_path(s, "stale-step-000000000020/" MANIFEST_NAME)));
    assert_true(file_exists(scratch_path(s, "stale-step-000000000020.1/" MANIFEST_NAME)));
}

int main(void)
{
#define FACT(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)
    const struct CMUnitTest tests[] = {
        FACT(the_last_that_was_written_is_read),
        FACT(of_several_the_highest_counts),
        FACT(other_names_are_none),
        FACT(at_the_end_of_numbers_starts_go_on),
        FACT(of_two_starts_of_one_run_that_with_the_larger_number_is_later),
        FACT(a_manifest_says_which_start_has_made_it),
        FACT(a_run_that_is_no_id_does_not_lead_elsewhere),
        FACT(what_is_not_on_the_disk_is_not_told_as_written),
        FACT(a_stale_step_is_never_loaded_and_never_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
