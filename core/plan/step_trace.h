/* plan/step_trace.h - one profiled step as files: sums by part, op and kernel, and a time line for
 * Chrome's trace viewer (chrome://tracing, Perfetto). */
#ifndef PLAN_STEP_TRACE_H
#define PLAN_STEP_TRACE_H

#include <graph/engine.h>

/* folder/profile.json: [{part, backward, op, kernel, calls, ns, flops, bytes, share, of_limit}].
 * of_limit is profile_row_of_limit of the two rates, 0 where they are not known. */
lh_status_t step_profile_write(const char *folder, const profile_row_t *rows, uint32_t count,
                               double peak_flops, double bytes_per_second) LH_MUST_CHECK;
/* folder/profile.trace.json, from the times that the programs' calls hold since profiling was
 * switched on. Calls are drawn back to back; those of micro-batches after the first, which share
 * their calls, are drawn once with the time of all of them. */
lh_status_t step_trace_write(const char *folder, const program_t *pass,
                             const program_t *update) LH_MUST_CHECK;

#endif
