/* links_probe_test.c - a whole probe of the links between sites that are this machine: where the plugin or
 * the other end does not do as it mostly does, where sites have several ranks, and of three sites; when it is
 * made; what machines say before and after; and in a thread of its own, beside what ranks do meanwhile. */
#include <unit/links/forked_ranks.h>

#include <fcntl.h>

#include <base/log.h>
#include <links/link_crowd.h>
#include <links/links_early.h>
#include <links/links_probe.h>
#include <links/links_words.h>

static const lh_transport_api_t *real; /* of the transport between sites */
static int logged;                     /* what this rank has logged since log_collect */
static bool has_led, stood_still;
static uint64_t led_ns;         /* when the lead of the end was sent */
static uint32_t burst_messages; /* that were sent so far             */

static void log_collect(void)
{
    logged = memfd_create("log", MFD_CLOEXEC);
    CHECK(logged >= 0 && fcntl(logged, F_SETFL, O_APPEND) == 0);
    log_also(logged, "log");
}

static char log_text[65536]; /* since log_collected looked */

static bool log_collected(const char *words)
{
    const ssize_t bytes = pread(logged, log_text, sizeof(log_text) - 1, 0);
    CHECK(bytes >= 0);
    log_text[bytes] = '\0';
    return strstr(log_text, words) != NULL;
}

/* A site's only rank, by its place in the table of all addresses: one machine for each, though both
 * are this one. */
static lh_status_t address_apart(lh_transport_t *t, const lh_address_t *address, char *text,
                                 size_t room)
{
    (void)t;
    (void)snprintf(text, room, "10.0.0.%d:1",
                   (int)((address - me.links->addresses) / LINKS_SCOPES) + 1);
    return LH_OK;
}

static lh_status_t tune_nothing(lh_transport_t *t, const lh_link_t *link, uint32_t choice,
                                lh_tuning_t *out, char *why, size_t room)
{
    (void)t, (void)link, (void)out, (void)why, (void)room;
    return fail(LH_UNSUPPORTED, "choice %u of a link that it does not know", choice);
}

/* What ends send each other to connect has another tag. */
static const uint32_t probe_tag = 0xffff0002;

/* A lead is a message's first word: 3 is the end of a probe (KIND_END), 1 a burst, all of whose 128 messages
 * are the same bytes and longer than pings and words. */
static lh_status_t send_and_see(lh_conn_t *c, lh_region_t *region, const void *data, uint64_t bytes,
                                uint32_t tag, uint64_t cookie)
{
    uint32_t kind = 0;
    if (bytes >= sizeof(kind)) memcpy(&kind, data, sizeof(kind));
    burst_messages += kind == 1 && bytes >= 1024 && tag == probe_tag;
    if (kind == 3 && tag == probe_tag && !has_led) led_ns = sys()->now_ns();
    has_led = has_led || (kind == 3 && tag == probe_tag);
    return real->isend(c, region, data, bytes, tag, cookie);
}

/* The lead has left, and for longer than the other end waits for this one to close nothing is taken. */
static lh_status_t poll_late(lh_transport_t *t, lh_wire_event_t *events, uint32_t event_size,
                             uint32_t capacity, uint32_t *count)
{
    const lh_status_t status = real->poll(t, events, event_size, capacity, count);
    if (has_led && !stood_still) {
        stood_still = true;
        (void)nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 500000000}, NULL);
    }
    return status;
}

/* Of each burst that rank 1 sends four packets are lost, of rank 0's none; there less is told after each, as where
 * a stream was dialled anew. They are large, so that the most that a burst has are 3,750. */
static lh_status_t tell_losses(lh_conn_t *c, lh_link_stats_t *out)
{
    enum { MTU = 9000, STAGE = 128, MOST = 100 /* bursts */ };
    const lh_status_t status = real->stats(c, out);
    const uint64_t bursts = (burst_messages + STAGE - 1) / STAGE;
    out->path_mtu = MTU;
    out->bytes_retransmitted = (me.self == 0 ? MOST - bursts : 4 * bursts) * (MTU - 52);
    return status;
}

/* The transport between sites with addresses that tell sites apart; the caller may change more. */
static lh_transport_api_t *play_sites(uint32_t each)
{
    static lh_transport_api_t api;
    sites_of(each);
    carrier_t *c = me.links->carriers[LH_LINK_WAN];
    real = c->api;
    api = *real;
    api.address_text = address_apart;
    c->api = &api;
    return &api;
}

/* The end that leads is held up when it has said that the probe is over. The way back loses packets, some
 * more than one in a thousand, of which two bursts see 8: it takes five bursts for 20, where the time, 3 s,
 * is not over before. */
static void probes(void)
{
    enum { BURSTS = 5 * 128 };
    lh_transport_api_t *api = play_sites(1);
    api->tune = tune_nothing;
    api->isend = send_and_see;
    api->stats = tell_losses;
    if (me.self == 0) api->poll = poll_late;
    const uint64_t begun_ns = sys()->now_ns();
    CHECK(links_probe(me.links, NULL, 0) == LH_OK);
    CHECK(me.self == 1 || stood_still);
    CHECK(burst_messages == BURSTS || led_ns - begun_ns > 2000000000);
    uint32_t count;
    const probe_pair_t *p = links_pairs(me.links, &count);
    CHECK(count == 1 && p->figures.measured_s != 0 && p->figures.round_trip_ns != 0);
    CHECK(p->figures.rate[0] != 0 && p->figures.rate[1] != 0 && p->figures.choice == 0);
    CHECK(p->figures.loss[0] <= 0 && p->figures.loss[1] > 1e-3);
    CHECK(p->figures.loss_most[0] > 0 && p->figures.loss_most[1] > p->figures.loss[1]);
    CHECK(strcmp(p->figures.tuned, "not tuned: choice 0 of a link that it does not know") == 0);
    end();
}

static void a_probe_without_a_tuning_counts_losses_and_ends_well_however_late(void **state)
{
    (void)state;
    assert_true(ranks(2, "[transport.wan]\nsecurity = plain\n", probes));
}

/* This rank's bytes of a whole probe. Twice the rate is allowed: of a new connection the kernel paces ten
 * segments less, which are as long as a burst's part here. A probe without a bound sends a hundred times as
 * much. With two ranks a site what both send at once is bounded together. */
static uint64_t bytes_sent;

static lh_status_t send_and_count(lh_conn_t *c, lh_region_t *region, const void *data,
                                  uint64_t bytes, uint32_t tag, uint64_t cookie)
{
    const lh_status_t status = real->isend(c, region, data, bytes, tag, cookie);
    if (status == LH_OK) bytes_sent += bytes;
    return status;
}

static void probes_under_a_bound(void)
{
    enum { ASKED = 10000000, BESIDE = 1000000 };
    uint32_t count;
    play_sites(2)->isend = send_and_count;
    const uint64_t begun_ns = sys()->now_ns();
    CHECK(links_probe(me.links, NULL, 0) == LH_OK);
    const double took_s = (double)(sys()->now_ns() - begun_ns) * 1e-9;
    const probe_figures_t *f = &links_pairs(me.links, &count)->figures;
    CHECK(count == 1 && f->measured_s != 0 && f->asked == ASKED);
    for (uint32_t way = 0; way < 2; way++) {
        CHECK(f->rate[way] > ASKED / 10 && f->rate[way] <= ASKED);
        CHECK(f->together[way] > 1 &&
              f->together[way] < ASKED + ASKED / 2); /* of two alone: 1.94 */
    }
    CHECK((double)bytes_sent < 2 * ASKED * took_s + BESIDE);
    end();
}

static void a_rate_that_is_asked_for_bounds_its_probe(void **state)
{
    (void)state;
    assert_true(
        ranks(4, "[transport.wan]\nsecurity = plain\nrate = 80Mbps\n", probes_under_a_bound));
}

/* Messages of 1 KiB, of which 61 take a quarter of a second there; words and pings are shorter. */
static uint32_t data_messages;

/* Of the end that dials: pings that have left and whose answers have come, those that left before any had come, and
 * the most that were ahead of answers. */
enum { PING = 64, PINGS_IN_ALL = 64, FEW_PINGS = 16 };
static uint32_t pings_sent, pings_back, pings_blind, pings_before;
static uint64_t looked_ns, way_ns = 12000000;

/* Whether the next stage's data have been posted for since this one's were sent; words that have left, and
 * those that left before that: by then the peer might go on, and would wait. */
enum { SHORTEST_DATA = 1024 };
static bool is_expected;
static uint32_t words_sent, words_too_early;

static lh_status_t receive_and_note(lh_conn_t *c, lh_region_t *region, void *data, uint64_t bytes,
                                    uint32_t tag, uint64_t cookie)
{
    if (tag == probe_tag && bytes > SHORTEST_DATA) is_expected = true;
    return real->irecv(c, region, data, bytes, tag, cookie);
}

static void note_sent(uint64_t bytes)
{
    if (bytes >= SHORTEST_DATA) is_expected = false;
    if (bytes <= PING || bytes >= SHORTEST_DATA) return;
    words_sent++;
    words_too_early += !is_expected;
}

static lh_status_t send_and_count_data(lh_conn_t *c, lh_region_t *region, const void *data,
                                       uint64_t bytes, uint32_t tag, uint64_t cookie)
{
    /* An answer holds its sender's time: of the middle of that way. */
    if (me.self == 1 && bytes == PING) *(uint64_t *)(uintptr_t)data += way_ns / 2;
    const lh_status_t status = real->isend(c, region, data, bytes, tag, cookie);
    if (status != LH_OK) return status;
    data_messages += tag == probe_tag && bytes >= SHORTEST_DATA;
    if (tag == probe_tag) note_sent(bytes);
    pings_blind += bytes == PING && pings_back == 0;
    if (bytes == PING && pings_sent++ == 0) looked_ns = sys()->now_ns();
    if (pings_sent - pings_back > pings_before) pings_before = pings_sent - pings_back;
    return LH_OK;
}

/* A way of way_ns there and back, as long as there are pings on it. */
static lh_status_t poll_seldom(lh_transport_t *t, lh_wire_event_t *events, uint32_t event_size,
                               uint32_t capacity, uint32_t *count)
{
    const uint64_t now = sys()->now_ns();
    const bool pinging = pings_sent > 0 && pings_back < PINGS_IN_ALL;
    *count = 0;
    if (pinging && now < looked_ns + way_ns) return LH_OK;
    looked_ns = now;
    const lh_status_t status = real->poll(t, events, event_size, capacity, count);
    for (uint32_t i = 0; pinging && i < *count; i++)
        pings_back += events[i].type == LH_WIRE_RECEIVED && events[i].bytes == PING;
    return status;
}

/* A plugin that has more streams of a link that nobody has measured, and can do with two of them. */
enum { FEW_STREAMS = 2 };
static uint32_t dialed, streams_used, streams_there;

static lh_status_t dial_and_count(lh_transport_t *t, const lh_address_t *address,
                                  const lh_conn_params_t *params, lh_conn_t **out)
{
    dialed++;
    return real->connect(t, address, params, out);
}

static lh_status_t tune_to_few(lh_transport_t *t, const lh_link_t *link, uint32_t choice,
                               lh_tuning_t *out, char *why, size_t room)
{
    if (choice > 0) return fail(LH_UNSUPPORTED, "choice %u of one", choice);
    const lh_status_t status = real->tune(t, link, choice, out, why, room);
    if (link->round_trip_ns != 0) out->streams = FEW_STREAMS;
    return status;
}

static lh_status_t retune_to_few(lh_conn_t *c, const lh_tuning_t *wanted, lh_tuning_t *in_force)
{
    if (wanted != NULL && wanted->streams != 0) streams_used = wanted->streams;
    return real->retune(c, wanted, in_force);
}

static lh_status_t tell_few(lh_conn_t *c, lh_link_stats_t *out)
{
    const lh_status_t status = real->stats(c, out);
    if (out->paths_up > streams_there) streams_there = out->paths_up;
    if (streams_used != 0) out->paths_up = streams_used;
    return status;
}

/* It is measured over the connection that there is, and the pings of a long way leave in a row behind one that waits
 * for no other. */
static void probes_at_a_low_rate(void)
{
    enum { ASKED = 250000, STAGE = 61 };
    uint32_t count;
    lh_transport_api_t *api = play_sites(1);
    api->isend = send_and_count_data;
    api->irecv = receive_and_note;
    if (me.self == 0) api->poll = poll_seldom;
    api->connect = dial_and_count;
    api->tune = tune_to_few;
    api->retune = retune_to_few;
    api->stats = tell_few;
    CHECK(links_probe(me.links, NULL, 0) == LH_OK);
    const probe_figures_t *f = &links_pairs(me.links, &count)->figures;
    CHECK(count == 1 && f->measured_s != 0 && f->asked == ASKED);
    CHECK(dialed == (me.self == 0 ? 1 : 0) && f->streams == FEW_STREAMS);
    CHECK(streams_there > FEW_STREAMS);
    CHECK(me.self == 1 || (pings_blind == 1 && pings_before > FEW_PINGS));
    for (uint32_t way = 0; way < 2; way++)
        CHECK(f->rate[way] > ASKED / 10 && f->rate[way] <= ASKED);
    CHECK(data_messages >= 3 * STAGE && data_messages % STAGE == 0);
    CHECK(words_sent >= data_messages / STAGE && words_too_early == 0);
    end();
}

static void stages_of_a_low_rate_have_fewer_messages_over_one_connection(void **state)
{
    (void)state;
    assert_true(
        ranks(2, "[transport.wan]\nsecurity = plain\nrate = 2Mbps\n", probes_at_a_low_rate));
}

/* The shortest there are: all of the train, and later only what a stage is cut short by. */
static uint32_t shortest_messages;

static lh_status_t send_and_count_shortest(lh_conn_t *c, lh_region_t *region, const void *data,
                                           uint64_t bytes, uint32_t tag, uint64_t cookie)
{
    const lh_status_t status = send_and_count_data(c, region, data, bytes, tag, cookie);
    if (status == LH_OK) shortest_messages += bytes == 1024;
    return status;
}

/* Of a stage of 128 ms a message has 2.5 KB. */
static void probes_a_long_way(void)
{
    enum { TRAIN = 128, LONG_NS = 64000000 };
    uint32_t count;
    lh_transport_api_t *api = play_sites(1);
    way_ns = LONG_NS;
    api->tune = tune_nothing;
    api->isend = send_and_count_shortest;
    if (me.self == 0) api->poll = poll_seldom;
    CHECK(links_probe(me.links, NULL, 0) == LH_OK);
    const probe_figures_t *f = &links_pairs(me.links, &count)->figures;
    CHECK(count == 1 && f->measured_s != 0 && f->round_trip_ns > LONG_NS / 2);
    CHECK(shortest_messages > TRAIN);
    end();
}

/* It is not where an end stands still for the 128 ms of that stage: then once more. */
static void the_last_stage_of_a_long_way_is_cut_short(void **state)
{
    enum { TRIES = 3 };
    bool cut = false;
    (void)state;
    for (uint32_t i = 0; i < TRIES && !cut; i++)
        cut = ranks(2, "[transport.wan]\nsecurity = plain\nrate = 20Mbps\n", probes_a_long_way);
    assert_true(cut);
}

/* Connections of this rank that were said to be a probe's, and others. */
static uint32_t marked, unmarked;

static lh_status_t connect_marked(lh_transport_t *t, const lh_address_t *address,
                                  const lh_conn_params_t *params, lh_conn_t **out)
{
    *(params->flags == LH_CONN_PROBE ? &marked : &unmarked) += 1;
    return real->connect(t, address, params, out);
}

static lh_status_t admit_marked(lh_conn_t *c, const lh_conn_params_t *params)
{
    *(params->flags == LH_CONN_PROBE ? &marked : &unmarked) += 1;
    return real->admit(c, params);
}

/* All figures are there on all ranks, also on those that did not measure; nothing stays connected. Both ends of
 * a connection know that it is there to be measured. */
static void probes_together(void)
{
    uint32_t count;
    lh_transport_api_t *api = play_sites(2);
    api->connect = connect_marked;
    api->admit = admit_marked;
    CHECK(links_probe(me.links, NULL, 0) == LH_OK);
    CHECK(unmarked == 0 && (marked > 0 || me.self % 2 == 1));
    const probe_figures_t *f = &links_pairs(me.links, &count)->figures;
    CHECK(count == 1 && f->measured_s != 0 && f->rate[0] > 1 && f->rate[1] > 1);
    CHECK(f->together[0] > 1 && f->together[1] > 1 && f->together_ranks == 2);
    CHECK(f->beside_pairs == 0 && f->beside[BESIDE_ALL][0] == 0);
    CHECK(me.links->link_count == 0 && !me.links->probing);
    end();
}

static void ranks_of_two_sites_are_measured_together(void **state)
{
    (void)state;
    assert_true(ranks(4, "[transport.wan]\nsecurity = plain\n", probes_together));
}

/* Over a transport that does not pace, so that it is done here. */
static void probes_of_three(void)
{
    uint32_t count, middle;
    play_sites(1)->retune = NULL;
    CHECK(links_probe(me.links, NULL, 0) == LH_OK);
    const probe_pair_t *p = links_pairs(me.links, &count);
    CHECK(count == 3);
    for (uint32_t i = 0; i < count; i++) {
        const probe_figures_t *f = &p[i].figures;
        CHECK(f->measured_s != 0 && f->beside_pairs == 3 && f->together[0] == 0);
        CHECK(f->beside_at_s >= f->measured_s && f->beside_at_s == p[0].figures.beside_at_s);
        CHECK(f->beside[BESIDE_ALL][0] > 1 && f->beside[BESIDE_ALL][1] > 1);
    }
    const uint32_t layout = link_crowd_layout(p, 3, &middle);
    CHECK(layout != CROWD_UNKNOWN);
    for (uint32_t i = 0; i < count; i++) /* the pairs of each site, where pairs slow each other */
        for (int way = 0; way < 2; way++)
            CHECK((p[i].figures.beside[BESIDE_FIRST][way] > 0) == (layout != CROWD_APART) &&
                  (p[i].figures.beside[BESIDE_SECOND][way] > 0) == (layout != CROWD_APART));
    CHECK(me.links->link_count == 0 && !me.links->probing);
    end();
}

static void pairs_of_three_sites_are_measured_at_once(void **state)
{
    (void)state;
    assert_true(ranks(3, "[transport.wan]\nsecurity = plain\n", probes_of_three));
}

/* A card of this rank's, with a counter that rises and a driver that writes what is no ASCII. */
static lh_status_t tell_card(const lh_host_t *host, void (*line)(void *context, const char *text),
                             void *context)
{
    static uint32_t asked;
    char text[64];
    (void)host;
    (void)snprintf(text, sizeof(text), "card of rank %u, \"\xff\"", me.self);
    line(context, text);
    (void)snprintf(text, sizeof(text), "  counters: again %u", 7 * asked++);
    line(context, text);
    line(context, "  this stays");
    return LH_OK;
}

/* Of two ranks a site the first ones have measured, and rank 0, which writes the record, knows what their
 * machines said. */
static void probes_with_words(void)
{
    uint32_t count;
    char before[128];
    play_sites(2)->cards = tell_card;
    CHECK(links_words(me.links, &count) == NULL && count == 0);
    CHECK(links_probe(me.links, NULL, 0) == LH_OK);
    const probe_words_t *w = links_words(me.links, &count);
    CHECK(me.self == 0 ? count == 2 : w == NULL && count == 0);
    for (uint32_t i = 0; i < count; i++) {
        (void)snprintf(before, sizeof(before),
                       "card of rank %u, \"?\"\n  counters: again 0\n  this stays", 2 * i);
        CHECK(strcmp(w[i].before, before) == 0);
        CHECK(strcmp(w[i].after, "  counters: again 7") == 0);
        CHECK(strcmp(w[i].site, i == 0 ? "a" : "b") == 0 && strcmp(w[i].plugin, "tcp") == 0);
        CHECK(strcmp(w[i].address, i == 0 ? "10.0.0.1" : "10.0.0.3") == 0);
        CHECK(w[i].measured_s != 0);
    }
    end();
}

static void what_machines_say_before_and_after_is_known_to_rank_0(void **state)
{
    (void)state;
    assert_true(ranks(4, "[transport.wan]\nsecurity = plain\n", probes_with_words));
}

/* More than is kept: whole lines of it, and no word of what rose behind them. */
static lh_status_t tell_much(const lh_host_t *host, void (*line)(void *context, const char *text),
                             void *context)
{
    enum { LINES = 99, LINE = 99 };
    char text[LINE + 1];
    (void)host;
    for (int i = 0; i < LINES; i++) {
        memset(text, 'x', LINE);
        text[LINE] = '\0';
        text[i] = 'y';
        line(context, text);
    }
    return fail(LH_IO, "more than that could not be read");
}

static void probes_with_much(void)
{
    enum { LINE = 100, KEPT = PROBE_BEFORE / LINE };
    uint32_t count;
    play_sites(1)->cards = tell_much;
    CHECK(links_probe(me.links, NULL, 0) == LH_OK);
    const probe_words_t *w = links_words(me.links, &count);
    CHECK(count == (me.self == 0 ? 2 : 0));
    if (me.self == 0) CHECK(w[1].after[0] == '\0' && strlen(w[1].before) == KEPT * LINE - 1);
    end();
}

static void of_too_many_words_whole_lines_are_kept(void **state)
{
    (void)state;
    assert_true(ranks(2, "[transport.wan]\nsecurity = plain\n", probes_with_much));
}

static lh_status_t refuse_to_connect(lh_transport_t *t, const lh_address_t *address,
                                     const lh_conn_params_t *params, lh_conn_t **out)
{
    (void)t, (void)address, (void)params, (void)out;
    return LH_IO;
}

/* What is known of all pairs is taken as it is, and nothing is sent. */
static void knows(void)
{
    uint32_t count;
    const probe_pair_t row = {.site = {"a", "b"},
                              .address = {"10.0.0.1", "10.0.0.3"},
                              .plugin = "tcp",
                              .figures = {.measured_s = sys()->wall_ns() / 1000000000,
                                          .rate = {5, 5},
                                          .together = {9, 5},
                                          .together_ranks = 2}};
    play_sites(2)->connect = refuse_to_connect;
    CHECK(links_probe(me.links, &row, 1) == LH_OK);
    const probe_figures_t *f = &links_pairs(me.links, &count)->figures;
    CHECK(count == 1 && f->rate[0] == 5 && f->together[0] == 9);
    CHECK(links_words(me.links, &count) == NULL && count == 0);
    CHECK(links_border(me.links, 0, 1) == 9 && links_border(me.links, 1, 0) == 5);
    end();
}

static void a_young_record_is_measured_by_nobody(void **state)
{
    (void)state;
    assert_true(ranks(4, "[transport.wan]\nsecurity = plain\n", knows));
}

/* Of a row that is two hours old, by what [comm] says: it is left alone, taken soon, or measured
 * anew. */
static void looks_at_the_record(void)
{
    enum { AGE_S = 7200, SOON_NS = 1000000000 };
    uint32_t count;
    const uint64_t now_s = sys()->wall_ns() / 1000000000;
    const probe_pair_t row = {
        .site = {"a", "b"},
        .address = {"10.0.0.1", "10.0.0.2"},
        .plugin = "tcp",
        .figures = {.measured_s = now_s - AGE_S, .round_trip_ns = 1000000, .rate = {5, 5}}};
    const job_comm_t *comm = &me.job->comm;
    const bool takes = comm->probe == PROBE_START && comm->probe_age_ns / 1000000000 > AGE_S;
    (void)play_sites(1);
    meet();
    const uint64_t begun_ns = sys()->now_ns();
    CHECK(links_probe(me.links, &row, 1) == LH_OK);
    const uint64_t took_ns = sys()->now_ns() - begun_ns;
    const probe_pair_t *p = links_pairs(me.links, &count);
    CHECK(count == (comm->probe == PROBE_NO ? 0 : 1));
    if (takes) CHECK(p->figures.measured_s == now_s - AGE_S && p->figures.rate[0] == 5);
    if (takes) CHECK(took_ns < SOON_NS);
    if (count == 1 && !takes) CHECK(p->figures.measured_s >= now_s && p->figures.rate[0] > 5);
    CHECK(me.links->link_count == 0);
    end();
}

static void it_is_measured_when_the_job_says_so(void **state)
{
    (void)state;
    static const char *const words[] = {"probe = no", "probe = start", "probe_age = 3h",
                                        "probe_age = 1h", "probe = always"};
    char sections[96];
    for (uint32_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) { /* [comm] is open there */
        (void)snprintf(sections, sizeof(sections), "%s\n[transport.wan]\nsecurity = plain\n",
                       words[i]);
        assert_true(ranks(2, sections, looks_at_the_record));
    }
}

/* One message less at once than a stage and its word, the pings and theirs take. */
static void takes_too_few(void)
{
    uint32_t count;
    (void)play_sites(1);
    lh_nic_info_t *nic = &me.links->carriers[LH_LINK_WAN]->nic;
    nic->max_sends = 129;
    nic->max_recvs = 194;
    CHECK(links_probe_fits(me.links) == LH_OK);
    nic->max_recvs = 193;
    CHECK(links_probe(me.links, NULL, 0) == LH_OK);
    CHECK(links_pairs(me.links, &count) == NULL && count == 0);
    CHECK(links_probe_fits(me.links) == LH_UNSUPPORTED);
    CHECK(strcmp(fail_reason(), "the links between sites can't be measured: the transport tcp "
                                "takes 129 sends and 193 receives at once (max_sends, max_recvs); "
                                "expected 129 and 194 or more") == 0);
    end();
}

static void a_plugin_that_takes_too_few_messages_is_told(void **state)
{
    (void)state;
    assert_true(ranks(2, "[transport.wan]\nsecurity = plain\n", takes_too_few));
}

/* One rank a site finds what eight had: it has a card of its own, and no more. */
static void knows_of_many(void)
{
    uint32_t count;
    const probe_pair_t row = {.site = {"a", "b"},
                              .address = {"10.0.0.1", "10.0.0.2"},
                              .plugin = "tcp",
                              .figures = {.measured_s = sys()->wall_ns() / 1000000000,
                                          .rate = {5, 5},
                                          .together = {40, 30},
                                          .together_ranks = 8}};
    play_sites(1)->connect = refuse_to_connect;
    CHECK(links_probe(me.links, &row, 1) == LH_OK);
    const probe_figures_t *f = &links_pairs(me.links, &count)->figures;
    CHECK(count == 1 && f->measured_s == row.figures.measured_s && f->together_ranks == 1);
    CHECK(links_border(me.links, 0, 1) == 5 && links_border(me.links, 1, 0) == 5);
    end();
}

static void a_record_of_many_ranks_counts_for_those_that_there_are(void **state)
{
    (void)state;
    assert_true(ranks(2, "[transport.wan]\nsecurity = plain\n", knows_of_many));
}

/* Two ranks a site find what one had: what they have together is measured, and nothing else. */
static void knows_of_fewer(void)
{
    uint32_t count;
    const probe_pair_t row = {.site = {"a", "b"},
                              .address = {"10.0.0.1", "10.0.0.3"},
                              .plugin = "tcp",
                              .figures = {.measured_s = sys()->wall_ns() / 1000000000 - 100,
                                          .round_trip_ns = 1000000,
                                          .rate = {100000000, 100000000},
                                          .burst = {7, 7}}};
    (void)play_sites(2);
    CHECK(links_probe(me.links, &row, 1) == LH_OK);
    const probe_figures_t *f = &links_pairs(me.links, &count)->figures;
    CHECK(count == 1 && f->together[0] > 1 && f->together[1] > 1 && f->together_ranks == 2);
    CHECK(f->measured_s == row.figures.measured_s && f->burst[0] == 7);
    CHECK(f->rate[0] == 100000000 && f->rate[1] == 100000000);
    CHECK(links_words(me.links, &count) == NULL && count == 0);
    CHECK(me.links->link_count == 0 && !me.links->probing);
    end();
}

static void of_more_ranks_than_a_record_is_of_the_turn_alone_is_measured(void **state)
{
    (void)state;
    assert_true(ranks(4, "[transport.wan]\nsecurity = plain\n", knows_of_fewer));
}

/* Three pairs that are all known take one gather of the control plane, as one pair does: a round trip to
 * rank 0's site, however many sites there are. */
static void knows_all_pairs(void)
{
    static const char *const ends[][2] = {{"a", "b"}, {"a", "c"}, {"b", "c"}};
    static const char *const addresses[][2] = {
        {"10.0.0.1", "10.0.0.2"}, {"10.0.0.1", "10.0.0.3"}, {"10.0.0.2", "10.0.0.3"}};
    probe_pair_t rows[3] = {0};
    uint32_t count;
    for (uint32_t i = 0; i < 3; i++) {
        for (int end = 0; end < 2; end++) {
            (void)snprintf(rows[i].site[end], sizeof(rows[i].site[end]), "%s", ends[i][end]);
            (void)snprintf(rows[i].address[end], sizeof(rows[i].address[end]), "%s",
                           addresses[i][end]);
            rows[i].figures.rate[end] = 5 + i;
        }
        (void)snprintf(rows[i].plugin, sizeof(rows[i].plugin), "tcp");
        rows[i].figures.measured_s = sys()->wall_ns() / 1000000000;
    }
    play_sites(1)->connect = refuse_to_connect;
    const uint32_t met = me.control.gathers[CONTROL_MAIN];
    CHECK(links_probe(me.links, rows, 3) == LH_OK);
    CHECK(me.control.gathers[CONTROL_MAIN] == met + 1);
    const probe_pair_t *p = links_pairs(me.links, &count);
    CHECK(count == 3);
    for (uint32_t i = 0; i < count; i++)
        CHECK(p[i].figures.rate[0] == 5 + i && p[i].figures.rate[1] == 5 + i);
    end();
}

static void all_that_is_known_takes_one_gather(void **state)
{
    (void)state;
    assert_true(ranks(3, "[transport.wan]\nsecurity = plain\n", knows_all_pairs));
}

/* Two cards are handed as much each. The second has sent a third of a burst when all is handed
 * over and the first has nothing left; what it has sent when the burst is over does not count. */
static lh_status_t tell_two_cards(lh_conn_t *c, lh_card_stats_t *rows, uint32_t row_size,
                                  uint32_t max, uint32_t *count)
{
    static uint64_t handed, at_rest;
    lh_link_stats_t stats = {.struct_size = sizeof(stats)};
    CHECK(row_size == sizeof(*rows) && max >= 2 && real->stats(c, &stats) == LH_OK);
    const uint64_t half = stats.bytes_sent / 2;
    if (half != handed) at_rest = handed; /* a burst has begun since */
    if (half < handed) at_rest = 0;       /* over another connection  */
    handed = half;
    for (uint32_t i = 0; i < 2; i++) {
        rows[i] = (lh_card_stats_t){.bytes_sent = half,
                                    .bytes_unsent = i == 0 ? 0 : (half - at_rest) / 3 * 2,
                                    .bytes_retransmitted = half / 4 * i,
                                    .round_trip_min_ns = 1000 * (i + 1),
                                    .paths = 2};
        (void)snprintf(rows[i].name, sizeof(rows[i].name), "card%u.%u", me.self, i);
    }
    *count = 2;
    return LH_OK;
}

/* Of two ranks a site the first ones measure. */
static void probes_by_card(void)
{
    uint32_t count;
    char name[PROBE_CARD];
    play_sites(2)->card_stats = tell_two_cards;
    log_collect();
    CHECK(links_probe(me.links, NULL, 0) == LH_OK);
    /* Rank 0 tells of all cards, and each end warns of its own. */
    CHECK(log_collected("a-b, cards of a: card0.0 ") == (me.self == 0));
    CHECK(log_collected("a-b: card0.1 of a carries ") == (me.self == 0));
    CHECK(log_collected("a-b: card2.1 of b carries ") == (me.self == 2));
    const probe_figures_t *f = &links_pairs(me.links, &count)->figures;
    CHECK(count == 1 && f->measured_s != 0);
    for (uint32_t end = 0; end < 2; end++) {
        const probe_card_t *cards = f->cards[end];
        CHECK(f->card_count[end] == 2);
        for (uint32_t i = 0; i < 2; i++) {
            (void)snprintf(name, sizeof(name), "card%u.%u", 2 * end, i);
            CHECK(strcmp(cards[i].name, name) == 0 && cards[i].round_trip_ns == 1000 * (i + 1));
        }
        CHECK(cards[1].rate > 0 && (double)cards[1].rate < 0.4 * (double)cards[0].rate);
        CHECK(cards[0].loss <= 0 && cards[1].loss > 0.24 && cards[1].loss < 0.26);
    }
    end();
}

static void figures_of_both_ends_cards_are_known_to_all(void **state)
{
    (void)state;
    assert_true(ranks(4, "[transport.wan]\nsecurity = plain\n", probes_by_card));
}

/* Rank 0, which has read the record, says whose it is, and all measure. */
static void knows_others(void)
{
    uint32_t count;
    probe_pair_t row = {.site = {"a", "b"},
                        .address = {"10.0.0.1", "10.0.0.7"},
                        .plugin = "tcp",
                        .figures = {.measured_s = sys()->wall_ns() / 1000000000, .rate = {5, 5}}};
    const bool other_sites = me.job->comm.probe_age_ns == 1000000000;
    if (other_sites) (void)snprintf(row.site[1], sizeof(row.site[1]), "z");
    (void)play_sites(1);
    log_collect();
    CHECK(links_probe(me.links, &row, 1) == LH_OK);
    const probe_figures_t *f = &links_pairs(me.links, &count)->figures;
    CHECK(count == 1 && f->rate[0] > 5 && f->rate[1] > 5);
    CHECK(log_collected("the record of links is of other sites, a-z; expected a-b: ") ==
          (me.self == 0 && other_sites));
    CHECK(log_collected("the record of links has a-b from 10.0.0.1 to 10.0.0.7, and not a-b from "
                        "10.0.0.1 to 10.0.0.2: ") == (me.self == 0 && !other_sites));
    end();
}

static void a_foreign_record_is_ignored_with_a_warning(void **state)
{
    (void)state;
    assert_true(ranks(2, "[transport.wan]\nsecurity = plain\n", knows_others));
    assert_true(ranks(2, "probe_age = 1s\n[transport.wan]\nsecurity = plain\n", knows_others));
}

/* ---- beside other work ---- */

/* One message each way, from memory that was registered while the probe had the transport. */
static void exchange(uint32_t arena, char *memory)
{
    enum { BYTES = 100 };
    uint32_t done = 0;
    link_t *k = links_find(me.links, 1 - me.self, LH_SERVICE_GRADIENT);
    CHECK(k != NULL);
    memset(memory, 'a' + (int)me.self, BYTES);
    CHECK(link_recv(k, arena, memory + BYTES, BYTES, 7, 0) == LH_OK);
    CHECK(link_send(k, arena, memory, BYTES, 7, 0) == LH_OK);
    for (; done < 2; done++)
        (void)next_event();
    CHECK(memory[BYTES] == 'a' + (int)(1 - me.self));
}

/* The ranks meet for other things, one of them late, and register memory; then they connect. */
static void probes_early(void)
{
    static char memory[4096];
    uint32_t count, arena, all[RANKS];
    float took = 0, waited = -1;
    (void)play_sites(1);
    log_collect();
    CHECK(links_early_start(me.links, NULL, 0) == LH_OK);
    CHECK(me.links->carriers[LH_LINK_WAN] == NULL && !links_early_takes_device(me.links));
    CHECK(links_arena(me.links, memory, sizeof(memory), -1, 0, &arena) == LH_OK);
    CHECK(me.links->arenas[arena].regions[LH_LINK_WAN] == NULL);
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t mine = 100 * i + me.self;
        if (me.self == i % 2) (void)nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        CHECK(control_gather(&me.control, &mine, sizeof(mine), all) == LH_OK);
        CHECK(all[0] == 100 * i && all[1] == 100 * i + 1);
    }
    CHECK(links_early_finish(me.links) == LH_OK && links_early_finish(me.links) == LH_OK);
    const probe_figures_t *f = &links_pairs(me.links, &count)->figures;
    CHECK(count == 1 && f->measured_s != 0 && f->rate[0] > 1 && f->rate[1] > 1);
    CHECK(me.links->link_count == 0 && me.links->arenas[arena].regions[LH_LINK_WAN] != NULL);
    CHECK(log_collected("(measured in ") == (me.self == 0));
    if (me.self == 0) {
        const char *said = strstr(log_text, "(measured in ");
        CHECK(sscanf(said, "(measured in %f s, %f s of them waited for)", &took, &waited) == 2);
        CHECK(waited > 0 && waited <= took);
    }
    connect_all(LH_SERVICE_GRADIENT);
    exchange(arena, memory);
    end();
}

static void a_probe_beside_other_work_is_waited_for_where_it_is_needed(void **state)
{
    (void)state;
    assert_true(ranks(2, "[transport.wan]\nsecurity = plain\n", probes_early));
}

/* What is known is known at once, and nothing waits for a measurement. */
static void knows_early(void)
{
    uint32_t count;
    float taken = -1;
    const probe_pair_t row = {
        .site = {"a", "b"},
        .address = {"10.0.0.1", "10.0.0.2"},
        .plugin = "tcp",
        .figures = {.measured_s = sys()->wall_ns() / 1000000000, .rate = {5, 6}}};
    play_sites(1)->connect = refuse_to_connect;
    log_collect();
    const uint64_t begun_ns = sys()->now_ns();
    CHECK(links_early_start(me.links, &row, 1) == LH_OK);
    CHECK(links_early_finish(me.links) == LH_OK);
    const double all = (double)(sys()->now_ns() - begun_ns) * 1e-9;
    const probe_figures_t *f = &links_pairs(me.links, &count)->figures;
    CHECK(count == 1 && f->rate[0] == 5 && f->rate[1] == 6);
    CHECK(log_collected("(as measured before, taken in ") == (me.self == 0));
    if (me.self == 0) {
        const char *said = strstr(log_text, "taken in ");
        CHECK(sscanf(said, "taken in %f s)", &taken) == 1 && taken >= 0 && taken < all + 0.001);
    }
    CHECK(me.control.gathers[CONTROL_ASIDE] == 1 && me.control.gathers[CONTROL_MAIN] == 2);
    end();
}

static void a_young_record_is_taken_beside_other_work_too(void **state)
{
    (void)state;
    assert_true(ranks(2, "[transport.wan]\nsecurity = plain\n", knows_early));
}

static lh_status_t fail_to_connect(lh_transport_t *t, const lh_address_t *address,
                                   const lh_conn_params_t *params, lh_conn_t **out)
{
    (void)t, (void)address, (void)params, (void)out;
    return fail(LH_IO, "no way there");
}

/* Both ranks hear of it before they wait, and again when they do. */
static void fails_early(void)
{
    const uint64_t until = sys()->now_ns() + RANKS_PATIENCE_NS;
    play_sites(1)->connect = fail_to_connect;
    CHECK(links_early_start(me.links, NULL, 0) == LH_OK);
    while (control_status(&me.control) == LH_OK)
        CHECK(sys()->now_ns() < until);
    for (int turn = 0; turn < 2; turn++) {
        CHECK(links_early_finish(me.links) == LH_PEER_LOST);
        CHECK(strstr(fail_reason(), "link over tcp: no way there") != NULL);
    }
    CHECK(links_pairs(me.links, &(uint32_t){0}) == NULL);
    end();
}

static void what_fails_beside_other_work_is_told_at_once(void **state)
{
    (void)state;
    assert_true(ranks(2, "[transport.wan]\nsecurity = plain\n", fails_early));
}

/* Rank 0 fails in the midst of it and says so; the other waits, and hears that and of no link. */
static void is_left_early(void)
{
    (void)play_sites(1);
    CHECK(links_early_start(me.links, NULL, 0) == LH_OK);
    if (me.self == 0) {
        const uint64_t begun_ns = sys()->now_ns();
        (void)nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
        control_fail(&me.control, 0, LH_INVALID, "a word is wrong");
        links_early_end(me.links);
        CHECK(sys()->now_ns() - begun_ns < 1000000000);
    } else {
        CHECK(links_early_finish(me.links) == LH_INVALID);
        CHECK(strcmp(fail_reason(), "a word is wrong") == 0);
    }
    end();
}

/* The other rank never comes to the gather with which a probe begins. */
static void waits_for_nobody(void)
{
    (void)play_sites(1);
    if (me.self == 0) CHECK(links_early_start(me.links, NULL, 0) == LH_OK);
    if (me.self == 0) links_early_end(me.links);
    end();
}

static void a_probe_that_nobody_waits_for_ends(void **state)
{
    (void)state;
    assert_true(ranks(2, "[transport.wan]\nsecurity = plain\n", is_left_early));
    assert_true(ranks(2, "[transport.wan]\nsecurity = plain\n", waits_for_nobody));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_probe_without_a_tuning_counts_losses_and_ends_well_however_late),
        cmocka_unit_test(a_rate_that_is_asked_for_bounds_its_probe),
        cmocka_unit_test(stages_of_a_low_rate_have_fewer_messages_over_one_connection),
        cmocka_unit_test(the_last_stage_of_a_long_way_is_cut_short),
        cmocka_unit_test(ranks_of_two_sites_are_measured_together),
        cmocka_unit_test(pairs_of_three_sites_are_measured_at_once),
        cmocka_unit_test(what_machines_say_before_and_after_is_known_to_rank_0),
        cmocka_unit_test(of_too_many_words_whole_lines_are_kept),
        cmocka_unit_test(a_young_record_is_measured_by_nobody),
        cmocka_unit_test(it_is_measured_when_the_job_says_so),
        cmocka_unit_test(a_plugin_that_takes_too_few_messages_is_told),
        cmocka_unit_test(a_record_of_many_ranks_counts_for_those_that_there_are),
        cmocka_unit_test(of_more_ranks_than_a_record_is_of_the_turn_alone_is_measured),
        cmocka_unit_test(all_that_is_known_takes_one_gather),
        cmocka_unit_test(a_foreign_record_is_ignored_with_a_warning),
        cmocka_unit_test(figures_of_both_ends_cards_are_known_to_all),
        cmocka_unit_test(a_probe_beside_other_work_is_waited_for_where_it_is_needed),
        cmocka_unit_test(a_young_record_is_taken_beside_other_work_too),
        cmocka_unit_test(what_fails_beside_other_work_is_told_at_once),
        cmocka_unit_test(a_probe_that_nobody_waits_for_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
