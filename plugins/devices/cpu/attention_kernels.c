/* attention_kernels.c - attention in tiles that stay in the cache: the scores of a block of queries against
 * a tile of keys are used up before the next tile, with running maximum and sum for each query.
 *
 * A part is a block of query rows of all heads that share a key head: the tile of keys is packed
 * once for them. Tiles that no query of a block sees are skipped.
 *
 * The method is that of online softmax (Milakov and Gimelshein, 2018) and FlashAttention (Dao et
 * al., 2022): with m the largest score so far and l the sum of exp(score - m), a new tile with a
 * larger m' scales l and the output so far by exp(m - m'). So scores never leave the cache, and
 * memory grows with the number of tokens and not with its square. What is saved for the gradient is
 * one number a query and head: m + log l. */
#include "attention_tile.h"

enum { BLOCK_ROWS = 256 }; /* queries of all heads of a part, about: the reuse of a packed tile */

/* k->number[]: query rows of a part, parts that a key head's rows are cut into, scratch of a
 * thread. */
enum { N_ROWS = 0, N_BLOCKS = 1, N_THREAD_BYTES = 2 };

/* What stands for a score that nobody sees. */
static const float nothing =
    -1e30f; /* below every score; finite, so that differences are numbers */

/* A tile of queries on its way through the keys. */
typedef struct query_tile {
    lanes_t lanes;
    float top[TILE];    /* m: the largest score so far      */
    float total[TILE];  /* l: sum of exp(score - m)         */
    float shrink[TILE]; /* exp(m - m') of the tile at hand  */
    float *turned;      /* [du][TILE]  */
    float *sums;        /* [TILE][dvp] */
} query_tile_t;

/* Keys and values of one tile, packed for the products. */
typedef struct key_tile {
    int32_t from, to;
    float *keys, *values; /* natural [TILE][du], deep [TILE units][dvp] */
} key_tile_t;

/* ---- one tile against one tile ---- */

/* The score behind scale, soft cap and ALiBi. */
CPU_INLINE vf score_finish(const head_shape_t *s, const lane_vector_t *l, vf raw, int32_t key)
{
    vf score = raw * s->scale;
    if (s->cap != 0) score = vf_tanh(score * s->cap_inverse) * s->cap;
    return vf_fma(l->slope, __builtin_convertvector(key - l->row, vf), score);
}

/* The greatest of keys [span) that each lane sees, and top. */
CPU_INLINE vf scores_top(const head_shape_t *s, const lane_vector_t *l, float *at, int32_t from,
                         span_t span, vf top, const bool special, const bool masked)
{
    vf other = top;

    for (uint32_t j = span.from; j < span.to; j += 2) {
        vf x[2];
        for (uint32_t i = 0; i < 2; i++) {
            const int32_t key = from + (int32_t)(j + i);
            x[i] = vf_load(at + (j + i) * TILE);
            if (special) x[i] = score_finish(s, l, x[i], key);
            if (special) vf_store(at + (j + i) * TILE, x[i]);
            if (masked) x[i] = vf_select(lanes_see(l, key), x[i], vf_set(nothing));
        }
        top = tile_max(top, x[0]);
        other = tile_max(other, x[1]);
    }
    return tile_max(top, other);
}

/* Scores become p = 2^(exponent score - shift), of pairs one beside the other; returns their sum
 * and sum. */
CPU_INLINE vf scores_raise(const lane_vector_t *l, float *at, int32_t from, span_t span,
                           float exponent, vf shift, vf sum, const bool masked, const bool pairs)
{
    vf other = vf_zero();

    for (uint32_t j = span.from; j < span.to; j += 2) {
        vf p[2];
        for (uint32_t i = 0; i < 2; i++) {
            const vf x = vf_load(at + (j + i) * TILE);
            p[i] = tile_exp2(vf_fma(x, vf_set(exponent), -shift), pairs);
            if (masked) p[i] = vf_select(lanes_see(l, from + (int32_t)(j + i)), p[i], vf_zero());
        }
#if CPU_PAIRS
        if (pairs) vf_store(at + j / 2 * TILE, pair_round(p[0], p[1]).mixed);
#endif
        if (!pairs) vf_store(at + j * TILE, p[0]);
        if (!pairs) vf_store(at + (j + 1) * TILE, p[1]);
        sum += p[0];
        other += p[1];
    }
    return sum + other;
}

/* Turns the scores of TILE queries into exp(score - top), with top and total brought up to date;
 * shrink is what former sums lose. */
CPU_INLINE void soften(const head_shape_t *s, query_tile_t *q, const sight_t *sight, int32_t from,
                       float *scores, const bool special, const bool pairs)
{
    /* Vector by vector of queries: keys before `whole`, in it, and behind it, where only the first
     * and last of them need masks. With a soft cap or slopes the scores are finished on the way,
     * and masked throughout. */
    for (uint32_t v = 0; v < q->lanes.vectors; v++) {
        const lane_vector_t l = lane_vector(&q->lanes, v);
        const span_t all = sight->key[v], whole = sight->whole[v];
        const span_t before = {all.from, whole.from}, behind = {whole.to, all.to};
        const vf former = vf_load(q->top + v * LANES);
        float *at = scores + v * LANES;
        vf top = former, sum = vf_zero();
        if (all.to == 0) continue;
        if (special) {
            top = scores_top(s, &l, at, from, all, top, true, true);
        } else {
            top = scores_top(s, &l, at, from, before, top, false, true);
            top = scores_top(s, &l, at, from, whole, top, false, false);
            top = scores_top(s, &l, at, from, behind, top, false, true);
        }
        /* In powers of 2: exponent is the scale times log2(e), so one multiplication serves
         * both. */
        const vf shift = top * s->exponent;
        const vf shrink = tile_exp2((former - top) * s->exponent, false);
        if (special) {
            sum = scores_raise(&l, at, from, all, s->exponent, shift, sum, true, pairs);
        } else {
            sum = scores_raise(&l, at, from, before, s->exponent, shift, sum, true, pairs);
            sum = scores_raise(&l, at, from, whole, s->exponent, shift, sum, false, pairs);
            sum = scores_raise(&l, at, from, behind, s->exponent, shift, sum, true, pairs);
        }
        vf_store(q->top + v * LANES, top);
        vf_store(q->shrink + v * LANES, shrink);
        vf_store(q->total + v * LANES, vf_fma(vf_load(q->total + v * LANES), shrink, sum));
    }
}

/* Scores, softmax and output of one tile of queries against one of keys. */
CPU_INLINE void tile_attend(const head_shape_t *s, query_tile_t *q, const key_tile_t *t,
                            float *scores, const bool pairs)
{
    sight_t sight;

    sight_of(&sight, &q->lanes, t->from, t->to);
    product_scores(scores, t->keys, q->turned, (uint32_t)units_of(s->d, pairs), &sight, pairs);
    if (s->special) {
        soften(s, q, &sight, t->from, scores, true, pairs);
    } else {
        soften(s, q, &sight, t->from, scores, false, pairs);
    }
    product_queries(q->sums, scores, t->values, s->dvp, q->shrink, &q->lanes, &sight, pairs);
}

/* No score yet: the first tile's shrink is exp(nothing - top), which is 0, times sums of 0. */
static void query_tile_start(const head_shape_t *s, query_tile_t *q)
{
    for (uint32_t i = 0; i < TILE; i++) {
        q->top[i] = nothing;
        q->total[i] = 0;
    }
    memset(q->sums, 0, TILE * s->dvp * sizeof(float));
}

/* All tiles of queries, which share a key head, against all keys that any of them sees. */
CPU_INLINE void tiles_attend(const head_shape_t *s, query_tile_t *tiles, uint32_t count,
                             const rows_of_t *keys, const rows_of_t *values, uint64_t first_row,
                             key_tile_t *t, float *scores, const bool pairs)
{
    int32_t first = INT32_MAX, last = 0;

    for (uint32_t i = 0; i < count; i++) {
        const lanes_t *l = &tiles[i].lanes;
        if (l->last > l->first && l->first < first) first = l->first;
        if (l->last > last) last = l->last;
        query_tile_start(s, &tiles[i]);
    }
    for (t->from = first; t->from < last; t->from = t->to) {
        bool packed = false;
        t->to = last - t->from < TILE ? last : t->from + TILE;
        const uint64_t next = (uint64_t)(last - t->to < TILE ? last - t->to : TILE);
        /* The next tile comes into the cache while this one is computed. */
        rows_fetch(keys, first_row + (uint64_t)t->to, next, s->d);
        rows_fetch(values, first_row + (uint64_t)t->to, next, s->dv);
        for (uint32_t i = 0; i < count; i++) {
            /* Packed at the first tile of queries that needs it, or not at all. */
            if (!lanes_meet(&tiles[i].lanes, t->from, t->to)) continue;
            const uint64_t row = first_row + (uint64_t)t->from, n = (uint64_t)(t->to - t->from);
            if (!packed) pack_rows(t->keys, keys, row, n, s->d, pairs);
            if (!packed) pack_units(t->values, values, row, n, s->dv, pairs);
            packed = true;
            tile_attend(s, &tiles[i], t, scores, pairs);
        }
    }
}

/* ---- a part of `attention` ---- */

/* A thread's scratch, cut: see block_scratch(). */
typedef struct block_scratch {
    query_tile_t *tiles;
    key_tile_t key_tile;
    float *scores, *rows; /* rows: [TILE][du] before turning */
} block_scratch_t;

/* Of one thread's scratch, as block_scratch() cuts it. */
static uint64_t thread_bytes(const head_shape_t *s, uint64_t tiles)
{
    const uint64_t shared = TILE * (2 * s->du + s->dvp + TILE) * sizeof(float) + 5 * 64;
    const uint64_t each = sizeof(query_tile_t) + TILE * (s->du + s->dvp) * sizeof(float) + 3 * 64;
    return rounded_up(shared + tiles * each, 4096);
}

static block_scratch_t block_scratch(const lh_prepared_t *k, const head_shape_t *s, uint64_t tiles,
                                     uint64_t thread)
{
    char *at = (char *)k->scratch + thread * k->number[N_THREAD_BYTES];
    block_scratch_t b;

    b.scores = scratch_take(&at, TILE * TILE);
    b.key_tile.keys = scratch_take(&at, TILE * s->du);
    b.key_tile.values = scratch_take(&at, TILE * s->dvp);
    b.rows = scratch_take(&at, TILE * s->du);
    b.tiles = (query_tile_t *)(void *)at;
    at += rounded_up(tiles * sizeof(query_tile_t), 64);
    for (uint64_t i = 0; i < tiles; i++) {
        b.tiles[i].turned = scratch_take(&at, TILE * s->du);
        b.tiles[i].sums = scratch_take(&at, TILE * s->dvp);
    }
    return b;
}

/* Rows [row, row + count) of one query head as a tile. */
CPU_INLINE void query_tile_load(const lh_prepared_t *k, const head_shape_t *s, block_scratch_t *b,
                                query_tile_t *q, uint64_t head, uint64_t row, uint64_t count,
                                const bool pairs)
{
    LH_SLOTS(LH_ATTENTION_TEXT);
    const rows_of_t from = rows_of(k, in_q, head * s->d);
    const uint64_t starts = k->view[in_starts].width;
    const float slope = cpu_has(k, in_slopes) ? ((const float *)k->at[in_slopes])[head] : 0;

    for (uint32_t i = 0; i < count; i++) {
        const int64_t at = (int64_t)(k->how.attention.q_begin + row + i);
        int64_t begin, end;
        document_at(k->at[in_starts], starts, at, &begin, &end);
        lane_set(&q->lanes, i, &k->how.attention, at, begin, end, k->view[in_k].rows);
        q->lanes.slope[i] = slope;
    }
    lanes_close(&q->lanes, (uint32_t)count);
    pack_rows(b->rows, &from, row, count, s->d, pairs);
    pack_turned(q->turned, b->rows, count, s->du);
}

/* Divides by the sums; a query that sees no key has a sum of 0, and becomes 0 with lse
 * -infinity. */
static void query_tile_store(const lh_prepared_t *k, const head_shape_t *s, query_tile_t *q,
                             uint64_t head, uint64_t row)
{
    LH_SLOTS(LH_ATTENTION_TEXT);
    const rows_of_t to = rows_of(k, out_y, head * s->dv);
    const float unit = s->special ? 1 : s->scale;

    float *lse = cpu_has(k, out_lse) ? (float *)cpu_row(k, out_lse, head) + row : NULL;
    float factor[TILE];

    for (uint32_t i = 0; i < q->lanes.count; i++) {
        const float total = q->total[i];
        factor[i] = total != 0 ? 1 / total : 0;
        if (lse != NULL) lse[i] = total != 0 ? q->top[i] * unit + logf(total) : -INFINITY;
    }
    unpack_rows(&to, q->sums, row, q->lanes.count, s->dv, factor, 1);
}

/* Part p: a block of rows of all query heads that share key head p / blocks. */
CPU_INLINE void attention_part(const lh_prepared_t *k, uint32_t part, const bool pairs)
{
    LH_SLOTS(LH_ATTENTION_TEXT);
    const head_shape_t s = head_shape(&k->how.attention, cpu_has(k, in_slopes), pairs);
    const uint64_t rows = k->number[N_ROWS], blocks = k->number[N_BLOCKS];
    const uint64_t kv = part / blocks, tiles_a_head = (rows + TILE - 1) / TILE;
    block_scratch_t b = block_scratch(k, &s, s.group * tiles_a_head,
                                      thread_of(k, part, (uint32_t)(s.kv_heads * blocks)));
    uint64_t begin, end;
    uint32_t count = 0;

    /* All tiles of queries are loaded first, as each tile of keys meets them all. */
    cpu_range((uint32_t)(part % blocks), rows, k->view[in_q].rows, &begin, &end);
    for (uint64_t g = 0; g < s.group; g++) {
        for (uint64_t row = begin; row < end; row += TILE) {
            const uint64_t n = end - row < TILE ? end - row : TILE;
            query_tile_load(k, &s, &b, &b.tiles[count++], kv * s.group + g, row, n, pairs);
        }
    }
    const rows_of_t keys = rows_of(k, in_k, kv * s.d), values = rows_of(k, in_v, kv * s.dv);
    tiles_attend(&s, b.tiles, count, &keys, &values, 0, &b.key_tile, b.scores, pairs);
    count = 0;
    for (uint64_t g = 0; g < s.group; g++) {
        for (uint64_t row = begin; row < end; row += TILE) {
            query_tile_store(k, &s, &b.tiles[count++], kv * s.group + g, row);
        }
    }
}

ATTENTION_BOTH(attention_part)

/* Of both ops; the arguments are slots. */
static lh_status_t attention_shapes_check(const lh_prepared_t *k, const char *op, uint32_t q,
                                          uint32_t keys, uint32_t values, uint32_t y)
{
    const head_shape_t s = head_shape(&k->how.attention, false, false);

    if (s.heads == 0 || s.d == 0 || s.heads % s.kv_heads != 0) {
        return k->host->fail(k->host, LH_INVALID, "%s: %llu heads of %llu over %llu key heads", op,
                             (unsigned long long)s.heads, (unsigned long long)s.d,
                             (unsigned long long)s.kv_heads);
    }
    if (k->view[q].width != s.heads * s.d || k->view[keys].width != s.kv_heads * s.d ||
        k->view[values].width != s.kv_heads * s.dv || k->view[y].width != s.heads * s.dv ||
        k->view[keys].rows != k->view[values].rows || k->view[q].rows != k->view[y].rows) {
        return k->host->fail(
            k->host, LH_INVALID, "%s: widths %llu, %llu, %llu, %llu do not fit %llu heads", op,
            (unsigned long long)k->view[q].width, (unsigned long long)k->view[keys].width,
            (unsigned long long)k->view[values].width, (unsigned long long)k->view[y].width,
            (unsigned long long)s.heads);
    }
    if (k->view[keys].rows > INT32_MAX / 2 || k->view[q].rows > INT32_MAX / 2) {
        return k->host->fail(k->host, LH_UNSUPPORTED, "%s: %llu keys are too many", op,
                             (unsigned long long)k->view[keys].rows);
    }
    return LH_OK;
}

/* Rows of a part: enough queries, over the heads of a group, to pay for packing a tile of keys. */
static lh_status_t attention_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                  lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_ATTENTION_TEXT);
    const lh_status_t status = attention_shapes_check(k, "attention", in_q, in_k, in_v, out_y);
    if (status != LH_OK) return status;

    const bool pairs = ATTENTION_PAIRS(k->view[in_q].dtype);
    const head_shape_t s = head_shape(&k->how.attention, cpu_has(k, in_slopes), pairs);
    const uint64_t wanted = rounded_up(BLOCK_ROWS / s.group, TILE);
    const uint64_t most = rounded_up(k->view[in_q].rows, TILE);
    k->number[N_ROWS] = wanted < TILE ? TILE : wanted > most ? most : wanted;
    k->number[N_BLOCKS] = (k->view[in_q].rows + k->number[N_ROWS] - 1) / k->number[N_ROWS];
    k->number[N_THREAD_BYTES] = thread_bytes(&s, s.group * (k->number[N_ROWS] / TILE));
    plan->scratch_bytes = threads_of(k, desc) * k->number[N_THREAD_BYTES];
    cpu_phase_add(k, ATTENTION_PICK(attention_part, pairs), s.kv_heads * k->number[N_BLOCKS], 1);
    return LH_OK;
}

/* ---- a part of `attention_cached` ---- */

/* The new rows of one sequence for one key head: lanes are (query head, row) pairs. */
CPU_INLINE void cached_lanes(const lh_prepared_t *k, const head_shape_t *s, block_scratch_t *b,
                             query_tile_t *q, uint64_t sequence, uint64_t kv, uint64_t first,
                             uint64_t count, const bool pairs)
{
    LH_SLOTS(LH_ATTENTION_CACHED_TEXT);
    const uint64_t rows = k->number[N_ROWS], capacity = k->arg[in_k_cache].shape[1];
    const int64_t length = ((const int32_t *)k->at[in_lengths])[sequence];

    for (uint64_t i = 0; i < count; i++) {
        const uint64_t row = (first + i) % rows, head = kv * s->group + (first + i) / rows;
        const int64_t at = length + (int64_t)row;
        const rows_of_t from = rows_of(k, in_q, head * s->d);
        lane_set(&q->lanes, (uint32_t)i, &k->how.attention, at, 0, at + 1, capacity);
        q->lanes.slope[i] = cpu_has(k, in_slopes) ? ((const float *)k->at[in_slopes])[head] : 0;
        pack_row(b->rows + i * s->du, &from, sequence * rows + row, s->d, pairs);
    }
    lanes_close(&q->lanes, (uint32_t)count);
    memset(b->rows + count * s->du, 0, (padded(count) - count) * s->du * sizeof(float));
    pack_turned(q->turned, b->rows, count, s->du);
}

/* Part p: the new rows of sequence p / kv_heads for one key head. There are few of them (one, as a
 * rule), so query heads fill the lanes beside them. */
CPU_INLINE void cached_part(const lh_prepared_t *k, uint32_t part, const bool pairs)
{
    LH_SLOTS(LH_ATTENTION_CACHED_TEXT);
    const head_shape_t s = head_shape(&k->how.attention, cpu_has(k, in_slopes), pairs);
    const uint64_t rows = k->number[N_ROWS], lanes = rows * s.group;
    const uint64_t sequence = part / s.kv_heads, kv = part % s.kv_heads;
    const uint64_t sequences = k->view[in_lengths].width, capacity = k->arg[in_k_cache].shape[1];
    const rows_of_t keys = rows_of(k, in_k_cache, kv * s.d),
                    values = rows_of(k, in_v_cache, kv * s.dv);
    block_scratch_t b = block_scratch(k, &s, 1,
                                      thread_of(k, part, (uint32_t)(sequences * s.kv_heads)));

    for (uint64_t first = 0; first < lanes; first += TILE) {
        const uint64_t count = lanes - first < TILE ? lanes - first : TILE;
        cached_lanes(k, &s, &b, b.tiles, sequence, kv, first, count, pairs);
        tiles_attend(&s, b.tiles, 1, &keys, &values, sequence * capacity, &b.key_tile, b.scores,
                     pairs);
        for (uint64_t i = 0; i < count; i++) {
            const uint64_t row = (first + i) % rows, head = kv * s.group + (first + i) / rows;
            const rows_of_t to = rows_of(k, out_y, head * s.dv);
            const float total = b.tiles->total[i], factor = total != 0 ? 1 / total : 0;
            unpack_rows(&to, b.tiles->sums + i * s.dvp, sequence * rows + row, 1, s.dv, &factor, 0);
        }
    }
}
ATTENTION_BOTH(cached_part)

/* How much of a cache is filled is read at every launch: the plan is for its capacity. */
static lh_status_t cached_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                               lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_ATTENTION_CACHED_TEXT);
    const lh_status_t status = attention_shapes_check(k, "attention_cached", in_q, in_k_cache,
                                                      in_v_cache, out_y);
    if (status != LH_OK) return status;

    const bool pairs = ATTENTION_PAIRS(k->view[in_q].dtype);
    const head_shape_t s = head_shape(&k->how.attention, cpu_has(k, in_slopes), pairs);
    const uint64_t sequences = k->view[in_lengths].width;
    if (k->arg[in_k_cache].rank != 3 || k->arg[in_k_cache].shape[0] != sequences ||
        k->view[in_q].rows % sequences != 0) {
        return k->host->fail(
            k->host, LH_INVALID,
            "attention_cached: %llu rows for %llu sequences and a cache of rank %u",
            (unsigned long long)k->view[in_q].rows, (unsigned long long)sequences,
            k->arg[in_k_cache].rank);
    }
    k->number[N_ROWS] = k->view[in_q].rows / sequences;
    k->number[N_THREAD_BYTES] = thread_bytes(&s, 1);
    plan->scratch_bytes = threads_of(k, desc) * k->number[N_THREAD_BYTES];
    cpu_phase_add(k, ATTENTION_PICK(cached_part, pairs), sequences * s.kv_heads, 1);
    return LH_OK;
}

extern const cpu_op_t CPU_ISA(attention_ops)[];
const cpu_op_t CPU_ISA(attention_ops)[] = {
    {"attention", "xxxif?xf?", attention_plan},
    {"attention_cached", "xxxif?x", cached_plan},
    {0},
};
