/* arena_plan.c - fixed offsets for things that live for a time. */
#include <graph/arena_plan.h>

#include <stdlib.h>

#include <base/checked.h>
#include <base/memory.h>

typedef struct ranked {
    const arena_item_t *item;
    uint32_t index;
} ranked_t;

static int larger_first(const void *a, const void *b)
{
    const ranked_t *x = a, *y = b;
    if (x->item->bytes != y->item->bytes) return x->item->bytes > y->item->bytes ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

static int lower_first(const void *a, const void *b)
{
    const ranked_t *x = a, *y = b;
    if (x->item->offset != y->item->offset) return x->item->offset < y->item->offset ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

/* neighbours are in order of offset. */
static uint64_t best_gap(const ranked_t *neighbours, uint32_t count, uint64_t bytes,
                         uint64_t alignment)
{
    uint64_t end = 0, best = 0, best_room = UINT64_MAX;
    for (uint32_t i = 0; i < count; i++) {
        const arena_item_t *n = neighbours[i].item;
        if (n->offset > end && n->offset - end >= bytes && n->offset - end < best_room) {
            best = end;
            best_room = n->offset - end;
        }
        const uint64_t after = (n->offset + n->bytes + alignment - 1) & ~(alignment - 1);
        if (after > end) end = after;
    }
    return best_room != UINT64_MAX ? best : end;
}

static uint64_t place_one(arena_item_t *item, const ranked_t *placed, uint32_t placed_count,
                          ranked_t *neighbours, uint64_t alignment)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < placed_count; i++) {
        const arena_item_t *other = placed[i].item;
        if (other->bytes == 0 || other->last < item->first || other->first > item->last) continue;
        neighbours[count++] = placed[i];
    }
    qsort(neighbours, count, sizeof(*neighbours), lower_first);
    return best_gap(neighbours, count, item->bytes, alignment);
}

lh_status_t arena_plan(arena_item_t *items, uint32_t count, uint64_t alignment, uint64_t *bytes)
{
    uint64_t sum = 0, end = 0;
    for (uint32_t i = 0; i < count; i++)
        if (!checked_add(sum, items[i].bytes, &sum) || !checked_add(sum, alignment, &sum))
            return fail(LH_INVALID, "the activations need more than 2^64 bytes");

    ranked_t *order = mem_array(count, sizeof(*order));
    ranked_t *neighbours = mem_array(count, sizeof(*neighbours));
    if (order == NULL || neighbours == NULL) {
        mem_free(order);
        mem_free(neighbours);
        return LH_NO_MEMORY;
    }
    for (uint32_t i = 0; i < count; i++)
        order[i] = (ranked_t){&items[i], i};
    qsort(order, count, sizeof(*order), larger_first);
    for (uint32_t i = 0; i < count; i++) {
        arena_item_t *item = &items[order[i].index];
        item->offset = place_one(item, order, i, neighbours, alignment);
        if (item->offset + item->bytes > end) end = item->offset + item->bytes;
    }
    mem_free(order);
    mem_free(neighbours);
    *bytes = end;
    return LH_OK;
}
