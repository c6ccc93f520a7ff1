/* ib_pool.c - see ib_pool.h. How jobs go to threads and back is task_pool.c's, lock included; here is
 * what a job does, and which jobs are out.
 *
 * A cipher is one thread's: threads find theirs by their number, and all are made before the first
 * thread begins and freed after the last has ended. Threads have task, key, head and buffers of a job
 * that is out, and only read the pool. The list of those that are out is for the end of a connection,
 * and of the thread that polls, next and at of its jobs included. */
#include "ib_pool.h"

struct ib_pool {
    const lh_host_t *host;
    task_pool_t *tasks;
    ib_cipher_t *ciphers[TASK_THREADS_MOST + 1]; /* by a thread's number; the last: TASK_POLLING */
    ib_job_t *out, **out_end;                    /* oldest first */
};

static void out_put(ib_pool_t *p, ib_job_t *job)
{
    job->next = NULL;
    job->at = p->out_end;
    *p->out_end = job;
    p->out_end = &job->next;
}

static void out_remove(ib_pool_t *p, ib_job_t *job)
{
    *job->at = job->next;
    if (job->next != NULL)
        job->next->at = job->at;
    else
        p->out_end = job->at;
}

static bool do_job(ib_cipher_t *x, const ib_job_t *job)
{
    return job->opens
               ? ib_open_payload(x, &job->key, job->sequence, job->frame, job->head.bytes,
                                 job->data)
               : ib_seal_frame(x, &job->key, job->sequence, &job->head, job->data, job->frame);
}

static bool do_task(void *of, uint32_t thread)
{
    const ib_job_t *job = of;
    return do_job(job->pool->ciphers[thread], job);
}

static bool make_ciphers(ib_pool_t *p, uint32_t threads)
{
    bool good = (p->ciphers[TASK_POLLING] = ib_cipher_new()) != NULL;
    for (uint32_t i = 0; good && i < threads; i++)
        good = (p->ciphers[i] = ib_cipher_new()) != NULL;
    return good;
}

ib_pool_t *ib_pool_new(const lh_host_t *host, uint32_t threads, int *fd)
{
    ib_pool_t *p = host->alloc(host, sizeof(*p), 64);
    if (p == NULL) return NULL;
    if (threads > TASK_THREADS_MOST) threads = TASK_THREADS_MOST;
    p->host = host;
    p->out_end = &p->out;
    p->tasks = task_pool_new(host, "seal", fd);
    if (p->tasks == NULL || !make_ciphers(p, threads) ||
        task_pool_grow(p->tasks, threads) < threads) {
        (void)host->fail(host, LH_NO_MEMORY, "no threads or ciphers to seal with");
        ib_pool_free(p);
        return NULL;
    }
    return p;
}

uint32_t ib_pool_threads(const ib_pool_t *p)
{
    return task_pool_threads(p->tasks);
}

void ib_pool_free(ib_pool_t *p)
{
    if (p == NULL) return;
    task_pool_free(p->tasks);
    for (uint32_t i = 0; i <= TASK_POLLING; i++)
        ib_cipher_free(p->ciphers[i]);
    p->host->release(p->host, p);
}

bool ib_pool_do(ib_pool_t *p, ib_job_t *job)
{
    job->good = do_job(p->ciphers[TASK_POLLING], job);
    return job->good;
}

void ib_pool_give(ib_pool_t *p, ib_job_t *job)
{
    job->pool = p;
    job->task.work = do_task;
    job->task.of = job;
    out_put(p, job);
    task_pool_give(p->tasks, &job->task);
}

ib_job_t *ib_pool_take(ib_pool_t *p)
{
    const task_t *task = task_pool_take(p->tasks);
    if (task == NULL) return NULL;
    ib_job_t *job = task->of;
    out_remove(p, job);
    job->good = task->good;
    return job;
}

bool ib_pool_waits(ib_pool_t *p)
{
    return task_pool_waits(p->tasks);
}

/* Those that no thread has begun are forgotten first, in the order in which threads would begin them:
 * then only what runs is waited for, one job of a thread at most. */
void ib_pool_drop(ib_pool_t *p, const lh_conn_t *c)
{
    for (ib_job_t *job = p->out, *next; job != NULL; job = next) {
        next = job->next;
        if (job->conn == c && task_pool_forget(p->tasks, &job->task)) out_remove(p, job);
    }
    for (ib_job_t *job = p->out, *next; job != NULL; job = next) {
        next = job->next;
        if (job->conn != c) continue;
        task_pool_drop(p->tasks, &job->task);
        out_remove(p, job);
    }
}

ib_cipher_t *ib_pool_cipher(ib_pool_t *p)
{
    return p->ciphers[TASK_POLLING];
}
