/* control_state.c - what the threads of both ends of the star do with what they share with callers,
 * and rank 0's connections and seats.
 *
 * Callers of the functions below are the plane's thread, but for control_wake. Of what a caller may
 * see, everything is changed under the lock, and the condition is told; so a caller never misses a
 * change between its look and its wait. */
#include <control/control_state.h>

#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <base/memory.h>
#include <base/sys.h>

/* Whoever has left a request calls this. The eventfd counts, so that two requests in a row wake the
 * thread once, and a wake before the thread waits is not lost. */
void control_wake(const control_t *c)
{
    const uint64_t one = 1;
    (void)!write(c->wake_fd, &one, sizeof(one));
}

void control_drain_wake(const control_t *c)
{
    uint64_t count;
    (void)!read(c->wake_fd, &count, sizeof(count));
}

/* The thread's first answer: all have met, or why not. Only the first one counts: what follows a
 * start that failed is its consequence. */
void control_opened(control_t *c, lh_status_t status, const char *reason)
{
    (void)pthread_mutex_lock(&c->lock);
    if (!c->open_done) {
        c->open_done = true;
        c->open_status = status;
        (void)snprintf(c->open_reason, sizeof(c->open_reason), "%s", reason);
    }
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
}

/* The job ends for this reason. Called by the thread alone, so that between the look at the status
 * and its store nobody else can decide; the sentence is written before the status that makes it
 * visible. The descriptor fail_fd becomes readable and stays so, for those who wait in poll(). */
void control_decide(control_t *c, lh_status_t status, const char *sentence)
{
    const uint64_t one = 1;
    if (atomic_load(&c->status) != LH_OK) return;
    (void)pthread_mutex_lock(&c->lock);
    (void)snprintf(c->failure, sizeof(c->failure), "%s", sentence);
    atomic_store(&c->status, status == LH_OK ? LH_PEER_LOST : status);
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
    (void)!write(c->fail_fd, &one, sizeof(one));
}

/* The row of a launcher's board may be what it is written to: the status comes last, as that says
 * that the rest is there, also to whoever reads it after this process was killed. */
void control_blame(control_t *c, const control_culprit_t *whom)
{
    control_culprit_t *to = c->how.culprit;
    if (to == NULL || to->status != LH_OK) return;
    to->rank = whom->rank;
    to->step = whom->step;
    to->told = whom->told;
    atomic_thread_fence(memory_order_release);
    to->status = whom->status == LH_OK ? LH_PEER_LOST : whom->status;
}

/* What came from all ranks goes to the caller that waits for it; of what rank 0 alone asks for the others
 * hear that it is there. An answer of another size is not what was asked for; it is left, and the round
 * ends when rank 0 finds out who differs. */
void control_answer(control_t *c, uint32_t channel, const void *all, size_t bytes)
{
    lh_assert(channel < CONTROL_CHANNELS);
    (void)pthread_mutex_lock(&c->lock);
    control_gather_t *g = &c->request.gathers[channel];
    const size_t due = g->collects && c->server == NULL ? 0 : g->bytes * c->how.size;
    if (g->asked && !g->gathered && bytes == due) {
        if (bytes > 0) memcpy(g->all, all, bytes);
        g->gathered = true;
    }
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
}

/* Where there is no memory for it nobody would ever have this rank's part: it fails, as the next look at
 * requests finds. Under the lock. */
static void part_is_missing(control_t *c)
{
    control_request_t *r = &c->request;
    if (r->failed) return;
    r->fail = r->failed = true;
    r->peer = c->how.rank;
    r->status = LH_NO_MEMORY;
    (void)snprintf(r->reason, sizeof(r->reason), "%s", fail_reason());
}

/* The copy is made under the lock, as the caller may go with its memory as soon as it has that: when the job
 * ends, or when the channel is left. */
bool control_part(control_t *c, uint32_t channel, frame_gather_t *out, text_t *keep)
{
    lh_assert(channel < CONTROL_CHANNELS);
    (void)pthread_mutex_lock(&c->lock);
    const control_gather_t *g = &c->request.gathers[channel];
    const bool waits = g->asked && !g->gathered;
    if (waits) {
        text_append_n(keep, g->where, sizeof(g->where));
        if (g->bytes > 0) text_append_n(keep, g->mine, g->bytes);
        *out = (frame_gather_t){
            .channel = channel, .round = g->round, .length = (uint32_t)g->bytes};
    }
    if (keep->failed) part_is_missing(c);
    (void)pthread_mutex_unlock(&c->lock);
    if (!waits || keep->failed) return false;
    out->where = keep->data;
    out->bytes = (const unsigned char *)keep->data + sizeof(g->where);
    return true;
}

/* A link between sites may be cut for a while without the job ending, as the INI's outage of such
 * links says; inside a site, and where the INI says nothing, silence counts after
 * CONTROL_SILENCE_MS. */
uint64_t control_outage_ns(const control_t *c)
{
    return c->how.outage_ns != 0 ? c->how.outage_ns : CONTROL_SILENCE_MS * CONTROL_MS;
}

/* Adds what a connection has moved since it was counted last. Before a connection is freed and
 * after each time it was served, so that the sums are right at any moment. */
void control_count(control_t *c, control_conn_t *conn)
{
    uint64_t sent, received;
    conn_traffic(conn, &sent, &received);
    atomic_fetch_add(&c->bytes_sent, sent);
    atomic_fetch_add(&c->bytes_received, received);
}

/* The parts that are not known are left out, with what would stand between them. */
void control_name(uint32_t rank, const char *site, const char *host, char out[CONTROL_NAME])
{
    (void)snprintf(out, CONTROL_NAME, "rank %u%s%s%s%s", rank, host[0] != '\0' ? " on " : "",
                   host[0] != '\0' ? site : "", host[0] != '\0' && site[0] != '\0' ? "/" : "",
                   host);
}

/* Every rank builds its world of the same places in the same order, so that all number sites and
 * nodes alike without another message. Names longer than the world's fields are cut. */
lh_status_t control_make_world(uint32_t rank, const frame_place_t *places,
                               const frame_welcome_t *welcome, world_t **out)
{
    lh_assert(rank < welcome->size);
    world_t *w;
    const lh_status_t status = world_new(rank, welcome->size, &w);
    if (status != LH_OK) return status;
    for (uint32_t i = 0; i < welcome->size; i++) {
        world_rank_t *r = &w->ranks[i];
        r->pid = places[i].pid;
        (void)snprintf(r->host, sizeof(r->host), "%.*s", WORLD_HOST_NAME - 1, places[i].host);
        (void)snprintf(r->site_name, sizeof(r->site_name), "%.*s", WORLD_SITE_NAME - 1,
                       places[i].site);
    }
    world_number(w);
    w->row.epoch = welcome->epoch;
    w->row.job = welcome->job;
    (void)snprintf(w->row.address, sizeof(w->row.address), "%.63s", welcome->address);
    *out = w;
    return LH_OK;
}

/* ---- rank 0 ---------------------------------------------------------------------------------- */

/* What epoll is to tell of a connection. A call only where that has changed. */
void control_watch(control_server_t *s, peer_t *p)
{
    const uint32_t events = EPOLLIN | (conn_wants_write(p->conn) ? EPOLLOUT : 0u);
    struct epoll_event e = {.events = events, .data.ptr = p};
    if (events == p->events) return;
    if (epoll_ctl(s->epoll, p->events == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, conn_fd(p->conn), &e) ==
        0)
        p->events = events;
}

/* No more is done with this connection; sweep frees it. Its seat stays, without a peer. */
void control_drop(control_server_t *s, peer_t *p)
{
    if (p->dead) return;
    p->dead = true;
    if (p->herald != NULL) {
        mem_free(p->herald);
        p->herald = NULL;
    } else if (p->rank == CONN_NO_RANK)
        s->pending--;
    else if (s->seats[p->rank].peer == p)
        s->seats[p->rank].peer = NULL;
    (void)epoll_ctl(s->epoll, EPOLL_CTL_DEL, conn_fd(p->conn), NULL);
}

/* Frees the connections that died in this turn. */
void control_sweep(control_t *c)
{
    for (peer_t **at = &c->server->peers; *at != NULL;) {
        peer_t *p = *at;
        if (!p->dead) {
            at = &p->next;
            continue;
        }
        *at = p->next;
        control_count(c, p->conn);
        conn_free(p->conn);
        mem_free(p);
    }
}

/* Queues a frame for a peer, which may be NULL or dead: then nothing happens. What can't be sent
 * now is sent when epoll says so; an end is seen when it is read. */
void control_put(control_server_t *s, peer_t *p, uint32_t type, const text_t *payload)
{
    if (p == NULL || p->dead) return;
    conn_put(p->conn, type, payload);
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT, .data.ptr = p};
    if (epoll_ctl(s->epoll, EPOLL_CTL_MOD, conn_fd(p->conn), &e) == 0) p->events = e.events;
}

/* The same to all that have joined, but for this rank. */
void control_put_all(control_t *c, uint32_t type, const text_t *payload)
{
    for (uint32_t r = 1; r < c->how.size; r++)
        control_put(c->server, c->server->seats[r].peer, type, payload);
}

/* A notice to all that have joined. */
void control_notice(control_t *c, uint32_t type, lh_status_t status, uint32_t rank,
                    const char *reason)
{
    text_t payload = {0};
    const frame_notice_t notice = {.status = status,
                                   .rank = rank,
                                   .step = c->server->seats[rank].progress.step,
                                   .reason = reason};
    frame_write_notice(&payload, &notice);
    control_put_all(c, type, &payload);
    text_free(&payload);
}

/* The job ends for all with this sentence. Before the welcome nobody may start: all are refused,
 * and the thread ends soon. After it all are told, and go on until they notice. */
void control_end(control_t *c, lh_status_t status, uint32_t rank, const char *sentence)
{
    control_server_t *s = c->server;
    if (s->refused || atomic_load(&c->status) != LH_OK) return;
    /* A machine that was asked to stop may end before all that are on their way have come. */
    if (!s->welcomed && s->stop_status != LH_OK) {
        status = s->stop_status;
        rank = s->stop_rank;
        sentence = s->stop;
    }
    lh_assert(rank < c->how.size);
    control_blame(c, &(control_culprit_t){
                         .rank = rank, .status = status, .step = s->seats[rank].progress.step});
    /* Whoever comes from here on belongs to the next meeting. */
    if (s->listener >= 0) (void)close(s->listener);
    s->listener = -1;
    if (s->welcomed) {
        control_notice(c, FRAME_END, status, rank, sentence);
        control_decide(c, status, sentence);
        return;
    }
    s->refused = true;
    s->closing = true;
    s->close_deadline = sys()->now_ns() + CONTROL_GOODBYE_MS * CONTROL_MS;
    control_notice(c, FRAME_REFUSE, status, rank, sentence);
    control_opened(c, status, sentence);
}

/* "rank 3 on osaka/o1", or "rank 3" before its hello has come. */
void control_rank_name(const control_t *c, uint32_t rank, char out[CONTROL_NAME])
{
    lh_assert(rank < c->how.size);
    const frame_hello_t *h = &c->server->facts[rank].hello;
    control_name(rank, h->site == NULL ? "" : h->site, h->host == NULL ? "" : h->host, out);
}

/* "rank 3 on osaka/o1 (process 4711) was lost in step 41, all-reduce of gradients 3: REASON". */
void control_tell(control_t *c, uint32_t rank, lh_status_t status, bool by_itself,
                  const char *reason)
{
    lh_assert(rank < c->how.size);
    char name[CONTROL_NAME], phrase[PROGRESS_PHRASE], sentence[FRAME_REASON];
    if (rank == 0) control_progress_read(c->word, &c->server->seats[0].progress);
    control_rank_name(c, rank, name);
    control_progress_phrase(&c->server->seats[rank].progress, phrase);
    (void)snprintf(sentence, sizeof(sentence), "%s (process %u) %s%s: %.1400s", name,
                   c->server->facts[rank].hello.pid, by_itself ? "failed" : "was lost", phrase,
                   reason);
    control_end(c, status, rank, sentence);
}

/* A connection is gone: a stranger's is counted, a rank's that said no goodbye ends the job. Between sites
 * the link may be what is lost, so the line names both ends of it. */
void control_lose(control_t *c, peer_t *p, const char *reason)
{
    const uint32_t rank = p->rank;
    const bool herald = p->herald != NULL;
    const bool expected = rank == CONN_NO_RANK || c->server->seats[rank].departed;
    char seen[FRAME_REASON], name[CONTROL_NAME];
    control_drop(c->server, p);
    if (herald) return;
    if (rank == CONN_NO_RANK) atomic_fetch_add(&c->strangers, 1);
    if (expected) return;
    control_rank_name(c, 0, name);
    (void)snprintf(seen, sizeof(seen), "%.1200s (seen by %s)", reason, name);
    control_tell(c, rank, LH_PEER_LOST, false, c->server->seats[rank].far ? seen : reason);
}
