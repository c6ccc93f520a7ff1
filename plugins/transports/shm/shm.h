/* shm.h - the objects of this transport: connections between two processes of one machine over a
 * pair of rings in a sealed memfd, with a socket beside them for descriptors, wake-ups and deaths.
 *
 * Nothing has a name in the file system or outlives its processes: the socket's name is abstract,
 * memory is memfd only.
 *
 * Three ways for bytes, by size and by who can reach them: EAGER, through the ring (two copies, no
 * set-up); DIRECT, a record that says where in the sender's registered memory they lie, which the
 * receiver has mapped (one copy, by the receiver); and memory that is read in place without any
 * copy (longhaul/mapping.h). Waiting is spinning on the rings; only who has said that it sleeps is
 * woken by a byte over the socket. All calls are [serial], so nothing here is locked but what two
 * processes share, which is atomic. */
#ifndef SHM_H
#define SHM_H

#include <longhaul/draft/onesided.h>
#include <longhaul/plugin.h>

#include "shm_ring.h"

enum {
    SHM_DEPTH = 256, /* operations per direction and connection: what nic_info promises */
    SHM_WORD = 64,
    SHM_REGIONS = SHM_TAKEN_WORDS * SHM_WORD, /* that can be offered in a transport's life */
    SHM_STRANGERS = 64,                       /* sockets that have not said who they are   */
    SHM_TOKEN = 16,
    SHM_REASON = 256,
};

#define SHM_STRANGER_NS 2000000000ull
/* What one call moves at most, so that none takes longer than about a millisecond. */
#define SHM_BUDGET ((uint64_t)2 << 20)

/* The options of shm_plugin.c. */
typedef struct shm_config {
    uint64_t ring_bytes;
    uint64_t direct_bytes;
    bool checksum;
} shm_config_t;

typedef enum shm_kind { SHM_SEND, SHM_RECEIVE, SHM_PUT } shm_kind_t;

/* A posted send, receive or put, until its event has been told. */
typedef struct shm_operation {
    char *data;     /* of a send it is only read */
    uint64_t bytes; /* of a receive: its room, in the end the message's length */
    uint64_t done;  /* handed over, or arrived */
    uint64_t cookie;
    uint64_t copies; /* direct records, counted over the connection, that must be copied first */
    lh_region_t *region;
    lh_remote_t *remote; /* of a put */
    uint64_t offset;     /* of a put */
    uint32_t tag;
    shm_kind_t kind;
} shm_operation_t;

typedef struct shm_queue { /* in the order posted */
    shm_operation_t rows[SHM_DEPTH];
    uint32_t first, count;
    uint32_t written; /* of count, from first on: those that are wholly handed over */
} shm_queue_t;

typedef enum shm_state {
    SHM_MET,     /* accepted: the host has yet to admit it     */
    SHM_DIALING, /* not connected, or connected and not admitted */
    SHM_OPEN,
    SHM_BROKEN, /* draining */
    SHM_DRAINED,
} shm_state_t;

/* One end of a connection. States only go forward; a connection that broke keeps its memory mapped
 * until it is closed, as the host may still look at what lies in the peer's arena. */
struct lh_conn {
    lh_transport_t *transport;
    lh_conn_t *next;
    shm_state_t state;
    bool up_said, down_said;
    bool ended; /* the peer's socket or process has gone; what it wrote is still read */
    bool checksum;
    uint32_t side;     /* 0: the end that dialed; index of what is ours in shared */
    int socket, watch; /* watch: pidfd of the peer, or -1 */
    int memory;        /* SHM_MET: the descriptor of shared */
    uint64_t cookie, give_up_ns;
    uint32_t peer; /* rank */
    lh_hello_t hello;
    lh_address_t address; /* SHM_DIALING */

    shm_shared_t *shared;
    shm_ring_t out, in;
    shm_queue_t sends, receives;
    uint64_t direct_sent;  /* direct records written */
    uint64_t direct_taken; /* direct records copied  */
    bool published;        /* something that the peer may sleep for */
    lh_remote_t *mapped[SHM_REGIONS];

    lh_status_t why; /* SHM_BROKEN */
    char reason[SHM_REASON];
    _Atomic uint64_t bytes_sent, bytes_received; /* for stats, from any thread */
};

/* A socket that was accepted and has not shown the token; after SHM_STRANGER_NS it is closed. */
typedef struct shm_stranger {
    int socket; /* -1: none */
    uint64_t until_ns;
} shm_stranger_t;

/* The abstract socket of this rank; the token stands in its address, which the host carries to
 * ranks of the job alone. */
struct lh_listener {
    lh_transport_t *transport;
    lh_listener_t *next;
    int socket;
    uint8_t token[SHM_TOKEN];
    shm_stranger_t strangers[SHM_STRANGERS];
};

/* Registered memory. It is the host's; the descriptor behind it, too. */
struct lh_region {
    lh_arena_t arena;
    lh_region_t *next;
    uint32_t id; /* SHM_REGIONS: it can't be offered */
};

struct lh_remote { /* a peer's region; lives until it is forgotten and its connection is closed */
    lh_transport_t *transport;
    lh_remote_t *next;
    lh_conn_t *conn; /* NULL: closed */
    bool taken, forgotten;
    uint32_t id, access;
    int fd; /* until it is mapped */
    uint64_t bytes, fd_offset;
    char *map, *base; /* base: of the region, inside map */
    uint64_t map_bytes;
};

/* Lists are searched from end to end: a rank has some dozens of connections. */
struct lh_transport {
    const lh_host_t *host;
    shm_config_t config;
    shm_check_t check;
    int epoll;            /* of all sockets and pidfds; what the host sleeps on   */
    bool armed;           /* the host may be asleep: sockets are read at next poll */
    uint32_t polls;       /* counted, to look at sockets now and then             */
    uint32_t dialing;     /* connections that are                                 */
    uint32_t next_region; /* ids are not used again: a peer may have one mapped   */
    lh_conn_t *conns;
    lh_listener_t *listeners;
    lh_region_t *regions;
    lh_remote_t *remotes;
    uint8_t machine[16]; /* id of this boot: who has another can't be reached     */
};

typedef struct shm_sink { /* the caller's rows, which may be of another version's size */
    lh_wire_event_t *events;
    uint32_t event_size, max, count;
} shm_sink_t;

/* shm_connect.c */
lh_status_t shm_listen(lh_transport_t *t, uint32_t nic, uint32_t security, lh_address_t *address,
                       lh_listener_t **out);
lh_status_t shm_accept(lh_listener_t *l, lh_hello_t *hello, lh_conn_t **out);
lh_status_t shm_admit(lh_conn_t *c, const lh_conn_params_t *params);
void shm_close_listener(lh_listener_t *l);
lh_status_t shm_connect(lh_transport_t *t, const lh_address_t *address,
                        const lh_conn_params_t *params, lh_conn_t **out);
void shm_cancel(lh_conn_t *c);
void shm_close_conn(lh_conn_t *c);
void shm_dial(lh_conn_t *c); /* SHM_DIALING: tries, or finds that it is too late */
/* Ends a connection and keeps the reason; the peer is told. */
void shm_break(lh_conn_t *c, lh_status_t why, const char *fmt, ...) LH_PRINTF(3, 4);
lh_status_t shm_machine(const lh_host_t *host, uint8_t out[16]);

/* shm_socket.c */
void shm_conn_read(lh_conn_t *c); /* takes what has come over the socket */
void shm_wake(lh_conn_t *c);      /* if the peer sleeps and something was published */

/* shm_message.c */
lh_status_t shm_isend(lh_conn_t *c, lh_region_t *region, const void *data, uint64_t bytes,
                      uint32_t tag, uint64_t cookie);
lh_status_t shm_irecv(lh_conn_t *c, lh_region_t *region, void *data, uint64_t bytes, uint32_t tag,
                      uint64_t cookie);
lh_status_t shm_post_put(lh_conn_t *c, const shm_operation_t *operation);
void shm_step(lh_conn_t *c, shm_sink_t *s); /* moves what can be moved, tells what is done */
bool shm_ready(const lh_conn_t *c);         /* a step would move or tell something */

/* shm_map.c */
lh_status_t shm_register(lh_transport_t *t, uint32_t nic, const lh_arena_t *memory,
                         lh_region_t **out);
void shm_release(lh_transport_t *t, lh_region_t *r);
/* Takes over fd, also when it fails. */
lh_status_t shm_remote_new(lh_conn_t *c, uint32_t id, uint64_t bytes, uint64_t fd_offset,
                           uint32_t access, int fd);
void shm_remotes_close(lh_conn_t *c);
void shm_remote_free(lh_remote_t *m);
extern const lh_mapping_api_t shm_mapping;
extern const lh_one_sided_api_t shm_one_sided;

#endif
