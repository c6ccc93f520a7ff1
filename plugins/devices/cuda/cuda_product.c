/* cuda_product.c - matmul by cuBLASLt: F32, BF16 and F16, sums in F32, with bias and GELU (by tanh) in
 * the same pass. What it does not take (scales, amax, other activations, odd strides) goes to the
 * plugin's own kernel, the next row of the table.
 *
 * The library's matrices lie column by column, ours row by row: one seen as the other is its transpose.
 * So c = op(a) op(b), of m x n, is computed as c' = op(b)' op(a)', of n x m, over the very same memory.
 *
 * Two algorithms are chosen when a call is prepared: one for addresses on 16 bytes, as nearly all are,
 * and one for any other, as a view of columns may have; places are fixed for the life of a plan, so a
 * call always runs by the same one. Where the host has told that all lie on 16 bytes, and the library
 * has nothing for other addresses, the first does alone. The variant is a digest of both (the library's
 * structs may be kept and compared as bytes): to be told a variant means to search the library's list
 * for those two. Only algorithms that reduce in F32 are asked for, and none of the library's is
 * unordered but for sums in place, which that leaves out.
 *
 * The library's order is a guess by shapes. Asked to (LH_KERNEL_TUNE), the first candidates are run over
 * memory that is taken for as long, and the fastest is chosen; a plan counts the largest
 * workspace of all candidates (LH_KERNEL_MOST). */
#include <stdio.h>

#include <longhaul/dtype.h>
#include <longhaul/rule.h>

#include "cuda_device.h"
#include "cuda_digest.h"

enum {
    ALIGNED,   /* addresses and rows on 16 bytes */
    UNALIGNED, /* on elements */
    ALGORITHMS,
    CANDIDATES = 32, /* asked for, best first; an older choice is among them */
    TIMED = 8,       /* of those, where candidates are timed */
    TIMED_RUNS = 5,  /* of each, behind one that is not timed */
    VECTOR_BYTES = 16,
    AUX_PITCH = 8, /* elements: what the library asks of that matrix */
};

/* NVIDIA's advice for Hopper and later; enough for all before. */
static const uint64_t workspace_most_bytes = (uint64_t)32 << 20;

struct lh_prepared {
    lh_device_t *device;
    cublas_product_t product;
    cublas_layout_t a, b, c; /* of the library's first and second factor, and of what it writes */
    cublas_algorithm_t algorithm[ALGORITHMS];
    uint64_t workspace_bytes[ALGORITHMS];
    bool has_aligned; /* rows are whole multiples of 16 bytes */
    bool has_unaligned;
    bool timed; /* an algorithm was chosen by the clock */
    bool add, has_bias, has_aux;
};

LH_SLOTS(LH_MATMUL_TEXT);

static const lh_arg_t *desc_arg(const lh_kernel_desc_t *desc, uint32_t slot)
{
    static const lh_arg_t none = {.dtype = LH_DTYPE_NONE};
    if (slot >= desc->arg_count) return &none;
    return (const lh_arg_t *)(const void *)((const char *)desc->args +
                                            (size_t)slot * desc->arg_size);
}

static bool desc_has(const lh_kernel_desc_t *desc, uint32_t slot)
{
    return desc_arg(desc, slot)->dtype != LH_DTYPE_NONE;
}

/* As much as both sides know. */
static lh_matmul_t desc_how(const lh_kernel_desc_t *desc)
{
    lh_matmul_t how = {.struct_size = sizeof(how)};
    if (desc->attributes == NULL) return how;
    uint32_t bytes;
    memcpy(&bytes, desc->attributes, sizeof(bytes));
    memcpy(&how, desc->attributes, bytes < sizeof(how) ? bytes : sizeof(how));
    return how;
}

static int cublas_type(lh_dtype_t dtype)
{
    switch (dtype) {
    case LH_DTYPE_F32: return CUBLAS_R_32F;
    case LH_DTYPE_BF16: return CUBLAS_R_16BF;
    case LH_DTYPE_F16: return CUBLAS_R_16F;
    default: return -1;
    }
}

/* ---- what it takes ---- */

static lh_status_t product_dtypes(const lh_host_t *host, const lh_kernel_desc_t *desc)
{
    const lh_dtype_t a = desc_arg(desc, in_a)->dtype, b = desc_arg(desc, in_b)->dtype;
    const lh_dtype_t c = desc_arg(desc, out_c)->dtype, aux = desc_arg(desc, out_aux)->dtype;
    if (cublas_type(a) < 0 || a != b || (c != a && c != LH_DTYPE_F32))
        return host->fail(host, LH_UNSUPPORTED, "cuBLASLt: not these dtypes");
    if ((desc_has(desc, in_bias) && desc_arg(desc, in_bias)->dtype != c) ||
        (aux != LH_DTYPE_NONE && aux != c))
        return host->fail(host, LH_UNSUPPORTED, "cuBLASLt: bias or aux are not of c's dtype");
    return LH_OK;
}

lh_status_t cuda_product_fits(const lh_host_t *host, const lh_device_t *d, const void *config,
                              const lh_kernel_desc_t *desc)
{
    (void)d;
    (void)config;
    const lh_matmul_t how = desc_how(desc);
    const lh_status_t status = product_dtypes(host, desc);
    if (status != LH_OK) return status;
    if (desc_has(desc, in_scale_a) || desc_has(desc, in_scale_b) || desc_has(desc, out_amax))
        return host->fail(host, LH_UNSUPPORTED, "cuBLASLt: scales and amax are not taken");
    if (how.activation != LH_ACT_NONE && how.activation != LH_ACT_GELU_TANH)
        return host->fail(host, LH_UNSUPPORTED, "cuBLASLt: no such activation");
    /* The library adds to what lies there before it activates. */
    if (how.activation != LH_ACT_NONE && (desc_arg(desc, out_c)->flags & LH_ARG_ADD) != 0)
        return host->fail(host, LH_UNSUPPORTED, "cuBLASLt: no activation where c is added to");
    if (how.activation == LH_ACT_NONE && desc_has(desc, out_aux))
        return host->fail(host, LH_UNSUPPORTED, "cuBLASLt: no aux without an activation");
    for (uint32_t i = 0; i < desc->arg_count; i++) {
        const lh_arg_t *arg = desc_arg(desc, i);
        if (arg->dtype == LH_DTYPE_NONE) continue;
        if (arg->count_slot != 0 ||
            (arg->layout != LH_LAYOUT_DENSE && arg->layout != LH_LAYOUT_ANY))
            return host->fail(host, LH_UNSUPPORTED, "cuBLASLt: dense matrices only");
    }
    return LH_OK;
}

/* A matrix of whole rows, as the library's transpose: rows and columns change places. */
static bool matrix_fits(const lh_arg_t *arg)
{
    return arg->rank == 2 && arg->shape[0] > 0 && arg->shape[1] > 0 &&
           (arg->stride[1] == 1 || arg->shape[1] == 1) &&
           (arg->stride[0] >= arg->shape[1] || arg->shape[0] == 1);
}

static uint64_t matrix_pitch(const lh_arg_t *arg)
{
    return arg->shape[0] == 1 && arg->stride[0] < arg->shape[1] ? arg->shape[1] : arg->stride[0];
}

static bool matrix_aligned(const lh_arg_t *arg)
{
    return matrix_pitch(arg) * lh_dtype_bytes(arg->dtype) % VECTOR_BYTES == 0;
}

static lh_status_t product_shapes(const lh_host_t *host, const lh_kernel_desc_t *desc)
{
    const lh_matmul_t how = desc_how(desc);
    const lh_arg_t *a = desc_arg(desc, in_a), *b = desc_arg(desc, in_b);
    const lh_arg_t *c = desc_arg(desc, out_c), *bias = desc_arg(desc, in_bias);
    const lh_arg_t *aux = desc_arg(desc, out_aux);
    if (!matrix_fits(a) || !matrix_fits(b) || !matrix_fits(c))
        return host->fail(host, LH_UNSUPPORTED, "cuBLASLt: matrices of even rows only");
    const int ta = how.transpose_a != 0, tb = how.transpose_b != 0;
    if (a->shape[1 - ta] != b->shape[tb] || a->shape[ta] != c->shape[0] ||
        b->shape[1 - tb] != c->shape[1])
        return host->fail(host, LH_INVALID, "matmul: the shapes don't go together");
    if (bias->dtype != LH_DTYPE_NONE && (bias->rank != 1 || bias->shape[0] != c->shape[1] ||
                                         (bias->stride[0] != 1 && bias->shape[0] > 1)))
        return host->fail(host, LH_UNSUPPORTED, "cuBLASLt: a bias of c's columns only");
    if (aux->dtype != LH_DTYPE_NONE &&
        (!matrix_fits(aux) || aux->shape[0] != c->shape[0] || aux->shape[1] != c->shape[1] ||
         matrix_pitch(aux) % AUX_PITCH != 0))
        return host->fail(host, LH_UNSUPPORTED, "cuBLASLt: rows of aux are whole eights only");
    return LH_OK;
}

/* ---- what is made ---- */

static lh_status_t layout_make(lh_device_t *d, const lh_arg_t *arg, cublas_layout_t *out)
{
    return cuda_check_cublas(d,
                             d->library.cublasLtMatrixLayoutCreate(out, cublas_type(arg->dtype),
                                                                   arg->shape[1], arg->shape[0],
                                                                   (int64_t)matrix_pitch(arg)),
                             "cublasLtMatrixLayoutCreate");
}

static lh_status_t product_set(lh_prepared_t *k, int attribute, const void *value, size_t bytes)
{
    lh_device_t *d = k->device;
    return cuda_check_cublas(
        d, d->library.cublasLtMatmulDescSetAttribute(k->product, attribute, value, bytes),
        "cublasLtMatmulDescSetAttribute");
}

/* The library's first factor is our b. */
static lh_status_t product_describe(lh_prepared_t *k, const lh_kernel_desc_t *desc)
{
    lh_device_t *d = k->device;
    const lh_matmul_t how = desc_how(desc);
    const bool f32 = desc_arg(desc, in_a)->dtype == LH_DTYPE_F32;
    const int compute = f32 && d->tf32 ? CUBLAS_SUMS_32F_TF32 : CUBLAS_SUMS_32F;
    lh_status_t status = layout_make(d, desc_arg(desc, in_b), &k->a);
    if (status == LH_OK) status = layout_make(d, desc_arg(desc, in_a), &k->b);
    if (status == LH_OK) status = layout_make(d, desc_arg(desc, out_c), &k->c);
    if (status == LH_OK)
        status = cuda_check_cublas(
            d, d->library.cublasLtMatmulDescCreate(&k->product, compute, CUBLAS_R_32F),
            "cublasLtMatmulDescCreate");
    if (status != LH_OK) return status;

    const int32_t first = how.transpose_b != 0 ? CUBLAS_TURNED : CUBLAS_PLAIN;
    const int32_t second = how.transpose_a != 0 ? CUBLAS_TURNED : CUBLAS_PLAIN;
    const uint32_t epilogue = k->has_bias || how.activation != LH_ACT_NONE
                                  ? (k->has_bias ? (uint32_t)CUBLAS_EPILOGUE_BIAS : 0) |
                                        (how.activation != LH_ACT_NONE
                                             ? (uint32_t)CUBLAS_EPILOGUE_GELU
                                             : 0) |
                                        (k->has_aux ? (uint32_t)CUBLAS_EPILOGUE_AUX : 0)
                                  : (uint32_t)CUBLAS_EPILOGUE_NONE;
    status = product_set(k, CUBLAS_DESC_TRANSPOSE_A, &first, sizeof(first));
    if (status == LH_OK) status = product_set(k, CUBLAS_DESC_TRANSPOSE_B, &second, sizeof(second));
    if (status == LH_OK) status = product_set(k, CUBLAS_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
    if (status == LH_OK && k->has_bias) {
        const int32_t type = cublas_type(desc_arg(desc, in_bias)->dtype);
        status = product_set(k, CUBLAS_DESC_BIAS_TYPE, &type, sizeof(type));
    }
    if (status == LH_OK && k->has_aux) {
        const int64_t pitch = (int64_t)matrix_pitch(desc_arg(desc, out_aux));
        status = product_set(k, CUBLAS_DESC_AUX_PITCH, &pitch, sizeof(pitch));
    }
    return status;
}

/* The library's candidates for addresses of this alignment, best first. */
static lh_status_t algorithms_ask(lh_prepared_t *k, uint32_t alignment, uint64_t workspace_bytes,
                                  cublas_found_t found[CANDIDATES], int *count)
{
    const cuda_library_t *l = &k->device->library;
    const uint32_t reduction = CUBLAS_REDUCTION_COMPUTE_TYPE;
    cublas_preference_t preference = NULL;
    cublas_status_t s = l->cublasLtMatmulPreferenceCreate(&preference);
    if (s == CUBLAS_OK)
        s = l->cublasLtMatmulPreferenceSetAttribute(preference, CUBLAS_PREFER_WORKSPACE,
                                                    &workspace_bytes, sizeof(workspace_bytes));
    if (s == CUBLAS_OK)
        s = l->cublasLtMatmulPreferenceSetAttribute(preference, CUBLAS_PREFER_REDUCTION, &reduction,
                                                    sizeof(reduction));
    for (int i = 0; i < 4 && s == CUBLAS_OK; i++)
        s = l->cublasLtMatmulPreferenceSetAttribute(preference, CUBLAS_PREFER_ALIGNMENT_A + i,
                                                    &alignment, sizeof(alignment));
    if (s == CUBLAS_OK)
        s = l->cublasLtMatmulAlgoGetHeuristic(k->device->cublas, k->product, k->a, k->b, k->c, k->c,
                                              preference, CANDIDATES, found, count);
    if (preference != NULL) (void)l->cublasLtMatmulPreferenceDestroy(preference);
    return cuda_check_cublas(k->device, s, "cublasLtMatmulAlgoGetHeuristic");
}

static lh_status_t product_queue(lh_prepared_t *k, const lh_place_t *args,
                                 const cublas_algorithm_t *algorithm, void *workspace,
                                 uint64_t workspace_bytes, lh_stream_t *stream);

/* ---- candidates by the clock ---- */

/* Operands in memory of their own, and the two events between which candidates run. */
typedef struct trial {
    lh_stream_t *stream;
    cuda_address_t memory;
    uint64_t bytes;
    lh_place_t args[LH_MAX_SLOTS];
    void *workspace;
    cuda_event_t begin, end;
} trial_t;

/* Dense or not, from the first element to the last. */
static uint64_t arg_span_bytes(const lh_arg_t *arg)
{
    uint64_t elements = arg->dtype == LH_DTYPE_NONE ? 0 : 1;
    for (uint32_t r = 0; r < arg->rank && elements > 0; r++)
        elements += (arg->shape[r] - 1) * arg->stride[r];
    return elements * lh_dtype_bytes(arg->dtype);
}

static void trial_close(lh_device_t *d, trial_t *t)
{
    const cuda_library_t *l = &d->library;
    if (t->begin != NULL) (void)l->cuEventDestroy_v2(t->begin);
    if (t->end != NULL) (void)l->cuEventDestroy_v2(t->end);
    if (t->memory != 0) (void)l->cuMemFree_v2(t->memory);
}

/* Memory comes before the host takes any for the plan. What it holds is small numbers of all dtypes. */
static cuda_result_t trial_open(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                uint64_t workspace_bytes, trial_t *t)
{
    const cuda_library_t *l = &k->device->library;
    uint64_t at[LH_MAX_SLOTS + 1];
    *t = (trial_t){.stream = desc->stream};
    for (uint32_t i = 0; i <= desc->arg_count; i++) {
        at[i] = t->bytes;
        t->bytes += i < desc->arg_count ? arg_span_bytes(desc_arg(desc, i)) : workspace_bytes;
        t->bytes = (t->bytes + 255) / 256 * 256;
    }
    cuda_result_t result = l->cuMemAlloc_v2(&t->memory, t->bytes);
    if (result != CUDA_OK) t->memory = 0;
    if (result == CUDA_OK) result = l->cuEventCreate(&t->begin, CUDA_EVENT_DEFAULT);
    if (result == CUDA_OK) result = l->cuEventCreate(&t->end, CUDA_EVENT_DEFAULT);
    if (result == CUDA_OK)
        result = l->cuMemsetD8Async(t->memory, 0x3c, t->bytes, t->stream->stream);
    for (uint32_t i = 0; i < desc->arg_count; i++)
        t->args[i].address = (void *)(uintptr_t)(t->memory + at[i]);
    t->workspace = (void *)(uintptr_t)(t->memory + at[desc->arg_count]);
    return result;
}

/* Milliseconds of some runs. False: the candidate does not run. */
static bool candidate_time(lh_prepared_t *k, const trial_t *t, const cublas_found_t *found,
                           float *ms)
{
    const cuda_library_t *l = &k->device->library;
    for (int run = 0; run <= TIMED_RUNS; run++) {
        if (run == 1 && l->cuEventRecord(t->begin, t->stream->stream) != CUDA_OK) return false;
        if (product_queue(k, t->args, &found->algorithm, t->workspace, found->workspace_bytes,
                          t->stream) != LH_OK)
            return false;
    }
    return l->cuEventRecord(t->end, t->stream->stream) == CUDA_OK &&
           l->cuEventSynchronize(t->end) == CUDA_OK &&
           l->cuEventElapsedTime(ms, t->begin, t->end) == CUDA_OK;
}

/* Whether the library's candidate can be taken. */
static bool candidate_fits(const cublas_found_t *found, uint64_t workspace_bytes)
{
    return found->state == CUBLAS_OK && found->workspace_bytes <= workspace_bytes;
}

/* The largest workspace of all candidates: what rank 0 takes of its first ones may stand further back
 * here, where another device or less scratch gives another list. */
static uint64_t candidates_workspace(const cublas_found_t *found, int count, uint64_t limit)
{
    uint64_t most = 0;
    for (int i = 0; i < count; i++)
        if (candidate_fits(&found[i], limit) && found[i].workspace_bytes > most)
            most = found[i].workspace_bytes;
    return most;
}

/* The fastest of the first candidates; a later one must be faster by 3 %, as times differ from run to
 * run. Where there is no memory for a trial the first is taken. */
static int candidates_time(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                           const cublas_found_t *found, int count, uint64_t workspace_bytes)
{
    trial_t t;
    float least = 0;
    int best = -1;
    if (trial_open(k, desc, workspace_bytes, &t) == CUDA_OK)
        for (int i = 0; i < count && i < TIMED; i++) {
            float ms;
            if (!candidate_fits(&found[i], workspace_bytes) ||
                !candidate_time(k, &t, &found[i], &ms))
                continue;
            if (best < 0 || ms < 0.97f * least) {
                best = i;
                least = ms;
            }
        }
    trial_close(k->device, &t);
    k->timed = k->timed || best >= 0;
    return best;
}

/* The one whose digest is wanted; else the fastest, if they are to be timed; else the first. */
static lh_status_t algorithm_choose(lh_prepared_t *k, const lh_kernel_desc_t *desc, uint32_t which,
                                    uint64_t workspace_bytes, uint32_t wanted)
{
    const lh_host_t *host = k->device->host;
    const uint32_t element = (uint32_t)lh_dtype_bytes(desc_arg(desc, in_a)->dtype);
    const bool may = wanted == 0 && desc->stream != NULL &&
                     which == (k->has_aligned ? ALIGNED : UNALIGNED);
    const bool tune = may && (desc->flags & LH_KERNEL_TUNE) != 0;
    cublas_found_t found[CANDIDATES];
    int count = 0;
    const lh_status_t status = algorithms_ask(k, which == ALIGNED ? VECTOR_BYTES : element,
                                              workspace_bytes, found, &count);
    if (status != LH_OK) return status;
    const int best = tune ? candidates_time(k, desc, found, count, workspace_bytes) : -1;
    for (int i = best >= 0 ? best : 0; i < count; i++) {
        if (!candidate_fits(&found[i], workspace_bytes)) continue;
        if (wanted != 0 && cuda_digest(&found[i].algorithm, sizeof(found[i].algorithm)) != wanted)
            continue;
        k->algorithm[which] = found[i].algorithm;
        k->workspace_bytes[which] = may && (desc->flags & LH_KERNEL_MOST) != 0
                                        ? candidates_workspace(found, count, workspace_bytes)
                                        : found[i].workspace_bytes;
        return LH_OK;
    }
    if (wanted == 0)
        return host->fail(host, LH_UNSUPPORTED, "%s has no algorithm for this product",
                          k->device->library.cublas_name);
    return host->fail(host, LH_UNSUPPORTED,
                      "%s does not offer the algorithm %08x that was used before: another GPU, "
                      "driver or library",
                      k->device->library.cublas_name, wanted);
}

/* Whether the host says that what is read and written lies on 16 bytes. */
static bool places_told(const lh_kernel_desc_t *desc)
{
    const uint32_t a = desc_arg(desc, in_a)->alignment, b = desc_arg(desc, in_b)->alignment;
    const uint32_t c = desc_arg(desc, out_c)->alignment;
    return a != 0 && b != 0 && c != 0 && (a | b | c) % VECTOR_BYTES == 0;
}

/* Both, by the halves of the variant. */
static lh_status_t algorithms_choose(lh_prepared_t *k, const lh_kernel_desc_t *desc,
                                     uint64_t *variant)
{
    const uint64_t limit = desc->scratch_limit_bytes;
    const uint64_t most = limit > 0 && limit < workspace_most_bytes ? limit : workspace_most_bytes;
    const uint32_t first = (uint32_t)(desc->variant >> 32), second = (uint32_t)desc->variant;
    uint32_t digest[ALGORITHMS] = {0};
    lh_status_t status = LH_OK;
    if (k->has_aligned) {
        status = algorithm_choose(k, desc, ALIGNED, most, first);
        digest[ALIGNED] = cuda_digest(&k->algorithm[ALIGNED], sizeof(k->algorithm[ALIGNED]));
    }
    if (status == LH_OK) {
        status = algorithm_choose(k, desc, UNALIGNED, most, second);
        k->has_unaligned = status == LH_OK;
        if (status == LH_OK)
            digest[UNALIGNED] = cuda_digest(&k->algorithm[UNALIGNED],
                                            sizeof(k->algorithm[UNALIGNED]));
        if (status == LH_UNSUPPORTED && second == 0 && k->has_aligned && places_told(desc))
            status = LH_OK;
    }
    *variant = (uint64_t)digest[ALIGNED] << 32 | digest[UNALIGNED];
    if (status == LH_OK && desc->variant != 0 && *variant != desc->variant)
        return k->device->host->fail(k->device->host, LH_UNSUPPORTED,
                                     "variant %llx is not cuBLASLt's",
                                     (unsigned long long)desc->variant);
    return status;
}

static void product_plan_fill(const lh_prepared_t *k, const lh_kernel_desc_t *desc,
                              uint64_t variant, lh_kernel_plan_t *out)
{
    static const char *const names[] = {
        [LH_DTYPE_F32] = "f32", [LH_DTYPE_BF16] = "bf16", [LH_DTYPE_F16] = "f16"};
    lh_kernel_plan_t mine = {.flags = LH_KERNEL_ORDERED | LH_KERNEL_CAPTURE,
                             .host_bytes = sizeof(*k),
                             .variant = variant};
    if (k->timed) mine.flags |= LH_KERNEL_TUNE;
    for (int i = 0; i < ALGORITHMS; i++)
        if (k->workspace_bytes[i] > mine.scratch_bytes) mine.scratch_bytes = k->workspace_bytes[i];
    for (uint32_t i = 0; i < desc->arg_count && i < LH_MAX_SLOTS; i++) {
        const lh_arg_t *arg = desc_arg(desc, i);
        uint64_t elements = arg->dtype == LH_DTYPE_NONE ? 0 : 1;
        for (uint32_t r = 0; r < arg->rank; r++)
            elements *= arg->shape[r];
        mine.layout_bytes[i] = elements * lh_dtype_bytes(arg->dtype);
    }
    (void)snprintf(mine.name, sizeof(mine.name), "matmul.%s.cublaslt",
                   names[desc_arg(desc, in_a)->dtype]);
    lh_fill(out, &mine, sizeof(mine));
}

lh_status_t cuda_product_prepare(const lh_host_t *host, lh_device_t *d,
                                 const lh_kernel_desc_t *desc, lh_kernel_plan_t *plan,
                                 lh_prepared_t **out)
{
    lh_status_t status = cuda_product_fits(host, d, NULL, desc);
    if (status == LH_OK) status = product_shapes(host, desc);
    if (status == LH_OK) status = cuda_enter(d);
    if (status != LH_OK) return status;
    lh_prepared_t *k = host->alloc(host, sizeof(*k), _Alignof(lh_prepared_t));
    if (k == NULL) return LH_NO_MEMORY;

    uint64_t variant = 0;
    k->device = d;
    k->add = (desc_arg(desc, out_c)->flags & LH_ARG_ADD) != 0;
    k->has_bias = desc_has(desc, in_bias);
    k->has_aux = desc_has(desc, out_aux);
    k->has_aligned = matrix_aligned(desc_arg(desc, in_a)) && matrix_aligned(desc_arg(desc, in_b)) &&
                     matrix_aligned(desc_arg(desc, out_c));
    status = product_describe(k, desc);
    if (status == LH_OK) status = algorithms_choose(k, desc, &variant);
    if (status != LH_OK) {
        cuda_product_release(k);
        return status;
    }
    product_plan_fill(k, desc, variant, plan);
    *out = k;
    return LH_OK;
}

void cuda_product_release(lh_prepared_t *k)
{
    if (k == NULL) return;
    lh_device_t *d = k->device;
    const cuda_library_t *l = &d->library;
    (void)l->cuCtxSetCurrent(d->context);
    if (k->product != NULL) (void)l->cublasLtMatmulDescDestroy(k->product);
    if (k->a != NULL) (void)l->cublasLtMatrixLayoutDestroy(k->a);
    if (k->b != NULL) (void)l->cublasLtMatrixLayoutDestroy(k->b);
    if (k->c != NULL) (void)l->cublasLtMatrixLayoutDestroy(k->c);
    d->host->release(d->host, k);
}

/* ---- what is launched ---- */

/* Which algorithm these addresses ask for. */
static uint32_t places_choose(const lh_prepared_t *k, const lh_place_t *args)
{
    const uintptr_t bits = (uintptr_t)args[in_a].address | (uintptr_t)args[in_b].address |
                           (uintptr_t)args[out_c].address;
    return k->has_aligned && bits % VECTOR_BYTES == 0 ? ALIGNED : UNALIGNED;
}

/* What is bound is the algorithm; a place that the library does not take is refused before step 0. */
lh_status_t cuda_product_bind(lh_prepared_t *k, const lh_launch_t *call, void **bound)
{
    const lh_place_t *args = call->args;
    if (k->has_aux && (uintptr_t)args[out_aux].address % VECTOR_BYTES != 0)
        return k->device->host->fail(k->device->host, LH_INVALID,
                                     "matmul: aux lies on no 16 bytes");
    const uint32_t which = places_choose(k, args);
    if (which == UNALIGNED && !k->has_unaligned)
        return k->device->host->fail(k->device->host, LH_INVALID,
                                     "matmul: a place lies on no 16 bytes, though it was told to");
    *bound = &k->algorithm[which];
    return LH_OK;
}

static lh_status_t product_queue(lh_prepared_t *k, const lh_place_t *args,
                                 const cublas_algorithm_t *algorithm, void *workspace,
                                 uint64_t workspace_bytes, lh_stream_t *stream)
{
    lh_device_t *d = k->device;
    lh_status_t status = cuda_enter(d);
    if (status == LH_OK && k->has_bias)
        status = product_set(k, CUBLAS_DESC_BIAS, &args[in_bias].address, sizeof(void *));
    if (status == LH_OK && k->has_aux)
        status = product_set(k, CUBLAS_DESC_AUX, &args[out_aux].address, sizeof(void *));
    if (status != LH_OK) return status;

    const float one = 1, kept = k->add ? 1 : 0;
    void *c = args[out_c].address;
    cuda_queued(d, "matmul (cuBLASLt)");
    const cublas_status_t s = d->library.cublasLtMatmul(
        d->cublas, k->product, &one, args[in_b].address, k->a, args[in_a].address, k->b, &kept, c,
        k->c, c, k->c, algorithm, workspace, workspace_bytes, stream->stream);
    status = cuda_check_cublas(d, s, "cublasLtMatmul");
    return status == LH_IO ? cuda_launch_failure(stream, "cublasLtMatmul") : status;
}

lh_status_t cuda_product_launch(lh_prepared_t *k, const lh_launch_t *call)
{
    const cublas_algorithm_t *algorithm = call->bound;
    return product_queue(k, call->args, algorithm, call->scratch.address,
                         k->workspace_bytes[algorithm - k->algorithm], call->stream);
}
