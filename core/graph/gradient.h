/* graph/gradient.h - the reverse pass: walks a recording's nodes back and records each op's
 * gradient.
 *
 * Gradients are recordings like models: each op's row has a function that records the ops of its
 * gradient, so a plugin's op is differentiated like the core's, and what the way back needs of the
 * way there is what its nodes read. The alternative, a tape that is kept at run time, would be
 * made anew in every step. */
#ifndef GRAPH_GRADIENT_H
#define GRAPH_GRADIENT_H

#include <graph/recording.h>

/* Appends the reverse pass (and seeds each loss() with 1): `seed` is the gradient of r->output (an
 * ARGUMENT made by the caller); wanted(context, name) says whether a parameter has a gradient. On
 * success *input_gradient is the gradient of `input` (0 if input is 0 or nothing flows there). */
lh_status_t gradient_append(recording_t *r, lh_value_t seed, lh_value_t input,
                            bool (*wanted)(void *context, const char *name), void *context,
                            lh_value_t *input_gradient) LH_MUST_CHECK;

#endif
