/* fake_kernel.c - the cpu's kernels, launched later and with addresses that work.
 *
 * Products have candidates, as those of a library do: all are the cpu's kernel, and differ in the
 * scratch that they ask for. What a clock says is known, so that a test knows what is taken. */
#include <longhaul/fnv.h>
#include <longhaul/ops.h>
#include <stdio.h>

#include "fake.h"

static const uint64_t candidate_scratch = 64 << 10; /* for each before it */

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

    const fake_config_t *c = config;

    if (kernel == NULL || (c != NULL && c->lacks != NULL && strcmp(c->lacks, desc->op) == 0))
        return host->fail(host, LH_UNSUPPORTED, "the fake has no %s", desc->op);
    if (kernel->fits == NULL) return LH_OK;
    return kernel->fits(host, d != NULL ? d->inner : NULL, NULL, desc);
}

static const lh_arg_t *desc_arg(const lh_kernel_desc_t *desc, uint32_t slot)
{
    return (const lh_arg_t *)(const void *)((const char *)desc->args +
                                            (size_t)slot * desc->arg_size);
}

/* What launches of it are counted as, and its first output. */
static void call_look(lh_prepared_t *k, const lh_kernel_desc_t *desc)
{
    lh_device_properties_t properties = {.struct_size = sizeof(properties)};
    LH_SLOTS(LH_MATMUL_TEXT);

    (void)fake_inner_plugin.device->properties(k->device->inner, &properties);
    for (uint32_t i = 0; i < desc->arg_count; i++) {
        k->alignment[i] = desc_arg(desc, i)->alignment;
        if (desc_arg(desc, i)->dtype != LH_DTYPE_NONE && k->alignment[i] != 0)
            k->misaligned = k->misaligned || k->alignment[i] < properties.alignment_bytes;
    }
    if (strcmp(desc->op, "attention") == 0 || strcmp(desc->op, "attention_grad") == 0)
        k->whole_rows = ((const lh_attention_t *)desc->attributes)->document_rows != 0;
    if (strcmp(desc->op, "matmul") != 0) return;
    k->unordered = k->device->config.unordered && (desc->flags & LH_KERNEL_ORDERED) == 0;
    k->output = out_c;
    k->dtype = desc_arg(desc, out_c)->dtype;
}

/* Prepares the cpu's kernel. Of a product's candidates it takes the one that is wanted, else the last
 * if it may be timed, else the first; a candidate's variant is the cpu's and its number. */
static lh_status_t inner_prepare(lh_prepared_t *k, const lh_host_t *host,
                                 const lh_kernel_desc_t *desc, lh_kernel_plan_t *plan)
{
    lh_device_t *d = k->device;
    const uint64_t count = strcmp(desc->op, "matmul") == 0 ? d->config.candidates : 1;
    const bool timed = count > 1 && desc->variant == 0 && (desc->flags & LH_KERNEL_TUNE) != 0;
    uint64_t candidate = timed ? count - 1 : 0;
    lh_kernel_desc_t inner = *desc;
    lh_status_t status;

    inner.stream = desc->stream != NULL ? desc->stream->inner : NULL;
    for (;; candidate++) {
        if (desc->variant != 0) inner.variant = desc->variant - candidate;
        *plan = (lh_kernel_plan_t){.struct_size = sizeof(*plan)};
        status = k->kernel->prepare(host, d->inner, &inner, plan, &k->inner);
        if (status != LH_UNSUPPORTED || desc->variant == 0 || candidate + 1 >= count) break;
    }
    if (status != LH_OK) return status;
    plan->variant += candidate;
    plan->scratch_bytes += ((desc->flags & LH_KERNEL_MOST) != 0 ? count - 1 : candidate) *
                           candidate_scratch;
    if (timed) plan->flags |= LH_KERNEL_TUNE;
    d->tally.timed += timed;
    return LH_OK;
}

lh_status_t fake_prepare(const lh_host_t *host, lh_device_t *d, const lh_kernel_desc_t *desc,
                         lh_kernel_plan_t *plan, lh_prepared_t **out)
{
    const lh_kernel_t *kernel = inner_kernel(desc->op);
    lh_kernel_plan_t mine;

    if (kernel == NULL) return host->fail(host, LH_UNSUPPORTED, "the fake has no %s", desc->op);
    lh_prepared_t *k = host->alloc(host, sizeof(*k), _Alignof(lh_prepared_t));
    if (k == NULL) return LH_NO_MEMORY;

    k->device = d;
    k->kernel = kernel;
    pthread_mutex_lock(&d->inner_lock);
    const lh_status_t status = inner_prepare(k, host, desc, &mine);
    pthread_mutex_unlock(&d->inner_lock);
    if (status != LH_OK) {
        host->release(host, k);
        return status;
    }
    call_look(k, desc);
    mine.flags |= LH_KERNEL_CAPTURE;
    if (k->unordered) {
        mine.flags &= ~(uint32_t)LH_KERNEL_ORDERED;
        (void)snprintf(mine.name, sizeof(mine.name), "matmul.unordered");
    }
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

static uint64_t launch_sum(const lh_launch_t *call)
{
    const uint64_t sum = lh_fnv_add(LH_FNV_BEGIN, call, sizeof(*call));
    return lh_fnv_add(sum, call->args, call->arg_count * sizeof(lh_place_t));
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
    k->device->tally.bound++;
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

/* The last bit of the first element, by the time of day: no two runs are alike. */
static void last_bit_toss(const lh_prepared_t *k, const lh_place_t *place)
{
    if (k->device->host->now_ns(k->device->host) % 2 == 0) return;
    if (k->dtype == LH_DTYPE_F32) *(uint32_t *)place->address ^= 1;
    if (k->dtype == LH_DTYPE_BF16) *(uint16_t *)place->address ^= 1;
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
    if (status == LH_OK && k->unordered) last_bit_toss(k, &places[k->output]);
    if (status == LH_OK) return LH_OK;
    return fake_error(k->device, status, "%s failed with status %d", k->name, status);
}
