/* graph/finish.h - gives memory back once the last step of a run is made, so that saving it takes
 * no more memory than the run did. */
#ifndef GRAPH_FINISH_H
#define GRAPH_FINISH_H

#include <graph/weights.h>

/* No program runs any more: waits for what is queued, then frees arenas, scratch, inputs, outputs,
 * constants, caches, gradients, and values that have a master. Weights and states can still be
 * read. Not where another process may read the memory. */
lh_status_t engine_finish(engine_t *e) LH_MUST_CHECK;
/* SPACE_PARAMETER or a state whose data was read for the last time. */
void weights_release(weights_t *w, uint32_t space);

#endif
