/* train/schedules.h - learning rates as functions of the step, called from INI text without a
 * prefix: learning_rate = warmup_cosine(step, peak=1e-3, warmup=50, total=1000).
 *
 * step counts the steps already made: 0 for the first one. Outside its range a schedule is clamped:
 * after `total` steps the rate stays what it was at the end. */
#ifndef TRAIN_SCHEDULES_H
#define TRAIN_SCHEDULES_H

#include <longhaul/function.h>

extern const lh_function_t schedule_functions[];
extern const uint32_t schedule_function_count;

#endif
