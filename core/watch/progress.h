/* watch/progress.h - what a person sees while a run goes on: one line that renews itself on a
 * terminal, plain lines elsewhere.
 *
 * The same events become two kinds of output. A terminal shows a single line that is overwritten,
 * and log lines that come meanwhile push it down (log_over_progress). Anything else, a file or a
 * pipe, gets a line every log_every steps, as a log that is read later has no use for overwritten
 * ones. */
#ifndef WATCH_PROGRESS_H
#define WATCH_PROGRESS_H

#include <train/train.h>

/* Plain data, filled by progress_begin. terminal becomes false for good once a write to it fails.
 */
typedef struct progress_line {
    bool terminal; /* stderr is one that shows a line that renews itself */
    bool utf8;
    uint64_t steps, log_every;
    double flops_per_step, peak_flops;
    /* 0 before the first step. */
    double seconds_a_step; /* running mean, for the time left */
    uint64_t first_step;   /* made before this run */
    uint64_t shown_ns;
} progress_line_t;

/* Says in two to four lines what is trained, on what, and from which step. */
void progress_begin(progress_line_t *p, const run_start_t *start, uint64_t log_every);
/* Called for every step; decides by itself whether anything is shown. */
void progress_step(progress_line_t *p, const step_report_t *step);
void progress_evaluated(progress_line_t *p, const evaluation_report_t *evaluation);
/* Only what became of a save: that one has begun is no news. */
void progress_saved(progress_line_t *p, const save_report_t *save);
void progress_end(progress_line_t *p, const run_end_t *end);

/* For any line that renews itself. Whether stderr is a terminal that shows one: not with TERM=dumb
 * or without TERM, nor where NO_COLOR asks for no escape sequences. Asked once for each command, as
 * neither changes meanwhile. */
bool progress_renews(void);
/* Puts a text, of characters of a cell each, in the place of the line, cut to that width; "" clears
 * it. False: it can't be written. */
bool progress_put(const char *text);

#endif
