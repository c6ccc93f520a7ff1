/* collective_bench.c - what each rank does: collectives, their clock and a look at their results.
 *
 * Ranks are processes, as in a job, with links and plugins of their own. Each runs the same
 * sequence of collectives; a barrier before each run lets the clock of rank 0 measure the
 * collective and not who came late. */
#include <plan/collective_bench.h>

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <longhaul/dtype.h>

#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <comm/comm.h>
#include <control/control_open.h>
#include <control/world.h>

/* ---- ranks of a measurement ---- */

/* join_ns is how long ranks wait for each other before the first is missed. */
enum { MOST_RANKS = 256 };
static const uint64_t join_ns = 30000000000;

/* What all ranks need to find rank 0: made before the fork, so that every child has it. */
typedef struct meeting {
    secret_t *secret;
    int listener;
    uint16_t port;
    uint32_t size, sites;
    char host[WORLD_HOST_NAME];
} meeting_t;

/* Each rank keeps to one of the processors that this process may use: to one of its own where there
 * are enough, else neighbours share one, as evenly as can be and as a launcher binds them
 * (launch/machine.c). Left to the kernel, three of four ranks may come to share one of two
 * processors whenever they wake. As ranks spin, the fourth leaves its processor idle for no moment
 * that would draw one of them over. */
static void take_processor(uint32_t self, uint32_t size)
{
    cpu_set_t mine, one;
    if (sched_getaffinity(0, sizeof(mine), &mine) != 0) return;
    const uint32_t count = (uint32_t)CPU_COUNT(&mine);
    const uint32_t own = count < size ? (uint32_t)((uint64_t)self * count / size) : self;
    uint32_t at = 0;
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &mine) || at++ != own) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        (void)sched_setaffinity(0, sizeof(one), &one);
    }
}

/* Plugins ask the host for the world; it is published for as long as the body runs. */
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

/* Site s of m is a run of neighbouring ranks, as equal as whole numbers allow. The result of the
 * body goes through control_close, which makes the first failure everybody's. */
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

/* What a rank prints on stdout is nobody's: rank 0 speaks for all. Never returns. It dies with its
 * parent, so that a bench which is killed leaves no ranks behind. */
static void run_child_rank(bench_rank_t *rank, const meeting_t *m, uint32_t self,
                           lh_status_t (*body)(const bench_rank_t *rank))
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    const lh_status_t status = as_rank(rank, m, self, body);
    _exit(status == LH_OK ? EXIT_DONE : status_exit_code(status));
}

/* The listener is open before the first fork, so no rank dials too early. */
static lh_status_t open_meeting(meeting_t *m)
{
    if (gethostname(m->host, sizeof(m->host)) != 0) m->host[0] = '\0';
    m->host[sizeof(m->host) - 1] = '\0';
    lh_status_t status = secret_random(&m->secret);
    if (status == LH_OK) status = control_listen("127.0.0.1", 0, &m->listener, &m->port);
    return status;
}

/* Where a fork or rank 0's own part fails, the ranks that were started are ended by a signal: they
 * may be waiting for a rank that will not come. */
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
        if (pids[started] == 0) run_child_rank(&rank, &m, started, body);
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

/* ---- what each of them does ---- */

/* BF16 has 8 bits: sums of up to 256 are exact, of values up to 7 over so many ranks. */
enum { WARM_RUNS = 3, EXACT_RANKS = 256 / 7 };

/* A size is run for about so long, and so often at least, for the median, and at most, for memory
 * of the times. */
typedef struct budget { /* of each size */
    double seconds;
    uint32_t least_runs, most_runs;
} budget_t;
static const budget_t thorough = {0.4, 20, 1000}, quick = {0.002, 2, 50};

/* Two buffers in one piece of shared memory: whole is what the op works in; cut is where an
 * all-to-all puts its result. */
typedef struct rig { /* one rank */
    /* Of the caller, or the fork's copy. */
    const collective_bench_how_t *settings;
    const budget_t *budget;
    const world_t *world;
    control_t *control; /* NULL in a world of one */
    comm_t *comm;
    /* All ranks: LH_GROUP_DATA. */
    const group_t *group;
    char *whole, *cut;
    uint64_t bytes; /* of each */
    int fd;         /* behind them: open for as long as peers may want to map it */
    uint32_t arena;
    /* Owned by comm, as is the group; times is this struct's. */
    collective_t *plans[COLLECTIVE_BENCH_SIZES], *barrier;
    double *times;
} rig_t;

static uint64_t size_elements(const collective_bench_how_t *s, uint32_t i)
{
    return s->sizes[i] / lh_dtype_bytes(s->dtype);
}

/* Small whole numbers: their sums over all ranks are exact in any dtype, so any other result is
 * wrong. Of many ranks they are 0 and 1, as MOST_RANKS of those still add up to 256. The pattern
 * differs by rank and place, so that a piece which lands in a wrong place, or comes from a wrong
 * rank, is seen. By a mask, as a check asks for them once an element and rank: a division each
 * takes longer than the collective. */
static float value_at(const rig_t *r, uint32_t rank, uint64_t at)
{
    lh_assert(rank < r->group->size);
    const uint64_t mask = r->group->size > EXACT_RANKS ? 1 : 7;
    return (float)((at * 5 + rank * 3) & mask);
}

/* These two read and write an element of either dtype by its index. */
static void set_value(lh_dtype_t dtype, char *data, uint64_t at, float value)
{
    if (dtype == LH_DTYPE_F32)
        ((float *)(void *)data)[at] = value;
    else
        ((uint16_t *)(void *)data)[at] = lh_f32_to_bf16(value);
}

static float get_value(lh_dtype_t dtype, const char *data, uint64_t at)
{
    return dtype == LH_DTYPE_F32 ? ((const float *)(const void *)data)[at]
                                 : lh_bf16_to_f32(((const uint16_t *)(const void *)data)[at]);
}

/* The size of a member's piece; the last may be shorter. */
static uint64_t member_elements(const rig_t *r, uint64_t elements)
{
    return (elements + r->group->size - 1) / r->group->size;
}

/* NAN: this op does not say what is there on this rank. NAN stands for "not compared", as it
 * differs from itself. */
static float expected_value(const rig_t *r, uint32_t op, uint64_t elements, uint64_t at)
{
    const uint32_t size = r->group->size, self = r->group->self;
    const uint32_t owner = (uint32_t)(at / member_elements(r, elements));
    float sum = 0;
    for (uint32_t m = 0; m < size; m++)
        sum += value_at(r, m, at);
    switch (op) {
    case COLL_ALL_REDUCE: return sum;
    case COLL_REDUCE_SCATTER: return owner == self ? sum : __builtin_nanf("");
    case COLL_REDUCE: return self == 0 ? sum : __builtin_nanf("");
    case COLL_ALL_GATHER: return value_at(r, owner, at);
    case COLL_BROADCAST: return value_at(r, 0, at);
    case COLL_SCATTER: return owner == self ? value_at(r, 0, at) : __builtin_nanf("");
    case COLL_GATHER: return self == 0 ? value_at(r, owner, at) : __builtin_nanf("");
    default: return __builtin_nanf("");
    }
}

/* What this rank gives; also clears what the run before left. */
static void fill_whole(rig_t *r, uint64_t elements)
{
    for (uint64_t i = 0; i < elements; i++)
        set_value(r->settings->dtype, r->whole, i, value_at(r, r->group->self, i));
}

/* An all-to-all of elements that do not divide has pieces of unlike size; each rank compares the
 * pieces that it got. */
static uint64_t count_wrong(const rig_t *r, uint64_t elements)
{
    uint64_t wrong = 0;
    const uint32_t self = r->group->self, op = r->settings->op;
    const uint64_t part = member_elements(r, elements);
    for (uint64_t i = 0; i < elements; i++) {
        float want = expected_value(r, op, elements, i);
        float got = get_value(r->settings->dtype, r->whole, i);
        if (op == COLL_ALL_TO_ALL) {
            const uint64_t mine = part * self >= elements         ? 0
                                  : elements - part * self < part ? elements - part * self
                                                                  : part;
            if (i >= mine * r->group->size) break;
            want = value_at(r, (uint32_t)(i / mine), part * self + i % mine);
            got = get_value(r->settings->dtype, r->cut, i);
        }
        wrong += want == want && want != got;
    }
    return wrong;
}

/* Only collective and wait are inside of the clock. */
static lh_status_t run_once(rig_t *r, collective_t *x, double *seconds)
{
    lh_status_t status = collective_start(r->barrier);
    if (status == LH_OK) status = collective_wait(r->barrier);
    const uint64_t began = sys()->now_ns();
    if (status == LH_OK) status = collective_start(x);
    if (status == LH_OK) status = collective_wait(x);
    *seconds = (double)(sys()->now_ns() - began) * 1e-9;
    return status;
}

static int by_time(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Runs with and without a look at the result must do the same, so the first and last are checked.
 */
static lh_status_t check_once(rig_t *r, uint32_t i, uint64_t *wrong)
{
    double seconds;
    fill_whole(r, size_elements(r->settings, i));
    const lh_status_t status = run_once(r, r->plans[i], &seconds);
    if (status == LH_OK) *wrong += count_wrong(r, size_elements(r->settings, i));
    return status;
}

/* A number of each rank: *sum of all, *first is rank 0's. */
static lh_status_t numbers_gather(rig_t *r, uint64_t mine, uint64_t *first, uint64_t *sum)
{
    uint64_t *all = mem_array(r->group->size, sizeof(*all));
    if (all == NULL) return LH_NO_MEMORY;
    const lh_status_t status = control_gather(r->control, &mine, sizeof(mine), all);
    *first = all[0];
    *sum = 0;
    for (uint32_t m = 0; status == LH_OK && m < r->group->size; m++)
        *sum += all[m];
    mem_free(all);
    return status;
}

/* How often a size is run that takes so long, within the budget. Every rank takes rank 0's word, as
 * their clocks differ and all must run it as often. */
static lh_status_t agree_runs(rig_t *r, double seconds, uint64_t *runs)
{
    const budget_t *budget = r->budget;
    uint64_t sum;
    double wanted = budget->seconds / (seconds + 1e-7);
    if (wanted > budget->most_runs) wanted = budget->most_runs;
    if (wanted < budget->least_runs) wanted = budget->least_runs;
    return numbers_gather(r, (uint64_t)wanted, runs, &sum);
}

/* The order: one checked run, some to warm up, as many as the budget allows, one more checked.
 * Sorting makes median and least one walk. */
static lh_status_t measure_plan(rig_t *r, uint32_t i, collective_bench_row_t *out)
{
    uint64_t runs = 0, own;
    double seconds = 0;
    lh_status_t status = check_once(r, i, &out->wrong);
    memset(r->whole, 0, r->bytes);
    for (uint32_t k = 0; status == LH_OK && k < WARM_RUNS; k++)
        status = run_once(r, r->plans[i], &seconds);
    if (status == LH_OK) status = agree_runs(r, seconds, &runs);
    for (uint64_t k = 0; status == LH_OK && k < runs; k++)
        status = run_once(r, r->plans[i], &r->times[k]);
    if (status == LH_OK) status = check_once(r, i, &out->wrong);
    if (status == LH_OK) status = numbers_gather(r, out->wrong, &own, &out->wrong);
    if (status != LH_OK) return status;
    lh_assert(runs > 0 && runs <= r->budget->most_runs);
    qsort(r->times, runs, sizeof(*r->times), by_time);
    out->seconds = r->times[runs / 2];
    out->least = r->times[0];
    out->algorithm = collective_algorithm(r->plans[i]);
    return LH_OK;
}

/* What of the bytes crosses the busiest link, so that figures of all ops compare with its speed. As
 * in nccl-tests: an all-reduce is a reduce-scatter and an all-gather, each of which moves (n - 1) /
 * n of the bytes over every link. */
static double bus_factor(uint32_t op, uint32_t size)
{
    const double rest = (double)(size - 1) / size;
    switch (op) {
    case COLL_ALL_REDUCE: return 2 * rest;
    case COLL_REDUCE_SCATTER:
    case COLL_ALL_GATHER:
    case COLL_SCATTER:
    case COLL_GATHER:
    case COLL_ALL_TO_ALL: return rest;
    default: return 1;
    }
}

/* The class that is farthest of those that there are: node, site, wan. */
static const char *transport_of(const rig_t *r)
{
    link_class_t class;
    const char *name = "none";
    for (uint32_t s = LH_LINK_NODE; s <= LH_LINK_WAN; s++) {
        links_class(comm_links(r->comm), s, &class);
        if (class.transport != NULL) name = class.transport;
    }
    return name;
}

/* A wrong element does not end the measurement: the table shows all sizes, and then the bench
 * fails. */
static lh_status_t measure_all(rig_t *r)
{
    const collective_bench_how_t *s = r->settings;
    const bool speaks = r->world->row.rank == 0;
    const collective_bench_facts_t facts = {r->group->size, r->group->sites, transport_of(r)};
    lh_status_t status = LH_OK;
    uint64_t wrong = 0;
    if (speaks) s->begin(s->context, &facts);
    for (uint32_t i = 0; status == LH_OK && i < s->size_count; i++) {
        collective_bench_row_t row = {.bytes = s->sizes[i], .elements = size_elements(s, i)};
        row.bus_bytes = (double)row.bytes * bus_factor(s->op, r->group->size);
        status = measure_plan(r, i, &row);
        wrong += row.wrong;
        if (status == LH_OK && speaks) s->row(s->context, &row);
    }
    if (status == LH_OK && wrong > 0)
        status = fail(LH_CORRUPT, "%llu elements are wrong", (unsigned long long)wrong);
    return status;
}

/* A memfd, so that a transport which maps a peer's memory can. */
static lh_status_t make_memory(rig_t *r)
{
    /* An all-to-all rounds each piece up. */
    const uint64_t most = r->settings->sizes[r->settings->size_count - 1] + r->group->size * 64u;
    r->bytes = (most + 4095) / 4096 * 4096;
    const int fd = r->fd = memfd_create("longhaul-bench", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)(2 * r->bytes)) != 0)
        return fail_io(errno, "memory for %llu bytes", (unsigned long long)(2 * r->bytes));
    char *memory = mmap(NULL, 2 * r->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return fail_io(errno, "mapping %llu bytes", 2ull * r->bytes);
    memset(memory, 0, 2 * r->bytes);
    r->whole = memory;
    r->cut = memory + r->bytes;
    r->times = mem_array(r->budget->most_runs, sizeof(*r->times));
    const lh_status_t status = comm_arena(r->comm, memory, 2 * r->bytes, fd, 0, &r->arena);
    return r->times == NULL ? LH_NO_MEMORY : status;
}

/* All sizes are planned before connecting, as links are made for what plans need. */
static lh_status_t make_plans(rig_t *r)
{
    const collective_bench_how_t *s = r->settings;
    coll_how_t how = {
        .name = "barrier", .op = COLL_BARRIER, .group = r->group, .service = LH_SERVICE_GRADIENT};
    lh_status_t status = collective_new(r->comm, &how, &r->barrier);
    for (uint32_t i = 0; status == LH_OK && i < s->size_count; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "%llu bytes", (unsigned long long)s->sizes[i]);
        how = (coll_how_t){.name = name,
                           .op = s->op,
                           .group = r->group,
                           .dtype = s->dtype,
                           .elements = size_elements(s, i),
                           .whole = {r->whole, r->arena},
                           .cut = {s->op == COLL_ALL_TO_ALL ? r->cut : NULL, r->arena},
                           .service = LH_SERVICE_GRADIENT,
                           .algorithm = s->algorithm};
        status = collective_new(r->comm, &how, &r->plans[i]);
    }
    return status == LH_OK ? comm_connect(r->comm) : status;
}

/* The last barrier keeps links open until the slowest rank has read its last bytes. */
lh_status_t collective_bench_rank(const bench_rank_t *rank)
{
    const collective_bench_how_t *settings = rank->context;
    rig_t r = {.settings = settings,
               .budget = settings->quick ? &quick : &thorough,
               .world = rank->world,
               .control = rank->control,
               .fd = -1};
    const comm_how_t how = {.job = rank->job,
                            .registry = rank->registry,
                            .world = rank->world,
                            .control = rank->control};
    lh_status_t status = comm_open(&how, &r.comm);
    if (status != LH_OK) return status;
    r.group = comm_group(r.comm, LH_GROUP_DATA);
    status = r.group == NULL ? LH_NO_MEMORY : make_memory(&r);
    if (status == LH_OK) status = make_plans(&r);
    if (status == LH_OK) status = measure_all(&r);
    if (status == LH_OK) status = control_barrier(r.control, "end of the measurement");
    comm_close(r.comm);
    if (r.whole != NULL) (void)munmap(r.whole, 2 * r.bytes);
    if (r.fd >= 0) (void)close(r.fd);
    mem_free(r.times);
    return status;
}

lh_status_t collective_bench(const collective_bench_how_t *how)
{
    return bench_ranks(how->registry, how->job, how->ranks, how->sites, collective_bench_rank, how);
}
