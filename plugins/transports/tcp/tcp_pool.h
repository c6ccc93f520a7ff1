/* tcp_pool.h - threads that do what would keep the thread that polls from its sockets.
 *
 * A task lies in the memory of whoever gives it, and comes back from pool_take or pool_settle to the
 * thread that polls. In between what it is about belongs to the pool. All calls are of the thread that
 * polls. */
#ifndef TCP_POOL_H
#define TCP_POOL_H

#include <longhaul/host.h>

enum { POOL_THREADS_MOST = 16 };

typedef struct pool_task {
    struct pool_task *next;
    bool (*work)(void *of); /* on a thread of the pool, or in pool_settle */
    void *of;
    bool good;                                                  /* what it returned     */
    enum { TASK_BACK, TASK_WAITS, TASK_RUNS, TASK_DONE } state; /* under the pool's lock */
} pool_task_t;

typedef struct pool pool_t;

/* One without threads; NULL after host->fail. Once pool_waits has said that there is none, fd becomes
 * readable with the next task that is done, until all are taken. */
pool_t *pool_new(const lh_host_t *host, int *fd);
/* As many threads, where there are fewer; returns how many there are then. */
uint32_t pool_grow(pool_t *p, uint32_t threads);
uint32_t pool_threads(const pool_t *p);
void pool_free(pool_t *p); /* NULL does nothing. No task may be out. */
void pool_give(pool_t *p, pool_task_t *task);
/* One that is done, in any order; NULL: none is now. */
pool_task_t *pool_take(pool_t *p);
/* There is one to take; else whoever asks may sleep on the descriptor. */
bool pool_waits(pool_t *p);
/* Brings back one that was given: does it here where no thread has begun it, else waits for the thread. */
void pool_settle(pool_t *p, pool_task_t *task);
/* Likewise, but one that no thread has begun is not done. */
void pool_drop(pool_t *p, pool_task_t *task);
/* Brings back only one that no thread has begun, undone; false: it is out still. Waits for nothing. */
bool pool_forget(pool_t *p, pool_task_t *task);

#endif
