/* fake_cuda_memory.c - device memory as a GPU shows it to the host: addresses that are reserved and behind
 * which nothing is, so that every access ends the program. The worker has the memory elsewhere; what a
 * kernel's parameters point to is looked up word by word.
 *
 * Host memory that was registered is the host's own. Memory of another process is what stands behind its
 * device memory, found by /proc; as with a real driver a process can't open its own. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake_cuda.h"

enum { POISON = 0xff, PAGE = 4096 }; /* not-a-number in every float format, and -1 */

enum { AREA_DEVICE, AREA_HOST, AREA_REGISTERED, AREA_PEER };

typedef struct area {
    struct area *next;
    uint32_t kind;      /* AREA_* */
    char *shown, *real; /* the same for pinned memory */
    uint64_t bytes;
    int fd; /* behind device memory: what a dma-buf of it would be; else -1 */
} area_t;

typedef struct handle { /* in a cuda_ipc_t */
    uint64_t magic, bytes;
    int pid, fd;
} handle_t;
static const uint64_t handle_magic = 0x6c6f6e676970634eu;

static area_t *areas;

static area_t *area_of(cuda_address_t address)
{
    for (area_t *a = areas; a != NULL; a = a->next) {
        const cuda_address_t first = (cuda_address_t)(uintptr_t)a->shown;
        if (address >= first && address < first + a->bytes) return a;
    }
    return NULL;
}

void *fake_real(cuda_address_t address, uint64_t bytes)
{
    const area_t *a = area_of(address);
    if (a == NULL) return NULL;
    const uint64_t offset = address - (cuda_address_t)(uintptr_t)a->shown;
    return bytes <= a->bytes - offset ? a->real + offset : NULL;
}

void fake_real_words(void *params, size_t bytes)
{
    for (size_t at = 0; at + sizeof(cuda_address_t) <= bytes; at += sizeof(cuda_address_t)) {
        cuda_address_t word;
        memcpy(&word, (char *)params + at, sizeof(word));
        const void *real = fake_real(word, 1);
        if (real != NULL) memcpy((char *)params + at, &real, sizeof(real));
    }
}

static void area_free(area_t *a)
{
    if (a->kind != AREA_REGISTERED) {
        if (a->shown != NULL && a->shown != a->real) munmap(a->shown, a->bytes);
        if (a->real != NULL) munmap(a->real, a->bytes);
    }
    if (a->fd >= 0) close(a->fd);
    free(a);
}

/* Of a descriptor, which is the area's from here on. On the device: with other addresses for the host. */
static area_t *area_map(int fd, size_t bytes, uint32_t kind)
{
    area_t *a = calloc(1, sizeof(*a));
    if (a == NULL) return NULL;
    *a = (area_t){.kind = kind, .bytes = bytes, .fd = fd};
    if (fd < 0) goto fail;
    void *real = mmap(NULL, a->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, a->fd, 0);
    if (real == MAP_FAILED) goto fail;
    a->real = real;
    void *shown = kind == AREA_HOST ? real
                                    : mmap(NULL, a->bytes, PROT_NONE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (shown == MAP_FAILED) goto fail;
    a->shown = shown;
    a->next = areas;
    areas = a;
    return a;

fail:
    area_free(a);
    return NULL;
}

static area_t *area_new(size_t bytes, uint32_t kind)
{
    const size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
    int fd = memfd_create("fake_cuda", MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, (off_t)whole) != 0) {
        close(fd);
        fd = -1;
    }
    area_t *a = area_map(fd, whole, kind);
    if (a != NULL) memset(a->real, POISON, a->bytes);
    return a;
}

/* The driver waits until nothing may still use the memory. Of a lost context that is the one operation
 * under way: what is queued behind it never runs. */
static cuda_result_t area_end(cuda_address_t address, uint32_t kind)
{
    fake_idle();
    for (area_t **at = &areas; *at != NULL; at = &(*at)->next) {
        area_t *a = *at;
        if ((cuda_address_t)(uintptr_t)a->shown != address || a->kind != kind) continue;
        *at = a->next;
        if (kind == AREA_DEVICE) fake.used_bytes -= a->bytes;
        area_free(a);
        return CUDA_OK;
    }
    return CUDA_INVALID_VALUE;
}

FAKE_EXPORT cuda_result_t cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    FAKE_BEGIN(cuMemGetInfo_v2);
    *total_bytes = fake.memory_bytes;
    *free_bytes = fake.memory_bytes - fake.used_bytes;
    return fake_end(CUDA_OK);
}

FAKE_EXPORT cuda_result_t cuMemAlloc_v2(cuda_address_t *out, size_t bytes)
{
    FAKE_BEGIN(cuMemAlloc_v2);
    if (bytes == 0) return fake_end(CUDA_INVALID_VALUE);
    if (bytes > fake.memory_bytes - fake.used_bytes) return fake_end(CUDA_NO_MEMORY);
    const area_t *a = area_new(bytes, AREA_DEVICE);
    if (a == NULL) return fake_end(CUDA_NO_MEMORY);
    fake.used_bytes += a->bytes;
    *out = (cuda_address_t)(uintptr_t)a->shown;
    return fake_end(CUDA_OK);
}

FAKE_EXPORT cuda_result_t cuMemFree_v2(cuda_address_t address)
{
    pthread_mutex_lock(&fake.lock);
    return fake_end(area_end(address, AREA_DEVICE));
}

FAKE_EXPORT cuda_result_t cuMemHostAlloc(void **out, size_t bytes, unsigned flags)
{
    (void)flags;
    FAKE_BEGIN(cuMemHostAlloc);
    const area_t *a = area_new(bytes, AREA_HOST);
    if (a == NULL) return fake_end(CUDA_NO_MEMORY);
    *out = a->shown;
    return fake_end(CUDA_OK);
}

FAKE_EXPORT cuda_result_t cuMemFreeHost(void *address)
{
    pthread_mutex_lock(&fake.lock);
    return fake_end(area_end((cuda_address_t)(uintptr_t)address, AREA_HOST));
}

/* Pages that are registered already, in part too, are refused; what is there stays. */
FAKE_EXPORT cuda_result_t cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags)
{
    FAKE_BEGIN(cuMemHostRegister_v2);
    const cuda_address_t first = (cuda_address_t)(uintptr_t)address;
    if (bytes == 0 || address == NULL || (flags & CUDA_REGISTER_MAPPED) == 0)
        return fake_end(CUDA_INVALID_VALUE);
    for (const area_t *a = areas; a != NULL; a = a->next) {
        const cuda_address_t begin = (cuda_address_t)(uintptr_t)a->shown;
        if (first < begin + a->bytes && begin < first + bytes) return fake_end(CUDA_REGISTERED);
    }
    area_t *a = calloc(1, sizeof(*a));
    if (a == NULL) return fake_end(CUDA_NO_MEMORY);
    *a = (area_t){.next = areas,
                  .kind = AREA_REGISTERED,
                  .shown = address,
                  .real = address,
                  .bytes = bytes,
                  .fd = -1};
    areas = a;
    return fake_end(CUDA_OK);
}

FAKE_EXPORT cuda_result_t cuMemHostUnregister(void *address)
{
    pthread_mutex_lock(&fake.lock);
    return fake_end(area_end((cuda_address_t)(uintptr_t)address, AREA_REGISTERED));
}

FAKE_EXPORT cuda_result_t cuIpcGetMemHandle(cuda_ipc_t *out, cuda_address_t address)
{
    FAKE_BEGIN(cuIpcGetMemHandle);
    const area_t *a = area_of(address);
    if (a == NULL || a->kind != AREA_DEVICE) return fake_end(CUDA_INVALID_VALUE);
    const handle_t handle = {
        .magic = handle_magic, .bytes = a->bytes, .pid = getpid(), .fd = a->fd};
    memset(out, 0, sizeof(*out));
    memcpy(out->bytes, &handle, sizeof(handle));
    return fake_end(CUDA_OK);
}

FAKE_EXPORT cuda_result_t cuIpcOpenMemHandle_v2(cuda_address_t *out, cuda_ipc_t from,
                                                unsigned flags)
{
    handle_t handle;
    char path[64];
    (void)flags;
    FAKE_BEGIN(cuIpcOpenMemHandle_v2);
    memcpy(&handle, from.bytes, sizeof(handle));
    if (handle.magic != handle_magic) return fake_end(CUDA_INVALID_VALUE);
    if (handle.pid == getpid()) return fake_end(CUDA_INVALID_CONTEXT);
    (void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", handle.pid, handle.fd);
    const area_t *a = area_map(open(path, O_RDWR | O_CLOEXEC), handle.bytes, AREA_PEER);
    if (a == NULL) return fake_end(CUDA_MAP_FAILED);
    *out = (cuda_address_t)(uintptr_t)a->shown;
    return fake_end(CUDA_OK);
}

FAKE_EXPORT cuda_result_t cuIpcCloseMemHandle(cuda_address_t address)
{
    pthread_mutex_lock(&fake.lock);
    return fake_end(area_end(address, AREA_PEER));
}

FAKE_EXPORT cuda_result_t cuMemGetHandleForAddressRange(void *handle, cuda_address_t address,
                                                        size_t bytes, int kind,
                                                        unsigned long long flags)
{
    (void)flags;
    FAKE_BEGIN(cuMemGetHandleForAddressRange);
    const area_t *a = area_of(address);
    if (a == NULL || a->kind != AREA_DEVICE || address % PAGE != 0 || bytes % PAGE != 0 ||
        kind != CUDA_RANGE_DMABUF)
        return fake_end(CUDA_INVALID_VALUE);
    const int fd = dup(a->fd);
    memcpy(handle, &fd, sizeof(fd));
    return fake_end(fd >= 0 ? CUDA_OK : CUDA_NO_MEMORY);
}

FAKE_EXPORT cuda_result_t cuFlushGPUDirectRDMAWrites(int target, int scope)
{
    FAKE_BEGIN(cuFlushGPUDirectRDMAWrites);
    if (!fake.flushes) return fake_end(CUDA_NOT_SUPPORTED);
    return fake_end(target == CUDA_FLUSH_CONTEXT && scope == CUDA_FLUSH_OWNER ? CUDA_OK
                                                                              : CUDA_INVALID_VALUE);
}

typedef struct move {
    cuda_address_t to, from;
    size_t bytes;
    unsigned char byte;
} move_t;

static cuda_result_t copy_run(const void *data)
{
    const move_t *m = data;
    pthread_mutex_lock(&fake.lock);
    void *to = fake_real(m->to, m->bytes), *from = fake_real(m->from, m->bytes);
    pthread_mutex_unlock(&fake.lock);
    if (to == NULL || from == NULL) return CUDA_ILLEGAL_ADDRESS;
    memcpy(to, from, m->bytes);
    return CUDA_OK;
}

static cuda_result_t fill_run(const void *data)
{
    const move_t *m = data;
    pthread_mutex_lock(&fake.lock);
    void *to = fake_real(m->to, m->bytes);
    pthread_mutex_unlock(&fake.lock);
    if (to == NULL) return CUDA_ILLEGAL_ADDRESS;
    memset(to, m->byte, m->bytes);
    return CUDA_OK;
}

FAKE_EXPORT cuda_result_t cuMemcpyAsync(cuda_address_t to, cuda_address_t from, size_t bytes,
                                        cuda_stream_t stream)
{
    const move_t m = {.to = to, .from = from, .bytes = bytes};
    FAKE_BEGIN(cuMemcpyAsync);
    return fake_end(fake_push_work(stream, copy_run, &m, sizeof(m)));
}

FAKE_EXPORT cuda_result_t cuMemsetD8Async(cuda_address_t to, unsigned char byte, size_t bytes,
                                          cuda_stream_t stream)
{
    const move_t m = {.to = to, .bytes = bytes, .byte = byte};
    FAKE_BEGIN(cuMemsetD8Async);
    return fake_end(fake_push_work(stream, fill_run, &m, sizeof(m)));
}
