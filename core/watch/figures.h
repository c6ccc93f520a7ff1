/* watch/figures.h - the state of a run as text of Prometheus' exposition format, version 0.0.4, as a scrape
 * gets it and as a node exporter reads it from a file.
 *
 * Names begin with longhaul_; units are seconds, bytes and tokens; what only grows ends in _total.
 * Each has the label run, the pipeline's name. */
#ifndef WATCH_FIGURES_H
#define WATCH_FIGURES_H

#include <watch/run_state.h>

/* From the start of `out`, which keeps its memory. start: of the run, for its folder and links; its
 * counts of strangers are asked of start->control, unless that is NULL. free_bytes: left in
 * the run's folder; UINT64_MAX: not known. */
void figures_write(const run_state_t *s, const lateness_t *late, const run_start_t *start,
                   uint64_t free_bytes, text_t *out);

#endif
