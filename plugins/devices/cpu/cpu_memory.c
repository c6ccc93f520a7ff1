/* cpu_memory.c - arenas of host memory in huge pages, how they are shared with other processes, and
 * copies between them.
 *
 * An arena is private memory at first, as the kernel gives huge pages for that by default, and is
 * put onto a memfd only when a transport wants to share it. All of it is touched when it is made: a
 * machine that has too little memory fails before step 0 and not in the middle of one. */
#include "cpu_memory.h"

#include "processor.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define MEBIBYTE ((uint64_t)1 << 20)

static const uint64_t huge_page_bytes = 2 * MEBIBYTE;
static const uint64_t page_bytes = 4096;
static const uint64_t piece_bytes = MEBIBYTE;       /* what one part copies, fills or touches */
static const uint64_t rebase_bytes = 64 * MEBIBYTE; /* what exists twice while an arena moves */

struct lh_memory {
    const lh_host_t *host;
    lh_device_t *device;
    void *mapping; /* NULL: wrapped, not ours */
    uint64_t mapped_bytes;
    char *begin; /* inside mapping, where the arena begins */
    uint64_t bytes;
    int fd; /* memfd behind it once it is shared, or -1 */
    bool huge;
};

/* One long copy, fill or first touch, cut into pieces of piece_bytes, one a part. */
typedef struct bulk {
    char *to;
    const char *from; /* NULL: fill */
    uint64_t bytes;
    uint8_t byte;
    bool touch;
} bulk_t;

/* One piece. A touch writes one byte of each page, which is all that makes the kernel provide
 * it. */
static void bulk_part(void *context, uint32_t part)
{
    const bulk_t *bulk = context;
    const uint64_t begin = part * piece_bytes;
    const uint64_t left = bulk->bytes - begin;
    const uint64_t bytes = left < piece_bytes ? left : piece_bytes;
    char *to = bulk->to + begin;

    if (bulk->touch) {
        for (uint64_t i = 0; i < bytes; i += page_bytes)
            *(volatile char *)(to + i) = 0;
    } else if (bulk->from != NULL) {
        memcpy(to, bulk->from + begin, bytes);
    } else {
        memset(to, bulk->byte, bytes);
    }
}

/* On the stream's threads; done when it returns. */
static void bulk_run(lh_stream_t *s, bulk_t *bulk)
{
    const uint64_t parts = (bulk->bytes + piece_bytes - 1) / piece_bytes;
    s->threads.run(&s->threads, (uint32_t)parts, bulk_part, bulk);
}

lh_status_t cpu_copy(lh_stream_t *s, const lh_place_t *to, const lh_place_t *from, uint64_t bytes)
{
    bulk_t bulk = {.to = to->address, .from = from->address, .bytes = bytes};
    bulk_run(s, &bulk);
    return LH_OK;
}

lh_status_t cpu_fill(lh_stream_t *s, const lh_place_t *to, uint8_t byte, uint64_t bytes)
{
    bulk_t bulk = {.to = to->address, .byte = byte, .bytes = bytes};
    bulk_run(s, &bulk);
    return LH_OK;
}

/* Asked first, as an mmap of more than there is succeeds, and the process is killed when it touches
 * it. */
static lh_status_t memory_room(const lh_device_t *d, uint64_t bytes)
{
    uint64_t total, available;
    processor_memory(&total, &available);
    if (available == 0 || bytes <= available) return LH_OK;
    return d->host->fail(d->host, LH_NO_MEMORY,
                         "an arena of %llu MiB is wanted, this machine has %llu MiB of memory left",
                         (unsigned long long)(bytes / MEBIBYTE),
                         (unsigned long long)(available / MEBIBYTE));
}

/* Touched by the threads that will work on it, so that its pages lie near them and no step pays for
 * a page fault. */
static void memory_touch(lh_device_t *d, void *address, uint64_t bytes)
{
    lh_stream_t s = {.threads = {.struct_size = sizeof(s.threads), .count = d->threads},
                     .device = d};
    s.threads.run = d->run;
    bulk_t bulk = {.to = address, .bytes = bytes, .touch = true};
    bulk_run(&s, &bulk);
}

/* For huge pages the mapping is larger by one and the arena begins at a multiple of one: mmap
 * aligns to small pages only. */
lh_status_t cpu_alloc(lh_device_t *d, uint32_t space, uint64_t bytes, lh_memory_t **out,
                      void **address)
{
    (void)space; /* both spaces are host memory */
    if (bytes == 0 || bytes > UINT64_MAX / 2)
        return d->host->fail(d->host, LH_INVALID, "an arena of %llu bytes",
                             (unsigned long long)bytes);
    lh_status_t status = memory_room(d, bytes);
    if (status != LH_OK) return status;

    lh_memory_t *memory = d->host->alloc(d->host, sizeof(*memory), 64);
    if (memory == NULL) return LH_NO_MEMORY;

    const bool huge = d->config.huge_pages && bytes >= huge_page_bytes;
    const uint64_t align = huge ? huge_page_bytes : page_bytes;
    memory->host = d->host;
    memory->mapped_bytes = (bytes + align - 1) / align * align + (huge ? align : 0);
    void *mapping = mmap(NULL, memory->mapped_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) {
        status = d->host->fail(d->host, LH_NO_MEMORY, "mmap of %llu bytes",
                               (unsigned long long)memory->mapped_bytes);
        d->host->release(d->host, memory);
        return status;
    }
    memory->device = d;
    memory->mapping = mapping;
    memory->bytes = bytes;
    memory->fd = -1;
    memory->huge = huge;
    const uint64_t past = (uint64_t)(uintptr_t)mapping % align;
    char *begin = (char *)mapping + (past == 0 ? 0 : align - past);
    /* Without huge pages in the kernel this fails, and nothing is lost but speed. */
    if (huge) (void)madvise(begin, bytes / align * align, MADV_HUGEPAGE);
    memory_touch(d, begin, bytes);
    memory->begin = begin;
    *out = memory;
    *address = begin;
    return LH_OK;
}

/* A peer that has mapped the arena keeps its pages: the memfd is the kernel's until the last one
 * goes. */
void cpu_release(lh_memory_t *memory)
{
    if (memory == NULL) return;
    if (memory->mapping != NULL) munmap(memory->mapping, memory->mapped_bytes);
    if (memory->fd >= 0) close(memory->fd);
    memory->host->release(memory->host, memory);
}

/* Nothing to do: host memory is device memory here. The struct is what a place needs. */
lh_status_t cpu_wrap(lh_device_t *d, const void *address, uint64_t bytes, lh_memory_t **out)
{
    (void)address; /* kernels read it where it lies */
    (void)bytes;
    lh_memory_t *memory = d->host->alloc(d->host, sizeof(*memory), 64);
    if (memory == NULL) return LH_NO_MEMORY;

    memory->host = d->host;
    memory->fd = -1;
    *out = memory;
    return LH_OK;
}

/* By the device's threads: one alone does not fill the memory bus. */
static void memory_move(lh_device_t *d, char *to, const char *from, uint64_t bytes)
{
    lh_stream_t s = {.threads = {.struct_size = sizeof(s.threads), .count = d->threads},
                     .device = d};
    s.threads.run = d->run;
    bulk_t bulk = {.to = to, .from = from, .bytes = bytes};
    bulk_run(&s, &bulk);
}

/* Puts the memfd under the arena, piece by piece, so that no more than one piece exists twice. The
 * address stays; huge pages stay where the kernel has them for shared memory. */
static lh_status_t memory_rebase(lh_memory_t *m, int fd)
{
    const lh_host_t *host = m->host;
    const uint64_t page = m->huge ? huge_page_bytes : page_bytes;
    const uint64_t all = (m->bytes + page_bytes - 1) / page_bytes * page_bytes;
    char *twin = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (twin == MAP_FAILED)
        return host->fail(host, LH_NO_MEMORY, "mmap of %llu bytes to share",
                          (unsigned long long)all);
    if (m->huge) (void)madvise(twin, all, MADV_HUGEPAGE);
    lh_status_t status = LH_OK;
    for (uint64_t at = 0; status == LH_OK && at < all; at += rebase_bytes) {
        const uint64_t bytes = all - at < rebase_bytes ? all - at : rebase_bytes;
        memory_move(m->device, twin + at, m->begin + at, bytes);
        if (mmap(m->begin + at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                 (off_t)at) == MAP_FAILED)
            status = host->fail(host, LH_NO_MEMORY, "mmap of %llu shared bytes",
                                (unsigned long long)bytes);
    }
    (void)munmap(twin, all);
    if (m->huge) (void)madvise(m->begin, all / page * page, MADV_HUGEPAGE);
    /* No step pays for a page fault; a kernel that does not know this call leaves them to the
     * steps.
     */
    (void)madvise(m->begin, all, MADV_POPULATE_WRITE);
    return status;
}

/* Sealed against another length, as a peer that maps it relies on that; its bytes stay writable. */
static lh_status_t memory_share(lh_memory_t *m)
{
    const lh_host_t *host = m->host;
    const int fd = memfd_create("longhaul-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return host->fail(host, LH_IO, "memfd_create");
    lh_status_t status = LH_OK;
    /* Whole huge pages, as a peer's mapping can have them only then. */
    const uint64_t all = (m->bytes + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes;
    if (ftruncate(fd, (off_t)all) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        status = host->fail(host, LH_IO, "a memfd of %llu bytes", (unsigned long long)all);
    if (status == LH_OK) status = memory_rebase(m, fd);
    if (status != LH_OK) {
        close(fd);
        return status;
    }
    m->fd = fd;
    return LH_OK;
}

/* Only what is shared lies in a memfd: by default kernels have huge pages for private memory, and
 * for shared memory not. */
lh_status_t cpu_share(lh_memory_t *m, uint32_t kind, lh_share_t *out)
{
    const lh_host_t *host = m->host;
    if (kind != LH_SHARE_MEMFD || m->mapping == NULL)
        return host->fail(host, LH_UNSUPPORTED, "only arenas of this device are shared, by memfd");
    /* Once for an arena; every caller gets a descriptor of its own. */
    const lh_status_t status = m->fd < 0 ? memory_share(m) : LH_OK;
    if (status != LH_OK) return status;
    const int copy = fcntl(m->fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) return host->fail(host, LH_IO, "a second descriptor of an arena");
    LH_FILL(lh_share_t, out, .kind = kind, .fd = copy, .bytes = m->bytes);
    return LH_OK;
}
