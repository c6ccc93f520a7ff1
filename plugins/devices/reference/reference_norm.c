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

/* x w -> y rstd? */
void op_rms_norm(const attributes_t *how, const tensor_t *at)
{
    const tensor_t x = at[0], w = at[1], y = at[2], rstd = at[3];

    for (uint64_t i = 0; i < x.rows; i++) {
        const double r = row_rstd(&how->norm, &x, i, 0);
        for (uint64_t j = 0; j < x.width; j++) {
            put(&y, i, j, get(&x, i, j) * r * weight_of(&how->norm, &w, j));
        }
        put(&rstd, 0, i, r);
    }
}

/* a b w -> sum y rstd?; the norm sees the sum as it is stored */
void op_add_rms_norm(const attributes_t *how, const tensor_t *at)
{
    const tensor_t a = at[0], b = at[1], w = at[2], sum = at[3], y = at[4], rstd = at[5];
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
    const tensor_t gy = at[0], x = at[1], w = at[2], rstd = at[3], gx = at[4], gw = at[5];

    for (uint64_t j = 0; j < x.width; j++) {
        double sum = 0;
        for (uint64_t i = 0; i < x.rows; i++) {
            sum += get(&gy, i, j) * get(&x, i, j) * get(&rstd, 0, i);
        }
        put(&gw, 0, j, sum);
    }
    for (uint64_t i = 0; i < x.rows; i++) {
        const double r = get(&rstd, 0, i);
        double along = 0; /* mean(g n) */
        for (uint64_t j = 0; j < x.width; j++) {
            along += get(&gy, i, j) * weight_of(&how->norm, &w, j) * get(&x, i, j) * r;
        }
        along /= (double)x.width;
        for (uint64_t j = 0; j < x.width; j++) {
            const double g = get(&gy, i, j) * weight_of(&how->norm, &w, j);
            put(&gx, i, j, r * (g - get(&x, i, j) * r * along));
        }
    }
}

/* x w b? -> y mean? rstd? */
void op_layer_norm(const attributes_t *how, const tensor_t *at)
{
    const tensor_t x = at[0], w = at[1], b = at[2], y = at[3], mean = at[4], rstd = at[5];

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
    const tensor_t gy = at[0], x = at[1], w = at[2], mean = at[3], rstd = at[4];
    const tensor_t gx = at[5], gw = at[6], gb = at[7];

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
