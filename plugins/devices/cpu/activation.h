/* activation.h - the functions of LH_ACT_*, on lanes.
 *
 * Each computes f and, where it is asked, f' from what f has computed already; the dtype d of the
 * result says how many digits are worth their time (vf_exp_to). */
#ifndef LH_CPU_ACTIVATION_H
#define LH_CPU_ACTIVATION_H

#include "vector.h"

/* f(x), and f'(x) where slope is not NULL, good enough to be rounded to d. */
CPU_INLINE vf act_silu(vf x, lh_dtype_t d, vf *slope)
{
    const vf s = 1.0f / (1.0f + vf_exp_to(d, -x));
    if (slope != NULL) *slope = s * vf_fma(x, 1.0f - s, vf_set(1.0f));
    return x * s;
}
/* x Phi(x) with Phi the normal distribution: (1 + erf(x / sqrt(2))) / 2; its density is the slope's
 * second term. */
CPU_INLINE vf act_gelu(vf x, lh_dtype_t d, vf *slope)
{
    const vf half = 0.5f + 0.5f * vf_erf(x * 0.70710678118654752f);
    if (slope != NULL) *slope = half + x * (0.39894228040143268f * vf_exp_to(d, x * x * -0.5f));
    return x * half;
}
/* (1 + tanh(u)) / 2 is the sigmoid of 2u, whose distance from 1 keeps its digits. */
CPU_INLINE vf act_gelu_tanh(vf x, lh_dtype_t d, vf *slope)
{
    const vf square = x * x;
    const vf twice = 1.59576912160573072f * (x + 0.044715f * (square * x));
    const vf e = vf_exp_to(d, vf_min(vf_set(80.0f), -twice));
    const vf s = 1.0f / (1.0f + e);
    if (slope != NULL)
        *slope = s + x * (e * s * s) * (1.59576912160573072f * (1.0f + 0.134145f * square));
    return x * s;
}
/* tanh' = 1 - tanh^2. */
CPU_INLINE vf act_tanh(vf x, lh_dtype_t d, vf *slope)
{
    (void)d;
    const vf t = vf_tanh(x);
    if (slope != NULL) *slope = 1.0f - t * t;
    return t;
}
CPU_INLINE vf act_none(vf x, lh_dtype_t d, vf *slope)
{
    (void)d;
    if (slope != NULL) *slope = vf_set(1.0f);
    return x;
}

/* By number, for code that runs once a row and not once a tensor: the behind of a matmul. */
CPU_INLINE vf act_apply(uint32_t function, vf x)
{
    switch (function) {
    case LH_ACT_SILU: return act_silu(x, LH_DTYPE_F32, NULL);
    case LH_ACT_GELU: return act_gelu(x, LH_DTYPE_F32, NULL);
    case LH_ACT_GELU_TANH: return act_gelu_tanh(x, LH_DTYPE_F32, NULL);
    case LH_ACT_TANH: return act_tanh(x, LH_DTYPE_F32, NULL);
    default: return x;
    }
}

#endif
