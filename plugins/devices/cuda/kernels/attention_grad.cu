/* attention_grad.cu - the gradient of attention, plain and ordered: one kernel whose blocks own queries
 * and sum over keys, one whose blocks own keys and sum over queries and the heads that share them. The
 * probabilities are computed twice, and nothing is added by two blocks. */
#include "attention.cuh"

/* level[head, i] = gy[i].y[i]: a warp a row, rows of all heads one after the other. */
CUDA_KERNEL(cuda_attention_level, CUDA_THREADS)
{
    const uint64_t i = team_row(), t = p.gy.rows, head = i / t, row = i - head * t;
    const uint32_t width = head < p.heads ? p.value_dim : 0;
    float sum = 0;
    for (uint32_t c = threadIdx.x; c < width; c += WARP)
        sum += view_load(p.gy, row, head * width + c) * view_load(p.y, row, head * width + c);
    sum = warp_sum(sum);
    if (width > 0 && threadIdx.x == 0) p.level[i] = sum;
}

/* Of a pair that sees each other: the probability, and the loss by scale q.k. */
struct pair_gradient {
    float share, along;
};

/* q, gy, k, v: rows of tiles. row: the query's, of the head's lse and level. */
CUDA_INLINE pair_gradient pair_differentiate(const cuda_attention_how_t &how, uint32_t head,
                                             const float *q, const float *gy, const float *k,
                                             const float *v, int64_t distance, float lse,
                                             float level)
{
    float slope;
    pair_gradient g;
    const float score = pair_score(how, head, tile_dot(q, k, how.head_dim), distance, &slope);
    g.share = expf(score - lse);
    g.along = g.share * (tile_dot(gy, v, how.value_dim) - level) * slope;
    return g;
}

/* Tiles in dynamic shared memory, 32 rows each. */
struct grad_tiles {
    float *q, *k, *gy, *v;
    uint32_t pitch, value_pitch;
};

CUDA_INLINE grad_tiles tiles_at(float *shared, const cuda_attention_how_t &how)
{
    grad_tiles t;
    t.pitch = how.head_dim | 1;
    t.value_pitch = how.value_dim | 1;
    t.q = shared;
    t.k = t.q + TILE * t.pitch;
    t.gy = t.k + TILE * t.pitch;
    t.v = t.gy + TILE * t.value_pitch;
    return t;
}

CUDA_INLINE uint64_t tile_rows(uint64_t rows, uint64_t first)
{
    return rows - first < TILE ? rows - first : TILE;
}

/* gq: block (tile of queries, head). */
CUDA_KERNEL(cuda_attention_grad_query, TILE_THREADS)
{
    CUDA_DYNAMIC(float, shared);
    __shared__ queries_known<TILE> queries;
    __shared__ float along[TILE][TILE + 1];
    const cuda_attention_how_t &how = p.how;
    const grad_tiles t = tiles_at(shared, how);
    const uint32_t d = how.head_dim, dv = how.value_dim;
    const uint32_t row = threadIdx.x / TILE_COLUMNS, column = threadIdx.x % TILE_COLUMNS;
    const uint32_t head = blockIdx.y, key_head = head * how.kv_heads / how.heads;
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * TILE;
    const uint64_t rows = tile_rows(p.q.rows, first);

    queries_load(&queries, p, head, first);
    tile_load(t.q, t.pitch, p.q, first, rows, static_cast<uint64_t>(head) * d, d);
    tile_load(t.gy, t.value_pitch, p.gy, first, rows, static_cast<uint64_t>(head) * dv, dv);
    __syncthreads();
    const key_range all = queries_range(queries), mine = queries.seen[row];
    const float lse = queries.lse[row], level = queries.level[row];
    const int64_t apart = static_cast<int64_t>(how.k_begin) - query_position(how, first + row, 0);
    float sums[COMPONENTS] = {};

    for (int64_t k0 = all.begin / TILE * TILE; k0 < all.end; k0 += TILE) {
        const uint64_t keys = tile_rows(p.k.rows, static_cast<uint64_t>(k0));
        __syncthreads();
        tile_load(t.k, t.pitch, p.k, static_cast<uint64_t>(k0), keys,
                  static_cast<uint64_t>(key_head) * d, d);
        tile_load(t.v, t.value_pitch, p.v, static_cast<uint64_t>(k0), keys,
                  static_cast<uint64_t>(key_head) * dv, dv);
        __syncthreads();
        for (uint32_t key = column; key < TILE; key += TILE_COLUMNS) {
            const int64_t at = k0 + key;
            float g = 0;
            if (at >= mine.begin && at < mine.end)
                g = pair_differentiate(how, head, t.q + row * t.pitch, t.gy + row * t.value_pitch,
                                       t.k + key * t.pitch, t.v + key * t.value_pitch, at + apart,
                                       lse, level)
                        .along;
            along[row][key] = g;
        }
        __syncwarp(); /* the eight threads of a row are in one warp */
        components_add(sums, along[row], t.k, t.pitch, column, d);
    }
    if (row >= rows) return;
#pragma unroll
    for (uint32_t i = 0; i < COMPONENTS; i++) {
        const uint32_t c = column + i * TILE_COLUMNS;
        if (c < d)
            view_store(p.gq, first + row, static_cast<uint64_t>(head) * d + c, sums[i] * how.scale);
    }
}

/* gk and gv: block (tile of keys, key head). Here `row` is a key, and a thread differentiates four
 * queries of each tile. */
CUDA_KERNEL(cuda_attention_grad_key, TILE_THREADS)
{
    CUDA_DYNAMIC(float, shared);
    __shared__ queries_known<TILE> queries;
    __shared__ float along[TILE][TILE + 1], shares[TILE][TILE + 1]; /* [key, query] */
    const cuda_attention_how_t &how = p.how;
    const grad_tiles t = tiles_at(shared, how);
    const uint32_t d = how.head_dim, dv = how.value_dim;
    const uint32_t row = threadIdx.x / TILE_COLUMNS, column = threadIdx.x % TILE_COLUMNS;
    const uint32_t key_head = blockIdx.y;
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * TILE;
    const uint64_t rows = tile_rows(p.k.rows, first);
    const int64_t k0 = static_cast<int64_t>(first), key_at = k0 + row;
    float key_sums[COMPONENTS] = {}, value_sums[COMPONENTS] = {};

    tile_load(t.k, t.pitch, p.k, first, rows, static_cast<uint64_t>(key_head) * d, d);
    tile_load(t.v, t.value_pitch, p.v, first, rows, static_cast<uint64_t>(key_head) * dv, dv);
    for (uint32_t head = 0; head < how.heads; head++) {
        if (head * how.kv_heads / how.heads != key_head) continue;
        for (uint64_t i0 = 0; i0 < p.q.rows; i0 += TILE) {
            __syncthreads();
            queries_load(&queries, p, head, i0);
            __syncthreads();
            const key_range all = queries_range(queries);
            if (all.begin >= k0 + TILE || all.end <= k0) continue; /* the same for all threads */
            tile_load(t.q, t.pitch, p.q, i0, tile_rows(p.q.rows, i0),
                      static_cast<uint64_t>(head) * d, d);
            tile_load(t.gy, t.value_pitch, p.gy, i0, tile_rows(p.q.rows, i0),
                      static_cast<uint64_t>(head) * dv, dv);
            __syncthreads();
            for (uint32_t i = column; i < TILE; i += TILE_COLUMNS) {
                pair_gradient g = {0, 0};
                if (key_at >= queries.seen[i].begin && key_at < queries.seen[i].end)
                    g = pair_differentiate(how, head, t.q + i * t.pitch, t.gy + i * t.value_pitch,
                                           t.k + row * t.pitch, t.v + row * t.value_pitch,
                                           key_at + static_cast<int64_t>(how.k_begin) -
                                               query_position(how, i0 + i, 0),
                                           queries.lse[i], queries.level[i]);
                along[row][i] = g.along;
                shares[row][i] = g.share;
            }
            __syncwarp();
            components_add(key_sums, along[row], t.q, t.pitch, column, d);
            components_add(value_sums, shares[row], t.gy, t.value_pitch, column, dv);
        }
    }
    if (row >= rows) return;
#pragma unroll
    for (uint32_t c = 0; c < COMPONENTS; c++) {
        const uint32_t at = column + c * TILE_COLUMNS;
        if (at < d)
            view_store(p.gk, first + row, static_cast<uint64_t>(key_head) * d + at,
                       key_sums[c] * how.scale);
        if (at < dv)
            view_store(p.gv, first + row, static_cast<uint64_t>(key_head) * dv + at, value_sums[c]);
    }
}
