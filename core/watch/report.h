/* watch/report.h - report.html: one self-contained page about a run, made from its metrics.jsonl.
 *
 * The page holds its style, its script and its curves, and asks nothing of a network: it can be
 * mailed and still opens in ten years. It is written once, at the end of a run, from the file of
 * metrics; a run that fails has a report, too, with the reason at its top. */
#ifndef WATCH_REPORT_H
#define WATCH_REPORT_H

#include <train/train.h>

/* Writes folder/report.html; start and end as the observer got them. Replaces an older report.
 * start's texts and e's rows must be alive; a run of which no memory was gathered shows what was
 * planned. It is not synced: after a power loss it may be missing or empty. */
lh_status_t report_write(const char *folder, const run_start_t *start,
                         const run_end_t *end) LH_MUST_CHECK;

#endif
