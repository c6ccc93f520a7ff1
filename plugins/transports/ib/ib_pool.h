/* ib_pool.h - the threads that seal and open frames, so that the thread that polls only posts: tasks of
 * ../task_pool.h, each a frame, with a cipher for each thread.
 *
 * A job belongs to whoever made it, is given to the threads, and comes back from ib_pool_take to the
 * thread that polls. In between the job and its buffers belong to the threads. All calls are of the
 * thread that polls. */
#ifndef IB_POOL_H
#define IB_POOL_H

#include <longhaul/transport.h>

#include "../task_pool.h"
#include "ib_seal.h"

typedef struct ib_pool ib_pool_t;

typedef struct ib_job {
    task_t task;
    ib_pool_t *pool;           /* that it was last given to */
    struct ib_job *next, **at; /* of the jobs that are out; else of a list of its owner's */
    lh_conn_t *conn;
    bool opens; /* else it seals */
    bool good;  /* how it ended */
    uint64_t sequence;
    ib_key_t key;
    ib_frame_t head;
    char *data;     /* the payload: sealing only reads it */
    uint8_t *frame; /* opening only reads it */
} ib_job_t;

/* threads: 1 to 16. NULL after host->fail. Once ib_pool_waits has said that there is none, fd becomes
 * readable with the next job that is done, until all are taken. */
ib_pool_t *ib_pool_new(const lh_host_t *host, uint32_t threads, int *fd);
uint32_t ib_pool_threads(const ib_pool_t *p);
void ib_pool_free(ib_pool_t *p); /* NULL does nothing. No job may be out. */
/* Does it here, where handing it over would take longer. */
bool ib_pool_do(ib_pool_t *p, ib_job_t *job);
void ib_pool_give(ib_pool_t *p, ib_job_t *job);
/* One that is done, in any order; NULL: none is now. */
ib_job_t *ib_pool_take(ib_pool_t *p);
/* There is one to take; else whoever asks may sleep on the descriptor. */
bool ib_pool_waits(ib_pool_t *p);
/* Waits for those of a connection that are being done, and forgets its others: a few milliseconds. */
void ib_pool_drop(ib_pool_t *p, const lh_conn_t *c);
/* For heads, on the thread that polls. */
ib_cipher_t *ib_pool_cipher(ib_pool_t *p);

#endif
