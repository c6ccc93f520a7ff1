/* watch/progress.h - what a person sees while a run goes on: one line that renews itself on a
 * terminal, plain lines elsewhere. */
#ifndef WATCH_PROGRESS_H
#define WATCH_PROGRESS_H

#include <train/observer.h>

typedef struct progress_line {
    bool terminal; /* stderr is one */
    uint64_t steps, log_every;
    double flops_per_step, peak_flops;
    double seconds_a_step; /* running mean, for the time left */
    uint64_t shown_ns;
} progress_line_t;

void progress_begin(progress_line_t *p, const run_start_t *start, uint64_t log_every);
void progress_step(progress_line_t *p, const step_report_t *step);
void progress_evaluated(progress_line_t *p, const evaluation_report_t *evaluation);
void progress_saved(progress_line_t *p, const save_report_t *save);
void progress_end(progress_line_t *p, const run_end_t *end);

/* "1h 04m", "12m 30s", "4.2 s". */
void duration_text(double seconds, char out[24]);
/* "1.07M", "16.9M", "940". */
void count_text(double count, char out[16]);
/* "1.2 GiB", "640 KiB". */
void bytes_text(double bytes, char out[16]);

#endif
