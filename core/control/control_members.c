/* control_members.c - rank 0's part in a job whose machines change: who is there, whether those may go
 * on by themselves, and with whom.
 *
 * A machine that has no ranks now - a spare, or one that was left out - sends a herald, which keeps a
 * connection to rank 0 and is no rank. It may come while ranks meet, and later where the layout lacks a
 * host: then alone does rank 0 listen while the job runs.
 *
 * Two halves of a job that can't see each other must not both go on. So those that are here need most
 * of the ranks of the last layout in which all had met, by which they know that no other group has
 * (members_may). A layout in which some were to meet later and may have met is asked in the same way:
 * each member tells the last one that it was told of. A launcher that was started anew remembers nothing
 * and has no vote. This is dynamic voting as Keidar and Dolev made it safe against members that are lost
 * in the middle of a change. */
#include <control/control_server.h>

#include <stdio.h>

#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <control/control_members.h>
#include <control/control_state.h>

/* Who is there, a machine each. */
typedef struct sight {
    bool here[MEMBERS_MOST];
    member_record_t records[MEMBERS_MOST];
} sight_t;

static void sight_add(sight_t *s, uint32_t machine, const frame_hello_t *h)
{
    s->here[machine] = true;
    s->records[machine] = (member_record_t){true, h->met_epoch, h->met, h->tried};
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
    for (uint32_t machine = 0; machine < members_machines(m->job); machine++) {
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

/* All end, and whoever starts them knows what they are next. */
static void regroup(control_t *c, uint32_t epoch, const char *layout, const char *reason)
{
    const frame_regroup_t r = {.epoch = epoch, .layout = layout, .reason = reason};
    for (uint32_t rank = 1; rank < c->how.size; rank++)
        put_regroup(c, c->server->seats[rank].peer, &r);
    put_heralds(c, &r);
    control_members_told(c, &r);
    control_end(c, LH_PEER_LOST, 0, reason);
}

/* Rank 0 is the first rank of any layout: while this process is to stay that, others can't lead. */
static bool leads(const control_t *c, const char *layout)
{
    const control_members_t *m = c->how.members;
    uint32_t first;
    return members_ranks_of(m->job, layout, m->machine, &first) > 0 && first == 0;
}

/* ---- hellos ---------------------------------------------------------------------------------- */

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
}

/* The answer goes out now or never, as of a peer that is refused. */
static void answer_at_once(control_t *c, peer_t *p, const frame_regroup_t *r)
{
    put_regroup(c, p, r);
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
    if (h->herald == 0 && ((same && !late) || !members_are(m->job, h->layout))) return false;
    const uint32_t machine = members_find(m->job, h->site, h->host);
    if (machine == MEMBERS_NONE) return false;
    uint32_t first;
    const bool has_ranks = members_ranks_of(m->job, m->layout, machine, &first) > 0;
    (void)snprintf(name, sizeof(name), "%s/%s", h->site, h->host);
    if (h->epoch > c->server->epoch && !same && members_are(m->job, h->layout)) {
        (void)snprintf(reason, sizeof(reason), "%.120s knows of epoch %u of the job, rank 0 of %u",
                       name, h->epoch, c->server->epoch);
        regroup(c, h->epoch, h->layout, reason);
    } else if (h->herald == 0 || has_ranks) {
        (void)snprintf(reason, sizeof(reason),
                       has_ranks ? "%.120s takes part with other ranks now"
                                 : "the job has gone on without %.120s",
                       name);
        answer_at_once(c, p, &(frame_regroup_t){c->server->epoch, m->layout, reason});
    } else {
        keep_herald(c, p, machine, f);
    }
    return true;
}

/* ---- who goes on ----------------------------------------------------------------------------- */

/* Once; people are told by tell_missing who is waited for. */
static void tell_outvoted(control_t *c)
{
    static const char sentence[] =
        "the ranks that have come are not most of those of the last meeting: others may go on "
        "without "
        "them, so they wait; of two halves [launch] prefer names the one that goes on";
    if (c->server->outvoted) return;
    c->server->outvoted = true;
    log_line(LH_LOG_WARN, "%s", sentence);
    control_notice(c, FRAME_WAIT, LH_OK, 0, sentence);
}

bool control_members_meet(control_t *c)
{
    const control_members_t *m = c->how.members;
    sight_t sight;
    char all[MEMBERS_TEXT];
    if (m == NULL || !members_change(m->job)) return true;
    look_around(c, &sight);
    members_all(m->job, all);
    /* The first meeting is one of all. */
    const bool first = members_newest(m->job, sight.records) == 0 && strcmp(all, m->layout) == 0;
    if (first || members_quorum(m->job, sight.records, m->layout)) return true;
    tell_outvoted(c);
    return false;
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
    if (members_newest(m->job, sight.records) == 0) return false;
    const bool whole = c->server->joined == c->how.size;
    if (whole && control_members_meet(c)) {
        control_finish_join(c);
        return true;
    }
    const bool can = members_next(m->job, m->layout, sight.here, next) && leads(c, next) &&
                     strcmp(next, m->layout) != 0;
    const bool may = can && members_quorum(m->job, sight.records, next);
    if (!may) {
        if (m->job->launch.go_on_with == GO_ON_NONE && !can && !whole) return false;
        if (can) tell_outvoted(c);
        c->server->join_deadline = now + 1000 * CONTROL_MS;
        return true;
    }
    control_append_missing(c, &reason);
    text_printf(&reason,
                " have not come in %llu s: ", (unsigned long long)(c->how.join_ns / 1000000000u));
    members_tell(m->job, m->layout, next, &reason);
    regroup(c, c->server->epoch + 1, next, reason.failed ? "ranks are missing" : reason.data);
    text_free(&reason);
    return true;
}

/* Ranks that are of different epochs of one layout: what some have met in others were to hear of, and
 * did not. They meet anew in the highest. */
bool control_members_epochs(control_t *c)
{
    const control_members_t *m = c->how.members;
    if (m == NULL || !members_change(m->job)) return false;
    regroup(c, c->server->epoch, m->layout, "ranks are of different epochs of the job");
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
    if (!members_next(m->job, m->layout, sight.here, next) || !leads(c, next) ||
        members_ranks(m->job, next) <= members_ranks(m->job, m->layout))
        return;
    members_tell(m->job, m->layout, next, &reason);
    regroup(c, c->server->epoch + 1, next, reason.failed ? "a machine is back" : reason.data);
    text_free(&reason);
}

bool control_members_lack(const control_t *c)
{
    const control_members_t *m = c->how.members;
    return m != NULL && strchr(m->layout, MEMBER_GONE) != NULL;
}

void control_members_over(control_t *c)
{
    put_heralds(c, &(frame_regroup_t){.layout = "", .reason = "the job has ended"});
}
