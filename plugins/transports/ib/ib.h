/* ib.h - the objects of this transport: one port of one RDMA device, connections of several
 * reliable queue pairs, and messages that are written straight into the receives of the peer.
 *
 * All work is done by the thread that calls; the device does the rest. */
#ifndef IB_H
#define IB_H

#include <stdatomic.h>

#include <longhaul/plugin.h>

#include "ib_ring.h"
#include "ib_tuning.h"
#include "ib_verbs.h"

enum {
    IB_SEND_WRS = 256, /* send work requests that a queue pair has under way */
    IB_NOTICE_WRS = 3, /* the most that one notice takes                     */
    IB_WAITING = 64,   /* connect requests of a listener that nobody has accepted */
    IB_LEAVE_MS = 50,  /* how long a goodbye may take                        */
};

typedef struct ib_config {
    char *device, *bind;
    uint64_t port;
    uint64_t queue_pairs, chunk_bytes, window_bytes;
    uint64_t traffic_class, ack_timeout;
} ib_config_t;

/* What the context of a cm_id_t points to: the first member of a listener or of a queue pair. An id
 * that a listener's request brings has the listener's until it is taken. */
typedef struct ib_watch {
    enum { IB_WATCH_NONE, IB_WATCH_LISTENER, IB_WATCH_PAIR } kind;
} ib_watch_t;

typedef enum ib_pair_state {
    IB_PAIR_NONE,
    IB_PAIR_MEETING, /* between address and answer, or accepted and not established */
    IB_PAIR_UP,
} ib_pair_state_t;

typedef struct ib_pair { /* one queue pair of a connection */
    ib_watch_t watch;
    lh_conn_t *conn;
    uint32_t index;
    ib_pair_state_t state;
    bool reached; /* the other end knows of it, and must be told that it ends */
    cm_id_t *id;
    verbs_qp_t *qp;
    ib_credits_t credits;
    uint32_t wrs;   /* send work requests under way               */
    uint32_t spent; /* receive work requests to be posted again   */
    uint64_t bytes; /* under way: the pair with the least ends first */
} ib_pair_t;

typedef struct ib_operation {
    char *data; /* of a send it is only read */
    uint64_t bytes, cookie;
    uint32_t tag, key;  /* key: of this end's memory; of a receive for the peer */
    uint64_t posted;    /* send: bytes handed to queue pairs */
    uint64_t chunk;     /* send: bytes of each but the last; 0: not begun */
    uint32_t out, back; /* send: chunks handed over, and acknowledged */
    uint64_t to;        /* send: the peer's address and key */
    uint32_t to_key;
    ib_inbox_t inbox; /* receive */
} ib_operation_t;

typedef enum ib_state {
    IB_MET, /* accepted: the host has yet to admit it */
    IB_DIALING,
    IB_OPEN,     /* the listening end: admitted; the dialing end: all queue pairs are up */
    IB_LEAVING,  /* broken; a goodbye is on its way */
    IB_DRAINING, /* nothing of it is known to the device any more */
    IB_DRAINED,
} ib_state_t;

struct lh_conn {
    lh_transport_t *transport;
    lh_conn_t *next;
    ib_state_t state;
    bool up_said, down_said;
    bool ended; /* the peer has gone; what it wrote before is still taken */
    uint32_t peer;
    uint32_t token; /* of the peer's listener */
    uint64_t cookie, give_up_ns, leave_ns;
    lh_hello_t hello;
    struct sockaddr_storage to; /* the end that dials */
    ib_tuning_t tuning;

    ib_pair_t pairs[IB_PAIRS_MOST];
    uint32_t pair_count;
    _Atomic uint32_t pairs_up; /* also read by stats */
    verbs_cq_t *cq;

    ib_board_t *board;  /* the peer writes it: [0]; [1] is what this end writes into the peer's */
    verbs_mr_t *boards; /* both */
    uint64_t peer_board;
    uint32_t peer_key;

    /* Messages are counted from 0 over the connection; operation i is row i % IB_DEPTH. */
    ib_operation_t sends[IB_DEPTH], receives[IB_DEPTH];
    uint64_t send_first, send_next,
        send_end;     /* oldest; oldest not handed over whole; past the last */
    uint64_t granted; /* by the peer */
    uint64_t receive_first, receive_told, receive_end;
    uint64_t in_flight;               /* bytes */
    uint64_t notices_out, notices_in; /* over the connection */

    lh_status_t why; /* from IB_LEAVING on */
    char reason[IB_REASON + 64];
    _Atomic uint64_t bytes_sent, bytes_received; /* for stats, from any thread */
};

typedef struct ib_request { /* a connect request that waits to be accepted */
    cm_id_t *id;
    ib_greeting_t greeting;
} ib_request_t;

struct lh_listener {
    ib_watch_t watch;
    lh_transport_t *transport;
    lh_listener_t *next;
    cm_id_t *id;
    uint32_t token;
    ib_request_t waiting[IB_WAITING];
    uint32_t waiting_count;
};

struct lh_region {
    lh_region_t *next;
    verbs_mr_t *mr;
    char *base;
    uint64_t bytes;
};

struct lh_transport {
    const lh_host_t *host;
    const ib_config_t *config;
    ib_verbs_t verbs;
    cm_channel_t *events;
    cm_id_t *anchor; /* bound to the address; it keeps the device open */
    struct sockaddr_storage here;
    char device[64];
    verbs_context_t *context;
    verbs_pd_t *pd;
    verbs_channel_t *channel;
    uint64_t rate; /* of the port, bytes each second */
    bool ethernet;
    int epoll;
    bool armed;
    uint32_t polls, dialing;
    ib_watch_t nobody;
    lh_conn_t *conns;
    lh_listener_t *listeners;
    lh_region_t *regions;
};

typedef struct ib_sink { /* the caller's rows, which may be of another version's size */
    lh_wire_event_t *events;
    uint32_t event_size, max, count;
} ib_sink_t;

/* ib_device.c: which port this transport has */
lh_status_t ib_device_open(lh_transport_t *t);
void ib_device_close(lh_transport_t *t);
socklen_t ib_address_length(const struct sockaddr_storage *a);

/* ib_meet.c: how two ends meet */
lh_status_t ib_listen(lh_transport_t *t, uint32_t nic, uint32_t security, lh_address_t *address,
                      lh_listener_t **out);
lh_status_t ib_accept(lh_listener_t *l, lh_hello_t *hello, lh_conn_t **out);
lh_status_t ib_admit(lh_conn_t *c, const lh_conn_params_t *params);
void ib_close_listener(lh_listener_t *l);
lh_status_t ib_connect(lh_transport_t *t, const lh_address_t *address,
                       const lh_conn_params_t *params, lh_conn_t **out);
lh_status_t ib_address_text(lh_transport_t *t, const lh_address_t *address, char *text,
                            size_t room);
void ib_meet_events(lh_transport_t *t); /* takes what the connection manager has to say */

/* ib_conn.c: a connection's life */
lh_conn_t *ib_conn_new(lh_transport_t *t, ib_state_t state);
/* Completion queue, boards: before the first queue pair. */
lh_status_t ib_conn_equip(lh_conn_t *c);
void ib_conn_break(lh_conn_t *c, lh_status_t why, const char *fmt, ...) LH_PRINTF(3, 4);
void ib_cancel(lh_conn_t *c);
void ib_close_conn(lh_conn_t *c);
/* Drives it, and tells what is done. */
void ib_conn_step(lh_conn_t *c, ib_sink_t *s);
/* Moves what can be moved without telling anything. True: there is something to tell. */
bool ib_conn_stir(lh_conn_t *c);

/* ib_pair.c: queue pairs and completions */
lh_status_t ib_pair_make(ib_pair_t *p);
/* Takes all completions; how many there were. */
uint32_t ib_pairs_pump(lh_conn_t *c);
/* Tells the peer of receives and of receive work requests that it does not know of. */
void ib_pairs_notify(lh_conn_t *c);
void ib_pairs_goodbye(lh_conn_t *c);
/* One chunk of a begun send. False: no queue pair has room for it now, or the connection broke. */
bool ib_pairs_write(lh_conn_t *c, uint64_t message);

/* ib_message.c */
lh_status_t ib_isend(lh_conn_t *c, lh_region_t *region, const void *data, uint64_t bytes,
                     uint32_t tag, uint64_t cookie);
lh_status_t ib_irecv(lh_conn_t *c, lh_region_t *region, void *data, uint64_t bytes, uint32_t tag,
                     uint64_t cookie);
void ib_messages_write(lh_conn_t *c); /* sends whose grants are here */
void ib_messages_tell(lh_conn_t *c, ib_sink_t *s);
bool ib_messages_ready(const lh_conn_t *c); /* there is something to tell */
/* One event for everything outstanding. False: the caller's rows are full. */
bool ib_messages_drain(lh_conn_t *c, ib_sink_t *s);
void ib_tell(ib_sink_t *s, lh_wire_event_t event);
static inline bool ib_sink_room(const ib_sink_t *s)
{
    return s->count < s->max;
}
/* With a sentence that names the limit of locked memory where it fails. */
verbs_mr_t *ib_register_bytes(lh_transport_t *t, void *base, uint64_t bytes);
lh_status_t ib_register(lh_transport_t *t, uint32_t nic, const lh_arena_t *memory,
                        lh_region_t **out);
void ib_release(lh_transport_t *t, lh_region_t *r);

#endif
