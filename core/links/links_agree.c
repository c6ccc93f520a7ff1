/* links_agree.c - one table for all: at the end of a step each rank tells what it sees of its links, in the
 * exchange of numbers that is there anyway, and from what all have told each rank draws its own
 * conclusion, which is that of all others (link_tuner.c).
 *
 * So the two ends of a connection have buffers for the same round trip before the same step, and rank 0
 * knows of links which it has no part in. Nothing of it changes an order of messages, or a bit. */
#include <links/links_agree.h>

#include <math.h>
#include <string.h>

#include <base/log.h>
#include <base/memory.h>
#include <links/links_connect.h>
#include <links/links_pace.h>

/* Of a border's rate: where the ranks that do not keep their pace have so much of it, it is full, and a
 * round trip over it is longer by a queue that goes when the paces are lowered. */
static const double full_share = 0.25;

void links_tell(const links_t *l, link_told_t *rows)
{
    const world_t *w = l->how.world;
    for (uint32_t s = 0; s < w->row.sites; s++)
        rows[s] = (link_told_t){.loss = -1};
    for (uint32_t i = 0; i < l->link_count; i++) {
        const link_t *k = l->links[i];
        if (link_scope(k) != LH_LINK_WAN || !link_is_paced(k)) continue;
        link_told_t *row = &rows[w->ranks[k->peer].site];
        const double kept = k->follow.pace / k->follow.most;
        if (row->kept <= 0 || kept < row->kept) row->kept = kept;
        if (k->slow) row->slow = 1;
        if (k->trip_ns != 0 && (row->round_trip_ns == 0 || k->trip_ns < row->round_trip_ns))
            row->round_trip_ns = k->trip_ns;
        if (k->losses.packets > 0) row->loss = fmax(row->loss, k->losses.loss);
    }
}

static bool tuners_make(links_t *l)
{
    if (l->tuners != NULL) return true;
    l->tuners = mem_array(l->pair_count, sizeof(*l->tuners));
    if (l->tuners == NULL) {
        fail_clear();
        return false;
    }
    for (uint32_t i = 0; i < l->pair_count; i++)
        link_tuner_begin(&l->tuners[i], &l->pairs[i].figures);
    return true;
}

/* What one rank has told of its site's border to another. The parts of that which ranks have add up to 1,
 * and weigh what they tell of its rate. */
static void seen_take(tuner_figures_t *seen, int way, const link_told_t *row, double share)
{
    if (row->round_trip_ns != 0 &&
        (seen->round_trip_ns == 0 || row->round_trip_ns < seen->round_trip_ns))
        seen->round_trip_ns = row->round_trip_ns;
    seen->loss[way] = fmax(seen->loss[way], row->loss);
    seen->kept[way] += share * row->kept;
}

/* By all ranks of two sites, a being the lower. In the order of ranks, so that sums are the same
 * everywhere. */
static tuner_figures_t pair_seen(const links_t *l, const link_told_t *all, uint32_t a, uint32_t b)
{
    const world_t *w = l->how.world;
    const uint32_t ends[2] = {a, b};
    tuner_figures_t seen = {.loss = {-1, -1}};
    bool full = false;
    for (int way = 0; way < 2; way++) {
        const uint32_t from = ends[way], to = ends[1 - way], count = world_site_size(w, from);
        double told = 0, slow = 0;
        for (uint32_t i = 0; i < count; i++) {
            const size_t cell = (size_t)world_site_rank(w, from, i) * w->row.sites + to;
            const double share = l->shares != NULL ? l->shares[cell] : 1.0 / count;
            seen_take(&seen, way, &all[cell], share);
            if (all[cell].kept > 0) told += share;
            if (all[cell].slow != 0) slow += share;
        }
        if (told > 0) seen.kept[way] /= told;
        full = full || slow >= full_share;
    }
    if (full) seen.round_trip_ns = 0;
    return seen;
}

/* For who watches, with what the plugin would now make of the slower direction as one link. */
static void pair_note(links_t *l, uint32_t a, uint32_t b, const link_change_t *what)
{
    char text[512];
    link_change_t c = *what;
    const probe_pair_t *p = &l->pairs[links_pair(a, b)];
    c.rate[0] = links_border(l, a, b);
    c.rate[1] = links_border(l, b, a);
    const double rates[2] = {(double)c.rate[0] * c.now.kept[0], (double)c.rate[1] * c.now.kept[1]};
    const int way = rates[1] < rates[0];
    const lh_link_t link = {.struct_size = sizeof(link),
                            .scope = LH_LINK_WAN,
                            .round_trip_ns = c.now.round_trip_ns,
                            .bytes_per_second = (uint64_t)rates[way],
                            .path_mtu = p->figures.path_mtu,
                            .loss = link_probe_loss_to_tune(&p->figures, way, c.now.loss[way])};
    lh_tuning_t tuning;
    memcpy(c.site, p->site, sizeof(c.site));
    (void)links_tune(l->carriers[LH_LINK_WAN], &link, p->figures.choice, &tuning, c.tuned);
    link_tuner_text(&c, text, sizeof(text));
    if (l->how.world->row.rank == 0) log_line(LH_LOG_INFO, "%s", text);
    if (l->change_count < LINKS_CHANGES) l->changes[l->change_count++] = c;
}

/* This rank's connections between the two sites, if it is of one of them. */
static void pair_tune(links_t *l, uint32_t a, uint32_t b, uint64_t step)
{
    const world_t *w = l->how.world;
    const uint32_t pair = links_pair(a, b);
    const tuner_figures_t *now = &l->tuners[pair].now;
    const uint32_t here = w->ranks[w->row.rank].site;
    for (uint32_t i = 0; i < l->link_count && (here == a || here == b); i++) {
        link_t *k = l->links[i];
        const uint32_t there = w->ranks[k->peer].site;
        if (link_scope(k) != LH_LINK_WAN || there != (here == a ? b : a)) continue;
        k->known.round_trip_ns = now->round_trip_ns;
        const int way = here > there;
        k->known.loss = link_probe_loss_to_tune(&l->pairs[pair].figures, way, now->loss[way]);
        links_tune_anew(k, step);
    }
}

static void pair_agree(links_t *l, const link_told_t *all, uint32_t a, uint32_t b, uint64_t step)
{
    const uint32_t pair = links_pair(a, b);
    link_tuner_t *t = &l->tuners[pair];
    link_change_t c = {.step = step, .before = t->now};
    if (l->pairs[pair].figures.measured_s == 0) return; /* one machine plays both */
    const tuner_figures_t seen = pair_seen(l, all, a, b);
    c.why = link_tuner_step(t, &seen);
    c.now = t->now;
    if (c.why == 0) return;
    pair_note(l, a, b, &c);
    if ((c.why & (TUNED_TRIP | TUNED_LOSS)) != 0) pair_tune(l, a, b, step);
}

void links_agree(links_t *l, const link_told_t *all, uint64_t step)
{
    const uint32_t sites = l->how.world->row.sites;
    if (l->pairs == NULL || !tuners_make(l)) return;
    for (uint32_t b = 1; b < sites; b++)
        for (uint32_t a = 0; a < b; a++)
            pair_agree(l, all, a, b, step);
}

static link_border_t border_told(const links_t *l, const link_told_t *all, uint32_t from,
                                 uint32_t to)
{
    const world_t *w = l->how.world;
    link_border_t b = {.from = from, .to = to, .loss = -1};
    for (uint32_t i = 0; i < world_site_size(w, from); i++) {
        const link_told_t *row = &all[(size_t)world_site_rank(w, from, i) * w->row.sites + to];
        b.sent += row->sent;
        b.loss = fmax(b.loss, row->loss);
        if (row->round_trip_ns != 0 &&
            (b.round_trip_ns == 0 || row->round_trip_ns < b.round_trip_ns))
            b.round_trip_ns = row->round_trip_ns;
    }
    return b;
}

uint32_t links_borders(const links_t *l, const link_told_t *all, link_border_t *rows, uint32_t room)
{
    const uint32_t sites = l->how.world->row.sites;
    uint32_t count = 0;
    for (uint32_t from = 0; from < sites; from++)
        for (uint32_t to = 0; to < sites && count < room; to++)
            if (from != to) rows[count++] = border_told(l, all, from, to);
    return count;
}

uint32_t links_changes(links_t *l, link_change_t *rows, uint32_t room)
{
    const uint32_t count = l->change_count < room ? l->change_count : room;
    lh_assert(l->change_count <= LINKS_CHANGES);
    memcpy(rows, l->changes, count * sizeof(*rows));
    l->change_count -= count;
    memmove(l->changes, l->changes + count, l->change_count * sizeof(*rows));
    return count;
}
