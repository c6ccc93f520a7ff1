/* fake_cublaslt.c - cuBLASLt's product, column by column as the library sees matrices, in F32.
 *
 * Checks what the real one checks: alignment of addresses and pitches against what the algorithm was
 * asked for, the workspace's size, and the dtypes that go together. */
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include <longhaul/dtype.h>

#include "fake_cuda.h"

struct cublasLtContext {
    int unused;
};

struct cublasLtMatmulDescOpaque {
    int32_t turned[2]; /* op of the first and of the second factor */
    uint32_t epilogue;
    const void *bias;
    void *aux;
    int64_t aux_pitch;
    int32_t bias_type;
    int compute;
};

struct cublasLtMatrixLayoutOpaque {
    int type;
    uint64_t rows, columns;
    int64_t pitch;
};

struct cublasLtMatmulPreferenceOpaque {
    uint64_t workspace_bytes;
    uint32_t reduction;
    uint32_t alignment[4]; /* a b c d */
};

typedef struct cublasLtMatrixLayoutOpaque layout_t;

enum { WORD_NAME, WORD_ALIGNMENT, WORD_WORKSPACE }; /* of an algorithm's data */
enum { EPILOGUES = CUBLAS_EPILOGUE_BIAS | CUBLAS_EPILOGUE_GELU | CUBLAS_EPILOGUE_AUX };

typedef struct product {
    struct cublasLtMatmulDescOpaque how;
    layout_t a, b, c, d;
    float alpha, beta;
    cuda_address_t at_a, at_b, at_c, at_d, workspace;
    uint64_t workspace_bytes;
    uint64_t slow_ns;
} product_t;

FAKE_EXPORT size_t cublasLtGetVersion(void)
{
    return fake.cublas;
}

FAKE_EXPORT cublas_status_t cublasLtCreate(cublas_handle_t *out)
{
    FAKE_MAY_FAIL(cublasLtCreate);
    *out = calloc(1, sizeof(**out));
    return *out != NULL ? CUBLAS_OK : CUBLAS_NO_MEMORY;
}

FAKE_EXPORT cublas_status_t cublasLtDestroy(cublas_handle_t handle)
{
    free(handle);
    return CUBLAS_OK;
}

FAKE_EXPORT cublas_status_t cublasLtMatmulDescCreate(cublas_product_t *out, int compute, int scale)
{
    FAKE_MAY_FAIL(cublasLtMatmulDescCreate);
    if ((compute != CUBLAS_SUMS_32F && compute != CUBLAS_SUMS_32F_TF32) || scale != CUBLAS_R_32F)
        return CUBLAS_NOT_SUPPORTED;
    *out = calloc(1, sizeof(**out));
    if (*out == NULL) return CUBLAS_NO_MEMORY;
    (*out)->compute = compute;
    (*out)->epilogue = CUBLAS_EPILOGUE_NONE;
    (*out)->bias_type = -1;
    return CUBLAS_OK;
}

FAKE_EXPORT cublas_status_t cublasLtMatmulDescDestroy(cublas_product_t product)
{
    free(product);
    return CUBLAS_OK;
}

static cublas_status_t field_set(void *field, size_t size, const void *value, size_t bytes)
{
    if (bytes != size) return CUBLAS_INVALID_VALUE;
    memcpy(field, value, bytes);
    return CUBLAS_OK;
}

#define SET(field) field_set(&(field), sizeof(field), value, bytes)

FAKE_EXPORT cublas_status_t cublasLtMatmulDescSetAttribute(cublas_product_t product, int attribute,
                                                           const void *value, size_t bytes)
{
    FAKE_MAY_FAIL(cublasLtMatmulDescSetAttribute);
    switch (attribute) {
    case CUBLAS_DESC_TRANSPOSE_A: return SET(product->turned[0]);
    case CUBLAS_DESC_TRANSPOSE_B: return SET(product->turned[1]);
    case CUBLAS_DESC_EPILOGUE: return SET(product->epilogue);
    case CUBLAS_DESC_BIAS: return SET(product->bias);
    case CUBLAS_DESC_AUX: return SET(product->aux);
    case CUBLAS_DESC_AUX_PITCH: return SET(product->aux_pitch);
    case CUBLAS_DESC_BIAS_TYPE: return SET(product->bias_type);
    default: return CUBLAS_INVALID_VALUE;
    }
}

FAKE_EXPORT cublas_status_t cublasLtMatrixLayoutCreate(cublas_layout_t *out, int type,
                                                       uint64_t rows, uint64_t columns,
                                                       int64_t pitch)
{
    FAKE_MAY_FAIL(cublasLtMatrixLayoutCreate);
    if (rows == 0 || columns == 0 || pitch < (int64_t)rows) return CUBLAS_INVALID_VALUE;
    *out = calloc(1, sizeof(**out));
    if (*out == NULL) return CUBLAS_NO_MEMORY;
    **out = (layout_t){.type = type, .rows = rows, .columns = columns, .pitch = pitch};
    return CUBLAS_OK;
}

FAKE_EXPORT cublas_status_t cublasLtMatrixLayoutDestroy(cublas_layout_t layout)
{
    free(layout);
    return CUBLAS_OK;
}

FAKE_EXPORT cublas_status_t cublasLtMatmulPreferenceCreate(cublas_preference_t *out)
{
    FAKE_MAY_FAIL(cublasLtMatmulPreferenceCreate);
    *out = calloc(1, sizeof(**out));
    if (*out == NULL) return CUBLAS_NO_MEMORY;
    for (int i = 0; i < 4; i++)
        (*out)->alignment[i] = 256;
    return CUBLAS_OK;
}

FAKE_EXPORT cublas_status_t cublasLtMatmulPreferenceDestroy(cublas_preference_t preference)
{
    free(preference);
    return CUBLAS_OK;
}

FAKE_EXPORT cublas_status_t cublasLtMatmulPreferenceSetAttribute(cublas_preference_t preference,
                                                                 int attribute, const void *value,
                                                                 size_t bytes)
{
    FAKE_MAY_FAIL(cublasLtMatmulPreferenceSetAttribute);
    const int first = CUBLAS_PREFER_ALIGNMENT_A;
    if (attribute >= first && attribute < first + 4)
        return SET(preference->alignment[attribute - first]);
    if (attribute == CUBLAS_PREFER_WORKSPACE) return SET(preference->workspace_bytes);
    if (attribute == CUBLAS_PREFER_REDUCTION) return SET(preference->reduction);
    return CUBLAS_INVALID_VALUE;
}

static uint64_t type_bytes(int type)
{
    return type == CUBLAS_R_32F ? 4 : 2;
}

static bool layout_aligned(const layout_t *l, uint64_t alignment)
{
    return (uint64_t)l->pitch * type_bytes(l->type) % alignment == 0;
}

static uint64_t layout_bytes(const layout_t *l)
{
    return ((l->columns - 1) * (uint64_t)l->pitch + l->rows) * type_bytes(l->type);
}

/* op(a) is of c's rows, op(b) of c's columns. */
static bool shapes_match(const struct cublasLtMatmulDescOpaque *how, const layout_t *a,
                         const layout_t *b, const layout_t *c)
{
    const bool ta = how->turned[0] == CUBLAS_TURNED, tb = how->turned[1] == CUBLAS_TURNED;
    return (ta ? a->columns : a->rows) == c->rows && (tb ? b->rows : b->columns) == c->columns &&
           (ta ? a->rows : a->columns) == (tb ? b->columns : b->rows);
}

/* Two candidates for every alignment that is promised, the wider first. */
FAKE_EXPORT cublas_status_t cublasLtMatmulAlgoGetHeuristic(
    cublas_handle_t handle, cublas_product_t product, cublas_layout_t a, cublas_layout_t b,
    cublas_layout_t c, cublas_layout_t d, cublas_preference_t preference, int wanted,
    cublas_found_t found[], int *count)
{
    FAKE_MAY_FAIL(cublasLtMatmulAlgoGetHeuristic);
    (void)handle;
    (void)d;
    *count = 0;
    if (a->type != b->type || (c->type != a->type && c->type != CUBLAS_R_32F) ||
        !shapes_match(product, a, b, c) ||
        (product->epilogue != CUBLAS_EPILOGUE_NONE && (product->epilogue & ~(uint32_t)EPILOGUES)))
        return CUBLAS_NOT_SUPPORTED;
    if (preference->reduction != CUBLAS_REDUCTION_COMPUTE_TYPE) return CUBLAS_NOT_SUPPORTED;
    if (fake.aligned && preference->alignment[0] < 16) return CUBLAS_NOT_SUPPORTED;
    for (uint32_t alignment = 16; alignment >= 2; alignment /= 2) {
        if (alignment > preference->alignment[0] || alignment > preference->alignment[3]) continue;
        if (alignment >= 16 && (!layout_aligned(a, alignment) || !layout_aligned(b, alignment) ||
                                !layout_aligned(c, alignment)))
            continue;
        for (uint64_t name = 1; name <= 2 && *count < wanted; name++) {
            const uint64_t workspace = name == 1 ? 4096 : 0;
            if (workspace > preference->workspace_bytes) continue;
            found[(*count)++] = (cublas_found_t){
                .algorithm = {.data = {[WORD_NAME] = name,
                                       [WORD_ALIGNMENT] = alignment,
                                       [WORD_WORKSPACE] = workspace}},
                .workspace_bytes = workspace};
        }
    }
    return CUBLAS_OK;
}

static float number_read(const void *at, int type, uint64_t i)
{
    if (type == CUBLAS_R_32F) return ((const float *)at)[i];
    const uint16_t bits = ((const uint16_t *)at)[i];
    return type == CUBLAS_R_16BF ? lh_bf16_to_f32(bits) : lh_f16_to_f32(bits);
}

/* Of a factor. TF32 has 10 bits behind the point; rounded to the nearest, away from 0 at a tie. */
static float factor_read(const product_t *p, const void *at, int type, uint64_t i)
{
    float value = number_read(at, type, i);
    uint32_t bits;
    if (p->how.compute != CUBLAS_SUMS_32F_TF32) return value;
    memcpy(&bits, &value, sizeof(bits));
    bits = (bits + 0x1000u) & ~0x1fffu;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static void number_write(void *at, int type, uint64_t i, float value)
{
    if (type == CUBLAS_R_32F) {
        ((float *)at)[i] = value;
    } else {
        ((uint16_t *)at)[i] = type == CUBLAS_R_16BF ? lh_f32_to_bf16(value) : lh_f32_to_f16(value);
    }
}

static float gelu_by_tanh(float x)
{
    return 0.5f * x * (1 + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

typedef struct spots {
    const void *a, *b, *c, *bias;
    void *d, *aux, *workspace;
} spots_t;

/* With the lock. */
static bool spots_find(const product_t *p, spots_t *s)
{
    s->a = fake_real(p->at_a, layout_bytes(&p->a));
    s->b = fake_real(p->at_b, layout_bytes(&p->b));
    s->c = fake_real(p->at_c, layout_bytes(&p->c));
    s->d = fake_real(p->at_d, layout_bytes(&p->d));
    if (s->a == NULL || s->b == NULL || s->c == NULL || s->d == NULL) return false;
    const uint32_t e = p->how.epilogue;
    if ((e & CUBLAS_EPILOGUE_BIAS) != 0) {
        s->bias = fake_real((cuda_address_t)(uintptr_t)p->how.bias,
                            p->d.rows * type_bytes(p->how.bias_type));
        if (s->bias == NULL) return false;
    }
    if ((e & CUBLAS_EPILOGUE_AUX) != 0) {
        layout_t aux = p->d;
        aux.pitch = p->how.aux_pitch;
        s->aux = fake_real((cuda_address_t)(uintptr_t)p->how.aux, layout_bytes(&aux));
        if (s->aux == NULL) return false;
    }
    if (p->workspace_bytes == 0) return true;
    s->workspace = fake_real(p->workspace, p->workspace_bytes);
    return s->workspace != NULL;
}

/* sums = column j of op(a) op(b); first is op(a), column by column. */
static void column_sum(const product_t *p, const spots_t *s, const float *first, uint64_t depth,
                       uint64_t j, float *sums)
{
    const uint64_t rows = p->d.rows, pitch = (uint64_t)p->b.pitch;
    memset(sums, 0, rows * sizeof(*sums));
    for (uint64_t k = 0; k < depth; k++) {
        const uint64_t at = p->how.turned[1] == CUBLAS_TURNED ? k * pitch + j : j * pitch + k;
        const float b = factor_read(p, s->b, p->b.type, at);
        for (uint64_t i = 0; i < rows; i++)
            sums[i] += first[k * rows + i] * b;
    }
}

static void column_finish(const product_t *p, const spots_t *s, uint64_t j, const float *sums)
{
    const uint32_t e = p->how.epilogue;
    for (uint64_t i = 0; i < p->d.rows; i++) {
        float value = p->alpha * sums[i];
        if (p->beta != 0)
            value += p->beta * number_read(s->c, p->c.type, j * (uint64_t)p->c.pitch + i);
        if (s->bias != NULL) value += number_read(s->bias, p->how.bias_type, i);
        if (s->aux != NULL)
            number_write(s->aux, p->d.type, j * (uint64_t)p->how.aux_pitch + i, value);
        if ((e & CUBLAS_EPILOGUE_GELU) != 0) value = gelu_by_tanh(value);
        number_write(s->d, p->d.type, j * (uint64_t)p->d.pitch + i, value);
    }
}

static cuda_result_t product_run(const void *data)
{
    const product_t *p = data;
    spots_t s = {0};
    if (p->slow_ns > 0) (void)nanosleep(&(struct timespec){.tv_nsec = (long)p->slow_ns}, NULL);
    pthread_mutex_lock(&fake.lock);
    const bool found = spots_find(p, &s);
    pthread_mutex_unlock(&fake.lock);
    if (!found) return CUDA_ILLEGAL_ADDRESS;

    const bool turned = p->how.turned[0] == CUBLAS_TURNED;
    const uint64_t rows = p->d.rows, depth = turned ? p->a.rows : p->a.columns;
    const uint64_t pitch = (uint64_t)p->a.pitch;
    float *first = malloc((rows * depth + rows) * sizeof(float));
    if (first == NULL) return CUDA_NO_MEMORY;
    for (uint64_t k = 0; k < depth; k++)
        for (uint64_t i = 0; i < rows; i++)
            first[k * rows + i] = factor_read(p, s.a, p->a.type,
                                              turned ? i * pitch + k : k * pitch + i);
    if (s.workspace != NULL) memset(s.workspace, 0xff, p->workspace_bytes);
    for (uint64_t j = 0; j < p->d.columns; j++) {
        column_sum(p, &s, first, depth, j, first + rows * depth);
        column_finish(p, &s, j, first + rows * depth);
    }
    free(first);
    return CUDA_OK;
}

/* By what the library would choose another kernel. */
static uint64_t product_code(const product_t *p, const cublas_algorithm_t *algorithm)
{
    return algorithm->data[WORD_NAME] | algorithm->data[WORD_ALIGNMENT] << 8 |
           (uint64_t)p->a.type << 16 | (uint64_t)p->d.type << 24 |
           (uint64_t)p->how.turned[0] << 32 | (uint64_t)p->how.turned[1] << 34 |
           (uint64_t)p->how.epilogue << 36;
}

FAKE_EXPORT cublas_status_t cublasLtMatmul(cublas_handle_t handle, cublas_product_t product,
                                           const void *alpha, const void *a,
                                           cublas_layout_t a_layout, const void *b,
                                           cublas_layout_t b_layout, const void *beta,
                                           const void *c, cublas_layout_t c_layout, void *d,
                                           cublas_layout_t d_layout,
                                           const cublas_algorithm_t *algorithm, void *workspace,
                                           size_t workspace_bytes, cuda_stream_t stream)
{
    const uint64_t alignment = algorithm->data[WORD_ALIGNMENT];
    const uint64_t places = (uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d;
    if (handle == NULL || alignment == 0 || places % alignment != 0 ||
        workspace_bytes < algorithm->data[WORD_WORKSPACE])
        return CUBLAS_INVALID_VALUE;
    product_t p = {.how = *product,
                   .a = *a_layout,
                   .b = *b_layout,
                   .c = *c_layout,
                   .d = *d_layout,
                   .at_a = (cuda_address_t)(uintptr_t)a,
                   .at_b = (cuda_address_t)(uintptr_t)b,
                   .at_c = (cuda_address_t)(uintptr_t)c,
                   .at_d = (cuda_address_t)(uintptr_t)d,
                   .workspace = (cuda_address_t)(uintptr_t)workspace,
                   .workspace_bytes = algorithm->data[WORD_WORKSPACE],
                   .slow_ns = algorithm->data[WORD_NAME] == 1 ? fake.slow_ns : 0};
    memcpy(&p.alpha, alpha, sizeof(p.alpha));
    memcpy(&p.beta, beta, sizeof(p.beta));
    if (fake_begin("cublasLtMatmul", true) != CUDA_OK) return 13; /* execution failed */
    if (fake_load(stream, product_code(&p, algorithm)) != CUDA_OK) return fake_end(13);
    return fake_end(fake_push_work(stream, product_run, &p, sizeof(p))) == CUDA_OK ? CUBLAS_OK : 13;
}
