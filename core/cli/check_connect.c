/* check_connect.c - dials every pair of hosts, by the transports that training would use.
 *
 * Training connects the ranks that its collectives need, and learns of a firewall between two
 * machines when it comes to them. Here ranks meet as for training, with the job's key; then the
 * first rank of each host connects to that of every other one, and they exchange a few small
 * messages. So names, addresses, ports, keys and the security of each class of link are tried, no
 * device is touched and no data are read.
 *
 * In rounds, as of a tournament: in each a host has one other, so a pair that fails costs its
 * round the time of a dial and keeps nobody else from being tried. Links are opened anew for each
 * round, as a link that broke ends all of those that were opened with it. What came of it is
 * gathered in the end: one start tells all that is wrong between n machines.
 *
 * The dialing side of a pair (the lower rank) sends, the other one answers. The least round trip
 * of a few is told: it is of the way and of its class, and no measurement of what the link
 * carries, which is `longhaul bench links`. */
#include <cli/check_connect.h>

#include <stdio.h>

#include <base/memory.h>
#include <base/sys.h>
#include <links/links_connect.h>

enum { TRIPS = 16, PING = 64 /* bytes */, REASON = 300 };
static const uint32_t nobody = UINT32_MAX;
static const uint32_t ping_tag = 0xffff0003;
static const uint64_t dial_ns = 10 * 1000000000ull; /* most of a pair: all have met already */

/* What one rank has of one round. */
typedef struct outcome {
    uint32_t peer;    /* nobody: it had none */
    uint64_t trip_ns; /* least; 0: failed, or the other one counts */
    lh_status_t status;
    char transport[32];
    char reason[REASON];
} outcome_t;

/* The pair of this rank in a round. */
typedef struct pair {
    link_t *link;
    uint32_t arena;
    char memory[2][PING];       /* to send, to receive */
    uint32_t came, sent, ended; /* messages: received, posted, gone */
    uint64_t begun_ns, least_ns;
} pair_t;

typedef struct dialing {
    cli_t *cli;
    const world_t *world;
    control_t *control;
    links_t *links;
    uint32_t *hosts; /* [host_count] the first rank of each, in order */
    uint32_t host_count, rounds;
    bool dials; /* this rank, in the pair at hand */
    pair_t pair;
    outcome_t *own, *all; /* [rounds], [rounds][size] */
} dialing_t;

static lh_status_t dialing_begin(dialing_t *d)
{
    const uint32_t size = d->world->row.size;
    d->hosts = mem_array(size, sizeof(*d->hosts));
    if (d->hosts == NULL) return LH_NO_MEMORY;
    for (uint32_t r = 0; r < size; r++)
        if (d->world->ranks[r].local_rank == 0) d->hosts[d->host_count++] = r;
    d->rounds = (d->host_count + 1) / 2 * 2 - 1;
    d->own = mem_array(d->rounds, sizeof(*d->own));
    d->all = mem_array((size_t)size * d->rounds, sizeof(*d->all));
    return d->own == NULL || d->all == NULL ? LH_NO_MEMORY : LH_OK;
}

/* Of an even number n of places the last stays and the others go round: in round r, place i meets
 * place j with i + j = 2 r modulo n - 1, and who would meet itself meets the last. With an odd
 * number of hosts nobody has the last place. */
static uint32_t round_peer(const dialing_t *d, uint32_t round)
{
    const uint32_t own = d->world->row.rank, turn = d->rounds;
    uint32_t i = 0, j;
    while (i < d->host_count && d->hosts[i] != own)
        i++;
    if (i == d->host_count) return nobody;
    if (i == turn) /* the last */
        j = round;
    else {
        j = (2 * round + turn - i) % turn;
        if (j == i) j = turn;
    }
    return j < d->host_count ? d->hosts[j] : nobody;
}

/* The transport may have no room for a moment: tried again after the next events. */
static lh_status_t pair_send(pair_t *p)
{
    p->begun_ns = sys()->now_ns();
    const lh_status_t status = link_send(p->link, p->arena, p->memory[0], PING, ping_tag, 0);
    p->sent += status == LH_OK;
    return status == LH_AGAIN ? LH_OK : status;
}

static lh_status_t pair_receive(pair_t *p)
{
    return link_recv(p->link, p->arena, p->memory[1], PING, ping_tag, 0);
}

static lh_status_t pair_take(pair_t *p, bool received)
{
    if (!received) {
        p->ended++;
        return LH_OK;
    }
    const uint64_t trip = sys()->now_ns() - p->begun_ns;
    if (trip < p->least_ns) p->least_ns = trip;
    p->came++;
    return p->came < TRIPS ? pair_receive(p) : LH_OK;
}

/* The side that dialed has one message on its way at most; the other one answers what came. */
static lh_status_t pair_turn(dialing_t *d)
{
    enum { AT_ONCE = 4, SPIN_NS = 20000, NAP_NS = 5000000 };
    links_event_t events[AT_ONCE];
    pair_t *p = &d->pair;
    uint32_t count;
    lh_status_t status = links_poll(d->links, events, AT_ONCE, &count);
    for (uint32_t i = 0; i < count && status == LH_OK; i++)
        status = pair_take(p, events[i].received);
    if (status == LH_OK && p->sent < TRIPS && p->sent < p->came + d->dials) status = pair_send(p);
    if (status == LH_OK && count == 0) links_sleep(d->links, -1, SPIN_NS, NAP_NS);
    return status;
}

static lh_status_t pair_exchange(dialing_t *d, uint32_t peer)
{
    const uint64_t since = sys()->now_ns();
    pair_t *p = &d->pair;
    p->link = links_find(d->links, peer, LH_SERVICE_GRADIENT);
    lh_assert(p->link != NULL);
    lh_status_t status = pair_receive(p);
    while (status == LH_OK && (p->came < TRIPS || p->ended < TRIPS)) {
        status = pair_turn(d);
        if (status == LH_OK && sys()->now_ns() - since > dial_ns)
            status = fail(LH_TIMED_OUT,
                          "the link is up, and did not carry %d messages within %.0f s", TRIPS,
                          (double)dial_ns * 1e-9);
    }
    return status;
}

/* With whom this rank has no link it has nothing to do but to be there: links are opened and
 * arenas registered by all. What fails between two is theirs; what fails before is everybody's. */
static lh_status_t round_dial(dialing_t *d, const links_how_t *how, uint32_t round)
{
    outcome_t *o = &d->own[round];
    *o = (outcome_t){.peer = round_peer(d, round)};
    d->pair = (pair_t){.least_ns = UINT64_MAX};
    d->dials = d->world->row.rank < o->peer;
    lh_status_t status = links_open(how, &d->links);
    if (status == LH_OK)
        status = links_arena(d->links, d->pair.memory, sizeof(d->pair.memory), -1, 0,
                             &d->pair.arena);
    if (status == LH_OK && o->peer != nobody) {
        o->status = links_connect(d->links, &o->peer, 1, LH_SERVICE_GRADIENT);
        if (o->status == LH_OK) o->status = pair_exchange(d, o->peer);
        if (o->status != LH_OK)
            (void)snprintf(o->reason, sizeof(o->reason), "%s", fail_reason());
        else if (d->dials)
            o->trip_ns = d->pair.least_ns;
        const link_t *link = links_find(d->links, o->peer, LH_SERVICE_GRADIENT);
        if (link != NULL)
            (void)snprintf(o->transport, sizeof(o->transport), "%s", link_transport(link));
        fail_clear();
        status = control_status(d->control);
        if (status != LH_OK) (void)fail_again(status, control_failure(d->control));
    }
    if (status == LH_OK) status = control_barrier(d->control, "a round of the check");
    links_close(d->links);
    d->links = NULL;
    return status;
}

static const outcome_t *outcome_of(const dialing_t *d, uint32_t rank, uint32_t peer)
{
    const size_t size = d->world->row.size;
    for (uint32_t i = 0; i < d->rounds; i++)
        if (d->all[i * size + rank].peer == peer) return &d->all[i * size + rank];
    lh_assert(false);
    return NULL;
}

/* "tokyo/t1 to osaka/o1  wan  tcp  12.345 ms", or the reason of the side that has one. */
static bool pair_tell(const dialing_t *d, uint32_t a, uint32_t b, bool show)
{
    const world_rank_t *from = &d->world->ranks[a], *to = &d->world->ranks[b];
    const outcome_t *o = outcome_of(d, a, b), *other = outcome_of(d, b, a);
    const uint32_t scope = world_scope(d->world, a, b);
    const bool reached = o->status == LH_OK && other->status == LH_OK;
    char ends[2][WORLD_SITE_NAME + WORLD_HOST_NAME + 2], trip[32] = "none: ";
    if (!show) return reached;
    (void)snprintf(ends[0], sizeof(ends[0]), "%s/%s", from->site_name, from->host);
    (void)snprintf(ends[1], sizeof(ends[1]), "%s/%s", to->site_name, to->host);
    if (reached) (void)snprintf(trip, sizeof(trip), "%.3f ms", (double)o->trip_ns * 1e-6);
    cli_print_line("%-24s %-24s %-5s %-10s %s%s", ends[0], ends[1], job_scope_names[scope],
                   o->transport[0] == '\0' ? d->cli->job->transports[scope].plugin : o->transport,
                   trip,
                   reached              ? ""
                   : o->status != LH_OK ? o->reason
                                        : other->reason);
    return reached;
}

/* The same verdict on all ranks; rank 0 prints the table. */
static lh_status_t dialing_tell(const dialing_t *d)
{
    const bool show = d->world->row.rank == 0;
    uint32_t pairs = 0, reached = 0;
    if (show && d->host_count > 1)
        cli_print_line("%-24s %-24s %-5s %-10s %s", "from", "to", "link", "transport",
                       "round trip");
    for (uint32_t a = 0; a < d->host_count; a++)
        for (uint32_t b = a + 1; b < d->host_count; b++, pairs++)
            reached += pair_tell(d, d->hosts[a], d->hosts[b], show);
    if (reached < pairs)
        return fail(LH_PEER_LOST,
                    "%u of %u pairs of hosts do not reach each other, by the table of rank 0",
                    pairs - reached, pairs);
    if (show)
        cli_print_line("%u ranks on %u hosts have met; %u pairs of hosts reach each other",
                       d->world->row.size, d->world->row.nodes, pairs);
    return LH_OK;
}

/* In each rank. */
static int dial_all(void *context)
{
    cli_t *cli = context;
    dialing_t d = {.cli = cli, .world = launch_world(cli->launch)};
    if (d.world == NULL) { /* one rank: nobody to dial */
        cli_print_line("one rank: there is nobody to reach");
        return LH_OK;
    }
    d.control = launch_control(cli->launch);
    const links_how_t how = {.job = cli->job,
                             .registry = cli->plugins,
                             .world = d.world,
                             .control = d.control,
                             .apart = true};
    if (cli->job->launch.join_timeout_ns > dial_ns) cli->job->launch.join_timeout_ns = dial_ns;
    lh_status_t status = dialing_begin(&d);
    for (uint32_t i = 0; status == LH_OK && i < d.rounds; i++)
        status = round_dial(&d, &how, i);
    /* A gather takes the less of each rank the more there are: one for each round. */
    for (uint32_t i = 0; status == LH_OK && i < d.rounds; i++)
        status = control_gather(d.control, &d.own[i], sizeof(*d.own),
                                &d.all[(size_t)i * d.world->row.size]);
    if (status == LH_OK) status = dialing_tell(&d);
    mem_free(d.all);
    mem_free(d.own);
    mem_free(d.hosts);
    return status;
}

/* Nothing is to start again: who checks wants to hear of it. */
int check_connect(cli_t *cli)
{
    char **words;
    cli->job->launch.restarts = 0;
    const lh_status_t status = cli_words(cli, cli->command, &words);
    if (status != LH_OK) return status;
    const int code = launch_ranks(cli->launch, words, dial_all, cli);
    cli_words_free(words);
    return code;
}
