/* comm/collective.h - collectives over a group of ranks, planned once before step 0 and run any
 * number of times.
 *
 * A buffer of `elements` is cut into one piece for each member of the group, its owner: a list of
 * segments. Sums are canonical: inside a site from the leader's next member round to the
 * leader, one after the other, then over sites from the owner's next site round to its own, in
 * F32. So bits depend on ownership and on the group, never on chunk, bucket, algorithm, transport
 * or timing. all_reduce is reduce_scatter plus all_gather.
 *
 * All ranks plan the same collectives in the same order and start them in the same order. */
#ifndef COMM_COLLECTIVE_H
#define COMM_COLLECTIVE_H

#include <links/links.h>

typedef struct comm comm_t;             /* comm.h */
typedef struct collective collective_t; /* a plan; freed with its comm */

enum {
    COLL_ALL_REDUCE = 1,
    COLL_REDUCE_SCATTER,
    COLL_ALL_GATHER,
    COLL_BROADCAST,  /* whole, from root                                      */
    COLL_REDUCE,     /* whole, to root; owners are all root                   */
    COLL_SCATTER,    /* pieces of root's whole to their owners' cut           */
    COLL_GATHER,     /* owners' cut to root's whole                           */
    COLL_ALL_TO_ALL, /* piece i of whole to member i; theirs to cut, in order of members */
    COLL_BARRIER,
    COLL_SEND, /* whole to member `root` */
    COLL_RECV, /* whole from member `root` */
    COLL_OPS
};
extern const char *const coll_op_names[COLL_OPS]; /* "all-reduce" */

/* Inside a site. Halving-doubling does not keep the canonical order: for gathers, broadcasts and
 * barriers it is free to be chosen, for sums only with [comm] bits = ordered. */
enum { COLL_AUTO, COLL_DIRECT, COLL_RING, COLL_HALVING, COLL_ALGORITHMS };
extern const char *const coll_algorithm_names[COLL_ALGORITHMS];

typedef struct coll_segment { /* in elements */
    uint64_t whole;           /* first in the whole buffer        */
    uint64_t count;
    uint64_t cut; /* first in the owner's cut buffer: every member knows where all others hold
                     theirs, so that a mapped one can be read in place */
} coll_segment_t;

typedef struct coll_piece {
    const coll_segment_t *segments;
    uint32_t count;
} coll_piece_t;

typedef struct coll_place { /* memory in a registered arena */
    void *address;
    uint32_t arena;
} coll_place_t;

typedef struct coll_how {
    const char *name; /* for messages and profiles: "gradients 3"; copied */
    uint32_t op;      /* COLL_*                                          */
    const group_t *group;
    lh_dtype_t dtype; /* F32, BF16 (summed in F32, rounded once at the owner); others: no sums */
    uint32_t root;    /* member                                         */
    uint64_t elements;
    const coll_piece_t *pieces; /* [group->size]; copied. NULL: equal pieces, in order */
    coll_place_t whole;
    coll_place_t cut;     /* address NULL: own segments of whole, in place                  */
    bool add;             /* REDUCE_SCATTER: cut += sum instead of cut = sum                 */
    uint32_t service;     /* LH_SERVICE_*: which connection                                  */
    uint32_t algorithm;   /* COLL_AUTO: by size and link, or [comm] algorithm                */
    uint64_t chunk_bytes; /* 0: by link, or [comm] chunk                                     */
    /* A run begins when the run of this plan that was started before it is done (sums inside a
     * site, then across sites of what came out). NULL: at once. */
    collective_t *after;
} coll_how_t;

/* Plans; before comm_connect, which makes what a run needs, from the links as they turned out. */
lh_status_t collective_new(comm_t *c, const coll_how_t *how, collective_t **out) LH_MUST_CHECK;
/* From here on: after comm_connect. */
uint32_t collective_algorithm(const collective_t *x);
/* Bytes this rank sends in a run, by scope (index LH_LINK_*; what mapped members read in place is
 * not sent), and the staging memory it works in, which plans share. */
void collective_bytes(const collective_t *x, uint64_t sent[4], uint64_t *staging);
const char *collective_name(const collective_t *x);

/* Queues a run and returns; one run of a plan at a time. No allocation. */
lh_status_t collective_start(collective_t *x) LH_MUST_CHECK;
/* The same for who does not wait itself, such as a device that works off a queue. */
typedef struct collective_gate {
    /* Whether the run may begin, LH_AGAIN: not yet. Asked by whoever drives, often. */
    lh_status_t (*past)(void *context);
    /* Told once, when the run is done or, after a failure, will never be. May be NULL. */
    void (*done)(void *context);
    void *context;
} collective_gate_t;
lh_status_t collective_start_behind(collective_t *x, const collective_gate_t *gate) LH_MUST_CHECK;
/* LH_OK: done and its memory is the caller's again. LH_AGAIN: not yet. Else it failed, as all will.
 */
lh_status_t collective_test(collective_t *x);
/* Drives the transports itself until done. Never longer than [comm] timeout without progress: then
 * the sentence names the peer that is waited for. */
lh_status_t collective_wait(collective_t *x) LH_MUST_CHECK;

typedef struct collective_times { /* of all runs so far */
    uint64_t runs;
    uint64_t busy_ns;    /* from start to done           */
    uint64_t exposed_ns; /* spent inside collective_wait */
} collective_times_t;
void collective_times(const collective_t *x, collective_times_t *out);

#endif
