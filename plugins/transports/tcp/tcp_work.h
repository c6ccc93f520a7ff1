/* tcp_work.h - which seals threads make and open, and how many threads there are for them. */
#ifndef TCP_WORK_H
#define TCP_WORK_H

#include "tcp.h"

/* Threads for a sealed connection whose link carries `rate` bytes a second each way (0: not known) and
 * that has as many streams, where as many processors are free. Pure. */
uint32_t work_plan(uint64_t rate, uint32_t streams, uint32_t processors);
/* Of this process, and not needed by what it computes; ranks: of this machine; busy: as many as the host
 * says that this process may keep so. Pure. */
uint32_t work_processors(uint32_t own, uint32_t machine, uint32_t ranks, uint32_t busy,
                         bool has_device);
/* The connection is up: threads that it is to have and that there are not yet. */
void work_begin(lh_conn_t *c);

/* The batch is complete: seals it, or gives it to a thread (s->sealing). False: the library failed. */
bool work_seal(stream_t *s, uint64_t bytes);
/* Whether a payload of so many bytes is to be opened by a thread, once all of it is there. */
bool work_opens(const stream_t *s, uint32_t bytes);
void work_open(stream_t *s); /* gives it to one: s->opening */

/* Of every poll: goes on with what threads have done. */
void work_take(lh_transport_t *t);
/* Whether there is something to take; else wait_fd tells. */
bool work_waits(lh_transport_t *t);
/* What is opened for this stream is opened now. False: the stream broke. */
bool work_settle(stream_t *s);
/* No thread begins with it any more. Of a stream that is closed next: its batch may be left unsealed. */
void work_forget(stream_t *s);
/* From here on no thread knows of its buffers: a few milliseconds at most. */
void work_drop(stream_t *s);

#endif
