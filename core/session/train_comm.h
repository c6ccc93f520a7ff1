/* session/train_comm.h - how the ranks of a run talk: the communicator that moves gradients and
 * values, and the small gathers of the host's own numbers.
 *
 * Two kinds of talk share the links. Collectives on gradients and values are planned as part of the
 * step's programs and are no concern of this file. What is here are numbers of the host, some bytes
 * a rank: they take a small collective of their own once links are up, and the control plane before
 * that and for anything larger.
 *
 * An agreement is a gather of what all have, from which each rank computes the same answer by
 * itself. No rank decides for others except by everybody's consent to take rank 0's word
 * (train_agree_first). */
#ifndef SESSION_TRAIN_COMM_H
#define SESSION_TRAIN_COMM_H

#include <base/text.h>
#include <comm/comm.h>

/* The other ranks of a run, as far as the trainer needs to agree with them on numbers of the host:
 * weights of a batch, whether to stop or to save. An interface of functions so that tests can play
 * several ranks in one process. */
typedef struct train_ranks {
    uint32_t rank, size;
    size_t most; /* bytes that a gather takes of each rank; 0: any */
    void *context;
    /* Every rank gives `bytes` of its own and gets all, in order of ranks: all is [size x bytes].
     * Blocking; all ranks call in the same order with the same sizes. No allocation. */
    lh_status_t (*gather)(void *context, const void *mine, size_t bytes, void *all);
    /* gather in two calls, with other work between them; no other gather meanwhile. NULL: only at
     * once. */
    lh_status_t (*start)(void *context, const void *mine, size_t bytes);
    lh_status_t (*finish)(void *context, size_t bytes, void *all);
} train_ranks_t;

enum { AGREE_MOST = 4, AGREE_SENTENCE = 512 };
/* Belongs to one thread; its buffer makes a sum free of allocations, as it is done in each step. */
typedef struct train_agree {    /* numbers of all ranks */
    const train_ranks_t *ranks; /* NULL: alone */
    double *all;                /* room for [size][AGREE_MOST] */
} train_agree_t;

/* ranks NULL, or of size 1: alone. ranks must outlive it. */
lh_status_t train_agree_new(const train_ranks_t *ranks, train_agree_t *out) LH_MUST_CHECK;
void train_agree_free(train_agree_t *a);
static inline uint32_t train_agree_rank(const train_agree_t *a)
{
    return a->ranks == NULL ? 0 : a->ranks->rank;
}
static inline uint32_t train_agree_size(const train_agree_t *a)
{
    return a->ranks == NULL ? 1 : a->ranks->size;
}

/* Each value becomes the sum over all ranks, added in their order: the same bits on all of them. */
lh_status_t train_agree_sum(train_agree_t *a, double *values, uint32_t count) LH_MUST_CHECK;
/* train_agree_sum in two calls: the values travel while something else is done. count is that of
 * the finish. Where the ranks have no two-call form this does nothing, and finish does it all. */
lh_status_t train_agree_start(train_agree_t *a, const double *values, uint32_t count) LH_MUST_CHECK;
lh_status_t train_agree_finish(train_agree_t *a, double *values, uint32_t count) LH_MUST_CHECK;
/* Of the last sum, of so many values: the least that a rank gave for values[k]. Several ranks. */
double train_agree_least(const train_agree_t *a, uint32_t count, uint32_t k);
/* What each rank says of itself (at most AGREE_TEXT bytes with its NUL) as one text, the same on
 * all: once where all say the same, else rank by rank. */
enum { AGREE_TEXT = 192 };
lh_status_t train_agree_text(train_agree_t *a, const char *mine, text_t *out) LH_MUST_CHECK;
/* A rank that has failed gives its status and sentence (room for `bytes` with the NUL), the others
 * give LH_OK. All take the status and sentence of the first rank that failed; on the other ranks
 * the sentence begins with that rank's number. */
lh_status_t train_agree_failure(train_agree_t *a, lh_status_t *status, char *sentence,
                                size_t bytes) LH_MUST_CHECK;
/* All ranks take what rank 0 gives. */
lh_status_t train_agree_first(train_agree_t *a, void *value, size_t bytes) LH_MUST_CHECK;

/* ranks.context points at the struct itself, so it can't be copied or moved once it is open. */
typedef struct train_comm {
    train_ranks_t ranks; /* of train_agree_new and evaluation_new; context is this struct */
    comm_t *comm;
    const job_t *job;
    control_t *control;
    collective_t *plan; /* NULL until connected: then gathers go through the control plane */
    char *memory;       /* [ranks][room_bytes] */
    size_t room_bytes;  /* TRAIN_COMM_ROOM and, over several sites, what the rank tells of each */
    link_told_t *told;  /* [ranks x sites], the last that all told; NULL with one site */
    uint64_t planned_bytes; /* of plans and staging, as they were expected */
    probe_pair_t *known;    /* the record of links, until connected */
} train_comm_t;

/* Gathers of up to so many bytes a rank go over the links, larger ones through the control plane. With
 * them travels, at no latency of its own, what each rank tells of its links to other sites (comm_told).
 * It is room for eight doubles; an agreement has at most AGREE_MOST. */
enum { TRAIN_COMM_ROOM = 64 };

typedef struct train_comm_how {
    const job_t *job;
    registry_t *registry;
    const world_t *world;
    control_t *control; /* NULL: planned only, train_comm_connect is refused */
} train_comm_how_t;

/* Stays where it is while it is used. Makes the communicator; hears of rank 0's record of links, and begins
 * to measure what of them it lacks, in a thread of its own. A planned one hears nothing from others, and
 * never will. After a failure it may be there, to be closed. */
lh_status_t train_comm_open(train_comm_t *t, const train_comm_how_t *how) LH_MUST_CHECK;
/* Until links are measured: before all processors get work that a measurement beside it would disturb, or be
 * disturbed by. */
lh_status_t train_comm_quiet(train_comm_t *t) LH_MUST_CHECK;
/* After engine_build or transfer_plan, when all else is planned: counts what that takes. For a
 * session that is planned and never run. */
lh_status_t train_comm_plan(train_comm_t *t) LH_MUST_CHECK;
/* After engine_build: everything is planned. All ranks call it. What of the links is still being measured is
 * waited for. */
lh_status_t train_comm_connect(train_comm_t *t) LH_MUST_CHECK;
/* Before memory that travels is freed. together: no rank has failed, so wait until all are here,
 * and a link that ends is no failure any more. */
void train_comm_close(train_comm_t *t, bool together);

#endif
