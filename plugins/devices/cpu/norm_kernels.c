/* norm_kernels.c - rms_norm, layer_norm, the fused residual add, and their gradients. Statistics
 * are F32 sums over a row in LANES partial sums; the gradients of weights are sums over chunks of
 * rows, then over the chunks in order.
 *
 * A row is read twice: once for its statistics, once to be scaled; it is in the cache by then. The
 * chunks for weights' gradients are a matter of shape alone, at most most_partials of them, so that
 * their sums have one order for any number of threads and scratch does not grow with the tokens.
 *
 * Formulas and names are those of the texts in longhaul/ops.h. */
#include "vector.h"

#include <math.h>

/* k->number[]: rows of a part, how many parts that makes, floats of a line of partial sums, and
 * groups that a row is cut into (norms of heads). */
enum { CHUNK = 0, CHUNKS = 1, COLUMNS = 2, GROUPS = 3 };

static const uint64_t chunk_elements = 16384; /* of a part, about */
static const uint64_t most_partials = 64; /* rows of partial sums, however many tokens there are */
static const uint64_t column_block = 256; /* columns that one part sums over the partials       */

/* Rows a part takes. */
static uint64_t norm_chunk(const cpu_view_t *x)
{
    const uint64_t rows = chunk_elements / x->width;
    return rows == 0 ? 1 : rows;
}

/* Cuts the rows of a slot into GROUPS groups of `width` columns, each a row of its own. */
static void groups_take(lh_prepared_t *k, uint32_t slot, uint64_t width)
{
    cpu_view_t *v = &k->view[slot];
    if (!cpu_has(k, slot) || v->width != k->number[GROUPS] * width) return;
    v->rows *= k->number[GROUPS];
    v->width = width;
}

/* A group's first element: those of one row are neighbours, rows lie `pitch` apart. */
CPU_INLINE void *group_row(const lh_prepared_t *k, uint32_t slot, uint64_t group)
{
    const cpu_view_t *v = &k->view[slot];
    const uint64_t groups = k->number[GROUPS];
    const uint64_t at = groups == 1 ? group * v->pitch
                                    : group / groups * v->pitch + group % groups * v->width;
    return (char *)k->at[slot] + at * lh_dtype_bytes(v->dtype);
}

/* Lists of slots, each ended by 0: those with the shape of slot 0, those with an element a column,
 * those with one a row. Slots that are left out pass. */
static lh_status_t norm_shapes(const lh_prepared_t *k, const char *op, const uint32_t *same,
                               const uint32_t *wide, const uint32_t *tall)
{
    const cpu_view_t *x = &k->view[0];
    for (; *same != 0; same++) {
        const cpu_view_t *v = &k->view[*same];
        if (cpu_has(k, *same) && (v->rows != x->rows || v->width != x->width))
            return k->host->fail(k->host, LH_UNSUPPORTED, "%s: slot %u has not the shape of slot 1",
                                 op, *same + 1);
    }
    for (; *wide != 0; wide++) {
        const cpu_view_t *v = &k->view[*wide];
        if (cpu_has(k, *wide) && v->rows * v->width != x->width)
            return k->host->fail(
                k->host, LH_UNSUPPORTED, "%s: slot %u has %llu elements, rows have %llu", op,
                *wide + 1, (unsigned long long)(v->rows * v->width), (unsigned long long)x->width);
    }
    for (; *tall != 0; tall++) {
        const cpu_view_t *v = &k->view[*tall];
        if (cpu_has(k, *tall) &&
            (v->rows * v->width != x->rows || (v->rows > 1 && v->pitch != v->width)))
            return k->host->fail(
                k->host, LH_UNSUPPORTED, "%s: slot %u has %llu elements, there are %llu rows", op,
                *tall + 1, (unsigned long long)(v->rows * v->width), (unsigned long long)x->rows);
    }
    return LH_OK;
}

/* ---- forward ---- */

typedef struct gain { /* a row of weights; its dtype is that of x or, seldom, another */
    const void *at;
    lh_dtype_t dtype;
    bool one_plus;
} gain_t;

/* w, or 1 + w as Gemma stores its weights. */
CPU_INLINE vf gain_get(const gain_t *w, uint64_t i, uint64_t m)
{
    const vf a = vf_get(w->at, w->dtype, i, m);
    return w->one_plus ? a + 1.0f : a;
}

/* Defines name_f32 and name_bf16 from name(k, part, d, w), where w's dtype is a constant if it is
 * that of x. */
#define NORM_BOTH(name, text)                                                        \
    CPU_INLINE void name##_gain(const lh_prepared_t *k, uint32_t part, lh_dtype_t d) \
    {                                                                                \
        LH_SLOTS(text);                                                              \
        gain_t w = {k->at[in_w], d, k->how.norm.one_plus != 0};                      \
        if (k->view[in_w].dtype == d) {                                              \
            name(k, part, d, &w);                                                    \
        } else {                                                                     \
            w.dtype = k->view[in_w].dtype;                                           \
            name(k, part, d, &w);                                                    \
        }                                                                            \
    }                                                                                \
    CPU_BOTH(name##_gain)

/* 1 / sqrt(mean square + epsilon), in F32 and without a reciprocal's approximation. */
static float norm_reciprocal(const lh_prepared_t *k, float square_sum, uint64_t width)
{
    return 1.0f / sqrtf(square_sum / (float)width + (float)k->how.norm.epsilon);
}

/* A row, or a group of one, at a time. */
CPU_INLINE void rms_rows(const lh_prepared_t *k, uint32_t part, lh_dtype_t d, const gain_t *w)
{
    LH_SLOTS(LH_RMS_NORM_TEXT);
    uint64_t row, end;
    const uint64_t width = k->view[in_x].width;
    cpu_range(part, k->number[CHUNK], k->view[in_x].rows, &row, &end);
    for (; row < end; row++) {
        const void *x = group_row(k, in_x, row);
        void *y = group_row(k, out_y, row);
        vf sum = vf_zero();
        VF_EACH(i, m, 0, width, {
            const vf a = vf_get(x, d, i, m);
            sum = vf_fma(a, a, sum);
        });
        const float rstd = norm_reciprocal(k, vf_sum(sum), width);
        if (cpu_has(k, out_rstd)) ((float *)k->at[out_rstd])[row] = rstd;
        VF_EACH(i, m, 0, width,
                { vf_put(y, d, i, m, vf_get(x, d, i, m) * rstd * gain_get(w, i, m)); });
    }
}
NORM_BOTH(rms_rows, LH_RMS_NORM_TEXT)

/* The norm sees the sum as it is stored, so that the fused op and its parts agree to the bit. */
CPU_INLINE void add_rms_rows(const lh_prepared_t *k, uint32_t part, lh_dtype_t d, const gain_t *w)
{
    LH_SLOTS(LH_ADD_RMS_NORM_TEXT);
    uint64_t row, end;
    const uint64_t width = k->view[in_a].width;
    cpu_range(part, k->number[CHUNK], k->view[in_a].rows, &row, &end);
    for (; row < end; row++) {
        const void *a = cpu_row(k, in_a, row), *b = cpu_row(k, in_b, row);
        void *total = cpu_row(k, out_sum, row), *y = cpu_row(k, out_y, row);
        vf sum = vf_zero();
        VF_EACH(i, m, 0, width, {
            vf s = vf_get(a, d, i, m) + vf_get(b, d, i, m);
            /* Rounded as it will be stored. */
            if (d == LH_DTYPE_BF16) s = vf_from_bf16(vf_to_bf16(s));
            vf_put(total, d, i, m, s);
            sum = vf_fma(s, s, sum);
        });
        const float rstd = norm_reciprocal(k, vf_sum(sum), width);
        if (cpu_has(k, out_rstd)) ((float *)k->at[out_rstd])[row] = rstd;
        VF_EACH(i, m, 0, width,
                { vf_put(y, d, i, m, vf_get(total, d, i, m) * rstd * gain_get(w, i, m)); });
    }
}
NORM_BOTH(add_rms_rows, LH_ADD_RMS_NORM_TEXT)

/* The variance is summed around the mean, in a pass of its own: the difference of two sums would
 * lose its digits where the mean is large. vf_keep: behind the row's end 0 - mean is no
 * deviation. */
CPU_INLINE void layer_rows(const lh_prepared_t *k, uint32_t part, lh_dtype_t d, const gain_t *w)
{
    LH_SLOTS(LH_LAYER_NORM_TEXT);
    uint64_t row, end;
    const uint64_t width = k->view[in_x].width;
    cpu_range(part, k->number[CHUNK], k->view[in_x].rows, &row, &end);
    for (; row < end; row++) {
        const void *x = cpu_row(k, in_x, row);
        void *y = cpu_row(k, out_y, row);
        vf sum = vf_zero(), square = vf_zero();
        VF_EACH(i, m, 0, width, { sum = sum + vf_get(x, d, i, m); });
        const float mean = vf_sum(sum) / (float)width;
        VF_EACH(i, m, 0, width, {
            const vf c = vf_keep(vf_get(x, d, i, m) - mean, m, 0);
            square = vf_fma(c, c, square);
        });
        const float rstd = norm_reciprocal(k, vf_sum(square), width);
        if (cpu_has(k, out_mean)) ((float *)k->at[out_mean])[row] = mean;
        if (cpu_has(k, out_rstd)) ((float *)k->at[out_rstd])[row] = rstd;
        VF_EACH(i, m, 0, width, {
            vf out = (vf_get(x, d, i, m) - mean) * rstd * gain_get(w, i, m);
            if (cpu_has(k, in_b)) out = out + vf_get(k->at[in_b], k->view[in_b].dtype, i, m);
            vf_put(y, d, i, m, out);
        });
    }
}
NORM_BOTH(layer_rows, LH_LAYER_NORM_TEXT)

/* A w shorter than a row cuts each row into groups, which become rows of their own in the views. */
static lh_status_t rms_norm_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                 lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_RMS_NORM_TEXT);
    (void)plan;
    static const uint32_t same[] = {out_y, 0}, wide[] = {in_w, 0}, tall[] = {out_rstd, 0};
    const uint64_t width = k->view[in_w].rows * k->view[in_w].width;
    k->number[GROUPS] = width == 0 || k->view[in_x].width % width != 0
                            ? 1
                            : k->view[in_x].width / width;
    groups_take(k, in_x, width);
    groups_take(k, out_y, width);
    k->number[CHUNK] = norm_chunk(&k->view[in_x]);
    cpu_phase_add(k, CPU_PICK(rms_rows_gain, k->view[in_x].dtype), k->view[in_x].rows,
                  k->number[CHUNK]);
    return norm_shapes(k, desc->op, same, wide, tall);
}

static lh_status_t add_rms_norm_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                     lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_ADD_RMS_NORM_TEXT);
    (void)plan;
    static const uint32_t same[] = {in_b, out_sum, out_y, 0}, wide[] = {in_w, 0},
                          tall[] = {out_rstd, 0};
    k->number[CHUNK] = norm_chunk(&k->view[in_a]);
    cpu_phase_add(k, CPU_PICK(add_rms_rows_gain, k->view[in_a].dtype), k->view[in_a].rows,
                  k->number[CHUNK]);
    return norm_shapes(k, desc->op, same, wide, tall);
}

static lh_status_t layer_norm_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                   lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_LAYER_NORM_TEXT);
    (void)plan;
    static const uint32_t same[] = {out_y, 0}, wide[] = {in_w, in_b, 0},
                          tall[] = {out_mean, out_rstd, 0};
    k->number[CHUNK] = norm_chunk(&k->view[in_x]);
    cpu_phase_add(k, CPU_PICK(layer_rows_gain, k->view[in_x].dtype), k->view[in_x].rows,
                  k->number[CHUNK]);
    return norm_shapes(k, desc->op, same, wide, tall);
}

/* ---- gradients ----
 * Scratch holds for each chunk of rows its partial sums [width] of gw, then those of gb: lines of
 * COLUMNS floats, a multiple of LANES, so that their tails need no care. */

/* A line of partial sums: which, of `lines` for each chunk. */
static float *partial_line(const lh_prepared_t *k, uint64_t chunk, uint64_t which, uint64_t lines)
{
    return (float *)k->scratch + (chunk * lines + which) * k->number[COLUMNS];
}

/* gx = rstd (g - n mean(g n)) with n = x rstd: `back` is rstd mean(g n), so that x itself is
 * scaled. gw gathers gy n in this chunk's line. residual: the slot of what is added to gx once it
 * is rounded, so that the fused op and its parts agree to the bit; 0: nothing is. */
CPU_INLINE void rms_grad_chunk(const lh_prepared_t *k, uint32_t part, lh_dtype_t d, const gain_t *w,
                               uint32_t residual, uint32_t out_gx)
{
    enum { in_gy, in_x, in_w, in_rstd }; /* of both ops */
    uint64_t row, end;
    const uint64_t width = k->view[in_gy].width;
    float *gw = partial_line(k, part, 0, 1);
    memset(gw, 0, k->number[COLUMNS] * sizeof(*gw));
    cpu_range(part, k->number[CHUNK], k->view[in_gy].rows, &row, &end);
    for (; row < end; row++) {
        const void *gy = group_row(k, in_gy, row), *x = group_row(k, in_x, row);
        const void *more = residual != 0 ? group_row(k, residual, row) : NULL;
        void *gx = group_row(k, out_gx, row);
        const float rstd = ((const float *)k->at[in_rstd])[row];
        vf sum = vf_zero();
        VF_EACH(i, m, 0, width, {
            const vf g = vf_get(gy, d, i, m), a = vf_get(x, d, i, m);
            sum = vf_fma(g * gain_get(w, i, m), a, sum);
            vf_store(gw + i, vf_fma(g, a * rstd, vf_load(gw + i)));
        });
        /* The row's sum is known: the second pass makes gx of what is in the cache. */
        const float back = vf_sum(sum) * rstd * rstd / (float)width;
        if (!cpu_has(k, out_gx)) continue;
        VF_EACH(i, m, 0, width, {
            const vf scaled = vf_get(gy, d, i, m) * gain_get(w, i, m);
            vf_put(gx, d, i, m, (scaled - vf_get(x, d, i, m) * back) * rstd);
            if (more != NULL) vf_put(gx, d, i, m, vf_get(gx, d, i, m) + vf_get(more, d, i, m));
        });
    }
}

CPU_INLINE void rms_grad_rows(const lh_prepared_t *k, uint32_t part, lh_dtype_t d, const gain_t *w)
{
    LH_SLOTS(LH_RMS_NORM_GRAD_TEXT);
    rms_grad_chunk(k, part, d, w, 0, out_gx);
}
NORM_BOTH(rms_grad_rows, LH_RMS_NORM_GRAD_TEXT)

CPU_INLINE void rms_grad_add_rows(const lh_prepared_t *k, uint32_t part, lh_dtype_t d,
                                  const gain_t *w)
{
    LH_SLOTS(LH_RMS_NORM_GRAD_ADD_TEXT);
    rms_grad_chunk(k, part, d, w, in_residual, out_gx);
}
NORM_BOTH(rms_grad_add_rows, LH_RMS_NORM_GRAD_ADD_TEXT)

/* level and slope are the two means of the formula; unit is n. residual: as in rms_grad_chunk. */
CPU_INLINE void layer_grad_chunk(const lh_prepared_t *k, uint32_t part, lh_dtype_t d,
                                 const gain_t *w, uint32_t residual, uint32_t out_gx)
{
    enum { in_gy, in_x, in_w, in_mean, in_rstd }; /* of both ops */
    uint64_t row, end;
    const uint64_t width = k->view[in_gy].width;
    float *gw = partial_line(k, part, 0, 2), *gb = partial_line(k, part, 1, 2);
    memset(gw, 0, 2 * k->number[COLUMNS] * sizeof(*gw));
    cpu_range(part, k->number[CHUNK], k->view[in_gy].rows, &row, &end);
    for (; row < end; row++) {
        const void *gy = cpu_row(k, in_gy, row), *x = cpu_row(k, in_x, row);
        const void *more = residual != 0 ? cpu_row(k, residual, row) : NULL;
        void *gx = cpu_row(k, out_gx, row);
        const float mean = ((const float *)k->at[in_mean])[row],
                    rstd = ((const float *)k->at[in_rstd])[row];
        vf sum = vf_zero(), along = vf_zero();
        VF_EACH(i, m, 0, width, {
            const vf g = vf_get(gy, d, i, m), unit = (vf_get(x, d, i, m) - mean) * rstd;
            const vf scaled = g * gain_get(w, i, m);
            sum = sum + scaled;
            along = vf_fma(scaled, unit, along);
            vf_store(gw + i, vf_fma(g, unit, vf_load(gw + i)));
            vf_store(gb + i, g + vf_load(gb + i));
        });
        const float level = vf_sum(sum) / (float)width, slope = vf_sum(along) / (float)width;
        if (!cpu_has(k, out_gx)) continue;
        VF_EACH(i, m, 0, width, {
            const vf unit = (vf_get(x, d, i, m) - mean) * rstd;
            const vf scaled = vf_get(gy, d, i, m) * gain_get(w, i, m);
            vf_put(gx, d, i, m, (scaled - level - unit * slope) * rstd);
            if (more != NULL) vf_put(gx, d, i, m, vf_get(gx, d, i, m) + vf_get(more, d, i, m));
        });
    }
}

CPU_INLINE void layer_grad_rows(const lh_prepared_t *k, uint32_t part, lh_dtype_t d,
                                const gain_t *w)
{
    LH_SLOTS(LH_LAYER_NORM_GRAD_TEXT);
    layer_grad_chunk(k, part, d, w, 0, out_gx);
}
NORM_BOTH(layer_grad_rows, LH_LAYER_NORM_GRAD_TEXT)

CPU_INLINE void layer_grad_add_rows(const lh_prepared_t *k, uint32_t part, lh_dtype_t d,
                                    const gain_t *w)
{
    LH_SLOTS(LH_LAYER_NORM_GRAD_ADD_TEXT);
    layer_grad_chunk(k, part, d, w, in_residual, out_gx);
}
NORM_BOTH(layer_grad_add_rows, LH_LAYER_NORM_GRAD_ADD_TEXT)

/* Sums line `which` of all chunks, in order, into columns of an output. */
CPU_INLINE void partial_sum(const lh_prepared_t *k, uint32_t part, uint32_t slot, uint64_t which,
                            uint64_t lines)
{
    uint64_t i, end;
    const uint64_t width = k->view[0].width;
    float *out = k->at[slot];
    cpu_range(part, column_block, width, &i, &end);
    for (; i < end; i += LANES) {
        const uint64_t m = vf_span(i, end);
        vf sum = vf_zero();
        for (uint64_t c = 0; c < k->number[CHUNKS]; c++)
            sum = sum + vf_load(partial_line(k, c, which, lines) + i);
        if ((k->view[slot].flags & LH_ARG_ADD) != 0) sum = sum + vf_get(out, LH_DTYPE_F32, i, m);
        vf_put(out, LH_DTYPE_F32, i, m, sum);
    }
}

/* Second phases: part p sums the columns of block p over all chunks. */
static void rms_grad_sum(const lh_prepared_t *k, uint32_t part)
{
    LH_SLOTS(LH_RMS_NORM_GRAD_TEXT);
    partial_sum(k, part, out_gw, 0, 1);
}

static void rms_grad_add_sum(const lh_prepared_t *k, uint32_t part)
{
    LH_SLOTS(LH_RMS_NORM_GRAD_ADD_TEXT);
    partial_sum(k, part, out_gw, 0, 1);
}

/* Line 0 of each chunk is of gw, line 1 of gb. */
static void layer_grad_sum(const lh_prepared_t *k, uint32_t part)
{
    LH_SLOTS(LH_LAYER_NORM_GRAD_TEXT);
    if (cpu_has(k, out_gw)) partial_sum(k, part, out_gw, 0, 2);
    if (cpu_has(k, out_gb)) partial_sum(k, part, out_gb, 1, 2);
}

static void layer_grad_add_sum(const lh_prepared_t *k, uint32_t part)
{
    LH_SLOTS(LH_LAYER_NORM_GRAD_ADD_TEXT);
    if (cpu_has(k, out_gw)) partial_sum(k, part, out_gw, 0, 2);
    if (cpu_has(k, out_gb)) partial_sum(k, part, out_gb, 1, 2);
}

/* Chunks of at least a part's worth of rows, and scratch for `lines` lines of each. */
static void partials_plan(lh_prepared_t *k, uint64_t lines, lh_kernel_plan_t *plan)
{
    const cpu_view_t *x = &k->view[0];
    k->number[CHUNK] = cpu_chunk(x->rows, norm_chunk(x), most_partials);
    k->number[CHUNKS] = (x->rows + k->number[CHUNK] - 1) / k->number[CHUNK];
    k->number[COLUMNS] = (x->width + 15) / 16 * 16;
    plan->scratch_bytes = k->number[CHUNKS] * lines * k->number[COLUMNS] * sizeof(float);
}

/* Both ops: groups of all that is shaped like x, and the partial sums. The first four slots are the
 * same ones; `like` ends with 0. */
static void rms_grad_groups(lh_prepared_t *k, const uint32_t *like, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_RMS_NORM_GRAD_TEXT);
    const uint64_t width = k->view[in_w].rows * k->view[in_w].width;
    k->number[GROUPS] = width == 0 || k->view[in_x].width % width != 0
                            ? 1
                            : k->view[in_x].width / width;
    groups_take(k, in_gy, width);
    for (; *like != 0; like++)
        groups_take(k, *like, width);
    partials_plan(k, 1, plan);
}

static lh_status_t rms_norm_grad_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                      lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_RMS_NORM_GRAD_TEXT);
    static const uint32_t same[] = {in_x, out_gx, 0}, wide[] = {in_w, out_gw, 0},
                          tall[] = {in_rstd, 0};
    rms_grad_groups(k, same, plan);
    cpu_phase_add(k, CPU_PICK(rms_grad_rows_gain, k->view[in_gy].dtype), k->view[in_gy].rows,
                  k->number[CHUNK]);
    if (cpu_has(k, out_gw)) cpu_phase_add(k, rms_grad_sum, k->view[in_gy].width, column_block);
    return norm_shapes(k, desc->op, same, wide, tall);
}

static lh_status_t rms_norm_grad_add_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                          lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_RMS_NORM_GRAD_ADD_TEXT);
    static const uint32_t same[] = {in_x, in_residual, out_gx, 0}, wide[] = {in_w, out_gw, 0},
                          tall[] = {in_rstd, 0};
    rms_grad_groups(k, same, plan);
    cpu_phase_add(k, CPU_PICK(rms_grad_add_rows_gain, k->view[in_gy].dtype), k->view[in_gy].rows,
                  k->number[CHUNK]);
    if (cpu_has(k, out_gw)) cpu_phase_add(k, rms_grad_add_sum, k->view[in_gy].width, column_block);
    return norm_shapes(k, desc->op, same, wide, tall);
}

/* gw and gb may be left out, each by itself; gx as well (frozen parameters, a first layer). */
static lh_status_t layer_norm_grad_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                        lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_LAYER_NORM_GRAD_TEXT);
    static const uint32_t same[] = {in_x, out_gx, 0}, wide[] = {in_w, out_gw, out_gb, 0},
                          tall[] = {in_mean, in_rstd, 0};
    partials_plan(k, 2, plan);
    cpu_phase_add(k, CPU_PICK(layer_grad_rows_gain, k->view[in_gy].dtype), k->view[in_gy].rows,
                  k->number[CHUNK]);
    if (cpu_has(k, out_gw) || cpu_has(k, out_gb))
        cpu_phase_add(k, layer_grad_sum, k->view[in_gy].width, column_block);
    return norm_shapes(k, desc->op, same, wide, tall);
}

static lh_status_t layer_norm_grad_add_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                            lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_LAYER_NORM_GRAD_ADD_TEXT);
    static const uint32_t same[] = {in_x, in_residual, out_gx, 0},
                          wide[] = {in_w, out_gw, out_gb, 0}, tall[] = {in_mean, in_rstd, 0};
    partials_plan(k, 2, plan);
    cpu_phase_add(k, CPU_PICK(layer_grad_add_rows_gain, k->view[in_gy].dtype), k->view[in_gy].rows,
                  k->number[CHUNK]);
    if (cpu_has(k, out_gw) || cpu_has(k, out_gb))
        cpu_phase_add(k, layer_grad_add_sum, k->view[in_gy].width, column_block);
    return norm_shapes(k, desc->op, same, wide, tall);
}

const cpu_op_t CPU_ISA(norm_ops)[] = {
    {"rms_norm", "xyxf?", rms_norm_plan},
    {"rms_norm_grad", "xxyfx?f?", rms_norm_grad_plan},
    {"rms_norm_grad_add", "xxyfxxf?", rms_norm_grad_add_plan},
    {"add_rms_norm", "xxyxxf?", add_rms_norm_plan},
    {"layer_norm", "xyy?xf?f?", layer_norm_plan},
    {"layer_norm_grad", "xxyffx?f?f?", layer_norm_grad_plan},
    {"layer_norm_grad_add", "xxyffxxf?f?", layer_norm_grad_add_plan},
    {NULL, NULL, NULL},
};
