/* comm/comm_state.h - what the files of collectives share: plans, lanes, and who drives them. */
#ifndef COMM_COMM_STATE_H
#define COMM_COMM_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include <comm/comm.h>
#include <comm/script.h>
#include <comm/sums.h>

enum { COMM_REGIONS = 4, COMM_SCOPES = 4, COMM_SERVICES = 6, COMM_SENTENCE = 512 };

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
typedef struct region {
    char *memory;
    uint64_t bytes;
    collective_t *last; /* who took it last */
} region_t;

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
    script_t script;
    plan_place_t *places; /* [group->size] */
    script_peer_t *peers; /* [group->size] */
    track_t *tracks;
    region_t *region;
    sum_source_t *scratch;
    uint32_t *first; /* computes that wait for nothing */
    uint32_t first_count;
    uint64_t sent[COMM_SCOPES];
    collective_times_t times;

    /* Of the run. */
    atomic_uint state; /* PLAN_* */
    uint32_t *left;    /* [steps] unmet needs; SCRIPT_NONE: done */
    uint32_t *ready;   /* computes that can be done: a heap, first step first */
    uint32_t ready_count;
    uint32_t remaining, gates; /* steps; runs that must end before this one begins */
    uint64_t started_ns;
    collective_t *after_region; /* begins when this one is done */
    collective_t *followers, *next_follower;
    collective_t *earlier, *later; /* runs in the order of their start */
};

typedef struct comm_arena {
    char *base;
    uint64_t bytes;
    bool file; /* others may map it */
} comm_arena_t;

struct comm {
    comm_how_t how;
    links_t *links;
    group_t *groups[LH_GROUPS];
    comm_arena_t *arenas;
    uint32_t arena_count;
    size_t arena_capacity;
    collective_t **plans;
    uint32_t plan_count;
    size_t plan_capacity;
    lane_t *lanes;
    uint32_t lane_count;
    region_t regions[COMM_REGIONS];
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

/* comm_agree.c */
typedef struct link_figures {
    uint64_t round_trip_ns, bytes_per_second;
} link_figures_t;
typedef struct comm_facts {       /* of all ranks, the same everywhere */
    uint32_t maps[COMM_SERVICES]; /* bit per arena: its peers on the node can map it */
    link_figures_t figures[COMM_SCOPES];
} comm_facts_t;
lh_status_t comm_gather(comm_t *c, const void *mine, size_t bytes, void *all) LH_MUST_CHECK;
/* The same status on all ranks: the first that is not LH_OK, with its sentence. */
lh_status_t comm_verdict(comm_t *c, lh_status_t mine) LH_MUST_CHECK;
/* Where this rank's buffers of a plan lie. */
void comm_place(const collective_t *x, plan_place_t *out);
lh_status_t comm_agree_plans(comm_t *c) LH_MUST_CHECK;
lh_status_t comm_agree_lanes(comm_t *c) LH_MUST_CHECK;
/* Once links are up: where peers' buffers are seen from here. */
void comm_map_peers(collective_t *x);
uint64_t collective_key(const coll_how_t *how, const world_t *w);

void comm_free_plans(comm_t *c); /* collective.c */

/* comm_choice.c */
void comm_choose(const collective_t *x, const comm_facts_t *all, script_how_t *out);
uint32_t comm_widest_scope(const world_t *w, const group_t *g);

/* comm_runs.c: all under lock but the last three. */
bool runs_drive(comm_t *c);
void progress_start(collective_t *x);
void runs_fail(comm_t *c, lh_status_t status);
/* The member of x's group whose message x waits for, or SCRIPT_NONE. */
uint32_t runs_awaits(const collective_t *x);
void runs_enter(comm_t *c);
void runs_leave(comm_t *c);
void *runs_thread(void *comm);

#endif
