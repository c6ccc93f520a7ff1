/* acme_ops.c - a third party's op: definition, gradient, and kernels for two devices.
 *
 * `acme.swish` is x / (1 + exp(-beta x)). Its rows in `ops` let any model record it, differentiate
 * it, cut it and cost it; its rows in `kernels` compute it on the device `cpu`, with that device's
 * threads, and on `reference`, where gradients are checked in double precision. */
#include <math.h>

#include <longhaul/dtype.h>
#include <longhaul/plugin.h>

typedef struct acme_swish {
    uint32_t struct_size;
    uint32_t reserved;
    double beta;
} acme_swish_t;

static const lh_option_t swish_attributes[] = {
    LH_OPTION_F64(acme_swish_t, beta, "beta", "1", "0..100", "steepness"),
};

#define SWISH_TEXT(OP, IN, OUT)                                              \
    OP("acme.swish", "a smooth rectifier of adjustable steepness",           \
       "y = x s(beta x), with the sigmoid s", "gx = acme.swish_grad(gy, x)") \
    IN(x, "", "[t, w]")                                                      \
    OUT(y, "", "[t, w]")

#define SWISH_GRAD_TEXT(OP, IN, OUT)                                               \
    OP("acme.swish_grad", "the gradient of acme.swish",                            \
       "gx = gy s (1 + beta x (1 - s)), with s = s(beta x) of acme.swish", "none") \
    IN(gy, "", "[t, w]")                                                           \
    IN(x, "", "[t, w]")                                                            \
    OUT(gx, "", "[t, w]")

static lh_status_t like(const lh_host_t *host, const lh_arg_t *x, lh_arg_t *out)
{
    if (x->rank != 2)
        return host->fail(host, LH_INVALID, "acme.swish: x has %u dimensions, expected 2", x->rank);
    *out = *x;
    return LH_OK;
}

/* LH_SLOTS names the slots of a text: in_x, out_y. */
static lh_status_t swish_shape(const lh_host_t *host, LH_UNUSED const void *attributes,
                               lh_arg_t *args, LH_UNUSED uint32_t arg_count)
{
    LH_SLOTS(SWISH_TEXT);
    return like(host, &args[in_x], &args[out_y]);
}

static lh_status_t swish_grad_shape(const lh_host_t *host, LH_UNUSED const void *attributes,
                                    lh_arg_t *args, LH_UNUSED uint32_t arg_count)
{
    LH_SLOTS(SWISH_GRAD_TEXT);
    return like(host, &args[in_x], &args[out_gx]);
}

/* Of both ops: every slot is shaped as the first. */
static void swish_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                       lh_cost_t *out)
{
    (void)attributes;
    const double elements = (double)args[0].shape[0] * (double)args[0].shape[1];
    const double bytes = args[0].dtype == LH_DTYPE_BF16 ? 2 : 4;
    LH_FILL(lh_cost_t, out, .flops = 10 * elements, .bytes = bytes * arg_count * elements);
}

static void swish_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                           const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    LH_SLOTS(SWISH_TEXT);
    const lh_value_t in[] = {from[0], forward[in_x]};
    if (wanted[in_x]) into[in_x] = g->api->op(g, "acme.swish_grad", attributes, in, 2, NULL);
}

#define SWISH(op_text, op_shape, op_gradient)                                           \
    {                                                                                   \
        LH_OP_TEXT(op_text),                                                            \
            .attributes = swish_attributes, .attribute_size = sizeof(lh_option_t),      \
            .attribute_count = 1, .attributes_bytes = sizeof(acme_swish_t),             \
            .flags = LH_OP_ROWS | LH_OP_COLUMNS, .shape = op_shape, .cost = swish_cost, \
            .gradient = op_gradient                                                     \
    }

static const lh_op_t ops[] = {
    SWISH(SWISH_TEXT, swish_shape, swish_gradient),
    SWISH(SWISH_GRAD_TEXT, swish_grad_shape, NULL),
};

enum { MAX_ARGS = 3 }; /* of acme.swish_grad */

struct lh_prepared {
    const lh_host_t *host;
    bool gradient;
    lh_dtype_t dtype;
    uint64_t rows, width;
    uint64_t pitch[MAX_ARGS]; /* elements from row to row; they may lie further apart than width */
    double beta;
};

/* x of either op. */
static const lh_arg_t *x_of(const lh_kernel_desc_t *desc, bool gradient)
{
    if (gradient) {
        LH_SLOTS(SWISH_GRAD_TEXT);
        return &desc->args[in_x];
    }
    LH_SLOTS(SWISH_TEXT);
    return &desc->args[in_x];
}

static lh_status_t prepare_either(const lh_host_t *host, const lh_kernel_desc_t *desc,
                                  lh_kernel_plan_t *plan, bool gradient, lh_prepared_t **out)
{
    const acme_swish_t *how = desc->attributes;
    lh_prepared_t *k = host->alloc(host, sizeof(*k), 64);
    if (k == NULL) return LH_NO_MEMORY;

    k->host = host;
    k->gradient = gradient;
    const lh_arg_t *x = x_of(desc, gradient);
    k->dtype = x->dtype;
    k->rows = x->shape[0];
    k->width = x->shape[1];
    for (uint32_t i = 0; i < desc->arg_count; i++)
        k->pitch[i] = desc->args[i].stride[0];
    k->beta = how->beta;
    LH_FILL(lh_kernel_plan_t, plan, .flags = LH_KERNEL_ORDERED | LH_KERNEL_CAPTURE, .variant = 1,
            .name = "swish.acme");
    *out = k;
    return LH_OK;
}

static lh_status_t prepare(const lh_host_t *host, LH_UNUSED lh_device_t *d,
                           const lh_kernel_desc_t *desc, lh_kernel_plan_t *plan,
                           lh_prepared_t **out)
{
    return prepare_either(host, desc, plan, false, out);
}

static lh_status_t prepare_grad(const lh_host_t *host, LH_UNUSED lh_device_t *d,
                                const lh_kernel_desc_t *desc, lh_kernel_plan_t *plan,
                                lh_prepared_t **out)
{
    return prepare_either(host, desc, plan, true, out);
}

static void release(lh_prepared_t *k)
{
    k->host->release(k->host, k);
}

static float swish_f32(float beta, float x)
{
    return x / (1 + expf(-beta * x));
}

static float slope_f32(float beta, float x)
{
    const float s = 1 / (1 + expf(-beta * x));
    return s * (1 + beta * x * (1 - s));
}

static double swish_f64(double beta, double x)
{
    return x / (1 + exp(-beta * x));
}

static double slope_f64(double beta, double x)
{
    const double s = 1 / (1 + exp(-beta * x));
    return s * (1 + beta * x * (1 - s));
}

#define AS_IS(value) (value)

/* One row: y = f(x), or gx = gy f'(x). The dtypes differ only in how an element is read and
 * written. */
#define ROW(name, T, R, load, round, swish, slope)                          \
    static void name(const lh_prepared_t *k, void *const *at, uint64_t row) \
    {                                                                       \
        const R beta = (R)k->beta;                                          \
        if (k->gradient) {                                                  \
            LH_SLOTS(SWISH_GRAD_TEXT);                                      \
            const T *gy = (const T *)at[in_gy] + row * k->pitch[in_gy];     \
            const T *x = (const T *)at[in_x] + row * k->pitch[in_x];        \
            T *gx = (T *)at[out_gx] + row * k->pitch[out_gx];               \
            for (uint64_t i = 0; i < k->width; i++)                         \
                gx[i] = round(load(gy[i]) * slope(beta, load(x[i])));       \
        } else {                                                            \
            LH_SLOTS(SWISH_TEXT);                                           \
            const T *x = (const T *)at[in_x] + row * k->pitch[in_x];        \
            T *y = (T *)at[out_y] + row * k->pitch[out_y];                  \
            for (uint64_t i = 0; i < k->width; i++)                         \
                y[i] = round(swish(beta, load(x[i])));                      \
        }                                                                   \
    }
ROW(row_f32, float, float, AS_IS, AS_IS, swish_f32, slope_f32)
ROW(row_bf16, uint16_t, float, lh_bf16_to_f32, lh_f32_to_bf16, swish_f32, slope_f32)
ROW(row_f64, double, double, AS_IS, AS_IS, swish_f64, slope_f64)

typedef struct swish_work {
    const lh_prepared_t *k;
    void *at[MAX_ARGS];
    uint32_t parts;
} swish_work_t;

static void run_part(void *context, uint32_t part)
{
    const swish_work_t *w = context;
    const lh_prepared_t *k = w->k;
    for (uint64_t r = k->rows * part / w->parts; r < k->rows * (part + 1) / w->parts; r++) {
        if (k->dtype == LH_DTYPE_BF16)
            row_bf16(k, w->at, r);
        else if (k->dtype == LH_DTYPE_F64)
            row_f64(k, w->at, r);
        else
            row_f32(k, w->at, r);
    }
}

static swish_work_t work_of(const lh_prepared_t *k, const lh_launch_t *call, uint32_t parts)
{
    swish_work_t w = {.k = k, .parts = parts};
    for (uint32_t i = 0; i < MAX_ARGS && i < call->arg_count; i++)
        w.at[i] = call->args[i].address;
    return w;
}

/* The device's own threads: none are started here. */
static lh_status_t launch_cpu(lh_prepared_t *k, const lh_launch_t *call)
{
    lh_threads_t *threads = (lh_threads_t *)(uintptr_t)call->queue->handle;
    swish_work_t w = work_of(k, call, threads->count);
    threads->run(threads, w.parts, run_part, &w);
    return LH_OK;
}

static lh_status_t launch_reference(lh_prepared_t *k, const lh_launch_t *call)
{
    swish_work_t w = work_of(k, call, 1);
    run_part(&w, 0);
    return LH_OK;
}

/* For a GPU: swish<<<..., (cudaStream_t)call->queue->handle>>>(...) in a .cu file, device "cuda".
 */
#define KERNEL(name, on, dtype, make, run)                                                  \
    {                                                                                       \
        .op = name, .device = on, .dtypes = {dtype, dtype}, .prepare = make, .launch = run, \
        .release = release                                                                  \
    }

static const lh_kernel_t kernels[] = {
    KERNEL("acme.swish", "cpu", LH_DTYPE_F32, prepare, launch_cpu),
    KERNEL("acme.swish_grad", "cpu", LH_DTYPE_F32, prepare_grad, launch_cpu),
    KERNEL("acme.swish", "cpu", LH_DTYPE_BF16, prepare, launch_cpu),
    KERNEL("acme.swish_grad", "cpu", LH_DTYPE_BF16, prepare_grad, launch_cpu),
    KERNEL("acme.swish", "reference", LH_DTYPE_F32, prepare, launch_reference),
    KERNEL("acme.swish_grad", "reference", LH_DTYPE_F32, prepare_grad, launch_reference),
    KERNEL("acme.swish", "reference", LH_DTYPE_F64, prepare, launch_reference),
    KERNEL("acme.swish_grad", "reference", LH_DTYPE_F64, prepare_grad, launch_reference),
};

LH_PLUGIN = {
    LH_PLUGIN_HEADER,          .kind = LH_KIND_PARTS,           .name = "acme_ops",
    .version = "0.1.0",        .summary = "an op of one's own", LH_TABLE_OPS(ops),
    LH_TABLE_KERNELS(kernels),
};
