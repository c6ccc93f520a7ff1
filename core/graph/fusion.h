/* graph/fusion.h - joins ops of a forward recording into fused ones where the device has a kernel.
 *
 * What a model records stays free of devices: it writes an activation and a product, and each
 * device that has a kernel for both gets one call. The gradient of a fused op is stated by its row
 * like any other. */
#ifndef GRAPH_FUSION_H
#define GRAPH_FUSION_H

#include <graph/recording.h>

/* Before gradient_append: every recording that a row's `fuses` names becomes that op, if how.offers
 * says that the device has a kernel for it. Rows that came last are tried first, so that a plugin's
 * op goes before the core's. Values keep their ids; those that nothing makes any more become
 * VALUE_NONE. */
lh_status_t fusion_apply(recording_t *r) LH_MUST_CHECK;

#endif
