/* plan/device_bench.h - measures a device through its plugin interface: the rate of large matmuls,
 * copies of its memory, the cost of a launch.
 *
 * Two levels of detail. device_bench asks the device alone for its peaks: nothing of a job is
 * needed. device_bench_program runs the steps of a job and takes the time of every call where it
 * will be made, since a kernel that is measured alone finds its inputs in a cache and its processor
 * cool. */
#ifndef PLAN_DEVICE_BENCH_H
#define PLAN_DEVICE_BENCH_H

#include <plan/device_rate.h>
#include <plan/step_plan.h>

/* The device is opened for this and closed again; nobody else may have it open meanwhile, or the
 * times are of both. */
typedef struct device_bench_how {
    const plugin_t *device;
    const void *config; /* its parsed options */
    uint32_t index;
    double budget_s; /* that all measurements together should take */
} device_bench_how_t;

/* Fills all but the ops. A dtype whose matmul the device lacks has rate 0. Takes about budget_s
 * seconds. out->ops stays empty, and *out untouched on failure. */
lh_status_t device_bench(const device_bench_how_t *how, device_rate_t *out) LH_MUST_CHECK;

/* The middle one; sorts the values. count > 0. Of an even number the mean of the two in the middle.
 */
double device_bench_median(double *values, uint32_t count);

/* A row of the table that `bench device` prints. args and kernel point into the engine, so the rows
 * end with the programs. */
typedef struct measured_call { /* calls of equal op, shapes and direction, in one step */
    char kind[CALL_KIND];
    const lh_arg_t *args; /* as the engine has them */
    uint32_t arg_count;
    const char *kernel;
    /* Calls in one step. */
    uint64_t count;
    /* Seconds are the median over measured steps. */
    double flops, bytes, seconds; /* of one */
} measured_call_t;

/* Builds the programs, makes a few steps with made-up tokens, adds the efficiencies of their calls
 * to the record, whose peaks are known. Rows are in the order of the step; the caller frees *rows
 * with mem_free, before the programs. */
lh_status_t device_bench_program(plan_programs_t *p, double budget_s, device_rate_t *rate,
                                 measured_call_t **rows, uint32_t *count) LH_MUST_CHECK;

#endif
