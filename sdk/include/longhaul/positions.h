/* longhaul/positions.h - numbers by which models know positions: rotary frequencies and ALiBi's
 * slopes, for constants of a recording. Everything is inline and wants libm. */
#ifndef LH_POSITIONS_H
#define LH_POSITIONS_H

#include <math.h>

#include <longhaul/base.h>

/* How rotary frequencies are made. */
typedef struct lh_rotary {
    uint64_t original;
    double base, factor, low, high;
    uint32_t scaling; /* LH_ROTARY_* */
} lh_rotary_t;
enum { LH_ROTARY_DEFAULT, LH_ROTARY_LINEAR, LH_ROTARY_LLAMA3 };

/* Llama 3.1's stretching, as in Meta's apply_scaling: long waves by the factor, short ones not,
 * those between by a mix of both. */
static inline double lh_rotary_stretched(const lh_rotary_t *r, double f)
{
    if (r->scaling == LH_ROTARY_DEFAULT) return f;
    if (r->scaling == LH_ROTARY_LINEAR) return f / r->factor;

    const double original = (double)r->original, wave = 2 * 3.14159265358979323846 / f;
    if (wave < original / r->high) return f;
    if (wave > original / r->low) return f / r->factor;
    const double t = (original / wave - r->low) / (r->high - r->low);
    return (1 - t) * f / r->factor + t * f;
}

/* f [dims / 2]: the angles by which pairs of the first `dims` components of a head turn from one
 * position to the next. */
static inline void lh_rotary_fill(const lh_rotary_t *r, uint64_t dims, float *f)
{
    for (uint64_t i = 0; i < dims / 2; i++)
        f[i] = (float)lh_rotary_stretched(r, pow(r->base, -2.0 * (double)i / (double)dims));
}

/* s [heads]: ALiBi's slopes over `divisor`. As Press et al. write it: for 2^n heads
 * 2^(-8 i / 2^n), for others every second one of twice as many behind those. */
static inline void lh_alibi_fill(uint64_t heads, double divisor, float *s)
{
    uint64_t whole = 1;
    while (2 * whole <= heads)
        whole *= 2;
    for (uint64_t i = 0; i < heads; i++) {
        const double at = i < whole ? (double)(i + 1) : (double)(2 * (i - whole) + 1) / 2;
        s[i] = (float)(exp2(-8 * at / (double)whole) / divisor);
    }
}

#endif
