/* attention_tile.h - what forward and backward attention share: the matrix product of small tiles,
 * the packing of rows, and which keys a query sees.
 *
 * Scores are held as [key][query]: lanes are queries, so that maxima, sums and masks go lane by
 * lane, and the columns of a score tile are the rows of the products behind it, read one number at
 * a time. The keys that a query sees are always one range: its document, cut by causality and
 * window. */
#ifndef LH_CPU_ATTENTION_TILE_H
#define LH_CPU_ATTENTION_TILE_H

#include <math.h>

#include "vector.h"

/* Queries, and keys, of a tile; the registers of one product: MICRO_ROWS x MICRO_VECTORS sums. */
enum { TILE = 64, TILE_VECTORS = TILE / LANES, MICRO_ROWS = 4 };
enum { MICRO_VECTORS = LANES == 16 ? 4 : 2 };

/* ---- numbers ---- */

/* The greater; b where either is not a number. One instruction where vf_max() takes several. */
CPU_INLINE vf tile_max(vf a, vf b)
{
#if defined(__AVX512F__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__x86_64__)
    return (vf)_mm_max_ps((__m128)a, (__m128)b);
#else
    return vf_max(a, b);
#endif
}

/* exp(x) for x not above 80, to 2 ulp; below -86 it stays at exp(-86), which is no more than
 * nothing beside the 1 that every softmax sums. Not-a-number stays. */
CPU_INLINE vf tile_exp(vf x)
{
    const vf magic = vf_set(12582912.0f); /* 1.5 2^23: adding it rounds to a whole number */
    const vf bounded = tile_max(vf_set(-86.0f), x);
    const vf shifted = vf_fma(bounded, vf_set(1.44269504088896341f), magic);
    const vf whole = shifted - magic;
    vf r = vf_fma(whole, vf_set(-0.693145751953125f), bounded);
    r = vf_fma(whole, vf_set(-1.42860682030941723e-6f), r);
    vf p = vf_fma(vf_set(1.3888889e-3f), r, vf_set(8.3333333e-3f));
    p = vf_fma(p, r, vf_set(4.1666667e-2f));
    p = vf_fma(p, r, vf_set(1.6666667e-1f));
    p = vf_fma(p, r, vf_set(0.5f));
    p = vf_fma(p, r, vf_set(1.0f));
    p = vf_fma(p, r, vf_set(1.0f));
    return (vf)((vi)p + ((vi)shifted << 23));
}

/* ---- products ---- */

/* c [m, n] = a b, added to c, or to c with its rows scaled. Strides in elements; rows of b and c
 * hold whole vectors, as n does. */
typedef struct product {
    float *c;
    uint64_t c_row;
    const float *a;
    uint64_t a_row, a_step; /* from row to row, and along the sum */
    const float *b;
    uint64_t b_row;
    uint64_t m, n, depth;
    const float *scale; /* of PRODUCT_SCALE: one a row of c */
} product_t;

enum { PRODUCT_SET, PRODUCT_ADD, PRODUCT_SCALE };

CPU_INLINE void product_micro(const product_t *p, uint64_t row, uint64_t column, const int rows,
                              const int vectors, const int mode)
{
    const float *a = p->a + row * p->a_row;
    const float *b = p->b + column;
    vf sum[MICRO_ROWS][MICRO_VECTORS];

    for (int r = 0; r < rows; r++) {
        for (int v = 0; v < vectors; v++)
            sum[r][v] = vf_zero();
    }
    for (uint64_t k = 0; k < p->depth; k++) {
        vf line[MICRO_VECTORS];
        for (int v = 0; v < vectors; v++)
            line[v] = vf_load(b + v * LANES);
        for (int r = 0; r < rows; r++) {
            const vf x = vf_set(a[(uint64_t)r * p->a_row]);
            for (int v = 0; v < vectors; v++)
                sum[r][v] = vf_fma(x, line[v], sum[r][v]);
        }
        a += p->a_step;
        b += p->b_row;
    }
    for (int r = 0; r < rows; r++) {
        float *c = p->c + (row + (uint64_t)r) * p->c_row + column;
        for (int v = 0; v < vectors; v++) {
            vf value = sum[r][v];
            if (mode == PRODUCT_ADD) value = vf_load(c + v * LANES) + value;
            if (mode == PRODUCT_SCALE) {
                value = vf_fma(vf_load(c + v * LANES), vf_set(p->scale[row + (uint64_t)r]), value);
            }
            vf_store(c + v * LANES, value);
        }
    }
}

CPU_INLINE void product_columns(const product_t *p, uint64_t column, const int vectors,
                                const int mode)
{
    uint64_t row = 0;
    for (; row + MICRO_ROWS <= p->m; row += MICRO_ROWS) {
        product_micro(p, row, column, MICRO_ROWS, vectors, mode);
    }
    for (; row < p->m; row++)
        product_micro(p, row, column, 1, vectors, mode);
}

CPU_INLINE void product_run(const product_t *p, const int mode)
{
    uint64_t column = 0;
    for (; column + MICRO_VECTORS * LANES <= p->n; column += MICRO_VECTORS * LANES) {
        product_columns(p, column, MICRO_VECTORS, mode);
    }
    for (; column < p->n; column += LANES)
        product_columns(p, column, 1, mode);
}

/* ---- packing ---- */

/* Rows of F32 and BF16 arguments are widened to F32 with their width filled up to whole vectors. */
static inline uint64_t padded(uint64_t width)
{
    return (width + LANES - 1) / LANES * LANES;
}

static inline uint64_t rounded_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* Numbers that lie in rows of an argument: column `column` of row 0 on. */
typedef struct rows_of {
    const char *base;
    lh_dtype_t dtype;
    uint64_t pitch, column; /* elements */
} rows_of_t;

static inline rows_of_t rows_of(const lh_prepared_t *k, uint32_t slot, uint64_t column)
{
    return (rows_of_t){k->at[slot], k->view[slot].dtype, k->view[slot].pitch, column};
}

/* to [count, padded(width)] = factor * rows first.. of from. */
CPU_INLINE void pack_rows(float *to, const rows_of_t *from, uint64_t first, uint64_t count,
                          uint64_t width, float factor)
{
    const uint64_t pitch = padded(width);
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t at = (first + i) * from->pitch + from->column;
        for (uint64_t c = 0; c < width; c += LANES) {
            const uint64_t m = vf_span(c, width);
            const vf x = from->dtype == LH_DTYPE_BF16 ? vf_get(from->base, LH_DTYPE_BF16, at + c, m)
                                                      : vf_get(from->base, LH_DTYPE_F32, at + c, m);
            vf_store(to + i * pitch + c, x * factor);
        }
    }
}

/* Lanes of two vectors alternating: of their first halves, of their second halves. */
#if LANES == 16
#define ZIP_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define ZIP_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif LANES == 8
#define ZIP_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define ZIP_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define ZIP_LOW 0, 4, 1, 5
#define ZIP_HIGH 2, 6, 3, 7
#endif

/* Each round turns (row, lane), read as one row of bits, left by one bit. */
CPU_INLINE void transpose(vf row[LANES])
{
    for (int round = 1; round < LANES; round *= 2) {
        vf next[LANES];
        for (int i = 0; i < LANES / 2; i++) {
            next[2 * i] = __builtin_shufflevector(row[i], row[i + LANES / 2], ZIP_LOW);
            next[2 * i + 1] = __builtin_shufflevector(row[i], row[i + LANES / 2], ZIP_HIGH);
        }
        for (int i = 0; i < LANES; i++)
            row[i] = next[i];
    }
}

/* to [padded(width)][TILE] from [count][padded(width)], count <= TILE; lanes behind count get 0, up
 * to a whole vector. */
CPU_INLINE void pack_turned(float *to, const float *from, uint64_t count, uint64_t width)
{
    const uint64_t pitch = padded(width);
    for (uint64_t i = 0; i < count; i += LANES) {
        for (uint64_t c = 0; c < pitch; c += LANES) {
            vf block[LANES];
            for (uint64_t r = 0; r < LANES; r++) {
                block[r] = i + r < count ? vf_load(from + (i + r) * pitch + c) : vf_zero();
            }
            transpose(block);
            for (uint64_t r = 0; r < LANES; r++)
                vf_store(to + (c + r) * TILE + i, block[r]);
        }
    }
}

/* Rows first.. of an argument = factor * from [count, padded(width)]. */
CPU_INLINE void unpack_rows(const rows_of_t *to, const float *from, uint64_t first, uint64_t count,
                            uint64_t width, float factor)
{
    const uint64_t pitch = padded(width);
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t at = (first + i) * to->pitch + to->column;
        for (uint64_t c = 0; c < width; c += LANES) {
            const vf x = vf_load(from + i * pitch + c) * factor;
            const uint64_t m = vf_span(c, width);
            if (to->dtype == LH_DTYPE_BF16) {
                vf_put((void *)(uintptr_t)to->base, LH_DTYPE_BF16, at + c, m, x);
            } else {
                vf_put((void *)(uintptr_t)to->base, LH_DTYPE_F32, at + c, m, x);
            }
        }
    }
}

/* ---- who sees whom ---- */

/* TILE queries as the lanes of a score tile. Key numbers count rows of the key tensor. */
typedef struct lanes {
    int32_t low[TILE], high[TILE]; /* sees keys [low, high); both 0: none            */
    int32_t row[TILE];             /* its own place, counted like the keys            */
    float slope[TILE];             /* of ALiBi                                        */
    int32_t first, last;           /* keys that any lane sees: [first, last)          */
    int32_t all_first, all_last;   /* keys that every lane sees                       */
    uint32_t count;                /* of lanes in use                                 */
    uint32_t vectors;              /* of them                                         */
} lanes_t;

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

/* After the first `count` lanes are set: fills up a vector and works out what they see together. */
static inline void lanes_close(lanes_t *l, uint32_t count)
{
    l->count = count;
    l->vectors = (count + LANES - 1) / LANES;
    l->first = l->all_first = 0;
    l->last = l->all_last = 0;
    bool any = false;
    for (uint32_t i = 0; i < l->vectors * LANES; i++) {
        if (i >= count) l->low[i] = l->high[i] = l->row[i] = 0;
        if (i >= count) l->slope[i] = 0;
        if (i == 0 || l->low[i] > l->all_first) l->all_first = l->low[i];
        if (i == 0 || l->high[i] < l->all_last) l->all_last = l->high[i];
        if (l->high[i] == 0) continue;
        if (!any || l->low[i] < l->first) l->first = l->low[i];
        if (!any || l->high[i] > l->last) l->last = l->high[i];
        any = true;
    }
}

/* Whether these lanes see any, and whether they all see every one, of keys [from, to). */
static inline bool lanes_meet(const lanes_t *l, int32_t from, int32_t to)
{
    return l->first < to && from < l->last;
}
static inline bool lanes_whole(const lanes_t *l, int32_t from, int32_t to)
{
    return l->all_first <= from && to <= l->all_last;
}

CPU_INLINE vi vi_load(const int32_t *p)
{
    vi a;
    memcpy(&a, p, sizeof(a));
    return a;
}

/* Lanes that see key `key`, as a mask. */
CPU_INLINE vi lanes_see(vi low, vi high, int32_t key)
{
    return (low <= key) & (key < high);
}

/* ---- attributes ---- */

typedef struct head_shape {
    uint64_t heads, kv_heads, group; /* group: query heads of a key head */
    uint64_t d, dv, dp, dvp;         /* widths, and padded to whole vectors */
    float scale, cap, cap_inverse;
} head_shape_t;

static inline head_shape_t head_shape(const lh_attention_t *how)
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
