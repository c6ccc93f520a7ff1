/* acme_smooth.c - a third party's ops that do all that the core's own can.
 *
 *     acme.smooth         is kept by selective recomputation (LH_OP_COSTLY) and has a form with a
 *                         cache for generation (cached): acme.smooth_cached
 *     acme.add_activated  is fused: it takes the place of an activation and the add behind it where
 *                         the device has its kernel (fuses), and is recorded as the two where not
 *                         (expand)
 *     acme.cap            may be cut by rows and columns: behind a head's last product it is walked
 *                         in chunks of rows with it
 *     acme.linear         is a linear layer: its matrix may have an adapter (LH_OP_LINEAR), and where a
 *                         device packs products several of one input become one (product)
 *
 * Each is one row and one function of a row's numbers, for the devices `cpu` and `reference` alike.
 * The functions compute in double and are plain; acme_ops shows how to be fast. */
#include <math.h>

#include <longhaul/dtype.h>
#include <longhaul/plugin.h>

typedef struct smooth_how {
    uint32_t struct_size;
    uint32_t window;
} smooth_how_t;
LH_BORDER(smooth_how_t, window);

typedef struct cap_how {
    uint32_t struct_size;
    uint32_t reserved;
    double bound;
} cap_how_t;
LH_BORDER(cap_how_t, bound);

/* ---- kernels: one function computes row `row` of the outputs ---- */

typedef struct smooth_op smooth_op_t;

struct lh_prepared {
    const lh_host_t *host;
    const smooth_op_t *op;
    lh_arg_t arg[LH_MAX_SLOTS];
    void *at[LH_MAX_SLOTS]; /* of the launch */
    union {                 /* attributes; each begins with its struct_size */
        smooth_how_t smooth;
        lh_activate_t activate;
        cap_how_t cap;
    } how;
};

struct smooth_op {
    const char *name;
    void (*row)(const lh_prepared_t *k, uint64_t row);
};

static double load(const lh_prepared_t *k, uint32_t slot, uint64_t index)
{
    const void *at = k->at[slot];
    switch (k->arg[slot].dtype) {
    case LH_DTYPE_F64: return ((const double *)at)[index];
    case LH_DTYPE_F32: return (double)((const float *)at)[index];
    default: return (double)lh_bf16_to_f32(((const uint16_t *)at)[index]);
    }
}

static void store(const lh_prepared_t *k, uint32_t slot, uint64_t index, double value)
{
    void *at = k->at[slot];
    switch (k->arg[slot].dtype) {
    case LH_DTYPE_F64: ((double *)at)[index] = value; break;
    case LH_DTYPE_F32: ((float *)at)[index] = (float)value; break;
    default: ((uint16_t *)at)[index] = lh_f32_to_bf16((float)value); break;
    }
}

/* Element (row, column) of a tensor whose rows may lie further apart than their width. */
static uint64_t place(const lh_prepared_t *k, uint32_t slot, uint64_t row, uint64_t column)
{
    return row * k->arg[slot].stride[0] + column;
}

static const smooth_op_t *op_named(const char *name);

static lh_status_t prepare(const lh_host_t *host, lh_device_t *d, const lh_kernel_desc_t *desc,
                           lh_kernel_plan_t *plan, lh_prepared_t **out)
{
    (void)d;
    const lh_dtype_t dtype = desc->args[0].dtype;
    if (dtype != LH_DTYPE_F32 && dtype != LH_DTYPE_BF16 && dtype != LH_DTYPE_F64)
        return host->fail(host, LH_UNSUPPORTED, "%s computes f32, bf16 and f64", desc->op);
    lh_prepared_t *k = host->alloc(host, sizeof(*k), 64);
    if (k == NULL) return LH_NO_MEMORY;
    k->host = host;
    k->op = op_named(desc->op);
    memcpy(k->arg, desc->args, desc->arg_count * sizeof(k->arg[0]));
    uint32_t bytes = 0;
    if (desc->attributes != NULL) memcpy(&bytes, desc->attributes, sizeof(bytes));
    if (bytes > sizeof(k->how)) bytes = sizeof(k->how);
    if (bytes > 0) memcpy(&k->how, desc->attributes, bytes);
    LH_FILL(lh_kernel_plan_t, plan, .flags = LH_KERNEL_ORDERED | LH_KERNEL_CAPTURE, .variant = 1,
            .name = "acme_smooth");
    *out = k;
    return LH_OK;
}

static void release(lh_prepared_t *k)
{
    k->host->release(k->host, k);
}

typedef struct work {
    const lh_prepared_t *k;
    uint64_t rows;
    uint32_t parts;
} work_t;

static void run_part(void *context, uint32_t part)
{
    const work_t *w = context;
    for (uint64_t r = w->rows * part / w->parts; r < w->rows * (part + 1) / w->parts; r++)
        w->k->op->row(w->k, r);
}

/* The last slot of each op here is an output with a row for each row of work. */
static work_t work_of(lh_prepared_t *k, const lh_launch_t *call, uint32_t parts)
{
    for (uint32_t i = 0; i < call->arg_count; i++)
        k->at[i] = call->args[i].address;
    return (work_t){.k = k, .rows = k->arg[call->arg_count - 1].shape[0], .parts = parts};
}

static lh_status_t launch_cpu(lh_prepared_t *k, const lh_launch_t *call)
{
    lh_threads_t *threads = (lh_threads_t *)(uintptr_t)call->queue->handle;
    work_t w = work_of(k, call, threads->count);
    threads->run(threads, w.parts, run_part, &w);
    return LH_OK;
}

static lh_status_t launch_reference(lh_prepared_t *k, const lh_launch_t *call)
{
    work_t w = work_of(k, call, 1);
    run_part(&w, 0);
    return LH_OK;
}

/* ---- what the rows below have in common ---- */

static lh_status_t refuse(const lh_host_t *host, const char *what)
{
    return host->fail(host, LH_INVALID, "acme_smooth: %s", what);
}

static bool alike(const lh_arg_t *a, const lh_arg_t *b)
{
    return a->dtype == b->dtype && a->rank == 2 && b->rank == 2 && a->shape[0] == b->shape[0] &&
           a->shape[1] == b->shape[1];
}

/* Every op here takes a few operations for each element of its first input. */
static void cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count, lh_cost_t *out)
{
    (void)attributes;
    const double elements = (double)args[0].shape[0] * (double)args[0].shape[1];
    LH_FILL(lh_cost_t, out, .flops = 8 * elements, .bytes = 4 * arg_count * elements);
}

/* ---- acme.smooth: the mean over the last rows of a document ---- */

#define SMOOTH_TEXT(OP, IN, OUT)                                                       \
    OP("acme.smooth", "the mean of a row and of those before it",                      \
       "y[i] = mean of x[j] over the rows j of i's document with i - window < j <= i", \
       "gx = acme.smooth_grad(gy, starts)")                                            \
    IN(x, "", "[t, w]")                                                                \
    IN(starts, "", "[documents + 1] I32")                                              \
    OUT(y, "", "[t, w]")

#define SMOOTH_GRAD_TEXT(OP, IN, OUT)                                                      \
    OP("acme.smooth_grad", "the gradient of acme.smooth",                                  \
       "gx[j] = sum of gy[i] / rows that i is the mean of, over the i that see j", "none") \
    IN(gy, "", "[t, w]")                                                                   \
    IN(starts, "", "[documents + 1] I32")                                                  \
    OUT(gx, "", "[t, w]")

#define SMOOTH_CACHED_TEXT(OP, IN, OUT)                                                        \
    OP("acme.smooth_cached", "acme.smooth over a cache",                                       \
       "As acme.smooth inside each sequence: row s r + j is row lengths[s] + j of sequence s", \
       "none")                                                                                 \
    IN(x, "", "[sequences r, w]")                                                              \
    IN(x_cache, "", "[sequences, capacity, w], with the rows of x written")                    \
    IN(lengths, "", "[sequences] I32: rows in the cache before these")                         \
    OUT(y, "", "[sequences r, w]")

static const lh_option_t smooth_attributes[] = {
    LH_OPTION_U32(smooth_how_t, window, "window", "4", "1..65536",
                  "rows that a row is the mean of"),
};

static lh_status_t smooth_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                uint32_t arg_count)
{
    (void)attributes;
    if (args[0].rank != 2 || args[1].rank != 1 || args[1].dtype != LH_DTYPE_I32)
        return refuse(host, "x has two dimensions, starts one, of i32");
    args[arg_count - 1] = args[0];
    return LH_OK;
}

static void smooth_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                            const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    LH_SLOTS(SMOOTH_TEXT);
    const lh_value_t in[] = {from[0], forward[in_starts]};
    if (wanted[in_x]) into[in_x] = g->api->op(g, "acme.smooth_grad", attributes, in, 2, NULL);
}

static const char *smooth_with_cache(const void *attributes)
{
    (void)attributes; /* of any window */
    return "acme.smooth_cached";
}

static lh_status_t smooth_cached_shape(const lh_host_t *host, const void *attributes,
                                       lh_arg_t *args, uint32_t arg_count)
{
    (void)attributes, (void)arg_count;
    LH_SLOTS(SMOOTH_CACHED_TEXT);
    if (args[in_x].rank != 2 || args[in_x_cache].rank != 3 || args[in_lengths].rank != 1 ||
        args[in_lengths].dtype != LH_DTYPE_I32 ||
        args[in_x_cache].shape[2] != args[in_x].shape[1] ||
        args[in_x_cache].shape[0] != args[in_lengths].shape[0] ||
        args[in_x].shape[0] % args[in_lengths].shape[0] != 0)
        return refuse(host, "x is [sequences r, w], its cache [sequences, capacity, w]");
    args[out_y] = args[in_x];
    return LH_OK;
}

/* First row of the document that `row` is in. */
static uint64_t document_begin(const lh_prepared_t *k, uint32_t slot, uint64_t row)
{
    const int32_t *starts = k->at[slot];
    uint64_t begin = 0;
    for (uint64_t d = 0; d < k->arg[slot].shape[0]; d++)
        if ((uint64_t)(int64_t)starts[d] <= row) begin = (uint64_t)(int64_t)starts[d];
    return begin;
}

/* First of the rows that `row` is the mean of. */
static uint64_t seen_from(const lh_prepared_t *k, uint64_t row, uint64_t begin)
{
    const uint64_t before = k->how.smooth.window - 1;
    return row - begin > before ? row - before : begin;
}

static void smooth_row(const lh_prepared_t *k, uint64_t row)
{
    LH_SLOTS(SMOOTH_TEXT);
    const uint64_t from = seen_from(k, row, document_begin(k, in_starts, row));
    for (uint64_t c = 0; c < k->arg[out_y].shape[1]; c++) {
        double sum = 0;
        for (uint64_t j = from; j <= row; j++)
            sum += load(k, in_x, place(k, in_x, j, c));
        store(k, out_y, place(k, out_y, row, c), sum / (double)(row - from + 1));
    }
}

static void smooth_grad_row(const lh_prepared_t *k, uint64_t row)
{
    LH_SLOTS(SMOOTH_GRAD_TEXT);
    const uint64_t begin = document_begin(k, in_starts, row), rows = k->arg[in_gy].shape[0];
    for (uint64_t c = 0; c < k->arg[out_gx].shape[1]; c++) {
        double sum = 0;
        for (uint64_t i = row; i < rows && i - row < k->how.smooth.window; i++) {
            if (document_begin(k, in_starts, i) != begin) break;
            sum += load(k, in_gy, place(k, in_gy, i, c)) / (double)(i - seen_from(k, i, begin) + 1);
        }
        store(k, out_gx, place(k, out_gx, row, c), sum);
    }
}

static void smooth_cached_row(const lh_prepared_t *k, uint64_t row)
{
    LH_SLOTS(SMOOTH_CACHED_TEXT);
    const lh_arg_t *cache = &k->arg[in_x_cache];
    const uint64_t r = k->arg[in_x].shape[0] / k->arg[in_lengths].shape[0], sequence = row / r;
    const int32_t length = ((const int32_t *)k->at[in_lengths])[sequence];
    const uint64_t at = (uint64_t)(int64_t)length + row % r, from = seen_from(k, at, 0);
    for (uint64_t c = 0; c < k->arg[out_y].shape[1]; c++) {
        double sum = 0;
        for (uint64_t j = from; j <= at && j < cache->shape[1]; j++)
            sum += load(k, in_x_cache, sequence * cache->stride[0] + j * cache->stride[1] + c);
        store(k, out_y, place(k, out_y, row, c), sum / (double)(at - from + 1));
    }
}

/* ---- acme.add_activated: what a residual and an activation are together ---- */

#define ADD_ACTIVATED_TEXT(OP, IN, OUT)                                             \
    OP("acme.add_activated", "a residual add of an activation, in one pass",        \
       "y = x + f(u), with f as in activate", "gx = gy, gu = activate_grad(gy, u)") \
    IN(x, "", "[t, w]")                                                             \
    IN(u, "", "[t, w]")                                                             \
    OUT(y, "", "[t, w]")

static const lh_option_t activated_attributes[] = {
    LH_OPTION_CHOICE(lh_activate_t, function, "function", "silu", "none|silu|gelu|gelu_tanh|tanh",
                     "which function"),
};

static lh_status_t add_activated_shape(const lh_host_t *host, const void *attributes,
                                       lh_arg_t *args, uint32_t arg_count)
{
    (void)attributes, (void)arg_count;
    LH_SLOTS(ADD_ACTIVATED_TEXT);
    if (!alike(&args[in_x], &args[in_u])) return refuse(host, "x and u are not of one shape");
    args[out_y] = args[in_x];
    return LH_OK;
}

static void add_activated_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                                   const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    LH_SLOTS(ADD_ACTIVATED_TEXT);
    const lh_value_t in[] = {from[0], forward[in_u]};
    if (wanted[in_x]) into[in_x] = from[0];
    if (wanted[in_u]) into[in_u] = g->api->op(g, "activate_grad", attributes, in, 2, NULL);
}

static void add_activated_expand(lh_graph_t *g, const void *attributes, const lh_value_t *in,
                                 lh_value_t *out)
{
    LH_SLOTS(ADD_ACTIVATED_TEXT);
    out[0] = lh_add(g, in[in_x], g->api->op(g, "activate", attributes, &in[in_u], 1, NULL));
}

/* The kernel has silu alone: other functions stay as they were recorded. */
static bool add_activated_fuse(const void *const *calls, void *out)
{
    memcpy(out, calls[0], sizeof(lh_activate_t));
    return ((const lh_activate_t *)calls[0])->function == LH_ACT_SILU;
}

static lh_status_t add_activated_fits(const lh_host_t *host, const lh_device_t *d,
                                      const void *config, const lh_kernel_desc_t *desc)
{
    (void)d, (void)config;
    if (((const lh_activate_t *)desc->attributes)->function == LH_ACT_SILU) return LH_OK;
    return host->fail(host, LH_UNSUPPORTED, "acme.add_activated has silu only");
}

static void add_activated_row(const lh_prepared_t *k, uint64_t row)
{
    LH_SLOTS(ADD_ACTIVATED_TEXT);
    for (uint64_t c = 0; c < k->arg[out_y].shape[1]; c++) {
        const double u = load(k, in_u, place(k, in_u, row, c));
        store(k, out_y, place(k, out_y, row, c),
              load(k, in_x, place(k, in_x, row, c)) + u / (1 + exp(-u)));
    }
}

/* ---- acme.cap: each element by itself ---- */

#define CAP_TEXT(OP, IN, OUT)                                          \
    OP("acme.cap", "bounds each element", "y = bound tanh(x / bound)", \
       "gx = acme.cap_grad(gy, x)")                                    \
    IN(x, "", "[t, w]")                                                \
    OUT(y, "", "[t, w]")

#define CAP_GRAD_TEXT(OP, IN, OUT)                                                             \
    OP("acme.cap_grad", "the gradient of acme.cap", "gx = gy (1 - tanh(x / bound)^2)", "none") \
    IN(gy, "", "[t, w]")                                                                       \
    IN(x, "", "[t, w]")                                                                        \
    OUT(gx, "", "[t, w]")

static const lh_option_t cap_attributes[] = {
    LH_OPTION_F64(cap_how_t, bound, "bound", "30", "0.01..1e6", "largest size of an element"),
};

/* The output is like the first input, which all inputs are like. */
static lh_status_t cap_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                             uint32_t arg_count)
{
    (void)attributes;
    for (uint32_t i = 0; i + 1 < arg_count; i++)
        if (args[i].rank != 2 || args[i].shape[0] != args[0].shape[0] ||
            args[i].shape[1] != args[0].shape[1])
            return refuse(host, "inputs of acme.cap are not of one shape");
    args[arg_count - 1] = args[0];
    return LH_OK;
}

static void cap_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                         const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    LH_SLOTS(CAP_TEXT);
    const lh_value_t in[] = {from[0], forward[in_x]};
    if (wanted[in_x]) into[in_x] = g->api->op(g, "acme.cap_grad", attributes, in, 2, NULL);
}

static void cap_row(const lh_prepared_t *k, uint64_t row)
{
    LH_SLOTS(CAP_TEXT);
    const double bound = k->how.cap.bound;
    for (uint64_t c = 0; c < k->arg[out_y].shape[1]; c++)
        store(k, out_y, place(k, out_y, row, c),
              bound * tanh(load(k, in_x, place(k, in_x, row, c)) / bound));
}

static void cap_grad_row(const lh_prepared_t *k, uint64_t row)
{
    LH_SLOTS(CAP_GRAD_TEXT);
    for (uint64_t c = 0; c < k->arg[out_gx].shape[1]; c++) {
        const double t = tanh(load(k, in_x, place(k, in_x, row, c)) / k->how.cap.bound);
        store(k, out_gx, place(k, out_gx, row, c),
              load(k, in_gy, place(k, in_gy, row, c)) * (1 - t * t));
    }
}

/* ---- acme.linear: a linear layer ---- */

#define LINEAR_TEXT(OP, IN, OUT)                                              \
    OP("acme.linear", "the product with a weight as models keep it",          \
       "y[i, o] = bias[o] + sum over j of x[i, j] weight[o, j]",              \
       "gx = matmul(gy, weight), gweight = matmul(gy, x) with transpose_a,\n" \
       "gbias = sum_rows(gy)")                                                \
    IN(x, "", "[t, in]")                                                      \
    IN(weight, "", "[out, in]")                                               \
    IN(bias, "?", "[out]")                                                    \
    OUT(y, "", "[t, out]")

static lh_status_t linear_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                uint32_t arg_count)
{
    (void)attributes, (void)arg_count;
    LH_SLOTS(LINEAR_TEXT);
    const lh_arg_t *x = &args[in_x], *weight = &args[in_weight], *bias = &args[in_bias];
    if (x->rank != 2 || weight->rank != 2 || weight->dtype != x->dtype ||
        weight->shape[1] != x->shape[1])
        return refuse(host, "x is [t, in], weight [out, in] of the same dtype");
    if (bias->dtype != LH_DTYPE_NONE && (bias->rank != 1 || bias->shape[0] != weight->shape[0]))
        return refuse(host, "bias is [out]");
    args[out_y] = *x;
    args[out_y].shape[1] = weight->shape[0];
    return LH_OK;
}

/* A multiplication and an addition for each term of each element. */
static void linear_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                        lh_cost_t *out)
{
    (void)attributes, (void)arg_count;
    LH_SLOTS(LINEAR_TEXT);
    const double t = (double)args[in_x].shape[0], in = (double)args[in_x].shape[1];
    const double o = (double)args[in_weight].shape[0];
    LH_FILL(lh_cost_t, out, .flops = 2 * t * in * o, .bytes = 4 * (t * in + in * o + t * o));
}

static void linear_gradient(lh_graph_t *g, const void *attributes, const lh_value_t *forward,
                            const lh_value_t *from, const bool *wanted, lh_value_t *into)
{
    (void)attributes;
    LH_SLOTS(LINEAR_TEXT);
    const lh_graph_api_t *api = g->api;
    const lh_matmul_t to_x = {.struct_size = sizeof(to_x)};
    const lh_matmul_t to_weight = {.struct_size = sizeof(to_weight), .transpose_a = 1};
    const lh_value_t x[] = {from[0], forward[in_weight]}, weight[] = {from[0], forward[in_x]};
    if (wanted[in_x]) into[in_x] = api->op(g, "matmul", &to_x, x, 2, NULL);
    if (wanted[in_weight]) into[in_weight] = api->op(g, "matmul", &to_weight, weight, 2, NULL);
    if (wanted[in_bias]) into[in_bias] = api->op(g, "sum_rows", NULL, from, 1, NULL);
}

static bool linear_product(const void *attributes, bool *transpose_a, bool *transpose_b)
{
    (void)attributes;
    *transpose_a = false;
    *transpose_b = true;
    return true;
}

static void linear_row(const lh_prepared_t *k, uint64_t row)
{
    LH_SLOTS(LINEAR_TEXT);
    const bool biased = k->arg[in_bias].dtype != LH_DTYPE_NONE;
    for (uint64_t o = 0; o < k->arg[out_y].shape[1]; o++) {
        double sum = biased ? load(k, in_bias, o) : 0;
        for (uint64_t j = 0; j < k->arg[in_x].shape[1]; j++)
            sum += load(k, in_x, place(k, in_x, row, j)) *
                   load(k, in_weight, place(k, in_weight, o, j));
        store(k, out_y, place(k, out_y, row, o), sum);
    }
}

/* ---- tables ---- */

#define ATTRIBUTES(T, table)                                                            \
    .attributes = (table), .attribute_size = sizeof(lh_option_t), .attribute_count = 1, \
    .attributes_bytes = sizeof(T), .cost = cost

static const lh_op_t ops[] = {
    {
        LH_OP_TEXT(SMOOTH_TEXT),
        ATTRIBUTES(smooth_how_t, smooth_attributes),
        .flags = LH_OP_COSTLY,
        .shape = smooth_shape,
        .gradient = smooth_gradient,
        .cached = smooth_with_cache,
    },
    {
        LH_OP_TEXT(SMOOTH_GRAD_TEXT),
        ATTRIBUTES(smooth_how_t, smooth_attributes),
        .shape = smooth_shape,
    },
    {
        LH_OP_TEXT(SMOOTH_CACHED_TEXT),
        ATTRIBUTES(smooth_how_t, smooth_attributes),
        .shape = smooth_cached_shape,
    },
    {
        LH_OP_TEXT(ADD_ACTIVATED_TEXT),
        ATTRIBUTES(lh_activate_t, activated_attributes),
        .flags = LH_OP_ROWS | LH_OP_COLUMNS,
        .shape = add_activated_shape,
        .gradient = add_activated_gradient,
        .expand = add_activated_expand,
        .fuses = "activate u -> f; add x f -> y | activate u -> f; add f x -> y",
        .fuse = add_activated_fuse,
    },
    {
        LH_OP_TEXT(CAP_TEXT),
        ATTRIBUTES(cap_how_t, cap_attributes),
        .flags = LH_OP_ROWS | LH_OP_COLUMNS,
        .shape = cap_shape,
        .gradient = cap_gradient,
    },
    {
        LH_OP_TEXT(CAP_GRAD_TEXT),
        ATTRIBUTES(cap_how_t, cap_attributes),
        .flags = LH_OP_ROWS | LH_OP_COLUMNS,
        .shape = cap_shape,
    },
    {
        LH_OP_TEXT(LINEAR_TEXT),
        .flags = LH_OP_LINEAR | LH_OP_PRODUCT | LH_OP_COSTLY,
        .shape = linear_shape,
        .cost = linear_cost,
        .gradient = linear_gradient,
        .product = linear_product,
    },
};

#define OPS(X)                                                     \
    X("acme.smooth", smooth_row, NULL)                             \
    X("acme.smooth_grad", smooth_grad_row, NULL)                   \
    X("acme.smooth_cached", smooth_cached_row, NULL)               \
    X("acme.add_activated", add_activated_row, add_activated_fits) \
    X("acme.cap", cap_row, NULL)                                   \
    X("acme.cap_grad", cap_grad_row, NULL)                         \
    X("acme.linear", linear_row, NULL)

#define FUNCTION(op, run, can) {op, run},
static const smooth_op_t functions[] = {OPS(FUNCTION)};

static const smooth_op_t *op_named(const char *name)
{
    const smooth_op_t *op = functions;
    while (strcmp(op->name, name) != 0) /* only what `kernels` lists is asked for */
        op++;
    return op;
}

#define KERNEL(name, on, can, run) \
    {.op = name, .device = on, .fits = can, .prepare = prepare, .launch = run, .release = release},
#define ON_BOTH(op, run, can) \
    KERNEL(op, "cpu", can, launch_cpu) KERNEL(op, "reference", can, launch_reference)
static const lh_kernel_t kernels[] = {OPS(ON_BOTH)};

LH_PLUGIN = {
    LH_PLUGIN_HEADER,
    .kind = LH_KIND_PARTS,
    .name = "acme_smooth",
    .version = "0.1.0",
    .summary = "ops that are kept, cached, fused, cut, adapted and packed",
    LH_TABLE_OPS(ops),
    LH_TABLE_KERNELS(kernels),
};
