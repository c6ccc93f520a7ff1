/* graph/adapted_layer.h - what the recorder adds behind a linear layer whose matrix has an adapter
 * (parameters.h). A model knows nothing of it. */
#ifndef GRAPH_ADAPTED_LAYER_H
#define GRAPH_ADAPTED_LAYER_H

#include <graph/recording.h>

/* Whether a call is of a linear layer whose matrix has an adapter: then its scale, and whether it has
 * magnitudes. A layer that is recorded as another one is adapted once, behind the outer one. */
bool adapted_layer_is(const recording_t *r, const op_t *op, const lh_value_t *in, uint32_t in_count,
                      double *scale, bool *magnitude);
/* What such a layer gives: y + scale (x A') B', and each column of that times its magnitude where the
 * adapter has those. in: x and weight, the inputs of the layer, y its output; with a magnitude its output
 * without the bias, which is then added here (0: there is none). 0 after a failure, which the recording keeps. */
lh_value_t adapted_layer_change(recording_t *r, const lh_value_t *in, lh_value_t bias, lh_value_t y,
                                double scale, bool magnitude);

#endif
