/* control_server.c - rank 0's end of the star: takes ranks in, hears them, and ends the job for all
 * when one is lost.
 *
 * One thread with one epoll set; nothing here waits but for the next event, and nothing blocks on a
 * single rank: what can't be sent now is queued and sent when its socket takes it. So a rank that
 * does not read can't hold up the news that another one died.
 *
 * A connection (peer_t) begins as a stranger: its key is not proven, and it takes one of
 * CONTROL_PENDING places for CONTROL_PROVE_MS at most. When its hello has come and fits, it gets
 * its rank's seat. When all seats are taken, facts are compared, all are welcomed or all are
 * refused, and the port is closed: from then on no connection is ever added.
 *
 * A connection that ends or breaks is not freed where that is seen, as events of the same turn may
 * still name it: it is marked dead, and freed at the end of the turn. */
#include <control/control_server.h>

#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <control/control_conn.h>
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

/* Of a connection that is neither a rank's nor a herald's, so far. */
static bool is_stranger(const peer_t *p)
{
    return !p->dead && p->rank == CONN_NO_RANK && p->herald == NULL;
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

/* Says no to one connection, which is then dropped; the others don't notice. The sentence goes out
 * now or never: nothing is kept for a peer that is dropped. It is logged here, as whoever is told by
 * rank 0 leaves that to it. */
static void server_refuse(control_t *c, peer_t *p, lh_status_t status, const char *sentence)
{
    text_t payload = {0};
    log_line(LH_LOG_WARN, "refused: %s", sentence);
    frame_write_notice(&payload, &(frame_notice_t){.status = status, .reason = sentence});
    conn_put(p->conn, FRAME_REFUSE, &payload);
    text_free(&payload);
    if (conn_drive(p->conn) == LH_OK) conn_finish(p->conn);
    control_drop(c->server, p);
}

/* Whether a rank that expects this epoch may be of a meeting of that one. A launcher that was started
 * anew has met nobody: its ranks come in any. All others have been of the epoch before, as every
 * meeting takes all ranks; but a link may have been cut while the last welcome was on its way, and
 * whom that did not reach is one behind. Who is further behind is left over from a past meeting.
 * Machines that change meet anew instead (control_members_epochs). */
static bool is_of_epoch(const control_t *c, uint32_t expected)
{
    const control_members_t *m = c->how.members;
    const uint32_t epoch = c->server->epoch;
    const bool cut = (m == NULL || !members_change(m->job)) && expected + 1 == epoch;
    return expected <= 1 || expected == epoch || cut;
}

/* Since when nothing was heard of the process that a rank has here, where another one of the same machine says
 * hello for it. 0: no other is to come. */
static uint64_t seat_silence_ns(const control_t *c, const frame_hello_t *h)
{
    const control_server_t *s = c->server;
    const peer_t *p = s->seats[h->rank].peer;
    const frame_hello_t *first = &s->facts[h->rank].hello;
    const bool same = p != NULL && strcmp(first->site, h->site) == 0 &&
                      strcmp(first->host, h->host) == 0;
    return same ? sys()->now_ns() - p->heard_ns : 0;
}

/* Before the welcome a rank of another site may be silent for as long as a link may be cut. If another process of
 * its machine comes meanwhile, that machine was started anew, or its end of the connection is gone and it knows:
 * the first one gives way. Behind the welcome the job ends by that, once the first one was silent for too long. */
static bool seat_gives_way(control_t *c, const frame_hello_t *h)
{
    control_server_t *s = c->server;
    seat_t *seat = &s->seats[h->rank];
    const uint64_t silence = seat_silence_ns(c, h);
    char name[CONTROL_NAME];
    if (s->welcomed || silence < CONTROL_SILENCE_MS * CONTROL_MS) return false;
    control_rank_name(c, h->rank, name);
    log_line(LH_LOG_WARN, "%s (process %u) was silent for %.1f s: process %u takes its place", name,
             s->facts[h->rank].hello.pid, (double)silence * 1e-9, h->pid);
    control_drop(s, seat->peer);
    mem_free(seat->hello);
    seat->hello = NULL;
    s->facts[h->rank].hello = (frame_hello_t){0};
    s->joined--;
    return true;
}

/* Who proves the job's key may still be wrong: of another version or size, under a number that its
 * key is not for, of an epoch that is past, or a second process for a rank that is there. */
static bool check_hello(control_t *c, peer_t *p, const frame_hello_t *h)
{
    char sentence[512], name[CONTROL_NAME];
    sentence[0] = '\0';
    control_name(h->rank, h->site, h->host, name);
    if (h->version != FRAME_VERSION)
        (void)snprintf(sentence, sizeof(sentence),
                       "%s speaks version %u of the control plane, rank 0 version %d", name,
                       h->version, FRAME_VERSION);
    else if (h->size != c->how.size)
        (void)snprintf(sentence, sizeof(sentence), "%s counts %u ranks, rank 0 on %s counts %u",
                       name, h->size, c->host, c->how.size);
    else if (h->rank >= c->how.size || h->rank != conn_rank(p->conn))
        (void)snprintf(sentence, sizeof(sentence), "%s has a key that is not its own", name);
    else if (h->epoch < c->server->epoch && !is_of_epoch(c, h->epoch))
        (void)snprintf(sentence, sizeof(sentence),
                       "%s is of epoch %u of the job, which is past: rank 0 on %s is of epoch %u",
                       name, h->epoch, c->host, c->server->epoch);
    else if (h->rank == 0 || (c->server->seats[h->rank].hello != NULL && !seat_gives_way(c, h))) {
        const frame_hello_t *first = &c->server->facts[h->rank].hello;
        char first_name[CONTROL_NAME];
        /* Too long for one that is well, and too short to be sure; or the job has ended, and who comes belongs to the
         * next meeting: whoever is dropped without a word comes again. */
        const bool doubted = seat_silence_ns(c, h) > 4 * CONTROL_BEAT_MS * CONTROL_MS;
        if (h->rank != 0 && (doubted || control_status(c) != LH_OK)) {
            control_drop(c->server, p);
            return false;
        }
        control_rank_name(c, h->rank, first_name);
        (void)snprintf(sentence, sizeof(sentence),
                       "%s is there already, as process %u; process %u on %s is one too many",
                       first_name, first->pid, h->pid, h->host);
    }
    if (sentence[0] == '\0') return true;
    server_refuse(c, p, LH_MISMATCH, sentence);
    return false;
}

/* A copy of the payload, as the facts point into it and are compared when all have come. */
static lh_status_t keep_hello(control_server_t *s, uint32_t rank, const void *payload,
                              size_t length)
{
    lh_assert(rank < s->size && s->seats[rank].hello == NULL);
    char *copy = mem_new(length);
    if (copy == NULL) return LH_NO_MEMORY;
    memcpy(copy, payload, length);
    const frame_t f = {FRAME_HELLO, (const unsigned char *)copy, length};
    s->seats[rank].hello = copy;
    return frame_read_hello(&f, &s->facts[rank].hello);
}

/* Places of all ranks to all ranks, one frame for all. The job's number is random: what is left of
 * another run in a shared folder or in shared memory has another one. */
static void welcome_all(control_t *c)
{
    control_server_t *s = c->server;
    text_t payload = {0};
    const uint32_t size = c->how.size;
    frame_welcome_t welcome = {.epoch = s->epoch, .size = size, .address = s->address};
    frame_place_t *places = mem_array(size, sizeof(*places));
    lh_status_t status = places == NULL ? LH_NO_MEMORY : LH_OK;
    if (status == LH_OK && sys()->random(&welcome.job, sizeof(welcome.job)) != 0)
        status = fail_io(errno, "no random bytes for the job's number");
    frame_put_u64(&payload, welcome.job);
    frame_put_u32(&payload, welcome.epoch);
    frame_put_u32(&payload, size);
    frame_put_text(&payload, welcome.address, FRAME_FACT_TEXT);
    for (uint32_t r = 0; status == LH_OK && r < size; r++) {
        const frame_hello_t *h = &s->facts[r].hello;
        places[r] = (frame_place_t){h->pid, h->site, h->host};
        frame_put_u32(&payload, h->pid);
        frame_put_text(&payload, h->site, FRAME_FACT_TEXT);
        frame_put_text(&payload, h->host, FRAME_FACT_TEXT);
    }
    if (status == LH_OK) status = text_status(&payload);
    if (status == LH_OK) status = control_make_world(0, places, &welcome, &c->world);
    if (status == LH_OK) {
        control_put_all(c, FRAME_WELCOME, &payload);
        s->welcomed = true;
        control_members_met(c);
        control_opened(c, LH_OK, "");
    } else {
        control_end(c, status, 0, fail_reason());
    }
    text_free(&payload);
    mem_free(places);
}

/* Nobody is let in from here on: the port is closed, and strangers that wait are let go. Where a host
 * is gone or replaced it may come back, and the port stays open for its herald. */
static void close_door(control_t *c)
{
    control_server_t *s = c->server;
    if (control_members_lack(c)) return;
    if (s->listener >= 0) (void)close(s->listener);
    s->listener = -1;
    for (peer_t *p = s->peers; p != NULL; p = p->next)
        if (is_stranger(p)) control_lose(c, p, "");
}

/* Rank 0's own launcher may be the one that was started anew: then another rank has told which epoch
 * this is, and one that came before it may be of a past one. */
static bool one_epoch(control_t *c)
{
    const control_server_t *s = c->server;
    char name[CONTROL_NAME], sentence[512];
    for (uint32_t r = 0; r < c->how.size; r++) {
        const uint32_t expected = s->facts[r].hello.epoch;
        if (is_of_epoch(c, expected)) continue;
        if (control_members_epochs(c)) return false;
        control_rank_name(c, r, name);
        (void)snprintf(sentence, sizeof(sentence), "%s is of epoch %u of the job, others are of %u",
                       name, expected, s->epoch);
        control_end(c, LH_MISMATCH, r, sentence);
        return false;
    }
    return true;
}

/* All are there: they compare what they found, and start together or not at all. */
void control_finish_join(control_t *c)
{
    text_t table = {0};
    if (control_stop_ends(c) || !control_members_meet(c)) return;
    close_door(c);
    if (!one_epoch(c)) return;
    text_append(&table, "ranks differ; nothing was started");
    if (control_facts_agree(c->server->facts, c->how.size, &table))
        welcome_all(c);
    else
        control_end(c, LH_MISMATCH, 0, table.failed ? "ranks differ" : table.data);
    text_free(&table);
}

/* The address at which the others reach this machine, for transports that listen: as a connection
 * that came in tells it, which no look at the machine's own interfaces could. Of several
 * connections one through which other machines come. */
static void note_address(control_server_t *s, const peer_t *p)
{
    char address[CONTROL_ADDRESS];
    const bool inside = control_local(conn_fd(p->conn), address);
    if (s->address[0] == '\0' || (s->reached_inside && !inside)) {
        memcpy(s->address, address, sizeof(address));
        s->reached_inside = inside;
    }
}

/* The first heartbeat does not wait for its time: it tells the rank that it is in. Whose connection ends
 * before a word of this one dials again (control_client.c). */
static void beat_first(const control_t *c, peer_t *p)
{
    progress_t progress;
    text_t payload = {0};
    control_progress_read(c->word, &progress);
    frame_write_beat(&payload, &progress);
    control_put(c->server, p, FRAME_BEAT, &payload);
    text_free(&payload);
}

/* A rank takes its seat. Only now does the connection count as a rank's, and from here on a cut of its
 * link ends the job, or does not, by where it is. */
static void take_hello(control_t *c, peer_t *p, const frame_t *f)
{
    control_server_t *s = c->server;
    frame_hello_t h;
    /* All were refused: it belongs to the next meeting, and dials again. */
    if (s->refused) {
        control_drop(s, p);
        return;
    }
    if (frame_read_hello(f, &h) != LH_OK) {
        control_lose(c, p, fail_reason());
        return;
    }
    if (control_members_hello(c, p, &h, f) || !check_hello(c, p, &h)) return;
    if (keep_hello(s, h.rank, f->payload, f->length) != LH_OK) {
        control_end(c, LH_NO_MEMORY, 0, fail_reason());
        return;
    }
    s->pending--;
    p->rank = h.rank;
    s->seats[h.rank].peer = p;
    s->seats[h.rank].far = strcmp(h.site, c->site) != 0;
    if (h.epoch > s->epoch) s->epoch = h.epoch;
    note_address(s, p);
    atomic_fetch_add(&c->handshakes, 1);
    beat_first(c, p);
    if (++s->joined == c->how.size) control_finish_join(c);
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
            take_hello(c, p, f);
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
    else
        control_lose(c, p, ended);
}

/* The oldest of the connections without a seat that have greeted, or have not; NULL: there is none.
 * A walk over all: there are CONTROL_PENDING strangers at most. */
static peer_t *oldest_pending(const control_server_t *s, bool greeted)
{
    peer_t *oldest = NULL;
    for (peer_t *p = s->peers; p != NULL; p = p->next)
        if (is_stranger(p) && conn_has_greeted(p->conn) == greeted &&
            (oldest == NULL || p->since_ns < oldest->since_ns))
            oldest = p;
    return oldest;
}

/* Whether one more connection may come. Who is silent makes room first: a rank greets as soon as it
 * has a connection. A rank that was so slow that it had to make room dials again (control_client.c). */
static bool server_make_room(control_t *c)
{
    static const uint64_t most_ms[] = {CONTROL_EVICT_SILENT_MS, CONTROL_EVICT_MS};
    const uint64_t now = sys()->now_ns();
    if (c->server->pending < CONTROL_PENDING) return true;
    for (uint32_t greeted = 0; greeted < 2; greeted++) {
        peer_t *p = oldest_pending(c->server, greeted != 0);
        if (p == NULL || now - p->since_ns < most_ms[greeted] * CONTROL_MS) continue;
        control_lose(c, p, "");
        return true;
    }
    return false;
}

/* A port at which somebody waits wakes the thread at once. Where nobody can be taken in, for want
 * of a place or a descriptor, it is looked at again when a silent one may make room; 0: now. */
static void server_rests(control_server_t *s, uint64_t until)
{
    struct epoll_event e = {.events = until == 0 ? EPOLLIN : 0u, .data.ptr = s};
    s->rests_until = until;
    if (s->listener >= 0) (void)epoll_ctl(s->epoll, EPOLL_CTL_MOD, s->listener, &e);
}

/* Takes in what waits at the port, as long as there is room. A connection is served at once: it has
 * mostly said something while it waited in the queue. */
static void accept_peers(control_t *c)
{
    control_server_t *s = c->server;
    const uint64_t rest = CONTROL_EVICT_SILENT_MS * CONTROL_MS;
    int fd;
    for (uint32_t i = 0; i < EVENTS && s->listener >= 0; i++) {
        const bool room = server_make_room(c);
        if (!room || control_accept(s->listener, control_outage_ns(c), &fd) != LH_OK) {
            if (!room || errno != EAGAIN) server_rests(s, sys()->now_ns() + rest);
            return;
        }
        peer_t *p = mem_new(sizeof(*p));
        if (p == NULL || conn_new(c->tls, fd, CONN_NO_RANK, FRAME_SMALL, &p->conn) != LH_OK) {
            if (p == NULL) (void)close(fd);
            mem_free(p);
            return;
        }
        p->rank = CONN_NO_RANK;
        p->machine = MEMBERS_NONE;
        p->since_ns = p->heard_ns = sys()->now_ns();
        p->next = s->peers;
        s->peers = p;
        s->pending++;
        control_watch(s, p);
        server_serve(c, p); /* what it said while it waited in the queue */
    }
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

void control_append_missing(const control_t *c, text_t *out)
{
    bool *missing = mem_array(c->how.size, sizeof(*missing));
    for (uint32_t r = 0; missing != NULL && r < c->how.size; r++)
        missing[r] = c->server->seats[r].hello == NULL;
    if (missing != NULL) world_ranks_text(c->how.plan, missing, out);
    out->failed = out->failed || missing == NULL;
    mem_free(missing);
}

/* Now and then, before all have come: who is waited for, on this terminal and those of the ranks
 * that wait. */
static void tell_missing(control_t *c, uint64_t now)
{
    control_server_t *s = c->server;
    text_t sentence = {0};
    uint16_t port = 0;
    if (s->welcomed || s->refused || control_elects(c) || s->joined == c->how.size) return;
    if (!control_wait_due(&s->joins, now)) return;
    if (control_port(s->listener, &port) != LH_OK) fail_clear();
    text_printf(&sentence, "waiting for ");
    control_append_missing(c, &sentence);
    text_printf(&sentence, " since %llu s, at %s, port %u",
                (unsigned long long)((now - s->joins.since) / 1000000000u), c->address, port);
    if (!sentence.failed) {
        log_line(LH_LOG_WARN, "%s", sentence.data);
        control_notice(c, FRAME_WAIT, LH_OK, 0, sentence.data);
    }
    text_free(&sentence);
}

/* Too long: the job does not start. Strangers are named as well, as a key that differs between
 * machines looks from here like a rank that never came. */
static void judge_join(control_t *c, uint64_t now)
{
    control_server_t *s = c->server;
    text_t sentence = {0};
    if (s->welcomed || s->refused || now < s->join_deadline || control_members_judge(c, now))
        return;
    text_printf(&sentence, "%u of %u ranks have come in %llu s; missing: ", s->joined, c->how.size,
                (unsigned long long)(c->how.join_ns / 1000000000u));
    control_append_missing(c, &sentence);
    const uint64_t strangers = atomic_load(&c->strangers);
    if (strangers > 0)
        text_printf(&sentence, "; %llu connection%s did not prove to have the job's key",
                    (unsigned long long)strangers, strangers == 1 ? "" : "s");
    control_end(c, LH_TIMED_OUT, 0, sentence.failed ? "ranks are missing" : sentence.data);
    text_free(&sentence);
}

/* Who does not prove its key in time makes room. */
static void judge_strangers(control_t *c, uint64_t now)
{
    for (peer_t *p = c->server->peers; p != NULL; p = p->next)
        if (is_stranger(p) && now - p->since_ns > CONTROL_PROVE_MS * CONTROL_MS)
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
        if (is_stranger(p)) p->since_ns = now;
    }
    s->last_turn = now;
    if (s->rests_until != 0 && now >= s->rests_until) server_rests(s, 0);
    const uint64_t step = atomic_load_explicit(&c->told_step, memory_order_acquire);
    if (now >= s->next_beat || step != s->beat_step) {
        beat_all(c);
        s->beat_step = step;
        s->next_beat = now + CONTROL_BEAT_MS * CONTROL_MS;
    }
    judge_strangers(c, now);
    judge_silence(c, now);
    tell_missing(c, now);
    control_members_look(c, now);
    control_stop_turn(c, now);
    judge_join(c, now);
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
    if (c->how.size == 1 && !control_elects(c)) control_finish_join(c);
    do {
        const int most_ms = s->rests_until != 0 ? CONTROL_EVICT_SILENT_MS : CONTROL_TICK_MS;
        const int count = epoll_wait(s->epoll, events, EVENTS, most_ms);
        for (int i = 0; i < count; i++) {
            if (events[i].data.ptr == s)
                accept_peers(c);
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
    if (stopped || (!s->refused && (end == LH_OK || control_stop_is(end)))) control_members_over(c);
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
    if (status == LH_OK) status = keep_hello(s, 0, c->hello.data, c->hello.length);
    if (status == LH_OK && s->listener < 0)
        status = control_listen(c->address, c->how.port, &s->listener, &port);
    if (status == LH_OK && c->how.listener >= 0) status = control_port(s->listener, &port);
    if (status == LH_OK) status = tell_port(c, port);
    s->joined = 1;
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
