/* links_connect.c - connections by service: the lower rank dials, the higher one admits whom it
 * asked for; then both offer each other the arenas that can be mapped. */
#include <comm/links_state.h>

#include <stdio.h>
#include <string.h>
#include <time.h>

#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>

static const uint64_t silence_ns = 3000000000;
static const uint32_t offer_tag = 0xffff0001;

typedef struct offers { /* the first message on a connection, the same on all ranks of a job */
    uint32_t count, reserved;
    lh_address_t rows[]; /* [count]; length 0: not offered */
} offers_t;

typedef struct meeting { /* the links that one links_connect makes */
    link_t **links;
    uint32_t count;
    char *block; /* two lists of offers for each link: ours, theirs */
    uint64_t list_bytes;
    lh_region_t *regions[LINKS_SCOPES];
    uint64_t until_ns;
} meeting_t;

static lh_conn_params_t params_of(const links_t *l, const link_t *k)
{
    const lh_world_t *w = &l->how.world->row;
    const uint64_t dial_ns = l->how.job->comm.timeout_ns;
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
        .silence_ns = silence_ns,
    };
}

static uint32_t depth_of(uint32_t advertised)
{
    return advertised < LINKS_DEPTH ? advertised : LINKS_DEPTH;
}

static lh_status_t link_new(links_t *l, uint32_t peer, uint32_t service, link_t **out)
{
    const world_t *w = l->how.world;
    if (peer >= w->row.size || peer == w->row.rank)
        return fail(LH_INVALID, "a link from rank %u to rank %u of %u", w->row.rank, peer,
                    w->row.size);
    carrier_t *c = l->carriers[world_scope(w, w->row.rank, peer)];
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
    k->operation_count = depth_of(c->nic.max_sends) + depth_of(c->nic.max_recvs);
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
static bool welcome(links_t *l, const carrier_t *c, const lh_hello_t *hello)
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

static lh_status_t accept_guests(links_t *l)
{
    for (uint32_t s = LH_LINK_NODE; s < LINKS_SCOPES; s++) {
        carrier_t *c = l->carriers[s];
        guest_t guest = {.carrier = c};
        while (c != NULL && c->api->accept(c->listener, &guest.hello, &guest.conn) == LH_OK) {
            if (!welcome(l, c, &guest.hello)) {
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

static lh_status_t admit_guests(links_t *l)
{
    for (uint32_t i = 0; i < l->guest_count;) {
        const guest_t guest = l->guests[i];
        link_t *k = links_find(l, guest.hello.rank, guest.hello.service);
        if (k == NULL || k->conn != NULL) {
            i++;
            continue;
        }
        l->guests[i] = l->guests[--l->guest_count];
        const lh_conn_params_t params = params_of(l, k);
        const lh_status_t status = k->carrier->api->admit(guest.conn, &params);
        if (status != LH_OK) {
            k->carrier->api->close_conn(guest.conn);
            links_lose(k, status, fail_reason());
            return links_status(l);
        }
        k->conn = guest.conn;
    }
    return LH_OK;
}

static lh_status_t dial(links_t *l, link_t *k)
{
    const lh_conn_params_t params = params_of(l, k);
    const carrier_t *c = k->carrier;
    const lh_status_t status = c->api->connect(
        c->transport, &l->addresses[(size_t)k->peer * LINKS_SCOPES + c->scope], &params, &k->conn);
    if (status == LH_OK) return LH_OK;
    links_lose(k, status, fail_reason());
    return links_status(l);
}

/* Between looks: nothing here is in a hurry, and the ranks may share processors. */
static void nap(void)
{
    const struct timespec time = {.tv_nsec = 50000};
    (void)nanosleep(&time, NULL);
}

typedef bool (*reached_t)(const link_t *k, const meeting_t *m);

static bool is_up(const link_t *k, const meeting_t *m)
{
    (void)m;
    return k->up;
}

static bool has_offers(const link_t *k, const meeting_t *m)
{
    (void)m;
    return k->own_done == 2; /* ours sent, theirs received */
}

static const link_t *missing(const meeting_t *m, reached_t reached)
{
    for (uint32_t i = 0; i < m->count; i++)
        if (!reached(m->links[i], m)) return m->links[i];
    return NULL;
}

static lh_status_t too_late(links_t *l, const link_t *k, const char *what)
{
    char who[128];
    world_rank_text(l->how.world, k->peer, who, sizeof(who));
    return fail(LH_TIMED_OUT, "%s, link over %s: %s within %.0f s", who, k->carrier->plugin->name,
                what, (double)l->how.job->comm.timeout_ns / 1e9);
}

static lh_status_t wait_for(links_t *l, const meeting_t *m, reached_t reached, const char *what)
{
    for (;;) {
        lh_status_t status = accept_guests(l);
        if (status == LH_OK) status = admit_guests(l);
        links_harvest(l);
        if (status == LH_OK) status = links_status(l);
        if (status != LH_OK) return status;
        const link_t *k = missing(m, reached);
        if (k == NULL) return LH_OK;
        if (sys()->now_ns() > m->until_ns) return too_late(l, k, what);
        nap();
    }
}

static offers_t *list_of(const meeting_t *m, uint32_t link, uint32_t whose)
{
    return (offers_t *)(void *)(m->block + ((uint64_t)link * 2 + whose) * m->list_bytes);
}

static bool can_map(const carrier_t *c)
{
    return c->api->one_sided != NULL && c->api->one_sided->map != NULL;
}

static lh_status_t offer_arenas(links_t *l, const meeting_t *m, link_t *k, offers_t *list)
{
    list->count = k->map_count;
    for (uint32_t i = 0; can_map(k->carrier) && i < k->map_count; i++) {
        if (l->arenas[i].row.fd < 0) continue;
        for (;;) {
            const lh_status_t status = k->carrier->api->one_sided->offer(
                k->conn, l->arenas[i].regions[k->carrier->scope], &list->rows[i]);
            if (status == LH_OK) break;
            if (status != LH_AGAIN) {
                links_lose(k, status, fail_reason());
                return links_status(l);
            }
            if (sys()->now_ns() > m->until_ns) return too_late(l, k, "it took no offer of memory");
            links_harvest(l);
            nap();
        }
    }
    return LH_OK;
}

static lh_status_t check_list(links_t *l, link_t *k, const offers_t *list)
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

static lh_status_t take_arena(links_t *l, const meeting_t *m, link_t *k, uint32_t arena,
                              const lh_address_t *offer)
{
    const lh_one_sided_api_t *api = k->carrier->api->one_sided;
    for (;;) {
        lh_status_t status = api->take(k->conn, offer, &k->remotes[arena]);
        if (status == LH_OK) status = api->map(k->remotes[arena], &k->maps[arena]);
        if (status == LH_OK) return LH_OK;
        if (status != LH_AGAIN) {
            links_lose(k, status, fail_reason());
            return links_status(l);
        }
        if (sys()->now_ns() > m->until_ns) return too_late(l, k, "its memory did not arrive");
        links_harvest(l);
        status = links_status(l);
        if (status != LH_OK) return status;
        nap();
    }
}

static lh_status_t take_arenas(links_t *l, const meeting_t *m, link_t *k, const offers_t *list)
{
    lh_status_t status = check_list(l, k, list);
    for (uint32_t i = 0; status == LH_OK && can_map(k->carrier) && i < k->map_count; i++)
        if (list->rows[i].length > 0 && list->rows[i].length <= sizeof(list->rows[i].bytes))
            status = take_arena(l, m, k, i, &list->rows[i]);
    return status;
}

static lh_status_t post_list(links_t *l, const meeting_t *m, uint32_t i, uint32_t whose)
{
    link_t *k = m->links[i];
    const lh_transport_api_t *api = k->carrier->api;
    offers_t *list = list_of(m, i, whose);
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

static lh_status_t exchange(links_t *l, meeting_t *m)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < m->count; i++)
        status = post_list(l, m, i, 1);
    for (uint32_t i = 0; status == LH_OK && i < m->count; i++) {
        status = offer_arenas(l, m, m->links[i], list_of(m, i, 0));
        if (status == LH_OK) status = post_list(l, m, i, 0);
    }
    if (status == LH_OK) status = wait_for(l, m, has_offers, "no list of its arenas came");
    for (uint32_t i = 0; status == LH_OK && i < m->count; i++)
        status = take_arenas(l, m, m->links[i], list_of(m, i, 1));
    return status;
}

static lh_status_t prepare_lists(links_t *l, meeting_t *m)
{
    m->list_bytes = sizeof(offers_t) + (uint64_t)l->arena_count * sizeof(lh_address_t);
    const uint64_t bytes = m->list_bytes * 2 * m->count;
    m->block = mem_new(bytes);
    if (m->block == NULL) return LH_NO_MEMORY;
    const lh_arena_t arena = {.struct_size = sizeof(arena),
                              .kind = LH_MEM_HOST,
                              .base = m->block,
                              .bytes = bytes,
                              .fd = -1,
                              .numa = -1};
    for (uint32_t s = LH_LINK_NODE; s < LINKS_SCOPES; s++) {
        const carrier_t *c = l->carriers[s];
        if (c == NULL) continue;
        const lh_status_t status = c->api->register_memory(c->transport, 0, &arena, &m->regions[s]);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

/* Operations that are still out after a failure: their connections end before their memory does. */
static void abandon(links_t *l, const meeting_t *m)
{
    for (uint32_t i = 0; i < m->count; i++) {
        const link_t *k = m->links[i];
        const uint64_t until = sys()->now_ns() + 200000000;
        if (k->conn == NULL) continue;
        k->carrier->api->cancel(k->conn);
        while (!k->drained && sys()->now_ns() < until) {
            l->ready_count = 0;
            links_harvest(l);
        }
    }
}

static void meeting_end(links_t *l, meeting_t *m)
{
    for (uint32_t s = LH_LINK_NODE; s < LINKS_SCOPES; s++)
        if (m->regions[s] != NULL)
            l->carriers[s]->api->release_memory(l->carriers[s]->transport, m->regions[s]);
    mem_free(m->block);
    mem_free(m->links);
}

lh_status_t links_connect(links_t *l, const uint32_t *peers, uint32_t count, uint32_t service)
{
    meeting_t m = {.until_ns = sys()->now_ns() + l->how.job->comm.timeout_ns};
    m.links = mem_array(count, sizeof(link_t *));
    if (m.links == NULL) return LH_NO_MEMORY;
    lh_status_t status = links_status(l);
    for (uint32_t i = 0; status == LH_OK && i < count; i++) {
        if (links_find(l, peers[i], service) != NULL) continue;
        status = link_new(l, peers[i], service, &m.links[m.count]);
        if (status == LH_OK) m.count++;
    }
    if (status == LH_OK && m.count > 0) status = prepare_lists(l, &m);
    for (uint32_t i = 0; status == LH_OK && i < m.count; i++)
        if (m.links[i]->dials) status = dial(l, m.links[i]);
    if (status == LH_OK) status = wait_for(l, &m, is_up, "not connected");
    if (status == LH_OK && m.count > 0) status = exchange(l, &m);
    if (status != LH_OK) abandon(l, &m);
    meeting_end(l, &m);
    return status;
}
