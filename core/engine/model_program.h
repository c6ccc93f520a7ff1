/* engine/model_program.h - writes programs of a model: training, scoring, generation.
 *
 * The model's parts are recorded once for the sizes of the program; what a run does is then written
 * as a flow, one instance of a part after the other, in the order of the schedule. So a program
 * fits one set of sizes, and another batch or sequence length is another program. */
#ifndef ENGINE_MODEL_PROGRAM_H
#define ENGINE_MODEL_PROGRAM_H

#include <engine/program.h>

/* Records the model's parts and writes a flow for one round of the schedule; without a schedule a
 * run is one micro-batch, there and back where it trains. The engine owns the program; after a
 * failure too, and must then be closed. Before engine_arrange, in the control thread. LH_INVALID
 * for sizes that make no sense or what the model records wrongly, LH_UNSUPPORTED for what is not
 * built.
 *
 * Inputs by use. TRAIN, SCORE: TOKENS, POSITIONS, STARTS, LABELS, WEIGHTS. DECODE: TOKENS,
 * POSITIONS, LENGTHS (rows that are in the cache already, before these). UPDATE, of
 * parallel/update.h: STEP. All of them: SEED. A program has those that its model records. */
lh_status_t program_new(engine_t *e, weights_t *w, const program_how_t *how,
                        program_t **out) LH_MUST_CHECK;

#endif
