/* task_pool.h - threads that do what would keep the thread that polls from its sockets or its card.
 * One source for all transports that seal (tcp, ib, apn), compiled into each of them.
 *
 * A task lies in the memory of whoever gives it. From task_pool_give until task_pool_take, _settle,
 * _drop or _forget brings it back it is out: the task, and what it is about, belong to the pool, and the
 * giver touches neither. Otherwise both are the giver's. All calls are of the thread that polls, one
 * at a time ([serial], longhaul/host.h); task_t.work alone runs on other threads. */
#ifndef PLUGINS_TRANSPORTS_TASK_POOL_H
#define PLUGINS_TRANSPORTS_TASK_POOL_H

#include <longhaul/host.h>

enum {
    TASK_THREADS_MOST = 16,
    TASK_POLLING = TASK_THREADS_MOST, /* as a thread's number: the one that polls */
};

typedef struct task {
    struct task *next, **at; /* in a queue of the pool: the next one, and what points here */
    /* On a thread of the pool, whose number below TASK_THREADS_MOST it is told and which does one
     * task at a time; or in task_pool_settle, with TASK_POLLING. So what is kept by number is one
     * thread's. */
    bool (*work)(void *of, uint32_t thread);
    void *of;
    bool good;                                                  /* what it returned     */
    enum { TASK_BACK, TASK_WAITS, TASK_RUNS, TASK_DONE } state; /* under the pool's lock */
} task_t;

typedef struct task_pool task_pool_t;

/* One without threads; NULL after host->fail. name: of its threads, and kept. Once task_pool_waits has
 * said that there is none, fd becomes readable with the next task that is done, until all are taken. */
task_pool_t *task_pool_new(const lh_host_t *host, const char *name, int *fd);
/* As many threads, where there are fewer; returns how many there are then. What they find by their
 * numbers has to be there before. */
uint32_t task_pool_grow(task_pool_t *p, uint32_t threads);
uint32_t task_pool_threads(const task_pool_t *p);
void task_pool_free(task_pool_t *p); /* NULL does nothing. No task may be out. */
void task_pool_give(task_pool_t *p, task_t *task);
/* One that is done, in any order; NULL: none is now. */
task_t *task_pool_take(task_pool_t *p);
/* There is one to take; else whoever asks may sleep on the descriptor. */
bool task_pool_waits(task_pool_t *p);
/* Brings back one that was given: does it here where no thread has begun it, else waits for the thread. */
void task_pool_settle(task_pool_t *p, task_t *task);
/* Likewise, but one that no thread has begun is not done. Of several the others are forgotten first:
 * while one is waited for, its thread would begin the next. */
void task_pool_drop(task_pool_t *p, task_t *task);
/* Brings back only one that no thread has begun, undone; false: it is out still. Waits for nothing. */
bool task_pool_forget(task_pool_t *p, task_t *task);

#endif
