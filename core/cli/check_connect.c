/* check_connect.c - dials every pair of hosts, by the transports that training would use.
 *
 * Training connects the ranks that its collectives need, and learns of a firewall between two
 * machines when it comes to them. Here ranks meet as for training, with the job's key; then the
 * first rank of each host connects to that of every other one, and all exchange a few small
 * messages. So names, addresses, ports, keys and the security of each class of link are tried, no
 * device is touched and no data are read.
 *
 * The dialing side of a pair (the lower rank) sends, the other one answers; all pairs at once, as
 * one loop over the events of all links. The least round trip of a few is told: it is of the way and
 * of its class, and no measurement of what the link carries, which is `longhaul bench links`. */
#include <cli/check_connect.h>

#include <stdio.h>

#include <base/memory.h>
#include <base/sys.h>
#include <links/links_connect.h>

enum { TRIPS = 16, PING = 64 /* bytes */ };
static const uint32_t ping_tag = 0xffff0003;

/* A pair of hosts, as one of its two ranks sees it. */
typedef struct pair {
    uint32_t peer;
    link_t *link;
    char *memory;               /* [2][PING] to send, to receive */
    uint32_t came, sent, ended; /* messages: received, posted, gone */
    uint64_t begun_ns, least_ns;
} pair_t;

typedef struct dialing {
    cli_t *cli;
    const world_t *world;
    links_t *links;
    pair_t *pairs; /* [count], in the order of ranks */
    uint32_t *peers;
    uint32_t count, arena;
    char *memory;
    uint64_t *trips, *all; /* [size] of this rank, [size][size] of all; ns by peer, 0: none */
} dialing_t;

/* Whom this rank speaks to: the first of every other host, where it is the first of its own. */
static lh_status_t dialing_begin(dialing_t *d)
{
    const uint32_t size = d->world->row.size, own = d->world->row.rank;
    d->pairs = mem_array(size, sizeof(*d->pairs));
    d->peers = mem_array(size, sizeof(*d->peers));
    d->trips = mem_array(size, sizeof(*d->trips));
    d->all = mem_array((size_t)size * size, sizeof(*d->all));
    d->memory = mem_new((size_t)size * 2 * PING);
    if (d->pairs == NULL || d->peers == NULL || d->trips == NULL || d->all == NULL ||
        d->memory == NULL)
        return LH_NO_MEMORY;
    memset(d->trips, 0, size * sizeof(*d->trips));
    for (uint32_t r = 0; r < size && d->world->ranks[own].local_rank == 0; r++) {
        if (r == own || d->world->ranks[r].local_rank != 0) continue;
        d->peers[d->count] = r;
        d->pairs[d->count] = (pair_t){
            .peer = r, .memory = d->memory + (size_t)d->count * 2 * PING, .least_ns = UINT64_MAX};
        d->count++;
    }
    return LH_OK;
}

/* The transport may have no room for a moment: tried again after the next events. */
static lh_status_t pair_send(const dialing_t *d, pair_t *p)
{
    p->begun_ns = sys()->now_ns();
    const lh_status_t status = link_send(p->link, d->arena, p->memory, PING, ping_tag,
                                         (uint64_t)(p - d->pairs));
    p->sent += status == LH_OK;
    return status == LH_AGAIN ? LH_OK : status;
}

static lh_status_t pair_receive(const dialing_t *d, pair_t *p)
{
    return link_recv(p->link, d->arena, p->memory + PING, PING, ping_tag, (uint64_t)(p - d->pairs));
}

static bool pair_dials(const dialing_t *d, const pair_t *p)
{
    return d->world->row.rank < p->peer;
}

/* The side that dialed has one message on its way at most; the other one answers what came. */
static bool pair_owes(const dialing_t *d, const pair_t *p)
{
    return p->sent < TRIPS && p->sent < p->came + pair_dials(d, p);
}

static lh_status_t pair_take(const dialing_t *d, pair_t *p, bool received)
{
    if (!received) {
        p->ended++;
        return LH_OK;
    }
    const uint64_t trip = sys()->now_ns() - p->begun_ns;
    if (pair_dials(d, p) && trip < p->least_ns) p->least_ns = trip;
    p->came++;
    return p->came < TRIPS ? pair_receive(d, p) : LH_OK;
}

static bool dialing_is_done(const dialing_t *d)
{
    for (uint32_t i = 0; i < d->count; i++)
        if (d->pairs[i].came < TRIPS || d->pairs[i].ended < TRIPS) return false;
    return true;
}

static lh_status_t dialing_turn(dialing_t *d)
{
    enum { AT_ONCE = 32, SPIN_NS = 20000, NAP_NS = 5000000 };
    links_event_t events[AT_ONCE];
    uint32_t count;
    lh_status_t status = links_poll(d->links, events, AT_ONCE, &count);
    for (uint32_t i = 0; i < count && status == LH_OK; i++)
        status = pair_take(d, &d->pairs[events[i].cookie], events[i].received);
    for (uint32_t i = 0; i < d->count && status == LH_OK; i++)
        if (pair_owes(d, &d->pairs[i])) status = pair_send(d, &d->pairs[i]);
    if (status == LH_OK && count == 0) links_sleep(d->links, -1, SPIN_NS, NAP_NS);
    return status;
}

static lh_status_t dialing_exchange(dialing_t *d)
{
    const uint64_t most_ns = d->cli->job->comm.timeout_ns, since = sys()->now_ns();
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < d->count && status == LH_OK; i++) {
        d->pairs[i].link = links_find(d->links, d->pairs[i].peer, LH_SERVICE_GRADIENT);
        lh_assert(d->pairs[i].link != NULL);
        status = pair_receive(d, &d->pairs[i]);
    }
    while (status == LH_OK && !dialing_is_done(d)) {
        status = dialing_turn(d);
        if (status == LH_OK && sys()->now_ns() - since > most_ns)
            status = fail(
                LH_TIMED_OUT,
                "links are up, but not all carried messages within [comm] timeout = %.0f s",
                (double)most_ns * 1e-9);
    }
    for (uint32_t i = 0; i < d->count; i++)
        if (pair_dials(d, &d->pairs[i])) d->trips[d->pairs[i].peer] = d->pairs[i].least_ns;
    return status;
}

/* Rank 0 only: "tokyo/t1 to osaka/o1  wan  tcp  12.345 ms". */
static void dialing_tell(const dialing_t *d)
{
    const uint32_t size = d->world->row.size;
    uint32_t count = 0;
    for (uint32_t a = 0; a < size; a++)
        for (uint32_t b = a + 1; b < size; b++) {
            const uint64_t trip = d->all[(size_t)a * size + b];
            const world_rank_t *from = &d->world->ranks[a], *to = &d->world->ranks[b];
            const uint32_t scope = world_scope(d->world, a, b);
            if (trip == 0) continue;
            if (count++ == 0)
                cli_print_line("%-24s %-24s %-5s %-10s %s", "from", "to", "link", "transport",
                               "round trip");
            char ends[2][WORLD_SITE_NAME + WORLD_HOST_NAME + 2];
            (void)snprintf(ends[0], sizeof(ends[0]), "%s/%s", from->site_name, from->host);
            (void)snprintf(ends[1], sizeof(ends[1]), "%s/%s", to->site_name, to->host);
            link_class_t row;
            links_class(d->links, scope, &row);
            cli_print_line(
                "%-24s %-24s %-5s %-10s %.3f ms", ends[0], ends[1], job_scope_names[scope],
                row.transport == NULL ? d->cli->job->transports[scope].plugin : row.transport,
                (double)trip * 1e-6);
        }
    cli_print_line("%u ranks on %u hosts have met; %u pairs of hosts reach each other", size,
                   d->world->row.nodes, count);
}

/* In each rank. The barrier keeps links until all have told. */
static int dial_all(void *context)
{
    cli_t *cli = context;
    dialing_t d = {.cli = cli, .world = launch_world(cli->launch)};
    if (d.world == NULL) { /* one rank: nobody to dial */
        cli_print_line("one rank: there is nobody to reach");
        return LH_OK;
    }
    control_t *control = launch_control(cli->launch);
    const links_how_t how = {
        .job = cli->job, .registry = cli->plugins, .world = d.world, .control = control};
    const uint32_t size = d.world->row.size;
    lh_status_t status = dialing_begin(&d);
    if (status == LH_OK) status = links_open(&how, &d.links);
    if (status == LH_OK)
        status = links_arena(d.links, d.memory, (uint64_t)size * 2 * PING, -1, 0, &d.arena);
    if (status == LH_OK) status = links_connect(d.links, d.peers, d.count, LH_SERVICE_GRADIENT);
    if (status == LH_OK) status = dialing_exchange(&d);
    if (status == LH_OK) status = control_gather(control, d.trips, size * sizeof(*d.trips), d.all);
    if (status == LH_OK && d.world->row.rank == 0) dialing_tell(&d);
    if (status == LH_OK) status = control_barrier(control, "the end of the check");
    links_close(d.links);
    mem_free(d.memory);
    mem_free(d.all);
    mem_free(d.trips);
    mem_free(d.peers);
    mem_free(d.pairs);
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
