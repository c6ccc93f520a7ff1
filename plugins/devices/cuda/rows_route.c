/* rows_route.c - the largest of a row, and rows of experts. */
#include "cuda_rows.h"

static lh_status_t top_k_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_TOP_K_TEXT);
    (void)plan;
    const cuda_view_t *x = &k->view[in_x];
    if (k->view[out_ids].width > x->width || x->width > INT32_MAX)
        return k->host->fail(k->host, LH_UNSUPPORTED, "top_k: the largest %llu of %llu",
                             (unsigned long long)k->view[out_ids].width,
                             (unsigned long long)x->width);
    const lh_status_t status = cuda_check_shape(k, out_ids, x->rows, k->view[out_ids].width);
    return status != LH_OK ? status : cuda_check_like(k, out_ids, out_values);
}

static lh_status_t top_k_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_TOP_K_TEXT);
    const cuda_top_k_t p = {.x = k->view[in_x],
                            .values = k->view[out_values],
                            .ids = k->view[out_ids],
                            .k = (uint32_t)k->view[out_ids].width};
    const uint32_t warps = CUDA_THREADS / 32;
    const cuda_shape_t shape = {.grid = {(uint32_t)cuda_parts(p.x.rows, warps), 1, 1},
                                .block = {32, warps, 1}};
    return cuda_launch(s, "cuda_top_k", &shape, &p, sizeof(p));
}

static lh_status_t top_k_grad_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_TOP_K_GRAD_TEXT);
    (void)plan;
    const lh_status_t status = cuda_check_like(k, in_gvalues, in_ids);
    if (status != LH_OK) return status;
    return cuda_check_shape(k, out_gx, k->view[in_gvalues].rows, k->view[out_gx].width);
}

static lh_status_t top_k_grad_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_TOP_K_GRAD_TEXT);
    const cuda_top_k_grad_t p = {
        .gvalues = k->view[in_gvalues], .ids = k->view[in_ids], .gx = k->view[out_gx]};
    return cuda_launch_octets(s, "cuda_top_k_grad", &p.gx, &p, sizeof(p));
}

static lh_status_t route_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_ROUTE_TEXT);
    (void)plan;
    const cuda_view_t *offsets = &k->view[out_offsets];
    const lh_status_t status = cuda_check_flat(k, out_order, cuda_elements(&k->view[in_ids]));
    if (status != LH_OK || cuda_elements(offsets) < 2)
        return status != LH_OK ? status
                               : k->host->fail(k->host, LH_UNSUPPORTED, "route: no expert");
    return cuda_check_flat(k, out_offsets, cuda_elements(offsets));
}

static lh_status_t route_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_ROUTE_TEXT);
    const cuda_route_t p = {.ids = k->view[in_ids],
                            .order = k->view[out_order].at,
                            .offsets = k->view[out_offsets].at,
                            .picks = cuda_elements(&k->view[in_ids])};
    const cuda_shape_t shape = {
        .grid = {(uint32_t)(cuda_elements(&k->view[out_offsets]) - 1), 1, 1},
        .block = {CUDA_THREADS, 1, 1}};
    return cuda_launch(s, "cuda_route", &shape, &p, sizeof(p));
}

static lh_status_t route_load_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_ROUTE_LOAD_TEXT);
    (void)plan;
    const uint64_t experts = cuda_elements(&k->view[out_load]);
    const lh_status_t status = cuda_check_flat(k, out_load, experts);
    return status != LH_OK ? status : cuda_check_flat(k, in_offsets, experts + 1);
}

static lh_status_t route_load_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_ROUTE_LOAD_TEXT);
    const cuda_route_load_t p = {.offsets = k->view[in_offsets].at,
                                 .load = k->view[out_load].at,
                                 .experts = (uint32_t)cuda_elements(&k->view[out_load])};
    const cuda_shape_t shape = {.grid = {(uint32_t)cuda_parts(p.experts, CUDA_THREADS), 1, 1},
                                .block = {CUDA_THREADS, 1, 1}};
    return cuda_launch(s, "cuda_route_load", &shape, &p, sizeof(p));
}

/* Rows of picks and rows of tokens: k times as many. */
static lh_status_t picks_check(const lh_prepared_t *k, uint32_t picked, uint32_t order,
                               uint32_t tokens)
{
    const cuda_view_t *many = &k->view[picked], *few = &k->view[tokens];
    if (k->how.picks.k == 0 || many->rows != few->rows * k->how.picks.k)
        return k->host->fail(k->host, LH_UNSUPPORTED, "%s: %llu rows for %llu tokens, %u each",
                             k->op->name, (unsigned long long)many->rows,
                             (unsigned long long)few->rows, k->how.picks.k);
    const lh_status_t status = cuda_check_flat(k, order, many->rows);
    return status != LH_OK ? status : cuda_check_shape(k, picked, many->rows, few->width);
}

static lh_status_t gather_rows_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_GATHER_ROWS_TEXT);
    (void)plan;
    return picks_check(k, out_y, in_order, in_x);
}

static lh_status_t gather_rows_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_GATHER_ROWS_TEXT);
    const cuda_gather_rows_t p = {.x = k->view[in_x],
                                  .y = k->view[out_y],
                                  .order = k->view[in_order].at,
                                  .k = k->how.picks.k};
    return cuda_launch_octets(s, "cuda_gather_rows", &p.y, &p, sizeof(p));
}

static lh_status_t scatter_rows_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_SCATTER_ROWS_TEXT);
    plan->scratch_bytes = k->view[in_x].rows * sizeof(int32_t);
    const lh_status_t status = picks_check(k, in_x, in_order, out_y);
    return status != LH_OK ? status
                           : cuda_check_shape(k, in_shares, k->view[out_y].rows, k->how.picks.k);
}

static lh_status_t scatter_rows_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_SCATTER_ROWS_TEXT);
    const cuda_invert_t invert = {
        .order = k->view[in_order].at, .place = k->scratch, .count = k->view[in_x].rows};
    const cuda_shape_t each = {.grid = {(uint32_t)cuda_parts(invert.count, CUDA_THREADS), 1, 1},
                               .block = {CUDA_THREADS, 1, 1}};
    const lh_status_t status = cuda_launch(s, "cuda_invert", &each, &invert, sizeof(invert));
    if (status != LH_OK) return status;
    cuda_scatter_rows_t p = {
        .x = k->view[in_x], .y = k->view[out_y], .place = k->scratch, .k = k->how.picks.k};
    if (cuda_has(k, in_shares)) p.shares = k->view[in_shares];
    return cuda_launch_octets(s, "cuda_scatter_rows", &p.y, &p, sizeof(p));
}

static lh_status_t scatter_rows_grad_plan(lh_prepared_t *k, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_SCATTER_ROWS_GRAD_TEXT);
    (void)plan;
    lh_status_t status = picks_check(k, in_x, in_order, in_gy);
    if (status == LH_OK) status = cuda_check_like(k, in_x, out_gx);
    if (status == LH_OK)
        status = cuda_check_shape(k, in_shares, k->view[in_gy].rows, k->how.picks.k);
    return status != LH_OK ? status : cuda_check_like(k, in_shares, out_gshares);
}

static lh_status_t scatter_rows_grad_launch(const lh_prepared_t *k, lh_stream_t *s)
{
    LH_SLOTS(LH_SCATTER_ROWS_GRAD_TEXT);
    const cuda_scatter_rows_grad_t p = {.gy = k->view[in_gy],
                                        .x = k->view[in_x],
                                        .shares = k->view[in_shares],
                                        .gx = k->view[out_gx],
                                        .gshares = k->view[out_gshares],
                                        .order = k->view[in_order].at,
                                        .k = k->how.picks.k};
    return cuda_launch_teams(s, "cuda_scatter_rows_grad", p.x.rows, p.x.width, &p, sizeof(p));
}

const cuda_op_t cuda_route_ops[] = {
    {"top_k", "xxi", top_k_plan, top_k_launch},
    {"top_k_grad", "xix", top_k_grad_plan, top_k_grad_launch},
    {"route", "iii", route_plan, route_launch},
    {"route_load", "if", route_load_plan, route_load_launch},
    {"gather_rows", "xix", gather_rows_plan, gather_rows_launch},
    {"scatter_rows", "mim?m", scatter_rows_plan, scatter_rows_launch},
    {"scatter_rows_grad", "mmimmm", scatter_rows_grad_plan, scatter_rows_grad_launch},
    {NULL, NULL, NULL, NULL},
};
