/* control_members.c - the part of whoever leads in a job whose machines change: who is there, whether
 * those may go on by themselves, and with whom.
 *
 * A machine that has no ranks now - a spare, one that was left out, the witness - sends a herald, which
 * keeps a connection to rank 0 and is no rank. It may come while ranks meet, and later where the layout
 * has not all hosts themselves, or the job has a witness: then alone does rank 0 listen while the job
 * runs. A host that a spare has replaced may be the old rank 0, and has nobody else to hear that from.
 *
 * Who leads. Ranks meet at rank 0, on the first machine of their layout, at its own address. Where that
 * machine can't be reached for as long as ranks wait, each of its ranks' machines sends a herald that
 * `elects`: to the first machine, in the order of the INI, at which one is taken in; where none is, it
 * listens itself. So the first of those that see each other has all of them, decides as rank 0 would, and
 * tells them the next layout, which has its own first machine. It is a place to meet for one decision,
 * and no rank. That layout is the one before where rank 0's machine comes without ranks: a spare that led,
 * whose launcher was started anew and remembers nothing, or one that was never told. Rank 0, where it is
 * back, goes before all: who elects tries it first, and asks for it all the time (control_ask.h). Nothing
 * depends on there being one such place: two of them, or one beside an old rank 0, decide by the same rule
 * as one.
 *
 * Two groups that can't see each other must not both go on. This is dynamic voting as Keidar and Dolev
 * made it safe against members that are lost in the middle of a change:
 *
 *  - Every member remembers the last layout in which it has met, and each that it was told of since
 *    (tried): a promise. A launcher writes that down before it starts a rank in the layout.
 *  - Ranks meet in a layout only if all of its machines are there and have been told of it, and if they
 *    have most of the newest layout in which any of them has met, and most of every other one of that
 *    epoch or a later one that any of them has met in or was told of (members_quorum). Of that epoch,
 *    too: two that decide apart may give one to two layouts.
 *  - Let layout A have met, and let B meet later or beside it, from the same layout M before. Both have
 *    most of M, so they have a machine of M in common (or the one thing that breaks a tie of M). That
 *    machine was told of A before A met. When it is seen in B it tells that it has met in A, or that it
 *    was to; so B has most of A as well. Then a machine of A is in B, which is not in A's meeting any more:
 *    a rank leaves a layout by its end alone, and A can't work without it. By induction over the chain of
 *    such layouts one works at most, and whoever works has most of the newest that has met.
 *  - A launcher that was started anew and remembers nothing has no vote: it may have promised itself to
 *    others. It adds to no majority, nor takes from one.
 *  - Who is for a layout need not have ranks in it. The witness, whose vote decides a tie, has none in any;
 *    a host that is left out, as its site goes as a whole where it lacks another host, has none in the next,
 *    and yet is one of the last meeting that stands with those who go on. Such a vote counts for a layout
 *    when that is decided on, and once more when it meets. For then it must come behind the last rank, and say
 *    that its machine was told of that layout last: who came before them may have gone to others since, whom a
 *    rank that came later has met with; it is told, and comes again. It is told of each meeting (FRAME_MET),
 *    and remembers as a member does. In the argument above it is a machine that is in B and not in A's meeting
 *    any more, as no launcher has ranks of one layout while it is for another.
 *
 * Who may not go on waits, as a cut may end, and says for whom and what a person can do; without end, or
 * for as long as [launch] quorum_timeout says. Then all that wait together end, rank 0 and its ranks, or
 * who elects and the machines that have come to it. Spares, the witness and who was left out stay: others
 * may need them.
 *
 * An old leader that comes late. Rank 0 of an epoch that is past has no ranks with it that are of a later
 * one, and ranks save together or not at all: it has nobody to commit with. What its own saver had
 * left to do on a folder that others see is undone by the next rank 0 before that looks for a checkpoint
 * (checkpoint_clean). When it sees the others again it is told of their epoch, and waits as a herald. */
#include <control/control_members.h>

#include <stdio.h>

#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <control/control.h>
#include <control/control_ask.h>
#include <control/control_join.h>
#include <control/control_state.h>
#include <control/control_stop.h>

/* For votes of machines without ranks, behind the last rank, before it is said that they lack. */
enum { VOTES_MS = 2000 };

/* Who is there, a machine each. */
typedef struct sight {
    bool here[MEMBERS_MOST];
    member_record_t records[MEMBERS_MOST];
} sight_t;

static void sight_add(sight_t *s, uint32_t machine, const frame_hello_t *h)
{
    s->here[machine] = true;
    s->records[machine] = (member_record_t){true, h->met_epoch, h->met, h->tried, h->layout};
}

static bool is_seated(const control_server_t *s, uint32_t rank)
{
    return s->seats[rank].hello != NULL && (rank == 0 || s->seats[rank].peer != NULL);
}

/* A machine of which a rank has not come is not there. */
static void look_around(const control_t *c, sight_t *out)
{
    const control_members_t *m = c->how.members;
    const control_server_t *s = c->server;
    *out = (sight_t){0};
    if (m->elects) sight_add(out, m->machine, &s->facts[0].hello);
    for (uint32_t machine = 0; !m->elects && machine < members_places(m->job); machine++) {
        uint32_t first;
        const uint32_t count = members_ranks_of(m->job, m->layout, machine, &first);
        bool all = count > 0;
        for (uint32_t r = first; r < first + count; r++)
            all = all && is_seated(s, r);
        if (all) sight_add(out, machine, &s->facts[first].hello);
    }
    for (const peer_t *p = s->peers; p != NULL; p = p->next)
        if (!p->dead && p->herald != NULL) sight_add(out, p->machine, &p->hello);
}

void control_members_told(const control_t *c, const frame_regroup_t *r)
{
    control_told_t *told = c->how.members == NULL ? NULL : c->how.members->told;
    if (told == NULL || told->over || atomic_load(&told->epoch) != 0) return;
    (void)snprintf(told->layout, sizeof(told->layout), "%s", r->layout);
    (void)snprintf(told->reason, sizeof(told->reason), "%s", r->reason);
    told->over = r->layout[0] == '\0';
    atomic_store(&told->epoch, r->epoch);
}

static void put_regroup(control_t *c, peer_t *p, const frame_regroup_t *r)
{
    text_t payload = {0};
    frame_write_regroup(&payload, r);
    control_put(c->server, p, FRAME_REGROUP, &payload);
    text_free(&payload);
}

static void put_heralds(control_t *c, const frame_regroup_t *r)
{
    for (peer_t *p = c->server->peers; p != NULL; p = p->next)
        if (!p->dead && p->herald != NULL) put_regroup(c, p, r);
}

/* All end, and whoever starts them knows what they are next; or hear of a stop, where one is due soon. */
static void regroup_all(control_t *c, uint32_t epoch, const char *layout, const char *reason)
{
    if (control_stop_ends(c)) return;
    const frame_regroup_t r = {.epoch = epoch, .layout = layout, .reason = reason};
    for (uint32_t rank = 1; rank < c->how.size; rank++)
        put_regroup(c, c->server->seats[rank].peer, &r);
    put_heralds(c, &r);
    control_members_told(c, &r);
    control_end(c, LH_PEER_LOST, 0, reason);
}

/* ---- hellos ---------------------------------------------------------------------------------- */

/* Whether a machine without ranks has a vote, as it has met before, or is the witness. */
static bool may_vote(const control_members_t *m, const peer_t *p)
{
    return p->machine == members_witness(m->job) || p->hello.met_epoch > 0;
}

static void keep_herald(control_t *c, peer_t *p, uint32_t machine, const frame_t *f)
{
    char *copy = mem_new(f->length);
    if (copy == NULL) return;
    memcpy(copy, f->payload, f->length);
    const frame_t again = {FRAME_HELLO, (const unsigned char *)copy, f->length};
    for (peer_t *older = c->server->peers; older != NULL; older = older->next)
        if (!older->dead && older->herald != NULL && older->machine == machine)
            control_drop(c->server, older);
    if (frame_read_hello(&again, &p->hello) != LH_OK) {
        mem_free(copy);
        control_lose(c, p, "");
        return;
    }
    c->server->pending--;
    p->herald = copy;
    p->machine = machine;
    atomic_fetch_add(&c->handshakes, 1);
    const control_members_t *m = c->how.members;
    if (m->elects && p->hello.epoch > c->server->epoch) c->server->epoch = p->hello.epoch;
    const control_server_t *s = c->server;
    if (may_vote(m, p) && s->welcomed)
        control_members_met(c);
    else if (!s->welcomed && !s->refused && !m->elects && s->joined == c->how.size)
        control_join_finish(c); /* they may have waited for its vote, or for all to be there */
}

/* Whoever may come to have ranks is compared with who leads as it comes, but for plugins, of which a herald loads
 * none: these are compared when its ranks meet the others'. The witness computes nothing. */
static bool refuse_herald(control_t *c, peer_t *p, const frame_hello_t *h, uint32_t machine)
{
    const rank_facts_t own = {.hello = *h};
    text_t table = {0};
    if (machine == members_witness(c->how.members->job)) return false;
    text_printf(&table, "%.60s/%.60s differs from %.60s/%.60s: ranks of it would be refused",
                h->site, h->host, c->site, c->host);
    const bool differs = !control_facts_within(&own, &c->server->facts[0], false, &table);
    if (differs)
        control_join_refuse(c, p, LH_MISMATCH,
                            table.failed ? "its machine differs from rank 0's" : table.data);
    text_free(&table);
    return differs;
}

/* The answer goes out now or never, as of a peer that is refused. */
static void answer_at_once(control_t *c, peer_t *p, const frame_regroup_t *r)
{
    put_regroup(c, p, r);
    if (conn_drive(p->conn) == LH_OK) conn_finish(p->conn);
    control_drop(c->server, p);
}

/* Whoever asks does not stay. Of two that wait in one epoch for different ranks the first machine is
 * right. Who has met here calls nobody back that has met later: its own ranks end soon, as some of them
 * are elsewhere. */
static void answer_question(control_t *c, peer_t *p, const frame_hello_t *h, uint32_t machine)
{
    const control_members_t *m = c->how.members;
    const control_server_t *s = c->server;
    const bool same = strcmp(h->layout, m->layout) == 0;
    const bool ahead = (s->welcomed && s->epoch >= h->met_epoch) || s->epoch > h->epoch ||
                       (s->epoch == h->epoch && m->machine < machine);
    if (!same && ahead) {
        char reason[256];
        (void)snprintf(reason, sizeof(reason), "the job is in epoch %u, and %.60s/%.60s was in %u",
                       s->epoch, h->site, h->host, h->epoch);
        answer_at_once(c, p, &(frame_regroup_t){s->epoch, m->layout, reason});
        return;
    }
    text_t payload = {0};
    frame_write_notice(&payload, &(frame_notice_t){.reason = "this machine waits, too"});
    if (!s->welcomed) conn_put(p->conn, FRAME_WAIT, &payload);
    text_free(&payload);
    if (conn_drive(p->conn) == LH_OK) conn_finish(p->conn);
    control_drop(c->server, p);
}

bool control_members_hello(control_t *c, peer_t *p, const frame_hello_t *h, const frame_t *f)
{
    const control_members_t *m = c->how.members;
    char name[CONTROL_NAME], reason[256];
    const bool same = m != NULL && strcmp(h->layout, m->layout) == 0;
    if (h->version != FRAME_VERSION || m == NULL) return false;
    const bool late = h->epoch > 1 && h->epoch < c->server->epoch && members_change(m->job);
    const bool rank = h->herald == HELLO_RANK;
    if (rank && ((same && !late && !m->elects) || !members_are(m->job, h->layout))) return false;
    const uint32_t machine = members_find(m->job, h->site, h->host);
    if (machine == MEMBERS_NONE) return false;
    uint32_t first;
    const bool has_ranks = members_ranks_of(m->job, m->layout, machine, &first) > 0;
    (void)snprintf(name, sizeof(name), "%s/%s", h->site, h->host);
    if (h->herald == HELLO_ASKS) {
        answer_question(c, p, h, machine);
        return true;
    }
    if (h->epoch > c->server->epoch && !same && members_are(m->job, h->layout)) {
        (void)snprintf(reason, sizeof(reason), "%.120s knows of epoch %u of the job, rank 0 of %u",
                       name, h->epoch, c->server->epoch);
        regroup_all(c, h->epoch, h->layout, reason);
    } else if (rank || (has_ranks && !m->elects)) {
        (void)snprintf(reason, sizeof(reason),
                       has_ranks ? "%.120s takes part with other ranks now"
                                 : "the job has gone on without %.120s",
                       name);
        answer_at_once(c, p, &(frame_regroup_t){c->server->epoch, m->layout, reason});
    } else if (!refuse_herald(c, p, h, machine)) {
        keep_herald(c, p, machine, f);
    }
    return true;
}

/* ---- who goes on ----------------------------------------------------------------------------- */

/* To the ranks that have come, and to machines that have come to who elects for ranks of theirs. */
static void notify_all(control_t *c, uint32_t type, lh_status_t status, const char *sentence)
{
    const control_members_t *m = c->how.members;
    text_t payload = {0};
    uint32_t first;
    control_notice(c, type, status, 0, sentence);
    frame_write_notice(&payload, &(frame_notice_t){.status = status, .reason = sentence});
    for (peer_t *p = c->server->peers; p != NULL; p = p->next)
        if (!p->dead && p->herald != NULL &&
            members_ranks_of(m->job, m->layout, p->machine, &first) > 0)
            control_put(c->server, p, type, &payload);
    text_free(&payload);
}

/* "; not here: osaka/o1, w1": of the layout and of the last meeting, and where nobody remembers a meeting of all
 * machines. What a person may do about it: nobody else can know that a machine is lost and not cut off. */
static void tell_unseen(const control_t *c, const sight_t *sight, text_t *out)
{
    enum { SHOWN = 8 };
    const control_members_t *m = c->how.members;
    const uint32_t newest = members_newest(m->job, sight->records);
    const bool none = newest == 0;
    const char *met = m->layout;
    uint32_t count = 0;
    for (uint32_t i = 0; i < members_machines(m->job) && newest > 0; i++)
        if (sight->here[i] && sight->records[i].met_epoch == newest &&
            members_are(m->job, sight->records[i].met))
            met = sight->records[i].met;
    for (uint32_t i = 0; i < members_machines(m->job); i++) {
        machine_t at;
        uint32_t first;
        const bool counts = none || i == members_witness(m->job) ||
                            members_ranks_of(m->job, m->layout, i, &first) > 0 ||
                            members_ranks_of(m->job, met, i, &first) > 0;
        if (!counts || sight->here[i] || count++ >= SHOWN) continue;
        members_machine(m->job, i, &at);
        text_printf(out, "%s%s%s%s", count > 1 ? ", " : "; not here: ", at.site->name,
                    at.site->name[0] != '\0' ? "/" : "", at.host);
    }
    if (count > SHOWN) text_printf(out, " and %u more", count - SHOWN);
    text_append(out,
                "; if it is sure that nobody trains there, take them out of [site.*] and start "
                "with --resume on all others");
}

void control_members_end(control_t *c, lh_status_t status, const char *sentence)
{
    if (control_elects(c)) notify_all(c, FRAME_END, status, sentence);
}

/* Once, and again where that is due and nothing else is said: while rank 0 lacks ranks it says itself for
 * whom it waits (control_join_tell_missing). */
static void tell_outvoted(control_t *c, const sight_t *sight, bool due)
{
    static const char outvoted[] =
        "the ranks that have come are not most of those of the last meeting: others may go on "
        "without "
        "them, so they wait; of two halves [launch] prefer names the one that goes on";
    static const char forgotten[] =
        "the job goes on (--resume), and no machine that has come remembers a meeting: others may "
        "train without them, so they wait until all are there, spares too";
    static const char stuck[] =
        "rank 0 was not reached, and neither spares nor [launch] go_on_with let those that have "
        "come go on without whoever is missing, so they wait";
    const control_members_t *m = c->how.members;
    char next[MEMBERS_TEXT];
    const bool none = m->resumes && members_newest(m->job, sight->records) == 0;
    const char *sentence = none ? forgotten : outvoted;
    if (m->elects && !members_next(m->job, m->layout, sight->here, next)) sentence = stuck;
    const bool lacks = !m->elects && c->server->joined < c->how.size;
    if (c->server->outvoted && (!due || lacks)) return;
    c->server->outvoted = true;
    text_t line = {0};
    text_append(&line, sentence);
    tell_unseen(c, sight, &line);
    if (!line.failed) sentence = line.data;
    log_line(LH_LOG_WARN, "%s", sentence);
    notify_all(c, FRAME_WAIT, LH_OK, sentence);
    text_free(&line);
}

/* Those that are here have waited for others as long as they are to. All of them end, and their launchers:
 * what they remember of meetings stays, and may be gone on with. */
static void give_up_quorum(control_t *c, const sight_t *sight)
{
    const control_members_t *m = c->how.members;
    char waited[24];
    text_t line = {0};
    text_duration((double)m->job->launch.quorum_timeout_ns * 1e-9, waited);
    text_printf(
        &line,
        "those that have come may not go on by themselves, and have waited for others in vain "
        "for %s ([launch] quorum_timeout)",
        waited);
    tell_unseen(c, sight, &line);
    const char *sentence = line.failed ? "others have not come" : line.data;
    control_members_end(c, LH_TIMED_OUT, sentence);
    control_end(c, LH_TIMED_OUT, 0, sentence);
    text_free(&line);
}

/* Whether a herald's vote counts for those that are about to meet. */
static bool is_told(const control_t *c, const peer_t *p)
{
    return p->since_ns > c->server->seated_ns &&
           strcmp(p->hello.layout, c->how.members->layout) == 0;
}

/* They have been told of the layout then, and say what they have promised by then. */
static void call_heralds_again(control_t *c)
{
    const control_members_t *m = c->how.members;
    const frame_regroup_t r = {
        .epoch = c->server->epoch,
        .layout = m->layout,
        .reason = "the ranks of this layout are there, and need this machine's word"};
    for (peer_t *p = c->server->peers; p != NULL; p = p->next)
        if (!p->dead && p->herald != NULL && !is_told(c, p)) answer_at_once(c, p, &r);
}

bool control_members_meet(control_t *c)
{
    const control_members_t *m = c->how.members;
    sight_t sight;
    char all[MEMBERS_TEXT];
    if (m == NULL || !members_change(m->job)) return true;
    look_around(c, &sight);
    members_all(m->job, all);
    /* The first meeting is one of all hosts. Of a job that goes on it is not the first: those that are
     * here have forgotten the others, and spares may train where they are not seen. */
    const bool first = !m->resumes && members_newest(m->job, sight.records) == 0 &&
                       strcmp(all, m->layout) == 0;
    member_record_t records[MEMBERS_MOST];
    memcpy(records, sight.records, sizeof(records));
    for (const peer_t *p = c->server->peers; p != NULL; p = p->next)
        if (!p->dead && p->herald != NULL && !is_told(c, p)) records[p->machine].layout = "";
    if (first || members_meets(m->job, records, m->layout)) return true;
    /* Who has a vote and no ranks is a moment behind those that have some. */
    if (members_quorum(m->job, sight.records, m->layout)) call_heralds_again(c);
    control_server_t *s = c->server;
    const uint64_t soon = sys()->now_ns() + VOTES_MS * CONTROL_MS;
    if (s->join_deadline > soon) s->join_deadline = soon;
    return false;
}

/* "rank 0 on tokyo/t1 was not reached: ", or who has not come to it. */
static void tell_absent(const control_t *c, text_t *out)
{
    const control_members_t *m = c->how.members;
    machine_t at;
    if (m->elects) {
        members_machine(m->job, members_leader(m->job, m->layout), &at);
        text_printf(out, "rank 0 on %s/%s was not reached: ", at.site->name, at.host);
        return;
    }
    control_join_append_missing(c, out);
    text_printf(out,
                " have not come in %llu s: ", (unsigned long long)(c->how.join_ns / 1000000000u));
}

/* Those that are here decide on their next layout; again each second, as others may come. */
bool control_members_judge(control_t *c, uint64_t now)
{
    const control_members_t *m = c->how.members;
    sight_t sight;
    char next[MEMBERS_TEXT];
    text_t reason = {0};
    if (m == NULL || !members_change(m->job)) return false;
    look_around(c, &sight);
    const bool whole = !m->elects && c->server->joined == c->how.size;
    if (members_newest(m->job, sight.records) == 0 && !m->elects && !whole) return false;
    if (whole && control_members_meet(c)) {
        control_join_finish(c);
        return true;
    }
    if (whole) look_around(c, &sight); /* without those that were told to come again */
    const bool found = members_next(m->job, m->layout, sight.here, next);
    /* Where all of the layout have come to who elects, rank 0's machine too, nobody is about to lead. */
    const bool same = found && strcmp(next, m->layout) == 0;
    const bool can = found && (!same || m->elects);
    const bool may = can && members_quorum(m->job, sight.records, next);
    if (!may) {
        if (m->job->launch.go_on_with == GO_ON_NONE && !can && !whole && !m->elects) return false;
        control_server_t *s = c->server;
        const uint64_t most = m->job->launch.quorum_timeout_ns;
        const bool due = control_wait_due(&s->stands, now);
        if (can || whole || m->elects) tell_outvoted(c, &sight, due);
        s->join_deadline = now + 1000 * CONTROL_MS;
        if (most > 0 && now - s->stands.since >= most && now - s->began_ns >= c->how.join_ns + most)
            give_up_quorum(c, &sight);
        return true;
    }
    tell_absent(c, &reason);
    if (same) text_append(&reason, "its machine is here now, and all meet as before");
    members_tell(m->job, m->layout, next, &reason);
    regroup_all(c, c->server->epoch + 1, next, reason.failed ? "ranks are missing" : reason.data);
    text_free(&reason);
    return true;
}

/* Ranks that are of different epochs of one layout: what some have met in others were to hear of, and
 * did not. They meet anew in the highest. */
bool control_members_epochs(control_t *c)
{
    const control_members_t *m = c->how.members;
    if (m == NULL || !members_change(m->job)) return false;
    regroup_all(c, c->server->epoch, m->layout, "ranks are of different epochs of the job");
    return true;
}

void control_members_take_in(control_t *c)
{
    const control_members_t *m = c->how.members;
    sight_t sight;
    char next[MEMBERS_TEXT];
    text_t reason = {0};
    if (m == NULL || !c->server->welcomed || atomic_load(&c->status) != LH_OK) return;
    look_around(c, &sight);
    if (!members_next(m->job, m->layout, sight.here, next) ||
        members_ranks(m->job, next) <= members_ranks(m->job, m->layout))
        return;
    members_tell(m->job, m->layout, next, &reason);
    regroup_all(c, c->server->epoch + 1, next, reason.failed ? "a machine is back" : reason.data);
    text_free(&reason);
}

bool control_elects(const control_t *c)
{
    return c->how.members != NULL && c->how.members->elects;
}

bool control_members_lack(const control_t *c)
{
    const control_members_t *m = c->how.members;
    char all[MEMBERS_TEXT];
    if (m == NULL) return false;
    members_all(m->job, all);
    return strcmp(all, m->layout) != 0 || members_witness(m->job) != MEMBERS_NONE;
}

void control_members_met(control_t *c)
{
    const control_members_t *m = c->how.members;
    text_t payload = {0};
    if (m == NULL) return;
    frame_write_regroup(&payload, &(frame_regroup_t){c->server->epoch, m->layout, ""});
    for (peer_t *p = c->server->peers; p != NULL; p = p->next)
        if (!p->dead && p->herald != NULL && may_vote(m, p))
            control_put(c->server, p, FRAME_MET, &payload);
    text_free(&payload);
}

void control_members_note_met(const control_t *c, const frame_regroup_t *r)
{
    const control_members_t *m = c->how.members;
    if (m == NULL || m->told == NULL || !members_are(m->job, r->layout) ||
        atomic_load(&m->told->met_epoch) != 0)
        return;
    (void)snprintf(m->told->met, sizeof(m->told->met), "%s", r->layout);
    atomic_store(&m->told->met_epoch, r->epoch);
}

/* ---- where others lead ----------------------------------------------------------------------- */

void control_members_look(control_t *c, uint64_t now)
{
    const control_members_t *m = c->how.members;
    const control_server_t *s = c->server;
    const uint64_t most = CONTROL_ASK_AFTER_MS * CONTROL_MS;
    const uint64_t after = c->how.join_ns / 2 < most ? c->how.join_ns / 2 : most;
    frame_regroup_t news;
    if (m == NULL || s->refused) return;
    if (s->welcomed) {
        control_ask_enough(c);
        return;
    }
    if (m->elects || now + c->how.join_ns > s->join_deadline + after) control_ask_start(c);
    if (control_ask_told(c, &news)) {
        regroup_all(c, news.epoch, news.layout, news.reason);
        return;
    }
    /* Whoever is taken for rank 0, or is before this machine in their order, has them all come. */
    const uint32_t own = control_ask_order(m, m->machine);
    if (m->elects && c->scout.runs && atomic_load(&c->scout.waits) < own)
        control_end(c, LH_PEER_LOST, 0, "another machine is there to decide");
}

void control_members_over(control_t *c)
{
    put_heralds(c, &(frame_regroup_t){.layout = "", .reason = "the job has ended"});
}
