/* checks_of_life.c - a plugin is opened and closed many times, and by hosts that are short of
 * memory, slow, or stopping. */
#include "check.h"
#include "check_host.h"
#include "exercise.h"

#include <stdio.h>

#include <base/memory.h>

enum { LIVES = 100, MOST_ALLOCS = 2000 };

/* Between two lives nothing of the plugin's is left. */
static void nothing_left(const char *when)
{
    if (check_host_blocks() != 0)
        check_fault("%s %lld block%s of memory %s not released", when,
                    (long long)check_host_blocks(), check_host_blocks() == 1 ? "" : "s",
                    check_host_blocks() == 1 ? "is" : "are");
    if (check_host_threads() != 0)
        check_fault("%s %lld threads are not joined", when, (long long)check_host_threads());
}

static void live(subject_t *s, const void *config, const char *when)
{
    const lh_status_t status = exercise(s, check_host(), config);
    if (status != LH_OK) check_fault("%s: %s: %s", when, status_text(status), check_host_reason());
    nothing_left("after close");
}

static void lives_many_times(subject_t *s)
{
    void *config = subject_config(s, s->plugin);
    subject_need_device(s, config);
    live(s, config, "the first time"); /* what libraries set up once stays */
    const uint32_t files = subject_descriptors(), tasks = subject_tasks();
    for (int i = 0; i < LIVES; i++)
        live(s, config, "again");
    if (subject_descriptors() > files)
        check_fault("%u descriptors are open after %d lives, %u were before", subject_descriptors(),
                    LIVES, files);
    if (subject_tasks() > tasks + 2)
        check_fault("%u threads run after %d lives, %u did before", subject_tasks(), LIVES, tasks);
}

static void survives_every_failing_alloc(subject_t *s)
{
    void *config = subject_config(s, s->plugin);
    subject_need_device(s, config);
    live(s, config, "without a fault");
    for (uint64_t n = 1; n <= MOST_ALLOCS; n++) {
        char when[64];
        const host_faults_t faults = {.failing_alloc = n};
        (void)snprintf(when, sizeof(when), "where allocation %llu fails", (unsigned long long)n);
        check_host_faults(&faults);
        const lh_status_t status = exercise(s, check_host(), config);
        const bool reached = check_host_allocs() >= n;
        nothing_left(when);
        if (!reached) return;
        if (status != LH_OK && status != LH_NO_MEMORY)
            check_fault("%s it says '%s', expected '%s'", when, status_text(status),
                        status_text(LH_NO_MEMORY));
    }
}

static void survives_faulty_hosts(subject_t *s)
{
    static const host_faults_t hosts[] = {
        {.slow_ns = 100000}, {.no_secret = true},
        {.stops_after = 1},  {.stops_after = 2},
        {.stops_after = 3},  {.stops_after = 5},
        {.stops_after = 9},  {.stops_after = 20},
        {.stops_after = 50}, {.slow_ns = 1000000, .stops_after = 4},
    };
    void *config = subject_config(s, s->plugin);
    subject_need_device(s, config);
    for (size_t i = 0; i < sizeof(hosts) / sizeof(hosts[0]); i++) {
        check_host_faults(&hosts[i]);
        const lh_status_t status = exercise(s, check_host(), config);
        const bool stops = hosts[i].stops_after != 0;
        if (status != LH_OK && !stops)
            check_fault("with a host that is %s: %s: %s", hosts[i].slow_ns != 0 ? "slow" : "alone",
                        status_text(status), check_host_reason());
        nothing_left("after close, with a faulty host,");
    }
}

const check_t checks_of_life[] = {
    {"life.repeats", "opened and closed a hundred times it leaves no memory, thread or descriptor",
     CHECK_EVERY_PLUGIN, false, 60, lives_many_times, NULL},
    {"life.out_of_memory",
     "whichever allocation fails, it says so, gives all back and does not crash",
     CHECK_EVERY_PLUGIN, false, 120, survives_every_failing_alloc, NULL},
    {"life.faulty_host", "it bears a host that is slow, has no secret, or stops at any time",
     CHECK_EVERY_PLUGIN, false, 60, survives_faulty_hosts, NULL},
    {0},
};
