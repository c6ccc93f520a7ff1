/* reference_norm.c - RMS and layer norm, row by row, and their gradients. */
#include <math.h>

#include "reference.h"

static double weight_of(const lh_norm_t *how, const tensor_t *w, uint64_t column)
{
    return get(w, 0, column) + (how->one_plus != 0 ? 1 : 0);
}

static double row_rstd(const lh_norm_t *how, const tensor_t *x, uint64_t row, double mean)
{
    double sum = 0;
    for (uint64_t j = 0; j < x->width; j++) {
        const double d = get(x, row, j) - mean;
        sum += d * d;
    }
    return 1 / sqrt(sum / (double)x->width + how->epsilon);
}

/* A row as groups of as many columns as the weight has: rows of another tensor over the same
 * numbers. Groups of one row lie `width` apart, rows as they lay. */
static double group_get(const tensor_t *x, uint64_t group, uint64_t column, uint64_t width)
{
    const uint64_t groups = x->width / width;
    return get(x, group / groups, group % groups * width + column);
}

static void group_put(const tensor_t *x, uint64_t group, uint64_t column, uint64_t width,
                      double value)
{
    const uint64_t groups = x->width / width;
    put(x, group / groups, group % groups * width + column, value);
}

/* x w -> y rstd? */
void op_rms_norm(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_RMS_NORM_TEXT);
    const tensor_t x = at[in_x], w = at[in_w], y = at[out_y], rstd = at[out_rstd];
    const uint64_t d = w.width;

    for (uint64_t i = 0; i < x.rows * (x.width / d); i++) {
        double squares = 0;
        for (uint64_t j = 0; j < d; j++)
            squares += group_get(&x, i, j, d) * group_get(&x, i, j, d);
        const double r = 1 / sqrt(squares / (double)d + how->norm.epsilon);
        for (uint64_t j = 0; j < d; j++)
            group_put(&y, i, j, d, group_get(&x, i, j, d) * r * weight_of(&how->norm, &w, j));
        put(&rstd, 0, i, r);
    }
}

/* a b w -> sum y rstd?; the norm sees the sum as it is stored */
void op_add_rms_norm(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_ADD_RMS_NORM_TEXT);
    const tensor_t a = at[in_a], b = at[in_b], w = at[in_w], sum = at[out_sum], y = at[out_y],
                   rstd = at[out_rstd];
    const tensor_t norm[] = {sum, w, y, rstd};

    for (uint64_t i = 0; i < a.rows; i++) {
        for (uint64_t j = 0; j < a.width; j++)
            put(&sum, i, j, get(&a, i, j) + get(&b, i, j));
    }
    op_rms_norm(how, norm);
}

/* gy x w rstd -> gx gw+
 * With n = x rstd and g = gy w: gx = rstd (g - n mean(g n)), gw = sum over rows of gy n. */
void op_rms_norm_grad(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_RMS_NORM_GRAD_TEXT);
    const tensor_t gy = at[in_gy], x = at[in_x], w = at[in_w], rstd = at[in_rstd];
    const tensor_t gx = at[out_gx], gw = at[out_gw];
    const uint64_t d = w.width, rows = x.rows * (x.width / d);

    for (uint64_t j = 0; j < d; j++) {
        double sum = 0;
        for (uint64_t i = 0; i < rows; i++)
            sum += group_get(&gy, i, j, d) * group_get(&x, i, j, d) * get(&rstd, 0, i);
        put(&gw, 0, j, sum);
    }
    for (uint64_t i = 0; i < rows; i++) {
        const double r = get(&rstd, 0, i);
        double along = 0; /* mean(g n) */
        for (uint64_t j = 0; j < d; j++)
            along += group_get(&gy, i, j, d) * weight_of(&how->norm, &w, j) *
                     group_get(&x, i, j, d) * r;
        along /= (double)d;
        for (uint64_t j = 0; j < d; j++) {
            const double g = group_get(&gy, i, j, d) * weight_of(&how->norm, &w, j);
            group_put(&gx, i, j, d, r * (g - group_get(&x, i, j, d) * r * along));
        }
    }
}

static void residual_add(const tensor_t *gx, const tensor_t *residual)
{
    for (uint64_t i = 0; i < gx->rows; i++) {
        for (uint64_t j = 0; j < gx->width; j++)
            put(gx, i, j, get(gx, i, j) + get(residual, i, j));
    }
}

/* gy x w rstd residual -> gx gw+
 * The two ops one after the other: gx is rounded to its dtype before residual is added. */
void op_rms_norm_grad_add(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_RMS_NORM_GRAD_ADD_TEXT);
    const tensor_t gx = at[out_gx], residual = at[in_residual];
    const tensor_t grad[] = {at[in_gy], at[in_x], at[in_w], at[in_rstd], gx, at[out_gw]};

    op_rms_norm_grad(how, grad);
    residual_add(&gx, &residual);
}

/* x w b? -> y mean? rstd? */
void op_layer_norm(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_LAYER_NORM_TEXT);
    const tensor_t x = at[in_x], w = at[in_w], b = at[in_b], y = at[out_y], mean = at[out_mean],
                   rstd = at[out_rstd];

    for (uint64_t i = 0; i < x.rows; i++) {
        double m = 0;
        for (uint64_t j = 0; j < x.width; j++)
            m += get(&x, i, j);
        m /= (double)x.width;
        const double r = row_rstd(&how->norm, &x, i, m);
        for (uint64_t j = 0; j < x.width; j++) {
            const double n = (get(&x, i, j) - m) * r;
            put(&y, i, j, n * weight_of(&how->norm, &w, j) + (given(&b) ? get(&b, 0, j) : 0));
        }
        put(&mean, 0, i, m);
        put(&rstd, 0, i, r);
    }
}

/* gy x w mean rstd -> gx gw+ gb?+
 * With n = (x - mean) rstd and g = gy w: gx = rstd (g - mean(g) - n mean(g n)). */
void op_layer_norm_grad(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_LAYER_NORM_GRAD_TEXT);
    const tensor_t gy = at[in_gy], x = at[in_x], w = at[in_w], mean = at[in_mean],
                   rstd = at[in_rstd];
    const tensor_t gx = at[out_gx], gw = at[out_gw], gb = at[out_gb];

    for (uint64_t j = 0; j < x.width; j++) {
        double along = 0, sum = 0;
        for (uint64_t i = 0; i < x.rows; i++) {
            const double n = (get(&x, i, j) - get(&mean, 0, i)) * get(&rstd, 0, i);
            along += get(&gy, i, j) * n;
            sum += get(&gy, i, j);
        }
        put(&gw, 0, j, along);
        put(&gb, 0, j, sum);
    }
    for (uint64_t i = 0; i < x.rows; i++) {
        const double m = get(&mean, 0, i), r = get(&rstd, 0, i);
        double along = 0, level = 0; /* mean(g n), mean(g) */
        for (uint64_t j = 0; j < x.width; j++) {
            const double g = get(&gy, i, j) * weight_of(&how->norm, &w, j);
            along += g * (get(&x, i, j) - m) * r / (double)x.width;
            level += g / (double)x.width;
        }
        for (uint64_t j = 0; j < x.width; j++) {
            const double g = get(&gy, i, j) * weight_of(&how->norm, &w, j);
            put(&gx, i, j, r * (g - level - (get(&x, i, j) - m) * r * along));
        }
    }
}

/* gy x w mean rstd residual -> gx gw+ gb?+
 * As op_rms_norm_grad_add. */
void op_layer_norm_grad_add(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_LAYER_NORM_GRAD_ADD_TEXT);
    const tensor_t gx = at[out_gx], residual = at[in_residual];
    const tensor_t grad[] = {at[in_gy],   at[in_x], at[in_w],   at[in_mean],
                             at[in_rstd], gx,       at[out_gw], at[out_gb]};

    op_layer_norm_grad(how, grad);
    residual_add(&gx, &residual);
}
