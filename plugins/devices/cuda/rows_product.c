/* rows_product.c - matrix products by the plugin's own kernel: what no library takes. */
#include "cuda_rows.h"

static cuda_shape_t product_shape(uint64_t n, uint64_t m, uint64_t groups)
{
    return (cuda_shape_t){.grid = {(uint32_t)cuda_parts(n, CUDA_PRODUCT_TILE),
                                   (uint32_t)cuda_parts(m, CUDA_PRODUCT_TILE), (uint32_t)groups},
                          .block = {CUDA_THREADS, 1, 1}};
}

/* ---- matmul: a b bias? scale_a? scale_b? -> c+ aux? amax? ---- */

static lh_status_t matmul_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_MATMUL_TEXT);
    (void)plan;
    const lh_matmul_t *how = &k->how.matmul;
    const cuda_view_t *a = &k->view[in_a], *b = &k->view[in_b], *c = &k->view[out_c];
    const uint64_t depth = how->transpose_a != 0 ? a->rows : a->width;
    const uint64_t m = how->transpose_a != 0 ? a->width : a->rows;
    const uint64_t n = how->transpose_b != 0 ? b->rows : b->width;
    if ((how->transpose_b != 0 ? b->width : b->rows) != depth || c->rows != m || c->width != n ||
        m > (uint64_t)65535 * CUDA_PRODUCT_TILE)
        return k->host->fail(
            k->host, LH_UNSUPPORTED,
            "matmul: a %llu x %llu, b %llu x %llu, c %llu x %llu, transposes %u, %u",
            (unsigned long long)a->rows, (unsigned long long)a->width, (unsigned long long)b->rows,
            (unsigned long long)b->width, (unsigned long long)c->rows, (unsigned long long)c->width,
            how->transpose_a, how->transpose_b);
    lh_status_t status = cuda_check_flat(k, in_bias, n);
    if (status == LH_OK) status = cuda_check_flat(k, in_scale_a, 1);
    if (status == LH_OK) status = cuda_check_flat(k, in_scale_b, 1);
    return status != LH_OK ? status : cuda_check_like(k, out_c, out_aux);
}

static lh_status_t matmul_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_MATMUL_TEXT);
    const lh_matmul_t *how = &k->how.matmul;
    const cuda_view_t *a = &k->view[in_a], *b = &k->view[in_b];
    const bool ta = how->transpose_a != 0, tb = how->transpose_b != 0;
    cuda_matmul_t p = {.a = a->at,
                       .b = b->at,
                       .c = k->view[out_c],
                       .scale_a = cuda_has(k, in_scale_a) ? k->view[in_scale_a].at : NULL,
                       .scale_b = cuda_has(k, in_scale_b) ? k->view[in_scale_b].at : NULL,
                       .m = k->view[out_c].rows,
                       .n = k->view[out_c].width,
                       .depth = ta ? a->rows : a->width,
                       .a_row = ta ? 1 : a->pitch,
                       .a_depth = ta ? a->pitch : 1,
                       .b_column = tb ? b->pitch : 1,
                       .b_depth = tb ? 1 : b->pitch,
                       .dtype = a->dtype,
                       .activation = how->activation};
    if (cuda_has(k, in_bias)) p.bias = k->view[in_bias];
    if (cuda_has(k, out_aux)) p.aux = k->view[out_aux];
    const cuda_shape_t shape = product_shape(p.n, p.m, 1);
    return cuda_launch(s, "cuda_matmul", &shape, &p, sizeof(p));
}

/* ---- grouped_matmul: a b offsets -> c ---- */

static lh_status_t grouped_matmul_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_GROUPED_MATMUL_TEXT);
    (void)plan;
    const lh_arg_t *b = &k->arg[in_b];
    const uint64_t experts = cuda_elements(&k->view[in_offsets]) - 1;
    const bool turned = k->how.grouped.transpose_b != 0;
    const cuda_view_t *a = &k->view[in_a], *c = &k->view[out_c];
    if (b->rank != 3 || b->shape[0] != experts || b->shape[turned ? 2 : 1] != a->width ||
        b->shape[turned ? 1 : 2] != c->width || experts == 0 || experts > 65535 ||
        a->rows > (uint64_t)65535 * CUDA_PRODUCT_TILE)
        return k->host->fail(k->host, LH_UNSUPPORTED,
                             "grouped_matmul: rows of %llu and %llu, %llu experts of %llu x %llu",
                             (unsigned long long)a->width, (unsigned long long)c->width,
                             (unsigned long long)b->shape[0], (unsigned long long)b->shape[1],
                             (unsigned long long)b->shape[2]);
    return cuda_check_shape(k, out_c, a->rows, c->width);
}

static lh_status_t grouped_matmul_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_GROUPED_MATMUL_TEXT);
    const lh_arg_t *b = &k->arg[in_b];
    const bool turned = k->how.grouped.transpose_b != 0;
    const cuda_matmul_t p = {.a = k->view[in_a].at,
                             .b = k->view[in_b].at,
                             .c = k->view[out_c],
                             .offsets = k->view[in_offsets].at,
                             .m = k->view[in_a].rows,
                             .n = k->view[out_c].width,
                             .depth = k->view[in_a].width,
                             .a_row = k->view[in_a].pitch,
                             .a_depth = 1,
                             .b_column = turned ? k->view[in_b].pitch : 1,
                             .b_depth = turned ? 1 : k->view[in_b].pitch,
                             .b_group = b->stride[0],
                             .dtype = k->view[in_a].dtype,
                             .groups = CUDA_GROUPS_ROWS};
    const cuda_shape_t shape = product_shape(p.n, p.m, b->shape[0]);
    return cuda_launch(s, "cuda_matmul", &shape, &p, sizeof(p));
}

/* ---- grouped_matmul_grad: a g offsets -> gb+ ---- */

static lh_status_t grouped_matmul_grad_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_GROUPED_MATMUL_GRAD_TEXT);
    (void)plan;
    const lh_arg_t *gb = &k->arg[out_gb];
    const cuda_view_t *a = &k->view[in_a], *g = &k->view[in_g];
    const uint64_t experts = cuda_elements(&k->view[in_offsets]) - 1;
    if (gb->rank != 3 || gb->shape[0] != experts || gb->shape[1] != a->width ||
        gb->shape[2] != g->width || experts == 0 || experts > 65535 ||
        a->width > (uint64_t)65535 * CUDA_PRODUCT_TILE)
        return k->host->fail(k->host, LH_UNSUPPORTED,
                             "grouped_matmul_grad: rows of %llu and %llu for %llu x %llu x %llu",
                             (unsigned long long)a->width, (unsigned long long)g->width,
                             (unsigned long long)gb->shape[0], (unsigned long long)gb->shape[1],
                             (unsigned long long)gb->shape[2]);
    return cuda_check_shape(k, in_g, a->rows, g->width);
}

static lh_status_t grouped_matmul_grad_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_GROUPED_MATMUL_GRAD_TEXT);
    const cuda_matmul_t p = {.a = k->view[in_a].at,
                             .b = k->view[in_g].at,
                             .c = k->view[out_gb],
                             .offsets = k->view[in_offsets].at,
                             .m = k->view[in_a].width,
                             .n = k->view[in_g].width,
                             .depth = k->view[in_a].rows,
                             .a_row = 1,
                             .a_depth = k->view[in_a].pitch,
                             .b_column = 1,
                             .b_depth = k->view[in_g].pitch,
                             .c_group = k->view[in_a].width,
                             .dtype = k->view[in_a].dtype,
                             .groups = CUDA_GROUPS_DEPTH};
    const cuda_shape_t shape = product_shape(p.n, p.m, k->arg[out_gb].shape[0]);
    return cuda_launch(s, "cuda_matmul", &shape, &p, sizeof(p));
}

const cuda_op_t cuda_product_ops[] = {
    {"matmul", "xxm?f?f?mm?-", matmul_plan, matmul_launch},
    {"grouped_matmul", "xxim", grouped_matmul_plan, grouped_matmul_launch},
    {"grouped_matmul_grad", "xxim", grouped_matmul_grad_plan, grouped_matmul_grad_launch},
    {NULL, NULL, NULL, NULL},
};
