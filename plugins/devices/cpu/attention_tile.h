/* attention_tile.h - what forward and backward attention share: which keys a query sees, the blocks
 * of a tile that count, and scratch.
 *
 * Scores are held as [key][query]: lanes are queries, so that maxima, sums and masks go lane by
 * lane, and the columns of a score tile are the rows of the products behind it, read one unit at a
 * time. The keys that a query sees are always one range: its document, cut by causality and window.
 *
 * That is why masks are two comparisons (lanes_see) and most tiles need none: reach_t holds, for
 * each vector of queries, which keys any lane sees and which all see. Tiles outside of the first
 * are skipped, the part inside of the second is computed without masks (sight_t). Documents are
 * packed one behind the other in a sequence, so a tile may hold the end of one and the beginning of
 * the next. */
#ifndef LH_CPU_ATTENTION_TILE_H
#define LH_CPU_ATTENTION_TILE_H

#include <math.h>

#include "attention_pack.h"

#define LOG2_E 1.44269504088896341f

/* ---- who sees whom ---- */

/* Keys that any, and that all, of some queries see; of none all is 0. */
typedef struct reach {
    int32_t any_from, any_to, all_from, all_to;
} reach_t;

/* TILE queries as the lanes of a score tile. Key numbers count rows of the key tensor. */
typedef struct lanes {
    int32_t low[TILE], high[TILE]; /* sees keys [low, high); both 0: none */
    int32_t row[TILE];             /* its own place, counted like the keys */
    float slope[TILE];             /* of ALiBi */
    reach_t reach[TILE_VECTORS];   /* of each vector */
    int32_t first, last;           /* keys that any lane sees: [first, last) */
    uint32_t count;                /* of lanes in use */
    uint32_t vectors;              /* of them         */
} lanes_t;

/* One vector of lanes. */
typedef struct lane_vector {
    vi low, high, row;
    vf slope;
} lane_vector_t;

/* Where the document of a row of the sequence begins and ends; empty behind the last one. */
static inline void document_at(const int32_t *starts, uint64_t count, int64_t row, int64_t *begin,
                               int64_t *end)
{
    uint64_t low = 0, high = count; /* starts[low] <= row < starts[high] */

    *begin = *end = 0;
    if (count == 0 || row < starts[0] || row >= starts[count - 1]) return;
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        if (starts[middle] <= row) {
            low = middle;
        } else {
            high = middle;
        }
    }
    *begin = starts[low];
    *end = starts[low + 1];
}

/* value, moved into [low, high]. */
static inline int64_t clamped(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* Lane `lane` is the query in row `row` of the sequence, of a document [begin, end). */
static inline void lane_set(lanes_t *l, uint32_t lane, const lh_attention_t *how, int64_t row,
                            int64_t begin, int64_t end, uint64_t keys)
{
    const int64_t origin = (int64_t)how->k_begin, window = how->window;

    if (how->full == 0 && row + 1 < end) end = row + 1;
    if (window != 0 && row + 1 - window > begin) begin = row + 1 - window;
    if (window != 0 && row + window < end) end = row + window;
    begin = clamped(begin - origin, 0, (int64_t)keys);
    end = clamped(end - origin, 0, (int64_t)keys);
    l->row[lane] = (int32_t)(row - origin);
    l->low[lane] = begin < end ? (int32_t)begin : 0;
    l->high[lane] = begin < end ? (int32_t)end : 0;
}

/* Of one vector of lanes. A lane that sees nothing has 0 and 0, which makes `all` empty. */
static inline reach_t reach_of(const int32_t *low, const int32_t *high)
{
    reach_t r = {0, 0, low[0], high[0]};

    for (uint32_t i = 0; i < LANES; i++) {
        if (low[i] > r.all_from) r.all_from = low[i];
        if (high[i] < r.all_to) r.all_to = high[i];
        if (high[i] == 0) continue;
        if (r.any_to == 0 || low[i] < r.any_from) r.any_from = low[i];
        if (high[i] > r.any_to) r.any_to = high[i];
    }
    return r;
}

/* After the first `count` lanes are set: fills up a vector and works out what they see together. */
static inline void lanes_close(lanes_t *l, uint32_t count)
{
    l->count = count;
    l->vectors = (count + LANES - 1) / LANES;
    l->first = l->last = 0;
    for (uint32_t i = count; i < l->vectors * LANES; i++) {
        l->low[i] = l->high[i] = l->row[i] = 0;
        l->slope[i] = 0;
    }
    for (uint32_t v = 0; v < l->vectors; v++) {
        const reach_t r = reach_of(l->low + v * LANES, l->high + v * LANES);
        if (r.any_to != 0 && (l->last == 0 || r.any_from < l->first)) l->first = r.any_from;
        if (r.any_to > l->last) l->last = r.any_to;
        l->reach[v] = r;
    }
}

/* Whether these lanes see any of keys [from, to). */
static inline bool lanes_meet(const lanes_t *l, int32_t from, int32_t to)
{
    return l->first < to && from < l->last;
}

CPU_INLINE vi vi_load(const int32_t *p)
{
    vi a;
    memcpy(&a, p, sizeof(a));
    return a;
}

CPU_INLINE lane_vector_t lane_vector(const lanes_t *l, uint32_t v)
{
    return (lane_vector_t){.low = vi_load(l->low + v * LANES),
                           .high = vi_load(l->high + v * LANES),
                           .row = vi_load(l->row + v * LANES),
                           .slope = vf_load(l->slope + v * LANES)};
}

/* Lanes that see key `key`, as a mask. */
CPU_INLINE vi lanes_see(const lane_vector_t *l, int32_t key)
{
    return (l->low <= key) & (key < l->high);
}

/* ---- the part of a tile that counts ---- */

/* Scores of a tile of keys in blocks of LANES x LANES; those that no lane sees are left out.
 * Numbers of keys and of queries count from the tile's first; ends are even, and one may lie
 * behind an odd number of keys, where no lane sees any. */
typedef struct sight {
    span_t key[TILE_VECTORS];   /* keys for each vector of queries                  */
    span_t whole[TILE_VECTORS]; /* those of them that all its lanes see             */
    span_t query[TILE_VECTORS]; /* queries for each LANES keys                      */
    uint32_t keys, groups;      /* of the tile, and how many times LANES of them    */
} sight_t;

/* [from, to) cut to bounds; empty at an end of them where it lies outside. */
static inline span_t span_inside(int64_t from, int64_t to, span_t bounds)
{
    const int64_t low = clamped(from, bounds.from, bounds.to);
    return (span_t){(uint32_t)low, (uint32_t)clamped(to, low, bounds.to)};
}

/* What of keys [from, to) these lanes see. Spans begin and end at even keys, as scores are made two
 * at a time and pairs of BF16 belong together. */
static inline void sight_of(sight_t *s, const lanes_t *l, int32_t from, int32_t to)
{
    const span_t all = {0, (uint32_t)rounded_up((uint64_t)(to - from), 2)};

    s->keys = (uint32_t)(to - from);
    s->groups = (s->keys + LANES - 1) / LANES;
    for (uint32_t g = 0; g < s->groups; g++)
        s->query[g] = (span_t){0, 0};
    for (uint32_t v = 0; v < l->vectors; v++) {
        const reach_t *r = &l->reach[v];
        span_t any = span_inside(r->any_from - from, r->any_to - from, all);
        if (any.from == any.to) any.from = any.to = 0;
        const uint32_t first = any.from / LANES, last = (any.to + LANES - 1) / LANES;
        s->key[v] = span_inside(first * LANES, last * LANES, all);
        span_t whole = span_inside(r->all_from - from, r->all_to - from, s->key[v]);
        whole.from = (whole.from + 1) / 2 * 2;
        whole.to = whole.to / 2 * 2;
        if (whole.to < whole.from) whole.to = whole.from;
        s->whole[v] = whole;
        for (uint32_t g = first; g < last; g++) {
            if (s->query[g].to == 0) s->query[g].from = v * LANES;
            s->query[g].to = (v + 1) * LANES;
        }
    }
}

/* How many of blocks i.. of n share the span of block i. */
static inline uint32_t spans_alike(const span_t *span, uint32_t i, uint32_t n)
{
    uint32_t count = 1;
    while (i + count < n && span[i + count].from == span[i].from &&
           span[i + count].to == span[i].to)
        count++;
    return count;
}

/* A span of elements in units of the sum. */
CPU_INLINE span_t span_units(span_t s, const bool pairs)
{
    return pairs ? (span_t){s.from / 2, s.to / 2} : s;
}

/* c [key][query] = a [key][units] b [units][query] */
CPU_INLINE void product_scores(float *c, const float *a, const float *b, uint32_t units,
                               const sight_t *s, const bool pairs)
{
    const product_t p = {
        .c = c, .a = a, .b = b, .a_row = padded(units), .a_step = 1, .b_row = TILE, .c_row = TILE};

    for (uint32_t g = 0, n; g < s->groups; g += n) {
        const uint32_t end = (n = spans_alike(s->query, g, s->groups), (g + n) * LANES);
        const span_t rows = {g * LANES, end < s->keys ? end : s->keys};
        product_run(&p, rows, (span_t){s->query[g].from / LANES, s->query[g].to / LANES},
                    (span_t){0, units}, PRODUCT_SET, pairs);
    }
}

/* c [query][width], its rows scaled, += a [units of keys][query] b [units of keys][width] */
CPU_INLINE void product_queries(float *c, const float *a, const float *b, uint64_t width,
                                const float *scale, const lanes_t *l, const sight_t *s,
                                const bool pairs)
{
    const product_t p = {.c = c,
                         .a = a,
                         .b = b,
                         .a_row = 1,
                         .a_step = TILE,
                         .b_row = width,
                         .c_row = width,
                         .scale = scale};
    const span_t vectors = {0, (uint32_t)(width / LANES)};

    for (uint32_t v = 0, n; v < l->vectors; v += n) {
        const uint32_t end = (n = spans_alike(s->key, v, l->vectors), (v + n) * LANES);
        const span_t rows = {v * LANES, end < l->count ? end : l->count};
        if (s->key[v].to == 0) continue;
        product_run(&p, rows, vectors, span_units(s->key[v], pairs),
                    scale != NULL ? PRODUCT_SCALE : PRODUCT_ADD, pairs);
    }
}

/* c [key][width] += a [key][units of queries] b [units of queries][width] */
CPU_INLINE void product_keys(float *c, const float *a, const float *b, uint64_t width,
                             const sight_t *s, const bool pairs)
{
    const product_t p = {.c = c,
                         .a = a,
                         .b = b,
                         .a_row = pairs ? TILE / 2 : TILE,
                         .a_step = 1,
                         .b_row = width,
                         .c_row = width};
    const span_t vectors = {0, (uint32_t)(width / LANES)};

    for (uint32_t g = 0, n; g < s->groups; g += n) {
        const uint32_t end = (n = spans_alike(s->query, g, s->groups), (g + n) * LANES);
        const span_t rows = {g * LANES, end < s->keys ? end : s->keys};
        if (s->query[g].to == 0) continue;
        product_run(&p, rows, vectors, span_units(s->query[g], pairs), PRODUCT_ADD, pairs);
    }
}

/* ---- attributes ---- */

/* The attributes of attention, with all that 0 stands for filled in. */
typedef struct head_shape {
    uint64_t heads, kv_heads, group; /* group: query heads of a key head */
    uint64_t d, dv, dp, dvp;         /* widths, and padded to whole vectors */
    uint64_t du, dvu;                /* d and dv in units, padded to whole vectors */
    float scale, cap, cap_inverse;
    float exponent; /* of a score as score_finish() leaves it: p = 2^(exponent score - ...) */
    bool special;   /* scores need more than the scale */
} head_shape_t;

/* pairs: units of two BF16. special: a score is more than scale times a product (soft cap, slopes),
 * or the scale is not positive, by which the largest score would be the least product. */
static inline head_shape_t head_shape(const lh_attention_t *how, bool slopes, bool pairs)
{
    head_shape_t s = {.heads = how->heads,
                      .kv_heads = how->kv_heads != 0 ? how->kv_heads : how->heads,
                      .d = how->head_dim,
                      .dv = how->value_dim != 0 ? how->value_dim : how->head_dim};
    s.group = s.heads / s.kv_heads;
    s.dp = padded(s.d);
    s.dvp = padded(s.dv);
    s.scale = (float)(how->scale != 0 ? how->scale : 1 / sqrt((double)how->head_dim));
    s.cap = (float)how->soft_cap;
    s.cap_inverse = how->soft_cap != 0 ? (float)(1 / how->soft_cap) : 0;
    s.du = padded(units_of(s.d, pairs));
    s.dvu = padded(units_of(s.dv, pairs));
    s.special = s.cap != 0 || slopes || s.scale <= 0;
    s.exponent = (s.special ? 1.0f : s.scale) * LOG2_E;
    return s;
}

/* Threads that a launch may have, as known when it is prepared; and which one runs a part.
 * cpu_run() gives thread t of n the parts [t parts / n, (t + 1) parts / n), so scratch can be a
 * thread's. */
static inline uint64_t threads_of(const lh_prepared_t *k, const lh_kernel_desc_t *desc)
{
    const uint64_t stream = desc->stream != NULL ? desc->stream->threads.count : 1;
    return stream > k->device->threads ? stream : k->device->threads;
}
static inline uint64_t thread_of(const lh_prepared_t *k, uint32_t part, uint32_t parts)
{
    const uint64_t n = k->stream->threads.count;
    return (((uint64_t)part + 1) * n - 1) / parts;
}

/* Hands out pieces of scratch, each on a cache line of its own. */
static inline float *scratch_take(char **at, uint64_t floats)
{
    float *piece = (float *)(void *)*at;
    *at += rounded_up(floats * sizeof(float), 64);
    return piece;
}

#endif
