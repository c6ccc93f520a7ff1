/* tcp_work.c - seals on threads, where the one that polls can't carry them beside its sockets.
 *
 * A frame's seal needs nothing of other frames but its place: the sequence. What can't be shared by
 * two threads is the cipher's context, of which a stream has one a direction; so a stream has at most
 * one task each way under way, and it is the streams of a connection that are worked on side by side.
 * That keeps the order of frames without a word about it:
 *
 *   out: a batch is cut as ever, and left unsealed. The thread seals all of its frames, and when it is
 *        back the batch goes into the kernel. Meanwhile the kernel has up to two chunks unsent
 *        (TCP_NOTSENT_LOWAT), so that the link does not wait.
 *   in:  a payload is read to its place in the receive as it is on the wire. When it is whole a thread
 *        opens it there and looks at its tag; the stream is not read on before that. Nothing of it
 *        counts, grants included, until the tag was right, as without threads.
 *
 * While a task is out the thread has the stream's seal of that direction and the bytes that it is
 * about; socket, frames and messages stay with the thread that polls. A connection that ends waits
 * for those of its tasks that a thread has begun, and forgets the others, before its buffers are the
 * caller's again. To hand a task over takes some 10 us, so what is sealed or opened as fast stays
 * where it is. */
#include "tcp_work.h"

#include <sched.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "tcp_tuning.h"

enum { WORK_LEAST = 32 << 10, PLAN_MOST = 8, TAKE_MOST = 2 * STREAMS_MAX };
/* What a thread seals or opens; what the thread that polls carries of both beside its sockets. */
#define THREAD_RATE 2500000000ull
#define ALONE_RATE 1250000000ull
/* Where a device computes: one thread keeps it busy, one polls. */
enum { DEVICE_THREADS = 2 };

/* ---- how many ---- */

uint32_t work_plan(uint64_t rate, uint32_t streams, uint32_t processors)
{
    if (rate <= ALONE_RATE) return 0;
    const uint64_t needed = (2 * rate + THREAD_RATE - 1) / THREAD_RATE;
    const uint64_t useful = 2 * (uint64_t)streams; /* a task each way */
    uint64_t threads = needed < useful ? needed : useful;
    if (threads > PLAN_MOST) threads = PLAN_MOST;
    return threads < processors ? (uint32_t)threads : processors;
}

uint32_t work_processors(uint32_t own, uint32_t machine, uint32_t ranks, uint32_t busy,
                         bool has_device)
{
    /* Without a device all of them compute. Processors that are bound are this rank's; those that the
     * whole machine has are shared by its ranks, as a container's quota is in `busy`. */
    if (!has_device) return 0;
    uint32_t mine = own >= machine && ranks > 1 ? own / ranks : own;
    if (busy < mine) mine = busy;
    return mine > DEVICE_THREADS ? mine - DEVICE_THREADS : 0;
}

static uint32_t free_processors(const lh_host_t *host)
{
    const lh_world_t *w = host->world;
    const long machine = sysconf(_SC_NPROCESSORS_ONLN);
    cpu_set_t own;
    if (sched_getaffinity(0, sizeof(own), &own) != 0 || machine < 1) return 0;
    const uint32_t mine = (uint32_t)CPU_COUNT(&own);
    const bool told = LH_HAS(host, processors) && host->processors != NULL;
    return work_processors(mine, (uint32_t)machine, ranks_of_machine(host),
                           told ? host->processors(host) : mine,
                           LH_HAS(w, device) && w->device[0] != '\0');
}

/* The option is "auto", "0", "1" and so on. */
static uint32_t conn_threads(const lh_conn_t *c)
{
    const uint32_t option = c->transport->config->threads;
    const uint64_t pace = c->tuning.pace_bytes_per_second;
    uint64_t rate = c->link.bytes_per_second;
    if (option != 0) return option - 1;
    if (pace != 0 && pace < rate) rate = pace;
    return work_plan(rate, c->stream_count, free_processors(c->transport->host));
}

static bool pool_begin(lh_transport_t *t)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &t->pool_watch};
    int fd;
    if (t->pool != NULL) return true;
    t->pool = task_pool_new(t->host, "tcp-seal", &fd);
    t->pool_watch.kind = WATCH_POOL;
    if (t->pool != NULL && epoll_ctl(t->epoll, EPOLL_CTL_ADD, fd, &event) == 0) return true;
    task_pool_free(t->pool);
    t->pool = NULL;
    return false;
}

/* Without the threads all goes on in this one. */
void work_begin(lh_conn_t *c)
{
    lh_transport_t *t = c->transport;
    if (c->streams[0]->seals[0] == NULL) return;
    const uint32_t wanted = conn_threads(c),
                   before = t->pool == NULL ? 0 : task_pool_threads(t->pool);
    if (wanted <= before) return;
    const uint32_t threads = pool_begin(t) ? task_pool_grow(t->pool, wanted) : 0;
    if (threads < wanted)
        t->host->log(t->host, LH_LOG_WARN,
                     "%s: %u threads were to seal and open its frames; only %u could be started",
                     c->peer_text, wanted, threads);
    else
        t->host->log(t->host, LH_LOG_INFO, "%s: %u threads seal and open frames", c->peer_text,
                     threads);
}

/* Where not one could be started the pool does nothing. */
static bool has_threads(const stream_t *s)
{
    const task_pool_t *p = s->transport->pool;
    return p != NULL && task_pool_threads(p) > 0;
}

/* ---- out ---- */

static bool seal_batch(void *of, LH_UNUSED uint32_t thread)
{
    return stream_seal(of);
}

bool work_seal(stream_t *s, uint64_t bytes)
{
    if (s->seals[0] == NULL || bytes < WORK_LEAST || !has_threads(s)) return stream_seal(s);
    s->sealing = true;
    s->seal_task.work = seal_batch;
    s->seal_task.of = s;
    task_pool_give(s->transport->pool, &s->seal_task);
    return true;
}

/* ---- in ---- */

/* A payload that is complete, in its place. */
static bool open_payload(void *of, LH_UNUSED uint32_t thread)
{
    stream_t *s = of;
    uint8_t *payload = s->to - s->in.length;
    return seal_add(s->seals[1], payload, payload, s->in.length) &&
           seal_check(s->seals[1], s->in.seal);
}

bool work_opens(const stream_t *s, uint32_t bytes)
{
    return s->seals[1] != NULL && bytes >= WORK_LEAST && has_threads(s);
}

void work_open(stream_t *s)
{
    s->opening = true;
    s->open_task.work = open_payload;
    s->open_task.of = s;
    task_pool_give(s->transport->pool, &s->open_task);
}

/* ---- back ---- */

static void task_back(task_t *task)
{
    stream_t *s = task->of;
    bool more;
    if (task == &s->seal_task) {
        s->sealing = false;
        if (!task->good) (void)stream_fail(s, LH_NO_MEMORY, "no memory to seal a frame");
        return;
    }
    s->opening = false;
    stream_watch_in(s, true);
    if (stream_opened(s, task->good)) (void)stream_pull(s, &more);
}

/* One by one: what follows from one may end the connection of the next, or be another task, which a
 * thread may have done before the loop is: so it is bounded. */
void work_take(lh_transport_t *t)
{
    uint32_t count = 0;
    if (t->pool == NULL) return;
    for (task_t *task; count < TAKE_MOST && (task = task_pool_take(t->pool)) != NULL; count++)
        task_back(task);
    if (count > 0) t->host->count(t->host, "tcp.thread_seals", count);
}

bool work_waits(lh_transport_t *t)
{
    return t->pool != NULL && task_pool_waits(t->pool);
}

bool work_settle(stream_t *s)
{
    if (!s->opening) return true;
    task_pool_settle(s->transport->pool, &s->open_task);
    s->opening = false;
    stream_watch_in(s, true);
    return stream_opened(s, s->open_task.good);
}

void work_forget(stream_t *s)
{
    if (s->sealing && task_pool_forget(s->transport->pool, &s->seal_task)) s->sealing = false;
    if (s->opening && task_pool_forget(s->transport->pool, &s->open_task)) s->opening = false;
}

void work_drop(stream_t *s)
{
    if (s->sealing) task_pool_drop(s->transport->pool, &s->seal_task);
    if (s->opening) task_pool_drop(s->transport->pool, &s->open_task);
    s->sealing = s->opening = false;
}
