/* comm/script.h - what one rank does in a run of a collective: messages, sums and copies, with who
 * waits for whom. Made from the op, the group, the algorithm and how long the segments of the
 * pieces are; the same function on every rank (script_new) puts the messages of a direction of a
 * link in the same order at both ends.
 *
 * A script is a graph of steps without a circle: a step may be done once all that it needs is done.
 * It is data and not code, so that it can be checked against the scripts of all other ranks, played
 * in a test without links, and interpreted by one loop whatever the algorithm.
 *
 * A script knows no address: steps name buffers and segments, and where those lie is bound at the
 * start of a run (script_places_t). So one script serves all collectives of a group, op and shape,
 * such as the values of all blocks of a model. */
#ifndef COMM_SCRIPT_H
#define COMM_SCRIPT_H

#include <comm/coll.h>

#define SCRIPT_NONE UINT32_MAX

/* Consecutive elements of one segment. The same run is found in four forms of the data (LAYOUT_*):
 * in the whole and in the cut, both through its segment; in a piece whose segments follow each
 * other; and packed into a message. */
typedef struct script_run {
    uint32_t segment; /* of the pieces of all members, one after the other */
    uint64_t offset;  /* first element in it                    */
    uint64_t piece;   /* first in the piece, segments in a row  */
    uint64_t packed;  /* first in a message of several runs     */
    uint64_t error;   /* first in script_places_t.errors, where this rank packs it for a border */
    uint64_t count;
} script_run_t;

/* Where in a buffer a run begins: by its segment's place in the whole or in the cut, by its offset
 * in the piece, or by its offset in the message. */
enum { LAYOUT_WHOLE, LAYOUT_CUT, LAYOUT_PIECE, LAYOUT_PACKED };
/* PEER_*: memory of another member of the node, mapped into this process and read in place. */
enum { BUFFER_WHOLE, BUFFER_CUT, BUFFER_STAGING, BUFFER_PEER_WHOLE, BUFFER_PEER_CUT };

/* A buffer as one step sees it. The runs of the step are counted from `at`, which is 0 but for a
 * slot of staging memory and for the sender's part of an all-to-all's cut. */
typedef struct script_view {
    uint32_t buffer; /* BUFFER_*             */
    uint32_t peer;   /* PEER_*: member       */
    uint32_t layout; /* LAYOUT_*             */
    /* I8 in a sum: in blocks with a scale (quantize.h), which every run begins anew. */
    lh_dtype_t dtype;
    uint64_t at; /* bytes from the buffer's start */
} script_view_t;

/* Of sums over sites: the dtype in which every site's part of the sum is rounded, BF16 or I8, or 0:
 * partial sums stay F32, contributions and the result are of the collective's dtype. */
static inline lh_dtype_t script_part(const coll_how_t *how)
{
    const bool rounds = how->border == LH_DTYPE_BF16 || how->border == LH_DTYPE_I8;
    return rounds && how->group->sites > 1 && coll_op_sums(how->op) ? how->border : 0;
}

/* The dtype in which the result crosses borders: BF16, or 0. */
static inline lh_dtype_t script_border(const coll_how_t *how)
{
    return script_part(how) != 0 ? LH_DTYPE_BF16 : 0;
}

/* Messages come before computations: kind >= STEP_SUM tells them apart. A message is posted in its
 * turn on its lane; a computation is done by whoever drives, the earliest step first. */
enum { STEP_SEND = 1, STEP_RECV, STEP_SUM, STEP_COPY };

/* One thing to do. `needs` counts the edges that end here; when a step is done, that count is
 * lowered in the run's copy of it for every step in its `next` list. */
typedef struct script_step {
    uint32_t kind;             /* STEP_*                                   */
    uint32_t needs;            /* steps that must be done before           */
    uint32_t next, next_count; /* in script_t.next: steps that wait for it */
    uint32_t peer;             /* SEND, RECV: member                       */
    uint32_t tag;              /* of what it carries: equal at both ends   */
    uint64_t bytes;
    bool answers;                  /* SEND, RECV: of a lane of answers                 */
    script_view_t to;              /* SEND, RECV: the message's memory                 */
    uint32_t source, source_count; /* in script_t.views; of COPY one                   */
    uint32_t run, run_count;       /* in script_t.runs; SEND, RECV: the first, or none */
    bool add;
    lh_dtype_t rounded; /* SUM: the sum is rounded to it before it is added or stored; 0: not */
} script_step_t;

/* Messages of a lane are posted in this order and in no other, as both ends match them by order;
 * the tag only proves that the match is right.
 *
 * Whoever receives of a pair and reads in place answers when it has read. What goes from one member to the
 * other and what comes from there are started in two orders, each the same at both ends, and neither
 * end knows how the other has merged them: an answer among what goes back would have a place in an order
 * that is not its own. So answers have lanes of their own, over a link of their own (comm.c), in the
 * order of what they answer. */
typedef struct script_lane { /* one direction of the link to a member */
    uint32_t peer;
    bool sending, answers;
    uint32_t first, count; /* in script_t.order */
    uint64_t bytes;        /* of all of them */
} script_lane_t;

/* Made once, then only read: by all plans of its shape, in whichever thread drives. */
typedef struct script {
    script_step_t *steps;
    uint32_t step_count;
    uint32_t *next, next_count;
    script_view_t *views;
    uint32_t view_count;
    script_run_t *runs;
    uint32_t run_count;
    script_lane_t *lanes;
    uint32_t lane_count;
    uint32_t *order; /* steps, lane by lane */
    uint32_t message_count;
    uint32_t *first, first_count; /* sums and copies that wait for nothing */
    uint64_t staging_bytes;
    uint64_t error_elements; /* of script_places_t.errors */
    uint32_t most_sources;   /* of a sum */
} script_t;

/* A member of the same node, as this process sees its memory. */
typedef struct script_peer { /* where a member's buffers can be read from here; NULL: nowhere */
    char *whole, *cut;
    bool mapped; /* both can read each other's */
} script_peer_t;

/* Where the buffers of one collective lie; a plan has one for all its runs. Addresses, not
 * offsets. */
typedef struct script_places {
    char *whole, *cut, *staging;
    uint32_t whole_arena, cut_arena, staging_arena;
    const script_peer_t *peers;     /* [group->size] */
    const coll_segment_t *segments; /* of all pieces */
    /* Border I8: what rounding took from the parts that this rank packs, by the owners whose leader it
     * is and their segments in a row. Of the plan, from run to run. NULL: it packs nothing. */
    float *errors;
} script_places_t;

/* What a script is made from. Two requests that agree in all of it but names, addresses and places
 * of segments have one script (shape_new in script.c). */
typedef struct script_how {
    const coll_how_t *how; /* pieces are set: of root alone for BROADCAST and REDUCE, of the
                              receiver for SEND and RECV                                     */
    uint32_t algorithm;    /* COLL_DIRECT, _RING or _HALVING                                  */
    uint32_t between;      /* BETWEEN_*; AUTO is the mesh                                     */
    uint32_t middle;       /* CHAIN: the site that adds                                       */
    uint64_t chunk_bytes;
    uint32_t lag;               /* chunks by which what follows a sum trails it              */
    uint32_t depth;             /* staging slots for each peer, at least                     */
    uint64_t window;            /* bytes of a peer's units that they hold, at least          */
    bool at_once;               /* ALL_REDUCE of little: everybody sends everything to all   */
    const script_peer_t *peers; /* [group->size] or NULL: none is mapped                     */
} script_how_t;

typedef struct sum_source {
    const void *data;
    lh_dtype_t dtype; /* F32, BF16, or I8 in blocks */
} sum_source_t;

typedef struct sum_target {
    void *data;
    lh_dtype_t dtype;
    lh_dtype_t rounded; /* BF16: the sum is rounded to it before it is added or stored; 0: not */
    bool add;           /* not of I8 */
    float *errors;      /* I8: [elements] added to the sum, and what rounding loses (quantize.h) */
} sum_target_t;

/* to[i] = ((s[0][i] + s[1][i]) + s[2][i]) + ..., in F32, rounded once if `to` is BF16; with add:
 * to[i] = to[i] + that sum. Sources may be `to` itself, but don't overlap it otherwise. Element by
 * element in one given order, so that every instruction set, chunk and algorithm gives the same
 * bits. */
void script_sum(const sum_target_t *to, const sum_source_t *sources, uint32_t count,
                uint64_t elements);

/* For tests: 0 plain, 1 AVX2, 2 AVX-512 at most; what the processor lacks is not taken. */
void script_sum_level(uint32_t level);

void script_free(script_t *s);
/* Frees steps and what they refer to, of a script that is only counted: its figures and its lanes stay. */
void script_forget(script_t *s);
/* Bytes of memory that steps and what they refer to take; the state of a run is its plan's. */
uint64_t script_bytes(const script_t *s);
/* Memory of a SEND or RECV, and in *arena the arena in which links find its registration. */
char *script_message(const script_t *s, const script_places_t *places, const script_step_t *step,
                     uint32_t *arena);
/* Carries out a SUM or COPY at once, in the calling thread. scratch: [most_sources], the plan's
 * own. */
void script_compute(const script_t *s, const script_places_t *places, const script_step_t *step,
                    sum_source_t *scratch);
/* Of the lengths and tags of all messages to (or from) a member, in order, either of answers or of
 * all others: equal at both ends. `seed` chains it over several scripts. */
uint64_t script_lane_digest(const script_t *s, uint32_t peer, bool sending, bool answers,
                            uint64_t seed);

/* Scripts by shape: one for all that are asked for alike. */
typedef struct script_set {
    struct script_entry **list;
    uint32_t count;
    size_t capacity;
} script_set_t;
/* The script of that shape; where the set has none yet, `make` (script_new) makes it. *out lives as
 * long as the set. */
typedef lh_status_t script_maker_t(const script_how_t *how, script_t *out);
lh_status_t script_set_take(script_set_t *set, const script_how_t *how, script_maker_t *make,
                            const script_t **out) LH_MUST_CHECK;
uint64_t script_set_bytes(const script_set_t *set);
void script_set_free(script_set_t *set);

/* Whether two members exchange messages by any algorithm: the links to ask for. */
bool script_needs_link(const coll_how_t *how, uint32_t a, uint32_t b);

#endif
