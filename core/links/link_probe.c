/* link_probe.c - rules of a probe: when a ramp ends, what a stage says of the rate, what is said of
 * it.
 *
 * A rate is looked for from below and by what arrived, not by what was sent: what is sent faster
 * than the link carries only fills the queue before it, or is lost. One stage never decides, as a
 * sender may still have been starting and a machine busy.
 *
 * A loss is a count, and tells as much as there are losses in it: bursts go on until there are enough,
 * which costs time where a link is slow, and only where it loses packets at all. A burst that lost far
 * more than the others met a queue that overflowed, as behind a machine that was held up: that is not
 * counted, by which a link that loses packets in rare clumps is told for better than it is, until the
 * training's own count says so. */
#include <links/link_probe.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A loaded round trip that is longer by a quarter tells of a queue; scheduling on busy machines
 * adds its own millisecond, which on a short link is more than the quarter. */
static const double queued_share = 1.25;
static const uint64_t jitter_ns = 1000000;
/* More than before: senders that start slowly double within a stage or two. */
static const double growth = 1.05;
static const double least_pace = 125000;   /* 1 Mb/s */
static const uint64_t stage_ns = 40000000; /* shortest: many turns of a busy scheduler */
static const double messages_s = 0.25;     /* of link_probe_messages                   */
/* The long stage: packets lost in a round trip from which on it is worth its time; what the stages before it
 * may have brought too little, of two round trips that wait for a third; and probe_ramp_t.flat, one stage
 * that came near the most. */
static const double look_losses = 0.25, look_more = 1.5;
static const uint32_t look_flat = 2;
static const double burst_share = 0.95; /* of the pace: the link carries a burst    */
static const double asked_share = 0.9;  /* of a bound: it limits the link, and nothing else does */
/* Of a stage that brought no more: it counts double where it came near the most. */
static const double near_best = 0.9;
/* Of a card: what it carries of its equal part of a burst, below which that is all that it can
 * carry; and of the fastest, below which something is wrong with it. */
static const double part_kept = 0.9, cards_alike = 0.7;
/* Sent over a card, on average, for it to tell a rate. */
static const uint64_t card_bytes = 1048576;
static const double turn_packets = 1e6; /* after which losses are told of a training */
/* Of a count of lost packets. Bursts go on until there are enough, so what is random is how many packets it
 * takes (inverse sampling: J. B. S. Haldane, On a method of estimating frequencies, Biometrika 33, 1945).
 * Packets times loss until the n-th is lost are Gamma(n): n over that is off by more than a factor of two
 * with P(Poisson(n / 2) >= n) + P(Poisson(2 n) < n), 0.36 % for 20. Before that it is enough that so few
 * would be seen one time in a thousand if the link lost `told_loss`. A single one may be a packet that was
 * only late and is worth no further burst. */
static const double told_losses = 20, told_loss = 1e-3, told_doubt = 1e-3;
/* Of a burst that is not like the others: standard deviations, and as many packets where few are expected,
 * above the most that the others leave open. By chance less than one time in 100,000. */
static const double odd_deviations = 4;
static const uint64_t burst_ns = 200000000; /* long enough to count packets that are lost */
/* FOLLOW_STEPS: steps in turn before a pace changes. FOLLOW_RARELY: the longest patience, in
 * steps, is below twice this. FLAT_*: how much of no growth ends a ramp (2 a stage that came
 * near the most, else 1), the same with a queue, and by how much stages last longer once the
 * rate is near. */
enum { FOLLOW_STEPS = 20, FOLLOW_RARELY = 1000 };
enum { FLAT_ENOUGH = 6, FLAT_QUEUED = 4, FLAT_LONGER = 3 };
enum { MESSAGES_LEAST = 8 }; /* the later half of a stage's tells its rate */
enum { LOOK_TRIPS = 16 };    /* of the long stage: a round trip that it waits is 6 % of it */
enum { ODD_PART = 3 };       /* of so many bursts one may be left out */

bool link_probe_same(const probe_pair_t *a, const probe_pair_t *b)
{
    return strcmp(a->site[0], b->site[0]) == 0 && strcmp(a->site[1], b->site[1]) == 0 &&
           strcmp(a->address[0], b->address[0]) == 0 && strcmp(a->address[1], b->address[1]) == 0 &&
           strcmp(a->plugin, b->plugin) == 0;
}

/* A round trip that is not known is 0 and tells of no queue. */
static bool is_queued(uint64_t trip_ns, uint64_t least_ns)
{
    return (double)trip_ns > queued_share * (double)least_ns + (double)jitter_ns;
}

/* One stage that brings no more may have met a sender that was still starting, or a busy machine;
 * several, each sent faster than that, have met the link's end. A queue that has built up
 * says the same sooner. The guess that a ramp begins with is of so short a train that half a millisecond
 * makes it several times what the link carries: it gives the first stage its pace, and is no figure. */
void link_probe_stage(probe_ramp_t *r, double came, uint64_t trip_ns, uint64_t least_ns)
{
    lh_assert(came >= 0);
    const bool grew = came > growth * r->best;
    const bool queued = is_queued(trip_ns, least_ns);
    const bool looked = r->looks && came < near_best * link_probe_pace(r);
    const bool counts = r->told && !grew;
    if (came > r->best || !r->told) r->best = came;
    r->told = true;
    r->flat = counts ? r->flat + (came >= near_best * r->best ? 2 : 1) : 0;
    r->full |= !grew;
    r->done |= looked || r->flat >= (queued ? FLAT_QUEUED : FLAT_ENOUGH);
    r->looked |= r->looks;
    r->looks = false;
}

/* What a transport takes is handed over in order, so that behind a packet that was lost all of it waits a
 * round trip for that to come again. Where in most round trips one is lost a stage of two brings two thirds
 * of what the link carries, on time and again. So several such stages say no more than one, and their time
 * is better spent on one that is long. A stage never brings more than the link carries, so one more can only
 * make the figure better. Where it brought what it was sent at the ramp goes on. */
bool link_probe_look(probe_ramp_t *r, double lost, double packet, uint64_t round_trip_ns)
{
    lh_assert(packet > 0);
    const double in_flight = r->best * (double)round_trip_ns * 1e-9 / packet;
    if (!r->done && r->flat < look_flat) return false;
    if (r->looked || lost * in_flight < look_losses) return false;
    if (LOOK_TRIPS * round_trip_ns <= link_probe_ns(r, round_trip_ns)) return false;
    r->looks = true;
    r->done = false;
    return true;
}

/* While it grows a sender is to find its own speed, as fast as it can; after that the queue before
 * the link is to stay short. A bound that somebody has set for a line that others use holds for a probe, too. */
double link_probe_pace(const probe_ramp_t *r)
{
    const double wanted = (r->full ? 1.3 : 4) * (r->looks ? look_more : 1) * r->best;
    const double pace = wanted > least_pace ? wanted : least_pace;
    return r->most > 0 && pace > r->most ? r->most : pace;
}

/* Two round trips at least, for what a sender learns takes one to take effect; longer where the
 * figure is likely to stay. */
uint64_t link_probe_ns(const probe_ramp_t *r, uint64_t round_trip_ns)
{
    const uint64_t least = r->full ? FLAT_LONGER * stage_ns : stage_ns;
    if (r->looks) return LOOK_TRIPS * round_trip_ns;
    return 2 * round_trip_ns > least ? 2 * round_trip_ns : least;
}

/* Whether a probe's time is over is looked at between stages, and 128 KiB take 16 s at 64 kb/s. Shorter
 * messages would be mostly heads, of which the figure knows nothing. */
uint32_t link_probe_messages(double most)
{
    lh_assert(most >= 0);
    const double fit = messages_s * most / PROBE_MESSAGE;
    if (most <= 0 || fit >= PROBE_MESSAGES) return PROBE_MESSAGES;
    return fit > MESSAGES_LEAST ? (uint32_t)fit : MESSAGES_LEAST;
}

/* A link that got slower is followed at once after twenty steps, to 97 % of what it carried in
 * these; one that got faster is found by trying: twice the pace, and where that is not kept, again
 * only after twice as long. A step with a queue does not count as one that kept the pace: a raise
 * would make the queue longer. */
bool link_probe_follow(probe_follow_t *f, double rate, uint64_t trip_ns, uint64_t least_ns)
{
    if (rate <= 0 || f->pace <= 0) return false;
    const bool slow = rate < 0.9 * f->pace;
    f->is_slow = slow;
    f->sum = slow ? f->sum + rate : 0;
    f->slow = slow ? f->slow + 1 : 0;
    f->well = slow || is_queued(trip_ns, least_ns) ? 0 : f->well + 1;
    if (f->slow >= FOLLOW_STEPS) {
        f->pace = 0.97 * f->sum / f->slow;
        f->patience = f->patience == 0              ? FOLLOW_STEPS
                      : f->patience < FOLLOW_RARELY ? 2 * f->patience
                                                    : f->patience;
    } else if (f->well >= f->patience && f->pace < f->most) {
        f->pace = 2 * f->pace < f->most ? 2 * f->pace : f->most;
    } else {
        if (f->well >= FOLLOW_STEPS && f->pace >= f->most) f->patience = 0;
        return false;
    }
    f->slow = f->well = 0;
    f->sum = 0;
    return true;
}

/* A turn that was cut short by nothing has a million packets or more: as many as a step sends. */
bool link_probe_losses(probe_losses_t *l, double sent, double again, double packet)
{
    lh_assert(packet > 0);
    const double packets = (sent - l->sent) / packet;
    if (packets < turn_packets) return false;
    const double lost = again > l->again ? (again - l->again) / packet : 0;
    *l = (probe_losses_t){.sent = sent,
                          .again = again,
                          .loss = lost < packets ? lost / packets : 1,
                          .packets = packets};
    return true;
}

/* Less 52 bytes of headers (IP 20, TCP 20, its options 12), or 1448 where the MTU is not told. */
double link_probe_packet(uint64_t path_mtu)
{
    return path_mtu > 100 ? (double)path_mtu - 52 : 1448;
}

/* The upper end of a Poisson count: n lost of N packets leave at most (n + 1.65 sqrt(n) + 3) / N on
 * average, 95 % sure. It is exact for n = 0 (3 / N, the rule of three) and near enough above. */
double link_probe_loss_most(double lost, double packets)
{
    lh_assert(lost >= 0);
    if (packets < 1) return 1;
    const double most = (lost + 1.65 * sqrt(lost) + 3) / packets;
    return most < 1 ? most : 1;
}

void link_probe_tally(probe_tally_t *t, double sent, double lost)
{
    lh_assert(sent >= 0 && lost >= 0);
    if (sent < 1 || t->count == PROBE_BURSTS) return;
    t->sent[t->count] = sent;
    t->lost[t->count++] = lost < sent ? lost : sent; /* what is sent again may be lost again */
}

/* Of a Poisson count with that mean: the chance that it is `most` or less. */
static double poisson_upto(double mean, double most)
{
    double chance = 0, term = exp(-mean);
    for (double k = 0; k <= most; k++) {
        chance += term;
        term *= mean / (k + 1);
    }
    return chance;
}

/* Whether a burst lost more than can be chance where the others lost rest_lost of rest_sent. */
static bool is_odd(double sent, double lost, double rest_sent, double rest_lost)
{
    lh_assert(rest_lost >= 0);
    const double mean = link_probe_loss_most(rest_lost, rest_sent) * sent;
    return rest_sent >= 1 && lost > mean + odd_deviations * (sqrt(mean) + 1);
}

/* One after the other, the worst first: of two it can't be said which is the odd one, so there it takes a
 * third. Clumps in more than a third of all bursts are the link's. */
bool link_probe_tally_sum(const probe_tally_t *t, double *sent, double *lost)
{
    bool is_out[PROBE_BURSTS] = {false}, odd = false;
    for (uint32_t may = t->count / ODD_PART;; may--) {
        uint32_t worst = PROBE_BURSTS;
        *sent = *lost = 0;
        for (uint32_t i = 0; i < t->count; i++) {
            if (is_out[i]) continue;
            *sent += t->sent[i];
            *lost += t->lost[i];
            if (worst == PROBE_BURSTS || t->lost[i] * t->sent[worst] > t->lost[worst] * t->sent[i])
                worst = i;
        }
        if (worst == PROBE_BURSTS) return true;
        odd = is_odd(t->sent[worst], t->lost[worst], *sent - t->sent[worst],
                     fmax(*lost - t->lost[worst], 0));
        if (!odd || may == 0) break;
        is_out[worst] = true;
    }
    if (t->count == PROBE_BURSTS) return true;
    if (odd) return false;
    const double count = rint(*lost); /* of packets that are all about as long as they can be */
    return count < 2 || count >= told_losses || poisson_upto(told_loss * *sent, count) < told_doubt;
}

double link_probe_loss_to_tune(const probe_figures_t *f, int way, double loss)
{
    lh_assert(way == 0 || way == 1);
    return f->choice == 0 ? loss : f->choice_loss[way];
}

/* TRIPS: what a probe takes on a long link, in round trips, with two of them for each of 12
 * bursts. */
uint64_t link_probe_budget_ns(uint64_t round_trip_ns)
{
    enum { TRIPS = 40 + 12 * 2 };
    const uint64_t least = 3000000000;
    return TRIPS * round_trip_ns > least ? TRIPS * round_trip_ns : least;
}

bool link_probe_hurries(uint64_t round_trip_ns)
{
    const uint64_t long_ns = 40000000;
    return round_trip_ns >= long_ns;
}

uint64_t link_probe_longest_ns(uint64_t round_trip_ns)
{
    enum { TRIPS = 40, BURSTS = 12 };
    const uint64_t all = TRIPS * round_trip_ns + BURSTS * link_probe_burst_ns(round_trip_ns);
    const uint64_t least = link_probe_budget_ns(round_trip_ns);
    return all > least ? all : least;
}

uint64_t link_probe_burst_ns(uint64_t round_trip_ns)
{
    return 2 * round_trip_ns > burst_ns ? 2 * round_trip_ns : burst_ns;
}

/* One figure where both directions are within a tenth of each other, and then the lower one. */
static void rate_text(const uint64_t rate[2], char *out, size_t room)
{
    const double there = 8e-9 * (double)rate[0], back = 8e-9 * (double)rate[1];
    if (fabs(there - back) <= 0.1 * fmax(there, back))
        (void)snprintf(out, room, "%.3g Gb/s", fmin(there, back));
    else
        (void)snprintf(out, room, "%.3g Gb/s there, %.3g Gb/s back", there, back);
}

/* Below what a few losses can tell only the bound means anything. */
static void loss_text(const probe_figures_t *f, char *out, size_t room)
{
    const int worse = f->loss_most[1] > f->loss_most[0];
    if (f->loss_most[worse] < 0)
        (void)snprintf(out, room, "loss not told");
    else if (f->loss[worse] > 0.25 * f->loss_most[worse])
        (void)snprintf(out, room, "loss %.1e", f->loss[worse]);
    else
        (void)snprintf(out, room, "loss < %.0e", f->loss_most[worse]);
}

/* Whether both ways carry what was asked for, so that how much more they could is not known. */
static bool is_bounded(const probe_figures_t *f)
{
    const double least = asked_share * (double)f->asked;
    return f->asked != 0 && (double)f->rate[0] >= least && (double)f->rate[1] >= least;
}

/* What keeps a burst from going as fast as the ramp found. A burst is paced at 97 % of the rate. */
static bool is_held_up(const probe_figures_t *f)
{
    for (int way = 0; way < 2; way++)
        if ((double)f->burst[way] < 0.97 * burst_share * (double)f->rate[way]) return true;
    return false;
}

/* The slowest and the fastest of an end's cards; false: they are alike, or there are not
 * several. */
static bool cards_differ(const probe_figures_t *f, int end, uint32_t *slow, uint32_t *fast)
{
    const probe_card_t *cards = f->cards[end];
    *slow = *fast = 0;
    for (uint32_t i = 1; i < f->card_count[end]; i++) {
        if (cards[i].rate < cards[*slow].rate) *slow = i;
        if (cards[i].rate > cards[*fast].rate) *fast = i;
    }
    return f->card_count[end] > 1 &&
           (double)cards[*slow].rate < cards_alike * (double)cards[*fast].rate;
}

/* Streams are paced alike, so a link that is held up by a card goes no faster than it by the
 * others. */
static const char *limit_text(const probe_figures_t *f)
{
    uint32_t slow, fast;
    if (!is_held_up(f)) return is_bounded(f) ? "[transport.wan] rate" : "the link";
    for (int end = 0; end < 2; end++)
        if (cards_differ(f, end, &slow, &fast)) return "its slowest card";
    return "this machine or its kernel";
}

/* Names the worse direction's loss, and what limits the link. */
void link_probe_text(const probe_pair_t *p, char *out, size_t room)
{
    char rate[64], loss[32];
    const probe_figures_t *f = &p->figures;
    rate_text(f->rate, rate, sizeof(rate));
    loss_text(f, loss, sizeof(loss));
    (void)snprintf(out, room, "%s-%s: %.2f ms, %s, %s; %s%slimited by %s", p->site[0], p->site[1],
                   (double)f->round_trip_ns * 1e-6, rate, loss, f->tuned,
                   f->tuned[0] != '\0' ? "; " : "", limit_text(f));
}

/* What most often makes a link slow, by what was measured of it. */
static const char *likely_cause(const probe_figures_t *f)
{
    const int worse = f->loss[1] > f->loss[0];
    if (f->loss[worse] > 1e-4) return "packets are lost on the way";
    if (is_held_up(f))
        return "this machine or its kernel holds it up: few processors, or buffers that can't be "
               "set "
               "without CAP_NET_ADMIN";
    if (f->loaded_ns > 4 * f->round_trip_ns) return "somebody else fills a queue on the way";
    return "a shaper or a slower line on the way";
}

bool link_probe_doubts(const probe_pair_t *p, uint64_t card, const uint64_t mtu[2], char *out,
                       size_t room)
{
    const probe_figures_t *f = &p->figures;
    const uint64_t slowest_card = 12500000;
    const uint64_t rate = f->rate[f->rate[1] < f->rate[0]];
    if (mtu[0] != 0 && mtu[1] != 0 && mtu[0] != mtu[1]) {
        (void)snprintf(
            out, room,
            "%s-%s: packets of %llu bytes may leave %s, and of %llu %s; expected the same "
            "MTU at both ends and on all of the way",
            p->site[0], p->site[1], (unsigned long long)mtu[0], p->site[0],
            (unsigned long long)mtu[1], p->site[1]);
        return true;
    }
    if (card < slowest_card || rate == 0 || rate >= card / 10 || is_bounded(f)) return false;
    (void)snprintf(
        out, room,
        "%s-%s carries %.3g Gb/s, %.2g %% of the card's %.3g Gb/s; expected 10 %% or more. "
        "Probably %s",
        p->site[0], p->site[1], 8e-9 * (double)rate, 100 * (double)rate / (double)card,
        8e-9 * (double)card, likely_cause(f));
    return true;
}

/* The part of the pace that a card has: each of the streams has the same. */
static double card_part(const uint32_t *paths, uint32_t count, uint32_t card)
{
    double all = 0;
    for (uint32_t i = 0; i < count; i++)
        all += paths[i];
    return all > 0 ? paths[card] / all : 1.0 / count;
}

/* A burst is paced, and each stream to an equal part of it. So a card that keeps less than its
 * part can carry no more. One that keeps it may be able to carry more: the rate was found with
 * all of them full, and what of it the slow ones can't carry is that of the others. */
void link_probe_cards(probe_card_t *cards, const uint64_t *sent, const uint32_t *paths,
                      uint32_t count, double rate, double burst)
{
    bool keeps[PROBE_CARDS] = {false};
    uint64_t all = 0;
    uint32_t keeping = 0;
    double left = rate;
    lh_assert(count <= PROBE_CARDS);
    for (uint32_t i = 0; i < count; i++) {
        cards[i].rate = 0;
        all += sent[i];
    }
    if (count == 0 || all < count * card_bytes) return;
    for (uint32_t i = 0; i < count; i++) {
        const double carried = (double)sent[i] / (double)all * burst;
        keeps[i] = carried >= part_kept * 0.97 * rate * card_part(paths, count, i);
        cards[i].rate = carried < 1 ? 1 : (uint64_t)carried;
        if (!keeps[i]) left -= carried;
        keeping += keeps[i];
    }
    for (uint32_t i = 0; i < count; i++)
        if (keeps[i] && left / keeping > (double)cards[i].rate)
            cards[i].rate = (uint64_t)(left / keeping);
}

/* Behind `at` bytes of `out`; returns how many there are then. */
static size_t cards_list(const probe_card_t *cards, uint32_t count, char *out, size_t room,
                         size_t at)
{
    for (uint32_t i = 0; i < count && at < room; i++) {
        char rate[32] = "not told";
        if (cards[i].rate != 0)
            (void)snprintf(rate, sizeof(rate), "%.3g Gb/s", 8e-9 * (double)cards[i].rate);
        at += (size_t)snprintf(out + at, room - at, "%s%.15s %s", i > 0 ? ", " : "", cards[i].name,
                               rate);
        if (cards[i].round_trip_ns != 0 && at < room)
            at += (size_t)snprintf(out + at, room - at, " at %.2f ms",
                                   (double)cards[i].round_trip_ns * 1e-6);
    }
    return at;
}

bool link_probe_cards_text(const probe_pair_t *p, char *out, size_t room)
{
    const probe_figures_t *f = &p->figures;
    size_t at = 0;
    for (int end = 0; end < 2; end++) {
        if (f->card_count[end] == 0 || at >= room) continue;
        if (at == 0)
            at = (size_t)snprintf(out, room, "%s-%s, cards of %s: ", p->site[0], p->site[1],
                                  p->site[end]);
        else
            at += (size_t)snprintf(out + at, room - at, "; of %s: ", p->site[end]);
        at = cards_list(f->cards[end], f->card_count[end], out, room, at);
    }
    return at > 0;
}

bool link_probe_cards_doubt(const probe_pair_t *p, int end, char *out, size_t room)
{
    const probe_card_t *cards = p->figures.cards[end];
    uint32_t slow, fast;
    if (!cards_differ(&p->figures, end, &slow, &fast)) return false;
    const double most = (double)cards[fast].rate, least = (double)cards[slow].rate;
    (void)snprintf(out, room,
                   "%s-%s: %.15s of %s carries %.3g Gb/s, %.2g %% of the %.3g Gb/s of %.15s, which "
                   "is as near; expected 70 %% or more. Probably %s",
                   p->site[0], p->site[1], cards[slow].name, p->site[end], 8e-9 * least,
                   100 * least / most, 8e-9 * most, cards[fast].name,
                   cards[slow].loss > 1e-4 ? "packets are lost on its way"
                                           : "a slower port, cable or line on its way");
    return true;
}

double link_probe_came(const uint64_t *at_ns, const uint64_t *upto, uint32_t count,
                       int64_t begun_ns, uint64_t way_ns)
{
    const int64_t least_ns = 200000;
    double most = 0;
    for (uint32_t i = count / 2; i < count; i++) {
        int64_t took = (int64_t)at_ns[i] - begun_ns - (int64_t)way_ns;
        if (took < least_ns) took = least_ns;
        const double rate = (double)upto[i] * 1e9 / (double)took;
        if (rate > most) most = rate;
    }
    return most;
}

void link_probe_take_known(probe_pair_t *p, const probe_pair_t *known, uint32_t count,
                           uint64_t now_s, uint64_t age_s, uint64_t asked)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t at = known[i].figures.measured_s;
        if (link_probe_same(p, &known[i]) && at <= now_s && now_s - at < age_s &&
            known[i].figures.asked == asked)
            p->figures = known[i].figures;
    }
}

/* In whatever order they stand: the same two are told apart by that only where a job lists them
 * so. */
static bool has_same_sites(const probe_pair_t *a, const probe_pair_t *b)
{
    const bool crossed = strcmp(a->site[0], b->site[0]) != 0;
    return strcmp(a->site[0], b->site[crossed]) == 0 && strcmp(a->site[1], b->site[!crossed]) == 0;
}

bool link_probe_moved(const probe_pair_t *p, const probe_pair_t *known, uint32_t count, char *out,
                      size_t room)
{
    const probe_pair_t *youngest = NULL;
    for (uint32_t i = 0; i < count; i++) {
        const probe_pair_t *k = &known[i];
        if (link_probe_same(p, k)) return false;
        if (!has_same_sites(p, k) || strcmp(p->plugin, k->plugin) != 0) continue;
        if (youngest == NULL || k->figures.measured_s > youngest->figures.measured_s) youngest = k;
    }
    if (youngest == NULL) return false;
    (void)snprintf(
        out, room,
        "the record of links has %s-%s from %s to %s, and not %s-%s from %s to %s: it is "
        "ignored, and the link measured",
        youngest->site[0], youngest->site[1], youngest->address[0], youngest->address[1],
        p->site[0], p->site[1], p->address[0], p->address[1]);
    return true;
}

bool link_probe_foreign(const probe_pair_t *pairs, uint32_t pair_count, const probe_pair_t *known,
                        uint32_t count, char *out, size_t room)
{
    char more[32] = "";
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < pair_count; k++)
            if (has_same_sites(&known[i], &pairs[k])) return false;
    if (count == 0 || pair_count == 0) return false;
    if (count > 1) (void)snprintf(more, sizeof(more), " and %u more", count - 1);
    (void)snprintf(
        out, room,
        "the record of links is of other sites, %s-%s%s; expected %s-%s%s: it is ignored, "
        "and links are measured",
        known[0].site[0], known[0].site[1], more, pairs[0].site[0], pairs[0].site[1],
        pair_count > 1 ? " or another pair of this job" : "");
    return true;
}

void link_probe_take_named(probe_pair_t *p, const char *site, const char *other, const char *plugin,
                           const probe_pair_t *known, uint32_t count, uint64_t asked)
{
    *p = (probe_pair_t){0};
    (void)snprintf(p->site[0], sizeof(p->site[0]), "%s", site);
    (void)snprintf(p->site[1], sizeof(p->site[1]), "%s", other);
    (void)snprintf(p->plugin, sizeof(p->plugin), "%s", plugin);
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(known[i].site[0], p->site[0]) == 0 &&
            strcmp(known[i].site[1], p->site[1]) == 0 && strcmp(known[i].plugin, p->plugin) == 0 &&
            (asked != 0 || known[i].figures.asked == 0) &&
            known[i].figures.measured_s > p->figures.measured_s)
            *p = known[i];
}
