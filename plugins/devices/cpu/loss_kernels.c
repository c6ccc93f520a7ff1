/* loss_kernels.c - cross entropy in its three steps: ce_stats, ce_grad, ce_loss.
 *
 * Three ops and not one, as a rank may hold only some columns of the vocabulary: what a softmax
 * needs of each rank's columns (stats) is combined over ranks before the gradient is made. Logits
 * are the largest tensor of a step, so the gradient may lie in their memory (grad_over). */
#include "vector.h"

#include <math.h>

/* k->number[]: rows of a part, parts of ce_loss, the first column that is held here, and how
 * many. */
enum { CHUNK = 0, CHUNKS = 1, FIRST = 2, COUNT = 3 };

static const uint64_t chunk_elements = 16384;
static const uint64_t loss_rows = 256; /* whose losses one part sums */

/* Column of a label, or the row's width where another part has it. */
static uint64_t label_column(const lh_prepared_t *k, int32_t label)
{
    LH_SLOTS(LH_CE_GRAD_TEXT);
    const uint64_t column = (uint64_t)(int64_t)label - k->number[FIRST];
    return label < 0 || column >= k->number[COUNT] ? k->view[in_logits].width : column;
}

/* What ce_stats and ce_grad have in common; slots: logits, labels, stats. */
static lh_status_t logits_plan(lh_prepared_t *k, const char *op)
{
    LH_SLOTS(LH_CE_GRAD_TEXT);
    const cpu_view_t *logits = &k->view[in_logits], *labels = &k->view[in_labels],
                     *stats = &k->view[in_stats];
    const uint64_t rows = chunk_elements / logits->width, part = k->how.rows.rows;
    if (labels->rows * labels->width != logits->rows || stats->rows != logits->rows ||
        stats->width != 3 || (labels->rows > 1 && labels->pitch != 1))
        return k->host->fail(
            k->host, LH_UNSUPPORTED, "%s: %llu rows of logits, %llu labels, stats %llu x %llu", op,
            (unsigned long long)logits->rows, (unsigned long long)(labels->rows * labels->width),
            (unsigned long long)stats->rows, (unsigned long long)stats->width);
    k->number[CHUNK] = rows == 0 ? 1 : rows;
    k->number[FIRST] = k->how.rows.first;
    k->number[COUNT] = part == 0 || part > logits->width ? logits->width : part;
    return LH_OK;
}

/* ---- ce_stats: logits labels -> stats [t, 3]: maximum, sum of exp, the label's logit ---- */

/* The largest logit; lanes behind the end count as -infinity. */
static float row_top(const float *x, uint64_t n)
{
    vf top = vf_set(-INFINITY);
    VF_EACH(i, m, 0, n, {
        const vf a = vf_get(x, LH_DTYPE_F32, i, m);
        top = vf_max(m < LANES ? vf_keep(a, m, -INFINITY) : a, top);
    });
    return vf_top(top);
}

/* Each term is at most 1, as top is subtracted: the sum cannot overflow. */
static float row_exp_sum(const float *x, uint64_t n, float top)
{
    vf sum = vf_zero();
    VF_EACH(i, m, 0, n, {
        const vf e = vf_exp_near(vf_get(x, LH_DTYPE_F32, i, m) - top);
        sum = sum + (m < LANES ? vf_keep(e, m, 0) : e);
    });
    return vf_sum(sum);
}

/* Three numbers a row, of the columns that are here. */
static void stats_rows(const lh_prepared_t *k, uint32_t part)
{
    LH_SLOTS(LH_CE_STATS_TEXT);
    const int32_t *labels = k->at[in_labels];
    const uint64_t width = k->view[in_logits].width;
    uint64_t row, end;

    cpu_range(part, k->number[CHUNK], k->view[in_logits].rows, &row, &end);
    for (; row < end; row++) {
        const float *x = cpu_row(k, in_logits, row);
        float *stats = cpu_row(k, out_stats, row);
        const uint64_t column = label_column(k, labels[row]);
        stats[0] = row_top(x, width);
        stats[1] = row_exp_sum(x, width, stats[0]);
        stats[2] = column < width ? x[column] : 0.0f;
    }
}

static lh_status_t ce_stats_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                 lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_CE_STATS_TEXT);
    (void)plan;
    const lh_status_t status = logits_plan(k, desc->op);
    if (status == LH_OK) cpu_phase_add(k, stats_rows, k->view[in_logits].rows, k->number[CHUNK]);
    return status;
}

/* ---- ce_grad: logits labels stats weights -> glogits = weight (softmax - one-hot) ---- */

/* weight (softmax - one-hot). The label's column is written last, from its logit in stats: where
 * the gradient lies over the logits, that one is gone by then. */
CPU_INLINE void grad_row(const lh_prepared_t *k, uint64_t row, lh_dtype_t d)
{
    LH_SLOTS(LH_CE_GRAD_TEXT);
    const float *x = cpu_row(k, in_logits, row), *stats = cpu_row(k, in_stats, row);
    void *g = cpu_row(k, out_glogits, row);
    const float weight = ((const float *)k->at[in_weights])[row];
    const float top = stats[0], scale = weight / stats[1], label_logit = stats[2];
    const uint64_t width = k->view[in_logits].width;
    const uint64_t column = label_column(k, ((const int32_t *)k->at[in_labels])[row]);

    if (weight == 0.0f) { /* masked: whatever the logits are */
        memset(g, 0, width * lh_dtype_bytes(d));
        return;
    }
    VF_EACH(i, m, 0, width,
            { vf_put(g, d, i, m, vf_exp_to(d, vf_get(x, LH_DTYPE_F32, i, m) - top) * scale); });
    if (column < width)
        vf_put(g, d, column, 1, vf_exp_to(d, vf_set(label_logit) - top) * scale - weight);
}

CPU_INLINE void grad_rows(const lh_prepared_t *k, uint32_t part, lh_dtype_t d)
{
    LH_SLOTS(LH_CE_GRAD_TEXT);
    uint64_t row, end;
    cpu_range(part, k->number[CHUNK], k->view[in_logits].rows, &row, &end);
    for (; row < end; row++)
        grad_row(k, row, d);
}
CPU_BOTH(grad_rows)

/* Rows [begin, end) of a gradient that lies over its logits. */
typedef struct grad_wave {
    const lh_prepared_t *k;
    uint64_t begin, end;
} grad_wave_t;

static void grad_wave_part(void *context, uint32_t part)
{
    const grad_wave_t *wave = context;
    uint64_t row, end;
    cpu_range(part, wave->k->number[CHUNK], wave->end - wave->begin, &row, &end);
    for (; row < end; row++)
        grad_row(wave->k, wave->begin + row, LH_DTYPE_BF16);
}

/* BF16 gradients in the memory of F32 logits: row r lies where the logits of row r / 2 were, so the
 * rows [n, 2n) can be written at once when those before n have been. Inside a row, what is written
 * trails what has been read. */
static lh_status_t grad_over(const lh_prepared_t *k)
{
    LH_SLOTS(LH_CE_GRAD_TEXT);
    const uint64_t rows = k->view[in_logits].rows, chunk = k->number[CHUNK];
    const uint64_t out_bytes = k->view[out_glogits].pitch * sizeof(uint16_t);
    const uint64_t in_bytes = k->view[in_logits].pitch * sizeof(float);
    const char *in = k->at[in_logits], *out = k->at[out_glogits];
    /* In bytes, as the rows of the two have different lengths. */
    const bool apart = out + rows * out_bytes <= in || in + rows * in_bytes <= out;
    lh_threads_t *threads = &k->stream->threads;

    /* Nothing to heed: other memory, or row on row. */
    if (apart || out_bytes == in_bytes) {
        cpu_run(k->stream, k, grad_rows_bf16, (uint32_t)((rows + chunk - 1) / chunk));
        return LH_OK;
    }
    for (uint64_t begin = 0, end; begin < rows; begin = end) {
        /* The first rows lie over each other: one part writes them in their order. */
        end = begin == 0 ? chunk : begin * in_bytes / out_bytes;
        if (end > rows) end = rows;
        grad_wave_t wave = {k, begin, end};
        threads->run(threads, (uint32_t)((end - begin + chunk - 1) / chunk), grad_wave_part, &wave);
    }
    return LH_OK;
}

/* A gradient may not be wider in bytes than the logits that it lies over. */
static lh_status_t ce_grad_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_CE_GRAD_TEXT);
    (void)plan;
    const cpu_view_t *logits = &k->view[in_logits], *weights = &k->view[in_weights],
                     *g = &k->view[out_glogits];
    const lh_status_t status = logits_plan(k, desc->op);
    if (status != LH_OK) return status;
    if (g->rows != logits->rows || g->width != logits->width ||
        weights->rows * weights->width != logits->rows ||
        g->pitch * lh_dtype_bytes(g->dtype) > logits->pitch * sizeof(float))
        return k->host->fail(k->host, LH_UNSUPPORTED,
                             "ce_grad: logits %llu x %llu, gradient %llu x %llu, %llu weights",
                             (unsigned long long)logits->rows, (unsigned long long)logits->width,
                             (unsigned long long)g->rows, (unsigned long long)g->width,
                             (unsigned long long)(weights->rows * weights->width));
    if (g->dtype == LH_DTYPE_BF16)
        k->phase[k->phases++].alone = grad_over;
    else
        cpu_phase_add(k, grad_rows_f32, logits->rows, k->number[CHUNK]);
    return LH_OK;
}

/* ---- ce_loss: stats weights -> loss [1] ---- */

/* -log softmax of the label, weighted; summed in double, as the loss of many tokens is a small
 * difference of large sums. A masked token is passed over, whatever its logits are. */
static void loss_partial(const lh_prepared_t *k, uint32_t part)
{
    LH_SLOTS(LH_CE_LOSS_TEXT);
    const float *weights = k->at[in_weights];
    double sum = 0;
    uint64_t row, end;

    cpu_range(part, loss_rows, k->view[in_stats].rows, &row, &end);
    for (; row < end; row++) {
        const float *stats = cpu_row(k, in_stats, row);
        if (weights[row] == 0.0f) continue;
        sum += (double)weights[row] * (double)((logf(stats[1]) + stats[0]) - stats[2]);
    }
    ((double *)k->scratch)[part] = sum;
}

/* In the order of the parts, by one thread. */
static void loss_sum(const lh_prepared_t *k, uint32_t part)
{
    LH_SLOTS(LH_CE_LOSS_TEXT);
    (void)part;
    float *loss = k->at[out_loss];
    double sum = 0;
    for (uint64_t c = 0; c < k->number[CHUNKS]; c++)
        sum += ((const double *)k->scratch)[c];
    if ((k->view[out_loss].flags & LH_ARG_ADD) != 0) sum += (double)*loss;
    *loss = (float)sum;
}

/* Two phases: sums of loss_rows rows each, then their sum. */
static lh_status_t ce_loss_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_CE_LOSS_TEXT);
    (void)desc;
    const cpu_view_t *stats = &k->view[in_stats], *weights = &k->view[in_weights];
    if (stats->width != 3 || weights->rows * weights->width != stats->rows)
        return k->host->fail(k->host, LH_UNSUPPORTED, "ce_loss: stats %llu x %llu, %llu weights",
                             (unsigned long long)stats->rows, (unsigned long long)stats->width,
                             (unsigned long long)(weights->rows * weights->width));
    k->number[CHUNKS] = (stats->rows + loss_rows - 1) / loss_rows;
    plan->scratch_bytes = k->number[CHUNKS] * sizeof(double);
    cpu_phase_add(k, loss_partial, stats->rows, loss_rows);
    cpu_phase_add(k, loss_sum, 1, 1);
    return LH_OK;
}

const cpu_op_t CPU_ISA(loss_ops)[] = {
    {"ce_stats", "fif", ce_stats_plan},
    {"ce_grad", "fiffx", ce_grad_plan},
    {"ce_loss", "fff", ce_loss_plan},
    {NULL, NULL, NULL},
};
