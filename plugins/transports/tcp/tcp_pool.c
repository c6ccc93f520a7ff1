/* tcp_pool.c - see tcp_pool.h. One lock, under which nothing else is locked: a task takes a hundred
 * times longer than to take it. The thread that polls looks a million times a second, mostly for
 * nothing: it takes the lock only where any task is done. Threads without a task sleep on a condition,
 * and the descriptor is written only for one that may sleep. */
#include "tcp_pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

typedef struct queue {
    pool_task_t *first, **end;
} queue_t;

struct pool {
    const lh_host_t *host;
    pthread_mutex_t lock;
    pthread_cond_t work, idle; /* there is a task, or the end; a thread has done one */
    queue_t todo, done;
    atomic_bool any_done; /* `done` has any: changed under the lock, looked at without it */
    bool asleep;          /* the thread that polls was told that there is none, and may sleep */
    bool rung;            /* the descriptor was written and not read */
    bool stop;
    int fd;
    uint32_t count; /* of the thread that polls, as is the row */
    lh_thread_t *threads[POOL_THREADS_MOST];
};

/* ---- queues: under the lock ---- */

static void queue_put(queue_t *q, pool_task_t *task)
{
    task->next = NULL;
    *q->end = task;
    q->end = &task->next;
}

static pool_task_t *queue_take(queue_t *q)
{
    pool_task_t *task = q->first;
    if (task == NULL) return NULL;
    q->first = task->next;
    if (q->first == NULL) q->end = &q->first;
    return task;
}

static void queue_remove(queue_t *q, const pool_task_t *task)
{
    pool_task_t **at = &q->first;
    while (*at != task)
        at = &(*at)->next;
    *at = task->next;
    if (*at == NULL) q->end = at;
}

static void done_put(pool_t *p, pool_task_t *task)
{
    const uint64_t one = 1;
    task->state = TASK_DONE;
    queue_put(&p->done, task);
    atomic_store_explicit(&p->any_done, true, memory_order_relaxed);
    if (p->asleep && !p->rung) {
        (void)!write(p->fd, &one, sizeof(one));
        p->rung = true;
    }
    p->asleep = false;
}

/* Where one was taken away. */
static void done_settle(pool_t *p)
{
    uint64_t word;
    if (p->done.first != NULL) return;
    atomic_store_explicit(&p->any_done, false, memory_order_relaxed);
    if (p->rung) (void)!read(p->fd, &word, sizeof(word));
    p->rung = false;
}

/* ---- threads ---- */

static void pool_work(void *argument)
{
    pool_t *p = argument;
    (void)pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        pool_task_t *task = queue_take(&p->todo);
        if (task == NULL) {
            (void)pthread_cond_wait(&p->work, &p->lock);
            continue;
        }
        task->state = TASK_RUNS;
        (void)pthread_mutex_unlock(&p->lock);
        const bool good = task->work(task->of);
        (void)pthread_mutex_lock(&p->lock);
        task->good = good;
        done_put(p, task);
        (void)pthread_cond_signal(&p->idle);
    }
    (void)pthread_mutex_unlock(&p->lock);
}

pool_t *pool_new(const lh_host_t *host, int *fd)
{
    pool_t *p = host->alloc(host, sizeof(*p), 64);
    if (p == NULL) return NULL;
    p->host = host;
    p->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (p->fd < 0) {
        (void)host->fail(host, LH_IO, "eventfd");
        host->release(host, p);
        return NULL;
    }
    p->todo.end = &p->todo.first;
    p->done.end = &p->done.first;
    (void)pthread_mutex_init(&p->lock, NULL);
    (void)pthread_cond_init(&p->work, NULL);
    (void)pthread_cond_init(&p->idle, NULL);
    *fd = p->fd;
    return p;
}

uint32_t pool_grow(pool_t *p, uint32_t threads)
{
    while (p->count < threads && p->count < POOL_THREADS_MOST &&
           p->host->thread_start(p->host, "tcp-seal", pool_work, p, &p->threads[p->count]) == LH_OK)
        p->count++;
    return p->count;
}

uint32_t pool_threads(const pool_t *p)
{
    return p->count;
}

void pool_free(pool_t *p)
{
    if (p == NULL) return;
    (void)pthread_mutex_lock(&p->lock);
    p->stop = true;
    (void)pthread_cond_broadcast(&p->work);
    (void)pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 0; i < p->count; i++)
        p->host->thread_join(p->host, p->threads[i]);
    (void)close(p->fd);
    (void)pthread_cond_destroy(&p->work);
    (void)pthread_cond_destroy(&p->idle);
    (void)pthread_mutex_destroy(&p->lock);
    p->host->release(p->host, p);
}

/* ---- the thread that polls ---- */

void pool_give(pool_t *p, pool_task_t *task)
{
    (void)pthread_mutex_lock(&p->lock);
    task->state = TASK_WAITS;
    queue_put(&p->todo, task);
    (void)pthread_cond_signal(&p->work);
    (void)pthread_mutex_unlock(&p->lock);
}

/* What is done meanwhile is seen by the next look, and pool_waits looks under the lock. The descriptor
 * is emptied with the last one. */
pool_task_t *pool_take(pool_t *p)
{
    if (!atomic_load_explicit(&p->any_done, memory_order_relaxed)) return NULL;
    (void)pthread_mutex_lock(&p->lock);
    pool_task_t *task = queue_take(&p->done);
    if (task != NULL) task->state = TASK_BACK;
    done_settle(p);
    (void)pthread_mutex_unlock(&p->lock);
    return task;
}

bool pool_waits(pool_t *p)
{
    (void)pthread_mutex_lock(&p->lock);
    const bool waits = p->done.first != NULL;
    p->asleep = !waits;
    (void)pthread_mutex_unlock(&p->lock);
    return waits;
}

/* True: no thread had begun it. Under the lock. */
static bool todo_remove(pool_t *p, pool_task_t *task)
{
    if (task->state != TASK_WAITS) return false;
    queue_remove(&p->todo, task);
    task->state = TASK_BACK;
    return true;
}

bool pool_forget(pool_t *p, pool_task_t *task)
{
    (void)pthread_mutex_lock(&p->lock);
    const bool waited = todo_remove(p, task);
    (void)pthread_mutex_unlock(&p->lock);
    return waited;
}

/* As todo_remove. */
static bool task_recall(pool_t *p, pool_task_t *task)
{
    (void)pthread_mutex_lock(&p->lock);
    const bool waited = todo_remove(p, task);
    while (task->state == TASK_RUNS)
        (void)pthread_cond_wait(&p->idle, &p->lock);
    if (task->state == TASK_DONE) {
        queue_remove(&p->done, task);
        done_settle(p);
    }
    task->state = TASK_BACK;
    (void)pthread_mutex_unlock(&p->lock);
    return waited;
}

void pool_settle(pool_t *p, pool_task_t *task)
{
    if (task_recall(p, task)) task->good = task->work(task->of);
}

void pool_drop(pool_t *p, pool_task_t *task)
{
    (void)task_recall(p, task);
}
