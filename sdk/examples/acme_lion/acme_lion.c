/* acme_lion.c - a third party's update rule: Lion (Chen et al. 2023), with an op of its own.
 *
 * The rule says what state it keeps and records one piece's update as ops. It never meets a rank, a
 * bucket or a stream: the optimizer plugin decides who holds which piece. */
#include <math.h>

#include <longhaul/dtype.h>
#include <longhaul/plugin.h>

/* ---- the op: one pass over a flat piece ---- */

typedef struct acme_lion {
    uint32_t struct_size;
    uint32_t reserved;
    double beta1, beta2, decay;
} acme_lion_t;

static const lh_option_t lion_attributes[] = {
    LH_OPTION_F64(acme_lion_t, beta1, "beta1", "0.9", "0..0.99999", "moment's share of the step"),
    LH_OPTION_F64(acme_lion_t, beta2, "beta2", "0.99", "0..0.99999", "decay of the moment"),
    LH_OPTION_F64(acme_lion_t, decay, "decay", "0", "0..1e6", "decoupled weight decay"),
};

enum { G, MASTER, M1, STEP, INPUTS, MASTER_OUT = INPUTS, M1_OUT, W, SLOTS };

/* The outputs that are named like inputs lie in their memory; w gets the compute dtype, as its
 * dtype is left open. */
static lh_status_t lion_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                              uint32_t arg_count)
{
    (void)attributes, (void)arg_count;
    for (uint32_t i = MASTER; i <= M1; i++)
        if (args[i].rank != 1 || args[G].rank != 1 || args[i].shape[0] != args[G].shape[0])
            return host->fail(host, LH_INVALID, "acme.lion: g, master and m1 differ in shape");
    args[MASTER_OUT] = args[MASTER];
    args[M1_OUT] = args[M1];
    args[W] = args[MASTER];
    args[W].dtype = LH_DTYPE_NONE;
    return LH_OK;
}

static void lion_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                      lh_cost_t *out)
{
    (void)attributes, (void)arg_count;
    const double n = (double)args[G].shape[0];
    LH_FILL(lh_cost_t, out, .flops = 8 * n, .bytes = 22 * n);
}

#define LION_TEXT(OP, IN, OUT)                                     \
    OP("acme.lion", "one step of Lion in one pass",                \
       "With x = GRAD_SCALE g and rate = LEARNING_RATE of step:\n" \
       "u = sign(beta1 m1 + (1 - beta1) x)\n"                      \
       "master = master (1 - rate decay) - rate u\n"               \
       "m1 = beta2 m1 + (1 - beta2) x\n"                           \
       "w = master. With APPLY 0 all stays as it is, w too.",      \
       "none")                                                     \
    IN(g, "", "[n]: the gradient")                                 \
    IN(master, "", "[n] F32")                                      \
    IN(m1, "", "[n]: the moment")                                  \
    IN(step, "", "[LH_STEP_WORDS] F32: the row of the group")      \
    OUT(master, "", "in place")                                    \
    OUT(m1, "", "in place")                                        \
    OUT(w, "?", "[n]: the new value in the compute dtype")

static const lh_op_t ops[] = {{
    LH_OP_TEXT(LION_TEXT),
    .attributes = lion_attributes,
    .attribute_size = sizeof(lion_attributes[0]),
    .attribute_count = sizeof(lion_attributes) / sizeof(lion_attributes[0]),
    .attributes_bytes = sizeof(acme_lion_t),
    .shape = lion_shape,
    .cost = lion_cost,
}};

/* ---- its kernel ---- */

struct lh_prepared {
    const lh_host_t *host;
    acme_lion_t how;
    uint64_t elements;
    lh_dtype_t w_dtype; /* NONE: nobody asks for it */
};

static lh_status_t prepare(const lh_host_t *host, lh_device_t *d, const lh_kernel_desc_t *desc,
                           lh_kernel_plan_t *plan, lh_prepared_t **out)
{
    (void)d;
    const lh_dtype_t w = desc->args[W].dtype;
    if (w != LH_DTYPE_NONE && w != LH_DTYPE_F32 && w != LH_DTYPE_BF16)
        return host->fail(host, LH_UNSUPPORTED, "acme.lion writes w in F32 or BF16 only");
    lh_prepared_t *k = host->alloc(host, sizeof(*k), 64);
    if (k == NULL) return LH_NO_MEMORY;

    k->host = host;
    k->how = *(const acme_lion_t *)desc->attributes;
    k->elements = desc->args[G].shape[0];
    k->w_dtype = w;
    LH_FILL(lh_kernel_plan_t, plan, .flags = LH_KERNEL_ORDERED | LH_KERNEL_CAPTURE, .variant = 1,
            .name = "lion.acme");
    *out = k;
    return LH_OK;
}

static void release(lh_prepared_t *k)
{
    k->host->release(k->host, k);
}

typedef struct lion_work {
    const lh_prepared_t *k;
    const float *g, *step;
    float *master, *m1;
    void *w;
    uint32_t parts;
} lion_work_t;

static void run_part(void *context, uint32_t part)
{
    const lion_work_t *p = context;
    const lh_prepared_t *k = p->k;
    const float rate = p->step[LH_STEP_LEARNING_RATE], scale = p->step[LH_STEP_GRAD_SCALE];
    const float b1 = (float)k->how.beta1, b2 = (float)k->how.beta2;
    const float keep = 1 - rate * (float)k->how.decay;
    const uint64_t end = k->elements * (part + 1) / p->parts;
    for (uint64_t i = k->elements * part / p->parts; i < end; i++) {
        const float g = p->g[i] * scale, m = p->m1[i];
        const float direction = b1 * m + (1 - b1) * g;
        const float sign = direction > 0 ? 1.0f : direction < 0 ? -1.0f : 0.0f;
        p->master[i] = keep * p->master[i] - rate * sign;
        p->m1[i] = b2 * m + (1 - b2) * g;
        if (k->w_dtype == LH_DTYPE_F32) ((float *)p->w)[i] = p->master[i];
        if (k->w_dtype == LH_DTYPE_BF16) ((uint16_t *)p->w)[i] = lh_f32_to_bf16(p->master[i]);
    }
}

static lion_work_t work_of(const lh_prepared_t *k, const lh_launch_t *call, uint32_t parts)
{
    return (lion_work_t){k,
                         call->args[G].address,
                         call->args[STEP].address,
                         call->args[MASTER_OUT].address,
                         call->args[M1_OUT].address,
                         call->args[W].address,
                         parts};
}

/* A step that is not applied (not finite) leaves all as it is; the word lies in device memory. */
static lh_status_t launch_cpu(lh_prepared_t *k, const lh_launch_t *call)
{
    lh_threads_t *threads = (lh_threads_t *)(uintptr_t)call->queue->handle;
    lion_work_t w = work_of(k, call, threads->count);
    if (w.step[LH_STEP_APPLY] != 0) threads->run(threads, w.parts, run_part, &w);
    return LH_OK;
}

static lh_status_t launch_reference(lh_prepared_t *k, const lh_launch_t *call)
{
    lion_work_t w = work_of(k, call, 1);
    if (w.step[LH_STEP_APPLY] != 0) run_part(&w, 0);
    return LH_OK;
}

#define KERNEL(on, run)                                                                         \
    {                                                                                           \
        .op = "acme.lion", .device = on,                                                        \
        .dtypes = {LH_DTYPE_F32, LH_DTYPE_F32, LH_DTYPE_F32, LH_DTYPE_F32}, .prepare = prepare, \
        .launch = run, .release = release                                                       \
    }

static const lh_kernel_t kernels[] = {
    KERNEL("cpu", launch_cpu),
    KERNEL("reference", launch_reference),
};

/* ---- the rule: [optimizer] rule = acme_lion:lion ---- */

typedef struct lion_config {
    double beta1, beta2;
} lion_config_t;

static const lh_option_t lion_options[] = {
    LH_OPTION_F64(lion_config_t, beta1, "beta1", "0.9", "0..0.99999", "moment's share of the step"),
    LH_OPTION_F64(lion_config_t, beta2, "beta2", "0.99", "0..0.99999", "decay of the moment"),
};

static const lh_rule_state_t lion_states[] = {
    {.name = "exp_avg", .dtype = LH_DTYPE_F32, .extent = LH_EXTENT_ELEMENT},
};

/* step is left out: the core fills in the row of the piece's rate group. */
static lh_value_t lion_record(const void *config, lh_graph_t *g, const lh_piece_t *piece,
                              lh_value_t grad, lh_value_t master, lh_value_t *states,
                              lh_value_t *value)
{
    const lion_config_t *c = config;
    const acme_lion_t how = {sizeof(how), 0, c->beta1, c->beta2, piece->decay};
    const lh_value_t in[] = {grad, master, states[0]};
    lh_value_t more[2] = {0};

    const lh_value_t updated = g->api->op(g, "acme.lion", &how, in, 3, more);
    states[0] = more[0];
    *value = more[1];
    return updated;
}

static const lh_rule_t rules[] = {{
    .name = "lion",
    .help = "sign of an interpolated moment, decoupled weight decay (Chen et al. 2023)",
    .options = lion_options,
    .option_size = sizeof(lion_options[0]),
    .option_count = sizeof(lion_options) / sizeof(lion_options[0]),
    .config_size = sizeof(lion_config_t),
    .grain = LH_GRAIN_ELEMENT,
    .states = lion_states,
    .state_size = sizeof(lion_states[0]),
    .state_count = sizeof(lion_states) / sizeof(lion_states[0]),
    .record = lion_record,
}};

LH_PLUGIN = {
    LH_PLUGIN_HEADER,
    .kind = LH_KIND_PARTS,
    .name = "acme_lion",
    .version = "0.1.0",
    .summary = "an update rule of one's own",
    LH_TABLE_OPS(ops),
    LH_TABLE_KERNELS(kernels),
    LH_TABLE_RULES(rules),
};
