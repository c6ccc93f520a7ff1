/* ib.h - the objects of this transport: up to IB_PORTS_MOST ports of RDMA devices, connections of
 * several reliable queue pairs, which are spread over the ports, and messages that are written
 * straight into the receives of the peer.
 *
 * All work is done by the thread that calls; the device does the rest. */
#ifndef IB_H
#define IB_H

#include <stdatomic.h>

#include <longhaul/plugin.h>

#include "ib_card.h"
#include "ib_pool.h"
#include "ib_ring.h"
#include "ib_tuning.h"
#include "ib_verbs.h"

#define IB_GID_OPEN UINT32_MAX

enum {
    IB_FORMER = 16,      /* ids of former turns of a queue pair                */
    IB_RETRIES = 7,      /* of a packet, by the card                           */
    IB_SEND_WRS = 256,   /* send work requests that a queue pair has under way, at most */
    IB_NOTICE_WRS = 3,   /* the most that one notice takes                     */
    IB_INLINE = 220,     /* bytes that are copied into the work request, where the card takes it */
    IB_WAITING = 1024,   /* connect requests of a listener that nobody has accepted: of all ranks
                          * of a site at once, as one that is turned away does not come again */
    IB_LEAVE_MS = 50,    /* how long a goodbye may take, beside its way and what is before it */
    IB_LEFT_MS = 500,    /* and with both: then the connection has left        */
    IB_STOP_MS = 100,    /* how long a queue pair that fails may take to be stopped */
    IB_REFUSED_MS = 500, /* how long a peer that ends may take to be seen as such */
    IB_SMALL = 256,      /* a packet that every path carries, as those by which two ends meet */
    IB_INVALID = 3,      /* errors in a row that are of the request and not of the way */
    IB_DOUBT = 2,        /* failures in a row, each of a packet that is larger */
    IB_ASKED_MS = 30000, /* how long a challenge is good for: an end may not poll for seconds */
};

LH_STATIC_ASSERT((int)IB_SEND_WRS == (int)IB_RECEIVES + (int)IB_SPARE,
                 "a card without so many for either queue has as many for both");

typedef struct ib_config {
    char *device, *bind, *gid;
    uint64_t port;
    uint64_t queue_pairs, chunk_bytes, window_bytes;
    uint64_t traffic_class, ack_timeout, keepalive_ns;
    uint64_t pace, seal_threads, mtu;
} ib_config_t;

/* ib_plugin.c: which of the two this is. */
extern const ib_rules_t ib_rules;
#ifdef IB_BETWEEN_SITES
#define IB_LEVELS (1u << LH_SECURITY_PLAIN | 1u << LH_SECURITY_KNOWN | 1u << LH_SECURITY_PRIVATE)
#else
#define IB_LEVELS (1u << LH_SECURITY_PLAIN | 1u << LH_SECURITY_KNOWN)
#endif

/* What the context of a cm_id_t points to: the first member of a listener or of a queue pair. An id
 * that a listener's request brings has the listener's until it is taken. */
typedef struct ib_watch {
    enum { IB_WATCH_NONE, IB_WATCH_LISTENER, IB_WATCH_PAIR } kind;
} ib_watch_t;

typedef enum ib_pair_state {
    IB_PAIR_NONE,
    IB_PAIR_MEETING, /* between address and answer, or accepted and not established */
    IB_PAIR_UP,
    IB_PAIR_DOWN, /* it failed, and is about to be replaced: ib_mend.c */
} ib_pair_state_t;

typedef struct ib_sent { /* one send work request, as long as it is under way */
    uint64_t id, from, to, since_ns;
    uint32_t bytes, immediate; /* immediate: big-endian */
    bool has_immediate;
    bool signaled;  /* since it was posted; those in front of it may not be */
    uint64_t order; /* of a notice: how many were before it */
    uint64_t told;  /* likewise: receives that the peer was told of before */
    uint64_t frame; /* `private`: its number, and 1; 0: none */
} ib_sent_t;

typedef struct ib_pair { /* one queue pair of a connection */
    ib_watch_t watch;
    lh_conn_t *conn;
    uint32_t index, port; /* port: of this end, by its place in the transport */
    uint32_t peer_key;    /* of the peer's board, at the port that this one leads to */
    ib_pair_state_t state;
    bool reached;        /* the other end knows of it, and must be told that it ends */
    bool unanswered;     /* it fails since nothing of it was acknowledged */
    bool failing;        /* an error was seen: stopped, it goes down with its last completion */
    bool flushed;        /* a receive work request of it has failed: nothing more comes */
    bool probing;        /* a packet of the port's MTU is on its way */
    bool proven;         /* one that was not small has come through */
    bool gone;           /* its device was removed, so it is not dialed again */
    bool placed;         /* its port, at the end that listens, and the peer's key are known */
    bool notices;        /* went over it since it was met, and may not be looked at yet */
    uint32_t invalid;    /* errors in a row that are of the request: IB_INVALID */
    uint32_t lost;       /* failures in a row, without an answer, of packets that were not small */
    uint64_t lost_ns;    /* when the first of them was */
    uint64_t stopped_ns; /* failing: when it was stopped; 0: it was not */
    cm_id_t *id;
    /* Of the turns before: to destroy one says to the other end that this one has gone, so they
     * are kept until that knows of a later turn. */
    cm_id_t *former[IB_FORMER];
    uint32_t former_count;
    verbs_qp_t *qp;
    ib_credits_t credits;
    ib_sent_t *sent; /* [IB_SEND_WRS] what is under way, in order: [sent_first, sent_end) */
    uint64_t sent_first, sent_end;
    uint32_t gathered; /* of them, the last so many are yet to be posted, as one list */
    uint64_t gathered_bytes;
    uint64_t acked;   /* writes with immediates that are known to have arrived */
    uint64_t arrived; /* and those of the peer that this end has taken */
    uint32_t spent;   /* receive work requests to be posted again   */
    uint32_t inline_bytes;
    uint64_t bytes;    /* under way */
    uint64_t rate;     /* bytes each second, of late; 0: unknown */
    uint64_t done_ns;  /* when a chunk last ended */
    uint64_t heard_ns; /* when anything last ended or came */
    uint32_t turn;     /* how often it was replaced */
    /* DOWN: the peer was told that it is; it must be answered; it has told so, which is yet to be
     * acted on; both know, so what the peer has not taken goes over the others. See ib_mend.c. */
    bool asked, answer_due, heard_away, away;
    uint32_t away_turn, away_count;
    uint64_t again_ns, give_up_ns; /* DOWN, or a later turn that meets: try again; lost for good */
    const char *failure;           /* why it went down */
} ib_pair_t;

static inline uint32_t ib_pair_wrs(const ib_pair_t *p)
{
    return (uint32_t)(p->sent_end - p->sent_first);
}

/* Its path seems to carry small packets only: nothing new goes over it until a large one has. */
static inline bool ib_pair_doubted(const ib_pair_t *p)
{
    return p->lost >= IB_DOUBT;
}

typedef struct ib_operation {
    char *data; /* of a send it is only read */
    uint64_t bytes, cookie;
    uint32_t tag;
    lh_region_t *region; /* of this end; NULL: no bytes, or no card needs to know it */
    uint64_t posted;     /* send: bytes handed to queue pairs */
    uint64_t chunk;      /* send: bytes of each but the last; 0: not begun */
    uint32_t out, back;  /* send: chunks handed over, and acknowledged */
    uint64_t to;         /* send: the peer's address, and its keys by the peer's ports */
    uint32_t to_keys[IB_PORTS_MOST];
    ib_inbox_t inbox; /* receive */
    uint32_t opening; /* receive, `private`: its frames that are with threads */
} ib_operation_t;

typedef struct ib_slot { /* a frame's place in a ring */
    ib_job_t job;
    bool over;      /* leaving: it has arrived; coming: it is opened, and older ones are not */
    uint64_t taken; /* coming: the number, and 1, of the frame that it last held */
} ib_slot_t;

typedef struct ib_private { /* what a connection has with `private`: ib_private.c */
    uint8_t random[IB_SHARE_BYTES];
    bool told, ready_keys; /* this end's share has left; the peer's has come */
    ib_keys_t out, in;
    uint8_t *frames; /* [2][slots][slot_bytes] that leave, that come */
    /* Of the halves, by port: a peer may write into the second alone. */
    verbs_mr_t *mr_out[IB_PORTS_MOST], *mr_in[IB_PORTS_MOST];
    ib_slot_t *rows; /* [2][slots] */
    uint32_t slots, slot_bytes;
    ib_share_t peer;
    uint64_t out_first, out_next; /* frames: oldest whose place is in use; next */
    uint64_t opened;              /* by the peer */
    uint64_t in_first, in_told;   /* oldest not opened; as the peer knows */
    uint32_t opening;             /* frames that came, and are with the pool's threads */
    ib_job_t *ready, **ready_end; /* sealed, and not written yet */
} ib_private_t;

typedef enum ib_state {
    IB_MET, /* accepted: the host has yet to admit it */
    IB_DIALING,
    IB_OPEN,     /* the listening end: admitted; the dialing end: the first queue pair is up */
    IB_LEAVING,  /* broken; a goodbye is on its way */
    IB_DRAINING, /* nothing of it is known to the device any more */
    IB_DRAINED,
} ib_state_t;

struct lh_conn {
    lh_transport_t *transport;
    lh_conn_t *next;
    ib_state_t state;
    bool up_said, down_said;
    bool dials;
    bool ended;                /* the peer has gone; what it wrote before is still taken */
    bool worse_due, whole_due; /* to be told: DEGRADED */
    bool asking;               /* `known`, the end that dials: no challenge has come yet */
    uint32_t security;
    uint8_t nonce[IB_NONCE_BYTES], session[IB_SESSION_BYTES]; /* `known` */
    ib_private_t sealed;
    uint32_t peer;
    uint32_t token;    /* of the peer's listener */
    uint64_t worse_ns; /* not before, since a peer that has gone is soon known as such */
    uint64_t cookie, give_up_ns, leave_ns;
    uint64_t
        refused_ns; /* the peer's card refused a write that the peer has granted: then it is told;
                           * 0: it did not */
    uint64_t patience_ns; /* a peer that does not answer for so long is lost */
    lh_hello_t hello;
    uint16_t label;                            /* of which its queue pairs' flow labels are made */
    struct sockaddr_storage to[IB_PORTS_MOST]; /* the end that dials: where the peer's ports are */
    uint32_t to_down;                          /* of them, those that were down */
    uint32_t peer_ports;
    ib_tuning_t tuning;
    lh_link_t link;
    ib_bucket_t bucket;

    ib_pair_t pairs[IB_PAIRS_MOST];
    uint32_t pair_count;
    uint32_t first;   /* the queue pair that the connection began with */
    uint32_t lead;    /* the one that notices go over */
    uint32_t gathers; /* the one that alone may have work requests that are not posted yet */
    _Atomic uint32_t pairs_up;   /* also read by stats */
    _Atomic uint32_t pairs_used; /* likewise: this end's chunks go over so many; 0: all */
    verbs_cq_t *cqs[IB_PORTS_MOST];

    ib_board_t *board; /* the peer writes it: [0]; [1] is what this end writes into the peer's */
    /* Of [0], of [1], by port: a peer may write into the first alone. */
    verbs_mr_t *board_in[IB_PORTS_MOST], *board_out[IB_PORTS_MOST];
    uint64_t peer_board;

    /* Messages are counted from 0 over the connection; operation i is row i % IB_DEPTH. */
    ib_operation_t sends[IB_DEPTH], receives[IB_DEPTH];
    uint64_t send_first, send_next,
        send_end;     /* oldest; oldest not handed over whole; past the last */
    uint64_t granted; /* by the peer */
    uint64_t receive_first, receive_told, receive_end;
    uint64_t in_flight;               /* bytes on queue pairs */
    uint64_t notices_out, notices_in; /* over the connection */
    bool retells;                     /* what notices said that did not arrive is due again */

    lh_status_t why; /* from IB_LEAVING on */
    char reason[IB_REASON + 64];
    /* For stats, from any thread. */
    _Atomic uint64_t bytes_sent, bytes_received, bytes_again, heard_ns, round_trip_ns,
        round_trip_min_ns, rate;
};

static inline uint32_t ib_pairs_used(const lh_conn_t *c)
{
    const uint32_t used = atomic_load_explicit(&c->pairs_used, memory_order_relaxed);
    return used != 0 && used < c->pair_count ? used : c->pair_count;
}

typedef struct ib_request { /* a connect request that waits to be accepted */
    cm_id_t *id;
    uint32_t port; /* that it came to */
    ib_greeting_t greeting;
    uint8_t session[IB_SESSION_BYTES];
} ib_request_t;

typedef struct ib_asked { /* a challenge that is out */
    uint64_t until_ns;    /* 0: none */
    lh_hello_t hello;
    uint8_t dials[IB_NONCE_BYTES], listens[IB_NONCE_BYTES];
} ib_asked_t;

struct lh_listener {
    ib_watch_t watch;
    lh_transport_t *transport;
    lh_listener_t *next;
    cm_id_t *ids[IB_PORTS_MOST];
    uint32_t token, security;
    ib_request_t waiting[IB_WAITING];
    uint32_t waiting_count;
    ib_asked_t asked[IB_WAITING];
    uint32_t asked_next;
};

struct lh_region {
    lh_region_t *next;
    verbs_mr_t
        *mrs[IB_PORTS_MOST]; /* NULL: no card knows of it, and none needs to with `private` */
    char *base;
    uint64_t bytes;
    uint32_t kind; /* LH_MEM_*: what is not the host's is never touched by the processor */
};

typedef struct ib_port {
    cm_id_t *anchor; /* bound to the address; it keeps the device open */
    struct sockaddr_storage here;
    char device[64];
    verbs_context_t *context;
    verbs_pd_t *pd;
    verbs_channel_t *channel;
    uint64_t rate; /* bytes each second */
    uint8_t number;
    bool down;                /* when it was opened */
    uint16_t link_layer, mtu; /* as verbs_port_t has them; the INI's MTU, which is no larger */
    uint32_t gid;             /* of its table; IB_GID_OPEN: as the connection manager has it */
    uint32_t roce;            /* version of that GID; 0: unknown, or InfiniBand */
    uint64_t adaptive;        /* its counter at first */
} ib_port_t;

struct lh_transport {
    const lh_host_t *host;
    const ib_config_t *config;
    ib_verbs_t verbs;
    cm_channel_t *events;
    ib_port_t ports[IB_PORTS_MOST]; /* all of one link layer, MTU and family of addresses */
    uint32_t port_count;
    uint64_t rate;      /* of all ports, bytes each second */
    bool takes_dmabuf;  /* all of them do */
    uint32_t wrs;       /* work requests of each queue of a queue pair: IB_SEND_WRS, or fewer */
    uint32_t wrs_port;  /* whose card has no more */
    uint64_t looked_ns; /* at the counters of adaptive retransmission */
    bool adaptive_said;
    int epoll, timer;  /* timer: wakes a sleeper for what is due */
    uint64_t timer_ns; /* when it does; UINT64_MAX: never */
    bool armed;
    bool meeting;        /* a queue pair dials, or is to be replaced */
    uint64_t met_events; /* that the connection manager had to say, all of them */
    uint64_t asked_ns;   /* when it was last asked for the sake of a queue pair that fails */
    bool looks;          /* this poll asks clock and connection manager where all is well, too */
    uint64_t timed_ns;   /* when one last did, by the kernel's coarse clock */
    ib_watch_t nobody;
    lh_conn_t *conns;
    lh_listener_t *listeners;
    lh_region_t *regions;
    uint64_t registered; /* bytes of the host's memory, with each port: the kernel counts them so */
    ib_pool_t *pool;     /* NULL: nothing is sealed */
};

/* What came with an event: it was acknowledged before it is acted on. */
typedef struct said {
    ib_greeting_t greeting; /* pairs 0: none */
    uint8_t raw[IB_GREETING_BYTES];
    char text[CM_REJECT_BYTES + 1];
    bool challenges;
    uint8_t nonce[IB_NONCE_BYTES];
} ib_said_t;

typedef struct ib_sink { /* the caller's rows, which may be of another version's size */
    lh_wire_event_t *events;
    uint32_t event_size, max, count;
} ib_sink_t;

/* ib_device.c: which ports this transport has */
lh_status_t ib_device_open(lh_transport_t *t);
void ib_device_close(lh_transport_t *t);
/* Whether a port is up now, as its device says. */
bool ib_port_is_up(const lh_transport_t *t, const ib_port_t *p);
/* That was up when the transport was opened: what it has, all have. */
const ib_port_t *ib_port_first_up(const lh_transport_t *t);
/* Looks, once in pause_ns at most, whether the card sends again before answers can be here. */
void ib_device_watch(lh_transport_t *t, uint64_t pause_ns);
socklen_t ib_address_length(const struct sockaddr_storage *a);
const char *ib_layer_text(uint32_t link_layer);

/* ib_gid.c */
lh_status_t ib_gid_choose(lh_transport_t *t, ib_port_t *p);
bool ib_gid_is_row(const lh_transport_t *t); /* `gid` names one by its row */
/* The address of that row of this port. False: it has no such row, or InfiniBand's. */
bool ib_gid_row(const lh_transport_t *t, const ib_port_t *p, char *out, size_t room);
/* The address of the GID that `gid` names, on any device that may be taken. False: it names none. */
bool ib_gid_address(lh_transport_t *t, char *out, size_t room);

/* ib_place.c: addresses; ports are big-endian */
typedef struct ib_place { /* what a listener's address holds */
    struct sockaddr_storage at[IB_PORTS_MOST];
    uint32_t ports;
    uint32_t token;
    uint32_t down;            /* a bit for each port that was down when it began to listen */
    uint16_t link_layer, mtu; /* of its ports, as verbs_port_t has them */
    uint32_t roce;
} ib_place_t;
void ib_place_write(const ib_place_t *from, lh_address_t *out);
/* LH_INVALID: it is not of this plugin; LH_ABI: of another version of it. */
lh_status_t ib_place_read(const lh_address_t *from, ib_place_t *out);
void ib_place_port(struct sockaddr_storage *a, uint16_t port);
void ib_place_text(const struct sockaddr_storage *a, char *out, size_t room);

/* ib_listen.c: the end that listens. What it says with a rejection tells the end that dials what to
 * make of it. */
extern const char ib_not_this_job[], ib_other_level[], ib_not_proven[], ib_has_ended[],
    ib_not_yet[];
/* Of an id that nobody has adopted yet. */
void ib_listener_event(lh_listener_t *l, cm_id_t *id, const cm_event_t *event, const ib_said_t *s);

/* ib_meet.c: how two ends meet */
/* Signed, as it leaves. */
void ib_greeting_pack(const ib_pair_t *p, uint8_t out[IB_GREETING_BYTES]);
cm_param_t ib_param_of(const ib_pair_t *p, const uint8_t greeting[IB_GREETING_BYTES]);
void ib_set_options(ib_pair_t *p);
lh_status_t ib_listen(lh_transport_t *t, uint32_t nic, uint32_t security, lh_address_t *address,
                      lh_listener_t **out);
lh_status_t ib_accept(lh_listener_t *l, lh_hello_t *hello, lh_conn_t **out);
lh_status_t ib_admit(lh_conn_t *c, const lh_conn_params_t *params);
void ib_close_listener(lh_listener_t *l);
lh_status_t ib_connect(lh_transport_t *t, const lh_address_t *address,
                       const lh_conn_params_t *params, lh_conn_t **out);
lh_status_t ib_address_text(lh_transport_t *t, const lh_address_t *address, char *text,
                            size_t room);
/* What a sentence ends with: that all queue pairs lead from or to ports that are down, or how those of
 * two ends that have several are paired; else "". */
const char *ib_meet_nowhere(const lh_conn_t *c);
void ib_meet_events(lh_transport_t *t); /* takes what the connection manager has to say */
/* Something has come over one that meets: the end that dialed is ready, and what says so may be late
 * or lost. */
void ib_pair_heard(ib_pair_t *p);
bool ib_dial(ib_pair_t *p);

/* ib_params.c: what the host wants of a connection */
lh_status_t ib_check_security(lh_transport_t *t, uint32_t security);
lh_status_t ib_take_params(lh_conn_t *c, const lh_conn_params_t *params);
/* There are fewer queue pairs than were chosen: c->pair_count. */
lh_status_t ib_take_pairs(lh_conn_t *c);
lh_status_t ib_tune(lh_transport_t *t, const lh_link_t *link, uint32_t choice, lh_tuning_t *out,
                    char *why, size_t room);
lh_status_t ib_retune(lh_conn_t *c, const lh_tuning_t *wanted, lh_tuning_t *in_force);

/* ib_api.c: the functions of the transport, which the plugin's row names */
extern const lh_transport_api_t ib_api;

/* The threads that seal, from the first connection that needs them. */
lh_status_t ib_transport_seals(lh_transport_t *t);

/* ib_private.c: messages as sealed frames */
lh_status_t ib_private_equip(lh_conn_t *c);
uint8_t *ib_private_slot(const ib_private_t *s, bool in, uint64_t frame);
/* From here on no thread knows of its buffers. */
void ib_private_unmake(lh_conn_t *c);
void ib_private_free(lh_conn_t *c);
/* Tells the peer of this end's frames, once the first queue pair is up. */
void ib_private_meet(lh_conn_t *c);
void ib_private_take_share(lh_conn_t *c);
uint64_t ib_private_chunk(const lh_conn_t *c);  /* bytes of a payload, at most */
uint64_t ib_private_window(const lh_conn_t *c); /* bytes of payloads under way, at most */
bool ib_private_room(const lh_conn_t *c);       /* for a frame more */
void ib_private_begin(lh_conn_t *c, const ib_frame_t *head, const char *data);
void ib_private_post(lh_conn_t *c); /* what is sealed */
void ib_private_acked(lh_conn_t *c, uint64_t frame);
/* False: more than were sent. */
bool ib_private_take_opened(lh_conn_t *c, uint64_t opened);
void ib_private_take_frame(lh_conn_t *c, uint32_t low, uint64_t bytes);
bool ib_private_due(const lh_conn_t *c); /* the peer must be told of frames that are free */
void ib_private_done(lh_transport_t *t); /* takes what threads have done */

/* ib_conn.c: a connection's life */
lh_conn_t *ib_conn_new(lh_transport_t *t, ib_state_t state);
/* Completion queues, boards: before the first queue pair. Of the end that dials pair_count may become
 * less. */
lh_status_t ib_conn_equip(lh_conn_t *c);
void ib_conn_break(lh_conn_t *c, lh_status_t why, const char *fmt, ...) LH_PRINTF(3, 4);
void ib_cancel(lh_conn_t *c);
void ib_close_conn(lh_conn_t *c);
/* Drives it, and tells what is done. */
void ib_conn_step(lh_conn_t *c, ib_sink_t *s);
/* Moves what can be moved without telling anything. True: there is something to tell. */
bool ib_conn_stir(lh_conn_t *c);

/* When it has to be driven again though nothing happens; UINT64_MAX: never. */
uint64_t ib_conn_due(const lh_conn_t *c);

/* ib_mend.c: queue pairs that fail are replaced */
/* To be called when its completions have been taken. */
void ib_pair_fail(ib_pair_t *p, const char *why);
/* The other end's greeting for a later turn of this pair, and the id that it came with, which is its
 * own from then on: not where the connection broke, or this turn was overtaken. */
void ib_pair_renew(ib_pair_t *p, const ib_greeting_t *g, cm_id_t *id);
/* It can't be met, or not yet, while others are: it begins as one that is down. */
void ib_pair_absent(ib_pair_t *p, const char *why);
/* Destroys the ids of former turns. */
void ib_pair_forget(ib_pair_t *p);
/* A later turn is up; taken: what the other end says to have taken. */
void ib_pair_mended(ib_pair_t *p, uint64_t taken);
/* This try came to nothing: there is another one when it is due. */
void ib_pair_missed(ib_pair_t *p);
/* What the peer has said of it; when all completions have been taken. */
void ib_pair_parted(ib_pair_t *p);
/* What is left of it is yet to go over others. */
bool ib_pair_waits(const ib_pair_t *p);
/* All queue pairs are up, and none is in doubt. */
bool ib_pairs_whole(const lh_conn_t *c);
/* Another one than this can be written to. */
bool ib_pair_has_others(const ib_pair_t *p);
/* The device under it has gone. */
void ib_pair_removed(ib_pair_t *p);
/* Tries again what is due, gives up what is overdue. */
void ib_pairs_mend(lh_conn_t *c, uint64_t now);
uint64_t ib_pair_due(const ib_pair_t *p);

/* ib_qp.c: a queue pair's states; errno says why one can't be had */
lh_status_t ib_pair_make(ib_pair_t *p);
lh_status_t ib_pair_ready(ib_pair_t *p); /* to send: the other end's numbers are known */
void ib_pair_unmake(ib_pair_t *p);       /* from here on the device knows nothing of it */
/* From here on it takes nothing more; what it took comes in front of the completions that end it. */
bool ib_pair_stop(ib_pair_t *p);

/* ib_pair.c: what is posted, and completions */
bool ib_pair_receives(ib_pair_t *p, uint32_t count); /* false: errno says why not */
/* The oldest work request under way has ended well. */
void ib_pair_done(ib_pair_t *p);
bool ib_pair_repost(ib_pair_t *p);
/* Tells the peer that it is down at this end. False: not now. */
bool ib_pairs_part(lh_conn_t *c, uint32_t index);
/* What the peer has not taken of queue pairs that are away, over the others. */
void ib_pairs_move(lh_conn_t *c);
/* Of one that has gone down: words on others that it carried are due again. */
void ib_pair_unsay_words(ib_pair_t *p);
/* Of one that is away: its notices that did not arrive are told anew, over others. */
void ib_pair_unsay(ib_pair_t *p);
/* One packet on queue pairs that have been idle for so long that their peer may be dead, all at a time. */
void ib_pairs_ping(lh_conn_t *c, uint64_t now);
/* Takes all completions; how many there were, and queue pairs that failed. */
uint32_t ib_pairs_pump(lh_conn_t *c);
/* Tells the peer of receives and of receive work requests that it does not know of. */
void ib_pairs_notify(lh_conn_t *c);
void ib_pairs_goodbye(lh_conn_t *c);
/* One chunk of a begun send. False: no queue pair has room for it now, or the connection broke. It has
 * left when what was gathered is posted, before anything else is done. */
bool ib_pairs_write(lh_conn_t *c, uint64_t message);
bool ib_pairs_flush(lh_conn_t *c); /* posts it; false: the connection broke */
/* `private`: a frame that is sealed; and this end's share. False: likewise. */
bool ib_pairs_write_frame(lh_conn_t *c, const ib_job_t *job);
bool ib_pairs_share(lh_conn_t *c);
/* A packet as large as the port sends them: before the connection is up, and where it is in doubt. */
bool ib_pair_probe(ib_pair_t *p);

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
/* Of a device, by its dma-buf. */
lh_status_t ib_register_device(lh_transport_t *t, const lh_arena_t *memory, verbs_mr_t **rows);
/* With every port, rows [t->port_count]; remote: a peer with the key may write there. With a
 * sentence that names the limit of locked memory where it fails. */
lh_status_t ib_register_all(lh_transport_t *t, void *base, uint64_t bytes, bool remote,
                            verbs_mr_t **rows);
void ib_forget_all(lh_transport_t *t, verbs_mr_t **rows);
/* The end of such a sentence: the limit, and what this transport holds by now; "" where there is no limit. */
enum { IB_LOCK_TEXT = 128 };
void ib_lock_text(const lh_transport_t *t, char *out, size_t room);
/* Likewise of what failed with that error: "" where it is not for want of memory. */
void ib_lock_text_of(const lh_transport_t *t, int error, char *out, size_t room);
lh_status_t ib_register(lh_transport_t *t, uint32_t nic, const lh_arena_t *memory,
                        lh_region_t **out);
void ib_release(lh_transport_t *t, lh_region_t *r);

#endif
