/* links_pace.c - paces of links between sites, between two steps, and what else of a connection is chosen
 * by them.
 *
 * All ranks of a site send through its one link. What they send together is paced at 97 % of its rate,
 * so that no queue grows before it, and who sends more has more of it: all are then done at the same
 * time. What each has to send is no secret: ranks tell each other in the exchange of numbers that ends a
 * step anyway (session/train_comm.c), and all draw the same conclusion from the same table. Within a
 * rank the transport divides its part among connections, by urgency.
 *
 * Pairs of sites that share a border or a cable, as links_crowd.c has found, share its rate in the same
 * way, by the sum of what their ranks send (link_crowd_part): a pair's ranks share what the pair has.
 *
 * A link that does not keep its pace gets a lower one, by its own transport's figures alone. What its plugin
 * makes of a rate follows: the window, and the chunk that one stream takes. Both are the sender's alone.
 * Buffers are also for what the other end sends, so they are for the most that it may, and never shrink; they
 * grow where a way has become longer, which all ranks find alike (links_agree.c). */
#include <links/links_pace.h>

#include <math.h>
#include <stdio.h>

#include <base/log.h>
#include <base/memory.h>
#include <links/link_crowd.h>
#include <links/links_connect.h>

/* A share that is other by less changes nothing. */
static const double too_little = 1.0 / 16;
/* What a border carries in this time, in seconds, is enough to tell who sends. */
static const double enough_s = 0.05;
/* Of a pace: what is nearer is the same. */
static const double rounded = 1e-4;

/* ---- parts of a border's rate ---- */

/* What a byte has of the rate, where who would have less than `least` has that: the others share the
 * rest. It only falls, and with it more have the least, so that it settles. */
static double byte_share(const double *sent, uint32_t count, double least, double all)
{
    double each = 1 / all;
    for (uint32_t turn = 0; turn < count; turn++) {
        double rest = 1, sum = 0;
        for (uint32_t i = 0; i < count; i++) {
            if (each * sent[i] <= least)
                rest -= least;
            else
                sum += sent[i];
        }
        if (sum <= 0 || rest / sum >= each) break;
        each = rest / sum;
    }
    return each;
}

bool pace_shares(const double *sent, uint32_t count, double *shares)
{
    double all = 0;
    bool other = false;
    for (uint32_t i = 0; i < count; i++)
        all += sent[i];
    if (all <= 0) return false;
    const double least = 1.0 / (LINKS_SILENT * (double)count);
    const double each = byte_share(sent, count, least, all);
    for (uint32_t i = 0; i < count; i++) {
        const double share = fmax(sent[i] * each, least);
        other = other || fabs(share - shares[i]) > too_little * fmax(share, shares[i]);
    }
    for (uint32_t i = 0; other && i < count; i++)
        shares[i] = fmax(sent[i] * each, least);
    return other;
}

/* Equal shares and parts again. */
static void pace_shares_drop(links_t *l)
{
    mem_free(l->shares);
    mem_free(l->settled);
    mem_free(l->demand);
    mem_free(l->parts);
    mem_free(l->crossed);
    mem_free(l->crossing);
    l->shares = l->demand = l->parts = l->crossing = NULL;
    l->settled = l->crossed = NULL;
}

/* Equal shares, and nothing sent. False: no memory, and shares stay equal. */
static bool pace_shares_make(links_t *l)
{
    const world_t *w = l->how.world;
    const uint32_t sites = w->row.sites;
    const size_t cells = (size_t)w->row.size * sites, pairs = (size_t)sites * sites;
    if (l->shares != NULL) return true;
    double *parts = mem_array(pairs, sizeof(*parts));
    for (uint32_t from = 0; parts != NULL && from < sites; from++)
        for (uint32_t to = 0; to < sites; to++)
            parts[(size_t)from * sites + to] = from == to ? 1 : links_part_of(l, from, to);
    l->parts = parts;
    l->crossed = mem_array(pairs, sizeof(*l->crossed));
    l->crossing = mem_array(pairs, sizeof(*l->crossing));
    l->settled = mem_array(cells, sizeof(*l->settled));
    l->demand = mem_array(cells, sizeof(*l->demand));
    l->shares = mem_array(cells, sizeof(*l->shares));
    if (parts == NULL || l->crossed == NULL || l->crossing == NULL || l->settled == NULL ||
        l->demand == NULL || l->shares == NULL) {
        pace_shares_drop(l);
        fail_clear();
        return false;
    }
    for (uint32_t r = 0; r < w->row.size; r++)
        for (uint32_t s = 0; s < sites; s++)
            l->shares[(size_t)r * sites + s] = 1.0 / world_site_size(w, w->ranks[r].site);
    return true;
}

/* What has come since, and half of what was before; false: it is too little to tell. */
static bool demand_take(links_t *l, const link_told_t *all, uint32_t from, uint32_t to)
{
    const world_t *w = l->how.world;
    const double rate = (double)links_border(l, from, to);
    double sum = 0;
    for (uint32_t i = 0; i < world_site_size(w, from); i++) {
        const size_t cell = (size_t)world_site_rank(w, from, i) * w->row.sites + to;
        sum += (double)(all[cell].sent - l->settled[cell]);
    }
    if (rate <= 0 || sum < enough_s * rate) return false;
    for (uint32_t i = 0; i < world_site_size(w, from); i++) {
        const size_t cell = (size_t)world_site_rank(w, from, i) * w->row.sites + to;
        l->demand[cell] = l->demand[cell] / 2 + (double)(all[cell].sent - l->settled[cell]);
        l->settled[cell] = all[cell].sent;
    }
    return true;
}

/* One border, from a site to another; true: parts are others now. */
static bool border_share(links_t *l, const link_told_t *all, uint32_t from, uint32_t to)
{
    const world_t *w = l->how.world;
    const uint32_t sites = w->row.sites, count = world_site_size(w, from);
    double *demand = mem_array(count, sizeof(*demand)), *shares = mem_array(count, sizeof(*shares));
    bool changed = false;
    if (demand != NULL && shares != NULL && demand_take(l, all, from, to)) {
        for (uint32_t i = 0; i < count; i++) {
            const size_t cell = (size_t)world_site_rank(w, from, i) * sites + to;
            demand[i] = l->demand[cell];
            shares[i] = l->shares[cell];
        }
        changed = pace_shares(demand, count, shares);
        for (uint32_t i = 0; i < count; i++)
            l->shares[(size_t)world_site_rank(w, from, i) * sites + to] = shares[i];
    }
    mem_free(demand);
    mem_free(shares);
    return changed;
}

/* ---- parts of what pairs of sites share ---- */

/* By all ranks of a site so far. */
static uint64_t pair_sent(const links_t *l, const link_told_t *all, uint32_t from, uint32_t to)
{
    const world_t *w = l->how.world;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < world_site_size(w, from); i++)
        sum += all[(size_t)world_site_rank(w, from, i) * w->row.sites + to].sent;
    return sum;
}

/* What has come since of every pair, and half of what was before, once one has enough to tell. All pairs
 * at once: one that has fallen silent is to lose its part to those it shares with. */
static bool crossing_take(links_t *l, const link_told_t *all)
{
    const uint32_t sites = l->how.world->row.sites;
    bool enough = false;
    for (uint32_t from = 0; from < sites; from++)
        for (uint32_t to = 0; to < sites; to++) {
            if (from == to) continue;
            const double rate = (double)links_border(l, from, to);
            const uint64_t since = pair_sent(l, all, from, to) -
                                   l->crossed[(size_t)from * sites + to];
            enough = enough || (rate > 0 && (double)since >= enough_s * rate);
        }
    for (uint32_t from = 0; enough && from < sites; from++)
        for (uint32_t to = 0; to < sites; to++) {
            if (from == to) continue;
            const size_t cell = (size_t)from * sites + to;
            const uint64_t sent = pair_sent(l, all, from, to);
            l->crossing[cell] = l->crossing[cell] / 2 + (double)(sent - l->crossed[cell]);
            l->crossed[cell] = sent;
        }
    return enough;
}

/* Where none share, or paces can't be changed, all parts are 1. All change or none, as they add up: the
 * first turn looks whether one is other. True: they are others now. */
static bool pairs_share(links_t *l, const link_told_t *all)
{
    const uint32_t sites = l->how.world->row.sites;
    bool other = false;
    if (l->pairs == NULL || l->carriers[LH_LINK_WAN]->api->retune == NULL || !crossing_take(l, all))
        return false;
    for (int turn = 0; turn < 2; turn++)
        for (uint32_t from = 0; from < sites; from++)
            for (uint32_t to = 0; to < sites; to++) {
                if (from == to || (turn == 1 && !other)) continue;
                const double part = link_crowd_part(l->pairs, sites, l->crossing, from, to);
                double *own = &l->parts[(size_t)from * sites + to];
                other = other || fabs(part - *own) > too_little * fmax(part, *own);
                if (turn == 1) *own = part;
            }
    return other;
}

/* ---- paces ---- */

bool link_is_paced(const link_t *k)
{
    return k->follow.pace > 0 && k->conn != NULL && k->carrier->api->retune != NULL;
}

/* What the plugin makes of a link as it is now: window and chunk for what its pace lets through, buffers
 * for all that may come or go. A link whose round trip only the plugin knows keeps what was chosen by
 * that. */
static lh_tuning_t link_tuning(link_t *k)
{
    char tuned[PROBE_TUNED];
    const links_t *l = k->links;
    const world_t *w = l->how.world;
    const uint32_t here = w->ranks[w->row.rank].site, there = w->ranks[k->peer].site;
    const uint32_t choice = l->pairs == NULL ? 0 : l->pairs[links_pair(here, there)].figures.choice;
    lh_link_t link = k->known;
    lh_tuning_t most, wanted;
    link.bytes_per_second = (uint64_t)k->room;
    (void)links_tune(k->carrier, &link, choice, &most, tuned);
    link.bytes_per_second = (uint64_t)(k->room * k->follow.pace / k->follow.most);
    (void)links_tune(k->carrier, &link, choice, &wanted, tuned);
    if (link.round_trip_ns == 0) wanted.control = 0;
    wanted.pace_bytes_per_second = (uint64_t)k->follow.pace;
    wanted.buffer_bytes = most.buffer_bytes > k->buffers ? most.buffer_bytes : 0;
    if (wanted.buffer_bytes != 0) k->buffers = wanted.buffer_bytes;
    return wanted;
}

/* said: what of the connection is other from now on, in words. */
static void link_apply(const link_t *k, const lh_tuning_t *wanted, char *said, size_t room)
{
    const lh_transport_api_t *api = k->carrier->api;
    lh_tuning_t before = {.struct_size = sizeof(before)}, after = {.struct_size = sizeof(after)};
    const bool told = api->retune(k->conn, NULL, &before) == LH_OK;
    said[0] = '\0';
    if (api->retune(k->conn, wanted, &after) == LH_OK && told)
        link_tuner_changes(&before, &after, said, room);
    else
        fail_clear();
}

void links_tune_anew(link_t *k, uint64_t step)
{
    char said[LINKS_REASON];
    if (!link_is_paced(k)) return;
    const lh_tuning_t wanted = link_tuning(k);
    link_apply(k, &wanted, said, sizeof(said));
    if (said[0] != '\0')
        log_line(LH_LOG_INFO, "link to rank %u: %.2f ms, loss %.1e: %s from step %llu on", k->peer,
                 1e-6 * (double)k->known.round_trip_ns, k->known.loss, said,
                 (unsigned long long)step);
}

/* A lowered pace stays lower by as much. Buffers that are for less than may now come or go grow. */
static void link_take_share(link_t *k, uint64_t step)
{
    const links_t *l = k->links;
    const world_t *w = l->how.world;
    const uint32_t here = w->ranks[w->row.rank].site, there = w->ranks[k->peer].site;
    const double out = (double)links_border(l, here, there) * links_share_of(l, w->row.rank, there);
    const double in = (double)links_border(l, there, here) * links_share_of(l, k->peer, here);
    const double most = LINKS_FILL * out, room = fmax(out, in);
    lh_tuning_t wanted = {.struct_size = sizeof(wanted)};
    /* Paces and rooms were told in whole bytes a second. */
    const bool same = fabs(most - k->follow.most) <= rounded * most;
    const bool longer = room > (1 + rounded) * k->room;
    if (most <= 0 || (same && !longer)) return;
    if (!same)
        k->follow = (probe_follow_t){.pace = most * k->follow.pace / k->follow.most,
                                     .most = most,
                                     .patience = k->follow.patience};
    if (longer) {
        k->room = room;
        wanted = link_tuning(k);
    }
    wanted.pace_bytes_per_second = (uint64_t)k->follow.pace;
    if (k->carrier->api->retune(k->conn, &wanted, NULL) != LH_OK) fail_clear();
    if (same) return; /* longer buffers alone */
    char shared[64] = "";
    const double part = links_part_of(l, here, there);
    if (part < 1)
        (void)snprintf(shared, sizeof(shared), ", %.1f %% of its rate beside other sites",
                       100 * part);
    log_line(LH_LOG_INFO,
             "link to rank %u: %.1f %% of what this site's ranks send%s, paced at %.1f MB/s "
             "from step %llu on",
             k->peer, 100 * links_share_of(l, w->row.rank, there) / part, shared,
             1e-6 * k->follow.pace, (unsigned long long)step);
}

/* Of a link that is paced now; a pace that was lowered stays lower by as much. */
static void link_even(link_t *k, bool even)
{
    const world_t *w = k->links->how.world;
    const uint32_t here = w->ranks[w->row.rank].site, there = w->ranks[k->peer].site;
    const double own = links_share_of(k->links, w->row.rank, there);
    const double equal = links_even_part(k->links, here, there) / world_site_size(w, here);
    const double part = even ? equal / own : 1;
    const lh_tuning_t wanted = {.struct_size = sizeof(wanted),
                                .pace_bytes_per_second = (uint64_t)(part * k->follow.pace)};
    if (k->carrier->api->retune(k->conn, &wanted, NULL) != LH_OK) fail_clear();
}

void links_even(links_t *l, bool even)
{
    if (l->shares == NULL || l->even == even) return;
    l->even = even;
    for (uint32_t i = 0; i < l->link_count; i++)
        if (link_is_paced(l->links[i])) link_even(l->links[i], even);
}

void links_share(links_t *l, const link_told_t *all, uint64_t step)
{
    bool changed = false;
    const uint32_t sites = l->how.world->row.sites;
    if (sites < 2 || !pace_shares_make(l)) return;
    links_even(l, false);
    for (uint32_t from = 0; from < sites; from++)
        for (uint32_t to = 0; to < sites; to++)
            if (from != to) changed = border_share(l, all, from, to) || changed;
    changed = pairs_share(l, all) || changed;
    for (uint32_t i = 0; changed && i < l->link_count; i++) {
        link_t *k = l->links[i];
        if (link_is_paced(k)) link_take_share(k, step);
    }
}

/* ---- links that become slower or faster ---- */

/* Each turn of a million packets; the log hears of one that differs from what it heard last by more than
 * a factor of two. What there is below one in 300,000 is too little to tell. */
static void link_count_lost(link_t *k, const lh_link_stats_t *now, uint64_t step)
{
    const double least = 3e-6, said = fmax(k->said_loss, least);
    if (!link_probe_losses(&k->losses, (double)now->bytes_sent, (double)now->bytes_retransmitted,
                           link_probe_packet(now->path_mtu)))
        return;
    const double loss = fmax(k->losses.loss, least);
    if (loss <= 2 * said && said <= 2 * loss) return;
    log_line(
        loss > said ? LH_LOG_WARN : LH_LOG_INFO,
        "link to rank %u: it lost %.1e of its last %.2g million packets, %.1e before that; step "
        "%llu",
        k->peer, k->losses.loss, 1e-6 * k->losses.packets, k->said_loss, (unsigned long long)step);
    k->said_loss = k->losses.loss;
}

/* One link between two steps. A connection that does not keep its pace for twenty steps in turn
 * gets a lower pace, and later perhaps a higher one again (link_probe_follow). Each end decides for
 * what it sends, by its own transport's figures; no bit of a training depends on it. A transport's
 * rate that has not changed tells nothing new. What all ranks decide together is told of the same
 * steps: those of which a rate is told, which were busy enough. A way that all have found to be longer
 * is no queue, though the transport has seen it shorter. */
static void link_follow(link_t *k, uint64_t step)
{
    char said[LINKS_REASON];
    lh_link_stats_t now = {.struct_size = sizeof(now)};
    const double before = k->follow.pace;
    k->trip_ns = 0;
    k->slow = false;
    if (link_stats(k, &now) != LH_OK) {
        fail_clear();
        return;
    }
    link_count_lost(k, &now, step);
    const bool is_new = now.bytes_per_second != k->told_rate; /* else nothing was measured */
    k->told_rate = now.bytes_per_second;
    const uint64_t way_ns = now.round_trip_min_ns > k->known.round_trip_ns ? now.round_trip_min_ns
                                                                           : k->known.round_trip_ns;
    const bool other = link_probe_follow(&k->follow, is_new ? (double)now.bytes_per_second : 0,
                                         now.round_trip_ns, way_ns);
    k->slow = is_new && k->follow.is_slow;
    k->trip_ns = is_new && !k->slow ? now.round_trip_ns : 0;
    if (!other) return;
    const lh_tuning_t wanted = link_tuning(k);
    link_apply(k, &wanted, said, sizeof(said));
    log_line(LH_LOG_INFO,
             "link to rank %u: %.1f MB/s now, %.2f ms; paced at %.1f MB/s instead of %.1f from "
             "step %llu on%s%s",
             k->peer, 1e-6 * (double)now.bytes_per_second, 1e-6 * (double)now.round_trip_ns,
             1e-6 * k->follow.pace, 1e-6 * before, (unsigned long long)step,
             said[0] != '\0' ? "; " : "", said);
}

void links_follow(links_t *l, uint64_t step)
{
    for (uint32_t i = 0; i < l->link_count; i++) {
        link_t *k = l->links[i];
        if (link_is_paced(k)) link_follow(k, step);
    }
}
