/* cuda_sdpa.c - attention and its gradient by cuDNN: BF16 and F16, causal or full, grouped, with a window,
 * documents packed in rows. What it does not take (F32, slopes, soft_cap, parts of a sequence) goes to
 * the plugin's own kernels, the next rows of the table; so does all of it with [device] attention = own.
 *
 * cuDNN sees the documents as a batch. Where they begin stands in device memory and differs from step to
 * step, so a kernel of the plugin's own makes of `starts` what cuDNN asks for: the length of each
 * document, and for each tensor its first element, in scratch. Rows that are in no document are none of
 * cuDNN's business; a second kernel writes what the op says of them.
 *
 * The ordered gradient keeps heads x rows x rows numbers of 2 bytes for each document of the batch, with
 * as many rows as the longest may have. So the batch is walked in groups that stay within a bound; where
 * one document alone takes too much, the own kernels have it.
 *
 * Before 9.25 a batch with an empty document gives rows that are not-a-number: it gets none, and
 * the own kernels have documents that are packed, of which steps leave some empty.
 *
 * cuDNN reads 16 bytes at a time. Rows and places that don't lie so are refused when a call is prepared,
 * by its strides and lh_arg_t.alignment, and the next row has the call. A host may not tell how places
 * lie (alignment 0): then they are looked at when the call is bound, and one whose places don't lie so
 * runs by the plugin's own kernel, which is prepared along with cuDNN's graph and has checked the shapes. */
#include <math.h>
#include <stdio.h>

#include "../op_slots.h"
#include "cuda_device.h"
#include "cuda_rows.h"
#include "cudnn_sdpa.h"

enum {
    VECTOR_BYTES = 16,
    PART_BYTES = 256,    /* parts of the scratch begin on multiples of it                       */
    COMPONENTS = 8,      /* heads have multiples of it; of the gradient's, lest its workspace ...*/
    GRAD_COMPONENTS = 16 /* ... grows by documents times rows                                   */
};

enum { CUDNN_TAKES_EMPTY = 92500 }; /* from this version on a document may have no row */

/* Of a group of documents that are walked together, and of one alone. */
static const uint64_t group_most_bytes = (uint64_t)256 << 20;
static const uint64_t document_most_bytes = (uint64_t)2 << 30;

typedef struct sdpa_op {
    int slot[CUDNN_SDPA_TENSORS]; /* -1: the op has no such tensor */
    uint32_t starts, slopes;
    uint32_t outputs; /* slot of the first; behind the last is lse, where that is one */
} sdpa_op_t;

/* What stands behind the core's lh_prepared_t. */
typedef struct sdpa {
    lh_device_t *device;
    lh_prepared_t *plain; /* the own kernel's, with the call's arguments as rows */
    sdpa_op_t op;
    cudnn_sdpa_how_t how; /* how.documents: of a group */
    cudnn_sdpa_t *graph;
    uint64_t documents, groups;
    bool told;                             /* places lie on 16 bytes, says the host */
    uint32_t arrays;                       /* of offsets: one for each factor */
    uint64_t factor[CUDNN_SDPA_TENSORS];   /* elements that a row stands for */
    uint32_t array_of[CUDNN_SDPA_TENSORS]; /* which array a tensor takes */
} sdpa_t;

static sdpa_op_t op_of(const char *name)
{
    if (strcmp(name, "attention") == 0) {
        LH_SLOTS(LH_ATTENTION_TEXT);
        return (sdpa_op_t){.slot = {in_q, in_k, in_v, out_y, out_lse, -1, -1, -1, -1},
                           .starts = in_starts,
                           .slopes = in_slopes,
                           .outputs = out_y};
    }
    LH_SLOTS(LH_ATTENTION_GRAD_TEXT);
    return (sdpa_op_t){.slot = {in_q, in_k, in_v, in_y, in_lse, in_gy, out_gq, out_gk, out_gv},
                       .starts = in_starts,
                       .slopes = in_slopes,
                       .outputs = out_gq};
}

static bool op_is_grad(const sdpa_op_t *op)
{
    return op->slot[CUDNN_SDPA_GY] >= 0;
}

/* ---- what it takes ---- */

lh_status_t cuda_sdpa_fits(const lh_host_t *host, const lh_device_t *d, const void *config,
                           const lh_kernel_desc_t *desc)
{
    const cuda_config_t *c = config;
    const sdpa_op_t op = op_of(desc->op);
    lh_attention_t how = {.struct_size = sizeof(how)};
    uint32_t bytes = 0;
    if (desc->attributes != NULL) memcpy(&bytes, desc->attributes, sizeof(bytes));
    if (bytes > 0) memcpy(&how, desc->attributes, bytes < sizeof(how) ? bytes : sizeof(how));
    if (d != NULL ? d->cudnn == NULL : c != NULL && c->attention == CUDA_ATTENTION_OWN)
        return host->fail(host, LH_UNSUPPORTED, "cuDNN: [device] attention = own");
    const lh_dtype_t dtype = op_slots_arg(desc, (uint32_t)op.slot[CUDNN_SDPA_Q])->dtype;
    if (dtype != LH_DTYPE_BF16 && dtype != LH_DTYPE_F16)
        return host->fail(host, LH_UNSUPPORTED, "cuDNN: attention in BF16 and F16 only");
    if (op_slots_arg(desc, op.slopes)->dtype != LH_DTYPE_NONE || how.soft_cap != 0)
        return host->fail(host, LH_UNSUPPORTED,
                          "cuDNN: attention without slopes and soft_cap only");
    if (how.q_begin != 0 || how.k_begin != 0)
        return host->fail(host, LH_UNSUPPORTED, "cuDNN: attention over whole sequences only");
    return cuda_rows_fits(host, d, config, desc);
}

/* As cuDNN sees the call; the own kernel's plan has checked that the shapes go together. */
static void sdpa_how_fill(sdpa_t *s)
{
    const lh_prepared_t *k = s->plain;
    const lh_attention_t *a = &k->how.attention;
    const cuda_view_t *q = &k->view[s->op.slot[CUDNN_SDPA_Q]];
    const uint32_t value_dim = a->value_dim != 0 ? a->value_dim : a->head_dim;
    s->how = (cudnn_sdpa_how_t){
        .capability = s->device->capability,
        .backward = op_is_grad(&s->op),
        .f16 = q->dtype == LH_DTYPE_F16,
        .full = a->full != 0,
        /* Documents that are whole rows are walked by their own length. */
        .rows = (int64_t)(a->document_rows != 0 ? a->document_rows : q->rows),
        .total_rows = (int64_t)q->rows,
        .heads = a->heads,
        .kv_heads = a->kv_heads != 0 ? a->kv_heads : a->heads,
        .head_dim = a->head_dim,
        .value_dim = value_dim,
        /* A longer one sees no more. */
        .window = a->window < q->rows ? a->window : 0,
        .scale = a->scale != 0 ? a->scale : 1 / sqrt((double)a->head_dim)};
    for (int t = 0; t < CUDNN_SDPA_TENSORS; t++) {
        if (s->op.slot[t] < 0 || !cuda_has(k, (uint32_t)s->op.slot[t])) continue;
        const cuda_view_t *v = &k->view[s->op.slot[t]];
        s->how.pitch[t] = (int64_t)(v->rows > 1 ? v->pitch : v->width);
    }
}

static bool batch_takes_empty(const sdpa_t *s)
{
    return s->device->library.cudnn_version >= CUDNN_TAKES_EMPTY;
}

static lh_status_t sdpa_shapes_check(const sdpa_t *s)
{
    const lh_host_t *host = s->device->host;
    const cudnn_sdpa_how_t *h = &s->how;
    const int64_t unit = h->backward ? GRAD_COMPONENTS : COMPONENTS;
    const cuda_view_t *k = &s->plain->view[s->op.slot[CUDNN_SDPA_K]];
    if (h->head_dim % unit != 0 || h->value_dim % unit != 0)
        return host->fail(host, LH_UNSUPPORTED,
                          "cuDNN: heads of %lld and %lld components, multiples of %lld are taken",
                          (long long)h->head_dim, (long long)h->value_dim, (long long)unit);
    if ((int64_t)k->rows != h->total_rows || h->total_rows < 2 || s->documents == 0)
        return host->fail(host, LH_UNSUPPORTED, "cuDNN: %lld queries, %lld keys, %llu documents",
                          (long long)h->total_rows, (long long)k->rows,
                          (unsigned long long)s->documents);
    if (s->plain->how.attention.document_rows == 0 && s->documents > 1 && !batch_takes_empty(s))
        return host->fail(host, LH_UNSUPPORTED, "cuDNN: packed documents by 9.25 and later only");
    for (int t = 0; t < CUDNN_SDPA_TENSORS; t++) {
        const bool lse = t == CUDNN_SDPA_LSE;
        if (!lse && h->pitch[t] * (int64_t)sizeof(uint16_t) % VECTOR_BYTES != 0)
            return host->fail(host, LH_UNSUPPORTED, "cuDNN: rows that lie on %d bytes only",
                              VECTOR_BYTES);
        if (!lse && h->pitch[t] > INT32_MAX / h->total_rows)
            return host->fail(host, LH_UNSUPPORTED, "cuDNN: tensors of fewer elements than 2^31");
    }
    return LH_OK;
}

/* Whether a slot's place lies on 16 bytes is told here or, alignment 0, when the call is bound. Of lse
 * cuDNN reads single elements. */
static lh_status_t places_check(sdpa_t *s, const lh_kernel_desc_t *desc)
{
    const lh_host_t *host = s->device->host;
    s->told = true;
    for (int t = 0; t < CUDNN_SDPA_TENSORS; t++) {
        if (s->how.pitch[t] == 0 || t == CUDNN_SDPA_LSE) continue;
        const uint32_t slot = (uint32_t)s->op.slot[t];
        const uint32_t alignment = op_slots_arg(desc, slot)->alignment;
        s->told = s->told && alignment != 0;
        if (alignment % VECTOR_BYTES != 0)
            return host->fail(host, LH_UNSUPPORTED,
                              "cuDNN: places on %d bytes only; slot %u lies on %u", VECTOR_BYTES,
                              slot + 1, alignment);
    }
    return LH_OK;
}

/* ---- what is made ---- */

/* A tensor's offsets are the documents' first rows times its pitch. lse has one element a row; outputs of
 * one pitch share an array. */
static void arrays_fill(sdpa_t *s)
{
    for (int t = 0; t < CUDNN_SDPA_TENSORS; t++) {
        if (s->how.pitch[t] == 0) continue;
        const uint64_t factor = t == CUDNN_SDPA_LSE ? 1 : (uint64_t)s->how.pitch[t];
        uint32_t i = 0;
        while (i < s->arrays && s->factor[i] != factor)
            i++;
        if (i == s->arrays) s->factor[s->arrays++] = factor;
        s->array_of[t] = i;
    }
}

static uint64_t part_bytes(uint64_t bytes)
{
    return (bytes + PART_BYTES - 1) / PART_BYTES * PART_BYTES;
}

/* Documents, and those that fill the last group up: empty ones. */
static uint64_t places_of(const sdpa_t *s)
{
    return s->groups * (uint64_t)s->how.documents;
}

/* Of scratch before cuDNN's workspace: lengths, then the arrays of offsets. */
static uint64_t index_bytes(const sdpa_t *s)
{
    const uint64_t places = places_of(s);
    return part_bytes((places + s->arrays * (places + 1)) * sizeof(int32_t));
}

static void groups_set(sdpa_t *s, uint64_t documents)
{
    s->how.documents = (int64_t)documents;
    s->groups = cuda_parts(s->documents, documents);
}

/* As many documents at once as the bound allows; fewer, where cuDNN wants more than it should. */
static lh_status_t graph_make(sdpa_t *s, uint64_t limit, uint32_t variant)
{
    const cudnn_sdpa_how_t *h = &s->how;
    char error[CUDNN_SDPA_ERROR_BYTES] = "";
    uint64_t group = s->documents;
    if (h->backward && h->ordered) {
        const uint64_t each = (uint64_t)h->heads * cuda_parts((uint64_t)h->rows, 64) *
                              cuda_parts((uint64_t)h->rows, 128) * 64 * 128 * sizeof(uint16_t);
        group = each < group_most_bytes ? group_most_bytes / each : 1;
        if (group > s->documents) group = s->documents;
        group = cuda_parts(s->documents, cuda_parts(s->documents, group)); /* equal ones */
    }
    for (;; group = (group + 1) / 2) {
        while (!batch_takes_empty(s) && s->documents % group != 0)
            group--; /* empty ones would fill the last group up */
        groups_set(s, group);
        uint64_t most = group > 1 ? group_most_bytes : document_most_bytes;
        const uint64_t own = index_bytes(s);
        if (limit != 0 && limit < most + own) most = limit > own ? limit - own : 0;
        s->graph = cudnn_sdpa_new(s->device->cudnn, h, variant, most, error);
        if (s->graph != NULL) return LH_OK;
        if (group == 1 || !h->backward) break;
    }
    return s->device->host->fail(s->device->host, LH_UNSUPPORTED, "%s: %s",
                                 s->device->library.cudnn_name, error);
}

static void sdpa_plan_fill(const sdpa_t *s, const lh_kernel_plan_t *plain, lh_kernel_plan_t *out)
{
    lh_kernel_plan_t mine = *plain;
    const uint64_t bytes = index_bytes(s) + cudnn_sdpa_workspace(s->graph);
    const bool ordered = !s->how.backward || s->how.ordered;
    mine.flags = LH_KERNEL_CAPTURE | (ordered ? (uint32_t)LH_KERNEL_ORDERED : 0);
    /* Where places are not told the own kernel may have to do the call. */
    if (s->told || bytes > mine.scratch_bytes) mine.scratch_bytes = bytes;
    mine.host_bytes += sizeof(*s);
    /* The own kernel's choice beside cuDNN's, and how many documents go together. */
    mine.variant = (uint64_t)cudnn_sdpa_variant(s->graph) << 32 |
                   (uint64_t)((uint32_t)s->how.documents & 0xffffff) << 8 | (plain->variant & 0xff);
    (void)snprintf(mine.name, sizeof(mine.name), "%s.%s.cudnn", s->plain->op->name,
                   s->how.f16 ? "f16" : "bf16");
    lh_fill(out, &mine, sizeof(mine));
}

static void sdpa_free(sdpa_t *s)
{
    if (s->graph != NULL) {
        (void)s->device->library.cuCtxSetCurrent(s->device->context);
        cudnn_sdpa_free(s->graph);
    }
    cuda_rows_release(s->plain);
    s->device->host->release(s->device->host, s);
}

lh_status_t cuda_sdpa_prepare(const lh_host_t *host, lh_device_t *d, const lh_kernel_desc_t *desc,
                              lh_kernel_plan_t *plan, lh_prepared_t **out)
{
    lh_kernel_desc_t own = *desc;
    lh_kernel_plan_t plain = {.struct_size = sizeof(plain)};
    lh_status_t status = cuda_sdpa_fits(host, d, NULL, desc);
    if (status == LH_OK) status = cuda_enter(d);
    if (status != LH_OK) return status;
    sdpa_t *s = host->alloc(host, sizeof(*s), 64);
    if (s == NULL) return LH_NO_MEMORY;
    s->device = d;
    s->op = op_of(desc->op);
    own.variant = 0;
    status = cuda_rows_prepare(host, d, &own, &plain, &s->plain);
    if (status == LH_OK) {
        sdpa_how_fill(s);
        s->how.ordered = (desc->flags & LH_KERNEL_ORDERED) != 0;
        s->documents = cuda_elements(&s->plain->view[s->op.starts]) - 1;
        status = sdpa_shapes_check(s);
    }
    if (status == LH_OK) status = places_check(s, desc);
    if (status == LH_OK) {
        arrays_fill(s);
        status = graph_make(s, desc->scratch_limit_bytes, (uint32_t)(desc->variant >> 32));
    }
    if (status == LH_OK) sdpa_plan_fill(s, &plain, &plain);
    if (status == LH_OK && desc->variant != 0 && plain.variant != desc->variant)
        status = host->fail(host, LH_UNSUPPORTED, "variant %llx is not %s's",
                            (unsigned long long)desc->variant, d->library.cudnn_name);
    if (status != LH_OK) {
        sdpa_free(s);
        return status;
    }
    lh_fill(plan, &plain, sizeof(plain));
    *out = (lh_prepared_t *)(void *)s;
    return LH_OK;
}

void cuda_sdpa_release(lh_prepared_t *k)
{
    if (k != NULL) sdpa_free((sdpa_t *)(void *)k);
}

/* ---- what is launched ---- */

static bool places_lie(const sdpa_t *s, const lh_place_t *args)
{
    uintptr_t bits = 0;
    for (int t = 0; t < CUDNN_SDPA_TENSORS; t++) {
        if (s->how.pitch[t] != 0 && t != CUDNN_SDPA_LSE)
            bits |= (uintptr_t)args[s->op.slot[t]].address;
    }
    return bits % VECTOR_BYTES == 0;
}

/* What is bound is who does the call: cuDNN's graph or the own kernel, as what it was prepared into. */
lh_status_t cuda_sdpa_bind(lh_prepared_t *k, const lh_launch_t *call, void **bound)
{
    sdpa_t *s = (sdpa_t *)(void *)k;
    const bool lie = s->told || places_lie(s, call->args);
    *bound = lie ? (void *)s : (void *)s->plain;
    return LH_OK;
}

static lh_status_t index_launch(const sdpa_t *s, const lh_launch_t *call)
{
    const uint64_t places = places_of(s);
    cuda_attention_packed_t p = {.starts = call->args[s->op.starts].address,
                                 .lengths = call->scratch.address,
                                 .rows = (uint64_t)s->how.total_rows,
                                 .documents = (uint32_t)s->documents,
                                 .places = (uint32_t)places,
                                 .arrays = s->arrays};
    p.offsets = p.lengths + places;
    for (uint32_t i = 0; i < s->arrays; i++)
        p.factor[i] = (uint32_t)s->factor[i];
    const cuda_shape_t shape = {.grid = {(uint32_t)cuda_parts(places + 1, CUDA_THREADS), 1, 1},
                                .block = {CUDA_THREADS, 1, 1}};
    return cuda_launch(call->stream, "cuda_attention_packed", &shape, &p, sizeof(p));
}

/* Zero, and -infinity for lse, where a row is in no document. */
static lh_status_t outside_launch(const sdpa_t *s, const lh_launch_t *call)
{
    cuda_attention_outside_t p = {.starts = call->args[s->op.starts].address,
                                  .rows = (uint64_t)s->how.total_rows,
                                  .documents = (uint32_t)s->documents,
                                  .heads = (uint32_t)s->how.heads};
    const uint32_t count = s->how.backward ? 3 : 1;
    for (uint32_t i = 0; i < count; i++) {
        p.out[i] = s->plain->view[s->op.outputs + i];
        p.out[i].at = call->args[s->op.outputs + i].address;
    }
    if (!s->how.backward && s->how.pitch[CUDNN_SDPA_LSE] != 0) {
        p.lse = call->args[s->op.slot[CUDNN_SDPA_LSE]].address;
        p.lse_pitch = (uint64_t)s->how.pitch[CUDNN_SDPA_LSE];
    }
    const cuda_shape_t shape = {.grid = {(uint32_t)p.rows, 1, 1}, .block = {CUDA_THREADS, 1, 1}};
    return cuda_launch(call->stream, "cuda_attention_outside", &shape, &p, sizeof(p));
}

lh_status_t cuda_sdpa_launch(lh_prepared_t *k, const lh_launch_t *call)
{
    const sdpa_t *s = (const sdpa_t *)(const void *)k;
    lh_device_t *d = s->device;
    if (call->bound == s->plain) return cuda_rows_launch(s->plain, call);
    lh_status_t status = index_launch(s, call);
    if (status == LH_OK) status = outside_launch(s, call);
    if (status != LH_OK) return status;

    const uint64_t places = places_of(s), group = (uint64_t)s->how.documents;
    const int32_t *lengths = call->scratch.address, *offsets = lengths + places;
    cudnn_sdpa_places_t at = {.workspace = (char *)call->scratch.address + index_bytes(s)};
    for (int t = 0; t < CUDNN_SDPA_TENSORS; t++)
        if (s->how.pitch[t] != 0) at.tensor[t] = call->args[s->op.slot[t]].address;
    cuda_queued(d, s->how.backward ? "attention_grad (cuDNN)" : "attention (cuDNN)");
    for (uint64_t g = 0; g < s->groups && status == LH_OK; g++) {
        char error[CUDNN_SDPA_ERROR_BYTES];
        at.lengths = lengths + g * group;
        for (int t = 0; t < CUDNN_SDPA_TENSORS; t++)
            at.offset[t] = offsets + s->array_of[t] * (places + 1) + g * group;
        pthread_mutex_lock(&d->cudnn_lock); /* the handle has one stream at a time */
        const bool queued = cudnn_sdpa_run(s->graph, d->cudnn, call->stream->stream, &at, error);
        pthread_mutex_unlock(&d->cudnn_lock);
        if (queued) continue;
        status = cuda_launch_failure(call->stream, s->plain->op->name);
        if (status != LH_DEVICE_LOST)
            status = d->host->fail(d->host, status, "GPU %u (%s): %s of %s: %s", d->index, d->name,
                                   s->plain->op->name, d->library.cudnn_name, error);
    }
    return status;
}
