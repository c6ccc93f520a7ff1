/* fake_memory.c - device memory that is mapped twice: where the host is told it lies, every access
 * ends the program; the worker uses the other mapping. */
#include <sys/mman.h>
#include <unistd.h>

#include "fake.h"

/* Not-a-number in every float format, and -1: what nobody has written shows. */
enum { POISON = 0xff };

static lh_status_t memory_host(lh_memory_t *m)
{
    const lh_host_t *host = m->device->host;

    m->real = host->alloc(host, m->bytes, 4096);
    if (m->real == NULL) return LH_NO_MEMORY;
    m->shown = m->real;
    return LH_OK;
}

static lh_status_t memory_device(lh_memory_t *m)
{
    const lh_host_t *host = m->device->host;

    m->fd = memfd_create("fake device memory", MFD_CLOEXEC);
    if (m->fd < 0) return host->fail(host, LH_IO, "memfd_create");
    if (ftruncate(m->fd, (off_t)m->bytes) != 0) {
        (void)host->fail(host, LH_NO_MEMORY, "%llu bytes of device memory",
                         (unsigned long long)m->bytes);
        goto close_fd;
    }
    void *real = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
    if (real == MAP_FAILED) goto close_fd;
    void *shown = mmap(NULL, m->bytes, PROT_NONE, MAP_SHARED, m->fd, 0);
    if (shown == MAP_FAILED) goto unmap_real;
    m->real = real;
    m->shown = shown;
    return LH_OK;

unmap_real:
    munmap(real, m->bytes);
close_fd:
    close(m->fd);
    return host->fail(host, LH_NO_MEMORY, "%llu bytes of device memory",
                      (unsigned long long)m->bytes);
}

lh_status_t fake_alloc(lh_device_t *d, uint32_t space, uint64_t bytes, lh_memory_t **out,
                       void **address)
{
    lh_memory_t *m = d->host->alloc(d->host, sizeof(*m), _Alignof(lh_memory_t));
    if (m == NULL) return LH_NO_MEMORY;

    m->device = d;
    m->bytes = bytes > 0 ? bytes : 1;
    m->fd = -1;
    const lh_status_t status = space == LH_SPACE_DEVICE ? memory_device(m) : memory_host(m);
    if (status != LH_OK) {
        d->host->release(d->host, m);
        return status;
    }
    memset(m->real, POISON, m->bytes);
    *out = m;
    *address = m->shown;
    return LH_OK;
}

void fake_release(lh_memory_t *m)
{
    const lh_host_t *host = m->device->host;

    if (m->fd >= 0) {
        munmap(m->shown, m->bytes);
        munmap(m->real, m->bytes);
        close(m->fd);
    } else {
        host->release(host, m->real);
    }
    host->release(host, m);
}

lh_status_t fake_place(lh_device_t *d, const lh_place_t *place, lh_place_t *out)
{
    const lh_memory_t *m = place->memory;

    *out = *place;
    if (m == NULL && place->address != NULL) {
        return fake_error(d, LH_INVALID, "a place has address %p and no memory", place->address);
    }
    if (m == NULL) return LH_OK;
    if (place->address != m->shown + place->offset || place->offset > m->bytes) {
        return fake_error(d, LH_INVALID,
                          "a place has address %p, its memory of %llu bytes begins at %p + %llu",
                          place->address, (unsigned long long)m->bytes, (void *)m->shown,
                          (unsigned long long)place->offset);
    }
    out->address = m->real + place->offset;
    return LH_OK;
}
