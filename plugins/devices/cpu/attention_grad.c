/* attention_grad.c - the gradient of attention: probabilities are computed again, tile by tile,
 * from the saved logarithm of their sum.
 *
 * A part is a key head (or some of its query heads, where there are few key heads) in the documents
 * that begin in one stretch of rows. It walks a document key tile by key tile, each against all
 * queries that see it, and keeps the sums for gq, gk and gv of one document in F32: every sum has
 * one owner and one order, whatever the number of threads. Where query heads of a key head are
 * spread over parts, each leaves its own gk and gv in scratch, and a second phase adds them in
 * order. */
#include "attention_tile.h"

enum { STRETCHES = 16, FEW_HEADS = 4 };

/* slots */
enum { GY, Q, K, V, STARTS, SLOPES, Y, LSE, GQ, GK, GV };

/* k->number[] */
enum {
    N_STRETCHES = 0,
    N_WAYS = 1, /* parts that the query heads of a key head are spread over */
    N_THREAD_BYTES = 2,
    N_PARTIAL = 3, /* bytes into scratch: [kv_heads ways][keys][dp + dvp] */
    N_REDUCE_ROWS = 4,
};

typedef struct grad_tile { /* of queries */
    lanes_t lanes;
    float lse[TILE], along[TILE]; /* along: gy.y */
} grad_tile_t;

/* One document, one query head at a time; `first` and counts are rows of the tensors. */
typedef struct document {
    uint64_t q_first, q_count, k_first, k_count;
    grad_tile_t *tiles;
    float *q, *q_turned;    /* [q_count][dp], [tile][dp][TILE]: scaled */
    float *gy, *gy_turned;  /* [q_count][dvp], [tile][dvp][TILE] */
    float *gq;              /* [q_count][dp]  */
    float *gk, *gv;         /* [k_count][dp], [k_count][dvp] */
    float *keys, *values;   /* one tile of them */
    float *scores, *slopes; /* [TILE keys][TILE]: p, then d loss / d score */
    float *y;               /* [TILE][dvp] */
} document_t;

/* ---- scratch ---- */

static uint64_t thread_bytes(const head_shape_t *s, uint64_t q_rows, uint64_t k_rows)
{
    const uint64_t q = rounded_up(q_rows, TILE), k = rounded_up(k_rows, TILE);
    const uint64_t floats = q * (3 * s->dp + 2 * s->dvp) + k * (s->dp + s->dvp) +
                            TILE * (s->dp + 2 * s->dvp + 2 * TILE);
    return rounded_up(floats * sizeof(float) + q / TILE * sizeof(grad_tile_t) + 16 * 64, 4096);
}

static document_t document_scratch(const lh_prepared_t *k, const head_shape_t *s, uint64_t thread)
{
    const uint64_t q = rounded_up(k->view[Q].rows, TILE), keys = rounded_up(k->view[K].rows, TILE);
    char *at = (char *)k->scratch + thread * k->number[N_THREAD_BYTES];
    document_t d = {0};

    d.scores = scratch_take(&at, TILE * TILE);
    d.slopes = scratch_take(&at, TILE * TILE);
    d.keys = scratch_take(&at, TILE * s->dp);
    d.values = scratch_take(&at, TILE * s->dvp);
    d.y = scratch_take(&at, TILE * s->dvp);
    d.tiles = (grad_tile_t *)(void *)at;
    at += rounded_up(q / TILE * sizeof(grad_tile_t), 64);
    d.q = scratch_take(&at, q * s->dp);
    d.q_turned = scratch_take(&at, q * s->dp);
    d.gy = scratch_take(&at, q * s->dvp);
    d.gy_turned = scratch_take(&at, q * s->dvp);
    d.gq = scratch_take(&at, q * s->dp);
    d.gk = scratch_take(&at, keys * s->dp);
    d.gv = scratch_take(&at, keys * s->dvp);
    return d;
}

/* ---- one tile against one tile ---- */

/* scores: q.k, becomes p; slopes: gy.v, becomes p (gy.v - gy.y) times the slope of the soft cap. */
CPU_INLINE void tile_slopes(const head_shape_t *s, const grad_tile_t *t, float *scores,
                            float *slopes, int32_t from, int32_t to, const bool special,
                            const bool masked)
{
    for (uint32_t v = 0; v < t->lanes.vectors; v++) {
        const vi low = vi_load(t->lanes.low + v * LANES), high = vi_load(t->lanes.high + v * LANES);
        const vi row = vi_load(t->lanes.row + v * LANES);
        const vf slope = vf_load(t->lanes.slope + v * LANES);
        const vf lse = vf_load(t->lse + v * LANES), along = vf_load(t->along + v * LANES);
        for (int32_t key = from; key < to; key++) {
            float *score = scores + (key - from) * TILE + (int32_t)v * LANES;
            float *other = slopes + (key - from) * TILE + (int32_t)v * LANES;
            vf x = vf_load(score), bend = vf_set(1.0f);
            if (special && s->cap != 0) {
                const vf turn = vf_tanh(x * s->cap_inverse);
                x = turn * s->cap;
                bend = 1.0f - turn * turn;
            }
            if (special) x = vf_fma(slope, __builtin_convertvector(key - row, vf), x);
            vf p = tile_exp(x - lse);
            vf g = p * (vf_load(other) - along);
            if (special) g = g * bend;
            if (masked) {
                const vi see = lanes_see(low, high, key);
                p = vf_select(see, p, vf_zero());
                g = vf_select(see, g, vf_zero());
            }
            vf_store(score, p);
            vf_store(other, g);
        }
    }
}

/* Query tile i of the document against the packed keys [from, to), which are rows `at` on of gk. */
static void tile_grad(const head_shape_t *s, const document_t *d, uint64_t i, int32_t from,
                      int32_t to, uint64_t at, bool special)
{
    const grad_tile_t *t = &d->tiles[i];
    const uint64_t keys = (uint64_t)(to - from), row = i * TILE;
    const uint64_t lanes = (uint64_t)t->lanes.vectors * LANES;
    const product_t score = {.c = d->scores,
                             .c_row = TILE,
                             .a = d->keys,
                             .a_row = s->dp,
                             .a_step = 1,
                             .b = d->q_turned + row * s->dp,
                             .b_row = TILE,
                             .m = keys,
                             .n = lanes,
                             .depth = s->d};
    const product_t other = {.c = d->slopes,
                             .c_row = TILE,
                             .a = d->values,
                             .a_row = s->dvp,
                             .a_step = 1,
                             .b = d->gy_turned + row * s->dvp,
                             .b_row = TILE,
                             .m = keys,
                             .n = lanes,
                             .depth = s->dv};
    const product_t gv = {.c = d->gv + at * s->dvp,
                          .c_row = s->dvp,
                          .a = d->scores,
                          .a_row = TILE,
                          .a_step = 1,
                          .b = d->gy + row * s->dvp,
                          .b_row = s->dvp,
                          .m = keys,
                          .n = s->dvp,
                          .depth = t->lanes.count};
    const product_t gk = {.c = d->gk + at * s->dp,
                          .c_row = s->dp,
                          .a = d->slopes,
                          .a_row = TILE,
                          .a_step = 1,
                          .b = d->q + row * s->dp,
                          .b_row = s->dp,
                          .m = keys,
                          .n = s->dp,
                          .depth = t->lanes.count};
    const product_t gq = {.c = d->gq + row * s->dp,
                          .c_row = s->dp,
                          .a = d->slopes,
                          .a_row = 1,
                          .a_step = TILE,
                          .b = d->keys,
                          .b_row = s->dp,
                          .m = t->lanes.count,
                          .n = s->dp,
                          .depth = keys};

    product_run(&score, PRODUCT_SET);
    product_run(&other, PRODUCT_SET);
    if (special) {
        tile_slopes(s, t, d->scores, d->slopes, from, to, true, true);
    } else if (!lanes_whole(&t->lanes, from, to)) {
        tile_slopes(s, t, d->scores, d->slopes, from, to, false, true);
    } else {
        tile_slopes(s, t, d->scores, d->slopes, from, to, false, false);
    }
    product_run(&gv, PRODUCT_ADD);
    product_run(&gk, PRODUCT_ADD);
    product_run(&gq, PRODUCT_ADD);
}

/* ---- one head in one document ---- */

static void grad_tile_lanes(const lh_prepared_t *k, const document_t *d, grad_tile_t *t,
                            uint64_t row, uint32_t count, uint64_t head)
{
    const float slope = cpu_has(k, SLOPES) ? ((const float *)k->at[SLOPES])[head] : 0;
    const float *lse = cpu_row(k, LSE, head);
    const int64_t begin = (int64_t)(d->k_first + k->how.attention.k_begin);

    for (uint32_t i = 0; i < count; i++) {
        const uint64_t at = d->q_first + row + i;
        lane_set(&t->lanes, i, &k->how.attention, (int64_t)(k->how.attention.q_begin + at), begin,
                 begin + (int64_t)d->k_count, k->view[K].rows);
        t->lanes.slope[i] = slope;
        t->lse[i] = lse[at];
    }
    lanes_close(&t->lanes, count);
    for (uint32_t i = count; i < TILE; i++)
        t->lse[i] = t->along[i] = 0;
}

/* gy.y of each query, from rows that are packed. */
static void grad_tile_along(const head_shape_t *s, grad_tile_t *t, const float *gy, const float *y,
                            uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        vf sum = vf_zero();
        for (uint64_t c = 0; c < s->dvp; c += LANES) {
            sum = vf_fma(vf_load(gy + i * s->dvp + c), vf_load(y + i * s->dvp + c), sum);
        }
        t->along[i] = vf_sum(sum);
    }
}

static void head_load(const lh_prepared_t *k, const head_shape_t *s, document_t *d, uint64_t head)
{
    const rows_of_t q = rows_of(k, Q, head * s->d), gy = rows_of(k, GY, head * s->dv);
    const rows_of_t y = rows_of(k, Y, head * s->dv);

    for (uint64_t row = 0; row < d->q_count; row += TILE) {
        const uint64_t count = d->q_count - row < TILE ? d->q_count - row : TILE;
        grad_tile_t *t = &d->tiles[row / TILE];
        pack_rows(d->q + row * s->dp, &q, d->q_first + row, count, s->d, s->scale);
        pack_rows(d->gy + row * s->dvp, &gy, d->q_first + row, count, s->dv, 1.0f);
        pack_rows(d->y, &y, d->q_first + row, count, s->dv, 1.0f);
        pack_turned(d->q_turned + row * s->dp, d->q + row * s->dp, count, s->d);
        pack_turned(d->gy_turned + row * s->dvp, d->gy + row * s->dvp, count, s->dv);
        grad_tile_lanes(k, d, t, row, (uint32_t)count, head);
        grad_tile_along(s, t, d->gy + row * s->dvp, d->y, (uint32_t)count);
    }
    memset(d->gq, 0, d->q_count * s->dp * sizeof(float));
}

static void head_grad(const lh_prepared_t *k, const head_shape_t *s, document_t *d, uint64_t head)
{
    const uint64_t kv = head / s->group, tiles = (d->q_count + TILE - 1) / TILE;
    const rows_of_t keys = rows_of(k, K, kv * s->d), values = rows_of(k, V, kv * s->dv);
    const rows_of_t gq = rows_of(k, GQ, head * s->d);
    const bool special = s->cap != 0 || cpu_has(k, SLOPES);

    head_load(k, s, d, head);
    for (uint64_t at = 0; at < d->k_count; at += TILE) {
        const uint64_t n = d->k_count - at < TILE ? d->k_count - at : TILE;
        const int32_t from = (int32_t)(d->k_first + at), to = from + (int32_t)n;
        pack_rows(d->keys, &keys, d->k_first + at, n, s->d, 1.0f);
        pack_rows(d->values, &values, d->k_first + at, n, s->dv, 1.0f);
        for (uint64_t i = 0; i < tiles; i++) {
            if (lanes_meet(&d->tiles[i].lanes, from, to)) tile_grad(s, d, i, from, to, at, special);
        }
    }
    unpack_rows(&gq, d->gq, d->q_first, d->q_count, s->d, s->scale);
}

/* ---- a part ---- */

/* Some query heads of one key head. */
typedef struct share {
    uint64_t kv, way;
    uint64_t head_begin, head_end;
} share_t;

static float *partial_at(const lh_prepared_t *k, const head_shape_t *s, uint64_t kv, uint64_t way)
{
    float *base = (float *)(void *)((char *)k->scratch + k->number[N_PARTIAL]);
    return base + (kv * k->number[N_WAYS] + way) * k->view[K].rows * (s->dp + s->dvp);
}

/* Rows of gk and gv of this share: into the outputs, or where the second phase finds them. from_k
 * NULL: zeros. */
static void keys_store(const lh_prepared_t *k, const head_shape_t *s, const share_t *share,
                       const float *from_k, const float *from_v, uint64_t first, uint64_t count)
{
    if (k->number[N_WAYS] > 1) {
        const uint64_t rows = k->view[K].rows;
        float *gk = partial_at(k, s, share->kv, share->way), *gv = gk + rows * s->dp;
        memcpy(gk + first * s->dp, from_k, count * s->dp * sizeof(float));
        memcpy(gv + first * s->dvp, from_v, count * s->dvp * sizeof(float));
        return;
    }
    const rows_of_t gk = rows_of(k, GK, share->kv * s->d), gv = rows_of(k, GV, share->kv * s->dv);
    unpack_rows(&gk, from_k, first, count, s->d, 1.0f);
    unpack_rows(&gv, from_v, first, count, s->dv, 1.0f);
}

static void document_grad(const lh_prepared_t *k, const head_shape_t *s, const share_t *share,
                          document_t *d)
{
    memset(d->gk, 0, d->k_count * s->dp * sizeof(float));
    memset(d->gv, 0, d->k_count * s->dvp * sizeof(float));
    for (uint64_t head = share->head_begin; head < share->head_end; head++) {
        head_grad(k, s, d, head);
    }
    keys_store(k, s, share, d->gk, d->gv, d->k_first, d->k_count);
}

/* Rows of no document: gradients are 0. */
static void outside_grad(const lh_prepared_t *k, const head_shape_t *s, const share_t *share,
                         document_t *d, uint64_t q_begin, uint64_t q_end, uint64_t k_begin,
                         uint64_t k_end)
{
    memset(d->keys, 0, TILE * s->dp * sizeof(float));
    memset(d->values, 0, TILE * s->dvp * sizeof(float));
    for (uint64_t row = q_begin; row < q_end; row++) {
        for (uint64_t head = share->head_begin; head < share->head_end; head++) {
            const rows_of_t gq = rows_of(k, GQ, head * s->d);
            unpack_rows(&gq, d->keys, row, 1, s->d, 1.0f);
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

static void stretch_grad(const lh_prepared_t *k, const head_shape_t *s, const share_t *share,
                         uint64_t stretch, document_t *d)
{
    const lh_attention_t *how = &k->how.attention;
    const int32_t *starts = k->at[STARTS];
    const uint64_t marks = k->view[STARTS].width, stretches = k->number[N_STRETCHES];
    const uint64_t q_rows = k->view[Q].rows, k_rows = k->view[K].rows;
    uint64_t low, q_outside, k_outside, none;

    for (uint64_t i = 0; i + 1 < marks; i++) {
        rows_inside(starts[i], starts[i + 1], how->q_begin, q_rows, &d->q_first, &d->q_count);
        rows_inside(starts[i], starts[i + 1], how->k_begin, k_rows, &d->k_first, &d->k_count);
        if (d->q_count + d->k_count == 0) continue;
        const uint64_t at = d->q_count > 0 ? d->q_first * stretches / q_rows
                                           : d->k_first * stretches / k_rows;
        if (at == stretch) document_grad(k, s, share, d);
    }
    if (stretch != 0) return;
    rows_inside(INT32_MIN, starts[0], how->q_begin, q_rows, &none, &q_outside);
    rows_inside(INT32_MIN, starts[0], how->k_begin, k_rows, &none, &k_outside);
    outside_grad(k, s, share, d, 0, q_outside, 0, k_outside);
    rows_inside(starts[marks - 1], INT32_MAX, how->q_begin, q_rows, &low, &q_outside);
    rows_inside(starts[marks - 1], INT32_MAX, how->k_begin, k_rows, &none, &k_outside);
    outside_grad(k, s, share, d, low, low + q_outside, none, none + k_outside);
}

static void attention_grad_part(const lh_prepared_t *k, uint32_t part)
{
    const head_shape_t s = head_shape(&k->how.attention);
    const uint64_t stretches = k->number[N_STRETCHES], ways = k->number[N_WAYS];
    const uint64_t unit = part / stretches;
    const uint32_t parts = (uint32_t)(s.kv_heads * ways * stretches);
    share_t share = {.kv = unit / ways, .way = unit % ways};
    document_t d = document_scratch(k, &s, thread_of(k, part, parts));

    share.head_begin = share.kv * s.group + share.way * s.group / ways;
    share.head_end = share.kv * s.group + (share.way + 1) * s.group / ways;
    stretch_grad(k, &s, &share, part % stretches, &d);
}

/* gk and gv of some key rows: the shares added up, in order. */
static void attention_reduce_part(const lh_prepared_t *k, uint32_t part)
{
    const head_shape_t s = head_shape(&k->how.attention);
    const uint64_t rows = k->view[K].rows, ways = k->number[N_WAYS];
    uint64_t begin, end;

    cpu_range(part, k->number[N_REDUCE_ROWS], rows, &begin, &end);
    for (uint64_t kv = 0; kv < s.kv_heads; kv++) {
        const rows_of_t gk = rows_of(k, GK, kv * s.d), gv = rows_of(k, GV, kv * s.dv);
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
        unpack_rows(&gk, sum_k, begin, end - begin, s.d, 1.0f);
        unpack_rows(&gv, sum_v, begin, end - begin, s.dv, 1.0f);
    }
}

/* ---- plan ---- */

static lh_status_t grad_shapes_check(const lh_prepared_t *k)
{
    const head_shape_t s = head_shape(&k->how.attention);
    const cpu_view_t *v = k->view;

    if (s.heads == 0 || s.d == 0 || s.heads % s.kv_heads != 0 || v[Q].width != s.heads * s.d ||
        v[K].width != s.kv_heads * s.d || v[V].width != s.kv_heads * s.dv ||
        v[GY].width != s.heads * s.dv || v[Y].width != v[GY].width || v[GQ].width != v[Q].width ||
        v[GK].width != v[K].width || v[GV].width != v[V].width || v[Q].rows != v[GY].rows ||
        v[K].rows != v[V].rows || v[LSE].rows != s.heads) {
        return k->host->fail(
            k->host, LH_INVALID,
            "attention_grad: widths %llu, %llu, %llu do not fit %llu heads of %llu "
            "over %llu key heads",
            (unsigned long long)v[Q].width, (unsigned long long)v[K].width,
            (unsigned long long)v[V].width, (unsigned long long)s.heads, (unsigned long long)s.d,
            (unsigned long long)s.kv_heads);
    }
    if (v[K].rows > INT32_MAX / 2 || v[Q].rows > INT32_MAX / 2) {
        return k->host->fail(k->host, LH_UNSUPPORTED, "attention_grad: %llu keys are too many",
                             (unsigned long long)v[K].rows);
    }
    return LH_OK;
}

static lh_status_t attention_grad_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                       lh_kernel_plan_t *plan)
{
    const lh_status_t status = grad_shapes_check(k);
    if (status != LH_OK) return status;

    const head_shape_t s = head_shape(&k->how.attention);
    const uint64_t q_rows = k->view[Q].rows, k_rows = k->view[K].rows;
    const uint64_t wanted = (FEW_HEADS + s.kv_heads - 1) / s.kv_heads;
    const uint64_t ways = wanted < s.group ? wanted : s.group;
    k->number[N_STRETCHES] = q_rows < STRETCHES ? 1 : STRETCHES;
    k->number[N_WAYS] = ways;
    k->number[N_THREAD_BYTES] = thread_bytes(&s, q_rows, k_rows);
    k->number[N_PARTIAL] = threads_of(k, desc) * k->number[N_THREAD_BYTES];
    plan->scratch_bytes = k->number[N_PARTIAL];
    cpu_phase_add(k, attention_grad_part, s.kv_heads * ways * k->number[N_STRETCHES], 1);
    if (ways == 1) return LH_OK;

    plan->scratch_bytes += s.kv_heads * ways * k_rows * (s.dp + s.dvp) * sizeof(float);
    k->number[N_REDUCE_ROWS] = cpu_chunk(k_rows, 16, 64);
    cpu_phase_add(k, attention_reduce_part, k_rows, k->number[N_REDUCE_ROWS]);
    return LH_OK;
}

extern const cpu_op_t CPU_ISA(attention_grad_ops)[];
const cpu_op_t CPU_ISA(attention_grad_ops)[] = {
    {"attention_grad", attention_grad_plan},
    {0},
};
