/* comm/coll.h - what is asked of a collective: the op, the group, the pieces, where the buffers lie.
 */
#ifndef COMM_COLL_H
#define COMM_COLL_H

#include <links/links.h>

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

/* Inside a site. Halving-doubling does not keep the canonical order: for gathers, broadcasts and
 * barriers it is free to be chosen, for sums only with [comm] bits = ordered. */
enum { COLL_AUTO, COLL_DIRECT, COLL_RING, COLL_HALVING, COLL_ALGORITHMS };

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

/* What a run waits for that nobody waits for himself, such as a device that works off a queue. */
typedef struct collective_gate {
    /* Whether the run may begin, LH_AGAIN: not yet. Asked by whoever drives, often. */
    lh_status_t (*past)(void *context);
    /* Told once, when the run is done or, after a failure, will never be. May be NULL. */
    void (*done)(void *context);
    void *context;
} collective_gate_t;

typedef struct collective_times { /* of all runs so far */
    uint64_t runs;
    uint64_t busy_ns;    /* from start to done           */
    uint64_t exposed_ns; /* spent inside collective_wait */
} collective_times_t;

#endif
