/* route.cu - the largest of a row, and rows of experts: picks sorted by expert, rows laid out in that
 * order and brought home. */
#include "kernel.cuh"

/* Is (value, id) behind (last, last_id) in the order "largest first, of equals the first column"? */
CUDA_INLINE bool comes_after(float value, int id, float last, int last_id)
{
    return value < last || (value == last && id > last_id);
}

/* A warp a row: k times the first of those that come after the last one taken. */
CUDA_KERNEL(cuda_top_k, CUDA_THREADS)
{
    const uint64_t row = team_row();
    if (row >= p.x.rows) return; /* a whole warp */
    const int width = static_cast<int>(p.x.width);
    float last = INFINITY;
    int last_id = -1;

    for (uint32_t j = 0; j < p.k; j++) {
        float best = -INFINITY;
        int id = width; /* none yet */
        for (int c = static_cast<int>(threadIdx.x); c < width; c += WARP) {
            const float value = view_load(p.x, row, static_cast<uint64_t>(c));
            if (!comes_after(value, c, last, last_id)) continue;
            if (id == width || comes_after(best, id, value, c)) best = value, id = c;
        }
        for (int apart = WARP / 2; apart > 0; apart /= 2) {
            const float other = __shfl_xor_sync(0xffffffffu, best, apart);
            const int other_id = __shfl_xor_sync(0xffffffffu, id, apart);
            if (other_id != width && (id == width || comes_after(best, id, other, other_id)))
                best = other, id = other_id;
        }
        last = best;
        last_id = id == width ? 0 : id; /* only where a row holds not-a-number */
        if (threadIdx.x != 0) continue;
        view_store(p.values, row, j, view_load(p.x, row, static_cast<uint64_t>(last_id)));
        static_cast<int32_t *>(p.ids.at)[row * p.ids.pitch + j] = last_id;
    }
}

CUDA_KERNEL(cuda_top_k_grad, CUDA_THREADS)
{
    uint64_t row, column;
    if (!octet_mine(p.gx, &row, &column)) return;
    const int32_t *ids = static_cast<const int32_t *>(p.ids.at) + row * p.ids.pitch;
    octet g = {};
    for (uint64_t j = 0; j < p.ids.width; j++) {
        const uint64_t at = static_cast<uint64_t>(ids[j]) - column;
        const float value = view_load(p.gvalues, row, j);
#pragma unroll
        for (uint32_t i = 0; i < OCTET; i++)
            g.v[i] = at == i ? value : g.v[i];
    }
    octet_store(p.gx, row, column, p.gx.width, g);
}

/* How many threads of the block before this one say yes, and how many do in all. */
CUDA_INLINE uint32_t block_rank(bool yes, uint32_t *count)
{
    __shared__ uint32_t counts[CUDA_THREADS / WARP];
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const unsigned bits = __ballot_sync(0xffffffffu, yes);

    __syncthreads(); /* the last counts have been read */
    if (lane == 0) counts[warp] = static_cast<uint32_t>(__popc(bits));
    __syncthreads();
    uint32_t before = static_cast<uint32_t>(__popc(bits & ((1u << lane) - 1u)));
    *count = 0;
    for (uint32_t i = 0; i < CUDA_THREADS / WARP; i++) {
        if (i < warp) before += counts[i];
        *count += counts[i];
    }
    return before;
}

CUDA_INLINE int32_t pick_expert(const cuda_route_t &p, uint64_t pick)
{
    const uint64_t row = p.ids.rows == 1 ? 0 : pick / p.ids.width;
    return static_cast<const int32_t *>(p.ids.at)[row * p.ids.pitch + pick - row * p.ids.width];
}

/* A block an expert, which counts the picks of those before it and then lists its own: each reads all
 * picks twice, and no block waits for another. The last one also writes the end. */
CUDA_KERNEL(cuda_route, CUDA_THREADS)
{
    const int32_t expert = static_cast<int32_t>(blockIdx.x);
    uint64_t placed = 0;
    uint32_t count;

    for (uint64_t begin = 0; begin < p.picks; begin += CUDA_THREADS) {
        const uint64_t pick = begin + threadIdx.x;
        block_rank(pick < p.picks && pick_expert(p, pick) < expert, &count);
        placed += count;
    }
    if (threadIdx.x == 0) p.offsets[expert] = static_cast<int32_t>(placed);
    for (uint64_t begin = 0; begin < p.picks; begin += CUDA_THREADS) {
        const uint64_t pick = begin + threadIdx.x;
        const bool mine = pick < p.picks && pick_expert(p, pick) == expert;
        const uint32_t rank = block_rank(mine, &count);
        if (mine) p.order[placed + rank] = static_cast<int32_t>(pick);
        placed += count;
    }
    if (blockIdx.x + 1 == gridDim.x && threadIdx.x == 0)
        p.offsets[expert + 1] = static_cast<int32_t>(placed);
}

CUDA_KERNEL(cuda_route_load, CUDA_THREADS)
{
    const uint32_t e = blockIdx.x * blockDim.x + threadIdx.x;
    if (e < p.experts)
        p.load[e] = static_cast<float>(p.offsets[e + 1] - p.offsets[e]) /
                    static_cast<float>(p.offsets[p.experts]);
}

CUDA_KERNEL(cuda_gather_rows, CUDA_THREADS)
{
    uint64_t i, column;
    if (!octet_mine(p.y, &i, &column)) return;
    const uint64_t row = static_cast<uint32_t>(p.order[i]) / p.k;
    octet_store(p.y, i, column, p.y.width, octet_load(p.x, row, column, p.y.width));
}

CUDA_KERNEL(cuda_invert, CUDA_THREADS)
{
    const uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < p.count) p.place[p.order[i]] = static_cast<int32_t>(i);
}

/* The picks of a token in their order. */
CUDA_KERNEL(cuda_scatter_rows, CUDA_THREADS)
{
    uint64_t row, column;
    if (!octet_mine(p.y, &row, &column)) return;
    octet sum = {};
    for (uint32_t j = 0; j < p.k; j++) {
        const uint64_t from = static_cast<uint64_t>(p.place[row * p.k + j]);
        const float share = p.shares.at != nullptr ? view_load(p.shares, row, j) : 1.0f;
        const octet x = octet_load(p.x, from, column, p.y.width);
        for (uint32_t i = 0; i < OCTET; i++)
            sum.v[i] += share * x.v[i];
    }
    octet_store(p.y, row, column, p.y.width, sum);
}

CUDA_KERNEL(cuda_scatter_rows_grad, CUDA_TEAM_LIMIT)
{
    const uint64_t i = team_row(), width = i < p.x.rows ? p.x.width : 0;
    const uint32_t pick = width > 0 ? static_cast<uint32_t>(p.order[i]) : 0;
    const uint32_t row = pick / p.k, j = pick - row * p.k;
    float along = 0;

#pragma unroll 1
    for (uint64_t c = threadIdx.x * OCTET; c < width; c += blockDim.x * OCTET) {
        const float share = view_load(p.shares, row, j); /* from the first-level cache, not a register */
        octet g = octet_load(p.gy, row, c, width);
        const octet x = octet_load(p.x, i, c, width);
        for (uint32_t n = 0; n < OCTET; n++) {
            along += g.v[n] * x.v[n];
            g.v[n] *= share;
        }
        octet_store(p.gx, i, c, width, g);
    }
    along = team_sum(along);
    if (width > 0 && threadIdx.x == 0) view_store(p.gshares, row, j, along);
}
