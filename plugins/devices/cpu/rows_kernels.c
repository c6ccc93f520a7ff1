/* rows_kernels.c - ops that look rows up or sum over them: embed, embed_grad, sum_rows,
 * sum_columns, dora_scale.
 *
 * Sums over rows are made in chunks of rows, each a line of F32 in scratch, and then over the
 * chunks in order: as in norm_kernels.c, the cut is by shape alone. */
#include "vector.h"

#include <math.h>

/* k->number[]: rows of a part, parts, floats of a line, and the rows of the vocabulary that the
 * table holds. */
enum { CHUNK = 0, CHUNKS = 1, COLUMNS = 2, FIRST = 3, COUNT = 4 };

static const uint64_t chunk_elements = 16384;
static const uint64_t most_partials = 64; /* lines of partial sums, however many rows there are */
static const uint64_t column_block = 256; /* columns that one part sums over the lines */

/* Rows of some 16,384 elements. */
static uint64_t rows_chunk(uint64_t width)
{
    const uint64_t rows = chunk_elements / width;
    return rows == 0 ? 1 : rows;
}

/* ---- embed: tokens table -> y ---- */

/* An id of another part of the vocabulary gives zeros: a sum over the parts is the whole
 * embedding. */
static void embed_rows(const lh_prepared_t *k, uint32_t part)
{
    LH_SLOTS(LH_EMBED_TEXT);
    const int32_t *tokens = k->at[in_tokens];
    const uint64_t width = k->view[out_y].width;
    const lh_dtype_t from = k->view[in_table].dtype, to = k->view[out_y].dtype;
    uint64_t row, end;

    cpu_range(part, k->number[CHUNK], k->view[out_y].rows, &row, &end);
    for (; row < end; row++) {
        void *y = cpu_row(k, out_y, row);
        /* Below the first row the difference wraps, and is no row of the table either. */
        const uint64_t id = (uint64_t)(int64_t)tokens[row] - k->number[FIRST];
        if (tokens[row] < 0 || id >= k->number[COUNT]) {
            memset(y, 0, width * lh_dtype_bytes(to));
            continue;
        }
        const void *line = cpu_row(k, in_table, id);
        if (from == to) {
            memcpy(y, line, width * lh_dtype_bytes(to));
            continue;
        }
        VF_EACH(i, m, 0, width, { vf_put(y, to, i, m, vf_get(line, from, i, m)); });
    }
}

/* The part of the vocabulary that lies in the table: rows 0 means all of it. */
static void part_take(lh_prepared_t *k, const cpu_view_t *table)
{
    k->number[FIRST] = k->how.rows.first;
    const uint64_t rows = k->how.rows.rows;
    k->number[COUNT] = rows == 0 || rows > table->rows ? table->rows : rows;
}

static lh_status_t embed_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                              lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_EMBED_TEXT);
    (void)desc;
    (void)plan;
    const cpu_view_t *tokens = &k->view[in_tokens], *table = &k->view[in_table],
                     *y = &k->view[out_y];
    if (y->width != table->width || tokens->rows * tokens->width != y->rows)
        return k->host->fail(
            k->host, LH_UNSUPPORTED, "embed: %llu tokens, table %llu wide, output %llu x %llu",
            (unsigned long long)(tokens->rows * tokens->width), (unsigned long long)table->width,
            (unsigned long long)y->rows, (unsigned long long)y->width);
    k->number[CHUNK] = rows_chunk(y->width);
    cpu_phase_add(k, embed_rows, y->rows, k->number[CHUNK]);
    part_take(k, table);
    return LH_OK;
}

/* ---- embed_grad: tokens gy -> gtable ----
 * Part p has the rows of the table whose number is p modulo GRAD_PARTS, so that frequent tokens are
 * spread; it walks all tokens in order and adds those it has. No sort, no scratch, one order. */

enum { GRAD_PARTS = 32 };

/* The lines of the table that this part owns. */
static void line_clear(const lh_prepared_t *k, uint32_t part)
{
    LH_SLOTS(LH_EMBED_GRAD_TEXT);
    const uint64_t bytes = k->view[out_gtable].width * sizeof(float);
    for (uint64_t id = part; id < k->view[out_gtable].rows; id += GRAD_PARTS)
        memset(cpu_row(k, out_gtable, id), 0, bytes);
}

/* Reads every token and adds the gradients of those whose line is this part's, so no two parts
 * write to one line. */
CPU_INLINE void embed_grad_part(const lh_prepared_t *k, uint32_t part, lh_dtype_t d)
{
    LH_SLOTS(LH_EMBED_GRAD_TEXT);
    const int32_t *tokens = k->at[in_tokens];
    const uint64_t count = k->view[in_gy].rows, width = k->view[in_gy].width;
    if ((k->view[out_gtable].flags & LH_ARG_ADD) == 0) line_clear(k, part);
    for (uint64_t t = 0; t < count; t++) {
        const uint64_t id = (uint64_t)(int64_t)tokens[t] - k->number[FIRST];
        if (id % GRAD_PARTS != part || id >= k->number[COUNT] || tokens[t] < 0) continue;
        const void *gy = cpu_row(k, in_gy, t);
        float *line = cpu_row(k, out_gtable, id);
        VF_EACH(i, m, 0, width, {
            const vf sum = vf_get(line, LH_DTYPE_F32, i, m) + vf_get(gy, d, i, m);
            vf_put(line, LH_DTYPE_F32, i, m, sum);
        });
    }
}
CPU_BOTH(embed_grad_part)

/* GRAD_PARTS is a constant: with more threads than that some have nothing to do. */
static lh_status_t embed_grad_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                   lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_EMBED_GRAD_TEXT);
    (void)desc;
    (void)plan;
    const cpu_view_t *tokens = &k->view[in_tokens], *gy = &k->view[in_gy],
                     *table = &k->view[out_gtable];
    if (gy->width != table->width || tokens->rows * tokens->width != gy->rows)
        return k->host->fail(k->host, LH_UNSUPPORTED,
                             "embed_grad: %llu tokens, gradient %llu x %llu, table %llu wide",
                             (unsigned long long)(tokens->rows * tokens->width),
                             (unsigned long long)gy->rows, (unsigned long long)gy->width,
                             (unsigned long long)table->width);
    cpu_phase_add(k, CPU_PICK(embed_grad_part, gy->dtype), GRAD_PARTS, 1);
    part_take(k, table);
    return LH_OK;
}

/* ---- sum_rows: [t, w] to [w] ---- */

/* The first phase: one chunk of rows into its line. */
CPU_INLINE void sum_chunk(const lh_prepared_t *k, uint32_t part, lh_dtype_t d)
{
    LH_SLOTS(LH_SUM_ROWS_TEXT);
    const uint64_t width = k->view[in_x].width;
    float *line = (float *)k->scratch + part * k->number[COLUMNS];
    uint64_t row, end;

    memset(line, 0, k->number[COLUMNS] * sizeof(*line));
    cpu_range(part, k->number[CHUNK], k->view[in_x].rows, &row, &end);
    for (; row < end; row++) {
        const void *x = cpu_row(k, in_x, row);
        VF_EACH(i, m, 0, width, { vf_store(line + i, vf_load(line + i) + vf_get(x, d, i, m)); });
    }
}
CPU_BOTH(sum_chunk)

/* The second: a block of columns over all lines, in their order. */
static void sum_partials(const lh_prepared_t *k, uint32_t part)
{
    LH_SLOTS(LH_SUM_ROWS_TEXT);
    const lh_dtype_t dtype = k->view[out_y].dtype;
    uint64_t i, end;
    cpu_range(part, column_block, k->view[in_x].width, &i, &end);
    for (; i < end; i += LANES) {
        const uint64_t m = vf_span(i, end);
        vf sum = vf_zero();
        for (uint64_t c = 0; c < k->number[CHUNKS]; c++)
            sum = sum + vf_load((const float *)k->scratch + c * k->number[COLUMNS] + i);
        if ((k->view[out_y].flags & LH_ARG_ADD) != 0) sum = sum + vf_get(k->at[out_y], dtype, i, m);
        vf_put(k->at[out_y], dtype, i, m, sum);
    }
}

/* The cut into chunks is the order of the sum: a function of the shape. */
static lh_status_t sum_rows_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                 lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_SUM_ROWS_TEXT);
    (void)desc;
    const cpu_view_t *x = &k->view[in_x], *y = &k->view[out_y];
    if (y->rows * y->width != x->width)
        return k->host->fail(k->host, LH_UNSUPPORTED, "sum_rows: rows of %llu into %llu elements",
                             (unsigned long long)x->width,
                             (unsigned long long)(y->rows * y->width));
    k->number[CHUNK] = cpu_chunk(x->rows, rows_chunk(x->width), most_partials);
    k->number[CHUNKS] = (x->rows + k->number[CHUNK] - 1) / k->number[CHUNK];
    k->number[COLUMNS] = (x->width + 15) / 16 * 16;
    plan->scratch_bytes = k->number[CHUNKS] * k->number[COLUMNS] * sizeof(float);
    cpu_phase_add(k, CPU_PICK(sum_chunk, x->dtype), x->rows, k->number[CHUNK]);
    cpu_phase_add(k, sum_partials, x->width, column_block);
    return LH_OK;
}

/* ---- sum_columns: [t, w] to [t, 1] ---- */

/* Row by row; a row's lanes are added in vf_sum's order. */
CPU_INLINE void sum_lines(const lh_prepared_t *k, uint32_t part, lh_dtype_t d)
{
    LH_SLOTS(LH_SUM_COLUMNS_TEXT);
    const uint64_t width = k->view[in_x].width;
    const lh_dtype_t to = k->view[out_y].dtype;
    uint64_t row, end;

    cpu_range(part, k->number[CHUNK], k->view[in_x].rows, &row, &end);
    for (; row < end; row++) {
        const void *x = cpu_row(k, in_x, row);
        void *y = cpu_row(k, out_y, row);
        vf sum = vf_zero();
        VF_EACH(i, m, 0, width, { sum = sum + vf_get(x, d, i, m); });
        float total = vf_sum(sum);
        if ((k->view[out_y].flags & LH_ARG_ADD) != 0) total += vf_get(y, to, 0, 1)[0];
        vf_put(y, to, 0, 1, vf_set(total));
    }
}
CPU_BOTH(sum_lines)

/* One number a row: no sum crosses a part. */
static lh_status_t sum_columns_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                    lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_SUM_COLUMNS_TEXT);
    (void)desc;
    (void)plan;
    const cpu_view_t *x = &k->view[in_x], *y = &k->view[out_y];
    if (y->rows != x->rows || y->width != 1)
        return k->host->fail(k->host, LH_UNSUPPORTED, "sum_columns: %llu rows into %llu x %llu",
                             (unsigned long long)x->rows, (unsigned long long)y->rows,
                             (unsigned long long)y->width);
    k->number[CHUNK] = rows_chunk(x->width);
    cpu_phase_add(k, CPU_PICK(sum_lines, x->dtype), x->rows, k->number[CHUNK]);
    return LH_OK;
}

/* ---- dora_scale: w change magnitude -> y inverse? ---- */

/* Both sums have one order, so that y is 1 to the bit where change and magnitude are 0. */
CPU_INLINE void dora_rows(const lh_prepared_t *k, uint32_t part, lh_dtype_t d)
{
    LH_SLOTS(LH_DORA_SCALE_TEXT);
    const uint64_t width = k->view[in_w].width;
    const lh_dtype_t of_change = k->view[in_change].dtype, of_m = k->view[in_magnitude].dtype;
    uint64_t row, end;

    cpu_range(part, k->number[CHUNK], k->view[in_w].rows, &row, &end);
    for (; row < end; row++) {
        const void *w = cpu_row(k, in_w, row), *change = cpu_row(k, in_change, row);
        vf before = vf_zero(), after = vf_zero();
        VF_EACH(i, m, 0, width, {
            const vf a = vf_get(w, d, i, m), b = a + vf_get(change, of_change, i, m);
            before = vf_fma(a, a, before);
            after = vf_fma(b, b, after);
        });
        const float norm = sqrtf(vf_sum(after));
        const float more = vf_get(k->at[in_magnitude], of_m, row, 1)[0];
        ((float *)k->at[out_y])[row] = norm > 0 ? (sqrtf(vf_sum(before)) + more) / norm : 0;
        if (cpu_has(k, out_inverse)) ((float *)k->at[out_inverse])[row] = norm > 0 ? 1 / norm : 0;
    }
}
CPU_BOTH(dora_rows)

static lh_status_t dora_scale_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                   lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_DORA_SCALE_TEXT);
    (void)desc;
    (void)plan;
    const cpu_view_t *w = &k->view[in_w], *change = &k->view[in_change];
    static const uint32_t lines[] = {in_magnitude, out_y, out_inverse};
    bool fits = change->rows == w->rows && change->width == w->width;
    for (uint32_t i = 0; i < 3; i++) {
        const cpu_view_t *line = &k->view[lines[i]];
        fits = fits && (!cpu_has(k, lines[i]) || (line->rows == 1 && line->width == w->rows));
    }
    if (!fits)
        return k->host->fail(k->host, LH_UNSUPPORTED, "dora_scale: %llu x %llu beside %llu x %llu",
                             (unsigned long long)w->rows, (unsigned long long)w->width,
                             (unsigned long long)change->rows, (unsigned long long)change->width);
    k->number[CHUNK] = rows_chunk(w->width);
    cpu_phase_add(k, CPU_PICK(dora_rows, w->dtype), w->rows, k->number[CHUNK]);
    return LH_OK;
}

const cpu_op_t CPU_ISA(rows_ops)[] = {
    {"embed", "ixy", embed_plan},
    {"embed_grad", "ixf", embed_grad_plan},
    {"sum_rows", "xy", sum_rows_plan},
    {"sum_columns", "xy", sum_columns_plan},
    {"dora_scale", "xmmff?", dora_scale_plan},
    {NULL, NULL, NULL},
};
