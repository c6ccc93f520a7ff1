/* ib_tuning.c - formulas, and the bucket that paces. Where a link's figures are not known they are
 * those of a site: a window that no site fills, and as long a wait for an answer as the rules say. */
#include "ib_tuning.h"

#include "ib_ring.h"

enum { TIMEOUT_MOST = 22 };
/* The neighbours of a choice that the host may measure. */
enum { MORE_PAIRS, MORE_WINDOW, LARGER_CHUNK, FEWER_PAIRS, CHANGES };

static const uint64_t mib = 1 << 20;
static const uint64_t window_far = (uint64_t)1 << 50; /* more than any card holds */

static uint64_t tuning_clamp(uint64_t value, uint64_t least, uint64_t most)
{
    return value < least ? least : value > most ? most : value;
}

uint32_t ib_ack_timeout(uint64_t round_trip_ns, uint64_t burst_ns, uint32_t unknown)
{
    const uint64_t most = 1000000000000;
    const uint64_t wanted_ns = 4 * tuning_clamp(round_trip_ns, 0, most) + 1000000 +
                               tuning_clamp(burst_ns, 0, most);
    uint32_t t = round_trip_ns == 0 ? unknown : 1;
    while (t < TIMEOUT_MOST && ((uint64_t)4096 << t) < wanted_ns)
        t++;
    return t;
}

uint64_t ib_port_rate(uint32_t width, uint32_t speed)
{
    static const struct {
        uint8_t code;
        uint64_t value;
    } lanes[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}},
      rates[] = {/* bits each second of a lane */
                 {1, 2500000000},   {2, 5000000000},   {4, 10000000000},  {8, 10000000000},
                 {16, 14000000000}, {32, 25000000000}, {64, 50000000000}, {128, 100000000000}};
    uint64_t count = 0, rate = 0;
    for (uint32_t i = 0; i < sizeof(lanes) / sizeof(lanes[0]); i++)
        if (lanes[i].code == width) count = lanes[i].value;
    for (uint32_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++)
        if (rates[i].code == speed) rate = rates[i].value;
    return count * rate / 8;
}

/* A lost packet makes a queue pair send all again that was behind it. Over q pairs it is a q-th of
 * the window; as many as keep that below 2 % of what is sent. */
static uint64_t pairs_by_loss(const lh_link_t *link, uint64_t in_flight)
{
    const uint64_t mtu = link->path_mtu != 0 ? link->path_mtu : 4096;
    if (!(link->loss > 0.0) || link->loss > 1.0) return 1;
    const double pairs = link->loss * (double)in_flight / ((double)mtu * 0.02);
    return pairs < (double)IB_PAIRS_MOST ? (uint64_t)pairs + 1 : IB_PAIRS_MOST;
}

uint64_t ib_window_most(uint64_t pairs, uint64_t chunk)
{
    return pairs * (IB_RECEIVES - 2) * chunk;
}

ib_tuning_t ib_tuning(const ib_rules_t *rules, const ib_wish_t *wish, const lh_link_t *link,
                      const lh_tuning_t *tuning, uint64_t rate)
{
    if (link->bytes_per_second != 0) rate = link->bytes_per_second;
    const uint64_t trip_ns = tuning_clamp(link->round_trip_ns, 0, 10000000000);
    /* What is under way when the pipe is full; a double holds it however far and fast. */
    const double full = (double)rate * (double)trip_ns / 1e9;
    const uint64_t in_flight = full < 1e12 ? (uint64_t)full : 1000000000000;

    /* Posting a chunk takes about a microsecond, which shall be 1 % of its time on the wire. */
    uint64_t chunk = tuning_clamp(rate / 10000, mib, 8 * mib) / 128 * 128;
    /* More than a queue pair has under way would take it two round trips, and its window with it. */
    if (wish->pair_bytes != 0 && trip_ns != 0 && chunk > wish->pair_bytes) chunk = wish->pair_bytes;
    if (tuning->chunk_bytes != 0) chunk = tuning->chunk_bytes;
    if (wish->chunk_bytes != 0) chunk = wish->chunk_bytes;
    chunk = tuning_clamp(chunk, IB_CHUNK_LEAST, IB_CHUNK_MOST);

    uint64_t window = trip_ns != 0 ? in_flight + in_flight / 4 + 2 * chunk : 16 * chunk;
    if (tuning->inflight_bytes != 0) window = tuning->inflight_bytes;
    if (wish->window_bytes != 0) window = wish->window_bytes;

    /* What waits on the line: all that is under way beyond what fills it. */
    const uint64_t waits = tuning_clamp(window > in_flight ? window - in_flight : 0, 2 * chunk,
                                        window_far);
    const uint64_t burst_ns = rate == 0 ? 0 : (uint64_t)((double)waits * 1e9 / (double)rate);

    uint64_t pairs = pairs_by_loss(link, in_flight);
    if (link->scope == LH_LINK_WAN && pairs < rules->pairs_least) pairs = rules->pairs_least;
    if (pairs < wish->ports) pairs = wish->ports;
    /* As many as have receive work requests for the window. */
    const uint64_t by_window = window / chunk / (IB_RECEIVES - 2) + 1;
    if (pairs < by_window) pairs = by_window;
    if (wish->pair_bytes != 0 && trip_ns != 0 && pairs < window / wish->pair_bytes + 1)
        pairs = window / wish->pair_bytes + 1;
    /* Nobody has measured yet how many that are: of too many fewer can be used, and more take a new connection. */
    if (wish->pair_bytes != 0 && trip_ns == 0 && link->scope == LH_LINK_WAN) pairs = IB_PAIRS_MOST;
    /* A port without a queue pair would carry nothing. */
    if (tuning->streams != 0) pairs = tuning_clamp(tuning->streams, wish->ports, UINT64_MAX);
    if (wish->queue_pairs != 0) pairs = wish->queue_pairs;
    pairs = tuning_clamp(pairs, 1, IB_PAIRS_MOST);

    uint64_t pace = rules->paced && tuning->pace_bytes_per_second != UINT64_MAX
                        ? tuning->pace_bytes_per_second
                        : 0;
    if (pace == 0 && rules->paced && tuning->pace_bytes_per_second == 0 &&
        link->scope == LH_LINK_WAN)
        pace = link->bytes_per_second / 100 * 97;
    if (wish->pace != 0) pace = wish->pace;

    return (ib_tuning_t){
        .queue_pairs = (uint32_t)pairs,
        .ack_timeout = wish->ack_timeout != 0
                           ? (uint32_t)wish->ack_timeout
                           : ib_ack_timeout(link->round_trip_ns, burst_ns, rules->timeout_unknown),
        .chunk_bytes = chunk,
        .window_bytes = window,
        .window_most = ib_window_most(pairs, chunk),
        .pace = pace,
    };
}

/* What the INI has set is not tried otherwise. */
static bool ib_tuning_change(const ib_wish_t *wish, int what, lh_tuning_t *out)
{
    switch (what) {
    case MORE_PAIRS:
        out->streams = 2 * out->streams;
        return wish->queue_pairs == 0 && out->streams <= IB_PAIRS_MOST;
    case FEWER_PAIRS:
        out->streams /= 2;
        return wish->queue_pairs == 0 && out->streams >= 1 && out->streams >= wish->ports;
    case MORE_WINDOW: out->inflight_bytes *= 2; return wish->window_bytes == 0;
    default: out->chunk_bytes *= 2; return wish->chunk_bytes == 0 && out->chunk_bytes <= 8 * mib;
    }
}

/* Where packets are lost more queue pairs lose less each time; where none is, a queue on the way
 * may hold more than the window allows for. */
bool ib_tuning_offer(const ib_rules_t *rules, const ib_wish_t *wish, const lh_link_t *link,
                     uint64_t rate, uint32_t choice, lh_tuning_t *out)
{
    static const int clean[CHANGES] = {MORE_WINDOW, MORE_PAIRS, LARGER_CHUNK, FEWER_PAIRS},
                     lossy[CHANGES] = {MORE_PAIRS, MORE_WINDOW, LARGER_CHUNK, FEWER_PAIRS};
    static const lh_tuning_t nothing = {.struct_size = sizeof(nothing)};
    const ib_tuning_t mine = ib_tuning(rules, wish, link, &nothing, rate);
    const lh_tuning_t first = {.struct_size = sizeof(first),
                               .streams = mine.queue_pairs,
                               .chunk_bytes = mine.chunk_bytes,
                               .inflight_bytes = mine.window_bytes,
                               .pace_bytes_per_second = mine.pace};
    *out = first;
    if (choice == 0) return true;
    for (int i = 0; i < CHANGES; i++) {
        *out = first;
        if (ib_tuning_change(wish, (link->loss > 1e-6 ? lossy : clean)[i], out) && --choice == 0)
            return true;
    }
    return false;
}

/* ---- pacing ---- */

void ib_bucket_set(ib_bucket_t *b, uint64_t rate, uint64_t depth, uint64_t now)
{
    *b = (ib_bucket_t){.rate = rate, .depth = depth, .at_ns = now, .tokens = (double)depth};
}

void ib_bucket_change(ib_bucket_t *b, uint64_t rate, uint64_t depth, uint64_t now)
{
    if (b->rate == 0) {
        ib_bucket_set(b, rate, depth, now);
        return;
    }
    (void)ib_bucket_open(b, now); /* by the rate until now */
    b->rate = rate;
    b->depth = depth;
    if (b->tokens > (double)depth) b->tokens = (double)depth;
}

bool ib_bucket_open(ib_bucket_t *b, uint64_t now)
{
    if (b->rate == 0) return true;
    if (now > b->at_ns) {
        b->tokens += (double)(now - b->at_ns) * (double)b->rate / 1e9;
        b->at_ns = now;
    }
    if (b->tokens > (double)b->depth) b->tokens = (double)b->depth;
    return b->tokens > 0;
}

/* It may go below nothing, by one chunk or by what is sent again at once: that is waited for before the next. */
void ib_bucket_take(ib_bucket_t *b, uint64_t bytes)
{
    if (b->rate != 0) b->tokens -= (double)bytes;
}

uint64_t ib_bucket_due(const ib_bucket_t *b)
{
    if (b->rate == 0 || b->tokens > 0) return 0;
    return b->at_ns + (uint64_t)(-b->tokens * 1e9 / (double)b->rate) + 1;
}
