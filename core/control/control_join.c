/* control_join.c - how ranks come to rank 0: from a connection at its port to the welcome of all.
 *
 * A connection (peer_t) begins as a stranger: its key is not proven, and it takes one of
 * CONTROL_PENDING places for CONTROL_PROVE_MS at most. When its hello has come and fits, it gets
 * its rank's seat. When all seats are taken, facts are compared, all are welcomed or all are
 * refused, and the port is closed: from then on no connection is ever added.
 *
 * Where all places are taken the oldest that is silent makes room, so that strangers can't keep ranks out.
 * The price is that a slow rank may be let go as one of them: it dials again (control_client.c). Facts are
 * compared when the last rank has come, and not as each comes: a rank that differs may wait in vain for the
 * others, and one table names all that differ. All are refused then, as nobody knows who is right; but where
 * rank 0 and at least half of the ranks have met before, find what they found then, and agree, they are: only
 * those that were started anew and differ go, and the others wait for better ones. A rank 0 that was started anew
 * refuses all: the others could not wait for another one without ending.
 *
 * What is let in here the server's thread serves (control_server.c), which calls this file and is not
 * called by it. */
#include <control/control_join.h>

#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <control/control.h>
#include <control/control_conn.h>
#include <control/control_members.h>
#include <control/control_stop.h>

bool control_join_is_stranger(const peer_t *p)
{
    return !p->dead && p->rank == CONN_NO_RANK && p->herald == NULL;
}

/* The sentence goes out now or never: nothing is kept for a peer that is dropped. It is logged here, as whoever
 * is told by rank 0 leaves that to it. */
void control_join_refuse(control_t *c, peer_t *p, lh_status_t status, const char *sentence)
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
static bool join_is_of_epoch(const control_t *c, uint32_t expected)
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

/* Its connection has gone. */
static void seat_vacate(control_server_t *s, uint32_t rank)
{
    lh_assert(rank > 0 && s->seats[rank].peer == NULL && s->joined > 0);
    mem_free(s->seats[rank].hello);
    s->seats[rank].hello = NULL;
    s->seats[rank].departed = false;
    s->facts[rank].hello = (frame_hello_t){0};
    s->joined--;
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
    seat_vacate(s, h->rank);
    return true;
}

/* Who proves the job's key may still be wrong: of another version or size, under a number that its
 * key is not for, of an epoch that is past, or a second process for a rank that is there. */
static bool join_check_hello(control_t *c, peer_t *p, const frame_hello_t *h)
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
    else if (h->epoch < c->server->epoch && !join_is_of_epoch(c, h->epoch))
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
    control_join_refuse(c, p, LH_MISMATCH, sentence);
    return false;
}

/* A copy of the payload, as the facts point into it and are compared when all have come. */
lh_status_t control_join_keep_hello(control_server_t *s, uint32_t rank, const void *payload,
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
static void join_welcome_all(control_t *c)
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
static void join_close_door(control_t *c)
{
    control_server_t *s = c->server;
    if (control_members_lack(c)) return;
    if (s->listener >= 0) (void)close(s->listener);
    s->listener = -1;
    for (peer_t *p = s->peers; p != NULL; p = p->next)
        if (control_join_is_stranger(p)) control_lose(c, p, "");
}

/* Rank 0's own launcher may be the one that was started anew: then another rank has told which epoch
 * this is, and one that came before it may be of a past one. */
static bool join_one_epoch(control_t *c)
{
    const control_server_t *s = c->server;
    char name[CONTROL_NAME], sentence[512];
    for (uint32_t r = 0; r < c->how.size; r++) {
        const uint32_t expected = s->facts[r].hello.epoch;
        if (join_is_of_epoch(c, expected)) continue;
        if (control_members_epochs(c)) return false;
        control_rank_name(c, r, name);
        (void)snprintf(sentence, sizeof(sentence), "%s is of epoch %u of the job, others are of %u",
                       name, expected, s->epoch);
        control_end(c, LH_MISMATCH, r, sentence);
        return false;
    }
    return true;
}

/* Whether what rank 0 found is what the job runs with. Of machines that change only those count that have been at
 * the last meeting that any of them knows. */
static bool join_zero_is_right(const control_server_t *s)
{
    uint32_t newest = 0, count = 0;
    for (uint32_t r = 0; r < s->size; r++)
        if (s->facts[r].hello.met_epoch > newest) newest = s->facts[r].hello.met_epoch;
    for (uint32_t r = 0; r < s->size; r++) {
        const frame_hello_t *h = &s->facts[r].hello;
        const bool stayed = h->stayed == 1 && h->met_epoch == newest;
        if ((r == 0 && !stayed) || (stayed && !control_facts_same(&s->facts[0], &s->facts[r])))
            return false;
        count += stayed;
    }
    return 2 * count >= s->size;
}

/* "rank 2 on osaka/o1 was started anew and differs from rank 0 on tokyo/t1, which has met the others before: it is
 * refused", and in which facts. False: there is none that has a name. */
static bool join_refuse_anew(control_t *c, uint32_t rank)
{
    const control_server_t *s = c->server;
    char name[CONTROL_NAME], zero[CONTROL_NAME];
    text_t sentence = {0};
    control_rank_name(c, rank, name);
    control_rank_name(c, 0, zero);
    text_printf(&sentence,
                "%s was started anew and differs from %s, which has met the others before: it is "
                "refused",
                name, zero);
    const bool differs = !control_facts_within(&s->facts[rank], &s->facts[0], true, &sentence);
    if (differs) {
        control_join_refuse(c, s->seats[rank].peer, LH_MISMATCH,
                            sentence.failed ? "it differs from the others" : sentence.data);
        seat_vacate(c->server, rank);
    }
    text_free(&sentence);
    return differs;
}

/* Those go that were started anew, and found something else than those that have stayed. True: not all are there
 * any more. */
static bool join_refuses_anew(control_t *c)
{
    control_server_t *s = c->server;
    bool any = false;
    if (!join_zero_is_right(s)) return false;
    for (uint32_t r = 1; r < s->size; r++)
        if (s->seats[r].peer != NULL && !control_facts_same(&s->facts[0], &s->facts[r]))
            any |= join_refuse_anew(c, r);
    if (!any) return false;
    s->join_deadline = sys()->now_ns() + c->how.join_ns; /* a better one may come */
    s->epoch = c->how.epoch;
    for (uint32_t r = 0; r < s->size; r++)
        if (s->facts[r].hello.epoch > s->epoch) s->epoch = s->facts[r].hello.epoch;
    return true;
}

/* All are there: they compare what they found, and start together or not at all. */
void control_join_finish(control_t *c)
{
    text_t table = {0};
    if (control_stop_ends(c) || !control_members_meet(c) || join_refuses_anew(c)) return;
    join_close_door(c);
    if (!join_one_epoch(c)) return;
    text_append(&table, "ranks differ; nothing was started");
    if (control_facts_agree(c->server->facts, c->how.size, &table))
        join_welcome_all(c);
    else
        control_end(c, LH_MISMATCH, 0, table.failed ? "ranks differ" : table.data);
    text_free(&table);
}

/* The address at which the others reach this machine, for transports that listen: as a connection
 * that came in tells it, which no look at the machine's own interfaces could. Of several
 * connections one through which other machines come. */
static void join_note_address(control_server_t *s, const peer_t *p)
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
static void join_beat_first(const control_t *c, peer_t *p)
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
void control_join_hello(control_t *c, peer_t *p, const frame_t *f)
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
    if (control_members_hello(c, p, &h, f) || !join_check_hello(c, p, &h)) return;
    if (control_join_keep_hello(s, h.rank, f->payload, f->length) != LH_OK) {
        control_end(c, LH_NO_MEMORY, 0, fail_reason());
        return;
    }
    s->pending--;
    p->rank = h.rank;
    s->seats[h.rank].peer = p;
    s->seats[h.rank].far = strcmp(h.site, c->site) != 0;
    if (h.epoch > s->epoch) s->epoch = h.epoch;
    join_note_address(s, p);
    atomic_fetch_add(&c->handshakes, 1);
    join_beat_first(c, p);
    s->seated_ns = sys()->now_ns();
    if (++s->joined == c->how.size) control_join_finish(c);
}

/* The oldest of the connections without a seat that have greeted, or have not; NULL: there is none.
 * A walk over all: there are CONTROL_PENDING strangers at most. */
static peer_t *join_oldest_pending(const control_server_t *s, bool greeted)
{
    peer_t *oldest = NULL;
    for (peer_t *p = s->peers; p != NULL; p = p->next)
        if (control_join_is_stranger(p) && conn_has_greeted(p->conn) == greeted &&
            (oldest == NULL || p->since_ns < oldest->since_ns))
            oldest = p;
    return oldest;
}

/* Whether one more connection may come. Who is silent makes room first: a rank greets as soon as it
 * has a connection. A rank that was so slow that it had to make room dials again (control_client.c). */
static bool join_make_room(control_t *c)
{
    static const uint64_t most_ms[] = {CONTROL_EVICT_SILENT_MS, CONTROL_EVICT_MS};
    const uint64_t now = sys()->now_ns();
    if (c->server->pending < CONTROL_PENDING) return true;
    for (uint32_t greeted = 0; greeted < 2; greeted++) {
        peer_t *p = join_oldest_pending(c->server, greeted != 0);
        if (p == NULL || now - p->since_ns < most_ms[greeted] * CONTROL_MS) continue;
        control_lose(c, p, "");
        return true;
    }
    return false;
}

/* A port at which somebody waits wakes the thread at once. Where nobody can be taken in, for want
 * of a place or a descriptor, it is looked at again when a silent one may make room; 0: now. */
static void join_rests(control_server_t *s, uint64_t until)
{
    struct epoll_event e = {.events = until == 0 ? EPOLLIN : 0u, .data.ptr = s};
    s->rests_until = until;
    if (s->listener >= 0) (void)epoll_ctl(s->epoll, EPOLL_CTL_MOD, s->listener, &e);
}

peer_t *control_join_accept(control_t *c)
{
    control_server_t *s = c->server;
    const uint64_t rest = CONTROL_EVICT_SILENT_MS * CONTROL_MS;
    int fd;
    if (s->listener < 0) return NULL;
    const bool room = join_make_room(c);
    if (!room || control_accept(s->listener, control_outage_ns(c), &fd) != LH_OK) {
        if (!room || errno != EAGAIN) join_rests(s, sys()->now_ns() + rest);
        return NULL;
    }
    peer_t *p = mem_new(sizeof(*p));
    if (p == NULL || conn_new(c->tls, fd, CONN_NO_RANK, FRAME_SMALL, &p->conn) != LH_OK) {
        if (p == NULL) (void)close(fd);
        mem_free(p);
        return NULL;
    }
    p->rank = CONN_NO_RANK;
    p->machine = MEMBERS_NONE;
    p->since_ns = p->heard_ns = sys()->now_ns();
    p->next = s->peers;
    s->peers = p;
    s->pending++;
    control_watch(s, p);
    return p;
}

void control_join_append_missing(const control_t *c, text_t *out)
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
void control_join_tell_missing(control_t *c, uint64_t now)
{
    control_server_t *s = c->server;
    text_t sentence = {0};
    uint16_t port = 0;
    if (s->welcomed || s->refused || control_elects(c) || s->joined == c->how.size) return;
    if (!control_wait_due(&s->joins, now)) return;
    if (control_port(s->listener, &port) != LH_OK) fail_clear();
    text_printf(&sentence, "waiting for ");
    control_join_append_missing(c, &sentence);
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
void control_join_judge(control_t *c, uint64_t now)
{
    control_server_t *s = c->server;
    const control_members_t *m = c->how.members;
    text_t sentence = {0};
    if (s->welcomed || s->refused || now < s->join_deadline || control_members_judge(c, now))
        return;
    if (m != NULL && m->told != NULL) atomic_store(&m->told->lacked, 1);
    text_printf(&sentence, "%u of %u ranks have come in %llu s; missing: ", s->joined, c->how.size,
                (unsigned long long)(c->how.join_ns / 1000000000u));
    control_join_append_missing(c, &sentence);
    const uint64_t strangers = atomic_load(&c->strangers);
    if (strangers > 0)
        text_printf(&sentence, "; %llu connection%s did not prove to have the job's key",
                    (unsigned long long)strangers, strangers == 1 ? "" : "s");
    control_end(c, LH_TIMED_OUT, 0, sentence.failed ? "ranks are missing" : sentence.data);
    text_free(&sentence);
}

/* Who does not prove its key in time makes room. */
static void join_judge_strangers(control_t *c, uint64_t now)
{
    for (peer_t *p = c->server->peers; p != NULL; p = p->next)
        if (control_join_is_stranger(p) && now - p->since_ns > CONTROL_PROVE_MS * CONTROL_MS)
            control_lose(c, p, "");
}

void control_join_turn(control_t *c, uint64_t now)
{
    control_server_t *s = c->server;
    if (s->rests_until != 0 && now >= s->rests_until) join_rests(s, 0);
    join_judge_strangers(c, now);
}
