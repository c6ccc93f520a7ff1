/* comm_runs.c - carries out runs: posts messages in order, takes events, sums what is there.
 *
 * runs_drive makes one turn: gates that are past, messages that may be posted, events of the links,
 * then some sums. It never blocks. Whoever waits for a run calls it in a loop; while nobody waits,
 * comm's thread does. Driving in the waiting thread saves a change of threads for every message,
 * and the thread makes progress while the rank computes.
 *
 * A message of any length travels at once where its receive is posted already; else it waits for half
 * a round trip until that is known. So receives are posted as soon as their memory is free: those into
 * staging memory once the run before in the same slot is done, whether or not the run has begun, and
 * even before it is started where the caller says that it will be (runs_expect).
 *
 * The first failure, of a link, of a gate or a wait that lasted too long, ends the comm: its status
 * and sentence stay, no run goes on, and every later call returns them. Memory of runs that were
 * under way may still be touched by transports until links_close. */
#include <comm/comm_runs.h>

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include <base/sys.h>
#include <longhaul/dtype.h>

/* Events taken from the links at a time; bytes that are added before links are looked at again. */
enum { EVENTS = 64, BYTES_AT_ONCE = 64 << 10 };
/* How long comm's thread leaves links alone while no run is under way. */
enum { REST_NS = 500000000, SECOND_NS = 1000000000 };
/* A sleep is cut into pieces of this length, so that a time limit is noticed without an event. */
static const uint64_t doze_ns = 100000000;
/* Between two looks while nothing else moves: at a gate, and at whether a device waits already. */
static const uint64_t gate_ns = 20000, watch_ns = 500000;

/* Sums and copies that can be done wait in a heap, the earliest step of the script first: it
 * belongs to the earliest chunk, for which the peers have waited longest. */
static void ready_push(collective_t *x, uint32_t step)
{
    lh_assert(x->ready_count < x->script->step_count);
    uint32_t at = x->ready_count++;
    for (; at > 0 && x->ready[(at - 1) / 2] > step; at = (at - 1) / 2)
        x->ready[at] = x->ready[(at - 1) / 2];
    x->ready[at] = step;
}

static uint32_t ready_pop(collective_t *x)
{
    lh_assert(x->ready_count > 0);
    const uint32_t first = x->ready[0], last = x->ready[--x->ready_count];
    uint32_t at = 0;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= x->ready_count) break;
        if (child + 1 < x->ready_count && x->ready[child + 1] < x->ready[child]) child++;
        if (last <= x->ready[child]) break;
        x->ready[at] = x->ready[child];
        at = child;
    }
    x->ready[at] = last;
    return first;
}

static void run_finish(collective_t *x);

/* One of what the run waited for has happened; with the last it begins. A run without steps, of a
 * rank that has no part in what moves, is done then, and not before what it comes after. */
static void run_ungate(collective_t *x)
{
    lh_assert(x->gates > 0);
    if (--x->gates > 0) return;
    for (uint32_t i = 0; i < x->script->first_count; i++)
        ready_push(x, x->script->first[i]);
    if (x->remaining == 0) run_finish(x);
}

/* The farthest class of link that the plan sends over. */
static uint32_t run_scope(const collective_t *x)
{
    uint32_t farthest = LH_LINK_NODE;
    for (uint32_t s = LH_LINK_NODE; s < COMM_SCOPES; s++)
        if (x->sent[s] > 0) farthest = s;
    return farthest;
}

/* What a device has stood at its wait. One that has not come there when the run is done never waits. */
static void run_expose(collective_t *x)
{
    comm_t *c = x->comm;
    if (x->gate.reached == NULL) return;
    if (x->reached_ns == 0) {
        c->watched--;
        return;
    }
    c->exposed_ns[run_scope(x)] += x->finished_ns - x->reached_ns;
    x->times.exposed_ns += x->finished_ns - x->reached_ns;
}

/* The gate is forgotten first: its owner may free what it points to, and is told once only. */
static void run_tell_done(collective_t *x)
{
    const collective_gate_t gate = x->gate;
    x->gate = (collective_gate_t){0};
    if (gate.done != NULL) gate.done(gate.context);
}

/* Takes the run out of the list, says so, and lets those begin that waited for it: the next in its
 * staging slot, and plans that come after it. The state changes after the gate was told and before
 * others begin; a thread that sees PLAN_IDLE sees what the run wrote (release, acquired in
 * runs_test and runs_wait). */
static void run_finish(collective_t *x)
{
    comm_t *c = x->comm;
    *(x->earlier != NULL ? &x->earlier->later : &c->oldest) = x->later;
    *(x->later != NULL ? &x->later->earlier : &c->newest) = x->earlier;
    if (x->slot != NULL && x->slot->last == x) x->slot->last = NULL;
    x->times.runs++;
    x->finished_ns = sys()->now_ns();
    x->times.busy_ns += x->finished_ns - x->started_ns;
    collective_t *next = x->after_slot, *follower = x->followers;
    x->after_slot = x->followers = NULL;
    if (next != NULL) next->slot_awaited = false;
    run_expose(x);
    run_tell_done(x);
    atomic_store_explicit(&x->state, PLAN_IDLE, memory_order_release);
    if (next != NULL) run_ungate(next);
    while (follower != NULL) {
        collective_t *f = follower;
        follower = f->next_follower;
        run_ungate(f);
    }
}

/* Lowers the count of every step that waited for this one. Messages need no heap, as lane_pump
 * looks at their counts when their turn comes. A run that has not begun may have all its messages;
 * run_ungate ends it then. */
static void step_done(collective_t *x, uint32_t id)
{
    const script_t *s = x->script;
    const script_step_t *step = &s->steps[id];
    x->left[id] = SCRIPT_NONE;
    for (uint32_t i = 0; i < step->next_count; i++) {
        const uint32_t next = s->next[step->next + i];
        lh_assert(x->left[next] > 0 && x->left[next] != SCRIPT_NONE);
        if (--x->left[next] == 0 && s->steps[next].kind >= STEP_SUM) ready_push(x, next);
    }
    lh_assert(x->remaining > 0);
    if (--x->remaining == 0 && x->gates == 0) run_finish(x);
}

void runs_release(comm_t *c)
{
    for (collective_t *x = c->oldest; x != NULL; x = x->later)
        run_tell_done(x);
}

/* Locked. The reason of the first failure stays, and the gates of all runs are told. */
static void runs_fail(comm_t *c, lh_status_t status)
{
    if (c->status != LH_OK) return;
    runs_release(c);
    /* The control plane knows who died; a link only that it broke. */
    control_t *control = c->control;
    c->status = control != NULL ? control_status(control) : LH_OK;
    if (c->status != LH_OK) {
        (void)snprintf(c->sentence, sizeof(c->sentence), "%s", control_failure(control));
        return;
    }
    (void)snprintf(c->sentence, sizeof(c->sentence), "%s", fail_reason());
    c->status = status;
}

/* The tag is made of the key, of the plan's number among those of the key, and of the step's own
 * tag, all the same at both ends, whatever other plans either has. A transport that checks tags
 * finds a mismatch; the cookie, which stays here, brings the event back to its step. */
static lh_status_t message_post(const lane_t *lane, const track_t *t, uint32_t id)
{
    const collective_t *x = t->plan;
    const script_step_t *m = &x->script->steps[id];
    const uint32_t tag = (uint32_t)x->key + x->number * 0x9e3779b9u + m->tag;
    const uint64_t cookie = (uint64_t)x->index << 32 | id;
    uint32_t arena;
    char *memory = script_message(x->script, &x->bound, m, &arena);
    return lane->sending ? link_send(lane->link, arena, memory, m->bytes, tag, cookie)
                         : link_recv(lane->link, arena, memory, m->bytes, tag, cookie);
}

/* Whether a message may be posted though its run has not begun: a receive into memory that nobody
 * else uses. What the run itself must do before is counted in `left`, as for any message. */
static bool message_is_early(const lane_t *lane, const collective_t *x, uint32_t id)
{
    if (lane->sending || x->slot_awaited) return false;
    return x->writes_ahead || x->script->steps[id].to.buffer == BUFFER_STAGING;
}

/* Posts what may be posted now; what stands first holds up what stands behind it, as it does at the
 * other end. True: something has moved. */
static bool lane_pump(comm_t *c, lane_t *lane)
{
    bool moved = false;
    while (lane->head != NULL) {
        track_t *t = lane->head;
        const uint32_t id = t->plan->script->order[t->messages->first + t->posted];
        if (t->plan->left[id] != 0) break;
        if (t->plan->gates > 0 && !message_is_early(lane, t->plan, id)) break;
        const lh_status_t status = message_post(lane, t, id);
        if (status == LH_AGAIN) break;
        if (status != LH_OK) {
            runs_fail(c, status);
            return true;
        }
        moved = true;
        if (++t->posted < t->messages->count) continue;
        lane->head = t->behind;
        if (lane->head == NULL) lane->tail = NULL;
    }
    return moved;
}

/* At most two lanes for each link, so that all can be looked at. */
static bool lanes_pump(comm_t *c)
{
    bool moved = false;
    for (uint32_t i = 0; c->status == LH_OK && i < c->lane_count; i++)
        if (c->lanes[i].head != NULL) moved = lane_pump(c, &c->lanes[i]) || moved;
    return moved;
}

/* Bytes that a computation reads: what it costs, to decide when links are looked at again. */
static uint64_t step_bytes(const collective_t *x, const script_step_t *step)
{
    uint64_t elements = 0;
    for (uint32_t i = 0; i < step->run_count; i++)
        elements += x->script->runs[step->run + i].count;
    return elements * lh_dtype_bytes(x->how.dtype) * step->source_count;
}

/* A little at a time: what comes out of one sum may be waited for elsewhere. Older runs come first.
 * step_done may end the run and take it from the list, hence `later`. */
static bool runs_compute(comm_t *c)
{
    uint64_t bytes = 0;
    bool moved = false;
    for (collective_t *x = c->oldest, *later; x != NULL && bytes < BYTES_AT_ONCE; x = later) {
        later = x->later;
        while (x->gates == 0 && x->ready_count > 0 && bytes < BYTES_AT_ONCE) {
            const uint32_t id = ready_pop(x);
            const script_step_t *step = &x->script->steps[id];
            script_compute(x->script, &x->bound, step, x->scratch);
            bytes += step_bytes(x, step);
            moved = true;
            step_done(x, id);
        }
    }
    return moved;
}

/* Gates are past in the order of starts, as a device's queue comes to them in that order: the first
 * that is not past ends the look. */
static bool gates_open(comm_t *c)
{
    bool moved = false;
    for (collective_t *x = c->oldest, *later; x != NULL && c->closed > 0; x = later) {
        later = x->later;
        if (!x->closed) continue;
        const lh_status_t status = x->gate.past(x->gate.context);
        if (status == LH_AGAIN) break;
        if (status != LH_OK) {
            runs_fail(c, status);
            return true;
        }
        x->closed = false;
        c->closed--;
        moved = true;
        run_ungate(x);
    }
    return moved;
}

/* Since when devices stand at their waits. */
static void gates_watch(comm_t *c)
{
    for (collective_t *x = c->oldest; x != NULL && c->watched > 0; x = x->later) {
        if (x->closed || x->reached_ns != 0 || x->gate.reached == NULL) continue;
        if (!x->gate.reached(x->gate.context)) continue;
        x->reached_ns = sys()->now_ns();
        c->watched--;
    }
}

/* Tells devices that messages have come into their memory, each once for all of these events. */
static lh_status_t arrivals_tell(const comm_t *c, const links_event_t *events, uint32_t count)
{
    const coll_device_t *told = NULL;
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < count; i++) {
        const coll_device_t *device = c->plans[events[i].cookie >> 32]->how.device;
        if (!events[i].received || device == NULL || device == told) continue;
        status = device->arrived(device->context);
        told = device;
    }
    return status;
}

/* Locked. One turn; true if anything has moved. */
static bool runs_drive(comm_t *c)
{
    links_event_t events[EVENTS];
    uint32_t count = 0;
    if (c->status != LH_OK) return false;
    bool moved = gates_open(c);
    gates_watch(c);
    if (c->status == LH_OK) moved = lanes_pump(c) || moved;
    if (c->links != NULL && c->lane_count > 0 && c->status == LH_OK) {
        lh_status_t status = links_poll(c->links, events, EVENTS, &count);
        if (status == LH_OK) status = arrivals_tell(c, events, count);
        if (status != LH_OK) {
            runs_fail(c, status);
            return true;
        }
        for (uint32_t i = 0; i < count; i++)
            step_done(c->plans[events[i].cookie >> 32], (uint32_t)events[i].cookie);
    }
    moved = runs_compute(c) || moved || count > 0;
    return moved;
}

/* Locked. Steps as they are before a run, its place behind the run before it in its staging slot, and
 * one of `gates` for run_begin, so that nothing begins before all is in its place. */
static void run_prepare(collective_t *x)
{
    for (uint32_t i = 0; i < x->script->step_count; i++)
        x->left[i] = x->script->steps[i].needs;
    x->remaining = x->script->step_count;
    x->ready_count = 0;
    x->gates = 1;
    x->slot_awaited = x->slot != NULL && x->slot->last != NULL;
    if (x->slot_awaited) {
        x->slot->last->after_slot = x;
        x->gates++;
    }
    if (x->slot != NULL) x->slot->last = x;
}

/* Locked. Tracks join their lanes whatever the run still waits for: the order of messages is that of
 * starts, not of gates. */
static void tracks_join(collective_t *x, bool receiving, bool sending)
{
    for (uint32_t i = 0; i < x->script->lane_count; i++) {
        track_t *t = &x->tracks[i];
        if (t->messages->sending ? !sending : !receiving) continue;
        t->posted = 0;
        t->behind = NULL;
        *(t->lane->tail != NULL ? &t->lane->tail->behind : &t->lane->head) = t;
        t->lane->tail = t;
    }
}

/* Locked. Runs are started in the order in which they are expected, as the peers' messages come in
 * it. */
static void expected_take(collective_t *x)
{
    comm_t *c = x->comm;
    lh_assert(c->first_expected == x);
    c->first_expected = x->next_expected;
    if (c->first_expected == NULL) c->last_expected = NULL;
    x->expected = false;
}

/* Locked. `gates` counts what must happen first: this function itself and the run before it in its
 * staging slot (run_prepare), the caller's gate, the run that it comes after. */
static void run_begin(collective_t *x, const collective_gate_t *gate)
{
    comm_t *c = x->comm;
    const bool expected = x->expected;
    if (expected)
        expected_take(x);
    else
        run_prepare(x);
    lh_assert(expected || c->first_expected == NULL);
    x->started_ns = sys()->now_ns();
    for (uint32_t s = 0; x->sent[LH_LINK_WAN] > 0 && s < c->world->row.sites; s++)
        c->begun_to[s] += x->sent_to[s];
    x->earlier = c->newest;
    x->later = NULL;
    *(c->newest != NULL ? &c->newest->later : &c->oldest) = x;
    c->newest = x;
    atomic_store_explicit(&x->state, PLAN_RUNNING, memory_order_relaxed);

    x->closed = gate != NULL;
    x->reached_ns = 0;
    if (gate != NULL) {
        x->gate = *gate;
        x->gates++;
        c->closed++;
        c->watched += gate->reached != NULL;
    }
    collective_t *after = x->how.after;
    if (after != NULL && atomic_load_explicit(&after->state, memory_order_relaxed) != PLAN_IDLE) {
        x->next_follower = after->followers;
        after->followers = x;
        x->gates++;
    }
    tracks_join(x, !expected, true);
    run_ungate(x);
}

/* Locked. */
static void run_expect(collective_t *x, bool writes_ahead)
{
    comm_t *c = x->comm;
    run_prepare(x);
    x->expected = true;
    x->writes_ahead = writes_ahead;
    x->next_expected = NULL;
    *(c->last_expected != NULL ? &c->last_expected->next_expected : &c->first_expected) = x;
    c->last_expected = x;
    tracks_join(x, true, false);
}

/* The member of x's group whose message x waits for, or SCRIPT_NONE. A receive says more than a
 * send that has not ended, so it is preferred. */
static uint32_t runs_awaits(const collective_t *x)
{
    const script_t *s = x->script;
    uint32_t peer = SCRIPT_NONE;
    for (uint32_t i = 0; i < s->lane_count; i++)
        for (uint32_t k = 0; k < x->tracks[i].posted; k++)
            if (x->left[s->order[s->lanes[i].first + k]] != SCRIPT_NONE) {
                if (!s->lanes[i].sending) return s->lanes[i].peer;
                peer = s->lanes[i].peer;
                break;
            }
    return peer;
}

/* `wanted` makes whoever drives hand the lock over (lock_lend), and an eventfd wakes who sleeps on
 * the links with the lock held. The mutex alone would not do: it is unfair, and its holder may
 * sleep. */
void runs_enter(comm_t *c)
{
    atomic_fetch_add(&c->wanted, 1);
    if (pthread_mutex_trylock(&c->lock) != 0) {
        const uint64_t one = 1;
        if (atomic_load(&c->asleep)) (void)!write(c->wake_fd, &one, sizeof(one));
        (void)pthread_mutex_lock(&c->lock);
    }
    atomic_fetch_sub(&c->wanted, 1);
}

void runs_leave(comm_t *c)
{
    (void)pthread_mutex_unlock(&c->lock);
}

/* Between two turns: lets all who want the lock have it before this thread takes it again. */
static void lock_lend(comm_t *c)
{
    if (atomic_load(&c->wanted) == 0) return;
    (void)pthread_mutex_unlock(&c->lock);
    while (atomic_load(&c->wanted) > 0)
        (void)sched_yield();
    (void)pthread_mutex_lock(&c->lock);
}

/* Sleeps on the links, or until someone wants the lock. `asleep` is set before `wanted` is looked
 * at and read after `wanted` was raised, so that one of both threads sees the other. */
static void runs_doze(comm_t *c, uint64_t ns)
{
    atomic_store(&c->asleep, true);
    if (atomic_load(&c->wanted) == 0) links_sleep(c->links, c->wake_fd, 0, ns);
    atomic_store(&c->asleep, false);
    uint64_t count;
    (void)!read(c->wake_fd, &count, sizeof(count));
}

/* [comm] timeout: nothing has moved for that long. Names the peer that is waited for, and tells the
 * control plane. */
static void run_too_long(collective_t *x, uint64_t ns)
{
    char who[160] = "nobody";
    comm_t *c = x->comm;
    uint32_t member = runs_awaits(x);
    /* Its messages may stand behind those of a run before it, which has not moved either. */
    for (collective_t *o = c->oldest; member == SCRIPT_NONE && o != NULL; o = o->later) {
        member = runs_awaits(o);
        if (member != SCRIPT_NONE) x = o;
    }
    const uint32_t rank = member == SCRIPT_NONE ? c->world->row.rank : x->how.group->ranks[member];
    world_rank_text(c->world, rank, who, sizeof(who));
    (void)fail(LH_TIMED_OUT, "%s stood still for %.1f s, waiting for %s", x->doing,
               (double)ns * 1e-9, who);
    (void)snprintf(c->sentence, sizeof(c->sentence), "%s", fail_reason());
    c->status = LH_TIMED_OUT;
    runs_release(c);
    if (c->control != NULL) control_fail(c->control, rank, LH_TIMED_OUT, c->sentence);
}

typedef struct idle { /* a time in which nothing moved */
    uint64_t since, seen;
    uint32_t scope;
    bool devices; /* at the last look it was the device's turn */
} idle_t;

/* A wait has begun in which nothing moves: whose message is missing says which class of link it
 * is counted for. The control plane is told what this rank waits in, for its report of who is
 * behind. */
static void idle_begin(collective_t *x, idle_t *idle, uint64_t now)
{
    const uint32_t member = runs_awaits(x);
    const world_t *w = x->comm->world;
    idle->since = idle->seen = now;
    idle->scope = 0;
    if (member != SCRIPT_NONE)
        idle->scope = world_scope(w, w->row.rank, x->how.group->ranks[member]);
    if (x->comm->control != NULL) control_progress(x->comm->control, x->comm->step, x->doing);
}

/* Counts the time until the last look at which nothing had moved. */
static void idle_end(comm_t *c, idle_t *idle)
{
    if (idle->since == 0) return;
    c->exposed_ns[idle->scope] += idle->seen - idle->since;
    idle->since = 0;
}

/* While a gate is closed it is the device's turn, whose queue may be long, unless it stands at its wait for a
 * run whose gate is past: what is queued behind that wait, closed gates among it, moves when that run is done
 * and no sooner, so peers hold it up. This is the oldest such run; NULL: it is the device's turn. A
 * device that does not tell where it stands (`reached` is NULL) is never known to stand, so that a closed
 * gate of its own is waited for without end. */
static collective_t *device_stands(const comm_t *c)
{
    for (collective_t *x = c->oldest; x != NULL; x = x->later)
        if (x->reached_ns != 0) return x;
    return NULL;
}

/* The oldest run that a device waits for: before it may be some that the host has started and waits for later,
 * such as a snapshot for another site. NULL: there is none. */
static collective_t *device_waits(const comm_t *c)
{
    collective_t *x = c->oldest;
    while (x != NULL && x->gate.done == NULL)
        x = x->later;
    return x;
}

/* One turn in which nothing moved. First the wait spins, as an answer inside a machine takes
 * microseconds and falling asleep longer; with more ranks than processors it yields the processor
 * instead, to whom it waits for. After spin_ns it sleeps. */
static void run_stands_still(collective_t *x, idle_t *idle)
{
    comm_t *c = x->comm;
    const uint64_t now = sys()->now_ns();
    collective_t *held = c->closed > 0 ? device_stands(c) : x; /* which peers hold up */
    if (idle->since == 0 || (idle->devices && held != NULL))
        idle_begin(held != NULL ? held : x, idle, now);
    idle->devices = held == NULL;
    idle->seen = now;
    const uint64_t limit = c->job->comm.timeout_ns;
    if (held == NULL) idle->since = now;
    if (held != NULL && now - idle->since > limit) {
        run_too_long(held, now - idle->since);
        return;
    }
    if (c->closed > 0) {
        runs_doze(c, gate_ns);
        return;
    }
    const uint64_t nap = c->watched > 0 ? watch_ns : doze_ns;
    if (now - idle->since > c->spin_ns)
        runs_doze(c, limit < nap ? limit : nap);
    else if (c->crowded)
        (void)sched_yield();
}

/* comm's thread had nothing to do. If a device waits for a run and no thread of the host does,
 * nobody else would see that a peer stands still: this thread looks how long. Else it sleeps. */
static void thread_idle(comm_t *c, idle_t *idle)
{
    collective_t *x = c->closed > 0 ? device_stands(c) : device_waits(c);
    if (c->lane_count == 0 && c->closed == 0) return;
    if (x == NULL) {
        idle->since = 0;
        runs_doze(c, c->closed > 0 ? gate_ns : c->watched > 0 ? watch_ns : doze_ns);
        return;
    }
    run_stands_still(x, idle);
}

/* Drives while runs are under way or expected and nobody waits for them; else it sleeps on the
 * condition `begun`, and looks at links now and then. */
static bool runs_any(const comm_t *c)
{
    return c->oldest != NULL || c->first_expected != NULL;
}

/* A peer may be ahead by many short messages. What nobody reads fills its socket, which the kernel
 * takes for a lost peer after 2.5 s (TCP_USER_TIMEOUT), though this rank only computes. */
static void thread_rest(comm_t *c)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += REST_NS;
    if (until.tv_nsec >= SECOND_NS) {
        until.tv_nsec -= SECOND_NS;
        until.tv_sec++;
    }
    if (pthread_cond_timedwait(&c->begun, &c->lock, &until) == 0) return;
    if (!c->stop && !runs_any(c) && c->waiters == 0) (void)runs_drive(c);
}

void *runs_thread(void *comm)
{
    comm_t *c = comm;
    idle_t idle = {0};
    (void)pthread_mutex_lock(&c->lock);
    while (!c->stop) {
        if (!runs_any(c) || c->waiters > 0 || c->status != LH_OK) {
            idle.since = 0;
            if (c->lane_count > 0 && c->status == LH_OK)
                thread_rest(c);
            else
                (void)pthread_cond_wait(&c->begun, &c->lock);
            continue;
        }
        if (runs_drive(c))
            idle.since = 0;
        else if (runs_any(c) && c->status == LH_OK)
            thread_idle(c, &idle);
        lock_lend(c);
    }
    (void)pthread_mutex_unlock(&c->lock);
    return NULL;
}

static lh_status_t runs_status(const comm_t *c)
{
    return c->status == LH_OK ? LH_OK : fail_again(c->status, c->sentence);
}

/* What may be posted is posted at once, before the caller goes on to compute. */
lh_status_t runs_start(collective_t *x, const collective_gate_t *gate)
{
    comm_t *c = x->comm;
    if (!c->connected)
        return fail(LH_INVALID, "'%s' was started before the ranks are connected", x->name);
    if (atomic_load_explicit(&x->state, memory_order_acquire) != PLAN_IDLE)
        return fail(LH_INVALID, "'%s' was started while it still runs", x->name);
    runs_enter(c);
    const lh_status_t status = runs_status(c);
    if (status == LH_OK) {
        run_begin(x, gate);
        (void)runs_drive(c);
        if (c->has_thread && c->oldest != NULL) (void)pthread_cond_signal(&c->begun);
    }
    runs_leave(c);
    return status;
}

/* Receives are posted at once, so that their grants leave now. On one machine that gains nothing: a
 * grant takes a microsecond, and comm's thread would be awake until the run is started. */
bool runs_expect(collective_t *x, bool writes_ahead)
{
    comm_t *c = x->comm;
    if (!c->connected || c->world->row.nodes == 1 || x->expected ||
        atomic_load_explicit(&x->state, memory_order_acquire) != PLAN_IDLE)
        return false;
    runs_enter(c);
    const bool taken = c->status == LH_OK;
    if (taken) {
        run_expect(x, writes_ahead);
        (void)runs_drive(c);
        if (c->has_thread && c->waiters == 0) (void)pthread_cond_signal(&c->begun);
    }
    runs_leave(c);
    return taken;
}

/* While another thread has the lock this returns LH_AGAIN and does not wait for it, even if the
 * comm has failed: a later call then tells so. */
lh_status_t runs_test(collective_t *x)
{
    comm_t *c = x->comm;
    if (atomic_load_explicit(&x->state, memory_order_acquire) == PLAN_IDLE) return LH_OK;
    if (pthread_mutex_trylock(&c->lock) != 0) return LH_AGAIN;
    (void)runs_drive(c);
    lh_status_t status = runs_status(c);
    runs_leave(c);
    if (atomic_load_explicit(&x->state, memory_order_acquire) == PLAN_IDLE) return LH_OK;
    return status == LH_OK ? LH_AGAIN : status;
}

/* Over all classes of links, so far. */
static uint64_t exposed_all(const comm_t *c)
{
    uint64_t all = 0;
    for (uint32_t s = 0; s < COMM_SCOPES; s++)
        all += c->exposed_ns[s];
    return all;
}

/* What a wait spent moving bytes and adding them is exposed too: it goes to the farthest class of
 * link that the plan sends over. `before`: what idle turns had counted when the wait began. */
static void wait_count(collective_t *x, uint64_t waited, uint64_t before)
{
    const uint64_t idle = exposed_all(x->comm) - before;
    if (waited > idle) x->comm->exposed_ns[run_scope(x)] += waited - idle;
}

/* The host is ahead of a device that will wait itself: nothing is exposed by that. */
static void idle_forget(idle_t *idle)
{
    idle->since = 0;
}

/* While `waiters` is not 0 comm's thread keeps away. With the last waiter gone it is woken if runs
 * are left. When a run was done the clock has been read already: each reading is some 2 % of a small
 * run. */
lh_status_t runs_wait(collective_t *x)
{
    comm_t *c = x->comm;
    idle_t idle = {0};
    if (atomic_load_explicit(&x->state, memory_order_acquire) == PLAN_IDLE) return LH_OK;
    const uint64_t began = sys()->now_ns();
    runs_enter(c);
    const uint64_t before = exposed_all(c);
    const bool ahead = x->gate.reached != NULL;
    c->waiters++;
    while (atomic_load_explicit(&x->state, memory_order_relaxed) != PLAN_IDLE &&
           c->status == LH_OK) {
        if (!runs_drive(c))
            run_stands_still(x, &idle);
        else if (ahead)
            idle_forget(&idle);
        else
            idle_end(c, &idle);
        lock_lend(c);
    }
    if (!ahead) idle_end(c, &idle);
    c->waiters--;
    const bool done = atomic_load_explicit(&x->state, memory_order_relaxed) == PLAN_IDLE;
    const uint64_t ended = done ? x->finished_ns : sys()->now_ns();
    const uint64_t waited = ended > began ? ended - began : 0;
    if (!ahead) {
        x->times.exposed_ns += waited;
        wait_count(x, waited, before);
    }
    if (c->has_thread && runs_any(c) && c->waiters == 0) (void)pthread_cond_signal(&c->begun);
    const lh_status_t status = done ? LH_OK : runs_status(c);
    runs_leave(c);
    return status;
}
