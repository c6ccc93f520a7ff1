/* reference_plugin.c - the device itself: host memory, work done when the call returns. */
#include "reference.h"

struct lh_device {
    const lh_host_t *host;
};

#include "../plain_device.h"

struct lh_prepared {
    const lh_host_t *host;
    const reference_op_t *op;
    attributes_t how;
    lh_arg_t args[LH_MAX_SLOTS];
};

#define SLOT_ONE(slot, marks, shape) +1
#define OP_ROW(op, text) {#op, 0 text(LH_OP_SKIP_, SLOT_ONE, SLOT_ONE), op_##op},
static const reference_op_t ops[] = {LH_OPS_BASE(OP_ROW) LH_OPS_MORE(OP_ROW)};

/* ---- kernels ---- */

static const reference_op_t *op_find(const char *name)
{
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        if (strcmp(ops[i].name, name) == 0) return &ops[i];
    }
    return NULL;
}

static lh_status_t arg_check(const lh_host_t *host, const char *op, uint32_t slot,
                             const lh_arg_t *arg)
{
    if (arg->dtype == LH_DTYPE_NONE) return LH_OK;
    if (lh_dtype_bytes(arg->dtype) == 0) {
        return host->fail(host, LH_UNSUPPORTED, "%s: slot %u has dtype %u, which is unknown here",
                          op, slot, arg->dtype);
    }
    if (arg->rank > LH_MAX_RANK) {
        return host->fail(host, LH_INVALID, "%s: slot %u has rank %u, expected at most %u", op,
                          slot, arg->rank, (unsigned)LH_MAX_RANK);
    }
    if (arg->layout != LH_LAYOUT_DENSE && arg->layout != LH_LAYOUT_ANY) {
        return host->fail(host, LH_UNSUPPORTED, "%s: slot %u is packed; only dense is known here",
                          op, slot);
    }
    return LH_OK;
}

static uint64_t arg_bytes(const lh_arg_t *arg)
{
    uint64_t elements = 1;
    for (uint32_t i = 0; i < arg->rank; i++)
        elements *= arg->shape[i];
    return elements * lh_dtype_bytes(arg->dtype);
}

static lh_status_t kernel_prepare(const lh_host_t *host, lh_device_t *d,
                                  const lh_kernel_desc_t *desc, lh_kernel_plan_t *plan,
                                  lh_prepared_t **out)
{
    (void)d;
    const reference_op_t *op = op_find(desc->op);
    lh_kernel_plan_t mine = {.struct_size = sizeof(mine), .flags = LH_KERNEL_ORDERED, .variant = 1};

    if (op == NULL || desc->arg_count > LH_MAX_SLOTS) {
        return host->fail(host, LH_UNSUPPORTED, "%s with %u slots is unknown to this device",
                          desc->op, desc->arg_count);
    }
    lh_prepared_t *k = host->alloc(host, sizeof(*k), _Alignof(lh_prepared_t));
    if (k == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < desc->arg_count; i++) {
        const char *from = (const char *)desc->args + (size_t)i * desc->arg_size;
        const size_t bytes = desc->arg_size < sizeof(lh_arg_t) ? desc->arg_size : sizeof(lh_arg_t);
        memcpy(&k->args[i], from, bytes);
        const lh_status_t status = arg_check(host, desc->op, i + 1, &k->args[i]);
        if (status != LH_OK) {
            host->release(host, k);
            return status;
        }
        if (k->args[i].layout == LH_LAYOUT_ANY) mine.layout_bytes[i] = arg_bytes(&k->args[i]);
    }
    k->host = host;
    k->op = op;
    k->how = op_attributes_of(desc->attributes);
    memcpy(mine.name, op->name, strlen(op->name));
    strcat(mine.name, ".reference");
    lh_fill(plan, &mine, sizeof(mine));
    *out = k;
    return LH_OK;
}

static lh_status_t kernel_launch(lh_prepared_t *k, const lh_launch_t *call)
{
    tensor_t at[LH_MAX_SLOTS];

    for (uint32_t i = 0; i < k->op->slots; i++) {
        const lh_arg_t *arg = &k->args[i];
        uint64_t valid = UINT64_MAX;
        if (arg->count_slot != 0 && arg->count_slot <= call->arg_count) {
            int32_t count;
            memcpy(&count, call->args[arg->count_slot - 1].address, sizeof(count));
            valid = count > 0 ? (uint64_t)count : 0;
        }
        at[i] = tensor_view(arg, i < call->arg_count ? call->args[i].address : NULL, valid);
    }
    k->op->run(&k->how, at);
    return LH_OK;
}

static void kernel_release(lh_prepared_t *k)
{
    k->host->release(k->host, k);
}

#define KERNEL_ROW(name, text) \
    {.op = #name, .prepare = kernel_prepare, .launch = kernel_launch, .release = kernel_release},
static const lh_kernel_t kernels[] = {LH_OPS_BASE(KERNEL_ROW) LH_OPS_MORE(KERNEL_ROW)};

/* ---- device ---- */

static lh_status_t device_open(const lh_host_t *host, const void *config, uint32_t index,
                               lh_device_t **out)
{
    (void)config;
    if (index != 0) return host->fail(host, LH_NO_DEVICE, "reference device %u of 1", index);

    lh_device_t *d = host->alloc(host, sizeof(*d), _Alignof(lh_device_t));
    if (d == NULL) return LH_NO_MEMORY;
    d->host = host;
    *out = d;
    return LH_OK;
}

static lh_status_t device_properties(lh_device_t *d, lh_device_properties_t *out)
{
    (void)d;
    LH_FILL(lh_device_properties_t, out, .flags = LH_DEVICE_SYNCHRONOUS | LH_DEVICE_HOST_ACCESS,
            .name = "reference", .fingerprint = "reference 1", .numa_node = -1, .cores = 1,
            .memory_bytes = (uint64_t)4 << 30, .memory_bytes_per_second = 1000000000,
            .host_bytes_per_second = 1000000000, .launch_ns = 100, .alignment_bytes = 64,
            .flops_per_second = {[LH_DTYPE_F32] = 1e8,
                                 [LH_DTYPE_BF16] = 1e8,
                                 [LH_DTYPE_F16] = 1e8,
                                 [LH_DTYPE_F64] = 1e8});
    return LH_OK;
}

static const lh_device_api_t api = PLAIN_DEVICE_API(device_open, device_properties);

LH_PLUGIN = {
    LH_PLUGIN_HEADER,
    .kind = LH_KIND_DEVICE,
    .name = "reference",
    .version = "1.0.0",
    .summary = "what every op means, in double precision; slow",
    LH_TABLE_KERNELS(kernels),
    .device = &api,
};
