/* cuda_memory.c - arenas: device memory, and pinned host memory that copies, words and network cards
 * reach. */
#include "cuda_device.h"

/* A dma-buf stands for whole pages, so arenas are made of them. */
enum { PAGE_BYTES = 65536 };

lh_status_t cuda_alloc(lh_device_t *d, uint32_t space, uint64_t bytes, lh_memory_t **out,
                       void **address)
{
    const cuda_library_t *l = &d->library;
    if (bytes > (uint64_t)1 << 60)
        return d->host->fail(d->host, LH_NO_MEMORY, "%llu bytes are more than any GPU has",
                             (unsigned long long)bytes);
    lh_status_t status = cuda_enter(d);
    if (status != LH_OK) return status;
    lh_memory_t *m = d->host->alloc(d->host, sizeof(*m), _Alignof(lh_memory_t));
    if (m == NULL) return LH_NO_MEMORY;
    m->device = d;
    m->space = space;
    m->bytes = bytes > 0 ? (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES : PAGE_BYTES;

    /* With one address for host and GPU (every 64-bit system), pinned memory needs no second one. */
    cuda_address_t device_address = 0;
    if (space == LH_SPACE_DEVICE) {
        status = cuda_check(d, l->cuMemAlloc_v2(&device_address, m->bytes), "cuMemAlloc");
        m->address = (void *)(uintptr_t)device_address;
    } else {
        status = cuda_check(
            d, l->cuMemHostAlloc(&m->address, m->bytes, CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED),
            "cuMemHostAlloc");
    }
    if (status != LH_OK) {
        d->host->release(d->host, m);
        return status;
    }
    *out = m;
    *address = m->address;
    return LH_OK;
}

void cuda_release(lh_memory_t *m)
{
    lh_device_t *d = m->device;
    (void)d->library.cuCtxSetCurrent(d->context);
    if (m->space == LH_SPACE_DEVICE) (void)d->library.cuMemFree_v2(cuda_address(m->address));
    if (m->space == LH_SPACE_PINNED) (void)d->library.cuMemFreeHost(m->address);
    d->host->release(d->host, m);
}

/* The driver does not say what this process holds (NVML would). */
lh_status_t cuda_memory(lh_device_t *d, lh_device_memory_t *out)
{
    size_t free_bytes = 0, total_bytes = 0;
    lh_status_t status = cuda_enter(d);
    if (status == LH_OK)
        status = cuda_check(d, d->library.cuMemGetInfo_v2(&free_bytes, &total_bytes),
                            "cuMemGetInfo");
    if (status != LH_OK) return status;
    LH_FILL(lh_device_memory_t, out, .total_bytes = total_bytes, .free_bytes = free_bytes);
    return LH_OK;
}

/* As a dma-buf, for network cards: needs the open kernel module of the driver. */
lh_status_t cuda_share(lh_memory_t *m, uint32_t kind, lh_share_t *out)
{
    lh_device_t *d = m->device;
    int offered = 0, fd = -1;
    if (kind != LH_SHARE_DMABUF || m->space != LH_SPACE_DEVICE)
        return d->host->fail(d->host, LH_UNSUPPORTED, "only device memory is shared, as a dma-buf");
    lh_status_t status = cuda_enter(d);
    if (status == LH_OK)
        status = cuda_check(
            d, d->library.cuDeviceGetAttribute(&offered, CUDA_ATTRIBUTE_DMABUF, d->ordinal),
            "cuDeviceGetAttribute");
    if (status != LH_OK) return status;
    if (offered == 0)
        return d->host->fail(d->host, LH_UNSUPPORTED,
                             "GPU %u (%s): this driver offers no dma-buf (its open kernel module "
                             "does)",
                             d->index, d->name);
    const cuda_result_t result = d->library.cuMemGetHandleForAddressRange(
        &fd, cuda_address(m->address), m->bytes, CUDA_RANGE_DMABUF, 0);
    if (result == CUDA_INVALID_VALUE || result == CUDA_NOT_SUPPORTED)
        return d->host->fail(d->host, LH_UNSUPPORTED,
                             "GPU %u (%s) makes no dma-buf of this memory (%d)", d->index, d->name,
                             result);
    status = cuda_check(d, result, "cuMemGetHandleForAddressRange");
    if (status != LH_OK) return status;
    LH_FILL(lh_share_t, out, .kind = LH_SHARE_DMABUF, .fd = fd, .bytes = m->bytes);
    return LH_OK;
}
