/* cuda_host_device.c - a device whose kernels are the cuda plugin's own, run on the host: its rows
 * (plugins/devices/cuda/rows_*.c) over libcuda_host_kernels.so, with host memory and work done when a
 * call returns. So the rig and longhaul-check see the same indexes, strides and orders of sums as a GPU
 * would.
 *
 * Option order = reverse runs blocks and threads last one first: where a result depends on it, a
 * barrier is missing or two blocks write to one place. */
#include <dlfcn.h>

#include "cuda_rows.h"

typedef struct cuda_host_config {
    uint32_t order; /* of host_run_order(): 0 or 1 */
} cuda_host_config_t;

struct lh_device {
    const lh_host_t *host;
    cuda_host_config_t config;
};

#include "../../plugins/devices/plain_device.h"

static const lh_option_t options[] = {
    LH_OPTION_CHOICE(cuda_host_config_t, order, "order", "forward", "forward|reverse",
                     "which thread of a block goes first"),
};

/* ---- kernels ---- */

typedef void (*host_kernel_t)(const uint32_t grid[3], const uint32_t block[3],
                              uint32_t shared_bytes, const void *params);

static void *symbol_find(const char *name)
{
    static void *library;
    if (library == NULL) library = dlopen(CUDA_HOST_KERNELS, RTLD_NOW | RTLD_LOCAL);
    return library != NULL ? dlsym(library, name) : NULL;
}

/* As an H100's. */
uint64_t cuda_shared_most(LH_UNUSED const lh_device_t *d)
{
    return 227 * 1024;
}

lh_status_t cuda_launch(lh_stream_t *s, const char *kernel, const cuda_shape_t *shape,
                        const void *params, size_t bytes)
{
    const lh_host_t *host = s->device->host;
    char name[80];
    host_kernel_t run;
    void (*order)(uint32_t);
    (void)bytes;

    strcpy(name, kernel);
    strcat(name, "_host");
    void *found = symbol_find(name), *found_order = symbol_find("host_run_order");
    if (found == NULL || found_order == NULL)
        return host->fail(host, LH_IO, "%s has no %s", CUDA_HOST_KERNELS, name);
    memcpy(&run, &found, sizeof(run));
    memcpy(&order, &found_order, sizeof(order));
    order(s->device->config.order);
    run(shape->grid, shape->block, shape->shared_bytes, params);
    return LH_OK;
}

#define KERNEL_ROW(name, text)     \
    {.op = #name,                  \
     .fits = cuda_rows_fits,       \
     .prepare = cuda_rows_prepare, \
     .launch = cuda_rows_launch,   \
     .release = cuda_rows_release},
static const lh_kernel_t kernels[] = {LH_OPS_BASE(KERNEL_ROW) LH_OPS_MORE(KERNEL_ROW)};

/* ---- device ---- */

static lh_status_t device_open(const lh_host_t *host, const void *config, uint32_t index,
                               lh_device_t **out)
{
    if (index != 0) return host->fail(host, LH_NO_DEVICE, "cuda_host device %u of 1", index);
    lh_device_t *d = host->alloc(host, sizeof(*d), _Alignof(lh_device_t));
    if (d == NULL) return LH_NO_MEMORY;
    d->host = host;
    d->config = *(const cuda_host_config_t *)config;
    *out = d;
    return LH_OK;
}

static lh_status_t device_properties(lh_device_t *d, lh_device_properties_t *out)
{
    (void)d;
    LH_FILL(
        lh_device_properties_t, out, .flags = LH_DEVICE_SYNCHRONOUS | LH_DEVICE_HOST_ACCESS,
        .name = "cuda kernels on the host", .fingerprint = "cuda_host 1", .numa_node = -1,
        .cores = 1, .memory_bytes = (uint64_t)2 << 30, .memory_bytes_per_second = 1000000000,
        .host_bytes_per_second = 1000000000, .launch_ns = 1000, .alignment_bytes = 256,
        .flops_per_second = {[LH_DTYPE_F32] = 1e7, [LH_DTYPE_BF16] = 1e7, [LH_DTYPE_F16] = 1e7});
    return LH_OK;
}

static const lh_device_api_t api = PLAIN_DEVICE_API(device_open, device_properties);

LH_PLUGIN = {
    LH_PLUGIN_HEADER,
    .kind = LH_KIND_DEVICE,
    .config_size = sizeof(cuda_host_config_t),
    .name = "cuda_host",
    .version = "1.0.0",
    .summary = "the cuda device's own kernels, run on the host; for tests",
    LH_TABLE_OPTIONS(options),
    LH_TABLE_KERNELS(kernels),
    .device = &api,
};
