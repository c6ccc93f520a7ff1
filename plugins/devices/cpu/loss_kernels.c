/* loss_kernels.c - cross entropy in its three steps, ce_stats, ce_grad and ce_loss, and the three in
 * one, cross_entropy.
 *
 * Three ops, as a rank may hold only some columns of the vocabulary: what a softmax needs of each
 * rank's columns (stats) is combined over ranks before the gradient is made. Whoever holds all of
 * them walks the rows once: a row's stats are used while its logits are still in a cache, and the
 * functions of a row are the same, so that the bits are. Logits are the largest tensor of a step, so
 * the gradient may lie in their memory (grad_over).
 *
 * Logits and gradient are F32 or BF16, each its own; all between them is F32. */
#include "vector.h"

#include <math.h>

/* k->number[]: rows of a part, parts of ce_loss, the first column that is held here, and how
 * many. */
enum { CHUNK = 0, CHUNKS = 1, FIRST = 2, COUNT = 3 };

static const uint64_t chunk_elements = 16384;
static const uint64_t loss_rows = 256; /* whose losses one part sums */

/* Defines name_f32_f32 to name_bf16_bf16 from a part function name(k, part, dtype of the logits, dtype
 * of the gradient) that is CPU_INLINE. */
#define LOSS_PAIR(name, x, g, X, G)                                     \
    static void name##_##x##_##g(const lh_prepared_t *k, uint32_t part) \
    {                                                                   \
        name(k, part, LH_DTYPE_##X, LH_DTYPE_##G);                      \
    }
#define LOSS_PAIRS(name)                  \
    LOSS_PAIR(name, f32, f32, F32, F32)   \
    LOSS_PAIR(name, f32, bf16, F32, BF16) \
    LOSS_PAIR(name, bf16, f32, BF16, F32) \
    LOSS_PAIR(name, bf16, bf16, BF16, BF16)
#define LOSS_PICK(name, x, g)                                                           \
    ((x) == LH_DTYPE_BF16 ? ((g) == LH_DTYPE_BF16 ? name##_bf16_bf16 : name##_bf16_f32) \
                          : ((g) == LH_DTYPE_BF16 ? name##_f32_bf16 : name##_f32_f32))

/* Column of a label, or the row's width where another part has it. */
static uint64_t label_column(const lh_prepared_t *k, uint64_t row)
{
    LH_SLOTS(LH_CE_GRAD_TEXT);
    const int32_t label = ((const int32_t *)k->at[in_labels])[row];
    const uint64_t column = (uint64_t)(int64_t)label - k->number[FIRST];
    return label < 0 || column >= k->number[COUNT] ? k->view[in_logits].width : column;
}

/* What all that see logits have in common, in their first two slots; `part`: columns held here. */
static lh_status_t logits_plan(lh_prepared_t *k, const char *op, const lh_rows_t *part)
{
    LH_SLOTS(LH_CE_GRAD_TEXT);
    const cpu_view_t *logits = &k->view[in_logits], *labels = &k->view[in_labels];
    const uint64_t rows = chunk_elements / logits->width;
    if (labels->rows * labels->width != logits->rows || (labels->rows > 1 && labels->pitch != 1))
        return k->host->fail(k->host, LH_UNSUPPORTED, "%s: %llu rows of logits, %llu labels", op,
                             (unsigned long long)logits->rows,
                             (unsigned long long)(labels->rows * labels->width));
    k->number[CHUNK] = rows == 0 ? 1 : rows;
    k->number[FIRST] = part->first;
    k->number[COUNT] = part->rows == 0 || part->rows > logits->width ? logits->width : part->rows;
    return LH_OK;
}

/* Three numbers for each row of logits. */
static lh_status_t stats_check(const lh_prepared_t *k, const char *op)
{
    LH_SLOTS(LH_CE_GRAD_TEXT);
    const cpu_view_t *stats = &k->view[in_stats];
    if (stats->rows == k->view[in_logits].rows && stats->width == 3) return LH_OK;
    return k->host->fail(k->host, LH_UNSUPPORTED, "%s: %llu rows of logits, stats %llu x %llu", op,
                         (unsigned long long)k->view[in_logits].rows,
                         (unsigned long long)stats->rows, (unsigned long long)stats->width);
}

/* The gradient and the weights of as many rows, in the slots that are named. */
static lh_status_t gradient_check(const lh_prepared_t *k, const char *op, uint32_t weights,
                                  uint32_t glogits)
{
    const cpu_view_t *logits = &k->view[0], *w = &k->view[weights], *g = &k->view[glogits];
    if (g->rows == logits->rows && g->width == logits->width && w->rows * w->width == logits->rows)
        return LH_OK;
    return k->host->fail(k->host, LH_UNSUPPORTED,
                         "%s: logits %llu x %llu, gradient %llu x %llu, %llu weights", op,
                         (unsigned long long)logits->rows, (unsigned long long)logits->width,
                         (unsigned long long)g->rows, (unsigned long long)g->width,
                         (unsigned long long)(w->rows * w->width));
}

/* ---- ce_stats: logits labels -> stats [t, 3]: maximum, sum of exp, the label's logit ---- */

/* The largest logit; lanes behind the end count as -infinity. */
CPU_INLINE float row_top(const void *x, lh_dtype_t d, uint64_t n)
{
    vf top = vf_set(-INFINITY);
    VF_EACH(i, m, 0, n, {
        const vf a = vf_get(x, d, i, m);
        top = vf_max(m < LANES ? vf_keep(a, m, -INFINITY) : a, top);
    });
    return vf_top(top);
}

/* Each term is at most 1, as top is subtracted: the sum cannot overflow. */
CPU_INLINE float row_exp_sum(const void *x, lh_dtype_t d, uint64_t n, float top)
{
    vf sum = vf_zero();
    VF_EACH(i, m, 0, n, {
        const vf e = vf_exp_near(vf_get(x, d, i, m) - top);
        sum = sum + (m < LANES ? vf_keep(e, m, 0) : e);
    });
    return vf_sum(sum);
}

/* Three numbers of a row, of the columns that are here. */
CPU_INLINE void row_stats(const void *x, lh_dtype_t d, uint64_t width, uint64_t column,
                          float *stats)
{
    stats[0] = row_top(x, d, width);
    stats[1] = row_exp_sum(x, d, width, stats[0]);
    stats[2] = column < width ? vf_get(x, d, column, 1)[0] : 0.0f;
}

CPU_INLINE void stats_rows(const lh_prepared_t *k, uint32_t part, lh_dtype_t d)
{
    LH_SLOTS(LH_CE_STATS_TEXT);
    uint64_t row, end;
    cpu_range(part, k->number[CHUNK], k->view[in_logits].rows, &row, &end);
    for (; row < end; row++)
        row_stats(cpu_row(k, in_logits, row), d, k->view[in_logits].width, label_column(k, row),
                  cpu_row(k, out_stats, row));
}
CPU_BOTH(stats_rows)

static lh_status_t ce_stats_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                 lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_CE_STATS_TEXT);
    (void)plan;
    const cpu_view_t *logits = &k->view[in_logits];
    lh_status_t status = logits_plan(k, desc->op, &k->how.rows);
    if (status == LH_OK) status = stats_check(k, desc->op);
    if (status == LH_OK)
        cpu_phase_add(k, CPU_PICK(stats_rows, logits->dtype), logits->rows, k->number[CHUNK]);
    return status;
}

/* ---- ce_grad: logits labels stats weights -> glogits = weight (softmax - one-hot) ---- */

/* weight (softmax - one-hot). The label's column is written last, from its logit in stats: where
 * the gradient lies over the logits, that one is gone by then. */
CPU_INLINE void row_grad(const void *x, lh_dtype_t dx, void *g, lh_dtype_t dg, uint64_t width,
                         uint64_t column, const float *stats, float weight)
{
    const float top = stats[0], scale = weight / stats[1], label_logit = stats[2];
    if (weight == 0.0f) { /* masked: whatever the logits are */
        memset(g, 0, width * lh_dtype_bytes(dg));
        return;
    }
    VF_EACH(i, m, 0, width,
            { vf_put(g, dg, i, m, vf_exp_to(dg, vf_get(x, dx, i, m) - top) * scale); });
    if (column < width)
        vf_put(g, dg, column, 1, vf_exp_to(dg, vf_set(label_logit) - top) * scale - weight);
}

CPU_INLINE void grad_row(const lh_prepared_t *k, uint64_t row, lh_dtype_t dx, lh_dtype_t dg)
{
    LH_SLOTS(LH_CE_GRAD_TEXT);
    row_grad(cpu_row(k, in_logits, row), dx, cpu_row(k, out_glogits, row), dg,
             k->view[in_logits].width, label_column(k, row), cpu_row(k, in_stats, row),
             ((const float *)k->at[in_weights])[row]);
}

CPU_INLINE void grad_rows(const lh_prepared_t *k, uint32_t part, lh_dtype_t dx, lh_dtype_t dg)
{
    LH_SLOTS(LH_CE_GRAD_TEXT);
    uint64_t row, end;
    cpu_range(part, k->number[CHUNK], k->view[in_logits].rows, &row, &end);
    for (; row < end; row++)
        grad_row(k, row, dx, dg);
}
LOSS_PAIRS(grad_rows)

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
        grad_row(wave->k, wave->begin + row, LH_DTYPE_F32, LH_DTYPE_BF16);
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
        cpu_run(k->stream, k, grad_rows_f32_bf16, (uint32_t)((rows + chunk - 1) / chunk));
        return LH_OK;
    }
    for (uint64_t begin = 0, end; begin < rows; begin = end) {
        /* The first rows lie over each other: one part writes them in their order. */
        end = begin == 0 ? chunk : begin * in_bytes / out_bytes;
        if (end <= begin) end = begin + 1; /* rows that are hardly shorter: one after the other */
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
    const cpu_view_t *logits = &k->view[in_logits], *g = &k->view[out_glogits];
    lh_status_t status = logits_plan(k, desc->op, &k->how.rows);
    if (status == LH_OK) status = stats_check(k, desc->op);
    if (status == LH_OK) status = gradient_check(k, desc->op, in_weights, out_glogits);
    if (status != LH_OK) return status;
    if (logits->dtype == LH_DTYPE_F32 && g->dtype == LH_DTYPE_BF16) {
        if (g->pitch * sizeof(uint16_t) > logits->pitch * sizeof(float))
            return k->host->fail(
                k->host, LH_UNSUPPORTED,
                "ce_grad: rows of the gradient lie further apart than the logits'");
        k->phase[k->phases++].alone = grad_over;
        return LH_OK;
    }
    cpu_phase_add(k, LOSS_PICK(grad_rows, logits->dtype, g->dtype), logits->rows, k->number[CHUNK]);
    return LH_OK;
}

/* ---- ce_loss: stats weights -> loss [1] ---- */

/* -log softmax of the label, weighted; summed in double, as the loss of many tokens is a small
 * difference of large sums. A masked token is passed over, whatever its logits are. stats: rows
 * `pitch` apart. */
static void tokens_sum(const lh_prepared_t *k, uint32_t part, const float *stats, uint64_t pitch,
                       const float *weights, uint64_t rows)
{
    double sum = 0;
    uint64_t row, end;

    cpu_range(part, loss_rows, rows, &row, &end);
    for (; row < end; row++) {
        const float *of = stats + row * pitch;
        if (weights[row] == 0.0f) continue;
        sum += (double)weights[row] * (double)((logf(of[1]) + of[0]) - of[2]);
    }
    ((double *)k->scratch)[part] = sum;
}

/* In the order of the parts, by one thread. */
static void parts_sum(const lh_prepared_t *k, uint32_t slot)
{
    float *loss = k->at[slot];
    double sum = 0;
    for (uint64_t c = 0; c < k->number[CHUNKS]; c++)
        sum += ((const double *)k->scratch)[c];
    if ((k->view[slot].flags & LH_ARG_ADD) != 0) sum += (double)*loss;
    *loss = (float)sum;
}

static void loss_partial(const lh_prepared_t *k, uint32_t part)
{
    LH_SLOTS(LH_CE_LOSS_TEXT);
    tokens_sum(k, part, k->at[in_stats], k->view[in_stats].pitch, k->at[in_weights],
               k->view[in_stats].rows);
}

static void loss_sum(const lh_prepared_t *k, uint32_t part)
{
    LH_SLOTS(LH_CE_LOSS_TEXT);
    (void)part;
    parts_sum(k, out_loss);
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

/* ---- cross_entropy: logits labels weights -> loss glogits ---- */

/* Scratch: the doubles of tokens_sum, then stats [t, 3]. */
static float *stats_of(const lh_prepared_t *k)
{
    return (float *)(void *)((double *)k->scratch + k->number[CHUNKS]);
}

/* A masked row's logits are not even read. */
CPU_INLINE void both_rows(const lh_prepared_t *k, uint32_t part, lh_dtype_t dx, lh_dtype_t dg)
{
    LH_SLOTS(LH_CROSS_ENTROPY_TEXT);
    const uint64_t width = k->view[in_logits].width;
    uint64_t row, end;
    cpu_range(part, k->number[CHUNK], k->view[in_logits].rows, &row, &end);
    for (; row < end; row++) {
        const void *x = cpu_row(k, in_logits, row);
        const float weight = ((const float *)k->at[in_weights])[row];
        const uint64_t column = label_column(k, row);
        float *stats = stats_of(k) + 3 * row;
        if (weight != 0.0f) row_stats(x, dx, width, column, stats);
        row_grad(x, dx, cpu_row(k, out_glogits, row), dg, width, column, stats, weight);
    }
}
LOSS_PAIRS(both_rows)

static void both_partial(const lh_prepared_t *k, uint32_t part)
{
    LH_SLOTS(LH_CROSS_ENTROPY_TEXT);
    tokens_sum(k, part, stats_of(k), 3, k->at[in_weights], k->view[in_logits].rows);
}

static void both_sum(const lh_prepared_t *k, uint32_t part)
{
    LH_SLOTS(LH_CROSS_ENTROPY_TEXT);
    (void)part;
    parts_sum(k, out_loss);
}

/* Over the logits only element on element: rows go on side by side, and no wave orders them. */
static lh_status_t cross_entropy_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                      lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_CROSS_ENTROPY_TEXT);
    static const lh_rows_t all = {.struct_size = sizeof(all)};
    const cpu_view_t *logits = &k->view[in_logits], *g = &k->view[out_glogits];
    lh_status_t status = logits_plan(k, desc->op, &all);
    if (status == LH_OK) status = gradient_check(k, desc->op, in_weights, out_glogits);
    if (status != LH_OK) return status;
    if (k->arg[out_glogits].alias_slot != 0 &&
        (g->dtype != logits->dtype || g->pitch != logits->pitch))
        return k->host->fail(k->host, LH_UNSUPPORTED,
                             "cross_entropy: a gradient over logits of another dtype or pitch");
    k->number[CHUNKS] = (logits->rows + loss_rows - 1) / loss_rows;
    plan->scratch_bytes = k->number[CHUNKS] * sizeof(double) + 3 * logits->rows * sizeof(float);
    cpu_phase_add(k, LOSS_PICK(both_rows, logits->dtype, g->dtype), logits->rows, k->number[CHUNK]);
    cpu_phase_add(k, both_partial, logits->rows, loss_rows);
    cpu_phase_add(k, both_sum, 1, 1);
    return LH_OK;
}

const cpu_op_t CPU_ISA(loss_ops)[] = {
    {"ce_stats", "xif", ce_stats_plan},
    {"ce_grad", "xiffy", ce_grad_plan},
    {"ce_loss", "fff", ce_loss_plan},
    {"cross_entropy", "xiffy", cross_entropy_plan},
    {NULL, NULL, NULL},
};
