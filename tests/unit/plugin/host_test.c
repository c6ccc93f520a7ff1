/* host_test.c - the services that a plugin gets. */
#include <unit/base/scratch_files.h>

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

#include <plugin/host.h>
#include <plugin/import.h>

static host_t *host;
static const lh_host_t *api;

static int open_host(void **state)
{
    (void)state;
    return host_new(&host) == LH_OK && host_for(host, "acme", &api) == LH_OK ? 0 : -1;
}

static int close_host(void **state)
{
    (void)state;
    host_free(host);
    return 0;
}

static void a_failure_names_the_plugin_and_keeps_errno(void **state)
{
    (void)state;
    errno = ENOENT;
    assert_int_equal(api->fail(api, LH_IO, "bind %s", "x"), LH_IO);
    assert_string_equal(fail_reason(), "acme: bind x: No such file or directory");
}

static void memory_is_zeroed_and_aligned_as_asked(void **state)
{
    static const size_t alignments[] = {0, 1, 64, 128, 4096, 1 << 21};
    (void)state;
    for (size_t i = 0; i < sizeof(alignments) / sizeof(alignments[0]); i++) {
        unsigned char *p = api->alloc(api, 1000, alignments[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % (alignments[i] < 64 ? 64 : alignments[i]), 0);
        for (int k = 0; k < 1000; k++)
            assert_int_equal(p[k], 0);
        memset(p, 0xff, 1000);
        api->release(api, p);
    }
    api->release(api, NULL);
    assert_null(api->alloc(api, 8, 3 * 64));
    assert_null(api->alloc(api, SIZE_MAX - 8, 64));
    mem_fail_at(1, false);
    assert_null(api->alloc(api, 8, 64));
    mem_fail_at(0, false);
}

static void stopping_is_seen_by_all(void **state)
{
    const lh_host_t *other;
    (void)state;
    assert_int_equal(host_for(host, "other", &other), LH_OK);
    assert_ptr_not_equal(other, api);
    assert_false(other->stopping(other));
    host_stop(host);
    assert_true(other->stopping(other));
    assert_true(api->stopping(api));
}

static void metrics_add_up_by_name(void **state)
{
    host_metric_t rows[4];
    (void)state;
    api->count(api, "tcp.bytes", 3);
    api->count(api, "tcp.retransmits", 1);
    api->count(api, "tcp.bytes", 4);
    api->count(api, "tcp.bytes", NAN);
    assert_int_equal(host_metrics(host, rows, 4), 2);
    assert_string_equal(rows[0].name, "tcp.bytes");
    assert_true(rows[0].value == 7);
    for (int i = 0; i < 100; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "m%d", i);
        api->count(api, name, 1);
    }
    assert_int_equal(host_metrics(host, rows, 4), HOST_METRICS);
}

static void an_older_plugin_gets_the_part_of_a_rank_that_it_knows(void **state)
{
    struct {
        uint32_t struct_size, rank;
        uint32_t node, site;
        uint64_t guard;
    } small = {.struct_size = 16, .rank = 9, .guard = 77};
    lh_rank_info_t info = {.struct_size = sizeof(info)};
    (void)state;
    assert_int_equal(api->rank_info(api, 0, (lh_rank_info_t *)(void *)&small), LH_OK);
    assert_int_equal(small.rank, 0);
    assert_int_equal(small.guard, 77);
    assert_int_equal(api->rank_info(api, 0, &info), LH_OK);
    assert_true(strlen(info.host_name) > 0);
    assert_int_equal(api->rank_info(api, 1, &info), LH_INVALID);
    assert_int_equal(api->world->size, 1);
}

static void without_a_secret_there_is_no_key(void **state)
{
    char key[32];
    (void)state;
    assert_int_equal(api->derive_key(api, "seal", 1, key, sizeof(key)), LH_UNSUPPORTED);
    assert_null(api->extension(api, "lh.cuda/1"));
}

static void processors_are_those_of_the_process(void **state)
{
    cpu_set_t mine, one;
    size_t first = 0;
    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof(mine), &mine), 0);
    assert_in_range(api->processors(api), 1, (uint32_t)CPU_COUNT(&mine));
    while (!CPU_ISSET(first, &mine))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    assert_int_equal(api->processors(api), 1);
    assert_int_equal(sched_setaffinity(0, sizeof(mine), &mine), 0);
}

static _Atomic bool blocked;
static void look_at_mask(void *argument)
{
    sigset_t mask;
    char name[16] = "";
    (void)pthread_sigmask(SIG_SETMASK, NULL, &mask);
    (void)pthread_getname_np(pthread_self(), name, sizeof(name));
    atomic_store(&blocked, sigismember(&mask, SIGTERM) == 1 && strcmp(name, "acme.poll") == 0 &&
                               *(int *)argument == 5);
}

static void a_plugins_thread_takes_no_signal(void **state)
{
    lh_thread_t *thread;
    int argument = 5;
    sigset_t mask;
    (void)state;
    assert_int_equal(api->thread_start(api, "acme.poll", look_at_mask, &argument, &thread), LH_OK);
    api->thread_join(api, thread);
    assert_true(atomic_load(&blocked));
    (void)pthread_sigmask(SIG_SETMASK, NULL, &mask);
    assert_int_equal(sigismember(&mask, SIGTERM), 0);
}

typedef struct old_struct {
    uint32_t struct_size, a;
    uint64_t b;
} old_struct_t;
typedef struct new_struct {
    uint32_t struct_size, a;
    uint64_t b, c;
} new_struct_t;

static void a_border_struct_of_another_version_is_read_for_what_both_know(void **state)
{
    const old_struct_t old = {sizeof(old), 1, 2};
    new_struct_t newer = {sizeof(newer), 1, 2, 0};
    new_struct_t into = {.c = 99};
    old_struct_t into_old;
    (void)state;
    assert_int_equal(import_struct(&into, sizeof(into), &old, 8, 1000, "x"), LH_OK);
    assert_int_equal(into.b, 2);
    assert_int_equal(into.c, 0);
    assert_int_equal(import_struct(&into_old, sizeof(into_old), &newer, 8, 1000, "x"), LH_OK);
    assert_int_equal(into_old.b, 2);
    newer.c = 3;
    assert_int_equal(import_struct(&into_old, sizeof(into_old), &newer, 8, 1000, "x"), LH_ABI);
    assert_string_equal(fail_reason(),
                        "x has 24 bytes and uses those behind the 16 that this host knows");
}

static void a_border_struct_with_an_odd_size_is_refused(void **state)
{
    static const struct {
        uint32_t size;
        size_t limit;
        const char *sentence;
    } rows[] = {
        {12, 1000, "x has 12 bytes, expected a multiple of 8"},
        {0, 1000, "x has 0 bytes, expected 8 to 65536"},
        {24, 16, "x has 24 bytes, but only 16 are the plugin's own"},
        {16, 0, "x does not lie in the plugin's own memory"},
        {1 << 20, 1 << 21, "x has 1048576 bytes, expected 8 to 65536"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const old_struct_t from = {.struct_size = rows[i].size};
        old_struct_t into;
        assert_int_equal(import_struct(&into, sizeof(into), &from, 8, rows[i].limit, "x"), LH_ABI);
        assert_string_equal(fail_reason(), rows[i].sentence);
    }
}

static void a_row_is_found_by_the_plugins_own_step(void **state)
{
    const new_struct_t table[] = {{24, 1, 2, 0}, {24, 3, 4, 0}};
    old_struct_t into;
    (void)state;
    assert_int_equal(import_row(&into, sizeof(into), table, sizeof(table[0]), 1, 8, "x"), LH_OK);
    assert_int_equal(into.a, 3);
    assert_int_equal(import_row(&into, sizeof(into), NULL, 24, 0, 8, "x"), LH_ABI);
    assert_int_equal(import_row(&into, sizeof(into), table, 20, 0, 8, "x"), LH_ABI);
}

#define TEST_OF(f) cmocka_unit_test_setup_teardown(f, open_host, close_host)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST_OF(a_failure_names_the_plugin_and_keeps_errno),
        TEST_OF(memory_is_zeroed_and_aligned_as_asked),
        TEST_OF(stopping_is_seen_by_all),
        TEST_OF(metrics_add_up_by_name),
        TEST_OF(an_older_plugin_gets_the_part_of_a_rank_that_it_knows),
        TEST_OF(without_a_secret_there_is_no_key),
        TEST_OF(processors_are_those_of_the_process),
        TEST_OF(a_plugins_thread_takes_no_signal),
        TEST_OF(a_border_struct_of_another_version_is_read_for_what_both_know),
        TEST_OF(a_border_struct_with_an_odd_size_is_refused),
        TEST_OF(a_row_is_found_by_the_plugins_own_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
