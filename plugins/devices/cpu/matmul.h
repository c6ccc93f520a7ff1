/* matmul.h - what the two ways to do a matmul share: the slots, and what comes behind the product.
 *
 * One way hands the whole product to oneDNN, which runs it on all threads (matmul_kernels.c); the
 * other has each thread call oneDNN for a block of its own (matmul_blocks_kernels.c). */
#ifndef LH_CPU_MATMUL_H
#define LH_CPU_MATMUL_H

#include "activation.h"
#include "onednn.h"

LH_SLOTS(LH_MATMUL_TEXT);

/* BF16 by F32 products, block by block: matmul_blocks_kernels.c. Plans phases and scratch; how has
 * m, n and k. */
lh_status_t CPU_ISA(matmul_blocks_plan)(lh_prepared_t *k, const onednn_matmul_how_t *how,
                                        uint32_t lanes, lh_kernel_plan_t *plan);

/* One row of c = act(v). v is the product as it is stored in aux or, without one, would be, so that
 * a gradient that sees aux sees what was activated. wide: the product in F32 where it lies in
 * scratch; NULL: it is in aux or c already. */
CPU_INLINE void matmul_finish_row(const lh_prepared_t *k, uint64_t row, const float *wide)
{
    const cpu_view_t *c = &k->view[out_c];
    const uint32_t function = k->how.matmul.activation;
    const bool add = (c->flags & LH_ARG_ADD) != 0, has_aux = cpu_has(k, out_aux);
    void *out = cpu_row(k, out_c, row);
    void *kept = cpu_row(k, has_aux ? out_aux : out_c, row);

    for (uint64_t i = 0; i < c->width; i += LANES) {
        const uint64_t m = vf_span(i, c->width);
        vf v;
        if (wide == NULL) {
            v = vf_get(kept, c->dtype, i, m);
        } else {
            v = vf_get(wide, LH_DTYPE_F32, i, m);
            if (add) v = v + vf_get(out, c->dtype, i, m);
            if (has_aux) vf_put(kept, c->dtype, i, m, v);
            if (function != LH_ACT_NONE) v = vf_from_bf16(vf_to_bf16(v));
        }
        vf_put(out, c->dtype, i, m, act_apply(function, v));
    }
}

#endif
