/* Threads that seal and open frames: how many there are, what the pool promises of tasks, messages of
 * random sizes that go through it, and that no buffer is touched by it once it is the caller's again
 * (of which AddressSanitizer and ThreadSanitizer tell). */
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tcp_kit.h"

#include <tcp_work.h>

#include <cmocka.h>

/* ---- how many ---- */

static void threads_are_planned_by_rate_streams_and_processors(void **state)
{
    (void)state;
    static const uint64_t gigabit = 125000000;
    assert_int_equal(work_plan(0, 4, 64), 0);
    assert_int_equal(work_plan(10 * gigabit, 4, 64), 0);
    assert_int_equal(work_plan(25 * gigabit, 4, 64), 3); /* 6.25 GB/s of both ways */
    assert_int_equal(work_plan(25 * gigabit, 4, 2), 2);
    assert_int_equal(work_plan(25 * gigabit, 1, 64), 2); /* a stream has a task each way */
    assert_int_equal(work_plan(25 * gigabit, 4, 0), 0);
    assert_int_equal(work_plan(400 * gigabit, 16, 64), 8);
    assert_int_equal(work_plan(UINT64_MAX / 4, 64, 64), 8);
}

static void processors_are_free_where_a_device_computes(void **state)
{
    (void)state;
    assert_int_equal(work_processors(64, 64, 1, 64, false), 0); /* all of them compute */
    assert_int_equal(work_processors(64, 64, 1, 64, true), 62);
    assert_int_equal(work_processors(64, 64, 8, 64, true), 6); /* shared by 8 ranks */
    assert_int_equal(work_processors(8, 64, 8, 8, true), 6);   /* bound */
    assert_int_equal(work_processors(2, 64, 8, 2, true), 0);
    assert_int_equal(work_processors(1, 1, 1, 1, true), 0);
    assert_int_equal(work_processors(4, 4, 8, 4, true), 0);
    assert_int_equal(work_processors(64, 64, 1, 5, true), 3); /* of a container of five */
    assert_int_equal(work_processors(8, 64, 8, 1, true), 0);  /* of one of eight, bound */
    assert_int_equal(work_processors(64, 64, 8, 12, true), 6);
}

/* ---- the pool ---- */

static bool add_one(void *of, LH_UNUSED uint32_t thread)
{
    atomic_fetch_add((atomic_uint *)of, 1);
    return true;
}

static kit_end_t services; /* of which only the host is used */

static void a_task_that_no_thread_has_begun_is_done_by_who_settles_it(void **state)
{
    (void)state;
    atomic_uint count = 0;
    int fd;
    task_pool_t *p = task_pool_new(&services.host.api, "test", &fd); /* without threads */
    assert_non_null(p);
    task_t tasks[3];
    for (int i = 0; i < 3; i++) {
        tasks[i] = (task_t){.work = add_one, .of = &count};
        task_pool_give(p, &tasks[i]);
    }
    task_pool_drop(p, &tasks[2]);
    assert_true(task_pool_forget(p, &tasks[0])); /* the first of the queue, and now its last */
    task_pool_give(p, &tasks[0]);
    assert_int_equal(count, 0);
    task_pool_settle(p, &tasks[1]);
    assert_int_equal(count, 1);
    assert_true(tasks[1].good);
    task_pool_give(p, &tasks[1]); /* the queue is whole behind that */
    task_pool_settle(p, &tasks[0]);
    task_pool_settle(p, &tasks[1]);
    assert_int_equal(count, 3);
    assert_null(task_pool_take(p));
    task_pool_free(p);
}

static bool wait_for_it(void *of, LH_UNUSED uint32_t thread)
{
    atomic_uint *step = of;
    atomic_fetch_add(step, 1);
    while (atomic_load(step) < 2)
        (void)sched_yield();
    return true;
}

/* Not waited for, and not lost. */
static void a_task_that_a_thread_has_begun_can_not_be_forgotten(void **state)
{
    (void)state;
    atomic_uint step = 0;
    int fd;
    task_pool_t *p = task_pool_new(&services.host.api, "test", &fd);
    assert_non_null(p);
    assert_int_equal(task_pool_grow(p, 1), 1);
    task_t tasks[2] = {{.work = wait_for_it, .of = &step}, {.work = wait_for_it, .of = &step}};
    task_pool_give(p, &tasks[0]);
    while (atomic_load(&step) == 0)
        (void)sched_yield();
    task_pool_give(p, &tasks[1]);
    assert_true(task_pool_forget(p, &tasks[1]));
    assert_false(task_pool_forget(p, &tasks[0]));
    atomic_store(&step, 2);
    task_pool_settle(p, &tasks[0]);
    assert_true(tasks[0].good);
    assert_int_equal(atomic_load(&step), 2); /* the other was not done */
    assert_null(task_pool_take(p));
    task_pool_free(p);
}

typedef struct told {
    atomic_uint *begun; /* tasks; NULL: it waits for no other */
    uint32_t thread;
} told_t;

/* Both have to run at once, so on two threads. */
static bool keep_number(void *of, uint32_t thread)
{
    told_t *told = of;
    told->thread = thread;
    if (told->begun == NULL) return true;
    atomic_fetch_add(told->begun, 1);
    while (atomic_load(told->begun) < 2)
        (void)sched_yield();
    return true;
}

static void a_task_is_told_whose_thread_it_is_on(void **state)
{
    (void)state;
    atomic_uint begun = 0;
    int fd;
    told_t told[3] = {{&begun, 99}, {&begun, 99}, {NULL, 99}};
    task_t tasks[3];
    for (int i = 0; i < 3; i++)
        tasks[i] = (task_t){.work = keep_number, .of = &told[i]};
    task_pool_t *p = task_pool_new(&services.host.api, "test", &fd);
    assert_non_null(p);
    task_pool_give(p, &tasks[2]);
    task_pool_settle(p, &tasks[2]); /* there are no threads yet */
    assert_int_equal(told[2].thread, TASK_POLLING);
    assert_int_equal(task_pool_grow(p, 1), 1);
    assert_int_equal(task_pool_grow(p, 2), 2);
    task_pool_give(p, &tasks[0]);
    task_pool_give(p, &tasks[1]);
    for (uint32_t back = 0; back < 2;)
        back += task_pool_take(p) != NULL;
    assert_int_equal(told[0].thread + told[1].thread, 1); /* 0 and 1 */
    assert_true(told[0].thread < 2 && told[1].thread < 2);
    task_pool_free(p);
}

/* As a connection's end does, with those of another around: the queue is whole behind that. */
static void tasks_are_forgotten_from_anywhere_in_the_queue(void **state)
{
    (void)state;
    enum { TASKS = 7 };
    atomic_uint count = 0;
    int fd;
    task_t tasks[TASKS];
    task_pool_t *p = task_pool_new(&services.host.api, "test", &fd); /* without threads */
    assert_non_null(p);
    for (int i = 0; i < TASKS; i++) {
        tasks[i] = (task_t){.work = add_one, .of = &count};
        task_pool_give(p, &tasks[i]);
    }
    static const int forgotten[] = {3, 2, 6, 0}; /* two that are neighbours, the last, the first */
    for (int i = 0; i < 4; i++)
        assert_true(task_pool_forget(p, &tasks[forgotten[i]]));
    for (int i = 0; i < 4; i++)
        assert_false(task_pool_forget(p, &tasks[forgotten[i]])); /* it is back */
    task_pool_give(p, &tasks[6]);
    assert_int_equal(task_pool_grow(p, 1), 1);
    static const int left[] = {1, 4, 5, 6};
    for (int i = 0; i < 4; i++) {
        task_t *task;
        while ((task = task_pool_take(p)) == NULL)
            (void)sched_yield();
        assert_ptr_equal(task, &tasks[left[i]]);
    }
    assert_null(task_pool_take(p));
    assert_int_equal(count, 4);
    task_pool_free(p);
}

static void every_task_comes_back_once_and_wakes_who_sleeps(void **state)
{
    (void)state;
    enum { TASKS = 200 };
    atomic_uint count = 0;
    int fd;
    uint32_t back = 0;
    task_t tasks[TASKS];
    task_pool_t *p = task_pool_new(&services.host.api, "test", &fd);
    assert_non_null(p);
    assert_int_equal(task_pool_grow(p, 2), 2);
    assert_int_equal(services.host.threads, 2);
    struct pollfd about = {.fd = fd, .events = POLLIN};
    assert_false(task_pool_waits(p));
    assert_int_equal(poll(&about, 1, 0), 0);
    for (uint32_t i = 0; i < TASKS; i++) {
        tasks[i] = (task_t){.work = add_one, .of = &count};
        task_pool_give(p, &tasks[i]);
    }
    while (back < TASKS) {
        task_t *task = task_pool_take(p);
        if (task != NULL) {
            assert_true(task->good && task->work != NULL);
            task->work = NULL;
            back++;
        } else if (!task_pool_waits(p)) {
            assert_int_equal(poll(&about, 1, 10000), 1);
        }
    }
    assert_int_equal(count, TASKS);
    assert_int_equal(poll(&about, 1, 0), 0); /* emptied with the last */
    task_pool_free(p);
    assert_int_equal(services.host.threads, 0);
}

/* ---- messages ---- */

static uint64_t seed = 20261128;

static uint32_t next_random(uint32_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % below;
}

static void open_pair(kit_end_t *a, kit_end_t *b, uint32_t security, uint64_t streams)
{
    memset(a, 0, sizeof(*a));
    memset(b, 0, sizeof(*b));
    a->host.key = b->host.key = 7;
    a->config.threads = b->config.threads = KIT_THREADS(2);
    b->config.streams = streams;
    kit_open(a, 0);
    kit_open(b, 1);
    kit_join(a, b, security);
}

enum { MESSAGES = 24, MOST = 600000 };
static uint8_t out[MOST];

/* Sizes below and above what a thread is given, both ways at once. */
static void exchange(uint32_t security, uint64_t streams)
{
    static kit_end_t a, b;
    kit_end_t *const ends[2] = {&a, &b};
    uint32_t size[MESSAGES], posted[2] = {0, 0}, told[2] = {0, 0}, left[2] = {0, 0};
    uint8_t *in[2];
    open_pair(&a, &b, security, streams);
    assert_int_equal(a.host.threads, 2);
    for (uint32_t i = 0; i < MESSAGES; i++)
        size[i] = next_random(i % 3 == 0 ? 3000 : MOST);
    for (int e = 0; e < 2; e++) {
        in[e] = calloc(MESSAGES, MOST);
        assert_non_null(in[e]);
        for (uint32_t i = 0; i < MESSAGES; i++)
            assert_int_equal(kit_api->isend(ends[e]->conn, NULL, out, size[i], i, i), LH_OK);
    }
    const uint64_t end = kit_now() + KIT_PATIENCE_NS;
    while ((told[0] < MESSAGES || told[1] < MESSAGES || left[0] < MESSAGES || left[1] < MESSAGES) &&
           kit_now() < end)
        for (int e = 0; e < 2; e++) {
            kit_end_t *k = ends[e];
            /* Some come before their receives are posted. */
            if (posted[e] < MESSAGES && next_random(4) == 0) {
                const uint32_t i = posted[e]++;
                assert_int_equal(
                    kit_api->irecv(k->conn, NULL, in[e] + (size_t)i * MOST, MOST, i, i), LH_OK);
            }
            k->count = 0;
            kit_poll(k);
            for (uint32_t i = 0; i < k->count; i++) {
                const lh_wire_event_t *event = &k->events[i];
                assert_int_equal(event->status, LH_OK);
                if (event->type == LH_WIRE_SENT) {
                    assert_int_equal(event->cookie, left[e]++);
                    continue;
                }
                assert_int_equal(event->type, LH_WIRE_RECEIVED);
                assert_int_equal(event->cookie, told[e]);
                assert_int_equal(event->bytes, size[told[e]]);
                assert_memory_equal(in[e] + (size_t)told[e] * MOST, out, size[told[e]]);
                told[e]++;
            }
        }
    for (int e = 0; e < 2; e++) {
        assert_int_equal(told[e], MESSAGES);
        assert_int_equal(left[e], MESSAGES);
        assert_true(ends[e]->host.seals > MESSAGES / 2);
        free(in[e]);
    }
    kit_close(&a);
    kit_close(&b);
    assert_int_equal(a.host.threads, 0);
}

static void messages_that_threads_seal_and_open_are_whole_and_in_order(void **state)
{
    (void)state;
    for (uint32_t security = LH_SECURITY_PROVEN; security <= LH_SECURITY_PRIVATE; security++) {
        exchange(security, 1);
        exchange(security, 3);
        exchange(security, 8); /* more than are read without epoll */
    }
}

/* Neither end polls without need: what threads do has to wake it. */
static void who_sleeps_is_woken_when_a_thread_is_done(void **state)
{
    (void)state;
    enum { BYTES = 3 << 20 };
    static kit_end_t a, b;
    static uint8_t from[BYTES], to[BYTES];
    struct pollfd about[2] = {{.events = POLLIN}, {.events = POLLIN}};
    kit_fill(from, BYTES, 8);
    open_pair(&a, &b, LH_SECURITY_PRIVATE, 6);
    assert_int_equal(kit_api->wait_fd(a.transport, &about[0].fd), LH_OK);
    assert_int_equal(kit_api->wait_fd(b.transport, &about[1].fd), LH_OK);
    assert_int_equal(kit_api->irecv(a.conn, NULL, to, BYTES, 1, 1), LH_OK);
    assert_int_equal(kit_api->isend(b.conn, NULL, from, BYTES, 1, 1), LH_OK);
    while (a.count < 2) { /* UP and the receive */
        kit_poll(&a);
        kit_poll(&b);
        if (a.count < 2 && kit_api->arm(a.transport) == LH_OK && kit_api->arm(b.transport) == LH_OK)
            assert_true(poll(about, 2, 10000) > 0);
    }
    assert_int_equal(a.events[1].type, LH_WIRE_RECEIVED);
    assert_int_equal(a.events[1].status, LH_OK);
    assert_memory_equal(from, to, BYTES);
    kit_close(&a);
    kit_close(&b);
}

static void no_thread_is_started_without_need(void **state)
{
    (void)state;
    static kit_end_t a, b;
    static const uint32_t none[] = {0, KIT_THREADS(0)}; /* auto: no rate is known */
    for (size_t i = 0; i < 2; i++)
        for (uint32_t security = LH_SECURITY_KNOWN; security <= LH_SECURITY_PRIVATE; security++) {
            memset(&a, 0, sizeof(a));
            memset(&b, 0, sizeof(b));
            a.host.key = b.host.key = 7;
            /* `known` seals nothing, whatever the option says. */
            a.config.threads = security == LH_SECURITY_KNOWN ? KIT_THREADS(2) : none[i];
            kit_open(&a, 0);
            kit_open(&b, 1);
            kit_join(&a, &b, security);
            assert_int_equal(a.host.threads, 0);
            kit_close(&a);
            kit_close(&b);
        }
}

/* Cancelled, or closed, after any number of polls: the memory is freed as soon as it is the caller's. */
static void an_end_leaves_no_buffer_with_a_thread(void **state)
{
    (void)state;
    enum { TURNS = 24, EACH = 4 };
    static kit_end_t a, b;
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        uint8_t *from[EACH], *to[EACH];
        open_pair(&a, &b, turn % 2 == 0 ? LH_SECURITY_PRIVATE : LH_SECURITY_PROVEN, 2);
        for (uint32_t i = 0; i < EACH; i++) {
            from[i] = malloc(MOST);
            to[i] = malloc(MOST);
            assert_true(from[i] != NULL && to[i] != NULL);
            memcpy(from[i], out, MOST);
            assert_int_equal(kit_api->irecv(a.conn, NULL, to[i], MOST, i, i), LH_OK);
            assert_int_equal(kit_api->isend(b.conn, NULL, from[i], MOST, i, i), LH_OK);
        }
        for (uint32_t polls = next_random(60); polls > 0; polls--) {
            kit_poll(&a);
            kit_poll(&b);
        }
        kit_end_t *const ender = turn % 4 < 2 ? &a : &b, *const other = turn % 4 < 2 ? &b : &a;
        if (turn % 3 == 0) {
            kit_close(ender);
            ender->transport = NULL;
        } else {
            const uint64_t start = kit_now();
            kit_api->cancel(ender->conn);
            assert_non_null(kit_wait(ender, NULL, ender, LH_WIRE_DRAINED, 0, KIT_PATIENCE_MS));
            assert_true(kit_now() - start < 500000000u);
        }
        uint8_t **const mine = ender == &a ? to : from, **const its = ender == &a ? from : to;
        for (uint32_t i = 0; i < EACH; i++)
            free(mine[i]);
        /* The other end is told, or had all of it. */
        const lh_wire_event_t *down = kit_wait(other, NULL, other, LH_WIRE_DOWN, 0,
                                               KIT_PATIENCE_MS);
        assert_non_null(down);
        assert_non_null(kit_wait(other, NULL, other, LH_WIRE_DRAINED, 0, KIT_PATIENCE_MS));
        uint32_t ended = 0;
        for (uint32_t i = 0; i < other->count; i++)
            ended += other->events[i].type == LH_WIRE_SENT ||
                     other->events[i].type == LH_WIRE_RECEIVED;
        assert_int_equal(ended, EACH);
        for (uint32_t i = 0; i < EACH; i++)
            free(its[i]);
        if (ender->transport != NULL) kit_close(ender);
        kit_close(other);
    }
}

int main(void)
{
    if (kit_load() != 0) return 1;
    kit_open(&services, 0);
    kit_fill(out, sizeof(out), 3);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_are_planned_by_rate_streams_and_processors),
        cmocka_unit_test(processors_are_free_where_a_device_computes),
        cmocka_unit_test(a_task_that_no_thread_has_begun_is_done_by_who_settles_it),
        cmocka_unit_test(a_task_that_a_thread_has_begun_can_not_be_forgotten),
        cmocka_unit_test(a_task_is_told_whose_thread_it_is_on),
        cmocka_unit_test(tasks_are_forgotten_from_anywhere_in_the_queue),
        cmocka_unit_test(every_task_comes_back_once_and_wakes_who_sleeps),
        cmocka_unit_test(messages_that_threads_seal_and_open_are_whole_and_in_order),
        cmocka_unit_test(who_sleeps_is_woken_when_a_thread_is_done),
        cmocka_unit_test(no_thread_is_started_without_need),
        cmocka_unit_test(an_end_leaves_no_buffer_with_a_thread),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kit_close(&services);
    return failed;
}
