/* tcp_warm.h - padding that brings a connection between sites up to speed before it has something to
 * say. */
#ifndef TCP_WARM_H
#define TCP_WARM_H

#include "tcp.h"

/* Sets c->pad_left to a window where the sockets would begin slowly what the peer waits for. */
void warm_settle(lh_conn_t *c);
/* Whether padding may leave: some is left, and nothing else is to leave that the peer waits for. */
bool warm_may_push(const lh_conn_t *c);
/* A frame of padding for each stream with room. False: a stream broke. */
bool warm_push(lh_conn_t *c, size_t *bytes);
/* Data has left, which warms as well. */
void warm_sent(lh_conn_t *c, uint64_t bytes);

#endif
