/* fake_links.h - links and the control plane between threads of one process, in place of the real
 * ones: messages of any pair take their time, few are taken at once, arenas may be mapped. For one
 * test program: it defines the functions of links/links.h and those of control/control.h that
 * collectives call. */
#ifndef FAKE_LINKS_H
#define FAKE_LINKS_H

#include <pthread.h>
#include <sys/mman.h>
#include <time.h>

#include <base/memory.h>
#include <control/control.h>
#include <links/links.h>
#include <links/links_agree.h>
#include <links/links_connect.h>
#include <links/links_early.h>
#include <links/links_pace.h>
#include <links/links_probe.h>

enum {
    FAKE_RANKS = 8,
    FAKE_ARENAS = 4,
    FAKE_LINKS = 2, /* between two ranks: of LH_SERVICE_CONTROL, and of all other services */
    FAKE_QUEUE = 64,
    FAKE_EVENTS = 4096,
    FAKE_GATHER = 1 << 20
};

typedef struct fake_operation {
    void *data;
    uint64_t bytes, cookie;
    uint32_t tag;
    struct fake_device *device; /* in whose memory it lies; NULL: the host's */
} fake_operation_t;

typedef struct fake_queue { /* posted, of one direction */
    fake_operation_t rows[FAKE_QUEUE];
    uint32_t first, count;
} fake_queue_t;

typedef struct fake_events {
    links_event_t rows[FAKE_EVENTS];
    uint32_t first, count;
} fake_events_t;

/* Memory that only links reach. What came is seen once the device is told of it: until then it lies in
 * `late`, from `first` to `end`. */
typedef struct fake_device {
    char *base, *seen, *late;
    uint64_t bytes; /* 0: none */
    uint64_t first[FAKE_EVENTS], end[FAKE_EVENTS];
    uint32_t come;
} fake_device_t;

static struct hub {
    pthread_mutex_t lock;
    uint32_t size, limit; /* most posted in a direction of a link */
    uint32_t delay;       /* of so many polls one moves a message */
    uint32_t failures;
    bool mapped, measured;
    uint64_t flight; /* what links between sites hold, bytes; 0: not known */
    int dead;        /* a rank whose links break, or -1 */
    int refuser;     /* a rank whose card takes no memory of a device, or -1 */
    uint64_t random;
    fake_queue_t sends[FAKE_RANKS][FAKE_RANKS][FAKE_LINKS],
        receives[FAKE_RANKS][FAKE_RANKS][FAKE_LINKS]; /* from, to */
    fake_events_t events[FAKE_RANKS];
    _Atomic uint64_t polls[FAKE_RANKS]; /* of its links by a rank */
    char *arenas[FAKE_RANKS][FAKE_ARENAS];
    bool files[FAKE_RANKS][FAKE_ARENAS];
    fake_device_t *devices[FAKE_RANKS][FAKE_ARENAS]; /* NULL: the host's */
    char gathered[FAKE_GATHER];
    uint32_t arrived, left;
    uint64_t round;
    _Atomic uint64_t compared; /* bytes that a rank gave to gathers, over all ranks */
    _Atomic uint32_t waits;    /* for links to be measured, over all ranks */
    pthread_cond_t all;
} hub = {.lock = PTHREAD_MUTEX_INITIALIZER, .all = PTHREAD_COND_INITIALIZER};

struct control {
    uint32_t rank;
    lh_status_t status;
    char reason[256];
};

static inline uint32_t fake_rank(const links_t *l)
{
    return l->how.world->row.rank;
}

static inline void hub_reset(uint32_t size)
{
    hub.size = size;
    hub.limit = FAKE_QUEUE;
    hub.delay = 1;
    hub.failures = 0;
    hub.mapped = hub.measured = false;
    hub.flight = 0;
    hub.dead = hub.refuser = -1;
    hub.random = 7;
    hub.arrived = hub.left = 0;
    hub.compared = 0;
    hub.waits = 0;
    memset(hub.sends, 0, sizeof(hub.sends));
    memset(hub.receives, 0, sizeof(hub.receives));
    memset(hub.events, 0, sizeof(hub.events));
    memset(hub.arenas, 0, sizeof(hub.arenas));
    memset(hub.devices, 0, sizeof(hub.devices));
}

lh_status_t control_gather(control_t *c, const void *mine, size_t bytes, void *all)
{
    (void)pthread_mutex_lock(&hub.lock);
    hub.compared += bytes;
    const uint64_t round = hub.round;
    while (hub.left > 0)
        (void)pthread_cond_wait(&hub.all, &hub.lock);
    memcpy(hub.gathered + c->rank * bytes, mine, bytes);
    if (++hub.arrived == hub.size) {
        hub.arrived = 0;
        hub.left = hub.size;
        hub.round++;
        (void)pthread_cond_broadcast(&hub.all);
    }
    while (hub.round == round)
        (void)pthread_cond_wait(&hub.all, &hub.lock);
    memcpy(all, hub.gathered, bytes * hub.size);
    if (--hub.left == 0) (void)pthread_cond_broadcast(&hub.all);
    (void)pthread_mutex_unlock(&hub.lock);
    return LH_OK;
}

lh_status_t control_status(const control_t *c)
{
    return c->status;
}

const char *control_failure(const control_t *c)
{
    return c->reason;
}

void control_fail(control_t *c, uint32_t peer, lh_status_t status, const char *reason)
{
    (void)peer;
    (void)reason;
    (void)c;
    (void)status;
    hub.failures++;
}

void control_progress(control_t *c, uint64_t step, const char *text)
{
    (void)c;
    (void)step;
    (void)text;
}

lh_status_t links_open(const links_how_t *how, links_t **out)
{
    links_t *l = mem_new(sizeof(*l));
    if (l == NULL) return LH_NO_MEMORY;
    l->how = *how;
    *out = l;
    return LH_OK;
}

void links_close(links_t *l)
{
    if (l == NULL) return;
    links_arenas_drop(l, 0);
    for (uint32_t i = 0; i < l->link_count; i++)
        mem_free(l->links[i]);
    mem_free(l->links);
    mem_free(l);
}

lh_status_t links_arena(links_t *l, void *base, uint64_t bytes, int fd, uint64_t fd_offset,
                        uint32_t *arena)
{
    (void)bytes;
    (void)fd_offset;
    (void)pthread_mutex_lock(&hub.lock);
    *arena = l->arena_count++;
    hub.arenas[fake_rank(l)][*arena] = base;
    hub.files[fake_rank(l)][*arena] = fd >= 0;
    (void)pthread_mutex_unlock(&hub.lock);
    return LH_OK;
}

lh_status_t links_take_device(const links_t *l, uint32_t scope)
{
    (void)l, (void)scope;
    return LH_OK;
}

lh_status_t links_device_arena(links_t *l, void *base, uint64_t bytes, int fd, uint64_t fd_offset,
                               uint32_t *arena)
{
    const uint32_t rank = fake_rank(l);
    if ((int)rank == hub.refuser)
        return fail(LH_IO, "the card of rank %u has no room: said the test", rank);
    fake_device_t *d = mem_new(sizeof(*d));
    if (d == NULL) return LH_NO_MEMORY;
    *d = (fake_device_t){.base = base, .late = mem_new(bytes), .bytes = bytes};
    d->seen = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)fd_offset);
    if (d->late == NULL || d->seen == MAP_FAILED) return fail(LH_IO, "mapping device memory");
    (void)pthread_mutex_lock(&hub.lock);
    *arena = l->arena_count++;
    hub.devices[rank][*arena] = d;
    (void)pthread_mutex_unlock(&hub.lock);
    return LH_OK;
}

void links_arenas_drop(links_t *l, uint32_t first)
{
    (void)pthread_mutex_lock(&hub.lock);
    while (l->arena_count > first) {
        fake_device_t **at = &hub.devices[fake_rank(l)][--l->arena_count], *d = *at;
        *at = NULL;
        if (d == NULL) continue;
        (void)munmap(d->seen, d->bytes);
        mem_free(d->late);
        mem_free(d);
    }
    (void)pthread_mutex_unlock(&hub.lock);
}

/* coll_device_t.arrived, of the device whose memory arena 0 of a rank is. */
static inline lh_status_t fake_arrived(void *rank)
{
    (void)pthread_mutex_lock(&hub.lock);
    fake_device_t *d = hub.devices[*(const uint32_t *)rank][0];
    for (uint32_t i = 0; i < d->come; i++)
        memcpy(d->seen + d->first[i], d->late + d->first[i], d->end[i] - d->first[i]);
    d->come = 0;
    (void)pthread_mutex_unlock(&hub.lock);
    return LH_OK;
}

/* A message as a card finds it. */
static inline fake_operation_t fake_message(const links_t *l, uint32_t arena, const void *data,
                                            uint64_t bytes, uint32_t tag, uint64_t cookie)
{
    fake_device_t *d = hub.devices[fake_rank(l)][arena];
    fake_operation_t o = {(void *)(uintptr_t)data, bytes, cookie, tag, d};
    if (d != NULL) o.data = d->seen + ((uintptr_t)data - (uintptr_t)d->base);
    return o;
}

lh_status_t links_connect(links_t *l, const uint32_t *peers, uint32_t count, uint32_t service)
{
    for (uint32_t i = 0; i < count; i++) {
        link_t **links = mem_grow(l->links, &l->link_capacity, l->link_count + 1u,
                                  sizeof(link_t *));
        link_t *k = mem_new(sizeof(*k));
        if (links == NULL || k == NULL) return LH_NO_MEMORY;
        *k = (link_t){.links = l, .peer = peers[i], .service = service};
        l->links = links;
        l->links[l->link_count++] = k;
    }
    return LH_OK;
}

link_t *links_find(links_t *l, uint32_t peer, uint32_t service)
{
    for (uint32_t i = 0; i < l->link_count; i++)
        if (l->links[i]->peer == peer && l->links[i]->service == service) return l->links[i];
    return NULL;
}

uint32_t link_scope(const link_t *k)
{
    return world_scope(k->links->how.world, fake_rank(k->links), k->peer);
}

const void *link_map(const link_t *k, uint32_t arena)
{
    if (!hub.mapped || link_scope(k) != LH_LINK_NODE || arena >= FAKE_ARENAS) return NULL;
    (void)pthread_mutex_lock(&hub.lock);
    const void *map = hub.files[k->peer][arena] ? hub.arenas[k->peer][arena] : NULL;
    (void)pthread_mutex_unlock(&hub.lock);
    return map;
}

static inline uint32_t fake_link(const link_t *k)
{
    return k->service == LH_SERVICE_CONTROL ? 0 : 1;
}

static inline lh_status_t fake_post(fake_queue_t *q, const fake_operation_t *o)
{
    lh_status_t status = LH_AGAIN;
    (void)pthread_mutex_lock(&hub.lock);
    if (q->count < hub.limit) {
        q->rows[(q->first + q->count++) % FAKE_QUEUE] = *o;
        status = LH_OK;
    }
    (void)pthread_mutex_unlock(&hub.lock);
    return status;
}

lh_status_t link_send(link_t *k, uint32_t arena, const void *data, uint64_t bytes, uint32_t tag,
                      uint64_t cookie)
{
    const fake_operation_t o = fake_message(k->links, arena, data, bytes, tag, cookie);
    return fake_post(&hub.sends[fake_rank(k->links)][k->peer][fake_link(k)], &o);
}

lh_status_t link_recv(link_t *k, uint32_t arena, void *data, uint64_t bytes, uint32_t tag,
                      uint64_t cookie)
{
    const fake_operation_t o = fake_message(k->links, arena, data, bytes, tag, cookie);
    return fake_post(&hub.receives[k->peer][fake_rank(k->links)][fake_link(k)], &o);
}

static inline void fake_tell(uint32_t rank, const fake_operation_t *o, bool received)
{
    fake_events_t *e = &hub.events[rank];
    e->rows[(e->first + e->count++) % FAKE_EVENTS] = (links_event_t){o->cookie, received, o->bytes};
}

/* It is with the device, which does not see it yet. */
static inline void fake_come(const fake_operation_t *in, const fake_operation_t *out)
{
    fake_device_t *d = in->device;
    const uint64_t at = (uint64_t)((char *)in->data - d->seen);
    memcpy(d->late + at, out->data, in->bytes);
    d->first[d->come] = at;
    d->end[d->come++] = at + in->bytes;
}

static inline void fake_move(uint32_t from, uint32_t to, uint32_t link)
{
    fake_queue_t *s = &hub.sends[from][to][link], *r = &hub.receives[from][to][link];
    hub.random = hub.random * 6364136223846793005u + 1442695040888963407u;
    if (s->count == 0 || r->count == 0 || (hub.random >> 33) % hub.delay != 0) return;
    fake_operation_t *out = &s->rows[s->first % FAKE_QUEUE], *in = &r->rows[r->first % FAKE_QUEUE];
    if (out->bytes != in->bytes || out->tag != in->tag) {
        hub.dead = (int)from;
        return;
    }
    if (in->device != NULL)
        fake_come(in, out);
    else if (in->bytes > 0)
        memcpy(in->data, out->data, in->bytes);
    fake_tell(from, out, false);
    fake_tell(to, in, true);
    s->first++;
    r->first++;
    s->count--;
    r->count--;
}

lh_status_t links_poll(links_t *l, links_event_t *events, uint32_t max, uint32_t *count)
{
    (void)pthread_mutex_lock(&hub.lock);
    const int dead = hub.dead;
    hub.polls[fake_rank(l)]++;
    for (uint32_t i = 0; dead < 0 && i < hub.size * FAKE_LINKS; i++) {
        fake_move(i / FAKE_LINKS, fake_rank(l), i % FAKE_LINKS);
        fake_move(fake_rank(l), i / FAKE_LINKS, i % FAKE_LINKS);
    }
    fake_events_t *e = &hub.events[fake_rank(l)];
    for (*count = 0; *count < max && e->count > 0; e->count--)
        events[(*count)++] = e->rows[e->first++ % FAKE_EVENTS];
    (void)pthread_mutex_unlock(&hub.lock);
    return dead < 0 ? LH_OK : fail(LH_PEER_LOST, "rank %d is lost: said the test", dead);
}

void links_sleep(links_t *l, int wake_fd, uint64_t spin_ns, uint64_t timeout_ns)
{
    (void)l;
    (void)wake_fd;
    (void)spin_ns;
    (void)timeout_ns;
    const struct timespec nap = {0, 20000};
    (void)nanosleep(&nap, NULL);
}

uint32_t links_flows(const links_t *l, link_flow_t *rows, uint32_t room)
{
    (void)l;
    (void)rows;
    (void)room;
    return 0;
}

void links_even(links_t *l, bool even)
{
    (void)l, (void)even;
}

void links_share(links_t *l, const link_told_t *all, uint64_t step)
{
    (void)l, (void)all, (void)step;
}

void links_tell(const links_t *l, link_told_t *rows)
{
    (void)l, (void)rows;
}

uint32_t links_borders(const links_t *l, const link_told_t *all, link_border_t *rows, uint32_t room)
{
    (void)l, (void)all, (void)rows, (void)room;
    return 0;
}

void links_agree(links_t *l, const link_told_t *all, uint64_t step)
{
    (void)l, (void)all, (void)step;
}

uint32_t links_changes(links_t *l, link_change_t *rows, uint32_t room)
{
    (void)l, (void)rows, (void)room;
    return 0;
}

void links_follow(links_t *l, uint64_t step)
{
    (void)l, (void)step;
}

lh_status_t links_probe(links_t *l, const probe_pair_t *known, uint32_t count)
{
    (void)l, (void)known, (void)count;
    return LH_OK;
}

lh_status_t links_early_start(links_t *l, const probe_pair_t *known, uint32_t count)
{
    (void)l, (void)known, (void)count;
    return LH_OK;
}

lh_status_t links_early_finish(links_t *l)
{
    (void)l;
    hub.waits++;
    return LH_OK;
}

bool links_early_takes_device(const links_t *l)
{
    (void)l;
    return false;
}

void links_early_end(links_t *l)
{
    (void)l;
}

/* Three sites, of which the first and the last are hardly joined. */
const probe_pair_t *links_pairs(const links_t *l, uint32_t *count)
{
    static const probe_pair_t pairs[] = {
        {.figures = {.round_trip_ns = 400000, .rate = {1000000000, 1000000000}}},
        {.figures = {.round_trip_ns = 1000000, .rate = {10000000, 10000000}}},
        {.figures = {.round_trip_ns = 250000, .rate = {1000000000, 1000000000}}}};
    (void)l;
    *count = hub.measured ? 3 : 0;
    return pairs;
}

uint32_t links_pair(uint32_t site, uint32_t other)
{
    const uint32_t low = site < other ? site : other, high = site < other ? other : site;
    return high * (high - 1) / 2 + low;
}

void links_class(const links_t *l, uint32_t scope, link_class_t *out)
{
    (void)l;
    *out = (link_class_t){0};
    if (scope == LH_LINK_WAN && hub.flight > 0)
        *out = (link_class_t){.round_trip_ns = 1000000000, .bytes_per_second = hub.flight};
}

#endif
