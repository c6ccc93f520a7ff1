/* task_pool.c - see task_pool.h. A queue of tasks that wait, one of those that are done, and threads
 * between them.
 *
 * One lock, under which nothing else is locked: a task takes a hundred times longer than to take it.
 * Who owns what:
 *
 *   the lock               both queues, `asleep`, `rung`, `stop`, and next, at, state and good of each
 *                          task that is out. `any_done` is changed under it and looked at without it.
 *   the thread that runs   what its task is about, while state is TASK_RUNS: the lock is given back
 *   a task                 before the work and taken after it, so whoever has seen TASK_DONE under the
 *                          lock sees what the work wrote.
 *   the thread that polls  `count`, the rows of workers from there on, and each task that is back. A
 *                          worker's row is written before its thread begins, and not again.
 *
 * The thread that polls looks a million times a second, mostly for nothing: it takes the lock only
 * where any task is done. Threads without a task sleep on a condition, and the descriptor is written
 * only for one that may sleep: it asks under the lock (task_pool_waits), so a task that is done next
 * to that is seen by it or rings. Only the thread that polls waits for `idle`, so a signal is enough. */
#include "task_pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

typedef struct queue {
    task_t *first, **end;
} queue_t;

typedef struct worker {
    task_pool_t *pool;
    uint32_t number;
    lh_thread_t *thread; /* of the thread that polls */
} worker_t;

struct task_pool {
    const lh_host_t *host;
    const char *name;
    pthread_mutex_t lock;
    pthread_cond_t work, idle; /* there is a task, or the end; a thread has done one */
    queue_t todo, done;
    atomic_bool any_done; /* `done` has any */
    bool asleep;          /* the thread that polls was told that there is none, and may sleep */
    bool rung;            /* the descriptor was written and not read */
    bool stop;
    int fd;
    uint32_t count;
    worker_t workers[TASK_THREADS_MOST];
};

/* ---- queues: under the lock ---- */

static void queue_put(queue_t *q, task_t *task)
{
    task->next = NULL;
    task->at = q->end;
    *q->end = task;
    q->end = &task->next;
}

/* One that is in it, wherever: a connection that ends takes all of its own out of a long one. */
static void queue_remove(queue_t *q, task_t *task)
{
    *task->at = task->next;
    if (task->next != NULL)
        task->next->at = task->at;
    else
        q->end = task->at;
}

static task_t *queue_take(queue_t *q)
{
    task_t *task = q->first;
    if (task != NULL) queue_remove(q, task);
    return task;
}

static void done_put(task_pool_t *p, task_t *task)
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
static void done_settle(task_pool_t *p)
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
    const worker_t *w = argument;
    task_pool_t *p = w->pool;
    (void)pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        task_t *task = queue_take(&p->todo);
        if (task == NULL) {
            (void)pthread_cond_wait(&p->work, &p->lock);
            continue;
        }
        task->state = TASK_RUNS;
        (void)pthread_mutex_unlock(&p->lock);
        const bool good = task->work(task->of, w->number);
        (void)pthread_mutex_lock(&p->lock);
        task->good = good;
        done_put(p, task);
        (void)pthread_cond_signal(&p->idle);
    }
    (void)pthread_mutex_unlock(&p->lock);
}

task_pool_t *task_pool_new(const lh_host_t *host, const char *name, int *fd)
{
    task_pool_t *p = host->alloc(host, sizeof(*p), 64);
    if (p == NULL) return NULL;
    p->host = host;
    p->name = name;
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

uint32_t task_pool_grow(task_pool_t *p, uint32_t threads)
{
    while (p->count < threads && p->count < TASK_THREADS_MOST) {
        worker_t *w = &p->workers[p->count];
        w->pool = p;
        w->number = p->count;
        if (p->host->thread_start(p->host, p->name, pool_work, w, &w->thread) != LH_OK) break;
        p->count++;
    }
    return p->count;
}

uint32_t task_pool_threads(const task_pool_t *p)
{
    return p->count;
}

void task_pool_free(task_pool_t *p)
{
    if (p == NULL) return;
    (void)pthread_mutex_lock(&p->lock);
    p->stop = true;
    (void)pthread_cond_broadcast(&p->work);
    (void)pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 0; i < p->count; i++)
        p->host->thread_join(p->host, p->workers[i].thread);
    (void)close(p->fd);
    (void)pthread_cond_destroy(&p->work);
    (void)pthread_cond_destroy(&p->idle);
    (void)pthread_mutex_destroy(&p->lock);
    p->host->release(p->host, p);
}

/* ---- the thread that polls ---- */

void task_pool_give(task_pool_t *p, task_t *task)
{
    (void)pthread_mutex_lock(&p->lock);
    task->state = TASK_WAITS;
    queue_put(&p->todo, task);
    (void)pthread_cond_signal(&p->work);
    (void)pthread_mutex_unlock(&p->lock);
}

/* What is done meanwhile is seen by the next look, and task_pool_waits looks under the lock. The
 * descriptor is emptied with the last one. */
task_t *task_pool_take(task_pool_t *p)
{
    if (!atomic_load_explicit(&p->any_done, memory_order_relaxed)) return NULL;
    (void)pthread_mutex_lock(&p->lock);
    task_t *task = queue_take(&p->done);
    if (task != NULL) task->state = TASK_BACK;
    done_settle(p);
    (void)pthread_mutex_unlock(&p->lock);
    return task;
}

bool task_pool_waits(task_pool_t *p)
{
    (void)pthread_mutex_lock(&p->lock);
    const bool waits = p->done.first != NULL;
    p->asleep = !waits;
    (void)pthread_mutex_unlock(&p->lock);
    return waits;
}

/* True: no thread had begun it. Under the lock. */
static bool todo_remove(task_pool_t *p, task_t *task)
{
    if (task->state != TASK_WAITS) return false;
    queue_remove(&p->todo, task);
    task->state = TASK_BACK;
    return true;
}

bool task_pool_forget(task_pool_t *p, task_t *task)
{
    (void)pthread_mutex_lock(&p->lock);
    const bool waited = todo_remove(p, task);
    (void)pthread_mutex_unlock(&p->lock);
    return waited;
}

/* As todo_remove. */
static bool task_recall(task_pool_t *p, task_t *task)
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

void task_pool_settle(task_pool_t *p, task_t *task)
{
    if (task_recall(p, task)) task->good = task->work(task->of, TASK_POLLING);
}

void task_pool_drop(task_pool_t *p, task_t *task)
{
    (void)task_recall(p, task);
}
