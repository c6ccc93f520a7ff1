/* command_bench.c - longhaul bench device [PIPELINE.ini] [--quick] [--device PLUGIN] [--json] */
#include <cli/commands.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include <base/log.h>
#include <base/memory.h>
#include <cli/bench_ranks.h>
#include <cli/model_source.h>
#include <cli/processors.h>
#include <plan/device_bench.h>
#include <plan/program_bench.h>
#include <tensor/dtype.h>

enum { SHOWN_SLOTS = 2 };

typedef struct budget { /* seconds */
    double device, program;
} budget_t;
static const budget_t thorough = {6, 6}, quick = {0.5, 0.4};

typedef struct only_device { /* the one that is installed */
    char name[32];
    text_t names;
    uint32_t count;
} only_device_t;

static lh_status_t note_device(void *context, const char *name)
{
    only_device_t *only = context;
    (void)snprintf(only->name, sizeof(only->name), "%s", name);
    text_printf(&only->names, "%s%s", only->count++ == 0 ? "" : ", ", name);
    return LH_OK;
}

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
        return fail(LH_INVALID, "%s: no device plugin is installed", registry_folder(cli->plugins));
    return fail(LH_INVALID, "which device? --device takes one of %s; or name a PIPELINE.ini",
                out->names.data != NULL ? out->names.data : "");
}

/* The section of the pipeline, or every option's default. */
static lh_status_t device_options(const cli_t *cli, const plugin_t *device, void **out)
{
    const option_table_t table = plugin_options(device);
    if (cli->job != NULL) return job_parse_plugin(cli->job, "device", &table, NULL, 0, out);

    void *config = mem_new(table.config_size);
    lh_status_t status = config == NULL ? LH_NO_MEMORY : LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < table.count; i++)
        if (table.rows[i].fallback != NULL)
            status = option_set(&table.rows[i], table.rows[i].fallback, "default", NULL, config);
    if (status == LH_OK)
        *out = config;
    else if (config != NULL)
        job_free_config(&table, config);
    return status;
}

/* What earlier benches of this device learnt about calls holds on, seen from the new peaks. */
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

static lh_status_t measure_program(cli_t *cli, double budget_s, job_programs_t *programs,
                                   device_rate_t *rate, measured_call_t **rows, uint32_t *count)
{
    model_source_t source;
    lh_status_t status = job_require(cli->job, STAGE_TRAIN);
    if (status == LH_OK) status = model_source_open(cli->job, cli->plugins, false, &source);
    if (status != LH_OK) return status;
    const session_how_t how = {.job = cli->job,
                               .registry = cli->plugins,
                               .vocab = source.vocab,
                               .given = source.given,
                               .given_count = source.given_count};
    status = job_programs_open(&how, programs);
    if (status == LH_OK) status = program_bench(programs, budget_s, rate, rows, count);
    model_source_close(&source);
    return status;
}

static void shapes_text(const measured_call_t *row, char *out, size_t room)
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

static double row_ideal(const device_rate_t *rate, const measured_call_t *row)
{
    const program_call_t call = {.args = row->args, .arg_count = row->arg_count};
    return device_rate_ideal(rate, call_dtype(&call), row->flops, row->bytes);
}

static int slower_first(const void *a, const void *b)
{
    const measured_call_t *x = a, *y = b;
    const double p = x->seconds * (double)x->count, q = y->seconds * (double)y->count;
    return p > q ? -1 : p < q;
}

static void print_rows(const device_rate_t *rate, const measured_call_t *rows, uint32_t count)
{
    double total = 0;
    for (uint32_t i = 0; i < count; i++)
        total += rows[i].seconds * (double)rows[i].count;
    printf("\none training step, call by call: %.2f ms\n", total * 1e3);
    printf("%-24s %-26s %6s %9s %8s %7s %6s %6s\n", "op", "shapes", "calls", "us each", "GFLOP/s",
           "GB/s", "effic.", "share");
    for (uint32_t i = 0; i < count; i++) {
        const measured_call_t *r = &rows[i];
        char shapes[64];
        shapes_text(r, shapes, sizeof(shapes));
        const double s = r->seconds > 0 ? r->seconds : 1e-9;
        printf("%-24s %-26s %6llu %9.1f %8.1f %7.1f %5.0f%% %5.1f%%\n", r->kind, shapes,
               (unsigned long long)r->count, s * 1e6, r->flops / s * 1e-9, r->bytes / s * 1e-9,
               100 * row_ideal(rate, r) / s, 100 * s * (double)r->count / total);
    }
}

static void print_table(const device_rate_t *rate, const measured_call_t *rows, uint32_t count)
{
    print_line("%s", rate->name);
    for (uint32_t d = 0; d < LH_DTYPES; d++)
        if (rate->peak_flops[d] > 0)
            printf("  matmul %-5s %10.1f GFLOP/s\n", dtype_name(d), rate->peak_flops[d] * 1e-9);
    printf("  memory       %10.1f GB/s, read and written by a copy\n",
           rate->bytes_per_second * 1e-9);
    printf("  launch       %10.2f us\n", rate->launch_s * 1e6);
    if (count > 0) print_rows(rate, rows, count);
}

static lh_status_t print_json(const device_rate_t *rate, const measured_call_t *rows,
                              uint32_t count)
{
    json_t *peaks = json_object(), *calls = json_array();
    for (uint32_t d = 0; d < LH_DTYPES; d++)
        if (rate->peak_flops[d] > 0)
            json_object_set_new(peaks, dtype_name(d), json_real(rate->peak_flops[d]));
    for (uint32_t i = 0; i < count; i++) {
        const measured_call_t *r = &rows[i];
        char shapes[64];
        shapes_text(r, shapes, sizeof(shapes));
        json_array_append_new(
            calls, json_pack("{s:s, s:s, s:s, s:I, s:f, s:f, s:f, s:f}", "kind", r->kind, "shapes",
                             shapes, "kernel", r->kernel, "calls", (json_int_t)r->count, "seconds",
                             r->seconds, "flops", r->flops, "bytes", r->bytes, "efficiency",
                             r->seconds > 0 ? row_ideal(rate, r) / r->seconds : 0.0));
    }
    json_t *root = json_pack("{s:s, s:s, s:f, s:f, s:o, s:o}", "name", rate->name, "fingerprint",
                             rate->fingerprint, "bytes_per_second", rate->bytes_per_second,
                             "launch_s", rate->launch_s, "peak_flops", peaks, "calls", calls);
    char *text = root == NULL ? NULL : json_dumps(root, JSON_INDENT(1));
    json_decref(root);
    if (text == NULL) return fail(LH_NO_MEMORY, "no memory for the JSON");
    (void)puts(text);
    free(text);
    return LH_OK;
}

/* An unwritable cache is no reason to throw the figures away. */
static void keep(const device_rate_t *rate)
{
    char *path;
    if (device_rate_save(rate) != LH_OK || device_rate_path(rate->fingerprint, &path) != LH_OK) {
        log_line(LH_LOG_WARN, "the record is not kept: %s", fail_reason());
        return;
    }
    log_line(LH_LOG_INFO, "kept in %s", path);
    mem_free(path);
}

static lh_status_t bench_device(cli_t *cli, const plugin_t *device, const void *config)
{
    const budget_t *budget = cli_flag(cli, "quick") != NULL ? &quick : &thorough;
    const device_bench_how_t how = {.device = device, .config = config, .budget_s = budget->device};
    device_rate_t rate = {0};
    job_programs_t programs = {0};
    measured_call_t *rows = NULL;
    uint32_t count = 0;

    if (cli->job != NULL) processors_take_share(cli->job);
    lh_status_t status = device_bench(&how, &rate);
    if (status == LH_OK) status = keep_ops(&rate);
    if (status == LH_OK && cli->job != NULL)
        status = measure_program(cli, budget->program, &programs, &rate, &rows, &count);
    if (status == LH_OK) {
        if (count > 0) qsort(rows, count, sizeof(*rows), slower_first);
        if (cli_flag(cli, "json") != NULL)
            status = print_json(&rate, rows, count);
        else
            print_table(&rate, rows, count);
        keep(&rate);
    }
    mem_free(rows);
    job_programs_close(&programs);
    device_rate_free(&rate);
    return status;
}

int command_bench(cli_t *cli)
{
    if (cli->name == NULL)
        return fail(LH_INVALID, "bench what? longhaul bench device or collectives");
    if (strcmp(cli->name, "collectives") == 0) return bench_collectives(cli);
    if (strcmp(cli->name, "device") != 0)
        return fail(LH_INVALID, "bench measures: device, collectives; not '%s'", cli->name);
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
