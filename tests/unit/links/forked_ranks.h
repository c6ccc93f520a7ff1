/* forked_ranks.h - links for tests: ranks forked from one process, over real transport plugins, with a
 * control plane of shared memory in place of control.c. */
#ifndef TESTS_FORKED_RANKS_H
#define TESTS_FORKED_RANKS_H

#include <links/links.h>

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <base/sys.h>
#include <config/job_load.h>
#include <links/links_connect.h>
#include <plugin/host.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#undef fail

enum { RANKS = 4, GATHER = 1 << 20 };
/* What has not come by then does not come, on a machine that has much else to do, too. */
#define RANKS_PATIENCE_NS 60000000000ull

/* ---- the control plane: what control.h promises, for ranks forked from one process ---- */

typedef struct plane {
    _Atomic uint32_t arrived[CONTROL_CHANNELS][64]; /* by number of the gather */
    char rows[CONTROL_CHANNELS][64][RANKS][GATHER / 64];
    _Atomic lh_status_t status;
    char failure[512];
    _Atomic uint32_t culprit;
    uint32_t size;
} plane_t;

struct control {
    plane_t *plane;
    uint32_t rank, gathers[CONTROL_CHANNELS];
    _Atomic bool left; /* CONTROL_ASIDE */
    int fd;
};

size_t control_gather_most(uint32_t ranks)
{
    (void)ranks;
    return GATHER / 64;
}

lh_status_t control_gather_on(control_t *c, uint32_t channel, const void *mine, size_t bytes,
                              void *all)
{
    const uint32_t n = c->gathers[channel]++;
    if (bytes > GATHER / 64) _exit(9);
    memcpy(c->plane->rows[channel][n][c->rank], mine, bytes);
    atomic_fetch_add(&c->plane->arrived[channel][n], 1);
    const uint64_t until = sys()->now_ns() + RANKS_PATIENCE_NS;
    while (atomic_load(&c->plane->arrived[channel][n]) < c->plane->size) {
        if (sys()->now_ns() > until) _exit(8);
        /* Aside a rank may wait for one that has failed. */
        if (channel == CONTROL_ASIDE && atomic_load(&c->plane->status) != LH_OK)
            return fail_again(atomic_load(&c->plane->status), c->plane->failure);
        if (channel == CONTROL_ASIDE && atomic_load(&c->left)) return LH_CANCELLED;
        (void)sched_yield();
    }
    for (uint32_t r = 0; r < c->plane->size; r++)
        memcpy((char *)all + r * bytes, c->plane->rows[channel][n][r], bytes);
    return LH_OK;
}

lh_status_t control_gather(control_t *c, const void *mine, size_t bytes, void *all)
{
    return control_gather_on(c, CONTROL_MAIN, mine, bytes, all);
}

/* One at a time: links are measured here by one thread. */
lh_status_t control_collect_on(control_t *c, uint32_t channel, const void *mine, size_t bytes,
                               void *all)
{
    static char others[RANKS * GATHER / 64];
    return control_gather_on(c, channel, mine, bytes, c->rank == 0 ? all : others);
}

void control_leave(control_t *c, uint32_t channel)
{
    if (channel != CONTROL_ASIDE) _exit(6);
    atomic_store(&c->left, true);
}

lh_status_t control_status(const control_t *c)
{
    return atomic_load(&c->plane->status);
}

const char *control_failure(const control_t *c)
{
    return c->plane->failure;
}

void control_fail(control_t *c, uint32_t peer, lh_status_t status, const char *reason)
{
    lh_status_t none = LH_OK;
    if (atomic_load(&c->plane->status) != LH_OK) return;
    (void)snprintf(c->plane->failure, sizeof(c->plane->failure), "%s", reason);
    atomic_store(&c->plane->culprit, peer);
    (void)atomic_compare_exchange_strong(&c->plane->status, &none, status);
    const uint64_t one = 1;
    (void)!write(c->fd, &one, sizeof(one));
}

bool control_wait_due(control_wait_t *w, uint64_t now)
{
    (void)w, (void)now; /* no test waits that long */
    return false;
}

int control_fd(const control_t *c)
{
    return c->fd;
}

/* ---- ranks ---- */

typedef struct rank {
    uint32_t self, size;
    job_t *job;
    host_t *host;
    registry_t *registry;
    world_t *world;
    control_t control;
    links_t *links;
    char *memory; /* arena 0, in a memfd */
    uint32_t arena;
} rank_t;

/* In a rank cmocka's asserts would go on with the next test. */
#define CHECK(cond)                                                                                \
    ((cond) ? (void)0                                                                              \
            : ((void)fprintf(stderr, "    rank %u, line %d: not so: %s (%s)\n", me.self, __LINE__, \
                             #cond, fail_reason()),                                                \
               _exit(1)))

enum { ARENA = 1 << 20 };
static rank_t me;
static plane_t *plane;

static inline job_t *make_job(const char *sections)
{
    char path[] = "/tmp/links_test_XXXXXX";
    job_t *job = NULL;
    const int fd = mkstemp(path);
    if (fd < 0 || dprintf(fd,
                          "[pipeline]\nname = t\nstages = prepare\n[prepare]\ninput = a.jsonl\n"
                          "tokenizer = t\n[comm]\ntimeout = 10s\n%s",
                          sections) < 0)
        _exit(7);
    (void)close(fd);
    const lh_status_t status = job_load(path, NULL, 0, &job);
    (void)unlink(path);
    return status == LH_OK ? job : NULL;
}

static inline void begin(uint32_t self, uint32_t size, const char *sections)
{
    me.self = self;
    me.size = size;
    (void)alarm(30);
    CHECK(host_new(&me.host) == LH_OK &&
          registry_new(LH_TEST_PLUGINS, me.host, &me.registry) == LH_OK);
    me.job = make_job(sections);
    CHECK(me.job != NULL && world_new(self, size, &me.world) == LH_OK);
    me.world->row.job = 99;
    me.world->row.epoch = 3;
    for (uint32_t r = 0; r < size; r++)
        (void)snprintf(me.world->ranks[r].host, sizeof(me.world->ranks[r].host), "box");
    world_number(me.world);
    me.control = (control_t){.plane = plane, .rank = self, .fd = eventfd(0, EFD_CLOEXEC)};
}

static inline links_how_t how(void)
{
    return (links_how_t){
        .job = me.job, .registry = me.registry, .world = me.world, .control = &me.control};
}

static inline void open_links(void)
{
    const links_how_t h = how();
    CHECK(links_open(&h, &me.links) == LH_OK);
    const int fd = memfd_create("arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && ftruncate(fd, ARENA) == 0);
    me.memory = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(me.memory != MAP_FAILED);
    CHECK(links_arena(me.links, me.memory, ARENA, fd, 0, &me.arena) == LH_OK);
}

static inline void connect_all(uint32_t service)
{
    uint32_t peers[RANKS], count = 0;
    for (uint32_t r = 0; r < me.size; r++)
        if (r != me.self) peers[count++] = r;
    CHECK(links_connect(me.links, peers, count, service) == LH_OK);
}

/* Like a barrier: nobody closes while others still wait for messages. */
static inline void meet(void)
{
    uint32_t mine = me.self, all[RANKS];
    CHECK(control_gather(&me.control, &mine, sizeof(mine), all) == LH_OK);
}

static inline void end(void)
{
    meet();
    links_close(me.links);
}

static inline links_event_t next_event(void)
{
    links_event_t event;
    uint32_t count = 0;
    const uint64_t until = sys()->now_ns() + RANKS_PATIENCE_NS;
    while (count == 0) {
        CHECK(links_poll(me.links, &event, 1, &count) == LH_OK);
        CHECK(sys()->now_ns() < until);
    }
    return event;
}

/* Runs `body` as that many ranks and returns whether all went as they should; the one in `killed`
 * (size: none) must end by SIGKILL. */
static inline bool ranks_killing(uint32_t size, const char *sections, void (*body)(void),
                                 uint32_t killed)
{
    pid_t pids[RANKS];
    bool ok = true;
    plane = mmap(NULL, sizeof(*plane), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (plane == MAP_FAILED) return false;
    plane->size = size;
    for (uint32_t r = 0; r < size; r++) {
        pids[r] = fork();
        if (pids[r] != 0) continue;
        (void)setenv("CMOCKA_TEST_ABORT", "1", 1); /* a rank that fails runs no other tests */
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        begin(r, size, sections);
        body();
        _exit(0);
    }
    for (uint32_t r = 0; r < size; r++) {
        int status = 0;
        (void)waitpid(pids[r], &status, 0);
        ok = ok && (r == killed ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                                : WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    (void)munmap(plane, sizeof(*plane));
    return ok;
}

static inline bool ranks(uint32_t size, const char *sections, void (*body)(void))
{
    return ranks_killing(size, sections, body, size);
}

/* Sites of so many ranks each, all on one machine. */
static inline void sites_of(uint32_t each)
{
    for (uint32_t r = 0; r < me.size; r++)
        (void)snprintf(me.world->ranks[r].site_name, WORLD_SITE_NAME, "%c", 'a' + (int)(r / each));
    published_t *published;
    world_number(me.world);
    CHECK(world_publish(me.host, me.world, NULL, &published) == LH_OK);
    open_links();
}

static inline void two_sites(void)
{
    sites_of(me.size / 2);
}

#endif
