/* schedules.c - the core's learning-rate schedules. */
#include <train/schedules.h>

#include <math.h>

/* Rises by equal steps to the peak; the first step already has a rate above zero. */
static double warmed(uint64_t step, double peak, uint64_t warmup)
{
    return peak * (double)(step + 1) / (double)warmup;
}

/* 0 at the end of the warm-up, 1 at `total` and after it. */
static double progress(uint64_t step, uint64_t begin, uint64_t total)
{
    if (step >= total || total <= begin) return 1;
    return (double)(step - begin) / (double)(total - begin);
}

LH_FUNCTION(f64, constant, (f64, peak))
{
    return peak;
}

LH_FUNCTION(f64, warmup_cosine, (u64, step), (f64, peak), (u64, warmup), (u64, total))
{
    if (step < warmup) return warmed(step, peak, warmup);
    return peak * 0.5 * (1 + cos(3.14159265358979323846 * progress(step, warmup, total)));
}

LH_FUNCTION(f64, warmup_linear, (u64, step), (f64, peak), (u64, warmup), (u64, total))
{
    if (step < warmup) return warmed(step, peak, warmup);
    return peak * (1 - progress(step, warmup, total));
}

LH_FUNCTION(f64, warmup_stable_decay, (u64, step), (f64, peak), (u64, warmup), (u64, decay),
            (u64, total))
{
    if (step < warmup) return warmed(step, peak, warmup);
    const uint64_t begin = total > decay ? total - decay : 0;
    if (step < begin) return peak;
    return peak * (1 - progress(step, begin, total));
}

const lh_function_t schedule_functions[] = {
    LH_FUNCTION_ENTRY(constant, "the same rate at every step"),
    LH_FUNCTION_ENTRY(warmup_cosine, "rises for `warmup` steps, then falls along a cosine to 0"),
    LH_FUNCTION_ENTRY(warmup_linear, "rises for `warmup` steps, then falls on a line to 0"),
    LH_FUNCTION_ENTRY(warmup_stable_decay, "rises, stays at the peak, falls over the last `decay`"),
};
const uint32_t schedule_function_count = sizeof(schedule_functions) / sizeof(schedule_functions[0]);
