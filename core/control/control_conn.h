/* control/control_conn.h - a connection of the control plane, from its socket to frames that are
 * proven to come from a rank of this job.
 *
 * Nothing here blocks but what dials, which has a deadline. A connection belongs to one thread at
 * a time. */
#ifndef CONTROL_CONTROL_CONN_H
#define CONTROL_CONTROL_CONN_H

#include <control/control_frame.h>
#include <control/secret.h>

/* ---- sockets --------------------------------------------------------------------------------- */

/* Binds to this address alone, never to all. port 0: one that is free; *bound is what it became. A
 * port that is taken is told with the process that has it, where that can be seen. */
lh_status_t control_listen(const char *address, uint16_t port, int *fd,
                           uint16_t *bound) LH_MUST_CHECK;
/* Whether this machine can't listen there at all, whatever the port: the name is not known, or the address is none of
 * its own. */
bool control_is_absent(const char *address);
/* Port of a socket that listens. */
lh_status_t control_port(int fd, uint16_t *port) LH_MUST_CHECK;
/* LH_AGAIN: nobody there. Sockets are non-blocking. What is not acknowledged for silence_ns, or for
 * 3 s where that is longer, is an error of the socket. */
lh_status_t control_accept(int listener, uint64_t silence_ns, int *fd);
/* This machine's end of a connection as a number, without its port: "10.0.0.7", "fe80::1%eth0"; ""
 * if that can't be told. True: it leads to this machine alone. */
enum { CONTROL_ADDRESS = 64 };
bool control_local(int fd, char text[CONTROL_ADDRESS]);
/* Waits at most until the deadline, and for as long as the look-up of a name has taken before.
 * LH_UNREACHABLE: it may be there later. */
lh_status_t control_dial(const char *address, uint16_t port, uint64_t deadline_ns,
                         uint64_t silence_ns, int *fd) LH_MUST_CHECK;

/* Many machines at once, each by a name or a number: of those that answer the first in their order. Those before
 * it have limit_ns, behind the look-up of names, and one that refuses may come to listen meanwhile. *index: whose
 * connection it is. Where looking names up takes longer than limit_ns, those behind are left out: *tried: how
 * many were not. LH_UNREACHABLE: none of these has answered; the sentence is about the first. */
typedef struct control_dials {
    const char *const *addresses;
    uint32_t count;
    uint16_t port;
    uint64_t limit_ns;
    uint64_t silence_ns; /* as of control_accept */
} control_dials_t;
lh_status_t control_dial_first(const control_dials_t *how, uint32_t *tried, uint32_t *index,
                               int *fd) LH_MUST_CHECK;

/* ---- connections ----------------------------------------------------------------------------- */

/* What all connections of a process share, and one of them: TLS 1.3 with a key that both ends
 * derive from the job secret, and frames over it. */
typedef struct control_tls control_tls_t;
typedef struct control_conn control_conn_t;

enum { CONN_STRANGER_BYTES = 4096 }; /* taken before the key is proven */
#define CONN_NO_RANK UINT32_MAX

/* secret must outlive it. */
lh_status_t control_tls_new(const secret_t *secret, control_tls_t **out) LH_MUST_CHECK;
void control_tls_free(control_tls_t *t);

/* Takes the socket (non-blocking) over, also when it fails. rank: who dials, or CONN_NO_RANK at the
 * end that accepts: there it is known when the key is proven. limit: of a frame's payload. */
lh_status_t conn_new(control_tls_t *t, int fd, uint32_t rank, size_t limit,
                     control_conn_t **out) LH_MUST_CHECK;
void conn_free(control_conn_t *c); /* closes it; NULL does nothing */
/* No more is sent: the peer reads what was sent and then an end. */
void conn_finish(control_conn_t *c);

/* Shakes hands, sends and reads as far as it goes without waiting. LH_DENIED: the key is not
 * proven, or a stranger; LH_PEER_LOST: it has ended, what came before is still to be cut. */
lh_status_t conn_drive(control_conn_t *c) LH_MUST_CHECK;
bool conn_is_proven(const control_conn_t *c);
/* Not a byte has come of the peer. */
bool conn_is_mute(const control_conn_t *c);
/* The peer's first message has come and was made with the key of a rank, now or once before: it may
 * have been recorded. */
bool conn_has_greeted(const control_conn_t *c);
uint32_t conn_rank(const control_conn_t *c); /* of the end that dialled; CONN_NO_RANK: not proven */
/* LH_AGAIN: none is whole. Valid until the next conn_drive. */
lh_status_t conn_next(control_conn_t *c, frame_t *out) LH_MUST_CHECK;
/* Queues a frame; conn_drive sends it. */
void conn_put(control_conn_t *c, uint32_t type, const text_t *payload);
size_t conn_unsent(const control_conn_t *c);
int conn_fd(const control_conn_t *c);
bool conn_wants_write(const control_conn_t *c);
/* Since the last call, for counts. */
void conn_traffic(control_conn_t *c, uint64_t *sent, uint64_t *received);

#endif
