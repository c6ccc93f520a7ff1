/* product.cu - matrix products without a library: every transpose, bias, activation and group, sums in
 * F32 in the order of the depth. Tiles of 64 x 64 in shared memory, 4 x 4 of them a thread, by the FMA
 * units. cuBLASLt stands before it where it is found and knows the call. */
#include "kernel.cuh"

constexpr uint32_t P_TILE = CUDA_PRODUCT_TILE, P_DEPTH = CUDA_PRODUCT_DEPTH, P_EACH = 4;
/* Threads to a side of a tile. */
constexpr uint32_t P_SIDE = P_TILE / P_EACH;

/* A slab [P_DEPTH, P_TILE] of an operand: element (i, k) lies at i across + k along. Neighbours in
 * memory go to neighbouring threads. */
CUDA_INLINE void slab_load(float slab[P_DEPTH][P_TILE + 1], const void *at, uint32_t dtype,
                           uint64_t across, uint64_t along, uint64_t items, uint64_t depth)
{
    for (uint32_t n = threadIdx.x; n < P_TILE * P_DEPTH; n += CUDA_THREADS) {
        const uint32_t i = along == 1 ? n / P_DEPTH : n % P_TILE;
        const uint32_t k = along == 1 ? n % P_DEPTH : n / P_TILE;
        slab[k][i] = i < items && k < depth ? element_load(at, dtype, i * across + k * along) : 0.0f;
    }
}

CUDA_INLINE const void *element_at(const void *at, uint32_t dtype, uint64_t i)
{
    return static_cast<const char *>(at) + i * (dtype == LH_DTYPE_F32 ? 4 : 2);
}

/* Block (tile of columns, tile of rows, group). */
CUDA_KERNEL(cuda_matmul, CUDA_THREADS)
{
    __shared__ float a[P_DEPTH][P_TILE + 1], b[P_DEPTH][P_TILE + 1];
    const uint32_t group = blockIdx.z;
    uint64_t row = static_cast<uint64_t>(blockIdx.y) * P_TILE, rows = p.m, from = 0, to = p.depth;
    const uint64_t column = static_cast<uint64_t>(blockIdx.x) * P_TILE;
    uint64_t c_row = row;

    if (p.groups == CUDA_GROUPS_ROWS) {
        row += static_cast<uint64_t>(p.offsets[group]);
        rows = static_cast<uint64_t>(p.offsets[group + 1]);
        c_row = row;
        if (row >= rows) return;
    } else if (p.groups == CUDA_GROUPS_DEPTH) {
        from = static_cast<uint64_t>(p.offsets[group]);
        to = static_cast<uint64_t>(p.offsets[group + 1]);
        c_row += group * p.c_group;
    }
    const uint64_t tall = rows - row < P_TILE ? rows - row : P_TILE;
    const uint64_t wide = p.n - column < P_TILE ? p.n - column : P_TILE;
    const uint32_t y = threadIdx.x / P_SIDE, x = threadIdx.x % P_SIDE;
    float sums[P_EACH][P_EACH] = {};

    for (uint64_t k = from; k < to; k += P_DEPTH) {
        const uint64_t deep = to - k < P_DEPTH ? to - k : P_DEPTH;
        __syncthreads();
        slab_load(a, element_at(p.a, p.dtype, row * p.a_row + k * p.a_depth), p.dtype, p.a_row,
                  p.a_depth, tall, deep);
        slab_load(b,
                  element_at(p.b, p.dtype,
                             group * p.b_group + k * p.b_depth + column * p.b_column),
                  p.dtype, p.b_column, p.b_depth, wide, deep);
        __syncthreads();
#pragma unroll
        for (uint32_t j = 0; j < P_DEPTH; j++) {
#pragma unroll
            for (uint32_t r = 0; r < P_EACH; r++) {
                const float left = a[j][y * P_EACH + r];
#pragma unroll
                for (uint32_t c = 0; c < P_EACH; c++)
                    sums[r][c] += left * b[j][x + c * P_SIDE];
            }
        }
    }
    const float factor = (p.scale_a != nullptr ? *p.scale_a : 1.0f) *
                         (p.scale_b != nullptr ? *p.scale_b : 1.0f);
#pragma unroll
    for (uint32_t r = 0; r < P_EACH; r++) {
#pragma unroll
        for (uint32_t c = 0; c < P_EACH; c++) {
            const uint64_t i = y * P_EACH + r, j = column + x + c * P_SIDE;
            if (i >= tall || j >= p.n) continue;
            float value = factor * sums[r][c];
            if (p.bias.at != nullptr) value += view_load(p.bias, 0, j);
            if (p.aux.at != nullptr) view_store(p.aux, c_row + i, j, value);
            view_store(p.c, c_row + i, j, act(p.activation, value));
        }
    }
}
