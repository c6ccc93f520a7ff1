/* tcp_zero.h - sends that the kernel makes from the pages of the caller's memory, without a copy. */
#ifndef TCP_ZERO_H
#define TCP_ZERO_H

#include "tcp.h"

/* As the option has them. */
enum { ZERO_AUTO, ZERO_YES, ZERO_NO };

/* The stream is open: decides whether it sends so, and tells the kernel. */
void zero_begin(stream_t *s);
/* Whether a frame's payload is to leave so. */
bool zero_takes(const stream_t *s, const frame_t *f);
/* A frame has come: where the peer may wait for it, it is acknowledged now. */
void zero_answer(stream_t *s, const frame_t *f);
/* Sends what is left of the next vector, the payload of that frame: from its pages, or by a copy where
 * the kernel can't now. As sendmsg. */
ssize_t zero_send(stream_t *s, uint32_t frame);
/* Reads what the kernel has let go of. */
void zero_collect(stream_t *s);
/* The kernel has let go of sends [from, to], whose numbers wrap at 2^32; nonsense is ignored. */
void zero_release(stream_t *s, uint32_t from, uint32_t to);
bool zero_holds(const stream_t *s); /* the kernel has pages */
/* Resets the connection and keeps the socket: the kernel lets go of all but what a device has. */
void zero_reset(stream_t *s);
/* How long that is waited for. */
#define ZERO_WAIT_NS 50000000ull

#endif
