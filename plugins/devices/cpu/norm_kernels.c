/* norm_kernels.c - rms_norm, layer_norm, the fused residual add, and their gradients. Statistics
 * are F32 sums over a row in LANES partial sums; the gradients of weights are sums over chunks of
 * rows, then over the chunks in order. */
#include "vector.h"

#include <math.h>

enum { CHUNK = 0, CHUNKS = 1, COLUMNS = 2 };

static const uint64_t chunk_elements = 16384;
static const uint64_t most_partials = 64; /* rows of partial sums, however many tokens there are */
static const uint64_t column_block = 256; /* columns that one part sums over the partials       */

/* Rows a part takes. */
static uint64_t norm_chunk(const cpu_view_t *x)
{
    const uint64_t rows = chunk_elements / x->width;
    return rows == 0 ? 1 : rows;
}

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

CPU_INLINE vf gain_get(const gain_t *w, uint64_t i, uint64_t m)
{
    const vf a = vf_get(w->at, w->dtype, i, m);
    return w->one_plus ? a + 1.0f : a;
}

/* Defines name_f32 and name_bf16 from name(k, part, d, w), where w's dtype is a constant if it is
 * that of x. */
#define NORM_BOTH(name, slot)                                                        \
    CPU_INLINE void name##_gain(const lh_prepared_t *k, uint32_t part, lh_dtype_t d) \
    {                                                                                \
        gain_t w = {k->at[slot], d, k->how.norm.one_plus != 0};                      \
        if (k->view[slot].dtype == d) {                                              \
            name(k, part, d, &w);                                                    \
        } else {                                                                     \
            w.dtype = k->view[slot].dtype;                                           \
            name(k, part, d, &w);                                                    \
        }                                                                            \
    }                                                                                \
    CPU_BOTH(name##_gain)

static float norm_reciprocal(const lh_prepared_t *k, float square_sum, uint64_t width)
{
    return 1.0f / sqrtf(square_sum / (float)width + (float)k->how.norm.epsilon);
}

CPU_INLINE void rms_rows(const lh_prepared_t *k, uint32_t part, lh_dtype_t d, const gain_t *w)
{
    uint64_t row, end;
    const uint64_t width = k->view[0].width;
    cpu_range(part, k->number[CHUNK], k->view[0].rows, &row, &end);
    for (; row < end; row++) {
        const void *x = cpu_row(k, 0, row);
        void *y = cpu_row(k, 2, row);
        vf sum = vf_zero();
        VF_EACH(i, m, 0, width, {
            const vf a = vf_get(x, d, i, m);
            sum = vf_fma(a, a, sum);
        });
        const float rstd = norm_reciprocal(k, vf_sum(sum), width);
        if (cpu_has(k, 3)) ((float *)k->at[3])[row] = rstd;
        VF_EACH(i, m, 0, width,
                { vf_put(y, d, i, m, vf_get(x, d, i, m) * rstd * gain_get(w, i, m)); });
    }
}
NORM_BOTH(rms_rows, 1)

/* The norm sees the sum as it is stored, so that the fused op and its parts agree to the bit. */
CPU_INLINE void add_rms_rows(const lh_prepared_t *k, uint32_t part, lh_dtype_t d, const gain_t *w)
{
    uint64_t row, end;
    const uint64_t width = k->view[0].width;
    cpu_range(part, k->number[CHUNK], k->view[0].rows, &row, &end);
    for (; row < end; row++) {
        const void *a = cpu_row(k, 0, row), *b = cpu_row(k, 1, row);
        void *total = cpu_row(k, 3, row), *y = cpu_row(k, 4, row);
        vf sum = vf_zero();
        VF_EACH(i, m, 0, width, {
            vf s = vf_get(a, d, i, m) + vf_get(b, d, i, m);
            if (d == LH_DTYPE_BF16) s = vf_from_bf16(vf_to_bf16(s));
            vf_put(total, d, i, m, s);
            sum = vf_fma(s, s, sum);
        });
        const float rstd = norm_reciprocal(k, vf_sum(sum), width);
        if (cpu_has(k, 5)) ((float *)k->at[5])[row] = rstd;
        VF_EACH(i, m, 0, width,
                { vf_put(y, d, i, m, vf_get(total, d, i, m) * rstd * gain_get(w, i, m)); });
    }
}
NORM_BOTH(add_rms_rows, 2)

CPU_INLINE void layer_rows(const lh_prepared_t *k, uint32_t part, lh_dtype_t d, const gain_t *w)
{
    uint64_t row, end;
    const uint64_t width = k->view[0].width;
    cpu_range(part, k->number[CHUNK], k->view[0].rows, &row, &end);
    for (; row < end; row++) {
        const void *x = cpu_row(k, 0, row);
        void *y = cpu_row(k, 3, row);
        vf sum = vf_zero(), square = vf_zero();
        VF_EACH(i, m, 0, width, { sum = sum + vf_get(x, d, i, m); });
        const float mean = vf_sum(sum) / (float)width;
        VF_EACH(i, m, 0, width, {
            const vf c = vf_keep(vf_get(x, d, i, m) - mean, m, 0);
            square = vf_fma(c, c, square);
        });
        const float rstd = norm_reciprocal(k, vf_sum(square), width);
        if (cpu_has(k, 4)) ((float *)k->at[4])[row] = mean;
        if (cpu_has(k, 5)) ((float *)k->at[5])[row] = rstd;
        VF_EACH(i, m, 0, width, {
            vf out = (vf_get(x, d, i, m) - mean) * rstd * gain_get(w, i, m);
            if (cpu_has(k, 2)) out = out + vf_get(k->at[2], k->view[2].dtype, i, m);
            vf_put(y, d, i, m, out);
        });
    }
}
NORM_BOTH(layer_rows, 1)

static lh_status_t rms_norm_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                 lh_kernel_plan_t *plan)
{
    (void)plan;
    static const uint32_t same[] = {2, 0}, wide[] = {1, 0}, tall[] = {3, 0};
    k->number[CHUNK] = norm_chunk(&k->view[0]);
    cpu_phase_add(k, CPU_PICK(rms_rows_gain, k->view[0].dtype), k->view[0].rows, k->number[CHUNK]);
    return norm_shapes(k, desc->op, same, wide, tall);
}

static lh_status_t add_rms_norm_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                     lh_kernel_plan_t *plan)
{
    (void)plan;
    static const uint32_t same[] = {1, 3, 4, 0}, wide[] = {2, 0}, tall[] = {5, 0};
    k->number[CHUNK] = norm_chunk(&k->view[0]);
    cpu_phase_add(k, CPU_PICK(add_rms_rows_gain, k->view[0].dtype), k->view[0].rows,
                  k->number[CHUNK]);
    return norm_shapes(k, desc->op, same, wide, tall);
}

static lh_status_t layer_norm_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                   lh_kernel_plan_t *plan)
{
    (void)plan;
    static const uint32_t same[] = {3, 0}, wide[] = {1, 2, 0}, tall[] = {4, 5, 0};
    k->number[CHUNK] = norm_chunk(&k->view[0]);
    cpu_phase_add(k, CPU_PICK(layer_rows_gain, k->view[0].dtype), k->view[0].rows,
                  k->number[CHUNK]);
    return norm_shapes(k, desc->op, same, wide, tall);
}

/* ---- gradients ----
 * Scratch holds for each chunk of rows its partial sums [width] of gw, then those of gb: lines of
 * COLUMNS floats, a multiple of LANES, so that their tails need no care. */

static float *partial_line(const lh_prepared_t *k, uint64_t chunk, uint64_t which, uint64_t lines)
{
    return (float *)k->scratch + (chunk * lines + which) * k->number[COLUMNS];
}

CPU_INLINE void rms_grad_rows(const lh_prepared_t *k, uint32_t part, lh_dtype_t d, const gain_t *w)
{
    uint64_t row, end;
    const uint64_t width = k->view[0].width;
    float *gw = partial_line(k, part, 0, 1);
    memset(gw, 0, k->number[COLUMNS] * sizeof(*gw));
    cpu_range(part, k->number[CHUNK], k->view[0].rows, &row, &end);
    for (; row < end; row++) {
        const void *gy = cpu_row(k, 0, row), *x = cpu_row(k, 1, row);
        void *gx = cpu_row(k, 4, row);
        const float rstd = ((const float *)k->at[3])[row];
        vf sum = vf_zero();
        VF_EACH(i, m, 0, width, {
            const vf g = vf_get(gy, d, i, m), a = vf_get(x, d, i, m);
            sum = vf_fma(g * gain_get(w, i, m), a, sum);
            vf_store(gw + i, vf_fma(g, a * rstd, vf_load(gw + i)));
        });
        const float back = vf_sum(sum) * rstd * rstd / (float)width;
        if (!cpu_has(k, 4)) continue;
        VF_EACH(i, m, 0, width, {
            const vf scaled = vf_get(gy, d, i, m) * gain_get(w, i, m);
            vf_put(gx, d, i, m, (scaled - vf_get(x, d, i, m) * back) * rstd);
        });
    }
}
NORM_BOTH(rms_grad_rows, 2)

CPU_INLINE void layer_grad_rows(const lh_prepared_t *k, uint32_t part, lh_dtype_t d,
                                const gain_t *w)
{
    uint64_t row, end;
    const uint64_t width = k->view[0].width;
    float *gw = partial_line(k, part, 0, 2), *gb = partial_line(k, part, 1, 2);
    memset(gw, 0, 2 * k->number[COLUMNS] * sizeof(*gw));
    cpu_range(part, k->number[CHUNK], k->view[0].rows, &row, &end);
    for (; row < end; row++) {
        const void *gy = cpu_row(k, 0, row), *x = cpu_row(k, 1, row);
        void *gx = cpu_row(k, 5, row);
        const float mean = ((const float *)k->at[3])[row], rstd = ((const float *)k->at[4])[row];
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
        if (!cpu_has(k, 5)) continue;
        VF_EACH(i, m, 0, width, {
            const vf unit = (vf_get(x, d, i, m) - mean) * rstd;
            const vf scaled = vf_get(gy, d, i, m) * gain_get(w, i, m);
            vf_put(gx, d, i, m, (scaled - level - unit * slope) * rstd);
        });
    }
}
NORM_BOTH(layer_grad_rows, 2)

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

static void rms_grad_sum(const lh_prepared_t *k, uint32_t part)
{
    partial_sum(k, part, 5, 0, 1);
}

static void layer_grad_sum(const lh_prepared_t *k, uint32_t part)
{
    if (cpu_has(k, 6)) partial_sum(k, part, 6, 0, 2);
    if (cpu_has(k, 7)) partial_sum(k, part, 7, 1, 2);
}

static void partials_plan(lh_prepared_t *k, uint64_t lines, lh_kernel_plan_t *plan)
{
    const cpu_view_t *x = &k->view[0];
    k->number[CHUNK] = cpu_chunk(x->rows, norm_chunk(x), most_partials);
    k->number[CHUNKS] = (x->rows + k->number[CHUNK] - 1) / k->number[CHUNK];
    k->number[COLUMNS] = (x->width + 15) / 16 * 16;
    plan->scratch_bytes = k->number[CHUNKS] * lines * k->number[COLUMNS] * sizeof(float);
}

static lh_status_t rms_norm_grad_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                      lh_kernel_plan_t *plan)
{
    static const uint32_t same[] = {1, 4, 0}, wide[] = {2, 5, 0}, tall[] = {3, 0};
    partials_plan(k, 1, plan);
    cpu_phase_add(k, CPU_PICK(rms_grad_rows_gain, k->view[0].dtype), k->view[0].rows,
                  k->number[CHUNK]);
    if (cpu_has(k, 5)) cpu_phase_add(k, rms_grad_sum, k->view[0].width, column_block);
    return norm_shapes(k, desc->op, same, wide, tall);
}

static lh_status_t layer_norm_grad_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                        lh_kernel_plan_t *plan)
{
    static const uint32_t same[] = {1, 5, 0}, wide[] = {2, 6, 7, 0}, tall[] = {3, 4, 0};
    partials_plan(k, 2, plan);
    cpu_phase_add(k, CPU_PICK(layer_grad_rows_gain, k->view[0].dtype), k->view[0].rows,
                  k->number[CHUNK]);
    if (cpu_has(k, 6) || cpu_has(k, 7))
        cpu_phase_add(k, layer_grad_sum, k->view[0].width, column_block);
    return norm_shapes(k, desc->op, same, wide, tall);
}

const cpu_op_t CPU_ISA(norm_ops)[] = {
    {"rms_norm", rms_norm_plan},
    {"rms_norm_grad", rms_norm_grad_plan},
    {"add_rms_norm", add_rms_norm_plan},
    {"layer_norm", layer_norm_plan},
    {"layer_norm_grad", layer_norm_grad_plan},
    {NULL, NULL},
};
