/* copy_kernels.c - copy: any strides and dtype to any other.
 *
 * Three speeds: the same dtype by memcpy, pairs of F32, BF16 and F16 by vectors, the rest (F64,
 * I32) by double, element by element, as it occurs outside of steps only. */
#include "vector.h"

LH_SLOTS(LH_COPY_TEXT);
enum { CHUNK = 0 };

static const uint64_t chunk_elements = 32768;

/* Element `at` as a double, which holds each of these dtypes exactly. */
static double scalar_get(const void *base, lh_dtype_t dtype, uint64_t at)
{
    switch (dtype) {
    case LH_DTYPE_F64: return ((const double *)base)[at];
    case LH_DTYPE_I32: return ((const int32_t *)base)[at];
    case LH_DTYPE_BF16: return (double)lh_bf16_to_f32(((const uint16_t *)base)[at]);
    case LH_DTYPE_F16: return (double)lh_f16_to_f32(((const uint16_t *)base)[at]);
    default: return (double)((const float *)base)[at];
    }
}

/* Towards zero, and to the nearest end where it does not fit: a plain cast would be undefined
 * there. */
static int32_t scalar_whole(double value)
{
    if (value != value) return 0;
    if (value >= 2147483647.0) return INT32_MAX;
    if (value <= -2147483648.0) return INT32_MIN;
    return (int32_t)value;
}

static void scalar_put(void *base, lh_dtype_t dtype, uint64_t at, double value)
{
    switch (dtype) {
    case LH_DTYPE_F64: ((double *)base)[at] = value; break;
    case LH_DTYPE_I32: ((int32_t *)base)[at] = scalar_whole(value); break;
    case LH_DTYPE_BF16: ((uint16_t *)base)[at] = lh_f32_to_bf16((float)value); break;
    case LH_DTYPE_F16: ((uint16_t *)base)[at] = lh_f32_to_f16((float)value); break;
    default: ((float *)base)[at] = (float)value; break;
    }
}

/* By lanes, through F32. Tiny BF16 are kept: what is stored may be a weight. */
CPU_INLINE void run_vectors(void *y, lh_dtype_t to, const void *x, lh_dtype_t from, uint64_t n,
                            bool add)
{
    VF_EACH(i, m, 0, n, {
        vf v = vf_get(x, from, i, m);
        if (add) v = vf_get(y, to, i, m) + v;
        vf_put_exact(y, to, i, m, v);
    });
}

/* Whether vectors can do it: dtypes that lanes load and store. */
static bool dtype_has_lanes(lh_dtype_t dtype)
{
    return dtype == LH_DTYPE_F32 || dtype == LH_DTYPE_BF16 || dtype == LH_DTYPE_F16;
}

/* n elements that lie next to each other. F32 to BF16 and back, which every step has, have their
 * dtypes as constants. */
static void run_copy(void *y, lh_dtype_t to, const void *x, lh_dtype_t from, uint64_t n, bool add)
{
    if (to == from && !add) {
        memcpy(y, x, n * lh_dtype_bytes(to));
    } else if (from == LH_DTYPE_F32 && to == LH_DTYPE_BF16) {
        run_vectors(y, LH_DTYPE_BF16, x, LH_DTYPE_F32, n, add);
    } else if (from == LH_DTYPE_BF16 && to == LH_DTYPE_F32) {
        run_vectors(y, LH_DTYPE_F32, x, LH_DTYPE_BF16, n, add);
    } else if (dtype_has_lanes(from) && dtype_has_lanes(to)) {
        run_vectors(y, to, x, from, n, add);
    } else {
        for (uint64_t i = 0; i < n; i++)
            scalar_put(y, to, i, scalar_get(x, from, i) + (add ? scalar_get(y, to, i) : 0));
    }
}

/* Row by row: the place of element `at` in each tensor is worked out from its index, dimension by
 * dimension from the last but one. */
static void copy_elements(const lh_prepared_t *k, uint32_t part)
{
    const lh_arg_t *x = &k->arg[in_x], *y = &k->arg[out_y];
    uint64_t at, end;
    cpu_range(part, k->number[CHUNK], k->view[in_x].rows * k->view[in_x].width, &at, &end);
    while (at < end) {
        const uint64_t width = k->view[in_x].width;
        uint64_t rest = at / width, x_at = at % width, y_at = at % width;
        const uint64_t n = width - x_at < end - at ? width - x_at : end - at;
        for (uint32_t i = x->rank; i-- > 1;) {
            const uint64_t index = rest % x->shape[i - 1];
            rest /= x->shape[i - 1];
            x_at += index * x->stride[i - 1];
            y_at += index * y->stride[i - 1];
        }
        run_copy((char *)k->at[out_y] + y_at * lh_dtype_bytes(y->dtype), y->dtype,
                 (const char *)k->at[in_x] + x_at * lh_dtype_bytes(x->dtype), x->dtype, n,
                 (y->flags & LH_ARG_ADD) != 0);
        at += n;
    }
}

/* Dense on both sides: the shape no longer matters. */
static void copy_flat(const lh_prepared_t *k, uint32_t part)
{
    const lh_dtype_t from = k->view[in_x].dtype, to = k->view[out_y].dtype;
    uint64_t at, end;
    cpu_range(part, k->number[CHUNK], k->view[in_x].rows * k->view[in_x].width, &at, &end);
    run_copy((char *)k->at[out_y] + at * lh_dtype_bytes(to), to,
             (const char *)k->at[in_x] + at * lh_dtype_bytes(from), from, end - at,
             (k->view[out_y].flags & LH_ARG_ADD) != 0);
}

/* Rows back to back; a view with pitch 0 lies unevenly. */
static bool copy_dense(const cpu_view_t *v)
{
    return v->pitch == v->width || (v->rows == 1 && v->pitch != 0);
}

/* Equal shapes, or as many elements where both are dense. */
static lh_status_t copy_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc, lh_kernel_plan_t *plan)
{
    (void)desc;
    (void)plan;
    const cpu_view_t *x = &k->view[in_x], *y = &k->view[out_y];
    const uint64_t elements = x->rows * x->width;
    bool same = k->arg[in_x].rank == k->arg[out_y].rank;
    for (uint32_t i = 0; same && i < k->arg[in_x].rank; i++)
        same = k->arg[in_x].shape[i] == k->arg[out_y].shape[i];
    const bool flat = copy_dense(x) && copy_dense(y) && elements == y->rows * y->width;
    if (!same && !flat)
        return k->host->fail(k->host, LH_UNSUPPORTED, "copy: %llu x %llu to %llu x %llu elements",
                             (unsigned long long)x->rows, (unsigned long long)x->width,
                             (unsigned long long)y->rows, (unsigned long long)y->width);

    k->number[CHUNK] = chunk_elements;
    cpu_phase_add(k, flat ? copy_flat : copy_elements, elements, chunk_elements);
    return LH_OK;
}

const cpu_op_t CPU_ISA(copy_ops)[] = {{"copy", "vv", copy_plan}, {NULL, NULL, NULL}};
