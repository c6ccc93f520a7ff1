/* watch/report.h - report.html: one self-contained page about a run, made from its metrics.jsonl.
 */
#ifndef WATCH_REPORT_H
#define WATCH_REPORT_H

#include <train/train.h>

/* Writes folder/report.html; start and end as the observer got them. */
lh_status_t report_write(const char *folder, const run_start_t *start,
                         const run_end_t *end) LH_MUST_CHECK;

#endif
