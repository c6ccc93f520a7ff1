/* control.c - what callers see of the control plane.
 *
 * All work on connections is done by the plane's one thread: control_server.c on rank 0,
 * control_client.c on the other ranks. A caller touches no socket. It leaves a request in control_t
 * under its lock, wakes the thread through an eventfd, and waits on a condition until the thread
 * has answered. So no frame and no connection needs a lock; the price is a switch of threads for
 * each gather, which nobody makes inside of a step.
 *
 * Gathers have a channel each (control_frame.h), with rounds, parts and a lock of its own: two threads of
 * a rank that gather in two channels wait for nobody in the other one.
 *
 * Locks: gather_locks[channel], which a gather holds from its request to its answer, is taken before lock,
 * which is held for as long as a few fields are read or written, or a part is copied. No thread holds two
 * channels' locks. How the job fares is an atomic besides, so that control_status can be asked in the
 * midst of a step. */
#include <control/control.h>

#include <stdio.h>
#include <unistd.h>

#include <base/memory.h>
#include <base/sys.h>
#include <control/control_state.h>

_Static_assert(CONTROL_COLLECT_MOST <= FRAME_SMALL / 2, "rank 0 takes such a part");

/* Half a frame: heads take little of the rest. */
size_t control_gather_most(uint32_t ranks)
{
    const size_t each = FRAME_LARGE / 2 / (size_t)ranks;
    return each < FRAME_SMALL / 2 ? each : FRAME_SMALL / 2;
}

/* One round of a gather or a barrier. The thread sends this rank's bytes to rank 0, and copies what
 * comes back to `all` while the caller waits here. The round's number goes with it: a rank that has
 * missed one, or has made one too many, is found by its number rather than by bytes that lie at
 * another rank's place. The wait ends early when the job has ended, when the channel is left, or when the
 * thread has ended: no answer comes then. */
static lh_status_t gather_round(control_t *c, uint32_t channel, const char *where, bool collects,
                                const void *mine, size_t bytes, void *all)
{
    const size_t most = collects ? CONTROL_COLLECT_MOST : control_gather_most(c->how.size);
    lh_assert(channel < CONTROL_CHANNELS);
    lh_assert(bytes == 0 || (mine != NULL && (all != NULL || (collects && c->how.rank != 0))));
    if (bytes > most)
        return fail(LH_INVALID, "%zu bytes of each of %u ranks are too many to gather", bytes,
                    c->how.size);
    (void)pthread_mutex_lock(&c->gather_locks[channel]);
    (void)pthread_mutex_lock(&c->lock);
    control_gather_t *g = &c->request.gathers[channel];
    g->mine = mine;
    g->bytes = bytes;
    g->all = all;
    g->collects = collects;
    g->gathered = false;
    (void)snprintf(g->where, sizeof(g->where), "%s", where);
    g->asked = !g->left;
    control_wake(c);
    while (g->asked && !g->left && !g->gathered && atomic_load(&c->status) == LH_OK && !c->closed)
        (void)pthread_cond_wait(&c->changed, &c->lock);
    const bool done = g->gathered, left = g->left;
    g->asked = false;
    g->round++;
    (void)pthread_mutex_unlock(&c->lock);
    (void)pthread_mutex_unlock(&c->gather_locks[channel]);
    if (done) return LH_OK;
    const lh_status_t status = control_status(c);
    if (status != LH_OK) return fail_again(status, control_failure(c));
    if (left) return fail(LH_CANCELLED, "this rank takes part in this channel's gathers no more");
    return fail(LH_PEER_LOST, "the control plane has ended: nothing is gathered any more");
}

lh_status_t control_gather(control_t *c, const void *mine, size_t bytes, void *all)
{
    return gather_round(c, CONTROL_MAIN, "", false, mine, bytes, all);
}

lh_status_t control_gather_on(control_t *c, uint32_t channel, const void *mine, size_t bytes,
                              void *all)
{
    return gather_round(c, channel, "", false, mine, bytes, all);
}

/* It has a name, as a barrier has, so that a rank which gathers meanwhile is found by it. */
lh_status_t control_collect_on(control_t *c, uint32_t channel, const void *mine, size_t bytes,
                               void *all)
{
    return gather_round(c, channel, "for rank 0", true, mine, bytes, all);
}

lh_status_t control_collect(control_t *c, const void *mine, size_t bytes, void *all)
{
    return control_collect_on(c, CONTROL_MAIN, mine, bytes, all);
}

void control_leave(control_t *c, uint32_t channel)
{
    lh_assert(channel != CONTROL_MAIN && channel < CONTROL_CHANNELS);
    (void)pthread_mutex_lock(&c->lock);
    c->request.gathers[channel].left = true;
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
}

lh_status_t control_barrier(control_t *c, const char *where)
{
    return gather_round(c, CONTROL_MAIN, where, false, NULL, 0, NULL);
}

/* A step that begins is told at once: whether a rank was lost in the same one again is judged on each
 * machine by itself, and but for its own by what its last heartbeat said. Where steps are so short that it is
 * not time yet, a later call tells, or the heartbeat that is due. */
void control_progress(control_t *c, uint64_t step, const char *text)
{
    control_progress_write(c->word, step, text);
    if (atomic_load_explicit(&c->told_step, memory_order_relaxed) == step) return;
    const uint64_t now = sys()->now_ns();
    if (now - atomic_load_explicit(&c->told_ns, memory_order_relaxed) <
        CONTROL_STEP_MS * CONTROL_MS)
        return;
    atomic_store_explicit(&c->told_ns, now, memory_order_relaxed);
    atomic_store_explicit(&c->told_step, step, memory_order_release); /* behind the word */
    control_wake(c);
}

void control_waited(control_t *c, uint64_t ns)
{
    (void)atomic_fetch_add_explicit(&c->word->waited_ns, ns, memory_order_relaxed);
}

/* Seats are the thread's; what is read here of them is atomic. A heartbeat may come between the two
 * looks at the clock. */
bool control_member(const control_t *c, uint32_t rank, control_member_t *out)
{
    if (c->server == NULL) return false;
    lh_assert(rank < c->how.size);
    const seat_t *seat = &c->server->seats[rank];
    const uint64_t heard = atomic_load(&seat->heard_ns), now = sys()->now_ns();
    out->silent_ns = rank == 0 || now < heard ? 0 : now - heard;
    control_progress_read(rank == 0 ? c->word : &seat->shown, &out->progress);
    return rank == 0 || heard != 0;
}

lh_status_t control_status(const control_t *c)
{
    return atomic_load(&c->status);
}

const char *control_failure(const control_t *c)
{
    return atomic_load(&c->status) == LH_OK ? "" : c->failure;
}

/* Only the first reason of this rank is told: what fails after it is mostly its consequence. */
void control_fail(control_t *c, uint32_t peer, lh_status_t status, const char *reason)
{
    (void)pthread_mutex_lock(&c->lock);
    if (!c->request.failed && atomic_load(&c->status) == LH_OK && !c->closed) {
        c->request.fail = c->request.failed = true;
        c->request.peer = peer;
        c->request.status = status;
        (void)snprintf(c->request.reason, sizeof(c->request.reason), "%s", reason);
        control_wake(c);
    }
    (void)pthread_mutex_unlock(&c->lock);
}

void control_take_in(control_t *c)
{
    (void)pthread_mutex_lock(&c->lock);
    if (c->server != NULL && c->how.members != NULL && !c->closed) {
        c->request.take_in = true;
        control_wake(c);
    }
    (void)pthread_mutex_unlock(&c->lock);
}

void control_heeds(control_t *c)
{
    if (c->how.asked != NULL) atomic_store(&c->how.asked->heeds, 1);
}

int control_fd(const control_t *c)
{
    return c->fail_fd;
}

void control_counts(const control_t *c, control_counts_t *out)
{
    *out = (control_counts_t){.strangers = atomic_load(&c->strangers),
                              .handshakes = atomic_load(&c->handshakes),
                              .bytes_sent = atomic_load(&c->bytes_sent),
                              .bytes_received = atomic_load(&c->bytes_received)};
}
