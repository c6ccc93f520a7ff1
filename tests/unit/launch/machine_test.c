/* machine_test.c - shares of processors: equal, none twice, neighbours together. */
#include <unit/base/scratch_files.h>

#include <sys/stat.h>

#include <launch/machine.h>

static cpu_set_t first_processors(uint32_t count)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (uint32_t i = 0; i < count; i++)
        CPU_SET(i, &set);
    return set;
}

static void shares_are_equal_and_disjoint(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 12; n++) {
        const cpu_set_t all = first_processors(n);
        for (uint32_t count = 1; count <= 14; count++) {
            int times[16] = {0};
            for (uint32_t r = 0; r < count; r++) {
                cpu_set_t own;
                const bool has = machine_share(&all, "/nowhere", r, count, &own);
                assert_true(has);
                assert_int_equal(CPU_COUNT(&own), n < count ? 1 : n / count);
                for (uint32_t i = 0; i < n; i++)
                    times[i] += CPU_ISSET(i, &own) != 0;
            }
            for (uint32_t i = 0; i < n; i++) {
                if (n < count) /* more ranks than processors: shared as evenly as can be */
                    assert_in_range(times[i], count / n, count / n + 1);
                else
                    assert_int_equal(times[i], i < n / count * count ? 1 : 0);
            }
        }
    }
}

/* As Linux numbers two packages of two cores with two threads each: 0 and 4 are one core. */
static void threads_of_a_core_stay_together(void **state)
{
    static const char *const said[][2] = {{"0", "0"}, {"0", "1"}, {"1", "0"}, {"1", "1"},
                                          {"0", "0"}, {"0", "1"}, {"1", "0"}, {"1", "1"}};
    static const uint32_t expected[4][2] = {{0, 4}, {1, 5}, {2, 6}, {3, 7}};
    const scratch_t *s = *state;
    for (int i = 0; i < 8; i++) {
        char line[1024];
        (void)snprintf(line, sizeof(line),
                       "d=%s/cpu%d/topology && mkdir -p $d && echo %s > $d/physical_package_id && "
                       "echo %s > $d/core_id",
                       s->folder, i, said[i][0], said[i][1]);
        assert_int_equal(system(line), 0);
    }
    const cpu_set_t all = first_processors(8);
    for (uint32_t r = 0; r < 4; r++) {
        cpu_set_t own;
        assert_true(machine_share(&all, s->folder, r, 4, &own));
        assert_int_equal(CPU_COUNT(&own), 2);
        assert_true(CPU_ISSET(expected[r][0], &own) && CPU_ISSET(expected[r][1], &own));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_equal_and_disjoint),
        cmocka_unit_test_setup_teardown(threads_of_a_core_stay_together, scratch_setup,
                                        scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
