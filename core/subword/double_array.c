/* double_array.c - makes a double array out of sorted strings, node by node.
 *
 * The children of a node are a run of the sorted strings, so a node is known by the run of strings
 * that go through it and its depth. Nodes wait in a queue and are given places from the root down:
 * the first base is taken at which all children fall on free units. Free units are a list in the
 * order of the array, and a node with several children gives up after TRIES of them and goes to the
 * end: some units stay free, but a vocabulary of 250,000 pieces is made in a fraction of a
 * second. */
#include <subword/double_array.h>

#include <stdlib.h>
#include <string.h>

#include <base/memory.h>

enum { TRIES = 256, LABELS = 256 };

/* A node whose children have no places yet: entries [from, to) begin with its string, of `depth`
 * bytes. */
typedef struct array_run {
    uint32_t node, from, to, depth;
} array_run_t;

/* next and previous free unit of each unit, by index; unit 0 is the root and heads the list. */
typedef struct free_links {
    uint32_t next, previous;
} free_links_t;

/* One call of double_array_make. */
typedef struct array_maker {
    const char *path;
    const array_entry_t *entries;
    double_array_t *array;
    free_links_t *links; /* [link_room] */
    size_t link_room;
    array_run_t *queue; /* [queue_room], those before queue_at are done */
    size_t queue_at, queue_count, queue_room;
} array_maker_t;

static int by_bytes(const void *a, const void *b)
{
    const array_entry_t *x = a, *y = b;
    const size_t size = x->length < y->length ? x->length : y->length;
    const int order = memcmp(x->bytes, y->bytes, size);
    if (order != 0) return order;
    return x->length < y->length ? -1 : x->length > y->length;
}

/* Appends free units to the array and to the end of the list, in blocks. */
static lh_status_t array_extend(array_maker_t *m, size_t wanted)
{
    double_array_t *a = m->array;
    if (wanted <= a->count) return LH_OK;
    if (wanted > ARRAY_MOST)
        return fail(LH_UNSUPPORTED, "%s: the vocabulary's trie has more than %d nodes", m->path,
                    ARRAY_MOST);
    const size_t count = (wanted + LABELS - 1) / LABELS * LABELS;
    array_unit_t *units = mem_grow(a->units, &a->room, count, sizeof(*units));
    if (units == NULL) return LH_NO_MEMORY;
    a->units = units;
    free_links_t *links = mem_grow(m->links, &m->link_room, count, sizeof(*links));
    if (links == NULL) return LH_NO_MEMORY;
    m->links = links;

    /* The list is a ring through unit 0, which is never free itself. */
    for (; a->count < count; a->count++) {
        const uint32_t at = (uint32_t)a->count;
        units[at] = (array_unit_t){.parent = ARRAY_NONE, .value = -1};
        if (at == 0) continue;
        const uint32_t last = links[0].previous;
        links[at] = (free_links_t){.next = 0, .previous = last};
        links[last].next = at;
        links[0].previous = at;
    }
    return LH_OK;
}

static void array_take(array_maker_t *m, uint32_t at, uint32_t parent)
{
    lh_assert(at > 0 && m->array->units[at].parent == ARRAY_NONE);
    const free_links_t link = m->links[at];
    m->links[link.previous].next = link.next;
    m->links[link.next].previous = link.previous;
    m->array->units[at].parent = parent;
}

static bool all_free(const array_maker_t *m, uint32_t base, const uint8_t *labels, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const size_t at = (size_t)base + labels[i];
        if (at < m->array->count && m->array->units[at].parent != ARRAY_NONE) return false;
    }
    return true;
}

/* A base at which all labels are free, and room for any byte behind it. Bases are at least 1, so
 * that no child falls on the root. */
static lh_status_t array_place(array_maker_t *m, const uint8_t *labels, size_t count,
                               uint32_t *base)
{
    uint32_t at = m->array->count == 0 ? 0 : m->links[0].next;
    size_t tries = 0;
    for (; at != 0 && tries < TRIES; at = m->links[at].next) {
        if (at <= labels[0]) continue;
        tries++;
        *base = at - labels[0];
        if (all_free(m, *base, labels, count)) return array_extend(m, (size_t)*base + LABELS);
    }
    *base = (uint32_t)m->array->count;
    return array_extend(m, (size_t)*base + LABELS);
}

/* Gives places to the children of a node and puts those with strings of their own behind them into
 * the queue. */
static lh_status_t array_add_children(array_maker_t *m, array_run_t run)
{
    const array_entry_t *e = m->entries;
    uint8_t labels[LABELS];
    uint32_t starts[LABELS + 1];
    size_t count = 0;

    /* The string that ends here sorts before all that go on. */
    if (run.from < run.to && e[run.from].length == run.depth) {
        m->array->units[run.node].value = e[run.from].value;
        run.from++;
    }
    for (uint32_t i = run.from; i < run.to; i++) {
        lh_assert(e[i].length > run.depth);
        const uint8_t label = (uint8_t)e[i].bytes[run.depth];
        if (count > 0 && labels[count - 1] == label) continue;
        labels[count] = label;
        starts[count++] = i;
    }
    starts[count] = run.to;
    if (count == 0) return LH_OK;

    uint32_t base;
    const lh_status_t status = array_place(m, labels, count, &base);
    if (status != LH_OK) return status;
    array_run_t *queue = mem_grow(m->queue, &m->queue_room, m->queue_count + count, sizeof(*queue));
    if (queue == NULL) return LH_NO_MEMORY;
    m->queue = queue;
    m->array->units[run.node].base = base;
    for (size_t i = 0; i < count; i++) {
        array_take(m, base + labels[i], run.node);
        queue[m->queue_count++] = (array_run_t){base + labels[i], starts[i], starts[i + 1],
                                                run.depth + 1};
    }
    return LH_OK;
}

/* What was done is dropped from the queue once it is the larger part, so that a vocabulary of long
 * strings does not keep a queue of all its nodes. */
static array_run_t array_next(array_maker_t *m)
{
    if (m->queue_at > 4096 && m->queue_at * 2 > m->queue_count) {
        m->queue_count -= m->queue_at;
        memmove(m->queue, m->queue + m->queue_at, m->queue_count * sizeof(*m->queue));
        m->queue_at = 0;
    }
    return m->queue[m->queue_at++];
}

lh_status_t double_array_make(const char *path, array_entry_t *entries, size_t count,
                              double_array_t *out)
{
    lh_assert(count < UINT32_MAX && out->units == NULL);
    array_maker_t m = {.path = path, .entries = entries, .array = out};

    if (count > 1) qsort(entries, count, sizeof(*entries), by_bytes);
    /* The root's base stays 0 where it has no children: 256 units keep a step inside. */
    lh_status_t status = array_extend(&m, LABELS);
    if (status == LH_OK)
        status = array_add_children(&m, (array_run_t){ARRAY_ROOT, 0, (uint32_t)count, 0});
    while (status == LH_OK && m.queue_at < m.queue_count)
        status = array_add_children(&m, array_next(&m));
    mem_free(m.links);
    mem_free(m.queue);
    if (status != LH_OK) double_array_free(out);
    return status;
}

void double_array_free(double_array_t *a)
{
    mem_free(a->units);
    *a = (double_array_t){0};
}

size_t double_array_longest(const double_array_t *a, const char *text, size_t length,
                            int32_t *value)
{
    uint32_t node = ARRAY_ROOT;
    size_t longest = 0;

    for (size_t i = 0; i < length; i++) {
        const array_unit_t *unit = double_array_step(a, &node, (unsigned char)text[i]);
        if (unit == NULL) break;
        if (unit->value < 0) continue;
        *value = unit->value;
        longest = i + 1;
    }
    return longest;
}
