/* rows_loss.c - embeddings, and cross-entropy in three steps or in one. */
#include "cuda_rows.h"

/* Rows of the vocabulary that are here: all there are where the attributes say 0 or more. */
static uint64_t rows_here(const lh_rows_t *how, uint64_t there)
{
    return how->rows != 0 && how->rows < there ? how->rows : there;
}

/* ---- embed and embed_grad ---- */

static lh_status_t embed_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_EMBED_TEXT);
    (void)plan;
    const cuda_view_t *y = &k->view[out_y];
    const lh_status_t status = cuda_check_flat(k, in_tokens, y->rows);
    return status != LH_OK ? status
                           : cuda_check_shape(k, in_table, k->view[in_table].rows, y->width);
}

static lh_status_t embed_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_EMBED_TEXT);
    const cuda_embed_t p = {.tokens = k->view[in_tokens].at,
                            .table = k->view[in_table],
                            .y = k->view[out_y],
                            .first = k->how.rows.first,
                            .rows = rows_here(&k->how.rows, k->view[in_table].rows)};
    return cuda_launch_octets(s, "cuda_embed", &p.y, &p, sizeof(p));
}

static lh_status_t embed_grad_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_EMBED_GRAD_TEXT);
    (void)plan;
    const cuda_view_t *gy = &k->view[in_gy], *table = &k->view[out_gtable];
    const lh_status_t status = cuda_check_flat(k, in_tokens, gy->rows);
    return status != LH_OK ? status : cuda_check_shape(k, out_gtable, table->rows, gy->width);
}

/* Zeros first, where nothing is added to: most rows of a table get no token. */
static lh_status_t embed_grad_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_EMBED_GRAD_TEXT);
    const cuda_embed_grad_t p = {.tokens = k->view[in_tokens].at,
                                 .gy = k->view[in_gy],
                                 .gtable = k->view[out_gtable],
                                 .first = k->how.rows.first,
                                 .rows = rows_here(&k->how.rows, k->view[out_gtable].rows)};
    if ((p.gtable.flags & CUDA_VIEW_ADD) == 0) {
        cuda_zero_t zero = {.y = p.gtable};
        cuda_view_t *const views[] = {&zero.y};
        cuda_fold(views, 1);
        const lh_status_t status = cuda_launch_octets(s, "cuda_zero", &zero.y, &zero, sizeof(zero));
        if (status != LH_OK) return status;
    }
    const cuda_shape_t shape = {
        .grid = {(uint32_t)p.gy.rows, (uint32_t)cuda_parts(p.gy.width, CUDA_EMBED_COLUMNS), 1},
        .block = {CUDA_THREADS, 1, 1}};
    return cuda_launch(s, "cuda_embed_grad", &shape, &p, sizeof(p));
}

/* ---- cross-entropy ---- */

static lh_status_t ce_stats_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_CE_STATS_TEXT);
    (void)plan;
    const uint64_t rows = k->view[in_logits].rows;
    const lh_status_t status = cuda_check_flat(k, in_labels, rows);
    return status != LH_OK ? status : cuda_check_shape(k, out_stats, rows, 3);
}

static lh_status_t ce_stats_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_CE_STATS_TEXT);
    const cuda_ce_stats_t p = {.logits = k->view[in_logits],
                               .stats = k->view[out_stats],
                               .labels = k->view[in_labels].at,
                               .first = k->how.rows.first,
                               .rows = rows_here(&k->how.rows, k->view[in_logits].width)};
    return cuda_launch_teams(s, "cuda_ce_stats", p.logits.rows, p.logits.width, &p, sizeof(p));
}

/* A gradient may not be wider in bytes than the logits that it may lie over. */
static lh_status_t ce_grad_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_CE_GRAD_TEXT);
    (void)plan;
    const cuda_view_t *logits = &k->view[in_logits], *g = &k->view[out_glogits];
    lh_status_t status = cuda_check_like(k, in_logits, out_glogits);
    if (status == LH_OK) status = cuda_check_flat(k, in_labels, logits->rows);
    if (status == LH_OK) status = cuda_check_flat(k, in_weights, logits->rows);
    if (status == LH_OK) status = cuda_check_shape(k, in_stats, logits->rows, 3);
    if (status == LH_OK &&
        g->pitch * lh_dtype_bytes(g->dtype) > logits->pitch * lh_dtype_bytes(logits->dtype))
        status = k->host->fail(k->host, LH_UNSUPPORTED,
                               "ce_grad: rows of the gradient are longer than the logits'");
    return status;
}

/* Where a narrower gradient lies over its logits, rows [n, m) can be written at once when all that lay
 * there, rows up to m out / in, has been read: so n grows by in / out with each launch. */
static lh_status_t ce_grad_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_CE_GRAD_TEXT);
    cuda_ce_grad_t p = {.logits = k->view[in_logits],
                        .stats = k->view[in_stats],
                        .glogits = k->view[out_glogits],
                        .labels = k->view[in_labels].at,
                        .weights = k->view[in_weights].at,
                        .first = k->how.rows.first,
                        .rows = rows_here(&k->how.rows, k->view[in_logits].width)};
    const uint64_t rows = p.logits.rows;
    const uint64_t in_bytes = p.logits.pitch * lh_dtype_bytes(p.logits.dtype);
    const uint64_t out_bytes = p.glogits.pitch * lh_dtype_bytes(p.glogits.dtype);
    const char *in = p.logits.at, *out = p.glogits.at;
    const bool apart = out + rows * out_bytes <= in || in + rows * in_bytes <= out;
    const bool at_once = apart || out_bytes == in_bytes;
    const uint32_t team = cuda_team(p.logits.width);

    for (uint64_t begin = 0, end; begin < rows; begin = end) {
        end = at_once ? rows : begin * in_bytes / out_bytes;
        if (end <= begin) end = begin + 1; /* the first rows lie over each other */
        if (end > rows) end = rows;
        p.row_begin = begin;
        const cuda_shape_t shape = {.grid = {(uint32_t)(end - begin), 1, 1}, .block = {team, 1, 1}};
        const lh_status_t status = cuda_launch(s, "cuda_ce_grad", &shape, &p, sizeof(p));
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

static lh_status_t ce_loss_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_CE_LOSS_TEXT);
    (void)plan;
    const uint64_t rows = k->view[in_stats].rows;
    lh_status_t status = cuda_check_shape(k, in_stats, rows, 3);
    if (status == LH_OK) status = cuda_check_flat(k, in_weights, rows);
    return status != LH_OK ? status : cuda_check_flat(k, out_loss, 1);
}

static lh_status_t loss_launch(lh_stream_t *s, const cuda_view_t *stats, const float *weights,
                               const cuda_view_t *loss)
{
    const cuda_ce_loss_t p = {.stats = *stats,
                              .weights = weights,
                              .loss = loss->at,
                              .add = (loss->flags & CUDA_VIEW_ADD) != 0};
    const cuda_shape_t shape = {.grid = {1, 1, 1}, .block = {CUDA_TEAM_LIMIT, 1, 1}};
    return cuda_launch(s, "cuda_ce_loss", &shape, &p, sizeof(p));
}

static lh_status_t ce_loss_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_CE_LOSS_TEXT);
    return loss_launch(s, &k->view[in_stats], k->view[in_weights].at, &k->view[out_loss]);
}

/* Over the logits only element on element: blocks go on side by side, and no launches order them. */
static lh_status_t cross_entropy_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_CROSS_ENTROPY_TEXT);
    const cuda_view_t *logits = &k->view[in_logits], *g = &k->view[out_glogits];
    lh_status_t status = cuda_check_like(k, in_logits, out_glogits);
    if (status == LH_OK) status = cuda_check_flat(k, in_labels, logits->rows);
    if (status == LH_OK) status = cuda_check_flat(k, in_weights, logits->rows);
    if (status == LH_OK) status = cuda_check_flat(k, out_loss, 1);
    if (status == LH_OK && k->arg[out_glogits].alias_slot != 0 &&
        (g->dtype != logits->dtype || g->pitch != logits->pitch))
        status = k->host->fail(k->host, LH_UNSUPPORTED,
                               "cross_entropy: a gradient over logits of another dtype or pitch");
    plan->scratch_bytes = logits->rows * 3 * sizeof(float);
    return status;
}

/* Statistics go to the loss by way of scratch, in the form that ce_stats would give them. */
static lh_status_t cross_entropy_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_CROSS_ENTROPY_TEXT);
    const cuda_cross_entropy_t p = {.logits = k->view[in_logits],
                                    .glogits = k->view[out_glogits],
                                    .labels = k->view[in_labels].at,
                                    .weights = k->view[in_weights].at,
                                    .stats = k->scratch};
    const cuda_view_t stats = {
        .at = k->scratch, .rows = p.logits.rows, .width = 3, .pitch = 3, .dtype = LH_DTYPE_F32};
    const cuda_shape_t shape = {.grid = {(uint32_t)p.logits.rows, 1, 1},
                                .block = {cuda_team(p.logits.width), 1, 1}};
    const lh_status_t status = cuda_launch(s, "cuda_cross_entropy", &shape, &p, sizeof(p));
    if (status != LH_OK) return status;
    return loss_launch(s, &stats, p.weights, &k->view[out_loss]);
}

const cuda_op_t cuda_loss_ops[] = {
    {"embed", "imm", embed_plan, embed_launch},
    {"embed_grad", "imm", embed_grad_plan, embed_grad_launch},
    {"ce_stats", "mif", ce_stats_plan, ce_stats_launch},
    {"ce_grad", "miffm", ce_grad_plan, ce_grad_launch},
    {"ce_loss", "fff", ce_loss_plan, ce_loss_launch},
    {"cross_entropy", "miffm", cross_entropy_plan, cross_entropy_launch},
    {NULL, NULL, NULL, NULL},
};
