/* bench_collectives.c - longhaul bench collectives [PIPELINE.ini] [--op NAME] [--sizes A..B]
 * [--ranks N] [--sites N] [--transport NAME] [--algorithm NAME] [--dtype NAME] [--quick] [--json]:
 * time and bandwidth by size, as nccl-tests print them, with every result checked. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <base/memory.h>
#include <base/sys.h>
#include <base/text.h>
#include <cli/bench_ranks.h>
#include <comm/comm.h>
#include <config/quantity.h>
#include <tensor/dtype.h>

enum { MOST_SIZES = 32, WARM_RUNS = 3, SIZE_FACTOR = 4 };

typedef struct budget { /* of each size */
    double seconds;
    uint32_t least_runs, most_runs;
} budget_t;
static const budget_t thorough = {0.4, 20, 1000}, quick = {0.01, 2, 50};

typedef struct settings {
    uint32_t op, algorithm;
    lh_dtype_t dtype;
    uint64_t sizes[MOST_SIZES];
    uint32_t size_count;
    const budget_t *budget;
    bool json;
} settings_t;

typedef struct measured {
    uint32_t algorithm;
    uint64_t wrong;
    double seconds, least; /* median and least over runs, as rank 0 saw them */
} measured_t;

typedef struct rig {
    const bench_rank_t *rank;
    const settings_t *settings;
    comm_t *comm;
    const group_t *group;
    char *whole, *cut;
    uint64_t bytes; /* of each */
    int fd;         /* behind them: open for as long as peers may want to map it */
    uint32_t arena;
    collective_t *plans[MOST_SIZES], *barrier;
    double *times;
} rig_t;

static uint64_t elements_of(const settings_t *s, uint32_t i)
{
    return s->sizes[i] / dtype_bytes(s->dtype);
}

/* Small whole numbers: their sums are exact in any dtype, so any other result is wrong. */
static float value_at(uint32_t rank, uint64_t at)
{
    return (float)((at * 5 + rank * 3) % 8);
}

static void set_value(lh_dtype_t dtype, char *data, uint64_t at, float value)
{
    if (dtype == LH_DTYPE_F32)
        ((float *)(void *)data)[at] = value;
    else
        ((uint16_t *)(void *)data)[at] = f32_to_bf16(value);
}

static float get_value(lh_dtype_t dtype, const char *data, uint64_t at)
{
    return dtype == LH_DTYPE_F32 ? ((const float *)(const void *)data)[at]
                                 : bf16_to_f32(((const uint16_t *)(const void *)data)[at]);
}

static uint64_t part_of(const rig_t *r, uint64_t elements)
{
    return (elements + r->group->size - 1) / r->group->size;
}

/* NAN: this op does not say what is there on this rank. */
static float expected(const rig_t *r, uint32_t op, uint64_t elements, uint64_t at)
{
    const uint32_t size = r->group->size, self = r->group->self;
    const uint32_t owner = (uint32_t)(at / part_of(r, elements));
    float sum = 0;
    for (uint32_t m = 0; m < size; m++)
        sum += value_at(m, at);
    switch (op) {
    case COLL_ALL_REDUCE: return sum;
    case COLL_REDUCE_SCATTER: return owner == self ? sum : __builtin_nanf("");
    case COLL_REDUCE: return self == 0 ? sum : __builtin_nanf("");
    case COLL_ALL_GATHER: return value_at(owner, at);
    case COLL_BROADCAST: return value_at(0, at);
    case COLL_SCATTER: return owner == self ? value_at(0, at) : __builtin_nanf("");
    case COLL_GATHER: return self == 0 ? value_at(owner, at) : __builtin_nanf("");
    default: return __builtin_nanf("");
    }
}

static void fill(rig_t *r, uint64_t elements)
{
    for (uint64_t i = 0; i < elements; i++)
        set_value(r->settings->dtype, r->whole, i, value_at(r->group->self, i));
}

static uint64_t count_wrong(const rig_t *r, uint64_t elements)
{
    uint64_t wrong = 0;
    const uint32_t self = r->group->self, op = r->settings->op;
    const uint64_t part = part_of(r, elements);
    for (uint64_t i = 0; i < elements; i++) {
        float want = expected(r, op, elements, i);
        float got = get_value(r->settings->dtype, r->whole, i);
        if (op == COLL_ALL_TO_ALL) {
            const uint64_t mine = part * self >= elements         ? 0
                                  : elements - part * self < part ? elements - part * self
                                                                  : part;
            if (i >= mine * r->group->size) break;
            want = value_at((uint32_t)(i / mine), part * self + i % mine);
            got = get_value(r->settings->dtype, r->cut, i);
        }
        wrong += want == want && want != got;
    }
    return wrong;
}

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
    fill(r, elements_of(r->settings, i));
    const lh_status_t status = run_once(r, r->plans[i], &seconds);
    if (status == LH_OK) *wrong += count_wrong(r, elements_of(r->settings, i));
    return status;
}

/* Every rank takes rank 0's word for how often. */
static lh_status_t agree_runs(rig_t *r, double seconds, uint32_t *runs)
{
    const budget_t *budget = r->settings->budget;
    double wanted = budget->seconds / (seconds + 1e-7);
    if (wanted > budget->most_runs) wanted = budget->most_runs;
    if (wanted < budget->least_runs) wanted = budget->least_runs;
    uint64_t mine = (uint64_t)wanted;
    uint64_t *all = mem_array(r->group->size, sizeof(*all));
    if (all == NULL) return LH_NO_MEMORY;
    const lh_status_t status = control_gather(r->rank->control, &mine, sizeof(mine), all);
    if (status == LH_OK) *runs = (uint32_t)all[0];
    mem_free(all);
    return status;
}

static lh_status_t sum_wrong(rig_t *r, uint64_t *wrong)
{
    uint64_t *all = mem_array(r->group->size, sizeof(*all));
    if (all == NULL) return LH_NO_MEMORY;
    const lh_status_t status = control_gather(r->rank->control, wrong, sizeof(*wrong), all);
    *wrong = 0;
    for (uint32_t m = 0; status == LH_OK && m < r->group->size; m++)
        *wrong += all[m];
    mem_free(all);
    return status;
}

static lh_status_t measure(rig_t *r, uint32_t i, measured_t *out)
{
    uint32_t runs = 0;
    double seconds = 0;
    lh_status_t status = check_once(r, i, &out->wrong);
    memset(r->whole, 0, r->bytes);
    for (uint32_t k = 0; status == LH_OK && k < WARM_RUNS; k++)
        status = run_once(r, r->plans[i], &seconds);
    if (status == LH_OK) status = agree_runs(r, seconds, &runs);
    for (uint32_t k = 0; status == LH_OK && k < runs; k++)
        status = run_once(r, r->plans[i], &r->times[k]);
    if (status == LH_OK) status = check_once(r, i, &out->wrong);
    if (status == LH_OK) status = sum_wrong(r, &out->wrong);
    if (status != LH_OK) return status;
    qsort(r->times, runs, sizeof(*r->times), by_time);
    out->seconds = r->times[runs / 2];
    out->least = r->times[0];
    out->algorithm = collective_algorithm(r->plans[i]);
    return LH_OK;
}

/* What of the bytes crosses the busiest link, so that figures of all ops compare with its speed. */
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

static void print_head(const rig_t *r)
{
    const settings_t *s = r->settings;
    print_line("# %s of %s, %u ranks, %u sites, transport %s; GB = 1e9 bytes, time: median",
               coll_op_names[s->op], dtype_name(s->dtype), r->group->size, r->group->sites,
               transport_of(r));
    printf("%12s %12s %10s %12s %12s %10s %10s %8s\n", "bytes", "elements", "algorithm", "time_us",
           "least_us", "algbw_GB/s", "busbw_GB/s", "#wrong");
}

static void print_row(const rig_t *r, uint32_t i, const measured_t *m)
{
    const settings_t *s = r->settings;
    const double rate = (double)s->sizes[i] / m->seconds * 1e-9;
    printf("%12llu %12llu %10s %12.2f %12.2f %10.3f %10.3f %8llu\n",
           (unsigned long long)s->sizes[i], (unsigned long long)elements_of(s, i),
           coll_algorithm_names[m->algorithm], m->seconds * 1e6, m->least * 1e6, rate,
           rate * bus_factor(s->op, r->group->size), (unsigned long long)m->wrong);
}

static json_t *json_row(const rig_t *r, uint32_t i, const measured_t *m)
{
    const settings_t *s = r->settings;
    const double rate = (double)s->sizes[i] / m->seconds;
    return json_pack("{s:I, s:I, s:s, s:f, s:f, s:f, s:f, s:I}", "bytes", (json_int_t)s->sizes[i],
                     "elements", (json_int_t)elements_of(s, i), "algorithm",
                     coll_algorithm_names[m->algorithm], "seconds", m->seconds, "least_seconds",
                     m->least, "algorithm_bytes_per_second", rate, "bus_bytes_per_second",
                     rate * bus_factor(s->op, r->group->size), "wrong", (json_int_t)m->wrong);
}

static lh_status_t print_json(const rig_t *r, json_t *rows)
{
    const settings_t *s = r->settings;
    json_t *root = json_pack("{s:s, s:s, s:I, s:I, s:s, s:o}", "op", coll_op_names[s->op], "dtype",
                             dtype_name(s->dtype), "ranks", (json_int_t)r->group->size, "sites",
                             (json_int_t)r->group->sites, "transport", transport_of(r), "rows",
                             rows);
    char *text = root == NULL ? NULL : json_dumps(root, JSON_INDENT(1));
    json_decref(root);
    if (text == NULL) return fail(LH_NO_MEMORY, "no memory for the JSON");
    (void)puts(text);
    json_free_t release;
    json_get_alloc_funcs(NULL, &release);
    release(text);
    return LH_OK;
}

static lh_status_t measure_all(rig_t *r)
{
    const settings_t *s = r->settings;
    const bool speaks = r->rank->world->row.rank == 0;
    json_t *rows = speaks && s->json ? json_array() : NULL;
    lh_status_t status = LH_OK;
    uint64_t wrong = 0;
    if (speaks && !s->json) print_head(r);
    for (uint32_t i = 0; status == LH_OK && i < s->size_count; i++) {
        measured_t m = {0};
        status = measure(r, i, &m);
        wrong += m.wrong;
        if (status == LH_OK && speaks && !s->json) print_row(r, i, &m);
        if (status == LH_OK && rows != NULL) json_array_append_new(rows, json_row(r, i, &m));
    }
    if (status == LH_OK && rows != NULL) return print_json(r, rows);
    json_decref(rows);
    if (status == LH_OK && wrong > 0)
        status = fail(LH_CORRUPT, "%llu elements are wrong", (unsigned long long)wrong);
    return status;
}

static lh_status_t make_memory(rig_t *r)
{
    /* An all-to-all rounds each piece up. */
    const uint64_t most = r->settings->sizes[r->settings->size_count - 1] + r->group->size * 64u;
    r->bytes = (most + 4095) / 4096 * 4096;
    const int fd = r->fd = memfd_create("longhaul-bench", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)(2 * r->bytes)) != 0)
        return fail(LH_IO, "memory for %llu bytes", (unsigned long long)(2 * r->bytes));
    char *memory = mmap(NULL, 2 * r->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return fail(LH_IO, "mapping %llu bytes", 2ull * r->bytes);
    memset(memory, 0, 2 * r->bytes);
    r->whole = memory;
    r->cut = memory + r->bytes;
    r->times = mem_array(r->settings->budget->most_runs, sizeof(*r->times));
    const lh_status_t status = comm_arena(r->comm, memory, 2 * r->bytes, fd, 0, &r->arena);
    return r->times == NULL ? LH_NO_MEMORY : status;
}

static lh_status_t make_plans(rig_t *r)
{
    const settings_t *s = r->settings;
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
                           .elements = elements_of(s, i),
                           .whole = {r->whole, r->arena},
                           .cut = {s->op == COLL_ALL_TO_ALL ? r->cut : NULL, r->arena},
                           .service = LH_SERVICE_GRADIENT,
                           .algorithm = s->algorithm};
        status = collective_new(r->comm, &how, &r->plans[i]);
    }
    return status == LH_OK ? comm_connect(r->comm) : status;
}

static lh_status_t body(const bench_rank_t *rank)
{
    rig_t r = {.rank = rank, .settings = rank->context, .fd = -1};
    const comm_how_t how = {.job = rank->job,
                            .registry = rank->cli->plugins,
                            .world = rank->world,
                            .control = rank->control};
    lh_status_t status = comm_open(&how, &r.comm);
    if (status != LH_OK) return status;
    r.group = comm_group(r.comm, LH_GROUP_DATA);
    status = r.group == NULL ? LH_NO_MEMORY : make_memory(&r);
    if (status == LH_OK) status = make_plans(&r);
    if (status == LH_OK) status = measure_all(&r);
    if (status == LH_OK) status = control_barrier(rank->control, "end of the measurement");
    comm_close(r.comm);
    if (r.whole != NULL) (void)munmap(r.whole, 2 * r.bytes);
    if (r.fd >= 0) (void)close(r.fd);
    mem_free(r.times);
    return status;
}

static lh_status_t find_name(const char *flag, const char *value, const char *const *names,
                             uint32_t first, uint32_t count, uint32_t *out)
{
    text_t known = {0};
    for (uint32_t i = first; i < count; i++) {
        if (strcmp(value, names[i]) == 0) {
            *out = i;
            text_free(&known);
            return LH_OK;
        }
        text_printf(&known, "%s%s", i == first ? "" : ", ", names[i]);
    }
    const lh_status_t status = fail(LH_INVALID, "--%s %s: expected one of %s", flag, value,
                                    known.data != NULL ? known.data : "");
    text_free(&known);
    return status;
}

/* "1KiB..64MiB", or one size. */
static lh_status_t parse_sizes(const char *value, settings_t *s)
{
    char text[64];
    uint64_t first, last;
    (void)snprintf(text, sizeof(text), "%s", value);
    char *dots = strstr(text, "..");
    if (dots != NULL) *dots = '\0';
    if (strlen(value) >= sizeof(text) || !quantity_bytes(text, &first) ||
        !quantity_bytes(dots != NULL ? dots + 2 : text, &last) || first < 4 || last < first)
        return fail(LH_INVALID, "--sizes %s: expected bytes such as 1KiB..64MiB", value);
    for (uint64_t size = first; size <= last && s->size_count < MOST_SIZES; size *= SIZE_FACTOR)
        s->sizes[s->size_count++] = size / 4 * 4;
    return LH_OK;
}

static lh_status_t parse_settings(const cli_t *cli, settings_t *s)
{
    const char *op = cli_flag(cli, "op"), *algorithm = cli_flag(cli, "algorithm");
    const char *sizes = cli_flag(cli, "sizes"), *dtype = cli_flag(cli, "dtype");
    static const char *const dtypes[] = {[LH_DTYPE_F32] = "f32", [LH_DTYPE_BF16] = "bf16"};
    *s = (settings_t){.op = COLL_ALL_REDUCE,
                      .dtype = LH_DTYPE_F32,
                      .budget = cli_flag(cli, "quick") != NULL ? &quick : &thorough,
                      .json = cli_flag(cli, "json") != NULL};
    lh_status_t status = parse_sizes(sizes != NULL ? sizes : "1KiB..64MiB", s);
    if (status == LH_OK && op != NULL)
        status = find_name("op", op, coll_op_names, 1, COLL_BARRIER, &s->op);
    if (status == LH_OK && algorithm != NULL)
        status = find_name("algorithm", algorithm, coll_algorithm_names, 0, COLL_ALGORITHMS,
                           &s->algorithm);
    if (status == LH_OK && dtype != NULL)
        status = find_name("dtype", dtype, dtypes, LH_DTYPE_F32, LH_DTYPE_BF16 + 1, &s->dtype);
    return status;
}

static lh_status_t parse_number(const cli_t *cli, const char *flag, uint32_t *out)
{
    uint64_t number;
    const char *value = cli_flag(cli, flag);
    if (value == NULL) return LH_OK;
    if (!quantity_u64(value, &number) || number > UINT32_MAX)
        return fail(LH_INVALID, "--%s %s: expected a number", flag, value);
    *out = (uint32_t)number;
    return LH_OK;
}

/* Where no pipeline says otherwise: every default. It is never prepared. */
static lh_status_t default_job(const cli_t *cli, job_t **out)
{
    static const char text[] = "[pipeline]\nname = bench\nstages = prepare\n"
                               "[prepare]\ninput = none\ntokenizer = none\n";
    char path[64];
    const int fd = memfd_create("bench.ini", MFD_CLOEXEC);
    if (fd < 0 || write(fd, text, sizeof(text) - 1) != (ssize_t)sizeof(text) - 1)
        return fail(LH_IO, "memory for a pipeline");
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    const lh_status_t status = job_load(path, cli->sets, cli->set_count, out);
    (void)close(fd);
    return status;
}

static lh_status_t use_transport(job_t *job, const char *name)
{
    for (uint32_t s = LH_LINK_NODE; name != NULL && s < JOB_SCOPES; s++) {
        mem_free(job->transports[s].plugin);
        job->transports[s].plugin = mem_text(name);
        if (job->transports[s].plugin == NULL) return LH_NO_MEMORY;
    }
    return LH_OK;
}

int bench_collectives(cli_t *cli)
{
    settings_t settings;
    job_t *job = cli->job;
    uint32_t ranks = 2, sites = 1;
    lh_status_t status = parse_settings(cli, &settings);
    if (status == LH_OK) status = parse_number(cli, "ranks", &ranks);
    if (status == LH_OK) status = parse_number(cli, "sites", &sites);
    if (status == LH_OK && job == NULL) status = default_job(cli, &job);
    if (status == LH_OK) status = use_transport(job, cli_flag(cli, "transport"));
    if (status == LH_OK) status = bench_ranks(cli, job, ranks, sites, body, &settings);
    if (job != cli->job) job_free(job);
    return status;
}
