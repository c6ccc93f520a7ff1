/* tensor_part.c - parts of tensors as runs of elements, and what two of them share. */
#include <checkpoint/tensor_part.h>

#include <base/checked.h>

static uint64_t product(uint32_t rank, const uint64_t *shape)
{
    uint64_t elements = 1;
    for (uint32_t i = 0; i < rank; i++)
        elements *= shape[i];
    return elements;
}

tensor_part_t tensor_part_range(uint32_t rank, const uint64_t *shape, uint64_t begin,
                                uint64_t count)
{
    tensor_part_t part = {.first = begin, .count = count};
    for (uint32_t i = 0; i < rank; i++)
        part.shape[i] = shape[i];
    return part;
}

tensor_part_t tensor_part_whole(uint32_t rank, const uint64_t *shape)
{
    return tensor_part_range(rank, shape, 0, product(rank, shape));
}

bool tensor_part_is_whole(const tensor_part_t *p, uint32_t rank, const uint64_t *shape)
{
    for (uint32_t i = 0; i < rank; i++)
        if (p->at[i] != 0 || p->shape[i] != shape[i]) return false;
    return p->first == 0 && p->count == product(rank, shape);
}

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

void tensor_walk_start(tensor_walk_t *w, const tensor_part_t *part, uint32_t rank,
                       const uint64_t *shape)
{
    *w = (tensor_walk_t){.part = *part, .rank = rank, .row = 1};
    for (uint32_t i = 0; i < rank; i++)
        w->shape[i] = shape[i];
    /* Trailing dimensions that the box has whole join into longer runs. */
    for (uint32_t i = rank; i > 0; i--) {
        w->row *= part->shape[i - 1];
        if (part->shape[i - 1] != shape[i - 1]) break;
    }
}

bool tensor_walk_next(tensor_walk_t *w, tensor_run_t *out)
{
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

uint64_t tensor_part_copy(uint32_t rank, const uint64_t *shape, const tensor_part_t *from_part,
                          const float *from, const tensor_part_t *to_part, float *to)
{
    tensor_walk_t a, b;
    tensor_run_t x, y;
    tensor_walk_start(&a, from_part, rank, shape);
    tensor_walk_start(&b, to_part, rank, shape);
    bool more = tensor_walk_next(&a, &x) && tensor_walk_next(&b, &y);
    uint64_t copied = 0;
    /* Both walks run upwards through the logical tensor. */
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
