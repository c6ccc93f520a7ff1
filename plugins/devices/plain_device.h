/* plain_device.h - a device that is the host and does each call at once: everything of its table but open
 * and properties. Whoever includes it defines struct lh_device before, which holds `const lh_host_t
 * *host`, and names its table PLAIN_DEVICE_API(...). */
#ifndef PLUGINS_DEVICES_PLAIN_DEVICE_H
#define PLUGINS_DEVICES_PLAIN_DEVICE_H

#include <longhaul/device.h>

enum { PLAIN_DEVICE_ALIGNMENT = 256 };

struct lh_memory {
    const lh_host_t *host;
    void *bytes;
};
struct lh_stream {
    lh_device_t *device;
};
struct lh_event {
    const lh_host_t *host;
    uint64_t passed_ns;
};

static inline lh_status_t plain_device_count(LH_UNUSED const lh_host_t *host,
                                             LH_UNUSED const void *config, uint32_t *out)
{
    *out = 1;
    return LH_OK;
}

static inline void plain_device_close(lh_device_t *d)
{
    d->host->release(d->host, d);
}

/* All spaces are the host's. */
static inline lh_status_t plain_device_alloc(lh_device_t *d, LH_UNUSED uint32_t space,
                                             uint64_t bytes, lh_memory_t **out, void **address)
{
    lh_memory_t *m = d->host->alloc(d->host, sizeof(*m), _Alignof(lh_memory_t));
    if (m == NULL) return LH_NO_MEMORY;
    m->host = d->host;
    m->bytes = d->host->alloc(d->host, bytes, PLAIN_DEVICE_ALIGNMENT);
    if (m->bytes == NULL) {
        d->host->release(d->host, m);
        return LH_NO_MEMORY;
    }
    *out = m;
    *address = m->bytes;
    return LH_OK;
}

static inline void plain_device_release(lh_memory_t *memory)
{
    memory->host->release(memory->host, memory->bytes);
    memory->host->release(memory->host, memory);
}

static inline lh_status_t plain_device_stream_new(lh_device_t *d,
                                                  LH_UNUSED const lh_stream_how_t *how,
                                                  lh_stream_t **out)
{
    lh_stream_t *s = d->host->alloc(d->host, sizeof(*s), _Alignof(lh_stream_t));
    if (s == NULL) return LH_NO_MEMORY;
    s->device = d;
    *out = s;
    return LH_OK;
}

static inline void plain_device_stream_free(lh_stream_t *s)
{
    s->device->host->release(s->device->host, s);
}

static inline lh_status_t plain_device_event_new(lh_device_t *d, lh_event_t **out)
{
    lh_event_t *e = d->host->alloc(d->host, sizeof(*e), _Alignof(lh_event_t));
    if (e == NULL) return LH_NO_MEMORY;
    e->host = d->host;
    *out = e;
    return LH_OK;
}

static inline void plain_device_event_free(lh_event_t *e)
{
    e->host->release(e->host, e);
}

/* All that was queued has run, so an event is past when it is recorded. */
static inline lh_status_t plain_device_record(lh_stream_t *s, lh_event_t *e)
{
    e->passed_ns = s->device->host->now_ns(s->device->host);
    return LH_OK;
}

static inline lh_status_t plain_device_wait(LH_UNUSED lh_stream_t *s, LH_UNUSED lh_event_t *e)
{
    return LH_OK;
}

static inline lh_status_t plain_device_test(LH_UNUSED lh_event_t *e, LH_UNUSED uint64_t timeout_ns)
{
    return LH_OK;
}

static inline lh_status_t plain_device_event_time(lh_event_t *e, uint64_t *ns)
{
    *ns = e->passed_ns;
    return LH_OK;
}

static inline lh_status_t plain_device_copy(LH_UNUSED lh_stream_t *s, const lh_place_t *to,
                                            const lh_place_t *from, uint64_t bytes)
{
    memcpy(to->address, from->address, bytes);
    return LH_OK;
}

static inline lh_status_t plain_device_fill(LH_UNUSED lh_stream_t *s, const lh_place_t *to,
                                            uint8_t byte, uint64_t bytes)
{
    memset(to->address, byte, bytes);
    return LH_OK;
}

/* opens, tells: open and properties of lh_device_api_t. */
#define PLAIN_DEVICE_API(opens, tells)                                                        \
    {                                                                                         \
        .struct_size = sizeof(lh_device_api_t), .count = plain_device_count, .open = (opens), \
        .close = plain_device_close, .properties = (tells), .alloc = plain_device_alloc,      \
        .release = plain_device_release, .stream_new = plain_device_stream_new,               \
        .stream_free = plain_device_stream_free, .event_new = plain_device_event_new,         \
        .event_free = plain_device_event_free, .record = plain_device_record,                 \
        .wait = plain_device_wait, .test = plain_device_test, .copy = plain_device_copy,      \
        .fill = plain_device_fill, .event_time = plain_device_event_time                      \
    }

#endif
