/* attention_tensor.cu - attention forward in BF16 on tensor cores, for heads of up to 64 and of up to
 * 128 components.
 *
 * A block of four warps takes 64 queries of one head, a warp 16 of them, and walks tiles of 64 keys
 * with the softmax formed on the way (Dao, FlashAttention-2, 2023). Scores and sums are F32, shares are
 * rounded to BF16 for the product with the values. While a tile's scores are formed its values come,
 * and the next keys come beside the product. Tiles that no query sees are skipped, and only those are
 * masked that some query sees in part. */
#include "attention.cuh"
#include "tensor.cuh"

constexpr uint32_t Q_ROWS = CUDA_TENSOR_ROWS, TENSOR_THREADS = CUDA_TENSOR_THREADS;

/* A score from its product: -infinity where the key is not seen. */
CUDA_INLINE float score_of(const cuda_attention_how_t &how, uint32_t head, float product, int64_t key,
                           key_range seen, int64_t position)
{
    float slope;
    if (key < seen.begin || key >= seen.end) return -INFINITY;
    return pair_score(how, head, product, key + static_cast<int64_t>(how.k_begin) - position, &slope);
}

/* Of the four lanes that share a row. */
CUDA_INLINE float quad_max(float value)
{
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
    return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

CUDA_INLINE float quad_sum(float value)
{
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

/* One of a lane's two rows. */
struct softmax_row {
    float largest, total;
};

/* Scores become shares; the row's state moves on. Returns what the sums so far shrink by. `half`: 0 for
 * row g, 2 for row g + 8, an index into the results. */
template <uint32_t Tiles>
CUDA_INLINE float shares_form(float (*scores)[4], uint32_t half, softmax_row *row)
{
    constexpr float log2e = 1.44269504f;
    float top = row->largest, sum = 0;
#pragma unroll
    for (uint32_t n = 0; n < Tiles; n++)
        top = fmaxf(top, fmaxf(scores[n][half], scores[n][half + 1]));
    top = quad_max(top);
    const float base = top == -INFINITY ? 0.0f : top;
#pragma unroll
    for (uint32_t n = 0; n < Tiles; n++) {
#pragma unroll
        for (uint32_t i = half; i < half + 2; i++) {
            scores[n][i] = exp2f((scores[n][i] - base) * log2e);
            sum += scores[n][i];
        }
    }
    const float shrink = exp2f((row->largest - base) * log2e);
    row->largest = top;
    row->total = row->total * shrink + quad_sum(sum);
    return shrink;
}

/* Dynamic shared memory: 64 rows of q, of k and of v. */
template <uint32_t D> CUDA_INLINE void attention_forward(const cuda_attention_t &p, uint16_t *shared)
{
    constexpr uint32_t K_ROWS = 64;
    __shared__ key_range seen[Q_ROWS];
    const cuda_attention_how_t &how = p.how;
    uint16_t *q = shared, *k = q + Q_ROWS * tile_pitch<D>, *v = k + K_ROWS * tile_pitch<D>;
    const uint32_t d = how.head_dim, dv = how.value_dim;
    const uint32_t head = blockIdx.y, key_head = head * how.kv_heads / how.heads;
    /* The last queries see the most keys: they go first. */
    const uint64_t first = static_cast<uint64_t>(gridDim.x - 1 - blockIdx.x) * Q_ROWS;
    const uint64_t rows = p.q.rows - first < Q_ROWS ? p.q.rows - first : Q_ROWS;
    const uint32_t row = threadIdx.x / WARP * 16, g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    const uint64_t q_column = static_cast<uint64_t>(head) * d;
    const uint64_t k_column = static_cast<uint64_t>(key_head) * d;
    const uint64_t v_column = static_cast<uint64_t>(key_head) * dv;

    for (uint32_t i = threadIdx.x; i < Q_ROWS; i += TENSOR_THREADS) {
        const key_range none = {0, 0};
        seen[i] = i < rows ? keys_seen(how, query_position(how, first + i, 0), p.k.rows) : none;
    }
    tile_begin<D, Q_ROWS, TENSOR_THREADS>(q, p.q, first, rows, q_column, d);
    __syncthreads();
    int64_t begin = INT64_MAX, end = 0;
    for (uint32_t i = 0; i < Q_ROWS; i++) {
        if (seen[i].begin >= seen[i].end) continue;
        begin = at_most(begin, seen[i].begin);
        end = at_least(end, seen[i].end);
    }
    begin = begin / K_ROWS * K_ROWS;
    const key_range low = seen[row + g], high = seen[row + g + 8];
    const int64_t position = query_position(how, first + row + g, 0);
    softmax_row row_low = {-INFINITY, 0}, row_high = {-INFINITY, 0};
    float sums[D / 8][4] = {};

    if (begin < end) {
        const uint64_t left = p.k.rows - static_cast<uint64_t>(begin);
        tile_begin<D, K_ROWS, TENSOR_THREADS>(k, p.k, static_cast<uint64_t>(begin), left, k_column, d);
    }
    copy_group();
    for (int64_t k0 = begin; k0 < end; k0 += K_ROWS) {
        const uint64_t at = static_cast<uint64_t>(k0), left = p.k.rows - at;
        float scores[K_ROWS / 8][4] = {};
        tile_begin<D, K_ROWS, TENSOR_THREADS>(v, p.v, at, left, v_column, dv);
        copy_group();
        copy_wait<1>();
        __syncthreads(); /* q and k are there */
        product_of_rows<D, K_ROWS>(scores, q, row, k);
        const bool whole = k0 >= low.begin && k0 >= high.begin && k0 + K_ROWS <= low.end &&
                           k0 + K_ROWS <= high.end && how.soft_cap == 0 && how.slopes == nullptr;
        if (__ballot_sync(0xffffffffu, whole) == 0xffffffffu) {
#pragma unroll
            for (uint32_t n = 0; n < K_ROWS / 8; n++)
                for (uint32_t i = 0; i < 4; i++)
                    scores[n][i] *= how.scale;
        } else {
#pragma unroll
            for (uint32_t n = 0; n < K_ROWS / 8; n++)
                for (uint32_t i = 0; i < 4; i++)
                    scores[n][i] = score_of(how, head, scores[n][i], k0 + n * 8 + 2 * t + i % 2,
                                            i < 2 ? low : high, i < 2 ? position : position + 8);
        }
        const float shrink_low = shares_form<K_ROWS / 8>(scores, 0, &row_low);
        const float shrink_high = shares_form<K_ROWS / 8>(scores, 2, &row_high);
#pragma unroll
        for (uint32_t n = 0; n < D / 8; n++) {
            sums[n][0] *= shrink_low, sums[n][1] *= shrink_low;
            sums[n][2] *= shrink_high, sums[n][3] *= shrink_high;
        }
        __syncthreads(); /* all have read k */
        if (k0 + K_ROWS < end)
            tile_begin<D, K_ROWS, TENSOR_THREADS>(k, p.k, at + K_ROWS, left - K_ROWS, k_column, d);
        copy_group();
        copy_wait<1>();
        __syncthreads(); /* v is there */
        product_add<D, K_ROWS>(sums, scores, v);
        __syncthreads(); /* all have read v */
    }
    copy_wait<0>(); /* q, where no key is seen: no copy outlives its block */
    results_store<D>(p.y, first, rows, row, static_cast<uint64_t>(head) * dv, dv, sums,
                     row_low.total > 0 ? 1.0f / row_low.total : 0.0f,
                     row_high.total > 0 ? 1.0f / row_high.total : 0.0f);
    if (p.lse == nullptr || t != 0) return;
    float *lse = p.lse + head * p.lse_pitch + first;
    if (row + g < rows)
        lse[row + g] = row_low.total > 0 ? row_low.largest + logf(row_low.total) : -INFINITY;
    if (row + g + 8 < rows)
        lse[row + g + 8] = row_high.total > 0 ? row_high.largest + logf(row_high.total) : -INFINITY;
}

CUDA_KERNEL(cuda_attention_tensor_64, CUDA_TENSOR_THREADS)
{
    CUDA_DYNAMIC(uint16_t, shared);
    attention_forward<64>(p, shared);
}

CUDA_KERNEL(cuda_attention_tensor_128, CUDA_TENSOR_THREADS)
{
    CUDA_DYNAMIC(uint16_t, shared);
    attention_forward<128>(p, shared);
}
