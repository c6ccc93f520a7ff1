/* tensor_part_test.c - parts of tensors against a walk over every element. */
#include <unit/base/scratch_files.h>

#include <checkpoint/tensor_part.h>

enum { MOST = 240 };

/* Which local element of the part the logical element (i, j, k) is; -1: none. */
static int64_t place_of(const tensor_part_t *p, uint64_t i, uint64_t j, uint64_t k)
{
    const uint64_t at[3] = {i, j, k};
    uint64_t index = 0;
    for (int d = 0; d < 3; d++) {
        if (at[d] < p->at[d] || at[d] >= p->at[d] + p->shape[d]) return -1;
        index = index * p->shape[d] + at[d] - p->at[d];
    }
    return index < p->first || index >= p->first + p->count ? -1 : (int64_t)(index - p->first);
}

static const uint64_t shape[LH_MAX_RANK] = {4, 5, 6};

static const tensor_part_t parts[] = {
    {.at = {0, 0, 0}, .shape = {4, 5, 6}, .first = 0, .count = 120},
    {.at = {0, 0, 0}, .shape = {4, 5, 6}, .first = 7, .count = 100},
    {.at = {1, 0, 0}, .shape = {2, 5, 6}, .first = 0, .count = 60},
    {.at = {0, 2, 0}, .shape = {4, 3, 6}, .first = 5, .count = 50},
    {.at = {0, 0, 1}, .shape = {4, 5, 3}, .first = 0, .count = 60},
    {.at = {1, 1, 2}, .shape = {3, 3, 4}, .first = 3, .count = 29},
    {.at = {3, 4, 5}, .shape = {1, 1, 1}, .first = 0, .count = 1},
    {.at = {0, 0, 0}, .shape = {4, 5, 6}, .first = 119, .count = 1},
};
enum { PARTS = sizeof(parts) / sizeof(parts[0]) };

static void what_two_parts_share_is_copied_and_nothing_else(void **state)
{
    (void)state;
    for (int a = 0; a < PARTS; a++)
        for (int b = 0; b < PARTS; b++) {
            float from[MOST], to[MOST], wanted[MOST];
            uint64_t shared = 0;
            for (int i = 0; i < MOST; i++) {
                from[i] = (float)(1000 + i);
                to[i] = wanted[i] = -1;
            }
            for (uint64_t i = 0; i < 4; i++)
                for (uint64_t j = 0; j < 5; j++)
                    for (uint64_t k = 0; k < 6; k++) {
                        const int64_t x = place_of(&parts[a], i, j, k);
                        const int64_t y = place_of(&parts[b], i, j, k);
                        if (x < 0 || y < 0) continue;
                        wanted[y] = from[x];
                        shared++;
                    }
            assert_int_equal(tensor_part_copy(3, shape, &parts[a], NULL, &parts[b], NULL), shared);
            assert_int_equal(tensor_part_copy(3, shape, &parts[a], from, &parts[b], to), shared);
            assert_memory_equal(to, wanted, sizeof(to));
        }
}

static void runs_of_whole_rows_join(void **state)
{
    (void)state;
    tensor_walk_t walk;
    tensor_run_t run;
    tensor_walk_start(&walk, &parts[2], 3, shape);
    assert_true(tensor_walk_next(&walk, &run));
    assert_int_equal(run.logical, 30);
    assert_int_equal(run.count, 60);
    assert_false(tensor_walk_next(&walk, &run));
}

static void a_part_outside_of_its_tensor_does_not_fit(void **state)
{
    (void)state;
    for (int i = 0; i < PARTS; i++)
        assert_true(tensor_part_fits(&parts[i], 3, shape));
    tensor_part_t bad = parts[1];
    bad.count = 114;
    assert_false(tensor_part_fits(&bad, 3, shape));
    bad = parts[2];
    bad.at[0] = 3;
    assert_false(tensor_part_fits(&bad, 3, shape));
    bad.at[0] = UINT64_MAX;
    assert_false(tensor_part_fits(&bad, 3, shape));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_two_parts_share_is_copied_and_nothing_else),
        cmocka_unit_test(runs_of_whole_rows_join),
        cmocka_unit_test(a_part_outside_of_its_tensor_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
