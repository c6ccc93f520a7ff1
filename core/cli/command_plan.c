/* command_plan.c - longhaul plan PIPELINE.ini [--json] [--rank N] [--graph FILE.svg]: what a
 * training step holds, computes and should take, and what the last run measured beside it. */
#include <cli/commands.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <cli/model_source.h>
#include <cli/processors.h>
#include <config/quantity.h>
#include <graph/draw.h>
#include <plan/device_bench.h>
#include <plan/job_memory.h>
#include <plan/step_plan.h>
#include <watch/metrics.h>
#include <watch/progress.h>

enum { RANKS_SHOWN = 16 };

typedef struct measured { /* medians over the steps of the last run */
    uint32_t steps;       /* 0: there was none */
    double step_s, compute_s;
} measured_t;

typedef struct planned {
    const job_t *job;
    const engine_t *engine;
    uint64_t parameters, tokens;  /* a step */
    const memory_report_t *ranks; /* [rank_count] */
    uint32_t rank_count, rank;    /* of whom the rest speaks */
    device_rate_t rate;
    bool known;        /* the device has a record */
    double peak_flops; /* of the run's precision; 0: unknown */
    step_plan_t step;
    measured_t measured;
} planned_t;

static lh_status_t read_measured(const char *folder, measured_t *out)
{
    char *path = path_join(folder, "metrics.jsonl");
    if (path == NULL) return LH_NO_MEMORY;
    const bool there = file_exists(path);
    mem_free(path);
    metrics_point_t *points;
    size_t count;
    lh_status_t status = there ? metrics_read(folder, &points, &count) : LH_OK;
    if (!there || status != LH_OK) return status;

    double *step = mem_array(count + 1, sizeof(*step));
    double *compute = mem_array(count + 1, sizeof(*compute));
    if (step == NULL || compute == NULL) status = LH_NO_MEMORY;
    uint32_t n = 0;
    for (size_t i = 0; status == LH_OK && i < count && n < UINT32_MAX; i++) {
        const double busy = points[i].part_s[PART_COMPUTE] + points[i].part_s[PART_UPDATE];
        if (points[i].evaluation || !isfinite(points[i].seconds) || !isfinite(busy)) continue;
        step[n] = points[i].seconds;
        compute[n++] = busy;
    }
    if (status == LH_OK && n > 0)
        *out = (measured_t){
            .steps = n, .step_s = median_of(step, n), .compute_s = median_of(compute, n)};
    mem_free(step);
    mem_free(compute);
    mem_free(points);
    return status;
}

/* A record that can't be read is as good as none, but that is said. */
static void read_rate(planned_t *p)
{
    const char *fingerprint = engine_properties(p->engine)->fingerprint;
    if (device_rate_load(fingerprint, &p->rate, &p->known) == LH_OK) return;
    log_line(LH_LOG_WARN, "the device's record is not used: %s", fail_reason());
    p->known = false;
}

static double mfu(const planned_t *p)
{
    const double rate = p->step.all.seconds > 0 ? p->step.all.flops / p->step.all.seconds : 0;
    return p->peak_flops > 0 ? rate / p->peak_flops : 0;
}

static void print_head(const planned_t *p)
{
    const job_train_t *train = &p->job->train;
    char parameters[16], free_bytes[16];
    const lh_device_properties_t *device = engine_properties(p->engine);
    count_text((double)p->parameters, parameters);
    bytes_text((double)device->memory_bytes, free_bytes);
    print_line("%s: %s, %s parameters, %s", p->job->pipeline.name, p->job->model.plugin, parameters,
               train->precision == PRECISION_BF16 ? "bf16" : "f32");
    printf("a step: %llu tokens = %llu sequences of %llu, in micro-batches of %llu\n",
           (unsigned long long)p->tokens, (unsigned long long)train->batch,
           (unsigned long long)train->sequence, (unsigned long long)train->micro_batch);
    print_line("device: %s (%s), %s free", p->job->device.plugin, device->name, free_bytes);
}

static uint32_t rank_with_most(const planned_t *p)
{
    uint32_t most = p->rank;
    for (uint32_t r = 0; r < p->rank_count; r++)
        if (p->ranks[r].total_bytes > p->ranks[most].total_bytes) most = r;
    return most;
}

static void print_memory_row(const char *name, const uint64_t *bytes, uint32_t columns,
                             const char *note)
{
    char size[16];
    printf("  %-18s", name);
    for (uint32_t i = 0; i < columns; i++) {
        bytes_text((double)bytes[i], size);
        printf(" %12s %18llu", size, (unsigned long long)bytes[i]);
    }
    printf("%s\n", note);
}

static void print_totals(const planned_t *p)
{
    char size[16];
    const uint32_t shown = p->rank_count < RANKS_SHOWN ? p->rank_count : RANKS_SHOWN;
    printf("  total by rank     ");
    for (uint32_t r = 0; r < shown; r++) {
        bytes_text((double)p->ranks[r].total_bytes, size);
        printf(" %s", size);
    }
    printf("%s\n", shown < p->rank_count ? " ..., see --json" : "");
}

static void print_memory(const planned_t *p)
{
    const uint32_t most = rank_with_most(p), columns = most == p->rank ? 1 : 2;
    const memory_report_t *const list[] = {&p->ranks[p->rank], &p->ranks[most]};
    printf("\nmemory");
    if (p->rank_count > 1) printf(" of rank %u", p->rank);
    if (p->rank_count > 1 && columns == 1) printf(", no other has more");
    if (columns == 2) printf(", and of rank %u, which has the most", most);
    printf("\n");
    for (uint32_t k = 0; k < MEMORY_KINDS; k++) {
        const uint64_t bytes[] = {list[0]->bytes[k], list[1]->bytes[k]};
        if (bytes[0] > 0 || bytes[1] > 0) print_memory_row(memory_kind_text(k), bytes, columns, "");
    }
    const uint64_t totals[] = {list[0]->total_bytes, list[1]->total_bytes};
    print_memory_row("total", totals, columns, "  without pinned");
    if (p->rank_count == 1) return;
    print_totals(p);
}

static void print_sum(const planned_t *p, const char *name, const step_sum_t *sum, bool measured)
{
    printf("  %-24s %8llu %12.3f %12.3f", name, (unsigned long long)sum->calls, sum->flops * 1e-9,
           sum->bytes * 1e-9);
    if (p->known)
        printf(" %10.3f %6.1f%%%s", sum->seconds * 1e3, 100 * sum->seconds / p->step.all.seconds,
               measured ? "" : " *");
    printf("\n");
}

static void print_step(const planned_t *p)
{
    printf("\na step%20s %8s %12s %12s%s\n", "", "calls", "GFLOP", "GB",
           p->known ? "         ms   share" : "");
    for (uint32_t i = 0; i < STEP_PLAN_PARTS; i++)
        print_sum(p, step_plan_part_names[i], &p->step.parts[i], true);
    print_sum(p, "whole step", &p->step.all, true);
    printf("\nby op\n");
    for (uint32_t i = 0; i < p->step.kind_count; i++)
        print_sum(p, p->step.kinds[i].kind, &p->step.kinds[i].sum, p->step.kinds[i].measured);
    if (p->known && p->step.unmeasured > 0)
        print_line("  * never measured here, taken at full speed: longhaul bench device %s",
                   p->job->path);
}

static void print_times(const planned_t *p)
{
    char tokens[16];
    printf("\n");
    if (p->known) {
        count_text((double)p->tokens / p->step.all.seconds, tokens);
        printf("planned   %.2f ms a step, %s tokens/s", p->step.all.seconds * 1e3, tokens);
        if (p->peak_flops > 0) printf(", %.1f %% of the matrix rate", 100 * mfu(p));
        printf("\n");
    } else {
        printf("planned   no times: this device was not measured; run\n");
        print_line("          longhaul bench device %s", p->job->path);
    }
    if (p->measured.steps == 0) return;
    count_text((double)p->tokens / p->measured.step_s, tokens);
    printf("measured  %.2f ms a step, %s tokens/s; compute and update %.2f ms (medians of %u steps "
           "of the last run)\n",
           p->measured.step_s * 1e3, tokens, p->measured.compute_s * 1e3, p->measured.steps);
}

static json_t *sum_json(const planned_t *p, const char *name, const step_sum_t *sum)
{
    json_t *row = json_pack("{s:s, s:I, s:f, s:f}", "name", name, "calls", (json_int_t)sum->calls,
                            "flops", sum->flops, "bytes", sum->bytes);
    if (p->known) json_object_set_new(row, "seconds", json_real(sum->seconds));
    return row;
}

static json_t *memory_json(const memory_report_t *m)
{
    json_t *memory = json_object();
    for (uint32_t k = 0; k < MEMORY_KINDS; k++)
        json_object_set_new(memory, memory_kind_text(k), json_integer((json_int_t)m->bytes[k]));
    json_object_set_new(memory, "total", json_integer((json_int_t)m->total_bytes));
    return memory;
}

static json_t *plan_json(const planned_t *p)
{
    json_t *memory = memory_json(&p->ranks[p->rank]), *ranks = json_array();
    json_t *parts = json_array(), *ops = json_array();
    for (uint32_t r = 0; r < p->rank_count; r++)
        json_array_append_new(ranks, memory_json(&p->ranks[r]));
    for (uint32_t i = 0; i < STEP_PLAN_PARTS; i++)
        json_array_append_new(parts, sum_json(p, step_plan_part_names[i], &p->step.parts[i]));
    for (uint32_t i = 0; i < p->step.kind_count; i++) {
        json_t *row = sum_json(p, p->step.kinds[i].kind, &p->step.kinds[i].sum);
        json_object_set_new(row, "measured", json_boolean(p->step.kinds[i].measured));
        json_array_append_new(ops, row);
    }
    json_t *root = json_pack(
        "{s:s, s:s, s:I, s:I, s:i, s:o, s:o, s:o, s:o, s:o}", "pipeline", p->job->pipeline.name,
        "device", engine_properties(p->engine)->name, "parameters", (json_int_t)p->parameters,
        "tokens_per_step", (json_int_t)p->tokens, "rank", (int)p->rank, "memory", memory, "ranks",
        ranks, "step", sum_json(p, "whole step", &p->step.all), "parts", parts, "ops", ops);
    if (root != NULL && p->known) {
        json_object_set_new(root, "tokens_per_s",
                            json_real((double)p->tokens / p->step.all.seconds));
        json_object_set_new(root, "mfu", json_real(mfu(p)));
        json_object_set_new(root, "peak_flops", json_real(p->peak_flops));
    }
    if (root != NULL && p->measured.steps > 0)
        json_object_set_new(root, "measured",
                            json_pack("{s:i, s:f, s:f}", "steps", (int)p->measured.steps, "step_s",
                                      p->measured.step_s, "compute_s", p->measured.compute_s));
    return root;
}

static lh_status_t print_json(const planned_t *p)
{
    json_t *root = plan_json(p);
    char *text = root == NULL ? NULL : json_dumps(root, JSON_INDENT(1));
    json_decref(root);
    if (text == NULL) return fail(LH_NO_MEMORY, "no memory for the JSON");
    (void)puts(text);
    free(text);
    return LH_OK;
}

static lh_status_t draw(const planned_t *p, const program_t *pass, const char *path)
{
    char title[96];
    text_t dot = {0};
    (void)snprintf(title, sizeof(title), "%s: block", p->job->model.plugin);
    const draw_how_t how = {.title = title, .backward = true};
    draw_dot(program_block(pass), &how, &dot);
    lh_status_t status = text_status(&dot);
    if (status == LH_OK) status = draw_svg(dot.data, path);
    text_free(&dot);
    return status;
}

static lh_status_t plan_step(const cli_t *cli, const job_programs_t *programs, planned_t *p)
{
    const job_train_t *train = &cli->job->train;
    p->job = cli->job;
    p->engine = programs->session->engine;
    p->parameters = weights_parameters(programs->session->weights)->elements;
    p->tokens = train->batch * train->sequence;
    read_rate(p);
    if (p->known) p->peak_flops = p->rate.peak_flops[programs->session->compute];
    lh_status_t status = step_plan_new(programs->pass, programs->update, programs->micro_batches,
                                       p->known ? &p->rate : NULL, &p->step);
    if (status == LH_OK) status = read_measured(p->job->pipeline.folder, &p->measured);
    const char *graph = cli_flag(cli, "graph");
    if (status == LH_OK && graph != NULL) status = draw(p, programs->pass, graph);
    if (status == LH_OK && cli_flag(cli, "json") != NULL) {
        status = print_json(p);
    } else if (status == LH_OK) {
        print_head(p);
        print_memory(p);
        print_step(p);
        print_times(p);
    }
    step_plan_free(&p->step);
    device_rate_free(&p->rate);
    return status;
}

static lh_status_t rank_asked(const cli_t *cli, uint32_t *out)
{
    uint64_t rank = 0;
    const char *text = cli_flag(cli, "rank");
    if (text != NULL && (!quantity_u64(text, &rank) || rank >= job_ranks(cli->job)))
        return fail(LH_INVALID, "--rank %s: the job has ranks 0 to %u", text,
                    job_ranks(cli->job) - 1);
    *out = (uint32_t)rank;
    return LH_OK;
}

static lh_status_t plan_ranks(const cli_t *cli, session_how_t *how)
{
    planned_t p = {0};
    job_programs_t programs = {0};
    memory_report_t *ranks = NULL;
    world_t *world = NULL;
    lh_status_t status = rank_asked(cli, &p.rank);
    if (status == LH_OK) status = job_memory_new(how, &ranks, &p.rank_count);
    if (status == LH_OK) status = world_plan(cli->job, p.rank, &world);
    how->world = world;
    p.ranks = ranks;
    if (status == LH_OK) status = job_programs_open(how, &programs);
    if (status == LH_OK) status = plan_step(cli, &programs, &p);
    job_programs_close(&programs);
    world_free(world);
    mem_free(ranks);
    return status;
}

int command_plan(cli_t *cli)
{
    model_source_t source;
    lh_status_t status = job_require(cli->job, STAGE_TRAIN);
    if (status == LH_OK) status = model_source_open(cli->job, cli->plugins, false, &source);
    if (status != LH_OK) return status;
    processors_take_share(cli->job);
    session_how_t how = {.job = cli->job,
                         .registry = cli->plugins,
                         .vocab = source.vocab,
                         .given = source.given,
                         .given_count = source.given_count};
    status = plan_ranks(cli, &how);
    model_source_close(&source);
    return status;
}
