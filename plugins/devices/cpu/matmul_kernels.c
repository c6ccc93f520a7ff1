/* matmul_kernels.c - matmul by oneDNN, with what it does not do around it: activations with the
 * value before them kept, and BF16 through F32 products where those are faster or the only ones.
 *
 * Through F32, a call is cut into blocks that stay in the caches: of rows where a lies as [m, k],
 * of depth where it lies as [k, m] (a gradient of weights, summed up block by block in F32). Each
 * block is widened into scratch, multiplied and, where c is BF16, narrowed. */
#include "activation.h"
#include "onednn.h"

#include <stdio.h>

enum { A, B, BIAS, SCALE_A, SCALE_B, C, AUX, AMAX };

/* number[]: places in scratch (bytes), NOT_THERE where the argument itself serves; and the cut. */
enum { A_AT = 0, B_AT = 1, BIAS_AT = 2, C_AT = 3, LIBRARY_AT = 4, BLOCK = 5, BLOCKS = 6, DEEP = 7 };
static const uint64_t not_there = ~(uint64_t)0;
static const uint64_t chunk_elements = 16384;
static const uint64_t block_elements = (uint64_t)1 << 19; /* of a and c together, as F32 */

/* matmul[]: the first block, those between, the last if it is shorter. */
enum { FIRST = 0, NEXT = 1, REST = 2 };

static void *scratch_at(const lh_prepared_t *k, uint32_t which, uint32_t slot)
{
    if (k->number[which] == not_there) return k->at[slot];
    return (char *)k->scratch + k->number[which];
}

/* ---- widening and finishing a range of rows ---- */

typedef struct row_range {
    const lh_prepared_t *k;
    uint32_t slot;
    uint64_t begin, rows; /* of the slot; in scratch they begin at 0 */
    float *wide;
} row_range_t;

static uint64_t range_chunk(const row_range_t *range)
{
    const uint64_t rows = chunk_elements / range->k->view[range->slot].width;
    return rows == 0 ? 1 : rows;
}

static void range_run(const row_range_t *range, void (*work)(void *context, uint32_t part))
{
    lh_threads_t *threads = &range->k->stream->threads;
    const uint64_t chunk = range_chunk(range);
    row_range_t mine = *range;
    threads->run(threads, (uint32_t)((range->rows + chunk - 1) / chunk), work, &mine);
}

static void widen_part(void *context, uint32_t part)
{
    const row_range_t *range = context;
    const lh_prepared_t *k = range->k;
    const uint64_t width = k->view[range->slot].width;
    uint64_t row, end;
    cpu_range(part, range_chunk(range), range->rows, &row, &end);
    for (; row < end; row++) {
        const void *from = cpu_row(k, range->slot, range->begin + row);
        float *to = range->wide + row * width;
        for (uint64_t i = 0; i < width; i += LANES) {
            const uint64_t m = vf_span(i, width);
            vf_put(to, LH_DTYPE_F32, i, m, vf_get(from, LH_DTYPE_BF16, i, m));
        }
    }
}

static void widen(const lh_prepared_t *k, uint32_t slot, uint32_t which, uint64_t begin,
                  uint64_t rows)
{
    if (k->number[which] == not_there) return;
    const row_range_t range = {k, slot, begin, rows, scratch_at(k, which, slot)};
    range_run(&range, widen_part);
}

/* c = act(v), where v is the product as it is stored in aux or, without one, would be: so a
 * gradient that sees aux sees what was activated. */
static void finish_part(void *context, uint32_t part)
{
    const row_range_t *range = context;
    const lh_prepared_t *k = range->k;
    const cpu_view_t *c = &k->view[C];
    const bool add = (c->flags & LH_ARG_ADD) != 0;
    const uint32_t stored = cpu_has(k, AUX) ? AUX : C;
    uint64_t row, end;
    cpu_range(part, range_chunk(range), range->rows, &row, &end);
    for (; row < end; row++) {
        void *out = cpu_row(k, C, range->begin + row);
        void *kept = cpu_row(k, stored, range->begin + row);
        for (uint64_t i = 0; i < c->width; i += LANES) {
            const uint64_t m = vf_span(i, c->width);
            vf v;
            if (range->wide == NULL) {
                v = vf_get(kept, c->dtype, i, m);
            } else {
                v = vf_get(range->wide + row * c->width, LH_DTYPE_F32, i, m);
                if (add) v = v + vf_get(out, c->dtype, i, m);
                if (stored == AUX) vf_put(kept, c->dtype, i, m, v);
                if (k->how.matmul.activation != LH_ACT_NONE) v = vf_from_bf16(vf_to_bf16(v));
            }
            vf_put(out, c->dtype, i, m, act_apply(k->how.matmul.activation, v));
        }
    }
}

static void finish(const lh_prepared_t *k, uint64_t begin, uint64_t rows)
{
    const bool narrow = k->number[C_AT] != not_there;
    if (!narrow && k->how.matmul.activation == LH_ACT_NONE && !cpu_has(k, AUX)) return;
    const row_range_t range = {k, C, begin, rows, narrow ? scratch_at(k, C_AT, C) : NULL};
    range_run(&range, finish_part);
}

/* ---- the product ---- */

/* Where the rows of a slot from `begin` on lie for the library: in scratch a block begins at 0. */
static void *block_at(const lh_prepared_t *k, uint32_t slot, uint32_t which, uint64_t begin)
{
    return k->number[which] == not_there ? cpu_row(k, slot, begin) : scratch_at(k, which, slot);
}

static lh_status_t product(const lh_prepared_t *k)
{
    const bool deep = k->number[DEEP] != 0;
    const uint64_t lines = k->view[A].rows, block = k->number[BLOCK];
    const uint32_t target = cpu_has(k, AUX) ? AUX : C;
    k->device->openmp.set_threads((int)k->stream->threads.count);
    widen(k, BIAS, BIAS_AT, 0, 1);
    if (!deep) widen(k, B, B_AT, 0, k->view[B].rows);

    for (uint64_t i = 0; i < k->number[BLOCKS]; i++) {
        const uint64_t begin = i * block, left = lines - begin;
        const uint64_t rows = left < block ? left : block;
        const bool whole = k->number[BLOCKS] == 1;
        widen(k, A, A_AT, begin, rows);
        if (deep) widen(k, B, B_AT, begin, rows);
        const uint64_t c_begin = whole || deep ? 0 : begin;
        onednn_matmul_t *p = k->matmul[rows < block ? REST : i == 0 ? FIRST : NEXT];
        const lh_status_t status = onednn_matmul_run(
            p, block_at(k, A, A_AT, begin), block_at(k, B, B_AT, deep ? begin : 0),
            scratch_at(k, BIAS_AT, BIAS), block_at(k, target, C_AT, c_begin),
            (char *)k->scratch + k->number[LIBRARY_AT]);
        if (status != LH_OK) return status;
        if (!deep) finish(k, whole ? 0 : begin, whole ? k->view[C].rows : rows);
    }
    if (deep) finish(k, 0, k->view[C].rows);
    return LH_OK;
}

/* ---- plan ---- */

static uint64_t room_take(uint64_t *room, uint64_t bytes)
{
    const uint64_t at = *room;
    *room += (bytes + 63) / 64 * 64;
    return at;
}

/* The matrix in slot as the library will see it; where it has to be widened, `rows` of it at a
 * time, dense in scratch. */
static onednn_matrix_t matrix_of(lh_prepared_t *k, uint32_t slot, uint32_t which, uint32_t turned,
                                 bool wide, uint64_t rows, uint64_t *room)
{
    const cpu_view_t *v = &k->view[slot];
    onednn_matrix_t matrix = {.dtype = v->dtype, .transposed = turned, .pitch = v->pitch};
    k->number[which] = not_there;
    if (v->rows == 1) matrix.pitch = v->width;
    if (wide && v->dtype == LH_DTYPE_BF16) {
        k->number[which] = room_take(room, rows * v->width * sizeof(float));
        matrix.dtype = LH_DTYPE_F32;
        matrix.pitch = v->width;
    }
    return matrix;
}

static lh_status_t matmul_shapes(const lh_prepared_t *k, onednn_matmul_how_t *how)
{
    const lh_matmul_t *op = &k->how.matmul;
    const cpu_view_t *a = &k->view[A], *b = &k->view[B], *c = &k->view[C], *aux = &k->view[AUX];
    how->m = op->transpose_a != 0 ? a->width : a->rows;
    how->k = op->transpose_a != 0 ? a->rows : a->width;
    how->n = op->transpose_b != 0 ? b->rows : b->width;
    const uint64_t k_of_b = op->transpose_b != 0 ? b->width : b->rows;
    if (how->k != k_of_b || c->rows != how->m || c->width != how->n)
        return k->host->fail(
            k->host, LH_INVALID, "matmul: [%llu, %llu] times [%llu, %llu] into [%llu, %llu]",
            (unsigned long long)how->m, (unsigned long long)how->k, (unsigned long long)k_of_b,
            (unsigned long long)how->n, (unsigned long long)c->rows, (unsigned long long)c->width);
    if (cpu_has(k, BIAS) && k->view[BIAS].rows * k->view[BIAS].width != how->n)
        return k->host->fail(k->host, LH_INVALID, "matmul: a bias of %llu on %llu columns",
                             (unsigned long long)(k->view[BIAS].rows * k->view[BIAS].width),
                             (unsigned long long)how->n);
    if (cpu_has(k, BIAS) && k->view[BIAS].dtype == LH_DTYPE_F16)
        return k->host->fail(k->host, LH_UNSUPPORTED, "matmul on the cpu takes no bias in f16");
    if (cpu_has(k, AUX) &&
        (aux->rows != c->rows || aux->width != c->width || aux->dtype != c->dtype))
        return k->host->fail(k->host, LH_UNSUPPORTED,
                             "matmul: aux has not the shape and dtype of c");
    if (a->dtype == LH_DTYPE_F32 && c->dtype != LH_DTYPE_F32)
        return k->host->fail(k->host, LH_UNSUPPORTED, "matmul of f32 gives f32 only");
    if (op->activation > LH_ACT_TANH ||
        ((c->flags & LH_ARG_ADD) != 0 && (op->activation != LH_ACT_NONE || cpu_has(k, AUX))))
        return k->host->fail(k->host, LH_UNSUPPORTED, "matmul: activation %u%s", op->activation,
                             (c->flags & LH_ARG_ADD) != 0 ? " and adding" : "");
    return LH_OK;
}

/* How a product through F32 is cut; any other is one block. Deep: along k, where a and b both lie
 * as [k, ...]. */
static void matmul_cut(lh_prepared_t *k, const onednn_matmul_how_t *how, bool wide)
{
    const lh_matmul_t *op = &k->how.matmul;
    const uint64_t lines = k->view[A].rows;
    const uint64_t line = op->transpose_a != 0 ? how->m + how->n : how->k + how->n;
    const bool bf16_sum = k->view[C].dtype == LH_DTYPE_BF16 && op->transpose_a != 0;
    uint64_t block = (block_elements / line + 63) / 64 * 64;
    if (block < 256) block = 256;
    if (!wide || block > lines || (op->transpose_a != 0 && op->transpose_b != 0) || bf16_sum)
        block = lines;
    k->number[BLOCK] = block;
    k->number[BLOCKS] = (lines + block - 1) / block;
    k->number[DEEP] = op->transpose_a != 0 && k->number[BLOCKS] > 1;
}

/* One of the products that the blocks need: `lines` of a, adding to c or not. */
static lh_status_t matmul_piece(lh_prepared_t *k, onednn_matmul_how_t how, uint64_t lines, bool add,
                                uint32_t which, uint64_t *library_bytes)
{
    if (k->number[DEEP] != 0)
        how.k = lines;
    else if (k->number[BLOCKS] > 1)
        how.m = lines;
    how.add = add;
    if (which != FIRST && k->number[DEEP] != 0) how.bias.dtype = LH_DTYPE_NONE;
    const lh_status_t status = onednn_matmul_new(k->device->onednn, &how, &k->matmul[which]);
    if (status != LH_OK) return status;
    const uint64_t bytes = onednn_matmul_scratch_bytes(k->matmul[which]);
    if (bytes > *library_bytes) *library_bytes = bytes;
    return LH_OK;
}

static lh_status_t matmul_pieces(lh_prepared_t *k, const onednn_matmul_how_t *how,
                                 uint64_t *library_bytes)
{
    const uint64_t block = k->number[BLOCK], rest = k->view[A].rows % block;
    const bool deep = k->number[DEEP] != 0;
    lh_status_t status = matmul_piece(k, *how, block, how->add, FIRST, library_bytes);
    if (status == LH_OK && k->number[BLOCKS] > 1)
        status = matmul_piece(k, *how, block, how->add || deep, NEXT, library_bytes);
    if (status == LH_OK && k->number[BLOCKS] > 1 && rest != 0)
        status = matmul_piece(k, *how, rest, how->add || deep, REST, library_bytes);
    return status;
}

/* Names the library's choice; the variant is its hash, so that a resume takes the same or says so.
 */
static void matmul_name(const lh_prepared_t *k, bool wide, lh_kernel_plan_t *plan)
{
    const char *chosen = onednn_matmul_name(k->matmul[FIRST]);
    char text[128];
    const char *dtype = k->view[A].dtype == LH_DTYPE_F32 ? "f32" : wide ? "bf16_as_f32" : "bf16";
    snprintf(plan->name, sizeof(plan->name), "matmul.%s.%s", dtype, chosen);
    snprintf(text, sizeof(text), "%s %s %u", plan->name, onednn_version(k->device->onednn),
             k->device->isa);
    uint64_t hash = 0xcbf29ce484222325u;
    for (const char *p = text; *p != '\0'; p++)
        hash = (hash ^ (unsigned char)*p) * 0x100000001b3u;
    plan->variant = hash == 0 ? 1 : hash;
}

static lh_status_t matmul_build(lh_prepared_t *k, const onednn_matmul_how_t *shapes, bool wide,
                                lh_kernel_plan_t *plan)
{
    const lh_matmul_t *op = &k->how.matmul;
    const uint32_t target = cpu_has(k, AUX) ? AUX : C;
    const bool f32 = k->view[A].dtype == LH_DTYPE_F32;
    onednn_matmul_how_t how = *shapes;
    uint64_t room = 0, library_bytes = 0;

    matmul_cut(k, &how, wide);
    const bool deep = k->number[DEEP] != 0, cut = k->number[BLOCKS] > 1;
    const uint64_t block = k->number[BLOCK];
    how.a = matrix_of(k, A, A_AT, op->transpose_a, wide, block, &room);
    how.b = matrix_of(k, B, B_AT, op->transpose_b, wide, deep ? block : k->view[B].rows, &room);
    how.c = matrix_of(k, target, C_AT, 0, wide, cut && !deep ? block : how.m, &room);
    how.bias = matrix_of(k, BIAS, BIAS_AT, 0, wide || f32, 1, &room);
    how.bias.pitch = how.n;
    how.add = (k->view[C].flags & LH_ARG_ADD) != 0 && k->number[C_AT] == not_there;
    const lh_status_t status = matmul_pieces(k, &how, &library_bytes);
    if (status != LH_OK) return status;
    k->number[LIBRARY_AT] = room_take(&room, library_bytes);
    plan->scratch_bytes = room;
    matmul_name(k, wide, plan);
    return LH_OK;
}

static lh_status_t matmul_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                               lh_kernel_plan_t *plan)
{
    const onednn_t *library = k->device->onednn;
    const bool bf16 = k->view[A].dtype == LH_DTYPE_BF16;
    const bool native = k->device->isa >= CPU_AVX512_BF16 && onednn_has_bf16(library);
    const bool wide = bf16 && !(native && onednn_prefers_bf16(library));
    onednn_matmul_how_t how = {0};
    lh_status_t status = matmul_shapes(k, &how);
    if (status != LH_OK) return status;

    if (desc->stream != NULL) k->device->openmp.set_threads((int)desc->stream->threads.count);
    k->phase[k->phases++].alone = product;
    status = matmul_build(k, &how, wide, plan);
    if (status != LH_OK || !native || !bf16 || desc->variant == 0 || desc->variant == plan->variant)
        return status;
    /* Another machine's choice, or an earlier one's, may be the other way to do it. */
    cpu_matmuls_free(k);
    return matmul_build(k, &how, !wide, plan);
}

const cpu_op_t CPU_ISA(matmul_ops)[] = {
    {"matmul", matmul_plan},
    {NULL,     NULL       }
};
