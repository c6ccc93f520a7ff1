/* parallel/update.h - the optimizer step as a program, made from an optimizer's tables and a rule.
 *
 * The optimizer plugin lists spaces and moves (longhaul/optimizer.h); this file gives each space
 * its memory and each move its calls. With one rank the moves REDUCE and GATHER are no work; with
 * more, arrange.h puts their transfers where a step runs them. A table that needs more than is
 * built is refused with a sentence that names the space or the move. */
#ifndef PARALLEL_UPDATE_H
#define PARALLEL_UPDATE_H

#include <engine/engine.h>
#include <parallel/transfers.h>

/* Borrowed while update_new runs, but for the world and the comm, which outlive the transfers. */
typedef struct update_how {
    optimizer_how_t optimizer;
    comm_t *comm;          /* NULL: planned only, no other rank is needed     */
    uint64_t bucket_bytes; /* gradients summed at a time; 0: the optimizer's or the host's choice */
    lh_dtype_t border; /* of their sums between sites; I8: packed; 0: as the moves say, or values */
    transfers_t **transfers; /* out, with a world of several: what moves in a step. Set also if
                                update_new fails later on; freed by the caller after
                                engine_close */
} update_how_t;

/* Gives the weights gradients, master and states as the tables say, and writes the update program,
 * which the engine owns. Before any other program of these weights, and before engine_build. The
 * program's one input is LH_INPUT_STEP, F32 [groups, LH_STEP_WORDS]; the device decides whether the
 * step is applied, which is read from OUTPUT_STEP of the same shape. LH_INVALID or LH_UNSUPPORTED,
 * with a sentence, for tables and rules that can't be run. Called by the control thread. */
lh_status_t update_new(engine_t *e, weights_t *w, const update_how_t *how,
                       program_t **out) LH_MUST_CHECK;

#endif
