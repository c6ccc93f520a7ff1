/* grouped_kernels.c - products of experts: each expert's rows, which lie back to back, times that
 * expert's matrix, and the gradient of each matrix.
 *
 * How many rows an expert has is known in device memory alone, and oneDNN's products are made for
 * one shape. So rows are multiplied in blocks of a few sizes, each a product that is made before
 * step 0: an expert's rows are cut into the largest blocks that they fill, and what is left over,
 * fewer rows than the smallest block has, goes through scratch with rows of zeros behind it. No row
 * is dropped, no expert has a capacity, and what is multiplied in vain is less than one smallest
 * block for each expert in a part.
 *
 * Each part calls the library on its own thread. BF16 goes through F32 where the processor
 * multiplies that faster, or has no BF16 at all, as in matmul_blocks_kernels.c: then everything goes
 * through scratch, where it is widened, and c is a sum over pieces of depth: what is widened stays in
 * a core's cache, and scratch is as large for experts of any depth. */
#include "lanes.h"
#include "products.h"

/* k->number[]. LINES: rows of a that a part multiplies, or lines of gb that it sums; COLUMNS: of c
 * or gb, likewise. WIDE: BF16 through F32. Then places in scratch, in bytes: of a lane from LANE_*,
 * and of all from its begin. */
enum {
    LINES = 0,
    COLUMNS = 1,
    WIDE = 2,
    PARTS = 3,
    STATUS_AT = 4, /* of each part */
    LANES_AT = 5,
    LANE_BYTES = 6,
    LANE_A_AT = 7,
    LANE_B_AT = 8, /* g, in the gradient */
    LANE_C_AT = 9,
    LANE_LIBRARY_AT = 10,
    DEPTH = 11 /* of a and b that are multiplied at once */
};

/* matmul[] of grouped_matmul: by the rows of a block, then the smallest one in scratch; through F32,
 * by the rows of a block, then those that add a further piece of depth (NEXT). */
enum { SIZES = 4, IN_SCRATCH = SIZES, NEXT = SIZES, SMALLEST = 16 };
static const uint32_t sizes[SIZES] = {128, 64, 32, SMALLEST};

/* matmul[] of the gradient: by the rows of a block, then the smallest one in scratch; ADDS behind
 * those whose sums are added to what is there. */
enum { GRAD_SIZES = 2, GRAD_IN_SCRATCH = GRAD_SIZES, ADDS = 3, GRAD_SMALLEST = 32 };
static const uint32_t grad_sizes[GRAD_SIZES] = {128, GRAD_SMALLEST};

/* Of a part, at most; MOST_DEPTH: of a piece that is widened, so that it stays in a core's cache. */
enum { MOST_COLUMNS = 512, MOST_LINES = 128, MOST_DEPTH = 512, LEAST_STRETCHES = 16 };

/* ---- what both share ---- */

static uint32_t lane_of(const lh_prepared_t *k)
{
    return (uint32_t)k->device->openmp.thread_number();
}

/* A place in the scratch of this thread. */
static void *lane_at(const lh_prepared_t *k, uint32_t place)
{
    return (char *)k->scratch + k->number[LANES_AT] + lane_of(k) * k->number[LANE_BYTES] +
           k->number[place];
}

static lh_status_t *statuses(const lh_prepared_t *k)
{
    return (lh_status_t *)((char *)k->scratch + k->number[STATUS_AT]);
}

static void *element_at(const lh_prepared_t *k, uint32_t slot, uint64_t row, uint64_t column)
{
    return (char *)cpu_row(k, slot, row) + column * lh_dtype_bytes(k->view[slot].dtype);
}

/* What inputs have in scratch, where they go through it. */
static lh_dtype_t scratch_dtype(const lh_prepared_t *k)
{
    return k->number[WIDE] != 0 ? LH_DTYPE_F32 : k->view[0].dtype;
}

/* n elements as another dtype, or as the same. */
static void run_copy(void *to, lh_dtype_t to_dtype, const void *from, lh_dtype_t dtype, uint64_t n)
{
    if (to_dtype == dtype) {
        memcpy(to, from, n * lh_dtype_bytes(dtype));
        return;
    }
    for (uint64_t i = 0; i < n; i += LANES) {
        const uint64_t m = vf_span(i, n);
        vf_put(to, to_dtype, i, m, vf_get(from, dtype, i, m));
    }
}

/* Some rows of an argument, and of each some elements. */
typedef struct cut {
    uint32_t slot;
    uint64_t row, column;
    uint64_t rows, columns;
} cut_t;

/* Into a dense matrix [rows, columns] in scratch, with zeros where the cut ends before it. */
static void *into_scratch(const lh_prepared_t *k, const cut_t *cut, uint64_t rows, uint64_t columns,
                          uint32_t place)
{
    char *to = lane_at(k, place);
    const lh_dtype_t dtype = scratch_dtype(k);
    const uint64_t pitch = columns * lh_dtype_bytes(dtype);
    const uint64_t bytes = cut->columns * lh_dtype_bytes(dtype);
    for (uint64_t i = 0; i < cut->rows; i++) {
        run_copy(to + i * pitch, dtype, element_at(k, cut->slot, cut->row + i, cut->column),
                 k->view[cut->slot].dtype, cut->columns);
        memset(to + i * pitch + bytes, 0, pitch - bytes);
    }
    memset(to + cut->rows * pitch, 0, (rows - cut->rows) * pitch);
    return to;
}

/* Rows of c from a dense matrix in scratch. */
static void out_of_scratch(const lh_prepared_t *k, const cut_t *cut, const char *from)
{
    const lh_dtype_t dtype = scratch_dtype(k);
    const uint64_t bytes = cut->columns * lh_dtype_bytes(dtype);
    for (uint64_t i = 0; i < cut->rows; i++)
        run_copy(element_at(k, cut->slot, cut->row + i, cut->column), k->view[cut->slot].dtype,
                 from + i * bytes, dtype, cut->columns);
}

/* Index of the largest size that `rows` fill, or of the smallest. */
static uint32_t size_of(const uint32_t *of, uint32_t count, uint64_t rows)
{
    uint32_t i = 0;
    while (i + 1 < count && rows < of[i])
        i++;
    return i;
}

/* An even part of `width`: halved, and divided by other small factors it has, until it is at most
 * `most`. One without such factors stays whole. */
static uint64_t even_share(uint64_t width, uint64_t most)
{
    enum { LARGEST_FACTOR = 13 };
    for (uint64_t factor = 2; width > most && factor <= LARGEST_FACTOR; factor++)
        while (width > most && width % factor == 0)
            width /= factor;
    return width;
}

/* The last phase, alone. */
static lh_status_t grouped_check(const lh_prepared_t *k)
{
    return products_check(k, statuses(k), k->number[PARTS]);
}

/* ---- grouped_matmul: a b offsets -> c ---- */

/* Rows of one expert and the columns of c that a part computes; line: where its matrix begins. */
typedef struct expert_rows {
    uint64_t row, end, line;
    uint64_t column, columns;
} expert_rows_t;

/* The next block of rows from `row` on: the index of its size; *rows: that many, or, of the smallest
 * alone, fewer. */
static uint32_t block_next(const expert_rows_t *s, uint64_t row, uint64_t *rows)
{
    const uint64_t left = s->end - row;
    const uint32_t size = size_of(sizes, SIZES, left);
    *rows = left < sizes[size] ? left : sizes[size];
    return size;
}

/* Everything where it lies, but for a block that its rows don't fill. */
static lh_status_t expert_multiply(const lh_prepared_t *k, const expert_rows_t *s)
{
    LH_SLOTS(LH_GROUPED_MATMUL_TEXT);
    const bool turned = k->how.grouped.transpose_b != 0;
    const uint64_t width = k->view[in_a].width;
    const void *b = turned ? element_at(k, in_b, s->line + s->column, 0)
                           : element_at(k, in_b, s->line, s->column);
    lh_status_t status = LH_OK;
    uint64_t rows;
    for (uint64_t row = s->row; row < s->end && status == LH_OK; row += rows) {
        const uint32_t size = block_next(s, row, &rows);
        const bool fits = rows == sizes[size];
        const cut_t of_a = {in_a, row, 0, rows, width},
                    of_c = {out_c, row, s->column, rows, s->columns};
        const void *a = fits ? cpu_row(k, in_a, row)
                             : into_scratch(k, &of_a, SMALLEST, width, LANE_A_AT);
        void *c = fits ? element_at(k, out_c, row, s->column) : lane_at(k, LANE_C_AT);
        status = onednn_matmul_run(k->matmul[fits ? size : (uint32_t)IN_SCRATCH], lane_of(k), a, b,
                                   NULL, c, lane_at(k, LANE_LIBRARY_AT));
        if (status == LH_OK && !fits) out_of_scratch(k, &of_c, c);
    }
    return status;
}

/* A piece of the expert's matrix, widened: `depth` of it from `at` on, the part's columns. */
static const void *matrix_widen(const lh_prepared_t *k, const expert_rows_t *s, uint64_t at,
                                uint64_t depth)
{
    LH_SLOTS(LH_GROUPED_MATMUL_TEXT);
    if (k->how.grouped.transpose_b != 0) {
        const cut_t lines = {in_b, s->line + s->column, at, s->columns, depth};
        return into_scratch(k, &lines, s->columns, k->number[DEPTH], LANE_B_AT);
    }
    const cut_t lines = {in_b, s->line + at, s->column, depth, s->columns};
    return into_scratch(k, &lines, k->number[DEPTH], s->columns, LANE_B_AT);
}

/* The same through F32. Each piece of the matrix is widened once for all rows; their sums stay in
 * scratch until the last piece is in them. The last piece may be shorter: zeros are behind it. */
static lh_status_t expert_multiply_wide(const lh_prepared_t *k, const expert_rows_t *s)
{
    LH_SLOTS(LH_GROUPED_MATMUL_TEXT);
    const uint64_t width = k->view[in_a].width, most = k->number[DEPTH];
    float *sums = lane_at(k, LANE_C_AT);
    lh_status_t status = LH_OK;
    uint64_t rows;
    for (uint64_t at = 0; at < width && status == LH_OK; at += most) {
        const uint64_t depth = width - at < most ? width - at : most;
        const void *b = matrix_widen(k, s, at, depth);
        for (uint64_t row = s->row; row < s->end && status == LH_OK; row += rows) {
            const uint32_t size = block_next(s, row, &rows);
            const cut_t of_a = {in_a, row, at, rows, depth};
            const void *a = into_scratch(k, &of_a, sizes[size], most, LANE_A_AT);
            status = onednn_matmul_run(k->matmul[size + (at > 0 ? (uint32_t)NEXT : 0)], lane_of(k),
                                       a, b, NULL, sums + (row - s->row) * s->columns,
                                       lane_at(k, LANE_LIBRARY_AT));
        }
    }
    const cut_t of_c = {out_c, s->row, s->column, s->end - s->row, s->columns};
    if (status == LH_OK) out_of_scratch(k, &of_c, (const char *)sums);
    return status;
}

/* Part p: a stretch of rows of all experts and some columns; the experts whose rows lie in it one
 * by one. */
static void grouped_part(const lh_prepared_t *k, uint32_t part)
{
    LH_SLOTS(LH_GROUPED_MATMUL_TEXT);
    const uint64_t experts = k->view[in_offsets].width - 1, width = k->view[out_c].width;
    /* Lines of b that an expert has. */
    const uint64_t each = k->how.grouped.transpose_b != 0 ? width : k->view[in_a].width;
    const uint64_t across = width / k->number[COLUMNS];
    const int32_t *offsets = k->at[in_offsets];
    expert_rows_t s = {.column = part % across * k->number[COLUMNS], .columns = k->number[COLUMNS]};
    lh_status_t status = LH_OK;
    uint64_t begin, end;

    /* Inside a parallel region this holds for this thread and this region only. */
    k->device->openmp.set_threads(1);
    cpu_range((uint32_t)(part / across), k->number[LINES], k->view[in_a].rows, &begin, &end);
    for (uint64_t e = 0; e < experts && status == LH_OK; e++) {
        const uint64_t first = (uint64_t)offsets[e], last = (uint64_t)offsets[e + 1];
        if (first >= end) break;
        s.row = first > begin ? first : begin;
        s.end = last < end ? last : end;
        s.line = e * each;
        if (s.row < s.end)
            status = k->number[WIDE] != 0 ? expert_multiply_wide(k, &s) : expert_multiply(k, &s);
    }
    statuses(k)[part] = status;
}

/* ---- grouped_matmul_grad: a g offsets -> gb+ ---- */

/* Rows [row, row + rows) of a, turned round, times those of g, into or onto the part's lines and
 * columns of gb. */
static lh_status_t grad_multiply(const lh_prepared_t *k, uint64_t row, uint64_t rows, uint32_t size,
                                 uint64_t line, uint64_t column, float *gb, bool add)
{
    LH_SLOTS(LH_GROUPED_MATMUL_GRAD_TEXT);
    const bool wide = k->number[WIDE] != 0, scratch = wide || rows < grad_sizes[size];
    const void *a = element_at(k, in_a, row, line), *g = element_at(k, in_g, row, column);
    if (scratch) {
        const cut_t of_a = {in_a, row, line, rows, k->number[LINES]};
        const cut_t of_g = {in_g, row, column, rows, k->number[COLUMNS]};
        a = into_scratch(k, &of_a, grad_sizes[size], of_a.columns, LANE_A_AT);
        g = into_scratch(k, &of_g, grad_sizes[size], of_g.columns, LANE_B_AT);
    }
    const uint32_t which = (scratch && !wide ? (uint32_t)GRAD_IN_SCRATCH : size) +
                           (add ? (uint32_t)ADDS : 0);
    return onednn_matmul_run(k->matmul[which], lane_of(k), a, g, NULL, gb,
                             lane_at(k, LANE_LIBRARY_AT));
}

/* Part p: some lines and columns of the gradient of expert p % experts: parts that follow each other,
 * as a thread's do, are of different experts, whoever has the rows. Blocks of rows one after the
 * other; zeros without any. */
static void grad_part(const lh_prepared_t *k, uint32_t part)
{
    LH_SLOTS(LH_GROUPED_MATMUL_GRAD_TEXT);
    const uint64_t experts = k->view[in_offsets].width - 1, e = part % experts;
    const uint64_t across = k->view[in_g].width / k->number[COLUMNS];
    const uint64_t line = part / experts / across * k->number[LINES];
    const uint64_t column = part / experts % across * k->number[COLUMNS];
    const uint64_t begin = e * k->view[in_a].width + line;
    const int32_t *offsets = k->at[in_offsets];
    const uint64_t end = (uint64_t)offsets[e + 1];
    float *gb = element_at(k, out_gb, begin, column);
    bool add = (k->view[out_gb].flags & LH_ARG_ADD) != 0;
    lh_status_t status = LH_OK;

    k->device->openmp.set_threads(1);
    if (!add && (uint64_t)offsets[e] == end)
        for (uint64_t i = 0; i < k->number[LINES]; i++)
            memset(element_at(k, out_gb, begin + i, column), 0, k->number[COLUMNS] * sizeof(float));
    for (uint64_t row = (uint64_t)offsets[e]; row < end && status == LH_OK; add = true) {
        const uint64_t left = end - row;
        const uint32_t size = size_of(grad_sizes, GRAD_SIZES, left);
        const uint64_t rows = left < grad_sizes[size] ? left : grad_sizes[size];
        status = grad_multiply(k, row, rows, size, line, column, gb, add);
        row += rows;
    }
    statuses(k)[part] = status;
}

/* ---- plan ---- */

static lh_status_t product_new(lh_prepared_t *k, const onednn_matmul_how_t *how, uint32_t which)
{
    return onednn_matmul_new(k->device->onednn, how, &k->matmul[which]);
}

/* Scratch: a status for each part, then a lane for each thread with its operands, a, b and c of so
 * many elements, and the library's own. */
static void grouped_room(lh_prepared_t *k, uint32_t lanes, const uint64_t elements[3],
                         lh_kernel_plan_t *plan)
{
    const uint64_t bytes = lh_dtype_bytes(scratch_dtype(k));
    uint64_t room = 0, lane = 0;
    k->number[STATUS_AT] = products_room(&room, k->number[PARTS] * sizeof(lh_status_t));
    k->number[LANES_AT] = room;
    k->number[LANE_A_AT] = products_room(&lane, elements[0] * bytes);
    k->number[LANE_B_AT] = products_room(&lane, elements[1] * bytes);
    k->number[LANE_C_AT] = products_room(&lane, elements[2] * bytes);
    k->number[LANE_LIBRARY_AT] = products_room(&lane, products_library_bytes(k));
    k->number[LANE_BYTES] = lane;
    plan->scratch_bytes = room + lane * lanes;
}

/* Pitch of an argument: one of a single row says nothing of it. */
static uint64_t pitch_of(const lh_prepared_t *k, uint32_t slot)
{
    return k->view[slot].rows == 1 ? k->view[slot].width : k->view[slot].pitch;
}

/* All of `width`, or pieces of even depth: a multiple of 16, with what the last lacks as zeros. */
static uint64_t depth_of(uint64_t width)
{
    const uint64_t pieces = (width + MOST_DEPTH - 1) / MOST_DEPTH;
    return pieces == 1 ? width : ((width + pieces - 1) / pieces + 15) / 16 * 16;
}

/* The product of one entry of matmul[]; none where no block is of its kind. */
static lh_status_t grouped_product(lh_prepared_t *k, uint32_t which, uint32_t lanes)
{
    LH_SLOTS(LH_GROUPED_MATMUL_TEXT);
    const bool wide = k->number[WIDE] != 0, turned = k->how.grouped.transpose_b != 0;
    const bool next = wide && which >= NEXT, scratch = wide || which == IN_SCRATCH;
    const uint64_t columns = k->number[COLUMNS], depth = k->number[DEPTH];
    const uint64_t m = !wide && which == IN_SCRATCH ? (uint64_t)SMALLEST : sizes[which % SIZES];
    const lh_dtype_t dtype = scratch_dtype(k);
    if (m > k->number[LINES] || (next && depth == k->view[in_a].width)) return LH_OK;
    const onednn_matmul_how_t how = {.m = m,
                                     .n = columns,
                                     .k = depth,
                                     .a = {dtype, 0, scratch ? depth : pitch_of(k, in_a)},
                                     .b = {dtype, turned,
                                           !wide    ? pitch_of(k, in_b)
                                           : turned ? depth
                                                    : columns},
                                     .c = {dtype, 0, scratch ? columns : pitch_of(k, out_c)},
                                     .add = next,
                                     .lanes = lanes};
    return product_new(k, &how, which);
}

static lh_status_t grouped_build(lh_prepared_t *k, uint32_t lanes, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_GROUPED_MATMUL_TEXT);
    const bool wide = k->number[WIDE] != 0;
    const uint64_t rows = k->view[in_a].rows, width = k->view[in_a].width;
    const uint64_t columns = even_share(k->view[out_c].width, MOST_COLUMNS);
    const uint64_t depth = wide ? depth_of(width) : width;
    uint64_t stretch = sizes[0];
    while (stretch > SMALLEST && rows / stretch < LEAST_STRETCHES)
        stretch /= 2;
    k->number[LINES] = stretch;
    k->number[COLUMNS] = columns;
    k->number[DEPTH] = depth;
    k->number[PARTS] = (rows + stretch - 1) / stretch * (k->view[out_c].width / columns);
    for (uint32_t i = 0; i < (wide ? NEXT + SIZES : IN_SCRATCH + 1); i++) {
        const lh_status_t status = grouped_product(k, i, lanes);
        if (status != LH_OK) return status;
    }
    /* Sums of a whole stretch, where they wait for further pieces of depth. */
    const uint64_t most = wide ? stretch : (uint64_t)SMALLEST;
    grouped_room(k, lanes, (uint64_t[]){most * depth, wide ? depth * columns : 0, most * columns},
                 plan);
    cpu_phase_add(k, grouped_part, k->number[PARTS], 1);
    k->phase[k->phases++].alone = grouped_check;
    return LH_OK;
}

static lh_status_t grad_build(lh_prepared_t *k, uint32_t lanes, lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_GROUPED_MATMUL_GRAD_TEXT);
    const bool wide = k->number[WIDE] != 0;
    const bool adds = (k->view[out_gb].flags & LH_ARG_ADD) != 0;
    const uint64_t lines = even_share(k->view[in_a].width, MOST_LINES);
    const uint64_t columns = even_share(k->view[in_g].width, MOST_COLUMNS);
    const uint64_t blocks = k->view[in_a].width / lines * (k->view[in_g].width / columns);
    const lh_dtype_t dtype = scratch_dtype(k);
    k->number[LINES] = lines;
    k->number[COLUMNS] = columns;
    k->number[PARTS] = blocks * (k->view[in_offsets].width - 1);
    for (uint32_t i = adds ? ADDS : 0; i < 2 * ADDS; i++) {
        const uint32_t size = i % ADDS;
        const bool scratch = wide || size == GRAD_IN_SCRATCH;
        if (wide && size == GRAD_IN_SCRATCH) continue;
        const onednn_matmul_how_t how = {.m = lines,
                                         .n = columns,
                                         .k = size == GRAD_IN_SCRATCH ? (uint64_t)GRAD_SMALLEST
                                                                      : grad_sizes[size],
                                         .a = {dtype, 1, scratch ? lines : pitch_of(k, in_a)},
                                         .b = {dtype, 0, scratch ? columns : pitch_of(k, in_g)},
                                         .c = {LH_DTYPE_F32, 0, pitch_of(k, out_gb)},
                                         .add = i >= ADDS,
                                         .lanes = lanes};
        const lh_status_t status = product_new(k, &how, i);
        if (status != LH_OK) return status;
    }
    const uint64_t most = wide ? grad_sizes[0] : (uint64_t)GRAD_SMALLEST;
    grouped_room(k, lanes, (uint64_t[]){most * lines, most * columns, 0}, plan);
    cpu_phase_add(k, grad_part, k->number[PARTS], 1);
    k->phase[k->phases++].alone = grouped_check;
    return LH_OK;
}

/* One way of either op, which `shape` plans; named after the library's choice for the smallest block, its
 * variant a hash of all choices. */
static lh_status_t way_build(lh_prepared_t *k, const lh_kernel_desc_t *desc, bool wide,
                             lh_status_t (*shape)(lh_prepared_t *, uint32_t, lh_kernel_plan_t *),
                             lh_kernel_plan_t *plan)
{
    const char *chosen = "";
    uint64_t hash = LH_FNV_BEGIN;
    k->number[WIDE] = wide;
    k->device->openmp.set_threads(1); /* products are made for the number that will run them */
    const lh_status_t status = shape(k, products_threads(k, desc), plan);
    if (status != LH_OK) return status;
    for (size_t i = 0; i < sizeof(k->matmul) / sizeof(k->matmul[0]); i++) {
        if (k->matmul[i] == NULL) continue;
        chosen = onednn_matmul_name(k->matmul[i]);
        hash = lh_fnv_add(hash, chosen, strlen(chosen));
    }
    products_name(k, desc->op, wide, chosen, hash, plan);
    return LH_OK;
}

static lh_status_t grouped_way(lh_prepared_t *k, const lh_kernel_desc_t *desc, bool wide,
                               lh_kernel_plan_t *plan)
{
    return way_build(k, desc, wide, grouped_build, plan);
}

static lh_status_t grad_way(lh_prepared_t *k, const lh_kernel_desc_t *desc, bool wide,
                            lh_kernel_plan_t *plan)
{
    return way_build(k, desc, wide, grad_build, plan);
}

/* Parts walk arguments by each other's shapes, and the library is not asked again. */
static lh_status_t grouped_refuse(const lh_prepared_t *k, const char *op, uint32_t matrices)
{
    const cpu_view_t *first = &k->view[0], *v = &k->view[matrices];
    return k->host->fail(k->host, LH_UNSUPPORTED,
                         "%s: %llu x %llu with matrices of %llu x %llu in all", op,
                         (unsigned long long)first->rows, (unsigned long long)first->width,
                         (unsigned long long)v->rows, (unsigned long long)v->width);
}

static lh_status_t grouped_matmul_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                       lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_GROUPED_MATMUL_TEXT);
    const bool turned = k->how.grouped.transpose_b != 0;
    const cpu_view_t *a = &k->view[in_a], *b = &k->view[in_b], *c = &k->view[out_c];
    const uint64_t experts = k->view[in_offsets].width - 1;
    if (experts == 0 || c->rows != a->rows || b->width != (turned ? a->width : c->width) ||
        b->rows != experts * (turned ? c->width : a->width))
        return grouped_refuse(k, desc->op, in_b);
    return products_plan(k, desc, grouped_way, plan);
}

static lh_status_t grouped_matmul_grad_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                            lh_kernel_plan_t *plan)
{
    LH_SLOTS(LH_GROUPED_MATMUL_GRAD_TEXT);
    const cpu_view_t *a = &k->view[in_a], *g = &k->view[in_g], *gb = &k->view[out_gb];
    const uint64_t experts = k->view[in_offsets].width - 1;
    if (experts == 0 || g->rows != a->rows || gb->width != g->width ||
        gb->rows != experts * a->width)
        return grouped_refuse(k, desc->op, out_gb);
    return products_plan(k, desc, grad_way, plan);
}

extern const cpu_op_t CPU_ISA(grouped_ops)[];
const cpu_op_t CPU_ISA(grouped_ops)[] = {
    {"grouped_matmul", "xxix", grouped_matmul_plan},
    {"grouped_matmul_grad", "xxif", grouped_matmul_grad_plan},
    {NULL, NULL, NULL},
};
