/* request_test.c - what a child holds that is forked beside the thread that looks for requests. */
#include <unit/base/scratch_files.h>

#include <stdlib.h>

#include <base/child.h>
#include <base/sys.h>
#include <launch/request.h>
#include <torture.h>

/* Of sizes that starting a thread asks for, more than a thread keeps at hand: each allocator has to
 * come to what its threads share, and to the locks there. */
static int allocate(void *context, int to)
{
    enum { COUNT = 12000, SIZES = 12 };
    const uint32_t word = 1;
    (void)context;
    for (uint32_t i = 0; i < COUNT; i++) {
        void *volatile more = malloc(16 + 16 * (i % SIZES));
        if (more == NULL) return 1;
    }
    return child_say(to, &word, sizeof(word)) ? 0 : 1;
}

static void no_lock_is_held_where_a_child_is_forked(void **state)
{
    enum { SERVERS = 16 };
    const uint64_t patience = UINT64_C(60000000000);
    const uint32_t rounds = torture_wanted() ? 2000 : 20;
    const scratch_t *files = *state;
    request_server_t *servers[SERVERS];
    for (uint32_t round = 0; round < rounds; round++) {
        child_t child;
        uint32_t word = 0;
        for (uint32_t i = 0; i < SERVERS; i++)
            assert_int_equal(request_serve(files->folder, 0, &servers[i]), LH_OK);
        assert_int_equal(child_start(allocate, NULL, &child), CHILD_STARTED);
        const int heard = child_hear(&child, &word, sizeof(word), sys()->now_ns() + patience);
        (void)child_take_away(&child);
        assert_int_equal(heard, CHILD_SAID);
        for (uint32_t i = 0; i < SERVERS; i++)
            request_end(servers[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(no_lock_is_held_where_a_child_is_forked, scratch_setup,
                                        scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
