/* verbs_fake.h - a libibverbs and a librdmacm for tests: reliable queue pairs between processes of
 * one machine, with faults that a test orders.
 *
 * What a card does is done by an engine, one in each process: a thread and one lock. A queue pair
 * is a socket; packets have sequence numbers, acknowledgements and timers, and go back to the lost
 * one (go-back-N), so that a lost packet, a late one and a dead peer look as they do on a card.
 * Whoever polls an empty completion queue drives the engine himself, so that its thread has little
 * to do where processors are few.
 *
 * A program gets it instead of the real libraries by LD_LIBRARY_PATH: the file is called
 * libibverbs.so.1 and librdmacm.so.1. Orders come from the environment, FAKE_VERBS="delay_us=2000
 * loss=50", or from verbs_order() in the process itself. */
#ifndef VERBS_FAKE_H
#define VERBS_FAKE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include <ib_verbs.h>

#define FAKE_EXPORT __attribute__((visibility("default")))

enum {
    FAKE_MTU = 32 << 10,
    FAKE_WINDOW = 64,         /* packets that a queue pair has unacknowledged */
    FAKE_OUT_BYTES = 1 << 20, /* of a link, not yet taken by its socket       */
    FAKE_RETRIES = 7,
    FAKE_MRS = 1024,
    FAKE_DEVICE_PORT = 1,
    FAKE_DEVICES = 2,
    FAKE_LABELS = 256,
    FAKE_VENDOR = 0x2c9, /* of enhanced features */
};

/* name, default, what it does */
#define FAKE_ORDERS(X)                                                                         \
    X(delay_us, 0, "packets arrive so much later")                                             \
    X(loss, 0, "one packet in so many is lost, of those that this process sends")              \
    X(lose_packet, 0, "of them every so-manieth, and no answer")                               \
    X(lose_immediate, 0, "every so-manieth of those that have an immediate")                   \
    X(lose_answer, 0, "every so-manieth answer")                                               \
    X(selective, 0, "a lost packet is sent again alone, and what came behind it is kept")      \
    X(rate, 0, "bytes of packets a second that each device of this process sends; 0: any")     \
    X(reorder, 0, "completions of different queue pairs come in any order")                    \
    X(mute, 0, "nothing that this process sends arrives")                                      \
    X(no_device, 0, "there is no device")                                                      \
    X(port_down, 0, "the port is down, and nothing goes out or comes in")                      \
    X(devices, 0, "2: even loopback addresses belong to a second device")                      \
    X(dead_device, 0, "the port of the so-manieth device is down, likewise")                   \
    X(remove_device, 0, "the so-manieth device is taken out, which everybody is told")         \
    X(no_memory, 0, "no memory can be registered")                                             \
    X(memory_most, 0, "so many bytes can be registered at once; 0: any")                       \
    X(no_pinning, 0, "1: a completion queue finds no memory to lock, 2: a queue pair")         \
    X(cqe_most, 0, "entries that a completion queue can have; 0: any")                         \
    X(wrs_most, 0, "work requests that each queue of a queue pair can have; 0: any")           \
    X(fail_pair, 0, "the queue pair of this process that was made so-manieth fails now")       \
    X(fail_one, 0, "of the queue pairs that live in this process, the so-manieth fails now")   \
    X(immediate, 0, "the next immediate that this process sends is XORed with it")             \
    X(private_byte, 0, "the last byte of its next connect request or answer is XORed with it") \
    X(post_fails, 0, "posting a send fails")                                                   \
    X(mtu_hole, 0, "packets with more bytes are lost: something on the way has a smaller MTU") \
    X(mtu_hole_of, 0, "of those of the so-manieth device; 0: of any")                          \
    X(flip, 0, "a bit of that byte, from 1, of the next packet that has so many is flipped")   \
    X(flip_of, 0, "and that has so many bytes in all; 0: any")                                 \
    X(astray, 0, "the next packet of astray_of bytes goes to an address so much higher")       \
    X(astray_of, 0, "see astray")                                                              \
    X(ece, 0, "enhanced features of cards that this process has, a bit each")                  \
    X(mtu, 0, "the code of the port's MTU; 0: 5, 4096 bytes")                                  \
    X(mtu_of, 0, "of the so-manieth device; 0: of all")                                        \
    X(infiniband_of, 0, "the so-manieth device is an InfiniBand one")                          \
    X(apart, 0, "each device is in a network of its own")                                      \
    X(invalid, 0, "so many of the next packets that come are answered as invalid requests")    \
    X(not_ready, 0, "so many of the next immediates meet no receive work request")             \
    X(no_class, 0, "a traffic class can't be set")                                             \
    X(no_dmabuf, 0, "memory of a dma-buf can't be registered")                                 \
    X(dmabuf_fails, 0, "it can, but a card that is asked for it has no room")                  \
    X(adaptive_us, 0, "unanswered packets are sent again so soon, whatever the ACK timeout")

typedef struct orders {
#define FAKE_ORDER(name, initial, text) uint64_t name;
    FAKE_ORDERS(FAKE_ORDER)
#undef FAKE_ORDER
} orders_t;

/* What happened in this process, for tests to ask; and what a queue pair was made ready with. */
#define FAKE_EVENTS(X) \
    X(lost)            \
    X(resent)          \
    X(rnr) X(refused) X(overruns) X(packets) X(second) X(delayed) X(adaptive) X(regions) X(ran_ns)
#define FAKE_CHOICES(X) X(labels) X(gid) X(path_mtu) X(ece_taken) X(ack_timeout) X(traffic_class)
#define FAKE_COUNTS(X) FAKE_EVENTS(X) FAKE_CHOICES(X)

typedef struct counts {
#define FAKE_COUNT(name) uint64_t name;
    FAKE_COUNTS(FAKE_COUNT)
#undef FAKE_COUNT
} counts_t;

FAKE_EXPORT bool verbs_order(const char *text); /* "name=number name=number" */
FAKE_EXPORT uint64_t verbs_count(const char *name);
/* What this process sends from now on is also written to that file; "": to none. */
FAKE_EXPORT void verbs_tap(const char *path);
/* A clock that stands still where one of two processes does not run: `ran_ns` counts from now on while both
 * go on, this one at *own and the other one at *peer, in memory that they share. */
FAKE_EXPORT void verbs_beat(_Atomic uint64_t *own, _Atomic uint64_t *peer);

typedef struct fake_id fake_id_t;
typedef struct fake_qp fake_qp_t;

typedef struct fake_events { /* rows and a descriptor that is readable while there are any */
    int fd;
    void **rows;
    uint32_t count, room;
} fake_events_t;

typedef struct fake_channel {
    verbs_channel_t open;
    fake_events_t events; /* verbs_cq_t * */
} fake_channel_t;

typedef struct fake_cq {
    verbs_cq_t open;
    verbs_wc_t *rows;
    uint32_t count, room;
    bool notify;
} fake_cq_t;

typedef struct fake_wqe {
    verbs_send_wr_t wr;
    verbs_sge_t piece;
    char *copy; /* of inline data */
    uint64_t first, packets;
} fake_wqe_t;

typedef struct frame { /* what goes over a link, before its payload */
    uint32_t kind, bytes;
    uint64_t number; /* of the packet; of an answer: the next that is expected */
    uint64_t address;
    uint32_t rkey, immediate;
    uint32_t flags, status;
} frame_t;

struct fake_qp {
    verbs_qp_t open;
    fake_id_t *id;     /* NULL: not connected yet, or not any more */
    fake_qp_t *behind; /* in engine.qps */
    uint32_t serial;   /* in this process, from 1 */
    bool connected, failed;
    int state;
    verbs_ece_t ece;   /* taken, else what it has */
    fake_wqe_t *sends; /* a ring */
    uint32_t send_room, send_first, send_count;
    uint64_t *receives; /* a ring of ids */
    uint32_t receive_room, receive_first, receive_count;
    uint64_t acknowledged, next,
        end;                    /* packets: oldest not acknowledged, next to send, past the last */
    uint64_t expected, arrived; /* next packet to come; bytes of the message that it belongs to */
    bool complained;            /* of a gap, once */
    frame_t ahead[FAKE_WINDOW]; /* with `selective`: packets that came behind a lost one */
    uint32_t kept;              /* how many these are */
    uint32_t retries, early;    /* early: sent again by the adaptive timer, in a row */
    uint64_t since_ns, early_ns, wait_until_ns;
};

enum {
    FRAME_REQUEST = 1,
    FRAME_REPLY,
    FRAME_READY,
    FRAME_REJECT,
    FRAME_END,
    FRAME_PACKET,
    FRAME_ANSWER
};
enum { FLAG_LAST = 1, FLAG_IMMEDIATE = 2 };
enum { ANSWER_OK = 0, ANSWER_GAP, ANSWER_NOT_READY, ANSWER_ACCESS, ANSWER_INVALID };

typedef struct late_frame {
    struct late_frame *next;
    uint64_t due_ns;
    frame_t head;
    char payload[];
} late_frame_t;

typedef enum id_state {
    ID_NEW,
    ID_LISTENING,
    ID_DIALING,
    ID_REPLIED, /* the end that dials has the answer */
    ID_ASKED,
    ID_ANSWERED,
    ID_OPEN,
    ID_OVER
} id_state_t;

struct fake_id {
    cm_id_t open;
    fake_id_t *next;
    id_state_t state;
    int fd;              /* of the listener or the link; -1 */
    fake_id_t *listener; /* that it came to; it may have gone */
    uint8_t timeout, tos;
    verbs_ece_t ece, peer_ece; /* to be told, and told */
    fake_qp_t *qp;
    char *out; /* FAKE_OUT_BYTES and a frame more */
    size_t out_first, out_end;
    char *in;
    size_t in_count;
    bool own;   /* somebody has made or accepted it, and has to destroy it */
    bool told;  /* a listener has heard of it                              */
    bool lost;  /* it has asked and gone before: nobody has it, so nobody destroys it */
    bool full;  /* the socket takes no more, and tells when it does */
    bool ended; /* the other end has closed; what is late comes first */
    late_frame_t *late, **late_end;
};

typedef struct fake_cm_event {
    cm_event_t open;
    char data[256];
} fake_cm_event_t;

typedef struct fake_cm_channel {
    cm_channel_t open;
    fake_events_t events; /* fake_cm_event_t * */
} fake_cm_channel_t;

typedef struct engine {
    pthread_mutex_t lock;
    pthread_t thread;
    uint32_t users; /* event channels */
    bool stop, sleeps;
    int epoll, wake;
    _Atomic uint64_t polled_ns; /* somebody drives it */
    orders_t orders;
    counts_t counts;
    uint64_t random;
    uint32_t pairs_made;
    uint32_t empty_polls;           /* in a row */
    uint32_t turn;                  /* of queue pairs that send over one line */
    uint64_t line_ns[FAKE_DEVICES]; /* when a device's line, if it has a rate, is free */
    uint64_t packets_at, immediates_at, answers_at; /* counted for the losses that are ordered */
    _Atomic uint64_t *beat, *peer_beat;             /* of verbs_beat; NULL: nobody asks */
    uint64_t peer_seen, beat_ns;
    char tap[128];
    const char *orders_path; /* FAKE_VERBS_ORDERS; NULL: nobody orders from outside */
    long orders_at;          /* behind what was read */
    uint64_t orders_ns;
    fake_id_t *ids;
    fake_qp_t *qps;
    uint32_t labels[FAKE_LABELS]; /* flow labels of queue pairs, those that differ */
    verbs_mr_t *mrs[FAKE_MRS];
    int access[FAKE_MRS];
    char *behind[FAKE_MRS]; /* of a dma-buf: where this library reaches it; NULL: by its address */
    verbs_context_t contexts[FAKE_DEVICES];
} engine_t;

extern engine_t engine;
extern verbs_device_t fake_devices[FAKE_DEVICES]; /* verbs_calls.c */

/* verbs_engine.c */
void engine_lock(void);
void engine_unlock(void);
bool engine_start(void); /* one user more */
void engine_leave(void);
void engine_drive(void); /* the lock is held */
void engine_beat(void);
uint64_t engine_now(void);
uint64_t engine_random(void);
void engine_wake(void);
bool events_open(fake_events_t *e);
void events_close(fake_events_t *e);
void events_put(fake_events_t *e, void *row);
void *events_get(fake_events_t *e); /* waits where the descriptor blocks; NULL and errno */
void events_drop(fake_events_t *e, bool (*which)(const void *row, const void *what),
                 const void *what, void (*end)(void *row));

/* verbs_link.c */
bool link_open(fake_id_t *id, int fd);
void link_close(fake_id_t *id);
bool link_send(fake_id_t *id, const frame_t *head, const void *payload);
void link_flush(fake_id_t *id);
void link_read(fake_id_t *id);
void link_late(fake_id_t *id, uint64_t now);
bool link_is_dead(const fake_id_t *id); /* its device's port is down */

/* verbs_cm.c */
void cm_frame(fake_id_t *id, const frame_t *head, const char *payload);
void cm_gone(fake_id_t *id); /* the other end's process has ended */
void cm_arrivals(fake_id_t *listener);
void cm_removed(const verbs_context_t *device);

/* verbs_pair.c */
void pair_frame(fake_qp_t *q, const frame_t *head, const char *payload);
void pair_send(fake_qp_t *q);
void pair_timers(fake_qp_t *q, uint64_t now);
void pair_fail(fake_qp_t *q, int status);
void pair_free(fake_qp_t *q);
/* By its number; NULL: there is none. */
fake_qp_t *pair_find(uint32_t number);
extern const verbs_ops_t fake_ops;

#endif
