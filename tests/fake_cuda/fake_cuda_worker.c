/* fake_cuda_worker.c - the thread that is the GPU: of all lanes whose next item may run, it takes the one
 * that is due first. */
#include <stdlib.h>
#include <time.h>

#include "fake_cuda.h"

static const uint64_t word_poll_ns = 50000, second_ns = 1000000000;

uint64_t fake_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * second_ns + (uint64_t)now.tv_nsec;
}

void fake_lane_link(fake_lane_t *lane)
{
    lane->next = fake.lanes;
    fake.lanes = lane;
}

void fake_lane_unlink(const fake_lane_t *lane)
{
    for (fake_lane_t **at = &fake.lanes; *at != NULL; at = &(*at)->next) {
        if (*at != lane) continue;
        *at = lane->next;
        return;
    }
}

static bool exec_finished(const struct CUgraphExec_st *x)
{
    for (uint32_t i = 0; i < x->lane_count; i++)
        if (x->lanes[i].done != x->lanes[i].queued) return false;
    return true;
}

/* A lost context runs dry: nothing is waited for. */
static bool item_ready(const fake_lane_t *lane, const fake_item_t *item)
{
    switch (item->type) {
    case ITEM_WAIT: return item->event->passed >= item->ticket || fake.error != CUDA_OK;
    case ITEM_EDGE:
        return lane->part_of->lanes[item->lane].done >= item->ticket || fake.error != CUDA_OK;
    case ITEM_AWAIT:
        return (int32_t)(__atomic_load_n(item->word, __ATOMIC_ACQUIRE) - item->value) >= 0 ||
               fake.error != CUDA_OK;
    case ITEM_GRAPH:
        if (item->exec->runs_in == NULL) return true;
        return item->exec->runs_in == lane && exec_finished(item->exec);
    default: return item->ready == NULL || fake.error != CUDA_OK || item->ready(item->data);
    }
}

static uint64_t delay_ns(void)
{
    fake.random = fake.random * 6364136223846793005u + 1442695040888963407u;
    return fake.delay_ns == 0 ? 0 : (fake.random >> 33) % fake.delay_ns;
}

/* The lane whose item runs next; NULL: none can, or the first is not due before *wake_ns. */
static fake_lane_t *lane_choose(uint64_t *wake_ns)
{
    const uint64_t now = fake_now_ns();
    fake_lane_t *first = NULL;
    *wake_ns = UINT64_MAX;
    for (fake_lane_t *lane = fake.lanes; lane != NULL; lane = lane->next) {
        if (lane->done == lane->queued) continue;
        const fake_item_t *item = &lane->items[lane->done];
        if (!item_ready(lane, item)) {
            if ((item->type == ITEM_AWAIT || item->ready != NULL) && now + word_poll_ns < *wake_ns)
                *wake_ns = now + word_poll_ns;
            continue;
        }
        if (lane->due_ns == 0) lane->due_ns = now + delay_ns();
        if (first == NULL || lane->due_ns < first->due_ns) first = lane;
    }
    if (first != NULL && first->due_ns <= now) return first;
    if (first != NULL && first->due_ns < *wake_ns) *wake_ns = first->due_ns;
    return NULL;
}

static void exec_start(cuda_exec_t x, const fake_lane_t *lane)
{
    x->runs_in = lane;
    for (uint32_t i = 0; i < x->lane_count; i++) {
        x->lanes[i].done = 0;
        x->lanes[i].due_ns = 0;
        fake_lane_link(&x->lanes[i]);
    }
}

static void exec_end(cuda_exec_t x)
{
    for (uint32_t i = 0; i < x->lane_count; i++)
        fake_lane_unlink(&x->lanes[i]);
    x->runs_in = NULL;
    x->launches--;
}

/* Works without the lock; calls that give memory back wait for its end (fake_idle). */
static void item_work(const fake_item_t *item)
{
    cuda_result_t result = fake_fails("work");
    fake.working = true;
    pthread_mutex_unlock(&fake.lock);
    if (result == CUDA_OK) result = item->work(item->data);
    pthread_mutex_lock(&fake.lock);
    fake.working = false;
    pthread_cond_broadcast(&fake.changed);
    if (fake.error == CUDA_OK) fake.error = result;
}

static void lane_step(fake_lane_t *lane)
{
    const fake_item_t item = lane->items[lane->done];
    lane->due_ns = 0;
    switch (item.type) {
    case ITEM_WORK:
        if (fake.error == CUDA_OK) item_work(&item);
        if (lane->part_of == NULL && item.ready == NULL) free(item.data);
        break;
    case ITEM_RECORD:
        item.event->passed = item.ticket;
        item.event->passed_ns = fake_now_ns();
        break;
    case ITEM_WRITE: __atomic_store_n(item.word, item.value, __ATOMIC_RELEASE); break;
    case ITEM_GRAPH:
        if (item.exec->runs_in == NULL) {
            exec_start(item.exec, lane);
            return;
        }
        exec_end(item.exec);
        break;
    default: break;
    }
    lane->done++;
    pthread_cond_broadcast(&fake.changed);
}

void fake_idle(void)
{
    while (fake.working)
        pthread_cond_wait(&fake.changed, &fake.lock);
}

void *fake_worker(void *unused)
{
    uint64_t wake_ns;
    (void)unused;
    pthread_mutex_lock(&fake.lock);
    while (!fake.closing) {
        fake_lane_t *lane = lane_choose(&wake_ns);
        if (lane != NULL) {
            lane_step(lane);
        } else if (wake_ns != UINT64_MAX) {
            const struct timespec until = {.tv_sec = (time_t)(wake_ns / second_ns),
                                           .tv_nsec = (long)(wake_ns % second_ns)};
            pthread_cond_timedwait(&fake.changed, &fake.lock, &until);
        } else {
            pthread_cond_wait(&fake.changed, &fake.lock);
        }
    }
    pthread_mutex_unlock(&fake.lock);
    return NULL;
}
