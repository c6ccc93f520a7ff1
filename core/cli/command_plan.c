/* command_plan.c - longhaul plan PIPELINE.ini [--json] [--rank N] [--graph FILE.svg]: what a
 * training step holds, computes and should take, and what the last run measured beside it.
 *
 * Everything that is shown is computed from the programs that training would build, with no memory
 * taken: bytes by kind and rank, arithmetic and traffic by part and op, transfers by group. Times
 * are the record's (plan/device_rate.h); beside them stands what the last run of the job has
 * measured, where its metrics.jsonl is there.
 *
 * What a person reads, in this order, where a part without rows is left out:
 *
 *     shakespeare: llama, 2.10M parameters, bf16           what is trained
 *     a step: 2048 tokens = 8 sequences of 256, ...        how a step is cut
 *     schedule: depth-first; rounds: 1, ...                the order of micro-batches
 *     device: cpu (AMD EPYC), 21.7 GiB free                where
 *     checkpoints: 24.2 MiB each, 4 at once: ...           what they take on disk, and what is free
 *     memory: a row for each kind, in two columns where another rank has more
 *     a step: calls, GFLOP and GB of its four parts, with a record also ms and share
 *     by op: the same by kind of call
 *     between ranks: starts and bytes of each kind of transfer
 *     leaves a site in a step: bytes over its borders
 *     links: as measured before, and what a step's bytes take of them
 *     planning, planned, measured: one line each */
#include <cli/cli.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/text.h>
#include <cli/check.h>
#include <cli/model_source.h>
#include <config/job_load.h>
#include <config/quantity.h>
#include <engine/engine.h>
#include <engine/program.h>
#include <engine/weights.h>
#include <format/json.h>
#include <graph/draw.h>
#include <launch/machine.h>
#include <longhaul/dtype.h>
#include <plan/device_bench.h>
#include <plan/link_wait.h>
#include <plan/step_plan.h>
#include <session/link_record.h>
#include <watch/metrics.h>

/* Totals of more ranks are in --json only. */
enum { RANKS_SHOWN = 16 };

/* compute_s is compute and update together, which is what a plan predicts; step_s has data,
 * evaluation and saving in it, too. */
typedef struct measured { /* medians over the steps of the last run */
    uint32_t steps;       /* 0: there was none */
    double step_s, compute_s;
} measured_t;

/* All that the tables and the JSON are printed from. Lists are borrowed but for rate and step. */
typedef struct planned {
    const job_t *job;
    const engine_t *engine;
    check_disk_t room;
    uint64_t parameters, tokens; /* a step */
    plan_documents_t documents;
    uint64_t max_documents; /* that the programs take in a micro-batch */
    /* Of plan_programs_of_ranks, which the caller frees. */
    const memory_report_t *ranks; /* [rank_count] */
    const uint64_t *border_bytes; /* [rank_count] */
    const double *crosses;        /* as plan_ranks_t has them */
    uint32_t ranks_planned;       /* the same */
    const bool *by_itself;        /* [rank_count] the same, and the rank that was asked for */
    const world_t *world;
    const probe_pair_t *pairs; /* [pair_count] of sites, as far as a record has them */
    uint32_t pair_count;
    bool linked; /* all borders that carry something are in it */
    link_wait_t wait;
    uint32_t rank_count, rank;  /* of whom the rest speaks */
    double planning_s;          /* its programs and their memory */
    const schedule_t *schedule; /* of its step */
    uint64_t frame_bytes;       /* program_frame_bytes */
    uint32_t leg_blocks, legs;  /* program_legs */
    bool halves;                /* program_halves */
    /* Owned, empty where the device has no record. */
    device_rate_t rate;
    bool known;        /* the device has a record */
    double peak_flops; /* of the run's precision; 0: unknown */
    step_plan_t step;
    measured_t measured;
} planned_t;

/* Medians, since a step that saves or evaluates is no measure of the others. */
static lh_status_t read_measured(const char *folder, measured_t *out)
{
    char *path = path_join(folder, "metrics.jsonl");
    if (path == NULL) return LH_NO_MEMORY;
    /* No run yet, or another folder: then nothing is compared. */
    const bool there = file_exists(path);
    mem_free(path);
    metrics_point_t *points;
    size_t count;
    lh_status_t status = there ? metrics_read(folder, &points, &count) : LH_OK;
    if (!there || status != LH_OK) return status;

    /* Two columns, sorted each by itself for its median. */
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
        *out = (measured_t){.steps = n,
                            .step_s = device_bench_median(step, n),
                            .compute_s = device_bench_median(compute, n)};
    mem_free(step);
    mem_free(compute);
    mem_free(points);
    return status;
}

/* A record that can't be read is as good as none, but that is said. p->known says whether there is
 * one; times are left out otherwise. */
static void read_rate(planned_t *p)
{
    const char *fingerprint = engine_properties(p->engine)->fingerprint;
    if (device_rate_load(fingerprint, &p->rate, &p->known) == LH_OK) return;
    log_line(LH_LOG_WARN, "the device's record is not used: %s", fail_reason());
    p->known = false;
}

/* Model FLOPs utilization: arithmetic of the step over its time, as a share of the device's peak.
 * 0: unknown. */
static double step_mfu(const planned_t *p)
{
    const double rate = p->step.all.seconds > 0 ? p->step.all.flops / p->step.all.seconds : 0;
    return p->peak_flops > 0 ? rate / p->peak_flops : 0;
}

/* What the step is, before what it costs. */
static void plan_print_head(const planned_t *p)
{
    const job_train_t *train = &p->job->train;
    const char *halves = p->halves ? "; the embedding comes back before the first block's weights"
                                   : "";
    char parameters[16], free_bytes[16], frame[16], legs[64] = "";
    const schedule_t *s = p->schedule;
    const lh_device_properties_t *device = engine_properties(p->engine);
    text_count((double)p->parameters, parameters);
    text_bytes((double)device->memory_bytes, free_bytes);
    cli_print_line("%s: %s, %s parameters, %s", p->job->pipeline.name, p->job->model.plugin,
                   parameters, train->precision == PRECISION_BF16 ? "bf16" : "f32");
    printf("a step: %llu tokens = %llu sequences of %llu, in micro-batches of %llu\n",
           (unsigned long long)p->tokens, (unsigned long long)train->batch,
           (unsigned long long)train->sequence, (unsigned long long)train->micro_batch);
    text_bytes((double)p->frame_bytes, frame);
    if (p->leg_blocks > 0)
        (void)snprintf(legs, sizeof(legs), "; blocks in legs: %u, in %u", p->leg_blocks, p->legs);
    cli_print_line("schedule: %s; rounds: %u, micro-batches in each: %u, chunks: %u, frames: %u, a "
                   "row leaves at most %s%s%s",
                   s->name, s->rounds, s->round_micro_batches, s->chunks, s->frames, frame, legs,
                   halves);
    if (p->job->data.documents == DOCUMENTS_APART)
        printf("documents: at most %llu in a micro-batch, %s\n",
               (unsigned long long)p->max_documents, plan_documents_text(p->job, &p->documents));
    cli_print_line("device: %s (%s), %s free", p->job->device.plugin, device->name, free_bytes);
    text_t room = {0};
    check_disk_text(p->job, &p->room, &room);
    if (!room.failed) cli_print_line("%s", room.data);
    text_free(&room);
}

/* The job needs a device that this rank fits on. */
static uint32_t rank_with_most(const planned_t *p)
{
    lh_assert(p->rank < p->rank_count);
    uint32_t most = p->rank;
    for (uint32_t r = 0; r < p->rank_count; r++)
        if (p->ranks[r].total_bytes > p->ranks[most].total_bytes) most = r;
    return most;
}

/* In a rounded unit and in bytes: the first to read, the second to compare. */
static void print_memory_row(const char *name, const uint64_t *bytes, uint32_t columns,
                             const char *note)
{
    char size[16];
    lh_assert(columns >= 1 && columns <= 2);
    printf("  %-18s", name);
    for (uint32_t i = 0; i < columns; i++) {
        text_bytes((double)bytes[i], size);
        printf(" %12s %18llu", size, (unsigned long long)bytes[i]);
    }
    printf("%s\n", note);
}

/* One line for all ranks. */
static void print_totals(const planned_t *p)
{
    char size[16];
    const uint32_t shown = p->rank_count < RANKS_SHOWN ? p->rank_count : RANKS_SHOWN;
    printf("  total by rank     ");
    for (uint32_t r = 0; r < shown; r++) {
        text_bytes((double)p->ranks[r].total_bytes, size);
        printf(" %s", size);
    }
    printf("%s\n", shown < p->rank_count ? " ..., see --json" : "");
    if (p->ranks_planned == p->rank_count) return;
    printf("  planned: %u of %u ranks; of the others what they hold from step to step is counted,\n"
           "  the rest is the most that a planned one which is alike needs\n",
           p->ranks_planned, p->rank_count);
}

/* Of the rank that was asked for, and in a second column of the largest one if that is another. */
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
        if (bytes[0] > 0 || bytes[1] > 0)
            print_memory_row(engine_memory_text(k), bytes, columns, "");
    }
    const uint64_t totals[] = {list[0]->total_bytes, list[1]->total_bytes};
    print_memory_row("total", totals, columns, "  without pinned");
    if (p->rank_count == 1) return;
    print_totals(p);
}

/* A star marks what the record does not know and was taken at full speed. */
static void print_sum(const planned_t *p, const char *name, const step_sum_t *sum, bool measured)
{
    printf("  %-24s %8llu %12.3f %12.3f", name, (unsigned long long)sum->calls, sum->flops * 1e-9,
           sum->bytes * 1e-9);
    if (p->known)
        printf(" %10.3f %6.1f%%%s", sum->seconds * 1e3, 100 * sum->seconds / p->step.all.seconds,
               measured ? "" : " *");
    printf("\n");
}

/* By part, then by op; both add up to the whole step. */
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
        cli_print_line("  * never measured here, taken at full speed: longhaul bench device %s",
                       p->job->path);
}

/* GB of whole forms and not of what crosses a link, as that depends on the algorithm. */
static void print_transfers(const planned_t *p)
{
    char name[64];
    if (p->step.transfer_count == 0) return;
    printf("\nbetween ranks%13s %8s %12s %12s\n", "", "starts", "over ranks", "GB");
    for (uint32_t i = 0; i < p->step.transfer_count; i++) {
        const step_transfers_t *t = &p->step.transfers[i];
        (void)snprintf(name, sizeof(name), "%s %s, %s", collective_names[t->op],
                       lh_dtype_name(t->dtype), collective_groups[t->group]);
        printf("  %-24s %8llu %12u %12.3f\n", name, (unsigned long long)t->starts, t->ways,
               t->bytes * 1e-9);
    }
}

/* Of all ranks of a site together, in a step. */
static uint64_t leaves_site(const planned_t *p, uint32_t site)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < world_site_size(p->world, site); i++)
        bytes += p->border_bytes[world_site_rank(p->world, site, i)];
    return bytes;
}

/* What borders carry: the links between sites are paid for by it. */
static void print_borders(const planned_t *p)
{
    if (p->world->row.sites < 2) return;
    printf("\nleaves a site in a step%14s %12s\n", "GB", "B/parameter");
    for (uint32_t s = 0; s < p->world->row.sites; s++) {
        const double bytes = (double)leaves_site(p, s);
        printf("  %-24s %12.3f %12.2f\n", world_site_name(p->world, s), bytes * 1e-9,
               bytes / (double)p->parameters);
    }
}

/* Sums and values of a step, over the links that an earlier run has measured. */
static void print_links(const planned_t *p)
{
    if (!p->linked) return;
    printf("\nlinks, as measured%18s %12s %12s\n", "ms", "Gb/s there", "Gb/s back");
    for (uint32_t i = 0; i < p->pair_count; i++) {
        const probe_pair_t *k = &p->pairs[i];
        char name[2 * WORLD_SITE_NAME];
        if (k->figures.measured_s == 0) continue;
        (void)snprintf(name, sizeof(name), "%s-%s", k->site[0], k->site[1]);
        cli_print_line("  %-24s %8.2f %12.3f %12.3f", name, 1e-6 * (double)k->figures.round_trip_ns,
                       8e-9 * (double)k->figures.rate[0], 8e-9 * (double)k->figures.rate[1]);
    }
    printf("  a step's sums take the busiest of them %.1f ms, its new values %.1f ms\n",
           1e3 * p->wait.moved_s[CROSSING_SUMS], 1e3 * p->wait.moved_s[CROSSING_VALUES]);
}

static double waits_s(const planned_t *p)
{
    return p->wait.wait_s[CROSSING_SUMS] + p->wait.wait_s[CROSSING_VALUES];
}

/* How long planning took is told because a start of training takes as long. */
static void print_times(const planned_t *p)
{
    char tokens[16];
    printf("\nplanning  %.2f s\n", p->planning_s);
    if (p->known) {
        text_count((double)p->tokens / p->step.all.seconds, tokens);
        printf("planned   %.2f ms a step, %s tokens/s", p->step.all.seconds * 1e3, tokens);
        if (p->peak_flops > 0) printf(", %.1f %% of the matrix rate", 100 * step_mfu(p));
        printf("\n");
        if (p->linked)
            printf("          and %.2f ms in which it waits for other sites\n", 1e3 * waits_s(p));
    } else {
        printf("planned   no times: this device was not measured; run\n");
        cli_print_line("          longhaul bench device %s", p->job->path);
    }
    if (p->measured.steps == 0) return;
    text_count((double)p->tokens / p->measured.step_s, tokens);
    printf("measured  %.2f ms a step, %s tokens/s; compute and update %.2f ms (medians of %u steps "
           "of the last run)\n",
           p->measured.step_s * 1e3, tokens, p->measured.compute_s * 1e3, p->measured.steps);
}

/* Left open for what belongs to one kind of sum alone. The caller closes it. */
static void open_sum(json_writer_t *w, const char *key, const planned_t *p, const char *name,
                     const step_sum_t *sum)
{
    json_open(w, key, '{');
    json_put_text(w, "name", name);
    json_put_u64(w, "calls", sum->calls);
    json_put_real(w, "flops", sum->flops);
    json_put_real(w, "bytes", sum->bytes);
    if (p->known) json_put_real(w, "seconds", sum->seconds);
}

/* All kinds, also those of which there is none, so that readers find every key. whole: the rank was
 * planned itself; else some of it is a bound, which a script is told as the table's reader is. */
static void put_memory(json_writer_t *w, const char *key, const memory_report_t *m, bool whole)
{
    json_open(w, key, '{');
    for (uint32_t k = 0; k < MEMORY_KINDS; k++)
        json_put_u64(w, engine_memory_text(k), m->bytes[k]);
    json_put_u64(w, "total", m->total_bytes);
    if (!whole) json_put_flag(w, "planned", false);
    json_close(w);
}

/* The same figures as the head of the table has. */
static void put_schedule(json_writer_t *w, const planned_t *p)
{
    const schedule_t *s = p->schedule;
    json_open(w, "schedule", '{');
    json_put_text(w, "name", s->name);
    json_put_u64(w, "rounds", s->rounds);
    json_put_u64(w, "round_micro_batches", s->round_micro_batches);
    json_put_u64(w, "chunks", s->chunks);
    json_put_u64(w, "frames", s->frames);
    json_put_u64(w, "frame_bytes", p->frame_bytes);
    json_put_u64(w, "leg_blocks", p->leg_blocks);
    json_put_u64(w, "legs", p->legs);
    json_put_flag(w, "halves", p->halves);
    json_close(w);
}

/* A row for each op, dtype and group. */
static void put_transfers(json_writer_t *w, const planned_t *p)
{
    json_open(w, "transfers", '[');
    for (uint32_t i = 0; i < p->step.transfer_count; i++) {
        const step_transfers_t *t = &p->step.transfers[i];
        json_open(w, NULL, '{');
        json_put_text(w, "collective", collective_names[t->op]);
        json_put_text(w, "dtype", lh_dtype_name(t->dtype));
        json_put_text(w, "group", collective_groups[t->group]);
        json_put_u64(w, "ranks", t->ways);
        json_put_u64(w, "starts", t->starts);
        json_put_real(w, "bytes", t->bytes);
        json_close(w);
    }
    json_close(w);
}

static void put_borders(json_writer_t *w, const planned_t *p)
{
    json_open(w, "borders", '[');
    for (uint32_t s = 0; p->world->row.sites > 1 && s < p->world->row.sites; s++) {
        json_open(w, NULL, '{');
        json_put_text(w, "site", world_site_name(p->world, s));
        json_put_u64(w, "bytes", leaves_site(p, s));
        json_close(w);
    }
    json_close(w);
}

static void put_links(json_writer_t *w, const planned_t *p)
{
    if (!p->linked) return;
    json_open(w, "links", '{');
    link_record_rows(w, "pairs", p->pairs, p->pair_count);
    json_put_real(w, "sums_s", p->wait.moved_s[CROSSING_SUMS]);
    json_put_real(w, "values_s", p->wait.moved_s[CROSSING_VALUES]);
    if (p->known) json_put_real(w, "waits_s", waits_s(p));
    json_close(w);
}

/* Keys are missing where nothing is known, and not null. */
static void put_rates(json_writer_t *w, const planned_t *p)
{
    if (p->known) {
        json_put_real(w, "tokens_per_s", (double)p->tokens / p->step.all.seconds);
        json_put_real(w, "mfu", step_mfu(p));
        json_put_real(w, "peak_flops", p->peak_flops);
    }
    if (p->measured.steps == 0) return;
    json_open(w, "measured", '{');
    json_put_u64(w, "steps", p->measured.steps);
    json_put_real(w, "step_s", p->measured.step_s);
    json_put_real(w, "compute_s", p->measured.compute_s);
    json_close(w);
}

/* One object with everything that the tables have, unrounded. */
static lh_status_t plan_print_json(const planned_t *p)
{
    text_t text = {0};
    json_writer_t w = {.to = &text, .style = 1};
    json_open(&w, NULL, '{');
    json_put_text(&w, "pipeline", p->job->pipeline.name);
    json_put_text(&w, "device", engine_properties(p->engine)->name);
    json_put_u64(&w, "parameters", p->parameters);
    json_put_u64(&w, "tokens_per_step", p->tokens);
    json_put_u64(&w, "max_documents", p->max_documents);
    json_put_text(&w, "documents", plan_documents_text(p->job, &p->documents));
    json_put_u64(&w, "rank", p->rank);
    json_put_real(&w, "planning_s", p->planning_s);
    json_open(&w, "checkpoints", '{');
    json_put_u64(&w, "bytes", p->room.bytes);
    json_put_u64(&w, "at_once", p->room.count);
    if (p->room.free_bytes != UINT64_MAX) json_put_u64(&w, "free", p->room.free_bytes);
    if (p->room.snapshots > 0) {
        json_open(&w, "snapshots", '{');
        json_put_u64(&w, "bytes", p->room.snapshot_bytes);
        json_put_u64(&w, "a_rank", p->room.snapshots);
        json_close(&w);
    }
    json_close(&w);
    put_schedule(&w, p);
    put_memory(&w, "memory", &p->ranks[p->rank], true);
    if (p->ranks_planned < p->rank_count) json_put_u64(&w, "ranks_planned", p->ranks_planned);
    json_open(&w, "ranks", '[');
    for (uint32_t r = 0; r < p->rank_count; r++)
        put_memory(&w, NULL, &p->ranks[r], p->by_itself[r]);
    json_close(&w);
    open_sum(&w, "step", p, "whole step", &p->step.all);
    json_close(&w);
    json_open(&w, "parts", '[');
    for (uint32_t i = 0; i < STEP_PLAN_PARTS; i++) {
        open_sum(&w, NULL, p, step_plan_part_names[i], &p->step.parts[i]);
        json_close(&w);
    }
    json_close(&w);
    json_open(&w, "ops", '[');
    for (uint32_t i = 0; i < p->step.kind_count; i++) {
        open_sum(&w, NULL, p, p->step.kinds[i].kind, &p->step.kinds[i].sum);
        json_put_flag(&w, "measured", p->step.kinds[i].measured);
        json_close(&w);
    }
    json_close(&w);
    put_transfers(&w, p);
    put_borders(&w, p);
    put_links(&w, p);
    put_rates(&w, p);
    json_close(&w);
    return cli_print_text(&text);
}

/* Graphviz lays it out; without it the sentence says so. */
static lh_status_t draw_block(const planned_t *p, const program_t *pass, const char *path)
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

/* Sums hide behind the backward pass of the rounds in which they are started, values behind the forward
 * pass, and where each pass gathers them behind both. */
static void wait_predict(const plan_programs_t *programs, planned_t *p)
{
    const step_plan_t *s = &p->step;
    const uint32_t sites = p->world->row.sites, site = p->world->ranks[p->rank].site;
    const double rounds = p->schedule->rounds;
    const double back = s->parts[STEP_BACKWARD].seconds, forth = s->parts[STEP_FORWARD].seconds;
    link_wait_how_t how = {
        .sites = sites, .crosses = p->crosses, .rate = p->job->transports[LH_LINK_WAN].rate};
    if (sites < 2 || programs->comm.comm == NULL || s->crosses == NULL) return;
    how.pairs = p->pairs = comm_expected(programs->comm.comm, &p->pair_count);
    how.pair_count = p->pair_count;
    how.window_s[CROSSING_SUMS] = s->repeated[CROSSING_SUMS] ? back : back / rounds;
    how.window_s[CROSSING_VALUES] = s->repeated[CROSSING_VALUES] ? forth + back : forth / rounds;
    for (uint32_t what = 0; what < CROSSINGS; what++) {
        how.trips[what] = s->trips[what];
        how.edge[what] = link_wait_edge(&s->crosses[what * sites], sites, site, s->edge[what]);
    }
    p->linked = p->pair_count > 0 && link_wait(&how, &p->wait);
}

/* Fills the rest of p and prints it. */
static lh_status_t plan_step(const cli_t *cli, const plan_programs_t *programs, planned_t *p)
{
    const job_train_t *train = &cli->job->train;
    p->job = cli->job;
    p->engine = programs->session->engine;
    p->parameters = weights_parameters(programs->session->weights)->elements;
    p->tokens = train->batch * train->sequence;
    p->max_documents = programs->layout.train.max_documents;
    p->planning_s = (double)programs->planned_ns * 1e-9;
    p->schedule = programs->programs.schedule;
    p->frame_bytes = program_frame_bytes(programs->programs.train);
    p->leg_blocks = program_legs(programs->programs.train, &p->legs);
    p->halves = program_halves(programs->programs.train);
    read_rate(p);
    if (p->known) p->peak_flops = p->rate.peak_flops[programs->session->compute];
    lh_status_t status = step_plan_new(
        programs->programs.train, programs->programs.update, programs->programs.schedule->rounds,
        programs->session->transfers, p->known ? &p->rate : NULL, &p->step);
    if (status == LH_OK)
        status = step_plan_scores(&p->step, programs->programs.preference,
                                  programs->layout.share.micro_batches, p->known ? &p->rate : NULL);
    if (status == LH_OK) wait_predict(programs, p);
    if (status == LH_OK) status = read_measured(p->job->pipeline.folder, &p->measured);
    if (status == LH_OK)
        status = check_disk(programs->session, programs->programs.schedule->rounds, &p->room);
    const char *graph = cli_flag(cli, "graph");
    if (status == LH_OK && graph != NULL) status = draw_block(p, programs->programs.train, graph);
    if (status == LH_OK && cli_flag(cli, "json") != NULL) {
        status = plan_print_json(p);
    } else if (status == LH_OK) {
        plan_print_head(p);
        print_memory(p);
        print_step(p);
        print_transfers(p);
        print_borders(p);
        print_links(p);
        print_times(p);
    }
    step_plan_free(&p->step);
    device_rate_free(&p->rate);
    return status;
}

/* Also bounds it, so that a typing error is no plan of a rank that never is. */
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

/* Every rank is planned once for its memory, or a few of many that are alike, and the one that was asked
 * for a second time, to be looked at. */
static lh_status_t plan_ranks(const cli_t *cli, plan_programs_how_t *how)
{
    planned_t p = {.documents = how->documents};
    plan_programs_t programs = {0};
    plan_ranks_t ranks = {0};
    world_t *world = NULL;
    lh_status_t status = rank_asked(cli, &p.rank);
    if (status == LH_OK) status = plan_programs_of_ranks(how, &ranks);
    if (status == LH_OK) status = world_plan(cli->job, p.rank, &world);
    /* From here on the request is of one rank. */
    how->session.world = world;
    p.ranks = ranks.memory;
    p.border_bytes = ranks.border_bytes;
    p.crosses = ranks.crosses;
    p.rank_count = ranks.count;
    p.ranks_planned = ranks.planned;
    p.by_itself = ranks.by_itself;
    p.world = world;
    if (status == LH_OK) status = plan_programs_open(how, &programs);
    if (status == LH_OK) plan_programs_memory(&programs, &ranks.memory[p.rank]);
    if (status == LH_OK) ranks.by_itself[p.rank] = true;
    if (status == LH_OK) check_borders(programs.session);
    if (status == LH_OK) status = plan_step(cli, &programs, &p);
    plan_programs_close(&programs);
    world_free(world);
    plan_ranks_free(&ranks);
    return status;
}

/* This process takes a rank's share of the machine first, as a rank would. */
static int plan_job(cli_t *cli)
{
    model_source_t source;
    lh_status_t status = job_require(cli->job, STAGE_TRAIN);
    if (status == LH_OK)
        status = model_source_open(cli->job, cli->plugins, TOKENIZER_PLANNED, &source);
    if (status != LH_OK) return status;
    machine_take_share(cli->job);
    probe_pair_t *links = NULL;
    uint32_t link_count = 0;
    if (cli->job->site_count > 1) link_record_load(cli->job, &links, &link_count);
    plan_programs_how_t how = {.session = model_source_session(&source, cli->plugins),
                               .documents = plan_documents(cli->job, model_source_eod(&source)),
                               .links = links,
                               .link_count = link_count};
    status = plan_ranks(cli, &how);
    mem_free(links);
    model_source_close(&source);
    return status;
}

const command_t command_plan = {
    .name = "plan",
    .summary = "memory, arithmetic and expected time of a training step, by part and op",
    .needs = CLI_NEEDS_JOB | CLI_NEEDS_PLUGINS | CLI_NEEDS_MODEL,
    .run = plan_job,
    .flags = {CLI_FLAG_JSON,
              {"rank", "N", "of this rank; 0 if not given"},
              {"graph", "FILE.svg", "draw the model's block; needs Graphviz"}},
};
