/* tcp_tuning.h - what a link's figures and this kernel's limits make of a connection's sockets. */
#ifndef TCP_TUNING_H
#define TCP_TUNING_H

#include "tcp.h"

/* Whether limits of buffers can be exceeded (CAP_NET_ADMIN) and bbr be had: tried on a socket, as no other
 * question answers it. */
void tuning_capabilities(bool *force, bool *bbr);
/* What this kernel allows and this machine has: asked once a transport. */
void limits_read(const lh_host_t *host, const char *interface, limits_t *out);
/* Refuses a buffer that the INI asks for and this kernel can't give one connection. */
lh_status_t buffers_check(lh_transport_t *t);
uint32_t ranks_of_machine(const lh_host_t *host); /* where this rank lives; 1 at least */
/* What an interface says of its speed; 0: nothing. */
uint64_t card_rate(const char *interface);
/* Likewise all that streams go over, together. */
uint64_t cards_rate(const lh_transport_t *t);
/* The INI's word counts first, then the host's, then the link's figures. Pure. */
void tuning_choose(const tcp_config_t *config, const lh_link_t *link, const lh_tuning_t *wanted,
                   const limits_t *limits, lh_tuning_t *out);
/* Tuning number `choice` for a link; false: there are fewer. */
bool tuning_offer(lh_transport_t *t, const lh_link_t *link, uint32_t choice, lh_tuning_t *out);
/* How many streams a connection has: `own` is what this end, which listens, has chosen, and the other
 * would like `wished` of them, or more by `step` (greeting_t). Pure. */
uint32_t streams_of_both(const tcp_config_t *config, uint32_t own, uint32_t wished, uint32_t step);
/* The step of what c's end would like, which dials. */
uint32_t conn_step(const lh_conn_t *c);
/* A chunk over `streams` in place of `of` (0: over as many as it is for), within what a chunk may be. */
uint64_t conn_chunk(const lh_conn_t *c, uint64_t chunk, uint64_t pace, uint32_t of,
                    uint32_t streams);
/* Both ends have agreed on the number: what goes by it is chosen anew. */
void conn_settle_streams(lh_conn_t *c, uint32_t streams);
/* "window 6.2 MB = 4 streams x 1.6 MB, bbr", cut to room. */
void tuning_text(const lh_tuning_t *tuning, char *out, size_t room);
/* Lowers c's buffers to what the kernel has left for this process. */
void conn_keep_budget(lh_conn_t *c);
/* Chooses c's tuning from its link; fd: a socket of it that the peer has answered, or -1. */
void conn_tune(lh_conn_t *c, int fd);
/* All streams are open: the least of their round trips is the link's, as one may have met a busy
 * machine. */
void conn_tune_whole(lh_conn_t *c);
/* Whether its congestion control sends at once after a pause as before it. */
bool conn_keeps_speed(const lh_conn_t *c);
/* Both buffers of a socket, as far as the kernel lets this process; 0: left to the kernel. */
void set_buffers(lh_transport_t *t, int fd, uint64_t bytes);
/* What every stream's socket is told; before_connect: only what can't be said later. */
void socket_tune(lh_conn_t *c, int fd, bool before_connect);
/* Whether a /proc/net/sockstat says that TCP holds nearly `most` pages, and then why in out. */
bool memory_is_short(const char *sockstat, uint64_t most, char *out, size_t room);
uint32_t dscp_of(uint32_t service); /* between sites, where the host names none */
/* A line of the log for links between sites. */
void conn_say_tuning(const lh_conn_t *c);

#endif
