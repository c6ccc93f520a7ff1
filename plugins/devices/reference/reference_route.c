/* reference_route.c - softmax, the largest of a row, and rows of experts. */
#include <math.h>

#include "reference.h"

/* x -> y */
void op_softmax(const attributes_t *how, const tensor_t *at)
{
    (void)how;
    LH_SLOTS(LH_SOFTMAX_TEXT);
    const tensor_t x = at[in_x], y = at[out_y];

    for (uint64_t i = 0; i < x.rows; i++) {
        double largest = -INFINITY, sum = 0;
        for (uint64_t j = 0; j < x.width; j++)
            largest = fmax(largest, get(&x, i, j));
        for (uint64_t j = 0; j < x.width; j++)
            sum += exp(get(&x, i, j) - largest);
        for (uint64_t j = 0; j < x.width; j++)
            put(&y, i, j, exp(get(&x, i, j) - largest) / sum);
    }
}

/* gy y -> gx */
void op_softmax_grad(const attributes_t *how, const tensor_t *at)
{
    (void)how;
    LH_SLOTS(LH_SOFTMAX_GRAD_TEXT);
    const tensor_t gy = at[in_gy], y = at[in_y], gx = at[out_gx];

    for (uint64_t i = 0; i < gy.rows; i++) {
        double along = 0;
        for (uint64_t j = 0; j < gy.width; j++)
            along += get(&gy, i, j) * get(&y, i, j);
        for (uint64_t j = 0; j < gy.width; j++)
            put(&gx, i, j, get(&y, i, j) * (get(&gy, i, j) - along));
    }
}

static bool is_taken(const tensor_t *ids, uint64_t row, uint64_t count, uint64_t column)
{
    for (uint64_t j = 0; j < count; j++)
        if ((uint64_t)get_integer(ids, row, j) == column) return true;
    return false;
}

/* x -> values ids */
void op_top_k(const attributes_t *how, const tensor_t *at)
{
    (void)how;
    LH_SLOTS(LH_TOP_K_TEXT);
    const tensor_t x = at[in_x], values = at[out_values], ids = at[out_ids];

    for (uint64_t i = 0; i < x.rows; i++)
        for (uint64_t j = 0; j < ids.width; j++) {
            uint64_t best = x.width;
            for (uint64_t c = 0; c < x.width; c++)
                if (!is_taken(&ids, i, j, c) &&
                    (best == x.width || get(&x, i, c) > get(&x, i, best)))
                    best = c;
            put(&ids, i, j, (double)best);
            put(&values, i, j, get(&x, i, best));
        }
}

/* gvalues ids -> gx */
void op_top_k_grad(const attributes_t *how, const tensor_t *at)
{
    (void)how;
    LH_SLOTS(LH_TOP_K_GRAD_TEXT);
    const tensor_t gvalues = at[in_gvalues], ids = at[in_ids], gx = at[out_gx];

    for (uint64_t i = 0; i < gx.rows; i++)
        for (uint64_t c = 0; c < gx.width; c++) {
            double g = 0;
            for (uint64_t j = 0; j < ids.width; j++)
                if ((uint64_t)get_integer(&ids, i, j) == c) g = get(&gvalues, i, j);
            put(&gx, i, c, g);
        }
}

/* ids -> order offsets */
void op_route(const attributes_t *how, const tensor_t *at)
{
    (void)how;
    LH_SLOTS(LH_ROUTE_TEXT);
    const tensor_t ids = at[in_ids], order = at[out_order], offsets = at[out_offsets];
    uint64_t placed = 0;

    for (uint64_t e = 0; e + 1 < offsets.width; e++) {
        put(&offsets, 0, e, (double)placed);
        for (uint64_t p = 0; p < ids.rows * ids.width; p++)
            if ((uint64_t)get_integer(&ids, p / ids.width, p % ids.width) == e)
                put(&order, 0, placed++, (double)p);
    }
    put(&offsets, 0, offsets.width - 1, (double)placed);
}

/* x order -> y */
void op_gather_rows(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_GATHER_ROWS_TEXT);
    const tensor_t x = at[in_x], order = at[in_order], y = at[out_y];

    for (uint64_t i = 0; i < y.rows; i++) {
        const uint64_t row = (uint64_t)get_integer(&order, 0, i) / how->picks.k;
        for (uint64_t j = 0; j < y.width; j++)
            put(&y, i, j, get(&x, row, j));
    }
}

/* Where pick p stands in order. */
static uint64_t place_of(const tensor_t *order, uint64_t p)
{
    uint64_t i = 0;
    while ((uint64_t)get_integer(order, 0, i) != p)
        i++;
    return i;
}

/* x order shares? -> y */
void op_scatter_rows(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_SCATTER_ROWS_TEXT);
    const tensor_t x = at[in_x], order = at[in_order], shares = at[in_shares], y = at[out_y];
    const uint64_t k = how->picks.k;

    for (uint64_t r = 0; r < y.rows; r++)
        for (uint64_t c = 0; c < y.width; c++) {
            double sum = 0;
            for (uint64_t j = 0; j < k; j++)
                sum += (given(&shares) ? get(&shares, r, j) : 1) *
                       get(&x, place_of(&order, r * k + j), c);
            put(&y, r, c, sum);
        }
}

/* gy x order shares -> gx gshares */
void op_scatter_rows_grad(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_SCATTER_ROWS_GRAD_TEXT);
    const tensor_t gy = at[in_gy], x = at[in_x], order = at[in_order], shares = at[in_shares];
    const tensor_t gx = at[out_gx], gshares = at[out_gshares];
    const uint64_t k = how->picks.k;

    for (uint64_t i = 0; i < x.rows; i++) {
        const uint64_t p = (uint64_t)get_integer(&order, 0, i);
        double along = 0;
        for (uint64_t c = 0; c < x.width; c++) {
            put(&gx, i, c, get(&shares, p / k, p % k) * get(&gy, p / k, c));
            along += get(&gy, p / k, c) * get(&x, i, c);
        }
        put(&gshares, p / k, p % k, along);
    }
}

static uint64_t expert_of(const tensor_t *offsets, uint64_t row)
{
    uint64_t e = 0;
    while ((uint64_t)get_integer(offsets, 0, e + 1) <= row)
        e++;
    return e;
}

/* a b offsets -> c; b's matrices are its rows, `in` (or `out`) of them each */
void op_grouped_matmul(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_GROUPED_MATMUL_TEXT);
    const tensor_t a = at[in_a], b = at[in_b], offsets = at[in_offsets], c = at[out_c];
    const bool turned = how->grouped.transpose_b != 0;
    const uint64_t each = turned ? c.width : a.width;

    for (uint64_t i = 0; i < c.rows; i++) {
        const uint64_t first = expert_of(&offsets, i) * each;
        for (uint64_t j = 0; j < c.width; j++) {
            double sum = 0;
            for (uint64_t k = 0; k < a.width; k++)
                sum += get(&a, i, k) * (turned ? get(&b, first + j, k) : get(&b, first + k, j));
            put(&c, i, j, sum);
        }
    }
}

/* a g offsets -> gb+ */
void op_grouped_matmul_grad(const attributes_t *how, const tensor_t *at)
{
    (void)how;
    LH_SLOTS(LH_GROUPED_MATMUL_GRAD_TEXT);
    const tensor_t a = at[in_a], g = at[in_g], offsets = at[in_offsets], gb = at[out_gb];

    for (uint64_t row = 0; row < gb.rows; row++) {
        const uint64_t e = row / a.width;
        for (uint64_t j = 0; j < gb.width; j++) {
            double sum = 0;
            for (int64_t i = get_integer(&offsets, 0, e); i < get_integer(&offsets, 0, e + 1); i++)
                sum += get(&a, (uint64_t)i, row % a.width) * get(&g, (uint64_t)i, j);
            put(&gb, row, j, sum);
        }
    }
}

/* offsets -> load */
void op_route_load(const attributes_t *how, const tensor_t *at)
{
    (void)how;
    LH_SLOTS(LH_ROUTE_LOAD_TEXT);
    const tensor_t offsets = at[in_offsets], load = at[out_load];
    const double all = (double)get_integer(&offsets, 0, load.width);

    for (uint64_t e = 0; e < load.width; e++)
        put(&load, 0, e,
            (double)(get_integer(&offsets, 0, e + 1) - get_integer(&offsets, 0, e)) / all);
}

/* x -> y */
void op_mean_rows(const attributes_t *how, const tensor_t *at)
{
    (void)how;
    LH_SLOTS(LH_MEAN_ROWS_TEXT);
    const tensor_t x = at[in_x], y = at[out_y];

    for (uint64_t j = 0; j < x.width; j++) {
        double sum = 0;
        for (uint64_t i = 0; i < x.rows; i++)
            sum += get(&x, i, j);
        put(&y, 0, j, sum / (double)x.rows);
    }
}

/* gy x -> gx */
void op_mean_rows_grad(const attributes_t *how, const tensor_t *at)
{
    (void)how;
    LH_SLOTS(LH_MEAN_ROWS_GRAD_TEXT);
    const tensor_t gy = at[in_gy], gx = at[out_gx];

    for (uint64_t i = 0; i < gx.rows; i++)
        for (uint64_t j = 0; j < gx.width; j++)
            put(&gx, i, j, get(&gy, 0, j) / (double)gx.rows);
}

/* a b -> y */
void op_dot(const attributes_t *how, const tensor_t *at)
{
    (void)how;
    LH_SLOTS(LH_DOT_TEXT);
    const tensor_t a = at[in_a], b = at[in_b], y = at[out_y];
    double sum = 0;

    for (uint64_t j = 0; j < a.width; j++)
        sum += get(&a, 0, j) * get(&b, 0, j);
    put(&y, 0, 0, sum);
}
