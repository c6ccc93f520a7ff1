/* attention_tensor_grad.cu - the gradient of attention in BF16 on tensor cores, ordered: as in
 * attention_grad.cu one kernel owns queries and one owns keys, and both form the probabilities again
 * from lse. That is seven products where one kernel with unordered sums has five.
 *
 * The kernel that owns keys works on transposed scores (a row is a key), so that its probabilities are
 * the left operand of both of its sums without leaving the registers. Probabilities and gradients of
 * scores are rounded to BF16 for those products, sums are F32. */
#include "attention.cuh"
#include "tensor.cuh"

constexpr uint32_t G_ROWS = CUDA_TENSOR_ROWS, G_THREADS = CUDA_TENSOR_THREADS;
/* Rows of the tiles that a block walks: the accumulators of 128 components leave room for no more. */
constexpr uint32_t WALK = CUDA_TENSOR_WALK;

/* From products to (probability, gradient of scale q.k), in place of (score, gy.v). */
CUDA_INLINE void pair_turn(const cuda_attention_how_t &how, uint32_t head, float *score,
                           float *along, bool sees, int64_t distance, float lse, float level)
{
    float slope;
    if (!sees) {
        *score = *along = 0;
        return;
    }
    const float share = exp2f((pair_score(how, head, *score, distance, &slope) - lse) * 1.44269504f);
    *along = share * (*along - level) * slope;
    *score = share;
}

CUDA_INLINE uint64_t rows_left(uint64_t rows, uint64_t first)
{
    return rows > first ? rows - first : 0;
}

/* gq. Dynamic shared memory: 64 rows of q and gy, WALK rows of k and v. */
template <uint32_t D>
CUDA_INLINE void grad_of_queries(const cuda_attention_grad_query_t &p, uint16_t *shared)
{
    __shared__ queries_known<G_ROWS> known;
    const cuda_attention_how_t &how = p.how;
    uint16_t *q = shared, *gy = q + G_ROWS * tile_pitch<D>, *k = gy + G_ROWS * tile_pitch<D>;
    uint16_t *v = k + WALK * tile_pitch<D>;
    const uint32_t d = how.head_dim, dv = how.value_dim;
    const uint32_t head = blockIdx.y, key_head = head * how.kv_heads / how.heads;
    const uint64_t first = static_cast<uint64_t>(gridDim.x - 1 - blockIdx.x) * G_ROWS;
    const uint64_t rows = rows_left(p.q.rows, first);
    const uint32_t row = threadIdx.x / WARP * 16, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;

    queries_load(&known, p, head, first);
    tile_begin<D, G_ROWS, G_THREADS>(q, p.q, first, rows, static_cast<uint64_t>(head) * d, d);
    tile_begin<D, G_ROWS, G_THREADS>(gy, p.gy, first, rows, static_cast<uint64_t>(head) * dv, dv);
    __syncthreads();
    const key_range all = queries_range(known);
    float sums[D / 8][4] = {};

    for (int64_t k0 = all.begin / WALK * WALK; k0 < all.end; k0 += WALK) {
        const uint64_t at = static_cast<uint64_t>(k0), left = rows_left(p.k.rows, at);
        float scores[WALK / 8][4] = {}, along[WALK / 8][4] = {};
        __syncthreads(); /* all have read the last keys */
        tile_begin<D, WALK, G_THREADS>(k, p.k, at, left, static_cast<uint64_t>(key_head) * d, d);
        tile_begin<D, WALK, G_THREADS>(v, p.v, at, left, static_cast<uint64_t>(key_head) * dv, dv);
        copy_group();
        copy_wait<0>();
        __syncthreads();
        product_of_rows<D, WALK>(scores, q, row, k);
        product_of_rows<D, WALK>(along, gy, row, v);
#pragma unroll
        for (uint32_t n = 0; n < WALK / 8; n++) {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                const uint32_t r = row + g + i / 2 * 8;
                const int64_t key = k0 + n * 8 + 2 * t + i % 2;
                const bool sees = key >= known.seen[r].begin && key < known.seen[r].end;
                const int64_t distance = key + static_cast<int64_t>(how.k_begin) -
                                         query_position(how, first + r, 0);
                pair_turn(how, head, &scores[n][i], &along[n][i], sees, distance, known.lse[r],
                          known.level[r]);
            }
        }
        product_add<D, WALK>(sums, along, k);
    }
    copy_group();
    copy_wait<0>(); /* q and gy, where no key is seen: no copy outlives its block */
    results_store<D>(p.gq, first, rows < G_ROWS ? rows : G_ROWS, row,
                     static_cast<uint64_t>(head) * d, d, sums, how.scale, how.scale);
}

/* gk and gv. Dynamic shared memory: 64 rows of k and v, WALK rows of q and gy. */
template <uint32_t D>
CUDA_INLINE void grad_of_keys(const cuda_attention_grad_key_t &p, uint16_t *shared)
{
    __shared__ queries_known<WALK> known;
    const cuda_attention_how_t &how = p.how;
    uint16_t *k = shared, *v = k + G_ROWS * tile_pitch<D>, *q = v + G_ROWS * tile_pitch<D>;
    uint16_t *gy = q + WALK * tile_pitch<D>;
    const uint32_t d = how.head_dim, dv = how.value_dim, key_head = blockIdx.y;
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * G_ROWS;
    const uint64_t rows = rows_left(p.k.rows, first);
    const uint32_t row = threadIdx.x / WARP * 16, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const int64_t k0 = static_cast<int64_t>(first);
    float key_sums[D / 8][4] = {}, value_sums[D / 8][4] = {};

    tile_begin<D, G_ROWS, G_THREADS>(k, p.k, first, rows, static_cast<uint64_t>(key_head) * d, d);
    tile_begin<D, G_ROWS, G_THREADS>(v, p.v, first, rows, static_cast<uint64_t>(key_head) * dv, dv);
    for (uint32_t head = 0; head < how.heads; head++) {
        if (head * how.kv_heads / how.heads != key_head) continue;
        for (uint64_t i0 = 0; i0 < p.q.rows; i0 += WALK) {
            __syncthreads(); /* all have read the last queries */
            queries_load(&known, p, head, i0);
            __syncthreads();
            const key_range all = queries_range(known);
            if (all.begin >= k0 + G_ROWS || all.end <= k0) continue; /* the same for all threads */
            const uint64_t left = rows_left(p.q.rows, i0);
            float scores[WALK / 8][4] = {}, along[WALK / 8][4] = {};
            tile_begin<D, WALK, G_THREADS>(q, p.q, i0, left, static_cast<uint64_t>(head) * d, d);
            tile_begin<D, WALK, G_THREADS>(gy, p.gy, i0, left, static_cast<uint64_t>(head) * dv, dv);
            copy_group();
            copy_wait<0>();
            __syncthreads();
            product_of_rows<D, WALK>(scores, k, row, q);
            product_of_rows<D, WALK>(along, v, row, gy);
#pragma unroll
            for (uint32_t n = 0; n < WALK / 8; n++) {
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) {
                    const uint32_t c = n * 8 + 2 * t + i % 2; /* the query */
                    const int64_t key = k0 + row + g + i / 2 * 8;
                    const bool sees = key >= known.seen[c].begin && key < known.seen[c].end;
                    const int64_t distance = key + static_cast<int64_t>(how.k_begin) -
                                             query_position(how, i0 + c, 0);
                    pair_turn(how, head, &scores[n][i], &along[n][i], sees, distance, known.lse[c],
                              known.level[c]);
                }
            }
            product_add<D, WALK>(value_sums, scores, gy);
            product_add<D, WALK>(key_sums, along, q);
        }
    }
    copy_group();
    copy_wait<0>(); /* k and v, where no query sees them */
    const uint64_t mine = rows < G_ROWS ? rows : G_ROWS;
    results_store<D>(p.gk, first, mine, row, static_cast<uint64_t>(key_head) * d, d, key_sums,
                     how.scale, how.scale);
    results_store<D>(p.gv, first, mine, row, static_cast<uint64_t>(key_head) * dv, dv, value_sums,
                     1.0f, 1.0f);
}

CUDA_KERNEL(cuda_attention_tensor_grad_query_64, CUDA_TENSOR_THREADS)
{
    CUDA_DYNAMIC(uint16_t, shared);
    grad_of_queries<64>(p, shared);
}

CUDA_KERNEL(cuda_attention_tensor_grad_query_128, CUDA_TENSOR_THREADS)
{
    CUDA_DYNAMIC(uint16_t, shared);
    grad_of_queries<128>(p, shared);
}

CUDA_KERNEL(cuda_attention_tensor_grad_key_64, CUDA_TENSOR_THREADS)
{
    CUDA_DYNAMIC(uint16_t, shared);
    grad_of_keys<64>(p, shared);
}

CUDA_KERNEL(cuda_attention_tensor_grad_key_128, CUDA_TENSOR_THREADS)
{
    CUDA_DYNAMIC(uint16_t, shared);
    grad_of_keys<128>(p, shared);
}
