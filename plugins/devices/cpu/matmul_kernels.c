/* matmul_kernels.c - matmul by oneDNN, with what it does not do around it: activations with the
 * value before them kept, and BF16 on processors that only multiply F32. */
#include "activation.h"
#include "onednn.h"

#include <stdio.h>

enum { A, B, BIAS, SCALE_A, SCALE_B, C, AUX, AMAX };

/* number[]: places in scratch (bytes); NOT_THERE where the argument itself serves. */
enum { A_AT = 0, B_AT = 1, BIAS_AT = 2, C_AT = 3, LIBRARY_AT = 4 };
static const uint64_t not_there = ~(uint64_t)0;
static const uint64_t chunk_elements = 16384;

static uint64_t matmul_chunk(const cpu_view_t *v)
{
    const uint64_t rows = chunk_elements / v->width;
    return rows == 0 ? 1 : rows;
}

static void *scratch_at(const lh_prepared_t *k, uint32_t which, uint32_t slot)
{
    if (k->number[which] == not_there) return k->at[slot];
    return (char *)k->scratch + k->number[which];
}

/* ---- before the product: inputs in F32 ---- */

static void widen(const lh_prepared_t *k, uint32_t part, uint32_t slot, uint32_t which)
{
    const cpu_view_t *v = &k->view[slot];
    float *to = scratch_at(k, which, slot);
    uint64_t row, end;
    cpu_range(part, matmul_chunk(v), v->rows, &row, &end);
    for (; row < end; row++) {
        const void *from = cpu_row(k, slot, row);
        for (uint64_t i = 0; i < v->width; i += LANES) {
            const uint64_t m = vf_span(i, v->width);
            vf_put(to + row * v->width, LH_DTYPE_F32, i, m, vf_get(from, LH_DTYPE_BF16, i, m));
        }
    }
}

static void widen_a(const lh_prepared_t *k, uint32_t part)
{
    widen(k, part, A, A_AT);
}

static void widen_b(const lh_prepared_t *k, uint32_t part)
{
    widen(k, part, B, B_AT);
}

/* ---- the product ---- */

static lh_status_t product(const lh_prepared_t *k)
{
    k->device->openmp.set_threads((int)k->stream->threads.count);
    if (k->number[BIAS_AT] != not_there) widen(k, 0, BIAS, BIAS_AT);
    const uint32_t target = cpu_has(k, AUX) ? AUX : C;
    return onednn_matmul_run(k->matmul, scratch_at(k, A_AT, A), scratch_at(k, B_AT, B),
                             scratch_at(k, BIAS_AT, BIAS), scratch_at(k, C_AT, target),
                             (char *)k->scratch + k->number[LIBRARY_AT]);
}

/* ---- behind the product ---- */

/* c = act(v), where v is the product as it is stored in aux or, without one, would be: so a
 * gradient that sees aux sees what was activated. */
static void finish(const lh_prepared_t *k, uint32_t part)
{
    const cpu_view_t *c = &k->view[C];
    const bool narrow = k->number[C_AT] != not_there, add = (c->flags & LH_ARG_ADD) != 0;
    const uint32_t stored = cpu_has(k, AUX) ? AUX : C;
    uint64_t row, end;
    cpu_range(part, matmul_chunk(c), c->rows, &row, &end);
    for (; row < end; row++) {
        void *out = cpu_row(k, C, row), *kept = cpu_row(k, stored, row);
        const float *wide = (const float *)scratch_at(k, C_AT, C) + row * c->width;
        for (uint64_t i = 0; i < c->width; i += LANES) {
            const uint64_t m = vf_span(i, c->width);
            vf v = narrow ? vf_get(wide, LH_DTYPE_F32, i, m) : vf_get(kept, c->dtype, i, m);
            if (narrow && add) v = v + vf_get(out, c->dtype, i, m);
            if (narrow && stored == AUX) vf_put(kept, c->dtype, i, m, v);
            if (narrow && c->dtype == LH_DTYPE_BF16) v = vf_from_bf16(vf_to_bf16(v));
            vf_put(out, c->dtype, i, m, act_apply(k->how.matmul.activation, v));
        }
    }
}

/* ---- plan ---- */

typedef struct matmul_room { /* scratch, handed out from the front */
    uint64_t bytes;
} matmul_room_t;

static uint64_t room_take(matmul_room_t *room, uint64_t bytes)
{
    const uint64_t at = room->bytes;
    room->bytes += (bytes + 63) / 64 * 64;
    return at;
}

/* The matrix in slot as the library will see it; where it has to be widened, dense in scratch. */
static onednn_matrix_t matrix_of(lh_prepared_t *k, uint32_t slot, uint32_t which, uint32_t turned,
                                 bool wide, matmul_room_t *room)
{
    const cpu_view_t *v = &k->view[slot];
    onednn_matrix_t matrix = {.dtype = v->dtype, .transposed = turned, .pitch = v->pitch};
    k->number[which] = not_there;
    if (v->rows == 1) matrix.pitch = v->width;
    if (wide && v->dtype == LH_DTYPE_BF16) {
        k->number[which] = room_take(room, v->rows * v->width * sizeof(float));
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

/* Names the library's choice; the variant is its hash, so that a resume takes the same or says so.
 */
static void matmul_name(const lh_prepared_t *k, bool wide, lh_kernel_plan_t *plan)
{
    const char *chosen = onednn_matmul_name(k->matmul);
    uint64_t hash = 0xcbf29ce484222325u ^ k->device->isa;
    for (const char *p = chosen; *p != '\0'; p++)
        hash = (hash ^ (unsigned char)*p) * 0x100000001b3u;
    for (const char *p = onednn_version(k->device->onednn); *p != '\0'; p++)
        hash = (hash ^ (unsigned char)*p) * 0x100000001b3u;
    plan->variant = hash == 0 ? 1 : hash;
    snprintf(plan->name, sizeof(plan->name), "matmul.%s.%s",
             k->view[A].dtype == LH_DTYPE_F32 ? "f32"
             : wide                           ? "bf16_as_f32"
                                              : "bf16",
             chosen);
}

static lh_status_t matmul_plan(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                               lh_kernel_plan_t *plan)
{
    const lh_matmul_t *op = &k->how.matmul;
    const bool bf16 = k->view[A].dtype == LH_DTYPE_BF16;
    const bool wide = bf16 &&
                      (k->device->isa < CPU_AVX512_BF16 || !onednn_has_bf16(k->device->onednn));
    const uint32_t target = cpu_has(k, AUX) ? AUX : C;
    matmul_room_t room = {0};
    onednn_matmul_how_t how = {0};
    lh_status_t status = matmul_shapes(k, &how);
    if (status != LH_OK) return status;

    how.a = matrix_of(k, A, A_AT, op->transpose_a, wide, &room);
    how.b = matrix_of(k, B, B_AT, op->transpose_b, wide, &room);
    how.c = matrix_of(k, target, C_AT, 0, wide, &room);
    how.bias = matrix_of(k, BIAS, BIAS_AT, 0, wide || !bf16, &room);
    how.bias.pitch = how.n;
    how.add = (k->view[C].flags & LH_ARG_ADD) != 0 && k->number[C_AT] == not_there;
    if (desc->stream != NULL) k->device->openmp.set_threads((int)desc->stream->threads.count);
    status = onednn_matmul_new(k->device->onednn, &how, &k->matmul);
    if (status != LH_OK) return status;

    k->number[LIBRARY_AT] = room_take(&room, onednn_matmul_scratch_bytes(k->matmul));
    plan->scratch_bytes = room.bytes;
    if (k->number[A_AT] != not_there)
        cpu_phase_add(k, widen_a, k->view[A].rows, matmul_chunk(&k->view[A]));
    if (k->number[B_AT] != not_there)
        cpu_phase_add(k, widen_b, k->view[B].rows, matmul_chunk(&k->view[B]));
    k->phase[k->phases++].alone = product;
    if (k->number[C_AT] != not_there || op->activation != LH_ACT_NONE || target == AUX)
        cpu_phase_add(k, finish, k->view[C].rows, matmul_chunk(&k->view[C]));
    matmul_name(k, wide, plan);
    return LH_OK;
}

const cpu_op_t CPU_ISA(matmul_ops)[] = {
    {"matmul", matmul_plan},
    {NULL,     NULL       }
};
