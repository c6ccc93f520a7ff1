/* probe_stage.c - what one end of a probe sends and receives. Only a transport's own functions are used, so
 * that every plugin that takes a stage's messages at once can be probed; what it does not tell (loss, the
 * loaded round trip, the path's MTU) stays unknown. */
#include <links/probe_stage.h>

#include <stdlib.h>

#include <base/sys.h>

enum { PING_BYTES = 64, PINGS_ALONE = 8, PINGS_AHEAD = 16 };
static const uint32_t probe_tag = 0xffff0002;

/* ---- messages of one probe ---- */

/* Counts what has ended. `now` is the time of a whole batch of events: close enough for stages of
 * 40 ms. */
static void event_take(probe_t *p, const links_event_t *e, uint64_t now)
{
    switch (e->cookie) {
    case COOKIE_SENT: p->out--; break;
    case COOKIE_WORD: p->words++; break;
    case COOKIE_PING:
        if (p->pings < PINGS) p->trips[p->pings] = now - p->sent_ns[p->pings];
        p->pings++;
        break;
    default:
        if (p->came < STAGE) {
            p->at_ns[p->came] = now;
            p->upto[p->came] = e->bytes + (p->came > 0 ? p->upto[p->came - 1] : 0);
        }
        p->came++;
    }
}

/* Takes what has ended; sleeps until something does or until_ns. */
lh_status_t probe_turn(probe_t *p, uint64_t until_ns)
{
    enum { AT_ONCE = 32 };
    const uint64_t longest_ns = 5000000, spin_ns = 20000;
    links_event_t events[AT_ONCE];
    uint32_t count;
    const lh_status_t status = links_poll(p->l, events, AT_ONCE, &count);
    if (status != LH_OK) return status;
    const uint64_t now = sys()->now_ns();
    for (uint32_t i = 0; i < count; i++)
        event_take(p, &events[i], now);
    if (count > 0) p->moved_ns = now;
    if (count > 0 || until_ns <= now) return LH_OK;
    if (now > p->moved_ns + p->l->how.job->comm.timeout_ns)
        return fail(LH_TIMED_OUT,
                    "nothing moved on the link to rank %u, which is being measured, for [comm] "
                    "timeout = %.0f s; expected messages",
                    p->k->peer, (double)p->l->how.job->comm.timeout_ns * 1e-9);
    links_sleep(p->l, -1, spin_ns, until_ns - now < longest_ns ? until_ns - now : longest_ns);
    return LH_OK;
}

/* Where the transport has no room, turns until it has. */
lh_status_t probe_post(probe_t *p, bool sends, void *data, uint64_t bytes, uint64_t cookie)
{
    for (;;) {
        lh_status_t status = link_post(p->k, p->region, sends, data, bytes, probe_tag, cookie);
        if (status == LH_OK) p->out += sends;
        if (status != LH_AGAIN) return status;
        status = probe_turn(p, UINT64_MAX);
        if (status != LH_OK) return status;
    }
}

/* All messages of a stage are sent from the same bytes, as what they hold is not looked at, but for
 * the lead of the first. Of what comes the first has memory of its own, and the others share
 * theirs. */
char *probe_data_out(const probe_t *p)
{
    return p->memory;
}

/* Where message number `message` of the peer's stage lands. */
char *probe_data_in(const probe_t *p, uint32_t message)
{
    lh_assert(message < STAGE);
    return p->memory + (message == 0 ? 1 : 2) * (size_t)MOST_DATA;
}

/* Posts the receives of a whole stage and of the word behind it. */
lh_status_t stage_expect(probe_t *p)
{
    lh_status_t status = LH_OK;
    p->came = 0; /* the word of the stage before may be on its way, or here already */
    for (uint32_t i = 0; status == LH_OK && i < p->stage; i++)
        status = probe_post(p, false, probe_data_in(p, i), MOST_DATA, COOKIE_DATA);
    if (status == LH_OK) status = probe_post(p, false, p->its, sizeof(*p->its), COOKIE_WORD);
    return status;
}

/* ---- round trip ---- */

static int by_size(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Where ping number `ping` lies in memory that stages use later. A ping and its answer each hold
 * the time at which they were sent, by their sender's clock. */
static uint64_t *ping_word(char *data, uint32_t ping)
{
    lh_assert(ping < PINGS);
    return (uint64_t *)(void *)(data + (size_t)ping * PING_BYTES);
}

/* Pings that leave together wait for each other on a slow link: the first ones go alone. On a long way that would take
 * too many round trips, and so would 16 at a time. All that are left make no queue there: they are 3 KB. */
static uint32_t pings_ahead(const probe_t *p)
{
    const uint64_t long_ns = 10000000;
    if (p->pings > 0 && p->trips[0] >= long_ns) return PINGS;
    return p->pings < PINGS_ALONE ? 1 : PINGS_AHEAD;
}

/* The end that dials sends pings, the first eight one by one, then up to 16 ahead of the answers, and on a long way
 * all behind the first answer. The other end answers each. The end that did not dial expects the word of probe_trip
 * after the pings, and at once after it the first stage. */
static lh_status_t pings_exchange(probe_t *p)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < PINGS; i++)
        status = probe_post(p, false, ping_word(probe_data_in(p, 1), i), PING_BYTES, COOKIE_PING);
    if (status == LH_OK && !p->k->dials)
        status = probe_post(p, false, p->its, sizeof(*p->its), COOKIE_WORD);
    if (status == LH_OK && !p->k->dials) status = stage_expect(p);
    for (uint32_t next = 0; status == LH_OK && (next < PINGS || p->pings < PINGS || p->out > 0);) {
        const uint32_t most = p->k->dials ? p->pings + pings_ahead(p) : p->pings;
        if (next < PINGS && next < most) {
            p->sent_ns[next] = *ping_word(probe_data_out(p), next) = sys()->now_ns();
            status = probe_post(p, true, ping_word(probe_data_out(p), next), PING_BYTES,
                                COOKIE_SENT);
            next++;
            /* An answer that comes while many leave is taken when it comes. */
            if (status == LH_OK && most > p->pings + PINGS_AHEAD) status = probe_turn(p, 0);
        } else {
            status = probe_turn(p, UINT64_MAX);
        }
    }
    return status;
}

/* The other end's clock, less this one's: its time in the echo of the shortest round trip, less the
 * middle of that trip by this clock. The shortest is the likeliest to have two equal halves. */
static int64_t clock_ahead(const probe_t *p)
{
    uint32_t least = 0;
    for (uint32_t i = 1; i < PINGS; i++)
        if (p->trips[i] < p->trips[least]) least = i;
    const uint64_t middle = p->sent_ns[least] + p->trips[least] / 2;
    return (int64_t)(*ping_word(probe_data_in(p, 1), least) - middle);
}

/* Both ends know the round trip and the other's clock before the first stage: the end that dialed
 * has timed the pings, and tells the other in a word. Round trips are sorted for that: least,
 * median, 99th of 100. */
lh_status_t probe_trip(probe_t *p)
{
    probe_figures_t *f = p->figures;
    lh_status_t status = pings_exchange(p);
    if (status != LH_OK) return status;
    if (!p->k->dials) {
        while (status == LH_OK && p->words == 0)
            status = probe_turn(p, UINT64_MAX);
        f->round_trip_ns = p->its->round_trip_ns;
        p->ahead_ns = p->its->ahead_ns;
        p->words = 0;
        return status;
    }
    p->ahead_ns = clock_ahead(p);
    qsort(p->trips, PINGS, sizeof(p->trips[0]), by_size);
    f->round_trip_ns = p->trips[0];
    f->median_ns = p->trips[PINGS / 2];
    f->p99_ns = p->trips[PINGS - 1];
    status = stage_expect(p);
    *p->own = (probe_word_t){.round_trip_ns = f->round_trip_ns, .ahead_ns = -p->ahead_ns};
    if (status == LH_OK) status = probe_post(p, true, p->own, sizeof(*p->own), COOKIE_SENT);
    return status;
}

/* ---- stages ---- */

/* Bytes of each of a stage's messages, for it to last `ns` at that pace. */
uint64_t stage_message(const probe_t *p, double pace, uint64_t ns, uint64_t most)
{
    const double bytes = pace * (double)ns * 1e-9 / p->stage;
    if (bytes < LEAST_DATA) return LEAST_DATA;
    return bytes > (double)most ? most : (uint64_t)bytes;
}

/* Both ramps had ended before this stage, as each end knows of the other by its first message. Then the stage is
 * there for the words behind it, and could only make a figure better: on a long way each end that has one of what it
 * sends cuts its stage short. */
static bool stage_is_cut(const probe_t *p, uint32_t kind)
{
    const probe_word_t *lead = (const probe_word_t *)(const void *)probe_data_in(p, 0);
    if (kind != KIND_RAMP || !p->ramp.done || !p->ramp.told || p->came == 0) return false;
    return lead->done != 0 && link_probe_hurries(p->figures->round_trip_ns);
}

/* Message i leaves when i messages' bytes are due at the pace, in bytes a second, and not before.
 * Between messages this end takes in what the other sends, so both directions are loaded at once.
 * What is left of a stage that is cut is short and leaves at once. Returns
 * when all that this end sent has left and all of the peer's stage has come. */
static lh_status_t stage_send(probe_t *p, double pace, uint64_t bytes, uint32_t kind)
{
    lh_status_t status = LH_OK;
    while (status == LH_OK && p->out > 0) /* what was sent before may still be read */
        status = probe_turn(p, UINT64_MAX);
    const uint64_t begin = sys()->now_ns();
    *p->lead = (probe_word_t){.kind = kind,
                              .done = p->ramp.done,
                              .choice = p->choice,
                              .begun_ns = begin,
                              .rate = {p->rate[0], p->rate[1]},
                              .loss = p->loss};
    for (uint32_t i = 0; status == LH_OK && i < p->stage;) {
        const uint64_t due = begin + (uint64_t)((double)(i * bytes) / pace * 1e9);
        const bool cut = stage_is_cut(p, kind);
        if (!cut && sys()->now_ns() < due) {
            status = probe_turn(p, due);
            continue;
        }
        status = probe_post(p, true, probe_data_out(p), cut ? LEAST_DATA : bytes, COOKIE_SENT);
        i++;
    }
    while (status == LH_OK && (p->out > 0 || p->came < p->stage)) {
        status = probe_turn(p, UINT64_MAX);
        if (status == LH_OK && kind == KIND_BURST && p->out == 0)
            probe_cards_watch(&p->cards, p->k);
    }
    if (status == LH_OK && kind == KIND_BURST) probe_cards_watch(&p->cards, p->k);
    return status;
}

static double stage_rate(const probe_t *p)
{
    const probe_word_t *lead = (const probe_word_t *)(const void *)probe_data_in(p, 0);
    return link_probe_came(p->at_ns, p->upto, p->stage, (int64_t)lead->begun_ns - p->ahead_ns,
                           p->figures->round_trip_ns / 2);
}

/* A transport that tells no figures leaves zeroes. */
void probe_stats(const probe_t *p, lh_link_stats_t *out)
{
    *out = (lh_link_stats_t){.struct_size = sizeof(*out)};
    if (link_stats(p->k, out) != LH_OK) fail_clear();
}

/* A plugin's figures are of some time ago: waits until they are of this stage. */
lh_status_t probe_settle(probe_t *p)
{
    lh_status_t status = LH_OK;
    const uint64_t settled = sys()->now_ns() + PROBE_SETTLE_NS;
    while (status == LH_OK && sys()->now_ns() < settled)
        status = probe_turn(p, settled);
    return status;
}

/* What was sent again is of the streams that there are: where one was dialled anew, or its packets got
 * shorter, less is told than before. Then it says nothing of this burst. */
static uint64_t lost_since(uint64_t now, uint64_t before)
{
    return now > before ? now - before : 0;
}

/* A stage both ways. *there: how fast what this end sent came, *here: what the other end sent. Afterwards the
 * next one is expected. */
lh_status_t stage_run(probe_t *p, double pace, uint64_t bytes, uint32_t kind, double *there,
                      double *here)
{
    lh_link_stats_t stats;
    lh_status_t status = stage_send(p, pace, bytes, kind);
    *here = stage_rate(p);
    if (status == LH_OK && kind == KIND_BURST) status = probe_settle(p);
    if (status != LH_OK) return status;
    probe_stats(p, &stats);
    p->loaded_ns = stats.round_trip_ns;
    *p->own = (probe_word_t){.kind = kind,
                             .done = p->ramp.done,
                             .came = (uint64_t)*here,
                             .sent = stats.bytes_sent - p->sent_before,
                             .lost = lost_since(stats.bytes_retransmitted, p->lost_before)};
    /* The peer goes on when it has this word. What it then sends lands where this stage has, of which nothing
     * is looked at any more; its next word is not sent before this end has read the last one and gone on, too. */
    status = stage_expect(p);
    if (status == LH_OK) status = probe_post(p, true, p->own, sizeof(*p->own), COOKIE_SENT);
    while (status == LH_OK && p->words == 0)
        status = probe_turn(p, UINT64_MAX);
    p->words = 0;
    *there = (double)p->its->came;
    return status;
}
