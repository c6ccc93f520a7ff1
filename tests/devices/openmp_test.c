/* openmp_test.c - which thread runs which part of a launch: scratch is a thread's that was asked
 * for, so no two threads may run parts of one, also where libgomp gives fewer (OMP_THREAD_LIMIT);
 * and how many there are where no option says so. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "processor.h"

#include "openmp.h" /* before cmocka, whose macro `fail` is a function of the host there */

#include <cmocka.h>

enum { ASKED = 5, MOST_PARTS = 40 };

static int team, number; /* libgomp's, as it would answer in the thread that runs */
static int ran_by[MOST_PARTS];

static int team_size(void)
{
    return team;
}

static int thread_number(void)
{
    return number;
}

static void parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags)
{
    (void)flags;
    assert_int_equal(threads, ASKED);
    for (number = 0; number < team; number++)
        body(data);
}

static void work(void *context, uint32_t part)
{
    (void)context;
    assert_int_equal(ran_by[part], -1);
    ran_by[part] = number;
}

static void no_two_threads_share_what_one_was_asked_for(void **state)
{
    (void)state;
    lh_device_t device = {
        .openmp = {.parallel = parallel, .thread_number = thread_number, .team_size = team_size}};
    lh_stream_t stream = {.threads = {.count = ASKED}, .device = &device};
    for (team = 1; team <= ASKED; team++) {
        for (uint32_t parts = 1; parts <= MOST_PARTS; parts++) {
            int owner[ASKED] = {-1, -1, -1, -1, -1};
            for (uint32_t i = 0; i < parts; i++)
                ran_by[i] = -1;
            number = 0;
            openmp_run(&stream.threads, parts, work, NULL);
            for (uint32_t i = 0; i < parts; i++) {
                const uint32_t share = ((i + 1) * ASKED - 1) / parts; /* attention's thread_of() */
                if (owner[share] == -1) owner[share] = ran_by[i];
                assert_int_not_equal(ran_by[i], -1);
                assert_int_equal(ran_by[i], owner[share]);
            }
        }
    }
}

static int set_to, dynamic = 1;

static void set_threads(int threads)
{
    set_to = threads;
}

static void set_dynamic(int value)
{
    dynamic = value;
}

/* oneDNN must hear of it: it leaves out the work of threads that do not come. */
static void what_libgomp_gives_is_what_is_used(void **state)
{
    (void)state;
    const cpu_openmp_t openmp = {.parallel = parallel,
                                 .thread_number = thread_number,
                                 .team_size = team_size,
                                 .set_threads = set_threads,
                                 .set_dynamic = set_dynamic};
    for (team = 1; team <= ASKED; team++) {
        assert_int_equal(openmp_team(&openmp, ASKED), team);
        assert_int_equal(set_to, team);
        assert_int_equal(dynamic, 0);
    }
}

static uint32_t three(const lh_host_t *host)
{
    (void)host;
    return 3;
}

static void threads_are_as_many_as_the_host_says(void **state)
{
    cpu_set_t mine;
    lh_host_t host = {.struct_size = sizeof(host), .processors = three};
    (void)state;
    assert_int_equal(processor_count(&host), 3);
    assert_int_equal(sched_getaffinity(0, sizeof(mine), &mine), 0);
    host.struct_size = offsetof(lh_host_t, processors); /* of before 2.8 */
    assert_int_equal(processor_count(&host), CPU_COUNT(&mine));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_two_threads_share_what_one_was_asked_for),
        cmocka_unit_test(what_libgomp_gives_is_what_is_used),
        cmocka_unit_test(threads_are_as_many_as_the_host_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
