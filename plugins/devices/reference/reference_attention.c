/* reference_attention.c - rotary positions and attention, one query, one head, one key at a time.
 */
#include <math.h>

#include "reference.h"

/* x positions frequencies -> y. The angle is a product in F32, as Hugging Face computes it. */
void op_rope(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_ROPE_TEXT);
    const lh_rope_t *h = &how->rope;
    const tensor_t x = at[in_x], positions = at[in_positions], frequencies = at[in_frequencies],
                   y = at[out_y];
    const double magnitude = h->magnitude != 0 ? h->magnitude : 1;
    const uint64_t apart = h->interleaved != 0 ? 1 : h->pairs;
    const uint64_t next = h->interleaved != 0 ? 2 : 1;

    for (uint64_t i = 0; i < x.rows; i++) {
        for (uint64_t head = 0; head < h->heads; head++) {
            const uint64_t begin = head * h->head_dim;
            for (uint64_t j = 0; j < h->pairs; j++) {
                const float angle = (float)get(&positions, 0, i) * (float)get(&frequencies, 0, j);
                const double c = cos(angle) * magnitude;
                const double s = (h->inverse != 0 ? -sin(angle) : sin(angle)) * magnitude;
                const uint64_t one = begin + j * next, two = one + apart;
                const double x1 = get(&x, i, one), x2 = get(&x, i, two);
                put(&y, i, one, x1 * c - x2 * s);
                put(&y, i, two, x2 * c + x1 * s);
            }
            for (uint64_t j = begin + 2 * h->pairs; j < begin + h->head_dim; j++) {
                put(&y, i, j, get(&x, i, j));
            }
        }
    }
}

/* Sums over rows are formed for so many components at once. */
enum { COMPONENTS = 64 };

/* One head's query row against one key row; row_q and row_k count rows of the sequence. */
typedef struct pair {
    const lh_attention_t *how;
    const tensor_t *q, *k, *slopes;
    uint64_t q_at, k_at; /* rows of the tensors */
    uint64_t row_q, row_k;
    uint64_t head;
} pair_t;

static uint64_t key_head(const lh_attention_t *how, uint64_t head)
{
    return head * how->kv_heads / how->heads;
}

static uint64_t value_dim(const lh_attention_t *how)
{
    return how->value_dim != 0 ? how->value_dim : how->head_dim;
}

static double scale_of(const lh_attention_t *how)
{
    return how->scale != 0 ? how->scale : 1 / sqrt((double)how->head_dim);
}

static bool row_sees(const lh_attention_t *how, uint64_t row_q, uint64_t row_k)
{
    const uint64_t apart = row_q > row_k ? row_q - row_k : row_k - row_q;

    if (how->full == 0 && row_k > row_q) return false;
    return how->window == 0 || apart < how->window;
}

/* The score; *slope is its derivative with respect to scale q.k. */
static double query_score(const pair_t *p, double *slope)
{
    const lh_attention_t *how = p->how;
    const uint64_t d = how->head_dim, kv = key_head(how, p->head);
    double s = 0;

    for (uint64_t j = 0; j < d; j++) {
        s += get(p->q, p->q_at, p->head * d + j) * get(p->k, p->k_at, kv * d + j);
    }
    s *= scale_of(how);
    *slope = 1;
    if (how->soft_cap != 0) {
        const double t = tanh(s / how->soft_cap);
        s = how->soft_cap * t;
        *slope = 1 - t * t;
    }
    if (given(p->slopes)) {
        s += get(p->slopes, 0, p->head) * ((double)p->row_k - (double)p->row_q);
    }
    return s;
}

/* First row and the row behind the last of the document that holds this row of the sequence; an
 * empty range behind the last document. */
static void document_of(const tensor_t *starts, uint64_t row, uint64_t *begin, uint64_t *end)
{
    *begin = *end = 0;
    for (uint64_t i = 0; i + 1 < starts->width; i++) {
        const uint64_t first = (uint64_t)get_integer(starts, 0, i);
        const uint64_t behind = (uint64_t)get_integer(starts, 0, i + 1);
        if (first <= row && row < behind) {
            *begin = first;
            *end = behind;
        }
    }
}

/* Softmax over the keys k_at in [from, to) that p's query sees; y gets row p->q_at, head p->head. */
static double query_attend(pair_t *p, const tensor_t *v, uint64_t k_origin, uint64_t from,
                           uint64_t to, const tensor_t *y)
{
    const uint64_t dv = value_dim(p->how), kv = key_head(p->how, p->head);
    double largest = -INFINITY, total = 0, slope;

    for (p->k_at = from; p->k_at < to; p->k_at++) {
        p->row_k = k_origin + p->k_at - from;
        if (row_sees(p->how, p->row_q, p->row_k)) largest = fmax(largest, query_score(p, &slope));
    }
    for (p->k_at = from; p->k_at < to; p->k_at++) {
        p->row_k = k_origin + p->k_at - from;
        if (row_sees(p->how, p->row_q, p->row_k)) total += exp(query_score(p, &slope) - largest);
    }
    for (uint64_t begin = 0; begin < dv; begin += COMPONENTS) {
        const uint64_t count = dv - begin < COMPONENTS ? dv - begin : COMPONENTS;
        double sums[COMPONENTS] = {0};
        for (p->k_at = from; p->k_at < to; p->k_at++) {
            p->row_k = k_origin + p->k_at - from;
            if (!row_sees(p->how, p->row_q, p->row_k)) continue;
            const double probability = exp(query_score(p, &slope) - largest) / total;
            for (uint64_t c = 0; c < count; c++) {
                sums[c] += probability * get(v, p->k_at, kv * dv + begin + c);
            }
        }
        for (uint64_t c = 0; c < count; c++)
            put(y, p->q_at, p->head * dv + begin + c, sums[c]);
    }
    return total > 0 ? largest + log(total) : -INFINITY;
}

/* The key rows, of this tensor, of the document [begin, end) of the sequence. */
static void key_range(const lh_attention_t *how, const tensor_t *k, uint64_t *begin, uint64_t *end)
{
    *begin = *begin > how->k_begin ? *begin - how->k_begin : 0;
    *end = *end > how->k_begin ? *end - how->k_begin : 0;
    if (*end > k->rows) *end = k->rows;
    if (*begin > *end) *begin = *end;
}

/* q k v starts slopes? -> y lse? */
void op_attention(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_ATTENTION_TEXT);
    const lh_attention_t *h = &how->attention;
    const tensor_t q = at[in_q], k = at[in_k], v = at[in_v], starts = at[in_starts],
                   slopes = at[in_slopes];
    const tensor_t y = at[out_y], lse = at[out_lse];

    for (uint64_t head = 0; head < h->heads; head++) {
        for (uint64_t i = 0; i < q.rows; i++) {
            pair_t p = {.how = h, .q = &q, .k = &k, .slopes = &slopes, .q_at = i, .head = head};
            uint64_t begin, end;
            p.row_q = h->q_begin + i;
            document_of(&starts, p.row_q, &begin, &end);
            key_range(h, &k, &begin, &end);
            put(&lse, head, i, query_attend(&p, &v, h->k_begin + begin, begin, end, &y));
        }
    }
}

/* What attention_grad has at hand, and gq, gk, gv summed up in doubles: several queries and heads
 * add to one key. */
typedef struct backward {
    const lh_attention_t *how;
    tensor_t gy, q, k, v, starts, slopes, y, lse;
} backward_t;

/* d loss / d (scale q.k) of a pair that sees each other, and the probability. */
static double pair_gradient(const backward_t *b, const pair_t *p, double *probability)
{
    const uint64_t dv = value_dim(b->how), kv = key_head(b->how, p->head);
    double slope, along = 0, level = 0; /* gy.v, gy.y */

    *probability = exp(query_score(p, &slope) - get(&b->lse, p->head, p->q_at));
    for (uint64_t j = 0; j < dv; j++) {
        const double g = get(&b->gy, p->q_at, p->head * dv + j);
        along += g * get(&b->v, p->k_at, kv * dv + j);
        level += g * get(&b->y, p->q_at, p->head * dv + j);
    }
    return *probability * (along - level) * slope;
}

static bool pair_sees(const backward_t *b, const pair_t *p)
{
    uint64_t begin, end;

    if (!row_sees(b->how, p->row_q, p->row_k)) return false;
    document_of(&b->starts, p->row_q, &begin, &end);
    return begin <= p->row_k && p->row_k < end;
}

static pair_t pair_of(const backward_t *b, uint64_t head, uint64_t i, uint64_t j)
{
    return (pair_t){.how = b->how,
                    .q = &b->q,
                    .k = &b->k,
                    .slopes = &b->slopes,
                    .q_at = i,
                    .k_at = j,
                    .row_q = b->how->q_begin + i,
                    .row_k = b->how->k_begin + j,
                    .head = head};
}

/* Components from `begin` on of row i of one head of gq: over all keys, the pair's gradient times
 * the key. */
static void query_gradient(const backward_t *b, uint64_t head, uint64_t i, uint64_t begin,
                           const tensor_t *gq)
{
    const uint64_t d = b->how->head_dim, kv = key_head(b->how, head);
    double sums[COMPONENTS] = {0}, probability;
    uint64_t first, behind; /* rows of the query's document */

    document_of(&b->starts, b->how->q_begin + i, &first, &behind);
    for (uint64_t j = 0; j < b->k.rows; j++) {
        const pair_t p = pair_of(b, head, i, j);
        if (p.row_k < first || p.row_k >= behind) continue;
        if (!row_sees(b->how, p.row_q, p.row_k)) continue;
        const double g = pair_gradient(b, &p, &probability);
        for (uint64_t c = begin; c < d && c - begin < COMPONENTS; c++) {
            sums[c - begin] += g * get(&b->k, j, kv * d + c);
        }
    }
    for (uint64_t c = begin; c < d && c - begin < COMPONENTS; c++) {
        put(gq, i, head * d + c, sums[c - begin] * scale_of(b->how));
    }
}

/* Components from `begin` on of row j of one key head of gk and gv: over all queries of all heads
 * that use it. */
static void key_gradient(const backward_t *b, uint64_t kv, uint64_t j, uint64_t begin,
                         const tensor_t *gk, const tensor_t *gv)
{
    const uint64_t d = b->how->head_dim, dv = value_dim(b->how), last = begin + COMPONENTS;
    double sums_k[COMPONENTS] = {0}, sums_v[COMPONENTS] = {0}, probability;

    for (uint64_t head = 0; head < b->how->heads; head++) {
        if (key_head(b->how, head) != kv) continue;
        for (uint64_t i = 0; i < b->q.rows; i++) {
            const pair_t p = pair_of(b, head, i, j);
            if (!pair_sees(b, &p)) continue;
            const double g = pair_gradient(b, &p, &probability);
            for (uint64_t c = begin; c < d && c < last; c++) {
                sums_k[c - begin] += g * get(&b->q, i, head * d + c);
            }
            for (uint64_t c = begin; c < dv && c < last; c++) {
                sums_v[c - begin] += probability * get(&b->gy, i, head * dv + c);
            }
        }
    }
    for (uint64_t c = begin; c < d && c < last; c++) {
        put(gk, j, kv * d + c, sums_k[c - begin] * scale_of(b->how));
    }
    for (uint64_t c = begin; c < dv && c < last; c++)
        put(gv, j, kv * dv + c, sums_v[c - begin]);
}

/* gy q k v starts slopes? y lse -> gq gk gv */
void op_attention_grad(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_ATTENTION_GRAD_TEXT);
    const backward_t b = {.how = &how->attention,
                          .gy = at[in_gy],
                          .q = at[in_q],
                          .k = at[in_k],
                          .v = at[in_v],
                          .starts = at[in_starts],
                          .slopes = at[in_slopes],
                          .y = at[in_y],
                          .lse = at[in_lse]};
    const tensor_t gq = at[out_gq], gk = at[out_gk], gv = at[out_gv];
    const uint64_t d = b.how->head_dim, dv = value_dim(b.how);

    for (uint64_t begin = 0; begin < (d > dv ? d : dv); begin += COMPONENTS) {
        for (uint64_t head = 0; head < b.how->heads; head++) {
            for (uint64_t i = 0; i < b.q.rows; i++)
                query_gradient(&b, head, i, begin, &gq);
        }
        for (uint64_t kv = 0; kv < b.how->kv_heads; kv++) {
            for (uint64_t j = 0; j < b.k.rows; j++)
                key_gradient(&b, kv, j, begin, &gk, &gv);
        }
    }
}

/* x lengths cache -> cache (in place); rows that would lie past the capacity are dropped */
void op_cache_write(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_CACHE_WRITE_TEXT);
    (void)how;
    const tensor_t x = at[in_x], lengths = at[in_lengths], cache = at[out_cache];
    const uint64_t capacity = cache.arg->shape[1];
    const uint64_t rows = x.rows / lengths.width; /* new ones of each sequence */

    for (uint64_t s = 0; s < lengths.width; s++) {
        for (uint64_t j = 0; j < rows; j++) {
            const uint64_t to = (uint64_t)get_integer(&lengths, 0, s) + j;
            if (to >= capacity) continue;
            for (uint64_t c = 0; c < x.width; c++) {
                put(&cache, s * capacity + to, c, get(&x, s * rows + j, c));
            }
        }
    }
}

/* q k_cache v_cache lengths slopes? -> y */
void op_attention_cached(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_ATTENTION_CACHED_TEXT);
    const lh_attention_t *h = &how->attention;
    const tensor_t q = at[in_q], k = at[in_k_cache], v = at[in_v_cache], lengths = at[in_lengths],
                   slopes = at[in_slopes], y = at[out_y];
    const uint64_t capacity = k.arg->shape[1];
    const uint64_t rows = q.rows / lengths.width; /* new ones of each sequence */

    for (uint64_t head = 0; head < h->heads; head++) {
        for (uint64_t i = 0; i < q.rows; i++) {
            const uint64_t s = i / rows;
            pair_t p = {.how = h, .q = &q, .k = &k, .slopes = &slopes, .q_at = i, .head = head};
            p.row_q = (uint64_t)get_integer(&lengths, 0, s) + i % rows;
            const uint64_t filled = p.row_q < capacity ? p.row_q + 1 : capacity;
            (void)query_attend(&p, &v, 0, s * capacity, s * capacity + filled, &y);
        }
    }
}
