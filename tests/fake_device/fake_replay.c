/* fake_replay.c - captured work: one lane a stream, edges where one waits for another. */
#include "fake.h"

static lh_status_t lane_add(lh_replay_t *r, lh_stream_t *s)
{
    const lh_host_t *host = r->device->host;

    if (r->lane_count == REPLAY_LANES) {
        return host->fail(host, LH_UNSUPPORTED, "a capture over more than %d streams",
                          (int)REPLAY_LANES);
    }
    r->lanes[r->lane_count] = (lane_t){.inner = s->inner, .part_of = r};
    s->capture_lane = r->lane_count++;
    s->captured = true;
    return LH_OK;
}

static lh_status_t lane_grow(const lh_host_t *host, lane_t *lane)
{
    const uint64_t capacity = lane->capacity == 0 ? 64 : 2 * lane->capacity;
    item_t *items = host->alloc(host, capacity * sizeof(*items), 64);

    if (items == NULL) return LH_NO_MEMORY;
    if (lane->queued > 0) memcpy(items, lane->items, lane->queued * sizeof(*items));
    host->release(host, lane->items);
    lane->items = items;
    lane->capacity = capacity;
    return LH_OK;
}

lh_status_t replay_append(lh_stream_t *s, const item_t *item)
{
    lh_replay_t *r = s->device->capture;
    lane_t *lane = &r->lanes[s->capture_lane];

    if (item->type == ITEM_REPLAY) {
        return s->device->host->fail(s->device->host, LH_INVALID, "a replay inside a capture");
    }
    if (lane->queued == lane->capacity) {
        const lh_status_t status = lane_grow(s->device->host, lane);
        if (status != LH_OK) return status;
    }
    lane->items[lane->queued++] = *item;
    s->loose = true;
    return LH_OK;
}

lh_status_t replay_join(lh_stream_t *s, lh_event_t *e)
{
    lh_replay_t *r = s->device->capture;
    const item_t edge = {.type = ITEM_EDGE, .lane = e->capture_lane, .ticket = e->capture_ticket};

    if (!s->captured) {
        const lh_status_t status = lane_add(r, s);
        if (status != LH_OK) return status;
    }
    if (r->lanes[e->capture_lane].queued == e->capture_ticket) e->stream->loose = false;
    return replay_append(s, &edge);
}

lh_status_t fake_capture_begin(lh_stream_t *s)
{
    lh_device_t *d = s->device;
    lh_replay_t *r = d->host->alloc(d->host, sizeof(*r), _Alignof(lh_replay_t));
    if (r == NULL) return LH_NO_MEMORY;

    r->device = d;
    r->origin = s;
    pthread_mutex_lock(&d->lock);
    const bool busy = d->capture != NULL;
    if (!busy) {
        d->capture = r;
        r->id = ++d->capture_count;
        (void)lane_add(r, s);
    }
    pthread_mutex_unlock(&d->lock);
    if (!busy) return LH_OK;
    d->host->release(d->host, r);
    return d->host->fail(d->host, LH_INVALID, "a capture begins inside another");
}

/* Streams leave the capture; false if one of them had work that the origin does not wait for. */
static bool streams_leave(lh_device_t *d, const lh_replay_t *r)
{
    bool joined = true;

    for (lane_t *lane = d->lanes; lane != NULL; lane = lane->next) {
        if (lane->part_of != NULL) continue;
        lh_stream_t *s = (lh_stream_t *)(void *)((char *)lane - offsetof(lh_stream_t, lane));
        if (!s->captured) continue;
        if (s != r->origin && s->loose) joined = false;
        s->captured = s->loose = false;
    }
    return joined;
}

lh_status_t fake_capture_end(lh_stream_t *s, lh_replay_t **out)
{
    lh_device_t *d = s->device;

    pthread_mutex_lock(&d->lock);
    lh_replay_t *r = d->capture;
    if (r == NULL || r->origin != s) {
        pthread_mutex_unlock(&d->lock);
        return d->host->fail(d->host, LH_INVALID, "a capture ends on a stream where none began");
    }
    d->capture = NULL;
    const bool joined = streams_leave(d, r);
    pthread_mutex_unlock(&d->lock);
    if (!joined) {
        fake_replay_free(r);
        return d->host->fail(d->host, LH_INVALID,
                             "a captured stream has work that the first stream does not wait for");
    }
    *out = r;
    return LH_OK;
}

lh_status_t fake_replay(lh_replay_t *r, lh_stream_t *s)
{
    const item_t item = {.type = ITEM_REPLAY, .replay = r};
    pthread_mutex_lock(&r->device->lock);
    r->device->tally.replays++;
    pthread_mutex_unlock(&r->device->lock);
    return fake_push(s, &item);
}

void fake_replay_free(lh_replay_t *r)
{
    const lh_host_t *host = r->device->host;

    for (uint32_t i = 0; i < r->lane_count; i++)
        host->release(host, r->lanes[i].items);
    host->release(host, r);
}
