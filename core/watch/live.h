/* watch/live.h - a thread beside training that tells how the run fares, whoever asks: status.json and
 * a file of figures, renewed each second, figures over HTTP, and the report, renewed now and then.
 *
 * What training tells is copied into a struct under a lock, some hundred bytes a step; everything
 * that touches a file happens in the thread, so that neither a slow disk nor whoever reads costs a
 * step anything. Nothing that goes wrong here is an error of the run. */
#ifndef WATCH_LIVE_H
#define WATCH_LIVE_H

#include <config/job.h>
#include <watch/run_state.h>

typedef struct live live_t;

/* status.json lies in folder, which is copied; `how`, its strings too, must outlive it. The thread
 * starts with live_begin. */
lh_status_t live_new(const char *folder, const job_watch_t *how, live_t **out) LH_MUST_CHECK;
/* *start, with its control and world, must live until live_end. An address that can't be had is
 * warned of, and once a file of figures that can't be written. A thread that can't be started is
 * warned of: then status.json is written at the begin and at the end alone. */
void live_begin(live_t *l, const run_start_t *start);
void live_step(live_t *l, const step_report_t *step);
void live_evaluated(live_t *l, const evaluation_report_t *e);
void live_saved(live_t *l, const save_report_t *save);
/* [control thread] Somebody wants a checkpoint of this step. */
void live_asked(live_t *l, uint64_t step);
/* The last status.json; the thread has ended when this returns. */
void live_end(live_t *l, const run_end_t *end);
/* Ends what an aborted run has left; status.json then says what was known last. */
void live_free(live_t *l); /* NULL does nothing */

#endif
