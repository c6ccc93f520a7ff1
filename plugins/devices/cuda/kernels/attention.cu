/* attention.cu - attention forward, plain: tiles of 32 queries and 32 keys in F32, the softmax formed
 * on the way (Dao et al., 2022), every attribute of the op, heads of up to 256 components.
 *
 * A block takes 32 queries of one head. Eight threads share a query: each scores four keys of a tile
 * and keeps every eighth component of the sum. Products are formed by the FMA units: exact enough for
 * F32, and slow beside tensor cores. The order of sums depends on rows alone. */
#include "attention.cuh"

/* Dynamic shared memory: 32 rows of q, then of k or v, pitches as below. */
CUDA_KERNEL(cuda_attention, TILE_THREADS)
{
    CUDA_DYNAMIC(float, shared);
    __shared__ float shares[TILE][TILE + 1];
    __shared__ key_range seen[TILE];
    const cuda_attention_how_t &how = p.how;
    const uint32_t d = how.head_dim, dv = how.value_dim, pitch = d | 1, value_pitch = dv | 1;
    float *q = shared, *kv = shared + TILE * pitch;
    const uint32_t row = threadIdx.x / TILE_COLUMNS, column = threadIdx.x % TILE_COLUMNS;
    const uint32_t head = blockIdx.y, key_head = head * how.kv_heads / how.heads;
    const uint64_t s = blockIdx.z; /* sequence of a cache */
    const uint64_t q_rows = how.lengths != nullptr ? how.sequence_rows : p.q.rows;
    const uint64_t k_rows = how.lengths != nullptr ? how.capacity : p.k.rows;
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * TILE;
    const uint64_t rows = q_rows - first < TILE ? q_rows - first : TILE;
    const uint64_t q_at = s * q_rows + first, k_at = s * k_rows;

    if (threadIdx.x < TILE) {
        const key_range none = {0, 0};
        const int64_t position = query_position(how, first + threadIdx.x, s);
        seen[threadIdx.x] = threadIdx.x < rows ? keys_seen(how, position, k_rows) : none;
    }
    tile_load(q, pitch, p.q, q_at, rows, static_cast<uint64_t>(head) * d, d);
    __syncthreads();
    int64_t begin = INT64_MAX, end = 0; /* keys that any of the rows sees */
    for (uint32_t i = 0; i < TILE; i++) {
        if (seen[i].begin >= seen[i].end) continue;
        begin = at_most(begin, seen[i].begin);
        end = at_least(end, seen[i].end);
    }
    const key_range mine = seen[row];
    const int64_t position = query_position(how, first + row, s);

    float largest = -INFINITY, total = 0, sums[COMPONENTS] = {};
    for (int64_t k0 = begin / TILE * TILE; k0 < end; k0 += TILE) {
        const uint64_t left = k_rows - static_cast<uint64_t>(k0);
        const uint64_t keys = left < TILE ? left : TILE;
        __syncthreads();
        tile_load(kv, pitch, p.k, k_at + static_cast<uint64_t>(k0), keys,
                  static_cast<uint64_t>(key_head) * d, d);
        __syncthreads();

        float score[TILE / TILE_COLUMNS], top = largest, slope;
        for (uint32_t j = 0; j < TILE / TILE_COLUMNS; j++) {
            const uint32_t key = column + j * TILE_COLUMNS;
            const int64_t at = k0 + key;
            score[j] = -INFINITY;
            if (at < mine.begin || at >= mine.end) continue;
            const float product = tile_dot(q + row * pitch, kv + key * pitch, d);
            score[j] = pair_score(how, head, product,
                                  at + static_cast<int64_t>(how.k_begin) - position, &slope);
            top = fmaxf(top, score[j]);
        }
        top = row_max(top);
        float sum = 0;
        for (uint32_t j = 0; j < TILE / TILE_COLUMNS; j++) {
            const float share = score[j] == -INFINITY ? 0.0f : expf(score[j] - top);
            shares[row][column + j * TILE_COLUMNS] = share;
            sum += share;
        }
        const float shrink = largest == -INFINITY ? 0.0f : expf(largest - top);
        total = total * shrink + row_sum(sum);
        largest = top;

        __syncthreads();
        tile_load(kv, value_pitch, p.v, k_at + static_cast<uint64_t>(k0), keys,
                  static_cast<uint64_t>(key_head) * dv, dv);
        __syncthreads();
#pragma unroll
        for (uint32_t i = 0; i < COMPONENTS; i++)
            sums[i] *= shrink;
        components_add(sums, shares[row], kv, value_pitch, column, dv);
    }
    if (row >= rows) return;
    const float inverse = total > 0 ? 1.0f / total : 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < COMPONENTS; i++) {
        const uint32_t c = column + i * TILE_COLUMNS;
        if (c < dv) view_store(p.y, q_at + row, static_cast<uint64_t>(head) * dv + c, sums[i] * inverse);
    }
    if (p.lse != nullptr && column == 0)
        p.lse[head * p.lse_pitch + first + row] = total > 0 ? largest + logf(total) : -INFINITY;
}

/* A document's first row, of places up to and including the last: the end. */
CUDA_INLINE int64_t document_first(const cuda_attention_packed_t &p, uint64_t place)
{
    const int64_t row = p.starts[place < p.documents ? place : p.documents];
    return at_most(at_least(row, 0), static_cast<int64_t>(p.rows));
}

CUDA_KERNEL(cuda_attention_packed, CUDA_THREADS)
{
    const uint64_t place = static_cast<uint64_t>(blockIdx.x) * CUDA_THREADS + threadIdx.x;
    if (place > p.places) return;
    const int64_t first = document_first(p, place);
    if (place < p.places)
        p.lengths[place] = static_cast<int32_t>(document_first(p, place + 1) - first);
    for (uint32_t i = 0; i < p.arrays; i++)
        p.offsets[i * (static_cast<uint64_t>(p.places) + 1) + place] =
            static_cast<int32_t>(first * p.factor[i]);
}

/* A block takes a row; nearly all end at once. */
CUDA_KERNEL(cuda_attention_outside, CUDA_THREADS)
{
    const uint64_t row = blockIdx.x;
    const int64_t at = static_cast<int64_t>(row);
    if (p.documents > 0 && at >= p.starts[0] && at < p.starts[p.documents]) return;
    for (uint32_t i = 0; i < 3; i++) {
        if (p.out[i].at == nullptr) continue;
        for (uint64_t c = threadIdx.x; c < p.out[i].width; c += CUDA_THREADS)
            view_store(p.out[i], row, c, 0.0f);
    }
    if (p.lse == nullptr) return;
    for (uint32_t head = threadIdx.x; head < p.heads; head += CUDA_THREADS)
        p.lse[head * p.lse_pitch + row] = -INFINITY;
}

/* cache[s, lengths[s] + j] = x[s rows + j]; what lies past the capacity is dropped. */
CUDA_KERNEL(cuda_cache_write, CUDA_THREADS)
{
    uint64_t row, column;
    if (!octet_mine(p.x, &row, &column)) return;
    const uint64_t s = row / p.rows, to = static_cast<uint64_t>(p.lengths[s]) + (row - s * p.rows);
    if (to >= p.capacity) return;
    octet_store(p.cache, s * p.capacity + to, column, p.x.width,
                octet_load(p.x, row, column, p.x.width));
}
