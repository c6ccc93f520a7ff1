/* reference_update.c - the gradient's norm, clipping, and the update of flat pieces of parameters.
 */
#include <math.h>

#include "reference.h"

enum { SQUARES_ELEMENTS = 4096 };

/* x -> y; [n, 2], one row per 4096 elements: sum of squares, number of elements not finite */
void op_sum_squares(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_SUM_SQUARES_TEXT);
    (void)how;
    const tensor_t x = at[in_x], y = at[out_y];
    const uint64_t elements = x.rows * x.width;

    for (uint64_t begin = 0; begin < elements; begin += SQUARES_ELEMENTS) {
        double sum = 0, broken = 0;
        for (uint64_t e = begin; e < elements && e < begin + SQUARES_ELEMENTS; e++) {
            const double value = get(&x, e / x.width, e % x.width);
            sum += value * value;
            broken += isfinite(value) ? 0 : 1;
        }
        put(&y, begin / SQUARES_ELEMENTS, 0, sum);
        put(&y, begin / SQUARES_ELEMENTS, 1, broken);
    }
}

/* squares step -> step (in place): row 0 says how gradients are scaled and what norm is allowed */
void op_clip(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_CLIP_TEXT);
    (void)how;
    const tensor_t squares = at[in_squares], step = at[in_step], out = at[out_step];
    double sum = 0, broken = 0;

    for (uint64_t i = 0; i < squares.rows; i++) {
        sum += get(&squares, i, 0);
        broken += get(&squares, i, 1);
    }
    const double norm = sqrt(sum) * get(&step, 0, LH_STEP_GRAD_SCALE);
    const double allowed = get(&step, 0, LH_STEP_MAX_NORM);
    const bool apply = broken == 0 && isfinite(norm);
    const double factor = apply && allowed > 0 ? fmin(1, allowed / (norm + 1e-6)) : 1;

    for (uint64_t i = 0; i < out.rows; i++) {
        put(&out, i, LH_STEP_GRAD_SCALE, get(&step, i, LH_STEP_GRAD_SCALE) * factor);
        put(&out, i, LH_STEP_NORM, norm);
        put(&out, i, LH_STEP_APPLY, apply ? 1 : 0);
    }
}

/* g master m1 m2 step -> master m1 m2 w? (in place): torch.optim.AdamW */
void op_adamw(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_ADAMW_TEXT);
    const lh_adamw_t *h = &how->adamw;
    const tensor_t g = at[in_g], master = at[in_master], m1 = at[in_m1], m2 = at[in_m2],
                   step = at[in_step];
    const tensor_t master_out = at[out_master], m1_out = at[out_m1], m2_out = at[out_m2],
                   w = at[out_w];
    const double rate = get(&step, 0, LH_STEP_LEARNING_RATE);
    const double number = get(&step, 0, LH_STEP_NUMBER);
    const double correction1 = 1 - pow(h->beta1, number);
    const double correction2 = 1 - pow(h->beta2, number);

    if (get(&step, 0, LH_STEP_APPLY) == 0) return;
    for (uint64_t i = 0; i < master.rows; i++) {
        for (uint64_t j = 0; j < master.width; j++) {
            const double gradient = get(&g, i, j) * get(&step, 0, LH_STEP_GRAD_SCALE);
            const double first = h->beta1 * get(&m1, i, j) + (1 - h->beta1) * gradient;
            const double second = h->beta2 * get(&m2, i, j) + (1 - h->beta2) * gradient * gradient;
            const double denominator = sqrt(second / correction2) + h->epsilon;
            const double value = get(&master, i, j) * (1 - rate * h->decay) -
                                 rate * (first / correction1) / denominator;
            put(&master_out, i, j, value);
            put(&m1_out, i, j, first);
            put(&m2_out, i, j, second);
            put(&w, i, j, value);
        }
    }
}

/* g master m1? step -> master m1? w? (in place): torch.optim.SGD, but with AdamW's decoupled decay
 */
void op_sgd(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_SGD_TEXT);
    const lh_sgd_t *h = &how->sgd;
    const tensor_t g = at[in_g], master = at[in_master], m1 = at[in_m1], step = at[in_step];
    const tensor_t master_out = at[out_master], m1_out = at[out_m1], w = at[out_w];
    const double rate = get(&step, 0, LH_STEP_LEARNING_RATE);

    if (get(&step, 0, LH_STEP_APPLY) == 0) return;
    for (uint64_t i = 0; i < master.rows; i++) {
        for (uint64_t j = 0; j < master.width; j++) {
            const double gradient = get(&g, i, j) * get(&step, 0, LH_STEP_GRAD_SCALE);
            const double first = given(&m1) ? h->momentum * get(&m1, i, j) + gradient : gradient;
            const double move = h->nesterov != 0 && given(&m1) ? gradient + h->momentum * first
                                                               : first;
            const double value = get(&master, i, j) * (1 - rate * h->decay) - rate * move;
            put(&master_out, i, j, value);
            put(&m1_out, i, j, first);
            put(&w, i, j, value);
        }
    }
}
