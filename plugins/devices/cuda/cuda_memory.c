/* cuda_memory.c - arenas: device memory, pinned host memory that copies, words and network cards reach,
 * and memory that others have made.
 *
 * Pinned memory is a memfd that is mapped and registered with the driver, so that ranks of one machine
 * can map each other's: what is staged for a transfer is then read where it lies, and no copy goes
 * through a transport's own buffers. Where that can't be had (a driver whose registered memory has
 * another address for the GPU, a system without memfd) the driver allocates it, and it is not shared. */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda_device.h"

/* A dma-buf stands for whole pages, so arenas are made of them. */
enum { PAGE_BYTES = 65536 };

/* ---- made here ---- */

static int attribute_of(const lh_device_t *d, int attribute)
{
    int value = 0;
    return d->library.cuDeviceGetAttribute(&value, attribute, d->ordinal) == CUDA_OK ? value : 0;
}

static lh_memory_t *memory_new(lh_device_t *d, uint32_t space, uint32_t source, uint64_t bytes)
{
    lh_memory_t *m = d->host->alloc(d->host, sizeof(*m), _Alignof(lh_memory_t));
    if (m == NULL) return NULL;
    *m = (lh_memory_t){.device = d, .space = space, .source = source, .bytes = bytes, .fd = -1};
    return m;
}

/* Maps the descriptor and registers the pages; false: this can't be done, and nothing has changed. */
static bool memory_map(lh_memory_t *m, int fd, uint64_t offset)
{
    const cuda_library_t *l = &m->device->library;
    if (attribute_of(m->device, CUDA_ATTRIBUTE_HOST_POINTER) == 0) return false;
    void *address = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
    if (address == MAP_FAILED) return false;
    if (l->cuMemHostRegister_v2(address, m->bytes, CUDA_REGISTER_PORTABLE | CUDA_REGISTER_MAPPED) !=
        CUDA_OK) {
        (void)munmap(address, m->bytes);
        return false;
    }
    m->source = CUDA_MEMORY_MAPPED;
    m->address = address;
    m->fd = fd;
    return true;
}

/* Sealed against another length: a peer that maps it relies on that. */
static bool memory_map_new(lh_memory_t *m)
{
    const int fd = memfd_create("longhaul-pinned", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return false;
    if (ftruncate(fd, (off_t)m->bytes) == 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0 &&
        memory_map(m, fd, 0))
        return true;
    (void)close(fd);
    return false;
}

/* With one address for host and GPU (every 64-bit system), pinned memory needs no second one. */
static lh_status_t memory_make(lh_memory_t *m)
{
    lh_device_t *d = m->device;
    const cuda_library_t *l = &d->library;
    if (m->space == LH_SPACE_DEVICE) {
        cuda_address_t address = 0;
        const lh_status_t status = cuda_check(d, l->cuMemAlloc_v2(&address, m->bytes),
                                              "cuMemAlloc");
        m->address = (void *)(uintptr_t)address;
        return status;
    }
    if (memory_map_new(m)) return LH_OK;
    return cuda_check(
        d, l->cuMemHostAlloc(&m->address, m->bytes, CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED),
        "cuMemHostAlloc");
}

lh_status_t cuda_alloc(lh_device_t *d, uint32_t space, uint64_t bytes, lh_memory_t **out,
                       void **address)
{
    if (bytes > (uint64_t)1 << 60)
        return d->host->fail(d->host, LH_NO_MEMORY, "%llu bytes are more than any GPU has",
                             (unsigned long long)bytes);
    lh_status_t status = cuda_enter(d);
    if (status != LH_OK) return status;
    const uint64_t whole = bytes > 0 ? (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES
                                     : PAGE_BYTES;
    lh_memory_t *m = memory_new(
        d, space, space == LH_SPACE_DEVICE ? CUDA_MEMORY_DEVICE : CUDA_MEMORY_HOST, whole);
    if (m == NULL) return LH_NO_MEMORY;
    status = memory_make(m);
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
    const cuda_library_t *l = &d->library;
    (void)l->cuCtxSetCurrent(d->context);
    switch (m->source) {
    case CUDA_MEMORY_DEVICE: (void)l->cuMemFree_v2(cuda_address(m->address)); break;
    case CUDA_MEMORY_HOST: (void)l->cuMemFreeHost(m->address); break;
    case CUDA_MEMORY_PEER: (void)l->cuIpcCloseMemHandle(cuda_address(m->address)); break;
    default: (void)l->cuMemHostUnregister(m->address); break;
    }
    if (m->source == CUDA_MEMORY_MAPPED) {
        (void)munmap(m->address, m->bytes);
        (void)close(m->fd);
    }
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

/* ---- for others ---- */

/* For network cards: needs the open kernel module of the driver. What they write must come to be seen on
 * this GPU, by itself or by a flush (cuda_arrived). */
static lh_status_t share_dmabuf(lh_memory_t *m, lh_share_t *out)
{
    lh_device_t *d = m->device;
    int fd = -1;
    if (attribute_of(d, CUDA_ATTRIBUTE_DMABUF) == 0)
        return d->host->fail(d->host, LH_UNSUPPORTED,
                             "GPU %u (%s): this driver offers no dma-buf (its open kernel module "
                             "does)",
                             d->index, d->name);
    if (attribute_of(d, CUDA_ATTRIBUTE_ORDERS) < CUDA_ORDERS_OWNER &&
        (attribute_of(d, CUDA_ATTRIBUTE_FLUSHES) & CUDA_FLUSHES_HOST) == 0)
        return d->host->fail(
            d->host, LH_UNSUPPORTED,
            "GPU %u (%s) neither orders what network cards write nor can be told to "
            "see it",
            d->index, d->name);
    const cuda_result_t result = d->library.cuMemGetHandleForAddressRange(
        &fd, cuda_address(m->address), m->bytes, CUDA_RANGE_DMABUF, 0);
    if (result == CUDA_INVALID_VALUE || result == CUDA_NOT_SUPPORTED)
        return d->host->fail(d->host, LH_UNSUPPORTED,
                             "GPU %u (%s) makes no dma-buf of this memory (%d)", d->index, d->name,
                             result);
    const lh_status_t status = cuda_check(d, result, "cuMemGetHandleForAddressRange");
    if (status == LH_OK)
        LH_FILL(lh_share_t, out, .kind = LH_SHARE_DMABUF, .fd = fd, .bytes = m->bytes);
    return status;
}

/* Where the GPU orders such writes the driver would have nothing to do, and the call may be left out. */
lh_status_t cuda_arrived(lh_device_t *d)
{
    if (attribute_of(d, CUDA_ATTRIBUTE_ORDERS) >= CUDA_ORDERS_OWNER) return LH_OK;
    const lh_status_t status = cuda_enter(d);
    if (status != LH_OK) return status;
    return cuda_check(d,
                      d->library.cuFlushGPUDirectRDMAWrites(CUDA_FLUSH_CONTEXT, CUDA_FLUSH_OWNER),
                      "cuFlushGPUDirectRDMAWrites");
}

/* For the same plugin in another process: the driver's own handle, which any process of this user may
 * open while this one lives. */
static lh_status_t share_peer(lh_memory_t *m, lh_share_t *out)
{
    lh_device_t *d = m->device;
    cuda_ipc_t handle;
    const cuda_result_t result = d->library.cuIpcGetMemHandle(&handle, cuda_address(m->address));
    if (result == CUDA_INVALID_VALUE || result == CUDA_NOT_SUPPORTED)
        return d->host->fail(d->host, LH_UNSUPPORTED,
                             "GPU %u (%s) gives no handle of this memory to other processes (%d)",
                             d->index, d->name, result);
    const lh_status_t status = cuda_check(d, result, "cuIpcGetMemHandle");
    if (status != LH_OK) return status;
    lh_share_t mine = {.struct_size = sizeof(mine),
                       .kind = LH_SHARE_PEER,
                       .fd = -1,
                       .token_length = sizeof(handle),
                       .bytes = m->bytes};
    memcpy(mine.token, &handle, sizeof(handle));
    lh_fill(out, &mine, sizeof(mine));
    return LH_OK;
}

static lh_status_t share_memfd(lh_memory_t *m, lh_share_t *out)
{
    const lh_host_t *host = m->device->host;
    const int copy = fcntl(m->fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) return host->fail(host, LH_IO, "a second descriptor of pinned memory");
    LH_FILL(lh_share_t, out, .kind = LH_SHARE_MEMFD, .fd = copy, .bytes = m->bytes);
    return LH_OK;
}

lh_status_t cuda_share(lh_memory_t *m, uint32_t kind, lh_share_t *out)
{
    lh_device_t *d = m->device;
    const lh_status_t status = cuda_enter(d);
    if (status != LH_OK) return status;
    if (m->source == CUDA_MEMORY_DEVICE && kind == LH_SHARE_DMABUF) return share_dmabuf(m, out);
    if (m->source == CUDA_MEMORY_DEVICE && kind == LH_SHARE_PEER) return share_peer(m, out);
    if (m->source == CUDA_MEMORY_MAPPED && kind == LH_SHARE_MEMFD) return share_memfd(m, out);
    return d->host->fail(d->host, LH_UNSUPPORTED,
                         "device memory is shared as a dma-buf or with a peer, pinned memory as a "
                         "memfd%s",
                         m->source == CUDA_MEMORY_HOST ? ", which this is not" : "");
}

/* ---- made by others ---- */

static lh_status_t adopt_peer(lh_memory_t *m, const lh_share_t *share)
{
    lh_device_t *d = m->device;
    cuda_ipc_t handle;
    cuda_address_t address = 0;
    if (share->token_length != sizeof(handle))
        return d->host->fail(d->host, LH_INVALID, "a token of %u bytes, expected %zu",
                             share->token_length, sizeof(handle));
    memcpy(&handle, share->token, sizeof(handle));
    const cuda_result_t result = d->library.cuIpcOpenMemHandle_v2(&address, handle,
                                                                  CUDA_IPC_LAZY_PEER);
    if (result == CUDA_PEER_UNSUPPORTED || result == CUDA_MAP_FAILED ||
        result == CUDA_INVALID_CONTEXT || result == CUDA_INVALID_VALUE ||
        result == CUDA_NOT_SUPPORTED)
        return d->host->fail(d->host, LH_UNSUPPORTED,
                             "GPU %u (%s) does not reach this memory of another process (%d)",
                             d->index, d->name, result);
    m->address = (void *)(uintptr_t)address;
    return cuda_check(d, result, "cuIpcOpenMemHandle");
}

/* A descriptor is the caller's; this memory has one of its own. */
static lh_status_t adopt_memfd(lh_memory_t *m, const lh_share_t *share)
{
    const lh_host_t *host = m->device->host;
    const int copy = fcntl(share->fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) return host->fail(host, LH_IO, "a second descriptor of pinned memory");
    if (memory_map(m, copy, share->offset)) return LH_OK;
    (void)close(copy);
    return host->fail(host, LH_UNSUPPORTED,
                      "GPU %u (%s) does not take pinned memory of another process",
                      m->device->index, m->device->name);
}

static lh_status_t cuda_adopt(lh_device_t *d, const lh_share_t *share, lh_memory_t **out,
                              void **address)
{
    const bool peer = share->kind == LH_SHARE_PEER;
    lh_status_t status = cuda_enter(d);
    if (status != LH_OK) return status;
    if ((!peer && share->kind != LH_SHARE_MEMFD) || share->bytes == 0)
        return d->host->fail(d->host, LH_UNSUPPORTED,
                             "%llu bytes of kind %u: memory of a peer or a memfd is taken",
                             (unsigned long long)share->bytes, share->kind);
    lh_memory_t *m = memory_new(d, peer ? LH_SPACE_DEVICE : LH_SPACE_PINNED, CUDA_MEMORY_PEER,
                                share->bytes);
    if (m == NULL) return LH_NO_MEMORY;
    status = peer ? adopt_peer(m, share) : adopt_memfd(m, share);
    if (status != LH_OK) {
        d->host->release(d->host, m);
        return status;
    }
    *out = m;
    *address = m->address;
    return LH_OK;
}

/* The pages are pinned where they lie. What is mapped read-only, as a peer's arena is, may be refused
 * without the flag, and the flag by older GPUs. */
static lh_status_t cuda_wrap(lh_device_t *d, const void *address, uint64_t bytes, lh_memory_t **out)
{
    const cuda_library_t *l = &d->library;
    unsigned flags = CUDA_REGISTER_PORTABLE | CUDA_REGISTER_MAPPED;
    const lh_status_t status = cuda_enter(d);
    if (status != LH_OK) return status;
    if (attribute_of(d, CUDA_ATTRIBUTE_HOST_POINTER) == 0)
        return d->host->fail(d->host, LH_UNSUPPORTED,
                             "GPU %u (%s) has another address for registered memory", d->index,
                             d->name);
    if (attribute_of(d, CUDA_ATTRIBUTE_READ_ONLY) != 0) flags |= CUDA_REGISTER_READ_ONLY;
    lh_memory_t *m = memory_new(d, LH_SPACE_PINNED, CUDA_MEMORY_WRAPPED, bytes);
    if (m == NULL) return LH_NO_MEMORY;
    m->address = (void *)(uintptr_t)address;
    const cuda_result_t result = l->cuMemHostRegister_v2(m->address, bytes, flags);
    if (result == CUDA_OK) {
        *out = m;
        return LH_OK;
    }
    d->host->release(d->host, m);
    return cuda_check(d, result, "cuMemHostRegister");
}

const lh_memory_api_t cuda_memory_api = {
    .struct_size = sizeof(lh_memory_api_t), .adopt = cuda_adopt, .wrap = cuda_wrap};
