/* control_client.c - the end of the star that all ranks but 0 have: it dials rank 0 until it is there,
 * joins, sends heartbeats and hears how the job fares. Rank 0's end is control_server.c.
 *
 * Ranks start in any order and on any machine, so that rank 0 may not listen yet: a rank dials
 * again with growing pauses until its patience ends. From the welcome on it has one connection for
 * as long as the job lives. That connection's end, or its silence, means that rank 0 is lost, and
 * with it the job: without rank 0 nobody could say which of the others still live. There is no
 * second star: where a launcher starts the ranks again they meet anew, in the job's next epoch, at
 * another machine where rank 0's is gone (control_members.c).
 *
 * While stages run on rank 0's machine its launcher keeps a door there (control_door.c): a rank that comes
 * to it is told so, and dials again when the door's connection ends, however that was. */
#include <control/control_client.h>

#include <poll.h>
#include <stdio.h>

#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <control/control.h>
#include <control/control_ask.h>
#include <control/control_conn.h>
#include <control/control_members.h>
#include <control/control_stop.h>

/* How long one try to connect may take, and to prove the key, and the pauses between tries. A herald that waits
 * dials all at once, each ROUND_MS, and pauses PLACE_MS for each of them where they are many. A witness goes on to
 * the next machine after TURN_MS, and who is at a door and has no ranks after DOOR_MS, if not before. */
enum {
    DIAL_MS = 2000,
    FIRST_PAUSE_MS = 10,
    LAST_PAUSE_MS = 250,
    ROUND_MS = 1000,
    PLACE_MS = 32,
    TURN_MS = 4000,
    DOOR_MS = 60000,
};

static bool client_is_herald(const control_t *c)
{
    return c->how.members != NULL && c->how.members->herald;
}

static bool client_is_witness(const control_t *c)
{
    return client_is_herald(c) && c->how.members->machine == members_witness(c->how.members->job);
}

/* The client's own state; only the thread touches it. */
struct control_client {
    control_conn_t *conn;
    bool welcomed, over;  /* over: nothing more is to be said */
    bool heard, shut_out; /* a word of rank 0 on this connection; it has ended before one came */
    uint64_t shut_out_ns; /* when that was so for the first time; 0: it never was */
    bool stays;           /* of a witness: whom it has come to leads a job that runs */
    bool door;            /* whom this connection leads to is no rank 0, but a door */
    bool told_stop;       /* that this machine was asked to stop, on this connection */
    uint64_t asked_ns;    /* when that was seen while rank 0 was not reached; 0: never */
    uint64_t door_ns;     /* when it came to a door for the first time; 0: never */
    uint32_t turn;        /* of a herald: the place in its order at which it tries next */
    bool other;           /* not rank 0's machine is tried, by a herald */
    uint64_t came_ns;
    bool far; /* rank 0 is in another site            */
    uint64_t heard_ns, next_beat, last_turn, close_deadline;
    uint64_t beat_step; /* told_step at the last heartbeat */
    /* What of the caller's requests was sent already: the request stays in control_t until its
     * answer. */
    bool asked_gather[CONTROL_CHANNELS], said_bye;
    uint32_t asked_round[CONTROL_CHANNELS];
    /* For the sentence when rank 0 is lost: who it is, its process, and what its last heartbeat
     * said. */
    char zero_name[CONTROL_NAME];
    uint32_t zero_pid;
    progress_t zero;
    control_wait_t joins; /* when it says again that rank 0 is not there */
};

lh_status_t control_client_new(control_t *c, control_client_t **out)
{
    control_client_t *k = mem_new(sizeof(*k));
    if (k == NULL) return LH_NO_MEMORY;
    control_name(0, "", c->address, k->zero_name);
    *out = k;
    return LH_OK;
}

void control_client_free(control_client_t *k)
{
    if (k == NULL) return;
    conn_free(k->conn);
    mem_free(k);
}

/* The job ends here, for the first reason that is known; told: rank 0 has said it. Before the welcome
 * there is no job yet: then control_open fails with it, and nothing more is to be said to rank 0. */
static void client_end(control_t *c, const frame_notice_t *why, bool told)
{
    control_blame(c, &(control_culprit_t){why->rank, why->status, why->step, told});
    if (c->client->welcomed)
        control_decide(c, why->status, why->reason);
    else
        control_opened(c, why->status, why->reason);
    if (!c->client->welcomed) c->client->over = true;
}

/* The door has been shut, or its connection was lost, which is no loss of the job's: rank 0, or the door,
 * is dialed as if it were for the first time. */
static void client_dials_again(control_client_t *k)
{
    k->over = k->shut_out = true;
    k->shut_out_ns = 0;
    k->turn = 0;
}

/* The connection to rank 0 has ended or is silent. No news if the job has ended already, or if this
 * rank has said goodbye: rank 0 closes when all have. From another site the link may be what is lost, so
 * the line names both ends of it. */
static void client_lose_zero(control_t *c, const char *reason)
{
    control_client_t *k = c->client;
    char phrase[PROGRESS_PHRASE], process[32] = "", sentence[FRAME_REASON];
    char self[CONTROL_NAME], seen[CONTROL_NAME + 16] = "";
    if (k->door) {
        client_dials_again(k);
        return;
    }
    k->over = true;
    if (control_status(c) != LH_OK || k->said_bye) return;
    control_progress_phrase(&k->zero, phrase);
    if (k->zero_pid != 0) (void)snprintf(process, sizeof(process), " (process %u)", k->zero_pid);
    control_name(c->how.rank, c->site, c->host, self);
    if (k->far) (void)snprintf(seen, sizeof(seen), " (seen by %s)", self);
    (void)snprintf(sentence, sizeof(sentence), "%s%s was lost%s: %.1000s%s", k->zero_name, process,
                   phrase, reason, seen);
    client_end(c,
               &(frame_notice_t){.status = LH_PEER_LOST, .step = k->zero.step, .reason = sentence},
               false);
}

/* Where this rank reaches rank 0 without leaving the machine, the machine's address is the one that
 * rank 0 has from its connections to others. */
static lh_status_t client_make_world(control_t *c, const frame_welcome_t *w,
                                     const frame_place_t *places)
{
    char own[CONTROL_ADDRESS];
    frame_welcome_t welcome = *w;
    if (!control_local(conn_fd(c->client->conn), own)) welcome.address = own;
    return control_make_world(c->how.rank, places, &welcome, &c->world);
}

/* All ranks are there. What the welcome says is checked, though it came from a rank with the job's
 * key: a welcome that is no welcome ends the job with a sentence and not with a crash. */
static void client_take_welcome(control_t *c, const frame_t *f)
{
    control_client_t *k = c->client;
    frame_welcome_t w;
    lh_status_t status = frame_read_welcome(f, &w);
    if (status == LH_OK && (k->welcomed || w.size != c->how.size))
        status = fail(LH_CORRUPT, "rank 0 welcomes %u ranks, here are %u", w.size, c->how.size);
    if (status == LH_OK && w.epoch < c->how.epoch)
        status = fail(LH_CORRUPT, "rank 0 welcomes to epoch %u of the job, this rank is of %u",
                      w.epoch, c->how.epoch);
    frame_place_t *places = status != LH_OK ? NULL : mem_array(w.size, sizeof(*places));
    if (status == LH_OK && places == NULL) status = LH_NO_MEMORY;
    const unsigned char *at = status != LH_OK ? NULL : w.places;
    for (uint32_t r = 0; status == LH_OK && r < w.size; r++)
        frame_next_place(&at, &places[r]);
    if (status == LH_OK) status = client_make_world(c, &w, places);
    if (status != LH_OK) {
        client_end(
            c, &(frame_notice_t){.status = status, .rank = c->how.rank, .reason = fail_reason()},
            false);
    } else {
        control_name(0, places[0].site, places[0].host, k->zero_name);
        k->zero_pid = places[0].pid;
        k->far = world_scope(c->world, 0, c->how.rank) == LH_LINK_WAN;
        k->welcomed = true;
        control_opened(c, LH_OK, "");
    }
    mem_free(places);
}

/* Once a machine on the terminal, where it has ranks; all have it in their logs. */
static void client_tell_wait(const control_t *c, const char *sentence)
{
    const bool herald = client_is_herald(c);
    const bool first = herald ? control_elects(c) : c->how.plan->ranks[c->how.rank].local_rank == 0;
    log_line(first ? LH_LOG_WARN : herald ? LH_LOG_DEBUG : LH_LOG_INFO, "%s", sentence);
}

/* For whom all wait, be it for the stages before: a door says so once, and this rank again (client_judge_door). */
static void client_take_wait(const control_t *c, const frame_notice_t *notice)
{
    control_client_t *k = c->client;
    if (notice->status != LH_AGAIN) {
        client_tell_wait(c, notice->reason);
        return;
    }
    k->door = true;
    if (k->door_ns == 0) k->door_ns = sys()->now_ns();
    log_line(client_is_herald(c) ? LH_LOG_DEBUG : LH_LOG_INFO, "%s", notice->reason);
}

/* What rank 0 says. LH_CORRUPT: a frame that only rank 0 may get, or one that is not well formed;
 * the connection is of no more use then. */
static lh_status_t client_take_frame(control_t *c, const frame_t *f)
{
    control_client_t *k = c->client;
    frame_beat_t beat;
    frame_gather_t all;
    frame_notice_t notice;
    frame_regroup_t regroup;
    lh_status_t status = LH_OK;
    switch (f->type) {
    case FRAME_REGROUP:
        status = frame_read_regroup(f, &regroup);
        if (status != LH_OK) break;
        control_members_told(c, &regroup);
        client_end(c, &(frame_notice_t){.status = LH_PEER_LOST, .reason = regroup.reason}, true);
        break;
    case FRAME_MET:
        status = frame_read_regroup(f, &regroup);
        if (status != LH_OK) break;
        control_members_note_met(c, &regroup);
        k->stays = true;
        break;
    case FRAME_WELCOME: client_take_welcome(c, f); break;
    case FRAME_BEAT:
        status = frame_read_beat(f, &beat);
        if (status != LH_OK) break;
        k->zero.step = beat.step;
        (void)snprintf(k->zero.text, sizeof(k->zero.text), "%s", beat.text);
        break;
    case FRAME_GATHERED:
        status = frame_read_gather(f, &all);
        if (status == LH_OK) control_answer(c, all.channel, all.bytes, all.length);
        break;
    case FRAME_WAIT:
        status = frame_read_notice(f, &notice);
        if (status == LH_OK) client_take_wait(c, &notice);
        break;
    case FRAME_REFUSE:
    case FRAME_END:
        status = frame_read_notice(f, &notice);
        if (status != LH_OK) break;
        if (k->door && notice.status == LH_AGAIN)
            client_dials_again(k);
        else
            client_end(c, &notice, true);
        break;
    default: status = fail(LH_CORRUPT, "it sent a frame of type %u, which rank 0 gets", f->type);
    }
    return status;
}

/* Queues a frame and frees its payload, which the queue has copied. */
static void client_put(control_client_t *k, uint32_t type, text_t *payload)
{
    conn_put(k->conn, type, payload);
    text_free(payload);
}

/* This rank has proven its key and said its hello, which rank 0 may not have read: it lets go who takes
 * too long to prove it, and makes room (control_join.c). Whom it has taken in hears so at once. */
static void client_is_shut_out(control_t *c, const char *reason)
{
    control_client_t *k = c->client;
    k->over = k->shut_out = true;
    if (k->shut_out_ns == 0) k->shut_out_ns = sys()->now_ns();
    log_line(LH_LOG_INFO, "%s has not taken this rank in: %s; it is dialed again", k->zero_name,
             reason);
}

/* Sends and reads as far as it goes, and takes what has come. What came before the connection's end
 * is taken before the end is judged: it may be the reason. */
static void client_serve(control_t *c)
{
    control_client_t *k = c->client;
    frame_t frame;
    char ended[256] = "";
    if (k->over) return;
    const lh_status_t driven = conn_drive(k->conn);
    if (driven != LH_OK) (void)snprintf(ended, sizeof(ended), "%s", fail_reason());
    control_count(c, k->conn); /* before somebody is woken by a frame, who may ask */
    lh_status_t cut;
    while (!k->over && (cut = conn_next(k->conn, &frame)) != LH_AGAIN) {
        k->heard_ns = sys()->now_ns();
        if (cut == LH_OK) {
            k->heard = true;
            cut = client_take_frame(c, &frame);
            if (!k->door) control_ask_enough(c);
        }
        if (cut != LH_OK) client_lose_zero(c, fail_reason());
    }
    if (driven == LH_OK || k->over) return;
    if (k->heard || client_is_herald(c))
        client_lose_zero(c, ended);
    else
        client_is_shut_out(c, ended);
}

/* A reason or a goodbye to rank 0. */
static void client_put_notice(control_client_t *k, uint32_t type, uint32_t rank, lh_status_t status,
                              const char *reason)
{
    text_t payload = {0};
    const frame_notice_t notice = {.status = status, .rank = rank, .reason = reason};
    frame_write_notice(&payload, &notice);
    client_put(k, type, &payload);
}

/* A heartbeat with what this rank does; also ahead of a notice, which is to name what is done now.
 */
static void client_beat(control_t *c)
{
    progress_t progress;
    text_t payload = {0};
    control_progress_read(c->word, &progress);
    frame_write_beat(&payload, &progress);
    client_put(c->client, FRAME_BEAT, &payload);
}

/* A gather is sent once for each round. */
static void client_gather(control_t *c, uint32_t channel, const control_gather_t *g)
{
    control_client_t *k = c->client;
    frame_gather_t part;
    text_t keep = {0}, payload = {0};
    if (!g->asked || g->gathered ||
        (k->asked_gather[channel] && k->asked_round[channel] == g->round))
        return;
    if (control_part(c, channel, &part, &keep)) {
        frame_write_gather(&payload, &part);
        client_put(k, FRAME_GATHER, &payload);
        k->asked_gather[channel] = true;
        k->asked_round[channel] = part.round;
    }
    text_free(&keep);
}

/* What callers of this rank ask. A reason is sent behind a
 * heartbeat, so that rank 0 names what this rank did when it failed and not what it did a quarter
 * of a second before. */
static void client_take_requests(control_t *c)
{
    control_client_t *k = c->client;
    (void)pthread_mutex_lock(&c->lock);
    const control_request_t r = c->request;
    c->request.fail = false;
    (void)pthread_mutex_unlock(&c->lock);
    for (uint32_t i = 0; i < CONTROL_CHANNELS; i++)
        client_gather(c, i, &r.gathers[i]);
    if (r.fail || (r.close && r.status != LH_OK && k->close_deadline == 0)) client_beat(c);
    if (r.fail) client_put_notice(k, FRAME_FAIL, r.peer, r.status, r.reason);
    if (!r.close || k->close_deadline != 0) return;
    client_put_notice(k, FRAME_BYE, c->how.rank, r.status, r.reason);
    k->close_deadline = sys()->now_ns() + CONTROL_GOODBYE_MS * CONTROL_MS;
    k->said_bye = r.status == LH_OK; /* else rank 0 answers with what the job ends with */
}

/* A rank that waits in vain has somebody ask whether the job has gone on elsewhere: one for all of its
 * machine. True: it has. */
static bool client_hear_elsewhere(control_t *c, uint64_t since)
{
    const control_members_t *m = c->how.members;
    frame_regroup_t news;
    uint32_t first;
    if (m == NULL || m->herald || members_ranks_of(m->job, m->layout, m->machine, &first) == 0 ||
        first != c->how.rank)
        return false;
    if (sys()->now_ns() - since > CONTROL_ASK_AFTER_MS * CONTROL_MS) control_ask_start(c);
    if (!control_ask_told(c, &news)) return false;
    control_members_told(c, &news);
    (void)fail(LH_PEER_LOST, "%s", news.reason);
    return true;
}

static uint64_t client_patience(const control_t *c)
{
    return c->how.patience_ns > c->how.join_ns ? c->how.patience_ns : c->how.join_ns;
}

static lh_status_t client_give_up(control_t *c, uint64_t patience)
{
    char why[512], who[24] = "this machine"; /* a herald is no rank */
    const control_members_t *m = c->how.members;
    (void)snprintf(why, sizeof(why), "%s", fail_reason());
    if (m != NULL && m->told != NULL) atomic_store(&m->told->unreached, 1);
    if (!client_is_herald(c)) (void)snprintf(who, sizeof(who), "rank %u", c->how.rank);
    return fail(LH_TIMED_OUT, "%s has not met rank 0 in %llu s: %s", who,
                (unsigned long long)(patience / 1000000000u), why);
}

/* A line about the wait, with the reason of the last try. */
static void client_tell_absence(const control_t *c)
{
    char name[CONTROL_NAME], sentence[FRAME_REASON];
    if (c->client->other) return; /* at its next turn */
    world_rank_text(c->how.plan, 0, name, sizeof(name));
    (void)snprintf(sentence, sizeof(sentence), "waiting for %s since %llu s: %s", name,
                   (unsigned long long)((sys()->now_ns() - c->client->joins.since) / 1000000000u),
                   fail_reason());
    client_tell_wait(c, sentence);
}

/* What its launcher was asked goes to rank 0, which ends the job for all, or to the door. */
static void client_tell_stop(control_t *c)
{
    control_client_t *k = c->client;
    const lh_status_t asked = control_stop_asked(c->how.asked);
    if (asked == LH_OK || k->told_stop || k->over || k->said_bye) return;
    k->told_stop = true;
    client_beat(c);
    client_put_notice(k, FRAME_FAIL, c->how.rank, asked, control_stop_reason(asked));
}

/* Who has no ranks goes on from a door to the next machine, of which one may lead, and comes again. Of a stop
 * it hears nothing meanwhile: one that knows of no loss stays longer. */
static void client_leaves_door(control_t *c, uint64_t now)
{
    control_client_t *k = c->client;
    const uint64_t most = (c->how.epoch > 1 ? TURN_MS : DOOR_MS) * CONTROL_MS;
    if (k->told_stop || (!control_elects(c) && now - k->came_ns <= most)) return;
    conn_finish(k->conn);
    k->over = k->shut_out = true;
}

/* After a loss the stages may be those of a machine without which the others can go on, and which does not
 * know that. So nobody waits there for longer than for rank 0 itself, and others are asked meanwhile. */
static void client_judge_door(control_t *c, uint64_t now)
{
    control_client_t *k = c->client;
    if (client_is_herald(c)) {
        client_leaves_door(c, now);
        return;
    }
    if (client_hear_elsewhere(c, k->came_ns)) {
        client_end(c, &(frame_notice_t){.status = LH_PEER_LOST, .reason = fail_reason()}, true);
        return;
    }
    const bool late = now - k->door_ns > client_patience(c);
    if (!control_wait_due(&k->joins, now) && !late) return;
    (void)fail(LH_TIMED_OUT, "at %s, port %u, stages that come before still run", c->address,
               c->how.port);
    if (!late) {
        client_tell_absence(c);
        return;
    }
    const lh_status_t status = client_give_up(c, client_patience(c));
    control_opened(c, status, fail_reason());
    k->over = true;
}

/* How long rank 0 may be silent. The welcome says where it is; until then the plan does, but not to a herald,
 * which tries other machines as well, nor where there is none: then it may be in another site. */
static uint64_t client_silence_ns(const control_t *c)
{
    const uint64_t least = CONTROL_SILENCE_MS * CONTROL_MS, outage = control_outage_ns(c);
    if (c->client->welcomed) return c->client->far ? outage : least;
    if (client_is_herald(c) || c->unplanned != NULL) return outage > least ? outage : least;
    return world_scope(c->how.plan, 0, c->how.rank) == LH_LINK_WAN ? outage : least;
}

/* What is due by the clock: a heartbeat of this rank, and the look whether rank 0's have come. */
static void client_turn(control_t *c)
{
    control_client_t *k = c->client;
    const uint64_t now = sys()->now_ns();
    /* This process itself stood still: rank 0 can't be blamed for that time. */
    if (now - k->last_turn > 4 * CONTROL_BEAT_MS * CONTROL_MS) k->heard_ns = now;
    k->last_turn = now;
    client_tell_stop(c);
    const uint64_t step = atomic_load_explicit(&c->told_step, memory_order_acquire);
    if ((now >= k->next_beat || step != k->beat_step) && !k->said_bye) {
        client_beat(c);
        k->beat_step = step;
        k->next_beat = now + CONTROL_BEAT_MS * CONTROL_MS;
    }
    if (now - k->heard_ns > client_silence_ns(c) && !k->over) {
        char reason[64];
        (void)snprintf(reason, sizeof(reason), "silent for %.1f s",
                       (double)(now - k->heard_ns) * 1e-9);
        client_lose_zero(c, reason);
    }
    if (k->door && !k->over) client_judge_door(c, now);
    /* Whoever can't decide even with its vote is not to keep it from others who can. */
    if (client_is_witness(c) && !k->stays && !k->door && !k->over &&
        now - k->came_ns > TURN_MS * CONTROL_MS)
        client_lose_zero(c, "it does not lead");
}

/* The caller has called control_close. */
static bool client_close_asked(control_t *c)
{
    (void)pthread_mutex_lock(&c->lock);
    const bool asked = c->request.close;
    (void)pthread_mutex_unlock(&c->lock);
    return asked;
}

/* The thread is done: refused before the start; or the caller closes, and rank 0 has ended the
 * connection, or the last frames had their time to go out, or the job's reason is known. */
static bool client_has_ended(control_t *c)
{
    const control_client_t *k = c->client;
    if (!k->welcomed && k->over) return true; /* refused */
    if (!client_close_asked(c)) return false;
    if (k->over) return true;
    if (k->close_deadline != 0 && sys()->now_ns() > k->close_deadline) return true;
    return !k->said_bye && k->close_deadline != 0 && control_status(c) != LH_OK;
}

/* The thread's loop after it has joined, until the end. The connection is served twice a turn: what
 * has come is taken before requests and the clock are looked at, and what those queue goes out
 * without waiting for a tick. */
static void client_loop(control_t *c)
{
    control_client_t *k = c->client;
    k->heard_ns = k->last_turn = k->came_ns = sys()->now_ns();
    client_tell_stop(c); /* behind the hello, where that is known already */
    client_serve(c);     /* says both */
    while (!client_has_ended(c)) {
        struct pollfd fds[2] = {
            {.fd = k->over ? -1 : conn_fd(k->conn),
             .events = (short)(POLLIN | (conn_wants_write(k->conn) ? POLLOUT : 0))},
            {.fd = c->wake_fd, .events = POLLIN},
        };
        (void)poll(fds, 2, CONTROL_TICK_MS);
        control_drain_wake(c);
        client_serve(c);
        if (!k->over) client_take_requests(c);
        client_turn(c);
        client_serve(c); /* what is new goes out at once */
        if (k->said_bye && conn_unsent(k->conn) == 0) conn_finish(k->conn);
    }
}

/* A wait without descriptors. */
static void client_pause_ms(uint32_t ms)
{
    (void)poll(NULL, 0, (int)ms);
}

/* A listener that is none of this job: mostly another job's rank 0 on the same port, or a machine
 * with an old copy of the key. Ranks that have met have the right one: they wait as where nobody listens,
 * as rank 0's port is free between two meetings, and for good where its machine is lost. */
static lh_status_t client_deny(const control_t *c)
{
    char why[256];
    (void)snprintf(why, sizeof(why), "%s", fail_reason());
    if (c->client->other) return LH_AGAIN; /* there need be nobody of this job */
    const lh_status_t status = fail(
        LH_DENIED,
        "what listens at %s, port %u, does not have this job's key (%s): [launch] secret "
        "must be the same on all machines",
        c->address, c->how.port, why);
    return c->how.epoch > 1 ? LH_AGAIN : status;
}

/* Drives the new connection until the key is proven, then queues the hello. LH_AGAIN: it may go
 * better the next time; fail_reason() says what was wrong. */
static lh_status_t client_shake_hands(control_t *c, uint64_t deadline)
{
    control_client_t *k = c->client;
    while (!conn_is_proven(k->conn)) {
        const lh_status_t status = conn_drive(k->conn);
        if (status == LH_PEER_LOST) return LH_AGAIN;
        if (status == LH_DENIED) return client_deny(c);
        if (status != LH_OK) return status;
        if (conn_is_proven(k->conn)) break;
        if (sys()->now_ns() > deadline) {
            (void)fail(LH_TIMED_OUT, "no handshake within %d ms", DIAL_MS);
            return LH_AGAIN;
        }
        struct pollfd p = {.fd = conn_fd(k->conn),
                           .events = (short)(POLLIN | (conn_wants_write(k->conn) ? POLLOUT : 0))};
        (void)poll(&p, 1, CONTROL_TICK_MS);
    }
    conn_put(k->conn, FRAME_HELLO, &c->hello);
    atomic_fetch_add(&c->handshakes, 1);
    return LH_OK;
}

/* A connection is there: the key is proven on it. */
static lh_status_t client_greet(control_t *c, int fd)
{
    const uint64_t limit = DIAL_MS * CONTROL_MS;
    conn_free(c->client->conn);
    c->client->conn = NULL;
    const lh_status_t made = conn_new(c->tls, fd, c->how.rank, FRAME_LARGE, &c->client->conn);
    return made == LH_OK ? client_shake_hands(c, sys()->now_ns() + limit) : made;
}

/* One try to connect and prove the key. LH_AGAIN: nobody is there, or who is there had no place for
 * us; the next try may do better. Everything else is final. */
static lh_status_t client_try_once(control_t *c)
{
    const uint64_t limit = DIAL_MS * CONTROL_MS;
    int fd;
    const lh_status_t status = control_dial(c->address, c->how.port, sys()->now_ns() + limit,
                                            control_outage_ns(c), &fd);
    if (status == LH_UNREACHABLE) return LH_AGAIN;
    return status == LH_OK ? client_greet(c, fd) : status;
}

/* Whom a herald tries, rank 0's machine first: all others, or those before its own where it elects. The rest
 * of the order from k->turn on; and then its beginning, where it does not elect. */
typedef struct round {
    const char *addresses[MEMBERS_MOST];
    uint32_t places[MEMBERS_MOST]; /* in the order: 0 is rank 0's machine */
    uint32_t count;
} round_t;

static void client_plan_round(const control_t *c, round_t *out)
{
    const control_members_t *m = c->how.members;
    const uint32_t leader = members_leader(m->job, m->layout);
    const uint32_t end = m->elects ? m->machine : members_places(m->job);
    uint32_t order[MEMBERS_MOST] = {leader}, size = 1;
    for (uint32_t i = 0; i < end; i++)
        if (i != leader && i != m->machine) order[size++] = i;
    out->count = 0;
    const uint32_t from = m->elects ? c->client->turn : c->client->turn % size;
    const uint32_t most = !m->elects ? size : from < size ? size - from : 0;
    for (uint32_t i = 0; i < most; i++) {
        machine_t at;
        const uint32_t place = (from + i) % size;
        members_machine(m->job, order[place], &at);
        out->addresses[out->count] = place == 0 ? c->how.address : at.address;
        out->places[out->count++] = place;
    }
}

/* All of them at once, and the first that answers; the next, where that has no place for this one or is
 * another job's. Who elects waits for those before in the order, as they decide in its place. */
static lh_status_t client_try_round(control_t *c)
{
    control_client_t *k = c->client;
    round_t round;
    client_plan_round(c, &round);
    k->other = false;
    lh_status_t status = LH_AGAIN;
    for (uint32_t at = 0; at < round.count && status == LH_AGAIN;) {
        const control_dials_t how = {.addresses = round.addresses + at,
                                     .count = round.count - at,
                                     .port = c->how.port,
                                     .limit_ns = (control_elects(c) ? DIAL_MS : ROUND_MS) *
                                                 CONTROL_MS,
                                     .silence_ns = control_outage_ns(c)};
        uint32_t tried, index;
        int fd;
        status = control_dial_first(&how, &tried, &index, &fd);
        if (status == LH_UNREACHABLE) {
            at += tried;
            status = LH_AGAIN;
            continue;
        }
        if (status != LH_OK) return status;
        at += index;
        k->other = round.places[at] != 0;
        k->turn = round.places[at] + 1;
        (void)snprintf(c->address, sizeof(c->address), "%s", round.addresses[at]);
        status = client_greet(c, fd);
        at++;
    }
    return status;
}

/* This machine was asked to stop, and rank 0 was not there to be told for CONTROL_STOP_MS; for three times that
 * where ranks have met before, as those of rank 0's machine may still be ending. */
static bool client_stops(control_t *c, lh_status_t *status)
{
    control_client_t *k = c->client;
    char sentence[CONTROL_STOP_TEXT];
    const uint64_t now = sys()->now_ns();
    const lh_status_t asked = control_stop_asked(c->how.asked);
    if (asked == LH_OK) return false;
    if (k->asked_ns == 0) k->asked_ns = now;
    const uint64_t most = (c->how.epoch > 1 ? 3u : 1u) * CONTROL_MS * CONTROL_STOP_MS;
    if (now - k->asked_ns < most) return false;
    control_blame(c, &(control_culprit_t){.rank = c->how.rank, .status = asked});
    control_stop_sentence(asked, c->site, c->host, sentence);
    *status = fail_again(asked, sentence);
    return true;
}

/* Of a round that found nobody: hundreds of machines are not to be dialed several times a second. */
static uint32_t client_round_pause(const control_t *c, uint32_t pause)
{
    if (!client_is_herald(c)) return pause;
    const uint32_t all = members_places(c->how.members->job) * PLACE_MS;
    const uint32_t most = all < ROUND_MS ? all : ROUND_MS;
    return pause > most ? pause : most;
}

/* Tries until rank 0 has this rank's hello, or patience ends. Pauses double up to a quarter of a
 * second: many ranks that start together do not all dial each 10 ms. Whoever was shut out knows that
 * rank 0 is there, and waits no longer for it than rank 0 does for the others. */
static lh_status_t client_join(control_t *c)
{
    const uint64_t out_ns = c->client->shut_out_ns;
    const uint64_t patience = out_ns == 0 ? client_patience(c) : c->how.join_ns;
    /* Before rank 0 does, which only knows who has not come: this rank knows why. */
    const uint64_t most = 1000 * CONTROL_MS;
    const uint64_t early = patience / 8 < most ? patience / 8 : most;
    const uint64_t since = out_ns != 0 ? out_ns : sys()->now_ns(), end = since + patience - early;
    if (sys()->now_ns() > end) return client_give_up(c, patience);
    for (uint32_t pause = FIRST_PAUSE_MS;;
         pause = pause * 2 < LAST_PAUSE_MS ? pause * 2 : LAST_PAUSE_MS) {
        lh_status_t status = client_is_herald(c) ? client_try_round(c) : client_try_once(c);
        if (status != LH_AGAIN || client_stops(c, &status)) return status;
        if (control_elects(c)) return fail(LH_UNREACHABLE, "no machine before this one is there");
        if (control_wait_due(&c->client->joins, sys()->now_ns())) client_tell_absence(c);
        if (client_hear_elsewhere(c, since)) return LH_PEER_LOST;
        if (sys()->now_ns() > end) return client_give_up(c, patience);
        client_pause_ms(client_round_pause(c, pause));
    }
}

/* The thread of a rank that is not rank 0: join, run, end the connection in order. */
void control_client_run(control_t *c)
{
    control_client_t *k = c->client;
    lh_assert(k != NULL && c->how.rank != 0);
    /* A witness that went away from somebody is not to come to the same one again and again. */
    if (client_is_witness(c)) (void)sys()->random(&k->turn, sizeof(k->turn));
    do {
        if (k->shut_out) client_pause_ms(LAST_PAUSE_MS);
        k->over = k->shut_out = k->door = k->heard = k->told_stop = false;
        const lh_status_t status = client_join(c);
        if (status != LH_OK) {
            control_opened(c, status, fail_reason());
            return;
        }
        client_loop(c);
    } while (k->shut_out);
    if (k->conn != NULL) conn_finish(k->conn);
}
