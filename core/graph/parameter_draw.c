/* parameter_draw.c - the threads that draw, and the two spans between them and the caller. */
#include <graph/parameter_draw.h>

#include <pthread.h>
#include <stdatomic.h>

#include <base/memory.h>
#include <base/processors.h>
#include <base/thread.h>

/* Elements of a span (1 MiB of F32), elements that a thread draws at a time (a share), and the most
 * threads. There are two spans: one is used by the caller while threads draw the other, share by
 * share. */
enum { SPAN = 1 << 18, SHARE = 1 << 13, THREADS_MOST = 64 };

/* One thread, the caller's, takes spans; the others only draw. What they read without the lock is
 * set before `round` is raised under the lock. */
struct parameter_draw {
    const parameters_t *parameters;
    uint64_t seed;
    double std;
    float *values[2]; /* [SPAN] each */

    uint32_t parameter;
    uint64_t at, end; /* elements for which no span was begun yet */
    bool drawing;     /* a span was begun and not taken yet */

    /* `work` is signalled when a span is begun, `done` when the last busy thread has finished. The
     * caller's thread draws too, and waits for the others before it hands out a span. */
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    /* Under the lock; all but `share` stay while a thread is busy. */
    parameter_span_t next;
    uint32_t turn;     /* the buffer of `values` in which the span lies */
    uint32_t shares;   /* of the span */
    atomic_uint share; /* the next share to be drawn */
    uint32_t round;    /* spans begun so far */
    uint32_t busy;     /* threads that draw, without the caller's */
    bool stopping;
    pthread_t threads[THREADS_MOST];
    uint32_t thread_count; /* without the caller's */
};

/* Draws shares until none is left. Called by all threads of a draw at once, without the lock. */
static void shares_draw(parameter_draw_t *in)
{
    const parameter_span_t *p = &in->next;
    for (uint32_t i; (i = atomic_fetch_add(&in->share, 1)) < in->shares;) {
        const uint64_t from = (uint64_t)i * SHARE, left = p->count - from;
        parameter_initial(in->parameters, p->parameter, in->seed, in->std, p->begin + from,
                          left < SHARE ? left : SHARE, in->values[in->turn] + from);
    }
}

/* A thread's life: it sleeps until a span is begun that it has not seen, helps to draw that span,
 * and sleeps again, until it is told to stop. It may wake after the others have finished; then it
 * finds no share. */
static void *rounds_draw(void *argument)
{
    parameter_draw_t *in = argument;
    uint32_t round = 0;
    (void)pthread_mutex_lock(&in->lock);
    for (;;) {
        while (in->round == round && !in->stopping)
            (void)pthread_cond_wait(&in->work, &in->lock);
        if (in->stopping) break;
        round = in->round;
        in->busy++;
        (void)pthread_mutex_unlock(&in->lock);
        shares_draw(in);
        (void)pthread_mutex_lock(&in->lock);
        if (--in->busy == 0) (void)pthread_cond_signal(&in->done);
    }
    (void)pthread_mutex_unlock(&in->lock);
    return NULL;
}

/* Fewer threads than asked for are no failure. */
static void draw_threads_start(parameter_draw_t *in, uint32_t count)
{
    while (in->thread_count < count &&
           thread_start(&in->threads[in->thread_count], "lh-draw", rounds_draw, in) == 0)
        in->thread_count++;
}

lh_status_t parameter_draw_new(const parameters_t *p, uint64_t seed, double init_std,
                               uint32_t threads, parameter_draw_t **out)
{
    parameter_draw_t *in = mem_new(sizeof(*in));
    if (in == NULL) return LH_NO_MEMORY;
    in->parameters = p;
    in->seed = seed;
    in->std = init_std;
    (void)pthread_mutex_init(&in->lock, NULL);
    (void)pthread_cond_init(&in->work, NULL);
    (void)pthread_cond_init(&in->done, NULL);
    for (int i = 0; i < 2; i++) {
        in->values[i] = mem_array(SPAN, sizeof(float));
        if (in->values[i] != NULL) continue;
        parameter_draw_free(in);
        return LH_NO_MEMORY;
    }
    if (threads == 0) threads = processors_count();
    if (threads > THREADS_MOST) threads = THREADS_MOST;
    /* A small model is drawn sooner than a thread starts. */
    if (threads > 1 && p->elements > SHARE) draw_threads_start(in, threads - 1);
    *out = in;
    return LH_OK;
}

/* Waits until no thread draws. The caller holds the lock. */
static void draw_threads_await(parameter_draw_t *in)
{
    while (in->busy > 0)
        (void)pthread_cond_wait(&in->done, &in->lock);
}

/* Begins a span in the buffer that is not handed out. A thread that woke late may still look for a
 * share of the span before, so counters are set back only when no thread is busy. */
static void span_begin(parameter_draw_t *in)
{
    const uint64_t left = in->end - in->at, count = left < SPAN ? left : SPAN;
    (void)pthread_mutex_lock(&in->lock);
    draw_threads_await(in);
    lh_assert(in->at < in->end);
    in->turn ^= 1;
    in->next = (parameter_span_t){in->parameter, in->at, count, in->values[in->turn]};
    in->shares = (uint32_t)((count + SHARE - 1) / SHARE);
    atomic_store(&in->share, 0);
    in->round++;
    (void)pthread_cond_broadcast(&in->work);
    (void)pthread_mutex_unlock(&in->lock);
    in->at += count;
}

/* Helps to draw what is left, then waits for the shares that other threads draw. */
static void span_finish(parameter_draw_t *in)
{
    shares_draw(in);
    (void)pthread_mutex_lock(&in->lock);
    draw_threads_await(in);
    (void)pthread_mutex_unlock(&in->lock);
}

void parameter_draw_start(parameter_draw_t *in, uint32_t parameter, uint64_t begin, uint64_t end)
{
    lh_assert(parameter < in->parameters->count);
    lh_assert(begin <= end && !in->drawing);
    in->parameter = parameter;
    in->at = begin;
    in->end = end;
    in->drawing = begin < end;
    if (in->drawing) span_begin(in);
}

/* Finishes the span that was begun earlier and hands it out, and begins the next span in the other
 * buffer. */
bool parameter_draw_next(parameter_draw_t *in, parameter_span_t *out)
{
    if (!in->drawing) return false;
    span_finish(in);
    *out = in->next;
    in->drawing = in->at < in->end;
    if (in->drawing) span_begin(in);
    return true;
}

/* Threads that draw finish their shares; their span is thrown away. */
void parameter_draw_free(parameter_draw_t *in)
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
