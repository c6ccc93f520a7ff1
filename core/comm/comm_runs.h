/* comm/comm_runs.h - plans with their runs, and what carries runs out: for whoever waits, and for the
 * thread that drives them meanwhile. Who calls what is said at each: "locked" is between runs_enter
 * and runs_leave. */
#ifndef COMM_COMM_RUNS_H
#define COMM_COMM_RUNS_H

#include <pthread.h>
#include <stdatomic.h>

#include <comm/script.h>

typedef struct comm comm_t; /* comm.h */

enum { COMM_SLOTS = 4, COMM_SCOPES = 4, COMM_SERVICES = 6, COMM_SENTENCE = 512 };

typedef struct track { /* a plan's messages on one lane */
    struct lane *lane;
    collective_t *plan;
    const script_lane_t *messages;
    uint32_t posted;
    struct track *behind; /* in the lane's queue */
} track_t;

typedef struct lane { /* one direction of a link: messages are posted in the order of runs */
    link_t *link;
    bool sending;
    track_t *head, *tail;
} lane_t;

/* Staging memory that some plans take in turn. */
typedef struct staging_slot {
    char *memory;
    uint64_t bytes;
    collective_t *last; /* who took it last */
} staging_slot_t;

enum { PLAN_IDLE, PLAN_RUNNING };

#define PLAN_NOWHERE UINT32_MAX

typedef struct plan_place { /* of a member's buffers in its arenas */
    uint64_t whole, cut;
    uint32_t whole_arena, cut_arena; /* PLAN_NOWHERE: it has none */
} plan_place_t;

struct collective {
    comm_t *comm;
    coll_how_t how; /* pieces normalized, see script.h */
    coll_segment_t *segments;
    coll_piece_t *pieces;
    char *name;
    char *doing; /* "all-reduce of gradients 3" */
    uint32_t index;
    uint64_t key; /* of its group: ranks match the n-th plans of a key */
    uint32_t algorithm;
    const script_t *script; /* comm_t.scripts; NULL before comm_connect */
    script_places_t bound;  /* where its buffers lie */
    plan_place_t *places;   /* [group->size] */
    script_peer_t *peers;   /* [group->size] */
    track_t *tracks;
    staging_slot_t *slot;
    sum_source_t *scratch;
    uint64_t sent[COMM_SCOPES];
    collective_times_t times;

    /* Of the run. */
    atomic_uint state; /* PLAN_* */
    uint32_t *left;    /* [steps] unmet needs; SCRIPT_NONE: done */
    uint32_t *ready;   /* computes that can be done: a heap, first step first */
    uint32_t ready_count;
    uint32_t remaining, gates; /* steps; runs that must end before this one begins */
    uint64_t started_ns;
    collective_gate_t gate;   /* of a run that begins behind one */
    bool closed;              /* that gate is not past yet: one of `gates` */
    collective_t *after_slot; /* begins when this one is done */
    collective_t *followers, *next_follower;
    collective_t *earlier, *later; /* runs in the order of their start */
};

typedef struct comm_arena {
    char *base;
    uint64_t bytes;
    bool file; /* others may map it */
} comm_arena_t;

struct comm {
    const job_t *job; /* [comm], [transport.*] */
    registry_t *registry;
    const world_t *world;
    control_t *control; /* NULL: none */
    bool threaded;      /* a progress thread is wanted */
    bool planned;       /* no links: plans are only counted */
    links_t *links;
    const probe_pair_t *known; /* [known_count] until the ranks are connected */
    uint32_t known_count;
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
    staging_slot_t slots[COMM_SLOTS];
    char *staging;
    uint64_t staging_bytes;
    bool connected;
    uint64_t step;    /* of training, for sentences */
    uint64_t spin_ns; /* a wait spins for this long before it sleeps */
    bool crowded;     /* more ranks here than processors: who spins must yield */

    /* Under lock; links are called by who holds it. */
    pthread_mutex_t lock;
    pthread_cond_t begun;
    collective_t *oldest, *newest; /* runs */
    uint32_t waiters;
    uint32_t closed; /* runs whose gate is */
    bool stop;
    lh_status_t status; /* LH_OK, or why all ended */
    char sentence[COMM_SENTENCE];
    uint64_t exposed_ns[COMM_SCOPES];

    atomic_uint wanted; /* threads that want the lock */
    atomic_bool asleep; /* who holds it sleeps on wake_fd */
    int wake_fd;
    pthread_t thread;
    bool has_thread;
};

void runs_enter(comm_t *c);
void runs_leave(comm_t *c);

/* collective_start and its like. gate: NULL, none. */
lh_status_t runs_start(collective_t *x, const collective_gate_t *gate) LH_MUST_CHECK;
lh_status_t runs_test(collective_t *x);
lh_status_t runs_wait(collective_t *x) LH_MUST_CHECK;

/* Locked: tells all that no run will end any more. */
void runs_release(comm_t *c);
/* Of the thread; `comm` is a comm_t. */
void *runs_thread(void *comm);

#endif
