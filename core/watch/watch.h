/* watch/watch.h - everything that watches a training run, as one observer: progress line,
 * train.log, metrics.jsonl, events/ and, at the end, report.html. */
#ifndef WATCH_WATCH_H
#define WATCH_WATCH_H

#include <base/status.h>
#include <plugin/registry.h>
#include <train/train.h>

typedef struct watch watch_t;

/* The observer lives as long as the watch. A file that can't be made is a warning, not the end of a
 * run. */
lh_status_t watch_new(const char *folder, uint64_t log_every, watch_t **out) LH_MUST_CHECK;
/* train.log begins with a line for each that is loaded when the run begins; they outlive the watch.
 */
void watch_plugins(watch_t *w, const registry_t *plugins);
/* opened is called once train.log is, when the run begins. It stays open until watch_free. */
void watch_opened(watch_t *w, void (*opened)(void *context), void *context);
observer_t *watch_observer(watch_t *w);
void watch_free(watch_t *w); /* NULL does nothing */

/* ---- scalars in TensorBoard's event files: TFRecord framing, CRC-32C, protobuf ---- */

typedef struct watch_events watch_events_t;

/* Makes folder/events.out.tfevents.SECONDS.HOST.PID with its first record. */
lh_status_t watch_events_open(const char *folder, watch_events_t **out) LH_MUST_CHECK;
/* Whole records only, one write each; after a write failed the file takes no more. */
void watch_events_scalar(watch_events_t *f, uint64_t step, const char *tag, double value);
void watch_events_close(watch_events_t *f);

/* Masked CRC-32C of the record framing; for tests. */
uint32_t watch_events_crc(const void *bytes, size_t length);

#endif
