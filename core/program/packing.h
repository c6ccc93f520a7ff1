/* program/packing.h - joins products that share an input into one, for devices that ask for it
 * (LH_DEVICE_PACKS).
 *
 * A block multiplies the same rows by several weights: q, k and v; gate and up. Any op whose row says
 * that it is a product (lh_op_t.product) is joined with calls of the same op. Small products leave
 * much of a large device idle, and each reads the rows again. Where the weights lie side by side
 * they are one matrix, whose product has the outputs as its columns; and so have both gradients.
 *
 *    apart                            as one
 *    q = x Wq'   k = x Wk'            [q k] = x [Wq; Wk]'
 *    gx = gq Wq, gx += gk Wk          gx = [gq gk] [Wq; Wk]
 *    gWq += gq' x   gWk += gk' x      [gWq; gWk] += [gq gk]' x
 *
 * Parameters stay what they are to everybody else: names, shards, checkpoints and transfers know
 * nothing of it. The price: gx is one sum where there were several, rounded at other places, and a
 * library may take another algorithm for the wider product. So bits change, and devices whose jobs
 * must keep theirs do not ask for it. */
#ifndef PROGRAM_PACKING_H
#define PROGRAM_PACKING_H

#include <program/flow.h>

typedef struct packing_how {
    uint64_t alignment; /* of every place, in bytes; a power of two */
    /* [flow->buffer_count] by buffer of a weight or of its gradient: a number that is 1 more for the
     * one that stands next to it wherever both are kept. 0: any other buffer. */
    const uint32_t *order;
    /* Whether the device has a kernel for a call, by its arguments as the flow has them now. */
    bool (*offers)(void *device, const flow_t *f, const flow_call_t *call);
    void *device;
} packing_how_t;

/* Rewrites the flow: before transfers are put in, and before flow_finish. Calls are renumbered;
 * values keep their numbers, and may lie in another buffer than before; flow_buffer_t.joined says
 * where a buffer of weights or gradients has gone. Memory that is not joined in full is left as it
 * is. Fails only where memory is short. */
lh_status_t packing_apply(flow_t *f, const packing_how_t *how) LH_MUST_CHECK;

#endif
