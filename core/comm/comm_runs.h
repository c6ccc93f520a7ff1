/* comm/comm_runs.h - plans with their runs, and what carries runs out: for whoever waits, and for
 * the thread that drives them meanwhile.
 *
 * One lock, comm_t.lock, guards all that runs change, and whoever holds it is the one that calls
 * the links. "Locked" at a function says that its caller holds it: it is between runs_enter and
 * runs_leave. It is the only lock of comm, and callbacks of gates run under it.
 *
 * The header is for the files of comm/ only; what others see of it is collective.h and comm.h. */
#ifndef COMM_COMM_RUNS_H
#define COMM_COMM_RUNS_H

#include <pthread.h>
#include <stdatomic.h>

#include <comm/native.h>
#include <comm/script.h>

typedef struct comm comm_t; /* comm.h */

/* COMM_SLOTS: how many plans that stage may be under way at a time, where nothing is known of links
 * between sites, and where more is, at most COMM_MOST_SLOTS. COMM_SCOPES and COMM_SERVICES
 * are one more than the highest LH_LINK_* and LH_SERVICE_*, as indices begin at 1. */
enum {
    COMM_SLOTS = 4,
    COMM_MOST_SLOTS = 64,
    COMM_SCOPES = 4,
    COMM_SERVICES = 6,
    COMM_SENTENCE = 512
};

/* A track joins its lane's queue when a run of its plan begins, one of receives when the run is
 * expected, and leaves it when its last message has been posted (not when that has arrived). */
typedef struct track { /* a plan's messages on one lane */
    struct lane *lane;
    collective_t *plan;
    const script_lane_t *messages;
    uint32_t posted;
    struct track *behind; /* in the lane's queue */
} track_t;

/* Messages are matched by order at both ends, so what was started first is posted first, and waits
 * for its turn even where a later run could go on. */
typedef struct lane { /* one direction of a link: messages are posted in the order of runs */
    link_t *link;
    bool sending;
    track_t *head, *tail;
} lane_t;

/* Staging memory that some plans take in turn: a run waits until the run before it in its slot is
 * done. */
typedef struct staging_slot {
    char *memory;
    uint64_t bytes;
    collective_t *last; /* who took it last */
} staging_slot_t;

/* State of a plan's run. It is idle from the last step on; only then may it start again. */
enum { PLAN_IDLE, PLAN_RUNNING };

#define PLAN_NOWHERE UINT32_MAX

/* Where a member's buffers lie, in bytes from the start of their arenas. Ranks tell each other, for
 * mapped peers to be read in place. */
typedef struct plan_place {
    uint64_t whole, cut;
    uint32_t whole_arena, cut_arena; /* PLAN_NOWHERE: it has none */
} plan_place_t;

/* The parts above `state` are set before the first run and then only read; `times` and what is
 * below change under the lock. `state` alone is read without it, to see that a run is done. */
struct collective {
    comm_t *comm;
    coll_how_t how; /* pieces normalized, see script.h */
    coll_segment_t *segments;
    coll_piece_t *pieces;
    char *name;
    char *doing;     /* "all-reduce of gradients 3" */
    uint32_t index;  /* among this rank's plans */
    uint64_t key;    /* of its group: ranks match the n-th plans of a key */
    uint32_t number; /* n, from 0: unlike the index the same on all ranks of the group */
    uint32_t algorithm;
    const script_t *script; /* comm_t.scripts; NULL before comm_connect */
    script_places_t bound;  /* where its buffers lie */
    plan_place_t *places;   /* [group->size] */
    script_peer_t *peers;   /* [group->size] */
    track_t *tracks;
    staging_slot_t *slot;
    sum_source_t *scratch;
    uint64_t sent[COMM_SCOPES];
    double trips;      /* between sites, one after the other */
    uint64_t *sent_to; /* [sites] of the world; NULL: not counted, or nothing leaves its site */
    collective_times_t times;

    /* Of the run. */
    atomic_uint state; /* PLAN_* */
    uint32_t *left;    /* [steps] unmet needs; SCRIPT_NONE: done */
    uint32_t *ready;   /* computes that can be done: a heap, first step first */
    uint32_t ready_count;
    uint32_t remaining, gates; /* steps; runs that must end before this one begins */
    uint64_t started_ns, finished_ns;
    collective_gate_t gate; /* of a run that begins behind one */
    uint64_t reached_ns;    /* since when a device stands at its wait for the run; 0: it does not */
    bool closed;            /* that gate is not past yet: one of `gates` */
    bool slot_awaited;      /* the run before it in its slot is not done: one of `gates` */
    bool expected;          /* its receives are in their lanes, and it has not been started */
    bool writes_ahead;      /* expected, and what it receives may be written at once */
    collective_t *next_expected;
    collective_t *after_slot; /* begins when this one is done */
    collective_t *followers, *next_follower;
    collective_t *earlier, *later; /* runs in the order of their start */
};

/* Memory that plans lie in, as comm_arena was told of it; owned by the caller. */
typedef struct comm_arena {
    char *base;
    uint64_t bytes;
    bool file; /* others may map it */
} comm_arena_t;

/* What lies above the lock is set while ranks open and connect, by one thread, and then only read
 * (but for the lanes' queues, the slots' last plans and the step, which belong to the lock). */
struct comm {
    const job_t *job; /* [comm], [transport.*] */
    registry_t *registry;
    const world_t *world;
    control_t *control; /* NULL: none */
    bool threaded;      /* a progress thread is wanted */
    bool planned;       /* no links: plans are only counted */
    links_t *links;
    native_t *native;          /* NULL: none */
    const probe_pair_t *known; /* [known_count] until the ranks are connected */
    uint32_t known_count;
    bool probed;            /* comm_probe was called */
    bool found;             /* from here on links are as they were found, and not as expected */
    probe_pair_t *expected; /* of the pairs of sites, by names (comm_expect.h); count 0: none */
    uint32_t expected_count;
    group_t *groups[LH_GROUPS];
    comm_arena_t *arenas;
    uint32_t arena_count;
    size_t arena_capacity;
    collective_t **plans;
    uint32_t plan_count;
    size_t plan_capacity;
    script_set_t scripts;
    lane_t *lanes;
    uint32_t lane_count;
    staging_slot_t slots[COMM_MOST_SLOTS]; /* [slot_count] */
    uint32_t slot_count;
    char *staging;
    uint64_t staging_bytes;
    bool connected;
    uint64_t step;           /* of training, for sentences */
    const link_told_t *told; /* comm_told's */
    bool is_told_anew;       /* since the last comm_step */
    uint64_t spin_ns;        /* a wait spins for this long before it sleeps */
    bool crowded;            /* more ranks here than processors: who spins must yield */

    /* Under lock; links are called by who holds it. */
    pthread_mutex_t lock;
    pthread_cond_t begun;
    collective_t *oldest, *newest;                /* runs */
    collective_t *first_expected, *last_expected; /* in the order in which they will be started */
    uint32_t waiters;
    uint32_t closed;  /* runs whose gate is */
    uint32_t watched; /* runs for which a device will wait, and does not yet */
    bool stop;
    lh_status_t status; /* LH_OK, or why all ended */
    char sentence[COMM_SENTENCE];
    uint64_t exposed_ns[COMM_SCOPES];
    uint64_t *begun_to; /* [sites] bytes that runs which have begun send there */

    atomic_uint wanted; /* threads that want the lock */
    atomic_bool asleep; /* who holds it sleeps on wake_fd */
    int wake_fd;
    pthread_t thread;
    bool has_thread;
};

/* The lock, for any thread. A thread that sleeps while it holds the lock is woken by who wants
 * it. */
void runs_enter(comm_t *c);
void runs_leave(comm_t *c);

/* collective_start and its like. gate: NULL, none. */
lh_status_t runs_start(collective_t *x, const collective_gate_t *gate) LH_MUST_CHECK;
/* collective_expect. */
bool runs_expect(collective_t *x, bool writes_ahead);
/* collective_test and collective_wait, for any thread, not locked. */
lh_status_t runs_test(collective_t *x);
lh_status_t runs_wait(collective_t *x) LH_MUST_CHECK;

/* Locked: tells the gates of all runs that no run will end any more, each once. */
void runs_release(comm_t *c);
/* Of the thread; `comm` is a comm_t. */
void *runs_thread(void *comm);

#endif
