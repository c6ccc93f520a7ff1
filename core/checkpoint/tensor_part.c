/* tensor_part.c - parts of tensors as runs of elements, and what two of them share. */
#include <checkpoint/tensor_part.h>

#include <stdlib.h>

#include <base/digest.h>
#include <base/memory.h>

/* Elements of a shape whose product is known to fit: tensor_part_fits has checked it, or it is a
 * tensor of this run. */
static uint64_t part_product(uint32_t rank, const uint64_t *shape)
{
    uint64_t elements = 1;
    for (uint32_t i = 0; i < rank; i++)
        elements *= shape[i];
    return elements;
}

/* The box is the whole tensor. */
tensor_part_t tensor_part_range(uint32_t rank, const uint64_t *shape, uint64_t begin,
                                uint64_t count)
{
    lh_assert(rank <= LH_MAX_RANK);
    tensor_part_t part = {.first = begin, .count = count};
    for (uint32_t i = 0; i < rank; i++)
        part.shape[i] = shape[i];
    return part;
}

tensor_part_t tensor_part_whole(uint32_t rank, const uint64_t *shape)
{
    return tensor_part_range(rank, shape, 0, part_product(rank, shape));
}

bool tensor_part_is_whole(const tensor_part_t *p, uint32_t rank, const uint64_t *shape)
{
    for (uint32_t i = 0; i < rank; i++)
        if (p->at[i] != 0 || p->shape[i] != shape[i]) return false;
    return p->first == 0 && p->count == part_product(rank, shape);
}

/* The tensor's own size is checked as well, as whoever asks goes on to multiply it. */
bool tensor_part_fits(const tensor_part_t *p, uint32_t rank, const uint64_t *shape)
{
    uint64_t box = 1, whole = 1, end;
    for (uint32_t i = 0; i < rank; i++) {
        if (!checked_add(p->at[i], p->shape[i], &end) || end > shape[i]) return false;
        if (!checked_mul(whole, shape[i], &whole)) return false;
        if (!checked_mul(box, p->shape[i], &box)) return false;
    }
    return checked_add(p->first, p->count, &end) && end <= box;
}

static bool is_same_box(const tensor_part_t *a, const tensor_part_t *b)
{
    return memcmp(a->at, b->at, sizeof(a->at)) == 0 &&
           memcmp(a->shape, b->shape, sizeof(a->shape)) == 0;
}

/* Ranges of one box by their bounds; boxes where they overlap in every dimension. */
bool tensor_part_overlaps(const tensor_part_t *a, const tensor_part_t *b, uint32_t rank)
{
    if (is_same_box(a, b)) return a->first < b->first + b->count && b->first < a->first + a->count;
    for (uint32_t i = 0; i < rank; i++)
        if (a->at[i] + a->shape[i] <= b->at[i] || b->at[i] + b->shape[i] <= a->at[i]) return false;
    return true;
}

/* row is the longest run that is contiguous both in the box and in the tensor. */
void tensor_walk_start(tensor_walk_t *w, const tensor_part_t *part, uint32_t rank,
                       const uint64_t *shape)
{
    lh_assert(rank <= LH_MAX_RANK);
    *w = (tensor_walk_t){.part = *part, .rank = rank, .row = 1};
    for (uint32_t i = 0; i < rank; i++)
        w->shape[i] = shape[i];
    /* Trailing dimensions that the box has whole join into longer runs. */
    for (uint32_t i = rank; i > 0; i--) {
        w->row *= part->shape[i - 1];
        if (part->shape[i - 1] != shape[i - 1]) break;
    }
}

/* A run ends with the row or with the part. Where it begins in the tensor follows from the
 * element's place in the box, dimension by dimension from the last one. */
bool tensor_walk_next(tensor_walk_t *w, tensor_run_t *out)
{
    lh_assert(w->done <= w->part.count && (w->row > 0 || w->part.count == 0));
    if (w->done == w->part.count) return false;
    const uint64_t element = w->part.first + w->done; /* of the box */

    uint64_t left = w->row - element % w->row;
    if (left > w->part.count - w->done) left = w->part.count - w->done;

    uint64_t rest = element, logical = 0, stride = 1;
    for (uint32_t i = w->rank; i > 0; i--) {
        logical += (w->part.at[i - 1] + rest % w->part.shape[i - 1]) * stride;
        rest /= w->part.shape[i - 1];
        stride *= w->shape[i - 1];
    }
    *out = (tensor_run_t){.logical = logical, .local = w->done, .count = left};
    w->done += left;
    return true;
}

/* A merge of two sorted lists of runs: both walks run upwards through the logical tensor, so that
 * whichever run ends first is the one to go on from. Work is in the number of runs and not in
 * elements. */
uint64_t tensor_part_copy(uint32_t rank, const uint64_t *shape, const tensor_part_t *from_part,
                          const float *from, const tensor_part_t *to_part, float *to)
{
    lh_assert(from == NULL || to != NULL);
    tensor_walk_t a, b;
    tensor_run_t x, y;
    tensor_walk_start(&a, from_part, rank, shape);
    tensor_walk_start(&b, to_part, rank, shape);
    bool more = tensor_walk_next(&a, &x) && tensor_walk_next(&b, &y);
    uint64_t copied = 0;
    while (more) {
        const uint64_t x_end = x.logical + x.count, y_end = y.logical + y.count;
        const uint64_t begin = x.logical > y.logical ? x.logical : y.logical;
        const uint64_t end = x_end < y_end ? x_end : y_end;
        if (begin < end) {
            if (from != NULL)
                memcpy(to + y.local + (begin - y.logical), from + x.local + (begin - x.logical),
                       (end - begin) * sizeof(float));
            copied += end - begin;
        }
        more = x_end <= y_end ? tensor_walk_next(&a, &x) : tensor_walk_next(&b, &y);
    }
    return copied;
}

/* Ranges of one box follow each other without a gap; boxes are weighed.
 *
 * Each coordinate of each dimension gets a random number modulo a prime, and a box weighs the
 * product, over its dimensions, of the number where it ends less the number where it begins. The
 * weight of boxes that share no element adds up to that of what they fill. For boxes that leave a
 * hole or overlap the sum is another polynomial in the random numbers than the weight of the
 * tensor, of degree 4 at most: it is equal by chance once in 2^59. */
__extension__ typedef unsigned __int128 wide_t;
static const uint64_t prime = (UINT64_C(1) << 61) - 1;

/* Parts of one box come together, in the order of their ranges. */
static int by_box(const void *a, const void *b)
{
    const tensor_part_t *x = *(const tensor_part_t *const *)a,
                        *y = *(const tensor_part_t *const *)b;
    const int at = memcmp(x->at, y->at, sizeof(x->at));
    const int order = at != 0 ? at : memcmp(x->shape, y->shape, sizeof(x->shape));
    if (order != 0) return order;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* The random number of a coordinate: a hash, so that nothing has to be kept. */
static uint64_t coordinate_number(uint64_t key, uint32_t dimension, uint64_t coordinate)
{
    const uint64_t place[] = {key, dimension, coordinate};
    return digest_xxh3(place, sizeof(place)) % prime;
}

/* Modulo the prime; 128 bits hold the product of two residues. */
static uint64_t weight_of(const tensor_part_t *box, uint32_t rank, uint64_t key)
{
    uint64_t weight = 1;
    for (uint32_t i = 0; i < rank; i++) {
        const uint64_t begin = coordinate_number(key, i, box->at[i]);
        const uint64_t end = coordinate_number(key, i, box->at[i] + box->shape[i]);
        weight = (uint64_t)((wide_t)weight * ((end + prime - begin) % prime) % prime);
    }
    return weight;
}

/* One pass over the sorted parts: the ranges of a box must follow each other without a gap from its
 * first element to its last; then the box is weighed, once. */
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
            left = part_product(rank, box->shape);
            weight = (weight + weight_of(box, rank, key)) % prime;
        }
        if (parts[i]->first != next) return false;
        next += parts[i]->count;
        left -= parts[i]->count;
    }
    return left == 0 && weight == weight_of(&whole, rank, key);
}
