/* arena_plan_test.c - what lives at the same time lies apart. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#undef fail

#include <base/philox.h>
#include <program/allocation.h>

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
        assert_int_equal(allocation_plan(items, ITEMS, ALIGNMENT, &bytes), LH_OK);
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
        assert_int_equal(allocation_plan(items, ITEMS, ALIGNMENT, &bytes), LH_OK);
        assert_true((double)bytes <= 1.25 * (double)most_alive(items));
    }
}

/* ---- the rule, taken at its word ---- */

static bool are_alive_together(const arena_item_t *a, const arena_item_t *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* Whether the byte at `offset` is taken by an item that is placed and lives with this one. */
static bool is_taken(const arena_item_t *items, const bool *placed, uint32_t count,
                     const arena_item_t *item, uint64_t offset)
{
    for (uint32_t i = 0; i < count; i++) {
        const arena_item_t *o = &items[i];
        if (!placed[i] || o->bytes == 0 || !are_alive_together(o, item)) continue;
        const uint64_t end = (o->offset + o->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        if (o->offset <= offset && end > offset) return true;
    }
    return false;
}

/* Room from `offset` to the next item that lives with this one; UINT64_MAX: there is none. */
static uint64_t room_at(const arena_item_t *items, const bool *placed, uint32_t count,
                        const arena_item_t *item, uint64_t offset)
{
    uint64_t nearest = UINT64_MAX;
    for (uint32_t i = 0; i < count; i++)
        if (placed[i] && items[i].bytes > 0 && are_alive_together(&items[i], item) &&
            items[i].offset >= offset && items[i].offset < nearest)
            nearest = items[i].offset;
    return nearest == UINT64_MAX ? UINT64_MAX : nearest - offset;
}

/* Items begin at 0 or where another ends: of these places the one with the least room, then the
 * lowest; the room behind everything is endless. */
static void place_by_rule(arena_item_t *items, bool *placed, uint32_t count, uint32_t index)
{
    arena_item_t *item = &items[index];
    uint64_t best = 0, best_room = 0;
    bool found = false;
    for (uint32_t i = 0; i <= count; i++) {
        uint64_t at = 0;
        if (i < count) {
            if (!placed[i] || items[i].bytes == 0 || !are_alive_together(&items[i], item)) continue;
            at = (items[i].offset + items[i].bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        }
        if (is_taken(items, placed, count, item, at)) continue;
        const uint64_t room = room_at(items, placed, count, item, at);
        if (room < item->bytes) continue;
        if (found && (room > best_room || (room == best_room && at >= best))) continue;
        found = true;
        best = at;
        best_room = room;
    }
    assert_true(found);
    item->offset = best;
    placed[index] = true;
}

static void plan_by_rule(arena_item_t *items, uint32_t count)
{
    bool placed[ITEMS] = {false};
    for (uint32_t n = 0; n < count; n++) {
        uint32_t next = count;
        for (uint32_t i = 0; i < count; i++)
            if (!placed[i] && (next == count || items[i].bytes > items[next].bytes)) next = i;
        place_by_rule(items, placed, count, next);
    }
}

/* Of few sizes, as activations are, or of any. */
static void places_are_those_of_the_rule(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < PLANS; seed++) {
        arena_item_t items[ITEMS], expected[ITEMS];
        uint64_t bytes;
        draw(items, seed);
        for (uint32_t i = 0; i < ITEMS && seed % 2 == 1; i++) {
            items[i].bytes = items[i].bytes / 1000 * 100;
            if (i % 3 == 0) items[i].last = 600 - items[i].first;
        }
        memcpy(expected, items, sizeof(items));
        plan_by_rule(expected, ITEMS);
        assert_int_equal(allocation_plan(items, ITEMS, ALIGNMENT, &bytes), LH_OK);
        for (uint32_t i = 0; i < ITEMS; i++)
            assert_int_equal(items[i].offset, expected[i].offset);
    }
}

/* A step that takes 64 micro-batches through 80 blocks, each of which keeps two values until its way
 * back and makes eight that live for two calls: as many as can be alive is what they get. */
static void many_micro_batches_lie_side_by_side(void **state)
{
    (void)state;
    enum { LANES = 64, BLOCKS = 80, KEPT = 2, BRIEF = 8, EACH = KEPT + BRIEF, BYTES = 4096 };
    const uint32_t half = LANES * BLOCKS * BRIEF, count = LANES * BLOCKS * EACH;
    arena_item_t *items = test_calloc(count, sizeof(*items));
    uint64_t bytes;
    for (uint32_t b = 0, n = 0; b < BLOCKS; b++) {
        for (uint32_t lane = 0; lane < LANES; lane++) {
            const uint32_t at = (b * LANES + lane) * BRIEF + 1;
            for (uint32_t k = 0; k < KEPT; k++)
                items[n++] = (arena_item_t){BYTES, at, 2 * half - at, 0};
            for (uint32_t k = 0; k < BRIEF; k++)
                items[n++] = (arena_item_t){BYTES / 2, at + k, at + k + 1, 0};
        }
    }
    assert_int_equal(allocation_plan(items, count, ALIGNMENT, &bytes), LH_OK);
    assert_int_equal(bytes, (uint64_t)LANES * BLOCKS * KEPT * BYTES + 2 * BYTES / 2);
    test_free(items);
}

static void sizes_that_do_not_fit_an_address_are_refused(void **state)
{
    (void)state;
    arena_item_t items[] = {{UINT64_MAX - 8, 1, 2, 0}, {64, 1, 2, 0}};
    uint64_t bytes = 7;
    assert_int_equal(allocation_plan(items, 2, ALIGNMENT, &bytes), LH_INVALID);
    assert_int_equal(bytes, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_alive_together_never_overlap),
        cmocka_unit_test(little_is_left_between_them),
        cmocka_unit_test(places_are_those_of_the_rule),
        cmocka_unit_test(many_micro_batches_lie_side_by_side),
        cmocka_unit_test(sizes_that_do_not_fit_an_address_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
