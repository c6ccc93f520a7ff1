/* watch/memory_table.h - memory per rank and kind, planned beside measured: a line of
 * metrics.jsonl and a section of the report. */
#ifndef WATCH_MEMORY_TABLE_H
#define WATCH_MEMORY_TABLE_H

#include <base/text.h>
#include <watch/metrics.h>

/* {"step": N, "memory": [{"rank": 0, "planned": {...}, "measured": {...}, ...}, ...]} */
lh_status_t memory_table_metrics(metrics_t *m, const run_end_t *end) LH_MUST_CHECK;
/* Of a run that failed: what was planned for this rank. */
void memory_table_write(const run_start_t *start, const run_end_t *end, text_t *out);

#endif
