/* links_connect.c - connections by service: the lower rank dials, the higher one admits whom it
 * asked for; then both offer each other the arenas that can be mapped.
 *
 * One side dials, so that a pair has one connection and no race between two. Ranks come here at
 * different times: a caller that is not asked for yet is kept as a guest. Nothing here blocks in a
 * transport; all that is waited for is waited for in one loop (making_wait), which also sees the
 * control plane's failures and says every while which ranks are missing.
 *
 * A connection is told of its way before it is made (facts_fill): how far, how fast and how lossy,
 * and how it should be tuned, since streams and buffers can't be changed later. */
#include <links/links_connect.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <links/link_crowd.h>

/* A connection on which nothing comes for so long is broken; between sites the job says how long.
 * The tag tells lists of offers from messages of collectives. */
static const uint64_t silence_ns = 3000000000;
static const uint32_t offer_tag = 0xffff0001;

typedef struct offers { /* the first message on a connection; one layout for all ranks of a job */
    uint32_t count, reserved;
    lh_address_t rows[]; /* [count]; length 0: not offered */
} offers_t;

/* Lives as long as one links_connect. list_bytes: of one list, with room for all arenas. */
typedef struct making { /* the links that one links_connect is making */
    link_t **links;
    uint32_t count;
    char *block; /* two lists of offers for each link: ours, theirs */
    uint64_t list_bytes;
    lh_region_t *regions[LINKS_SCOPES];
    uint64_t until_ns;
    control_wait_t waits;
} making_t;

typedef struct facts { /* what a connection is told of its way, for as long as the call takes */
    lh_link_t link;
    lh_tuning_t tuning;
} facts_t;

bool links_tune(const carrier_t *c, const lh_link_t *link, uint32_t choice, lh_tuning_t *out,
                char tuned[PROBE_TUNED])
{
    *out = (lh_tuning_t){.struct_size = sizeof(*out)};
    tuned[0] = '\0';
    if (c->api->tune == NULL) return choice == 0;
    if (c->api->tune(c->transport, link, choice, out, tuned, PROBE_TUNED) == LH_OK) return true;
    *out = (lh_tuning_t){.struct_size = sizeof(*out)};
    (void)snprintf(tuned, PROBE_TUNED, "not tuned: %.*s", PROBE_TUNED - 16, fail_reason());
    fail_clear();
    return false;
}

uint64_t links_border(const links_t *l, uint32_t from, uint32_t to)
{
    const uint64_t asked = l->how.job->transports[LH_LINK_WAN].rate;
    if (asked != 0 || l->pairs == NULL) return asked;
    const probe_figures_t *f = &l->pairs[links_pair(from, to)].figures;
    /* What is measured is one rank's, also where several are at it at once. */
    return l->probing ? f->rate[from > to] : link_crowd_border(f, from > to);
}

/* Where a connection keeps the pace that it was opened with, a part of a shared way would be for good, and
 * lost while the others on it are silent. */
double links_even_part(const links_t *l, uint32_t from, uint32_t to)
{
    if (l->pairs == NULL || l->carriers[LH_LINK_WAN]->api->retune == NULL) return 1;
    return link_crowd_part(l->pairs, l->how.world->row.sites, NULL, from, to);
}

double links_part_of(const links_t *l, uint32_t from, uint32_t to)
{
    if (l->parts != NULL) return l->parts[(size_t)from * l->how.world->row.sites + to];
    return links_even_part(l, from, to);
}

double links_share_of(const links_t *l, uint32_t rank, uint32_t to)
{
    const world_t *w = l->how.world;
    const uint32_t from = w->ranks[rank].site;
    const double share = l->shares != NULL ? l->shares[(size_t)rank * w->row.sites + to]
                                           : 1.0 / world_site_size(w, from);
    return share * links_part_of(l, from, to);
}

/* All ranks of a site send through its one link, so each paces itself to its part of 97 % of the
 * rate: a queue that builds up before the link delays what is urgent. With n ranks here, m there,
 * and the rate r in bytes a second, a connection's pace is 0.97 r / n, or less where other pairs of
 * sites send over the same border, while its buffers are for r / min(n, m): one of a site with fewer
 * ranks has a larger part, and may send that much to this one; others on the border may be silent.
 * Parts are equal until ranks have told each other what they send (links_share). A rate that the INI
 * names comes before the one that was measured; parts of it are as measured.
 *
 * Inside a site nothing is measured, and a connection alone may have all that the card carries: that is
 * its rate, by which a plugin chooses streams and threads, and nobody is paced. */
static void facts_fill(const links_t *l, const link_t *k, facts_t *out)
{
    const world_t *w = l->how.world;
    const uint32_t here = w->ranks[w->row.rank].site, there = w->ranks[k->peer].site;
    char tuned[PROBE_TUNED];
    *out = (facts_t){
        .link = {.struct_size = sizeof(out->link), .scope = k->carrier->scope},
        .tuning = {.struct_size = sizeof(out->tuning)},
    };
    if (k->carrier->scope == LH_LINK_SITE)
        out->link.bytes_per_second = k->carrier->nic.bytes_per_second;
    if (k->carrier->scope != LH_LINK_WAN) return;
    const double rate = (double)links_border(l, here, there);
    const probe_figures_t *f = NULL;
    if (l->pairs != NULL) {
        f = &l->pairs[links_pair(here, there)].figures;
        out->link.round_trip_ns = f->round_trip_ns;
        out->link.path_mtu = f->path_mtu;
        out->link.loss = link_probe_loss_to_tune(f, here > there, f->loss[here > there]);
    }
    /* A probe has the whole link for itself. */
    const double ours = l->probing ? 1 : links_share_of(l, w->row.rank, there);
    const double theirs = l->probing ? 1 : links_share_of(l, k->peer, here);
    const uint32_t n = world_site_size(w, here), m = world_site_size(w, there);
    const double most = l->probing ? 1 : fmax(1.0 / (n < m ? n : m), fmax(ours, theirs));
    out->link.bytes_per_second = (uint64_t)(rate * most);
    if (f != NULL && rate > 0)
        (void)links_tune(k->carrier, &out->link, f->choice, &out->tuning, tuned);
    out->tuning.pace_bytes_per_second = (uint64_t)(LINKS_FILL * rate * ours);
}

/* What the connection has been told stays with the link. */
static void link_known(link_t *k, const facts_t *facts)
{
    k->known = facts->link;
    k->said_loss = facts->link.loss;
    k->follow.pace = k->follow.most = (double)facts->tuning.pace_bytes_per_second;
    k->room = (double)facts->link.bytes_per_second;
    k->buffers = facts->tuning.buffer_bytes;
}

/* Dialing ends an eighth of join_timeout, or 1 s at most, before making_wait gives up: the failure
 * is then the transport's, with its reason. */
static lh_conn_params_t link_params(const links_t *l, const link_t *k, facts_t *facts)
{
    const lh_world_t *w = &l->how.world->row;
    const uint64_t join_ns = l->how.job->launch.join_timeout_ns, most = 1000000000;
    const uint64_t dial_ns = join_ns - (join_ns / 8 < most ? join_ns / 8 : most);
    facts_fill(l, k, facts);
    return (lh_conn_params_t){
        .struct_size = sizeof(lh_conn_params_t),
        .direction = LH_SEND | LH_RECEIVE,
        .security = k->carrier->security,
        .peer = k->peer,
        .hello = {.job = w->job,
                  .epoch = w->epoch,
                  .rank = w->rank,
                  .service = k->service,
                  .direction = LH_SEND | LH_RECEIVE},
        .cookie = (uint64_t)(uintptr_t)k,
        .dial_ns = dial_ns,
        .silence_ns = k->carrier->scope == LH_LINK_WAN
                          ? l->how.job->transports[LH_LINK_WAN].outage_ns
                          : silence_ns,
        .link = &facts->link,
        .tuning = &facts->tuning,
        .flags = l->probing ? LH_CONN_PROBE : 0,
    };
}

/* Some transports take any number: then the limit is ours. */
static uint32_t operations_most(uint32_t advertised)
{
    return advertised < LINKS_DEPTH ? advertised : LINKS_DEPTH;
}

/* The link is in the list before it is connected, so that its guest can be admitted. */
static lh_status_t link_new(links_t *l, uint32_t peer, uint32_t service, link_t **out)
{
    const world_t *w = l->how.world;
    if (peer >= w->row.size || peer == w->row.rank)
        return fail(LH_INVALID, "a link from rank %u to rank %u of %u", w->row.rank, peer,
                    w->row.size);
    carrier_t *c = l->carriers[world_scope(w, w->row.rank, peer)];
    lh_assert(c != NULL); /* every class of link that the world has was opened */
    link_t **links = mem_grow(l->links, &l->link_capacity, l->link_count + 1u, sizeof(*links));
    if (links == NULL) return LH_NO_MEMORY;
    l->links = links;
    link_t *k = mem_new(sizeof(*k));
    if (k == NULL) return LH_NO_MEMORY;
    k->links = l;
    k->carrier = c;
    k->peer = peer;
    k->service = service;
    k->dials = w->row.rank < peer;
    k->operation_count = operations_most(c->nic.max_sends) + operations_most(c->nic.max_recvs);
    k->operations = mem_array(k->operation_count, sizeof(*k->operations));
    k->idle = mem_array(k->operation_count, sizeof(operation_t *));
    k->remotes = mem_array(l->arena_count, sizeof(lh_remote_t *));
    k->maps = mem_array(l->arena_count, sizeof(void *));
    if (k->operations == NULL || k->idle == NULL || k->remotes == NULL || k->maps == NULL) {
        link_free(k);
        return LH_NO_MEMORY;
    }
    k->map_count = l->arena_count;
    for (uint32_t i = 0; i < k->operation_count; i++) {
        k->operations[i].link = k;
        link_idle(&k->operations[i]);
    }
    l->links[l->link_count++] = k;
    *out = k;
    return LH_OK;
}

/* Who may come: a lower rank of this job, over the class of link that it has to this one, once. */
static bool guest_is_welcome(links_t *l, const carrier_t *c, const lh_hello_t *hello)
{
    const world_t *w = l->how.world;
    if (hello->job != w->row.job || hello->epoch != w->row.epoch) return false;
    if (hello->rank >= w->row.rank || world_scope(w, hello->rank, w->row.rank) != c->scope)
        return false;
    if (hello->service < LH_SERVICE_CONTROL || hello->service > LH_SERVICE_BULK) return false;
    const link_t *k = links_find(l, hello->rank, hello->service);
    if (k != NULL && k->conn != NULL) return false;
    for (uint32_t i = 0; i < l->guest_count; i++)
        if (l->guests[i].hello.rank == hello->rank && l->guests[i].hello.service == hello->service)
            return false;
    return true;
}

/* Takes whoever has dialed; strangers are turned away and logged, and end nothing. */
static lh_status_t guests_accept(links_t *l)
{
    for (uint32_t s = LH_LINK_NODE; s < LINKS_SCOPES; s++) {
        carrier_t *c = l->carriers[s];
        guest_t guest = {.carrier = c};
        while (c != NULL && c->api->accept(c->listener, &guest.hello, &guest.conn) == LH_OK) {
            if (!guest_is_welcome(l, c, &guest.hello)) {
                log_line(LH_LOG_WARN, "%s: a caller that says it is rank %u is turned away",
                         c->plugin->name, guest.hello.rank);
                c->api->close_conn(guest.conn);
                continue;
            }
            guest_t *guests = mem_grow(l->guests, &l->guest_capacity, l->guest_count + 1u,
                                       sizeof(*guests));
            if (guests == NULL) {
                c->api->close_conn(guest.conn);
                return LH_NO_MEMORY;
            }
            l->guests = guests;
            guests[l->guest_count++] = guest;
        }
    }
    return LH_OK;
}

/* Admits guests whose links have been asked for by now. A connection is told of its way by this
 * end, too. */
static lh_status_t guests_admit(links_t *l)
{
    for (uint32_t i = 0; i < l->guest_count;) {
        const guest_t guest = l->guests[i];
        link_t *k = links_find(l, guest.hello.rank, guest.hello.service);
        if (k == NULL || k->conn != NULL) {
            i++;
            continue;
        }
        l->guests[i] = l->guests[--l->guest_count];
        facts_t facts;
        const lh_conn_params_t params = link_params(l, k, &facts);
        const lh_status_t status = k->carrier->api->admit(guest.conn, &params);
        if (status != LH_OK) {
            k->carrier->api->close_conn(guest.conn);
            links_lose(k, status, fail_reason());
            return links_status(l);
        }
        k->conn = guest.conn;
        link_known(k, &facts);
    }
    return LH_OK;
}

/* Returns at once; the transport tries in the background until its time is over. */
static lh_status_t link_dial(links_t *l, link_t *k)
{
    facts_t facts;
    const lh_conn_params_t params = link_params(l, k, &facts);
    const carrier_t *c = k->carrier;
    const lh_status_t status = c->api->connect(
        c->transport, &l->addresses[(size_t)k->peer * LINKS_SCOPES + c->scope], &params, &k->conn);
    link_known(k, &facts);
    if (status == LH_OK) return LH_OK;
    links_lose(k, status, fail_reason());
    return links_status(l);
}

/* Between looks: nothing here is in a hurry, and the ranks may share processors. */
static void making_nap(void)
{
    const struct timespec time = {.tv_nsec = 50000};
    (void)nanosleep(&time, NULL);
}

/* Before this rank closes connections that have not failed: what it has told the control plane comes to
 * all first, or its peers would tell of a connection that was closed, and not why. Word comes back
 * within two trips; who hears nothing goes on. */
static void word_spread(const links_t *l)
{
    const uint64_t until = sys()->now_ns() + 500000000;
    if (l->how.control == NULL || l->failed == LH_OK) return;
    while (control_status(l->how.control) == LH_OK && sys()->now_ns() < until)
        making_nap();
}

/* What this rank alone has found, such as that its time is over: others hear that before they see it
 * close its connections. Of a link that was lost they have heard. */
static void making_fail(links_t *l, lh_status_t status)
{
    const links_how_t *how = &l->how;
    if (how->apart || how->control == NULL || l->failed != LH_OK || atomic_load(&l->cancelled) ||
        control_status(how->control) != LH_OK)
        return;
    l->failed = status;
    (void)snprintf(l->failure, sizeof(l->failure), "%s", fail_reason());
    control_fail(how->control, how->world->row.rank, status, l->failure);
}

/* How far a link has come; making_wait is told what to wait for. */
typedef bool (*reached_t)(const link_t *k);

static bool is_up(const link_t *k)
{
    return k->up;
}

static bool has_offers(const link_t *k)
{
    return k->own_done == 2; /* ours sent, theirs received */
}

/* The first link that is not so far yet, or NULL. */
static const link_t *making_missing(const making_t *m, reached_t reached)
{
    for (uint32_t i = 0; i < m->count; i++)
        if (!reached(m->links[i])) return m->links[i];
    return NULL;
}

/* "link over tcp, which this rank dials at 10.0.0.7:29500" */
static void link_text(const links_t *l, const link_t *k, char *text, size_t room)
{
    char address[96] = "";
    const carrier_t *c = k->carrier;
    const lh_address_t *listens = &l->addresses[(size_t)k->peer * LINKS_SCOPES + c->scope];
    if (!k->dials) listens = &c->address;
    if (c->api->address_text == NULL ||
        c->api->address_text(c->transport, listens, address, sizeof(address)) != LH_OK)
        address[0] = '\0';
    (void)snprintf(text, room, "link over %s%s%s", c->plugin->name,
                   address[0] == '\0' ? ""
                   : k->dials         ? ", which this rank dials at "
                                      : ", which it dials at this rank's ",
                   address);
}

/* The failure of this rank alone: the sentence says where the peer was looked for. */
static lh_status_t link_too_late(links_t *l, const link_t *k, const char *what)
{
    char who[128], link[224];
    world_rank_text(l->how.world, k->peer, who, sizeof(who));
    link_text(l, k, link, sizeof(link));
    return fail(LH_TIMED_OUT, "%s, %s: %s within %.0f s", who, link, what,
                (double)l->how.job->launch.join_timeout_ns / 1e9);
}

/* All that are missing, and where the first of them is looked for. */
static void making_tell_missing(const links_t *l, const making_t *m, reached_t reached,
                                const link_t *first)
{
    char link[224];
    text_t who = {0};
    bool *among = mem_array(l->how.world->row.size, sizeof(*among));
    for (uint32_t i = 0; among != NULL && i < m->count; i++)
        among[m->links[i]->peer] = !reached(m->links[i]);
    if (among != NULL) world_ranks_text(l->how.world, among, &who);
    link_text(l, first, link, sizeof(link));
    log_line(LH_LOG_WARN, "waiting for %s since %llu s: %s", who.length > 0 ? who.data : "a rank",
             (unsigned long long)((sys()->now_ns() - m->waits.since) / 1000000000u), link);
    text_free(&who);
    mem_free(among);
}

/* Until all links that are made are so far, one of them failed, or the time is over. */
static lh_status_t making_wait(links_t *l, making_t *m, reached_t reached, const char *what)
{
    for (;;) {
        lh_status_t status = guests_accept(l);
        if (status == LH_OK) status = guests_admit(l);
        links_harvest(l);
        if (status == LH_OK) status = links_status(l);
        if (status != LH_OK) return status;
        const link_t *k = making_missing(m, reached);
        if (k == NULL) return LH_OK;
        if (sys()->now_ns() > m->until_ns) return link_too_late(l, k, what);
        if (control_wait_due(&m->waits, sys()->now_ns())) making_tell_missing(l, m, reached, k);
        making_nap();
    }
}

/* whose: 0 ours, 1 theirs. */
static offers_t *making_list(const making_t *m, uint32_t link, uint32_t whose)
{
    lh_assert(link < m->count && whose < 2);
    return (offers_t *)(void *)(m->block + ((uint64_t)link * 2 + whose) * m->list_bytes);
}

/* Whether the transport can show peers' memory in this process. */
static bool carrier_maps(const carrier_t *c)
{
    return c->api->mapping != NULL;
}

/* Fills our list for one link: an address for each arena with a memfd that the transport can show
 * to the peer. */
static lh_status_t arenas_offer(links_t *l, const making_t *m, link_t *k, offers_t *list)
{
    list->count = k->map_count;
    for (uint32_t i = 0; carrier_maps(k->carrier) && i < k->map_count; i++) {
        if (l->arenas[i].row.fd < 0) continue;
        for (;;) {
            const lh_status_t status = k->carrier->api->mapping->offer(
                k->conn, l->arenas[i].regions[k->carrier->scope], &list->rows[i]);
            if (status == LH_OK) break;
            if (status != LH_AGAIN) {
                links_lose(k, status, fail_reason());
                return links_status(l);
            }
            if (sys()->now_ns() > m->until_ns)
                return link_too_late(l, k, "it took no offer of memory");
            links_harvest(l);
            making_nap();
        }
    }
    return LH_OK;
}

/* Arenas match by number, so both ends must have equally many. */
static lh_status_t list_check(links_t *l, link_t *k, const offers_t *list)
{
    char reason[LINKS_REASON];
    if (list->count != k->map_count)
        (void)snprintf(reason, sizeof(reason), "it has %u arenas for messages, this rank %u",
                       list->count, k->map_count);
    else
        return LH_OK;
    links_lose(k, LH_MISMATCH, reason);
    return links_status(l);
}

/* The peer's arena in this process. The transport may need some turns until what it was offered has
 * arrived, and some more to map it: what was taken is not taken anew then. */
static lh_status_t arena_take(links_t *l, const making_t *m, link_t *k, uint32_t arena,
                              const lh_address_t *offer)
{
    const lh_mapping_api_t *api = k->carrier->api->mapping;
    for (;;) {
        lh_status_t status = LH_OK;
        if (k->remotes[arena] == NULL) status = api->take(k->conn, offer, &k->remotes[arena]);
        if (status == LH_OK) status = api->map(k->remotes[arena], &k->maps[arena]);
        if (status == LH_OK) return LH_OK;
        if (status != LH_AGAIN) {
            links_lose(k, status, fail_reason());
            return links_status(l);
        }
        if (sys()->now_ns() > m->until_ns) return link_too_late(l, k, "its memory did not arrive");
        links_harvest(l);
        status = links_status(l);
        if (status != LH_OK) return status;
        making_nap();
    }
}

/* Only what the transport can map; an offer of no length is an arena that the peer can't show. */
static lh_status_t arenas_take(links_t *l, const making_t *m, link_t *k, const offers_t *list)
{
    lh_status_t status = list_check(l, k, list);
    for (uint32_t i = 0; status == LH_OK && carrier_maps(k->carrier) && i < k->map_count; i++)
        if (list->rows[i].length > 0 && list->rows[i].length <= sizeof(list->rows[i].bytes))
            status = arena_take(l, m, k, i, &list->rows[i]);
    return status;
}

/* One message each way on a new connection, with no event for the caller. */
static lh_status_t list_post(links_t *l, const making_t *m, uint32_t i, uint32_t whose)
{
    link_t *k = m->links[i];
    const lh_transport_api_t *api = k->carrier->api;
    offers_t *list = making_list(m, i, whose);
    operation_t *o = link_operation(k, 0, true);
    if (o == NULL) return fail(LH_ABI, "'%s' offers no operations", k->carrier->plugin->name);
    const uint64_t cookie = (uint64_t)(uintptr_t)o;
    lh_region_t *region = m->regions[k->carrier->scope];
    const lh_status_t status = whose == 0 ? api->isend(k->conn, region, list, m->list_bytes,
                                                       offer_tag, cookie)
                                          : api->irecv(k->conn, region, list, m->list_bytes,
                                                       offer_tag, cookie);
    if (status == LH_OK) return LH_OK;
    link_idle(o);
    links_lose(k, status, fail_reason());
    return links_status(l);
}

/* Receives are posted first on all links: the peers' lists then find a place whenever they come. */
static lh_status_t lists_exchange(links_t *l, making_t *m)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < m->count; i++)
        status = list_post(l, m, i, 1);
    for (uint32_t i = 0; status == LH_OK && i < m->count; i++) {
        status = arenas_offer(l, m, m->links[i], making_list(m, i, 0));
        if (status == LH_OK) status = list_post(l, m, i, 0);
    }
    if (status == LH_OK) status = making_wait(l, m, has_offers, "no list of its arenas came");
    for (uint32_t i = 0; status == LH_OK && i < m->count; i++)
        status = arenas_take(l, m, m->links[i], making_list(m, i, 1));
    return status;
}

/* Lists lie in one block, registered with all transports for as long as links_connect lasts. */
static lh_status_t lists_prepare(links_t *l, making_t *m)
{
    m->list_bytes = sizeof(offers_t) + (uint64_t)l->arena_count * sizeof(lh_address_t);
    const uint64_t bytes = m->list_bytes * 2 * m->count;
    m->block = mem_new(bytes);
    if (m->block == NULL) return LH_NO_MEMORY;
    const lh_arena_t arena = links_memory(m->block, bytes);
    return links_register(l, &arena, m->regions);
}

/* To be called when no operation on the lists is out any more: until an operation ends, its
 * transport may read and write its list. */
static void links_making_end(links_t *l, making_t *m)
{
    links_release(l, m->regions);
    mem_free(m->block);
    mem_free(m->links);
}

/* Links that exist already are left out, so services may be connected in parts. After a failure
 * links stay in the list, to be freed with the others. */
lh_status_t links_connect(links_t *l, const uint32_t *peers, uint32_t count, uint32_t service)
{
    making_t m = {.until_ns = sys()->now_ns() + l->how.job->launch.join_timeout_ns};
    m.links = mem_array(count, sizeof(link_t *));
    if (m.links == NULL) return LH_NO_MEMORY;
    lh_status_t status = links_status(l);
    for (uint32_t i = 0; status == LH_OK && i < count; i++) {
        if (links_find(l, peers[i], service) != NULL) continue;
        status = link_new(l, peers[i], service, &m.links[m.count]);
        if (status == LH_OK) m.count++;
    }
    if (status == LH_OK && m.count > 0) status = lists_prepare(l, &m);
    for (uint32_t i = 0; status == LH_OK && i < m.count; i++)
        if (m.links[i]->dials) status = link_dial(l, m.links[i]);
    if (status == LH_OK) status = making_wait(l, &m, is_up, "not connected");
    if (status == LH_OK && m.count > 0) status = lists_exchange(l, &m);
    if (status != LH_OK) {
        making_fail(l, status);
        word_spread(l);
    }
    /* After a failure operations may still be out: their connections end before their memory
     * does. That this rank cancels them is no news of its peers. */
    for (uint32_t i = 0; status != LH_OK && i < m.count; i++)
        m.links[i]->leaving = true;
    for (uint32_t i = 0; status != LH_OK && i < m.count; i++)
        link_drain(m.links[i]);
    links_making_end(l, &m);
    return status;
}
