/* ib_pool_test.c - the threads that seal and open: each job comes back once, whoever may sleep is woken and nobody
 * else costs a system call, and what is left of a connection is forgotten. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include <poll.h>
#include <pthread.h>
#include <sched.h>

#include <bare_host.h>

#include "ib_pool.h"

enum { JOBS = 48, BYTES = 20000, FRAME = IB_SEAL_OVER + BYTES, WAIT_MS = 120000 };

static ib_job_t jobs[JOBS];
static uint8_t frames[JOBS][FRAME];
static char text[BYTES], opened[JOBS][BYTES];
static int conns[2]; /* of which only the addresses are used */

struct lh_thread {
    pthread_t thread;
    void (*body)(void *);
    void *argument;
};

static void *run_thread(void *argument)
{
    const struct lh_thread *t = argument;
    t->body(t->argument);
    return NULL;
}

static lh_status_t do_start(LH_UNUSED const lh_host_t *host, LH_UNUSED const char *name,
                            void (*body)(void *), void *argument, lh_thread_t **out)
{
    struct lh_thread *t = calloc(1, sizeof(*t));
    assert_non_null(t);
    t->body = body;
    t->argument = argument;
    assert_int_equal(pthread_create(&t->thread, NULL, run_thread, t), 0);
    *out = t;
    return LH_OK;
}

static void do_join(LH_UNUSED const lh_host_t *host, lh_thread_t *t)
{
    (void)pthread_join(t->thread, NULL);
    free(t);
}

static const lh_host_t host = {.struct_size = sizeof(host),
                               .fail = bare_fail,
                               .alloc = bare_alloc,
                               .release = bare_release,
                               .thread_start = do_start,
                               .thread_join = do_join};

static ib_pool_t *pool_of(uint32_t threads, int *fd)
{
    ib_pool_t *p = ib_pool_new(&host, threads, fd);
    assert_non_null(p);
    for (uint32_t i = 0; i < BYTES; i++)
        text[i] = (char)(i * 7);
    return p;
}

static void give(ib_pool_t *p, uint32_t i, bool opens, int conn)
{
    jobs[i] = (ib_job_t){.conn = (lh_conn_t *)(void *)&conns[conn],
                         .opens = opens,
                         .sequence = i,
                         .head = {.message = i, .bytes = BYTES},
                         .data = opens ? opened[i] : text,
                         .frame = frames[i]};
    ib_pool_give(p, &jobs[i]);
}

static bool is_readable(int fd, int wait_ms)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};
    return poll(&one, 1, wait_ms) == 1;
}

/* Without asking whether it may sleep. */
static ib_job_t *spin(ib_pool_t *p, int fd)
{
    ib_job_t *job;
    while ((job = ib_pool_take(p)) == NULL) {
        assert_false(is_readable(fd, 0));
        (void)sched_yield();
    }
    return job;
}

static void each_job_comes_back_once_and_done(void **state)
{
    int fd;
    uint32_t seen[JOBS] = {0};
    ib_pool_t *p = pool_of(3, &fd);
    (void)state;
    for (int opens = 0; opens < 2; opens++) {
        for (uint32_t i = 0; i < JOBS; i++)
            give(p, i, opens != 0, 0);
        for (uint32_t i = 0; i < JOBS; i++) {
            const ib_job_t *job = spin(p, fd);
            assert_true(job->good && job == &jobs[job->sequence]);
            seen[job->sequence]++;
        }
        assert_null(ib_pool_take(p));
        for (uint32_t i = 0; i < JOBS; i++)
            assert_int_equal(seen[i], 1 + opens);
    }
    for (uint32_t i = 0; i < JOBS; i++)
        assert_memory_equal(opened[i], text, BYTES);
    ib_pool_free(p);
}

static void who_may_sleep_is_woken(void **state)
{
    int fd;
    ib_pool_t *p = pool_of(2, &fd);
    (void)state;
    for (uint32_t i = 0; i < JOBS; i++) {
        assert_false(ib_pool_waits(p));
        assert_false(is_readable(fd, 0));
        give(p, i, false, 0);
        if (i % 3 == 2) give(p, 0, false, 0); /* it has come back */
        assert_true(is_readable(fd, WAIT_MS));
        assert_true(ib_pool_waits(p));
        for (uint32_t left = i % 3 == 2 ? 2 : 1; left > 0;)
            left -= ib_pool_take(p) != NULL;
        assert_false(is_readable(fd, 0));
        assert_null(ib_pool_take(p));
    }
    ib_pool_free(p);
}

/* A job that is done costs its thread no system call where nobody sleeps. */
static void who_polls_is_not_rung(void **state)
{
    int fd;
    ib_pool_t *p = pool_of(2, &fd);
    (void)state;
    for (uint32_t i = 0; i < 2 * JOBS; i++) {
        give(p, i % JOBS, false, 0);
        assert_true(spin(p, fd)->good);
        assert_false(is_readable(fd, 0));
    }
    ib_pool_free(p);
}

static void what_is_dropped_does_not_come_back(void **state)
{
    int fd;
    ib_pool_t *p = pool_of(1, &fd);
    (void)state;
    assert_false(ib_pool_waits(p));
    for (uint32_t i = 0; i < JOBS; i++)
        give(p, i, false, i % 4 == 3);
    ib_pool_drop(p, jobs[0].conn);
    for (uint32_t left = JOBS / 4; left > 0;) {
        const ib_job_t *job = ib_pool_take(p);
        if (job == NULL) continue;
        assert_true(job->conn == jobs[3].conn);
        left--;
    }
    assert_null(ib_pool_take(p));
    assert_false(ib_pool_waits(p));
    assert_false(is_readable(fd, 0));
    give(p, 0, false, 0); /* and whoever sleeps after that is woken */
    assert_true(is_readable(fd, WAIT_MS));
    ib_pool_drop(p, jobs[0].conn);
    assert_false(is_readable(fd, 0));
    ib_pool_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_job_comes_back_once_and_done),
        cmocka_unit_test(who_may_sleep_is_woken),
        cmocka_unit_test(who_polls_is_not_rung),
        cmocka_unit_test(what_is_dropped_does_not_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
