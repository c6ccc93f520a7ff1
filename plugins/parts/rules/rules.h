/* rules.h - what the rules of this plugin that have ops of their own share: how their kernels run,
 * and the rows that go into the plugin's tables.
 *
 * AdamW and SGD are ops of the core. Muon and Adafactor look at whole matrices, in several passes
 * over them; their kernels are for devices whose memory the processor reads, `cpu` and `reference`.
 * Both compute in double and round what they store: they are bounded by memory, and a rule's bits
 * then hardly depend on how a compiler orders sums. */
#ifndef RULES_H
#define RULES_H

#include <longhaul/dtype.h>
#include <longhaul/plugin.h>

#define COUNT(t) (uint32_t)(sizeof(t) / sizeof((t)[0]))

/* One call of a kernel. Passes run one after the other, each in `parts` parts at once; no part
 * writes what another part of its pass reads, and no bits depend on the number of parts. */
typedef struct rules_call {
    const void *how; /* the op's attributes */
    uint64_t rows, columns;
    lh_dtype_t w_dtype; /* of the new value; NONE: nobody asks for it */
    const lh_place_t *args;
    double *scratch;
    uint32_t parts;
    uint32_t step;        /* slot of the step's scalars */
    bool wide, wide_step; /* arguments, and those scalars, are F64; else F32 */
    double found[2];      /* what rules_passes_t.between leaves to the passes that follow */
} rules_call_t;

enum { RULES_PASSES = 4 };
typedef struct rules_passes {
    void (*pass[RULES_PASSES])(void *call, uint32_t part); /* NULL: no more */
    void (*between[RULES_PASSES])(rules_call_t *call); /* after the pass of its number; or NULL */
} rules_passes_t;

/* What a kernel is: `shaped` is the slot that is [rows, columns], `step` that of the step's
 * scalars, `w` that of the new value (0: none), scratch() the doubles that it takes beside. */
typedef struct rules_kernel {
    const char *name;
    size_t attribute_bytes;
    uint32_t shaped, step, w;
    uint64_t (*scratch)(uint64_t rows, uint64_t columns);
    rules_passes_t in[2]; /* in F32, in F64 */
} rules_kernel_t;

/* For lh_kernel_t.prepare, whose device is not asked. All arguments but step and w are of one
 * dtype. */
lh_status_t rules_prepare(const lh_host_t *host, const rules_kernel_t *kernel,
                          const lh_kernel_desc_t *desc, lh_kernel_plan_t *plan,
                          lh_prepared_t **out);
lh_status_t rules_launch_cpu(lh_prepared_t *k, const lh_launch_t *call);
lh_status_t rules_launch_reference(lh_prepared_t *k, const lh_launch_t *call);
void rules_release(lh_prepared_t *k);

/* Where part `part` begins among `count` rows or columns; that of the next part ends it. */
static inline uint64_t rules_begin(const rules_call_t *c, uint64_t count, uint32_t part)
{
    return count * part / c->parts;
}

/* Element i of an argument. wide is a constant where it is called, so that a pass compiles once for
 * each dtype. */
static inline double rules_get(const rules_call_t *c, uint32_t slot, uint64_t i, bool wide)
{
    const void *at = c->args[slot].address;
    return wide ? ((const double *)at)[i] : (double)((const float *)at)[i];
}

static inline void rules_set(const rules_call_t *c, uint32_t slot, uint64_t i, double x, bool wide)
{
    void *at = c->args[slot].address;
    if (wide)
        ((double *)at)[i] = x;
    else
        ((float *)at)[i] = (float)x;
}

/* The new value: w is the master as it was stored, rounded to the compute dtype. */
static inline void rules_set_w(const rules_call_t *c, uint32_t slot, uint64_t i, double x)
{
    void *at = c->args[slot].address;
    if (c->w_dtype == LH_DTYPE_F32) ((float *)at)[i] = (float)x;
    if (c->w_dtype == LH_DTYPE_BF16) ((uint16_t *)at)[i] = lh_f32_to_bf16((float)x);
    if (c->w_dtype == LH_DTYPE_F64) ((double *)at)[i] = x;
}

/* A word of the step, LH_STEP_*. */
static inline double rules_word(const rules_call_t *c, uint32_t word)
{
    return rules_get(c, c->step, word, c->wide_step);
}

/* Whether the step counts. Every pass asks: the word lies in device memory, where `clip` wrote it. */
static inline bool rules_applied(const rules_call_t *c)
{
    return rules_word(c, LH_STEP_APPLY) != 0;
}

/* A pass in both dtypes, of a function body(call, part, wide). */
#define RULES_PASS(body)                              \
    static void body##_f32(void *call, uint32_t part) \
    {                                                 \
        body(call, part, false);                      \
    }                                                 \
    static void body##_f64(void *call, uint32_t part) \
    {                                                 \
        body(call, part, true);                       \
    }

/* Rows of the plugin's table of kernels. */
#define RULES_KERNEL(op_name, on, run, type, how)                                     \
    {                                                                                 \
        .op = op_name, .device = on, .dtypes = {type}, .prepare = how, .launch = run, \
        .release = rules_release                                                      \
    }
#define RULES_KERNELS(op_name, how)                                                    \
    RULES_KERNEL(op_name, "cpu", rules_launch_cpu, LH_DTYPE_F32, how),                 \
        RULES_KERNEL(op_name, "reference", rules_launch_reference, LH_DTYPE_F32, how), \
        RULES_KERNEL(op_name, "reference", rules_launch_reference, LH_DTYPE_F64, how)

#endif
