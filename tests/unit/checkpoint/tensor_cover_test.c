/* tensor_cover_test.c - parts that hold each element once, and parts that nearly do, against a
 * count of every element. */
#include <unit/base/scratch_files.h>

#include <checkpoint/tensor_part.h>

enum { PARTS = 64, SIDE = 6, CELLS = SIDE * SIDE * SIDE };

static uint64_t seed = 20261122;

static uint64_t next_random(uint64_t below)
{
    uint64_t z = seed += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % below;
}

typedef struct cover {
    tensor_part_t parts[PARTS];
    uint32_t count, rank;
    uint64_t shape[LH_MAX_RANK];
} cover_t;

static uint64_t elements_of(const cover_t *c, const tensor_part_t *box)
{
    uint64_t elements = 1;
    for (uint32_t i = 0; i < c->rank; i++)
        elements *= box->shape[i];
    return elements;
}

/* Cuts a box in two along a dimension, or at last into ranges, again and again. */
static void divide(cover_t *c, tensor_part_t box, uint32_t depth)
{
    const uint32_t i = (uint32_t)next_random(c->rank + 1);
    if (depth == 0 || i == c->rank || box.shape[i] < 2) {
        const uint64_t all = elements_of(c, &box), cut = next_random(all + 1);
        box.first = 0;
        box.count = cut;
        c->parts[c->count++] = box;
        box.first = cut;
        box.count = all - cut;
        c->parts[c->count++] = box;
        return;
    }
    tensor_part_t rest = box;
    box.shape[i] = 1 + next_random(box.shape[i] - 1);
    rest.at[i] += box.shape[i];
    rest.shape[i] -= box.shape[i];
    divide(c, box, depth - 1);
    divide(c, rest, depth - 1);
}

static void cover_make(cover_t *c)
{
    *c = (cover_t){.rank = (uint32_t)next_random(4)};
    for (uint32_t i = 0; i < c->rank; i++)
        c->shape[i] = 1 + next_random(SIDE);
    divide(c, tensor_part_whole(c->rank, c->shape), 4);
}

/* The truth: each element is counted. */
static bool is_once(const cover_t *c)
{
    uint8_t times[CELLS] = {0};
    tensor_walk_t walk;
    tensor_run_t run;
    for (uint32_t i = 0; i < c->count; i++) {
        tensor_walk_start(&walk, &c->parts[i], c->rank, c->shape);
        while (tensor_walk_next(&walk, &run))
            for (uint64_t k = 0; k < run.count; k++)
                times[run.logical + k]++;
    }
    const tensor_part_t whole = tensor_part_whole(c->rank, c->shape);
    for (uint64_t k = 0; k < whole.count; k++)
        if (times[k] != 1) return false;
    return true;
}

static bool judged(const cover_t *c)
{
    const tensor_part_t *parts[PARTS];
    for (uint32_t i = 0; i < c->count; i++)
        parts[i] = &c->parts[(i * 7 + 3) % c->count];
    if (c->count % 7 == 0)
        for (uint32_t i = 0; i < c->count; i++)
            parts[i] = &c->parts[i];
    return tensor_cover_once(parts, c->count, c->rank, c->shape, 99);
}

static void what_covers_a_tensor_once_is_taken(void **state)
{
    (void)state;
    cover_t c;
    for (int n = 0; n < 20000; n++) {
        cover_make(&c);
        assert_true(is_once(&c));
        assert_true(judged(&c));
    }
}

/* A part moves, grows, shrinks, or comes twice. */
static bool damage(cover_t *c)
{
    tensor_part_t *p = &c->parts[next_random(c->count)];
    const uint32_t i = (uint32_t)next_random(LH_MAX_RANK);
    switch (next_random(6)) {
    case 0: p->at[i]++; break;
    case 1: p->at[i] -= p->at[i] > 0; break;
    case 2: p->first++; break;
    case 3: p->count++; break;
    case 4: p->count -= p->count > 0; break;
    default: *p = c->parts[next_random(c->count)];
    }
    return i < c->rank && tensor_part_fits(p, c->rank, c->shape);
}

/* Where they do not hold each element once they are refused. Some that do are, too: parts of boxes
 * that cross. Nobody writes those. */
static void what_does_not_is_refused(void **state)
{
    (void)state;
    uint32_t wrong = 0;
    cover_t c;
    for (int n = 0; n < 200000; n++) {
        cover_make(&c);
        if (!damage(&c) || is_once(&c)) continue;
        wrong++;
        assert_false(judged(&c));
    }
    assert_true(wrong > 20000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_covers_a_tensor_once_is_taken),
        cmocka_unit_test(what_does_not_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
