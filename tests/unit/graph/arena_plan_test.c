/* arena_plan_test.c - what lives at the same time lies apart. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#undef fail

#include <base/philox.h>
#include <graph/arena_plan.h>

enum { ITEMS = 200, PLANS = 50, ALIGNMENT = 64 };

static void draw(arena_item_t *items, uint64_t seed)
{
    for (uint32_t i = 0; i < ITEMS; i++) {
        const uint32_t first = (uint32_t)(philox_uniform(seed, 1, i) * 300);
        items[i] = (arena_item_t){
            .bytes = (uint64_t)(philox_uniform(seed, 2, i) * 5000),
            .first = first,
            .last = first + (uint32_t)(philox_uniform(seed, 3, i) * 40),
        };
    }
}

static uint64_t most_alive(const arena_item_t *items)
{
    uint64_t most = 0;
    for (uint32_t t = 0; t < 400; t++) {
        uint64_t alive = 0;
        for (uint32_t i = 0; i < ITEMS; i++)
            if (items[i].first <= t && items[i].last >= t) alive += items[i].bytes;
        if (alive > most) most = alive;
    }
    return most;
}

static void items_alive_together_never_overlap(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < PLANS; seed++) {
        arena_item_t items[ITEMS];
        uint64_t bytes;
        draw(items, seed);
        assert_int_equal(arena_plan(items, ITEMS, ALIGNMENT, &bytes), LH_OK);
        for (uint32_t a = 0; a < ITEMS; a++) {
            assert_int_equal(items[a].offset % ALIGNMENT, 0);
            assert_true(items[a].offset + items[a].bytes <= bytes);
            for (uint32_t b = a + 1; b < ITEMS; b++) {
                if (items[a].last < items[b].first || items[b].last < items[a].first) continue;
                assert_true(items[a].offset + items[a].bytes <= items[b].offset ||
                            items[b].offset + items[b].bytes <= items[a].offset);
            }
        }
    }
}

static void little_is_left_between_them(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < PLANS; seed++) {
        arena_item_t items[ITEMS];
        uint64_t bytes;
        draw(items, seed);
        assert_int_equal(arena_plan(items, ITEMS, ALIGNMENT, &bytes), LH_OK);
        assert_true((double)bytes <= 1.25 * (double)most_alive(items));
    }
}

static void sizes_that_do_not_fit_an_address_are_refused(void **state)
{
    (void)state;
    arena_item_t items[] = {{UINT64_MAX - 8, 1, 2, 0}, {64, 1, 2, 0}};
    uint64_t bytes = 7;
    assert_int_equal(arena_plan(items, 2, ALIGNMENT, &bytes), LH_INVALID);
    assert_int_equal(bytes, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_alive_together_never_overlap),
        cmocka_unit_test(little_is_left_between_them),
        cmocka_unit_test(sizes_that_do_not_fit_an_address_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
