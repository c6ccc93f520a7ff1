/* longhaul/draft/ops.h - ops that are named and not yet defined: no row of the host's records them,
 * so a kernel for one is never asked for. Each moves to ops.h with its row. */
#ifndef LH_DRAFT_OPS_H
#define LH_DRAFT_OPS_H

#include <longhaul/ops.h>

/* name, slots, and what is not obvious */
#define LH_OPS_DRAFT(X)                                                                \
    X(quantize, "x scale -> y amax", "to F8; scale and amax [1] F32 in device memory") \
    X(scale_update, "history amax -> history scale", "delayed scaling; history is saved state")

#endif
