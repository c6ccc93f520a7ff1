/* rows_attention.c - attention, its gradient, and the cache of generation. */
#include "cuda_rows.h"

#include <math.h>
#include <stdio.h>

/* Shared memory that the kernels keep beside what a launch asks for: more than any of them does. Blocks have
 * 163 KiB in all on 8.0, 227 on 9.0 and 10.0, 99 on 8.6, 8.9 and 12.0, which hold no gradient of F32 heads of
 * more than some 160 components. */
enum { SHARED_KEPT = 16 << 10 };

static uint64_t value_dim(const lh_attention_t *how)
{
    return how->value_dim != 0 ? how->value_dim : how->head_dim;
}

static uint64_t key_heads(const lh_attention_t *how)
{
    return how->kv_heads != 0 ? how->kv_heads : how->heads;
}

/* Floats of a tile row: odd. */
static uint64_t pitch_of(uint64_t width)
{
    return width | 1;
}

/* Widths of heads, and that `shared` bytes are there. */
static lh_status_t heads_check(const lh_prepared_t *k, uint64_t shared)
{
    const lh_attention_t *how = &k->how.attention;
    if (shared + SHARED_KEPT > k->shared_most && how->head_dim <= CUDA_HEAD_LIMIT &&
        value_dim(how) <= CUDA_HEAD_LIMIT)
        return k->host->fail(
            k->host, LH_UNSUPPORTED,
            "%s: heads of %u and %llu components take %llu bytes of shared memory, a "
            "block of this GPU has %llu",
            k->op->name, how->head_dim, (unsigned long long)value_dim(how),
            (unsigned long long)shared + SHARED_KEPT, (unsigned long long)k->shared_most);
    if (how->heads == 0 || how->head_dim == 0 || how->head_dim > CUDA_HEAD_LIMIT ||
        value_dim(how) > CUDA_HEAD_LIMIT)
        return k->host->fail(k->host, LH_UNSUPPORTED,
                             "%s: %u heads of %u and %llu components; heads have at most %d",
                             k->op->name, how->heads, how->head_dim,
                             (unsigned long long)value_dim(how), CUDA_HEAD_LIMIT);
    return LH_OK;
}

static cuda_attention_how_t attention_how_fill(const lh_prepared_t *k, uint32_t slopes)
{
    const lh_attention_t *how = &k->how.attention;
    const double scale = how->scale != 0 ? how->scale : 1 / sqrt((double)how->head_dim);
    return (cuda_attention_how_t){.slopes = cuda_has(k, slopes) ? k->view[slopes].at : NULL,
                                  .q_begin = how->q_begin,
                                  .k_begin = how->k_begin,
                                  .document_rows = how->document_rows,
                                  .heads = how->heads,
                                  .kv_heads = (uint32_t)key_heads(how),
                                  .head_dim = how->head_dim,
                                  .value_dim = (uint32_t)value_dim(how),
                                  .window = how->window,
                                  .full = how->full,
                                  .scale = (float)scale,
                                  .soft_cap = (float)how->soft_cap};
}

/* Tensor cores take BF16 and heads of up to 128 components; 0: the plain kernels, else the components
 * that a tile's rows are filled up to. */
enum { TENSOR = 0 }; /* k->number[] */

static uint64_t tensor_width(const lh_prepared_t *k)
{
    const lh_attention_t *how = &k->how.attention;
    const uint64_t most = how->head_dim > value_dim(how) ? how->head_dim : value_dim(how);
    if (k->arg[0].dtype != LH_DTYPE_BF16 || most > 128) return 0;
    return most <= 64 ? 64 : 128;
}

/* The bits are others than the plain kernels'. */
static void tensor_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    k->number[TENSOR] = tensor_width(k);
    if (k->number[TENSOR] == 0) return;
    plan->variant = 2;
    snprintf(plan->name, sizeof(plan->name), "%s.bf16.cuda.tensor", k->op->name);
}

/* `rows` of BF16 in shared memory, as kernels/tensor.cuh lays them out. */
static uint32_t tensor_shared(uint64_t rows, uint64_t width)
{
    return (uint32_t)(rows * (width + 8) * sizeof(uint16_t));
}

/* ---- attention: q k v starts slopes? -> y lse? ---- */

static uint64_t forward_shared(const lh_attention_t *how)
{
    const uint64_t d = pitch_of(how->head_dim), dv = pitch_of(value_dim(how));
    return CUDA_TILE * (d + (d > dv ? d : dv)) * sizeof(float);
}

static lh_status_t attention_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_ATTENTION_TEXT);
    tensor_plan(k, plan);
    const lh_attention_t *how = &k->how.attention;
    const uint64_t t = k->view[in_q].rows, keys = k->view[in_k].rows;
    lh_status_t status = heads_check(k, forward_shared(how));
    if (status == LH_OK)
        status = cuda_check_shape(k, in_q, t, (uint64_t)how->heads * how->head_dim);
    if (status == LH_OK) status = cuda_check_shape(k, in_k, keys, key_heads(how) * how->head_dim);
    if (status == LH_OK) status = cuda_check_shape(k, in_v, keys, key_heads(how) * value_dim(how));
    if (status == LH_OK) status = cuda_check_shape(k, out_y, t, how->heads * value_dim(how));
    if (status == LH_OK) status = cuda_check_flat(k, in_slopes, how->heads);
    if (status == LH_OK) status = cuda_check_shape(k, out_lse, how->heads, t);
    return status;
}

static lh_status_t attention_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_ATTENTION_TEXT);
    cuda_attention_t p = {.how = attention_how_fill(k, in_slopes),
                          .q = k->view[in_q],
                          .k = k->view[in_k],
                          .v = k->view[in_v],
                          .y = k->view[out_y],
                          .lse = cuda_has(k, out_lse) ? k->view[out_lse].at : NULL,
                          .lse_pitch = k->view[out_lse].pitch};
    p.how.starts = k->view[in_starts].at;
    p.how.documents = (uint32_t)(cuda_elements(&k->view[in_starts]) - 1);
    cuda_shape_t shape = {.grid = {(uint32_t)cuda_parts(p.q.rows, CUDA_TILE), p.how.heads, 1},
                          .block = {CUDA_TILE * CUDA_TILE_COLUMNS, 1, 1},
                          .shared_bytes = (uint32_t)forward_shared(&k->how.attention)};
    if (k->number[TENSOR] == 0) return cuda_launch(s, "cuda_attention", &shape, &p, sizeof(p));
    shape.grid[0] = (uint32_t)cuda_parts(p.q.rows, CUDA_TENSOR_ROWS);
    shape.block[0] = CUDA_TENSOR_THREADS;
    shape.shared_bytes = tensor_shared(3 * (uint64_t)CUDA_TENSOR_ROWS, k->number[TENSOR]);
    return cuda_launch(
        s, k->number[TENSOR] == 64 ? "cuda_attention_tensor_64" : "cuda_attention_tensor_128",
        &shape, &p, sizeof(p));
}

/* ---- attention_grad: gy q k v starts slopes? y lse -> gq gk gv ---- */

static uint64_t backward_shared(const lh_attention_t *how)
{
    return 2 * CUDA_TILE * (pitch_of(how->head_dim) + pitch_of(value_dim(how))) * sizeof(float);
}

static lh_status_t attention_grad_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_ATTENTION_GRAD_TEXT);
    const lh_attention_t *how = &k->how.attention;
    const uint64_t t = k->view[in_q].rows, keys = k->view[in_k].rows;
    lh_status_t status = heads_check(k, backward_shared(how));
    if (status == LH_OK)
        status = cuda_check_shape(k, in_q, t, (uint64_t)how->heads * how->head_dim);
    if (status == LH_OK) status = cuda_check_shape(k, in_k, keys, key_heads(how) * how->head_dim);
    if (status == LH_OK) status = cuda_check_shape(k, in_v, keys, key_heads(how) * value_dim(how));
    if (status == LH_OK) status = cuda_check_shape(k, in_gy, t, how->heads * value_dim(how));
    if (status == LH_OK) status = cuda_check_like(k, in_gy, in_y);
    if (status == LH_OK) status = cuda_check_flat(k, in_slopes, how->heads);
    if (status == LH_OK) status = cuda_check_shape(k, in_lse, how->heads, t);
    if (status == LH_OK) status = cuda_check_like(k, in_q, out_gq);
    if (status == LH_OK) status = cuda_check_like(k, in_k, out_gk);
    if (status == LH_OK) status = cuda_check_like(k, in_v, out_gv);
    plan->scratch_bytes = how->heads * t * sizeof(float); /* level */
    tensor_plan(k, plan);
    return status;
}

static const char *const query_kernels[] = {"cuda_attention_grad_query",
                                            "cuda_attention_tensor_grad_query_64",
                                            "cuda_attention_tensor_grad_query_128"};
static const char *const key_kernels[] = {"cuda_attention_grad_key",
                                          "cuda_attention_tensor_grad_key_64",
                                          "cuda_attention_tensor_grad_key_128"};

static lh_status_t attention_grad_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_ATTENTION_GRAD_TEXT);
    const uint32_t warps = CUDA_THREADS / 32;
    cuda_attention_level_t level = {.gy = k->view[in_gy],
                                    .y = k->view[in_y],
                                    .level = k->scratch,
                                    .heads = k->how.attention.heads,
                                    .value_dim = (uint32_t)value_dim(&k->how.attention)};
    const cuda_shape_t rows = {
        .grid = {(uint32_t)cuda_parts(level.heads * level.gy.rows, warps), 1, 1},
        .block = {32, warps, 1}};
    lh_status_t status = cuda_launch(s, "cuda_attention_level", &rows, &level, sizeof(level));
    if (status != LH_OK) return status;

    cuda_attention_grad_query_t p = {.how = attention_how_fill(k, in_slopes),
                                     .gy = k->view[in_gy],
                                     .q = k->view[in_q],
                                     .k = k->view[in_k],
                                     .v = k->view[in_v],
                                     .gq = k->view[out_gq],
                                     .gk = k->view[out_gk],
                                     .gv = k->view[out_gv],
                                     .lse = k->view[in_lse].at,
                                     .lse_pitch = k->view[in_lse].pitch,
                                     .level = k->scratch};
    p.how.starts = k->view[in_starts].at;
    p.how.documents = (uint32_t)(cuda_elements(&k->view[in_starts]) - 1);
    cuda_shape_t shape = {.grid = {(uint32_t)cuda_parts(p.q.rows, CUDA_TILE), p.how.heads, 1},
                          .block = {CUDA_TILE * CUDA_TILE_COLUMNS, 1, 1},
                          .shared_bytes = (uint32_t)backward_shared(&k->how.attention)};
    uint64_t tile = CUDA_TILE;
    uint32_t which = 0; /* of the kernels below */
    if (k->number[TENSOR] != 0) {
        tile = CUDA_TENSOR_ROWS;
        which = k->number[TENSOR] == 64 ? 1 : 2;
        shape.block[0] = CUDA_TENSOR_THREADS;
        shape.shared_bytes = tensor_shared(2 * (CUDA_TENSOR_ROWS + CUDA_TENSOR_WALK),
                                           k->number[TENSOR]);
    }
    shape.grid[0] = (uint32_t)cuda_parts(p.q.rows, tile);
    status = cuda_launch(s, query_kernels[which], &shape, &p, sizeof(p));
    if (status != LH_OK) return status;
    shape.grid[0] = (uint32_t)cuda_parts(p.k.rows, tile);
    shape.grid[1] = p.how.kv_heads;
    return cuda_launch(s, key_kernels[which], &shape, &p, sizeof(p));
}

/* ---- cache_write and attention_cached ---- */

static lh_status_t cache_write_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_CACHE_WRITE_TEXT);
    (void)plan;
    const uint64_t sequences = cuda_elements(&k->view[in_lengths]);
    const lh_arg_t *cache = &k->arg[out_cache];
    if (cache->rank != 3 || cache->shape[0] != sequences || k->view[in_x].rows % sequences != 0 ||
        cache->shape[2] != k->view[in_x].width)
        return k->host->fail(
            k->host, LH_UNSUPPORTED,
            "cache_write: %llu rows of %llu for a cache of %llu x %llu x %llu",
            (unsigned long long)k->view[in_x].rows, (unsigned long long)k->view[in_x].width,
            (unsigned long long)cache->shape[0], (unsigned long long)cache->shape[1],
            (unsigned long long)cache->shape[2]);
    return cuda_check_like(k, in_cache, out_cache);
}

static lh_status_t cache_write_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_CACHE_WRITE_TEXT);
    const cuda_cache_write_t p = {.x = k->view[in_x],
                                  .cache = k->view[out_cache],
                                  .lengths = k->view[in_lengths].at,
                                  .rows = k->view[in_x].rows / cuda_elements(&k->view[in_lengths]),
                                  .capacity = k->arg[out_cache].shape[1]};
    return cuda_launch_octets(s, "cuda_cache_write", &p.x, &p, sizeof(p));
}

static lh_status_t attention_cached_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_ATTENTION_CACHED_TEXT);
    (void)plan;
    const lh_attention_t *how = &k->how.attention;
    const uint64_t sequences = cuda_elements(&k->view[in_lengths]), t = k->view[in_q].rows;
    const uint64_t capacity = k->arg[in_k_cache].shape[1], rows = sequences * capacity;
    lh_status_t status = heads_check(k, forward_shared(how));
    if (status == LH_OK &&
        (k->arg[in_k_cache].rank != 3 || t % sequences != 0 || sequences > 65535))
        status = k->host->fail(k->host, LH_UNSUPPORTED,
                               "attention_cached: %llu queries of %llu sequences",
                               (unsigned long long)t, (unsigned long long)sequences);
    if (status == LH_OK)
        status = cuda_check_shape(k, in_q, t, (uint64_t)how->heads * how->head_dim);
    if (status == LH_OK)
        status = cuda_check_shape(k, in_k_cache, rows, key_heads(how) * how->head_dim);
    if (status == LH_OK)
        status = cuda_check_shape(k, in_v_cache, rows, key_heads(how) * value_dim(how));
    if (status == LH_OK) status = cuda_check_flat(k, in_slopes, how->heads);
    if (status == LH_OK) status = cuda_check_shape(k, out_y, t, how->heads * value_dim(how));
    return status;
}

static lh_status_t attention_cached_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_ATTENTION_CACHED_TEXT);
    const uint64_t sequences = cuda_elements(&k->view[in_lengths]);
    cuda_attention_t p = {.how = attention_how_fill(k, in_slopes),
                          .q = k->view[in_q],
                          .k = k->view[in_k_cache],
                          .v = k->view[in_v_cache],
                          .y = k->view[out_y]};
    p.how.lengths = k->view[in_lengths].at;
    p.how.sequence_rows = p.q.rows / sequences;
    p.how.capacity = k->arg[in_k_cache].shape[1];
    p.how.full = 0;
    p.how.q_begin = p.how.k_begin = 0;
    const cuda_shape_t shape = {.grid = {(uint32_t)cuda_parts(p.how.sequence_rows, CUDA_TILE),
                                         p.how.heads, (uint32_t)sequences},
                                .block = {CUDA_TILE * CUDA_TILE_COLUMNS, 1, 1},
                                .shared_bytes = (uint32_t)forward_shared(&k->how.attention)};
    return cuda_launch(s, "cuda_attention", &shape, &p, sizeof(p));
}

const cuda_op_t cuda_attention_ops[] = {
    {"attention", "xxxif?xf?", attention_plan, attention_launch},
    {"attention_grad", "xxxxif?xfxxx", attention_grad_plan, attention_grad_launch},
    {"cache_write", "xixx", cache_write_plan, cache_write_launch},
    {"attention_cached", "xxxif?x", attention_cached_plan, attention_cached_launch},
    {NULL, NULL, NULL, NULL},
};
