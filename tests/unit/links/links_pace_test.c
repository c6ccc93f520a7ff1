/* links_pace_test.c - links between sites, of forked ranks: what a connection is told of its way, the parts of a
 * border that ranks and pairs of sites have, and what is tuned anew. */
#include <unit/links/forked_ranks.h>

#include <math.h>

#include <links/links_agree.h>
#include <links/links_pace.h>

static uint64_t pace_to(uint32_t peer, uint64_t *buffer)
{
    lh_tuning_t now = {.struct_size = sizeof(now)};
    const link_t *k = links_find(me.links, peer, LH_SERVICE_GRADIENT);
    CHECK(link_scope(k) == LH_LINK_WAN);
    CHECK(k->carrier->api->retune(k->conn, NULL, &now) == LH_OK);
    *buffer = now.buffer_bytes;
    return now.pace_bytes_per_second;
}

static void is_close(uint64_t found, double told)
{
    CHECK((double)found > 0.999 * told && (double)found < 1.001 * told);
}

/* A row for each step: what ranks 0 and 1 had to send to the other site until then, in a hundredth of
 * what its link carries in a second, and the parts of it that they have from then on. */
static const struct {
    uint64_t sent[2];
    double share[2];
} demands[] = {
    {{2, 2}, {0.5, 0.5}},              /* too little to tell */
    {{0, 100}, {1.0 / 32, 31.0 / 32}}, /* who sends nothing keeps a sixteenth of a half */
    {{300, 200}, {2.0 / 3, 1.0 / 3}},  /* 300 and 100 since, and half of what was before */
    {{301, 203}, {2.0 / 3, 1.0 / 3}},  /* too little */
};

static void unequal(void)
{
    enum { RATE = 100000000 };
    uint64_t buffer, before;
    const uint32_t here = me.self / 2, peer = 2 * (1 - here);
    two_sites();
    connect_all(LH_SERVICE_GRADIENT);
    is_close(pace_to(peer, &before), 0.97 * RATE / 2);
    link_t *link = links_find(me.links, peer, LH_SERVICE_GRADIENT);
    link->follow.well = 7; /* gone where it is paced anew */
    for (uint32_t step = 0; step < sizeof(demands) / sizeof(demands[0]); step++) {
        link_told_t all[2 * RANKS] = {0};
        for (uint32_t r = 0; r < 2; r++)
            all[2 * r + 1].sent = RATE / 100 * demands[step].sent[r];
        links_share(me.links, all, step);
        is_close(pace_to(peer, &buffer),
                 0.97 * RATE * (here == 1 ? 0.5 : demands[step].share[me.self]));
        CHECK(buffer >= before);
        CHECK(here == 0 || link->follow.well == 7);
        links_even(me.links, true);
        is_close(pace_to(peer, &buffer), 0.97 * RATE / 2);
    }
    end();
}

static void ranks_of_a_site_share_its_links_by_what_they_send(void **state)
{
    (void)state;
    assert_true(ranks(RANKS, "[transport.wan]\nsecurity = plain\nrate = 800Mbps\n", unequal));
}

/* Each way by itself: sums of what its ranks had to send, the least round trip and the most that was lost. */
static void borders_of_two_sites(void)
{
    link_border_t rows[3];
    static const link_told_t all[2 * RANKS] = {
        [0] = {.sent = 7, .loss = -1}, /* to its own site, which is no border */
        [1] = {.sent = 300, .round_trip_ns = 20, .loss = 0.25},
        [3] = {.sent = 200, .round_trip_ns = 30, .loss = -1},
        [4] = {.sent = 5, .loss = -1},
        [6] = {.sent = 6, .loss = -1},
    };
    two_sites();
    connect_all(LH_SERVICE_GRADIENT);
    CHECK(links_borders(me.links, all, rows, 3) == 2);
    CHECK(rows[0].from == 0 && rows[0].to == 1 && rows[0].sent == 500);
    CHECK(rows[0].round_trip_ns == 20 && fabs(rows[0].loss - 0.25) < 1e-9);
    CHECK(rows[1].from == 1 && rows[1].to == 0 && rows[1].sent == 11);
    CHECK(rows[1].round_trip_ns == 0 && rows[1].loss < 0);
    CHECK(links_borders(me.links, all, rows, 1) == 1 && rows[0].sent == 500);
    end();
}

static void a_border_is_told_of_by_all_ranks_of_its_site(void **state)
{
    (void)state;
    assert_true(
        ranks(RANKS, "[transport.wan]\nsecurity = plain\nrate = 800Mbps\n", borders_of_two_sites));
}

/* Three sites of a rank each. What leaves the first and comes to it was found to have one border, which
 * carries what one pair has alone. */
enum { SITES = 3, RATE = 100000000 };

static void lay_a_border(void)
{
    sites_of(1);
    CHECK(links_pairs_make(me.links) == LH_OK);
    for (uint32_t i = 0; i < SITES; i++) {
        probe_figures_t *f = &me.links->pairs[i].figures;
        f->measured_s = 1;
        f->round_trip_ns = 1000000;
        f->beside_pairs = SITES;
        for (int way = 0; way < 2; way++) {
            f->rate[way] = RATE;
            for (int b = 0; b < BESIDES; b++)
                f->beside[b][way] = RATE;
        }
    }
    for (uint32_t s = 1; s < SITES; s++)
        for (int way = 0; way < 2; way++)
            me.links->pairs[links_pair(0, s)].figures.beside[BESIDE_FIRST][way] = RATE / 2;
}

static void share_a_border(void)
{
    static const double even[SITES][SITES] = {{0, 0.5, 0.5}, {0.5, 0, 1}, {0.5, 1, 0}},
                        after[SITES][SITES] = {
                            {0, 0.75, 0.25}, {31.0 / 32, 0, 1}, {1.0 / 32, 1, 0}};
    static const uint64_t sent[SITES][SITES] = {
        {0, 3 * RATE, RATE}, {RATE, 0, RATE / 100}, {0, RATE / 100, 0}};
    link_told_t all[SITES * SITES] = {0};
    uint64_t buffer[SITES], now;
    lay_a_border();
    connect_all(LH_SERVICE_GRADIENT);
    for (uint32_t s = 0; s < SITES; s++)
        if (s != me.self) is_close(pace_to(s, &buffer[s]), 0.97 * RATE * even[me.self][s]);
    for (uint64_t step = 0; step < 3; step++) {
        links_share(me.links, all, step);
        for (uint32_t s = 0; s < SITES; s++) {
            if (s == me.self) continue;
            /* Nothing is sent before the first step, and the same in each. */
            const double part = step == 0 ? even[me.self][s] : after[me.self][s];
            is_close(pace_to(s, &now), 0.97 * RATE * part);
            CHECK(now == buffer[s]); /* they are for the whole rate from the beginning */
        }
        links_even(me.links, true);
        for (uint32_t s = 0; s < SITES; s++)
            if (s != me.self) is_close(pace_to(s, &now), 0.97 * RATE * even[me.self][s]);
        for (uint32_t i = 0; i < SITES * SITES; i++)
            all[i].sent += sent[i / SITES][i % SITES];
    }
    end();
}

static void pairs_of_sites_share_a_border_by_what_they_send(void **state)
{
    (void)state;
    assert_true(ranks(3, "[transport.wan]\nsecurity = plain\n", share_a_border));
}

/* A pace that is told once is that of the pair's whole rate: what others leave could not be had later. */
static void share_without_retune(void)
{
    static const link_told_t all[SITES * SITES] = {
        [1] = {.sent = 3 * RATE}, [2] = {.sent = RATE}, [3] = {.sent = RATE},
        [5] = {.sent = RATE},     [6] = {.sent = RATE}, [7] = {.sent = RATE}};
    static lh_transport_api_t api;
    lay_a_border();
    api = *me.links->carriers[LH_LINK_WAN]->api;
    api.retune = NULL;
    me.links->carriers[LH_LINK_WAN]->api = &api;
    connect_all(LH_SERVICE_GRADIENT);
    for (int turn = 0; turn < 2; turn++) {
        for (uint32_t s = 0; s < SITES; s++)
            if (s != me.self)
                is_close((uint64_t)links_find(me.links, s, LH_SERVICE_GRADIENT)->follow.pace,
                         0.97 * RATE);
        links_share(me.links, all, 1);
        CHECK(links_part_of(me.links, 0, 1) == 1 && links_part_of(me.links, 2, 0) == 1);
        links_even(me.links, true);
    }
    end();
}

static void a_transport_that_paces_once_has_pairs_whole(void **state)
{
    (void)state;
    assert_true(ranks(SITES, "[transport.wan]\nsecurity = plain\n", share_without_retune));
}

/* ---- what all ranks find alike ---- */

static lh_link_stats_t figures; /* that the transport tells of each link */

static lh_status_t stats_told(lh_conn_t *c, lh_link_stats_t *out)
{
    (void)c;
    *out = figures;
    return LH_OK;
}

/* Two sites of two ranks, over a way of 1 ms that was measured. */
static void lay_a_way(void)
{
    static lh_transport_api_t api;
    two_sites();
    CHECK(links_pairs_make(me.links) == LH_OK);
    probe_figures_t *f = &me.links->pairs[0].figures;
    f->measured_s = 1;
    f->round_trip_ns = 1000000;
    f->rate[0] = f->rate[1] = RATE;
    connect_all(LH_SERVICE_GRADIENT);
    api = *me.links->carriers[LH_LINK_WAN]->api;
    api.stats = stats_told;
    me.links->carriers[LH_LINK_WAN]->api = &api;
    figures = (lh_link_stats_t){.struct_size = sizeof(figures), .round_trip_min_ns = 1000000};
}

/* A neighbour that was asked for because of the first choice's losses. With it there were none, and a
 * plugin that counts its neighbours by the loss would have another one under that number. */
static void connect_by_a_neighbour(void)
{
    lh_tuning_t meant, now = {.struct_size = sizeof(now)};
    char tuned[PROBE_TUNED];
    sites_of(1);
    CHECK(links_pairs_make(me.links) == LH_OK);
    probe_figures_t *f = &me.links->pairs[0].figures;
    f->measured_s = 1;
    f->round_trip_ns = 1000000;
    f->rate[0] = f->rate[1] = RATE;
    f->choice = 1;
    f->choice_loss[0] = f->choice_loss[1] = 1e-3;
    const carrier_t *c = me.links->carriers[LH_LINK_WAN];
    const lh_link_t link = {.struct_size = sizeof(link),
                            .scope = LH_LINK_WAN,
                            .round_trip_ns = f->round_trip_ns,
                            .bytes_per_second = RATE,
                            .loss = 1e-3};
    CHECK(links_tune(c, &link, 1, &meant, tuned));
    connect_all(LH_SERVICE_GRADIENT);
    const link_t *k = links_find(me.links, 1 - me.self, LH_SERVICE_GRADIENT);
    CHECK(c->api->retune(k->conn, NULL, &now) == LH_OK);
    CHECK(now.streams == meant.streams && now.buffer_bytes == meant.buffer_bytes);
    end();
}

static void a_neighbour_is_what_was_measured(void **state)
{
    (void)state;
    assert_true(ranks(2, "[transport.wan]\nsecurity = plain\n", connect_by_a_neighbour));
}

/* ---- what a connection is told of its way ---- */

static const lh_transport_api_t *as_opened; /* of the transport that is watched */
static struct {
    lh_link_t link;
    lh_tuning_t tuning;
    uint64_t silence_ns;
    uint32_t flags;
} way_told;

static void way_take(const lh_conn_params_t *params)
{
    way_told.link = *params->link;
    way_told.tuning = *params->tuning;
    way_told.silence_ns = params->silence_ns;
    way_told.flags = params->flags;
}

static lh_status_t connect_and_see(lh_transport_t *t, const lh_address_t *address,
                                   const lh_conn_params_t *params, lh_conn_t **out)
{
    way_take(params);
    return as_opened->connect(t, address, params, out);
}

static lh_status_t admit_and_see(lh_conn_t *c, const lh_conn_params_t *params)
{
    way_take(params);
    return as_opened->admit(c, params);
}

static void watch_ways(carrier_t *c)
{
    static lh_transport_api_t api;
    as_opened = c->api;
    api = *as_opened;
    api.connect = connect_and_see;
    api.admit = admit_and_see;
    c->api = &api;
}

/* Both ends are told before their connection is made, each of what it sends. */
static void tell_of_the_way(void)
{
    enum { TRIP_NS = 10000000, MTU = 9000, OUTAGE_S = 7 };
    static const uint64_t rates[2] = {RATE, RATE / 2};
    static const double losses[2] = {1e-3, 1e-4};
    sites_of(1);
    CHECK(links_pairs_make(me.links) == LH_OK);
    probe_figures_t *f = &me.links->pairs[0].figures;
    f->measured_s = 1;
    f->round_trip_ns = TRIP_NS;
    f->path_mtu = MTU;
    for (int way = 0; way < 2; way++) {
        f->rate[way] = rates[way];
        f->loss[way] = losses[way];
    }
    watch_ways(me.links->carriers[LH_LINK_WAN]);
    connect_all(LH_SERVICE_GRADIENT);
    CHECK(way_told.link.scope == LH_LINK_WAN && way_told.link.round_trip_ns == TRIP_NS);
    CHECK(way_told.link.path_mtu == MTU && way_told.link.loss == losses[me.self]);
    CHECK(way_told.link.bytes_per_second == rates[me.self]);
    CHECK(way_told.tuning.streams > 0 && way_told.tuning.chunk_bytes > 0);
    CHECK(way_told.tuning.control != 0);
    is_close(way_told.tuning.inflight_bytes, (double)rates[me.self] * TRIP_NS * 1e-9);
    is_close(way_told.tuning.buffer_bytes, 3 * (double)rates[me.self] * TRIP_NS * 1e-9);
    is_close(way_told.tuning.pace_bytes_per_second, 0.97 * (double)rates[me.self]);
    CHECK(way_told.silence_ns == (uint64_t)OUTAGE_S * 1000000000);
    CHECK(way_told.flags == 0); /* it trains */
    end();
}

static void a_connection_is_told_what_it_is(void **state)
{
    (void)state;
    assert_true(ranks(2, "[transport.wan]\nsecurity = plain\noutage = 7s\n", tell_of_the_way));
}

/* Two machines of one site, whose cards say 100 Gb/s: four streams of tcp carry that. */
static void tell_of_a_card(void)
{
    static const uint64_t card = 12500000000;
    published_t *published;
    lh_tuning_t now = {.struct_size = sizeof(now)};
    for (uint32_t r = 0; r < me.size; r++)
        (void)snprintf(me.world->ranks[r].host, sizeof(me.world->ranks[r].host), "box%u", r);
    world_number(me.world);
    CHECK(world_publish(me.host, me.world, NULL, &published) == LH_OK);
    open_links();
    carrier_t *c = me.links->carriers[LH_LINK_SITE];
    c->nic.bytes_per_second = card;
    watch_ways(c);
    connect_all(LH_SERVICE_GRADIENT);
    CHECK(way_told.link.scope == LH_LINK_SITE && way_told.link.bytes_per_second == card);
    CHECK(way_told.link.round_trip_ns == 0 && way_told.tuning.pace_bytes_per_second == 0);
    const link_t *k = links_find(me.links, 1 - me.self, LH_SERVICE_GRADIENT);
    CHECK(c->api->retune(k->conn, NULL, &now) == LH_OK);
    CHECK(now.streams == 4 && now.pace_bytes_per_second == 0 && now.buffer_bytes == 0);
    end();
}

static void inside_a_site_the_rate_is_the_cards(void **state)
{
    (void)state;
    assert_true(ranks(2, "[transport.site]\nsecurity = plain\nbind = 127.0.0.1\n", tell_of_a_card));
}

/* One of the two on the other side. */
static uint32_t over_there(uint32_t i)
{
    return 2 * (1 - me.self / 2) + i;
}

static lh_tuning_t in_force(uint32_t peer)
{
    lh_tuning_t now = {.struct_size = sizeof(now)};
    const link_t *k = links_find(me.links, peer, LH_SERVICE_GRADIENT);
    CHECK(k->carrier->api->retune(k->conn, NULL, &now) == LH_OK);
    return now;
}

/* A step in which this rank's links sent with so much of the pace that they began with, as this rank alone
 * sees it. */
static void see_step(uint64_t step, double part, uint64_t trip_ns)
{
    figures.bytes_per_second = (uint64_t)(part * 0.97 * RATE / 2) + step % 2; /* it is new */
    figures.round_trip_ns = trip_ns;
    links_follow(me.links, step);
}

/* The same with what all ranks find by it. */
static void make_step(uint64_t step, double part, uint64_t trip_ns)
{
    link_told_t mine[2], all[2 * RANKS];
    see_step(step, part, trip_ns);
    links_tell(me.links, mine);
    CHECK(control_gather(&me.control, mine, sizeof(mine), all) == LH_OK);
    links_share(me.links, all, step);
    links_agree(me.links, all, step);
}

/* All ranks have another window, and room for it, before the same step; back they have the room still. */
static void tune_for_a_longer_way(void)
{
    enum { MS = 1000000, STEPS = 20 };
    lh_tuning_t before[2], far[2], now;
    link_change_t rows[2];
    lay_a_way();
    for (uint32_t i = 0; i < 2; i++)
        before[i] = in_force(over_there(i));
    for (uint64_t step = 1; step <= STEPS; step++) {
        CHECK(in_force(over_there(0)).inflight_bytes == before[0].inflight_bytes);
        make_step(step, 1, me.self == 3 ? 40 * MS : 30 * MS);
    }
    for (uint32_t i = 0; i < 2; i++) {
        far[i] = in_force(over_there(i));
        is_close(far[i].inflight_bytes, 30 * (double)before[i].inflight_bytes);
        CHECK(far[i].buffer_bytes > before[i].buffer_bytes);
        CHECK(far[i].streams == before[i].streams);
        is_close(far[i].pace_bytes_per_second, (double)before[i].pace_bytes_per_second);
    }
    CHECK(links_changes(me.links, rows, 2) == 1 && links_changes(me.links, rows + 1, 1) == 0);
    CHECK(rows[0].why == TUNED_TRIP && rows[0].step == STEPS);
    CHECK(rows[0].before.round_trip_ns == MS && rows[0].now.round_trip_ns == 30 * MS);
    CHECK(strcmp(rows[0].site[0], "a") == 0 && strcmp(rows[0].site[1], "b") == 0);
    CHECK(strncmp(rows[0].tuned, "window 3 MB = ", 14) == 0);
    for (uint64_t step = STEPS + 1; step <= 2 * STEPS; step++)
        make_step(step, 1, MS);
    for (uint32_t i = 0; i < 2; i++) {
        now = in_force(over_there(i));
        CHECK(now.inflight_bytes == before[i].inflight_bytes);
        CHECK(now.buffer_bytes == far[i].buffer_bytes);
    }
    end();
}

static void a_longer_way_is_tuned_for_on_all_ranks_at_once(void **state)
{
    (void)state;
    assert_true(ranks(RANKS, "[transport.wan]\nsecurity = plain\n", tune_for_a_longer_way));
}

/* Links are slower over a longer way for which they had too little room. Once all have found it, what waits
 * there is no queue, and paces are raised again. */
static void raise_over_a_longer_way(void)
{
    enum { MS = 1000000, STEPS = 20 };
    static const double lowered = 0.97 * 0.5;
    uint64_t step = 0;
    lay_a_way();
    const double pace = (double)in_force(over_there(0)).pace_bytes_per_second;
    while (step < STEPS)
        see_step(++step, 0.5, 30 * MS);
    while (step < 2 * STEPS) {
        is_close(in_force(over_there(0)).pace_bytes_per_second, lowered * pace);
        make_step(++step, lowered, 30 * MS);
    }
    while (step < 3 * STEPS) {
        is_close(in_force(over_there(0)).pace_bytes_per_second, lowered * pace);
        see_step(++step, lowered, 30 * MS);
    }
    is_close(in_force(over_there(0)).pace_bytes_per_second, 2 * lowered * pace);
    end();
}

static void a_pace_is_raised_again_over_a_way_that_is_longer_now(void **state)
{
    (void)state;
    assert_true(ranks(RANKS, "[transport.wan]\nsecurity = plain\n", raise_over_a_longer_way));
}

/* Rank 0 sends at half of its pace, and the queue of that makes all round trips longer: it alone gets
 * another pace and window, and nobody takes the queue for a longer way. */
static void tune_for_a_slower_link(void)
{
    enum { MS = 1000000, STEPS = 20 };
    lh_tuning_t before[2], now;
    link_change_t row;
    lay_a_way();
    for (uint32_t i = 0; i < 2; i++)
        before[i] = in_force(over_there(i));
    for (uint64_t step = 1; step <= STEPS; step++) {
        CHECK(in_force(over_there(0)).inflight_bytes == before[0].inflight_bytes);
        make_step(step, me.self == 0 ? 0.5 : 1, 30 * MS);
    }
    for (uint32_t i = 0; i < 2; i++) {
        now = in_force(over_there(i));
        const double kept = me.self == 0 ? 0.97 * 0.5 : 1;
        is_close(now.pace_bytes_per_second, kept * (double)before[i].pace_bytes_per_second);
        is_close(now.inflight_bytes, kept * (double)before[i].inflight_bytes);
        CHECK(now.chunk_bytes <= before[i].chunk_bytes && now.streams == before[i].streams);
        CHECK(now.buffer_bytes == before[i].buffer_bytes);
    }
    /* All know what became of the border. */
    CHECK(links_changes(me.links, &row, 1) == 1 && row.why == TUNED_RATE && row.step == STEPS);
    CHECK(fabs(row.now.kept[0] - (0.97 * 0.5 + 1) / 2) < 1e-3 && row.now.kept[1] == 1);
    CHECK(row.rate[0] == RATE && row.rate[1] == RATE);
    CHECK(row.now.round_trip_ns == MS);
    end();
}

static void a_slower_link_has_a_smaller_window(void **state)
{
    (void)state;
    assert_true(ranks(RANKS, "[transport.wan]\nsecurity = plain\n", tune_for_a_slower_link));
}

/* Of the direction in which it is. */
static void tune_for_losses(void)
{
    enum { PACKETS = 1200000, PACKET = 1448 };
    link_change_t row;
    lay_a_way();
    make_step(1, 1, 1000000);
    CHECK(links_changes(me.links, &row, 1) == 0);
    figures.bytes_sent = (uint64_t)PACKETS * PACKET;
    if (me.self == 2) figures.bytes_retransmitted = PACKETS / 1000 * PACKET;
    make_step(2, 1, 1000000); /* a turn of a million packets is over */
    CHECK(links_changes(me.links, &row, 1) == 1 && row.why == TUNED_LOSS && row.step == 2);
    CHECK(row.now.loss[0] == 0 && fabs(row.now.loss[1] - 1e-3) < 1e-6);
    for (uint32_t i = 0; i < 2; i++) {
        const link_t *k = links_find(me.links, over_there(i), LH_SERVICE_GRADIENT);
        CHECK(k->known.loss == row.now.loss[me.self / 2]);
    }
    end();
}

static void more_loss_is_known_to_all_who_send_that_way(void **state)
{
    (void)state;
    assert_true(ranks(RANKS, "[transport.wan]\nsecurity = plain\n", tune_for_losses));
}

static void shares_add_up_to_a_border(void **state)
{
    (void)state;
    double shares[3] = {1.0 / 3, 1.0 / 3, 1.0 / 3};
    assert_false(pace_shares((const double[]){0, 0, 0}, 3, shares));
    assert_false(pace_shares((const double[]){100, 101, 99}, 3, shares));
    assert_true(shares[0] == 1.0 / 3);
    assert_true(pace_shares((const double[]){200, 100, 100}, 3, shares));
    assert_true(shares[0] == 0.5 && shares[1] == 0.25 && shares[2] == 0.25);
    assert_true(pace_shares((const double[]){0, 100, 300}, 3, shares));
    const double rest = 47.0 / 48;
    assert_true(shares[0] == 1.0 / 48 && fabs(shares[1] - 0.25 * rest) < 1e-12 &&
                fabs(shares[2] - 0.75 * rest) < 1e-12);
    /* What the first takes from the others makes the second need the least, too. */
    assert_true(pace_shares((const double[]){0, 1.001, 46.999}, 3, shares));
    assert_true(shares[0] == 1.0 / 48 && shares[1] == 1.0 / 48);
    assert_true(fabs(shares[0] + shares[1] + shares[2] - 1) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_of_a_site_share_its_links_by_what_they_send),
        cmocka_unit_test(a_border_is_told_of_by_all_ranks_of_its_site),
        cmocka_unit_test(pairs_of_sites_share_a_border_by_what_they_send),
        cmocka_unit_test(a_transport_that_paces_once_has_pairs_whole),
        cmocka_unit_test(a_longer_way_is_tuned_for_on_all_ranks_at_once),
        cmocka_unit_test(a_pace_is_raised_again_over_a_way_that_is_longer_now),
        cmocka_unit_test(a_slower_link_has_a_smaller_window),
        cmocka_unit_test(more_loss_is_known_to_all_who_send_that_way),
        cmocka_unit_test(a_neighbour_is_what_was_measured),
        cmocka_unit_test(a_connection_is_told_what_it_is),
        cmocka_unit_test(inside_a_site_the_rate_is_the_cards),
        cmocka_unit_test(shares_add_up_to_a_border),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
