/* parallel/update.h - the optimizer step as a program, made from an optimizer's tables and a rule.
 *
 * The optimizer plugin lists spaces and moves (longhaul/optimizer.h); this file gives each space
 * its memory and each move its calls. With one rank REDUCE and GATHER vanish; with more,
 * transfers.h and arrange.h put them where a step runs them. A table that needs more than is built
 * is refused with a sentence that names the space or the move. */
#ifndef PARALLEL_UPDATE_H
#define PARALLEL_UPDATE_H

#include <engine/engine.h>
#include <parallel/transfers.h>

/* `transfers` is set once there are any, also if update_new fails later on. */
typedef struct update_how {
    optimizer_how_t optimizer;
    comm_t *comm;          /* NULL: planned only, no other rank is needed     */
    uint64_t bucket_bytes; /* gradients summed at a time; 0: the optimizer's or the host's choice */
    transfers_t **transfers; /* with a world of several: what moves in a step; freed by the caller
                                after engine_close */
} update_how_t;

/* Gives the weights gradients, master and states as the tables say. Before engine_build, and before
 * any program of these weights. Its one input is LH_INPUT_STEP [groups, LH_STEP_WORDS];
 * whether the step is applied is decided on the device and read from OUTPUT_STEP. */
lh_status_t update_new(engine_t *e, weights_t *w, const update_how_t *how,
                       program_t **out) LH_MUST_CHECK;

#endif
