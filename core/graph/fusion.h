/* graph/fusion.h - joins ops of a recording into fused ones where the device has a kernel.
 *
 * What a model records does not depend on devices: it writes a product and an activation, and each
 * device that has a kernel for both at once gets one call. A fused op has a row like any
 * other, with a gradient of its own. */
#ifndef GRAPH_FUSION_H
#define GRAPH_FUSION_H

#include <graph/recording.h>

/* Replaces every group of nodes that a row's `fuses` describes by that row's op, if how.offers says
 * that the device has a kernel for the call. Before gradient_append. Rows that were added last are
 * tried first, so that a plugin's op goes before the core's. Values keep their ids; those that no
 * node makes any more become VALUE_NONE. Fails only where memory is short. */
lh_status_t fusion_apply(recording_t *r) LH_MUST_CHECK;

/* As fusion_apply, for the nodes of the reverse pass, after gradient_append: for rows that have no
 * gradient of their own. Nodes of the forward pass and their numbers stay. `kept` is a value that
 * must live on, the gradient of the part's input; 0: none. */
lh_status_t fusion_apply_backward(recording_t *r, lh_value_t kept) LH_MUST_CHECK;

#endif
