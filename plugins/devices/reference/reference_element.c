/* reference_element.c - ops that look at one element at a time. */
#include <math.h>

#include "reference.h"

#define EACH_ELEMENT(x, i, j)               \
    for (uint64_t i = 0; i < (x).rows; i++) \
        for (uint64_t j = 0; j < (x).width; j++)

static const double sqrt_2_over_pi = 0.79788456080286535588;
static const double gelu_cubic = 0.044715;

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double normal_cdf(double x)
{
    return 0.5 * (1 + erf(x * M_SQRT1_2));
}

double act(uint32_t function, double x)
{
    switch (function) {
    case LH_ACT_SILU: return x * sigmoid(x);
    case LH_ACT_GELU: return x * normal_cdf(x);
    case LH_ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(sqrt_2_over_pi * (x + gelu_cubic * x * x * x)));
    case LH_ACT_TANH: return tanh(x);
    default: return x;
    }
}

static double gelu_tanh_slope(double x)
{
    const double t = tanh(sqrt_2_over_pi * (x + gelu_cubic * x * x * x));
    const double inner_slope = sqrt_2_over_pi * (1 + 3 * gelu_cubic * x * x);
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner_slope;
}

double act_slope(uint32_t function, double x)
{
    switch (function) {
    case LH_ACT_SILU: return sigmoid(x) * (1 + x * (1 - sigmoid(x)));
    case LH_ACT_GELU: return normal_cdf(x) + x * exp(-0.5 * x * x) / sqrt(2 * M_PI);
    case LH_ACT_GELU_TANH: return gelu_tanh_slope(x);
    case LH_ACT_TANH: return 1 - tanh(x) * tanh(x);
    default: return 1;
    }
}

/* x -> y */
void op_copy(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_COPY_TEXT);
    (void)how;
    const tensor_t x = at[in_x], y = at[out_y];
    EACH_ELEMENT(x, i, j) put(&y, i, j, get(&x, i, j));
}

/* x -> y */
void op_activate(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_ACTIVATE_TEXT);
    const tensor_t x = at[in_x], y = at[out_y];
    EACH_ELEMENT(x, i, j) put(&y, i, j, act(how->activate.function, get(&x, i, j)));
}

/* gy x -> gx */
void op_activate_grad(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_ACTIVATE_GRAD_TEXT);
    const tensor_t gy = at[in_gy], x = at[in_x], gx = at[out_gx];
    EACH_ELEMENT(x, i, j)
    {
        put(&gx, i, j, get(&gy, i, j) * act_slope(how->activate.function, get(&x, i, j)));
    }
}

/* a b -> y */
void op_add(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_ADD_TEXT);
    (void)how;
    const tensor_t a = at[in_a], b = at[in_b], y = at[out_y];
    EACH_ELEMENT(a, i, j) put(&y, i, j, get(&a, i, j) + get(&b, i, j));
}

/* a b -> y; b [t, w], or [t, 1], or [w] */
void op_multiply(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_MULTIPLY_TEXT);
    (void)how;
    const tensor_t a = at[in_a], b = at[in_b], y = at[out_y];
    EACH_ELEMENT(a, i, j)
    {
        const double factor = get(&b, b.rows == 1 ? 0 : i, b.width == 1 ? 0 : j);
        put(&y, i, j, get(&a, i, j) * factor);
    }
}

/* x factor -> y */
void op_scale(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_SCALE_TEXT);
    (void)how;
    const tensor_t x = at[in_x], factor = at[in_factor], y = at[out_y];
    EACH_ELEMENT(x, i, j) put(&y, i, j, get(&x, i, j) * get(&factor, 0, 0));
}

/* a b -> y */
void op_gate(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_GATE_TEXT);
    const tensor_t a = at[in_a], b = at[in_b], y = at[out_y];
    EACH_ELEMENT(a, i, j)
    {
        put(&y, i, j, act(how->activate.function, get(&a, i, j)) * get(&b, i, j));
    }
}

/* gy a b -> ga gb */
void op_gate_grad(const attributes_t *how, const tensor_t *at)
{
    LH_SLOTS(LH_GATE_GRAD_TEXT);
    const tensor_t gy = at[in_gy], a = at[in_a], b = at[in_b], ga = at[out_ga], gb = at[out_gb];
    EACH_ELEMENT(a, i, j)
    {
        const double g = get(&gy, i, j), x = get(&a, i, j), y = get(&b, i, j);
        put(&ga, i, j, g * y * act_slope(how->activate.function, x));
        put(&gb, i, j, g * act(how->activate.function, x));
    }
}
