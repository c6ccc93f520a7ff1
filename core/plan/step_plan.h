/* plan/step_plan.h - what an optimizer step computes, moves and should take: the sum over the calls
 * of its programs, by op kind and by part. */
#ifndef PLAN_STEP_PLAN_H
#define PLAN_STEP_PLAN_H

#include <plan/device_rate.h>

enum { STEP_FORWARD, STEP_BACKWARD, STEP_HEAD, STEP_UPDATE, STEP_PLAN_PARTS };
extern const char *const step_plan_part_names[STEP_PLAN_PARTS];

typedef struct step_sum {
    uint64_t calls;
    double flops, bytes, seconds;
} step_sum_t;

typedef struct step_kind {
    char kind[CALL_KIND];
    bool measured; /* the record knows this kind */
    step_sum_t sum;
} step_kind_t;

typedef struct step_plan {
    step_sum_t all, parts[STEP_PLAN_PARTS];
    step_kind_t *kinds; /* by descending time, or bytes where there is none */
    uint32_t kind_count;
    size_t kind_capacity;
    uint32_t unmeasured; /* kinds */
} step_plan_t;

/* rate NULL: nothing is known of the device, seconds stay 0. */
lh_status_t step_plan_new(const program_t *pass, const program_t *update, uint64_t micro_batches,
                          const device_rate_t *rate, step_plan_t *out) LH_MUST_CHECK;
/* Adds a call that a step makes so many times. */
lh_status_t step_plan_add(step_plan_t *plan, const program_call_t *call, uint64_t times,
                          const device_rate_t *rate) LH_MUST_CHECK;
void step_plan_free(step_plan_t *plan);

#endif
