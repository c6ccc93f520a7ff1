/* tcp_poll.h - the calls that drive a transport. */
#ifndef TCP_POLL_H
#define TCP_POLL_H

#include "tcp.h"

lh_status_t tcp_poll(lh_transport_t *t, lh_wire_event_t *events, uint32_t event_size, uint32_t max,
                     uint32_t *count);
lh_status_t tcp_wait_fd(lh_transport_t *t, int *fd);
lh_status_t tcp_arm(lh_transport_t *t);
/* Frees what was closed: from the next poll on, or as the transport itself ends, no row of epoll points
 * to it any more. */
void tcp_bury(lh_transport_t *t);

#endif
