/* control/control_server_state.h - rank 0's end of the star from inside: for control_server.c, which
 * answers what comes, and control_server_turn.c, which judges what does not. */
#ifndef CONTROL_CONTROL_SERVER_STATE_H
#define CONTROL_CONTROL_SERVER_STATE_H

#include <control/control_facts.h>
#include <control/control_socket.h>
#include <control/control_state.h>

typedef struct peer {
    struct peer *next; /* of all connections */
    control_conn_t *conn;
    uint32_t rank;     /* CONN_NO_RANK: its hello has not come */
    uint32_t events;   /* asked of epoll */
    uint64_t since_ns; /* when it connected */
    uint64_t heard_ns;
    bool dead; /* freed after the events at hand */
} peer_t;

typedef struct seat { /* of a rank */
    peer_t *peer;     /* NULL: not joined, or gone */
    char *hello;      /* payload; facts point into it */
    progress_t progress;
    bool far;      /* in another site than this rank */
    bool departed; /* has said goodbye well */
    bool gathered; /* its part of the gather at hand is here */
} seat_t;

struct control_server {
    int listener, epoll;
    uint32_t size;
    peer_t *peers;
    uint32_t pending;
    seat_t *seats;                 /* [size]; seat 0 is this rank's own */
    rank_facts_t *facts;           /* [size]; hellos that are here      */
    uint32_t joined;               /* with this one */
    char address[CONTROL_ADDRESS]; /* at which the others reach this machine */
    bool reached_inside;           /* all so far are of this machine         */
    uint64_t join_deadline, next_beat, last_turn;
    bool welcomed, refused, closing;
    uint64_t close_deadline;

    char *parts; /* [size x part_bytes] of the gather at hand */
    size_t part_bytes;
    uint32_t arrived, round;
    char where[FRAME_FACT_TEXT];

    uint64_t hearsay_deadline; /* 0: none */
    uint32_t hearsay_peer, hearsay_from;
    lh_status_t hearsay_status;
    char hearsay[FRAME_REASON];
};

/* Queues a frame for a peer; NULL does nothing. */
void server_put(control_server_t *s, peer_t *p, uint32_t type, const text_t *payload);
/* The same to all that have joined. */
void server_notice(control_t *c, uint32_t type, lh_status_t status, uint32_t rank,
                   const char *reason);
void server_name(const control_t *c, uint32_t rank, char out[CONTROL_NAME]);
/* Before the welcome nobody may start; after it the job ends. */
void server_end(control_t *c, lh_status_t status, uint32_t rank, const char *sentence);
/* The same with a sentence that names the rank, what it did, and whether it failed by itself. */
void server_tell(control_t *c, uint32_t rank, lh_status_t status, bool by_itself,
                 const char *reason);
/* A connection is gone: a stranger's is counted, a rank's that said no goodbye ends the job. */
void server_lose(control_t *c, peer_t *p, const char *reason);
/* What one rank says of another: kept for a while, as that one's own word is nearer to the cause.
 */
void server_hear(control_t *c, uint32_t from, uint32_t peer, lh_status_t status,
                 const char *reason);
/* A rank's part of the gather at hand. */
void server_part(control_t *c, uint32_t rank, uint32_t round, const char *where, const void *bytes,
                 size_t length);

/* What callers of this rank ask; what is due by the clock; whether all is said. */
void server_requests(control_t *c);
void server_turn(control_t *c);
bool server_has_ended(control_t *c, uint64_t now);

#endif
