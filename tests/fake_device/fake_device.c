/* fake_device.c - the device's functions. */
#include <stdio.h>
#include <stdlib.h>

#include "fake.h"

static const lh_device_api_t *inner_api(void)
{
    return fake_inner_plugin.device;
}

static lh_status_t fake_count(const lh_host_t *host, const void *config, uint32_t *out)
{
    const fake_config_t *c = config;

    (void)host;
    *out = c->devices == 0 ? 1 : (uint32_t)c->devices;
    return LH_OK;
}

/* As cuda does it: auto is the rank's number among those of its machine. */
static lh_status_t index_choose(lh_device_t *d)
{
    const lh_host_t *host = d->host;
    const fake_config_t *c = &d->config;
    lh_rank_info_t info = {.struct_size = sizeof(info)};
    lh_status_t status = LH_OK;

    if (c->index != NULL && strcmp(c->index, "auto") != 0) {
        d->index = (uint32_t)strtoul(c->index, NULL, 10);
    } else {
        if (host->world != NULL && host->world->size > 1)
            status = host->rank_info(host, host->world->rank, &info);
        d->index = info.local_rank;
    }
    if (status != LH_OK || c->devices == 0 || d->index < c->devices) return status;
    return host->fail(host, LH_NO_DEVICE, "this machine has %llu fake devices, number %u is wanted",
                      (unsigned long long)c->devices, d->index);
}

static void locks_init(lh_device_t *d)
{
    pthread_condattr_t attributes;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&d->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&d->lock, NULL);
    pthread_mutex_init(&d->inner_lock, NULL);
}

static void locks_destroy(lh_device_t *d)
{
    pthread_mutex_destroy(&d->inner_lock);
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->changed);
}

static lh_status_t fake_open(const lh_host_t *host, const void *config, uint32_t index,
                             lh_device_t **out)
{
    lh_device_t *d = host->alloc(host, sizeof(*d), _Alignof(lh_device_t));
    if (d == NULL) return LH_NO_MEMORY;

    d->host = host;
    memcpy(&d->config, config, sizeof(d->config));
    d->random = d->config.seed;
    lh_status_t status = index_choose(d);
    if (status != LH_OK) goto release;
    fake_inner_configure(d->inner_config, d->config.threads);
    locks_init(d);
    status = inner_api()->open(host, d->inner_config, index, &d->inner);
    if (status != LH_OK) goto locks;
    status = host->thread_start(host, "fake device", fake_worker, d, &d->worker);
    if (status != LH_OK) goto inner;
    *out = d;
    return LH_OK;

inner:
    inner_api()->close(d->inner);
locks:
    locks_destroy(d);
release:
    host->release(host, d);
    return status;
}

static lh_status_t fake_where(const lh_host_t *host, const void *config, uint32_t index,
                              char *pci_path, size_t room)
{
    const fake_config_t *c = config;

    (void)host, (void)index;
    snprintf(pci_path, room, "%s", c->pci_path != NULL ? c->pci_path : "");
    return LH_OK;
}

static void tally_tell(const lh_device_t *d)
{
    const tally_t *t = &d->tally;

    d->host->log(d->host, LH_LOG_INFO,
                 "device %u: %u calls bound, %u launched, %u of them misaligned, %u of whole rows; "
                 "%u kernels timed; %u copies up, %u down, %u of them beside kernels, through %u "
                 "slots; %u replays; %u arrivals",
                 d->index, t->bound, t->launched, t->misaligned, t->whole_rows, t->timed, t->ups,
                 t->downs, t->beside, t->slots, t->replays, t->arrivals);
}

static void fake_close(lh_device_t *d)
{
    if (d->config.tells) tally_tell(d);
    pthread_mutex_lock(&d->lock);
    d->closing = true;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    d->host->thread_join(d->host, d->worker);
    inner_api()->close(d->inner);
    locks_destroy(d);
    d->host->release(d->host, d);
}

static lh_status_t fake_properties(lh_device_t *d, lh_device_properties_t *out)
{
    lh_device_properties_t mine = {.struct_size = sizeof(mine)};
    const lh_status_t status = inner_api()->properties(d->inner, &mine);
    if (status != LH_OK) return status;

    mine.flags = 0;
    if (d->config.capture) mine.flags |= LH_DEVICE_CAPTURE;
    if (d->config.words) mine.flags |= LH_DEVICE_WORDS;
    if (d->config.host_access) mine.flags |= LH_DEVICE_HOST_ACCESS;
    if (d->config.packs) mine.flags |= LH_DEVICE_PACKS;
    memset(mine.native, 0, sizeof(mine.native));
    memset(mine.name, 0, sizeof(mine.name));
    for (uint32_t i = 0; i < sizeof(mine.flops_per_second) / sizeof(mine.flops_per_second[0]); i++)
        mine.flops_per_second[i] = 0; /* nobody is to choose it for its speed */
    snprintf(mine.name, sizeof(mine.name), "fake");
    if (d->config.pci_path != NULL)
        snprintf(mine.pci_path, sizeof(mine.pci_path), "%s", d->config.pci_path);
    lh_fill(out, &mine, sizeof(mine));
    return LH_OK;
}

static lh_status_t fake_stream_new(lh_device_t *d, const lh_stream_how_t *how, lh_stream_t **out)
{
    lh_stream_t *s = d->host->alloc(d->host, sizeof(*s), _Alignof(lh_stream_t));
    if (s == NULL) return LH_NO_MEMORY;

    lh_status_t status = LH_NO_MEMORY;
    s->device = d;
    s->lane.capacity = LANE_ITEMS;
    s->lane.items = d->host->alloc(d->host, LANE_ITEMS * sizeof(item_t), 64);
    if (s->lane.items == NULL) goto release;
    status = inner_api()->stream_new(d->inner, how, &s->inner);
    if (status != LH_OK) goto items;
    s->lane.inner = s->inner;
    pthread_mutex_lock(&d->lock);
    s->lane.slots = how->role == LH_STREAM_COPY && !d->has_slots;
    d->has_slots = d->has_slots || s->lane.slots;
    lane_link(d, &s->lane);
    pthread_mutex_unlock(&d->lock);
    *out = s;
    return LH_OK;

items:
    d->host->release(d->host, s->lane.items);
release:
    d->host->release(d->host, s);
    return status;
}

static void fake_stream_free(lh_stream_t *s)
{
    lh_device_t *d = s->device;

    pthread_mutex_lock(&d->lock);
    while (s->lane.done != s->lane.queued)
        pthread_cond_wait(&d->changed, &d->lock);
    lane_unlink(d, &s->lane);
    pthread_mutex_unlock(&d->lock);
    inner_api()->stream_free(s->inner);
    d->host->release(d->host, s->lane.items);
    d->host->release(d->host, s);
}

static lh_status_t fake_event_new(lh_device_t *d, lh_event_t **out)
{
    lh_event_t *e = d->host->alloc(d->host, sizeof(*e), _Alignof(lh_event_t));
    if (e == NULL) return LH_NO_MEMORY;
    e->device = d;
    *out = e;
    return LH_OK;
}

/* Queued work may still name it. */
static void fake_event_free(lh_event_t *e)
{
    lh_device_t *d = e->device;

    pthread_mutex_lock(&d->lock);
    while (e->passed != e->recorded)
        pthread_cond_wait(&d->changed, &d->lock);
    pthread_mutex_unlock(&d->lock);
    d->host->release(d->host, e);
}

static lh_status_t fake_memory(lh_device_t *d, lh_device_memory_t *out)
{
    if (d->config.memory_bytes == 0) return LH_UNSUPPORTED;
    LH_FILL(lh_device_memory_t, out, .total_bytes = d->config.memory_bytes,
            .free_bytes = d->config.memory_bytes);
    return LH_OK;
}

const lh_device_api_t fake_device_api = {
    .struct_size = sizeof(lh_device_api_t),
    .count = fake_count,
    .open = fake_open,
    .close = fake_close,
    .properties = fake_properties,
    .alloc = fake_alloc,
    .release = fake_release,
    .stream_new = fake_stream_new,
    .stream_free = fake_stream_free,
    .event_new = fake_event_new,
    .event_free = fake_event_free,
    .record = fake_record,
    .wait = fake_wait,
    .test = fake_test,
    .copy = fake_copy,
    .fill = fake_fill,
    .event_time = fake_event_time,
    .memory = fake_memory,
    .capture_begin = fake_capture_begin,
    .capture_end = fake_capture_end,
    .replay = fake_replay,
    .replay_free = fake_replay_free,
    .await = fake_await,
    .signal = fake_signal,
    .share = fake_share,
    .arrived = fake_arrived,
    .where = fake_where,
};
