/* control_door.c - one thread, one list of connections, and poll() over all of them.
 *
 * A door takes nobody in and compares nothing: that is rank 0's, which does not exist yet. Who comes and
 * proves the job's key is told that this is a door, gets heartbeats, and is told at the end to dial again,
 * or why the job stops. What it hears is whether a machine is asked to stop. So little is kept here that
 * a connection which is lost costs nothing: its rank dials again (control_client.c).
 *
 * Strangers are dealt with as at rank 0 (control_join.c): CONTROL_PENDING places, CONTROL_PROVE_MS to prove
 * the key, and far less where all places are taken. As long as they are nobody is accepted, and those who wait
 * stay in the kernel's queue. */
#include <control/control_door.h>

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include <base/memory.h>
#include <base/sys.h>
#include <control/control_conn.h>

/* A connection. in: its hello has come. waits: it is no rank, of a machine that has none now. */
typedef struct visitor {
    struct visitor *next;
    control_conn_t *conn;
    uint64_t since_ns, heard_ns;
    bool in, waits, dead;
    char site[WORLD_SITE_NAME], host[WORLD_HOST_NAME];
} visitor_t;

typedef struct door {
    const control_door_how_t *how;
    control_tls_t *tls;
    visitor_t *visitors;
    uint32_t count, pending; /* all; and those that are not in */
    uint64_t next_beat, silence_ns;
    uint64_t rests_until; /* nobody is accepted before that, as there was no descriptor or memory */
    struct pollfd *fds;
    size_t capacity;
    lh_status_t stop; /* LH_OK: nobody was asked so */
    bool elsewhere;   /* it was not this machine */
    bool passes;      /* all are told to dial again: who is asked so from here on tells rank 0 */
    char sentence[CONTROL_STOP_TEXT];
} door_t;

static void visitor_drop(door_t *d, visitor_t *v)
{
    if (v->dead) return;
    v->dead = true;
    if (!v->in) d->pending--;
}

static void door_sweep(door_t *d)
{
    for (visitor_t **at = &d->visitors; *at != NULL;) {
        visitor_t *v = *at;
        if (!v->dead) {
            at = &v->next;
            continue;
        }
        *at = v->next;
        d->count--;
        conn_free(v->conn);
        mem_free(v);
    }
}

static void visitor_put_notice(visitor_t *v, uint32_t type, lh_status_t status,
                               const char *sentence)
{
    text_t payload = {0};
    frame_write_notice(&payload, &(frame_notice_t){.status = status, .reason = sentence});
    conn_put(v->conn, type, &payload);
    text_free(&payload);
}

static void visitor_put_beat(visitor_t *v)
{
    text_t payload = {0};
    frame_write_beat(&payload, &(progress_t){0});
    conn_put(v->conn, FRAME_BEAT, &payload);
    text_free(&payload);
}

static void door_note_stop(door_t *d, lh_status_t status, const char *site, const char *host,
                           bool elsewhere)
{
    if (d->stop != LH_OK || d->passes) return;
    d->stop = status;
    d->elsewhere = elsewhere;
    control_stop_sentence(status, site, host, d->sentence);
}

/* Whether a hello is that of a process which is no rank, and whose machine has none: a spare, the witness,
 * a machine that was left out. */
static bool hello_waits(const door_t *d, const frame_hello_t *h)
{
    uint32_t first;
    const uint32_t machine = h->herald == HELLO_HERALD && members_are(d->how->job, h->layout)
                                 ? members_find(d->how->job, h->site, h->host)
                                 : MEMBERS_NONE;
    return machine != MEMBERS_NONE &&
           members_ranks_of(d->how->job, h->layout, machine, &first) == 0;
}

/* A process that only asks where the job has gone on is answered by its connection's end. */
static void visitor_take_hello(door_t *d, visitor_t *v, const frame_t *f)
{
    frame_hello_t h;
    char sentence[256];
    if (frame_read_hello(f, &h) != LH_OK || h.herald == HELLO_ASKS) {
        conn_finish(v->conn);
        visitor_drop(d, v);
        return;
    }
    if (h.version != FRAME_VERSION) {
        (void)snprintf(sentence, sizeof(sentence),
                       "this machine speaks version %u of the control plane, %.60s version %d",
                       h.version, d->how->host, FRAME_VERSION);
        visitor_put_notice(v, FRAME_REFUSE, LH_MISMATCH, sentence);
        if (conn_drive(v->conn) == LH_OK) conn_finish(v->conn);
        visitor_drop(d, v);
        return;
    }
    v->in = true;
    v->waits = hello_waits(d, &h);
    d->pending--;
    (void)snprintf(v->site, sizeof(v->site), "%.*s", WORLD_SITE_NAME - 1, h.site);
    (void)snprintf(v->host, sizeof(v->host), "%.*s", WORLD_HOST_NAME - 1, h.host);
    (void)snprintf(sentence, sizeof(sentence),
                   "%.60s%s%.60s runs the stages before this one; its ranks come after them",
                   d->how->site, d->how->site[0] != '\0' ? "/" : "", d->how->host);
    visitor_put_notice(v, FRAME_WAIT, LH_AGAIN, sentence);
    visitor_put_beat(v);
}

static void visitor_take_frame(door_t *d, visitor_t *v, const frame_t *f)
{
    frame_notice_t n;
    v->heard_ns = sys()->now_ns();
    if (!v->in && f->type == FRAME_HELLO)
        visitor_take_hello(d, v, f);
    else if (v->in && f->type == FRAME_FAIL && frame_read_notice(f, &n) == LH_OK &&
             control_stop_is(n.status))
        door_note_stop(d, n.status, v->site, v->host, true);
    else if (!v->in || f->type != FRAME_BEAT)
        visitor_drop(d, v);
}

/* What came before a connection's end is taken before that. */
static void visitor_serve(door_t *d, visitor_t *v)
{
    frame_t frame;
    lh_status_t cut = LH_AGAIN;
    if (v->dead) return;
    const bool ended = conn_drive(v->conn) != LH_OK;
    while (!v->dead && (cut = conn_next(v->conn, &frame)) == LH_OK)
        visitor_take_frame(d, v, &frame);
    if (ended || cut != LH_AGAIN) visitor_drop(d, v);
}

/* Where it fails for want of a descriptor the port stays readable: it is left alone for a while. */
static void door_accept(door_t *d)
{
    int fd;
    while (d->pending < CONTROL_PENDING) {
        const lh_status_t status = control_accept(d->how->listener, d->silence_ns, &fd);
        if (status != LH_OK && errno == EAGAIN) return;
        visitor_t *v = status == LH_OK ? mem_new(sizeof(*v)) : NULL;
        if (v == NULL || conn_new(d->tls, fd, CONN_NO_RANK, FRAME_SMALL, &v->conn) != LH_OK) {
            if (v == NULL && status == LH_OK) (void)close(fd);
            mem_free(v);
            d->rests_until = sys()->now_ns() + CONTROL_BEAT_MS * CONTROL_MS;
            return;
        }
        v->since_ns = v->heard_ns = sys()->now_ns();
        v->next = d->visitors;
        d->visitors = v;
        d->count++;
        d->pending++;
        visitor_serve(d, v);
    }
}

/* How long a stranger may take; where there is no place for others it makes room. */
static uint64_t door_patience_ms(const door_t *d, const visitor_t *v)
{
    if (d->pending < CONTROL_PENDING) return CONTROL_PROVE_MS;
    return conn_has_greeted(v->conn) ? CONTROL_EVICT_MS : CONTROL_EVICT_SILENT_MS;
}

/* What is due by the clock. */
static void door_turn(door_t *d)
{
    enum { BEHIND = 1 << 16 };
    const uint64_t now = sys()->now_ns();
    const bool beats = now >= d->next_beat;
    for (visitor_t *v = d->visitors; v != NULL; v = v->next) {
        const bool late = v->in ? now - v->heard_ns > d->silence_ns
                                : now - v->since_ns > door_patience_ms(d, v) * CONTROL_MS;
        if (late) visitor_drop(d, v);
        if (beats && v->in && !v->dead && conn_unsent(v->conn) < BEHIND) visitor_put_beat(v);
        if (beats) visitor_serve(d, v);
    }
    if (beats) d->next_beat = now + CONTROL_BEAT_MS * CONTROL_MS;
}

/* One look at the listener and all connections, for a tick at most. Where there is no memory to look by it
 * looks at none, and goes on with the next beat. */
static void door_wait(door_t *d, bool listens)
{
    struct pollfd *fds = mem_grow(d->fds, &d->capacity, d->count + 1u, sizeof(*fds));
    size_t count = 1;
    if (fds != NULL) d->fds = fds;
    struct pollfd *const at = d->fds;
    const bool fits = fds != NULL;
    if (fits) {
        const bool room = listens && d->pending < CONTROL_PENDING &&
                          sys()->now_ns() >= d->rests_until;
        at[0] = (struct pollfd){.fd = room ? d->how->listener : -1, .events = POLLIN};
        for (const visitor_t *v = d->visitors; v != NULL; v = v->next)
            at[count++] = (struct pollfd){
                .fd = conn_fd(v->conn),
                .events = (short)(POLLIN | (conn_wants_write(v->conn) ? POLLOUT : 0))};
    }
    (void)poll(at, fits ? count : 0, CONTROL_TICK_MS);
    count = 1;
    for (visitor_t *v = d->visitors; fits && v != NULL; v = v->next)
        if (at[count++].revents != 0) visitor_serve(d, v);
    if (fits && at[0].revents != 0) door_accept(d);
    door_sweep(d);
}

/* What all are told at the end. */
static void door_say_farewell(door_t *d)
{
    const bool passes = d->passes = d->stop == LH_OK;
    for (visitor_t *v = d->visitors; v != NULL; v = v->next) {
        text_t payload = {0};
        if (!v->in) visitor_drop(d, v);
        if (v->dead) continue;
        if (passes || !v->waits) {
            visitor_put_notice(v, FRAME_REFUSE, passes ? LH_AGAIN : d->stop,
                               passes ? "the stages before have ended" : d->sentence);
            continue;
        }
        frame_write_regroup(&payload,
                            &(frame_regroup_t){.layout = "", .reason = "the job has ended"});
        conn_put(v->conn, FRAME_REGROUP, &payload);
        text_free(&payload);
    }
    door_sweep(d);
}

static bool door_has_unsent(const door_t *d)
{
    for (const visitor_t *v = d->visitors; v != NULL; v = v->next)
        if (!v->dead && conn_unsent(v->conn) > 0) return true;
    return false;
}

/* The port is free for rank 0 from here on. Whoever does not read is not waited for. Who is told of a stop
 * closes its end, which is waited for: a heartbeat of its that finds this end closed would break the connection,
 * and with it what the kernel still sends again. Whom that befalls as the door passes dials again all the same. */
static void door_shut(door_t *d)
{
    door_say_farewell(d);
    const uint64_t end = sys()->now_ns() + CONTROL_GOODBYE_MS * CONTROL_MS;
    for (visitor_t *v = d->visitors; v != NULL; v = v->next)
        visitor_serve(d, v);
    door_sweep(d);
    while (door_has_unsent(d) && sys()->now_ns() < end)
        door_wait(d, false);
    for (visitor_t *v = d->visitors; v != NULL; v = v->next)
        conn_finish(v->conn);
    while (!d->passes && d->visitors != NULL && sys()->now_ns() < end)
        door_wait(d, false);
    for (visitor_t *v = d->visitors; v != NULL; v = v->next)
        visitor_drop(d, v);
    door_sweep(d);
}

lh_status_t control_door_keep(const control_door_how_t *how, char sentence[CONTROL_STOP_TEXT],
                              bool *elsewhere)
{
    const uint64_t outage = how->job->transports[LH_LINK_WAN].outage_ns;
    const uint64_t least = CONTROL_SILENCE_MS * CONTROL_MS;
    door_t d = {.how = how, .silence_ns = outage > least ? outage : least};
    lh_status_t status = control_tls_new(how->secret, &d.tls);
    while (status == LH_OK && d.stop == LH_OK &&
           atomic_load(&how->asked->what) != CONTROL_ASKS_PASS) {
        const lh_status_t asked = control_stop_asked(how->asked);
        if (asked != LH_OK) {
            door_note_stop(&d, asked, how->site, how->host, false);
            break;
        }
        door_wait(&d, true);
        door_turn(&d);
        door_sweep(&d);
    }
    if (status == LH_OK) door_shut(&d);
    (void)close(how->listener);
    control_tls_free(d.tls);
    mem_free(d.fds);
    (void)snprintf(sentence, CONTROL_STOP_TEXT, "%s", d.sentence);
    *elsewhere = d.elsewhere;
    return status == LH_OK ? d.stop : status;
}
