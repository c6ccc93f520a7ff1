/* command_bench.c - longhaul bench device [PIPELINE.ini] [--quick] [--device PLUGIN] [--json], and
 * longhaul bench collectives [PIPELINE.ini] [--op NAME] [--sizes A..B] [--ranks N] [--sites N]
 * [--transport NAME] [--algorithm NAME] [--dtype NAME] [--quick] [--json]: time and bandwidth by
 * size, as nccl-tests print them.
 *
 * Three benches that share a command, its flags, and the form of what they print: a table, or with
 * --json one object. `device` measures a device alone, and with an INI also the calls of its
 * training step; its record is what `plan` and `train` predict times from. `collectives` runs
 * on the ranks of a job, started on each of its machines as training is, or forks ranks on this one.
 * `links` runs over the machines of a job, too, and keeps the record of links that training would
 * make.
 *
 * The tables:
 *
 *     device       peak of products by dtype, memory, launch; with an INI then a row for each kind
 *                  of call: us each, GFLOP/s, GB/s, share of the ideal time, share of the step
 *     collectives  bytes, elements, algorithm, median and least time, algbw, busbw, wrong elements
 *     links        from, to, round trip, its 99th percentile, under load, rate, burst, loss, MTU;
 *                  then the cards of each machine, where the transport tells of them
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <base/dtype.h>
#include <base/log.h>
#include <base/memory.h>
#include <cli/cli.h>
#include <cli/command_check.h>
#include <cli/model_source.h>
#include <comm/collective.h>
#include <comm/comm.h>
#include <config/job_load.h>
#include <config/quantity.h>
#include <format/json.h>
#include <launch/machine.h>
#include <links/carrier.h>
#include <links/link_crowd.h>
#include <links/links_probe.h>
#include <links/links_words.h>
#include <plan/collective_bench.h>
#include <plan/device_bench.h>
#include <session/link_record.h>

/* Shapes of the first arguments tell one call from another; the table has no room for more. */
enum { SHOWN_SLOTS = 2 };

/* How long the two measurements of `bench device` should take. */
typedef struct budget { /* seconds */
    /* Of the peaks; of the calls of a step, which takes at least one step however long that is. */
    double device, program;
} budget_t;
/* Seconds: for figures to keep, and for a look (--quick). */
static const budget_t thorough = {6, 6}, quick = {0.5, 0.4};

/* Filled by registry_list, a name at a time. */
typedef struct only_device { /* the one that is installed */
    char name[32];
    text_t names;
    uint32_t count;
} only_device_t;

/* Keeps the last name, and all of them for the sentence that asks which. */
static lh_status_t note_device(void *context, const char *name)
{
    only_device_t *only = context;
    (void)snprintf(only->name, sizeof(only->name), "%s", name);
    text_printf(&only->names, "%s%s", only->count++ == 0 ? "" : ", ", name);
    return LH_OK;
}

/* From the flag, the INI, or the only one that is installed. */
static lh_status_t choose_device(const cli_t *cli, only_device_t *out)
{
    const char *asked = cli_flag(cli, "device");
    if (asked != NULL && cli->job != NULL)
        return fail(LH_INVALID, "--device %s: %s names the device already", asked, cli->ini);
    if (asked == NULL && cli->job != NULL) asked = cli->job->device.plugin;
    if (asked != NULL) return note_device(out, asked);

    const lh_status_t status = registry_list(cli->plugins, LH_KIND_DEVICE, note_device, out);
    if (status != LH_OK || out->count == 1) return status;
    if (out->count == 0)
        return fail(LH_INVALID, "%s: no device plugin is installed",
                    registry_folder_text(cli->plugins));
    return fail(LH_INVALID, "which device? --device takes one of %s; or name a PIPELINE.ini",
                out->names.data != NULL ? out->names.data : "");
}

/* The section of the pipeline, or every option's default. */
static lh_status_t device_options(const cli_t *cli, const plugin_t *device, void **out)
{
    const option_table_t table = plugin_options(device);
    if (cli->job != NULL) return job_parse_plugin(cli->job, "device", &table, NULL, 0, out);
    return options_defaults(&table, out);
}

/* What earlier benches of this device learnt about calls holds on, seen from the new peaks. An
 * efficiency is a share of the ideal time, and the ideal time follows from the peaks: with new
 * peaks the same seconds are another share. So each old row is scaled by the ratio of the two. A
 * record that can't be read is dropped with a warning. */
static lh_status_t keep_ops(device_rate_t *rate)
{
    device_rate_t old;
    bool known;
    if (device_rate_load(rate->fingerprint, &old, &known) != LH_OK) {
        log_line(LH_LOG_WARN, "the record that was there is not used: %s", fail_reason());
        return LH_OK;
    }
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; known && status == LH_OK && i < old.op_count; i++) {
        op_rate_t op = old.ops[i];
        lh_dtype_t dtype = LH_DTYPE_F32;
        const char *name = strrchr(op.kind, ' ');
        if (name != NULL) (void)dtype_find(name + 1, &dtype);
        const double before = device_rate_ideal(&old, dtype, op.flops, op.bytes);
        const double now = device_rate_ideal(rate, dtype, op.flops, op.bytes);
        if (before <= 0 || now <= 0) continue;
        op.efficiency *= now / before;
        status = device_rate_add(rate, &op);
    }
    if (known) device_rate_free(&old);
    return status;
}

/* programs stay open for the caller, as the rows point into them, and the world with them. They are
 * those of rank 0 of the job, whose step this process makes without the others. */
static lh_status_t measure_program(cli_t *cli, double budget_s, plan_programs_t *programs,
                                   world_t **world, device_rate_t *rate, measured_call_t **rows,
                                   uint32_t *count)
{
    model_source_t source;
    lh_status_t status = job_require(cli->job, STAGE_TRAIN);
    if (status == LH_OK)
        status = model_source_open(cli->job, cli->plugins, TOKENIZER_PLANNED, &source);
    if (status != LH_OK) return status;
    plan_programs_how_t how = {.session = model_source_session(&source, cli->plugins),
                               .documents = plan_documents(cli->job, model_source_eod(&source))};
    status = world_plan(cli->job, 0, world);
    how.session.world = *world;
    if (status == LH_OK) status = plan_programs_open(&how, programs);
    if (status == LH_OK) status = device_bench_program(programs, budget_s, rate, rows, count);
    model_source_close(&source);
    return status;
}

/* "[8,128][128,512]", as far as room reaches. */
static void measured_shapes_text(const measured_call_t *row, char *out, size_t room)
{
    size_t at = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < row->arg_count && i < SHOWN_SLOTS; i++) {
        for (uint32_t d = 0; d < row->args[i].rank && at < room; d++)
            at += (size_t)snprintf(out + at, room - at, "%s%llu", d == 0 ? "[" : ",",
                                   (unsigned long long)row->args[i].shape[d]);
        if (row->args[i].rank > 0 && at < room) at += (size_t)snprintf(out + at, room - at, "]");
    }
}

/* A call is rebuilt from the row's arguments, as only they decide the dtype. */
static double row_ideal(const device_rate_t *rate, const measured_call_t *row)
{
    const program_call_t call = {.args = row->args, .arg_count = row->arg_count};
    return device_rate_ideal(rate, device_rate_dtype(&call), row->flops, row->bytes);
}

/* By the time that all calls of a row take in a step. */
static int measured_slower_first(const void *a, const void *b)
{
    const measured_call_t *x = a, *y = b;
    const double p = x->seconds * (double)x->count, q = y->seconds * (double)y->count;
    return p > q ? -1 : p < q;
}

/* Time of one call, its rates, the share of the ideal, and the share of the step. A time of 0 is
 * shown as a nanosecond, as a rate needs one. */
static void print_rows(const device_rate_t *rate, const measured_call_t *rows, uint32_t count)
{
    /* The step as the sum of its calls, without what lies between them. */
    double total = 0;
    for (uint32_t i = 0; i < count; i++)
        total += rows[i].seconds * (double)rows[i].count;
    printf("\none training step, call by call: %.2f ms\n", total * 1e3);
    printf("%-24s %-26s %6s %9s %8s %7s %6s %6s\n", "op", "shapes", "calls", "us each", "GFLOP/s",
           "GB/s", "effic.", "share");
    for (uint32_t i = 0; i < count; i++) {
        const measured_call_t *r = &rows[i];
        char shapes[64];
        measured_shapes_text(r, shapes, sizeof(shapes));
        const double s = r->seconds > 0 ? r->seconds : 1e-9;
        printf("%-24s %-26s %6llu %9.1f %8.1f %7.1f %5.0f%% %5.1f%%\n", r->kind, shapes,
               (unsigned long long)r->count, s * 1e6, r->flops / s * 1e-9, r->bytes / s * 1e-9,
               100 * row_ideal(rate, r) / s, 100 * s * (double)r->count / total);
    }
}

/* Only dtypes that have a kernel for products have a line. */
static void print_table(const device_rate_t *rate, const measured_call_t *rows, uint32_t count)
{
    cli_print_line("%s", rate->name);
    for (uint32_t d = 0; d < LH_DTYPES; d++)
        if (rate->peak_flops[d] > 0)
            printf("  matmul %-5s %10.1f GFLOP/s\n", lh_dtype_name(d), rate->peak_flops[d] * 1e-9);
    printf("  memory       %10.1f GB/s, read and written by a copy\n",
           rate->bytes_per_second * 1e-9);
    printf("  launch       %10.2f us\n", rate->launch_s * 1e6);
    if (count > 0) print_rows(rate, rows, count);
}

/* Plain units, seconds and bytes and operations, so that no reader has to know a prefix. */
static lh_status_t rate_print_json(const device_rate_t *rate, const measured_call_t *rows,
                                   uint32_t count)
{
    text_t text = {0};
    json_writer_t w = {.to = &text, .style = 1};
    json_open(&w, NULL, '{');
    json_put_text(&w, "name", rate->name);
    json_put_text(&w, "fingerprint", rate->fingerprint);
    json_put_real(&w, "bytes_per_second", rate->bytes_per_second);
    json_put_real(&w, "launch_s", rate->launch_s);
    json_open(&w, "peak_flops", '{');
    for (uint32_t d = 0; d < LH_DTYPES; d++)
        if (rate->peak_flops[d] > 0) json_put_real(&w, lh_dtype_name(d), rate->peak_flops[d]);
    json_close(&w);
    json_open(&w, "calls", '[');
    for (uint32_t i = 0; i < count; i++) {
        const measured_call_t *r = &rows[i];
        char shapes[64];
        measured_shapes_text(r, shapes, sizeof(shapes));
        json_open(&w, NULL, '{');
        json_put_text(&w, "kind", r->kind);
        json_put_text(&w, "shapes", shapes);
        json_put_text(&w, "kernel", r->kernel);
        json_put_u64(&w, "calls", r->count);
        json_put_real(&w, "seconds", r->seconds);
        json_put_real(&w, "flops", r->flops);
        json_put_real(&w, "bytes", r->bytes);
        json_put_real(&w, "efficiency", r->seconds > 0 ? row_ideal(rate, r) / r->seconds : 0.0);
        json_close(&w);
    }
    json_close(&w);
    json_close(&w);
    return cli_print_text(&text);
}

/* An unwritable cache is no reason to throw the figures away. Told where, since the file lies in
 * the user's cache and not beside the job. */
static void rate_keep(const device_rate_t *rate)
{
    char *path;
    if (device_rate_save(rate) != LH_OK || device_rate_path(rate->fingerprint, &path) != LH_OK) {
        log_line(LH_LOG_WARN, "the record is not kept: %s", fail_reason());
        return;
    }
    log_line(LH_LOG_INFO, "kept in %s", path);
    mem_free(path);
}

/* This process takes its share of the machine first, as a rank would: a measurement with all
 * processors would promise too much. */
static lh_status_t bench_device(cli_t *cli, const plugin_t *device, const void *config)
{
    const budget_t *budget = cli_flag(cli, "quick") != NULL ? &quick : &thorough;
    /* Index 0: a device plugin's first device. */
    const device_bench_how_t how = {.device = device, .config = config, .budget_s = budget->device};
    device_rate_t rate = {0};
    plan_programs_t programs = {0};
    world_t *world = NULL;
    measured_call_t *rows = NULL;
    uint32_t count = 0;

    if (cli->job != NULL) machine_take_share(cli->job);
    lh_status_t status = device_bench(&how, &rate);
    if (status == LH_OK) status = keep_ops(&rate);
    if (status == LH_OK && cli->job != NULL)
        status = measure_program(cli, budget->program, &programs, &world, &rate, &rows, &count);
    if (status == LH_OK) {
        if (count > 0) qsort(rows, count, sizeof(*rows), measured_slower_first);
        if (cli_flag(cli, "json") != NULL)
            status = rate_print_json(&rate, rows, count);
        else
            print_table(&rate, rows, count);
        rate_keep(&rate);
    }
    mem_free(rows);
    plan_programs_close(&programs);
    world_free(world);
    device_rate_free(&rate);
    return status;
}

/* On the ranks of the job, of which each machine starts its own. Nothing is to start again: who
 * measures wants to hear of a rank that was lost. */
static int bench_as_ranks(cli_t *cli, int (*body)(void *context), void *context)
{
    char **words;
    cli->job->launch.restarts = 0;
    const lh_status_t status = cli_words(cli, cli->command, &words);
    if (status != LH_OK) return status;
    const int code = launch_ranks(cli->launch, words, body, context);
    cli_words_free(words);
    return code;
}

/* ---- bench collectives ---- */

enum { SIZE_FACTOR = 4 }; /* from one size to the next */

/* Context of the two callbacks, which are called on rank 0 alone. */
typedef struct collectives { /* what the command prints of them */
    cli_t *cli;
    const collective_bench_how_t *how;
    json_writer_t *json; /* NULL: a table */
} collectives_t;

/* The head of the table, or the beginning of the object, whose lists are closed by
 * bench_collectives. */
static void begin_collectives(void *context, const collective_bench_facts_t *facts)
{
    const collectives_t *c = context;
    const char *op = coll_op_names[c->how->op], *dtype = lh_dtype_name(c->how->dtype);
    if (c->json == NULL) {
        cli_print_line("# %s of %s, %u ranks, %u sites, transport %s; GB = 1e9 bytes, time: median",
                       op, dtype, facts->ranks, facts->sites, facts->transport);
        printf("%12s %12s %10s %12s %12s %10s %10s %8s\n", "bytes", "elements", "algorithm",
               "time_us", "least_us", "algbw_GB/s", "busbw_GB/s", "#wrong");
        return;
    }
    json_open(c->json, NULL, '{');
    json_put_text(c->json, "op", op);
    json_put_text(c->json, "dtype", dtype);
    json_put_u64(c->json, "ranks", facts->ranks);
    json_put_u64(c->json, "sites", facts->sites);
    json_put_text(c->json, "transport", facts->transport);
    json_open(c->json, "rows", '[');
}

/* algbw is bytes over time; busbw is what the busiest link carried, which compares between ops. */
static void put_collective(void *context, const collective_bench_row_t *m)
{
    const collectives_t *c = context;
    lh_assert(m->algorithm < COLL_ALGORITHMS);
    const char *algorithm = coll_algorithm_names[m->algorithm];
    const double rate = (double)m->bytes / m->seconds, bus = m->bus_bytes / m->seconds;
    if (c->json == NULL) {
        printf("%12llu %12llu %10s %12.2f %12.2f %10.3f %10.3f %8llu\n",
               (unsigned long long)m->bytes, (unsigned long long)m->elements, algorithm,
               m->seconds * 1e6, m->least * 1e6, rate * 1e-9, bus * 1e-9,
               (unsigned long long)m->wrong);
        return;
    }
    json_open(c->json, NULL, '{');
    json_put_u64(c->json, "bytes", m->bytes);
    json_put_u64(c->json, "elements", m->elements);
    json_put_text(c->json, "algorithm", algorithm);
    json_put_real(c->json, "seconds", m->seconds);
    json_put_real(c->json, "least_seconds", m->least);
    json_put_real(c->json, "algorithm_bytes_per_second", rate);
    json_put_real(c->json, "bus_bytes_per_second", bus);
    json_put_u64(c->json, "wrong", m->wrong);
    json_close(c->json);
}

/* Names from `first` on may be chosen; what comes before is for the program's own use. */
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

/* "1KiB..64MiB", or one size. Each size is SIZE_FACTOR times the one before and a multiple of 4
 * bytes, so that it holds whole elements of any dtype. */
static lh_status_t parse_sizes(const char *value, collective_bench_how_t *s)
{
    char text[64];
    uint64_t first, last;
    lh_assert(s->size_count == 0);
    (void)snprintf(text, sizeof(text), "%s", value);
    char *dots = strstr(text, "..");
    if (dots != NULL) *dots = '\0';
    if (strlen(value) >= sizeof(text) || !quantity_bytes(text, &first) ||
        !quantity_bytes(dots != NULL ? dots + 2 : text, &last) || first < 4 || last < first)
        return fail(LH_INVALID, "--sizes %s: expected bytes such as 1KiB..64MiB", value);
    for (uint64_t size = first; size <= last && s->size_count < COLLECTIVE_BENCH_SIZES;
         size *= SIZE_FACTOR)
        s->sizes[s->size_count++] = size / 4 * 4;
    return LH_OK;
}

/* What is not given keeps the default that `s` came with. */
static lh_status_t parse_collectives(const cli_t *cli, collective_bench_how_t *s)
{
    const char *op = cli_flag(cli, "op"), *algorithm = cli_flag(cli, "algorithm");
    const char *sizes = cli_flag(cli, "sizes"), *dtype = cli_flag(cli, "dtype");
    static const char *const dtypes[] = {[LH_DTYPE_F32] = "f32", [LH_DTYPE_BF16] = "bf16"};
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

/* Bounds are checked by bench_ranks, which knows them. */
static lh_status_t parse_flag_number(const cli_t *cli, const char *flag, uint32_t *out)
{
    uint64_t number;
    const char *value = cli_flag(cli, flag);
    if (value == NULL) return LH_OK;
    if (!quantity_u64(value, &number) || number > UINT32_MAX)
        return fail(LH_INVALID, "--%s %s: expected a number", flag, value);
    *out = (uint32_t)number;
    return LH_OK;
}

/* Where no pipeline says otherwise: every default. It is never prepared. An INI in memory goes
 * through the same loader as a file, so a default can't be one that the loader would refuse; --set
 * works on it as well. */
static lh_status_t default_job(const cli_t *cli, job_t **out)
{
    static const char text[] = "[pipeline]\nname = bench\nstages = prepare\n"
                               "[prepare]\ninput = none\ntokenizer = none\n";
    char path[64];
    const int fd = memfd_create("bench.ini", MFD_CLOEXEC);
    if (fd < 0 || write(fd, text, sizeof(text) - 1) != (ssize_t)sizeof(text) - 1)
        return fail_io(errno, "memory for a pipeline");
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    const lh_status_t status = job_load(path, cli->sets, cli->set_count, out);
    (void)close(fd);
    return status;
}

/* For every class of link, as the test machine plays all of them. */
static lh_status_t use_transport(job_t *job, const char *name)
{
    for (uint32_t s = LH_LINK_NODE; name != NULL && s < JOB_SCOPES; s++) {
        mem_free(job->transports[s].plugin);
        job->transports[s].plugin = mem_text(name);
        if (job->transports[s].plugin == NULL) return LH_NO_MEMORY;
    }
    return LH_OK;
}

/* Runs in each rank of a job. */
static int collectives_as_rank(void *context)
{
    const collectives_t *c = context;
    const bench_rank_t rank = {.registry = c->cli->plugins,
                               .job = c->how->job,
                               .world = launch_world(c->cli->launch),
                               .control = launch_control(c->cli->launch),
                               .context = c->how};
    return collective_bench_rank(&rank);
}

/* Whether the INI or a starter has ranks of their own, on one machine or on several, and no flag
 * asks for others. */
static bool collectives_of_job(const cli_t *cli)
{
    return cli->job != NULL && cli_flag(cli, "ranks") == NULL && cli_flag(cli, "sites") == NULL &&
           (job_ranks(cli->job) > 1 || launch_size(cli->launch) > 1);
}

/* The job's ranks, or those that are forked. In a launcher nothing is measured. */
static int collectives_run(collectives_t *c)
{
    if (collectives_of_job(c->cli)) return bench_as_ranks(c->cli, collectives_as_rank, c);
    return collective_bench(c->how);
}

/* Rows are printed as they are measured; JSON comes out at the end, as one text. */
static int bench_collectives(cli_t *cli)
{
    text_t text = {0};
    json_writer_t json = {.to = &text, .style = 1};
    job_t *job = cli->job;
    collective_bench_how_t how = {.registry = cli->plugins,
                                  .ranks = 2,
                                  .sites = 1,
                                  .op = COLL_ALL_REDUCE,
                                  .dtype = LH_DTYPE_F32,
                                  .quick = cli_flag(cli, "quick") != NULL,
                                  .begin = begin_collectives,
                                  .row = put_collective};
    /* Lives as long as the bench, whose callbacks get it. */
    collectives_t shown = {cli, &how, cli_flag(cli, "json") != NULL ? &json : NULL};
    how.context = &shown;
    int status = parse_collectives(cli, &how);
    if (status == LH_OK) status = parse_flag_number(cli, "ranks", &how.ranks);
    if (status == LH_OK) status = parse_flag_number(cli, "sites", &how.sites);
    if (status == LH_OK && job == NULL) status = default_job(cli, &job);
    if (status == LH_OK) status = use_transport(job, cli_flag(cli, "transport"));
    how.job = job;
    if (status == LH_OK) status = collectives_run(&shown);
    /* The list of rows and the object around it, which begin_collectives has opened. */
    while (status == LH_OK && json.depth > 0)
        json_close(&json);
    if (status == LH_OK) status = cli_print_text(&text);
    text_free(&text);
    if (job != cli->job) job_free(job);
    return status;
}

/* ---- bench links ---- */

/* Bytes to bits, and 1e9 to a G, as links are sold. */
static double links_gbit(uint64_t bytes_per_second)
{
    return 8e-9 * (double)bytes_per_second;
}

/* Where no packet was lost, the bound below which the loss lies is all that is known; it stands
 * behind a <. */
static void links_loss_text(const probe_figures_t *f, int way, char *out, size_t room)
{
    if (f->loss_most[way] < 0)
        (void)snprintf(out, room, "-");
    else if (f->loss[way] > 0)
        (void)snprintf(out, room, "%.1e", f->loss[way]);
    else
        (void)snprintf(out, room, "<%.0e", f->loss_most[way]);
}

/* A line for each of several cards of an end, behind those of the links. */
static void links_print_cards(const probe_pair_t *pairs, uint32_t count)
{
    bool any = false;
    for (uint32_t i = 0; i < 2 * count; i++) {
        const probe_pair_t *p = &pairs[i / 2];
        const int end = i % 2;
        for (uint32_t k = 0; k < p->figures.card_count[end]; k++) {
            const probe_card_t *c = &p->figures.cards[end][k];
            char rate[24] = "-", trip[24] = "-";
            if (c->rate != 0) (void)snprintf(rate, sizeof(rate), "%.3f", links_gbit(c->rate));
            if (c->round_trip_ns != 0)
                (void)snprintf(trip, sizeof(trip), "%.2f", (double)c->round_trip_ns * 1e-6);
            if (!any)
                cli_print_line("%-20s %-20s %8s %-17s %9s %8s", "from", "to", "trip_ms", "card",
                               "Gb/s", "loss");
            any = true;
            cli_print_line("%-20s %-20s %8s %-17s %9s %8.1e", p->site[end], p->site[!end], trip,
                           c->name, rate, c->loss);
        }
    }
}

/* A line for each direction, those of cards, then a sentence for each pair, and one on what they
 * take from each other. */
static void links_print(const probe_pair_t *pairs, uint32_t count, uint32_t sites)
{
    printf("%-20s %-20s %8s %8s %8s %9s %9s %8s %6s\n", "from", "to", "trip_ms", "p99_ms",
           "load_ms", "Gb/s", "burst", "loss", "mtu");
    for (uint32_t i = 0; i < 2 * count; i++) {
        const probe_pair_t *p = &pairs[i / 2];
        const probe_figures_t *f = &p->figures;
        const int way = i % 2;
        char loss[32];
        if (f->measured_s == 0) continue;
        links_loss_text(f, way, loss, sizeof(loss));
        cli_print_line("%-20s %-20s %8.2f %8.2f %8.2f %9.3f %9.3f %8s %6llu", p->site[way],
                       p->site[!way], (double)f->round_trip_ns * 1e-6, (double)f->p99_ns * 1e-6,
                       (double)f->loaded_ns * 1e-6, links_gbit(f->rate[way]),
                       links_gbit(f->burst[way]), loss, (unsigned long long)f->path_mtu);
    }
    links_print_cards(pairs, count);
    for (uint32_t i = 0; i < count; i++) {
        char text[512];
        if (pairs[i].figures.measured_s == 0) continue;
        link_probe_text(&pairs[i], text, sizeof(text));
        cli_print_line("%s (%.1f s)", text, (double)pairs[i].figures.took_ns * 1e-9);
    }
    char text[256];
    if (link_crowd_text(pairs, sites, text, sizeof(text))) cli_print_line("%s", text);
}

/* As the record itself is written. */
static lh_status_t links_print_json(const probe_pair_t *pairs, uint32_t count,
                                    const probe_words_t *words, uint32_t word_count)
{
    text_t text = {0};
    link_record_text(pairs, count, words, word_count, &text);
    return cli_print_text(&text);
}

/* Rank 0 only. Links inside one machine are not measured, so a job whose sites all lie here has
 * none to show; nor has one whose plugin takes too few messages at once. */
static lh_status_t links_tell(cli_t *cli, const links_t *links)
{
    uint32_t count, word_count, measured = 0;
    const probe_pair_t *pairs = links_pairs(links, &count);
    const probe_words_t *words = links_words(links, &word_count);
    for (uint32_t i = 0; i < count; i++)
        measured += pairs[i].figures.measured_s != 0;
    if (measured == 0) {
        const lh_status_t status = links_probe_fits(links);
        if (status != LH_OK) return status;
        return fail(LH_INVALID,
                    "%s: its sites are all on one machine; expected sites that are "
                    "joined by a link",
                    cli->ini);
    }
    link_record_keep(cli->job, pairs, count, words, word_count);
    if (cli_flag(cli, "json") != NULL) return links_print_json(pairs, count, words, word_count);
    links_print(pairs, count, launch_world(cli->launch)->row.sites);
    return LH_OK;
}

/* The cards of the transport between sites, of each machine by its first rank; all ranks call it.
 * What does not fit into the bytes that travel is cut. */
static lh_status_t links_cards(cli_t *cli)
{
    enum { CARDS_BYTES = 4096 };
    const world_t *world = launch_world(cli->launch);
    const plugin_t *plugin;
    char name[32], mine[CARDS_BYTES] = "";
    const char *carrier = carrier_plugin(cli->job, cli->plugins, LH_LINK_WAN, name);
    if (carrier == NULL) return LH_IO;
    lh_status_t status = registry_load(cli->plugins, LH_KIND_TRANSPORT, carrier, &plugin);
    char *all = status == LH_OK ? mem_array(world->row.size, CARDS_BYTES) : NULL;
    if (status == LH_OK && all == NULL) status = LH_NO_MEMORY;
    if (status == LH_OK && world->ranks[world->row.rank].local_rank == 0) {
        text_t text = {0};
        cli_cards(plugin, &text);
        if (text.data != NULL) (void)snprintf(mine, sizeof(mine), "%s", text.data);
        text_free(&text);
    }
    if (status == LH_OK)
        status = control_gather(launch_control(cli->launch), mine, CARDS_BYTES, all);
    for (uint32_t r = 0; status == LH_OK && world->row.rank == 0 && r < world->row.size; r++) {
        const char *at = all + (size_t)r * CARDS_BYTES;
        while (*at != '\0') {
            const int length = (int)strcspn(at, "\n");
            cli_print_line("%s: %.*s", world->ranks[r].host, length, at);
            at += length + (at[length] == '\n');
        }
    }
    mem_free(all);
    return status;
}

/* Runs in each rank. The last barrier keeps the others until rank 0 has told. */
static int links_measure(void *context)
{
    cli_t *cli = context;
    comm_t *comm = NULL;
    const comm_how_t how = {.job = cli->job,
                            .registry = cli->plugins,
                            .world = launch_world(cli->launch),
                            .control = launch_control(cli->launch)};
    lh_status_t status = comm_open(&how, &comm);
    if (status == LH_OK) status = links_probe(comm_links(comm), NULL, 0);
    if (status == LH_OK && launch_rank(cli->launch) == 0)
        status = links_tell(cli, comm_links(comm));
    if (status == LH_OK && cli_flag(cli, "json") == NULL) status = links_cards(cli);
    if (status == LH_OK) status = control_barrier(how.control, "the end of the measurement");
    comm_close(comm);
    return status;
}

/* The job is told to measure whatever the record says. */
static int bench_links(cli_t *cli)
{
    if (cli->job == NULL)
        return fail(LH_INVALID, "bench links: between which sites? expected a PIPELINE.ini with "
                                "two sections [site.NAME] or more");
    if (cli->job->site_count < 2)
        return fail(LH_INVALID,
                    "%s: %u sections [site.NAME]; expected two or more, whose links "
                    "are measured",
                    cli->ini, cli->job->site_count);
    /* Whatever [comm] probe says: measuring is what this command is for. */
    cli->job->comm.probe = PROBE_ALWAYS;
    return bench_as_ranks(cli, links_measure, cli);
}

/* NAME is one of three. A flag that is passed over in silence gives figures of something else than was
 * asked for. */
static lh_status_t bench_parse(const cli_t *cli)
{
    static const char *const names[] = {"device", "collectives", "links"};
    static const struct {
        const char *flag, *of;
    } own[] = {
        {"device", "device"},         {"op", "collectives"},    {"sizes", "collectives"},
        {"ranks", "collectives"},     {"sites", "collectives"}, {"transport", "collectives"},
        {"algorithm", "collectives"}, {"dtype", "collectives"},
    };
    bool known = false;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        known = known || strcmp(names[i], cli->name) == 0;
    if (!known)
        return fail(LH_INVALID, "bench measures: device, collectives, links; not '%s'", cli->name);
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        if (strcmp(own[i].of, cli->name) != 0 && cli_flag(cli, own[i].flag) != NULL)
            return fail(LH_INVALID, "bench %s: --%s belongs to bench %s", cli->name, own[i].flag,
                        own[i].of);
    return LH_OK;
}

/* NAME decides which of the three. */
static int bench_command(cli_t *cli)
{
    if (strcmp(cli->name, "collectives") == 0) return bench_collectives(cli);
    if (strcmp(cli->name, "links") == 0) return bench_links(cli);
    only_device_t chosen = {0};
    const plugin_t *device;
    void *config = NULL;
    lh_status_t status = choose_device(cli, &chosen);
    text_free(&chosen.names);
    if (status == LH_OK) status = registry_load(cli->plugins, LH_KIND_DEVICE, chosen.name, &device);
    if (status == LH_OK) status = device_options(cli, device, &config);
    if (status == LH_OK) status = bench_device(cli, device, config);
    if (config != NULL) {
        const option_table_t table = plugin_options(device);
        job_free_config(&table, config);
    }
    return status;
}

const command_t command_bench = {
    .name = "bench",
    .summary =
        "measure; NAME is device: its peaks, with a PIPELINE.ini also the ops of its "
        "training step; collectives: time and bandwidth between ranks; or links: those between "
        "the sites of a PIPELINE.ini",
    .needs = CLI_NEEDS_PLUGINS | CLI_TAKES_NAME | CLI_MAY_TAKE_JOB | CLI_HAS_RANKS |
             CLI_NEEDS_MODEL,
    .check = check_job_options,
    .run = bench_command,
    .nameless = "what? longhaul bench device, collectives or links",
    .parse = bench_parse,
    .flags = {{"quick", NULL, "in about a second, less exact"},
              {"device", "PLUGIN", "which device, where no pipeline names one"},
              {"op", "NAME", "collectives: all-reduce if not given"},
              {"sizes", "A..B",
               "collectives: 1KiB..64MiB if not given, each four times the one before"},
              {"ranks", "N",
               "collectives: that many processes of this machine; if not given the ranks of the "
               "PIPELINE.ini, on all of its machines, or 2"},
              {"sites", "N", "collectives: that many sites, played by this machine"},
              {"transport", "PLUGIN", "collectives: over this one"},
              {"algorithm", "NAME", "collectives: direct, ring or halving"},
              {"dtype", "NAME", "collectives: f32 or bf16"},
              CLI_FLAG_HOST,
              CLI_FLAG_JSON},
};
