/* attention_grad_tile.h - the gradient of attention for a tile of queries against a tile of keys,
 * and the arrays of the document that they lie in.
 *
 * The two tiles meet in two products (scores, and gy v'), one pass that makes p and g of them in
 * place, and three products that add to gv, gk and gq. Each operand is packed once in the form in
 * which its product reads it: that costs memory for a document, and no product strides. */
#ifndef LH_CPU_ATTENTION_GRAD_TILE_H
#define LH_CPU_ATTENTION_GRAD_TILE_H

#include "attention_tile.h"

/* What a tile of queries needs beside its packed rows. */
typedef struct grad_tile {
    lanes_t lanes;
    float lse[TILE], along[TILE]; /* along: gy.y */
} grad_tile_t;

/* One document, one query head at a time; `first` and counts are rows of the tensors. */
typedef struct document {
    uint64_t q_first, q_count, k_first, k_count;
    grad_tile_t *tiles;
    float *q_deep, *q_turned;   /* [q_count units][dp], [tile][du][TILE] */
    float *gy_deep, *gy_turned; /* [q_count units][dvp], [tile][dvu][TILE] */
    float *gq;                  /* [q_count][dp] */
    float *gk, *gv;             /* [k_count][dp], [k_count][dvp] */
    float *keys, *values;       /* one tile of them: natural, [TILE][du], [TILE][dvu] */
    float *keys_deep;           /* [TILE units][dp] */
    float *rows;                /* a tile of queries, natural */
    float *scores, *slopes;     /* [TILE keys][TILE]: q.k and gy.v, then p and d loss / d score */
    float *p, *g; /* these, units along the queries: of floats the same, else [TILE][TILE / 2] */
} document_t;

/* ---- scratch ---- */

/* Cuts a thread's scratch into the arrays, each on a cache line of its own. Where units are floats
 * the two forms of a tile are one array. */
static inline void document_take(document_t *d, char *at, const head_shape_t *s, uint64_t q_rows,
                                 uint64_t k_rows, const bool pairs)
{
    const uint64_t q = rounded_up(q_rows, TILE), keys = rounded_up(k_rows, TILE);

    d->tiles = (grad_tile_t *)(void *)at;
    at += rounded_up(q / TILE * sizeof(grad_tile_t), 64);
    d->scores = scratch_take(&at, TILE * TILE);
    d->slopes = scratch_take(&at, TILE * TILE);
    d->keys = scratch_take(&at, TILE * s->du);
    d->values = scratch_take(&at, TILE * s->dvu);
    d->p = pairs ? scratch_take(&at, TILE * TILE / 2) : d->scores;
    d->g = pairs ? scratch_take(&at, TILE * TILE / 2) : d->slopes;
    d->keys_deep = pairs ? scratch_take(&at, TILE / 2 * s->dp) : d->keys;
    d->rows = pairs ? scratch_take(&at, TILE * (s->du > s->dvu ? s->du : s->dvu)) : NULL;
    d->q_deep = scratch_take(&at, units_of(q, pairs) * s->dp);
    d->q_turned = scratch_take(&at, q * s->du);
    d->gy_deep = scratch_take(&at, units_of(q, pairs) * s->dvp);
    d->gy_turned = scratch_take(&at, q * s->dvu);
    d->gq = scratch_take(&at, q * s->dp);
    d->gk = scratch_take(&at, keys * s->dp);
    d->gv = scratch_take(&at, keys * s->dvp);
}

/* What document_take() takes, at most. */
static inline uint64_t document_bytes(const head_shape_t *s, uint64_t q_rows, uint64_t k_rows)
{
    const uint64_t q = rounded_up(q_rows, TILE), k = rounded_up(k_rows, TILE);
    const uint64_t floats = q * (2 * s->dp + s->dvp + s->du + s->dvu) + k * (s->dp + s->dvp) +
                            TILE * (3 * TILE + 2 * s->du + 2 * s->dvu + s->dp);
    return rounded_up(floats * sizeof(float) + q / TILE * sizeof(grad_tile_t) + 16 * 64, 4096);
}

/* ---- one tile against one tile ---- */

/* What a tile's scores are turned with. */
typedef struct turn {
    lane_vector_t lanes;
    vf lse, along; /* lse: log2 */
} turn_t;

/* One row of q.k and gy.v: p and p (gy.v - gy.y) times the slope of the soft cap. */
CPU_INLINE void row_slopes(const head_shape_t *s, const turn_t *t, vf score, vf other, int32_t key,
                           vf *p_out, vf *g_out, const bool special, const bool masked,
                           const bool pairs)
{
    vf x = score, bend = vf_set(1.0f);

    if (special) x = x * s->scale;
    /* The soft cap's slope: d tanh(u) = 1 - tanh(u)^2. */
    if (special && s->cap != 0) {
        const vf turn = vf_tanh(x * s->cap_inverse);
        x = turn * s->cap;
        bend = 1.0f - turn * turn;
    }
    if (special) x = vf_fma(t->lanes.slope, __builtin_convertvector(key - t->lanes.row, vf), x);
    vf p = tile_exp2(vf_fma(x, vf_set(s->exponent), -t->lse), pairs);
    vf g = p * (other - t->along);
    if (special) g = g * bend;
    if (masked) {
        const vi see = lanes_see(&t->lanes, key);
        p = vf_select(see, p, vf_zero());
        g = vf_select(see, g, vf_zero());
    }
    *p_out = p;
    *g_out = g;
}

/* Keys [span) of one vector of queries, the v-th. */
CPU_INLINE void vector_slopes(const head_shape_t *s, const turn_t *t, const document_t *d,
                              uint32_t v, int32_t from, span_t span, const bool special,
                              const bool masked, const bool pairs)
{
    float *scores = d->scores + v * LANES, *slopes = d->slopes + v * LANES;

    for (uint32_t j = span.from; j < span.to; j += 2) {
        vf p[2], g[2];
        for (uint32_t i = 0; i < 2; i++) {
            row_slopes(s, t, vf_load(scores + (j + i) * TILE), vf_load(slopes + (j + i) * TILE),
                       from + (int32_t)(j + i), &p[i], &g[i], special, masked, pairs);
        }
#if CPU_PAIRS
        if (pairs) {
            const vpair_t all = pair_round(p[0], p[1]), other = pair_round(g[0], g[1]);
            float *p_at = d->p + j * TILE / 2 + v * LANES / 2;
            float *g_at = d->g + j * TILE / 2 + v * LANES / 2;
            memcpy(p_at, &all.low, sizeof(vh));
            memcpy(p_at + TILE / 2, &all.high, sizeof(vh));
            memcpy(g_at, &other.low, sizeof(vh));
            memcpy(g_at + TILE / 2, &other.high, sizeof(vh));
            vf_store(scores + j / 2 * TILE, other.mixed);
        }
#endif
        for (uint32_t i = 0; i < 2 && !pairs; i++) {
            vf_store(scores + (j + i) * TILE, p[i]);
            vf_store(slopes + (j + i) * TILE, g[i]);
        }
    }
}

/* p and g of keys [from, to) become 0 for the v-th vector of queries. */
CPU_INLINE void vector_clear(const document_t *d, uint32_t v, uint32_t from, uint32_t to,
                             const bool pairs)
{
    const uint64_t row = pairs ? TILE / 2 : TILE, units = pairs ? LANES / 2 : LANES;

    for (uint32_t j = from; j < to; j++) {
        memset(d->p + j * row + v * units, 0, units * sizeof(float));
        memset(d->g + j * row + v * units, 0, units * sizeof(float));
    }
}

/* p and g of a whole tile; parts that no lane sees become 0, as the products read whole spans. */
CPU_INLINE void tile_slopes(const head_shape_t *s, const grad_tile_t *t, const document_t *d,
                            const sight_t *sight, int32_t from, const bool special,
                            const bool pairs)
{
    for (uint32_t v = 0; v < t->lanes.vectors; v++) {
        const turn_t turn = {.lanes = lane_vector(&t->lanes, v),
                             .lse = vf_load(t->lse + v * LANES) * LOG2_E,
                             .along = vf_load(t->along + v * LANES)};
        const span_t all = sight->key[v], whole = sight->whole[v];
        const span_t before = {all.from, whole.from}, behind = {whole.to, all.to};
        vector_clear(d, v, 0, all.from, pairs);
        vector_clear(d, v, all.to, sight->keys, pairs);
        if (special) {
            vector_slopes(s, &turn, d, v, from, all, true, true, pairs);
        } else {
            vector_slopes(s, &turn, d, v, from, before, false, true, pairs);
            vector_slopes(s, &turn, d, v, from, whole, false, false, pairs);
            vector_slopes(s, &turn, d, v, from, behind, false, true, pairs);
        }
    }
}

/* Query tile i of the document against the packed keys [from, to), which are rows `at` on of gk. */
CPU_INLINE void tile_grad(const head_shape_t *s, const document_t *d, uint64_t i, int32_t from,
                          int32_t to, uint64_t at, const bool pairs)
{
    const grad_tile_t *t = &d->tiles[i];
    const uint64_t row = i * TILE, unit = units_of(row, pairs);
    sight_t sight;

    sight_of(&sight, &t->lanes, from, to);
    product_scores(d->scores, d->keys, d->q_turned + row * s->du, (uint32_t)units_of(s->d, pairs),
                   &sight, pairs);
    /* slopes holds gy v' first, and g after tile_slopes. */
    product_scores(d->slopes, d->values, d->gy_turned + row * s->dvu,
                   (uint32_t)units_of(s->dv, pairs), &sight, pairs);
    if (s->special) {
        tile_slopes(s, t, d, &sight, from, true, pairs);
    } else {
        tile_slopes(s, t, d, &sight, from, false, pairs);
    }
    product_keys(d->gv + at * s->dvp, d->p, d->gy_deep + unit * s->dvp, s->dvp, &sight, pairs);
    product_keys(d->gk + at * s->dp, d->g, d->q_deep + unit * s->dp, s->dp, &sight, pairs);
    product_queries(d->gq + row * s->dp, pairs ? d->scores : d->slopes, d->keys_deep, s->dp, NULL,
                    &t->lanes, &sight, pairs);
}

#endif
