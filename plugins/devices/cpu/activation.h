/* activation.h - the functions of LH_ACT_*, on lanes. */
#ifndef LH_CPU_ACTIVATION_H
#define LH_CPU_ACTIVATION_H

#include "vector.h"

/* f(x), and f'(x) where slope is not NULL. */
CPU_INLINE vf act_silu(vf x, vf *slope)
{
    const vf s = vf_sigmoid(x);
    if (slope != NULL) *slope = s * (1.0f + x * (1.0f - s));
    return x * s;
}
CPU_INLINE vf act_gelu(vf x, vf *slope)
{
    const vf half = 0.5f + 0.5f * vf_erf(x * 0.70710678118654752f);
    if (slope != NULL) *slope = half + x * (0.39894228040143268f * vf_exp(x * x * -0.5f));
    return x * half;
}
/* (1 + tanh(u)) / 2 is the sigmoid of 2u, whose distance from 1 keeps its digits. */
CPU_INLINE vf act_gelu_tanh(vf x, vf *slope)
{
    const vf square = x * x;
    const vf twice = 1.59576912160573072f * (x + 0.044715f * (square * x));
    const vf e = vf_exp(vf_select(twice < -80.0f, vf_set(80.0f), -twice));
    const vf s = 1.0f / (1.0f + e);
    if (slope != NULL)
        *slope = s + x * (e * s * s) * (1.59576912160573072f * (1.0f + 0.134145f * square));
    return x * s;
}
CPU_INLINE vf act_tanh(vf x, vf *slope)
{
    const vf t = vf_tanh(x);
    if (slope != NULL) *slope = 1.0f - t * t;
    return t;
}
CPU_INLINE vf act_none(vf x, vf *slope)
{
    if (slope != NULL) *slope = vf_set(1.0f);
    return x;
}

CPU_INLINE vf act_apply(uint32_t function, vf x)
{
    switch (function) {
    case LH_ACT_SILU: return act_silu(x, NULL);
    case LH_ACT_GELU: return act_gelu(x, NULL);
    case LH_ACT_GELU_TANH: return act_gelu_tanh(x, NULL);
    case LH_ACT_TANH: return act_tanh(x, NULL);
    default: return x;
    }
}

#endif
