/* attention_product.h - what attention computes with: exp2 and the matrix products of small tiles.
 *
 * The sum of a product runs over units of 32 bits: a float, or a pair of BF16 that a processor with
 * AVX-512 BF16 multiplies and adds in one instruction. `pairs` says which; sums are F32 always.
 *
 * A tile is 64 by 64 at most, and of it only the part that somebody sees is computed: that is no
 * work for a library. So there is one small product here, whose sums stay in registers, with the
 * numbers of rows and vectors as constants. */
#ifndef LH_CPU_ATTENTION_PRODUCT_H
#define LH_CPU_ATTENTION_PRODUCT_H

#include "vector.h"

#if defined(__AVX512BF16__)
#define CPU_PAIRS 1
#else
#define CPU_PAIRS 0
#endif

/* Queries, and keys, of a tile. */
enum { TILE = 64, TILE_VECTORS = TILE / LANES };
/* Registers of one product: that many rows of so many vectors of sums. */
enum { MICRO_VECTORS = LANES == 16 ? 4 : 2, WIDE_ROWS = 4, NARROW_ROWS = LANES == 16 ? 8 : 4 };

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

/* 2^x for x not above 120; below -126 it stays at 2^-126, which is nothing beside the 1 that every
 * softmax sums. To 2 ulp, or to 3e-6 where the result is rounded to BF16. Not-a-number stays. */
CPU_INLINE vf tile_exp2(vf x, const bool rough)
{
    const vf magic = vf_set(12582912.0f); /* 1.5 2^23: adding it rounds to a whole number */
    const vf bounded = tile_max(vf_set(-126.0f), x);
    const vf shifted = bounded + magic;
    const vf r = bounded - (shifted - magic);
    vf p;
    if (rough) {
        p = vf_fma(vf_set(0.00958285323f), r, vf_set(0.0559064257f));
        p = vf_fma(p, r, vf_set(0.240240986f));
        p = vf_fma(p, r, vf_set(0.693124193f));
    } else {
        p = vf_fma(vf_set(0.00132647273f), r, vf_set(0.00967151276f));
        p = vf_fma(p, r, vf_set(0.0555073374f));
        p = vf_fma(p, r, vf_set(0.240222421f));
        p = vf_fma(p, r, vf_set(0.693146978f));
    }
    p = vf_fma(p, r, vf_set(1.0f));
    return (vf)((vu)p + ((vu)shifted << 23));
}

/* ---- pairs ---- */

#if CPU_PAIRS
/* Two vectors of scores, rounded to BF16. */
typedef struct vpair {
    vf mixed;     /* units: (low, high) of each lane */
    vh low, high; /* the lanes of each, rounded      */
} vpair_t;

/* Rounds two vectors to BF16 by one instruction, which leaves them one behind the other. */
CPU_INLINE vpair_t pair_round(vf low, vf high)
{
    const vu mix = {0x100000, 0x110001, 0x120002, 0x130003, 0x140004, 0x150005, 0x160006, 0x170007,
                    0x180008, 0x190009, 0x1a000a, 0x1b000b, 0x1c000c, 0x1d000d, 0x1e000e, 0x1f000f};
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
    return (vpair_t){.mixed = (vf)_mm512_permutexvar_epi16((__m512i)mix, both),
                     .low = (vh)_mm512_castsi512_si256(both),
                     .high = (vh)_mm512_extracti64x4_epi64(both, 1)};
}
#endif

/* Defines name_f32, and name_pairs where there are pairs, from a part function name(k, part, pairs)
 * that is CPU_INLINE. */
#if CPU_PAIRS
#define ATTENTION_BOTH(name)                                        \
    static void name##_f32(const lh_prepared_t *k, uint32_t part)   \
    {                                                               \
        name(k, part, false);                                       \
    }                                                               \
    static void name##_pairs(const lh_prepared_t *k, uint32_t part) \
    {                                                               \
        name(k, part, true);                                        \
    }
#define ATTENTION_PICK(name, pairs) ((pairs) ? name##_pairs : name##_f32)
#else
#define ATTENTION_BOTH(name)                                      \
    static void name##_f32(const lh_prepared_t *k, uint32_t part) \
    {                                                             \
        name(k, part, false);                                     \
    }
#define ATTENTION_PICK(name, pairs) name##_f32
#endif
#define ATTENTION_PAIRS(dtype) (CPU_PAIRS && (dtype) == LH_DTYPE_BF16)

/* sum + a b, for a unit that is a float or a pair. */
CPU_INLINE vf unit_fma(vf a, vf b, vf sum, const bool pairs)
{
#if CPU_PAIRS
    if (pairs) return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#endif
    (void)pairs;
    return vf_fma(a, b, sum);
}

/* ---- products ---- */

/* From .. to of something. */
typedef struct span {
    uint32_t from, to;
} span_t;

/* c = a b, added to c, or to c with its rows scaled. a and b count units, c floats. */
typedef struct product {
    float *c;
    const float *a, *b;
    uint64_t a_row, a_step; /* from row to row, and along the sum */
    uint64_t b_row, c_row;  /* whole vectors */
    const float *scale;     /* of PRODUCT_SCALE: one a row of c */
} product_t;

/* c = a b; c += a b; c = scale c + a b, row by row. */
enum { PRODUCT_SET, PRODUCT_ADD, PRODUCT_SCALE };

/* A block of rows by vectors of c, its sums in registers over the whole depth: each number of a is
 * spread over the lanes and meets a line of b. */
CPU_INLINE void product_micro(const product_t *p, uint64_t row, uint64_t column, span_t depth,
                              const int rows, const int vectors, const int mode, const bool pairs)
{
    const float *a = p->a + row * p->a_row + depth.from * p->a_step;
    const float *b = p->b + depth.from * p->b_row + column;
    vf sum[NARROW_ROWS][MICRO_VECTORS];

    for (int r = 0; r < rows; r++) {
        for (int v = 0; v < vectors; v++)
            sum[r][v] = vf_zero();
    }
    for (uint32_t k = depth.from; k < depth.to; k++) {
        vf line[MICRO_VECTORS];
        for (int v = 0; v < vectors; v++)
            line[v] = vf_load(b + v * LANES);
        for (int r = 0; r < rows; r++) {
            const vf x = vf_set(a[(uint64_t)r * p->a_row]);
            for (int v = 0; v < vectors; v++)
                sum[r][v] = unit_fma(x, line[v], sum[r][v], pairs);
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

/* All rows of some vectors of c. Few vectors leave registers for more rows. */
CPU_INLINE void product_rows(const product_t *p, span_t rows, uint64_t column, span_t depth,
                             const int vectors, const int mode, const bool pairs)
{
    const int most = vectors > MICRO_VECTORS / 2 ? WIDE_ROWS : NARROW_ROWS;
    uint64_t row = rows.from;

    for (; row + (uint64_t)most <= rows.to; row += (uint64_t)most)
        product_micro(p, row, column, depth, most, vectors, mode, pairs);
    for (; row < rows.to; row++)
        product_micro(p, row, column, depth, 1, vectors, mode, pairs);
}

/* Rows and vectors of c, and how much of the sum. Vectors go in blocks of MICRO_VECTORS, and what
 * is left over in one block of its own, so that every number of vectors is a constant of some
 * product_micro. */
CPU_INLINE void product_run(const product_t *p, span_t rows, span_t vectors, span_t depth,
                            const int mode, const bool pairs)
{
    uint32_t v = vectors.from;

    for (; v + MICRO_VECTORS <= vectors.to; v += MICRO_VECTORS)
        product_rows(p, rows, v * LANES, depth, MICRO_VECTORS, mode, pairs);
#if LANES == 16
    if (v + 3 == vectors.to) product_rows(p, rows, v * LANES, depth, 3, mode, pairs);
    if (v + 2 == vectors.to) product_rows(p, rows, v * LANES, depth, 2, mode, pairs);
#endif
    if (v + 1 == vectors.to) product_rows(p, rows, v * LANES, depth, 1, mode, pairs);
}

#endif
