/* tensor.cuh - tensor cores in BF16: products of 16 x 16 by 16 x 8 (PTX mma.m16n8k16, sm_80 and up),
 * their operands from shared memory, and copies into it that go on beside the work.
 *
 * Each of them is one warp's. A lane g 4 + t holds of a result rows g and g + 8, columns 2 t and 2 t + 1
 * (PTX ISA, "Matrix Fragments for mma.m16n8k16"). On the host the same functions do the same by
 * element, so that layouts are tested, and copies happen no sooner than they are waited for. */
#ifndef CUDA_TENSOR_CUH
#define CUDA_TENSOR_CUH

#include "kernel.cuh"

/* c += a b; a, b: pairs of BF16. */
CUDA_INLINE void tensor_product(float c[4], const uint32_t a[4], const uint32_t b[2])
{
#if defined(__CUDACC__)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    const uint32_t *all = host_words(mine, 6), g = host_lane() / 4, t = host_lane() % 4;
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t column = 2 * t + i % 2, high = i / 2;
        for (uint32_t k = 0; k < 16; k++) {
            const uint32_t pair = k % 8 / 2, shift = k % 2 * 16;
            const uint32_t left = all[(g * 4 + pair) * 6 + high + k / 8 * 2];
            const uint32_t right = all[(column * 4 + pair) * 6 + 4 + k / 8];
            c[i] += bf16_float(left >> shift & 0xffffu) * bf16_float(right >> shift & 0xffffu);
        }
    }
#endif
}

/* Four matrices of 8 x 8; lane 8 i + r brings the address of row r of the i-th, 16-byte aligned. Lane
 * g 4 + t gets of each the elements (g, 2 t) and (g, 2 t + 1). */
CUDA_INLINE void matrices_load(uint32_t out[4], const uint16_t *row)
{
#if defined(__CUDACC__)
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(at)
                 : "memory");
#else
    uint32_t mine[2];
    memcpy(mine, &row, sizeof(row));
    const uint32_t *all = host_words(mine, 2), g = host_lane() / 4, t = host_lane() % 4;
    for (uint32_t i = 0; i < 4; i++) {
        const uint16_t *from;
        memcpy(&from, all + (8 * i + g) * 2, sizeof(from));
        out[i] = from[2 * t] | static_cast<uint32_t>(from[2 * t + 1]) << 16;
    }
#endif
}

/* The same, transposed: the elements (2 t, g) and (2 t + 1, g). */
CUDA_INLINE void matrices_load_turned(uint32_t out[4], const uint16_t *row)
{
#if defined(__CUDACC__)
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(at)
                 : "memory");
#else
    uint32_t mine[2];
    memcpy(mine, &row, sizeof(row));
    const uint32_t *all = host_words(mine, 2), g = host_lane() / 4, t = host_lane() % 4;
    for (uint32_t i = 0; i < 4; i++) {
        const uint16_t *low, *high;
        memcpy(&low, all + (8 * i + 2 * t) * 2, sizeof(low));
        memcpy(&high, all + (8 * i + 2 * t + 1) * 2, sizeof(high));
        out[i] = low[g] | static_cast<uint32_t>(high[g]) << 16;
    }
#endif
}

/* 16 bytes from global to shared memory; they are there after a wait and a barrier. */
CUDA_INLINE void copy_begin(uint16_t *to, const uint16_t *from)
{
#if defined(__CUDACC__)
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
#else
    host_copy_begin(to, from, 16);
#endif
}

/* Copies begun since the last call become one group. */
CUDA_INLINE void copy_group()
{
#if defined(__CUDACC__)
    asm volatile("cp.async.commit_group;" ::: "memory");
#else
    host_copy_group();
#endif
}

/* Until all groups but the last `Behind` are there. */
template <int Behind> CUDA_INLINE void copy_wait()
{
#if defined(__CUDACC__)
    asm volatile("cp.async.wait_group %0;" ::"n"(Behind) : "memory");
#else
    host_copy_wait(Behind);
#endif
}

/* ---- tiles: rows of D elements, D + 8 apart, which spreads the rows of a matrix over all banks ---- */

template <uint32_t D> constexpr uint32_t tile_pitch = D + 8;

/* Begins to bring `Rows` rows from `first` on, of the columns [column, column + width); what lies
 * behind `rows` or width becomes 0. For blocks of `Threads` threads. */
template <uint32_t D, uint32_t Rows, uint32_t Threads>
CUDA_INLINE void tile_begin(uint16_t *tile, const cuda_view_t &x, uint64_t first, uint64_t rows,
                            uint64_t column, uint32_t width)
{
    const bool vector = (x.flags & CUDA_VIEW_VECTOR) != 0 && column % OCTET == 0;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < Rows * D / OCTET; i += Threads) {
        const uint32_t row = i / (D / OCTET), c = i % (D / OCTET) * OCTET;
        uint16_t *to = tile + row * tile_pitch<D> + c;
        const uint16_t *from = static_cast<const uint16_t *>(x.at) + (first + row) * x.pitch +
                               column + c;
        if (row < rows && c + OCTET <= width && vector) {
            copy_begin(to, from);
        } else {
            for (uint32_t j = 0; j < OCTET; j++)
                to[j] = row < rows && c + j < width ? from[j] : static_cast<uint16_t>(0);
        }
    }
}

/* The left operand: rows [row, row + 16), columns [k, k + 16). */
template <uint32_t D> CUDA_INLINE void left_load(uint32_t a[4], const uint16_t *tile, uint32_t row, uint32_t k)
{
    const uint32_t lane = threadIdx.x % WARP, i = lane / 8, r = lane % 8;
    matrices_load(a, tile + (row + i % 2 * 8 + r) * tile_pitch<D> + k + i / 2 * 8);
}

/* Two right operands of a product with the tile transposed: b[2 n] and b[2 n + 1] for the results'
 * columns that are the tile's rows [row + 8 n, row + 8 n + 8), over its columns [k, k + 16). */
template <uint32_t D> CUDA_INLINE void right_load_rows(uint32_t b[4], const uint16_t *tile, uint32_t row, uint32_t k)
{
    const uint32_t lane = threadIdx.x % WARP, i = lane / 8, r = lane % 8;
    matrices_load(b, tile + (row + i / 2 * 8 + r) * tile_pitch<D> + k + i % 2 * 8);
}

/* Two right operands of a product with the tile as it is: for the results' columns [column + 8 n,
 * column + 8 n + 8), over the tile's rows [k, k + 16). */
template <uint32_t D> CUDA_INLINE void right_load_columns(uint32_t b[4], const uint16_t *tile, uint32_t k, uint32_t column)
{
    const uint32_t lane = threadIdx.x % WARP, i = lane / 8, r = lane % 8;
    matrices_load_turned(b, tile + (k + i % 2 * 8 + r) * tile_pitch<D> + column + i / 2 * 8);
}

/* Results of two neighbouring tiles of 16 x 8, rounded, as the left operand of the next product. */
CUDA_INLINE void left_from_results(uint32_t a[4], const float first[4], const float second[4])
{
    a[0] = bf16_pair(first[0], first[1]);
    a[1] = bf16_pair(first[2], first[3]);
    a[2] = bf16_pair(second[0], second[1]);
    a[3] = bf16_pair(second[2], second[3]);
}

/* results[16, Columns] += rows [row, row + 16) of left times the transpose of right's first Columns
 * rows. */
template <uint32_t D, uint32_t Columns>
CUDA_INLINE void product_of_rows(float (*results)[4], const uint16_t *left, uint32_t row,
                                 const uint16_t *right)
{
#pragma unroll
    for (uint32_t k = 0; k < D; k += 16) {
        uint32_t a[4], b[4];
        left_load<D>(a, left, row, k);
#pragma unroll
        for (uint32_t n = 0; n < Columns / 16; n++) {
            right_load_rows<D>(b, right, n * 16, k);
            tensor_product(results[2 * n], a, b);
            tensor_product(results[2 * n + 1], a, b + 2);
        }
    }
}

/* sums[16, D] += factors[16, Depth] times right's first Depth rows. */
template <uint32_t D, uint32_t Depth>
CUDA_INLINE void product_add(float (*sums)[4], const float (*factors)[4], const uint16_t *right)
{
#pragma unroll
    for (uint32_t k = 0; k < Depth / 16; k++) {
        uint32_t a[4], b[4];
        left_from_results(a, factors[2 * k], factors[2 * k + 1]);
#pragma unroll
        for (uint32_t n = 0; n < D / 16; n++) {
            right_load_columns<D>(b, right, k * 16, n * 16);
            tensor_product(sums[2 * n], a, b);
            tensor_product(sums[2 * n + 1], a, b + 2);
        }
    }
}

/* Writes sums[16, D] times factor[0] (rows g) and factor[1] (rows g + 8) to rows row0 and row1 where
 * they are below `rows`. */
template <uint32_t D>
CUDA_INLINE void results_store(const cuda_view_t &y, uint64_t first, uint64_t rows, uint32_t row,
                               uint64_t column, uint32_t width, const float (*sums)[4],
                               float factor_low, float factor_high)
{
    const uint32_t g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
#pragma unroll
    for (uint32_t n = 0; n < D / 8; n++) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t r = row + g + i / 2 * 8, c = n * 8 + 2 * t + i % 2;
            if (r < rows && c < width)
                view_store(y, first + r, column + c, sums[n][i] * (i < 2 ? factor_low : factor_high));
        }
    }
}

#endif
