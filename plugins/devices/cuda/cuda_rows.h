/* cuda_rows.h - the kernel rows of the plugin's own kernels: one table an op group, one way to
 * prepare and to launch.
 *
 * cuda_rows_prepare() checks dtypes against the op's row, folds each argument into rows
 * (cuda_view_t) and lets the op's plan() check shapes and size its scratch. cuda_rows_launch() fills in
 * addresses and calls the op's launch(), which fills in a kernel's struct and starts it: no allocation
 * and no value read from memory, so a launch may be captured. Grids depend on shapes only, never on
 * the GPU, so that the bits do not either.
 *
 * Who adds an op writes its kernel, its struct (kernels/cuda_params.h), a plan, a launch, and a row in
 * the table of its rows_*.c. */
#ifndef CUDA_ROWS_H
#define CUDA_ROWS_H

#include <string.h>

#include <longhaul/dtype.h>
#include <longhaul/plugin.h>
#include <longhaul/rule.h>

#include "../op_slots.h"
#include "cuda_launch.h"
#include "kernels/cuda_params.h"

enum { CUDA_NUMBERS = 8 }; /* that a plan keeps for its launch */

typedef struct cuda_op cuda_op_t;

struct lh_prepared {
    const lh_host_t *host;
    const cuda_op_t *op;
    uint32_t arg_count;
    lh_arg_t arg[LH_MAX_SLOTS]; /* inputs, then outputs, as in ops.h                            */
    cuda_view_t
        view[LH_MAX_SLOTS]; /* the same as rows; rows 0: left out. Addresses come at launch */
    op_attributes_t how;    /* zero where the desc had none */
    uint64_t number[CUDA_NUMBERS];
    uint64_t shared_most; /* bytes of shared memory that a block may have on this GPU */
    void *scratch;        /* set at launch; plan->scratch_bytes */
};

struct cuda_op {
    const char *name;
    /* The dtypes of its slots, in slot order:
     *   x F32, BF16 or F16, the same for every x   y the same for every y
     *   m F32, BF16 or F16, each its own           v any dtype
     *   f F32   i I32   - must be left out         ? behind a slot: may be left out */
    const char *slots;
    lh_status_t (*plan)(lh_prepared_t *k, lh_kernel_plan_t *plan);
    lh_status_t (*launch)(const lh_prepared_t *k, lh_stream_t *s);
};

/* The tables, each with a last row whose name is NULL. */
extern const cuda_op_t cuda_element_ops[], cuda_norm_ops[], cuda_loss_ops[], cuda_update_ops[],
    cuda_attention_ops[], cuda_route_ops[], cuda_product_ops[];

/* The functions of every row of the plugin's kernel table, for all of LH_OPS_BASE and LH_OPS_MORE. */
lh_status_t cuda_rows_fits(const lh_host_t *host, const lh_device_t *d, const void *config,
                           const lh_kernel_desc_t *desc);
lh_status_t cuda_rows_prepare(const lh_host_t *host, lh_device_t *d, const lh_kernel_desc_t *desc,
                              lh_kernel_plan_t *plan, lh_prepared_t **out);
lh_status_t cuda_rows_launch(lh_prepared_t *k, const lh_launch_t *call);
void cuda_rows_release(lh_prepared_t *k);

/* ---- for plans ---- */

static inline bool cuda_has(const lh_prepared_t *k, uint32_t slot)
{
    return slot < k->arg_count && k->view[slot].rows != 0;
}

static inline uint64_t cuda_elements(const cuda_view_t *v)
{
    return v->rows * v->width;
}

/* Of as many rows and columns as slot `like`. A slot that is left out passes. */
lh_status_t cuda_check_like(const lh_prepared_t *k, uint32_t like, uint32_t slot);
/* A slot of rows x width; of `elements` that lie without gaps. A slot that is left out passes. */
lh_status_t cuda_check_shape(const lh_prepared_t *k, uint32_t slot, uint64_t rows, uint64_t width);
lh_status_t cuda_check_flat(const lh_prepared_t *k, uint32_t slot, uint64_t elements);

/* ---- for launches ---- */

static inline uint64_t cuda_parts(uint64_t items, uint64_t each)
{
    return (items + each - 1) / each;
}

/* One row of all elements, where every view's rows lie back to back: no division in the kernel. The
 * views are of one shape; those with at == NULL don't count. */
void cuda_fold(cuda_view_t *const *views, uint32_t count);

/* A thread for each octet of x. */
lh_status_t cuda_launch_octets(lh_stream_t *s, const char *kernel, const cuda_view_t *x,
                               const void *params, size_t bytes);
/* A team of threads for each of `rows` rows of `width` columns. */
lh_status_t cuda_launch_teams(lh_stream_t *s, const char *kernel, uint64_t rows, uint64_t width,
                              const void *params, size_t bytes);
/* Threads that share a row of this width: whole warps, an octet each up to CUDA_TEAM_LIMIT. */
uint32_t cuda_team(uint64_t width);

/* y = (partial[0] + partial[1] + ...) / count, of y's width each. */
lh_status_t cuda_launch_partials(lh_stream_t *s, const float *partial, uint64_t parts,
                                 const cuda_view_t *y, float count);

#endif
