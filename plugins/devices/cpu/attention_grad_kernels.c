/* attention_grad_kernels.c - the gradient of attention: probabilities are computed again, tile by tile,
 * from the saved logarithm of their sum.
 *
 * A part is a key head (or some of its query heads, where there are few key heads) in the documents
 * that begin in one stretch of rows. It walks a document key tile by key tile, each against all
 * queries that see it, and keeps the sums for gq, gk and gv of one document in F32: every sum has
 * one owner and one order, whatever the number of threads. Where query heads of a key head are
 * spread over parts, each leaves its own gk and gv in scratch, and a second phase adds them in
 * order.
 *
 * With p = exp(score - lse) and D = gy.y of the query, the formulas are those of FlashAttention:
 * gv = p' gy, gscore = p (gy v' - D), gq = gscore k, gk = gscore' q, times the scale. To compute p
 * again costs one product of five; to keep it would cost a number for each pair of tokens. */
#include "attention_grad_tile.h"

/* Stretches of rows that documents are dealt to; key heads below which query heads are spread, too.
 * Both are constants: they decide the order of sums, so they must not depend on threads. */
enum { STRETCHES = 16, FEW_HEADS = 4 };

LH_SLOTS(LH_ATTENTION_GRAD_TEXT);

/* k->number[] */
enum {
    N_STRETCHES = 0,
    N_WAYS = 1, /* parts that the query heads of a key head are spread over */
    N_THREAD_BYTES = 2,
    N_PARTIAL = 3, /* bytes into scratch: [kv_heads ways][keys][dp + dvp] */
    N_REDUCE_ROWS = 4,
};

static const float one = 1; /* a factor for unpack_rows */

/* ---- scratch ---- */

/* A thread's arrays, for the largest document that there may be: all rows. */
static document_t document_scratch(const lh_prepared_t *k, const head_shape_t *s, uint64_t thread,
                                   const bool pairs)
{
    document_t d = {0};
    document_take(&d, (char *)k->scratch + thread * k->number[N_THREAD_BYTES], s,
                  k->view[in_q].rows, k->view[in_k].rows, pairs);
    return d;
}

/* ---- one head in one document ---- */

/* Who sees whom, and lse, of `count` queries; lanes behind them see nothing. */
static void grad_tile_lanes(const lh_prepared_t *k, const document_t *d, grad_tile_t *t,
                            uint64_t row, uint32_t count, uint64_t head)
{
    const float slope = cpu_has(k, in_slopes) ? ((const float *)k->at[in_slopes])[head] : 0;
    const float *lse = cpu_row(k, in_lse, head);
    const int64_t begin = (int64_t)(d->k_first + k->how.attention.k_begin);

    for (uint32_t i = 0; i < count; i++) {
        const uint64_t at = d->q_first + row + i;
        lane_set(&t->lanes, i, &k->how.attention, (int64_t)(k->how.attention.q_begin + at), begin,
                 begin + (int64_t)d->k_count, k->view[in_k].rows);
        t->lanes.slope[i] = slope;
        t->lse[i] = lse[at];
    }
    lanes_close(&t->lanes, count);
    for (uint32_t i = count; i < TILE; i++)
        t->lse[i] = t->along[i] = 0;
}

/* gy.y of each query: LANES rows at a time, as turned they are added without a look at lanes. */
CPU_INLINE void grad_tile_along(const lh_prepared_t *k, const head_shape_t *s, grad_tile_t *t,
                                uint64_t first, uint32_t count, uint64_t head,
                                const lh_dtype_t dtype)
{
    const uint64_t gy = k->view[in_gy].pitch, y = k->view[in_y].pitch, column = head * s->dv;
    const uint64_t whole = s->dv / LANES * LANES, rest = s->dv - whole;

    for (uint32_t i = 0; i < count; i += LANES) {
        vf sum[LANES];
        for (uint32_t r = 0; r < LANES; r++) {
            const uint64_t row = first + i + r;
            sum[r] = vf_zero();
            if (i + r >= count) continue;
            for (uint64_t c = 0; c < s->dv; c += LANES) {
                const uint64_t m = c < whole ? LANES : rest;
                sum[r] = vf_fma(vf_get(k->at[in_gy], dtype, row * gy + column + c, m),
                                vf_get(k->at[in_y], dtype, row * y + column + c, m), sum[r]);
            }
        }
        transpose(sum);
        for (uint32_t r = 1; r < LANES; r++)
            sum[0] += sum[r];
        vf_store(t->along + i, sum[0]);
    }
}

/* A tile of rows, turned and deep. */
CPU_INLINE void tile_load(const document_t *d, const rows_of_t *from, uint64_t first,
                          uint64_t count, uint64_t width, float *deep, float *turned,
                          const bool pairs)
{
    float *natural = pairs ? d->rows : deep;

    pack_rows(natural, from, first, count, width, pairs);
    pack_turned(turned, natural, count, padded(units_of(width, pairs)));
    if (pairs) pack_deep(deep, from, first, count, width);
}

/* All tiles of a query head in this document, packed once for every tile of keys. */
CPU_INLINE void head_load(const lh_prepared_t *k, const head_shape_t *s, document_t *d,
                          uint64_t head, const bool pairs)
{
    const rows_of_t q = rows_of(k, in_q, head * s->d), gy = rows_of(k, in_gy, head * s->dv);

    for (uint64_t row = 0; row < d->q_count; row += TILE) {
        const uint64_t count = d->q_count - row < TILE ? d->q_count - row : TILE;
        const uint64_t first = d->q_first + row, unit = units_of(row, pairs);
        grad_tile_t *t = &d->tiles[row / TILE];
        tile_load(d, &q, first, count, s->d, d->q_deep + unit * s->dp, d->q_turned + row * s->du,
                  pairs);
        tile_load(d, &gy, first, count, s->dv, d->gy_deep + unit * s->dvp,
                  d->gy_turned + row * s->dvu, pairs);
        grad_tile_lanes(k, d, t, row, (uint32_t)count, head);
        if (k->view[in_gy].dtype == LH_DTYPE_BF16) {
            grad_tile_along(k, s, t, first, (uint32_t)count, head, LH_DTYPE_BF16);
        } else {
            grad_tile_along(k, s, t, first, (uint32_t)count, head, LH_DTYPE_F32);
        }
    }
    memset(d->gq, 0, d->q_count * s->dp * sizeof(float));
}

/* gq of a head is whole afterwards; gk and gv go on to the next head of the key head. */
CPU_INLINE void head_grad(const lh_prepared_t *k, const head_shape_t *s, document_t *d,
                          uint64_t head, const bool pairs)
{
    const uint64_t kv = head / s->group, tiles = (d->q_count + TILE - 1) / TILE;
    const rows_of_t keys = rows_of(k, in_k, kv * s->d), values = rows_of(k, in_v, kv * s->dv);
    const rows_of_t gq = rows_of(k, out_gq, head * s->d);

    head_load(k, s, d, head, pairs);
    /* Keys outside, queries inside: a tile of keys is packed once for all queries of the head, and
     * its sums of gk and gv are in the cache meanwhile. */
    for (uint64_t at = 0; at < d->k_count; at += TILE) {
        const uint64_t n = d->k_count - at < TILE ? d->k_count - at : TILE;
        const int32_t from = (int32_t)(d->k_first + at), to = from + (int32_t)n;
        pack_rows(d->keys, &keys, d->k_first + at, n, s->d, pairs);
        pack_rows(d->values, &values, d->k_first + at, n, s->dv, pairs);
        if (pairs) pack_deep(d->keys_deep, &keys, d->k_first + at, n, s->d);
        for (uint64_t i = 0; i < tiles; i++) {
            if (lanes_meet(&d->tiles[i].lanes, from, to)) tile_grad(s, d, i, from, to, at, pairs);
        }
    }
    unpack_rows(&gq, d->gq, d->q_first, d->q_count, s->d, &s->scale, 0);
}

/* ---- a part ---- */

/* Some query heads of one key head. */
typedef struct share {
    uint64_t kv, way;
    uint64_t head_begin, head_end;
} share_t;

/* Where a share leaves its gk and gv, of all key rows: gk first. */
static float *partial_at(const lh_prepared_t *k, const head_shape_t *s, uint64_t kv, uint64_t way)
{
    float *base = (float *)(void *)((char *)k->scratch + k->number[N_PARTIAL]);
    return base + (kv * k->number[N_WAYS] + way) * k->view[in_k].rows * (s->dp + s->dvp);
}

/* Rows of gk and gv of this share: into the outputs, or where the second phase finds them. from_k
 * NULL: zeros. */
static void keys_store(const lh_prepared_t *k, const head_shape_t *s, const share_t *share,
                       const float *from_k, const float *from_v, uint64_t first, uint64_t count)
{
    if (k->number[N_WAYS] > 1) {
        const uint64_t rows = k->view[in_k].rows;
        float *gk = partial_at(k, s, share->kv, share->way), *gv = gk + rows * s->dp;
        memcpy(gk + first * s->dp, from_k, count * s->dp * sizeof(float));
        memcpy(gv + first * s->dvp, from_v, count * s->dvp * sizeof(float));
        return;
    }
    const rows_of_t gk = rows_of(k, out_gk, share->kv * s->d),
                    gv = rows_of(k, out_gv, share->kv * s->dv);
    unpack_rows(&gk, from_k, first, count, s->d, &s->scale, 0);
    unpack_rows(&gv, from_v, first, count, s->dv, &one, 0);
}

/* gk and gv are summed over the share's query heads, one head after the other. */
CPU_INLINE void document_grad(const lh_prepared_t *k, const head_shape_t *s, const share_t *share,
                              document_t *d, const bool pairs)
{
    memset(d->gk, 0, d->k_count * s->dp * sizeof(float));
    memset(d->gv, 0, d->k_count * s->dvp * sizeof(float));
    for (uint64_t head = share->head_begin; head < share->head_end; head++) {
        head_grad(k, s, d, head, pairs);
    }
    keys_store(k, s, share, d->gk, d->gv, d->k_first, d->k_count);
}

/* Rows of no document: gradients are 0. */
static void outside_grad(const lh_prepared_t *k, const head_shape_t *s, const share_t *share,
                         document_t *d, uint64_t q_begin, uint64_t q_end, uint64_t k_begin,
                         uint64_t k_end)
{
    memset(d->keys, 0, s->dp * sizeof(float));
    memset(d->values, 0, s->dvp * sizeof(float));
    for (uint64_t row = q_begin; row < q_end; row++) {
        for (uint64_t head = share->head_begin; head < share->head_end; head++) {
            const rows_of_t gq = rows_of(k, out_gq, head * s->d);
            unpack_rows(&gq, d->keys, row, 1, s->d, &one, 0);
        }
    }
    for (uint64_t row = k_begin; row < k_end; row++) {
        keys_store(k, s, share, d->keys, d->values, row, 1);
    }
}

/* Rows of a tensor that begins at `origin` of the sequence which lie in rows [begin, end) of it. */
static void rows_inside(int64_t begin, int64_t end, uint64_t origin, uint64_t rows, uint64_t *first,
                        uint64_t *count)
{
    const int64_t low = clamped(begin - (int64_t)origin, 0, (int64_t)rows);
    const int64_t high = clamped(end - (int64_t)origin, low, (int64_t)rows);

    *first = (uint64_t)low;
    *count = (uint64_t)(high - low);
}

/* Every document is found by its first row: of queries, or of keys where this rank has none of its
 * queries (ring attention). Rows before the first and behind the last document belong to stretch
 * 0. */
CPU_INLINE void stretch_grad(const lh_prepared_t *k, const head_shape_t *s, const share_t *share,
                             uint64_t stretch, document_t *d, const bool pairs)
{
    const lh_attention_t *how = &k->how.attention;
    const int32_t *starts = k->at[in_starts];
    const uint64_t marks = k->view[in_starts].width, stretches = k->number[N_STRETCHES];
    const uint64_t q_rows = k->view[in_q].rows, k_rows = k->view[in_k].rows;
    uint64_t low, q_outside, k_outside, none;

    for (uint64_t i = 0; i + 1 < marks; i++) {
        rows_inside(starts[i], starts[i + 1], how->q_begin, q_rows, &d->q_first, &d->q_count);
        rows_inside(starts[i], starts[i + 1], how->k_begin, k_rows, &d->k_first, &d->k_count);
        if (d->q_count + d->k_count == 0) continue;
        const uint64_t at = d->q_count > 0 ? d->q_first * stretches / q_rows
                                           : d->k_first * stretches / k_rows;
        if (at == stretch) document_grad(k, s, share, d, pairs);
    }
    if (stretch != 0) return;
    rows_inside(INT32_MIN, starts[0], how->q_begin, q_rows, &none, &q_outside);
    rows_inside(INT32_MIN, starts[0], how->k_begin, k_rows, &none, &k_outside);
    outside_grad(k, s, share, d, 0, q_outside, 0, k_outside);
    rows_inside(starts[marks - 1], INT32_MAX, how->q_begin, q_rows, &low, &q_outside);
    rows_inside(starts[marks - 1], INT32_MAX, how->k_begin, k_rows, &none, &k_outside);
    outside_grad(k, s, share, d, low, low + q_outside, none, none + k_outside);
}

/* Part p: share p / stretches, stretch p % stretches. */
CPU_INLINE void attention_grad_part(const lh_prepared_t *k, uint32_t part, const bool pairs)
{
    const head_shape_t s = head_shape(&k->how.attention, cpu_has(k, in_slopes), pairs);
    const uint64_t stretches = k->number[N_STRETCHES], ways = k->number[N_WAYS];
    const uint64_t unit = part / stretches;
    const uint32_t parts = (uint32_t)(s.kv_heads * ways * stretches);
    share_t share = {.kv = unit / ways, .way = unit % ways};
    document_t d = document_scratch(k, &s, thread_of(k, part, parts), pairs);

    share.head_begin = share.kv * s.group + share.way * s.group / ways;
    share.head_end = share.kv * s.group + (share.way + 1) * s.group / ways;
    stretch_grad(k, &s, &share, part % stretches, &d, pairs);
}
ATTENTION_BOTH(attention_grad_part)

/* gk and gv of some key rows: the shares added up, in order. */
static void attention_reduce_part(const lh_prepared_t *k, uint32_t part)
{
    const head_shape_t s = head_shape(&k->how.attention, cpu_has(k, in_slopes), false);
    const uint64_t rows = k->view[in_k].rows, ways = k->number[N_WAYS];
    uint64_t begin, end;

    cpu_range(part, k->number[N_REDUCE_ROWS], rows, &begin, &end);
    for (uint64_t kv = 0; kv < s.kv_heads; kv++) {
        const rows_of_t gk = rows_of(k, out_gk, kv * s.d), gv = rows_of(k, out_gv, kv * s.dv);
        float *sum_k = partial_at(k, &s, kv, 0) + begin * s.dp;
        float *sum_v = partial_at(k, &s, kv, 0) + rows * s.dp + begin * s.dvp;
        for (uint64_t way = 1; way < ways; way++) {
            const float *more_k = partial_at(k, &s, kv, way) + begin * s.dp;
            const float *more_v = partial_at(k, &s, kv, way) + rows * s.dp + begin * s.dvp;
            for (uint64_t i = 0; i < (end - begin) * s.dp; i++)
                sum_k[i] += more_k[i];
            for (uint64_t i = 0; i < (end - begin) * s.dvp; i++)
                sum_v[i] += more_v[i];
        }
        unpack_rows(&gk, sum_k, begin, end - begin, s.d, &s.scale, 0);
        unpack_rows(&gv, sum_v, begin, end - begin, s.dv, &one, 0);
    }
}

/* ---- plan ---- */

/* Every slot beside the attributes' heads and widths. */
static lh_status_t grad_shapes_check(const lh_prepared_t *k)
{
    const head_shape_t s = head_shape(&k->how.attention, cpu_has(k, in_slopes), false);
    const cpu_view_t *v = k->view;

    if (s.heads == 0 || s.d == 0 || s.heads % s.kv_heads != 0 || v[in_q].width != s.heads * s.d ||
        v[in_k].width != s.kv_heads * s.d || v[in_v].width != s.kv_heads * s.dv ||
        v[in_gy].width != s.heads * s.dv || v[in_y].width != v[in_gy].width ||
        v[out_gq].width != v[in_q].width || v[out_gk].width != v[in_k].width ||
        v[out_gv].width != v[in_v].width || v[in_q].rows != v[in_gy].rows ||
        v[in_k].rows != v[in_v].rows || v[in_lse].rows != s.heads) {
        return k->host->fail(
            k->host, LH_INVALID,
            "attention_grad: widths %llu, %llu, %llu do not fit %llu heads of %llu "
            "over %llu key heads",
            (unsigned long long)v[in_q].width, (unsigned long long)v[in_k].width,
            (unsigned long long)v[in_v].width, (unsigned long long)s.heads, (unsigned long long)s.d,
            (unsigned long long)s.kv_heads);
    }
    if (v[in_k].rows > INT32_MAX / 2 || v[in_q].rows > INT32_MAX / 2) {
        return k->host->fail(k->host, LH_UNSUPPORTED, "attention_grad: %llu keys are too many",
                             (unsigned long long)v[in_k].rows);
    }
    return LH_OK;
}

/* Scratch is that of all threads, and behind it the partial sums where there are several ways. */
static lh_status_t attention_grad_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                       lh_kernel_plan_t *plan)
{
    const lh_status_t status = grad_shapes_check(k);
    if (status != LH_OK) return status;

    const bool pairs = ATTENTION_PAIRS(k->view[in_q].dtype);
    const head_shape_t s = head_shape(&k->how.attention, cpu_has(k, in_slopes), pairs);
    const uint64_t q_rows = k->view[in_q].rows, k_rows = k->view[in_k].rows;
    /* With few key heads there would be few parts: then the query heads of a group are dealt out,
     * too. */
    const uint64_t wanted = (FEW_HEADS + s.kv_heads - 1) / s.kv_heads;
    const uint64_t ways = wanted < s.group ? wanted : s.group;
    k->number[N_STRETCHES] = q_rows < STRETCHES ? 1 : STRETCHES;
    k->number[N_WAYS] = ways;
    k->number[N_THREAD_BYTES] = document_bytes(&s, q_rows, k_rows);
    k->number[N_PARTIAL] = threads_of(k, desc) * k->number[N_THREAD_BYTES];
    plan->scratch_bytes = k->number[N_PARTIAL];
    cpu_phase_add(k, ATTENTION_PICK(attention_grad_part, pairs),
                  s.kv_heads * ways * k->number[N_STRETCHES], 1);
    if (ways == 1) return LH_OK;

    plan->scratch_bytes += s.kv_heads * ways * k_rows * (s.dp + s.dvp) * sizeof(float);
    k->number[N_REDUCE_ROWS] = cpu_chunk(k_rows, 16, 64);
    cpu_phase_add(k, attention_reduce_part, k_rows, k->number[N_REDUCE_ROWS]);
    return LH_OK;
}

extern const cpu_op_t CPU_ISA(attention_grad_ops)[];
const cpu_op_t CPU_ISA(attention_grad_ops)[] = {
    {"attention_grad", "xxxxif?xfxxx", attention_grad_plan},
    {0},
};
