/* watch/watch.h - everything that watches a training run, as one observer: progress line,
 * train.log, metrics.jsonl, events/, status.json and, at the end, report.html.
 *
 * Training tells its observer on rank 0's control thread, between steps, so everything here counts
 * against the step (PART_WATCH): lines are built in memory that is there already and written with
 * one call each. Nothing that goes wrong here is an error of the run: a file that can't be made or
 * written is warned of once, and its lines are counted as lost. */
#ifndef WATCH_WATCH_H
#define WATCH_WATCH_H

#include <base/status.h>
#include <plugin/registry.h>
#include <train/train.h>

typedef struct watch watch_t;

/* The observer lives as long as the watch. A file that can't be made is a warning, not the end of a
 * run. Makes no file yet: those are opened when the run begins, after everything was refused that
 * could be. job must outlive it. */
lh_status_t watch_new(const job_t *job, watch_t **out) LH_MUST_CHECK;
/* train.log begins with a line for each that is loaded when the run begins; they outlive the watch.
 * Call it before the run begins. */
void watch_plugins(watch_t *w, const registry_t *plugins);
/* opened is called once train.log is, when the run begins. It stays open until watch_free. */
void watch_opened(watch_t *w, void (*opened)(void *context), void *context);
/* [control thread] Somebody has asked for a checkpoint of this step: status.json says so. */
void watch_asked(watch_t *w, uint64_t step);
/* For train_how_t.observer; belongs to the watch. */
observer_t *watch_observer(watch_t *w);
/* Closes what an aborted run has left open; the observer must not be called any more. */
void watch_free(watch_t *w); /* NULL does nothing */

/* ---- scalars in TensorBoard's event files: TFRecord framing, CRC-32C, protobuf ---- */

/* One file is one run of the program: TensorBoard joins those of a folder into one curve. */
typedef struct watch_events watch_events_t;

/* Makes folder/events.out.tfevents.SECONDS.HOST.PID with its first record. */
lh_status_t watch_events_open(const char *folder, watch_events_t **out) LH_MUST_CHECK;
/* Whole records only, one write each; a record whose write fails is lost and counted. tag is cut at
 * 128 bytes. value becomes a float, as the format's simple_value is one. */
void watch_events_scalar(watch_events_t *f, uint64_t step, const char *tag, double value);
void watch_events_close(watch_events_t *f);

/* Masked CRC-32C of the record framing; for tests. */
uint32_t watch_events_crc(const void *bytes, size_t length);

#endif
