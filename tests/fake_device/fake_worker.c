/* fake_worker.c - the thread that does what is queued: of all lanes whose next item may run, the
 * one that is due first. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "fake.h"

static const uint64_t word_poll_ns = 50000;
static const uint64_t second_ns = 1000000000;

/* Real time, as the condition variable's; the host's clock may be a test's. */
static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * second_ns + (uint64_t)now.tv_nsec;
}

static void sleep_until(lh_device_t *d, uint64_t ns)
{
    const struct timespec until = {.tv_sec = (time_t)(ns / second_ns),
                                   .tv_nsec = (long)(ns % second_ns)};
    pthread_cond_timedwait(&d->changed, &d->lock, &until);
}

lh_status_t fake_error(lh_device_t *d, lh_status_t status, const char *fmt, ...)
{
    va_list list;

    pthread_mutex_lock(&d->lock);
    if (d->error == LH_OK) {
        d->error = status;
        va_start(list, fmt);
        vsnprintf(d->reason, sizeof(d->reason), fmt, list);
        va_end(list);
    }
    pthread_mutex_unlock(&d->lock);
    return status;
}

void lane_link(lh_device_t *d, lane_t *lane)
{
    lane->next = d->lanes;
    d->lanes = lane;
}

void lane_unlink(lh_device_t *d, lane_t *lane)
{
    for (lane_t **at = &d->lanes; *at != NULL; at = &(*at)->next) {
        if (*at != lane) continue;
        *at = lane->next;
        return;
    }
}

static bool replay_finished(const lh_replay_t *r)
{
    for (uint32_t i = 0; i < r->lane_count; i++) {
        if (r->lanes[i].done != r->lanes[i].queued) return false;
    }
    return true;
}

static item_t *lane_next(const lane_t *lane)
{
    return &lane->items[lane->done % lane->capacity];
}

static bool item_ready(const lane_t *lane, const item_t *item)
{
    switch (item->type) {
    case ITEM_WAIT: return item->event->passed >= item->ticket;
    case ITEM_EDGE: return lane->part_of->lanes[item->lane].done >= item->ticket;
    case ITEM_AWAIT: return __atomic_load_n(item->word, __ATOMIC_ACQUIRE) != 0;
    case ITEM_REPLAY:
        if (item->replay->runs_in == NULL) return true;
        return item->replay->runs_in == lane && replay_finished(item->replay);
    default: return true;
    }
}

static uint64_t delay_ns(lh_device_t *d)
{
    d->random = d->random * 6364136223846793005u + 1442695040888963407u;
    if (d->config.delay_ns == 0) return 0;
    return (d->random >> 33) % d->config.delay_ns;
}

/* The lane whose item runs next; NULL: none can, or the first is not due before *wake_ns. */
static lane_t *lane_choose(lh_device_t *d, uint64_t *wake_ns)
{
    const uint64_t now = now_ns();
    lane_t *first = NULL;

    *wake_ns = UINT64_MAX;
    for (lane_t *lane = d->lanes; lane != NULL; lane = lane->next) {
        if (lane->done == lane->queued) continue;
        const item_t *item = lane_next(lane);
        if (!item_ready(lane, item)) {
            if (item->type == ITEM_AWAIT && now + word_poll_ns < *wake_ns) {
                *wake_ns = now + word_poll_ns;
            }
            continue;
        }
        if (lane->due_ns == 0) lane->due_ns = now + delay_ns(d);
        if (first == NULL || lane->due_ns < first->due_ns) first = lane;
    }
    if (first != NULL && first->due_ns <= now) return first;
    if (first != NULL && first->due_ns < *wake_ns) *wake_ns = first->due_ns;
    return NULL;
}

static void replay_start(lh_device_t *d, lh_replay_t *r, const lane_t *lane)
{
    r->runs_in = lane;
    for (uint32_t i = 0; i < r->lane_count; i++) {
        r->lanes[i].done = 0;
        r->lanes[i].due_ns = 0;
        lane_link(d, &r->lanes[i]);
    }
}

static void replay_end(lh_device_t *d, lh_replay_t *r)
{
    for (uint32_t i = 0; i < r->lane_count; i++)
        lane_unlink(d, &r->lanes[i]);
    r->runs_in = NULL;
}

static void bytes_move(lh_device_t *d, const item_t *item, lh_stream_t *inner)
{
    const lh_device_api_t *api = fake_inner_plugin.device;
    lh_place_t to, from;

    if (fake_place(d, &item->to, &to) != LH_OK) return;
    if (item->type == ITEM_FILL) {
        (void)api->fill(inner, &to, item->byte, item->bytes);
        return;
    }
    if (fake_place(d, &item->from, &from) != LH_OK) return;
    (void)api->copy(inner, &to, &from, item->bytes);
}

static bool kernels_wait(const lh_device_t *d)
{
    for (const lane_t *lane = d->lanes; lane != NULL; lane = lane->next)
        for (uint64_t n = lane->done; n < lane->queued; n++) {
            const uint32_t type = lane->items[n % lane->capacity].type;
            if (type == ITEM_KERNEL || type == ITEM_REPLAY) return true;
        }
    return false;
}

static void slot_count(lh_device_t *d, const char *place)
{
    for (uint32_t i = 0; i < d->tally.slots; i++)
        if (d->slots[i] == place) return;
    if (d->tally.slots < SLOTS_COUNTED) d->slots[d->tally.slots++] = place;
}

/* With the device's lock held: counts what is about to be done. */
static void item_count(lh_device_t *d, const lane_t *lane, const item_t *item)
{
    tally_t *t = &d->tally;

    if (item->type == ITEM_KERNEL) {
        t->launched++;
        t->misaligned += item->kernel->misaligned;
        t->whole_rows += item->kernel->whole_rows;
    }
    if (item->type != ITEM_COPY || !lane->slots) return;
    const bool up = item->to.memory->on_device;
    t->ups += up;
    t->downs += !up;
    t->beside += !up && kernels_wait(d);
    slot_count(d, up ? item->from.address : item->to.address);
}

/* Without the device's lock. */
static void item_work(lh_device_t *d, const item_t *item, lh_stream_t *inner)
{
    pthread_mutex_lock(&d->inner_lock);
    if (item->type == ITEM_KERNEL) {
        (void)fake_kernel_run(item->kernel, item->call, inner);
    } else {
        bytes_move(d, item, inner);
    }
    pthread_mutex_unlock(&d->inner_lock);
}

static void lane_step(lh_device_t *d, lane_t *lane)
{
    const item_t item = *lane_next(lane);

    lane->due_ns = 0;
    switch (item.type) {
    case ITEM_KERNEL:
    case ITEM_COPY:
    case ITEM_FILL:
        if (d->error != LH_OK) break; /* a lost device runs dry */
        if (d->config.tells) item_count(d, lane, &item);
        pthread_mutex_unlock(&d->lock);
        item_work(d, &item, lane->inner);
        pthread_mutex_lock(&d->lock);
        break;
    case ITEM_RECORD:
        item.event->passed = item.ticket;
        item.event->passed_ns = d->host->now_ns(d->host);
        break;
    case ITEM_AWAIT: __atomic_store_n(item.word, 0, __ATOMIC_RELEASE); break;
    case ITEM_SIGNAL: __atomic_store_n(item.word, 1, __ATOMIC_RELEASE); break;
    case ITEM_REPLAY:
        if (item.replay->runs_in == NULL) {
            replay_start(d, item.replay, lane);
            return;
        }
        replay_end(d, item.replay);
        break;
    default: break;
    }
    lane->done++;
    pthread_cond_broadcast(&d->changed);
}

void fake_worker(void *device)
{
    lh_device_t *d = device;
    uint64_t wake_ns;

    fake_inner_thread(d->inner);
    pthread_mutex_lock(&d->lock);
    while (!d->closing) {
        lane_t *lane = lane_choose(d, &wake_ns);
        if (lane != NULL) {
            lane_step(d, lane);
        } else if (wake_ns != UINT64_MAX) {
            sleep_until(d, wake_ns);
        } else {
            pthread_cond_wait(&d->changed, &d->lock);
        }
    }
    pthread_mutex_unlock(&d->lock);
}
