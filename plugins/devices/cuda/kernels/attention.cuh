/* attention.cuh - what attention's kernels share: which keys a query sees, and tiles.
 *
 * All that hides a key (document, causality, window, what the cache holds) leaves an interval of keys
 * to each query, so a tile is skipped when no interval meets it and a pair is tested by two
 * comparisons. */
#ifndef CUDA_ATTENTION_CUH
#define CUDA_ATTENTION_CUH

#include "kernel.cuh"

constexpr uint32_t TILE = CUDA_TILE, TILE_COLUMNS = CUDA_TILE_COLUMNS;
constexpr uint32_t TILE_THREADS = TILE * TILE_COLUMNS;
/* Components of a head that a thread keeps: every eighth. */
constexpr uint32_t COMPONENTS = CUDA_HEAD_LIMIT / TILE_COLUMNS;

/* Rows of k's tensor: a query sees those in [begin, end). */
struct key_range {
    int64_t begin, end;
};

CUDA_INLINE int64_t at_least(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

CUDA_INLINE int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The last document that begins at or before the row; its rows, or none behind the last one. */
CUDA_INLINE key_range document_rows(const cuda_attention_how_t &how, int64_t row)
{
    if (how.document_rows != 0) {
        const int64_t begin = row - row % how.document_rows;
        return key_range{begin, begin + how.document_rows};
    }
    uint32_t low = 0, high = how.documents; /* the answer is in [low, high) */
    key_range none = {0, 0};
    if (how.documents == 0 || how.starts[0] > row) return none;
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (how.starts[middle] <= row)
            low = middle;
        else
            high = middle;
    }
    if (row >= how.starts[low + 1]) return none;
    return key_range{how.starts[low], how.starts[low + 1]};
}

/* Row of the sequence that query row i is, of sequence s of a cache. */
CUDA_INLINE int64_t query_position(const cuda_attention_how_t &how, uint64_t i, uint64_t s)
{
    if (how.lengths != nullptr) return how.lengths[s] + static_cast<int64_t>(i);
    return static_cast<int64_t>(how.q_begin + i);
}

/* k_rows: rows of k, of one sequence of a cache. */
CUDA_INLINE key_range keys_seen(const cuda_attention_how_t &how, int64_t position, uint64_t k_rows)
{
    key_range r = {0, static_cast<int64_t>(how.capacity)};
    if (how.lengths == nullptr) r = document_rows(how, position);
    if (how.full == 0) r.end = at_most(r.end, position + 1);
    if (how.window != 0) {
        r.begin = at_least(r.begin, position - static_cast<int64_t>(how.window) + 1);
        r.end = at_most(r.end, position + static_cast<int64_t>(how.window));
    }
    r.begin = at_least(r.begin - static_cast<int64_t>(how.k_begin), 0);
    r.end = at_most(r.end - static_cast<int64_t>(how.k_begin), static_cast<int64_t>(k_rows));
    return r;
}

/* 32 rows of one head, in F32, `pitch` floats apart: an odd number, as eight keys are read at once.
 * Rows from `rows` on are 0. `first` is the tensor's row, `column` the head's first component. */
CUDA_INLINE void tile_load(float *tile, uint32_t pitch, const cuda_view_t &x, uint64_t first,
                           uint64_t rows, uint64_t column, uint32_t width)
{
    const uint32_t lane = threadIdx.x % WARP;
    for (uint32_t r = threadIdx.x / WARP; r < TILE; r += TILE_THREADS / WARP) {
        for (uint32_t c = lane; c < width; c += WARP)
            tile[r * pitch + c] = r < rows ? view_load(x, first + r, column + c) : 0.0f;
    }
}

CUDA_INLINE float tile_dot(const float *a, const float *b, uint32_t width)
{
    float sum = 0;
    for (uint32_t c = 0; c < width; c++)
        sum += a[c] * b[c];
    return sum;
}

/* Of the eight threads that share a row. */
CUDA_INLINE float row_sum(float value)
{
    for (int apart = TILE_COLUMNS / 2; apart > 0; apart /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, apart);
    return value;
}

CUDA_INLINE float row_max(float value)
{
    for (int apart = TILE_COLUMNS / 2; apart > 0; apart /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, apart));
    return value;
}

/* sums[i] += sum over the tile's 32 rows of factors[row] tile[row, column + 8 i]. One row at a time: an
 * unrolled loop of both would be thousands of instructions. */
CUDA_INLINE void components_add(float sums[COMPONENTS], const float *factors, const float *tile,
                                uint32_t pitch, uint32_t column, uint32_t width)
{
#pragma unroll 1
    for (uint32_t r = 0; r < TILE; r++) {
        const float factor = factors[r], *at = tile + r * pitch;
#pragma unroll
        for (uint32_t i = 0; i < COMPONENTS; i++) {
            const uint32_t c = column + i * TILE_COLUMNS;
            if (c < width) sums[i] += factor * at[c];
        }
    }
}

/* The score from q.k; *slope is its derivative by scale q.k. distance: key's row less query's. */
CUDA_INLINE float pair_score(const cuda_attention_how_t &how, uint32_t head, float product,
                             int64_t distance, float *slope)
{
    float s = product * how.scale;
    *slope = 1;
    if (how.soft_cap != 0) {
        const float t = tanhf(s / how.soft_cap);
        s = how.soft_cap * t;
        *slope = 1 - t * t;
    }
    if (how.slopes != nullptr) s += how.slopes[head] * static_cast<float>(distance);
    return s;
}

/* What the gradients need of a tile of queries beside their rows; loaded by the block's first threads. */
template <uint32_t Rows> struct queries_known {
    key_range seen[Rows];
    float lse[Rows], level[Rows];
};

template <uint32_t Rows>
CUDA_INLINE void queries_load(queries_known<Rows> *known, const cuda_attention_grad_query_t &p,
                              uint32_t head, uint64_t first)
{
    if (threadIdx.x >= Rows) return;
    const uint64_t i = first + threadIdx.x;
    const bool mine = i < p.q.rows;
    const key_range none = {0, 0};
    known->seen[threadIdx.x] = mine ? keys_seen(p.how, query_position(p.how, i, 0), p.k.rows) : none;
    known->lse[threadIdx.x] = mine ? p.lse[head * p.lse_pitch + i] : 0.0f;
    known->level[threadIdx.x] = mine ? p.level[head * p.q.rows + i] : 0.0f;
}

/* Keys that any of the queries sees; begin >= end: none. */
template <uint32_t Rows> CUDA_INLINE key_range queries_range(const queries_known<Rows> &known)
{
    key_range r = {INT64_MAX, 0};
    for (uint32_t i = 0; i < Rows; i++) {
        if (known.seen[i].begin >= known.seen[i].end) continue;
        r.begin = at_most(r.begin, known.seen[i].begin);
        r.end = at_least(r.end, known.seen[i].end);
    }
    return r;
}

#endif
