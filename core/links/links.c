/* links.c - transports by class of link, memory registered with them, and the events they tell.
 *
 * Transports are polled, never called back from: links_harvest takes their events into one ring,
 * from which links_poll hands them on. A sleep waits on what transports offer to wait on, all at
 * once; one that offers nothing is looked at after short naps.
 *
 * Opening is the same on all ranks even if it fails on some: every rank opens each class of link,
 * all gather the outcomes, and all draw the same conclusion, to go on, to take the fallback, or to
 * end. */
#include <links/links.h>

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>

/* How long a transport may take to let go of buffers after a cancel: 0.2 s. */
static const uint64_t drain_ns = 200000000;

typedef struct opening { /* a rank's row: how it fared, for all to decide alike */
    lh_status_t status[LINKS_SCOPES];
    char reason[LINKS_SCOPES][200];
} opening_t;

/* Whether this rank has a peer at that distance: only then is a transport opened for it. */
static bool world_has_scope(const world_t *w, uint32_t scope)
{
    for (uint32_t r = 0; r < w->row.size; r++)
        if (r != w->row.rank && world_scope(w, w->row.rank, r) == scope) return true;
    return false;
}

/* One class, by its plugin or by its fallback; each is told of the other, as they share a
 * section. */
static lh_status_t scope_open(links_t *l, uint32_t scope, bool fallback)
{
    char name[32];
    const job_t *job = l->how.job;
    const char *second = job->transports[scope].fallback;
    const char *first = carrier_plugin(job, l->how.registry, scope, name);
    if (first == NULL) return LH_INVALID;
    return carrier_open(job, l->how.registry, scope, fallback ? second : first,
                        fallback ? first : second, &l->carriers[scope]);
}

/* All classes that are wanted here. Failures go into the row, to be told to all ranks. */
static void scopes_open(links_t *l, const bool wanted[LINKS_SCOPES], bool fallback, opening_t *mine)
{
    memset(mine, 0, sizeof(*mine));
    for (uint32_t s = LH_LINK_NODE; s < LINKS_SCOPES; s++) {
        if (!wanted[s] || !world_has_scope(l->how.world, s)) continue;
        mine->status[s] = scope_open(l, s, fallback);
        if (mine->status[s] != LH_OK)
            (void)snprintf(mine->reason[s], sizeof(mine->reason[s]), "%s", fail_reason());
    }
}

/* The lowest rank that could not open a class of link: it stands for all that failed. `size`: none
 * failed. */
static uint32_t opening_failed(const opening_t *all, uint32_t size, uint32_t scope)
{
    lh_assert(scope < LINKS_SCOPES);
    uint32_t rank = 0;
    while (rank < size && all[rank].status[scope] == LH_OK)
        rank++;
    return rank;
}

/* On the rank itself its own sentence, on others the same with the rank's name before it. */
static lh_status_t opening_refuse(const links_t *l, opening_t *all, uint32_t scope)
{
    char who[128];
    const world_t *w = l->how.world;
    const uint32_t rank = opening_failed(all, w->row.size, scope);
    opening_t *row = &all[rank];
    row->reason[scope][sizeof(row->reason[scope]) - 1] = '\0';
    if (rank == w->row.rank) return fail_again(row->status[scope], row->reason[scope]);
    world_rank_text(w, rank, who, sizeof(who));
    return fail(row->status[scope], "%s: %s", who, row->reason[scope]);
}

/* One pass over the classes that are wanted; leaves those in `wanted` that some rank can't open,
 * closed on all. */
static lh_status_t opening_pass(links_t *l, bool wanted[LINKS_SCOPES], bool fallback,
                                opening_t *all)
{
    const world_t *w = l->how.world;
    opening_t mine;
    scopes_open(l, wanted, fallback, &mine);
    const lh_status_t status = control_gather(l->how.control, &mine, sizeof(mine), all);
    if (status != LH_OK) return status;
    for (uint32_t s = LH_LINK_NODE; s < LINKS_SCOPES; s++) {
        const uint32_t rank = opening_failed(all, w->row.size, s);
        wanted[s] = rank < w->row.size;
        if (!wanted[s]) continue;
        const char *second = l->how.job->transports[s].fallback;
        if (fallback || second == NULL) return opening_refuse(l, all, s);
        log_line(LH_LOG_WARN, "[transport.%s]: %s; the fallback '%s' is used on all ranks",
                 job_scope_names[s], all[rank].reason[s], second);
        carrier_close(l->carriers[s]);
        l->carriers[s] = NULL;
    }
    return LH_OK;
}

/* Two passes at most: all by their plugins, then what failed by the fallbacks. */
static lh_status_t carriers_open(links_t *l)
{
    bool wanted[LINKS_SCOPES] = {false, true, true, true};
    opening_t *all = mem_array(l->how.world->row.size, sizeof(*all));
    if (all == NULL) return LH_NO_MEMORY;
    lh_status_t status = opening_pass(l, wanted, false, all);
    if (status == LH_OK && (wanted[LH_LINK_NODE] || wanted[LH_LINK_SITE] || wanted[LH_LINK_WAN]))
        status = opening_pass(l, wanted, true, all);
    mem_free(all);
    return status;
}

/* After it every rank knows where all listen, for every class; length 0: it does not. */
static lh_status_t addresses_exchange(links_t *l)
{
    lh_address_t mine[LINKS_SCOPES] = {0};
    const uint32_t size = l->how.world->row.size;
    l->addresses = mem_array((size_t)size * LINKS_SCOPES, sizeof(*l->addresses));
    if (l->addresses == NULL) return LH_NO_MEMORY;
    for (uint32_t s = LH_LINK_NODE; s < LINKS_SCOPES; s++)
        if (l->carriers[s] != NULL) mine[s] = l->carriers[s]->address;
    return control_gather(l->how.control, mine, sizeof(mine), l->addresses);
}

/* A world of one rank has no links and opens nothing. */
lh_status_t links_open(const links_how_t *how, links_t **out)
{
    links_t *l = mem_new(sizeof(*l));
    if (l == NULL) return LH_NO_MEMORY;
    l->how = *how;
    lh_status_t status = LH_OK;
    if (how->world->row.size > 1) status = carrier_tell_place(how->job, how->registry);
    if (status == LH_OK && how->world->row.size > 1) status = carriers_open(l);
    if (status == LH_OK && how->world->row.size > 1) status = addresses_exchange(l);
    if (status != LH_OK) {
        links_close(l);
        return status;
    }
    *out = l;
    return LH_OK;
}

void link_free(link_t *k)
{
    const lh_transport_api_t *api = k->carrier->api;
    for (uint32_t i = 0; i < k->map_count; i++)
        if (k->remotes[i] != NULL) api->mapping->forget(k->remotes[i]);
    if (k->conn != NULL) api->close_conn(k->conn);
    mem_free(k->operations);
    mem_free(k->idle);
    mem_free(k->remotes);
    mem_free(k->maps);
    mem_free(k);
}

/* Waits until every connection says that nobody touches its buffers any more, with one limit for
 * all. */
static void links_drain(links_t *l)
{
    const uint64_t until = sys()->now_ns() + drain_ns;
    for (uint32_t i = 0; i < l->link_count; i++)
        if (l->links[i]->conn != NULL) l->links[i]->carrier->api->cancel(l->links[i]->conn);
    for (;;) {
        uint32_t open = 0;
        l->ready_count = 0;
        links_harvest(l);
        for (uint32_t i = 0; i < l->link_count; i++)
            open += l->links[i]->conn != NULL && !l->links[i]->drained;
        if (open == 0 || sys()->now_ns() > until) return;
    }
}

/* Connections end before their memory is released, and listeners with their carriers. */
void links_close(links_t *l)
{
    if (l == NULL) return;
    lh_assert(l->early == NULL);
    l->closing = true;
    links_drain(l);
    for (uint32_t i = 0; i < l->link_count; i++)
        link_free(l->links[i]);
    for (uint32_t i = 0; i < l->guest_count; i++)
        l->guests[i].carrier->api->close_conn(l->guests[i].conn);
    for (uint32_t i = 0; i < l->arena_count; i++)
        links_release(l, l->arenas[i].regions);
    for (uint32_t s = 0; s < LINKS_SCOPES; s++)
        carrier_close(l->carriers[s]);
    mem_free(l->links);
    mem_free(l->guests);
    mem_free(l->arenas);
    mem_free(l->addresses);
    mem_free(l->pairs);
    mem_free(l->tuners);
    text_free(&l->said);
    mem_free(l->words);
    mem_free(l->settled);
    mem_free(l->demand);
    mem_free(l->shares);
    mem_free(l->parts);
    mem_free(l->crossed);
    mem_free(l->crossing);
    mem_free(l);
}

void link_drain(link_t *k)
{
    const uint64_t until = sys()->now_ns() + drain_ns;
    if (k->conn == NULL) return;
    k->carrier->api->cancel(k->conn);
    while (!k->drained && sys()->now_ns() < until) {
        links_harvest(k->links);
        k->links->ready_count = 0; /* of operations that ended with it */
    }
    k->links->ready_count = 0; /* also where it was drained before: its peer had gone */
}

/* The list's last link takes its place in the list; links themselves never move. */
void link_drop(link_t *k)
{
    links_t *l = k->links;
    lh_assert(k->leaving);
    link_drain(k);
    uint32_t i = 0;
    while (l->links[i] != k)
        i++;
    lh_assert(i < l->link_count);
    l->links[i] = l->links[--l->link_count];
    l->sent[k->carrier->scope] += k->sent;
    l->received[k->carrier->scope] += k->received;
    link_free(k);
}

lh_status_t links_register(links_t *l, const lh_arena_t *arena, lh_region_t *regions[LINKS_SCOPES])
{
    for (uint32_t s = LH_LINK_NODE; s < LINKS_SCOPES; s++) {
        const carrier_t *c = l->carriers[s];
        if (c == NULL || (arena->kind != LH_MEM_HOST && !carrier_takes_device(c))) continue;
        const lh_status_t status = c->api->register_memory(c->transport, 0, arena, &regions[s]);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

void links_release(links_t *l, lh_region_t *const regions[LINKS_SCOPES])
{
    for (uint32_t s = LH_LINK_NODE; s < LINKS_SCOPES; s++)
        if (regions[s] != NULL)
            l->carriers[s]->api->release_memory(l->carriers[s]->transport, regions[s]);
}

/* The arena counts even if registering it fails halfway, so that links_close releases what was
 * registered. */
static lh_status_t arena_add(links_t *l, const lh_arena_t *row, uint32_t *arena)
{
    if (l->arena_count == LINKS_ARENAS)
        return fail(LH_INVALID, "more than %d arenas for messages", LINKS_ARENAS);
    arena_t *arenas = mem_grow(l->arenas, &l->arena_capacity, l->arena_count + 1u, sizeof(*arenas));
    if (arenas == NULL) return LH_NO_MEMORY;
    l->arenas = arenas;
    arena_t *a = &arenas[l->arena_count];
    *a = (arena_t){.row = *row};
    *arena = l->arena_count++; /* what is registered is released at the end, also after a failure */
    return links_register(l, &a->row, a->regions);
}

lh_status_t links_arena(links_t *l, void *base, uint64_t bytes, int fd, uint64_t fd_offset,
                        uint32_t *arena)
{
    lh_arena_t row = links_memory(base, bytes);
    row.access = LH_REMOTE_READ;
    row.fd = fd;
    row.fd_offset = fd_offset;
    return arena_add(l, &row, arena);
}

lh_status_t links_take_device(const links_t *l, uint32_t scope)
{
    lh_assert(scope >= LH_LINK_NODE && scope < LINKS_SCOPES);
    const carrier_t *c = l->carriers[scope] != NULL ? l->carriers[scope] : l->lent;
    lh_assert(c != NULL && c->scope == scope);
    if (carrier_takes_device(c)) return LH_OK;
    if (c->security == LH_SECURITY_PRIVATE)
        return fail(LH_UNSUPPORTED,
                    "[transport.%s] security = private seals messages in memory of the host; write "
                    "security = plain or known for that of devices",
                    job_scope_names[scope]);
    return fail(LH_UNSUPPORTED, "[transport.%s]: '%s' takes no memory of a device here",
                job_scope_names[scope], c->plugin->name);
}

/* The row forgets the descriptor, which the caller closes: no peer maps such memory. */
lh_status_t links_device_arena(links_t *l, void *base, uint64_t bytes, int fd, uint64_t fd_offset,
                               uint32_t *arena)
{
    const uint32_t first = l->arena_count;
    lh_arena_t row = links_memory(base, bytes);
    row.kind = LH_MEM_DMABUF;
    row.fd = fd;
    row.fd_offset = fd_offset;
    const lh_status_t status = arena_add(l, &row, arena);
    if (status != LH_OK)
        links_arenas_drop(l, first);
    else
        l->arenas[*arena].row.fd = -1;
    return status;
}

void links_arenas_drop(links_t *l, uint32_t first)
{
    lh_assert(l->link_count == 0);
    while (l->arena_count > first)
        links_release(l, l->arenas[--l->arena_count].regions);
}

link_t *links_find(links_t *l, uint32_t peer, uint32_t service)
{
    for (uint32_t i = 0; i < l->link_count; i++)
        if (l->links[i]->peer == peer && l->links[i]->service == service) return l->links[i];
    return NULL;
}

uint32_t link_peer(const link_t *k)
{
    return k->peer;
}

uint32_t link_scope(const link_t *k)
{
    return k->carrier->scope;
}

const char *link_transport(const link_t *k)
{
    return k->carrier->plugin->name;
}

const void *link_map(const link_t *k, uint32_t arena)
{
    return arena < k->map_count ? k->maps[arena] : NULL;
}

operation_t *link_operation(link_t *k, uint64_t cookie, bool own)
{
    if (k->idle_count == 0) return NULL;
    operation_t *o = k->idle[--k->idle_count];
    o->cookie = cookie;
    o->own = own;
    return o;
}

void link_idle(operation_t *o)
{
    lh_assert(o->link->idle_count < o->link->operation_count);
    o->link->idle[o->link->idle_count++] = o;
}

/* A failure other than LH_AGAIN is the link's end: it is recorded and told before this returns. */
lh_status_t link_post(link_t *k, lh_region_t *region, bool sends, void *data, uint64_t bytes,
                      uint32_t tag, uint64_t cookie)
{
    const lh_transport_api_t *api = k->carrier->api;
    lh_assert(k->conn != NULL && region != NULL);
    operation_t *o = link_operation(k, cookie, false);
    if (o == NULL) return LH_AGAIN;
    const uint64_t own = (uint64_t)(uintptr_t)o;
    const lh_status_t status = sends ? api->isend(k->conn, region, data, bytes, tag, own)
                                     : api->irecv(k->conn, region, data, bytes, tag, own);
    if (status == LH_OK) return LH_OK;
    link_idle(o);
    if (status == LH_AGAIN) return LH_AGAIN;
    links_lose(k, status, fail_reason());
    return links_status(k->links);
}

static lh_region_t *arena_region(const link_t *k, uint32_t arena)
{
    lh_assert(arena < k->links->arena_count);
    return k->links->arenas[arena].regions[k->carrier->scope];
}

lh_status_t link_send(link_t *k, uint32_t arena, const void *data, uint64_t bytes, uint32_t tag,
                      uint64_t cookie)
{
    return link_post(k, arena_region(k, arena), true, (void *)(uintptr_t)data, bytes, tag, cookie);
}

lh_status_t link_recv(link_t *k, uint32_t arena, void *data, uint64_t bytes, uint32_t tag,
                      uint64_t cookie)
{
    return link_post(k, arena_region(k, arena), false, data, bytes, tag, cookie);
}

/* While links close a peer may be gone already: that is the end that all wait for. */
void links_lose(link_t *k, lh_status_t status, const char *reason)
{
    char who[128];
    links_t *l = k->links;
    if (l->closing || l->failed != LH_OK) return;
    world_rank_text(l->how.world, k->peer, who, sizeof(who));
    /* A link that broke, or whose bytes can't be trusted any more: its peer is gone. LH_CORRUPT is
     * what a damaged file ends with. */
    l->failed = status == LH_IO || status == LH_CORRUPT ? LH_PEER_LOST : status;
    (void)snprintf(l->failure, sizeof(l->failure), "%s, link over %s: %s", who,
                   k->carrier->plugin->name,
                   reason != NULL && reason[0] != '\0' ? reason : status_text(status));
    if (!l->how.apart) control_fail(l->how.control, k->peer, l->failed, l->failure);
}

/* An event of a connection; its cookie is the link. */
static void on_connection(const lh_wire_event_t *e)
{
    link_t *k = (link_t *)(uintptr_t)e->cookie;
    if (k == NULL) return; /* a guest that was not admitted */
    switch (e->type) {
    case LH_WIRE_UP: k->up = true; break;
    case LH_WIRE_DOWN:
        k->gone = k->leaving;
        if (!k->leaving) links_lose(k, e->status, e->reason);
        break;
    case LH_WIRE_DRAINED: k->drained = true; break;
    case LH_WIRE_DEGRADED:
        log_line(e->status == LH_OK ? LH_LOG_INFO : LH_LOG_WARN, "link to rank %u over %s: %s",
                 k->peer, k->carrier->plugin->name,
                 e->status == LH_OK ? "whole again"
                                    : (e->reason != NULL ? e->reason : status_text(e->status)));
        break;
    default: break;
    }
}

/* An event of a message; its cookie is the operation, which is free again whatever became of it. */
static void on_operation(links_t *l, const lh_wire_event_t *e)
{
    operation_t *o = (operation_t *)(uintptr_t)e->cookie;
    link_t *k = o->link;
    const bool received = e->type == LH_WIRE_RECEIVED;
    link_idle(o);
    if (e->status != LH_OK) {
        if (!k->leaving) links_lose(k, e->status, e->reason);
        return;
    }
    *(received ? &k->received : &k->sent) += e->bytes;
    if (o->own) {
        k->own_done++;
        return;
    }
    lh_assert(l->ready_count < LINKS_READY);
    l->ready[(l->ready_first + l->ready_count++) % LINKS_READY] = (links_event_t){
        .cookie = o->cookie, .received = received, .bytes = e->bytes};
}

void links_harvest(links_t *l)
{
    lh_wire_event_t events[LINKS_BATCH];
    for (uint32_t s = LH_LINK_NODE; s < LINKS_SCOPES; s++) {
        uint32_t count = 0;
        const carrier_t *c = l->carriers[s];
        const uint32_t room = LINKS_READY - l->ready_count;
        if (c == NULL || room == 0) continue;
        const lh_status_t status = c->api->poll(c->transport, events, sizeof(events[0]),
                                                room < LINKS_BATCH ? room : LINKS_BATCH, &count);
        if (status != LH_OK && l->failed == LH_OK && !l->closing) {
            l->failed = status;
            (void)snprintf(l->failure, sizeof(l->failure), "%s", fail_reason());
            control_fail(l->how.control, l->how.world->row.rank, status, l->failure);
        }
        for (uint32_t i = 0; status == LH_OK && i < count; i++) {
            if (events[i].type == LH_WIRE_SENT || events[i].type == LH_WIRE_RECEIVED)
                on_operation(l, &events[i]);
            else
                on_connection(&events[i]);
        }
    }
}

/* What the control plane knows comes first: it names who died, not only whose link broke. */
lh_status_t links_status(links_t *l)
{
    if (l->how.control != NULL) {
        const lh_status_t status = control_status(l->how.control);
        if (status != LH_OK) return fail_again(status, control_failure(l->how.control));
    }
    if (l->failed != LH_OK) return fail_again(l->failed, l->failure);
    return atomic_load(&l->cancelled) ? fail(LH_CANCELLED, "nobody waits for this any more")
                                      : LH_OK;
}

static uint32_t links_channel(const links_t *l)
{
    return l->aside ? CONTROL_ASIDE : CONTROL_MAIN;
}

lh_status_t links_gather(const links_t *l, const void *mine, size_t bytes, void *all)
{
    return control_gather_on(l->how.control, links_channel(l), mine, bytes, all);
}

lh_status_t links_collect(const links_t *l, const void *mine, size_t bytes, void *all)
{
    return control_collect_on(l->how.control, links_channel(l), mine, bytes, all);
}

/* A failure is returned only when no event is left: what was done before it counts. */
lh_status_t links_poll(links_t *l, links_event_t *events, uint32_t max, uint32_t *count)
{
    uint32_t taken = 0;
    if (l->ready_count == 0) links_harvest(l);
    while (taken < max && l->ready_count > 0) {
        events[taken++] = l->ready[l->ready_first];
        l->ready_first = (l->ready_first + 1) % LINKS_READY;
        l->ready_count--;
    }
    *count = taken;
    return taken > 0 ? LH_OK : links_status(l);
}

/* Whether a sleep is over: there is something to poll, or a failure to return. */
static bool links_stir(links_t *l)
{
    links_harvest(l);
    return l->ready_count > 0 || l->failed != LH_OK ||
           (l->how.control != NULL && control_status(l->how.control) != LH_OK);
}

/* Lets a sibling thread of the core have its units while this one spins. */
static void pause_processor(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

typedef struct bed { /* what a sleep waits on */
    struct pollfd fds[LINKS_SCOPES + 2];
    nfds_t count;
    bool blind; /* a transport has nothing to wait on */
} bed_t;

/* Arms every transport before the sleep: what happens from then on makes its descriptor readable.
 * False: there is something to poll first. */
static bool bed_make(links_t *l, int wake_fd, bed_t *bed)
{
    for (uint32_t s = LH_LINK_NODE; s < LINKS_SCOPES; s++) {
        const carrier_t *c = l->carriers[s];
        if (c == NULL) continue;
        if (c->wait_fd < 0) {
            bed->blind = true;
            continue;
        }
        if (c->api->arm(c->transport) != LH_OK) return false;
        bed->fds[bed->count++] = (struct pollfd){.fd = c->wait_fd, .events = POLLIN};
    }
    const int control = l->how.control != NULL ? control_fd(l->how.control) : -1;
    const int others[] = {control, wake_fd};
    for (int i = 0; i < 2; i++)
        if (others[i] >= 0)
            bed->fds[bed->count++] = (struct pollfd){.fd = others[i], .events = POLLIN};
    return true;
}

/* True: a descriptor is readable, or the call was interrupted. */
static bool bed_sleep(bed_t *bed, uint64_t ns)
{
    const struct timespec time = {.tv_sec = (time_t)(ns / 1000000000),
                                  .tv_nsec = (long)(ns % 1000000000)};
    return ppoll(bed->fds, bed->count, &time, NULL) != 0;
}

/* The nap of a blind transport grows from 1 to 64 us, so that a short wait is answered soon
 * and a long one costs little. */
void links_sleep(links_t *l, int wake_fd, uint64_t spin_ns, uint64_t timeout_ns)
{
    uint64_t nap = 1000, now = sys()->now_ns();
    const uint64_t spun = now + spin_ns, over = now + timeout_ns;
    if (l->ready_count > 0) return;
    do {
        if (links_stir(l)) return;
        pause_processor();
        now = sys()->now_ns();
    } while (now < spun);

    for (; now < over; now = sys()->now_ns()) {
        bed_t bed = {0};
        if (!bed_make(l, wake_fd, &bed)) {
            links_harvest(l);
            return;
        }
        const uint64_t left = over - now;
        const bool woken = bed_sleep(&bed, bed.blind && nap < left ? nap : left);
        if (links_stir(l) || woken) return;
        if (nap < 50000) nap *= 2;
    }
}

/* Asks the transport of every link of the class: meant for reports, not for each message. */
void links_class(const links_t *l, uint32_t scope, link_class_t *out)
{
    *out = (link_class_t){0};
    if (scope >= LINKS_SCOPES || l->carriers[scope] == NULL) return;
    *out = (link_class_t){.transport = l->carriers[scope]->plugin->name,
                          .security = carrier_levels[l->carriers[scope]->security],
                          .card = l->carriers[scope]->nic.name,
                          .bytes_sent = l->sent[scope],
                          .bytes_received = l->received[scope]};
    for (uint32_t i = 0; i < l->link_count; i++) {
        lh_link_stats_t stats = {.struct_size = sizeof(stats)};
        if (link_scope(l->links[i]) != scope) continue;
        out->bytes_sent += l->links[i]->sent;
        out->bytes_received += l->links[i]->received;
        const lh_link_t *known = &l->links[i]->known;
        if (known->round_trip_ns > out->known_trip_ns) out->known_trip_ns = known->round_trip_ns;
        if (known->bytes_per_second > out->known_bytes_per_second)
            out->known_bytes_per_second = known->bytes_per_second;
        if (link_stats(l->links[i], &stats) != LH_OK) continue;
        if (stats.round_trip_ns > out->round_trip_ns) out->round_trip_ns = stats.round_trip_ns;
        if (stats.bytes_per_second > out->bytes_per_second)
            out->bytes_per_second = stats.bytes_per_second;
    }
}

lh_status_t link_stats(const link_t *k, lh_link_stats_t *out)
{
    const lh_transport_api_t *api = k->carrier->api;
    if (api->stats == NULL || k->conn == NULL)
        return fail(LH_UNSUPPORTED, "'%s' tells no figures of a link", k->carrier->plugin->name);
    out->struct_size = sizeof(*out);
    return api->stats(k->conn, out);
}

/* A transport that tells nothing of what it sends again tells nothing here. Before a turn is over all
 * that was sent counts. */
static void flow_loss(const link_t *k, const lh_link_stats_t *now, link_flow_t *row)
{
    const double packet = link_probe_packet(now->path_mtu);
    const double packets = (double)now->bytes_sent / packet;
    const double lost = (double)now->bytes_retransmitted / packet;
    if (packets < 1) return;
    const bool told = k->losses.packets > 0;
    const double loss = told ? k->losses.loss : link_probe_loss_most(lost, packets);
    if (row->packets > 0 && loss <= row->loss) return;
    row->loss = loss;
    row->packets = told ? k->losses.packets : packets;
}

static link_flow_t *flow_row(link_flow_t *rows, uint32_t *count, uint32_t room, uint32_t site)
{
    uint32_t i = 0;
    while (i < *count && rows[i].site != site)
        i++;
    if (i == room) return NULL;
    if (i == *count) rows[(*count)++] = (link_flow_t){.site = site};
    return &rows[i];
}

uint32_t links_flows(const links_t *l, link_flow_t *rows, uint32_t room)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < l->link_count; i++) {
        lh_link_stats_t now = {.struct_size = sizeof(now)};
        const link_t *k = l->links[i];
        if (link_scope(k) != LH_LINK_WAN) continue;
        if (link_stats(k, &now) != LH_OK) {
            fail_clear();
            continue;
        }
        link_flow_t *row = flow_row(rows, &count, room, l->how.world->ranks[k->peer].site);
        if (row == NULL) continue;
        row->sent += now.bytes_sent;
        row->received += now.bytes_received;
        row->retransmitted += now.bytes_retransmitted;
        flow_loss(k, &now, row);
        if (now.round_trip_ns > row->round_trip_ns) row->round_trip_ns = now.round_trip_ns;
        if (now.bytes_per_second > row->bytes_per_second)
            row->bytes_per_second = now.bytes_per_second;
    }
    return count;
}

/* ---- pairs of sites ---- */

/* A row for each pair, counted by the higher site, so that the row of a pair does not depend on how
 * many sites there are. */
uint32_t links_pair(uint32_t site, uint32_t other)
{
    const uint32_t low = site < other ? site : other, high = site < other ? other : site;
    lh_assert(low < high);
    return high * (high - 1) / 2 + low;
}

const probe_pair_t *links_pairs(const links_t *l, uint32_t *count)
{
    *count = l->pair_count;
    return l->pairs;
}

/* Where the rank that measures listens, without the port, which is another one each time. */
static void pair_address(const links_t *l, uint32_t rank, char out[PROBE_ADDRESS])
{
    char text[128] = "";
    const carrier_t *c = l->carriers[LH_LINK_WAN];
    const lh_address_t *a = &l->addresses[(size_t)rank * LINKS_SCOPES + LH_LINK_WAN];
    if (c->api->address_text == NULL ||
        c->api->address_text(c->transport, a, text, sizeof(text)) != LH_OK) {
        fail_clear();
        (void)snprintf(text, sizeof(text), "%s", l->how.world->ranks[rank].host);
    } else if (strrchr(text, ':') != NULL) {
        *strrchr(text, ':') = '\0';
    }
    (void)snprintf(out, PROBE_ADDRESS, "%.*s", PROBE_ADDRESS - 1, text);
}

lh_status_t links_pairs_make(links_t *l)
{
    const world_t *w = l->how.world;
    lh_assert(l->pairs == NULL && l->carriers[LH_LINK_WAN] != NULL);
    l->pair_count = w->row.sites * (w->row.sites - 1) / 2;
    l->pairs = mem_array(l->pair_count, sizeof(*l->pairs));
    if (l->pairs == NULL) return LH_NO_MEMORY;
    for (uint32_t b = 1; b < w->row.sites; b++)
        for (uint32_t a = 0; a < b; a++) {
            probe_pair_t *p = &l->pairs[links_pair(a, b)];
            const uint32_t sites[2] = {a, b};
            for (int i = 0; i < 2; i++) {
                (void)snprintf(p->site[i], sizeof(p->site[i]), "%s", world_site_name(w, sites[i]));
                pair_address(l, world_site_rank(w, sites[i], 0), p->address[i]);
            }
            (void)snprintf(p->plugin, sizeof(p->plugin), "%.*s", PROBE_PLUGIN - 1,
                           l->carriers[LH_LINK_WAN]->plugin->name);
        }
    return LH_OK;
}
