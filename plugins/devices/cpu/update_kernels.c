/* update_kernels.c - the gradient's norm, clipping and the update of parameters, one pass each.
 *
 * All walk flat arrays. What changes from step to step (learning rate, step number, scales) is read
 * from LH_INPUT_STEP in device memory, so a call is prepared once. The norm is made of sums over
 * blocks of 4,096 elements that are added in order: any cut of the parameters over ranks at those
 * borders gives the same bits. */
#include "vector.h"

#include <math.h>

/* k->number[]: elements of the arrays, and blocks of them. */
enum { ELEMENTS = 0, BLOCKS = 1 };
enum { SQUARES_ELEMENTS = 4096, PART_BLOCKS = 4, PART_ELEMENTS = PART_BLOCKS * SQUARES_ELEMENTS };

/* A flat array of as many elements as slot 0 has. */
static lh_status_t flat_check(const lh_prepared_t *k, const char *op, uint32_t slot)
{
    const cpu_view_t *v = &k->view[slot], *first = &k->view[0];
    if (!cpu_has(k, slot)) return LH_OK;
    if (v->rows * v->width == first->rows * first->width && (v->rows == 1 || v->pitch == v->width))
        return LH_OK;
    return k->host->fail(k->host, LH_UNSUPPORTED,
                         "%s: slot %u is not a flat array of %llu elements", op, slot + 1,
                         (unsigned long long)(first->rows * first->width));
}

/* ---- sum_squares: x -> y [n, 2]: of each 4096 elements the sum, and how many are not finite ----
 */

/* -1 in lanes that hold infinity or a NaN: all bits of their exponent are set. */
CPU_INLINE vi not_finite(vf a)
{
    return (vi)(((vi)a & 0x7f800000) == 0x7f800000);
}

/* Four sums side by side, as one would wait for its own result; how they are added is fixed.
 * Not-finite elements are counted and not left out of the sum, which nobody uses then. */
CPU_INLINE void squares_block(const void *x, lh_dtype_t d, uint64_t begin, uint64_t end, float *out)
{
    vf sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    vi broken = {0};
    /* The order of additions is by place in the block alone, so any cut at blocks gives these
     * sums. */
    for (uint64_t i = begin; i < end; i += 4 * LANES) {
        for (uint64_t j = 0; j < 4; j++) {
            const uint64_t at = i + j * LANES;
            if (at >= end) break;
            const vf a = vf_get(x, d, at, vf_span(at, end));
            sum[j] = vf_fma(a, a, sum[j]);
            broken -= not_finite(a);
        }
    }
    int32_t count = 0;
    for (int i = 0; i < LANES; i++)
        count += broken[i];
    out[0] = vf_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
    out[1] = (float)count;
}

/* PART_BLOCKS blocks of 4,096 elements, each with a row of its own in y. */
static void squares_part(const lh_prepared_t *k, uint32_t part)
{
    LH_SLOTS(LH_SUM_SQUARES_TEXT);
    const uint64_t elements = k->number[ELEMENTS];
    uint64_t block, end;
    cpu_range(part, PART_BLOCKS, k->number[BLOCKS], &block, &end);
    for (; block < end; block++) {
        const uint64_t from = block * SQUARES_ELEMENTS;
        const uint64_t to = elements - from < SQUARES_ELEMENTS ? elements : from + SQUARES_ELEMENTS;
        if (k->view[in_x].dtype == LH_DTYPE_F32)
            squares_block(k->at[in_x], LH_DTYPE_F32, from, to, cpu_row(k, out_y, block));
        else
            squares_block(k->at[in_x], k->view[in_x].dtype, from, to, cpu_row(k, out_y, block));
    }
}

static lh_status_t sum_squares_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                    lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_SUM_SQUARES_TEXT);
    (void)plan;
    const cpu_view_t *x = &k->view[in_x], *y = &k->view[out_y];
    k->number[ELEMENTS] = x->rows * x->width;
    k->number[BLOCKS] = (k->number[ELEMENTS] + SQUARES_ELEMENTS - 1) / SQUARES_ELEMENTS;
    if (y->width != 2 || y->rows != k->number[BLOCKS])
        return k->host->fail(k->host, LH_UNSUPPORTED,
                             "sum_squares: %llu elements into %llu x %llu sums",
                             (unsigned long long)k->number[ELEMENTS], (unsigned long long)y->rows,
                             (unsigned long long)y->width);
    cpu_phase_add(k, squares_part, k->number[BLOCKS], PART_BLOCKS);
    return flat_check(k, desc->op, in_x);
}

/* ---- clip: squares step -> step ---- */

/* One thread, in double: some thousand numbers, and one order. A step is not applied where an
 * element or the norm is not finite. 1e-6 is what torch.nn.utils.clip_grad_norm_ adds. */
static void clip_part(const lh_prepared_t *k, uint32_t part)
{
    LH_SLOTS(LH_CLIP_TEXT);
    (void)part;
    const float *first = k->at[in_step];
    double sum = 0, broken = 0;
    for (uint64_t i = 0; i < k->view[in_squares].rows; i++) {
        const float *squares = cpu_row(k, in_squares, i);
        sum += (double)squares[0];
        broken += (double)squares[1];
    }
    const double norm = sqrt(sum) * (double)first[LH_STEP_GRAD_SCALE];
    const double allowed = (double)first[LH_STEP_MAX_NORM];
    const bool apply = broken == 0 && isfinite(norm);
    const double share = allowed / (norm + 1e-6);
    const double factor = apply && allowed > 0 && share < 1 ? share : 1;

    for (uint64_t i = 0; i < k->view[out_step].rows; i++) {
        const float *in = cpu_row(k, in_step, i);
        float *out = cpu_row(k, out_step, i);
        if (out != in) memcpy(out, in, LH_STEP_WORDS * sizeof(*out));
        out[LH_STEP_GRAD_SCALE] = (float)((double)in[LH_STEP_GRAD_SCALE] * factor);
        out[LH_STEP_NORM] = (float)norm;
        out[LH_STEP_APPLY] = apply ? 1.0f : 0.0f;
    }
}

/* One part: the norm is one number. */
static lh_status_t clip_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_CLIP_TEXT);
    (void)desc;
    (void)plan;
    const cpu_view_t *squares = &k->view[in_squares], *in = &k->view[in_step],
                     *out = &k->view[out_step];
    if (squares->width != 2 || in->width != LH_STEP_WORDS || out->width != LH_STEP_WORDS ||
        in->rows != out->rows)
        return k->host->fail(k->host, LH_UNSUPPORTED,
                             "clip: sums %llu wide, steps %llu and %llu wide",
                             (unsigned long long)squares->width, (unsigned long long)in->width,
                             (unsigned long long)out->width);
    cpu_phase_add(k, clip_part, 1, 1);
    return LH_OK;
}

/* ---- adamw and sgd: in place; a step that is not applied leaves all as it is ---- */

/* With rate, N and the corrections c1 = 1 - beta1^N, c2 = 1 - beta2^N of the step, the move of an
 * element is rate (m1 / c1) / (sqrt(m2 / c2) + epsilon) = (rate / c1) m1 / (root sqrt(m2) +
 * epsilon), root = 1 / sqrt(c2). */
typedef struct adamw_step {
    vf scale, keep,
        move; /* of the gradient; 1 - rate decay; rate / correction of the first moment */
    vf beta1, rest1, beta2, rest2, root, epsilon; /* root: 1 / sqrt(second correction) */
} adamw_step_t;

/* The step's constants, in double until they are rounded once. The bias corrections are divided
 * into rate and root, so that no element pays for them. */
static adamw_step_t adamw_step(const lh_adamw_t *how, const float *step)
{
    const double rate = (double)step[LH_STEP_LEARNING_RATE];
    const double number = (double)step[LH_STEP_NUMBER];
    const adamw_step_t s = {
        .scale = vf_set(step[LH_STEP_GRAD_SCALE]),
        .keep = vf_set((float)(1 - rate * how->decay)),
        .move = vf_set((float)(rate / (1 - pow(how->beta1, number)))),
        .beta1 = vf_set((float)how->beta1),
        .rest1 = vf_set((float)(1 - how->beta1)),
        .beta2 = vf_set((float)how->beta2),
        .rest2 = vf_set((float)(1 - how->beta2)),
        .root = vf_set((float)(1 / sqrt(1 - pow(how->beta2, number)))),
        .epsilon = vf_set((float)how->epsilon),
    };
    return s;
}

/* Decoupled weight decay (Loshchilov and Hutter, 2019), as torch.optim.AdamW computes it: the value
 * decays before the move. The new value is stored without flushing what is tiny: it is kept, not
 * worked with. */
CPU_INLINE void adamw_range(const lh_prepared_t *k, uint64_t begin, uint64_t end, lh_dtype_t d,
                            lh_dtype_t dw)
{
    LH_SLOTS(LH_ADAMW_TEXT);
    const adamw_step_t s = adamw_step(&k->how.adamw, k->at[in_step]);
    const bool has_value = cpu_has(k, out_w);
    VF_EACH(i, m, begin, end, {
        const vf g = vf_get(k->at[in_g], d, i, m) * s.scale;
        const vf m1 = vf_fma(s.rest1, g, vf_get(k->at[in_m1], LH_DTYPE_F32, i, m) * s.beta1);
        const vf m2 = vf_fma(s.rest2 * g, g, vf_get(k->at[in_m2], LH_DTYPE_F32, i, m) * s.beta2);
        const vf below = vf_fma(vf_sqrt(m2), s.root, s.epsilon);
        const vf p = vf_get(k->at[in_master], LH_DTYPE_F32, i, m) * s.keep - s.move * m1 / below;
        vf_put(k->at[out_master], LH_DTYPE_F32, i, m, p);
        vf_put(k->at[out_m1], LH_DTYPE_F32, i, m, m1);
        vf_put(k->at[out_m2], LH_DTYPE_F32, i, m, m2);
        if (has_value) vf_put_exact(k->at[out_w], dw, i, m, p);
    });
}

/* The common pairs of dtypes as constants. A step that is not to be applied writes nothing. */
static void adamw_part(const lh_prepared_t *k, uint32_t part)
{
    LH_SLOTS(LH_ADAMW_TEXT);
    const lh_dtype_t d = k->view[in_g].dtype, dw = k->view[out_w].dtype;
    uint64_t begin, end;
    cpu_range(part, PART_ELEMENTS, k->number[ELEMENTS], &begin, &end);
    if (((const float *)k->at[in_step])[LH_STEP_APPLY] == 0.0f) return;
    if (d == LH_DTYPE_F32 && dw == LH_DTYPE_BF16)
        adamw_range(k, begin, end, LH_DTYPE_F32, LH_DTYPE_BF16);
    else if (d == LH_DTYPE_F32)
        adamw_range(k, begin, end, LH_DTYPE_F32, LH_DTYPE_F32);
    else
        adamw_range(k, begin, end, d, dw);
}

/* torch.optim.SGD's momentum without dampening. */
static void sgd_range(const lh_prepared_t *k, uint64_t begin, uint64_t end)
{
    LH_SLOTS(LH_SGD_TEXT);
    const lh_sgd_t *how = &k->how.sgd;
    const float *step = k->at[in_step];
    const lh_dtype_t d = k->view[in_g].dtype;
    const vf rate = vf_set(step[LH_STEP_LEARNING_RATE]), scale = vf_set(step[LH_STEP_GRAD_SCALE]);
    const vf keep = vf_set((float)(1 - (double)step[LH_STEP_LEARNING_RATE] * how->decay));
    const vf momentum = vf_set((float)how->momentum);
    VF_EACH(i, m, begin, end, {
        const vf g = vf_get(k->at[in_g], d, i, m) * scale;
        vf move = g;
        if (cpu_has(k, in_m1)) {
            const vf m1 = vf_fma(momentum, vf_get(k->at[in_m1], LH_DTYPE_F32, i, m), g);
            vf_put(k->at[out_m1], LH_DTYPE_F32, i, m, m1);
            move = how->nesterov != 0 ? vf_fma(momentum, m1, g) : m1;
        }
        const vf p = vf_get(k->at[in_master], LH_DTYPE_F32, i, m) * keep - rate * move;
        vf_put(k->at[out_master], LH_DTYPE_F32, i, m, p);
        if (cpu_has(k, out_w)) vf_put_exact(k->at[out_w], k->view[out_w].dtype, i, m, p);
    });
}

/* Without m1 there is no momentum, and no state is read or written. */
static void sgd_part(const lh_prepared_t *k, uint32_t part)
{
    LH_SLOTS(LH_SGD_TEXT);
    uint64_t begin, end;
    cpu_range(part, PART_ELEMENTS, k->number[ELEMENTS], &begin, &end);
    if (((const float *)k->at[in_step])[LH_STEP_APPLY] != 0.0f) sgd_range(k, begin, end);
}

/* What the rules have in common: flat arrays of one length beside the words of the step. */
static lh_status_t update_plan(lh_prepared_t *k, const char *op, uint32_t slots, uint32_t step,
                               cpu_work_t work)
{
    const cpu_view_t *words = &k->view[step];
    if (words->rows * words->width < LH_STEP_WORDS)
        return k->host->fail(k->host, LH_UNSUPPORTED, "%s: step has %llu words, %d are wanted", op,
                             (unsigned long long)(words->rows * words->width), LH_STEP_WORDS);
    k->number[ELEMENTS] = k->view[0].rows * k->view[0].width;
    cpu_phase_add(k, work, k->number[ELEMENTS], PART_ELEMENTS);
    for (uint32_t i = 0; i < slots; i++) {
        const lh_status_t status = i == step ? LH_OK : flat_check(k, op, i);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

static lh_status_t adamw_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                              lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_ADAMW_TEXT);
    (void)plan;
    return update_plan(k, desc->op, slot_count, in_step, adamw_part);
}

static lh_status_t sgd_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_SGD_TEXT);
    (void)plan;
    if (cpu_has(k, in_m1) != cpu_has(k, out_m1))
        return k->host->fail(k->host, LH_INVALID,
                             "sgd: the momentum is an input or an output only");
    return update_plan(k, desc->op, slot_count, in_step, sgd_part);
}

const cpu_op_t CPU_ISA(update_ops)[] = {
    {"sum_squares", "mf", sum_squares_plan},
    {"clip", "fff", clip_plan},
    {"adamw", "mfffffffy?", adamw_plan},
    {"sgd", "mff?fff?y?", sgd_plan},
    {NULL, NULL, NULL},
};
