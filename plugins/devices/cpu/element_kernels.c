/* element_kernels.c - ops by element: add, multiply, scale, activations and gates.
 *
 * All are cut alike, into tiles of some 16,384 elements: whole rows where they are short, pieces of
 * rows where they are long, and one long row where every tensor is dense. A tile is read and
 * written once, so memory is what they wait for; the tile's size only has to be large beside what
 * handing it to a thread costs. */
#include "activation.h"

/* k->number[]: rows and columns of a tile, tiles side by side, rows and columns in all. */
enum { CHUNK_ROWS = 0, CHUNK_COLUMNS = 1, BLOCKS = 2, ROWS = 3, WIDTH = 4 };

static const uint64_t chunk_elements = 16384;

/* Rows [row, row_end) by columns [column, column_end): what one part computes. */
typedef struct tile {
    uint64_t row, row_end, column, column_end;
} tile_t;

/* Parts count through the tiles of a row of tiles, then through the rows. */
static tile_t tile_of(const lh_prepared_t *k, uint32_t part)
{
    tile_t t;
    cpu_range((uint32_t)(part / k->number[BLOCKS]), k->number[CHUNK_ROWS], k->number[ROWS], &t.row,
              &t.row_end);
    cpu_range((uint32_t)(part % k->number[BLOCKS]), k->number[CHUNK_COLUMNS], k->number[WIDTH],
              &t.column, &t.column_end);
    return t;
}

/* All slots in [0, count) have the shape of slot 0, except `other`, which op checks itself. */
static lh_status_t tile_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc, uint32_t count,
                             uint32_t other, bool may_flatten, cpu_work_t work)
{
    const cpu_view_t *first = &k->view[0];
    bool flat = may_flatten;
    for (uint32_t i = 0; i < count; i++) {
        const cpu_view_t *v = &k->view[i];
        if (i == other) continue;
        if (v->rows != first->rows || v->width != first->width)
            return k->host->fail(k->host, LH_UNSUPPORTED,
                                 "%s: slot %u is %llu x %llu, slot 1 is %llu x %llu", desc->op,
                                 i + 1, (unsigned long long)v->rows, (unsigned long long)v->width,
                                 (unsigned long long)first->rows, (unsigned long long)first->width);
        flat = flat && (v->pitch == v->width || v->rows == 1);
    }
    /* Dense tensors are one long row, so that short rows do not make short vectors. */
    const uint64_t rows = flat ? 1 : first->rows;
    const uint64_t width = flat ? first->rows * first->width : first->width;
    const uint64_t columns = width < chunk_elements ? width : chunk_elements;
    const uint64_t tall = chunk_elements / columns;
    k->number[ROWS] = rows;
    k->number[WIDTH] = width;
    k->number[CHUNK_COLUMNS] = columns;
    k->number[CHUNK_ROWS] = tall < rows ? tall : rows;
    k->number[BLOCKS] = (width + columns - 1) / columns;
    const uint64_t parts = k->number[BLOCKS] *
                           ((rows + k->number[CHUNK_ROWS] - 1) / k->number[CHUNK_ROWS]);
    cpu_phase_add(k, work, parts, 1);
    return LH_OK;
}

/* For tile_plan: every slot has one shape. */
enum { NO_OTHER = LH_MAX_SLOTS };

/* ---- add, multiply, scale ---- */

/* Dtypes are constants in two of the three functions below, so that no element pays for a branch;
 * mixed ones are rare (sums of gradients into another dtype). */
CPU_INLINE void add_tile(const lh_prepared_t *k, uint32_t part, lh_dtype_t da, lh_dtype_t db,
                         lh_dtype_t dy)
{
    LH_SLOTS(LH_ADD_TEXT);
    const tile_t t = tile_of(k, part);
    for (uint64_t row = t.row; row < t.row_end; row++) {
        const void *a = cpu_row(k, in_a, row), *b = cpu_row(k, in_b, row);
        void *y = cpu_row(k, out_y, row);
        VF_EACH(i, m, t.column, t.column_end,
                { vf_put(y, dy, i, m, vf_get(a, da, i, m) + vf_get(b, db, i, m)); });
    }
}
/* All F32, all BF16, and any mix, whose dtypes are looked at for each vector. */
static void add_f32(const lh_prepared_t *k, uint32_t part)
{
    add_tile(k, part, LH_DTYPE_F32, LH_DTYPE_F32, LH_DTYPE_F32);
}
static void add_bf16(const lh_prepared_t *k, uint32_t part)
{
    add_tile(k, part, LH_DTYPE_BF16, LH_DTYPE_BF16, LH_DTYPE_BF16);
}
static void add_mixed(const lh_prepared_t *k, uint32_t part)
{
    LH_SLOTS(LH_ADD_TEXT);
    add_tile(k, part, k->view[in_a].dtype, k->view[in_b].dtype, k->view[out_y].dtype);
}

/* Of the three slots of add and multiply. */
static bool all_are(const lh_prepared_t *k, lh_dtype_t dtype)
{
    return k->view[0].dtype == dtype && k->view[1].dtype == dtype && k->view[2].dtype == dtype;
}

static lh_status_t add_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_ADD_TEXT);
    (void)plan;
    cpu_work_t work = add_mixed;
    if (all_are(k, LH_DTYPE_F32)) work = add_f32;
    if (all_are(k, LH_DTYPE_BF16)) work = add_bf16;
    return tile_plan(k, desc, slot_count, NO_OTHER, true, work);
}

enum { BY_ELEMENT = 5 }; /* number[]: 1 where b has the shape of a */

/* b has the shape of a, or one column (a factor a row), or one row (a factor a column), or one
 * element. */
CPU_INLINE void multiply_tile(const lh_prepared_t *k, uint32_t part, lh_dtype_t da, lh_dtype_t db,
                              lh_dtype_t dy)
{
    LH_SLOTS(LH_MULTIPLY_TEXT);
    const tile_t t = tile_of(k, part);
    const cpu_view_t *other = &k->view[in_b];
    for (uint64_t row = t.row; row < t.row_end; row++) {
        const void *a = cpu_row(k, in_a, row), *b = cpu_row(k, in_b, other->rows == 1 ? 0 : row);
        void *y = cpu_row(k, out_y, row);
        /* One number for the row: spread over the lanes once. */
        const bool one = other->width == 1 && k->number[BY_ELEMENT] == 0;
        const vf factor = vf_set(vf_get(b, db, 0, 1)[0]);
        VF_EACH(i, m, t.column, t.column_end, {
            const vf by = one ? factor : vf_get(b, db, i, m);
            vf_put(y, dy, i, m, vf_get(a, da, i, m) * by);
        });
    }
}
static void multiply_f32(const lh_prepared_t *k, uint32_t part)
{
    multiply_tile(k, part, LH_DTYPE_F32, LH_DTYPE_F32, LH_DTYPE_F32);
}
static void multiply_bf16(const lh_prepared_t *k, uint32_t part)
{
    multiply_tile(k, part, LH_DTYPE_BF16, LH_DTYPE_BF16, LH_DTYPE_BF16);
}
static void multiply_mixed(const lh_prepared_t *k, uint32_t part)
{
    LH_SLOTS(LH_MULTIPLY_TEXT);
    multiply_tile(k, part, k->view[in_a].dtype, k->view[in_b].dtype, k->view[out_y].dtype);
}

/* Where b has another shape, rows may not be folded into one long row: it would not repeat any
 * more. */
static lh_status_t multiply_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                 lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_MULTIPLY_TEXT);
    (void)plan;
    const cpu_view_t *a = &k->view[in_a], *b = &k->view[in_b];
    const bool same = b->rows == a->rows && b->width == a->width;
    const bool column = b->width == 1 && (b->rows == a->rows || b->rows == 1);
    const bool line = b->rows == 1 && b->width == a->width;
    /* A vector [t] stands for no column: only [t, 1] does. */
    if (!same && !column && !line)
        return k->host->fail(k->host, LH_UNSUPPORTED, "multiply: %llu x %llu by %llu x %llu",
                             (unsigned long long)a->rows, (unsigned long long)a->width,
                             (unsigned long long)b->rows, (unsigned long long)b->width);
    cpu_work_t work = multiply_mixed;
    if (all_are(k, LH_DTYPE_F32)) work = multiply_f32;
    if (all_are(k, LH_DTYPE_BF16)) work = multiply_bf16;
    k->number[BY_ELEMENT] = same;
    return tile_plan(k, desc, slot_count, same ? NO_OTHER : 1, same, work);
}

/* The factor lies in device memory: it may change from step to step without a new plan. */
static void scale_tile(const lh_prepared_t *k, uint32_t part)
{
    LH_SLOTS(LH_SCALE_TEXT);
    const tile_t t = tile_of(k, part);
    const lh_dtype_t dx = k->view[in_x].dtype, dy = k->view[out_y].dtype;
    const vf factor = vf_set(*(const float *)k->at[in_factor]);
    for (uint64_t row = t.row; row < t.row_end; row++) {
        const void *x = cpu_row(k, in_x, row);
        void *y = cpu_row(k, out_y, row);
        VF_EACH(i, m, t.column, t.column_end,
                { vf_put(y, dy, i, m, vf_get(x, dx, i, m) * factor); });
    }
}

static lh_status_t scale_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                              lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_SCALE_TEXT);
    (void)plan;
    return tile_plan(k, desc, slot_count, in_factor, true, scale_tile);
}

/* ---- activations ---- */

/* One function for each of them: in a loop, the choice would cost more than the work. */
#define ACTIVATION_TILES(f)                                                                    \
    CPU_INLINE void activate_##f(const lh_prepared_t *k, uint32_t part, lh_dtype_t d)          \
    {                                                                                          \
        LH_SLOTS(LH_ACTIVATE_TEXT);                                                            \
        const tile_t t = tile_of(k, part);                                                     \
        for (uint64_t row = t.row; row < t.row_end; row++) {                                   \
            const void *x = cpu_row(k, in_x, row);                                             \
            void *y = cpu_row(k, out_y, row);                                                  \
            VF_EACH(i, m, t.column, t.column_end,                                              \
                    { vf_put(y, d, i, m, act_##f(vf_get(x, d, i, m), d, NULL)); });            \
        }                                                                                      \
    }                                                                                          \
    CPU_INLINE void activate_grad_##f(const lh_prepared_t *k, uint32_t part, lh_dtype_t d)     \
    {                                                                                          \
        LH_SLOTS(LH_ACTIVATE_GRAD_TEXT);                                                       \
        const tile_t t = tile_of(k, part);                                                     \
        for (uint64_t row = t.row; row < t.row_end; row++) {                                   \
            const void *gy = cpu_row(k, in_gy, row), *x = cpu_row(k, in_x, row);               \
            void *gx = cpu_row(k, out_gx, row);                                                \
            VF_EACH(i, m, t.column, t.column_end, {                                            \
                vf slope;                                                                      \
                act_##f(vf_get(x, d, i, m), d, &slope);                                        \
                vf_put(gx, d, i, m, vf_get(gy, d, i, m) * slope);                              \
            });                                                                                \
        }                                                                                      \
    }                                                                                          \
    CPU_INLINE void gate_##f(const lh_prepared_t *k, uint32_t part, lh_dtype_t d)              \
    {                                                                                          \
        LH_SLOTS(LH_GATE_TEXT);                                                                \
        const tile_t t = tile_of(k, part);                                                     \
        for (uint64_t row = t.row; row < t.row_end; row++) {                                   \
            const void *a = cpu_row(k, in_a, row), *b = cpu_row(k, in_b, row);                 \
            void *y = cpu_row(k, out_y, row);                                                  \
            VF_EACH(i, m, t.column, t.column_end, {                                            \
                vf_put(y, d, i, m, act_##f(vf_get(a, d, i, m), d, NULL) * vf_get(b, d, i, m)); \
            });                                                                                \
        }                                                                                      \
    }                                                                                          \
    CPU_INLINE void gate_grad_##f(const lh_prepared_t *k, uint32_t part, lh_dtype_t d)         \
    {                                                                                          \
        LH_SLOTS(LH_GATE_GRAD_TEXT);                                                           \
        const tile_t t = tile_of(k, part);                                                     \
        for (uint64_t row = t.row; row < t.row_end; row++) {                                   \
            const void *gy = cpu_row(k, in_gy, row);                                           \
            const void *a = cpu_row(k, in_a, row), *b = cpu_row(k, in_b, row);                 \
            void *ga = cpu_row(k, out_ga, row), *gb = cpu_row(k, out_gb, row);                 \
            VF_EACH(i, m, t.column, t.column_end, {                                            \
                const vf g = vf_get(gy, d, i, m), up = vf_get(b, d, i, m);                     \
                vf slope;                                                                      \
                const vf f_a = act_##f(vf_get(a, d, i, m), d, &slope);                         \
                vf_put(ga, d, i, m, g *up *slope);                                             \
                vf_put(gb, d, i, m, g *f_a);                                                   \
            });                                                                                \
        }                                                                                      \
    }                                                                                          \
    CPU_BOTH(activate_##f)                                                                     \
    CPU_BOTH(activate_grad_##f)                                                                \
    CPU_BOTH(gate_##f)                                                                         \
    CPU_BOTH(gate_grad_##f)

/* By the names of activation.h, which are those of LH_ACT_*. */
ACTIVATION_TILES(none)
ACTIVATION_TILES(silu)
ACTIVATION_TILES(gelu)
ACTIVATION_TILES(gelu_tanh)
ACTIVATION_TILES(tanh)

/* By LH_ACT_*, then by dtype: F32, BF16. */
#define ACTIVATION_ROW(op)                                                              \
    {                                                                                   \
        {op##_none_f32, op##_none_bf16}, {op##_silu_f32, op##_silu_bf16},               \
            {op##_gelu_f32, op##_gelu_bf16}, {op##_gelu_tanh_f32, op##_gelu_tanh_bf16}, \
            {op##_tanh_f32, op##_tanh_bf16},                                            \
    }

enum { FUNCTIONS = LH_ACT_TANH + 1 };

static const cpu_work_t activate_work[FUNCTIONS][2] = ACTIVATION_ROW(activate);
static const cpu_work_t activate_grad_work[FUNCTIONS][2] = ACTIVATION_ROW(activate_grad);
static const cpu_work_t gate_work[FUNCTIONS][2] = ACTIVATION_ROW(gate);
static const cpu_work_t gate_grad_work[FUNCTIONS][2] = ACTIVATION_ROW(gate_grad);

/* lh_activate_t is the attribute struct of all four ops. */
static lh_status_t function_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                 const cpu_work_t work[FUNCTIONS][2])
{
    const uint32_t f = k->how.activate.function;
    if (f >= FUNCTIONS)
        return k->host->fail(k->host, LH_UNSUPPORTED, "%s: function %u is unknown", desc->op, f);
    return tile_plan(k, desc, desc->arg_count, NO_OTHER, true,
                     work[f][k->view[0].dtype == LH_DTYPE_BF16]);
}

static lh_status_t activate_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                 lh_kernel_plan_t *plan)
{
    (void)plan;
    return function_plan(k, desc, activate_work);
}
static lh_status_t activate_grad_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                      lh_kernel_plan_t *plan)
{
    (void)plan;
    return function_plan(k, desc, activate_grad_work);
}
static lh_status_t gate_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc, lh_kernel_plan_t *plan)
{
    (void)plan;
    return function_plan(k, desc, gate_work);
}
static lh_status_t gate_grad_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                  lh_kernel_plan_t *plan)
{
    (void)plan;
    return function_plan(k, desc, gate_grad_work);
}

const cpu_op_t CPU_ISA(element_ops)[] = {
    {"add", "mmm", add_plan},
    {"multiply", "mmm", multiply_plan},
    {"scale", "mfm", scale_plan},
    {"activate", "xx", activate_plan},
    {"activate_grad", "xxx", activate_grad_plan},
    {"gate", "xxx", gate_plan},
    {"gate_grad", "xxxxx", gate_grad_plan},
    {NULL, NULL, NULL},
};
