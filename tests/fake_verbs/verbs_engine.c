/* verbs_engine.c - the lock, the thread, orders and counts, and queues of events. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "verbs_fake.h"

engine_t engine = {.lock = PTHREAD_MUTEX_INITIALIZER, .random = 88172645463325252ull};

void engine_lock(void)
{
    (void)pthread_mutex_lock(&engine.lock);
}

void engine_unlock(void)
{
    (void)pthread_mutex_unlock(&engine.lock);
}

uint64_t engine_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

uint64_t engine_random(void)
{
    engine.random ^= engine.random << 13;
    engine.random ^= engine.random >> 7;
    engine.random ^= engine.random << 17;
    return engine.random >> 16;
}

static bool order_one(const char *name, size_t length, uint64_t value)
{
#define FAKE_ORDER(word, initial, text)                                    \
    if (length == sizeof(#word) - 1 && memcmp(name, #word, length) == 0) { \
        engine.orders.word = value;                                        \
        return true;                                                       \
    }
    FAKE_ORDERS(FAKE_ORDER)
#undef FAKE_ORDER
    (void)fprintf(stderr, "fake verbs: there is no order '%.*s'\n", (int)length, name);
    return false;
}

static bool order_all(const char *text)
{
    while (*text == ' ')
        text++;
    while (*text != '\0') {
        char *end;
        const size_t length = strcspn(text, "= ");
        if (text[length] != '=') return false;
        if (!order_one(text, length, strtoull(text + length + 1, &end, 0))) return false;
        for (text = end; *text == ' ';)
            text++;
    }
    return true;
}

/* Does what was ordered at once. */
static bool obey(const char *text)
{
    const bool known = order_all(text);
    uint64_t living = 0;
    for (fake_id_t *id = engine.ids; id != NULL; id = id->next) {
        if (id->qp == NULL || id->qp->failed) continue;
        living++;
        if (id->qp->serial == engine.orders.fail_pair || living == engine.orders.fail_one)
            pair_fail(id->qp, 21 /* IBV_WC_GENERAL_ERR */);
    }
    engine.orders.fail_one = 0;
    if (engine.orders.remove_device != 0 && engine.orders.remove_device <= FAKE_DEVICES) {
        engine.orders.dead_device = engine.orders.remove_device;
        cm_removed(&engine.contexts[engine.orders.remove_device - 1]);
    }
    engine.orders.remove_device = 0;
    return known;
}

bool verbs_order(const char *text)
{
    engine_lock();
    const bool known = obey(text);
    engine_unlock();
    return known;
}

/* Orders of who looks on from outside: lines "PID name=number ...", of which each is obeyed once.
 * They are written one after the other, so what is new is behind what was read. */
static void take_orders(void)
{
    enum { LOOK_NS = 5000000 };
    char line[256];
    const uint64_t now = engine_now();
    if (engine.orders_path == NULL || now - engine.orders_ns < LOOK_NS) return;
    engine.orders_ns = now;
    FILE *f = fopen(engine.orders_path, "r");
    if (f == NULL) return;
    (void)fseek(f, engine.orders_at, SEEK_SET);
    while (fgets(line, sizeof(line), f) != NULL && strchr(line, '\n') != NULL) {
        char *text;
        engine.orders_at = ftell(f);
        line[strcspn(line, "\n")] = '\0';
        if (strtol(line, &text, 10) == (long)getpid()) (void)obey(text);
    }
    (void)fclose(f);
}

uint64_t verbs_count(const char *name)
{
    uint64_t value = UINT64_MAX;
    engine_lock();
#define FAKE_COUNT(word) \
    if (strcmp(name, #word) == 0) value = engine.counts.word;
    FAKE_COUNTS(FAKE_COUNT)
#undef FAKE_COUNT
    engine_unlock();
    return value;
}

void verbs_tap(const char *path)
{
    engine_lock();
    (void)snprintf(engine.tap, sizeof(engine.tap), "%s", path);
    engine_unlock();
}

/* ---- queues of events ---- */

bool events_open(fake_events_t *e)
{
    *e = (fake_events_t){.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE)};
    return e->fd >= 0;
}

void events_close(fake_events_t *e)
{
    (void)close(e->fd);
    free(e->rows);
}

void events_put(fake_events_t *e, void *row)
{
    const uint64_t one = 1;
    if (e->count == e->room) {
        const uint32_t room = e->room == 0 ? 16 : 2 * e->room;
        void **rows = realloc(e->rows, room * sizeof(*rows));
        if (rows == NULL) abort();
        e->rows = rows;
        e->room = room;
    }
    e->rows[e->count++] = row;
    if (write(e->fd, &one, sizeof(one)) != sizeof(one)) abort();
}

static void *take_row(fake_events_t *e, uint32_t index)
{
    void *row = e->rows[index];
    e->count--;
    for (uint32_t i = index; i < e->count; i++)
        e->rows[i] = e->rows[i + 1];
    return row;
}

void *events_get(fake_events_t *e)
{
    uint64_t word;
    void *row = NULL;
    if (read(e->fd, &word, sizeof(word)) != sizeof(word)) return NULL;
    engine_lock();
    if (e->count > 0) row = take_row(e, 0);
    engine_unlock();
    if (row == NULL) errno = EAGAIN;
    return row;
}

/* Of an object that goes away. The descriptor may stay readable for a moment. */
void events_drop(fake_events_t *e, bool (*which)(const void *row, const void *what),
                 const void *what, void (*end)(void *row))
{
    for (uint32_t i = 0; i < e->count;) {
        if (!which(e->rows[i], what)) {
            i++;
            continue;
        }
        void *row = take_row(e, i);
        if (end != NULL) end(row);
    }
}

/* ---- the engine ---- */

static bool is_busy(void)
{
    for (const fake_id_t *id = engine.ids; id != NULL; id = id->next)
        if (id->late != NULL || id->out_end > id->out_first ||
            (id->qp != NULL && id->qp->acknowledged < id->qp->end))
            return true;
    return false;
}

void verbs_beat(_Atomic uint64_t *own, _Atomic uint64_t *peer)
{
    engine_lock();
    engine.beat = own;
    engine.peer_beat = peer;
    engine.beat_ns = engine_now();
    engine_unlock();
}

/* The time since it last counted, where the other process has gone on since: of a pause in which one of
 * them had no processor no more than a moment. */
void engine_beat(void)
{
    enum { MOMENT_NS = 2000000 };
    if (engine.beat == NULL) return;
    (void)atomic_fetch_add(engine.beat, 1);
    const uint64_t peer = atomic_load(engine.peer_beat), now = engine_now();
    if (peer == engine.peer_seen) return;
    const uint64_t gap = now - engine.beat_ns;
    engine.counts.ran_ns += gap < MOMENT_NS ? gap : MOMENT_NS;
    engine.peer_seen = peer;
    engine.beat_ns = now;
}

/* Each begins once: of those that share a line with a rate none has it all. */
static void send_in_turn(void)
{
    uint32_t pairs = 0;
    for (const fake_id_t *id = engine.ids; id != NULL; id = id->next)
        pairs += id->qp != NULL;
    if (pairs == 0) return;
    uint32_t skip = engine.turn++ % pairs;
    fake_id_t *first = engine.ids;
    while (first->qp == NULL || skip-- > 0)
        first = first->next;
    fake_id_t *id = first;
    do {
        if (id->qp != NULL) pair_send(id->qp);
        id = id->next != NULL ? id->next : engine.ids;
    } while (id != first);
}

/* Every one that is kept is looked at in each turn. */
static void drop_lost(void)
{
    for (fake_id_t **at = &engine.ids; *at != NULL;) {
        fake_id_t *id = *at;
        if (!id->lost) {
            at = &id->next;
            continue;
        }
        *at = id->next;
        link_close(id);
        free(id);
    }
}

void engine_drive(void)
{
    enum { BATCH = 32 };
    engine_beat();
    take_orders();
    struct epoll_event events[BATCH];
    int count;
    do {
        count = epoll_wait(engine.epoll, events, BATCH, 0);
        for (int i = 0; i < count; i++) {
            fake_id_t *id = engine.ids; /* it may have ended since */
            while (id != NULL && id != events[i].data.ptr)
                id = id->next;
            if (id == NULL || id->fd < 0) continue;
            if (id->state == ID_LISTENING) {
                cm_arrivals(id);
                continue;
            }
            if ((events[i].events & EPOLLOUT) != 0) link_flush(id);
            if ((events[i].events & ~(uint32_t)EPOLLOUT) != 0) link_read(id);
        }
    } while (count == BATCH);
    const uint64_t now = engine_now();
    for (fake_id_t *id = engine.ids, *next; id != NULL; id = next) {
        next = id->next;
        if (id->late != NULL) link_late(id, now);
        if (id->qp != NULL) pair_timers(id->qp, now);
    }
    drop_lost();
    send_in_turn();
}

void engine_wake(void)
{
    const uint64_t one = 1;
    if (engine.sleeps && write(engine.wake, &one, sizeof(one)) < 0) abort();
    engine.sleeps = false;
}

static void *engine_thread(void *unused)
{
    const int idle_ms = engine.orders_path != NULL ? 10 : 1000;
    (void)unused;
    for (;;) {
        struct epoll_event event;
        uint64_t word;
        /* Who polls does the work; it is left to him. */
        const bool driven = engine_now() - atomic_load(&engine.polled_ns) < 2000000;
        if (driven) (void)nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
        engine_lock();
        if (engine.stop) break;
        if (!driven) engine_drive();
        const bool busy = is_busy();
        engine.sleeps = !busy;
        engine_unlock();
        if (driven) continue;
        (void)epoll_wait(engine.epoll, &event, 1, busy ? 1 : idle_ms);
        (void)read(engine.wake, &word, sizeof(word));
    }
    engine_unlock();
    return NULL;
}

/* A second engine after the first has ended begins with the environment's orders again. */
bool engine_start(void)
{
    bool started = true;
    const char *text = getenv("FAKE_VERBS");
    engine_lock();
    if (engine.users == 0) {
        for (uint32_t i = 0; i < FAKE_DEVICES; i++)
            engine.contexts[i] = (verbs_context_t){.device = &fake_devices[i], .ops = fake_ops};
        engine.orders = (orders_t){0};
        if (text != NULL && !order_all(text)) started = false;
        engine.orders_path = getenv("FAKE_VERBS_ORDERS");
        engine.orders_at = 0;
        engine.random ^= (uint64_t)getpid() << 20;
        engine.stop = engine.sleeps = false;
        engine.epoll = epoll_create1(EPOLL_CLOEXEC);
        engine.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        struct epoll_event event = {.events = EPOLLIN};
        if (engine.epoll < 0 || engine.wake < 0 ||
            epoll_ctl(engine.epoll, EPOLL_CTL_ADD, engine.wake, &event) != 0 ||
            pthread_create(&engine.thread, NULL, engine_thread, NULL) != 0)
            abort();
    }
    engine.users++;
    engine_unlock();
    if (!started) engine_leave();
    return started;
}

/* A line of what happened in this process, and what its user has left, to the file that
 * FAKE_VERBS_COUNTS names: several processes may write it. */
static void tell_counts(void)
{
    uint32_t pairs = 0, regions = 0, ids = 0;
    const char *path = getenv("FAKE_VERBS_COUNTS");
    FILE *f = path == NULL ? NULL : fopen(path, "a");
    if (f == NULL) return;
    for (const fake_qp_t *q = engine.qps; q != NULL; q = q->behind)
        pairs++;
    for (uint32_t i = 0; i < FAKE_MRS; i++)
        regions += engine.mrs[i] != NULL;
    for (const fake_id_t *id = engine.ids; id != NULL; id = id->next)
        ids += id->own;
    (void)fprintf(f, "%d made=%u rnr=%llu overruns=%llu pairs=%u regions=%u ids=%u\n",
                  (int)getpid(), engine.pairs_made, (unsigned long long)engine.counts.rnr,
                  (unsigned long long)engine.counts.overruns, pairs, regions, ids);
    (void)fclose(f);
}

void engine_leave(void)
{
    engine_lock();
    const bool last = --engine.users == 0;
    if (last) tell_counts();
    engine.stop = last;
    engine.sleeps = true;
    engine_wake();
    engine_unlock();
    if (!last) return;
    (void)pthread_join(engine.thread, NULL);
    (void)close(engine.epoll);
    (void)close(engine.wake);
}
