/* matmul_blocks_kernels.c - a product of BF16 matrices by F32 ones: b is widened as a whole, then
 * every part takes some rows of c, widens what it needs of a a piece of depth at a time, has the
 * library multiply on that one thread, and narrows its rows while they are in its cache. One
 * barrier, and the same sums whichever thread takes a part.
 *
 * Widening BF16 to F32 is exact, so these are the products of the BF16 numbers with F32 sums. Rows
 * and depth of a piece are chosen so that a piece of a and the rows of c stay in a core's
 * cache while all of b streams by. */
#include "matmul.h"
#include "products.h"

enum {
    ROWS = 0,  /* of c, in a part                              */
    DEPTH = 1, /* of a and b, in a piece                       */
    B_AT = 2,  /* places in scratch, bytes                     */
    BIAS_AT = 3,
    STATUS_AT = 4, /* of each part                                 */
    LANES_AT = 5,
    LANE_BYTES = 6,
    LANE_C_AT = 7, /* in a lane, behind its piece of a; if c is BF16 */
    LANE_LIBRARY_AT = 8,
    M = 9,
    K = 10,
    NARROW = 11
};

/* matmul[]: by kind of piece; SHORT more for the last rows if they are fewer. */
enum { FIRST = 0, NEXT = 1, LAST = 2, SHORT = 3 };

static const uint64_t most_rows = 512, most_depth = 512;
static const uint64_t chunk_elements = 16384;

/* Scratch: b and the bias in F32, a status for each part, then a lane for each thread with its
 * piece of a, its rows of c where c is BF16, and the library's own scratch. */
static void *scratch_at(const lh_prepared_t *k, uint64_t bytes)
{
    return (char *)k->scratch + bytes;
}

/* ---- widening ---- */

/* n elements from `at` on, as F32. */
static void widen_run(float *to, const void *from, lh_dtype_t dtype, uint64_t at, uint64_t n)
{
    for (uint64_t i = 0; i < n; i += LANES) {
        const uint64_t m = vf_span(i, n);
        vf_put(to, LH_DTYPE_F32, i, m, vf_get(from, dtype, at + i, m));
    }
}

/* Rows of b that one part widens. */
static uint64_t b_chunk(const lh_prepared_t *k)
{
    const uint64_t rows = chunk_elements / k->view[in_b].width;
    return rows == 0 ? 1 : rows;
}

/* The first phase; part 0 takes the bias along. */
static void widen_b(const lh_prepared_t *k, uint32_t part)
{
    const cpu_view_t *b = &k->view[in_b], *bias = &k->view[in_bias];
    float *to = scratch_at(k, k->number[B_AT]);
    uint64_t row, end;
    if (part == 0 && cpu_has(k, in_bias))
        widen_run(scratch_at(k, k->number[BIAS_AT]), k->at[in_bias], bias->dtype, 0, bias->width);
    cpu_range(part, b_chunk(k), b->rows, &row, &end);
    for (; row < end; row++)
        widen_run(to + row * b->width, cpu_row(k, in_b, row), LH_DTYPE_BF16, 0, b->width);
}

/* Lines [line, line_end) of a, of each the elements [at, at + n), dense. */
static void widen_a(const lh_prepared_t *k, float *to, uint64_t line, uint64_t line_end,
                    uint64_t at, uint64_t n)
{
    for (; line < line_end; line++, to += n)
        widen_run(to, cpu_row(k, in_a, line), LH_DTYPE_BF16, at, n);
}

/* ---- a part ---- */

/* Rows [row, row_end) of the sum over one piece of depth, into c. */
static lh_status_t piece_run(const lh_prepared_t *k, uint32_t lane, uint64_t row, uint64_t row_end,
                             uint64_t at, void *c)
{
    const lh_matmul_t *op = &k->how.matmul;
    char *own = scratch_at(k, k->number[LANES_AT] + lane * k->number[LANE_BYTES]);
    const float *b = scratch_at(k, k->number[B_AT]);
    const uint64_t left = k->number[K] - at, depth = k->number[DEPTH];
    const uint64_t n = left < depth ? left : depth;
    const uint32_t piece = at == 0 ? FIRST : n < depth ? LAST : NEXT;
    const uint32_t kind = piece + (row_end - row < k->number[ROWS] ? (uint32_t)SHORT : 0);

    if (op->transpose_a != 0)
        widen_a(k, (float *)own, at, at + n, row, row_end - row);
    else
        widen_a(k, (float *)own, row, row_end, at, n);
    return onednn_matmul_run(
        k->matmul[kind], lane, own, b + (op->transpose_b != 0 ? at : at * k->view[in_b].width),
        scratch_at(k, k->number[BIAS_AT]), c, own + k->number[LANE_LIBRARY_AT]);
}

/* All pieces of depth of some rows of c, one after the other: the first sets (and adds the bias),
 * the others add. A failure is left for block_check, as a part returns nothing. */
static void block_part(const lh_prepared_t *k, uint32_t part)
{
    /* Scratch is the thread's, results are the part's: whoever comes computes the same. */
    const uint32_t lane = (uint32_t)k->device->openmp.thread_number();
    const bool narrow = k->number[NARROW] != 0, has_aux = cpu_has(k, out_aux);
    char *own = scratch_at(k, k->number[LANES_AT] + lane * k->number[LANE_BYTES]);
    lh_status_t *status = (lh_status_t *)scratch_at(k, k->number[STATUS_AT]) + part;
    uint64_t row, end;

    /* Inside a parallel region this holds for this thread and this region only. */
    k->device->openmp.set_threads(1);
    cpu_range(part, k->number[ROWS], k->number[M], &row, &end);
    float *wide = narrow ? (float *)(own + k->number[LANE_C_AT]) : NULL;
    void *c = narrow ? wide : cpu_row(k, has_aux ? out_aux : out_c, row);
    *status = LH_OK;
    for (uint64_t at = 0; at < k->number[K] && *status == LH_OK; at += k->number[DEPTH])
        *status = piece_run(k, lane, row, end, at, c);
    if (!narrow && !has_aux && k->how.matmul.activation == LH_ACT_NONE) return;
    for (uint64_t i = row; i < end; i++)
        matmul_finish_row(k, i, narrow ? wide + (i - row) * k->view[out_c].width : NULL);
}

/* The last phase, alone. */
static lh_status_t block_check(const lh_prepared_t *k)
{
    const uint64_t parts = (k->number[M] + k->number[ROWS] - 1) / k->number[ROWS];
    return products_check(k, scratch_at(k, k->number[STATUS_AT]), parts);
}

/* ---- plan ---- */

/* Every lane gets as many parts as any other, of rows that leave room in its cache. */
static void blocks_cut(lh_prepared_t *k, const onednn_matmul_how_t *how, uint32_t lanes)
{
    const uint64_t each = (how->m + lanes - 1) / lanes;
    const uint64_t parts = (each + most_rows - 1) / most_rows;
    const uint64_t rows = ((each + parts - 1) / parts + 15) / 16 * 16;
    const uint64_t pieces = (how->k + most_depth - 1) / most_depth;
    const uint64_t depth = ((how->k + pieces - 1) / pieces + 15) / 16 * 16;
    k->number[M] = how->m;
    k->number[K] = how->k;
    k->number[ROWS] = rows < how->m ? rows : how->m;
    k->number[DEPTH] = depth < how->k ? depth : how->k;
    k->number[NARROW] = k->view[out_c].dtype == LH_DTYPE_BF16;
}

/* The library's product for one kind of piece; none where no piece is of that kind. */
static lh_status_t piece_new(lh_prepared_t *k, onednn_matmul_how_t how, uint32_t which)
{
    const lh_matmul_t *op = &k->how.matmul;
    const uint64_t rest_m = how.m % k->number[ROWS], rest_k = how.k % k->number[DEPTH];
    const uint32_t piece = which % SHORT;
    const bool narrow = k->number[NARROW] != 0;
    const cpu_view_t *target = &k->view[cpu_has(k, out_aux) ? out_aux : out_c];
    if (which >= SHORT && rest_m == 0) return LH_OK;
    if (piece == NEXT && how.k <= k->number[DEPTH]) return LH_OK;
    if (piece == LAST && (rest_k == 0 || how.k <= k->number[DEPTH])) return LH_OK;

    how.m = which >= SHORT ? rest_m : k->number[ROWS];
    how.k = piece == LAST ? rest_k : k->number[DEPTH];
    how.a = (onednn_matrix_t){LH_DTYPE_F32, op->transpose_a, op->transpose_a != 0 ? how.m : how.k};
    how.b = (onednn_matrix_t){LH_DTYPE_F32, op->transpose_b, k->view[in_b].width};
    how.c = (onednn_matrix_t){LH_DTYPE_F32, 0, narrow || target->rows == 1 ? how.n : target->pitch};
    if (piece == FIRST && cpu_has(k, in_bias)) how.bias = (onednn_matrix_t){LH_DTYPE_F32, 0, how.n};
    how.add = piece != FIRST || (!narrow && (k->view[out_c].flags & LH_ARG_ADD) != 0);
    return onednn_matmul_new(k->device->onednn, &how, &k->matmul[which]);
}

/* Cuts scratch into places, and asks for as much as there are lanes. */
static void blocks_room(lh_prepared_t *k, const onednn_matmul_how_t *how, lh_kernel_plan_t *plan)
{
    const cpu_view_t *b = &k->view[in_b];
    const uint64_t parts = (how->m + k->number[ROWS] - 1) / k->number[ROWS];
    const uint64_t c_elements = k->number[NARROW] != 0 ? k->number[ROWS] * how->n : 0;
    uint64_t room = 0, lane = 0;
    k->number[B_AT] = products_room(&room, b->rows * b->width * sizeof(float));
    k->number[BIAS_AT] = products_room(&room, how->n * sizeof(float));
    k->number[STATUS_AT] = products_room(&room, parts * sizeof(lh_status_t));
    k->number[LANES_AT] = room;
    products_room(&lane, k->number[ROWS] * k->number[DEPTH] * sizeof(float));
    k->number[LANE_C_AT] = products_room(&lane, c_elements * sizeof(float));
    k->number[LANE_LIBRARY_AT] = products_room(&lane, products_library_bytes(k));
    k->number[LANE_BYTES] = lane;
    plan->scratch_bytes = room + lane * how->lanes;
}

lh_status_t CPU_ISA(matmul_blocks_plan)(lh_prepared_t *k, const onednn_matmul_how_t *shapes,
                                        uint32_t lanes, lh_kernel_plan_t *plan)
{
    onednn_matmul_how_t how = *shapes;
    how.lanes = lanes;
    blocks_cut(k, &how, lanes);
    k->device->openmp.set_threads(1); /* made for the number that will run it */
    for (uint32_t i = 0; i < 2 * SHORT; i++) {
        const lh_status_t status = piece_new(k, how, i);
        if (status != LH_OK) return status;
    }
    blocks_room(k, &how, plan);
    cpu_phase_add(k, widen_b, k->view[in_b].rows, b_chunk(k));
    cpu_phase_add(k, block_part, how.m, k->number[ROWS]);
    k->phase[k->phases++].alone = block_check;
    return LH_OK;
}
