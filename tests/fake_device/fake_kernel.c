/* fake_kernel.c - the cpu's kernels, launched later and with addresses that work. */
#include "fake.h"

static const lh_kernel_t *inner_kernel(const char *op)
{
    for (uint32_t i = 0; i < fake_inner_plugin.kernel_count; i++) {
        if (strcmp(fake_inner_plugin.kernels[i].op, op) == 0) return &fake_inner_plugin.kernels[i];
    }
    return NULL;
}

lh_status_t fake_fits(const lh_host_t *host, const lh_device_t *d, const void *config,
                      const lh_kernel_desc_t *desc)
{
    const lh_kernel_t *kernel = inner_kernel(desc->op);

    (void)config;
    if (kernel == NULL) return host->fail(host, LH_UNSUPPORTED, "the fake has no %s", desc->op);
    if (kernel->fits == NULL) return LH_OK;
    return kernel->fits(host, d != NULL ? d->inner : NULL, NULL, desc);
}

lh_status_t fake_prepare(const lh_host_t *host, lh_device_t *d, const lh_kernel_desc_t *desc,
                         lh_kernel_plan_t *plan, lh_prepared_t **out)
{
    const lh_kernel_t *kernel = inner_kernel(desc->op);
    lh_kernel_plan_t mine = {.struct_size = sizeof(mine)};
    lh_kernel_desc_t copy = *desc;

    if (kernel == NULL) return host->fail(host, LH_UNSUPPORTED, "the fake has no %s", desc->op);
    lh_prepared_t *k = host->alloc(host, sizeof(*k), _Alignof(lh_prepared_t));
    if (k == NULL) return LH_NO_MEMORY;

    k->device = d;
    k->kernel = kernel;
    copy.stream = desc->stream != NULL ? desc->stream->inner : NULL;
    pthread_mutex_lock(&d->inner_lock);
    const lh_status_t status = kernel->prepare(host, d->inner, &copy, &mine, &k->inner);
    pthread_mutex_unlock(&d->inner_lock);
    if (status != LH_OK) {
        host->release(host, k);
        return status;
    }
    for (uint32_t i = 0; i < desc->arg_count; i++)
        k->alignment[i] = desc->args[i].alignment;
    mine.flags |= LH_KERNEL_CAPTURE;
    k->scratch_bytes = mine.scratch_bytes;
    memcpy(k->name, mine.name, sizeof(k->name));
    lh_fill(plan, &mine, sizeof(mine));
    *out = k;
    return LH_OK;
}

void fake_kernel_free(lh_prepared_t *k)
{
    const lh_host_t *host = k->device->host;

    pthread_mutex_lock(&k->device->inner_lock);
    k->kernel->release(k->inner);
    pthread_mutex_unlock(&k->device->inner_lock);
    host->release(host, k->marks);
    host->release(host, k);
}

/* ---- what a launch block looked like at its first launch ---- */

static uint64_t bytes_sum(uint64_t sum, const void *from, size_t bytes)
{
    const unsigned char *at = from;
    for (size_t i = 0; i < bytes; i++)
        sum = (sum ^ at[i]) * 1099511628211u;
    return sum;
}

static uint64_t launch_sum(const lh_launch_t *call)
{
    const uint64_t sum = bytes_sum(14695981039346656037u, call, sizeof(*call));
    return bytes_sum(sum, call->args, call->arg_count * sizeof(lh_place_t));
}

static launch_mark_t *mark_find(const lh_prepared_t *k, const lh_launch_t *call)
{
    for (uint32_t i = 0; i < k->mark_count; i++) {
        if (k->marks[i].call == call) return &k->marks[i];
    }
    return NULL;
}

static lh_status_t mark_add(lh_prepared_t *k, const lh_launch_t *call, uint64_t sum)
{
    const lh_host_t *host = k->device->host;

    if (k->mark_count == k->mark_capacity) {
        const uint32_t capacity = k->mark_capacity == 0 ? 4 : 2 * k->mark_capacity;
        launch_mark_t *marks = host->alloc(host, capacity * sizeof(*marks), 64);
        if (marks == NULL) return LH_NO_MEMORY;
        if (k->mark_count > 0) memcpy(marks, k->marks, k->mark_count * sizeof(*marks));
        host->release(host, k->marks);
        k->marks = marks;
        k->mark_capacity = capacity;
    }
    k->marks[k->mark_count++] = (launch_mark_t){call, sum};
    return LH_OK;
}

static lh_status_t mark_check(lh_prepared_t *k, const lh_launch_t *call)
{
    const uint64_t sum = launch_sum(call);
    lh_status_t status = LH_OK;
    bool same = true;

    pthread_mutex_lock(&k->device->lock);
    const launch_mark_t *mark = mark_find(k, call);
    if (mark == NULL) {
        status = mark_add(k, call, sum);
    } else {
        same = mark->sum == sum;
    }
    pthread_mutex_unlock(&k->device->lock);
    if (same) return status;
    return fake_error(k->device, LH_INVALID,
                      "the launch block of %s at %p is not what it was at its first launch",
                      k->name, (const void *)call);
}

lh_status_t fake_bind(lh_prepared_t *k, const lh_launch_t *call, void **bound)
{
    const lh_host_t *host = k->device->host;

    if (call->bound != NULL) return host->fail(host, LH_INVALID, "%s is bound twice", k->name);
    for (uint32_t i = 0; i < call->arg_count; i++)
        if (k->alignment[i] > 1 && (uintptr_t)call->args[i].address % k->alignment[i] != 0)
            return host->fail(host, LH_INVALID, "%s: slot %u is not where it was said to be",
                              k->name, i + 1);
    *bound = (void *)call;
    return LH_OK;
}

lh_status_t fake_launch(lh_prepared_t *k, const lh_launch_t *call)
{
    const item_t item = {.type = ITEM_KERNEL, .kernel = k, .call = call};
    const lh_host_t *host = k->device->host;

    if (call->bound != call)
        return host->fail(host, LH_INVALID, "%s is launched and was not bound", k->name);
    if (mark_check(k, call) != LH_OK) {
        return host->fail(host, LH_INVALID, "%s", k->device->reason);
    }
    return fake_push(call->stream, &item);
}

/* On the worker: the block is read only now. */
lh_status_t fake_kernel_run(lh_prepared_t *k, const lh_launch_t *call, lh_stream_t *inner)
{
    lh_place_t places[LH_MAX_SLOTS];
    lh_launch_t mine = *call;
    lh_status_t status = mark_check(k, call);

    for (uint32_t i = 0; i < call->arg_count && status == LH_OK; i++) {
        status = fake_place(k->device, &call->args[i], &places[i]);
    }
    if (status == LH_OK) status = fake_place(k->device, &call->scratch, &mine.scratch);
    if (status != LH_OK) return status;

    mine.args = places;
    mine.stream = inner;
    mine.queue = NULL;
    if (k->scratch_bytes > 0 && mine.scratch.address != NULL) {
        memset(mine.scratch.address, 0xff, k->scratch_bytes);
    }
    status = k->kernel->launch(k->inner, &mine);
    if (status == LH_OK) return LH_OK;
    return fake_error(k->device, status, "%s failed with status %d", k->name, status);
}
