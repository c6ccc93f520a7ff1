/* control/control_state.h - a control plane from inside: what its thread and the callers share. For
 * control*.c alone, and for who opens one; control_t is opaque to everybody else, so that tests may
 * put a plane of their own in its place. */
#ifndef CONTROL_CONTROL_STATE_H
#define CONTROL_CONTROL_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include <config/members.h>
#include <control/control_conn.h>
#include <control/world.h>

/* What must be the same on all ranks; compared before step 0. */
typedef struct control_fact {
    const char *name;  /* "binary", "plugin shm 1.2.0 abi 1", "[train] batch" */
    const char *value; /* a hash or a text; up to 128 bytes are compared      */
} control_fact_t;

/* Whom the end of a job was about, for whoever decides whether its ranks start again. Zero: nobody
 * yet. */
typedef struct control_culprit {
    uint32_t rank;
    lh_status_t status;
    uint64_t step; /* in which it was */
    bool told;     /* by rank 0, which lives and prints it; false: this process found it itself */
} control_culprit_t;

/* What the ranks of a machine are told that end as all are to meet as others: the epoch is written
 * last. Read after the process has ended, whatever became of it. */
typedef struct control_told {
    _Atomic uint32_t epoch; /* in which they meet next; 0: nothing was told */
    bool over;              /* they never will: the job has come to its end */
    char layout[MEMBERS_TEXT];
    char reason[256];
    _Atomic uint32_t unreached; /* rank 0 was not, in all the time that ranks wait for it */
    _Atomic uint32_t lacked;    /* of rank 0: ranks, in all the time that it waits for them */
    /* Of the witness: the last meeting that it has heard of, in which it was a machine like others. */
    _Atomic uint32_t met_epoch;
    char met[MEMBERS_TEXT];
} control_told_t;

/* What a launcher asks of a process that it has started: memory that both map, of which the launcher
 * writes `what` and the process `heeds`. */
typedef struct control_asked {
    _Atomic uint32_t what; /* CONTROL_ASKS_* */
    /* The process answers a SIGTERM itself, behind its step: CONTROL_ASKS_STOP is nothing to it any
     * more. */
    _Atomic uint32_t heeds;
} control_asked_t;

enum {
    CONTROL_ASKS_NOTHING,
    CONTROL_ASKS_STOP, /* the job is to stop: all machines are told */
    CONTROL_ASKS_END,  /* at once: this process is killed soon, and all are told before that */
    CONTROL_ASKS_PASS, /* of a door: rank 0 is about to listen */
};

/* Of a job whose machines may change (config/members.h). Texts outlive the plane. */
typedef struct control_members {
    const job_t *job;
    const char *layout;
    uint32_t machine; /* this process's */
    bool
        herald; /* it is no rank: it tells whoever leads that its machine is there, and hears when it
                    is to take part. control_open returns when it has, and never well */
    /* Rank 0's machine can't be reached: those of its ranks that can look for another one to lead
     * (control_members.c). As a herald this process tries machines before its own alone, and
     * control_open returns LH_UNREACHABLE where none of them takes it; as rank 0 of 1 it is the one to
     * whom the others come, and it never meets. */
    bool elects;
    /* It was started to go on with a run: where nobody remembers a meeting, that is no sign that there
     * was none. */
    bool resumes;
    /* Where this machine has met before, and was to meet after that: frame_hello_t. */
    uint32_t met_epoch;
    const char *met, *tried;
    control_told_t *told;
} control_members_t;

typedef struct control_how {
    uint32_t rank, size;
    const control_members_t *members; /* NULL: the same ranks meet always */
    uint32_t epoch; /* the least that this rank takes part in: one more than its launcher's
                              last; 0 and 1: any */
    /* This rank's launcher has met the others, has run since, and finds what it found then: so that is what
     * the job runs with. One that was started anew may find another program, other plugins or another INI. */
    bool stayed;
    const world_t
        *plan;        /* places that the INI gives the ranks, to name those who have not come, and
                              for the site of rank 0; NULL: not known. Until control_open returns  */
    const char *host; /* this rank's host name, for the world          */
    const char *site; /* name of its site; "" where the INI lists none */
    const char *address;   /* rank 0: to bind to; others: to dial. A name or number */
    uint16_t port;         /* rank 0: 0 chooses one. Others: of rank 0      */
    int listener;          /* rank 0: a socket that listens already (inherited from the launcher),
                              or -1                                          */
    int port_fd;           /* rank 0: the port is written here as text once it is known; -1: no */
    uint64_t join_ns;      /* how long to wait for all ranks                 */
    uint64_t patience_ns;  /* others: how long rank 0 may take to be there, if longer */
    uint64_t outage_ns;    /* how long a link between sites may be cut; 0: 3 s */
    progress_word_t *word; /* where progress is kept for a launcher to read; NULL: here */
    control_culprit_t *culprit; /* likewise, written before the job's end is seen; NULL: nowhere */
    control_asked_t *asked;     /* likewise, by the launcher; NULL: nothing is ever asked */
    const secret_t *secret;
    const control_fact_t *facts;
    uint32_t fact_count;
} control_how_t;

#define CONTROL_MS UINT64_C(1000000) /* ns */

enum {
    /* The heartbeat, and the silence after which a rank of the same site is lost: twelve beats, so
     * that a rank which the kernel did not run for a second is not taken for dead. */
    CONTROL_BEAT_MS = 250,
    CONTROL_STEP_MS = 20, /* a heartbeat that tells of a new step is so long after the one before */
    CONTROL_SILENCE_MS = 3000,
    /* How long the thread sleeps at most, and so how late a deadline is seen. */
    CONTROL_TICK_MS = 50,
    CONTROL_HEARSAY_MS = 300,  /* what one rank says of another waits for its own word */
    CONTROL_GOODBYE_MS = 1000, /* for the last frames to go out                         */
    /* Of a meeting that is asked to stop: so long after it began rank 0 tells those that have come, as
     * others may be on their way; and so long a rank that has not reached it tries to tell it. */
    CONTROL_STOP_MS = 1000,
    /* Strangers can connect as long as rank 0 listens. They may neither take all descriptors nor
     * stay: so many places, and so long to prove the key. */
    CONTROL_PENDING = 64,
    CONTROL_PROVE_MS = 2000,
    /* Who is older makes room when all places are taken: */
    CONTROL_EVICT_MS = 1000,      /* one that has greeted        */
    CONTROL_EVICT_SILENT_MS = 20, /* one that has said nothing yet */
};

/* A gather that a caller waits for, of one channel; under the lock. */
typedef struct control_gather {
    bool asked; /* until the caller has its answer, or goes without one */
    bool left;  /* for good: control_leave */
    /* How many gathers this rank has made: the same on all ranks at the same gather. */
    uint32_t round;
    /* The barrier's name; "" for a gather. It is compared between ranks, like the round and the
     * size. */
    char where[FRAME_FACT_TEXT];
    /* Memory of the caller, who may go with it once `asked` is false: read and written under the lock. */
    const void *mine;
    size_t bytes;
    void *all;     /* likewise; filled when gathered is set */
    bool collects; /* all is for rank 0 alone */
    bool gathered;
} control_gather_t;

/* What callers ask of the thread; under the lock. A caller sets a flag and its fields, the thread
 * copies the whole struct and acts on the copy. A gather stays asked for until the answer is there, fail
 * is taken away by the thread, close is for ever. */
typedef struct control_request {
    bool fail, close;
    bool failed;  /* this rank has told why it fails, or of a peer that does */
    bool take_in; /* machines that are back: control_take_in */
    bool goes_on; /* of close: control_goes_on */
    control_gather_t gathers[CONTROL_CHANNELS];
    /* Of fail: whom it is about. status and reason are of fail or of close. */
    uint32_t peer;
    lh_status_t status;
    char reason[FRAME_REASON]; /* of fail or close */
} control_request_t;

/* Who asks the other machines whether the job has gone on there (control_ask.h). */
typedef struct control_scout {
    pthread_t thread;
    bool runs;
    _Atomic bool stop;
    /* The least order (control_ask.h) of a machine that waits for ranks, too; and that there is news,
     * which is written before. */
    _Atomic uint32_t waits;
    _Atomic bool told;
    uint32_t epoch;
    char layout[MEMBERS_TEXT], reason[256];
} control_scout_t;

typedef struct control control_t;
typedef struct control_server control_server_t;
typedef struct control_client control_client_t;

struct control {
    control_how_t how;
    /* Copies of what the caller said, as the caller's may be gone by now. */
    char host[WORLD_HOST_NAME], site[WORLD_SITE_NAME];
    char address[256];
    /* The payload of this rank's hello, built once: a rank that dials again says the same. And the
     * one of its scout. */
    text_t hello, ask;
    control_scout_t scout;
    /* A world without names, so that how.plan is never NULL where the caller knows no places. */
    world_t *unplanned;
    control_tls_t *tls;
    progress_word_t own_word, *word;
    pthread_t thread;
    int wake_fd, fail_fd; /* eventfds: callers wake the thread; failure is readable */
    /* Of control_progress: the last step of which the thread was woken, and when that was. */
    _Atomic uint64_t told_step, told_ns;
    /* Exactly one of the two: rank 0 has the server, every other rank the client. Only the thread
     * touches them once it runs. */
    control_server_t *server;
    control_client_t *client;

    /* By channel. Taken before `lock`; held while a caller waits for its gather. */
    pthread_mutex_t gather_locks[CONTROL_CHANNELS];
    pthread_mutex_t lock;
    /* Told at every change that a caller may wait for: opened, gathered, decided, closed. */
    pthread_cond_t changed;
    control_request_t request;
    bool open_done, closed; /* the thread has met all or given up; has ended */
    lh_status_t open_status;
    char open_reason[FRAME_REASON];
    world_t *world; /* made by the thread; control_open gives it to its caller */

    /* LH_OK while all live; set once by the thread, read by anybody. What follows is written before
     * it. */
    _Atomic int32_t status;
    char failure[FRAME_REASON];
    /* For control_counts: connections that proved no key, those that did, and bytes with TLS. */
    _Atomic uint64_t strangers, handshakes, bytes_sent, bytes_received;
};

/* ---- for the threads ------------------------------------------------------------------------- */

/* How long a rank may be silent that is in another site than rank 0, or that may be. */
uint64_t control_outage_ns(const control_t *c);
void control_opened(control_t *c, lh_status_t status, const char *reason);
void control_decide(control_t *c, lh_status_t status, const char *sentence);
/* Before either of them, where the job ends: only the first counts. */
void control_blame(control_t *c, const control_culprit_t *whom);
/* The gather of a channel is done. */
void control_answer(control_t *c, uint32_t channel, const void *all, size_t bytes);
/* A copy of this rank's part of the gather that a channel's caller waits for, and which one that is: `out`
 * has the channel, the round, and texts and bytes that lie in `keep`, which the caller frees. False: nobody
 * waits, or not for that any more, or there is no memory for it, which is told as this rank's failure. */
bool control_part(control_t *c, uint32_t channel, frame_gather_t *out, text_t *keep);
/* Callers: the thread is to look for requests. The thread: what woke it is taken away. */
void control_wake(const control_t *c);
void control_drain_wake(const control_t *c);
void control_count(control_t *c, control_conn_t *conn);
/* The world of all ranks' places, as a rank sees it. */
lh_status_t control_make_world(uint32_t rank, const frame_place_t *places,
                               const frame_welcome_t *welcome, world_t **out) LH_MUST_CHECK;
/* "rank 3 on osaka/o1" before there is a world. */
enum { CONTROL_NAME = 160 };
void control_name(uint32_t rank, const char *site, const char *host, char out[CONTROL_NAME]);

/* "osaka/o1 was asked to stop while no step was under way" */
enum { CONTROL_STOP_TEXT = CONTROL_NAME + 64 };

/* ---- rank 0: connections, and the seats of ranks --------------------------------------------- */

/* A connection, from accept to its end. */
typedef struct peer {
    struct peer *next; /* of all connections */
    control_conn_t *conn;
    uint32_t rank;     /* CONN_NO_RANK: its hello has not come */
    uint32_t events;   /* asked of epoll */
    uint64_t since_ns; /* when it connected */
    uint64_t heard_ns;
    bool dead; /* freed after the events at hand */
    /* Of a herald, which has no seat: its machine, and a copy of its hello; else NULL. */
    uint32_t machine;
    char *herald;
    frame_hello_t hello;
} peer_t;

/* The place of a rank in the job. It outlives the rank's connection: sentences need its name, its
 * process and what it did last. */
typedef struct seat {
    peer_t *peer; /* NULL: not joined, or gone */
    char *hello;  /* payload; facts point into it */
    progress_t progress;
    /* What control_member shows of progress, which other threads call: seat 0's is the rank's own
     * word. */
    progress_word_t shown;
    _Atomic uint64_t heard_ns;       /* when its last heartbeat came; 0: none has */
    bool far;                        /* in another site than this rank */
    bool departed;                   /* has said goodbye well */
    bool gathered[CONTROL_CHANNELS]; /* its part of the gather at hand is here */
} seat_t;

/* The gather at hand of a channel: what has arrived of it, and which one it is, as its first rank said. */
typedef struct gathering {
    char *parts;
    size_t part_bytes;
    bool collects; /* as this rank asks, without whose part none is whole: they go to nobody else */
    uint32_t arrived, round;
    char where[FRAME_FACT_TEXT];
} gathering_t;

/* Rank 0's own state; only the thread touches it once it runs. */
struct control_server {
    int listener, epoll;
    uint32_t size;
    peer_t *peers;
    /* Connections that have no seat yet. */
    uint32_t pending;
    uint64_t rests_until;          /* the port is not looked at until then; 0: it is */
    seat_t *seats;                 /* [size]; seat 0 is this rank's own */
    rank_facts_t *facts;           /* [size]; hellos that are here      */
    uint32_t joined;               /* with this one */
    uint64_t seated_ns;            /* when the last of them came; at first this one */
    uint32_t epoch;                /* the highest that any of them expects */
    char address[CONTROL_ADDRESS]; /* at which the others reach this machine */
    bool reached_inside;           /* all so far are of this machine         */
    control_wait_t joins;          /* when it says again who has not come */
    uint64_t join_deadline, next_beat, last_turn;
    uint64_t beat_step;    /* told_step at the last heartbeat */
    bool outvoted;         /* it was said that those who are here may not go on by themselves */
    control_wait_t stands; /* since when they wait for others; when that is said again */
    /* welcomed: all are there, the job runs. refused: it never will. closing: this rank's caller
     * has asked to close, or all were refused; the thread ends when all is said. */
    bool welcomed, refused, closing;
    bool goes_on; /* of closing: control_goes_on */
    uint64_t close_deadline;

    uint64_t began_ns;
    /* What some machine was asked, of which rank, and the sentence for all; LH_OK: none was. Those on
     * their way are waited for (control_stop.c). */
    lh_status_t stop_status;
    uint32_t stop_rank;
    char stop[CONTROL_STOP_TEXT];

    gathering_t gatherings[CONTROL_CHANNELS];

    /* What one rank says of another, until that one's own word or its death comes: those are nearer
     * to the cause. Only the first is kept. */
    uint64_t hearsay_deadline; /* 0: nothing was said */
    uint32_t hearsay_peer, hearsay_from;
    lh_status_t hearsay_status;
    char hearsay[FRAME_REASON];
};

/* What epoll is to tell of a connection, and that nothing more is done with it; control_sweep frees
 * those at the end of a turn. */
void control_watch(control_server_t *s, peer_t *p);
void control_drop(control_server_t *s, peer_t *p);
void control_sweep(control_t *c);
/* Queues a frame for a peer; NULL and a dead one do nothing. All: those that have joined. */
void control_put(control_server_t *s, peer_t *p, uint32_t type, const text_t *payload);
void control_put_all(control_t *c, uint32_t type, const text_t *payload);
void control_notice(control_t *c, uint32_t type, lh_status_t status, uint32_t rank,
                    const char *reason);
/* Before the welcome nobody may start; after it the job ends. */
void control_end(control_t *c, lh_status_t status, uint32_t rank, const char *sentence);
/* As control_end, with a sentence that names the rank, what it did, and whether it failed by
 * itself. */
void control_tell(control_t *c, uint32_t rank, lh_status_t status, bool by_itself,
                  const char *reason);
/* A connection is gone: a stranger's is counted, a rank's that said no goodbye ends the job. */
void control_lose(control_t *c, peer_t *p, const char *reason);
/* As control_name, of a rank whose hello may be here. */
void control_rank_name(const control_t *c, uint32_t rank, char out[CONTROL_NAME]);

#endif
