/* allocation.c - places in an allocation, one behind the other; and fixed offsets in an arena for
 * buffers ("items") that live for a time, which is most of this file.
 *
 * The rule of arenas is greedy, and O(n^2) if it is followed literally: items are placed by size,
 * the largest first, each into the smallest gap between the items that live at the same time. A
 * step with many micro-batches in flight has several 100,000 items, most of which live at its
 * turning point; so neighbours are not listed one by one but as spans of bytes. Time is cut into
 * the leaves of a binary tree. A node knows which bytes are taken by items that live for all of its
 * time (and not for all of its parent's), and which by items that live for any of it. Since equal
 * items that live at the same time end up side by side, both are a few spans, and what is taken
 * during any time is put together from some 40 nodes. The offsets are those of the rule, to the
 * byte; the price is this file. */
#include <program/allocation.h>

#include <stdlib.h>

#include <base/memory.h>

lh_status_t allocation_take(allocation_t *r, uint64_t bytes, uint64_t alignment, uint64_t *offset)
{
    lh_assert(alignment > 0 && (alignment & (alignment - 1)) == 0);
    uint64_t at, end;
    if (!checked_add(r->bytes, alignment - 1, &at) ||
        !checked_add(at & ~(alignment - 1), bytes, &end))
        return fail(LH_INVALID, "the %s need more than 2^64 bytes", r->name);
    *offset = at & ~(alignment - 1);
    r->bytes = end;
    return LH_OK;
}

/* The host works in pinned memory at its address; in the device's own there need be none. */
lh_status_t allocation_alloc(allocation_t *r, const lh_device_api_t *api, lh_device_t *device)
{
    if (r->bytes == 0 || r->memory != NULL) return LH_OK;
    const lh_status_t status = api->alloc(device, r->space, r->bytes, &r->memory, &r->address);
    if (status != LH_OK || r->address != NULL) return status;
    if (r->memory != NULL && r->space != LH_SPACE_PINNED) return LH_OK;
    allocation_release(r, api);
    return fail(LH_INVALID, "the device says that it has allocated the %s, and does not say where",
                r->name);
}

void allocation_release(allocation_t *r, const lh_device_api_t *api)
{
    if (r->memory != NULL) api->release(r->memory);
    r->memory = NULL;
    r->address = NULL;
}

lh_place_t allocation_place(const allocation_t *r, uint64_t offset)
{
    lh_place_t place = {.memory = r->memory, .offset = offset};
    if (r->address != NULL) place.address = (char *)r->address + offset;
    return place;
}

/* ---- arenas ---- */

/* About how many items begin in a leaf; the most levels that a tree has. */
enum { LEAF_ITEMS = 48, LEVELS = 32 };

/* Bytes [begin, end) that are taken; both are aligned. */
typedef struct span {
    uint64_t begin, end;
} span_t;

/* Spans in order; no two touch. */
typedef struct spans {
    span_t *list;
    uint32_t count;
    size_t capacity;
} spans_t;

/* A stretch of time. */
typedef struct node {
    spans_t whole; /* of items that live for all of the node's time, not for all of its parent's */
    spans_t any;   /* of items that live for any of it; not those that are in `whole` further up */
    const arena_item_t **items; /* [item_count] of a leaf: items that live for a part of it */
    uint32_t item_count;
    size_t item_capacity;
    uint64_t changed; /* planner_t.clock when `whole` changed last */
} node_t;

/* Everything of one plan; freed at its end. */
typedef struct planner {
    node_t *nodes;   /* [2 * leaves]: children of i are 2 i and 2 i + 1, the root is 1 */
    uint32_t leaves; /* a power of two */
    uint64_t width;  /* calls of a leaf's time */
    uint64_t alignment;
    spans_t found;  /* of a search: runs of spans, each run in order */
    spans_t other;  /* as many: runs are merged into it */
    uint32_t *runs; /* [run_count + 1] first span of each run, and the end of the last */
    uint32_t run_count;
    size_t run_capacity;
    spans_t path;       /* of items that live for all of the time of leaf path_leaf */
    uint32_t path_leaf; /* a node; 0: none                                          */
    uint64_t path_at;   /* planner_t.clock when `path` was put together             */
    uint64_t clock;     /* items placed so far */
    uint64_t work;      /* spans that were compared, copied or moved so far */
    bool failed;        /* no memory */
} planner_t;

/* A node and its time. */
typedef struct slot {
    uint32_t node;
    uint64_t begin, last; /* inclusive */
} slot_t;

/* ---- spans ---- */

/* Makes room for `count` spans. The planner keeps a failure, or every caller would have to hand it
 * on. */
static bool spans_room(planner_t *p, spans_t *s, size_t count)
{
    span_t *list = mem_grow(s->list, &s->capacity, count, sizeof(*list));
    if (list == NULL)
        p->failed = true;
    else
        s->list = list;
    return list != NULL;
}

/* Adds a span; spans that touch become one. */
static void spans_add(planner_t *p, spans_t *s, span_t added)
{
    uint32_t low = 0, high = s->count;
    while (low < high) { /* finds the first span that does not end before the new one begins */
        const uint32_t middle = low + (high - low) / 2;
        p->work++;
        if (s->list[middle].end < added.begin)
            low = middle + 1;
        else
            high = middle;
    }
    uint32_t next = low;
    for (; next < s->count && s->list[next].begin <= added.end; next++) {
        if (s->list[next].begin < added.begin) added.begin = s->list[next].begin;
        if (s->list[next].end > added.end) added.end = s->list[next].end;
    }
    if (next == low && !spans_room(p, s, s->count + 1u)) return;
    if (s->count > next)
        memmove(&s->list[low + 1], &s->list[next], (s->count - next) * sizeof(*s->list));
    p->work += s->count - low;
    s->list[low] = added;
    s->count = s->count + 1 - (next - low);
}

/* The bytes that a placed item takes, rounded up to where the next item could begin. */
static span_t span_of(const planner_t *p, const arena_item_t *item)
{
    const uint64_t end = item->offset + item->bytes + p->alignment - 1;
    return (span_t){item->offset, end & ~(p->alignment - 1)};
}

/* ---- the tree ---- */

/* The root spans all of time: leaves * width. */
static slot_t slot_root(const planner_t *p)
{
    return (slot_t){1, 0, p->leaves * p->width - 1};
}

/* A child of a node: the first or the second half of its time. */
static slot_t slot_child(const slot_t *s, uint32_t which)
{
    const uint64_t half = (s->last - s->begin + 1) / 2;
    const uint64_t begin = s->begin + which * half;
    return (slot_t){2 * s->node + which, begin, begin + half - 1};
}

static bool is_alive(const arena_item_t *item, uint64_t begin, uint64_t last)
{
    return item->first <= last && item->last >= begin;
}

/* Lists an item in a leaf for a part of whose time it lives. */
static void leaf_add(planner_t *p, node_t *n, const arena_item_t *item)
{
    const arena_item_t **items = mem_grow(n->items, &n->item_capacity, n->item_count + 1u,
                                          sizeof(const arena_item_t *));
    if (items == NULL) {
        p->failed = true;
        return;
    }
    n->items = items;
    n->items[n->item_count++] = item;
}

/* Notes a placed item: in `whole` of the highest nodes for all of whose time it lives, and in `any`
 * of those nodes and the nodes above them. An item's time meets at most four nodes of a level in
 * which the walk stops or goes on. */
static void tree_add(planner_t *p, const arena_item_t *item)
{
    p->clock++;
    const span_t span = span_of(p, item);
    slot_t open[2 * LEVELS];
    uint32_t count = 0;
    open[count++] = slot_root(p);
    while (count > 0) {
        const slot_t s = open[--count];
        lh_assert(s.node < 2 * p->leaves);
        p->work++;
        node_t *n = &p->nodes[s.node];
        spans_add(p, &n->any, span);
        if (item->first <= s.begin && item->last >= s.last) {
            spans_add(p, &n->whole, span);
            n->changed = p->clock;
        } else if (s.node >= p->leaves) {
            leaf_add(p, n, item);
        } else {
            for (uint32_t which = 0; which < 2; which++) {
                const slot_t c = slot_child(&s, which);
                if (is_alive(item, c.begin, c.last)) open[count++] = c;
            }
        }
    }
}

/* ---- what is taken while an item lives ---- */

/* Ends the run of the spans that were found since the last one; an empty run is left out. */
static void run_end(planner_t *p)
{
    uint32_t *runs = mem_grow(p->runs, &p->run_capacity, p->run_count + 2u, sizeof(*runs));
    if (runs == NULL) {
        p->failed = true;
        return;
    }
    p->runs = runs;
    if (p->runs[p->run_count] == p->found.count) return;
    p->runs[++p->run_count] = p->found.count;
}

/* Adds the spans of a node as a run. */
static void run_add(planner_t *p, const spans_t *s)
{
    if (s->count == 0 || !spans_room(p, &p->found, (size_t)p->found.count + s->count)) return;
    memcpy(&p->found.list[p->found.count], s->list, s->count * sizeof(*s->list));
    p->found.count += s->count;
    p->work += s->count;
    run_end(p);
}

/* Adds the items of a leaf that live while `item` does as a run, sorted by insertion: they are
 * few. */
static void leaf_find(planner_t *p, const node_t *n, const arena_item_t *item)
{
    const uint32_t first = p->found.count;
    p->work += n->item_count;
    for (uint32_t i = 0; i < n->item_count; i++) {
        if (!is_alive(n->items[i], item->first, item->last)) continue;
        if (!spans_room(p, &p->found, p->found.count + 1u)) return;
        const span_t span = span_of(p, n->items[i]);
        uint32_t at = p->found.count++;
        for (; at > first && p->found.list[at - 1].begin > span.begin; at--, p->work++)
            p->found.list[at] = p->found.list[at - 1];
        p->found.list[at] = span;
    }
    run_end(p);
}

/* Merges two runs into `to`; spans that touch become one. Returns how many there are. */
static uint32_t two_merge(const span_t *a, uint32_t a_count, const span_t *b, uint32_t b_count,
                          span_t *to)
{
    const span_t *const a_end = a + a_count, *const b_end = b + b_count;
    uint32_t count = 0;
    while (a < a_end || b < b_end) {
        const span_t *next = b == b_end || (a < a_end && a->begin <= b->begin) ? a++ : b++;
        if (count == 0 || next->begin > to[count - 1].end)
            to[count++] = *next;
        else if (next->end > to[count - 1].end)
            to[count - 1].end = next->end;
    }
    return count;
}

/* Merges runs two by two, until one is left. */
static void runs_merge(planner_t *p)
{
    if (!spans_room(p, &p->other, p->found.count + 1u)) return;
    while (p->run_count > 1) {
        uint32_t made = 0, to = 0;
        p->work += p->found.count;
        for (uint32_t r = 0; r < p->run_count; r += 2) {
            const uint32_t begin = p->runs[r], middle = p->runs[r + 1];
            const uint32_t end = r + 1 < p->run_count ? p->runs[r + 2] : middle;
            to += two_merge(p->found.list + begin, middle - begin, p->found.list + middle,
                            end - middle, p->other.list + to);
            p->runs[++made] = to;
        }
        const spans_t before = p->found;
        p->found = p->other;
        p->found.count = to;
        p->other = before;
        p->run_count = made;
    }
}

/* Begins a search. */
static void runs_begin(planner_t *p)
{
    p->found.count = p->run_count = 0;
    p->runs[0] = 0;
}

/* Finds what is taken for all of a leaf's time: the spans of the nodes from the leaf up to the
 * root. They are kept from one search to the next, and put together anew only if one of those nodes
 * has changed: most items live within one leaf's time, and meet the same longer items. */
static void path_find(planner_t *p, uint32_t leaf)
{
    bool known = p->path_leaf == leaf;
    for (uint32_t n = leaf; n > 0 && known; n /= 2)
        known = p->nodes[n].changed <= p->path_at;
    if (known) return;
    runs_begin(p);
    for (uint32_t n = leaf; n > 0; n /= 2)
        run_add(p, &p->nodes[n].whole);
    runs_merge(p);
    if (!spans_room(p, &p->path, p->found.count + 1u)) return;
    if (p->found.count > 0)
        memcpy(p->path.list, p->found.list, p->found.count * sizeof(*p->path.list));
    p->path.count = p->found.count;
    p->path_leaf = leaf;
    p->path_at = p->clock;
}

/* What is taken while an item lives whose time lies in one leaf. */
static void short_find(planner_t *p, const arena_item_t *item)
{
    const uint32_t leaf = p->leaves + (uint32_t)(item->first / p->width);
    path_find(p, leaf);
    runs_begin(p);
    run_add(p, &p->path);
    leaf_find(p, &p->nodes[leaf], item);
}

/* What is taken while an item lives whose time meets several leaves. A node for all of whose time
 * the item lives gives what lives for any of it; the nodes above give what lives for all of
 * theirs. */
static void tree_find(planner_t *p, const arena_item_t *item)
{
    slot_t open[2 * LEVELS];
    uint32_t count = 0;
    runs_begin(p);
    open[count++] = slot_root(p);
    while (count > 0) {
        const slot_t s = open[--count];
        const node_t *n = &p->nodes[s.node];
        p->work++;
        if (n->any.count == 0) continue;
        if (item->first <= s.begin && item->last >= s.last) {
            run_add(p, &n->any);
            continue;
        }
        run_add(p, &n->whole);
        if (s.node >= p->leaves) {
            leaf_find(p, n, item);
            continue;
        }
        for (uint32_t which = 0; which < 2; which++) {
            const slot_t c = slot_child(&s, which);
            if (is_alive(item, c.begin, c.last)) open[count++] = c;
        }
    }
}

/* The offset of the smallest gap with room, the lowest of equal gaps; else the end of
 * everything. */
static uint64_t best_gap(const spans_t *taken, uint64_t bytes)
{
    uint64_t end = 0, best = 0, best_room = UINT64_MAX;
    for (uint32_t i = 0; i < taken->count; i++) {
        const span_t *s = &taken->list[i];
        if (s->begin > end && s->begin - end >= bytes && s->begin - end < best_room) {
            best = end;
            best_room = s->begin - end;
        }
        if (s->end > end) end = s->end;
    }
    return best_room != UINT64_MAX ? best : end;
}

/* ---- all of it ---- */

/* By size, and items of one size by index, so that the same items always get the same plan. */
static int larger_first(const void *a, const void *b)
{
    const arena_item_t *x = *(arena_item_t *const *)a, *y = *(arena_item_t *const *)b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return x < y ? -1 : 1;
}

/* Cuts time so that about LEAF_ITEMS items begin in a leaf, but a leaf is at least a call wide.
 * With larger leaves each search would look at more items; with smaller ones an item would be noted
 * in more nodes. */
static lh_status_t planner_open(planner_t *p, const arena_item_t *items, uint32_t count,
                                uint64_t alignment)
{
    uint64_t end = 1;
    for (uint32_t i = 0; i < count; i++) {
        lh_assert(items[i].bytes == 0 || items[i].first <= items[i].last);
        if (items[i].last >= end) end = (uint64_t)items[i].last + 1;
    }
    *p = (planner_t){.leaves = 1, .alignment = alignment};
    while (p->leaves < count / LEAF_ITEMS && p->leaves < end)
        p->leaves *= 2;
    p->width = (end + p->leaves - 1) / p->leaves;
    p->nodes = mem_array(2 * (size_t)p->leaves, sizeof(*p->nodes));
    p->runs = mem_grow(NULL, &p->run_capacity, 1, sizeof(*p->runs));
    return p->nodes == NULL || p->runs == NULL ? LH_NO_MEMORY : LH_OK;
}

static void planner_close(planner_t *p)
{
    for (uint32_t i = 1; p->nodes != NULL && i < 2 * p->leaves; i++) {
        mem_free(p->nodes[i].whole.list);
        mem_free(p->nodes[i].any.list);
        mem_free(p->nodes[i].items);
    }
    mem_free(p->nodes);
    mem_free(p->runs);
    mem_free(p->found.list);
    mem_free(p->other.list);
    mem_free(p->path.list);
}

lh_status_t allocation_plan(arena_item_t *items, uint32_t count, uint64_t alignment,
                            uint64_t *bytes, uint64_t *work)
{
    lh_assert(alignment > 0 && (alignment & (alignment - 1)) == 0);
    uint64_t sum = 0, end = 0;
    for (uint32_t i = 0; i < count; i++)
        if (!checked_add(sum, items[i].bytes, &sum) || !checked_add(sum, alignment, &sum))
            return fail(LH_INVALID, "the activations need more than 2^64 bytes");

    planner_t p;
    arena_item_t **order = mem_array(count, sizeof(arena_item_t *));
    lh_status_t status = planner_open(&p, items, count, alignment);
    if (order == NULL) status = LH_NO_MEMORY;
    for (uint32_t i = 0; status == LH_OK && i < count; i++)
        order[i] = &items[i];
    if (status == LH_OK) qsort(order, count, sizeof(arena_item_t *), larger_first);
    for (uint32_t i = 0; status == LH_OK && i < count; i++) {
        arena_item_t *item = order[i];
        if (item->first / p.width == item->last / p.width)
            short_find(&p, item);
        else
            tree_find(&p, item);
        runs_merge(&p);
        item->offset = best_gap(&p.found, item->bytes);
        p.work += p.found.count;
        if (item->bytes > 0) tree_add(&p, item);
        if (item->offset + item->bytes > end) end = item->offset + item->bytes;
        if (p.failed) status = LH_NO_MEMORY;
    }
    planner_close(&p);
    mem_free(order);
    if (status == LH_OK) *bytes = end;
    if (status == LH_OK && work != NULL) *work = p.work;
    return status;
}
