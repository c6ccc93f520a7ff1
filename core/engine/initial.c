/* initial.c - two pieces in turn: one is taken away while threads draw the other, in shares that
 * they count off. */
#include <engine/initial.h>

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

#include <base/memory.h>

enum { PIECE = 1 << 18, SHARE = 1 << 13, THREADS_MOST = 64 };

struct initial {
    const parameters_t *parameters;
    uint64_t seed;
    double std;
    float *values[2]; /* [PIECE] each */

    uint32_t parameter;
    uint64_t at, end; /* what no piece has been made of yet */
    bool drawing;     /* a piece was begun that nobody took yet */

    pthread_mutex_t lock;
    pthread_cond_t work, done;
    /* Under the lock; all but `share` stay while a thread is busy. */
    initial_piece_t next;
    uint32_t turn;     /* which of the two it is in */
    uint32_t shares;   /* of it */
    atomic_uint share; /* the next to be drawn */
    uint32_t round;    /* pieces begun */
    uint32_t busy;     /* threads at it, without the caller's */
    bool stopping;
    pthread_t threads[THREADS_MOST];
    uint32_t thread_count; /* without the caller's */
};

static void draw_shares(initial_t *in)
{
    const initial_piece_t *p = &in->next;
    for (uint32_t i; (i = atomic_fetch_add(&in->share, 1)) < in->shares;) {
        const uint64_t from = (uint64_t)i * SHARE, left = p->count - from;
        parameter_initial(in->parameters, p->parameter, in->seed, in->std, p->begin + from,
                          left < SHARE ? left : SHARE, in->values[in->turn] + from);
    }
}

static void *draw_rounds(void *argument)
{
    initial_t *in = argument;
    uint32_t round = 0;
    (void)pthread_mutex_lock(&in->lock);
    for (;;) {
        while (in->round == round && !in->stopping)
            (void)pthread_cond_wait(&in->work, &in->lock);
        if (in->stopping) break;
        round = in->round;
        in->busy++;
        (void)pthread_mutex_unlock(&in->lock);
        draw_shares(in);
        (void)pthread_mutex_lock(&in->lock);
        if (--in->busy == 0) (void)pthread_cond_signal(&in->done);
    }
    (void)pthread_mutex_unlock(&in->lock);
    return NULL;
}

static uint32_t processors(void)
{
    cpu_set_t mine;
    const int count = sched_getaffinity(0, sizeof(mine), &mine) == 0 ? CPU_COUNT(&mine) : 1;
    return (uint32_t)count;
}

/* Signals stay with the thread that called. */
static void start_threads(initial_t *in, uint32_t count)
{
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    while (in->thread_count < count &&
           pthread_create(&in->threads[in->thread_count], NULL, draw_rounds, in) == 0)
        in->thread_count++;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
}

lh_status_t initial_new(const parameters_t *p, uint64_t seed, double init_std, uint32_t threads,
                        initial_t **out)
{
    initial_t *in = mem_new(sizeof(*in));
    if (in == NULL) return LH_NO_MEMORY;
    in->parameters = p;
    in->seed = seed;
    in->std = init_std;
    (void)pthread_mutex_init(&in->lock, NULL);
    (void)pthread_cond_init(&in->work, NULL);
    (void)pthread_cond_init(&in->done, NULL);
    for (int i = 0; i < 2; i++) {
        in->values[i] = mem_array(PIECE, sizeof(float));
        if (in->values[i] != NULL) continue;
        initial_free(in);
        return LH_NO_MEMORY;
    }
    if (threads == 0) threads = processors();
    if (threads > THREADS_MOST) threads = THREADS_MOST;
    /* A small model is drawn sooner than a thread starts. */
    if (threads > 1 && p->elements > SHARE) start_threads(in, threads - 1);
    *out = in;
    return LH_OK;
}

/* A thread that woke late may still be looking for a share of the piece before. */
static void begin_piece(initial_t *in)
{
    const uint64_t left = in->end - in->at, count = left < PIECE ? left : PIECE;
    (void)pthread_mutex_lock(&in->lock);
    while (in->busy > 0)
        (void)pthread_cond_wait(&in->done, &in->lock);
    lh_assert(in->at < in->end);
    in->turn ^= 1;
    in->next = (initial_piece_t){in->parameter, in->at, count, in->values[in->turn]};
    in->shares = (uint32_t)((count + SHARE - 1) / SHARE);
    atomic_store(&in->share, 0);
    in->round++;
    (void)pthread_cond_broadcast(&in->work);
    (void)pthread_mutex_unlock(&in->lock);
    in->at += count;
}

static void finish_piece(initial_t *in)
{
    draw_shares(in);
    (void)pthread_mutex_lock(&in->lock);
    while (in->busy > 0)
        (void)pthread_cond_wait(&in->done, &in->lock);
    (void)pthread_mutex_unlock(&in->lock);
}

void initial_start(initial_t *in, uint32_t parameter, uint64_t begin, uint64_t end)
{
    lh_assert(parameter < in->parameters->count);
    lh_assert(begin <= end && !in->drawing);
    in->parameter = parameter;
    in->at = begin;
    in->end = end;
    in->drawing = begin < end;
    if (in->drawing) begin_piece(in);
}

bool initial_next(initial_t *in, initial_piece_t *out)
{
    if (!in->drawing) return false;
    finish_piece(in);
    *out = in->next;
    in->drawing = in->at < in->end;
    if (in->drawing) begin_piece(in);
    return true;
}

void initial_free(initial_t *in)
{
    if (in == NULL) return;
    (void)pthread_mutex_lock(&in->lock);
    in->stopping = true;
    (void)pthread_cond_broadcast(&in->work);
    (void)pthread_mutex_unlock(&in->lock);
    for (uint32_t i = 0; i < in->thread_count; i++)
        (void)pthread_join(in->threads[i], NULL);
    (void)pthread_cond_destroy(&in->done);
    (void)pthread_cond_destroy(&in->work);
    (void)pthread_mutex_destroy(&in->lock);
    mem_free(in->values[0]);
    mem_free(in->values[1]);
    mem_free(in);
}
