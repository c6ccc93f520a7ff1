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
 * warned of. A thread that can't be started is warned
 * of: then status.json is written at the begin and at the end alone. */
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

/* ---- figures for Prometheus ------------------------------------------------------------------ */

/* The state of a run as text of its exposition format,
 * version 0.0.4, as a scrape gets it and as a node exporter reads it from a file.
 *
 * Names begin with longhaul_; units are seconds, bytes and tokens; what only grows ends in _total.
 * Each has the label run, the pipeline's name. */

/* From the start of `out`, which keeps its memory. start: of the run, for its folder and links; its
 * counts of strangers are asked of start->control, unless that is NULL. free_bytes: left where
 * checkpoints are written; UINT64_MAX: not known. */
void live_figures_write(const run_state_t *s, const lateness_t *late, const run_start_t *start,
                        uint64_t free_bytes, text_t *out);

#endif
