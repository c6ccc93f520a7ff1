/* nvlink_group.c - groups: joining, calls, and their end.
 *
 * NCCL wants one contiguous buffer and pieces of one length. What lies so is passed as it is; else a
 * kernel packs the segments into the workspace, NCCL works there in place, and the kernel unpacks: two
 * more passes over memory on the GPU, some 3 % of the time that the bytes take over NVLink. Pieces in
 * the workspace have the length of the longest, rounded up to PACK_LINE bytes; what lies between is
 * added up too, and never looked at.
 *
 * Communicators do not block: a call may still be on its way into the stream when it returns (the
 * first one, which connects), so it is waited for before the next thing is queued, unless the job is
 * being stopped. Abort ends whatever waits for a peer. */
#include "nvlink.h"

#include <sched.h>
#include <stdio.h>

#include <longhaul/dtype.h>

#include "kernels/cuda_fatbin.h"

enum { PACK_LINE = 128, PACK_BLOCKS = 64, PACK_ELEMENTS = 2048 /* of a block */ };

/* For sentences: what is not known is left out. In the group's context. */
static void gpu_name(lh_group_t *g)
{
    const lh_transport_t *t = g->transport;
    const cuda_library_t *l = &t->cuda;
    char name[64] = "", place[32] = "";
    cuda_ordinal_t ordinal = 0;
    lh_rank_info_t where = {.struct_size = sizeof(where)};
    if (l->cuCtxGetDevice(&ordinal) == CUDA_OK) {
        (void)l->cuDeviceGetName(name, sizeof(name), ordinal);
        (void)l->cuDeviceGetPCIBusId(place, sizeof(place), ordinal);
    }
    if (t->host->rank_info(t->host, t->host->world->rank, &where) != LH_OK)
        where.host_name[0] = '\0';
    (void)snprintf(g->gpu, sizeof(g->gpu), "GPU %d (%s, %s) of rank %u%s%s", ordinal, name, place,
                   t->host->world->rank, where.host_name[0] != '\0' ? " on " : "", where.host_name);
}

/* What NCCL refuses before anything is queued (two ranks on one GPU) it refuses at every start. */
static lh_status_t nccl_status(const lh_group_t *g, nccl_result_t result)
{
    const bool mistaken = result == NCCL_INVALID_ARGUMENT || result == NCCL_INVALID_USAGE;
    if (result == NCCL_REMOTE_ERROR) return LH_PEER_LOST;
    return mistaken && g->last == NULL ? LH_INVALID : LH_DEVICE_LOST;
}

static lh_status_t nccl_check(const lh_group_t *g, nccl_result_t result, const char *call)
{
    const lh_transport_t *t = g->transport;
    if (result == NCCL_OK) return LH_OK;
    return t->host->fail(t->host, nccl_status(g, result),
                         "%s, number %u of %u: NCCL fails in %s: %s (%d); last queued: %s", g->gpu,
                         g->rank, g->size, call, t->ncclGetErrorString(result), result,
                         g->last != NULL ? g->last : "nothing");
}

static lh_status_t driver_check(const lh_group_t *g, cuda_result_t result, const char *call)
{
    const lh_transport_t *t = g->transport;
    const char *name = NULL;
    if (result == CUDA_OK) return LH_OK;
    (void)t->cuda.cuGetErrorName(result, &name);
    return t->host->fail(
        t->host, LH_DEVICE_LOST, "%s: NVIDIA's driver fails in %s: %s (%d); last queued: %s",
        g->gpu, call, name != NULL ? name : "error", result, g->last != NULL ? g->last : "nothing");
}

static cuda_stream_t stream_of(const lh_native_t *queue)
{
    return (cuda_stream_t)(uintptr_t)queue->handle;
}

/* ---- what can be done ---- */

/* -1: none. Of what is only moved just the size counts. */
static int type_of(uint32_t op, lh_dtype_t dtype)
{
    const bool sums = op == LH_COLL_ALL_REDUCE || op == LH_COLL_REDUCE_SCATTER;
    switch (dtype) {
    case LH_DTYPE_F32: return NCCL_FLOAT32;
    case LH_DTYPE_BF16: return NCCL_BFLOAT16;
    case LH_DTYPE_F16: return NCCL_FLOAT16;
    default: break;
    }
    if (sums) return -1;
    switch (lh_dtype_bytes(dtype)) {
    case 1: return NCCL_INT8;
    case 2: return NCCL_FLOAT16;
    case 4: return NCCL_FLOAT32;
    case 8: return NCCL_FLOAT64;
    default: return -1;
    }
}

static bool group_offers(LH_UNUSED lh_transport_t *t, const char *queue, uint32_t op,
                         lh_dtype_t dtype)
{
    const bool known = (op >= LH_COLL_ALL_REDUCE && op <= LH_COLL_BROADCAST) ||
                       op == LH_COLL_SEND || op == LH_COLL_RECV;
    return known && strcmp(queue, "cuda") == 0 && type_of(op, dtype) >= 0;
}

/* ---- how the pieces lie ---- */

typedef struct layout {
    uint64_t elements; /* of all pieces */
    uint64_t first;    /* of the whole that any piece has */
    uint64_t pitch;    /* from piece to piece in the workspace */
    bool joined;       /* all pieces together are one run of the whole */
    bool even;         /* one run, cut into pieces of one length in the order of ranks; each in one
                           segment, which is one of the part too */
} layout_t;

static uint64_t piece_elements(const lh_coll_piece_t *p)
{
    uint64_t elements = 0;
    for (uint64_t i = 0; i < p->count; i++)
        elements += p->segments[i].count;
    return elements;
}

/* Segments do not overlap, so they are one run if they fill what lies between the first and the last. */
static layout_t layout_of(const lh_coll_t *c, uint32_t size)
{
    layout_t l = {.first = UINT64_MAX, .even = true};
    uint64_t end = 0, most = 0;
    for (uint32_t o = 0; o < size; o++) {
        const lh_coll_piece_t *p = &c->pieces[o];
        const uint64_t count = piece_elements(p);
        for (uint64_t i = 0; i < p->count; i++) {
            const lh_coll_segment_t *s = &p->segments[i];
            if (s->whole < l.first) l.first = s->whole;
            if (s->whole + s->count > end) end = s->whole + s->count;
        }
        if (count > most) most = count;
        l.elements += count;
    }
    if (l.elements == 0) l.first = end;
    l.joined = end - l.first == l.elements;
    l.even = l.joined && most * size == l.elements;
    for (uint32_t o = 0; o < size && l.even; o++)
        l.even = c->pieces[o].count == 1 && c->pieces[o].segments[0].whole == l.first + o * most;
    const uint64_t line = PACK_LINE / lh_dtype_bytes(c->dtype);
    l.pitch = l.even ? most : (most + line - 1) / line * line;
    return l;
}

static bool call_cuts(const lh_coll_t *c)
{
    return c->op == LH_COLL_REDUCE_SCATTER || c->op == LH_COLL_ALL_GATHER;
}

/* Whether a call goes without a workspace. */
static bool call_is_direct(const lh_coll_t *c, const layout_t *l)
{
    return call_cuts(c) ? l->even && c->add == 0 : l->joined;
}

static uint64_t group_workspace(LH_UNUSED lh_transport_t *t, const lh_coll_t *c,
                                LH_UNUSED uint32_t rank, uint32_t size)
{
    const layout_t l = layout_of(c, size);
    if (call_is_direct(c, &l)) return 0;
    return (call_cuts(c) ? l.pitch * size : l.elements) * lh_dtype_bytes(c->dtype);
}

/* ---- joining ---- */

static lh_status_t group_new_token(lh_transport_t *t, lh_address_t *token)
{
    nccl_id_t id;
    const lh_status_t status = nvlink_open(t);
    if (status != LH_OK) return status;
    const nccl_result_t result = t->ncclGetUniqueId(&id);
    if (result != NCCL_OK)
        return t->host->fail(t->host, LH_NO_DEVICE, "NCCL fails in ncclGetUniqueId: %s (%d)",
                             t->ncclGetErrorString(result), result);
    token->length = sizeof(id);
    memcpy(token->bytes, &id, sizeof(id));
    return LH_OK;
}

/* The queue's context becomes the calling thread's: NCCL and the driver work in it. */
static lh_status_t group_enter(const lh_group_t *g)
{
    const cuda_library_t *l = &g->transport->cuda;
    return driver_check(g, l->cuCtxSetCurrent(g->context), "cuCtxSetCurrent");
}

static lh_status_t pack_load(const lh_group_t *g)
{
    lh_transport_t *t = g->transport;
    const cuda_library_t *l = &t->cuda;
    if (t->module != NULL) return LH_OK;
    const cuda_result_t loaded = l->cuModuleLoadData(&t->module, cuda_fatbin);
    if (loaded != CUDA_OK && cuda_fatbin_bytes == 0)
        return t->host->fail(t->host, LH_NO_DEVICE,
                             "this build has no GPU kernels: nvcc was not found when it was "
                             "configured");
    lh_status_t status = driver_check(g, loaded, "cuModuleLoadData");
    if (status == LH_OK)
        status = driver_check(g, l->cuModuleGetFunction(&t->pack, t->module, "cuda_pack"),
                              "cuModuleGetFunction");
    return status;
}

static lh_status_t group_start(lh_group_t *g, const lh_address_t *token, const lh_native_t *queue)
{
    lh_transport_t *t = g->transport;
    nccl_id_t id;
    nccl_config_t config = {
        .size = sizeof(config), .magic = NCCL_MAGIC, .version = NCCL_VERSION_2_14, .blocking = 0};
    if (token->length != sizeof(id))
        return t->host->fail(t->host, LH_INVALID, "a token of %u bytes, expected %zu",
                             token->length, sizeof(id));
    memcpy(&id, token->bytes, sizeof(id));
    lh_status_t status = nvlink_open(t);
    if (status == LH_OK)
        status = driver_check(g, t->cuda.cuStreamGetCtx(stream_of(queue), &g->context),
                              "cuStreamGetCtx");
    if (status == LH_OK) status = group_enter(g);
    if (status != LH_OK) return status;
    gpu_name(g);
    status = pack_load(g);
    if (status != LH_OK) return status;
    const nccl_result_t result = t->ncclCommInitRankConfig(&g->comm, (int)g->size, id, (int)g->rank,
                                                           &config);
    return result == NCCL_IN_PROGRESS ? LH_OK : nccl_check(g, result, "ncclCommInitRankConfig");
}

static lh_status_t group_join(lh_transport_t *t, const lh_address_t *token, uint32_t rank,
                              uint32_t size, const lh_native_t *queue, lh_group_t **out)
{
    if (strcmp(queue->kind, "cuda") != 0)
        return t->host->fail(t->host, LH_UNSUPPORTED,
                             "nvlink works on queues of 'cuda', found '%s'", queue->kind);
    lh_group_t *g = t->host->alloc(t->host, sizeof(*g), _Alignof(lh_group_t));
    if (g == NULL) return LH_NO_MEMORY;
    *g = (lh_group_t){
        .transport = t, .rank = rank, .size = size, .stream = stream_of(queue), .gpu = "its GPU"};
    *out = g;
    return group_start(g, token, queue);
}

static lh_status_t group_test(lh_group_t *g)
{
    nccl_result_t result = NCCL_OK;
    const lh_host_t *host = g->transport->host;
    if (g->comm == NULL) return host->fail(host, LH_CANCELLED, "the group was cancelled");
    const nccl_result_t asked = g->transport->ncclCommGetAsyncError(g->comm, &result);
    if (asked == NCCL_OK && result == NCCL_IN_PROGRESS) return LH_AGAIN;
    return nccl_check(g, asked != NCCL_OK ? asked : result, "ncclCommGetAsyncError");
}

/* A call that is queued, or that has failed. */
static lh_status_t call_settle(lh_group_t *g, nccl_result_t result, const char *call)
{
    const lh_host_t *host = g->transport->host;
    lh_status_t status = result == NCCL_IN_PROGRESS ? LH_AGAIN : nccl_check(g, result, call);
    while (status == LH_AGAIN) {
        status = group_test(g);
        if (status == LH_AGAIN && host->stopping(host))
            return host->fail(host, LH_CANCELLED, "the job was stopped while NCCL connected");
        if (status == LH_AGAIN) (void)sched_yield();
    }
    if (status == LH_OK) g->last = call;
    return status;
}

/* ---- packing ---- */

typedef struct packing {
    lh_group_t *g;
    cuda_stream_t stream;
    cuda_pack_t params;
    uint64_t longest; /* segment of params */
} packing_t;

static lh_status_t pack_flush(packing_t *k)
{
    const cuda_library_t *l = &k->g->transport->cuda;
    size_t bytes = sizeof(k->params);
    void *extra[] = {CUDA_LAUNCH_BUFFER, &k->params, CUDA_LAUNCH_BYTES, &bytes, CUDA_LAUNCH_END};
    const uint64_t wanted = (k->longest + PACK_ELEMENTS - 1) / PACK_ELEMENTS;
    if (k->params.count == 0) return LH_OK;
    const cuda_result_t result = l->cuLaunchKernel(
        k->g->transport->pack, wanted > PACK_BLOCKS ? PACK_BLOCKS : (unsigned)wanted,
        k->params.count, 1, CUDA_THREADS, 1, 1, 0, k->stream, NULL, extra);
    k->params.count = 0;
    k->longest = 0;
    if (result == CUDA_OK) k->g->last = "cuda_pack";
    return driver_check(k->g, result, "cuda_pack");
}

static lh_status_t pack_segment(packing_t *k, uint64_t from, uint64_t to, uint64_t count)
{
    if (count == 0) return LH_OK;
    k->params.segments[k->params.count++] = (cuda_pack_segment_t){from, to, count};
    if (count > k->longest) k->longest = count;
    return k->params.count < CUDA_PACK_SEGMENTS ? LH_OK : pack_flush(k);
}

static packing_t packing_new(lh_group_t *g, const lh_coll_t *c, cuda_stream_t stream)
{
    return (packing_t){.g = g,
                       .stream = stream,
                       .params = {.bytes = (uint32_t)lh_dtype_bytes(c->dtype), .dtype = c->dtype}};
}

/* One piece into the workspace, from `at` on, or out of it again. */
static lh_status_t piece_move(packing_t *k, const lh_coll_piece_t *p, bool in_part, bool in,
                              uint64_t at)
{
    lh_status_t status = LH_OK;
    for (uint64_t i = 0; status == LH_OK && i < p->count; i++) {
        const lh_coll_segment_t *s = &p->segments[i];
        const uint64_t there = in_part ? s->part : s->whole;
        status = pack_segment(k, in ? there : at, in ? at : there, s->count);
        at += s->count;
    }
    return status;
}

/* All pieces, one after the other, or each at its place of the pitch; `own`: -1, or a rank that is
 * left out. */
static lh_status_t pieces_move(packing_t *k, const lh_coll_t *c, const layout_t *l, bool in,
                               uint32_t left_out)
{
    uint64_t at = 0;
    lh_status_t status = LH_OK;
    k->params.x = in ? c->whole.address : c->workspace.address;
    k->params.y = in ? c->workspace.address : c->whole.address;
    for (uint32_t o = 0; status == LH_OK && o < k->g->size; o++) {
        if (o != left_out) status = piece_move(k, &c->pieces[o], false, in, at);
        at += call_cuts(c) ? l->pitch : piece_elements(&c->pieces[o]);
    }
    return status == LH_OK ? pack_flush(k) : status;
}

/* This rank's piece, between the workspace and its part, or the whole where it has none. */
static lh_status_t own_move(packing_t *k, const lh_coll_t *c, const layout_t *l, bool in)
{
    const bool in_part = c->part.memory != NULL;
    void *there = in_part ? c->part.address : c->whole.address;
    k->params.x = in ? there : c->workspace.address;
    k->params.y = in ? c->workspace.address : there;
    k->params.add = !in && c->add != 0;
    const lh_status_t status = piece_move(k, &c->pieces[k->g->rank], in_part, in,
                                          k->g->rank * l->pitch);
    return status == LH_OK ? pack_flush(k) : status;
}

/* ---- calls ---- */

/* Elements from `at` on; `whole` is where the pieces begin, in the whole or in the workspace. */
static lh_status_t call_queue(lh_group_t *g, const lh_coll_t *c, const layout_t *l, void *at,
                              void *own, cuda_stream_t stream)
{
    const lh_transport_t *t = g->transport;
    const int type = type_of(c->op, c->dtype), root = (int)c->root;
    switch (c->op) {
    case LH_COLL_ALL_REDUCE:
        return call_settle(g,
                           t->ncclAllReduce(at, at, l->elements, type, NCCL_SUM, g->comm, stream),
                           "ncclAllReduce");
    case LH_COLL_REDUCE_SCATTER:
        return call_settle(g,
                           t->ncclReduceScatter(at, own, l->pitch, type, NCCL_SUM, g->comm, stream),
                           "ncclReduceScatter");
    case LH_COLL_ALL_GATHER:
        return call_settle(g, t->ncclAllGather(own, at, l->pitch, type, g->comm, stream),
                           "ncclAllGather");
    case LH_COLL_BROADCAST:
        return call_settle(g, t->ncclBroadcast(at, at, l->elements, type, root, g->comm, stream),
                           "ncclBroadcast");
    case LH_COLL_SEND:
        return call_settle(g, t->ncclSend(at, l->elements, type, root, g->comm, stream),
                           "ncclSend");
    default:
        return call_settle(g, t->ncclRecv(at, l->elements, type, root, g->comm, stream),
                           "ncclRecv");
    }
}

static lh_status_t call_direct(lh_group_t *g, const lh_coll_t *c, const layout_t *l,
                               cuda_stream_t stream)
{
    const uint64_t wide = lh_dtype_bytes(c->dtype);
    char *at = (char *)c->whole.address + l->first * wide, *own = at;
    if (call_cuts(c)) {
        const lh_coll_segment_t *s = &c->pieces[g->rank].segments[0];
        own = c->part.memory != NULL ? (char *)c->part.address + s->part * wide
                                     : (char *)c->whole.address + s->whole * wide;
    }
    return call_queue(g, c, l, at, own, stream);
}

/* What a rank only gives is packed, what it only gets unpacked. */
static lh_status_t call_packed(lh_group_t *g, const lh_coll_t *c, const layout_t *l,
                               cuda_stream_t stream)
{
    enum { NOBODY = -1 };
    packing_t k = packing_new(g, c, stream);
    char *at = c->workspace.address;
    const bool gathers = c->op == LH_COLL_ALL_GATHER, scatters = c->op == LH_COLL_REDUCE_SCATTER;
    const bool rooted = c->op >= LH_COLL_BROADCAST, root = c->root == g->rank;
    const bool gives = c->op != LH_COLL_RECV && (c->op != LH_COLL_BROADCAST || root);
    const bool gets = c->op != LH_COLL_SEND && (c->op != LH_COLL_BROADCAST || !root);
    char *own = at + g->rank * l->pitch * lh_dtype_bytes(c->dtype);
    lh_status_t status = LH_OK;
    if (gathers)
        status = own_move(&k, c, l, true);
    else if (!rooted || gives)
        status = pieces_move(&k, c, l, true, (uint32_t)NOBODY);
    if (status == LH_OK) status = call_queue(g, c, l, at, own, stream);
    if (status != LH_OK || (rooted && !gets)) return status;
    if (scatters) return own_move(&k, c, l, false);
    const bool keeps = gathers && c->part.memory == NULL;
    return pieces_move(&k, c, l, false, keeps ? g->rank : (uint32_t)NOBODY);
}

static lh_status_t group_enqueue(lh_group_t *g, const lh_coll_t *c, const lh_native_t *queue)
{
    const layout_t l = layout_of(c, g->size);
    lh_status_t status = group_test(g);
    if (status == LH_OK) status = group_enter(g);
    if (status != LH_OK || l.elements == 0) return status;
    return call_is_direct(c, &l) ? call_direct(g, c, &l, stream_of(queue))
                                 : call_packed(g, c, &l, stream_of(queue));
}

/* ---- the end ---- */

static void group_cancel(lh_group_t *g)
{
    if (g->comm == NULL) return;
    (void)g->transport->cuda.cuCtxSetCurrent(g->context);
    (void)g->transport->ncclCommAbort(g->comm);
    g->comm = NULL;
}

static void group_leave(lh_group_t *g)
{
    const lh_transport_t *t = g->transport;
    if (g->comm != NULL) {
        (void)t->cuda.cuCtxSetCurrent(g->context);
        (void)t->cuda.cuStreamSynchronize(g->stream);
        (void)t->ncclCommDestroy(g->comm);
    }
    t->host->release(t->host, g);
}

const lh_collective_api_t nvlink_collectives = {
    .struct_size = sizeof(lh_collective_api_t),
    .offers = group_offers,
    .workspace = group_workspace,
    .new_token = group_new_token,
    .join = group_join,
    .test = group_test,
    .enqueue = group_enqueue,
    .cancel = group_cancel,
    .leave = group_leave,
};
