/* control/control_state.h - a control plane from inside: what its thread and the callers share, and
 * the two ends of the star. For control*.c alone. */
#ifndef CONTROL_CONTROL_STATE_H
#define CONTROL_CONTROL_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include <control/control.h>
#include <control/control_frame.h>

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

typedef struct control_server control_server_t;
typedef struct control_client control_client_t;

struct control {
    control_how_t how;
    char host[WORLD_HOST_NAME], site[WORLD_SITE_NAME];
    char address[256];
    text_t hello; /* payload of this rank's own */
    uint64_t incarnation;
    world_t *unplanned;   /* where the caller knows no places */
    control_wait_t joins; /* lines about who has not come     */
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

/* For the thread. */
/* How long a rank may be silent that is in another site than rank 0, or that may be. */
uint64_t control_outage_ns(const control_t *c);
void control_opened(control_t *c, lh_status_t status, const char *reason);
void control_decide(control_t *c, lh_status_t status, const char *sentence);
void control_answer(control_t *c, const void *all, size_t bytes); /* the gather is done */
void control_drain_wake(const control_t *c);
void control_count(control_t *c, control_conn_t *conn);
/* The world of all ranks' places, as a rank sees it. */
lh_status_t control_make_world(uint32_t rank, const frame_place_t *places,
                               const frame_welcome_t *welcome, world_t **out) LH_MUST_CHECK;
/* "rank 3 on osaka/o1" before there is a world. */
enum { CONTROL_NAME = 160 };
void control_name(uint32_t rank, const char *site, const char *host, char out[CONTROL_NAME]);

#endif
