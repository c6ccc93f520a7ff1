/* fnv_test.c - FNV-1a's published sums: what names a kernel in checkpoints must not change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <longhaul/fnv.h>

/* Of test_fnv.c of its authors. */
static void sums_are_the_published_ones(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t sum;
    } known[] = {
        {"", UINT64_C(0xcbf29ce484222325)},
        {"a", UINT64_C(0xaf63dc4c8601ec8c)},
        {"foobar", UINT64_C(0x85944171f73967e8)},
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        const size_t length = strlen(known[i].text), half = length / 2;
        assert_true(lh_fnv_add(LH_FNV_BEGIN, known[i].text, length) == known[i].sum);
        const uint64_t first = lh_fnv_add(LH_FNV_BEGIN, known[i].text, half);
        assert_true(lh_fnv_add(first, known[i].text + half, length - half) == known[i].sum);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_the_published_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
