/* tcp.h - the plugin's own structs: a transport has listeners and connections, a connection has
 * streams (sockets), a stream carries frames (tcp_frame.h).
 *
 * Grants. A message of more than EAGER_BYTES leaves when the receiver has said, in the head of any
 * frame, that its receive is posted; so its bytes are read from the socket into that buffer.
 * Smaller ones may leave up to EAGER_SLOTS messages ahead of the grants: the receiver holds a slot
 * for each, 1 MiB a connection, taken when the first is needed.
 *
 * The life of a connection. The end that dials connects stream 0, proves the job's key where there
 * is one (tcp_tls.h), and says HELLO; the end that listens keeps it as a stranger until it has,
 * then hands it to the host, whose admit() answers WELCOME with the number of streams and a token,
 * by which the others join. When all are open both ends tell UP. Which end sends is another matter:
 * it is agreed between the hosts.
 *
 * The life of a message. isend puts it into the queue; conn_push cuts it into frames of at most
 * chunk_bytes, each for the stream that has room first; stream_push hands a batch of them to the
 * kernel, and the send is done when the kernel has all. At the other end stream_pull reads a
 * frame's payload to its offset in the receive, in whatever order frames come, checks it, and the
 * receive is done when its bytes are complete. Events are told in the order posted.
 *
 * All calls are [serial] and nothing here waits: poll drives listeners, handshakes, streams and
 * deadlines in the thread that calls it. Where a link carries more than this thread can seal and open
 * beside, others do that part (tcp_work.h). What stats reads from other threads is atomic. */
#ifndef TCP_H
#define TCP_H

#include <sys/socket.h>
#include <sys/uio.h>

#include <stdatomic.h>

#include <longhaul/plugin.h>

#include "../task_pool.h"
#include "tcp_frame.h"
#include "tcp_seal.h"
#include "tcp_silence.h"
#include "tcp_tls.h"

enum {
    DEPTH = 256,        /* operations a direction of a connection */
    STRANGERS_MAX = 64, /* connections of a listener that have not said who they are */
    STRANGER_BYTES = 4096,
    EAGER_SLOTS = 16,
    EAGER_BYTES = 64 << 10,
    STAGE_BYTES = 32 << 10,
    ZERO_SENDS = 256,        /* of a stream, of whose pages the kernel may have some */
    CARDS_MOST = 8,          /* network cards of a transport  */
    BATCH = 16,              /* frames of one system call     */
    BATCH_BYTES = 512 << 10, /* and their payloads, unless a chunk is larger */
    REASON_BYTES = 320,
    PEER_BYTES = 96,
};
#define STRANGER_NS 2000000000ull

/* The options of tcp_plugin.c; 0 and "auto" leave the choice to tcp_tuning.c. */
typedef struct tcp_config {
    char *bind;
    uint64_t port, streams;
    uint64_t chunk_bytes, buffer_bytes, pace;
    char *congestion;
    char *advertise;
    char *nics;
    uint32_t threads;   /* 0: auto; else one more than there are to be */
    uint32_t zero_copy; /* ZERO_* of tcp_zero.h                        */
} tcp_config_t;

typedef struct watch { /* what an epoll event points to; the first member of what is watched */
    enum { WATCH_LISTENER, WATCH_STREAM, WATCH_POOL } kind;
} watch_t;

/* In this order, but that a stream without TLS goes from CONNECTING to GREETING. */
typedef enum stream_state {
    STREAM_NONE,       /* not dialled yet                                    */
    STREAM_CONNECTING, /* dials                                              */
    STREAM_SHAKING,    /* TLS handshake                                      */
    STREAM_GREETING,   /* dials: waits for the welcome; listens: for the hello */
    STREAM_OFFERED,    /* said who it is, waits for accept and admit         */
    STREAM_OPEN,
    STREAM_CLOSED,
} stream_state_t;

typedef struct zero_send { /* that began with a call of its own: see tcp_zero.c */
    uint32_t message;
    bool held; /* the kernel has its pages */
} zero_send_t;

typedef struct zero {
    bool on;              /* payloads of large messages leave so          */
    bool peers;           /* the peer's may come so                       */
    uint32_t first, next; /* numbers: of the oldest held, of the next one */
    zero_send_t sends[ZERO_SENDS];
} zero_t;

/* One socket. Until it is open it belongs to a listener (a stranger) or to the connection that
 * dials it, and carries handshakes; then frames. */
typedef struct stream {
    watch_t watch;
    stream_state_t state;
    lh_transport_t *transport;
    lh_conn_t *conn;         /* NULL: a stranger, of listener */
    lh_listener_t *listener; /* of a stranger                 */
    bool listens;            /* else: it dialled              */
    struct stream *next;     /* of strangers                  */
    int fd;
    uint32_t index;
    uint32_t card;           /* of transport->here, by which it leaves */
    uint64_t sent, received; /* bytes of messages                      */
    uint64_t retransmitted; /* bytes, at the last sample; and the least round trip of all of them */
    uint64_t trip_min_ns;
    uint64_t deadline;      /* of a stranger, in now_ns */
    uint32_t strange_bytes; /* taken from a stranger    */
    greeting_t greeting;
    uint32_t proven;  /* rank whose key the handshake proved */
    tls_t *tls;       /* while STREAM_SHAKING */
    seal_t *seals[2]; /* out, in; NULL: plain or known */

    /* out: a batch of frames that the kernel takes; [done, count) of vectors are left */
    uint64_t out_sequence;
    uint32_t vector_done, vector_count;
    uint32_t frame_done, frame_count;
    uint32_t sealed_count; /* frames of the batch that have their seal     */
    bool sealing;          /* seal_task is out: batch and seal are a thread's */
    task_t seal_task;
    zero_t zero;
    bool blocked;
    uint32_t watched;     /* EPOLLIN and EPOLLOUT, as epoll has them */
    int send_error;       /* errno of the send that failed */
    uint64_t waits_since; /* now_ns: without an acknowledgement for what it sent; 0: needs none */
    struct iovec vectors[2 * BATCH];
    struct {
        uint32_t vectors; /* that end this frame, counted from the batch's first */
        uint32_t message; /* of sends                                            */
        bool is_data;
        bool zero_copies;    /* its payload leaves from the caller's pages            */
        uint64_t sequence;   /* this, its head and what follows: what is to be sealed */
        const uint8_t *from; /* the payload                                           */
        uint8_t *to;         /* where it is encrypted to; else NULL                   */
        uint32_t length;
    } frames[BATCH];
    uint8_t heads[BATCH][HEAD_BYTES];
    uint8_t small[HELLO_BYTES]; /* payload of a control frame, one direction at a time */
    uint8_t *scratch;           /* encrypted payloads of a batch                       */
    uint64_t scratch_bytes;

    /* in */
    uint64_t in_sequence;
    frame_t in;
    uint8_t *to;   /* where the rest of the payload goes */
    uint32_t left; /* bytes of it                        */
    uint32_t crc;
    bool in_slot; /* to an eager slot */
    bool defers;  /* a thread opens the payload when it is whole */
    bool opening; /* open_task is out: payload and seal are a thread's, and nothing is read */
    task_t open_task;
    uint8_t *stage;
    uint32_t stage_size, stage_first, stage_last;
    uint8_t small_in[HELLO_BYTES];
} stream_t;

/* A posted send or receive, until its event has been told. */
typedef struct operation {
    uint8_t *data; /* of a send it is only read */
    uint64_t bytes, cookie;
    uint64_t total; /* receives: what the sender said; sends: bytes cut into frames */
    uint64_t got;
    uint32_t tag;
    uint32_t frames; /* sends: cut, but not all with the kernel; and what it holds pages of */
    bool begun, done;
} operation_t;

typedef struct slot { /* a message that came before its receive */
    bool taken, complete;
    uint32_t tag;
    uint32_t bytes;
} slot_t;

/* States only go forward. */
typedef enum conn_state {
    CONN_DIALING, /* or, at the other end, offered and not admitted */
    CONN_JOINING, /* stream 0 is open, others are to come            */
    CONN_UP,
    CONN_ENDING, /* a FRAME_END is to leave, for at most 100 ms */
    CONN_BROKEN, /* sockets closed; operations end as poll has room */
    CONN_DRAINED,
} conn_state_t;

/* One end of a connection. Operations are numbered from 0 in the order posted, sends and receives
 * apart; the numbers are those of the frames, and receive n takes the peer's send n. They wrap at
 * 2^32, so they are compared by their difference. */
struct lh_conn {
    lh_transport_t *transport;
    lh_conn_t *next;
    conn_state_t state;
    bool dialed, admitted, up_due, down_said, is_last_look;
    lh_status_t why; /* CONN_ENDING and later */
    char reason[REASON_BYTES];
    char peer_text[PEER_BYTES]; /* "rank 3 on tokyo-07" */
    uint32_t peer, direction, security, dscp;
    lh_hello_t hello;
    uint64_t cookie;
    uint8_t token[TOKEN_BYTES];

    lh_address_t address; /* dialled */
    char address_text[64];
    uint64_t dial_ns, dial_deadline, redial_at;
    uint32_t dial_refusals; /* streams that were closed before the welcome */
    uint64_t refused_since; /* now_ns: of the first of these */
    uint64_t end_deadline;
    uint64_t pages_deadline; /* broken: for the kernel to let go of the caller's pages */
    frame_t end;
    stream_t *end_by; /* has handed it to the kernel; NULL: none yet */

    stream_t *streams[STREAMS_MAX];
    uint32_t stream_count, open_count, turn;
    uint64_t silence_ns;
    lh_link_t link; /* zeroes where unknown */
    lh_tuning_t wanted, tuning;
    bool measures; /* link.round_trip_ns is of our own handshakes */
    bool probes;   /* it is there for the link to be measured     */
    uint64_t budget_used;
    uint32_t site, service; /* of the peer; LH_SERVICE_*                            */
    bool is_sending;        /* more than a little, since the ledger's last look      */
    double share;           /* of its pace, in force; see tcp_ledger.c               */
    bool yields;            /* likewise: it lets others go first                     */
    uint64_t ledger_sent;   /* bytes_sent at that look                               */

    operation_t sends[DEPTH], recvs[DEPTH];   /* by number modulo DEPTH */
    uint32_t send_first, send_next, send_end; /* not told; not cut to the end; not posted */
    uint32_t recv_first, recv_end;
    uint32_t granted;     /* receives that the peer has told of */
    uint32_t advertised;  /* receives that we have told of      */
    bool grant_now;       /* the peer may be waiting for it     */
    bool is_warmed;       /* padding has begun once             */
    uint64_t busy_ns;     /* when data or padding last left     */
    uint64_t pad_left;    /* bytes of padding that are to leave */
    uint64_t grant_since; /* now_ns of the oldest untold; 0: none */
    slot_t slots[EAGER_SLOTS];
    uint8_t *slot_memory;

    /* read by stats from any thread */
    _Atomic uint64_t bytes_sent, bytes_received, in_flight, starved_ns, heard_ns;
    _Atomic uint64_t round_trip_ns, round_trip_min_ns, retransmitted, rate;
    _Atomic uint32_t paths_up, path_mtu;
    uint64_t starved_since, sampled_ns, retransmits_counted;
    uint64_t rate_ns, rate_bytes; /* at the last sample */
    bool rate_busy;
};

/* Listening sockets, one a card, and who has connected to them and is not yet a connection. */
struct lh_listener {
    watch_t watch; /* of each of the sockets */
    lh_transport_t *transport;
    lh_listener_t *next;
    int fds[CARDS_MOST]; /* in the order of transport->here */
    uint32_t fd_count;
    uint32_t security;
    stream_t *strangers; /* oldest first */
    uint32_t stranger_count;
    bool full; /* not watched while all strangers wait for accept */
};

/* Any host memory will do: registering says nothing to a socket. */
struct lh_region {
    lh_region_t *next;
};

typedef struct place { /* an address of this machine */
    struct sockaddr_storage address;
    socklen_t length;
    uint32_t network_bits; /* of the address: those of its interface's network; 0: not known */
    char name[64];         /* of its interface, where that is known */
} place_t;

typedef struct limits { /* of this kernel and this process; window 0: not asked yet */
    uint64_t budget;    /* kernel memory for all buffers of this process */
    uint64_t card;      /* bytes a second of all cards; 0: unknown       */
    uint32_t cards;     /* that streams go over; 0: one                  */
    bool force, bbr;    /* buffers beyond the limits may be set; bbr may be used */
    uint64_t send, receive, auto_send, auto_receive; /* largest that may be set, and grown to */
    uint64_t window;                                 /* bytes that one stream can have on its way */
} limits_t;

/* One open() of the plugin. Closed connections wait in the graveyard until the next poll, as epoll
 * rows that were fetched already may point to them. */
struct lh_transport {
    const lh_host_t *host;
    const tcp_config_t *config;
    lh_conn_t *conns, *graveyard; /* graveyard: closed, freed at the next poll */
    stream_t *dead_strangers;     /* likewise */
    lh_listener_t *listeners;
    lh_region_t *regions;
    int epoll, timer;
    bool timer_set;
    uint32_t open_streams;
    uint32_t unsettled; /* listeners' strangers and streams that dial */
    uint32_t turns;
    uint64_t now, served; /* now_ns of this poll; of the last look at epoll */
    uint64_t ledger_ns;   /* of the last look at who sends */
    uint64_t budget_used; /* of limits.budget */
    limits_t limits;
    place_t here[CARDS_MOST]; /* [here_count] listens at each, dials from them in turn      */
    uint32_t here_count;
    bool by_card;    /* sockets are bound to the cards, not to their addresses alone */
    int32_t numa;    /* node of all these cards; -1: unknown, or there are several   */
    place_t outside; /* what others dial instead; length 0: nothing else             */
    void *tls_context;
    task_pool_t *pool; /* NULL: no connection has needed one */
    watch_t pool_watch;
    uint8_t sink[PAD_BYTES]; /* where padding lands, of all streams */
};

/* tcp_address.c */
struct ifaddrs;
lh_status_t address_choose(lh_transport_t *t);
bool address_is_any(const struct sockaddr_storage *a);
/* Which of this machine's interfaces has it; false: none has. */
bool address_find(const struct sockaddr_storage *a, place_t *out);
/* Whether it is one of this machine's, which is met without a card. */
bool address_is_own(const struct sockaddr_storage *a);
/* Whether `a` is in the network of p's interface. */
bool address_is_beside(const place_t *p, const struct sockaddr_storage *a);
void address_take(place_t *p, const struct ifaddrs *i); /* an IPv4 or IPv6 one, with its network */
/* The best address of an interface by name, or of any (NULL); false: there is none that is up. */
bool address_of_interface(place_t *p, const char *name);
/* Adds to `out` what others dial: the one to advertise, the bound one, or for "any" that of an
 * interface; with the bound port. */
lh_status_t address_publish(lh_transport_t *t, const struct sockaddr_storage *bound,
                            lh_address_t *out);
uint32_t address_count(const lh_address_t *a); /* a card each; 0: it is not of this plugin */
/* Number i of them, as it is dialed from `here`; false: there is none, or it is nonsense. */
bool address_read(const place_t *here, const lh_address_t *from, uint32_t i,
                  struct sockaddr_storage *out, socklen_t *length);
/* From where stream `index` of a connection to `there` goes, and to which of the peer's addresses;
 * NULL: to none. */
const place_t *address_way(const lh_transport_t *t, const lh_address_t *there, uint32_t index,
                           struct sockaddr_storage *to, socklen_t *length);
void address_text(const struct sockaddr_storage *from, char *out, size_t room);

/* tcp_socket.c */
/* At one of t->here; its address is added to `address`. */
lh_status_t socket_listen(lh_transport_t *t, const place_t *here, lh_address_t *address, int *out);
/* Sends by this interface alone, and takes only what comes by it; false and errno: it can't. */
bool socket_bind_card(int fd, const char *name);
/* Starts to connect stream `index`; -1 and errno. */
int socket_dial(lh_conn_t *c, uint32_t index);
/* What every connected stream has. */
void socket_prepare(int fd, uint64_t silence_ns);
uint64_t silence_within(uint64_t ns); /* what the kernel can keep to; 0: 3 s */
/* Counts for stats, now and then; ends a connection whose peer acknowledges nothing. */
void socket_sample(lh_conn_t *c);

/* tcp_stream.c: a socket and its frames */
lh_status_t stream_new(lh_transport_t *t, uint32_t stage_bytes, stream_t **out);
/* The socket only. It stays, reset, while the kernel has pages of the caller's (tcp_zero.h): until
 * stream_let_go. */
void stream_close(stream_t *s, bool abort);
/* Whether a stream that was closed has let go of all pages; force: it is closed whether or not. */
bool stream_let_go(stream_t *s, bool force);
void stream_free(stream_t *s);
lh_status_t stream_watch(stream_t *s);
void stream_watch_out(stream_t *s, bool on);
void stream_watch_in(stream_t *s, bool on);
/* Adds a frame to the batch, which has room for it; false: no memory, or the library failed. */
bool stream_add(stream_t *s, frame_t *f, const void *payload);
/* Likewise, and leaves its seal to stream_seal, which makes all that are missing. */
bool stream_cut(stream_t *s, frame_t *f, const void *payload);
bool stream_seal(stream_t *s);
/* Queues a control frame; false: the batch is not empty, or as above. */
bool stream_put(stream_t *s, frame_t f, const void *payload);
/* Hands over what the kernel takes; false: the stream broke. */
bool stream_push(stream_t *s, size_t *bytes);
/* The kernel is done with one of a message's frames, or with the pages of one. */
void stream_part_left(stream_t *s, uint32_t message);

/* tcp_receive.c */
/* Reads what is there; false: the stream broke. *more: there may be more. */
bool stream_pull(stream_t *s, bool *more);
/* Likewise until there is nothing more, also of what a thread has to open first. */
bool stream_pull_all(stream_t *s);
/* Parses what lies in the stage. */
bool stream_eat(stream_t *s);
/* A thread has opened the payload; right: its tag was. False: the stream broke. */
bool stream_opened(stream_t *s, bool right);
/* Tells whose fault it was: ends the connection, or drops a stranger. Always false. */
bool stream_fail(stream_t *s, lh_status_t status, const char *fmt, ...) LH_PRINTF(3, 4);
/* The peer is gone; error 0: it closed. Always false. */
bool stream_lost(stream_t *s, int error);
/* Matches what came early with the receive just posted. */
void receive_posted(lh_conn_t *c, uint32_t message);

/* tcp_greet.c: who comes in */
bool greet_frame(stream_t *s); /* a HELLO or WELCOME is complete in small_in */
void stranger_drop(stream_t *s);
void stranger_take(stream_t *s); /* off its listener's list */
void listener_serve(lh_listener_t *l);
void listener_expire(lh_listener_t *l);
void stream_adopt(lh_conn_t *c, stream_t *s, uint32_t index);
bool admit_stream(stream_t *s); /* says welcome */
void turn_away(lh_conn_t *c);   /* says so, where it was accepted and not admitted */

/* tcp_dial.c */
void stream_progress(stream_t *s); /* of a stream that is not open, of either end */
void dial_serve(lh_conn_t *c);
void dial_failed(stream_t *s, lh_status_t status, const char *text);

/* tcp_conn.c */
lh_status_t conn_new(lh_transport_t *t, lh_conn_t **out);
void conn_name(lh_conn_t *c, uint32_t rank);
void conn_free(lh_conn_t *c);
void conn_break(lh_conn_t *c, lh_status_t why, const char *fmt, ...) LH_PRINTF(3, 4);
/* Breaks it after the peer has been told the status with FRAME_END. */
void conn_end(lh_conn_t *c, lh_status_t why, const frame_t *end, const char *fmt, ...)
    LH_PRINTF(4, 5);
void conn_stream_open(lh_conn_t *c, stream_t *s);
bool conn_has_events(const lh_conn_t *c);

typedef struct sink { /* the caller's rows, which may be of another version's size */
    char *rows;
    uint32_t row_size, max, count;
} sink_t;
void conn_tell(lh_conn_t *c, sink_t *sink);

/* tcp_send.c */
bool conn_push(lh_conn_t *c);           /* true: something moved */
bool conn_can_push(const lh_conn_t *c); /* and the kernel has not refused it */

#endif
