/* cuda_queue.c - streams and events, what is queued on them, and captured lists of it.
 *
 * A capture is the driver's own: work goes into a graph instead of running, other streams join by
 * waiting for an event of it. The mode is `relaxed`, as other threads go on with their calls. Words
 * are waits and writes of the stream itself (memory operations, version 2), which graphs take too. */
#include <sched.h>
#include <time.h>

#include "cuda_device.h"

enum {
    PRIORITY_COMM = 2, /* reductions are short, and others wait for them */
    PRIORITY_COPY = 1,
};

static const uint64_t spin_ns = 20000, nap_ns = 20000; /* of a wait: first awake, then in naps */
static const uint64_t anchor_life_ns = 1000000000;

/* ---- streams ---- */

lh_status_t cuda_stream_new(lh_device_t *d, const lh_stream_how_t *how, lh_stream_t **out)
{
    const cuda_library_t *l = &d->library;
    int least = 0, greatest = 0;
    lh_status_t status = cuda_enter(d);
    if (status == LH_OK)
        status = cuda_check(d, l->cuCtxGetStreamPriorityRange(&least, &greatest),
                            "cuCtxGetStreamPriorityRange");
    if (status != LH_OK) return status;
    lh_stream_t *s = d->host->alloc(d->host, sizeof(*s), _Alignof(lh_stream_t));
    if (s == NULL) return LH_NO_MEMORY;
    s->device = d;

    /* The driver's lowest number is served first. */
    int priority = how->priority;
    if (priority == 0 && how->role == LH_STREAM_COMM) priority = PRIORITY_COMM;
    if (priority == 0 && how->role == LH_STREAM_COPY) priority = PRIORITY_COPY;
    priority = -priority < greatest ? greatest : -priority > least ? least : -priority;
    status = cuda_check(
        d, l->cuStreamCreateWithPriority(&s->stream, CUDA_STREAM_NON_BLOCKING, priority),
        "cuStreamCreateWithPriority");
    if (status != LH_OK) {
        d->host->release(d->host, s);
        return status;
    }
    *out = s;
    return LH_OK;
}

/* The driver would let work that is queued go on; the core frees its memory next. */
void cuda_stream_free(lh_stream_t *s)
{
    lh_device_t *d = s->device;
    (void)d->library.cuCtxSetCurrent(d->context);
    (void)d->library.cuStreamSynchronize(s->stream);
    (void)d->library.cuStreamDestroy_v2(s->stream);
    d->host->release(d->host, s);
}

lh_status_t cuda_native(lh_stream_t *s, lh_native_t *out)
{
    *out = (lh_native_t){.kind = "cuda", .handle = (uint64_t)(uintptr_t)s->stream};
    return LH_OK;
}

/* ---- events ---- */

lh_status_t cuda_event_new(lh_device_t *d, lh_event_t **out)
{
    lh_status_t status = cuda_enter(d);
    if (status != LH_OK) return status;
    lh_event_t *e = d->host->alloc(d->host, sizeof(*e), _Alignof(lh_event_t));
    if (e == NULL) return LH_NO_MEMORY;
    e->device = d;
    status = cuda_check(d, d->library.cuEventCreate(&e->event, CUDA_EVENT_DEFAULT),
                        "cuEventCreate");
    if (status != LH_OK) {
        d->host->release(d->host, e);
        return status;
    }
    *out = e;
    return LH_OK;
}

void cuda_event_free(lh_event_t *e)
{
    lh_device_t *d = e->device;
    (void)d->library.cuCtxSetCurrent(d->context);
    (void)d->library.cuEventDestroy_v2(e->event);
    d->host->release(d->host, e);
}

lh_status_t cuda_record(lh_stream_t *s, lh_event_t *e)
{
    lh_device_t *d = s->device;
    const lh_status_t status = cuda_enter(d);
    if (status != LH_OK) return status;
    e->recorded = true;
    return cuda_check(d, d->library.cuEventRecord(e->event, s->stream), "cuEventRecord");
}

/* An event that was never recorded holds nobody up. */
lh_status_t cuda_wait(lh_stream_t *s, lh_event_t *e)
{
    lh_device_t *d = s->device;
    if (!e->recorded) return LH_OK;
    const lh_status_t status = cuda_enter(d);
    if (status != LH_OK) return status;
    return cuda_check(d, d->library.cuStreamWaitEvent(s->stream, e->event, 0), "cuStreamWaitEvent");
}

/* Real time: host->now_ns may be a test's. */
static uint64_t clock_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The driver has no wait with an end, so it is asked again and again. */
lh_status_t cuda_test(lh_event_t *e, uint64_t timeout_ns)
{
    lh_device_t *d = e->device;
    const lh_status_t status = cuda_enter(d);
    if (status != LH_OK) return status;
    const uint64_t begin = timeout_ns > 0 ? clock_ns() : 0;
    for (;;) {
        const cuda_result_t result = d->library.cuEventQuery(e->event);
        if (result != CUDA_NOT_READY) return cuda_check(d, result, "cuEventQuery");
        const uint64_t waited = timeout_ns > 0 ? clock_ns() - begin : 0;
        if (waited >= timeout_ns) return LH_AGAIN;
        if (waited < spin_ns) {
            (void)sched_yield();
        } else {
            (void)nanosleep(&(struct timespec){.tv_nsec = (long)nap_ns}, NULL);
        }
    }
}

/* The GPU's clock against the host's: an event on an idle stream, and the host's time just when it is
 * past, some 10 us apart. Taken anew every second, as the two drift, and as the driver tells times
 * between events in floats. With the device's lock. */
static lh_status_t anchor_take(lh_device_t *d)
{
    const cuda_library_t *l = &d->library;
    if (d->anchor_ns != 0 && d->host->now_ns(d->host) - d->anchor_ns < anchor_life_ns) return LH_OK;
    lh_status_t status = cuda_check(d, l->cuEventRecord(d->anchor, d->anchor_stream),
                                    "cuEventRecord");
    if (status == LH_OK)
        status = cuda_check(d, l->cuEventSynchronize(d->anchor), "cuEventSynchronize");
    if (status == LH_OK) d->anchor_ns = d->host->now_ns(d->host);
    return status;
}

lh_status_t cuda_event_time(lh_event_t *e, uint64_t *ns)
{
    lh_device_t *d = e->device;
    float ms = 0;
    lh_status_t status = cuda_enter(d);
    if (status != LH_OK) return status;
    pthread_mutex_lock(&d->lock);
    status = anchor_take(d);
    if (status == LH_OK)
        status = cuda_check(d, d->library.cuEventElapsedTime(&ms, d->anchor, e->event),
                            "cuEventElapsedTime");
    if (status == LH_OK) *ns = (uint64_t)((int64_t)d->anchor_ns + (int64_t)((double)ms * 1e6));
    pthread_mutex_unlock(&d->lock);
    return status;
}

/* ---- work ---- */

/* Addresses say themselves on which side they are. */
lh_status_t cuda_copy(lh_stream_t *s, const lh_place_t *to, const lh_place_t *from, uint64_t bytes)
{
    lh_device_t *d = s->device;
    const lh_status_t status = cuda_enter(d);
    if (status != LH_OK || bytes == 0) return status;
    cuda_queued(d, "copy");
    return cuda_check(d,
                      d->library.cuMemcpyAsync(cuda_address(to->address),
                                               cuda_address(from->address), bytes, s->stream),
                      "cuMemcpyAsync");
}

lh_status_t cuda_fill(lh_stream_t *s, const lh_place_t *to, uint8_t byte, uint64_t bytes)
{
    lh_device_t *d = s->device;
    const lh_status_t status = cuda_enter(d);
    if (status != LH_OK || bytes == 0) return status;
    cuda_queued(d, "fill");
    return cuda_check(d,
                      d->library.cuMemsetD8Async(cuda_address(to->address), byte, bytes, s->stream),
                      "cuMemsetD8Async");
}

static lh_status_t word_check(lh_device_t *d, const lh_place_t *word)
{
    if (word->memory != NULL && word->memory->space == LH_SPACE_PINNED) return cuda_enter(d);
    return d->host->fail(d->host, LH_INVALID, "a word lies outside pinned memory");
}

/* From 1 to INT32_MAX as a difference to 1: "not 0" of the words that the core writes. */
lh_status_t cuda_await(lh_stream_t *s, const lh_place_t *word)
{
    lh_device_t *d = s->device;
    const cuda_library_t *l = &d->library;
    lh_status_t status = word_check(d, word);
    if (status != LH_OK) return status;
    const cuda_address_t address = cuda_address(word->address);
    status = cuda_check(d, l->cuStreamWaitValue32_v2(s->stream, address, 1, CUDA_WAIT_GEQ),
                        "cuStreamWaitValue32");
    if (status != LH_OK) return status;
    return cuda_check(d, l->cuStreamWriteValue32_v2(s->stream, address, 0, CUDA_WRITE_DEFAULT),
                      "cuStreamWriteValue32");
}

/* The write comes behind a fence to the whole system, by its default. */
lh_status_t cuda_signal(lh_stream_t *s, const lh_place_t *word)
{
    lh_device_t *d = s->device;
    const lh_status_t status = word_check(d, word);
    if (status != LH_OK) return status;
    return cuda_check(d,
                      d->library.cuStreamWriteValue32_v2(s->stream, cuda_address(word->address), 1,
                                                         CUDA_WRITE_DEFAULT),
                      "cuStreamWriteValue32");
}

/* ---- own kernels ---- */

static cuda_kernel_t *kernel_known(lh_device_t *d, const char *name, uint32_t shared_bytes)
{
    const uint32_t count = atomic_load_explicit(&d->kernel_count, memory_order_acquire);
    for (uint32_t i = 0; i < count; i++) {
        cuda_kernel_t *k = &d->kernels[i];
        if ((k->name == name || strcmp(k->name, name) == 0) && k->shared_bytes >= shared_bytes)
            return k;
    }
    return NULL;
}

/* One more row, for a kernel that is new or wants more shared memory than before. */
static lh_status_t kernel_add(lh_device_t *d, const char *name, uint32_t shared_bytes)
{
    const cuda_library_t *l = &d->library;
    const uint32_t count = atomic_load(&d->kernel_count);
    cuda_kernel_t k = {.name = name,
                       .shared_bytes = shared_bytes > CUDA_PLAIN_SHARED_BYTES
                                           ? shared_bytes
                                           : CUDA_PLAIN_SHARED_BYTES};
    if (count == CUDA_KERNELS)
        return d->host->fail(d->host, LH_UNSUPPORTED, "more than %d kernels", (int)CUDA_KERNELS);
    const cuda_result_t result = l->cuModuleGetFunction(&k.function, d->module, name);
    if (result == CUDA_NOT_FOUND)
        return d->host->fail(d->host, LH_UNSUPPORTED, "the plugin's image has no kernel %s", name);
    lh_status_t status = cuda_check(d, result, "cuModuleGetFunction");
    if (status == LH_OK && k.shared_bytes > CUDA_PLAIN_SHARED_BYTES)
        status = cuda_check(
            d, l->cuFuncSetAttribute(k.function, CUDA_FUNCTION_DYNAMIC_SHARED, (int)k.shared_bytes),
            "cuFuncSetAttribute");
    if (status != LH_OK) return status;
    d->kernels[count] = k;
    atomic_store_explicit(&d->kernel_count, count + 1, memory_order_release);
    return LH_OK;
}

static lh_status_t kernel_find(lh_device_t *d, const char *name, uint32_t shared_bytes,
                               const cuda_kernel_t **out)
{
    lh_status_t status = LH_OK;
    *out = kernel_known(d, name, shared_bytes);
    if (*out != NULL) return LH_OK;
    pthread_mutex_lock(&d->lock);
    if (kernel_known(d, name, shared_bytes) == NULL) status = kernel_add(d, name, shared_bytes);
    pthread_mutex_unlock(&d->lock);
    *out = kernel_known(d, name, shared_bytes);
    return status;
}

uint64_t cuda_shared_most(const lh_device_t *d)
{
    return (uint64_t)d->shared_bytes;
}

/* Parameters go as one buffer, with its size, which the driver holds against the kernel's own. */
lh_status_t cuda_launch(lh_stream_t *s, const char *kernel, const cuda_shape_t *shape,
                        const void *params, size_t bytes)
{
    lh_device_t *d = s->device;
    const cuda_kernel_t *k;
    lh_status_t status = cuda_enter(d);
    if (status == LH_OK) status = kernel_find(d, kernel, shape->shared_bytes, &k);
    if (status != LH_OK) return status;

    void *extra[] = {CUDA_LAUNCH_BUFFER, (void *)(uintptr_t)params, CUDA_LAUNCH_BYTES, &bytes,
                     CUDA_LAUNCH_END};
    cuda_queued(d, kernel);
    return cuda_check(d,
                      d->library.cuLaunchKernel(k->function, shape->grid[0], shape->grid[1],
                                                shape->grid[2], shape->block[0], shape->block[1],
                                                shape->block[2], shape->shared_bytes, s->stream,
                                                NULL, extra),
                      kernel);
}

/* ---- captured lists ---- */

lh_status_t cuda_capture_begin(lh_stream_t *s)
{
    lh_device_t *d = s->device;
    lh_status_t status = cuda_enter(d);
    if (status != LH_OK) return status;
    status = cuda_check(d, d->library.cuStreamBeginCapture_v2(s->stream, CUDA_CAPTURE_RELAXED),
                        "cuStreamBeginCapture");
    s->captures = status == LH_OK;
    return status;
}

/* The graph is only a plan: what runs is made of it. */
lh_status_t cuda_capture_end(lh_stream_t *s, lh_replay_t **out)
{
    lh_device_t *d = s->device;
    const cuda_library_t *l = &d->library;
    cuda_graph_t graph = NULL;
    s->captures = false;
    lh_status_t status = cuda_enter(d);
    if (status != LH_OK) return status;
    status = cuda_check(d, l->cuStreamEndCapture(s->stream, &graph), "cuStreamEndCapture");
    if (status != LH_OK) return status;
    lh_replay_t *r = d->host->alloc(d->host, sizeof(*r), _Alignof(lh_replay_t));
    status = r == NULL ? LH_NO_MEMORY
                       : cuda_check(d, l->cuGraphInstantiateWithFlags(&r->exec, graph, 0),
                                    "cuGraphInstantiate");
    (void)l->cuGraphDestroy(graph);
    if (status != LH_OK) {
        if (r != NULL) d->host->release(d->host, r);
        return status;
    }
    r->device = d;
    *out = r;
    return LH_OK;
}

lh_status_t cuda_replay(lh_replay_t *r, lh_stream_t *s)
{
    lh_device_t *d = r->device;
    const lh_status_t status = cuda_enter(d);
    if (status != LH_OK) return status;
    cuda_queued(d, "a captured list");
    return cuda_check(d, d->library.cuGraphLaunch(r->exec, s->stream), "cuGraphLaunch");
}

void cuda_replay_free(lh_replay_t *r)
{
    lh_device_t *d = r->device;
    (void)d->library.cuCtxSetCurrent(d->context);
    (void)d->library.cuGraphExecDestroy(r->exec);
    d->host->release(d->host, r);
}
