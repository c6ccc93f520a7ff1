/* plan/program_bench.h - measures every call of a job's training step where it will run: between
 * the calls around it, on data of the right kind. */
#ifndef PLAN_PROGRAM_BENCH_H
#define PLAN_PROGRAM_BENCH_H

#include <plan/device_rate.h>
#include <plan/job_programs.h>

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
lh_status_t program_bench(job_programs_t *p, double budget_s, device_rate_t *rate,
                          measured_call_t **rows, uint32_t *count) LH_MUST_CHECK;

#endif
