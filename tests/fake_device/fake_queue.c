/* fake_queue.c - what a stream is fed with. */
#include <time.h>

#include "fake.h"

lh_status_t fake_push(lh_stream_t *s, const item_t *item)
{
    lh_device_t *d = s->device;
    lane_t *lane = &s->lane;
    lh_status_t status = LH_OK;

    pthread_mutex_lock(&d->lock);
    if (s->captured) {
        status = replay_append(s, item);
    } else {
        while (lane->queued - lane->done == lane->capacity) {
            pthread_cond_wait(&d->changed, &d->lock);
        }
        lane->items[lane->queued++ % lane->capacity] = *item;
        pthread_cond_broadcast(&d->changed);
    }
    pthread_mutex_unlock(&d->lock);
    return status;
}

/* Inside a capture a record is no work: it names the point that others wait for. */
static void record_captured(lh_stream_t *s, lh_event_t *e)
{
    const lh_replay_t *capture = s->device->capture;
    e->capture_id = capture->id;
    e->stream = s;
    e->capture_lane = s->capture_lane;
    e->capture_ticket = capture->lanes[s->capture_lane].queued;
}

lh_status_t fake_record(lh_stream_t *s, lh_event_t *e)
{
    lh_device_t *d = s->device;

    pthread_mutex_lock(&d->lock);
    const bool captured = s->captured, early = e->recorded != e->passed;
    if (captured) record_captured(s, e);
    if (!captured && !early) {
        e->recorded++;
        e->capture_id = 0;
    }
    const item_t item = {.type = ITEM_RECORD, .event = e, .ticket = e->recorded};
    pthread_mutex_unlock(&d->lock);
    if (captured) return LH_OK;
    if (early) {
        return d->host->fail(d->host, LH_INVALID,
                             "an event is recorded again before its last record is past");
    }
    return fake_push(s, &item);
}

lh_status_t fake_wait(lh_stream_t *s, lh_event_t *e)
{
    lh_device_t *d = s->device;

    pthread_mutex_lock(&d->lock);
    const bool inside = d->capture != NULL && e->capture_id == d->capture->id;
    const bool captured = s->captured;
    const item_t item = {.type = ITEM_WAIT, .event = e, .ticket = e->recorded};
    const lh_status_t status = inside ? replay_join(s, e) : LH_OK;
    pthread_mutex_unlock(&d->lock);
    if (inside) return status;
    if (captured && item.ticket > 0) {
        return d->host->fail(d->host, LH_INVALID,
                             "a captured stream waits for an event from outside the capture");
    }
    return captured ? LH_OK : fake_push(s, &item);
}

static void deadline_after(uint64_t ns, struct timespec *out)
{
    clock_gettime(CLOCK_MONOTONIC, out);
    const uint64_t total = (uint64_t)out->tv_nsec + ns % 1000000000u;
    out->tv_sec += (time_t)(ns / 1000000000u + total / 1000000000u);
    out->tv_nsec = (long)(total % 1000000000u);
}

lh_status_t fake_test(lh_event_t *e, uint64_t timeout_ns)
{
    lh_device_t *d = e->device;
    struct timespec until;
    lh_status_t status = LH_OK;

    deadline_after(timeout_ns < (uint64_t)1 << 50 ? timeout_ns : (uint64_t)1 << 50, &until);
    pthread_mutex_lock(&d->lock);
    const uint64_t wanted = e->recorded;
    while (e->passed < wanted && d->error == LH_OK && status == LH_OK) {
        if (timeout_ns == 0 || pthread_cond_timedwait(&d->changed, &d->lock, &until) != 0) {
            status = e->passed < wanted ? LH_AGAIN : LH_OK;
        }
    }
    const lh_status_t error = d->error;
    pthread_mutex_unlock(&d->lock);
    if (error != LH_OK) return d->host->fail(d->host, error, "%s", d->reason);
    return status;
}

lh_status_t fake_copy(lh_stream_t *s, const lh_place_t *to, const lh_place_t *from, uint64_t bytes)
{
    const item_t item = {.type = ITEM_COPY, .to = *to, .from = *from, .bytes = bytes};
    return fake_push(s, &item);
}

lh_status_t fake_fill(lh_stream_t *s, const lh_place_t *to, uint8_t byte, uint64_t bytes)
{
    const item_t item = {.type = ITEM_FILL, .to = *to, .byte = byte, .bytes = bytes};
    return fake_push(s, &item);
}

static lh_status_t word_push(lh_stream_t *s, const lh_place_t *word, uint32_t type)
{
    item_t item = {.type = type, .word = word->address};

    if (word->memory == NULL || word->memory->on_device) {
        return s->device->host->fail(s->device->host, LH_INVALID,
                                     "a word lies outside pinned memory");
    }
    return fake_push(s, &item);
}

lh_status_t fake_await(lh_stream_t *s, const lh_place_t *word)
{
    return word_push(s, word, ITEM_AWAIT);
}

lh_status_t fake_signal(lh_stream_t *s, const lh_place_t *word)
{
    return word_push(s, word, ITEM_SIGNAL);
}

lh_status_t fake_event_time(lh_event_t *e, uint64_t *ns)
{
    pthread_mutex_lock(&e->device->lock);
    *ns = e->passed_ns;
    pthread_mutex_unlock(&e->device->lock);
    return LH_OK;
}
