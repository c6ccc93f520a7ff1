/* tensor_cover.c - ranges of one box follow each other without a gap; boxes are weighed.
 *
 * Each coordinate of each dimension gets a random number modulo a prime, and a box weighs the
 * product, over its dimensions, of the number where it ends less the number where it begins. The
 * weight of boxes that share no element adds up to that of what they fill. For boxes that leave a
 * hole or overlap the sum is another polynomial in the random numbers than the weight of the
 * tensor, of degree 4 at most: it is equal by chance once in 2^59. */
#include <checkpoint/tensor_cover.h>

#include <stdlib.h>

#include <base/digest.h>

__extension__ typedef unsigned __int128 wide_t;
static const uint64_t prime = (UINT64_C(1) << 61) - 1;

static int by_box(const void *a, const void *b)
{
    const tensor_part_t *x = *(const tensor_part_t *const *)a,
                        *y = *(const tensor_part_t *const *)b;
    const int at = memcmp(x->at, y->at, sizeof(x->at));
    const int order = at != 0 ? at : memcmp(x->shape, y->shape, sizeof(x->shape));
    if (order != 0) return order;
    return x->first < y->first ? -1 : x->first > y->first;
}

static bool is_same_box(const tensor_part_t *a, const tensor_part_t *b)
{
    return memcmp(a->at, b->at, sizeof(a->at)) == 0 &&
           memcmp(a->shape, b->shape, sizeof(a->shape)) == 0;
}

static uint64_t number_of(uint64_t key, uint32_t dimension, uint64_t coordinate)
{
    const uint64_t place[] = {key, dimension, coordinate};
    return xxh3(place, sizeof(place)) % prime;
}

static uint64_t weight_of(const tensor_part_t *box, uint32_t rank, uint64_t key)
{
    uint64_t weight = 1;
    for (uint32_t i = 0; i < rank; i++) {
        const uint64_t begin = number_of(key, i, box->at[i]);
        const uint64_t end = number_of(key, i, box->at[i] + box->shape[i]);
        weight = (uint64_t)((wide_t)weight * ((end + prime - begin) % prime) % prime);
    }
    return weight;
}

static uint64_t elements_of(const tensor_part_t *box, uint32_t rank)
{
    uint64_t elements = 1;
    for (uint32_t i = 0; i < rank; i++)
        elements *= box->shape[i];
    return elements;
}

bool tensor_cover_once(const tensor_part_t **parts, uint32_t count, uint32_t rank,
                       const uint64_t *shape, uint64_t key)
{
    const tensor_part_t whole = tensor_part_whole(rank, shape), *box = NULL;
    uint64_t weight = 0, next = 0, left = 0; /* left: elements of the box that are yet to come */
    qsort(parts, count, sizeof(*parts), by_box);
    for (uint32_t i = 0; i < count; i++) {
        if (parts[i]->count == 0) continue; /* holds nothing */
        if (box == NULL || !is_same_box(box, parts[i])) {
            if (left != 0) return false;
            box = parts[i];
            next = 0;
            left = elements_of(box, rank);
            weight = (weight + weight_of(box, rank, key)) % prime;
        }
        if (parts[i]->first != next) return false;
        next += parts[i]->count;
        left -= parts[i]->count;
    }
    return left == 0 && weight == weight_of(&whole, rank, key);
}
