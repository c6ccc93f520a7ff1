/* fake_cuda_queue.c - streams, events, words, and captures: one lane a stream, edges where one waits for
 * another. */
#include <stdlib.h>

#include "fake_cuda.h"

/* ---- lanes ---- */

static cuda_result_t lane_push(fake_lane_t *lane, const fake_item_t *item)
{
    if (lane->part_of == NULL && lane->done == lane->queued && lane->queued > 0 &&
        lane->queued == lane->capacity) {
        lane->done = lane->queued = 0;
    }
    if (lane->queued == lane->capacity) {
        const uint64_t capacity = lane->capacity == 0 ? 64 : 2 * lane->capacity;
        fake_item_t *items = realloc(lane->items, capacity * sizeof(*items));
        if (items == NULL) return CUDA_NO_MEMORY;
        lane->items = items;
        lane->capacity = capacity;
    }
    lane->items[lane->queued++] = *item;
    return CUDA_OK;
}

static void lane_free(fake_lane_t *lane)
{
    for (uint64_t i = 0; i < lane->queued; i++)
        if (lane->items[i].ready == NULL) free(lane->items[i].data);
    free(lane->items);
}

cuda_result_t fake_push(cuda_stream_t s, const fake_item_t *item)
{
    cuda_result_t result;
    if (s == NULL) { /* the default stream: no plugin of ours has work there */
        result = CUDA_INVALID_VALUE;
    } else if (s->graph != NULL && item->type == ITEM_GRAPH) {
        s->graph->broken = true;
        result = CUDA_CAPTURE_UNSUPPORTED;
    } else if (s->graph != NULL) {
        result = lane_push(&s->graph->lanes[s->graph_lane], item);
        s->loose = true;
    } else {
        result = lane_push(&s->lane, item);
        pthread_cond_broadcast(&fake.changed);
    }
    if (result != CUDA_OK && item->ready == NULL) free(item->data);
    return result;
}

cuda_result_t fake_push_work(cuda_stream_t s, cuda_result_t (*work)(const void *data),
                             const void *data, size_t bytes)
{
    void *copy = malloc(bytes);
    if (copy == NULL) return CUDA_NO_MEMORY;
    memcpy(copy, data, bytes);
    const fake_item_t item = {.type = ITEM_WORK, .work = work, .data = copy};
    return fake_push(s, &item);
}

static bool lanes_dry(void)
{
    for (const fake_lane_t *lane = fake.lanes; lane != NULL; lane = lane->next)
        if (lane->done != lane->queued) return false;
    return true;
}

/* A queue that holds for a word is waited for too: whoever would set it after a call of the driver never does. */
static void queues_wait(void)
{
    fake.loading = true;
    while (!lanes_dry() && fake.error == CUDA_OK)
        pthread_cond_wait(&fake.changed, &fake.lock);
    fake.loading = false;
    pthread_cond_broadcast(&fake.changed);
}

cuda_result_t fake_load(cuda_stream_t s, uint64_t code)
{
    if (!fake.lazy || s == NULL) return CUDA_OK;
    for (size_t i = 0; i < fake.loaded_count; i++)
        if (fake.loaded[i] == code) return CUDA_OK;
    if (s->graph != NULL) {
        s->graph->broken = true;
        return CUDA_CAPTURE_UNSUPPORTED;
    }
    uint64_t *bigger = realloc(fake.loaded, (fake.loaded_count + 1) * sizeof(*bigger));
    if (bigger == NULL) return CUDA_NO_MEMORY;
    fake.loaded = bigger;
    bigger[fake.loaded_count++] = code;
    queues_wait();
    return CUDA_OK;
}

typedef struct fake_kept {
    struct fake_kept *next;
    _Alignas(16) unsigned char data[];
} fake_kept_t;

void *fake_keep(const void *data, size_t bytes)
{
    fake_kept_t *k = malloc(sizeof(*k) + bytes);
    if (k == NULL) return NULL;
    memcpy(k->data, data, bytes);
    k->next = fake.kept;
    fake.kept = k;
    return k->data;
}

cuda_result_t fake_push_polled(cuda_stream_t s, cuda_result_t (*work)(const void *data),
                               bool (*ready)(const void *data), void *data)
{
    const fake_item_t item = {.type = ITEM_WORK, .work = work, .ready = ready, .data = data};
    return fake_push(s, &item);
}

/* ---- streams ---- */

FAKE_EXPORT cuda_result_t cuStreamCreateWithPriority(cuda_stream_t *out, unsigned flags,
                                                     int priority)
{
    FAKE_BEGIN(cuStreamCreateWithPriority);
    if (flags != CUDA_STREAM_NON_BLOCKING || priority > 0 || priority < -5)
        return fake_end(CUDA_INVALID_VALUE);
    cuda_stream_t s = calloc(1, sizeof(*s));
    if (s == NULL) return fake_end(CUDA_NO_MEMORY);
    fake_lane_link(&s->lane);
    s->next = fake.streams;
    fake.streams = s;
    *out = s;
    return fake_end(CUDA_OK);
}

static void stream_drain(cuda_stream_t s)
{
    while (s->lane.done != s->lane.queued && fake.contexts > 0)
        pthread_cond_wait(&fake.changed, &fake.lock);
}

static void graph_free(cuda_graph_t g)
{
    for (uint32_t i = 0; i < g->lane_count; i++)
        lane_free(&g->lanes[i]);
    free(g);
}

/* A stream that goes in the middle of a capture, as it was to fail there, ends it. */
static void capture_drop(cuda_stream_t s)
{
    cuda_graph_t g = s->graph;
    if (g == NULL || g->origin != s) return;
    for (cuda_stream_t t = fake.streams; t != NULL; t = t->next)
        if (t->graph == g) t->graph = NULL, t->loose = false;
    graph_free(g);
}

FAKE_EXPORT cuda_result_t cuStreamDestroy_v2(cuda_stream_t s)
{
    pthread_mutex_lock(&fake.lock);
    stream_drain(s);
    capture_drop(s);
    fake_lane_unlink(&s->lane);
    for (cuda_stream_t *at = &fake.streams; *at != NULL; at = &(*at)->next) {
        if (*at != s) continue;
        *at = s->next;
        break;
    }
    free(s->lane.items);
    free(s);
    return fake_end(CUDA_OK);
}

FAKE_EXPORT cuda_result_t cuStreamSynchronize(cuda_stream_t s)
{
    FAKE_BEGIN(cuStreamSynchronize);
    stream_drain(s);
    return fake_end(fake.error);
}

FAKE_EXPORT cuda_result_t cuStreamGetCtx(cuda_stream_t s, cuda_context_t *out)
{
    FAKE_MAY_FAIL(cuStreamGetCtx);
    (void)s;
    pthread_mutex_lock(&fake.lock);
    *out = fake_context();
    return fake_end(fake.contexts > 0 ? CUDA_OK : CUDA_INVALID_CONTEXT);
}

/* ---- events ---- */

FAKE_EXPORT cuda_result_t cuEventCreate(cuda_event_t *out, unsigned flags)
{
    (void)flags;
    FAKE_BEGIN(cuEventCreate);
    cuda_event_t e = calloc(1, sizeof(*e));
    if (e == NULL) return fake_end(CUDA_NO_MEMORY);
    e->next = fake.events;
    fake.events = e;
    *out = e;
    return fake_end(CUDA_OK);
}

FAKE_EXPORT cuda_result_t cuEventDestroy_v2(cuda_event_t e)
{
    (void)e; /* see fake_t.events */
    return CUDA_OK;
}

FAKE_EXPORT cuda_result_t cuEventRecord(cuda_event_t e, cuda_stream_t s)
{
    FAKE_BEGIN(cuEventRecord);
    if (s->graph != NULL) { /* no work: it names the point that others wait for */
        e->graph = s->graph;
        e->stream = s;
        e->graph_lane = s->graph_lane;
        e->graph_ticket = s->graph->lanes[s->graph_lane].queued;
        return fake_end(CUDA_OK);
    }
    e->graph = NULL;
    const fake_item_t item = {.type = ITEM_RECORD, .event = e, .ticket = ++e->recorded};
    return fake_end(fake_push(s, &item));
}

static cuda_result_t capture_join(cuda_stream_t s, cuda_event_t e)
{
    cuda_graph_t g = e->graph;
    if (s->graph == NULL) {
        if (g->lane_count == GRAPH_LANES) return CUDA_CAPTURE_UNSUPPORTED;
        s->graph = g;
        s->graph_lane = g->lane_count++;
    }
    if (g->lanes[e->graph_lane].queued == e->graph_ticket) e->stream->loose = false;
    const fake_item_t edge = {.type = ITEM_EDGE, .lane = e->graph_lane, .ticket = e->graph_ticket};
    return fake_push(s, &edge);
}

/* A captured stream waits for events of its capture only. */
FAKE_EXPORT cuda_result_t cuStreamWaitEvent(cuda_stream_t s, cuda_event_t e, unsigned flags)
{
    (void)flags;
    FAKE_BEGIN(cuStreamWaitEvent);
    if (s->graph != NULL && e->graph != s->graph) {
        s->graph->broken = true;
        return fake_end(CUDA_CAPTURE_ISOLATION);
    }
    if (e->graph != NULL) return fake_end(capture_join(s, e));
    const fake_item_t item = {.type = ITEM_WAIT, .event = e, .ticket = e->recorded};
    return fake_end(fake_push(s, &item));
}

FAKE_EXPORT cuda_result_t cuEventQuery(cuda_event_t e)
{
    FAKE_BEGIN(cuEventQuery);
    if (e->graph != NULL) return fake_end(CUDA_CAPTURED_EVENT);
    return fake_end(e->passed >= e->recorded ? CUDA_OK : CUDA_NOT_READY);
}

FAKE_EXPORT cuda_result_t cuEventSynchronize(cuda_event_t e)
{
    FAKE_BEGIN(cuEventSynchronize);
    while (e->passed < e->recorded && fake.error == CUDA_OK)
        pthread_cond_wait(&fake.changed, &fake.lock);
    return fake_end(fake.error);
}

FAKE_EXPORT cuda_result_t cuEventElapsedTime(float *ms, cuda_event_t first, cuda_event_t last)
{
    FAKE_BEGIN(cuEventElapsedTime);
    if (first->passed < first->recorded || last->passed < last->recorded)
        return fake_end(CUDA_NOT_READY);
    if (first->recorded == 0 || last->recorded == 0) return fake_end(CUDA_INVALID_VALUE);
    *ms = (float)((double)((int64_t)last->passed_ns - (int64_t)first->passed_ns) / 1e6);
    return fake_end(CUDA_OK);
}

/* ---- words ---- */

static cuda_result_t word_push(cuda_stream_t s, cuda_address_t word, uint32_t value, uint32_t type)
{
    uint32_t *at = fake_real(word, sizeof(uint32_t));
    if (at == NULL || word % sizeof(uint32_t) != 0) return CUDA_INVALID_VALUE;
    const fake_item_t item = {.type = type, .word = at, .value = value};
    return fake_push(s, &item);
}

FAKE_EXPORT cuda_result_t cuStreamWaitValue32_v2(cuda_stream_t stream, cuda_address_t word,
                                                 uint32_t value, unsigned flags)
{
    FAKE_BEGIN(cuStreamWaitValue32_v2);
    if (flags != CUDA_WAIT_GEQ) return fake_end(CUDA_NOT_SUPPORTED);
    return fake_end(word_push(stream, word, value, ITEM_AWAIT));
}

FAKE_EXPORT cuda_result_t cuStreamWriteValue32_v2(cuda_stream_t stream, cuda_address_t word,
                                                  uint32_t value, unsigned flags)
{
    FAKE_BEGIN(cuStreamWriteValue32_v2);
    if (flags != CUDA_WRITE_DEFAULT) return fake_end(CUDA_NOT_SUPPORTED);
    return fake_end(word_push(stream, word, value, ITEM_WRITE));
}

/* ---- captures ---- */

FAKE_EXPORT cuda_result_t cuStreamBeginCapture_v2(cuda_stream_t s, int mode)
{
    FAKE_BEGIN(cuStreamBeginCapture_v2);
    if (mode != CUDA_CAPTURE_RELAXED || s->graph != NULL) return fake_end(CUDA_INVALID_VALUE);
    cuda_graph_t g = calloc(1, sizeof(*g));
    if (g == NULL) return fake_end(CUDA_NO_MEMORY);
    g->origin = s;
    g->lane_count = 1;
    s->graph = g;
    s->graph_lane = 0;
    return fake_end(CUDA_OK);
}

FAKE_EXPORT cuda_result_t cuGraphDestroy(cuda_graph_t g)
{
    graph_free(g);
    return CUDA_OK;
}

FAKE_EXPORT cuda_result_t cuStreamEndCapture(cuda_stream_t s, cuda_graph_t *out)
{
    FAKE_BEGIN(cuStreamEndCapture);
    cuda_graph_t g = s->graph;
    if (g == NULL || g->origin != s) return fake_end(CUDA_CAPTURE_UNMATCHED);
    cuda_result_t result = g->broken ? CUDA_CAPTURE_ISOLATION : CUDA_OK;
    for (cuda_stream_t t = fake.streams; t != NULL; t = t->next) {
        if (t->graph != g) continue;
        if (t != s && t->loose && result == CUDA_OK) result = CUDA_CAPTURE_UNJOINED;
        t->graph = NULL;
        t->loose = false;
    }
    (void)fake_end(CUDA_OK);
    if (result == CUDA_OK) *out = g;
    if (result != CUDA_OK) (void)cuGraphDestroy(g);
    return result;
}

/* Takes the graph's lanes: the plugin makes one of each graph, and destroys that at once. */
FAKE_EXPORT cuda_result_t cuGraphInstantiateWithFlags(cuda_exec_t *out, cuda_graph_t g,
                                                      unsigned long long flags)
{
    (void)flags;
    FAKE_BEGIN(cuGraphInstantiateWithFlags);
    cuda_exec_t x = calloc(1, sizeof(*x));
    if (x == NULL) return fake_end(CUDA_NO_MEMORY);
    x->lane_count = g->lane_count;
    memcpy(x->lanes, g->lanes, sizeof(x->lanes));
    for (uint32_t i = 0; i < x->lane_count; i++)
        x->lanes[i].part_of = x;
    g->lane_count = 0;
    *out = x;
    return fake_end(CUDA_OK);
}

FAKE_EXPORT cuda_result_t cuGraphLaunch(cuda_exec_t exec, cuda_stream_t s)
{
    FAKE_BEGIN(cuGraphLaunch);
    const fake_item_t item = {.type = ITEM_GRAPH, .exec = exec};
    const cuda_result_t result = fake_push(s, &item);
    if (result == CUDA_OK) exec->launches++;
    return fake_end(result);
}

/* Also of a lost context, whose streams run dry: launches that are queued still name the graph. */
FAKE_EXPORT cuda_result_t cuGraphExecDestroy(cuda_exec_t x)
{
    pthread_mutex_lock(&fake.lock);
    while (x->launches > 0 && fake.contexts > 0)
        pthread_cond_wait(&fake.changed, &fake.lock);
    pthread_mutex_unlock(&fake.lock);
    for (uint32_t i = 0; i < x->lane_count; i++)
        lane_free(&x->lanes[i]);
    free(x);
    return CUDA_OK;
}
