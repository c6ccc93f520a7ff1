/* route_kernels.c - softmax, the largest of a row, and the way of tokens to experts and back: rows
 * of one expert lie back to back, in the order that route wrote. How many rows an expert has is
 * read from device memory, so parts are cut by the rows of all: the work is as much as there are
 * rows, whatever the number of experts. What experts multiply: grouped_kernels.c. */
#include "vector.h"

#include <math.h>

/* k->number[]: rows of a part. */
enum { CHUNK = 0 };

static const uint64_t chunk_elements = 16384;

/* Rows of some 16,384 elements. */
static uint64_t route_chunk(uint64_t width)
{
    const uint64_t rows = chunk_elements / width;
    return rows == 0 ? 1 : rows;
}

/* Element i of a row, of either dtype. */
CPU_INLINE float scalar(const void *row, lh_dtype_t d, uint64_t i)
{
    return d == LH_DTYPE_F32 ? ((const float *)row)[i] : vf_get(row, d, i, 1)[0];
}

/* ---- softmax: x -> y; gy y -> gx ---- */

/* exp is computed twice: keeping it would take scratch of a row, or round it to BF16 on the way. */
CPU_INLINE void softmax_rows(const lh_prepared_t *k, uint32_t part, lh_dtype_t d)
{
    LH_SLOTS(LH_SOFTMAX_TEXT);
    const uint64_t width = k->view[in_x].width;
    uint64_t row, end;
    cpu_range(part, k->number[CHUNK], k->view[in_x].rows, &row, &end);
    for (; row < end; row++) {
        const void *x = cpu_row(k, in_x, row);
        void *y = cpu_row(k, out_y, row);
        vf top = vf_set(-INFINITY), sum = vf_zero();
        VF_EACH(i, m, 0, width, { top = vf_max(vf_keep(vf_get(x, d, i, m), m, -INFINITY), top); });
        const float largest = vf_top(top);
        VF_EACH(i, m, 0, width,
                { sum = sum + vf_keep(vf_exp(vf_get(x, d, i, m) - largest), m, 0); });
        const float share = 1.0f / vf_sum(sum);
        VF_EACH(i, m, 0, width,
                { vf_put(y, d, i, m, vf_exp(vf_get(x, d, i, m) - largest) * share); });
    }
}
CPU_BOTH(softmax_rows)

/* gx = y (gy - sum of gy y). */
CPU_INLINE void softmax_grad_rows(const lh_prepared_t *k, uint32_t part, lh_dtype_t d)
{
    LH_SLOTS(LH_SOFTMAX_GRAD_TEXT);
    const uint64_t width = k->view[in_y].width;
    uint64_t row, end;
    cpu_range(part, k->number[CHUNK], k->view[in_y].rows, &row, &end);
    for (; row < end; row++) {
        const void *gy = cpu_row(k, in_gy, row), *y = cpu_row(k, in_y, row);
        void *gx = cpu_row(k, out_gx, row);
        vf sum = vf_zero();
        VF_EACH(i, m, 0, width, { sum = vf_fma(vf_get(gy, d, i, m), vf_get(y, d, i, m), sum); });
        const float along = vf_sum(sum);
        VF_EACH(i, m, 0, width,
                { vf_put(gx, d, i, m, vf_get(y, d, i, m) * (vf_get(gy, d, i, m) - along)); });
    }
}
CPU_BOTH(softmax_grad_rows)

static lh_status_t softmax_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_SOFTMAX_TEXT);
    (void)desc, (void)plan;
    const cpu_view_t *x = &k->view[in_x];
    k->number[CHUNK] = route_chunk(x->width);
    cpu_phase_add(k, CPU_PICK(softmax_rows, x->dtype), x->rows, k->number[CHUNK]);
    return LH_OK;
}

static lh_status_t softmax_grad_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                     lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_SOFTMAX_GRAD_TEXT);
    (void)desc, (void)plan;
    const cpu_view_t *y = &k->view[in_y];
    k->number[CHUNK] = route_chunk(y->width);
    cpu_phase_add(k, CPU_PICK(softmax_grad_rows, y->dtype), y->rows, k->number[CHUNK]);
    return LH_OK;
}

/* ---- top_k: x -> values ids; gvalues ids -> gx ---- */

/* Columns of the k largest, the largest first, by insertion: k is small. */
CPU_INLINE void row_largest(const void *x, uint64_t width, uint64_t k, lh_dtype_t d, int32_t *ids)
{
    /* A value goes behind its equals, so that of equals the first column wins. */
    uint64_t count = 0;
    for (uint64_t c = 0; c < width; c++) {
        const float value = scalar(x, d, c);
        uint64_t at = count;
        if (count < k)
            count++;
        else if (value > scalar(x, d, (uint64_t)ids[k - 1]))
            at = k - 1;
        else
            continue;
        for (; at > 0 && value > scalar(x, d, (uint64_t)ids[at - 1]); at--)
            ids[at] = ids[at - 1];
        ids[at] = (int32_t)c;
    }
}

/* Values are copied by their columns, so that they have the bits of x. */
CPU_INLINE void top_k_rows(const lh_prepared_t *k, uint32_t part, lh_dtype_t d)
{
    LH_SLOTS(LH_TOP_K_TEXT);
    const uint64_t count = k->view[out_ids].width;
    uint64_t row, end;
    cpu_range(part, k->number[CHUNK], k->view[in_x].rows, &row, &end);
    for (; row < end; row++) {
        const void *x = cpu_row(k, in_x, row);
        void *values = cpu_row(k, out_values, row);
        int32_t *ids = cpu_row(k, out_ids, row);
        row_largest(x, k->view[in_x].width, count, d, ids);
        for (uint64_t j = 0; j < count; j++)
            vf_put(values, d, j, 1, vf_get(x, d, (uint64_t)ids[j], 1));
    }
}
CPU_BOTH(top_k_rows)

static lh_status_t top_k_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                              lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_TOP_K_TEXT);
    (void)desc, (void)plan;
    const cpu_view_t *x = &k->view[in_x];
    k->number[CHUNK] = route_chunk(x->width * k->view[out_ids].width);
    cpu_phase_add(k, CPU_PICK(top_k_rows, x->dtype), x->rows, k->number[CHUNK]);
    return LH_OK;
}

/* Zeros but where the largest stood. */
CPU_INLINE void top_k_grad_rows(const lh_prepared_t *k, uint32_t part, lh_dtype_t d)
{
    LH_SLOTS(LH_TOP_K_GRAD_TEXT);
    const uint64_t bytes = k->view[out_gx].width * lh_dtype_bytes(d);
    uint64_t row, end;
    cpu_range(part, k->number[CHUNK], k->view[out_gx].rows, &row, &end);
    for (; row < end; row++) {
        const void *gvalues = cpu_row(k, in_gvalues, row);
        const int32_t *ids = cpu_row(k, in_ids, row);
        void *gx = cpu_row(k, out_gx, row);
        memset(gx, 0, bytes);
        for (uint64_t j = 0; j < k->view[in_ids].width; j++)
            vf_put(gx, d, (uint64_t)ids[j], 1, vf_get(gvalues, d, j, 1));
    }
}
CPU_BOTH(top_k_grad_rows)

static lh_status_t top_k_grad_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                   lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_TOP_K_GRAD_TEXT);
    (void)desc, (void)plan;
    const cpu_view_t *gx = &k->view[out_gx];
    k->number[CHUNK] = route_chunk(gx->width);
    cpu_phase_add(k, CPU_PICK(top_k_grad_rows, gx->dtype), gx->rows, k->number[CHUNK]);
    return LH_OK;
}

/* ---- route: ids -> order offsets, by counting: one thread, two passes over the picks ---- */

/* Counting sort: how many picks each expert has, where each begins, then the picks in their order,
 * so that order is one function of ids. */
static void route_part(const lh_prepared_t *k, uint32_t part)
{
    LH_SLOTS(LH_ROUTE_TEXT);
    (void)part;
    const uint64_t experts = k->how.route.experts, each = k->view[in_ids].width;
    int32_t *order = k->at[out_order], *offsets = k->at[out_offsets], *next = k->scratch;
    /* offsets[e + 1] counts the picks of expert e first, and after the sums is where they end. */
    memset(offsets, 0, (experts + 1) * sizeof(*offsets));
    for (uint64_t row = 0; row < k->view[in_ids].rows; row++) {
        const int32_t *ids = cpu_row(k, in_ids, row);
        for (uint64_t j = 0; j < each; j++)
            offsets[ids[j] + 1]++;
    }
    for (uint64_t e = 0; e < experts; e++) {
        offsets[e + 1] += offsets[e];
        next[e] = offsets[e];
    }
    for (uint64_t row = 0; row < k->view[in_ids].rows; row++) {
        const int32_t *ids = cpu_row(k, in_ids, row);
        for (uint64_t j = 0; j < each; j++)
            order[next[ids[j]]++] = (int32_t)(row * each + j);
    }
}

/* One part: a second pass over the picks needs all counts of the first. Scratch: where each
 * expert's next pick goes. */
static lh_status_t route_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                              lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_ROUTE_TEXT);
    (void)desc;
    if (k->view[out_offsets].width != (uint64_t)k->how.route.experts + 1)
        return k->host->fail(k->host, LH_UNSUPPORTED, "route: %llu offsets for %u experts",
                             (unsigned long long)k->view[out_offsets].width, k->how.route.experts);
    plan->scratch_bytes = k->how.route.experts * sizeof(int32_t);
    cpu_phase_add(k, route_part, 1, 1);
    return LH_OK;
}

/* ---- gather_rows: x order -> y ---- */

/* Pick p is of token p / k. */
static void gather_part(const lh_prepared_t *k, uint32_t part)
{
    LH_SLOTS(LH_GATHER_ROWS_TEXT);
    const uint64_t bytes = k->view[in_x].width * lh_dtype_bytes(k->view[in_x].dtype);
    const int32_t *order = k->at[in_order];
    uint64_t row, end;
    cpu_range(part, k->number[CHUNK], k->view[out_y].rows, &row, &end);
    for (; row < end; row++)
        memcpy(cpu_row(k, out_y, row), cpu_row(k, in_x, (uint64_t)order[row] / k->how.picks.k),
               bytes);
}

static lh_status_t gather_rows_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                    lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_GATHER_ROWS_TEXT);
    (void)desc, (void)plan;
    k->number[CHUNK] = route_chunk(k->view[in_x].width);
    cpu_phase_add(k, gather_part, k->view[out_y].rows, k->number[CHUNK]);
    return LH_OK;
}

/* ---- scatter_rows: x order shares? -> y ---- */

/* Where each pick stands in order. */
static void places_part(const lh_prepared_t *k, uint32_t part)
{
    LH_SLOTS(LH_SCATTER_ROWS_TEXT);
    const int32_t *order = k->at[in_order];
    int32_t *places = k->scratch;
    uint64_t i, end;
    cpu_range(part, chunk_elements, k->view[in_x].rows, &i, &end);
    for (; i < end; i++)
        places[order[i]] = (int32_t)i;
}

/* A token's rows, wherever experts left them, times their shares, in the order of its picks. */
CPU_INLINE void scatter_rows_part(const lh_prepared_t *k, uint32_t part, lh_dtype_t d)
{
    LH_SLOTS(LH_SCATTER_ROWS_TEXT);
    const uint64_t width = k->view[out_y].width, each = k->how.picks.k;
    const bool shared = cpu_has(k, in_shares);
    uint64_t row, end;
    cpu_range(part, k->number[CHUNK], k->view[out_y].rows, &row, &end);
    for (; row < end; row++) {
        const int32_t *places = (const int32_t *)k->scratch + row * each;
        const void *shares = shared ? cpu_row(k, in_shares, row) : NULL;
        void *y = cpu_row(k, out_y, row);
        VF_EACH(i, m, 0, width, {
            vf sum = vf_zero();
            for (uint64_t j = 0; j < each; j++) {
                const vf x = vf_get(cpu_row(k, in_x, (uint64_t)places[j]), d, i, m);
                const float share = shared ? scalar(shares, k->view[in_shares].dtype, j) : 1.0f;
                sum = vf_fma(x, vf_set(share), sum);
            }
            vf_put(y, d, i, m, sum);
        });
    }
}
CPU_BOTH(scatter_rows_part)

/* Two phases: order is turned round first (which row a pick became), so that tokens can be
 * parts. */
static lh_status_t scatter_rows_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                     lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_SCATTER_ROWS_TEXT);
    (void)desc;
    const cpu_view_t *x = &k->view[in_x], *y = &k->view[out_y];
    plan->scratch_bytes = x->rows * sizeof(int32_t);
    cpu_phase_add(k, places_part, x->rows, chunk_elements);
    k->number[CHUNK] = route_chunk(y->width);
    cpu_phase_add(k, CPU_PICK(scatter_rows_part, x->dtype), y->rows, k->number[CHUNK]);
    return LH_OK;
}

/* ---- scatter_rows_grad: gy x order shares -> gx gshares ---- */

/* Every row of x belongs to one pick: each is written once, and so is its share's gradient. */
CPU_INLINE void scatter_grad_part(const lh_prepared_t *k, uint32_t part, lh_dtype_t d)
{
    LH_SLOTS(LH_SCATTER_ROWS_GRAD_TEXT);
    const uint64_t width = k->view[in_x].width, each = k->how.picks.k;
    const lh_dtype_t ds = k->view[in_shares].dtype;
    const int32_t *order = k->at[in_order];
    uint64_t row, end;
    cpu_range(part, k->number[CHUNK], k->view[in_x].rows, &row, &end);
    for (; row < end; row++) {
        const uint64_t token = (uint64_t)order[row] / each, j = (uint64_t)order[row] % each;
        const void *gy = cpu_row(k, in_gy, token), *x = cpu_row(k, in_x, row);
        void *gx = cpu_row(k, out_gx, row);
        const float share = scalar(cpu_row(k, in_shares, token), ds, j);
        vf sum = vf_zero();
        VF_EACH(i, m, 0, width, {
            const vf g = vf_get(gy, d, i, m);
            sum = vf_fma(g, vf_get(x, d, i, m), sum);
            vf_put(gx, d, i, m, g * share);
        });
        vf_put(cpu_row(k, out_gshares, token), k->view[out_gshares].dtype, j, 1,
               vf_set(vf_sum(sum)));
    }
}
CPU_BOTH(scatter_grad_part)

static lh_status_t scatter_rows_grad_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                          lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_SCATTER_ROWS_GRAD_TEXT);
    (void)desc, (void)plan;
    const cpu_view_t *x = &k->view[in_x];
    k->number[CHUNK] = route_chunk(x->width);
    cpu_phase_add(k, CPU_PICK(scatter_grad_part, x->dtype), x->rows, k->number[CHUNK]);
    return LH_OK;
}

/* ---- how even the load is: offsets -> load; x -> y; gy x -> gx; a b -> y ---- */

static void route_load_part(const lh_prepared_t *k, uint32_t part)
{
    LH_SLOTS(LH_ROUTE_LOAD_TEXT);
    (void)part;
    const int32_t *offsets = cpu_row(k, in_offsets, 0);
    float *load = cpu_row(k, out_load, 0);
    const uint64_t experts = k->view[out_load].width;
    for (uint64_t e = 0; e < experts; e++)
        load[e] = (float)(offsets[e + 1] - offsets[e]) / (float)offsets[experts];
}

/* Columns [part LANES, ...) of all rows, one after the other. Each block of rows is summed for
 * itself, so that thousands of rows lose no more than a block does. */
CPU_INLINE void mean_rows_part(const lh_prepared_t *k, uint32_t part, lh_dtype_t d)
{
    enum { BLOCK_ROWS = 256 };
    LH_SLOTS(LH_MEAN_ROWS_TEXT);
    const uint64_t rows = k->view[in_x].rows, width = k->view[in_x].width, at = part * LANES;
    const uint64_t m = vf_span(at, width);
    vf sum = vf_zero();
    for (uint64_t first = 0; first < rows; first += BLOCK_ROWS) {
        const uint64_t end = first + BLOCK_ROWS < rows ? first + BLOCK_ROWS : rows;
        vf of_block = vf_zero();
        for (uint64_t row = first; row < end; row++)
            of_block = of_block + vf_get(cpu_row(k, in_x, row), d, at, m);
        sum = sum + of_block;
    }
    vf_put(cpu_row(k, out_y, 0), LH_DTYPE_F32, at, m, sum / (float)rows);
}
CPU_BOTH(mean_rows_part)

CPU_INLINE void mean_rows_grad_rows(const lh_prepared_t *k, uint32_t part, lh_dtype_t d)
{
    LH_SLOTS(LH_MEAN_ROWS_GRAD_TEXT);
    const uint64_t rows = k->view[out_gx].rows, width = k->view[out_gx].width;
    const void *gy = cpu_row(k, in_gy, 0);
    uint64_t row, end;
    cpu_range(part, k->number[CHUNK], rows, &row, &end);
    for (; row < end; row++) {
        void *gx = cpu_row(k, out_gx, row);
        VF_EACH(i, m, 0, width,
                { vf_put(gx, d, i, m, vf_get(gy, LH_DTYPE_F32, i, m) / (float)rows); });
    }
}
CPU_BOTH(mean_rows_grad_rows)

static void dot_part(const lh_prepared_t *k, uint32_t part)
{
    LH_SLOTS(LH_DOT_TEXT);
    (void)part;
    const float *a = cpu_row(k, in_a, 0), *b = cpu_row(k, in_b, 0);
    double sum = 0;
    for (uint64_t j = 0; j < k->view[in_a].width; j++)
        sum += (double)a[j] * (double)b[j];
    *(float *)cpu_row(k, out_y, 0) = (float)sum;
}

static lh_status_t route_load_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                   lh_kernel_plan_t *plan)
{
    (void)desc, (void)plan;
    cpu_phase_add(k, route_load_part, 1, 1);
    return LH_OK;
}

static lh_status_t mean_rows_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                  lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_MEAN_ROWS_TEXT);
    (void)desc, (void)plan;
    const cpu_view_t *x = &k->view[in_x];
    cpu_phase_add(k, CPU_PICK(mean_rows_part, x->dtype), (x->width + LANES - 1) / LANES, 1);
    return LH_OK;
}

static lh_status_t mean_rows_grad_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                       lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_MEAN_ROWS_GRAD_TEXT);
    (void)desc, (void)plan;
    const cpu_view_t *gx = &k->view[out_gx];
    k->number[CHUNK] = route_chunk(gx->width);
    cpu_phase_add(k, CPU_PICK(mean_rows_grad_rows, gx->dtype), gx->rows, k->number[CHUNK]);
    return LH_OK;
}

static lh_status_t dot_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc, lh_kernel_plan_t *plan)
{
    (void)desc, (void)plan;
    cpu_phase_add(k, dot_part, 1, 1);
    return LH_OK;
}

extern const cpu_op_t CPU_ISA(route_ops)[];
const cpu_op_t CPU_ISA(route_ops)[] = {
    {"softmax", "xx", softmax_plan},
    {"softmax_grad", "xxx", softmax_grad_plan},
    {"top_k", "xxi", top_k_plan},
    {"top_k_grad", "xix", top_k_grad_plan},
    {"route", "iii", route_plan},
    {"route_load", "if", route_load_plan},
    {"mean_rows", "xf", mean_rows_plan},
    {"mean_rows_grad", "fxx", mean_rows_grad_plan},
    {"dot", "fff", dot_plan},
    {"gather_rows", "xix", gather_rows_plan},
    {"scatter_rows", "xim?x", scatter_rows_plan},
    {"scatter_rows_grad", "xximxm", scatter_rows_grad_plan},
    {NULL, NULL, NULL},
};
