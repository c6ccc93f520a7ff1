/* rows_element.c - copies and the ops that look at one element at a time. */
#include "cuda_rows.h"

#define FOLD(...)                                              \
    do {                                                       \
        cuda_view_t *const views_[] = {__VA_ARGS__};           \
        cuda_fold(views_, sizeof(views_) / sizeof(views_[0])); \
    } while (0)

static bool is_float(lh_dtype_t dtype)
{
    return dtype == LH_DTYPE_F32 || dtype == LH_DTYPE_BF16 || dtype == LH_DTYPE_F16;
}

/* ---- copy: x -> y+ ---- */

static lh_status_t copy_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_COPY_TEXT);
    (void)plan;
    const lh_dtype_t from = k->arg[in_x].dtype, to = k->arg[out_y].dtype;
    const bool small = from == LH_DTYPE_F8E4M3 || from == LH_DTYPE_F8E5M2 ||
                       to == LH_DTYPE_F8E4M3 || to == LH_DTYPE_F8E5M2;
    if (small && (from != to || (k->arg[out_y].flags & LH_ARG_ADD) != 0))
        return k->host->fail(k->host, LH_UNSUPPORTED,
                             "copy on cuda moves 8-bit floats and does not convert them");
    if (k->arg[in_x].rank != k->arg[out_y].rank) return cuda_check_like(k, in_x, out_y);
    for (uint32_t i = 0; i < k->arg[in_x].rank; i++) {
        if (k->arg[in_x].shape[i] != k->arg[out_y].shape[i]) return cuda_check_like(k, in_x, out_y);
    }
    return LH_OK;
}

static lh_status_t copy_strided(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_COPY_TEXT);
    const lh_arg_t *x = &k->arg[in_x], *y = &k->arg[out_y];
    const bool add = (y->flags & LH_ARG_ADD) != 0;
    cuda_copy_strided_t p = {.x = k->view[in_x].at,
                             .y = k->view[out_y].at,
                             .shape = {1, 1, 1, 1},
                             .x_dtype = x->dtype,
                             .y_dtype = y->dtype,
                             .add = add};
    uint64_t elements = 1;
    if (x->dtype == y->dtype && !add) p.bytes = (uint32_t)lh_dtype_bytes(x->dtype);
    for (uint32_t i = 0; i < x->rank; i++) {
        const uint32_t at = LH_MAX_RANK - x->rank + i;
        p.shape[at] = x->shape[i];
        p.x_stride[at] = x->stride[i];
        p.y_stride[at] = y->stride[i];
        elements *= x->shape[i];
    }
    const cuda_shape_t shape = {.grid = {(uint32_t)cuda_parts(elements, CUDA_THREADS), 1, 1},
                                .block = {CUDA_THREADS, 1, 1}};
    return cuda_launch(s, "cuda_copy_strided", &shape, &p, sizeof(p));
}

/* Octets where both sides are floats of 16 or 32 bits in even rows of one shape. */
static lh_status_t copy_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_COPY_TEXT);
    cuda_copy_t p = {.x = k->view[in_x], .y = k->view[out_y]};
    const bool even = (p.x.rows == 1 || p.x.pitch != 0) && (p.y.rows == 1 || p.y.pitch != 0) &&
                      p.x.width == p.y.width;
    /* A NaN's payload and a subnormal come through as they are only without floats. */
    if (!even || !is_float(p.x.dtype) || !is_float(p.y.dtype)) return copy_strided(k, s);
    FOLD(&p.x, &p.y);
    return cuda_launch_octets(s, "cuda_copy", &p.x, &p, sizeof(p));
}

/* ---- add, multiply, scale ---- */

static lh_status_t like_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    (void)plan;
    for (uint32_t i = 1; i < k->arg_count; i++) {
        const lh_status_t status = cuda_check_like(k, 0, i);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

static lh_status_t add_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_ADD_TEXT);
    cuda_add_t p = {.a = k->view[in_a], .b = k->view[in_b], .y = k->view[out_y]};
    FOLD(&p.a, &p.b, &p.y);
    return cuda_launch_octets(s, "cuda_add", &p.a, &p, sizeof(p));
}

enum { FACTOR = 0 }; /* k->number[]: CUDA_FACTOR_* */

static lh_status_t multiply_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_MULTIPLY_TEXT);
    (void)plan;
    const cuda_view_t *a = &k->view[in_a], *b = &k->view[in_b];
    if (b->rows == a->rows && b->width == a->width)
        k->number[FACTOR] = CUDA_FACTOR_EACH;
    else if (b->rows == a->rows && b->width == 1)
        k->number[FACTOR] = CUDA_FACTOR_COLUMN;
    else if (b->rows == 1 && b->width == a->width)
        k->number[FACTOR] = CUDA_FACTOR_ROW;
    else
        return cuda_check_like(k, in_a, in_b);
    return cuda_check_like(k, in_a, out_y);
}

static lh_status_t multiply_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_MULTIPLY_TEXT);
    cuda_multiply_t p = {.a = k->view[in_a],
                         .b = k->view[in_b],
                         .y = k->view[out_y],
                         .factor = (uint32_t)k->number[FACTOR]};
    if (p.factor == CUDA_FACTOR_EACH) FOLD(&p.a, &p.b, &p.y);
    return cuda_launch_octets(s, "cuda_multiply", &p.a, &p, sizeof(p));
}

static lh_status_t scale_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_SCALE_TEXT);
    (void)plan;
    const lh_status_t status = cuda_check_flat(k, in_factor, 1);
    return status != LH_OK ? status : cuda_check_like(k, in_x, out_y);
}

static lh_status_t scale_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_SCALE_TEXT);
    cuda_scale_t p = {.x = k->view[in_x], .y = k->view[out_y], .factor = k->view[in_factor].at};
    FOLD(&p.x, &p.y);
    return cuda_launch_octets(s, "cuda_scale", &p.x, &p, sizeof(p));
}

/* ---- activate, gate and their gradients ---- */

static lh_status_t activate_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_ACTIVATE_TEXT);
    cuda_activate_t p = {
        .x = k->view[in_x], .y = k->view[out_y], .function = k->how.activate.function};
    FOLD(&p.x, &p.y);
    return cuda_launch_octets(s, "cuda_activate", &p.x, &p, sizeof(p));
}

static lh_status_t activate_grad_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_ACTIVATE_GRAD_TEXT);
    cuda_activate_grad_t p = {.gy = k->view[in_gy],
                              .x = k->view[in_x],
                              .gx = k->view[out_gx],
                              .function = k->how.activate.function};
    FOLD(&p.gy, &p.x, &p.gx);
    return cuda_launch_octets(s, "cuda_activate_grad", &p.x, &p, sizeof(p));
}

static lh_status_t gate_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_GATE_TEXT);
    cuda_gate_t p = {.a = k->view[in_a],
                     .b = k->view[in_b],
                     .y = k->view[out_y],
                     .function = k->how.activate.function};
    FOLD(&p.a, &p.b, &p.y);
    return cuda_launch_octets(s, "cuda_gate", &p.a, &p, sizeof(p));
}

static lh_status_t gate_grad_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_GATE_GRAD_TEXT);
    cuda_gate_grad_t p = {.gy = k->view[in_gy],
                          .a = k->view[in_a],
                          .b = k->view[in_b],
                          .ga = k->view[out_ga],
                          .gb = k->view[out_gb],
                          .function = k->how.activate.function};
    FOLD(&p.gy, &p.a, &p.b, &p.ga, &p.gb);
    return cuda_launch_octets(s, "cuda_gate_grad", &p.a, &p, sizeof(p));
}

const cuda_op_t cuda_element_ops[] = {
    {"copy", "vv", copy_plan, copy_launch},
    {"add", "mmm", like_plan, add_launch},
    {"multiply", "mmm", multiply_plan, multiply_launch},
    {"scale", "mfm", scale_plan, scale_launch},
    {"activate", "xx", like_plan, activate_launch},
    {"activate_grad", "xxx", like_plan, activate_grad_launch},
    {"gate", "xxx", like_plan, gate_launch},
    {"gate_grad", "xxxxx", like_plan, gate_grad_launch},
    {NULL, NULL, NULL, NULL},
};
