/* links_probe.c - measures the links between sites before training opens its connections.
 *
 * Of each pair of sites the first ranks connect for this alone. The end that dialed sends pings,
 * which the other answers with its own time; then both send stages (probe_stage.h) at the same time,
 * since training uses both directions at once. Once both ramps have ended the end that dialed
 * leads: the first message of its next stage says whether it is a burst at the rate that was found,
 * whether both connect anew by another of the plugin's tunings, or the end. Words tell it what the other
 * end's bursts have lost, so it alone decides whether that is enough to tell the loss of both ways, and
 * bursts go on both ways at once until it is. How long stages are, and when a ramp has ended, are rules
 * that send nothing (link_probe.h). What a link carries while others are busy is measured afterwards
 * (links_crowd.c), and what the plugin and the kernel say of cards and counters is asked before and after all
 * of it (links_words.c). */
#include <links/links_probe.h>

#include <stdio.h>
#include <string.h>

#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <links/link_crowd.h>
#include <links/links_connect.h>
#include <links/links_crowd.h>
#include <links/links_words.h>
#include <links/probe_stage.h>

enum {
    BURST_BYTES = 32 << 20, /* most of a burst                                  */
    BURSTS = 2,
    NEIGHBOURS = 5, /* tunings beside the plugin's first that are tried */
};
/* What a transport must take at once: a stage and its word, and as receives, where the end that is
 * dialed posts them before it answers, the pings and their word too. */
enum { LEAST_SENDS = STAGE + 1, LEAST_RECVS = PINGS + 1 + STAGE + 1 };
static const double at_once = 1e12;    /* a pace: as fast as the transport takes it  */
static const double kept_share = 0.95; /* of the pace: the link carries what is asked */

/* ---- ramp ---- */

/* The link as this end's plugin is told it, to choose a tuning for what it sends. */
static lh_link_t probe_link(const probe_t *p)
{
    return (lh_link_t){.struct_size = sizeof(lh_link_t),
                       .scope = LH_LINK_WAN,
                       .round_trip_ns = p->figures->round_trip_ns,
                       .bytes_per_second = p->rate[0],
                       .loss = p->loss};
}

/* The connection that is there gets what can be had without a new one. */
static void probe_retune(const probe_t *p, const lh_tuning_t *wanted)
{
    const lh_transport_api_t *api = p->k->carrier->api;
    if (api->retune != NULL && api->retune(p->k->conn, wanted, NULL) != LH_OK) fail_clear();
}

/* Where the transport tells of no losses there is no long stage. That a ramp is done is taken back by it,
 * which the next word tells. */
static void ramp_look(probe_t *p)
{
    lh_link_stats_t stats;
    probe_stats(p, &stats);
    if (stats.bytes_sent == 0) return;
    const double lost = (double)stats.bytes_retransmitted / (double)stats.bytes_sent;
    (void)link_probe_look(&p->ramp, lost, link_probe_packet(stats.path_mtu),
                          p->figures->round_trip_ns);
}

/* What came of an even pace is a message more than was due by then. */
static uint64_t rate_within(const probe_t *p, uint64_t came)
{
    const uint64_t asked = p->figures->asked;
    return asked != 0 && came > asked ? asked : came;
}

/* Stages of rising pace until both ends have found their rate. The word of a stage that both ramps
 * have ended before is the last of the ramp; both ends see the same two words, and so stop after
 * the same stage. */
static lh_status_t probe_ramp(probe_t *p)
{
    const uint64_t trip = p->figures->round_trip_ns;
    /* What a word and two bursts will take. */
    const uint64_t rest = BURSTS * (link_probe_burst_ns(0) + PROBE_SETTLE_NS + 2 * trip) +
                          PROBE_SETTLE_NS + 3 * trip;
    for (bool ended = false; !ended;) {
        double there, here;
        /* The first is a train: as fast as it can, and short. */
        const bool train = p->ramp.best <= 0;
        const double pace = train ? at_once : link_probe_pace(&p->ramp);
        const uint64_t ns = train ? 1 : link_probe_ns(&p->ramp, trip);
        const uint64_t bytes = stage_message(p, pace, ns, MOST_DATA);
        const double least = p->ramp.flat > 0 ? pace : p->ramp.most;
        const lh_tuning_t paced = {.struct_size = sizeof(paced),
                                   .pace_bytes_per_second = least > 0 ? (uint64_t)least
                                                                      : UINT64_MAX};
        probe_retune(p, &paced);
        const uint64_t begun_ns = sys()->now_ns();
        const lh_status_t status = stage_run(p, pace, bytes, KIND_RAMP, &there, &here);
        if (status != LH_OK) return status;
        /* The long stage has its time beside the ramp's. */
        if (p->ramp.looks) p->deadline_ns += sys()->now_ns() - begun_ns;
        ended = p->ramp.done && p->its->done;
        /* One that was cut tells too much: what is short finds room for bursts that a longer stage does not feel. */
        const bool cut = ended && link_probe_hurries(trip);
        const bool tells_here = !train && !(cut && p->rate[1] != 0);
        if (tells_here && here > (double)p->rate[1]) p->rate[1] = (uint64_t)here;
        if (train)
            p->ramp.best = there / 2; /* of few bytes: a guess */
        else if (!cut || !p->ramp.told)
            link_probe_stage(&p->ramp, there, p->loaded_ns, trip);
        /* What is faster than messages can be is not seen, nor by a longer stage. A ramp that ends because its
         * time is over has the long stage all the same: the others brought up to a third too little. */
        const bool most = bytes == MOST_DATA;
        p->ramp.done |= most || sys()->now_ns() + rest > p->deadline_ns;
        if (!ended && !most) ramp_look(p);
    }
    p->rate[0] = rate_within(p, (uint64_t)p->ramp.best);
    p->rate[1] = rate_within(p, p->rate[1]);
    p->figures->loaded_ns = p->loaded_ns;
    return LH_OK;
}

/* ---- tuning ---- */

/* One stage at 97 % of the rate that was found, by the tuning p->choice, long enough to count lost
 * packets. A transport that paces by itself is given all at once. */
static lh_status_t probe_burst(probe_t *p)
{
    lh_link_stats_t before;
    lh_tuning_t tuning;
    char tuned[PROBE_TUNED];
    double there, here;
    const lh_link_t link = probe_link(p);
    const uint64_t begun_ns = sys()->now_ns();
    const double pace = 0.97 * (double)p->rate[0];
    const uint64_t ns = link_probe_burst_ns(p->figures->round_trip_ns);
    (void)links_tune(p->k->carrier, &link, p->choice, &tuning, tuned);
    tuning.pace_bytes_per_second = (uint64_t)pace;
    probe_retune(p, &tuning);
    probe_stats(p, &before);
    probe_cards_begin(&p->cards, p->k);
    p->sent_before = before.bytes_sent;
    p->lost_before = before.bytes_retransmitted;
    const bool paces = p->k->carrier->api->retune != NULL;
    const lh_status_t status = stage_run(p, paces ? at_once : pace,
                                         stage_message(p, pace, ns, BURST_BYTES / STAGE),
                                         KIND_BURST, &there, &here);
    if (status != LH_OK) return status;
    probe_cards_end(&p->cards, p->k);
    probe_stats(p, &before); /* its MTU may not have been told before */
    const double packet = link_probe_packet(before.path_mtu);
    link_probe_tally(&p->losses[0], (double)p->own->sent / packet, (double)p->own->lost / packet);
    link_probe_tally(&p->losses[1], (double)p->its->sent / packet, (double)p->its->lost / packet);
    if (there > (double)p->burst[0]) p->burst[0] = (uint64_t)there;
    if (here > (double)p->burst[1]) p->burst[1] = (uint64_t)here;
    p->burst_took_ns = sys()->now_ns() - begun_ns;
    return LH_OK;
}

/* Ends the connection in order. Each end says what is next, or that it ends; the one that led
 * closes first, and the other waits for that, a second and two round trips at most from when its own
 * word has left. Where the one that led was held up for longer, it finds that word and the end of the
 * connection at once, or the end alone: nothing is left to be said, so that is no lost link. */
static lh_status_t probe_part(probe_t *p, uint32_t kind)
{
    lh_status_t status = LH_OK;
    p->k->leaving = true;
    while (status == LH_OK && !p->k->gone && p->out > 0)
        status = probe_turn(p, UINT64_MAX);
    *p->lead = (probe_word_t){
        .kind = kind, .choice = p->choice, .rate = {p->rate[0], p->rate[1]}, .loss = p->loss};
    if (status == LH_OK)
        status = probe_post(p, true, probe_data_out(p), sizeof(probe_word_t), COOKIE_SENT);
    while (status == LH_OK && !p->k->gone && (p->out > 0 || p->came == 0))
        status = probe_turn(p, UINT64_MAX);
    if (status != LH_OK) return status;
    const uint64_t until = sys()->now_ns() + 1000000000 + 2 * p->figures->round_trip_ns;
    while (status == LH_OK && !p->k->dials && !p->k->gone && sys()->now_ns() < until) {
        links_harvest(p->l);
        links_sleep(p->l, -1, 0, 1000000);
        status = links_status(p->l); /* of a job that has failed nobody waits for an end in order */
    }
    link_drop(p->k);
    p->k = NULL;
    p->out = 0; /* what the peer took before it closed may not have been told as sent */
    return status;
}

/* Over the service for bulk data, which training connects to anew later. */
static lh_status_t pair_connect(probe_t *p, uint32_t peer)
{
    const uint64_t begun_ns = sys()->now_ns();
    const lh_status_t status = links_connect(p->l, &peer, 1, LH_SERVICE_BULK);
    p->moved_ns = sys()->now_ns();
    p->connect_took_ns = p->moved_ns - begun_ns;
    p->k = links_find(p->l, peer, LH_SERVICE_BULK);
    return status;
}

/* Another tuning needs other streams: a new connection, which is told what is known by now. The
 * pair's figures are lent to links_connect for that and taken back, as they are not settled. */
static lh_status_t probe_connect_anew(probe_t *p)
{
    const world_t *w = p->l->how.world;
    const uint32_t peer = p->k->peer;
    const uint32_t here = w->ranks[w->row.rank].site, there = w->ranks[peer].site;
    probe_figures_t *told = &p->l->pairs[links_pair(here, there)].figures;
    lh_status_t status = probe_part(p, KIND_AGAIN);
    *told = *p->figures;
    told->rate[here > there] = p->rate[0];
    told->rate[here < there] = p->rate[1];
    told->loss[0] = told->loss[1] = told->choice_loss[0] = told->choice_loss[1] = p->loss;
    told->choice = p->choice;
    if (status == LH_OK) status = pair_connect(p, peer);
    *told = (probe_figures_t){0};
    *p->its = (probe_word_t){0};
    p->burst[0] = p->burst[1] = 0;
    p->cards = (probe_cards_t){0};
    return status == LH_OK ? stage_expect(p) : status;
}

/* How much of its pace the slower direction has kept. */
static double share_kept(const probe_t *p)
{
    const double there = (double)p->burst[0] / (0.97 * (double)p->rate[0]);
    const double back = (double)p->burst[1] / (0.97 * (double)p->rate[1]);
    return there < back ? there : back;
}

/* Into the pair's figures; returns whether the losses of both directions are told. */
static bool losses_tell(const probe_t *p)
{
    bool told[2];
    for (int way = 0; way < 2; way++) {
        double sent, lost;
        told[way] = link_probe_tally_sum(&p->losses[way], &sent, &lost);
        p->figures->loss[way] = sent > 0 ? lost / sent : 0;
        p->figures->loss_most[way] = sent > 0 ? link_probe_loss_most(lost, sent) : -1;
    }
    return told[0] && told[1];
}

/* Two bursts see too few losses of a slow link to tell how many it has. More follow over the connection that
 * there is, whichever tuning it has: none sends faster than the link carries, so the queue before it stays
 * empty. */
static lh_status_t losses_count(probe_t *p)
{
    probe_figures_t *f = p->figures;
    const uint64_t trip = f->round_trip_ns;
    const uint64_t until = p->deadline_ns + link_probe_longest_ns(trip) -
                           link_probe_budget_ns(trip);
    lh_status_t status = LH_OK;
    while (status == LH_OK && !losses_tell(p) && sys()->now_ns() + p->burst_took_ns <= until)
        status = probe_burst(p);
    for (int way = 0; way < 2; way++)
        if (p->choice == f->choice) f->burst[way] = p->burst[way];
    return status;
}

static void figures_tell(const probe_t *p);

/* Whether another tuning can still be tried: over a new connection, which may take as long as the last one, and by
 * bursts like the last. */
static bool has_time(const probe_t *p)
{
    const uint64_t least = 3 * link_probe_burst_ns(0);
    const uint64_t last = p->connect_took_ns + BURSTS * p->burst_took_ns;
    return sys()->now_ns() + (last > least ? last : least) <= p->deadline_ns;
}

/* The end that dialed leads: bursts by the plugin's first tuning, by its neighbours where that does
 * not keep the pace, and the best one's figures stay. A tuning with another number of streams than
 * the connection has needs a new connection, which takes six round trips; where the plugin can do with
 * fewer of those that there are it is asked to. All neighbours are asked for with the loss that the first
 * choice had, or the plugin might count them in another order from one to the next. That ends at once with a
 * tuning that keeps 95 % of the pace, or when the time is nearly over; then losses are counted further. */
static lh_status_t probe_lead(probe_t *p)
{
    double best = 0;
    lh_tuning_t tuning;
    char tuned[PROBE_TUNED];
    for (uint32_t choice = 0; choice <= NEIGHBOURS; choice++) {
        const lh_link_t link = probe_link(p);
        lh_status_t status = LH_OK;
        /* A plugin that has none for this link is measured as it is, and its words are kept. */
        if (!links_tune(p->k->carrier, &link, choice, &tuning, tuned) && choice > 0) break;
        const lh_tuning_t fewer = {.struct_size = sizeof(fewer), .streams = tuning.streams};
        if (choice == 0) probe_retune(p, &fewer);
        lh_link_stats_t stats;
        probe_stats(p, &stats);
        p->choice = choice;
        const bool is_another = tuning.streams != 0 && tuning.streams != stats.paths_up;
        if (choice > 0 || is_another) status = probe_connect_anew(p);
        /* What the stages before have lost is not to be counted, here or by the other end. */
        if (status == LH_OK) status = probe_settle(p);
        for (uint32_t i = 0; status == LH_OK && i < BURSTS; i++)
            status = probe_burst(p);
        if (status != LH_OK) return status;
        if (share_kept(p) > best) {
            best = share_kept(p);
            figures_tell(p);
            (void)snprintf(p->figures->tuned, sizeof(p->figures->tuned), "%s", tuned);
        }
        (void)losses_tell(p);
        const double *loss = p->figures->loss;
        if (best >= kept_share || !has_time(p)) break;
        if (choice == 0) p->loss = loss[0] > loss[1] ? loss[0] : loss[1];
    }
    return losses_count(p);
}

/* What the end that dialed wants next is in its first message. */
static lh_status_t probe_follow(probe_t *p)
{
    for (;;) {
        lh_status_t status = LH_OK;
        while (status == LH_OK && p->came == 0)
            status = probe_turn(p, UINT64_MAX);
        if (status != LH_OK) return status;
        const probe_word_t *w = (const probe_word_t *)(const void *)probe_data_in(p, 0);
        const uint32_t kind = w->kind;
        p->rate[0] = w->rate[1];
        p->rate[1] = w->rate[0];
        p->choice = w->choice;
        p->loss = w->loss;
        if (kind == KIND_END) return LH_OK;
        status = kind == KIND_AGAIN ? probe_connect_anew(p) : probe_burst(p);
        if (status != LH_OK) return status;
    }
}

/* The memory is large enough for the longest stage and is registered with the one transport that is
 * measured. */
static lh_status_t probe_open(probe_t *p, uint32_t peer)
{
    const uint64_t data = 3 * (uint64_t)MOST_DATA, bytes = data + 2 * sizeof(probe_word_t);
    p->memory = mem_new(bytes);
    if (p->memory == NULL) return LH_NO_MEMORY;
    p->own = (probe_word_t *)(void *)(p->memory + data);
    p->its = p->own + 1;
    p->lead = (probe_word_t *)(void *)probe_data_out(p);
    const lh_status_t status = pair_connect(p, peer);
    if (status != LH_OK) return status;
    const lh_arena_t arena = links_memory(p->memory, bytes);
    const carrier_t *c = p->k->carrier;
    return c->api->register_memory(c->transport, 0, &arena, &p->region);
}

/* What a probe has found so far, as the pair's figures, but for losses. */
static void figures_tell(const probe_t *p)
{
    lh_link_stats_t stats;
    probe_figures_t *f = p->figures;
    probe_stats(p, &stats);
    for (int way = 0; way < 2; way++) {
        f->rate[way] = p->rate[way];
        f->burst[way] = p->burst[way];
    }
    lh_tuning_t tuning;
    char tuned[PROBE_TUNED];
    const lh_link_t link = probe_link(p);
    (void)links_tune(p->k->carrier, &link, p->choice, &tuning, tuned);
    f->choice = p->choice;
    f->choice_loss[0] = f->choice_loss[1] = p->loss;
    f->chunk_bytes = tuning.chunk_bytes;
    f->window_bytes = tuning.inflight_bytes;
    f->buffer_bytes = tuning.buffer_bytes;
    f->path_mtu = stats.path_mtu;
    f->streams = stats.paths_up;
    f->measured_s = sys()->wall_ns() / 1000000000;
}

/* Where other ranks of the two sites have a turn afterwards, it is in the time that the pair has. */
static uint64_t pair_budget_ns(const links_t *l, uint32_t peer, uint64_t round_trip_ns)
{
    const world_t *w = l->how.world;
    const uint32_t here = w->ranks[w->row.rank].site, there = w->ranks[peer].site;
    const uint64_t all = link_probe_budget_ns(round_trip_ns);
    return links_crowd_ranks(l, here, there) > 1 ? all - link_crowd_ns(round_trip_ns) : all;
}

/* Called by the two ranks of a pair, while all others wait for their figures. The memory is not
 * freed before its connection has ended. After a failure the connection is closed, and *out is not
 * to be used. */
static lh_status_t pair_probe(links_t *l, uint32_t peer, probe_figures_t *out)
{
    probe_t p = {.l = l, .figures = out};
    const uint64_t begun_ns = sys()->now_ns();
    out->asked = l->how.job->transports[LH_LINK_WAN].rate;
    p.ramp.most = (double)out->asked;
    p.stage = link_probe_messages(p.ramp.most);
    lh_assert(!l->probing);
    l->probing = true;
    lh_status_t status = probe_open(&p, peer);
    carrier_t *c = l->carriers[LH_LINK_WAN];
    /* What it took to connect says nothing of the link, and must not cut short what does. */
    p.deadline_ns = sys()->now_ns();
    if (status == LH_OK) status = probe_trip(&p);
    p.deadline_ns += pair_budget_ns(l, peer, out->round_trip_ns);
    if (status == LH_OK) status = probe_ramp(&p);
    if (status == LH_OK) status = p.k->dials ? probe_lead(&p) : probe_follow(&p);
    if (status == LH_OK) {
        lh_link_stats_t stats;
        probe_stats(&p, &stats); /* while the connection is there */
        out->path_mtu = stats.path_mtu;
        const world_t *w = l->how.world;
        const uint32_t end = w->ranks[w->row.rank].site > w->ranks[peer].site;
        probe_cards_tell(&p.cards, (double)p.rate[0], (double)p.burst[0], out, end);
        status = probe_part(&p, KIND_END);
    }
    if (p.k != NULL) {
        p.k->leaving = true;
        link_drop(p.k);
    }
    out->took_ns = sys()->now_ns() - begun_ns;
    if (p.region != NULL) c->api->release_memory(c->transport, p.region);
    mem_free(p.memory);
    l->probing = false;
    return status;
}

/* ---- all pairs ---- */

/* The same answer on all ranks: that of the rank `of`, but each end's cards as that end has
 * them. mtu: what each rank of the pair has found. */
static lh_status_t pair_spread(links_t *l, uint32_t of, probe_figures_t *figures,
                               const uint32_t ranks[2], uint64_t mtu[2])
{
    const uint32_t size = l->how.world->row.size;
    probe_figures_t *all = mem_array(size, sizeof(*all));
    if (all == NULL) return LH_NO_MEMORY;
    const lh_status_t status = links_gather(l, figures, sizeof(*figures), all);
    if (status == LH_OK) *figures = all[of];
    for (int end = 0; status == LH_OK && end < 2; end++) {
        const probe_figures_t *theirs = &all[ranks[end]];
        mtu[end] = theirs->path_mtu;
        memcpy(figures->cards[end], theirs->cards[end], sizeof(figures->cards[end]));
        figures->card_count[end] = theirs->card_count[end];
    }
    mem_free(all);
    return status;
}

/* Each of the two ranks says what is odd about its own card, and the first what is about both ends. */
static void pair_doubt(const links_t *l, const probe_pair_t *p, const uint32_t ranks[2],
                       const uint64_t mtu[2])
{
    static const uint64_t not_told[2] = {0};
    char text[512];
    const uint32_t self = l->how.world->row.rank;
    const uint64_t card = l->carriers[LH_LINK_WAN]->nic.bytes_per_second;
    if (self != ranks[0] && self != ranks[1]) return;
    if (link_probe_doubts(p, card, self == ranks[0] ? mtu : not_told, text, sizeof(text)))
        log_line(LH_LOG_WARN, "%s", text);
    if (link_probe_cards_doubt(p, self == ranks[1], text, sizeof(text)))
        log_line(LH_LOG_WARN, "%s", text);
}

/* "1.6 s", and of a probe beside the opening for how much of that this rank has waited for it. */
static void pair_took_text(const links_t *l, const probe_pair_t *p, char out[64])
{
    const uint64_t took = p->figures.took_ns, since = atomic_load(&l->waits_ns);
    const uint64_t now = sys()->now_ns();
    const uint64_t waited = since == 0 || now < since ? 0 : now - since;
    (void)snprintf(out, 64, "%.1f s", (double)took * 1e-9);
    if (l->aside)
        (void)snprintf(out + strlen(out), 64 - strlen(out), ", %.1f s of them waited for",
                       (double)(waited < took ? waited : took) * 1e-9);
}

/* One line in the log of rank 0 for each pair, and one for its cards where there are several. taken_ns: of a
 * pair that is known, what taking the record took. */
static void pair_say(const links_t *l, const probe_pair_t *p, bool known, uint64_t taken_ns)
{
    char text[1024], took[64];
    if (l->how.world->row.rank != 0) return;
    link_probe_text(p, text, sizeof(text));
    pair_took_text(l, p, took);
    if (known)
        log_line(LH_LOG_INFO, "%s (as measured before, taken in %.3f s)", text,
                 (double)taken_ns * 1e-9);
    else
        log_line(LH_LOG_INFO, "%s (measured in %s)", text, took);
    if (link_probe_cards_text(p, text, sizeof(text))) log_line(LH_LOG_INFO, "%s", text);
}

/* One machine plays both sites: they have no link. */
static bool is_one_machine(const probe_pair_t *p)
{
    return strcmp(p->address[0], p->address[1]) == 0;
}

/* A record of other sites or machines, as one that was copied with its folder, is told by the rank
 * that has read it. Sites that one machine plays have no link. */
static void pairs_tell_foreign(const links_t *l, const probe_pair_t *known, uint32_t count)
{
    char text[512];
    if (l->how.world->row.rank != 0) return;
    if (link_probe_foreign(l->pairs, l->pair_count, known, count, text, sizeof(text)))
        log_line(LH_LOG_WARN, "%s", text);
    for (uint32_t i = 0; i < l->pair_count; i++)
        if (!is_one_machine(&l->pairs[i]) &&
            link_probe_moved(&l->pairs[i], known, count, text, sizeof(text)))
            log_line(LH_LOG_WARN, "%s", text);
}

/* Of all pairs at once, in one gather of the control plane, however many there are: all ranks have the
 * same rows, and by rank 0's clock the same of them are young enough. */
static lh_status_t pairs_take_known(links_t *l, const probe_pair_t *known, uint32_t count)
{
    const job_comm_t *comm = &l->how.job->comm;
    uint64_t now_s = sys()->wall_ns() / 1000000000;
    bool any = false;
    for (uint32_t i = 0; i < l->pair_count; i++)
        any = any || !is_one_machine(&l->pairs[i]);
    if (!any || comm->probe == PROBE_ALWAYS) return LH_OK;
    pairs_tell_foreign(l, known, count);
    uint64_t *all = mem_array(l->how.world->row.size, sizeof(*all));
    if (all == NULL) return LH_NO_MEMORY;
    const lh_status_t status = links_gather(l, &now_s, sizeof(now_s), all);
    for (uint32_t i = 0; status == LH_OK && i < l->pair_count; i++)
        if (!is_one_machine(&l->pairs[i]))
            link_probe_take_known(&l->pairs[i], known, count, all[0],
                                  comm->probe_age_ns / 1000000000,
                                  l->how.job->transports[LH_LINK_WAN].rate);
    mem_free(all);
    return status;
}

/* After it all ranks have the pair's figures: the gather is also what makes pairs that are measured take
 * turns. *fresh: it was measured, and not known, for which all of the record took taken_ns. */
static lh_status_t pair_settle(links_t *l, uint32_t a, uint32_t b, uint64_t taken_ns, bool *fresh)
{
    const world_t *w = l->how.world;
    probe_pair_t *p = &l->pairs[links_pair(a, b)];
    const uint32_t one = world_site_rank(w, a, 0), two = world_site_rank(w, b, 0),
                   self = w->row.rank;
    if (is_one_machine(p)) return LH_OK;
    if (p->figures.measured_s != 0) {
        link_crowd_scale(&p->figures, links_crowd_ranks(l, a, b));
        pair_say(l, p, true, taken_ns);
        return LH_OK;
    }
    const uint32_t ranks[2] = {one, two};
    uint64_t mtu[2] = {0};
    lh_status_t status = LH_OK;
    if (self == one || self == two) {
        probe_figures_t figures = {0};
        status = links_words_before(l);
        if (status == LH_OK) status = pair_probe(l, self == one ? two : one, &figures);
        p->figures = figures;
    }
    if (status == LH_OK) status = pair_spread(l, one < two ? one : two, &p->figures, ranks, mtu);
    *fresh = true;
    if (status != LH_OK) return status;
    pair_say(l, p, false, 0);
    pair_doubt(l, p, ranks, mtu);
    return LH_OK;
}

static bool takes_a_stage(const carrier_t *c)
{
    return c->nic.max_sends >= LEAST_SENDS && c->nic.max_recvs >= LEAST_RECVS;
}

lh_status_t links_probe_fits(const links_t *l)
{
    const carrier_t *c = l->carriers[LH_LINK_WAN];
    if (c == NULL || takes_a_stage(c)) return LH_OK;
    return fail(LH_UNSUPPORTED,
                "the links between sites can't be measured: the transport %s takes %u sends and %u "
                "receives at once (max_sends, max_recvs); expected %u and %u or more",
                c->plugin->name, c->nic.max_sends, c->nic.max_recvs, (unsigned)LEAST_SENDS,
                (unsigned)LEAST_RECVS);
}

/* A transport that can't take a stage's messages at once is not measured; its links then have no
 * pace unless the INI names a rate, and the chunks of their class. Pairs take turns, as two at a
 * time would share a site's link; what they leave each other is measured once each is known. */
lh_status_t links_probe(links_t *l, const probe_pair_t *known, uint32_t count)
{
    const uint32_t sites = l->how.world->row.sites;
    const carrier_t *c = l->carriers[LH_LINK_WAN];
    const uint64_t begun_ns = sys()->now_ns();
    lh_status_t status = LH_OK;
    if (sites < 2 || c == NULL || l->how.job->comm.probe == PROBE_NO) return LH_OK;
    if (!takes_a_stage(c)) return LH_OK;
    status = links_pairs_make(l);
    if (status != LH_OK) return status;
    bool *fresh = mem_array(l->pair_count, sizeof(*fresh));
    if (fresh == NULL) return LH_NO_MEMORY;
    status = pairs_take_known(l, known, count);
    const uint64_t taken_ns = sys()->now_ns() - begun_ns;
    for (uint32_t b = 1; status == LH_OK && b < sites; b++)
        for (uint32_t a = 0; status == LH_OK && a < b; a++)
            status = pair_settle(l, a, b, taken_ns, &fresh[links_pair(a, b)]);
    if (status == LH_OK) status = links_crowd(l, fresh);
    bool any = false;
    for (uint32_t i = 0; i < l->pair_count; i++)
        any = any || fresh[i];
    if (status == LH_OK && any) status = links_words_collect(l);
    mem_free(fresh);
    return status;
}
