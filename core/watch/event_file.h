/* watch/event_file.h - scalars in TensorBoard's event files (TFRecord framing, CRC-32C, protobuf).
 */
#ifndef WATCH_EVENT_FILE_H
#define WATCH_EVENT_FILE_H

#include <base/status.h>

typedef struct event_file event_file_t;

/* Makes folder/events.out.tfevents.SECONDS.HOST.PID with its first record. */
lh_status_t event_file_open(const char *folder, event_file_t **out) LH_MUST_CHECK;
/* Whole records only, one write each; after a write failed the file takes no more. */
void event_file_scalar(event_file_t *f, uint64_t step, const char *tag, double value);
void event_file_close(event_file_t *f);

/* Masked CRC-32C of the record framing; for tests. */
uint32_t event_crc(const void *bytes, size_t length);

#endif
