/* rules_kernel.c - runs the passes of a kernel over the threads of its device. */
#include "rules.h"

#include <string.h>

enum { ATTRIBUTE_BYTES = 64 };

struct lh_prepared {
    const lh_host_t *host;
    const rules_passes_t *passes;
    rules_call_t call; /* args, scratch and parts are those of a launch */
    union {
        double align;
        unsigned char bytes[ATTRIBUTE_BYTES];
    } attributes;
};

lh_status_t rules_prepare(const lh_host_t *host, const rules_kernel_t *kernel,
                          const lh_kernel_desc_t *desc, lh_kernel_plan_t *plan, lh_prepared_t **out)
{
    const lh_arg_t *shaped = &desc->args[kernel->shaped];
    const bool wide = shaped->dtype == LH_DTYPE_F64;
    const lh_dtype_t w = kernel->w == 0 ? LH_DTYPE_NONE : desc->args[kernel->w].dtype;
    if (w != LH_DTYPE_NONE && w != LH_DTYPE_F32 && w != LH_DTYPE_BF16 && w != LH_DTYPE_F64)
        return host->fail(host, LH_UNSUPPORTED, "%s writes w in F32, BF16 or F64 only", desc->op);
    for (uint32_t i = 0; i < desc->arg_count; i++)
        if (i != kernel->step && (kernel->w == 0 || i != kernel->w) &&
            desc->args[i].dtype != shaped->dtype)
            return host->fail(host, LH_UNSUPPORTED, "%s takes arguments of one dtype", desc->op);
    /* Parts of a parameter lie in stores one row behind the other. */
    for (uint32_t i = 0; i < desc->arg_count; i++)
        if (desc->args[i].rank == 2 && desc->args[i].shape[0] > 1 &&
            desc->args[i].stride[0] != desc->args[i].shape[1])
            return host->fail(host, LH_UNSUPPORTED, "%s takes rows without room between them only",
                              desc->op);
    lh_prepared_t *k = host->alloc(host, sizeof(*k), 64);
    if (k == NULL) return LH_NO_MEMORY;

    *k = (lh_prepared_t){.host = host, .passes = &kernel->in[wide]};
    k->call = (rules_call_t){.rows = shaped->shape[0],
                             .columns = shaped->shape[1],
                             .w_dtype = w,
                             .step = kernel->step,
                             .wide = wide,
                             .wide_step = desc->args[kernel->step].dtype == LH_DTYPE_F64};
    memcpy(k->attributes.bytes, desc->attributes, kernel->attribute_bytes);
    LH_FILL(lh_kernel_plan_t, plan, .flags = LH_KERNEL_ORDERED | LH_KERNEL_CAPTURE, .variant = 1,
            .scratch_bytes = sizeof(double) * kernel->scratch(k->call.rows, k->call.columns));
    (void)strncpy(plan->name, kernel->name, sizeof(plan->name) - 1);
    *out = k;
    return LH_OK;
}

void rules_release(lh_prepared_t *k)
{
    k->host->release(k->host, k);
}

/* threads NULL: all in the calling one. */
static lh_status_t passes_run(const lh_prepared_t *k, const lh_launch_t *launch,
                              lh_threads_t *threads)
{
    rules_call_t call = k->call;
    call.how = k->attributes.bytes;
    call.args = launch->args;
    call.scratch = launch->scratch.address;
    call.parts = threads == NULL ? 1 : threads->count;
    for (uint32_t i = 0; i < RULES_PASSES && k->passes->pass[i] != NULL; i++) {
        if (threads != NULL)
            threads->run(threads, call.parts, k->passes->pass[i], &call);
        else
            k->passes->pass[i](&call, 0);
        if (k->passes->between[i] != NULL) k->passes->between[i](&call);
    }
    return LH_OK;
}

lh_status_t rules_launch_cpu(lh_prepared_t *k, const lh_launch_t *call)
{
    return passes_run(k, call, (lh_threads_t *)(uintptr_t)call->queue->handle);
}

lh_status_t rules_launch_reference(lh_prepared_t *k, const lh_launch_t *call)
{
    return passes_run(k, call, NULL);
}
