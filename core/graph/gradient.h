/* graph/gradient.h - the reverse pass: walks a recording's nodes back and records each op's
 * gradient.
 *
 * Gradients are recorded as models are: each op's row has a function that records the ops of its
 * gradient. So a plugin's op is differentiated like the core's, and what must be kept from the
 * forward pass is what nodes of the reverse pass read. The alternative, a tape that is written at
 * run time, would be made anew in every step. */
#ifndef GRAPH_GRADIENT_H
#define GRAPH_GRADIENT_H

#include <graph/recording.h>

/* Appends the reverse pass. seed: the gradient of r->output, an ARGUMENT of the same shape made by
 * the caller, or 0; each loss of the model's own is seeded with 1. wanted(context, name) says
 * whether a parameter has a gradient. *input_gradient is the gradient of `input`; 0 if input is 0
 * or no gradient reaches it. LH_UNSUPPORTED where an op on the way has no gradient; the recording
 * keeps a failure. */
lh_status_t gradient_append(recording_t *r, lh_value_t seed, lh_value_t input,
                            bool (*wanted)(void *context, const char *name), void *context,
                            lh_value_t *input_gradient) LH_MUST_CHECK;

#endif
