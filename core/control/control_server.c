/* control_server.c - rank 0's end of the star: hears the ranks, gathers what they give, and ends
 * the job for all when one is lost. How ranks come in is control_join.c.
 *
 * One thread with one epoll set; nothing here waits but for the next event, and nothing blocks on a
 * single rank: what can't be sent now is queued and sent when its socket takes it. So a rank that
 * does not read can't hold up the news that another one died.
 *
 * A connection that ends or breaks is not freed where that is seen, as events of the same turn may
 * still name it: it is marked dead, and freed at the end of the turn. */
#include <control/control_server.h>

#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <base/memory.h>
#include <base/sys.h>
#include <control/control_conn.h>
#include <control/control_join.h>
#include <control/control_members.h>
#include <control/control_state.h>
#include <control/control_stop.h>

/* Events of one look, and connections that are accepted in a row. */
enum { EVENTS = 64 };

/* Whether the reason with which a rank ends is that of another: it has told of that one, or somebody
 * has, and it has lost a peer. The word of the one that was told of is waited for, or the end of its
 * connection. */
static bool server_knows_better(const control_t *c, uint32_t rank, lh_status_t status)
{
    const control_server_t *s = c->server;
    return s->hearsay_deadline != 0 && (s->hearsay_from == rank || status == LH_PEER_LOST);
}

/* Kept for CONTROL_HEARSAY_MS. A rank that sees a transport's link break says so at once, but
 * cannot know why; the rank at the other end mostly can, or its connection ends. */
static void server_hear(control_t *c, uint32_t from, uint32_t peer, lh_status_t status,
                        const char *reason)
{
    control_server_t *s = c->server;
    if (peer >= c->how.size || s->hearsay_deadline != 0) return;
    s->hearsay_deadline = sys()->now_ns() + CONTROL_HEARSAY_MS * CONTROL_MS;
    s->hearsay_from = from;
    s->hearsay_peer = peer;
    s->hearsay_status = status;
    (void)snprintf(s->hearsay, sizeof(s->hearsay), "%s", reason);
}

/* Whether this part belongs to the gather at hand; the first part says which one that is. Where
 * ranks are at different gathers the program itself has gone different ways on them: that ends the
 * job with both sides' words, as waiting would never end. */
static bool is_round(control_t *c, uint32_t rank, const frame_gather_t *part)
{
    gathering_t *g = &c->server->gatherings[part->channel];
    char reason[600];
    if (g->arrived == 0) {
        g->round = part->round;
        g->part_bytes = part->length;
        (void)snprintf(g->where, sizeof(g->where), "%s", part->where);
        mem_free(g->parts);
        g->parts = mem_new(g->part_bytes * c->how.size);
        if (g->parts != NULL) return true;
        control_tell(c, 0, LH_NO_MEMORY, true, fail_reason());
        return false;
    }
    if (part->round == g->round && part->length == g->part_bytes &&
        strcmp(part->where, g->where) == 0)
        return true;
    (void)snprintf(reason, sizeof(reason),
                   "it is at gather %u '%s' with %u bytes while others are at gather %u '%s' "
                   "with %zu",
                   part->round, part->where, part->length, g->round, g->where, g->part_bytes);
    control_tell(c, rank, LH_MISMATCH, true, reason);
    return false;
}

/* A rank's part of its channel's gather at hand. With the last one all parts go to all ranks, in the order
 * of ranks, or to this one alone. */
static void server_part(control_t *c, uint32_t rank, const frame_gather_t *part)
{
    lh_assert(rank < c->how.size && part->channel < CONTROL_CHANNELS);
    control_server_t *s = c->server;
    gathering_t *g = &s->gatherings[part->channel];
    if (s->seats[rank].gathered[part->channel] || !is_round(c, rank, part)) return;
    s->seats[rank].gathered[part->channel] = true;
    if (part->length > 0) memcpy(g->parts + (size_t)rank * part->length, part->bytes, part->length);
    if (++g->arrived < c->how.size) return;

    text_t payload = {0};
    const size_t all = g->part_bytes * c->how.size;
    frame_write_gather(&payload, &(frame_gather_t){.channel = part->channel,
                                                   .round = g->round,
                                                   .where = g->where,
                                                   .length = g->collects ? 0 : (uint32_t)all,
                                                   .bytes = (const unsigned char *)g->parts});
    control_put_all(c, FRAME_GATHERED, &payload);
    control_answer(c, part->channel, g->parts, all);
    text_free(&payload);
    mem_free(g->parts); /* a channel may have had its last gather */
    g->parts = NULL;
    g->arrived = 0;
    for (uint32_t r = 0; r < c->how.size; r++)
        s->seats[r].gathered[part->channel] = false;
}

/* A rank says that another is lost, that it fails itself, or that it ends. A goodbye with a status
 * is a failure, with which the job ends; one without is an end that nobody waits for. */
static void take_notice(control_t *c, peer_t *p, const frame_t *f)
{
    frame_notice_t n;
    const uint32_t rank = p->rank;
    if (frame_read_notice(f, &n) != LH_OK) {
        control_lose(c, p, fail_reason());
        return;
    }
    if (n.rank != rank && f->type == FRAME_FAIL) {
        server_hear(c, rank, n.rank, n.status, n.reason);
        return;
    }
    if (f->type == FRAME_FAIL && control_stop_is(n.status)) {
        const frame_hello_t *h = &c->server->facts[rank].hello;
        control_stop_note(c, n.status, rank, h->site, h->host);
        return;
    }
    if (f->type == FRAME_BYE) c->server->seats[rank].departed = true;
    if (n.status != LH_OK && !server_knows_better(c, rank, n.status))
        control_tell(c, rank, n.status, true, n.reason);
}

/* A herald says that it lives; or, of a machine that has ranks, that it was asked to stop. */
static void take_herald(control_t *c, peer_t *p, const frame_t *f)
{
    frame_notice_t n;
    if (f->type == FRAME_BEAT) return;
    if (f->type == FRAME_FAIL && frame_read_notice(f, &n) == LH_OK && control_stop_is(n.status))
        control_stop_note(c, n.status, 0, p->hello.site, p->hello.host);
    else
        control_lose(c, p, "");
}

/* Kept for the sentence when the rank is lost, and shown to whoever asks how it fares. */
static void take_beat(seat_t *seat, const frame_beat_t *beat)
{
    seat->progress.step = beat->step;
    (void)snprintf(seat->progress.text, PROGRESS_TEXT, "%s", beat->text);
    control_progress_write(&seat->shown, beat->step, beat->text);
    atomic_store(&seat->shown.waited_ns, beat->waited_ns);
    atomic_store(&seat->heard_ns, sys()->now_ns());
}

/* What a connection says. Before its hello it may say nothing else. */
static void server_take_frame(control_t *c, peer_t *p, const frame_t *f)
{
    frame_beat_t beat;
    frame_gather_t part;
    p->heard_ns = sys()->now_ns();
    if (p->herald != NULL) {
        take_herald(c, p, f);
        return;
    }
    if (p->rank == CONN_NO_RANK) {
        if (f->type == FRAME_HELLO)
            control_join_hello(c, p, f);
        else
            control_lose(c, p, "");
        return;
    }
    switch (f->type) {
    case FRAME_BEAT:
        if (frame_read_beat(f, &beat) != LH_OK) break;
        take_beat(&c->server->seats[p->rank], &beat);
        return;
    case FRAME_GATHER:
        if (!c->server->welcomed || frame_read_gather(f, &part) != LH_OK) break;
        server_part(c, p->rank, &part);
        return;
    case FRAME_FAIL:
    case FRAME_BYE: take_notice(c, p, f); return;
    default: (void)fail(LH_CORRUPT, "it sent a frame of type %u, which is rank 0's", f->type);
    }
    control_lose(c, p, fail_reason());
}

/* Sends and reads as far as it goes, and takes what has come. A connection that ended in between is
 * judged after what it said last. */
static void server_serve(control_t *c, peer_t *p)
{
    frame_t frame;
    char ended[256] = "";
    if (p->dead) return;
    const lh_status_t driven = conn_drive(p->conn);
    if (driven != LH_OK) (void)snprintf(ended, sizeof(ended), "%s", fail_reason());
    lh_status_t cut;
    while (!p->dead && (cut = conn_next(p->conn, &frame)) != LH_AGAIN) {
        if (cut != LH_OK) {
            control_lose(c, p, fail_reason());
            return;
        }
        server_take_frame(c, p, &frame);
    }
    if (p->dead) return;
    control_count(c, p->conn);
    if (driven == LH_OK)
        control_watch(c->server, p);
    else if (control_join_is_stranger(p) && conn_is_mute(p->conn))
        control_drop(c->server,
                     p); /* it only looked who is there (control_dial_first): no stranger */
    else
        control_lose(c, p, ended);
}

/* What waits at the port is served at once: it has mostly said something while it waited in the queue. */
static void server_accept(control_t *c)
{
    peer_t *p;
    for (uint32_t i = 0; i < EVENTS && (p = control_join_accept(c)) != NULL; i++)
        server_serve(c, p);
}

/* ---- what happens when nothing comes --------------------------------------------------------- */

/* A heartbeat to every rank: this rank lives, and where it is. */
static void beat_all(control_t *c)
{
    enum { BEHIND = 1 << 16 }; /* a peer that does not read needs no more heartbeats */
    control_server_t *s = c->server;
    progress_t progress;
    text_t payload = {0};
    control_progress_read(c->word, &progress);
    frame_write_beat(&payload, &progress);
    for (uint32_t r = 1; r < c->how.size; r++)
        if (s->seats[r].peer != NULL && conn_unsent(s->seats[r].peer->conn) < BEHIND)
            control_put(s, s->seats[r].peer, FRAME_BEAT, &payload);
    for (peer_t *p = s->peers; p != NULL; p = p->next)
        if (!p->dead && p->herald != NULL && conn_unsent(p->conn) < BEHIND)
            control_put(s, p, FRAME_BEAT, &payload);
    text_free(&payload);
}

/* Whose last word is too long ago is lost. Any frame counts as a word, not the heartbeat alone. */
static void judge_silence(control_t *c, uint64_t now)
{
    for (uint32_t r = 1; r < c->how.size; r++) {
        peer_t *p = c->server->seats[r].peer;
        const uint64_t silence = c->server->seats[r].far ? control_outage_ns(c)
                                                         : CONTROL_SILENCE_MS * CONTROL_MS;
        if (p == NULL || now - p->heard_ns < silence) continue;
        char reason[64];
        (void)snprintf(reason, sizeof(reason), "silent for %.1f s",
                       (double)(now - p->heard_ns) * 1e-9);
        control_lose(c, p, reason);
    }
    for (peer_t *p = c->server->peers; p != NULL; p = p->next)
        if (!p->dead && p->herald != NULL && now - p->heard_ns > control_outage_ns(c))
            control_lose(c, p, "");
}

/* The one that was accused has said nothing itself: then what another said of it is the reason. */
static void judge_hearsay(control_t *c, uint64_t now)
{
    control_server_t *s = c->server;
    char name[CONTROL_NAME], reason[FRAME_REASON];
    if (s->hearsay_deadline == 0 || now < s->hearsay_deadline) return;
    s->hearsay_deadline = 0;
    control_rank_name(c, s->hearsay_from, name);
    (void)snprintf(reason, sizeof(reason), "%.1500s (seen by %s)", s->hearsay, name);
    control_tell(c, s->hearsay_peer, s->hearsay_status, false, reason);
}

/* Somebody waits for a rank that has ended: it will never come. */
static void check_departed(control_t *c)
{
    control_server_t *s = c->server;
    if (s->hearsay_deadline != 0) return; /* why it has ended is about to be known */
    for (uint32_t i = 0; i < CONTROL_CHANNELS; i++)
        for (uint32_t r = 1; s->gatherings[i].arrived > 0 && r < c->how.size; r++)
            if (s->seats[r].departed && !s->seats[r].gathered[i])
                control_tell(c, r, LH_MISMATCH, true, "it has ended while others wait for it");
}

/* This rank's own part, once for each gather. */
static void server_own_part(control_t *c, uint32_t channel, const control_gather_t *g)
{
    control_server_t *s = c->server;
    frame_gather_t part;
    text_t keep = {0};
    if (!g->asked || g->gathered || s->seats[0].gathered[channel]) return;
    if (!s->welcomed || control_status(c) != LH_OK) return;
    if (control_part(c, channel, &part, &keep)) {
        s->gatherings[channel].collects = g->collects;
        server_part(c, 0, &part);
    }
    text_free(&keep);
}

/* What callers of this rank ask: the same requests that other ranks send as frames. The copy is
 * made under the lock, the work without it. */
static void server_requests(control_t *c)
{
    control_server_t *s = c->server;
    (void)pthread_mutex_lock(&c->lock);
    control_request_t r = c->request;
    c->request.fail = c->request.take_in = false;
    (void)pthread_mutex_unlock(&c->lock);
    if (r.take_in) control_members_take_in(c);
    for (uint32_t i = 0; i < CONTROL_CHANNELS; i++)
        server_own_part(c, i, &r.gathers[i]);
    if (r.fail && r.peer == 0 && !server_knows_better(c, 0, r.status))
        control_tell(c, 0, r.status, true, r.reason);
    if (r.fail && r.peer != 0) server_hear(c, 0, r.peer, r.status, r.reason);
    if (!r.close || s->closing) return;
    if (r.status != LH_OK && server_knows_better(c, 0, r.status))
        return; /* asked again at the next turn */
    if (r.status != LH_OK) control_tell(c, 0, r.status, true, r.reason);
    s->closing = true;
    s->goes_on = r.goes_on;
    s->close_deadline = sys()->now_ns() + (control_status(c) == LH_OK
                                               ? c->how.join_ns
                                               : CONTROL_GOODBYE_MS * CONTROL_MS);
}

/* Whether the thread may end. Well: all have said goodbye. Otherwise: all have been told. In both
 * cases not later than the deadline, as a rank that hangs says nothing and reads nothing. */
static bool server_has_ended(control_t *c, uint64_t now)
{
    control_server_t *s = c->server;
    if (!s->closing) return false;
    const bool failed = s->refused || control_status(c) != LH_OK;
    /* Who hears of a stop closes its end: before that the kernel may still have to send it again. */
    const bool stopped = s->refused && s->stop_status != LH_OK;
    if (failed && s->close_deadline > now + CONTROL_GOODBYE_MS * CONTROL_MS)
        s->close_deadline = now + CONTROL_GOODBYE_MS * CONTROL_MS;
    if (now > s->close_deadline) return true;
    for (uint32_t r = 1; r < c->how.size; r++) {
        const peer_t *p = s->seats[r].peer;
        if (p != NULL && (stopped || (failed && conn_unsent(p->conn) > 0))) return false;
        if (!failed && !s->seats[r].departed) return false;
    }
    return true;
}

/* What is due by the clock, a few times a second. */
static void server_turn(control_t *c)
{
    control_server_t *s = c->server;
    const uint64_t now = sys()->now_ns();
    /* This process itself stood still: nobody can be blamed for that time. What strangers have said
     * meanwhile is yet to be read. */
    const bool stood_still = now - s->last_turn > 4 * CONTROL_BEAT_MS * CONTROL_MS;
    for (peer_t *p = s->peers; stood_still && p != NULL; p = p->next) {
        p->heard_ns = now;
        if (control_join_is_stranger(p)) p->since_ns = now;
    }
    s->last_turn = now;
    const uint64_t step = atomic_load_explicit(&c->told_step, memory_order_acquire);
    if (now >= s->next_beat || step != s->beat_step) {
        beat_all(c);
        s->beat_step = step;
        s->next_beat = now + CONTROL_BEAT_MS * CONTROL_MS;
    }
    control_join_turn(c, now);
    judge_silence(c, now);
    control_join_tell_missing(c, now);
    control_members_look(c, now);
    control_stop_turn(c, now);
    control_join_judge(c, now);
    judge_hearsay(c, now);
    check_departed(c);
}

/* The thread of rank 0: events, requests of this rank's callers, what is due by the clock; until
 * the end. At the end each connection gets what is queued for it and is then closed in order, so
 * that its rank reads what was said and then an end. Of an end at once heralds hear as it comes: this
 * process may be killed before it has come to its own. */
void control_server_run(control_t *c)
{
    static int wake_mark;
    control_server_t *s = c->server;
    lh_assert(s != NULL && c->how.rank == 0);
    bool over = false; /* and heralds know it */
    struct epoll_event events[EVENTS];
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = s};
    (void)epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->listener, &e);
    e.data.ptr = &wake_mark;
    (void)epoll_ctl(s->epoll, EPOLL_CTL_ADD, c->wake_fd, &e);
    s->last_turn = s->began_ns = sys()->now_ns();
    s->join_deadline = s->last_turn + c->how.join_ns;
    if (c->how.size == 1 && !control_elects(c)) control_join_finish(c);
    do {
        const int most_ms = s->rests_until != 0 ? CONTROL_EVICT_SILENT_MS : CONTROL_TICK_MS;
        const int count = epoll_wait(s->epoll, events, EVENTS, most_ms);
        for (int i = 0; i < count; i++) {
            if (events[i].data.ptr == s)
                server_accept(c);
            else if (events[i].data.ptr == &wake_mark)
                control_drain_wake(c);
            else
                server_serve(c, events[i].data.ptr);
        }
        server_requests(c);
        if (!over && control_stop_is(control_status(c))) control_members_over(c);
        over = control_stop_is(control_status(c));
        server_turn(c);
        control_sweep(c);
    } while (!server_has_ended(c, sys()->now_ns()));
    const lh_status_t end = control_status(c);
    const bool stopped = s->refused && s->stop_status != LH_OK;
    const bool done = end == LH_OK && !s->goes_on;
    if (stopped || (!s->refused && (done || control_stop_is(end)))) control_members_over(c);
    for (peer_t *p = s->peers; p != NULL; p = p->next) {
        if (conn_drive(p->conn) == LH_OK) conn_finish(p->conn);
        control_drop(s, p);
    }
    control_sweep(c);
}

/* For who started this rank and does not know which port was free. */
static lh_status_t tell_port(const control_t *c, uint16_t port)
{
    char text[16];
    if (c->how.port_fd < 0) return LH_OK;
    const int length = snprintf(text, sizeof(text), "%u\n", port);
    if (write(c->how.port_fd, text, (size_t)length) != length)
        return fail_io(errno, "cannot tell the port of rank 0");
    return LH_OK;
}

/* Listens before the thread starts, so that a port that is taken is this call's failure. Seat 0 is
 * this rank's own: it has a hello, and no connection. */
lh_status_t control_server_new(control_t *c, control_server_t **out)
{
    uint16_t port = 0;
    control_server_t *s = mem_new(sizeof(*s));
    if (s == NULL) return LH_NO_MEMORY;
    s->size = c->how.size;
    s->epoch = c->how.epoch;
    s->listener = c->how.listener;
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    s->seats = mem_array(c->how.size, sizeof(*s->seats));
    s->facts = mem_array(c->how.size, sizeof(*s->facts));
    lh_status_t status = s->seats == NULL || s->facts == NULL ? LH_NO_MEMORY : LH_OK;
    if (status == LH_OK && s->epoll < 0) status = fail_io(errno, "cannot start the control plane");
    if (status == LH_OK) status = control_join_keep_hello(s, 0, c->hello.data, c->hello.length);
    if (status == LH_OK && s->listener < 0)
        status = control_listen(c->address, c->how.port, &s->listener, &port);
    if (status == LH_OK && c->how.listener >= 0) status = control_port(s->listener, &port);
    if (status == LH_OK) status = tell_port(c, port);
    s->joined = 1;
    s->seated_ns = sys()->now_ns();
    if (status != LH_OK) {
        control_server_free(s);
        return status;
    }
    *out = s;
    return LH_OK;
}

void control_server_free(control_server_t *s)
{
    if (s == NULL) return;
    while (s->peers != NULL) {
        peer_t *p = s->peers;
        s->peers = p->next;
        conn_free(p->conn);
        mem_free(p->herald);
        mem_free(p);
    }
    for (uint32_t r = 0; s->seats != NULL && r < s->size; r++)
        mem_free(s->seats[r].hello);
    if (s->listener >= 0) (void)close(s->listener);
    if (s->epoll >= 0) (void)close(s->epoll);
    for (uint32_t i = 0; i < CONTROL_CHANNELS; i++)
        mem_free(s->gatherings[i].parts);
    mem_free(s->facts);
    mem_free(s->seats);
    mem_free(s);
}
