/* ib_pool.c - see ib_pool.h. One lock: a job is a chunk, and takes a hundred times longer than to
 * take the lock. The thread that polls looks a million times a second, mostly for nothing: it takes the
 * lock only where any job is done. The descriptor is written only for one that may sleep. */
#include "ib_pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { THREADS_MOST = 16 };

typedef struct queue {
    ib_job_t *first, **end;
} queue_t;

typedef struct worker {
    ib_pool_t *pool;
    lh_thread_t *thread;
    ib_cipher_t *cipher;
    const ib_job_t *job; /* being done */
} worker_t;

struct ib_pool {
    const lh_host_t *host;
    pthread_mutex_t lock;
    pthread_cond_t work, idle;
    queue_t todo, done;
    atomic_bool any_done; /* `done` has any: changed under the lock, looked at without it */
    bool asleep;          /* the thread that polls was told that there is none, and may sleep */
    bool rung;            /* the descriptor was written and not read */
    bool stop;
    int fd;
    uint32_t count;
    worker_t workers[THREADS_MOST];
    ib_cipher_t *own; /* of the thread that polls */
};

static void queue_put(queue_t *q, ib_job_t *job)
{
    job->next = NULL;
    *q->end = job;
    q->end = &job->next;
}

static ib_job_t *queue_take(queue_t *q)
{
    ib_job_t *job = q->first;
    if (job == NULL) return NULL;
    q->first = job->next;
    if (q->first == NULL) q->end = &q->first;
    return job;
}

static void queue_drop(queue_t *q, const lh_conn_t *c)
{
    ib_job_t **at = &q->first;
    while (*at != NULL)
        if ((*at)->conn == c)
            *at = (*at)->next;
        else
            at = &(*at)->next;
    q->end = at;
}

/* The three below: under the lock. */
static void done_put(ib_pool_t *p, ib_job_t *job)
{
    const uint64_t one = 1;
    queue_put(&p->done, job);
    atomic_store_explicit(&p->any_done, true, memory_order_relaxed);
    if (p->asleep && !p->rung) {
        (void)!write(p->fd, &one, sizeof(one));
        p->rung = true;
    }
    p->asleep = false;
}

/* Where some were taken away. */
static void done_settle(ib_pool_t *p)
{
    uint64_t word;
    if (p->done.first != NULL) return;
    atomic_store_explicit(&p->any_done, false, memory_order_relaxed);
    if (p->rung) (void)!read(p->fd, &word, sizeof(word));
    p->rung = false;
}

static bool done_await(ib_pool_t *p)
{
    if (p->done.first != NULL) return true;
    p->asleep = true;
    return false;
}

static bool do_job(ib_cipher_t *x, const ib_job_t *job)
{
    return job->opens
               ? ib_open_payload(x, &job->key, job->sequence, job->frame, job->head.bytes,
                                 job->data)
               : ib_seal_frame(x, &job->key, job->sequence, &job->head, job->data, job->frame);
}

static void pool_work(void *argument)
{
    worker_t *w = argument;
    ib_pool_t *p = w->pool;
    (void)pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        ib_job_t *job = queue_take(&p->todo);
        if (job == NULL) {
            (void)pthread_cond_wait(&p->work, &p->lock);
            continue;
        }
        w->job = job;
        (void)pthread_mutex_unlock(&p->lock);
        const bool good = do_job(w->cipher, job);
        (void)pthread_mutex_lock(&p->lock);
        w->job = NULL;
        job->good = good;
        done_put(p, job);
        (void)pthread_cond_broadcast(&p->idle);
    }
    (void)pthread_mutex_unlock(&p->lock);
}

ib_pool_t *ib_pool_new(const lh_host_t *host, uint32_t threads, int *fd)
{
    ib_pool_t *p = host->alloc(host, sizeof(*p), 64);
    if (p == NULL) return NULL;
    p->host = host;
    p->todo.end = &p->todo.first;
    p->done.end = &p->done.first;
    (void)pthread_mutex_init(&p->lock, NULL);
    (void)pthread_cond_init(&p->work, NULL);
    (void)pthread_cond_init(&p->idle, NULL);
    p->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    p->own = ib_cipher_new();
    bool good = p->fd >= 0 && p->own != NULL;
    for (uint32_t i = 0; good && i < threads && i < THREADS_MOST; i++) {
        worker_t *w = &p->workers[i];
        w->pool = p;
        w->cipher = ib_cipher_new();
        good = w->cipher != NULL &&
               host->thread_start(host, "seal", pool_work, w, &w->thread) == LH_OK;
        p->count = i + 1;
    }
    if (!good) {
        (void)host->fail(host, LH_NO_MEMORY, "no threads or ciphers to seal with");
        ib_pool_free(p);
        return NULL;
    }
    *fd = p->fd;
    return p;
}

uint32_t ib_pool_threads(const ib_pool_t *p)
{
    return p->count;
}

void ib_pool_free(ib_pool_t *p)
{
    if (p == NULL) return;
    (void)pthread_mutex_lock(&p->lock);
    p->stop = true;
    (void)pthread_cond_broadcast(&p->work);
    (void)pthread_mutex_unlock(&p->lock);
    for (uint32_t i = 0; i < p->count; i++) {
        if (p->workers[i].thread != NULL) p->host->thread_join(p->host, p->workers[i].thread);
        ib_cipher_free(p->workers[i].cipher);
    }
    ib_cipher_free(p->own);
    if (p->fd >= 0) (void)close(p->fd);
    (void)pthread_cond_destroy(&p->work);
    (void)pthread_cond_destroy(&p->idle);
    (void)pthread_mutex_destroy(&p->lock);
    p->host->release(p->host, p);
}

bool ib_pool_do(ib_pool_t *p, ib_job_t *job)
{
    job->good = do_job(p->own, job);
    return job->good;
}

void ib_pool_give(ib_pool_t *p, ib_job_t *job)
{
    (void)pthread_mutex_lock(&p->lock);
    queue_put(&p->todo, job);
    (void)pthread_cond_signal(&p->work);
    (void)pthread_mutex_unlock(&p->lock);
}

/* What is done meanwhile is seen by the next look, and ib_pool_waits looks under the lock. The descriptor
 * is emptied with the last one. */
ib_job_t *ib_pool_take(ib_pool_t *p)
{
    if (!atomic_load_explicit(&p->any_done, memory_order_relaxed)) return NULL;
    (void)pthread_mutex_lock(&p->lock);
    ib_job_t *job = queue_take(&p->done);
    done_settle(p);
    (void)pthread_mutex_unlock(&p->lock);
    return job;
}

bool ib_pool_waits(ib_pool_t *p)
{
    (void)pthread_mutex_lock(&p->lock);
    const bool waits = done_await(p);
    (void)pthread_mutex_unlock(&p->lock);
    return waits;
}

static bool is_busy(const ib_pool_t *p, const lh_conn_t *c)
{
    for (uint32_t i = 0; i < p->count; i++)
        if (p->workers[i].job != NULL && p->workers[i].job->conn == c) return true;
    return false;
}

void ib_pool_drop(ib_pool_t *p, const lh_conn_t *c)
{
    (void)pthread_mutex_lock(&p->lock);
    queue_drop(&p->todo, c);
    while (is_busy(p, c))
        (void)pthread_cond_wait(&p->idle, &p->lock);
    queue_drop(&p->done, c);
    done_settle(p);
    (void)pthread_mutex_unlock(&p->lock);
}

ib_cipher_t *ib_pool_cipher(ib_pool_t *p)
{
    return p->own;
}
