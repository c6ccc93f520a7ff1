/* parallel/transfers.h - what moves between ranks in a step: a table of transfers, each a bucket of
 * gradients to sum, of new values to gather, the values of an instance, or partial sums of the norm.
 *
 * It is the engine's exchange (program/transfer.h): it puts calls of transfers into the programs'
 * flows, plans a collective for each once memory is there, and runs them in a step. */
#ifndef PARALLEL_TRANSFERS_H
#define PARALLEL_TRANSFERS_H

#include <comm/comm.h>
#include <engine/engine.h>
#include <program/transfer.h>

typedef struct transfers transfers_t;
typedef struct shards shards_t; /* shards.h */

typedef struct transfers_how {
    engine_t *engine;
    weights_t *weights;
    const world_t *world;
    comm_t *comm;           /* may be planned only; NULL: engine_build is refused     */
    shards_t *shards;       /* of several ranks; belongs to the transfers once they are made */
    uint32_t micro_batches; /* runs of the training program in a step */
    uint64_t bucket_bytes;  /* 0: choose */
} transfers_how_t;

/* Becomes the engine's exchange. */
lh_status_t transfers_new(const transfers_how_t *how, transfers_t **out) LH_MUST_CHECK;
/* After engine_close, and after comm_close, whose plans read its groups. NULL does nothing. */
void transfers_free(transfers_t *t);

enum { PARTIAL_WORDS = 2 }; /* op sum_squares */

/* For the update's flow: gathers the norm's partial sums (F32 [sums, PARTIAL_WORDS], one row per
 * LH_NORM_BLOCK elements of every updated parameter, in order); starts to gather the new values of
 * what was updated up to and with a parameter. */
void transfers_write_partials(transfers_t *t, program_t *update, uint32_t sums);
void transfers_write_value_gather(transfers_t *t, program_t *update, uint32_t parameter);

/* Gathers all values anew, after they were loaded or drawn. All ranks call it. */
lh_status_t transfers_value_gather(transfers_t *t) LH_MUST_CHECK;
/* Waits for whatever is under way. */
lh_status_t transfers_finish(transfers_t *t) LH_MUST_CHECK;

/* Plans every transfer as engine_build does, for a communicator that is planned only. After
 * engine_plan, which it needs in place of memory. */
lh_status_t transfers_plan(transfers_t *t) LH_MUST_CHECK;

#endif
