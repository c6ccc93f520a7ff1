/* plan/device_bench.h - measures a device through its plugin interface: the rate of large matmuls,
 * copies of its memory, the cost of a launch. */
#ifndef PLAN_DEVICE_BENCH_H
#define PLAN_DEVICE_BENCH_H

#include <plan/device_rate.h>
#include <plan/step_plan.h>

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

typedef struct measured_call { /* calls of equal op, shapes and direction, in one step */
    char kind[CALL_KIND];
    const lh_arg_t *args; /* as the engine has them */
    uint32_t arg_count;
    const char *kernel;
    uint64_t count;
    double flops, bytes, seconds; /* of one */
} measured_call_t;

/* Builds the programs, makes a few steps with made-up tokens, adds the efficiencies of their calls
 * to the record, whose peaks are known. Rows are in the order of the step; the caller frees *rows
 * with mem_free, before the programs. */
lh_status_t device_bench_program(plan_programs_t *p, double budget_s, device_rate_t *rate,
                                 measured_call_t **rows, uint32_t *count) LH_MUST_CHECK;

#endif
