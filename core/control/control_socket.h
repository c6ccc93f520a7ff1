/* control/control_socket.h - sockets of the control plane: listen on one address, dial it. */
#ifndef CONTROL_CONTROL_SOCKET_H
#define CONTROL_CONTROL_SOCKET_H

#include <base/status.h>

/* Binds to this address alone, never to all. port 0: one that is free; *bound is what it became. A
 * port that is taken is told with the process that has it, where that can be seen. */
lh_status_t control_listen(const char *address, uint16_t port, int *fd,
                           uint16_t *bound) LH_MUST_CHECK;
/* Port of a socket that listens. */
lh_status_t control_port(int fd, uint16_t *port) LH_MUST_CHECK;
/* LH_AGAIN: nobody there. Sockets are non-blocking. What is not acknowledged for silence_ns, or for
 * 3 s where that is longer, is an error of the socket. */
lh_status_t control_accept(int listener, uint64_t silence_ns, int *fd);
/* This machine's end of a connection as a number, without its port: "10.0.0.7", "fe80::1%eth0"; ""
 * if that can't be told. True: it leads to this machine alone. */
enum { CONTROL_ADDRESS = 64 };
bool control_local(int fd, char text[CONTROL_ADDRESS]);
/* Waits at most until the deadline. LH_UNREACHABLE: it may be there later. */
lh_status_t control_dial(const char *address, uint16_t port, uint64_t deadline_ns,
                         uint64_t silence_ns, int *fd) LH_MUST_CHECK;

#endif
