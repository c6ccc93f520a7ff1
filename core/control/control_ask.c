/* control_ask.c - one connection at a time: dial, prove the key, say who asks, hear one frame.
 *
 * The thread leaves what it hears in control_t.scout, and the plane's own thread looks there at each of
 * its turns: so nothing of a meeting is touched by two threads. */
#include <control/control_ask.h>

#include <poll.h>
#include <stdio.h>

#include <base/memory.h>
#include <base/sys.h>
#include <base/text.h>
#include <base/thread.h>
#include <control/control_conn.h>

/* ASK_MS: to reach one machine, and to hear it; PAUSE_MS: between two. */
enum { ASK_MS = 1000, PAUSE_MS = 200, NAP_MS = 20 };

uint32_t control_ask_order(const control_members_t *m, uint32_t machine)
{
    return machine == members_leader(m->job, m->layout) ? 0 : machine + 1;
}

/* Of whoever has noticed less than this machine, which has met since, it is no news; and what is no layout
 * here would end the launchers of all to whom it is sent on. */
static void take_news(control_t *c, const frame_t *f)
{
    control_scout_t *s = &c->scout;
    const control_members_t *m = c->how.members;
    frame_regroup_t r;
    if (atomic_load(&s->told) || frame_read_regroup(f, &r) != LH_OK || r.epoch < m->met_epoch ||
        !members_are(m->job, r.layout))
        return;
    s->epoch = r.epoch;
    (void)snprintf(s->layout, sizeof(s->layout), "%s", r.layout);
    (void)snprintf(s->reason, sizeof(s->reason), "%s", r.reason);
    atomic_store(&s->told, true);
}

/* True: it has answered. */
static bool take_answer(control_t *c, uint32_t machine, const frame_t *f)
{
    control_scout_t *s = &c->scout;
    if (f->type == FRAME_REGROUP) take_news(c, f);
    const uint32_t order = control_ask_order(c->how.members, machine);
    if (f->type == FRAME_WAIT && order < atomic_load(&s->waits)) atomic_store(&s->waits, order);
    return f->type != FRAME_BEAT;
}

/* Until the answer or the connection's end, which comes behind it. */
static void ask_converse(control_t *c, control_conn_t *conn, uint32_t machine, uint64_t deadline)
{
    bool said = false, over = false;
    frame_t frame;
    while (!over && sys()->now_ns() < deadline && !atomic_load(&c->scout.stop)) {
        over = conn_drive(conn) != LH_OK;
        if (!over && !said && conn_is_proven(conn)) {
            conn_put(conn, FRAME_HELLO, &c->ask);
            said = true;
            continue;
        }
        lh_status_t cut;
        while ((cut = conn_next(conn, &frame)) == LH_OK)
            if (take_answer(c, machine, &frame)) return;
        over = over || cut != LH_AGAIN;
        struct pollfd p = {.fd = conn_fd(conn),
                           .events = (short)(POLLIN | (conn_wants_write(conn) ? POLLOUT : 0))};
        if (!over) (void)poll(&p, 1, CONTROL_TICK_MS);
    }
}

/* Talks to the first that answers, in their order behind the machine that was asked last. */
static void ask_next(control_t *c, uint32_t *last)
{
    const control_members_t *m = c->how.members;
    const uint32_t count = members_places(m->job),
                   own = JOB_RANKS + m->machine; /* a key of no rank's */
    const char *addresses[MEMBERS_MOST];
    uint32_t machines[MEMBERS_MOST], others = 0, tried, index;
    int fd;
    control_conn_t *conn;
    for (uint32_t i = 1; i <= count; i++) {
        machine_t at;
        const uint32_t machine = (*last + i) % count;
        if (machine == m->machine) continue;
        members_machine(m->job, machine, &at);
        addresses[others] = at.address;
        machines[others++] = machine;
    }
    const control_dials_t how = {.addresses = addresses,
                                 .count = others,
                                 .port = c->how.port,
                                 .limit_ns = ASK_MS * CONTROL_MS,
                                 .silence_ns = control_outage_ns(c)};
    if (control_dial_first(&how, &tried, &index, &fd) != LH_OK) {
        *last = machines[tried - 1];
        return;
    }
    *last = machines[index];
    if (conn_new(c->tls, fd, own, FRAME_SMALL, &conn) != LH_OK) return;
    ask_converse(c, conn, *last, sys()->now_ns() + ASK_MS * CONTROL_MS);
    conn_free(conn);
}

static void *ask_run(void *argument)
{
    control_t *c = argument;
    const control_scout_t *s = &c->scout;
    uint32_t last = members_places(c->how.members->job) - 1;
    while (!atomic_load(&s->stop) && !atomic_load(&s->told)) {
        ask_next(c, &last);
        for (uint32_t ms = 0; ms < PAUSE_MS && !atomic_load(&s->stop); ms += NAP_MS)
            (void)poll(NULL, 0, NAP_MS);
    }
    return NULL;
}

void control_ask_start(control_t *c)
{
    const control_members_t *m = c->how.members;
    control_scout_t *s = &c->scout;
    if (s->runs || m == NULL || !members_change(m->job) || members_places(m->job) < 2) return;
    atomic_store(&s->waits, MEMBERS_NONE);
    s->runs = thread_start(&s->thread, "lh-scout", ask_run, c) == 0;
}

void control_ask_enough(control_t *c)
{
    atomic_store(&c->scout.stop, true);
}

void control_ask_end(control_t *c)
{
    control_ask_enough(c);
    if (c->scout.runs) (void)pthread_join(c->scout.thread, NULL);
    c->scout.runs = false;
}

bool control_ask_told(control_t *c, frame_regroup_t *out)
{
    const control_scout_t *s = &c->scout;
    if (!s->runs || !atomic_load(&s->told)) return false;
    *out = (frame_regroup_t){.epoch = s->epoch, .layout = s->layout, .reason = s->reason};
    return true;
}
