/* fake_memory.c - device memory as an accelerator shows it to the host: addresses that are reserved
 * and behind which nothing is, so that every access ends the program. The worker has the memory; with
 * host_access = yes the host has it, too. Pinned memory is a memfd, which other processes may map; with
 * dmabuf = yes device memory is one, which stands for a dma-buf. */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake.h"

/* Not-a-number in every float format, and -1: what nobody has written shows. */
enum { POISON = 0xff };

static lh_status_t memory_host(lh_memory_t *m)
{
    const lh_host_t *host = m->device->host;

    m->fd = memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (m->fd < 0 || ftruncate(m->fd, (off_t)m->bytes) != 0) goto no_memory;
    void *real = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
    if (real == MAP_FAILED) goto no_memory;
    m->real = m->shown = real;
    return LH_OK;

no_memory:
    if (m->fd >= 0) close(m->fd);
    return host->fail(host, LH_NO_MEMORY, "%llu bytes of pinned memory",
                      (unsigned long long)m->bytes);
}

/* What the worker has; NULL: no memory. */
static char *memory_real(lh_memory_t *m, uint64_t bytes, int how)
{
    if (m->device->config.dmabuf) {
        m->fd = memfd_create("fake dma-buf", MFD_CLOEXEC);
        if (m->fd < 0 || ftruncate(m->fd, (off_t)bytes) != 0) return NULL;
        how = MAP_SHARED;
    }
    char *real = mmap(NULL, bytes, PROT_READ | PROT_WRITE, how, m->fd, 0);
    return real == MAP_FAILED ? NULL : real;
}

static lh_status_t memory_device(lh_memory_t *m)
{
    const lh_host_t *host = m->device->host;
    const int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

    const uint64_t off = m->device->config.misplaced, bytes = m->bytes + off;

    char *real = memory_real(m, bytes, how);
    if (real == NULL) goto no_memory;
    char *shown = m->device->config.host_access ? real : mmap(NULL, bytes, PROT_NONE, how, -1, 0);
    if (shown == MAP_FAILED) goto unmap_real;
    m->real = real + off;
    m->shown = shown + off;
    m->on_device = true;
    return LH_OK;

unmap_real:
    munmap(real, bytes);
no_memory:
    if (m->fd >= 0) close(m->fd);
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

    if (m->on_device) {
        const uint64_t off = m->device->config.misplaced;
        if (m->shown != m->real) munmap(m->shown - off, m->bytes + off);
        munmap(m->real - off, m->bytes + off);
    } else {
        munmap(m->real, m->bytes);
    }
    if (m->fd >= 0) close(m->fd);
    host->release(host, m);
}

lh_status_t fake_share(lh_memory_t *m, uint32_t kind, lh_share_t *out)
{
    const lh_host_t *host = m->device->host;
    const fake_config_t *c = &m->device->config;

    if (!(m->on_device ? c->dmabuf && kind == LH_SHARE_DMABUF
                       : c->shares && kind == LH_SHARE_MEMFD))
        return host->fail(host, LH_UNSUPPORTED,
                          "pinned memory is shared as a memfd, device memory as a dma-buf, both "
                          "where options say so");
    const int copy = fcntl(m->fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) return host->fail(host, LH_IO, "a second descriptor");
    LH_FILL(lh_share_t, out, .kind = kind, .fd = copy, .bytes = m->bytes,
            .offset = m->on_device ? c->misplaced : 0);
    return LH_OK;
}

/* What is written through the dma-buf is seen at once; that it was told is counted. */
lh_status_t fake_arrived(lh_device_t *d)
{
    pthread_mutex_lock(&d->lock);
    d->tally.arrivals++;
    pthread_mutex_unlock(&d->lock);
    return LH_OK;
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
