/* embed.cu - rows of a table by token, and the table's gradient in a fixed order.
 *
 * The gradient needs no sorting and no scratch: the block of token i ends at once unless i is the first
 * place of its token, and otherwise walks the rest of the tokens and adds the rows of its own in their
 * order. That reads t^2 / 2 tokens from the caches, little beside gy for micro-batches up to some
 * 10,000 tokens, and a token that is frequent costs one block's time. */
#include "kernel.cuh"

/* The row of the table that holds this id; false where another part has it. */
CUDA_INLINE bool table_row(int32_t id, uint64_t first, uint64_t rows, uint64_t *row)
{
    *row = static_cast<uint64_t>(static_cast<int64_t>(id)) - first;
    return id >= 0 && static_cast<uint64_t>(id) >= first && *row < rows;
}

CUDA_KERNEL(cuda_embed, CUDA_THREADS)
{
    uint64_t i, column, row;
    if (!octet_mine(p.y, &i, &column)) return;
    octet y = {};
    if (table_row(p.tokens[i], p.first, p.rows, &row))
        y = octet_load(p.table, row, column, p.y.width);
    octet_store(p.y, i, column, p.y.width, y);
}

/* True for all threads of the block where it is for one. */
CUDA_INLINE bool block_any(bool mine)
{
    __shared__ uint32_t any[CUDA_THREADS / WARP];
    const uint32_t bits = __ballot_sync(0xffffffffu, mine);
    __syncthreads(); /* the last answer has been read */
    if (threadIdx.x % WARP == 0) any[threadIdx.x / WARP] = bits;
    __syncthreads();
    uint32_t found = 0;
    for (uint32_t i = 0; i < CUDA_THREADS / WARP; i++)
        found |= any[i];
    return found != 0;
}

/* Does the token stand before `behind`? Chunk by chunk: a frequent one ends at the first. */
CUDA_INLINE bool stands_before(const int32_t *tokens, int32_t token, uint64_t behind)
{
    const uint64_t chunk = 16 * CUDA_THREADS;
    for (uint64_t begin = 0; begin < behind; begin += chunk) {
        bool found = false;
        const uint64_t end = behind - begin < chunk ? behind : begin + chunk;
        for (uint64_t j = begin + threadIdx.x; j < end; j += CUDA_THREADS)
            found = found || tokens[j] == token;
        if (block_any(found)) return true;
    }
    return false;
}

/* Those of the 256 places from `begin` on that hold the token, ascending; returns how many. */
CUDA_INLINE uint32_t places_list(const cuda_embed_grad_t &p, int32_t token, uint64_t begin,
                                 uint32_t *list)
{
    __shared__ uint32_t counts[CUDA_THREADS / WARP];
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const uint64_t at = begin + threadIdx.x;
    const bool match = at < p.gy.rows && p.tokens[at] == token;
    const unsigned bits = __ballot_sync(0xffffffffu, match);

    __syncthreads(); /* the last list has been read */
    if (lane == 0) counts[warp] = static_cast<uint32_t>(__popc(bits));
    __syncthreads();
    uint32_t before = static_cast<uint32_t>(__popc(bits & ((1u << lane) - 1u))), count = 0;
    for (uint32_t i = 0; i < CUDA_THREADS / WARP; i++) {
        if (i < warp) before += counts[i];
        count += counts[i];
    }
    if (match) list[before] = threadIdx.x;
    __syncthreads();
    return count;
}

/* Block (i, part of the columns). */
CUDA_KERNEL(cuda_embed_grad, CUDA_THREADS)
{
    __shared__ uint32_t list[CUDA_THREADS];
    const uint64_t i = blockIdx.x, width = p.gy.width;
    const uint64_t column = static_cast<uint64_t>(blockIdx.y) * CUDA_EMBED_COLUMNS +
                            threadIdx.x * OCTET;
    const int32_t token = p.tokens[i];
    uint64_t row;

    if (!table_row(token, p.first, p.rows, &row) || stands_before(p.tokens, token, i)) return;
    octet sum = {};
    for (uint64_t begin = i; begin < p.gy.rows; begin += CUDA_THREADS) {
        const uint32_t count = places_list(p, token, begin, list);
        for (uint32_t n = 0; n < count && column < width; n++) {
            const octet g = octet_load(p.gy, begin + list[n], column, width);
            for (uint32_t j = 0; j < OCTET; j++)
                sum.v[j] += g.v[j];
        }
    }
    if (column < width) octet_store(p.gtable, row, column, width, sum);
}
