/* control_server_turn.c - heartbeats, silences, deadlines and requests of rank 0 itself: what
 * happens when nothing comes. */
#include <control/control_server_state.h>

#include <stdio.h>

#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>

static void beat_all(control_t *c)
{
    enum { BEHIND = 1 << 16 }; /* a peer that does not read needs no more heartbeats */
    control_server_t *s = c->server;
    progress_t progress;
    text_t payload = {0};
    progress_read(c->word, &progress);
    frame_write_beat(&payload, &progress);
    for (uint32_t r = 1; r < c->how.size; r++)
        if (s->seats[r].peer != NULL && conn_unsent(s->seats[r].peer->conn) < BEHIND)
            server_put(s, s->seats[r].peer, FRAME_BEAT, &payload);
    text_free(&payload);
}

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
        server_lose(c, p, reason);
    }
}

static void append_missing(const control_t *c, text_t *out)
{
    bool *missing = mem_array(c->how.size, sizeof(*missing));
    for (uint32_t r = 0; missing != NULL && r < c->how.size; r++)
        missing[r] = c->server->seats[r].hello == NULL;
    if (missing != NULL) world_ranks_text(c->how.plan, missing, out);
    out->failed = out->failed || missing == NULL;
    mem_free(missing);
}

static void tell_missing(control_t *c, uint64_t now)
{
    control_server_t *s = c->server;
    text_t sentence = {0};
    uint16_t port = 0;
    if (s->welcomed || s->refused || !control_wait_due(&c->joins, now)) return;
    if (control_port(s->listener, &port) != LH_OK) fail_clear();
    text_printf(&sentence, "waiting for ");
    append_missing(c, &sentence);
    text_printf(&sentence, " since %llu s, at %s, port %u",
                (unsigned long long)((now - c->joins.since) / 1000000000u), c->address, port);
    if (!sentence.failed) {
        log_line(LH_LOG_WARN, "%s", sentence.data);
        server_notice(c, FRAME_WAIT, LH_OK, 0, sentence.data);
    }
    text_free(&sentence);
}

static void judge_join(control_t *c, uint64_t now)
{
    control_server_t *s = c->server;
    text_t sentence = {0};
    if (s->welcomed || s->refused || now < s->join_deadline) return;
    text_printf(&sentence, "%u of %u ranks have come in %llu s; missing: ", s->joined, c->how.size,
                (unsigned long long)(c->how.join_ns / 1000000000u));
    append_missing(c, &sentence);
    const uint64_t strangers = atomic_load(&c->strangers);
    if (strangers > 0)
        text_printf(&sentence, "; %llu connection%s did not prove to have the job's key",
                    (unsigned long long)strangers, strangers == 1 ? "" : "s");
    server_end(c, LH_TIMED_OUT, 0, sentence.failed ? "ranks are missing" : sentence.data);
    text_free(&sentence);
}

static void judge_strangers(control_t *c, uint64_t now)
{
    for (peer_t *p = c->server->peers; p != NULL; p = p->next)
        if (!p->dead && p->rank == CONN_NO_RANK &&
            now - p->since_ns > CONTROL_PROVE_MS * CONTROL_MS)
            server_lose(c, p, "");
}

void server_hear(control_t *c, uint32_t from, uint32_t peer, lh_status_t status, const char *reason)
{
    control_server_t *s = c->server;
    if (peer >= c->how.size || s->hearsay_deadline != 0) return;
    s->hearsay_deadline = sys()->now_ns() + CONTROL_HEARSAY_MS * CONTROL_MS;
    s->hearsay_from = from;
    s->hearsay_peer = peer;
    s->hearsay_status = status;
    (void)snprintf(s->hearsay, sizeof(s->hearsay), "%s", reason);
}

static void judge_hearsay(control_t *c, uint64_t now)
{
    control_server_t *s = c->server;
    char name[CONTROL_NAME], reason[FRAME_REASON];
    if (s->hearsay_deadline == 0 || now < s->hearsay_deadline) return;
    s->hearsay_deadline = 0;
    server_name(c, s->hearsay_from, name);
    (void)snprintf(reason, sizeof(reason), "%.1500s (seen by %s)", s->hearsay, name);
    server_tell(c, s->hearsay_peer, s->hearsay_status, false, reason);
}

/* Somebody waits for a rank that has ended: it will never come. */
static void check_departed(control_t *c)
{
    control_server_t *s = c->server;
    for (uint32_t r = 1; s->arrived > 0 && r < c->how.size; r++)
        if (s->seats[r].departed && !s->seats[r].gathered)
            server_tell(c, r, LH_MISMATCH, true, "it has ended while others wait for it");
}

/* What callers of this rank ask. */
void server_requests(control_t *c)
{
    control_server_t *s = c->server;
    (void)pthread_mutex_lock(&c->lock);
    control_request_t r = c->request;
    c->request.fail = false;
    (void)pthread_mutex_unlock(&c->lock);
    /* mine stays valid: its owner waits for the answer or the end. */
    if (r.gather && !r.gathered && s->welcomed && control_status(c) == LH_OK)
        server_part(c, 0, r.round, r.where, r.mine, r.bytes);
    if (r.fail && r.peer == 0) server_tell(c, 0, r.status, true, r.reason);
    if (r.fail && r.peer != 0) server_hear(c, 0, r.peer, r.status, r.reason);
    if (!r.close || s->closing) return;
    if (r.status != LH_OK) server_tell(c, 0, r.status, true, r.reason);
    s->closing = true;
    s->close_deadline = sys()->now_ns() + (control_status(c) == LH_OK
                                               ? c->how.join_ns
                                               : CONTROL_GOODBYE_MS * CONTROL_MS);
}

/* Well: all have said goodbye. Otherwise: all have been told. */
bool server_has_ended(control_t *c, uint64_t now)
{
    control_server_t *s = c->server;
    if (!s->closing) return false;
    const bool failed = s->refused || control_status(c) != LH_OK;
    if (failed && s->close_deadline > now + CONTROL_GOODBYE_MS * CONTROL_MS)
        s->close_deadline = now + CONTROL_GOODBYE_MS * CONTROL_MS;
    if (now > s->close_deadline) return true;
    for (uint32_t r = 1; r < c->how.size; r++) {
        const peer_t *p = s->seats[r].peer;
        if (p != NULL && failed && conn_unsent(p->conn) > 0) return false;
        if (!failed && !s->seats[r].departed) return false;
    }
    return true;
}

void server_turn(control_t *c)
{
    control_server_t *s = c->server;
    const uint64_t now = sys()->now_ns();
    /* This process itself stood still: nobody can be blamed for that time. */
    if (now - s->last_turn > 4 * CONTROL_BEAT_MS * CONTROL_MS)
        for (peer_t *p = s->peers; p != NULL; p = p->next)
            p->heard_ns = now;
    s->last_turn = now;
    if (now >= s->next_beat) {
        beat_all(c);
        s->next_beat = now + CONTROL_BEAT_MS * CONTROL_MS;
    }
    judge_strangers(c, now);
    judge_silence(c, now);
    tell_missing(c, now);
    judge_join(c, now);
    judge_hearsay(c, now);
    check_departed(c);
}
