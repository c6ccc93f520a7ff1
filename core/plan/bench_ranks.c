/* bench_ranks.c - forks ranks that meet over a control plane of their own. */
#include <plan/bench_ranks.h>

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <base/log.h>
#include <base/memory.h>
#include <control/control_socket.h>
#include <control/world.h>

enum { MOST_RANKS = 256 };
static const uint64_t join_ns = 30000000000;

typedef struct meeting {
    secret_t *secret;
    int listener;
    uint16_t port;
    uint32_t size, sites;
    char host[WORLD_HOST_NAME];
} meeting_t;

/* A processor for each rank where there are enough: two that share one would wait for each other's
 * turn. */
static void take_processor(uint32_t self, uint32_t size)
{
    cpu_set_t mine, one;
    if (sched_getaffinity(0, sizeof(mine), &mine) != 0 || CPU_COUNT(&mine) < (int)size) return;
    uint32_t at = 0;
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &mine) || at++ != self) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        (void)sched_setaffinity(0, sizeof(one), &one);
    }
}

static lh_status_t in_world(bench_rank_t *rank, const meeting_t *m,
                            lh_status_t (*body)(const bench_rank_t *rank))
{
    published_t *published = NULL;
    host_t *host = registry_host(rank->registry);
    lh_status_t status = world_publish(host, rank->world, m->secret, &published);
    if (status == LH_OK) status = body(rank);
    world_unpublish(host, published);
    return status;
}

static lh_status_t as_rank(bench_rank_t *rank, const meeting_t *m, uint32_t self,
                           lh_status_t (*body)(const bench_rank_t *rank))
{
    lh_assert(self < m->size);
    world_t *world = NULL;
    char site[WORLD_SITE_NAME] = "";
    if (m->sites > 1)
        (void)snprintf(site, sizeof(site), "s%u", (uint32_t)((uint64_t)self * m->sites / m->size));
    take_processor(self, m->size);
    const control_how_t how = {.rank = self,
                               .size = m->size,
                               .host = m->host,
                               .site = site,
                               .address = "127.0.0.1",
                               .port = m->port,
                               .listener = self == 0 ? m->listener : -1,
                               .port_fd = -1,
                               .join_ns = join_ns,
                               .secret = m->secret};
    lh_status_t status = control_open(&how, &rank->control, &world);
    rank->world = world;
    if (status == LH_OK) status = in_world(rank, m, body);
    status = control_close(rank->control, status, status == LH_OK ? "" : fail_reason());
    world_free(world);
    return status;
}

/* What a rank prints on stdout is nobody's: rank 0 speaks for all. */
static void be_child(bench_rank_t *rank, const meeting_t *m, uint32_t self,
                     lh_status_t (*body)(const bench_rank_t *rank))
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    const lh_status_t status = as_rank(rank, m, self, body);
    _exit(status == LH_OK ? EXIT_DONE : status_exit_code(status));
}

static lh_status_t open_meeting(meeting_t *m)
{
    if (gethostname(m->host, sizeof(m->host)) != 0) m->host[0] = '\0';
    m->host[sizeof(m->host) - 1] = '\0';
    lh_status_t status = secret_random(&m->secret);
    if (status == LH_OK) status = control_listen("127.0.0.1", 0, &m->listener, &m->port);
    return status;
}

lh_status_t bench_ranks(registry_t *registry, const job_t *job, uint32_t size, uint32_t sites,
                        lh_status_t (*body)(const bench_rank_t *rank), const void *context)
{
    pid_t pids[MOST_RANKS];
    meeting_t m = {.size = size, .sites = sites, .listener = -1};
    bench_rank_t rank = {.registry = registry, .job = job, .context = context};
    if (size == 0 || size > MOST_RANKS)
        return fail(LH_INVALID, "--ranks %u: expected 1 to %d", size, MOST_RANKS);
    if (sites == 0 || sites > size)
        return fail(LH_INVALID, "--sites %u: expected 1 to %u, the ranks", sites, size);
    lh_status_t status = open_meeting(&m);
    uint32_t started = 1;
    (void)fflush(stdout);
    for (; status == LH_OK && started < size; started++) {
        pids[started] = fork();
        if (pids[started] == 0) be_child(&rank, &m, started, body);
        if (pids[started] < 0) status = fail_io(errno, "fork of rank %u", started);
    }
    if (status == LH_OK)
        status = as_rank(&rank, &m, 0, body);
    else
        started--;
    for (uint32_t r = 1; r < started; r++) {
        if (status != LH_OK) (void)kill(pids[r], SIGTERM);
        (void)waitpid(pids[r], NULL, 0);
    }
    secret_free(m.secret);
    return status;
}
