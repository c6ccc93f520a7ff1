/* comm.c - opens what a rank communicates with, and connects it once all plans are known.
 *
 * comm_connect has this order, on all ranks: plans are compared; links between sites are measured, or that
 * is waited for where comm_probe has begun it; each service is connected to the peers that its plans
 * need; ranks tell each other what their links can do; pairs that are read in place get a link for their
 * answers; every rank makes its scripts, staging memory and lanes; messages are compared; the thread
 * starts. Scripts come last, since what a transport can map and how fast a long link is decide on
 * algorithm and chunk.
 *
 * comm_plan does the same for a job that is only planned: no rank is asked, and what all would tell
 * is expected. */
#include <comm/comm.h>

#include <stdio.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <base/memory.h>
#include <base/processors.h>
#include <base/sys.h>
#include <base/thread.h>
#include <comm/comm_agree.h>
#include <comm/comm_expect.h>
#include <comm/comm_runs.h>
#include <comm/script_make.h>
#include <links/links_agree.h>
#include <links/links_connect.h>
#include <links/links_early.h>
#include <links/links_pace.h>
#include <links/links_probe.h>

/* How long a wait spins before it sleeps: 0.2 ms, or 1 ms (yielding) with more ranks than
 * processors. */
static const uint64_t spin_ns = 200000, crowded_spin_ns = 1000000;
enum { STAGING_ALIGN = 4096 };

static uint32_t ranks_here(const world_t *w)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < w->row.size; r++)
        count += w->ranks[r].node == w->ranks[w->row.rank].node;
    return count;
}

/* Whether ranks of this machine have less than a processor each. Where each is bound to its own those of
 * the machine count, not this rank's. A quota is shared by all ranks of the host, which may play several sites. */
static bool is_crowded(uint32_t ranks)
{
    processors_t here;
    processors_here(&here);
    return (long)ranks > sysconf(_SC_NPROCESSORS_ONLN) || here.sharers > here.quota;
}

/* The clock that no one sets: the thread rests by it. */
static void begun_init(pthread_cond_t *begun)
{
    pthread_condattr_t how;
    (void)pthread_condattr_init(&how);
    (void)pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
    (void)pthread_cond_init(begun, &how);
    (void)pthread_condattr_destroy(&how);
}

/* The thread is started by comm_connect; until then only this function's caller knows the comm. */
lh_status_t comm_open(const comm_how_t *how, comm_t **out)
{
    comm_t *c = mem_new(sizeof(*c));
    if (c == NULL) return LH_NO_MEMORY;
    c->job = how->job;
    c->registry = how->registry;
    c->world = how->world;
    c->control = how->control;
    c->threaded = how->thread;
    c->planned = how->planned;
    c->crowded = is_crowded(ranks_here(how->world));
    c->spin_ns = c->crowded ? crowded_spin_ns : spin_ns;
    c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    (void)pthread_mutex_init(&c->lock, NULL);
    begun_init(&c->begun);
    atomic_init(&c->wanted, 0);
    atomic_init(&c->asleep, false);
    c->begun_to = mem_array(how->world->row.sites, sizeof(*c->begun_to));
    const links_how_t links = {
        .job = how->job, .registry = how->registry, .world = how->world, .control = how->control};
    lh_status_t status = c->wake_fd < 0 ? fail_io(errno, "eventfd") : LH_OK;
    if (c->begun_to == NULL) status = LH_NO_MEMORY;
    if (status == LH_OK && !how->planned) status = links_open(&links, &c->links);
    if (status == LH_OK) status = native_open(how->job, how->registry, how->world, &c->native);
    if (status != LH_OK) {
        comm_close(c);
        return status;
    }
    *out = c;
    return LH_OK;
}

/* Ends the thread, then tells those who wait behind gates that nothing will end any more. */
void comm_stop(comm_t *c)
{
    if (!c->has_thread) return;
    runs_enter(c);
    c->stop = true;
    (void)pthread_cond_broadcast(&c->begun);
    runs_leave(c);
    (void)pthread_join(c->thread, NULL);
    c->has_thread = false;
    runs_enter(c);
    runs_release(c);
    runs_leave(c);
}

void comm_close(comm_t *c)
{
    if (c == NULL) return;
    comm_stop(c);
    native_close(c->native);
    links_early_end(c->links);
    links_close(c->links); /* from here on nobody touches buffers */
    for (uint32_t i = 0; i < c->plan_count; i++)
        collective_free(c->plans[i]);
    mem_free(c->plans);
    script_set_free(&c->scripts);
    for (uint32_t i = 0; i < LH_GROUPS; i++)
        world_group_free(c->groups[i]);
    mem_free(c->lanes);
    mem_free(c->staging);
    mem_free(c->arenas);
    mem_free(c->expected);
    mem_free(c->begun_to);
    if (c->wake_fd >= 0) (void)close(c->wake_fd);
    (void)pthread_cond_destroy(&c->begun);
    (void)pthread_mutex_destroy(&c->lock);
    mem_free(c);
}

const world_t *comm_world(const comm_t *c)
{
    return c->world;
}

bool comm_is_planned(const comm_t *c)
{
    return c->planned;
}

control_t *comm_control(const comm_t *c)
{
    return c->control;
}

native_t *comm_native(const comm_t *c)
{
    return c->native;
}

void comm_cancel(comm_t *c)
{
    lh_assert(!c->has_thread);
    native_cancel(c->native);
}

links_t *comm_links(comm_t *c)
{
    return c->links;
}

const group_t *comm_group(comm_t *c, uint32_t which)
{
    if (which < LH_GROUPS && c->groups[which] != NULL) return c->groups[which];
    group_t *g;
    if (world_group_new(c->world, which, &g) != LH_OK) return NULL;
    c->groups[which] = g;
    return g;
}

/* The links give arenas numbers of their own, which must be those of the comm's list: a plan's
 * arena is looked up in both by one number. */
static lh_status_t arena_list(comm_t *c, void *base, uint64_t bytes, bool file, uint32_t number)
{
    comm_arena_t *arenas = mem_grow(c->arenas, &c->arena_capacity, c->arena_count + 1u,
                                    sizeof(*arenas));
    if (arenas == NULL) return LH_NO_MEMORY;
    c->arenas = arenas;
    if (number != c->arena_count)
        return fail(LH_INVALID, "arena %u was registered behind this object's back", number);
    c->arenas[c->arena_count++] = (comm_arena_t){base, bytes, file};
    return LH_OK;
}

lh_status_t comm_arena(comm_t *c, void *base, uint64_t bytes, int fd, uint64_t fd_offset,
                       uint32_t *arena)
{
    uint32_t number = c->arena_count;
    if (!c->planned) {
        const lh_status_t status = links_arena(c->links, base, bytes, fd, fd_offset, &number);
        if (status != LH_OK) return status;
    }
    *arena = number;
    return arena_list(c, base, bytes, fd >= 0, number);
}

/* Whether all links of this rank inside a group may carry what lies in a device's memory. A leader would
 * pass on to its site what has come from another, over another link. */
static lh_status_t group_takes_device(const comm_t *c, const group_t *g)
{
    lh_status_t status = LH_OK;
    if (c->job->comm.device_memory == DEVICE_MEMORY_NO)
        return fail(LH_UNSUPPORTED, "[comm] device_memory = no");
    if (g->sites > 1 && world_group_largest_site(g) > 1)
        return fail(LH_UNSUPPORTED, "what crosses from site to site is passed on inside of them, "
                                    "which is done in memory of the host");
    for (uint32_t m = 0; status == LH_OK && m < g->size; m++)
        if (m != g->self)
            status = links_take_device(c->links,
                                       world_scope(c->world, c->world->row.rank, g->ranks[m]));
    return status;
}

static lh_status_t device_arena(comm_t *c, const comm_device_memory_t *m, uint32_t *arena)
{
    if (m->fd < 0) return comm_arena(c, m->base, m->bytes, -1, 0, arena);
    const lh_status_t status = links_device_arena(c->links, m->base, m->bytes, m->fd, m->fd_offset,
                                                  arena);
    return status == LH_OK ? arena_list(c, m->base, m->bytes, false, *arena) : status;
}

/* Arenas have the same numbers on all ranks, so what one could not have the others give back. */
lh_status_t comm_device_arenas(comm_t *c, const group_t *g, const comm_device_memory_t *memory,
                               uint32_t count, lh_status_t mine, uint32_t *arenas, bool *taken)
{
    const uint32_t before = c->arena_count;
    lh_status_t of_all = LH_OK;
    lh_assert(!c->planned && !c->connected);
    if (mine == LH_OK) mine = group_takes_device(c, g);
    if (mine == LH_OK && links_early_takes_device(c->links)) {
        const lh_status_t probed = comm_probe_wait(c);
        if (probed != LH_OK) return probed; /* which ends all ranks */
    }
    for (uint32_t i = 0; mine == LH_OK && i < count; i++)
        mine = device_arena(c, &memory[i], &arenas[i]);
    const lh_status_t status = comm_ask(c, mine, &of_all);
    *taken = status == LH_OK && of_all == LH_OK;
    if (*taken) return LH_OK;
    links_arenas_drop(c->links, before);
    c->arena_count = before;
    return status;
}

/* Answers are short, and who waits for one waits to have its memory back: no plan's own messages go by
 * this service. */
enum { ANSWERS = LH_SERVICE_CONTROL };

/* Whether a plan wants a link to a member by a service; all: of answers, where it is known what is
 * mapped. */
static bool plan_wants(const collective_t *x, uint32_t service, const comm_facts_t *all, uint32_t m)
{
    if (all != NULL) return m == x->how.root && comm_answers(x, all);
    return x->how.service == service && script_needs_link(&x->how, x->how.group->self, m);
}

/* Connections of one service, to all ranks with which a plan of it may exchange messages, or (all) which
 * answer. */
static lh_status_t service_connect(comm_t *c, uint32_t service, const comm_facts_t *all)
{
    const uint32_t size = c->world->row.size;
    bool *wanted = mem_array(size, sizeof(*wanted));
    uint32_t *peers = mem_array(size, sizeof(*peers)), count = 0;
    lh_status_t status = wanted == NULL || peers == NULL ? LH_NO_MEMORY : LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < c->plan_count; i++) {
        const group_t *g = c->plans[i]->how.group;
        for (uint32_t m = 0; m < g->size; m++)
            if (plan_wants(c->plans[i], service, all, m)) wanted[g->ranks[m]] = true;
    }
    for (uint32_t r = 0; status == LH_OK && r < size; r++)
        if (wanted[r]) peers[count++] = r;
    if (status == LH_OK && count > 0) status = links_connect(c->links, peers, count, service);
    mem_free(wanted);
    mem_free(peers);
    return status;
}

/* What is known of a class of links before anything was sent over it. */
static link_figures_t figures_known(const links_t *l, uint32_t scope)
{
    link_class_t class = {0};
    if (l != NULL) links_class(l, scope, &class);
    return (link_figures_t){class.known_trip_ns != 0 ? class.known_trip_ns : class.round_trip_ns,
                            class.known_bytes_per_second != 0 ? class.known_bytes_per_second
                                                              : class.bytes_per_second};
}

/* Arenas that this rank can map of all its peers on the node, and what is known of its links. Arenas
 * from the 33rd on are never read in place: there is a bit for 32. */
static void facts_measure(comm_t *c, comm_facts_t *out)
{
    *out = (comm_facts_t){0};
    const world_t *w = c->world;
    for (uint32_t s = 1; s < COMM_SERVICES; s++) {
        out->maps[s] = UINT32_MAX;
        for (uint32_t r = 0; r < w->row.size; r++) {
            const link_t *k = links_find(c->links, r, s);
            if (k == NULL || link_scope(k) != LH_LINK_NODE) continue;
            for (uint32_t a = 0; a < 32; a++)
                if (a >= c->arena_count || link_map(k, a) == NULL) out->maps[s] &= ~(1u << a);
        }
    }
    for (uint32_t s = 1; s < COMM_SCOPES; s++)
        out->figures[s] = figures_known(c->links, s);
}

static lh_status_t places_make(collective_t *x)
{
    x->peers = mem_array(x->how.group->size, sizeof(*x->peers));
    x->places = mem_array(x->how.group->size, sizeof(*x->places));
    return x->peers == NULL || x->places == NULL ? LH_NO_MEMORY : LH_OK;
}

/* Bytes that a run sends, by class of link. */
static void sent_count(collective_t *x)
{
    const world_t *w = x->comm->world;
    memset(x->sent, 0, sizeof(x->sent));
    for (uint32_t i = 0; i < x->script->lane_count; i++) {
        const script_lane_t *lane = &x->script->lanes[i];
        if (lane->sending)
            x->sent[world_scope(w, w->row.rank, x->how.group->ranks[lane->peer])] += lane->bytes;
    }
}

/* The same by site. */
static lh_status_t sent_to_count(collective_t *x)
{
    const world_t *w = x->comm->world;
    if (x->sent_to == NULL) x->sent_to = mem_array(w->row.sites, sizeof(*x->sent_to));
    if (x->sent_to == NULL) return LH_NO_MEMORY;
    memset(x->sent_to, 0, w->row.sites * sizeof(*x->sent_to));
    for (uint32_t i = 0; i < x->script->lane_count; i++) {
        const script_lane_t *lane = &x->script->lanes[i];
        if (lane->sending)
            x->sent_to[w->ranks[x->how.group->ranks[lane->peer]].site] += lane->bytes;
    }
    return LH_OK;
}

/* The state that a run needs beside the script; made once, so that runs allocate nothing. */
static lh_status_t run_make(collective_t *x)
{
    const script_t *s = x->script;
    x->left = mem_array(s->step_count, sizeof(*x->left));
    x->ready = mem_array(s->step_count, sizeof(*x->ready));
    x->tracks = mem_array(s->lane_count, sizeof(*x->tracks));
    x->scratch = mem_array(s->most_sources, sizeof(*x->scratch));
    if (x->left == NULL || x->ready == NULL || x->tracks == NULL || x->scratch == NULL)
        return LH_NO_MEMORY;
    return LH_OK;
}

/* An all-reduce goes there and back, or round, by its way; all others go one way. */
static double trips_of(const coll_how_t *how, uint32_t between)
{
    if (how->group->sites == 1) return 0;
    return how->op == COLL_ALL_REDUCE ? coll_between_trips(between, how->group->sites) : 0.5;
}

/* Chooses, and takes the script of that shape, which another plan may have made. */
static lh_status_t script_take(script_set_t *set, script_maker_t *make, collective_t *x,
                               const comm_facts_t *all)
{
    script_how_t how;
    const lh_status_t status = comm_choose(x, all, &how);
    if (status != LH_OK) return status;
    x->algorithm = how.algorithm;
    x->trips = trips_of(&x->how, how.between);
    return script_set_take(set, &how, make, &x->script);
}

static lh_status_t script_make(collective_t *x, const comm_facts_t *all)
{
    comm_map_peers(x);
    const lh_status_t status = script_take(&x->comm->scripts, script_new, x, all);
    if (status != LH_OK) return status;
    sent_count(x);
    const lh_status_t counted = x->sent[LH_LINK_WAN] > 0 ? sent_to_count(x) : LH_OK;
    return counted == LH_OK ? run_make(x) : counted;
}

/* The lane of a direction of a link, made where there is none. Lanes are never more than lanes_make
 * has room for. */
static lane_t *lane_find(comm_t *c, link_t *link, bool sending)
{
    for (uint32_t i = 0; i < c->lane_count; i++)
        if (c->lanes[i].link == link && c->lanes[i].sending == sending) return &c->lanes[i];
    lane_t *lane = &c->lanes[c->lane_count++];
    *lane = (lane_t){.link = link, .sending = sending};
    return lane;
}

/* Finds the link of every lane of the plan's script. A missing one is our own mistake,
 * script_needs_link's. */
static lh_status_t tracks_make(comm_t *c, collective_t *x)
{
    for (uint32_t i = 0; i < x->script->lane_count; i++) {
        const script_lane_t *m = &x->script->lanes[i];
        link_t *k = links_find(c->links, x->how.group->ranks[m->peer],
                               m->answers ? (uint32_t)ANSWERS : x->how.service);
        if (k == NULL)
            return fail(LH_UNREACHABLE, "'%s' needs a link to rank %u that is not there", x->name,
                        x->how.group->ranks[m->peer]);
        x->tracks[i] = (track_t){.lane = lane_find(c, k, m->sending), .plan = x, .messages = m};
    }
    return LH_OK;
}

static lh_status_t lanes_make(comm_t *c)
{
    uint64_t most = 1;
    for (uint32_t i = 0; i < c->plan_count; i++)
        most += c->plans[i]->script->lane_count;
    const uint64_t all = (uint64_t)c->world->row.size * COMM_SERVICES * 2;
    c->lanes = mem_array(most < all ? most : all, sizeof(*c->lanes));
    lh_status_t status = c->lanes == NULL ? LH_NO_MEMORY : LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < c->plan_count; i++)
        status = tracks_make(c, c->plans[i]);
    return status;
}

/* Bytes that links between sites hold, by what is known of them; 0: nothing is. */
static double flight_bytes(link_figures_t known)
{
    return (double)known.round_trip_ns * 1e-9 * (double)known.bytes_per_second;
}

/* How many plans that stage are under way at a time: as many as fill 1.25 windows of the link to
 * another site, by what a plan sends over it on average, and one that is about to end. Windows
 * belong to links: however small buckets are, together they fill one. Each rank counts for itself,
 * as runs begin in the same order everywhere. */
static uint32_t slots_wanted(double flight, double sent, uint32_t senders)
{
    if (flight <= 0 || sent <= 0) return COMM_SLOTS;
    const double wanted = 1.25 * flight * senders / sent + 2;
    return wanted < COMM_SLOTS        ? COMM_SLOTS
           : wanted > COMM_MOST_SLOTS ? COMM_MOST_SLOTS
                                      : (uint32_t)wanted;
}

/* Bytes that plans which stage send to a site; *senders: how many of them do. */
static double slots_sent(const comm_t *c, uint32_t site, uint32_t *senders)
{
    double sent = 0;
    *senders = 0;
    for (uint32_t i = 0; i < c->plan_count; i++) {
        const collective_t *x = c->plans[i];
        if (x->script->staging_bytes == 0 || x->sent[LH_LINK_WAN] == 0) continue;
        if (x->sent_to[site] == 0) continue;
        sent += (double)x->sent_to[site];
        ++*senders;
    }
    return sent;
}

/* By the site to which the most goes: what goes to others beside it is on links of their own, and fills
 * nothing of its window. */
static uint32_t slots_count(const comm_t *c, link_figures_t known)
{
    const uint32_t here = c->world->ranks[c->world->row.rank].site;
    double most = 0;
    uint32_t senders = 0;
    for (uint32_t s = 0; s < c->world->row.sites; s++) {
        uint32_t count = 0;
        const double sent = s == here ? 0 : slots_sent(c, s, &count);
        if (sent <= most) continue;
        most = sent;
        senders = count;
    }
    return slots_wanted(flight_bytes(known), most, senders);
}

/* Plans take slots in turn. A slot is as long as the longest of its plans needs. */
static staging_slot_t *slot_take(staging_slot_t *slots, uint32_t count, uint32_t *turn,
                                 const script_t *s)
{
    if (s->staging_bytes == 0) return NULL;
    staging_slot_t *slot = &slots[(*turn)++ % count];
    if (s->staging_bytes > slot->bytes) slot->bytes = s->staging_bytes;
    return slot;
}

static uint64_t slots_bytes(const staging_slot_t *slots, uint32_t count)
{
    uint64_t bytes = STAGING_ALIGN; /* signals carry nothing, but lie somewhere */
    for (uint32_t i = 0; i < count; i++)
        bytes += (slots[i].bytes + STAGING_ALIGN - 1) / STAGING_ALIGN * STAGING_ALIGN;
    return bytes;
}

/* One allocation for all slots, registered as one arena, the last one. With it the addresses of all
 * of a plan's buffers are known, and are bound for its runs. */
static lh_status_t staging_make(comm_t *c)
{
    uint32_t arena, turn = 0;
    c->slot_count = slots_count(c, figures_known(c->links, LH_LINK_WAN));
    for (uint32_t i = 0; i < c->plan_count; i++)
        c->plans[i]->slot = slot_take(c->slots, c->slot_count, &turn, c->plans[i]->script);
    c->staging_bytes = slots_bytes(c->slots, c->slot_count);
    c->staging = mem_new(c->staging_bytes);
    if (c->staging == NULL) return LH_NO_MEMORY;
    char *at = c->staging;
    for (uint32_t i = 0; i < c->slot_count; i++) {
        c->slots[i].memory = at;
        at += (c->slots[i].bytes + STAGING_ALIGN - 1) / STAGING_ALIGN * STAGING_ALIGN;
    }
    const lh_status_t status = comm_arena(c, c->staging, c->staging_bytes, -1, 0, &arena);
    for (uint32_t i = 0; status == LH_OK && i < c->plan_count; i++) {
        collective_t *x = c->plans[i];
        x->bound = (script_places_t){.whole = x->how.whole.address,
                                     .cut = x->how.cut.address,
                                     .staging = x->slot != NULL ? x->slot->memory : c->staging,
                                     .whole_arena = x->how.whole.arena,
                                     .cut_arena = x->how.cut.arena,
                                     .staging_arena = arena,
                                     .peers = x->peers,
                                     .segments = x->segments};
    }
    return status;
}

/* Errors begin at zero. */
static lh_status_t errors_make(collective_t *x)
{
    const uint64_t elements = x->script->error_elements;
    const collective_t *before = x->how.continues;
    if (elements == 0) return LH_OK;
    if (before != NULL && before->script->error_elements != elements)
        return fail(LH_INVALID, "'%s' goes on with errors of %llu elements and has %llu", x->name,
                    (unsigned long long)before->script->error_elements,
                    (unsigned long long)elements);
    x->bound.errors = before != NULL ? before->bound.errors : mem_array(elements, sizeof(float));
    return x->bound.errors == NULL ? LH_NO_MEMORY : LH_OK;
}

/* Bytes of errors that the plan does not share. */
static uint64_t errors_bytes(const collective_t *x)
{
    return x->how.continues != NULL ? 0 : x->script->error_elements * sizeof(float);
}

static lh_status_t scripts_make(comm_t *c, const comm_facts_t *all)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < c->plan_count; i++)
        status = script_make(c->plans[i], all);
    if (status == LH_OK) status = staging_make(c);
    for (uint32_t i = 0; status == LH_OK && i < c->plan_count; i++)
        status = errors_make(c->plans[i]);
    if (status == LH_OK) status = lanes_make(c);
    return status;
}

/* A thread that can't be started is a failure of this rank alone. */
static lh_status_t runs_thread_start(comm_t *c)
{
    if (!c->threaded) return LH_OK;
    if (thread_start(&c->thread, "lh-comm", runs_thread, c) != 0)
        return fail(LH_NO_MEMORY, "the thread that drives collectives can't be started");
    c->has_thread = true;
    return LH_OK;
}

void comm_known_links(comm_t *c, const probe_pair_t *known, uint32_t count)
{
    lh_assert(!c->connected || known == NULL);
    c->known = known;
    c->known_count = count;
}

/* A rank that opens its job takes one processor, and the first rank of each site another one to measure. What
 * a container or taskset leaves may be fewer than the machine has; they are this rank's alone where its
 * launcher has dealt them out ([launch] bind), and else those of all ranks here, as a container's quota
 * always is. */
static bool has_processors_for_both(const comm_t *c)
{
    processors_t here;
    processors_here(&here);
    const long ranks = ranks_here(c->world), all = sysconf(_SC_NPROCESSORS_ONLN);
    const long allowed = here.allowed;
    const bool dealt = c->job->launch.bind && allowed * ranks <= all;
    return allowed >= (dealt ? 2 : 2 * ranks) && here.quota / 2 >= here.sharers;
}

lh_status_t comm_probe(comm_t *c)
{
    lh_assert(!c->planned && !c->connected && !c->probed);
    const lh_status_t status = links_early_start(c->links, c->known, c->known_count);
    c->probed = true;
    return status == LH_OK && !has_processors_for_both(c) ? comm_probe_wait(c) : status;
}

lh_status_t comm_probe_wait(comm_t *c)
{
    return links_early_finish(c->links);
}

/* Differences between ranks end in the same status and sentence on all (comm_verdict,
 * comm_agree.c). Links that can't be made end through the control plane, which tells all ranks. */
lh_status_t comm_connect(comm_t *c)
{
    if (c->connected) return fail(LH_INVALID, "the ranks are connected already");
    if (c->planned) return fail(LH_INVALID, "these ranks are planned only; nothing connects them");
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < c->plan_count; i++)
        status = places_make(c->plans[i]);
    if (status == LH_OK) status = comm_agree_plans(c);
    if (status == LH_OK && c->probed) status = comm_probe_wait(c);
    if (status == LH_OK && !c->probed) status = links_probe(c->links, c->known, c->known_count);
    c->found = true;
    for (uint32_t s = 1; status == LH_OK && s < COMM_SERVICES; s++)
        status = service_connect(c, s, NULL);
    if (status != LH_OK) return status;

    comm_facts_t mine, *all = mem_array(c->world->row.size, sizeof(*all));
    if (all == NULL) return LH_NO_MEMORY;
    facts_measure(c, &mine);
    status = comm_gather(c, &mine, sizeof(mine), all);
    if (status == LH_OK) status = service_connect(c, ANSWERS, all);
    if (status == LH_OK) status = comm_verdict(c, scripts_make(c, all));
    mem_free(all);
    if (status == LH_OK) status = comm_agree_lanes(c);
    if (status == LH_OK) status = native_join(c->native, c->control);
    if (status == LH_OK) status = runs_thread_start(c);
    if (status == LH_OK) c->connected = true;
    return status;
}

/* Bytes of a plan's run that grow with its script. */
static uint64_t run_bytes(const collective_t *x)
{
    return x->script->step_count * (sizeof(*x->left) + sizeof(*x->ready));
}

uint64_t comm_bytes(const comm_t *c)
{
    uint64_t bytes = c->staging_bytes + script_set_bytes(&c->scripts);
    for (uint32_t i = 0; i < c->plan_count; i++)
        if (c->plans[i]->script != NULL)
            bytes += run_bytes(c->plans[i]) + errors_bytes(c->plans[i]);
    return bytes;
}

uint32_t comm_scripts(const comm_t *c)
{
    return c->scripts.count;
}

/* A script that nobody will play: those of a large job's rank together take hundreds of megabytes. */
static lh_status_t script_count(const script_how_t *how, script_t *out)
{
    const lh_status_t status = script_new(how, out);
    if (status == LH_OK) script_forget(out);
    return status;
}

/* Sets x->script to what comm_connect would take, from `set`, which owns it and which the caller
 * frees. */
static lh_status_t script_expect(script_set_t *set, collective_t *x, const comm_facts_t *all)
{
    if (x->peers != NULL) return fail(LH_INVALID, "'%s' is connected already", x->name);
    lh_status_t status = places_make(x);
    for (uint32_t m = 0; status == LH_OK && m < x->how.group->size; m++)
        comm_place(x, &x->places[m]); /* the others' lie in arenas of the same number */
    if (status == LH_OK) status = script_take(set, script_count, x, all);
    mem_free(x->peers);
    mem_free(x->places);
    x->peers = NULL;
    x->places = NULL;
    return status;
}

/* Leaves the plans as they were: without scripts, so that it may be called again with more of
 * them. */
lh_status_t comm_plan(comm_t *c, uint64_t *bytes)
{
    staging_slot_t slots[COMM_MOST_SLOTS] = {0};
    script_set_t set = {0};
    uint32_t turn = 0, count = 0, made = 0;
    uint64_t sum = 0;
    comm_facts_t *all = mem_array(c->world->row.size, sizeof(*all));
    if (all == NULL) return LH_NO_MEMORY;
    lh_status_t status = comm_expect_pairs(c);
    if (status == LH_OK) status = comm_expect_facts(c, all);
    while (status == LH_OK && made < c->plan_count) {
        status = script_expect(&set, c->plans[made], all);
        if (status != LH_OK) break;
        sent_count(c->plans[made]);
        status = sent_to_count(c->plans[made++]);
    }
    if (status == LH_OK) count = slots_count(c, all[c->world->row.rank].figures[LH_LINK_WAN]);
    for (uint32_t i = 0; status == LH_OK && i < c->plan_count; i++) {
        const collective_t *x = c->plans[i];
        (void)slot_take(slots, count, &turn, x->script);
        sum += run_bytes(x) + errors_bytes(x);
    }
    for (uint32_t i = 0; i < made; i++)
        c->plans[i]->script = NULL;
    if (status == LH_OK) *bytes = sum + script_set_bytes(&set) + slots_bytes(slots, count);
    script_set_free(&set);
    mem_free(all);
    return status;
}

const probe_pair_t *comm_expected(const comm_t *c, uint32_t *count)
{
    return comm_pairs(c, count);
}

void comm_step(comm_t *c, uint64_t step)
{
    runs_enter(c);
    c->step = step;
    if (c->told != NULL) links_share(c->links, c->told, step);
    if (c->is_told_anew) links_agree(c->links, c->told, step);
    c->is_told_anew = false;
    links_follow(c->links, step);
    runs_leave(c);
}

void comm_even(comm_t *c)
{
    runs_enter(c);
    links_even(c->links, true);
    runs_leave(c);
}

uint32_t comm_flows(comm_t *c, link_flow_t *rows, uint32_t room)
{
    runs_enter(c);
    const uint32_t count = links_flows(c->links, rows, room);
    runs_leave(c);
    return count;
}

uint32_t comm_borders(comm_t *c, link_border_t *rows, uint32_t room)
{
    runs_enter(c);
    const uint32_t count = c->told == NULL ? 0 : links_borders(c->links, c->told, rows, room);
    runs_leave(c);
    return count;
}

uint32_t comm_changes(comm_t *c, link_change_t *rows, uint32_t room)
{
    runs_enter(c);
    const uint32_t count = links_changes(c->links, rows, room);
    runs_leave(c);
    return count;
}

void comm_tell(comm_t *c, link_told_t *rows)
{
    runs_enter(c);
    links_tell(c->links, rows);
    for (uint32_t s = 0; s < c->world->row.sites; s++)
        rows[s].sent = c->begun_to[s];
    runs_leave(c);
}

void comm_told(comm_t *c, const link_told_t *all)
{
    c->told = all;
    c->is_told_anew = true;
}

void comm_expose(comm_t *c, uint32_t scope, uint64_t ns)
{
    lh_assert(scope < COMM_SCOPES);
    runs_enter(c);
    c->exposed_ns[scope] += ns;
    runs_leave(c);
}

void comm_exposed(comm_t *c, uint64_t ns[4])
{
    runs_enter(c);
    for (uint32_t s = 0; s < COMM_SCOPES; s++) {
        ns[s] = c->exposed_ns[s];
        c->exposed_ns[s] = 0;
    }
    runs_leave(c);
}
