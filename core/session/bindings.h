/* session/bindings.h - the calls that an INI makes during training: the learning rate and the hooks,
 * bound once, so that every mistake is a sentence before a device is opened. */
#ifndef SESSION_BINDINGS_H
#define SESSION_BINDINGS_H

#include <longhaul/function.h>

#include <config/job.h>
#include <plugin/call.h>

typedef struct bindings bindings_t;

/* [optimizer] learning_rate (variables: u64 step, u64 steps), [hook.after_step] (u64 step, f64
 * loss, f64 learning_rate, f64 norm, u64 tokens), [hook.before_save] (u64 step, f64 loss). */
lh_status_t bindings_new(const job_t *job, registry_t *registry, bindings_t **out) LH_MUST_CHECK;
void bindings_free(bindings_t *b); /* NULL does nothing */

/* step counts the steps already made: 0 for the first. A rate that is negative or
 * not finite is refused. */
lh_status_t bindings_learning_rate(bindings_t *b, uint64_t step, double *out) LH_MUST_CHECK;

typedef struct step_facts {
    uint64_t step; /* from 1: this many are made */
    uint64_t tokens;
    double loss, learning_rate, norm;
} step_facts_t;
/* LH_OK where there is no hook; what the hook returns, otherwise. */
lh_status_t bindings_after_step(bindings_t *b, const step_facts_t *facts) LH_MUST_CHECK;
lh_status_t bindings_before_save(bindings_t *b, uint64_t step, double loss) LH_MUST_CHECK;

/* Learning rates as functions of the step, called from INI text without a
 * prefix: learning_rate = warmup_cosine(step, peak=1e-3, warmup=50, total=1000).
 *
 * step counts the steps already made: 0 for the first one. Outside its range a schedule is clamped:
 * after `total` steps the rate stays what it was at the end. */
extern const lh_function_t schedule_functions[];
extern const uint32_t schedule_function_count;

#endif
