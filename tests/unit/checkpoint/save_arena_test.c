/* save_arena_test.c - the pages of a save are taken when they are wanted, ahead or at once. */
#include <unit/base/scratch_files.h>

#include <sys/stat.h>
#include <time.h>

#include <checkpoint/writer_arena.h>

#define MIB ((uint64_t)1 << 20)

static uint64_t taken(const writer_arena_t *a)
{
    struct stat st;
    assert_int_equal(fstat(a->fd, &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

static void open_arena(writer_arena_t *a, uint64_t bytes)
{
    assert_int_equal(writer_arena_open(a), LH_OK);
    assert_int_equal(writer_arena_size(a, bytes), LH_OK);
    assert_int_equal(taken(a), 0);
}

static void pages_come_beside_the_caller(void **state)
{
    (void)state;
    writer_arena_t a;
    const struct timespec pause = {.tv_nsec = 10000000};
    open_arena(&a, 7 * MIB);
    writer_arena_ahead(&a);
    /* the thread runs when nothing else wants to, which beside load is seldom: two minutes */
    for (int i = 0; i < 12000 && taken(&a) < 7 * MIB; i++)
        (void)nanosleep(&pause, NULL);
    assert_int_equal(taken(&a), 7 * MIB);
    writer_arena_close(&a);
}

static void who_does_not_wait_gets_the_rest_at_once(void **state)
{
    (void)state;
    writer_arena_t a;
    open_arena(&a, 65 * MIB); /* ahead it takes 33 pauses */
    writer_arena_ahead(&a);
    assert_int_equal(writer_arena_take(&a), LH_OK);
    assert_int_equal(taken(&a), 65 * MIB);
    assert_int_equal(writer_arena_take(&a), LH_OK);
    writer_arena_close(&a);
}

static void parts_take_their_own_pages(void **state)
{
    (void)state;
    writer_arena_t a;
    open_arena(&a, 4 * MIB);
    assert_int_equal(writer_arena_take_part(&a, 3 * MIB + 5, MIB - 5), LH_OK);
    assert_int_equal(taken(&a), MIB);
    assert_int_equal(writer_arena_take_part(&a, 0, 64), LH_OK);
    assert_int_equal(taken(&a), MIB + 4096);
    assert_int_equal(writer_arena_take_part(&a, 64, MIB), LH_OK);
    assert_int_equal(taken(&a), 2 * MIB + 4096);
    assert_int_equal(writer_arena_take(&a), LH_OK);
    assert_int_equal(taken(&a), 4 * MIB);
    writer_arena_close(&a);
}

static void the_thread_goes_on_where_a_part_ends(void **state)
{
    (void)state;
    writer_arena_t a;
    open_arena(&a, 3 * MIB);
    assert_int_equal(writer_arena_take_part(&a, 0, 100), LH_OK);
    writer_arena_ahead(&a);
    assert_int_equal(writer_arena_take(&a), LH_OK);
    assert_int_equal(taken(&a), 3 * MIB);
    writer_arena_close(&a);
}

static void another_size_or_the_end_stop_it(void **state)
{
    (void)state;
    writer_arena_t a;
    open_arena(&a, 512 * MIB); /* far more than it gets done here */
    writer_arena_ahead(&a);
    assert_int_equal(writer_arena_size(&a, 3), LH_OK);
    assert_int_equal(writer_arena_take(&a), LH_OK);
    a.memory[2] = 'x';
    writer_arena_ahead(&a);
    writer_arena_close(&a);
    assert_int_equal(a.fd, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_come_beside_the_caller),
        cmocka_unit_test(who_does_not_wait_gets_the_rest_at_once),
        cmocka_unit_test(parts_take_their_own_pages),
        cmocka_unit_test(the_thread_goes_on_where_a_part_ends),
        cmocka_unit_test(another_size_or_the_end_stop_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
