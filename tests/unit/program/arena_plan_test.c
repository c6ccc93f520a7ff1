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
enum { WORK_MOST = 200 }; /* spans that are looked at for an item, on average */

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
        assert_int_equal(allocation_plan(items, ITEMS, ALIGNMENT, &bytes, NULL), LH_OK);
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
        assert_int_equal(allocation_plan(items, ITEMS, ALIGNMENT, &bytes, NULL), LH_OK);
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
        assert_int_equal(allocation_plan(items, ITEMS, ALIGNMENT, &bytes, NULL), LH_OK);
        for (uint32_t i = 0; i < ITEMS; i++)
            assert_int_equal(items[i].offset, expected[i].offset);
    }
}

/* A step that takes micro-batches breadth-first through blocks, each of which keeps two values until
 * its way back and makes eight that live for two calls: as many as can be alive is what they get.
 * Returns the planner's work; *items: how many there were. */
static uint64_t breadth_plan(uint32_t micro_batches, uint32_t blocks, uint32_t *item_count)
{
    enum { KEPT = 2, BRIEF = 8, EACH = KEPT + BRIEF, BYTES = 4096 };
    const uint32_t half = micro_batches * blocks * BRIEF, count = micro_batches * blocks * EACH;
    arena_item_t *items = test_calloc(count, sizeof(*items));
    uint64_t bytes, work;
    for (uint32_t b = 0, n = 0; b < blocks; b++) {
        for (uint32_t m = 0; m < micro_batches; m++) {
            const uint32_t at = (b * micro_batches + m) * BRIEF + 1;
            for (uint32_t k = 0; k < KEPT; k++)
                items[n++] = (arena_item_t){BYTES, at, 2 * half - at, 0};
            for (uint32_t k = 0; k < BRIEF; k++)
                items[n++] = (arena_item_t){BYTES / 2, at + k, at + k + 1, 0};
        }
    }
    assert_int_equal(allocation_plan(items, count, ALIGNMENT, &bytes, &work), LH_OK);
    assert_int_equal(bytes, (uint64_t)count / EACH * KEPT * BYTES + 2 * BYTES / 2);
    test_free(items);
    *item_count = count;
    return work;
}

/* Growing with n log n: of four times the items not even six times the work, where comparing each
 * with each would be sixteen times; and so few spans an item that the work for 64 micro-batches through
 * 80 blocks is that of a fraction of a second. */
static void the_work_grows_with_the_items_of_a_step(void **state)
{
    (void)state;
    uint32_t items, less_items;
    const uint64_t work = breadth_plan(64, 80, &items), less = breadth_plan(32, 40, &less_items);
    print_message("%u items: %.1f spans each; %u items: %.1f\n", items,
                  (double)work / (double)items, less_items, (double)less / (double)less_items);
    assert_int_equal(items, 4 * less_items);
    assert_true(work < 6 * less);
    assert_true(work < (uint64_t)items * WORK_MOST);
}

static void sizes_that_do_not_fit_an_address_are_refused(void **state)
{
    (void)state;
    arena_item_t items[] = {{UINT64_MAX - 8, 1, 2, 0}, {64, 1, 2, 0}};
    uint64_t bytes = 7;
    assert_int_equal(allocation_plan(items, 2, ALIGNMENT, &bytes, NULL), LH_INVALID);
    assert_int_equal(bytes, 7);
}

/* ---- what a device gives ---- */

static lh_memory_t *given;
static void *given_address;
static uint32_t released;

static lh_status_t give(lh_device_t *d, uint32_t space, uint64_t bytes, lh_memory_t **out,
                        void **address)
{
    (void)d, (void)space, (void)bytes;
    *out = given;
    *address = given_address;
    return LH_OK;
}

static void count_release(lh_memory_t *memory)
{
    assert_ptr_equal(memory, given);
    released++;
}

/* The device's own memory needs no address, what is pinned does. */
static void memory_without_a_place_is_refused(void **state)
{
    (void)state;
    static char memory[64];
    static const lh_device_api_t api = {
        .struct_size = sizeof(api), .alloc = give, .release = count_release};
    for (uint32_t space = LH_SPACE_DEVICE; space <= LH_SPACE_PINNED; space++)
        for (uint32_t i = 0; i < 3; i++) {
            allocation_t a = {.name = "inputs", .space = space, .bytes = sizeof(memory)};
            given = i > 0 ? (lh_memory_t *)(void *)memory : NULL;
            given_address = i > 1 ? memory : NULL;
            released = 0;
            const bool right = i == 2 || (i == 1 && space == LH_SPACE_DEVICE);
            assert_int_equal(allocation_alloc(&a, &api, NULL), right ? LH_OK : LH_INVALID);
            assert_ptr_equal(a.memory, right ? given : NULL);
            assert_int_equal(released, !right && i > 0);
        }
    assert_string_equal(fail_reason(), "the device says that it has allocated the inputs, and does "
                                       "not say where");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_alive_together_never_overlap),
        cmocka_unit_test(little_is_left_between_them),
        cmocka_unit_test(places_are_those_of_the_rule),
        cmocka_unit_test(the_work_grows_with_the_items_of_a_step),
        cmocka_unit_test(sizes_that_do_not_fit_an_address_are_refused),
        cmocka_unit_test(memory_without_a_place_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
