/* plan/device_bench.h - measures a device through its plugin interface: the rate of large matmuls,
 * copies of its memory, the cost of a launch. */
#ifndef PLAN_DEVICE_BENCH_H
#define PLAN_DEVICE_BENCH_H

#include <plan/device_rate.h>

typedef struct device_bench_how {
    const plugin_t *device;
    const void *config; /* its parsed options */
    uint32_t index;
    double budget_s; /* that all measurements together should take */
} device_bench_how_t;

/* Fills all but the ops. A dtype whose matmul the device lacks has rate 0. */
lh_status_t device_bench(const device_bench_how_t *how, device_rate_t *out) LH_MUST_CHECK;

/* The middle one; sorts the values. count > 0. */
double device_bench_median(double *values, uint32_t count);

#endif
