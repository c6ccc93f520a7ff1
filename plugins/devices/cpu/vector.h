/* vector.h - the functions of lanes that kernels need: powers, tanh, erf.
 *
 * Each is a reduction of the argument, a polynomial or a quotient of two by Horner's rule, and a
 * scaling; the error that is named holds over all of F32. They are our own, so that their bits do
 * not depend on a C library. There are no branches: an argument beyond the ends is moved to them
 * first. */
#ifndef LH_CPU_VECTOR_H
#define LH_CPU_VECTOR_H

#include "lanes.h"

/* The nearest whole number; a is below 2^22 in size. */
CPU_INLINE vf vf_whole(vf a)
{
#if defined(__AVX512F__)
    return (vf)_mm512_roundscale_ps((__m512)a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    const vf magic = vf_set(12582912.0f); /* 1.5 2^23: adding it rounds to a whole number */
    return (a + magic) - magic;
#endif
}
/* p times 2^whole, from 2^-151 to 2^129. */
CPU_INLINE vf vf_raise(vf p, vf whole)
{
#if defined(__AVX512F__)
    return (vf)_mm512_scalef_ps((__m512)p, (__m512)whole);
#else
    /* 2^whole in two factors, as neither 2^128 nor 2^-150 is a float. */
    const vi n = __builtin_convertvector(vf_select(p == p, whole, vf_zero()), vi);
    const vi half = n >> 1;
    return p * (vf)((half + 127) << 23) * (vf)((n - half + 127) << 23);
#endif
}
/* exp(x) to 1 ulp; 0 below -103.97, infinite above 88.72, what is no number stays one. Results
 * below 2^-126 are denormal and right to their last bit but one. */
CPU_INLINE vf vf_exp(vf x)
{
    const vf bounded = vf_min(vf_set(88.8f), vf_max(vf_set(-104.0f), x));
    const vf whole = vf_whole(bounded * 1.44269504088896341f);
    /* x - whole log(2), with log(2) in two parts: the first has few bits, so its product is
     * exact. */
    vf r = vf_fma(whole, vf_set(-0.693145751953125f), bounded);
    r = vf_fma(whole, vf_set(-1.42860682030941723e-6f), r);
    vf p = vf_set(1.9841270e-4f);
    p = vf_fma(p, r, vf_set(1.3888889e-3f));
    p = vf_fma(p, r, vf_set(8.3333333e-3f));
    p = vf_fma(p, r, vf_set(4.1666667e-2f));
    p = vf_fma(p, r, vf_set(1.6666667e-1f));
    p = vf_fma(p, r, vf_set(0.5f));
    p = vf_fma(p, r * r, r) + 1.0f;
    return vf_raise(p, whole);
}
/* exp(x) in fewer steps, for results that are rounded to BF16 or added up: the relative error is
 * below 2e-7 + 6e-8 |x|. Its ends are those of vf_exp. */
CPU_INLINE vf vf_exp_near(vf x)
{
    const vf power = vf_min(vf_set(128.2f), vf_max(vf_set(-151.0f), x * 1.44269504088896341f));
    const vf whole = vf_whole(power), r = power - whole;
    vf p = vf_set(1.3276478e-3f);
    p = vf_fma(p, r, vf_set(9.6755412e-3f));
    p = vf_fma(p, r, vf_set(5.5507133e-2f));
    p = vf_fma(p, r, vf_set(2.4022120e-1f));
    p = vf_fma(p, r, vf_set(6.9314697e-1f));
    p = vf_fma(p, r, vf_set(1.0f));
    return vf_raise(p, whole);
}
/* exp(x), good enough to be rounded to d. */
CPU_INLINE vf vf_exp_to(lh_dtype_t d, vf x)
{
    return d == LH_DTYPE_F32 ? vf_exp(x) : vf_exp_near(x);
}
/* tanh(x) to 7 ulp: an odd rational function, flat beyond where F32 is. */
CPU_INLINE vf vf_tanh(vf x)
{
    const vf most = vf_set(7.90531110763549805f);
    const vf c = vf_select(x > most, most, vf_select(x < -most, -most, x));
    const vf s = c * c;
    vf p = vf_set(-2.76076847742355e-16f);
    p = vf_fma(p, s, vf_set(2.00018790482477e-13f));
    p = vf_fma(p, s, vf_set(-8.60467152213735e-11f));
    p = vf_fma(p, s, vf_set(5.12229709037114e-08f));
    p = vf_fma(p, s, vf_set(1.48572235717979e-05f));
    p = vf_fma(p, s, vf_set(6.37261928875436e-04f));
    p = vf_fma(p, s, vf_set(4.89352455891786e-03f));
    vf q = vf_set(1.19825839466702e-06f);
    q = vf_fma(q, s, vf_set(1.18534705686654e-04f));
    q = vf_fma(q, s, vf_set(2.26843463243900e-03f));
    q = vf_fma(q, s, vf_set(4.89352518554385e-03f));
    return c * p / q;
}
/* erf(x) to 7 ulp, likewise. */
CPU_INLINE vf vf_erf(vf x)
{
    const vf most = vf_set(4.0f);
    const vf c = vf_select(x > most, most, vf_select(x < -most, -most, x));
    const vf s = c * c;
    vf p = vf_set(-2.72614225801306e-10f);
    p = vf_fma(p, s, vf_set(2.77068142495902e-08f));
    p = vf_fma(p, s, vf_set(-2.10102402082508e-06f));
    p = vf_fma(p, s, vf_set(-5.69250639462346e-05f));
    p = vf_fma(p, s, vf_set(-7.34990630326855e-04f));
    p = vf_fma(p, s, vf_set(-2.95459980854025e-03f));
    p = vf_fma(p, s, vf_set(-1.60960333262415e-02f));
    vf q = vf_set(-1.45660718464996e-05f);
    q = vf_fma(q, s, vf_set(-2.13374055278905e-04f));
    q = vf_fma(q, s, vf_set(-1.68282697438203e-03f));
    q = vf_fma(q, s, vf_set(-7.37332916720468e-03f));
    q = vf_fma(q, s, vf_set(-1.42647390514189e-02f));
    return c * p / q;
}

#endif
