/* matmul_kernels.c - matmul by oneDNN on its own threads, with what it does not do behind it:
 * activations with the value before them kept. BF16 where F32 products are faster or the only ones
 * goes another way: matmul_blocks_kernels.c.
 *
 * oneDNN and not kernels of our own: its generated code for matmul is what a processor's vendor
 * tunes. The activation is not given to it, as a gradient needs the value before, which it does not
 * keep. */
#include "matmul.h"
#include "products.h"

enum { LIBRARY = 0 }; /* matmul[] */

static const uint64_t chunk_elements = 16384;

/* On the launching thread, outside of any parallel region, as oneDNN opens one itself. */
static lh_status_t library_product(const lh_prepared_t *k)
{
    const uint32_t target = cpu_has(k, out_aux) ? out_aux : out_c;
    k->device->openmp.set_threads((int)k->stream->threads.count);
    return onednn_matmul_run(k->matmul[LIBRARY], 0, k->at[in_a], k->at[in_b], k->at[in_bias],
                             k->at[target], k->scratch);
}

/* Rows of c that one part finishes. */
static uint64_t finish_chunk(const lh_prepared_t *k)
{
    const uint64_t rows = chunk_elements / k->view[out_c].width;
    return rows == 0 ? 1 : rows;
}

static void finish_part(const lh_prepared_t *k, uint32_t part)
{
    uint64_t row, end;
    cpu_range(part, finish_chunk(k), k->view[out_c].rows, &row, &end);
    for (; row < end; row++)
        matmul_finish_row(k, row, NULL);
}

/* ---- plan ---- */

/* Reads m, n and k off the arguments, and refuses what neither way can do. */
static lh_status_t matmul_shapes(const lh_prepared_t *k, onednn_matmul_how_t *how)
{
    const lh_matmul_t *op = &k->how.matmul;
    const cpu_view_t *a = &k->view[in_a], *b = &k->view[in_b], *c = &k->view[out_c],
                     *aux = &k->view[out_aux];
    how->m = op->transpose_a != 0 ? a->width : a->rows;
    how->k = op->transpose_a != 0 ? a->rows : a->width;
    how->n = op->transpose_b != 0 ? b->rows : b->width;
    const uint64_t k_of_b = op->transpose_b != 0 ? b->width : b->rows;
    if (how->k != k_of_b || c->rows != how->m || c->width != how->n)
        return k->host->fail(
            k->host, LH_INVALID, "matmul: [%llu, %llu] times [%llu, %llu] into [%llu, %llu]",
            (unsigned long long)how->m, (unsigned long long)how->k, (unsigned long long)k_of_b,
            (unsigned long long)how->n, (unsigned long long)c->rows, (unsigned long long)c->width);
    if (cpu_has(k, in_bias) && k->view[in_bias].rows * k->view[in_bias].width != how->n)
        return k->host->fail(k->host, LH_INVALID, "matmul: a bias of %llu on %llu columns",
                             (unsigned long long)(k->view[in_bias].rows * k->view[in_bias].width),
                             (unsigned long long)how->n);
    const lh_dtype_t bias = k->view[in_bias].dtype;
    if (bias != LH_DTYPE_NONE && bias != LH_DTYPE_F32 && bias != a->dtype)
        return k->host->fail(k->host, LH_UNSUPPORTED,
                             "matmul on the cpu takes a bias in f32 or its inputs' dtype");
    if (cpu_has(k, out_aux) &&
        (aux->rows != c->rows || aux->width != c->width || aux->dtype != c->dtype))
        return k->host->fail(k->host, LH_UNSUPPORTED,
                             "matmul: aux has not the shape and dtype of c");
    if (a->dtype == LH_DTYPE_F32 && c->dtype != LH_DTYPE_F32)
        return k->host->fail(k->host, LH_UNSUPPORTED, "matmul of f32 gives f32 only");
    if (op->activation > LH_ACT_TANH ||
        ((c->flags & LH_ARG_ADD) != 0 && (op->activation != LH_ACT_NONE || cpu_has(k, out_aux))))
        return k->host->fail(k->host, LH_UNSUPPORTED, "matmul: activation %u%s", op->activation,
                             (c->flags & LH_ARG_ADD) != 0 ? " and adding" : "");
    return LH_OK;
}

/* A vector has one line, whose pitch nobody may look at. */
static onednn_matrix_t matrix_of(const lh_prepared_t *k, uint32_t slot, uint32_t transposed)
{
    const cpu_view_t *v = &k->view[slot];
    return (onednn_matrix_t){
        .dtype = v->dtype, .transposed = transposed, .pitch = v->rows == 1 ? v->width : v->pitch};
}

/* The product goes into aux where there is one, and the activation from there into c. */
static lh_status_t matmul_library_plan(lh_prepared_t *k, const onednn_matmul_how_t *shapes,
                                       uint32_t threads, lh_kernel_plan_t *plan)
{
    const lh_matmul_t *op = &k->how.matmul;
    const bool has_aux = cpu_has(k, out_aux);
    onednn_matmul_how_t how = *shapes;
    how.a = matrix_of(k, in_a, op->transpose_a);
    how.b = matrix_of(k, in_b, op->transpose_b);
    how.bias = matrix_of(k, in_bias, 0);
    how.c = matrix_of(k, has_aux ? out_aux : out_c, 0);
    how.add = (k->view[out_c].flags & LH_ARG_ADD) != 0;
    how.lanes = 1;
    k->device->openmp.set_threads((int)threads);
    const lh_status_t status = onednn_matmul_new(k->device->onednn, &how, &k->matmul[LIBRARY]);
    if (status != LH_OK) return status;
    plan->scratch_bytes = onednn_matmul_scratch_bytes(k->matmul[LIBRARY]);
    k->phase[k->phases++].alone = library_product;
    if (has_aux || op->activation != LH_ACT_NONE)
        cpu_phase_add(k, finish_part, k->view[out_c].rows, finish_chunk(k));
    return LH_OK;
}

/* One of the two ways, named after the library's choice for its first product. */
static lh_status_t matmul_build(lh_prepared_t *k, const lh_kernel_desc_t *desc, bool wide,
                                lh_kernel_plan_t *plan)
{
    const uint32_t threads = products_threads(k, desc);
    onednn_matmul_how_t how = {0};
    lh_status_t status = matmul_shapes(k, &how);
    if (status == LH_OK)
        status = wide ? CPU_ISA(matmul_blocks_plan)(k, &how, threads, plan)
                      : matmul_library_plan(k, &how, threads, plan);
    if (status != LH_OK) return status;
    products_name(k, "matmul", wide, onednn_matmul_name(k->matmul[LIBRARY]), LH_FNV_BEGIN, plan);
    return LH_OK;
}

static lh_status_t matmul_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                               lh_kernel_plan_t *plan)
{
    return products_plan(k, desc, matmul_build, plan);
}

const cpu_op_t CPU_ISA(matmul_ops)[] = {{"matmul", "xxm?-?-?ym?-?", matmul_plan},
                                        {NULL, NULL, NULL}};
