/* rows_norm.c - norms and their gradients, sums over rows and columns, softmax, rotary positions. */
#include "cuda_rows.h"

/* ---- rms_norm, add_rms_norm, layer_norm: one kernel ---- */

/* d divides the width, and there is one statistic a group. */
static lh_status_t groups_check(const lh_prepared_t *k, uint32_t x, uint32_t w, uint32_t statistic)
{
    const uint64_t width = k->view[x].width, d = k->view[w].width;
    if (k->view[w].rows != 1 || d == 0 || width % d != 0)
        return k->host->fail(k->host, LH_UNSUPPORTED,
                             "%s: a weight of %llu columns for rows of %llu", k->op->name,
                             (unsigned long long)d, (unsigned long long)width);
    return cuda_check_flat(k, statistic, k->view[x].rows * (width / d));
}

/* A null address where the slot is left out. */
static void *slot_at(const lh_prepared_t *k, uint32_t slot)
{
    return cuda_has(k, slot) ? k->view[slot].at : NULL;
}

static lh_status_t norm_launch(const lh_prepared_t *k, lh_stream_t *s, cuda_norm_t *p)
{
    p->d = p->w.width;
    p->groups = p->x.rows * (p->x.width / p->d);
    p->epsilon = k->how.norm.epsilon;
    p->one_plus = k->how.norm.one_plus;
    return cuda_launch_teams(s, "cuda_norm", p->groups, p->d, p, sizeof(*p));
}

static lh_status_t rms_norm_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_RMS_NORM_TEXT);
    (void)plan;
    const lh_status_t status = cuda_check_like(k, in_x, out_y);
    return status != LH_OK ? status : groups_check(k, in_x, in_w, out_rstd);
}

static lh_status_t rms_norm_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_RMS_NORM_TEXT);
    cuda_norm_t p = {
        .x = k->view[in_x], .w = k->view[in_w], .y = k->view[out_y], .rstd = slot_at(k, out_rstd)};
    return norm_launch(k, s, &p);
}

static lh_status_t add_rms_norm_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_ADD_RMS_NORM_TEXT);
    (void)plan;
    const uint32_t like[] = {in_b, out_sum, out_y};
    for (uint32_t i = 0; i < 3; i++) {
        const lh_status_t status = cuda_check_like(k, in_a, like[i]);
        if (status != LH_OK) return status;
    }
    return groups_check(k, in_a, in_w, out_rstd);
}

static lh_status_t add_rms_norm_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_ADD_RMS_NORM_TEXT);
    cuda_norm_t p = {.x = k->view[in_a],
                     .b = k->view[in_b],
                     .w = k->view[in_w],
                     .sum = k->view[out_sum],
                     .y = k->view[out_y],
                     .rstd = slot_at(k, out_rstd)};
    return norm_launch(k, s, &p);
}

static lh_status_t layer_norm_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_LAYER_NORM_TEXT);
    (void)plan;
    lh_status_t status = cuda_check_like(k, in_x, out_y);
    if (status == LH_OK) status = cuda_check_shape(k, in_w, 1, k->view[in_x].width);
    if (status == LH_OK) status = cuda_check_shape(k, in_b, 1, k->view[in_x].width);
    if (status == LH_OK) status = cuda_check_flat(k, out_mean, k->view[in_x].rows);
    return status != LH_OK ? status : cuda_check_flat(k, out_rstd, k->view[in_x].rows);
}

static lh_status_t layer_norm_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_LAYER_NORM_TEXT);
    cuda_norm_t p = {.x = k->view[in_x],
                     .w = k->view[in_w],
                     .y = k->view[out_y],
                     .mean = slot_at(k, out_mean),
                     .rstd = slot_at(k, out_rstd),
                     .centred = 1};
    if (cuda_has(k, in_b)) p.bias = k->view[in_b];
    return norm_launch(k, s, &p);
}

/* ---- the gradients ---- */

/* k->number[] of norm_grad and sum_rows: how rows fall to blocks. */
enum { PARTS = 0, PART_ROWS = 1 };
/* Blocks that share a sum over rows, at most, and the rows that each takes, at least. Sums in shared
 * memory take at most 96 KiB, which every GPU from sm_80 on has for a block. */
enum { PARTS_LIMIT = 256, PART_ROWS_LEAST = 16, SHARED_LIMIT = 96 << 10 };

static void parts_plan(lh_prepared_t *k, uint64_t rows)
{
    const uint64_t even = cuda_parts(rows, PARTS_LIMIT);
    k->number[PART_ROWS] = even > PART_ROWS_LEAST ? even : PART_ROWS_LEAST;
    k->number[PARTS] = cuda_parts(rows, k->number[PART_ROWS]);
}

/* Fills in what both gradients have in common, and sums the parts up. gb may be NULL. */
static lh_status_t norm_grad_launch(const lh_prepared_t *k, lh_stream_t *s, cuda_norm_grad_t *p,
                                    const cuda_view_t *gw, const cuda_view_t *gb)
{
    const uint64_t sums = gb != NULL ? 2 : 1;
    uint32_t team = cuda_team(p->w.width), teams = team < CUDA_THREADS ? CUDA_THREADS / team : 1;
    p->d = p->w.width;
    p->groups = p->x.rows * (p->x.width / p->d);
    p->block_groups = k->number[PART_ROWS];
    p->weight_sums = k->scratch;
    p->bias_sums = gb != NULL ? p->weight_sums + k->number[PARTS] * p->d : NULL;
    p->one_plus = k->how.norm.one_plus;
    p->in_shared = teams * sums * p->d * sizeof(float) <= SHARED_LIMIT;
    if (p->in_shared == 0) teams = 1; /* which then owns its block's row of the scratch */
    const cuda_shape_t shape = {
        .grid = {(uint32_t)k->number[PARTS], 1, 1},
        .block = {team, teams, 1},
        .shared_bytes = p->in_shared != 0 ? (uint32_t)(teams * sums * p->d * sizeof(float)) : 0};
    lh_status_t status = cuda_launch(s, "cuda_norm_grad", &shape, p, sizeof(*p));
    if (status == LH_OK) status = cuda_launch_partials(s, p->weight_sums, k->number[PARTS], gw, 1);
    if (status == LH_OK && gb != NULL)
        status = cuda_launch_partials(s, p->bias_sums, k->number[PARTS], gb, 1);
    return status;
}

/* Of both gradients of RMS norm, whose inputs but the residual have the same slots. */
static lh_status_t rms_grad_plan(lh_prepared_t *k, uint32_t gx, uint32_t gw, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_RMS_NORM_GRAD_TEXT);
    lh_status_t status = cuda_check_like(k, in_x, in_gy);
    if (status == LH_OK) status = cuda_check_like(k, in_x, gx);
    if (status == LH_OK) status = groups_check(k, in_x, in_w, in_rstd);
    if (status == LH_OK) status = cuda_check_like(k, in_w, gw);
    if (status != LH_OK) return status;
    parts_plan(k, k->view[in_x].rows * (k->view[in_x].width / k->view[in_w].width));
    plan->scratch_bytes = k->number[PARTS] * k->view[in_w].width * sizeof(float);
    return LH_OK;
}

static lh_status_t rms_norm_grad_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_RMS_NORM_GRAD_TEXT);
    return rms_grad_plan(k, out_gx, out_gw, plan);
}

static lh_status_t rms_norm_grad_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_RMS_NORM_GRAD_TEXT);
    cuda_norm_grad_t p = {.gy = k->view[in_gy],
                          .x = k->view[in_x],
                          .w = k->view[in_w],
                          .gx = k->view[out_gx],
                          .rstd = k->view[in_rstd].at};
    return norm_grad_launch(k, s, &p, &k->view[out_gw], NULL);
}

static lh_status_t rms_norm_grad_add_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_RMS_NORM_GRAD_ADD_TEXT);
    const lh_status_t status = cuda_check_like(k, in_x, in_residual);
    return status != LH_OK ? status : rms_grad_plan(k, out_gx, out_gw, plan);
}

static lh_status_t rms_norm_grad_add_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_RMS_NORM_GRAD_ADD_TEXT);
    cuda_norm_grad_t p = {.gy = k->view[in_gy],
                          .x = k->view[in_x],
                          .w = k->view[in_w],
                          .gx = k->view[out_gx],
                          .residual = k->view[in_residual],
                          .rstd = k->view[in_rstd].at};
    return norm_grad_launch(k, s, &p, &k->view[out_gw], NULL);
}

/* Of both gradients of layer norm, whose inputs but the residual have the same slots. gw is followed
 * by gb. */
static lh_status_t layer_grad_plan(lh_prepared_t *k, uint32_t gx, uint32_t gw,
                                   lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_LAYER_NORM_GRAD_TEXT);
    const uint64_t rows = k->view[in_x].rows, width = k->view[in_x].width;
    lh_status_t status = cuda_check_like(k, in_x, in_gy);
    if (status == LH_OK) status = cuda_check_like(k, in_x, gx);
    if (status == LH_OK) status = cuda_check_shape(k, in_w, 1, width);
    if (status == LH_OK) status = cuda_check_shape(k, gw, 1, width);
    if (status == LH_OK) status = cuda_check_shape(k, gw + 1, 1, width);
    if (status == LH_OK) status = cuda_check_flat(k, in_mean, rows);
    if (status == LH_OK) status = cuda_check_flat(k, in_rstd, rows);
    if (status != LH_OK) return status;
    parts_plan(k, rows);
    plan->scratch_bytes = 2 * k->number[PARTS] * width * sizeof(float);
    return LH_OK;
}

static lh_status_t layer_norm_grad_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_LAYER_NORM_GRAD_TEXT);
    return layer_grad_plan(k, out_gx, out_gw, plan);
}

static lh_status_t layer_norm_grad_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_LAYER_NORM_GRAD_TEXT);
    cuda_norm_grad_t p = {.gy = k->view[in_gy],
                          .x = k->view[in_x],
                          .w = k->view[in_w],
                          .gx = k->view[out_gx],
                          .mean = k->view[in_mean].at,
                          .rstd = k->view[in_rstd].at,
                          .centred = 1};
    return norm_grad_launch(k, s, &p, &k->view[out_gw],
                            cuda_has(k, out_gb) ? &k->view[out_gb] : NULL);
}

static lh_status_t layer_norm_grad_add_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_LAYER_NORM_GRAD_ADD_TEXT);
    const lh_status_t status = cuda_check_like(k, in_x, in_residual);
    return status != LH_OK ? status : layer_grad_plan(k, out_gx, out_gw, plan);
}

static lh_status_t layer_norm_grad_add_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_LAYER_NORM_GRAD_ADD_TEXT);
    cuda_norm_grad_t p = {.gy = k->view[in_gy],
                          .x = k->view[in_x],
                          .w = k->view[in_w],
                          .gx = k->view[out_gx],
                          .residual = k->view[in_residual],
                          .mean = k->view[in_mean].at,
                          .rstd = k->view[in_rstd].at,
                          .centred = 1};
    return norm_grad_launch(k, s, &p, &k->view[out_gw],
                            cuda_has(k, out_gb) ? &k->view[out_gb] : NULL);
}

/* ---- sums and softmax ---- */

static lh_status_t sum_rows_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_SUM_ROWS_TEXT);
    parts_plan(k, k->view[in_x].rows);
    plan->scratch_bytes = k->number[PARTS] * k->view[in_x].width * sizeof(float);
    return cuda_check_shape(k, out_y, 1, k->view[in_x].width);
}

/* y = (sum over rows of x) / count, in two steps. */
static lh_status_t launch_sum(const lh_prepared_t *k, lh_stream_t *s, const cuda_view_t *x,
                              const cuda_view_t *y, float count)
{
    const cuda_sum_rows_t p = {.x = *x, .partial = k->scratch, .chunk_rows = k->number[PART_ROWS]};
    const cuda_shape_t shape = {.grid = {(uint32_t)cuda_parts(p.x.width, CUDA_COLUMN_LANES * 8),
                                         (uint32_t)k->number[PARTS], 1},
                                .block = {CUDA_COLUMN_LANES, CUDA_ROW_LANES, 1}};
    const lh_status_t status = cuda_launch(s, "cuda_sum_rows", &shape, &p, sizeof(p));
    if (status != LH_OK) return status;
    return cuda_launch_partials(s, p.partial, k->number[PARTS], y, count);
}

static lh_status_t sum_rows_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_SUM_ROWS_TEXT);
    return launch_sum(k, s, &k->view[in_x], &k->view[out_y], 1);
}

/* The slots of mean_rows are those of sum_rows. */
static lh_status_t mean_rows_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_MEAN_ROWS_TEXT);
    return launch_sum(k, s, &k->view[in_x], &k->view[out_y], (float)k->view[in_x].rows);
}

static lh_status_t mean_rows_grad_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_MEAN_ROWS_GRAD_TEXT);
    (void)plan;
    return cuda_check_shape(k, in_gy, 1, k->view[out_gx].width);
}

static lh_status_t mean_rows_grad_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_MEAN_ROWS_GRAD_TEXT);
    const cuda_mean_rows_grad_t p = {.gy = k->view[in_gy], .gx = k->view[out_gx]};
    return cuda_launch_octets(s, "cuda_mean_rows_grad", &p.gx, &p, sizeof(p));
}

static lh_status_t dot_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_DOT_TEXT);
    (void)plan;
    const lh_status_t status = cuda_check_flat(k, out_y, 1);
    return status != LH_OK ? status : cuda_check_like(k, in_a, in_b);
}

static lh_status_t dot_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_DOT_TEXT);
    const cuda_dot_t p = {.a = k->view[in_a], .b = k->view[in_b], .y = k->view[out_y].at};
    return cuda_launch_teams(s, "cuda_dot", 1, p.a.width, &p, sizeof(p));
}

static lh_status_t sum_columns_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_SUM_COLUMNS_TEXT);
    (void)plan;
    return cuda_check_shape(k, out_y, k->view[in_x].rows, 1);
}

static lh_status_t sum_columns_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_SUM_COLUMNS_TEXT);
    const cuda_sum_columns_t p = {.x = k->view[in_x], .y = k->view[out_y]};
    return cuda_launch_teams(s, "cuda_sum_columns", p.x.rows, p.x.width, &p, sizeof(p));
}

static lh_status_t dora_scale_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_DORA_SCALE_TEXT);
    (void)plan;
    static const uint32_t lines[] = {in_magnitude, out_y, out_inverse};
    lh_status_t status = cuda_check_like(k, in_w, in_change);
    for (uint32_t i = 0; status == LH_OK && i < 3; i++)
        status = cuda_check_flat(k, lines[i], k->view[in_w].rows);
    return status;
}

static lh_status_t dora_scale_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_DORA_SCALE_TEXT);
    const cuda_dora_scale_t p = {.w = k->view[in_w],
                                 .change = k->view[in_change],
                                 .magnitude = k->view[in_magnitude],
                                 .y = k->view[out_y].at,
                                 .inverse = slot_at(k, out_inverse)};
    return cuda_launch_teams(s, "cuda_dora_scale", p.w.rows, p.w.width, &p, sizeof(p));
}

static lh_status_t softmax_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_SOFTMAX_TEXT);
    (void)plan;
    return cuda_check_like(k, in_x, out_y);
}

static lh_status_t softmax_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_SOFTMAX_TEXT);
    const cuda_softmax_t p = {.x = k->view[in_x], .y = k->view[out_y]};
    return cuda_launch_teams(s, "cuda_softmax", p.x.rows, p.x.width, &p, sizeof(p));
}

static lh_status_t softmax_grad_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_SOFTMAX_GRAD_TEXT);
    (void)plan;
    const lh_status_t status = cuda_check_like(k, in_gy, in_y);
    return status != LH_OK ? status : cuda_check_like(k, in_gy, out_gx);
}

static lh_status_t softmax_grad_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_SOFTMAX_GRAD_TEXT);
    const cuda_softmax_grad_t p = {.gy = k->view[in_gy], .y = k->view[in_y], .gx = k->view[out_gx]};
    return cuda_launch_teams(s, "cuda_softmax_grad", p.y.rows, p.y.width, &p, sizeof(p));
}

/* ---- rope ---- */

static lh_status_t rope_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_ROPE_TEXT);
    (void)plan;
    const lh_rope_t *how = &k->how.rope;
    const cuda_view_t *x = &k->view[in_x];
    if (x->width != (uint64_t)how->heads * how->head_dim || 2 * how->pairs > how->head_dim ||
        how->pairs > SHARED_LIMIT / (2 * sizeof(float)))
        return k->host->fail(k->host, LH_UNSUPPORTED,
                             "rope: rows of %llu, %u heads of %u, of which %u pairs turn",
                             (unsigned long long)x->width, how->heads, how->head_dim, how->pairs);
    lh_status_t status = cuda_check_like(k, in_x, out_y);
    if (status == LH_OK) status = cuda_check_flat(k, in_positions, x->rows);
    return status != LH_OK ? status : cuda_check_flat(k, in_frequencies, how->pairs);
}

static lh_status_t rope_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_ROPE_TEXT);
    const lh_rope_t *how = &k->how.rope;
    const cuda_rope_t p = {.x = k->view[in_x],
                           .y = k->view[out_y],
                           .positions = k->view[in_positions].at,
                           .frequencies = k->view[in_frequencies].at,
                           .heads = how->heads,
                           .head_dim = how->head_dim,
                           .pairs = how->pairs,
                           .interleaved = how->interleaved,
                           .inverse = how->inverse,
                           .magnitude = how->magnitude != 0 ? (float)how->magnitude : 1.0f};
    const cuda_shape_t shape = {.grid = {(uint32_t)p.x.rows, 1, 1},
                                .block = {CUDA_THREADS, 1, 1},
                                .shared_bytes = (uint32_t)(2 * p.pairs * sizeof(float))};
    return cuda_launch(s, "cuda_rope", &shape, &p, sizeof(p));
}

const cuda_op_t cuda_norm_ops[] = {
    {"rms_norm", "xmxf?", rms_norm_plan, rms_norm_launch},
    {"add_rms_norm", "xxmxxf?", add_rms_norm_plan, add_rms_norm_launch},
    {"rms_norm_grad", "xxmfxm", rms_norm_grad_plan, rms_norm_grad_launch},
    {"rms_norm_grad_add", "xxmfxxm", rms_norm_grad_add_plan, rms_norm_grad_add_launch},
    {"layer_norm", "xmm?xf?f?", layer_norm_plan, layer_norm_launch},
    {"layer_norm_grad", "xxmffxmm?", layer_norm_grad_plan, layer_norm_grad_launch},
    {"layer_norm_grad_add", "xxmffxxmm?", layer_norm_grad_add_plan, layer_norm_grad_add_launch},
    {"sum_rows", "mm", sum_rows_plan, sum_rows_launch},
    {"mean_rows", "mf", sum_rows_plan, mean_rows_launch},
    {"mean_rows_grad", "fmm", mean_rows_grad_plan, mean_rows_grad_launch},
    {"dot", "fff", dot_plan, dot_launch},
    {"sum_columns", "mm", sum_columns_plan, sum_columns_launch},
    {"dora_scale", "mmmff?", dora_scale_plan, dora_scale_launch},
    {"softmax", "mm", softmax_plan, softmax_launch},
    {"softmax_grad", "mmm", softmax_grad_plan, softmax_grad_launch},
    {"rope", "xifx", rope_plan, rope_launch},
    {NULL, NULL, NULL, NULL},
};
