/* control/control_state.h - a control plane from inside: what its thread and the callers share. For
 * control*.c alone, and for who opens one. */
#ifndef CONTROL_CONTROL_STATE_H
#define CONTROL_CONTROL_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include <control/control_conn.h>
#include <control/world.h>

/* What must be the same on all ranks; compared before step 0. */
typedef struct control_fact {
    const char *name;  /* "binary", "plugin shm 1.2.0 abi 1", "[train] batch" */
    const char *value; /* a hash or a text; up to 128 bytes are compared      */
} control_fact_t;

typedef struct control_how {
    uint32_t rank, size;
    const world_t *plan;   /* places that the INI gives the ranks, to name those who have not come;
                              NULL: not known. Until control_open returns  */
    const char *host;      /* this rank's host name, for the world          */
    const char *site;      /* name of its site; "" where the INI lists none */
    const char *address;   /* rank 0: to bind to; others: to dial. A name or number */
    uint16_t port;         /* rank 0: 0 chooses one. Others: of rank 0      */
    int listener;          /* rank 0: a socket that listens already (inherited from the launcher),
                              or -1                                          */
    int port_fd;           /* rank 0: the port is written here as text once it is known; -1: no */
    uint64_t join_ns;      /* how long to wait for all ranks                 */
    uint64_t patience_ns;  /* others: how long rank 0 may take to be there, if longer */
    uint64_t outage_ns;    /* how long a link between sites may be cut; 0: 3 s */
    progress_word_t *word; /* where progress is kept for a launcher to read; NULL: here */
    const secret_t *secret;
    const control_fact_t *facts;
    uint32_t fact_count;
} control_how_t;

#define CONTROL_MS UINT64_C(1000000) /* ns */

enum {
    CONTROL_BEAT_MS = 250,
    CONTROL_SILENCE_MS = 3000,
    CONTROL_TICK_MS = 50,
    CONTROL_HEARSAY_MS = 300,  /* what one rank says of another waits for its own word */
    CONTROL_GOODBYE_MS = 1000, /* for the last frames to go out                         */
    CONTROL_PENDING = 64,      /* connections whose key is not proven yet               */
    CONTROL_PROVE_MS = 2000,
    /* Who is older makes room when all places are taken: */
    CONTROL_EVICT_MS = 1000,      /* one that has greeted        */
    CONTROL_EVICT_SILENT_MS = 20, /* one that has said nothing yet */
};

/* What callers ask of the thread; under the lock. */
typedef struct control_request {
    bool gather, fail, close;
    uint32_t round;
    char where[FRAME_FACT_TEXT];
    const void *mine; /* of the caller, who waits */
    size_t bytes;
    void *all; /* likewise; filled when gathered is set */
    bool gathered;
    uint32_t peer; /* fail */
    lh_status_t status;
    char reason[FRAME_REASON]; /* of fail or close */
} control_request_t;

typedef struct control control_t;
typedef struct control_server control_server_t;
typedef struct control_client control_client_t;

struct control {
    control_how_t how;
    char host[WORLD_HOST_NAME], site[WORLD_SITE_NAME];
    char address[256];
    text_t hello; /* payload of this rank's own */
    uint64_t incarnation;
    world_t *unplanned; /* where the caller knows no places */
    control_tls_t *tls;
    progress_word_t own_word, *word;
    pthread_t thread;
    int wake_fd, fail_fd; /* eventfds: callers wake the thread; failure is readable */
    control_server_t *server;
    control_client_t *client;

    pthread_mutex_t gather_lock; /* one gather at a time */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    control_request_t request;
    bool open_done, closed; /* the thread has met all or given up; has ended */
    lh_status_t open_status;
    char open_reason[FRAME_REASON];
    world_t *world; /* made by the thread; control_open hands a copy out */

    _Atomic int32_t status; /* what follows is written before it, once */
    char failure[FRAME_REASON];
    _Atomic uint64_t strangers, handshakes, bytes_sent, bytes_received;
};

#endif
