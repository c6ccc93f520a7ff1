/* cuda_params.h - what each kernel is given: one struct by value, the same for the C file that fills
 * it in and the CUDA file that reads it.
 *
 * A kernel cuda_NAME takes a cuda_NAME_t. Tensors are rows of equal width (cuda_view_t); a vector is
 * one row. Slots that were left out have at == NULL. Pointers are device addresses; counts are of
 * elements, not bytes. What changes between steps lies behind the pointers, so that a captured launch
 * can be replayed. */
#ifndef CUDA_PARAMS_H
#define CUDA_PARAMS_H

#include <stdint.h>

/* Of a view. */
enum {
    CUDA_VIEW_ADD = 1u << 0, /* an output that adds to what lies there                          */
    CUDA_VIEW_VECTOR =
        1u << 1, /* eight elements from a column that 8 divides lie 16-byte aligned */
};

typedef struct cuda_view {
    void *at;
    uint64_t rows, width;
    uint64_t pitch; /* elements from row to row */
    uint32_t dtype; /* LH_DTYPE_*              */
    uint32_t flags; /* CUDA_VIEW_*             */
} cuda_view_t;

/* Sizes on which kernels and launches agree. */
enum {
    CUDA_THREADS = 256,     /* of a block of the kernels that go element by element             */
    CUDA_TEAM_LIMIT = 512,  /* threads that share a row                                         */
    CUDA_COLUMN_LANES = 32, /* of sum_rows and sum_partials: threads side by side ...           */
    CUDA_ROW_LANES = 8,     /* ... and on top of each other                                     */
    CUDA_SQUARES = 4096,    /* elements to a sum of sum_squares                                 */
    CUDA_EMBED_COLUMNS =
        2048,              /* of the table's gradient, to a block: 8 a thread                  */
    CUDA_TILE = 32,        /* query and key rows of a tile of attention                        */
    CUDA_TILE_COLUMNS = 8, /* threads to a row of that tile                                    */
    CUDA_HEAD_LIMIT = 256, /* head_dim and value_dim of attention                              */
    CUDA_TENSOR_ROWS = 64, /* rows that a block of attention on tensor cores owns                 */
    CUDA_TENSOR_THREADS = 128,
    CUDA_TENSOR_WALK = 32, /* rows of a tile that the gradient's blocks walk                      */
    CUDA_PRODUCT_TILE = 64, /* rows and columns of a tile of matmul                             */
    CUDA_PRODUCT_DEPTH = 16,
};

/* ---- element.cu ---- */

typedef struct {
    cuda_view_t x, y;
} cuda_copy_t;

/* Any strides, any dtype; `bytes` of an element where both dtypes are the same, else 0. */
typedef struct {
    const void *x;
    void *y;
    uint64_t shape[4], x_stride[4], y_stride[4]; /* unused dimensions first, of one element */
    uint32_t x_dtype, y_dtype;
    uint32_t bytes, add;
} cuda_copy_strided_t;

typedef struct {
    cuda_view_t y;
} cuda_zero_t;

typedef struct {
    cuda_view_t a, b, y;
} cuda_add_t;

enum { CUDA_FACTOR_EACH = 0, CUDA_FACTOR_COLUMN = 1, CUDA_FACTOR_ROW = 2 };

typedef struct {
    cuda_view_t a, b, y;
    uint32_t factor; /* CUDA_FACTOR_*: what b is */
    uint32_t reserved;
} cuda_multiply_t;

typedef struct {
    cuda_view_t x, y;
    const float *factor;
} cuda_scale_t;

typedef struct {
    cuda_view_t x, y;
    uint32_t function; /* LH_ACT_* */
    uint32_t reserved;
} cuda_activate_t;

typedef struct {
    cuda_view_t gy, x, gx;
    uint32_t function;
    uint32_t reserved;
} cuda_activate_grad_t;

typedef struct {
    cuda_view_t a, b, y;
    uint32_t function;
    uint32_t reserved;
} cuda_gate_t;

typedef struct {
    cuda_view_t gy, a, b, ga, gb;
    uint32_t function;
    uint32_t reserved;
} cuda_gate_grad_t;

/* ---- norm.cu: rms_norm, add_rms_norm and layer_norm are one kernel, and so are their gradients ---- */

typedef struct {
    cuda_view_t x, b; /* b: added to x first; the sum goes to `sum` and is normed as stored there */
    cuda_view_t w,
        bias; /* [d]                                                                     */
    cuda_view_t sum, y;
    float *mean, *rstd; /* one a group, or NULL */
    uint64_t groups;    /* of d columns, in all rows together */
    uint64_t d;
    double epsilon;
    uint32_t one_plus, centred; /* centred: the mean is subtracted */
} cuda_norm_t;

typedef struct {
    cuda_view_t gy, x, w, gx;
    cuda_view_t residual; /* like gx, to which it is added; at: NULL, nothing is */
    const float *mean, *rstd;
    float *weight_sums; /* [blocks, d]: of gy n over the block's groups          */
    float *bias_sums;   /* the same of gy; NULL: not wanted                      */
    uint64_t groups, d, block_groups;
    uint32_t one_plus, centred;
    uint32_t in_shared; /* sums are formed in shared memory: teams (2, with bias) d floats */
    uint32_t reserved;
} cuda_norm_grad_t;

/* ---- rows.cu ---- */

typedef struct {
    cuda_view_t x;
    float *partial;      /* [chunks, width] */
    uint64_t chunk_rows; /* rows to a chunk */
} cuda_sum_rows_t;

typedef struct {
    const float *partial; /* [parts, width] */
    uint64_t parts;
    cuda_view_t y; /* [width] */
    float count;   /* what sums are divided by; 1: they are not, and keep their bits */
    uint32_t reserved;
} cuda_sum_partials_t;

typedef struct {
    cuda_view_t gy, gx; /* [width] F32; [rows, width] */
} cuda_mean_rows_grad_t;

typedef struct {
    cuda_view_t a, b; /* a row each, F32 */
    float *y;         /* [1] */
} cuda_dot_t;

typedef struct {
    cuda_view_t x, y;
} cuda_sum_columns_t;

typedef struct {
    cuda_view_t w, change, magnitude;
    float *y, *inverse; /* [w.rows]; inverse NULL: not wanted */
} cuda_dora_scale_t;

typedef struct {
    cuda_view_t x, y;
} cuda_softmax_t;

typedef struct {
    cuda_view_t gy, y, gx;
} cuda_softmax_grad_t;

/* ---- embed.cu ---- */

typedef struct {
    const int32_t *tokens;
    cuda_view_t table, y;
    uint64_t first, rows; /* of the vocabulary: those that lie in the table */
} cuda_embed_t;

typedef struct {
    const int32_t *tokens;
    cuda_view_t gy, gtable;
    uint64_t first, rows;
} cuda_embed_grad_t;

/* ---- loss.cu ---- */

typedef struct {
    cuda_view_t logits, stats;
    const int32_t *labels;
    uint64_t first, rows;
} cuda_ce_stats_t;

typedef struct {
    cuda_view_t logits, stats, glogits;
    const int32_t *labels;
    const float *weights;
    uint64_t first, rows;
    uint64_t row_begin; /* the launch's first row */
} cuda_ce_grad_t;

typedef struct {
    cuda_view_t logits, glogits;
    const int32_t *labels;
    const float *weights;
    float *stats; /* [rows, 3], for cuda_ce_loss */
} cuda_cross_entropy_t;

typedef struct {
    cuda_view_t stats;
    const float *weights;
    float *loss;
    uint32_t add;
    uint32_t reserved;
} cuda_ce_loss_t;

/* ---- update.cu ---- */

typedef struct {
    cuda_view_t x, y;
} cuda_sum_squares_t;

typedef struct {
    cuda_view_t squares, step, out;
} cuda_clip_t;

typedef struct {
    cuda_view_t g, master, m1, m2, master_out, m1_out, m2_out, w;
    const float *step;
    double beta1, beta2, epsilon, decay;
} cuda_adamw_t;

typedef struct {
    cuda_view_t g, master, m1, master_out, m1_out, w;
    const float *step;
    double momentum, decay;
    uint32_t nesterov;
    uint32_t reserved;
} cuda_sgd_t;

/* ---- rope.cu ---- */

typedef struct {
    cuda_view_t x, y;
    const int32_t *positions;
    const float *frequencies;
    uint32_t heads, head_dim, pairs;
    uint32_t interleaved, inverse;
    float magnitude;
} cuda_rope_t;

/* ---- attention.cu ---- */

/* What forward and backward share. With `lengths` rows of q belong to sequences of a cache, of
 * `sequence_rows` each, whose keys are rows of k from sequence capacity on; starts is not read. */
typedef struct cuda_attention_how {
    const int32_t *starts;  /* [documents + 1] */
    const float *slopes;    /* [heads] or NULL */
    const int32_t *lengths; /* [sequences] or NULL */
    uint64_t q_begin, k_begin, sequence_rows, capacity;
    uint32_t documents;
    uint32_t document_rows; /* of every document; 0: as starts say */
    uint32_t heads, kv_heads, head_dim, value_dim;
    uint32_t window, full;
    float scale, soft_cap;
} cuda_attention_how_t;

typedef struct {
    cuda_attention_how_t how;
    cuda_view_t q, k, v, y;
    float *lse; /* rows lse_pitch apart, one a head; or NULL */
    uint64_t lse_pitch;
} cuda_attention_t, cuda_attention_tensor_64_t, cuda_attention_tensor_128_t;

/* What a library asks of documents that are packed in rows: lengths[places], and for each factor an array
 * of [places + 1] offsets, the document's first row times the factor. Places behind the documents are
 * empty. */
typedef struct {
    const int32_t *starts; /* [documents + 1] */
    int32_t *lengths, *offsets;
    uint64_t rows;
    uint32_t documents, places, arrays;
    uint32_t factor[9];
} cuda_attention_packed_t;

/* Rows that are in no document: 0 in every out, -infinity in lse. */
typedef struct {
    cuda_view_t out[3]; /* at NULL: not there */
    const int32_t *starts;
    float *lse; /* as in cuda_attention_t */
    uint64_t lse_pitch, rows;
    uint32_t documents, heads;
} cuda_attention_outside_t;

typedef struct { /* level[head, i] = gy[i].y[i] */
    cuda_view_t gy, y;
    float *level; /* [heads, t] */
    uint32_t heads, value_dim;
} cuda_attention_level_t;

typedef struct {
    cuda_attention_how_t how;
    cuda_view_t gy, q, k, v, gq, gk, gv;
    const float *lse, *level; /* level: [heads, t] */
    uint64_t lse_pitch;
} cuda_attention_grad_query_t, cuda_attention_grad_key_t, cuda_attention_tensor_grad_query_64_t,
    cuda_attention_tensor_grad_query_128_t, cuda_attention_tensor_grad_key_64_t,
    cuda_attention_tensor_grad_key_128_t;

typedef struct {
    cuda_view_t x, cache;
    const int32_t *lengths;
    uint64_t rows, capacity; /* rows: new ones of a sequence */
} cuda_cache_write_t;

/* ---- product.cu ---- */

enum { CUDA_GROUPS_NONE = 0, CUDA_GROUPS_ROWS = 1, CUDA_GROUPS_DEPTH = 2 };

/* c = f(scale_a scale_b a b + bias). Element (i, k) of a lies at i a_row + k a_depth; b likewise.
 * Groups: block z is expert z. ROWS: it owns rows offsets[z] to offsets[z + 1] of a and c, and its b
 * lies b_group further on. DEPTH: it owns that part of the depth, and its c. */
typedef struct {
    const void *a, *b;
    cuda_view_t bias, c, aux; /* c and aux: rows of one group */
    const float *scale_a, *scale_b;
    const int32_t *offsets;
    uint64_t m, n, depth;
    uint64_t a_row, a_depth, b_depth, b_column, b_group, c_group;
    uint32_t dtype; /* of a and b */
    uint32_t activation, groups;
    uint32_t reserved;
} cuda_matmul_t;

/* ---- route.cu ---- */

typedef struct {
    cuda_view_t x, values, ids;
    uint32_t k, reserved;
} cuda_top_k_t;

typedef struct {
    cuda_view_t gvalues, ids, gx;
} cuda_top_k_grad_t;

typedef struct {
    cuda_view_t ids;
    int32_t *order, *offsets;
    uint64_t picks;
} cuda_route_t;

typedef struct {
    const int32_t *offsets; /* [experts + 1] */
    float *load;            /* [experts] */
    uint32_t experts, reserved;
} cuda_route_load_t;

typedef struct {
    cuda_view_t x, y;
    const int32_t *order;
    uint32_t k, reserved;
} cuda_gather_rows_t;

typedef struct { /* place[order[i]] = i */
    const int32_t *order;
    int32_t *place;
    uint64_t count;
} cuda_invert_t;

typedef struct {
    cuda_view_t x, shares, y;
    const int32_t *place;
    uint32_t k, reserved;
} cuda_scatter_rows_t;

typedef struct {
    cuda_view_t gy, x, shares, gx, gshares;
    const int32_t *order;
    uint32_t k, reserved;
} cuda_scatter_rows_grad_t;

/* ---- pack.cu ---- */

/* As many as a kernel's 4 KiB of parameters hold, and no word of them an address. */
enum { CUDA_PACK_SEGMENTS = 120 };

typedef struct {
    uint64_t from, to, count; /* elements of x and of y */
} cuda_pack_segment_t;

typedef struct {
    const void *x;
    void *y;
    uint32_t bytes, dtype; /* of an element */
    uint32_t add;          /* not 0: y += x, of F32, BF16 or F16 */
    uint32_t count;        /* segments: rows of blocks */
    cuda_pack_segment_t segments[CUDA_PACK_SEGMENTS];
} cuda_pack_t;

#endif
