/* graph/fusion.h - joins ops of a forward recording into fused ones where the device has a kernel.
 */
#ifndef GRAPH_FUSION_H
#define GRAPH_FUSION_H

#include <graph/recording.h>

/* Could the device compute this call? args in slot order, outputs included. */
typedef bool (*fusion_has_kernel_t)(void *context, const op_t *op, const void *attributes,
                                    const lh_arg_t *args, uint32_t arg_count);

/* Before recording_differentiate:
 *   multiply(activate(a), b)     becomes gate(a, b)
 *   activate(matmul(a, b, bias)) becomes matmul with that activation
 *   rms_norm(add(a, b), w)       becomes add_rms_norm(a, b, w)
 * Values keep their ids; those that nothing makes any more become VALUE_NONE. */
lh_status_t recording_fuse(recording_t *r, fusion_has_kernel_t has_kernel,
                           void *context) LH_MUST_CHECK;

#endif
