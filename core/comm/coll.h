/* comm/coll.h - what is asked of a collective: the op, the group, the pieces, where the buffers
 * lie.
 *
 * Two buffers are spoken of. The WHOLE has coll_how_t.elements elements, the same on every member.
 * It is cut into one piece for each member of the group, the piece's owner; a piece is a list of
 * segments, which need not be neighbours. The CUT holds the owner's piece alone, in memory of its
 * own. A collective without a cut works in place: the owner's piece then lies in its own segments
 * of the whole.
 *
 * What goes in and what comes out, with n members, member m, and P(m) the piece that m owns:
 *
 *    op              reads                        writes
 *    all-reduce      whole of all                 whole of all: the sum
 *    reduce-scatter  whole of all                 P(m) of m: the sum of P(m) over all
 *    all-gather      P(m) of m                    whole of all
 *    broadcast       whole of root                whole of the others
 *    reduce          whole of all                 whole of root: the sum
 *    scatter         whole of root                P(m) of m
 *    gather          P(m) of m                    whole of root
 *    all-to-all      P(m) of everybody's whole    cut of m: n parts as long as P(m), by member
 *    send, recv      whole of the sender          whole of the receiver
 *    barrier         nothing                      nothing; nobody leaves before all have come
 *
 * These types stand apart from the functions of plans (collective.h), since scripts are made from a
 * coll_how_t alone: they can be tested without links and ranks. */
#ifndef COMM_COLL_H
#define COMM_COLL_H

#include <links/links.h>

typedef struct collective collective_t; /* a plan; freed with its comm */

enum {
    COLL_ALL_REDUCE = 1,
    COLL_REDUCE_SCATTER,
    COLL_ALL_GATHER,
    COLL_BROADCAST,  /* whole, from root                                      */
    COLL_REDUCE,     /* whole, to root, who owns all of it                    */
    COLL_SCATTER,    /* pieces of root's whole to their owners' cut           */
    COLL_GATHER,     /* owners' cut to root's whole                           */
    COLL_ALL_TO_ALL, /* piece i of whole to member i; theirs to cut, in order of members */
    COLL_BARRIER,
    COLL_SEND, /* whole to member `root` */
    COLL_RECV, /* whole from member `root` */
    COLL_OPS
};

/* Whether the op adds contributions: only these have an order of sums to keep, and dtypes that they
 * refuse. */
static inline bool coll_op_sums(uint32_t op)
{
    return op == COLL_ALL_REDUCE || op == COLL_REDUCE_SCATTER || op == COLL_REDUCE;
}

/* Whether the op is one end of a transfer between two members. */
static inline bool coll_op_is_pair(uint32_t op)
{
    return op == COLL_SEND || op == COLL_RECV;
}

/* How pieces travel inside a site; between sites goes by BETWEEN_*, below. DIRECT: owner
 * and members exchange messages without anybody between. RING: sums and results go from a member to
 * the next, so that each talks to two others only. HALVING: over distances of powers of two, in
 * log2(n) rounds.
 *
 * Halving does not keep the canonical order of sums: for gathers, broadcasts and barriers it is
 * free to be chosen, for sums only with [comm] bits = ordered. */
enum { COLL_AUTO, COLL_DIRECT, COLL_RING, COLL_HALVING, COLL_ALGORITHMS };

/* How an all-reduce crosses borders, once each site has summed its own. MESH: to the owner, and the
 * result back. EXCHANGE: each site sends its sum to every other, and adds all by itself: one latency,
 * and no result travels. CHAIN: to a site in the middle, and the result back. RING: from the site
 * behind the owner's round to it, each adding its own, and the result round again. Whoever adds,
 * adds the same numbers in the same order, so the bits are the same. Other ops have one way. */
enum { BETWEEN_AUTO, BETWEEN_MESH, BETWEEN_EXCHANGE, BETWEEN_CHAIN, BETWEEN_RING, BETWEEN_WAYS };

/* Consecutive elements of one owner. Every member has the segments of all owners, in the same
 * order; a difference is refused before the first run (comm_agree.c). */
typedef struct coll_segment { /* in elements */
    uint64_t whole;           /* first in the whole buffer        */
    uint64_t count;
    uint64_t cut; /* first in the owner's cut buffer: every member knows where all others hold
                     theirs, so that a mapped one can be read in place */
} coll_segment_t;

/* What one member owns. A piece may be empty. */
typedef struct coll_piece {
    const coll_segment_t *segments;
    uint32_t count;
} coll_piece_t;

/* Where a buffer begins. The address is final when the plan is made, while the memory behind it
 * need not be there yet: plans that are only counted have addresses that nobody reads. */
typedef struct coll_place { /* memory in a registered arena */
    void *address;
    uint32_t arena;
} coll_place_t;

/* A device whose memory messages lie in; the caller's until comm_close. arrived is called with comm's lock
 * held, before a run is done whose messages have come, once for several of them. A failure is one of the
 * whole comm. */
typedef struct coll_device {
    lh_status_t (*arrived)(void *context);
    void *context;
} coll_device_t;

/* A request, as the caller of collective_new fills it. All members of the group ask for the same,
 * but for the places of their buffers and, of a pair, for which of SEND and RECV they are. */
typedef struct coll_how {
    const char *name; /* for messages and profiles: "gradients 3"; copied */
    uint32_t op;      /* COLL_*                                          */
    const group_t *group;
    lh_dtype_t dtype; /* F32, BF16 (summed in F32, rounded once at the owner); others: no sums */
    /* Of sums over several sites: BF16, what a site adds and the sum itself are rounded to it, once
     * each, and cross borders so. I8: what a site adds is packed (quantize.h) with the errors of the
     * run before, and the sum is rounded to BF16. 0 or F32: partial sums cross as F32, and nothing is
     * rounded but for `dtype`. */
    lh_dtype_t border;
    uint32_t root; /* member                                         */
    uint64_t elements;
    const coll_piece_t *pieces; /* [group->size]; copied. NULL: equal pieces, in order. Not
                                   looked at where one member owns all of the whole:
                                   BROADCAST, REDUCE, SEND, RECV */
    coll_place_t whole;
    coll_place_t cut; /* address NULL: own segments of whole, in place                  */
    bool add;         /* REDUCE_SCATTER: cut += sum instead of cut = sum                 */
    /* LH_SERVICE_*: which connection. Not CONTROL, by which pairs that are read in place are answered, of
     * whatever service: what is sent so from one rank to another is started in one order at both ends. */
    uint32_t service;
    uint32_t algorithm;   /* COLL_AUTO: by size and link, or [comm] algorithm                */
    uint32_t between;     /* BETWEEN_AUTO: by predicted time, or [comm] between_sites        */
    uint64_t chunk_bytes; /* 0: by link, or [comm] chunk                                     */
    /* A run begins when the run of this plan that was started before it is done (sums inside a
     * site, then across sites of what came out). NULL: at once. */
    collective_t *after;
    /* border I8: the errors of this plan go on here, as it sums the same elements at another time,
     * such as the first micro-batch of a step. NULL: the plan has errors of its own. */
    collective_t *continues;
    /* ALL_GATHER: the buffers lie in this device's memory, which links reach and the processor does not
     * (comm_device_arenas). Each run of elements is a message of its own, from its owner to each of the
     * others: what a card has written another need not see yet, so nobody passes it on. Where there is a
     * cut this rank's own piece is not copied to its whole: whoever drives the device does that. NULL:
     * they lie in memory of the host. */
    const coll_device_t *device;
} coll_how_t;

/* What a run waits for where no thread waits for it: a device that works off a queue says here that
 * it has come to the collective. All functions are called with comm's lock held, in whichever
 * thread drives transports at that time; they must not call comm. */
typedef struct collective_gate {
    /* Whether the run may begin, LH_AGAIN: not yet. Asked by whoever drives, often. */
    lh_status_t (*past)(void *context);
    /* Told once, when the run is done or, after a failure, will never be. May be NULL. */
    void (*done)(void *context);
    void *context;
    /* Whether the device stands at its wait for this run, once the gate is past: from then to the run's
     * end its time is exposed. Asked by whoever drives until it is so. May be NULL: nobody knows, and
     * a thread that waits counts its own time. */
    bool (*reached)(void *context);
} collective_gate_t;

/* Figures of a plan for the profile; times are of the monotonic clock. */
typedef struct collective_times { /* of all runs so far */
    uint64_t runs;
    uint64_t busy_ns;    /* from start to done           */
    uint64_t exposed_ns; /* spent inside collective_wait, or by a device at its wait */
} collective_times_t;

/* ---- the way between sites -------------------------------------------------------------------- */

/* Which way an all-reduce takes between sites: predicted from the links that were measured. A
 * function of numbers alone. */

/* From one site to another; 0: not known. beside_*: the rate while all pairs of sites are busy, all of
 * `from`, all of `to`; 0: as alone. */
typedef struct between_link {
    double bytes_per_second, round_trip_s;
    double beside_all, beside_from, beside_to;
} between_link_t;

/* Of one all-reduce. links: [sites * sites], from a to b at a * sites + b. share: [sites] of the
 * elements that a site's members own, together 1. */
typedef struct between_how {
    uint32_t sites;
    const between_link_t *links;
    const double *share;
    /* Of what a site adds, of a sum of some sites (F32), and of the result. */
    double part_bytes, partial_bytes, result_bytes;
    uint32_t asked; /* BETWEEN_*; AUTO: the fastest */
} between_how_t;

/* Round trips that an all-reduce takes by a way, one after the other. */
double coll_between_trips(uint32_t way, uint32_t sites);
/* How long a way takes, in seconds; middle: of a CHAIN. */
double coll_between_seconds(const between_how_t *how, uint32_t way, uint32_t middle);
/* BETWEEN_*, not AUTO; *middle is 0 but for a CHAIN. Where some link is not known, two sites
 * exchange, more mesh, and the middle of a chain is the middle of the list. A chain of two sites, or
 * a ring of them, is a mesh. */
uint32_t coll_between_choose(const between_how_t *how, uint32_t *middle);

#endif
