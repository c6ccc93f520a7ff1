/* comm/control_socket.h - sockets of the control plane: listen on one address, dial it. */
#ifndef COMM_CONTROL_SOCKET_H
#define COMM_CONTROL_SOCKET_H

#include <base/status.h>

/* Binds to this address alone, never to all. port 0: one that is free; *bound is what it became. A
 * port that is taken is told with the process that has it, where that can be seen. */
lh_status_t control_listen(const char *address, uint16_t port, int *fd,
                           uint16_t *bound) LH_MUST_CHECK;
/* Port of a socket that listens. */
lh_status_t control_port(int fd, uint16_t *port) LH_MUST_CHECK;
/* LH_AGAIN: nobody there. Sockets are non-blocking. */
lh_status_t control_accept(int listener, int *fd);
/* Waits at most until the deadline. LH_UNREACHABLE: it may be there later. */
lh_status_t control_dial(const char *address, uint16_t port, uint64_t deadline_ns,
                         int *fd) LH_MUST_CHECK;

#endif
