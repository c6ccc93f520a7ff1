/* graph/gradient.h - the reverse pass: walks a recording's nodes back and records each op's gradient. */
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
