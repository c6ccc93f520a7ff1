/* links_probe.c - measures the links between sites before training opens its connections.
 *
 * Of each pair of sites the first ranks connect for this alone. The end that dialed sends pings,
 * which the other sends back; then both send stages (link_probe.h) at the same time, since training uses
 * both directions at once:
 *
 *   STAGE messages of data at an even pace, and a word: how fast the peer's came, and whether the
 *   sender's own ramp has ended
 *
 * The receives of the next stage are posted before the word leaves, so the peer begins its stage
 * half a round trip later and waits for no grant. Once both ramps have ended the end that dialed
 * leads: the first message of its next stage says whether it is a burst at the rate that was found,
 * whether both connect anew by another of the plugin's tunings, or the end. Only a transport's own
 * functions are used, so that every plugin that takes a stage's messages at once can be probed; what
 * it does not tell (loss, the loaded round trip, the path's MTU) stays unknown. */
#include <links/links_probe.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <links/links_connect.h>

enum {
    PINGS = 64,
    PING_BYTES = 64,
    PINGS_AHEAD = 16,
    STAGE = 128,          /* messages of data                                  */
    LEAST_DATA = 1 << 10, /* bytes of a message                                */
    MOST_DATA = 4 << 20,
    BURST_BYTES = 32 << 20, /* most of a burst                                  */
    BURSTS = 2,
    NEIGHBOURS = 5, /* tunings beside the plugin's first that are tried */
};
static const uint32_t probe_tag = 0xffff0002;
static const double at_once = 1e12;         /* a pace: as fast as the transport takes it      */
static const double kept_share = 0.95;      /* of the pace: the link carries what is asked */
static const uint64_t burst_ns = 200000000; /* long enough to count packets that are lost      */
static const uint64_t settle_ns = 60000000; /* after which a plugin's figures are of this stage */

enum { COOKIE_SENT, COOKIE_DATA, COOKIE_WORD, COOKIE_PING };
enum { KIND_RAMP, KIND_BURST, KIND_AGAIN, KIND_END };

typedef struct word { /* what the ends tell each other; the first bytes of a message */
    uint32_t kind, done;
    uint64_t came;                             /* bytes a second of the peer's stage            */
    uint64_t sent, lost;                       /* bytes of this burst, by its own transport     */
    uint64_t round_trip_ns, median_ns, p99_ns; /* of the pings                                  */
    uint64_t begun_ns;                         /* by its own clock, the first message of data    */
    int64_t ahead_ns;                          /* so much the other clock is before its own       */
    uint64_t rate[2];                          /* from the end that dialed to the other, back   */
    double loss;
    uint32_t choice, reserved;
} word_t;

typedef struct probe {
    links_t *l;
    link_t *k;
    lh_region_t *region;
    char *memory;             /* data to send, data that came: its first message and the others */
    word_t *own, *its, *lead; /* in memory too: to send, to receive, first bytes of data sent  */
    uint64_t begun_ns, deadline_ns;
    uint32_t out; /* sends that have not ended                 */
    uint32_t came, words, pings;
    uint64_t at_ns[STAGE],
        upto[STAGE];  /* of this stage's data: when a message had come, bytes by then */
    int64_t ahead_ns; /* the other end's clock, less this one's */
    uint64_t sent_ns[PINGS], trips[PINGS];
    probe_ramp_t ramp; /* of what this end sends                    */
    uint64_t loaded_ns;
    uint64_t rate[2], burst[2]; /* what this end sends, what comes          */
    uint64_t sent_before, lost_before;
    uint64_t lost[2], sent[2]; /* in bursts                                */
    uint32_t choice;           /* of the plugin's tunings */
    double loss;               /* of bursts that did not keep the pace */
    probe_figures_t *figures;
} probe_t;

/* ---- messages of one probe ---- */

static void take_event(probe_t *p, const links_event_t *e, uint64_t now)
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
static lh_status_t probe_turn(probe_t *p, uint64_t until_ns)
{
    enum { AT_ONCE = 32 };
    const uint64_t longest_ns = 5000000, spin_ns = 20000;
    links_event_t events[AT_ONCE];
    uint32_t count;
    const lh_status_t status = links_poll(p->l, events, AT_ONCE, &count);
    if (status != LH_OK) return status;
    const uint64_t now = sys()->now_ns();
    for (uint32_t i = 0; i < count; i++)
        take_event(p, &events[i], now);
    if (count > 0 || until_ns <= now) return LH_OK;
    if (now > p->begun_ns + p->l->how.job->comm.timeout_ns)
        return fail(LH_TIMED_OUT,
                    "the link to rank %u was not measured within [comm] timeout = "
                    "%.0f s; expected it to carry messages",
                    p->k->peer, (double)p->l->how.job->comm.timeout_ns * 1e-9);
    links_sleep(p->l, -1, spin_ns, until_ns - now < longest_ns ? until_ns - now : longest_ns);
    return LH_OK;
}

static lh_status_t probe_post(probe_t *p, bool sends, void *data, uint64_t bytes, uint64_t cookie)
{
    const lh_transport_api_t *api = p->k->carrier->api;
    for (;;) {
        operation_t *o = link_operation(p->k, cookie, false);
        lh_status_t status = LH_AGAIN;
        if (o != NULL) {
            const uint64_t own = (uint64_t)(uintptr_t)o;
            status = sends ? api->isend(p->k->conn, p->region, data, bytes, probe_tag, own)
                           : api->irecv(p->k->conn, p->region, data, bytes, probe_tag, own);
            if (status == LH_OK) {
                p->out += sends;
                return LH_OK;
            }
            link_idle(o);
        }
        if (status != LH_AGAIN) {
            links_lose(p->k, status, fail_reason());
            return links_status(p->l);
        }
        status = probe_turn(p, UINT64_MAX);
        if (status != LH_OK) return status;
    }
}

static char *data_out(const probe_t *p)
{
    return p->memory;
}

static char *data_in(const probe_t *p, uint32_t message)
{
    return p->memory + (message == 0 ? 1 : 2) * (size_t)MOST_DATA;
}

static lh_status_t expect_stage(probe_t *p)
{
    lh_status_t status = LH_OK;
    p->came = p->words = 0;
    for (uint32_t i = 0; status == LH_OK && i < STAGE; i++)
        status = probe_post(p, false, data_in(p, i), MOST_DATA, COOKIE_DATA);
    if (status == LH_OK) status = probe_post(p, false, p->its, sizeof(*p->its), COOKIE_WORD);
    return status;
}

/* ---- round trip ---- */

static int by_size(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Of a ping and its echo, by number: where both lie where data will; an echo is the other's time. */
static uint64_t *ping_at(char *data, uint32_t ping)
{
    return (uint64_t *)(void *)(data + (size_t)ping * PING_BYTES);
}

/* The end that did not dial expects the word of measure_trip after the pings, and at once after it
 * the first stage. */
static lh_status_t ping(probe_t *p)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < PINGS; i++)
        status = probe_post(p, false, ping_at(data_in(p, 1), i), PING_BYTES, COOKIE_PING);
    if (status == LH_OK && !p->k->dials)
        status = probe_post(p, false, p->its, sizeof(*p->its), COOKIE_WORD);
    if (status == LH_OK && !p->k->dials) status = expect_stage(p);
    for (uint32_t next = 0; status == LH_OK && (next < PINGS || p->pings < PINGS || p->out > 0);) {
        const uint32_t most = p->k->dials ? p->pings + PINGS_AHEAD : p->pings;
        if (next < PINGS && next < most) {
            p->sent_ns[next] = *ping_at(data_out(p), next) = sys()->now_ns();
            status = probe_post(p, true, ping_at(data_out(p), next), PING_BYTES, COOKIE_SENT);
            next++;
        } else {
            status = probe_turn(p, UINT64_MAX);
        }
    }
    return status;
}

/* Of the shortest round trip, whose halves are likeliest the same. */
static int64_t clock_ahead(const probe_t *p)
{
    uint32_t least = 0;
    for (uint32_t i = 1; i < PINGS; i++)
        if (p->trips[i] < p->trips[least]) least = i;
    const uint64_t middle = p->sent_ns[least] + p->trips[least] / 2;
    return (int64_t)(*ping_at(data_in(p, 1), least) - middle);
}

/* Both ends know the round trip and the other's clock before the first stage. */
static lh_status_t measure_trip(probe_t *p)
{
    probe_figures_t *f = p->figures;
    lh_status_t status = ping(p);
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
    status = expect_stage(p);
    *p->own = (word_t){.round_trip_ns = f->round_trip_ns, .ahead_ns = -p->ahead_ns};
    if (status == LH_OK) status = probe_post(p, true, p->own, sizeof(*p->own), COOKIE_SENT);
    return status;
}

/* ---- stages ---- */

static uint64_t message_bytes(double pace, uint64_t ns, uint64_t most)
{
    const double bytes = pace * (double)ns * 1e-9 / STAGE;
    if (bytes < LEAST_DATA) return LEAST_DATA;
    return bytes > (double)most ? most : (uint64_t)bytes;
}

static lh_status_t send_data(probe_t *p, double pace, uint64_t bytes, uint32_t kind)
{
    lh_status_t status = LH_OK;
    while (status == LH_OK && p->out > 0) /* what was sent before may still be read */
        status = probe_turn(p, UINT64_MAX);
    const uint64_t begin = sys()->now_ns();
    *p->lead = (word_t){.kind = kind,
                        .choice = p->choice,
                        .begun_ns = begin,
                        .rate = {p->rate[0], p->rate[1]},
                        .loss = p->loss};
    for (uint32_t i = 0; status == LH_OK && i < STAGE;) {
        const uint64_t due = begin + (uint64_t)((double)(i * bytes) / pace * 1e9);
        if (sys()->now_ns() < due) {
            status = probe_turn(p, due);
            continue;
        }
        status = probe_post(p, true, data_out(p), bytes, COOKIE_SENT);
        i++;
    }
    while (status == LH_OK && (p->out > 0 || p->came < STAGE))
        status = probe_turn(p, UINT64_MAX);
    return status;
}

/* Bytes a second from when the other end began, by its clock, until a message had come, less the
 * way: what waits anywhere makes it less, nothing makes it more, so the link gives at least the most
 * of these. Not the last alone: it may have met a stream that was still busy. */
static double came_at(const probe_t *p)
{
    const int64_t least_ns = 200000;
    const word_t *lead = (const word_t *)(const void *)data_in(p, 0);
    const int64_t begun = (int64_t)lead->begun_ns - p->ahead_ns;
    double most = 0;
    for (uint32_t i = STAGE / 2; i < STAGE; i++) {
        int64_t took = (int64_t)p->at_ns[i] - begun - (int64_t)(p->figures->round_trip_ns / 2);
        if (took < least_ns) took = least_ns;
        const double rate = (double)p->upto[i] * 1e9 / (double)took;
        if (rate > most) most = rate;
    }
    return most;
}

static void look(const probe_t *p, lh_link_stats_t *out)
{
    *out = (lh_link_stats_t){.struct_size = sizeof(*out)};
    if (link_stats(p->k, out) != LH_OK) fail_clear();
}

/* A plugin's figures are of some time ago. */
static lh_status_t settle(probe_t *p)
{
    lh_status_t status = LH_OK;
    const uint64_t settled = sys()->now_ns() + settle_ns;
    while (status == LH_OK && sys()->now_ns() < settled)
        status = probe_turn(p, settled);
    return status;
}

/* A stage both ways. *there: how fast what this end sent came, *here: what the other end sent. */
static lh_status_t run_stage(probe_t *p, double pace, uint64_t bytes, uint32_t kind, double *there,
                             double *here)
{
    lh_link_stats_t stats;
    lh_status_t status = send_data(p, pace, bytes, kind);
    *here = came_at(p);
    if (status == LH_OK && kind == KIND_BURST) status = settle(p);
    if (status != LH_OK) return status;
    look(p, &stats);
    p->loaded_ns = stats.round_trip_ns;
    *p->own = (word_t){.kind = kind,
                       .done = p->ramp.done,
                       .came = (uint64_t)*here,
                       .sent = stats.bytes_sent - p->sent_before,
                       .lost = stats.bytes_retransmitted - p->lost_before};
    /* Its word has been posted for with its data: it is read before that is posted for again. */
    status = probe_post(p, true, p->own, sizeof(*p->own), COOKIE_SENT);
    while (status == LH_OK && p->words == 0)
        status = probe_turn(p, UINT64_MAX);
    *there = (double)p->its->came;
    return status;
}

/* The link as this end's plugin is told it. */
static lh_link_t link_of(const probe_t *p)
{
    return (lh_link_t){.struct_size = sizeof(lh_link_t),
                       .scope = LH_LINK_WAN,
                       .round_trip_ns = p->figures->round_trip_ns,
                       .bytes_per_second = p->rate[0],
                       .loss = p->loss};
}

/* The connection that is there gets what can be had without a new one. */
static void retune(const probe_t *p, const lh_tuning_t *wanted)
{
    const lh_transport_api_t *api = p->k->carrier->api;
    if (api->retune != NULL && api->retune(p->k->conn, wanted, NULL) != LH_OK) fail_clear();
}

/* The word of a stage that both ramps have ended before is the last of the ramp. */
static lh_status_t ramp(probe_t *p)
{
    const uint64_t trip = p->figures->round_trip_ns;
    /* What a word and two bursts will take. */
    const uint64_t rest = 2 * (burst_ns + settle_ns + 2 * trip) + settle_ns + 3 * trip;
    for (bool ended = false; !ended;) {
        double there, here;
        /* The first is a train: as fast as it can, and short. */
        const bool train = p->ramp.best <= 0;
        const double pace = train ? at_once : link_probe_pace(&p->ramp);
        const uint64_t ns = train ? 1 : link_probe_ns(&p->ramp, trip);
        const uint64_t bytes = message_bytes(pace, ns, MOST_DATA);
        const lh_tuning_t paced = {.struct_size = sizeof(paced),
                                   .pace_bytes_per_second = p->ramp.flat > 0 ? (uint64_t)pace
                                                                             : UINT64_MAX};
        retune(p, &paced);
        lh_status_t status = run_stage(p, pace, bytes, KIND_RAMP, &there, &here);
        if (status != LH_OK) return status;
        ended = p->ramp.done && p->its->done;
        if (here > (double)p->rate[1] && !train) p->rate[1] = (uint64_t)here;
        if (train)
            p->ramp.best = there / 2; /* of few bytes: a guess */
        else
            link_probe_stage(&p->ramp, there, p->loaded_ns, trip);
        /* What is faster than messages can be is not seen. */
        p->ramp.done |= bytes == MOST_DATA || sys()->now_ns() + rest > p->deadline_ns;
        status = expect_stage(p);
        if (status != LH_OK) return status;
    }
    p->rate[0] = (uint64_t)p->ramp.best;
    p->figures->loaded_ns = p->loaded_ns;
    return LH_OK;
}

/* ---- tuning ---- */

/* At 97 % of the rate that was found, by the tuning p->choice. */
static lh_status_t burst(probe_t *p)
{
    lh_link_stats_t before;
    lh_tuning_t tuning;
    char tuned[PROBE_TUNED];
    double there, here;
    const lh_link_t link = link_of(p);
    const uint64_t trip = p->figures->round_trip_ns;
    const double pace = 0.97 * (double)p->rate[0];
    const uint64_t ns = 2 * trip > burst_ns ? 2 * trip : burst_ns;
    (void)links_tune(p->k->carrier, &link, p->choice, &tuning, tuned);
    tuning.pace_bytes_per_second = (uint64_t)pace;
    retune(p, &tuning);
    look(p, &before);
    p->sent_before = before.bytes_sent;
    p->lost_before = before.bytes_retransmitted;
    const bool paces = p->k->carrier->api->retune != NULL;
    lh_status_t status = run_stage(p, paces ? at_once : pace,
                                   message_bytes(pace, ns, BURST_BYTES / STAGE), KIND_BURST, &there,
                                   &here);
    if (status != LH_OK) return status;
    p->sent[0] += p->own->sent;
    p->lost[0] += p->own->lost;
    p->sent[1] += p->its->sent;
    p->lost[1] += p->its->lost;
    if (there > (double)p->burst[0]) p->burst[0] = (uint64_t)there;
    if (here > (double)p->burst[1]) p->burst[1] = (uint64_t)here;
    return expect_stage(p);
}

/* Each end says what is next, or that it ends; the one that led closes first, and the other waits
 * for that. */
static lh_status_t part(probe_t *p, uint32_t kind)
{
    const uint64_t until = sys()->now_ns() + 1000000000;
    lh_status_t status = LH_OK;
    /* The end that led has said so already, and closes as soon as it has this one's word. */
    p->k->leaving = !p->k->dials;
    while (status == LH_OK && !p->k->gone && p->out > 0)
        status = probe_turn(p, UINT64_MAX);
    *p->lead = (word_t){
        .kind = kind, .choice = p->choice, .rate = {p->rate[0], p->rate[1]}, .loss = p->loss};
    if (status == LH_OK) status = probe_post(p, true, data_out(p), sizeof(word_t), COOKIE_SENT);
    while (status == LH_OK && !p->k->gone && (p->out > 0 || p->came == 0))
        status = probe_turn(p, UINT64_MAX);
    if (status != LH_OK) return status;
    p->k->leaving = true;
    while (!p->k->dials && !p->k->gone && sys()->now_ns() < until) {
        links_harvest(p->l);
        links_sleep(p->l, -1, 0, 1000000);
    }
    link_drop(p->k);
    p->k = NULL;
    return LH_OK;
}

static lh_status_t connect_pair(probe_t *p, uint32_t peer)
{
    const lh_status_t status = links_connect(p->l, &peer, 1, LH_SERVICE_BULK);
    p->k = links_find(p->l, peer, LH_SERVICE_BULK);
    return status;
}

/* Another tuning needs other streams: a new connection, which is told what is known by now. */
static lh_status_t connect_anew(probe_t *p)
{
    const world_t *w = p->l->how.world;
    const uint32_t peer = p->k->peer;
    const uint32_t here = w->ranks[w->row.rank].site, there = w->ranks[peer].site;
    probe_figures_t *told = &p->l->pairs[links_pair(here, there)].figures;
    lh_status_t status = part(p, KIND_AGAIN);
    *told = *p->figures;
    told->rate[here > there] = p->rate[0];
    told->rate[here < there] = p->rate[1];
    told->loss[0] = told->loss[1] = p->loss;
    told->choice = p->choice;
    if (status == LH_OK) status = connect_pair(p, peer);
    *told = (probe_figures_t){0};
    *p->its = (word_t){0};
    p->burst[0] = p->burst[1] = p->lost[0] = p->lost[1] = p->sent[0] = p->sent[1] = 0;
    return status == LH_OK ? expect_stage(p) : status;
}

/* How much of its pace the slower direction has kept. */
static double kept_of(const probe_t *p)
{
    const double there = (double)p->burst[0] / (0.97 * (double)p->rate[0]);
    const double back = (double)p->burst[1] / (0.97 * (double)p->rate[1]);
    return there < back ? there : back;
}

static double lost_of(const probe_t *p)
{
    const double there = p->sent[0] > 0 ? (double)p->lost[0] / (double)p->sent[0] : 0;
    const double back = p->sent[1] > 0 ? (double)p->lost[1] / (double)p->sent[1] : 0;
    return there > back ? there : back;
}

static void tell_figures(const probe_t *p);

/* The end that dialed leads: bursts by the plugin's first tuning, by its neighbours where that does
 * not keep the pace, and the best one's figures stay. */
static lh_status_t lead(probe_t *p)
{
    double best = 0;
    lh_tuning_t tuning;
    char tuned[PROBE_TUNED];
    for (uint32_t choice = 0; choice <= NEIGHBOURS; choice++) {
        const lh_link_t link = link_of(p);
        lh_status_t status = LH_OK;
        if (!links_tune(p->k->carrier, &link, choice, &tuning, tuned)) break;
        lh_link_stats_t stats;
        look(p, &stats);
        p->choice = choice;
        const bool is_another = tuning.streams != 0 && tuning.streams != stats.paths_up;
        if (choice > 0 || is_another) status = connect_anew(p);
        /* What the stages before have lost is not to be counted, here or by the other end. */
        if (status == LH_OK) status = settle(p);
        for (uint32_t i = 0; status == LH_OK && i < BURSTS; i++)
            status = burst(p);
        if (status != LH_OK) return status;
        if (kept_of(p) > best) {
            best = kept_of(p);
            tell_figures(p);
            (void)snprintf(p->figures->tuned, sizeof(p->figures->tuned), "%s", tuned);
        }
        if (best >= kept_share || sys()->now_ns() + 3 * burst_ns > p->deadline_ns) break;
        p->loss = lost_of(p);
    }
    return LH_OK;
}

/* What the end that dialed wants next is in its first message. */
static lh_status_t follow(probe_t *p)
{
    for (;;) {
        lh_status_t status = LH_OK;
        while (status == LH_OK && p->came == 0)
            status = probe_turn(p, UINT64_MAX);
        if (status != LH_OK) return status;
        const word_t *w = (const word_t *)(const void *)data_in(p, 0);
        const uint32_t kind = w->kind;
        p->rate[0] = w->rate[1];
        p->rate[1] = w->rate[0];
        p->choice = w->choice;
        p->loss = w->loss;
        if (kind == KIND_END) return LH_OK;
        status = kind == KIND_AGAIN ? connect_anew(p) : burst(p);
        if (status != LH_OK) return status;
    }
}

static lh_status_t open_probe(probe_t *p, uint32_t peer)
{
    const uint64_t data = 3 * (uint64_t)MOST_DATA, bytes = data + 2 * sizeof(word_t);
    p->memory = mem_new(bytes);
    if (p->memory == NULL) return LH_NO_MEMORY;
    p->own = (word_t *)(void *)(p->memory + data);
    p->its = p->own + 1;
    p->lead = (word_t *)(void *)data_out(p);
    const lh_status_t status = connect_pair(p, peer);
    if (status != LH_OK) return status;
    const lh_arena_t arena = {.struct_size = sizeof(arena),
                              .kind = LH_MEM_HOST,
                              .base = p->memory,
                              .bytes = bytes,
                              .fd = -1,
                              .numa = -1};
    const carrier_t *c = p->k->carrier;
    return c->api->register_memory(c->transport, 0, &arena, &p->region);
}

static void tell_figures(const probe_t *p)
{
    lh_link_stats_t stats;
    probe_figures_t *f = p->figures;
    look(p, &stats);
    const double packet = stats.path_mtu > 100 ? (double)stats.path_mtu - 52 : 1448;
    for (int way = 0; way < 2; way++) {
        const double packets = (double)p->sent[way] / packet, lost = (double)p->lost[way] / packet;
        f->rate[way] = p->rate[way];
        f->burst[way] = p->burst[way];
        f->loss[way] = packets > 0 ? lost / packets : 0;
        f->loss_most[way] = packets > 0 ? link_probe_loss_most(lost, packets) : -1;
    }
    lh_tuning_t tuning;
    char tuned[PROBE_TUNED];
    const lh_link_t link = link_of(p);
    (void)links_tune(p->k->carrier, &link, p->choice, &tuning, tuned);
    f->choice = p->choice;
    f->chunk_bytes = tuning.chunk_bytes;
    f->window_bytes = tuning.inflight_bytes;
    f->buffer_bytes = tuning.buffer_bytes;
    f->path_mtu = stats.path_mtu;
    f->streams = stats.paths_up;
    f->measured_s = sys()->wall_ns() / 1000000000;
}

/* Called by the two ranks of a pair. The memory is not freed before its connection has ended. */
static lh_status_t probe_pair(links_t *l, uint32_t peer, probe_figures_t *out)
{
    probe_t p = {.l = l, .figures = out, .begun_ns = sys()->now_ns()};
    l->probing = true;
    lh_status_t status = open_probe(&p, peer);
    carrier_t *c = l->carriers[LH_LINK_WAN];
    if (status == LH_OK) status = measure_trip(&p);
    p.deadline_ns = p.begun_ns + link_probe_budget_ns(out->round_trip_ns);
    if (status == LH_OK) status = ramp(&p);
    if (status == LH_OK) status = p.k->dials ? lead(&p) : follow(&p);
    if (status == LH_OK) status = part(&p, KIND_END);
    if (p.k != NULL) {
        p.k->leaving = true;
        link_drop(p.k);
    }
    out->took_ns = sys()->now_ns() - p.begun_ns;
    if (p.region != NULL) c->api->release_memory(c->transport, p.region);
    mem_free(p.memory);
    l->probing = false;
    return status;
}

/* ---- all pairs ---- */

static uint32_t first_of_site(const world_t *w, uint32_t site)
{
    uint32_t r = 0;
    while (w->ranks[r].site != site)
        r++;
    return r;
}

/* Where the rank that measures listens, without the port, which is another one each time. */
static void address_of(const links_t *l, uint32_t rank, char out[PROBE_ADDRESS])
{
    char text[128] = "";
    const carrier_t *c = l->carriers[LH_LINK_WAN];
    const lh_address_t *a = &l->addresses[(size_t)rank * LINKS_SCOPES + LH_LINK_WAN];
    if (c->api->address_text == NULL ||
        c->api->address_text(c->transport, a, text, sizeof(text)) != LH_OK) {
        fail_clear();
        (void)snprintf(text, sizeof(text), "%s", l->how.world->ranks[rank].host);
    } else if (strrchr(text, ':') != NULL) {
        *strrchr(text, ':') = '\0';
    }
    (void)snprintf(out, PROBE_ADDRESS, "%.*s", PROBE_ADDRESS - 1, text);
}

static void name_pairs(links_t *l)
{
    const world_t *w = l->how.world;
    for (uint32_t b = 1; b < w->row.sites; b++)
        for (uint32_t a = 0; a < b; a++) {
            probe_pair_t *p = &l->pairs[links_pair(a, b)];
            const uint32_t sites[2] = {a, b};
            for (int i = 0; i < 2; i++) {
                const uint32_t rank = first_of_site(w, sites[i]);
                (void)snprintf(p->site[i], sizeof(p->site[i]), "%s", w->ranks[rank].site_name);
                address_of(l, rank, p->address[i]);
            }
            (void)snprintf(p->plugin, sizeof(p->plugin), "%.*s", PROBE_PLUGIN - 1,
                           l->carriers[LH_LINK_WAN]->plugin->name);
        }
}

static void take_known(const links_t *l, probe_pair_t *p, const probe_pair_t *known, uint32_t count)
{
    const uint64_t now = sys()->wall_ns() / 1000000000;
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t at = known[i].figures.measured_s;
        if (link_probe_same(p, &known[i]) && at <= now &&
            now - at < l->how.job->comm.probe_age_ns / 1000000000)
            p->figures = known[i].figures;
    }
}

/* The same answer on all ranks: that of the rank `of`. */
static lh_status_t spread(links_t *l, uint32_t of, probe_figures_t *figures)
{
    const uint32_t size = l->how.world->row.size;
    probe_figures_t *all = mem_array(size, sizeof(*all));
    if (all == NULL) return LH_NO_MEMORY;
    const lh_status_t status = control_gather(l->how.control, figures, sizeof(*figures), all);
    if (status == LH_OK) *figures = all[of];
    mem_free(all);
    return status;
}

static void say_pair(const links_t *l, const probe_pair_t *p, bool known)
{
    char text[512];
    if (l->how.world->row.rank != 0) return;
    link_probe_text(p, text, sizeof(text));
    if (known)
        log_line(LH_LOG_INFO, "%s (as measured before)", text);
    else
        log_line(LH_LOG_INFO, "%s (measured in %.1f s)", text, (double)p->figures.took_ns * 1e-9);
}

/* After it all ranks have the pair's figures: the gather is also what makes pairs take turns. */
static lh_status_t settle_pair(links_t *l, uint32_t a, uint32_t b, const probe_pair_t *known,
                               uint32_t count)
{
    const world_t *w = l->how.world;
    probe_pair_t *p = &l->pairs[links_pair(a, b)];
    const uint32_t one = first_of_site(w, a), two = first_of_site(w, b), self = w->row.rank;
    if (strcmp(p->address[0], p->address[1]) == 0) return LH_OK; /* one machine plays both */
    if (self == 0 && l->how.job->comm.probe != PROBE_ALWAYS) take_known(l, p, known, count);
    lh_status_t status = spread(l, 0, &p->figures);
    const bool is_known = p->figures.measured_s != 0;
    if (status == LH_OK && !is_known && (self == one || self == two)) {
        probe_figures_t figures = {0};
        status = probe_pair(l, self == one ? two : one, &figures);
        p->figures = figures;
    }
    if (status == LH_OK && !is_known) status = spread(l, one < two ? one : two, &p->figures);
    if (status == LH_OK) say_pair(l, p, is_known);
    return status;
}

lh_status_t links_probe(links_t *l, const probe_pair_t *known, uint32_t count)
{
    const uint32_t sites = l->how.world->row.sites;
    const carrier_t *c = l->carriers[LH_LINK_WAN];
    lh_status_t status = LH_OK;
    if (sites < 2 || c == NULL || l->how.job->comm.probe == PROBE_NO) return LH_OK;
    if (c->nic.max_sends < STAGE + 1 || c->nic.max_recvs < STAGE + 1) return LH_OK;
    l->pair_count = sites * (sites - 1) / 2;
    l->pairs = mem_array(l->pair_count, sizeof(*l->pairs));
    if (l->pairs == NULL) return LH_NO_MEMORY;
    name_pairs(l);
    for (uint32_t b = 1; status == LH_OK && b < sites; b++)
        for (uint32_t a = 0; status == LH_OK && a < b; a++)
            status = settle_pair(l, a, b, known, count);
    return status;
}
