/* command_train.c - longhaul train PIPELINE.ini [--resume [STEP]] [--dump-batches N] [--profile]
 *
 * Runs in every rank. What differs between ranks is small: rank 0 has a watch, makes the profile
 * and prints; all others only train. Where a run fails before anything was written, the folder that
 * was made for it goes again.
 *
 * Exit codes of a run that has begun: EXIT_DONE; EXIT_TERMINATED where it was stopped by a signal
 * and has saved; EXIT_STOPPED where too many steps in a row were not finite; EXIT_LOST where a rank
 * or a link was lost. With --profile the table of one step follows, a row for each kernel and part:
 *
 *     part    direction  op  kernel  calls  ms  GFLOP/s  GB/s  of limit  share
 *
 * The same rows are in profile.json, and as a time line in profile.trace.json. */
#include <cli/command_run.h>

#include <stdio.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <cli/command_check.h>
#include <cli/model_source.h>
#include <config/quantity.h>
#include <data/prepare.h>
#include <data/samples.h>
#include <engine/engine.h>
#include <plan/step_plan.h>
#include <train/train_run.h>
#include <watch/watch.h>

/* 0: no batches are written. */
static lh_status_t dump_count(const cli_t *cli, uint64_t *out)
{
    const char *text = cli_flag(cli, "dump-batches");
    *out = 0;
    if (text == NULL || quantity_u64(text, out)) return LH_OK;
    return fail(LH_INVALID, "--dump-batches %s: not a whole number", text);
}

/* Ranks that the launcher starts again go on from the newest, whatever was named at first. */
static lh_status_t resume_step(const cli_t *cli, uint64_t restarts, uint64_t *out)
{
    const char *text = cli_flag(cli, "resume");
    *out = UINT64_MAX;
    if (text == NULL || *text == '\0' || restarts > 0) return LH_OK;
    if (quantity_u64(text, out) && *out != UINT64_MAX) return LH_OK;
    return fail(LH_INVALID, "--resume=%s: not a whole number", text);
}

/* A run that stopped as it was asked to, or because the loss was not finite, has not failed. Codes
 * tell a script what to do next: go on, look at the data, or nothing. */
static int exit_code(const job_t *job, const train_result_t *result)
{
    switch (result->outcome) {
    case TRAIN_TERMINATED:
        if (result->saved)
            log_line(LH_LOG_INFO, "stopped after step %llu, which is saved; go on with --resume",
                     (unsigned long long)result->steps);
        else
            log_line(LH_LOG_WARN,
                     "stopped after step %llu, which is not saved, as a machine leaves; go on from "
                     "the save before with --resume",
                     (unsigned long long)result->steps);
        return EXIT_TERMINATED;
    case TRAIN_NOT_FINITE:
        log_line(LH_LOG_ERROR, "stopped: %llu steps in a row were not finite, the last was %llu",
                 (unsigned long long)job->train.not_finite_limit,
                 (unsigned long long)result->steps);
        return EXIT_STOPPED;
    case TRAIN_REFUSED:
        log_line(LH_LOG_ERROR,
                 "ended with step %llu: the last %llu were not finite and not applied; --resume "
                 "goes on from the last good checkpoint",
                 (unsigned long long)result->steps, (unsigned long long)result->refused);
        return EXIT_STOPPED;
    default: return EXIT_DONE;
    }
}

/* A warning for each set of tokens that `prepare` has made with another tokenizer than the one that
 * gives the vocabulary and goes into an export. Not refused: other files may give the same ids. */
static lh_status_t tell_tokenizer(const job_t *job, const tokenizer_t *tokenizer)
{
    char digest[SHA256_TEXT];
    samples_blend_list_t sets;
    if (tokenizer == NULL || job->data.train == NULL) return LH_OK;
    lh_status_t status = file_digest(tokenizer_file(tokenizer, 0), digest);
    if (status == LH_OK) status = samples_blend_parse(job->data.train, &sets);
    if (status != LH_OK) return status;
    for (uint32_t i = 0; status == LH_OK && i < sets.count; i++) {
        prepare_record_t record = {0};
        char *path = job_path(job, sets.parts[i].name);
        status = path == NULL ? LH_NO_MEMORY
                              : prepare_record_find(path, job->pipeline.folder, &record);
        if (status == LH_OK && record.tokenizer[0] != '\0' && strcmp(record.tokenizer, digest) != 0)
            log_line(LH_LOG_WARN,
                     "%s was prepared with another tokenizer than %s; unless both give the same "
                     "ids, prepare it again",
                     path, tokenizer_file(tokenizer, 0));
        prepare_record_free(&record);
        mem_free(path);
    }
    samples_blend_list_free(&sets);
    return status;
}

/* What the device's record promises. Without one nothing is known; that is no reason not to train.
 * Called when all programs are built. A plan that has a kind of call which the record does not know
 * promises no time at all. */
static void predict_step(const train_programs_t *programs, train_prediction_t *out)
{
    const session_t *s = programs->session;
    device_rate_t rate = {0};
    step_plan_t plan;
    bool known = false;
    if (device_rate_load(engine_properties(s->engine)->fingerprint, &rate, &known) != LH_OK)
        log_line(LH_LOG_WARN, "the device's record is not used: %s", fail_reason());
    if (known && step_plan_new(programs->pass, programs->update, programs->rounds, NULL, &rate,
                               &plan) == LH_OK) {
        const lh_status_t status = step_plan_scores(&plan, programs->preference,
                                                    programs->micro_batches, &rate);
        out->peak_flops = rate.peak_flops[s->compute];
        out->bytes_per_second = rate.bytes_per_second;
        out->step_s = status == LH_OK && plan.unmeasured == 0 ? plan.all.seconds : 0;
        step_plan_free(&plan);
    }
    device_rate_free(&rate);
}

/* The rows that the trainer hands over live during the call only. */
typedef struct step_profile {
    train_profiler_t profiler; /* first: a train_profiler_t * is a step_profile_t * */
    const char *folder;
    profile_row_t *rows; /* a copy; NULL: no step was profiled */
    uint32_t count;
    train_prediction_t limits; /* 0 where nothing is known of the device */
} step_profile_t;

/* Files that can't be written are no reason to end a run. As train_profiler_t.profiled, on rank 0,
 * between two steps. */
static void on_profiled(train_profiler_t *profiler, const train_programs_t *programs,
                        const profile_row_t *rows, uint32_t count)
{
    step_profile_t *p = (step_profile_t *)profiler;
    predict_step(programs, &p->limits);
    lh_status_t status = step_profile_write(p->folder, rows, count, p->limits.peak_flops,
                                            p->limits.bytes_per_second);
    if (status == LH_OK) status = step_trace_write(p->folder, programs->pass, programs->update);
    if (status != LH_OK) log_line(LH_LOG_WARN, "the profile is not written: %s", fail_reason());
    p->rows = mem_array(count, sizeof(*rows));
    if (p->rows == NULL) return;
    memcpy(p->rows, rows, count * sizeof(*rows));
    p->count = count;
}

/* "of limit" is the share of what the device could do at best: the larger of arithmetic over peak
 * and bytes over bandwidth. */
static void print_profile(const step_profile_t *p)
{
    double total = 0;
    for (uint32_t i = 0; i < p->count; i++)
        total += (double)p->rows[i].ns;
    if (total <= 0) {
        log_line(LH_LOG_WARN, "--profile: the run was too short, no step was profiled");
        return;
    }
    printf("%-7s %-9s %-18s %-42s %6s %10s %9s %7s %8s %6s\n", "part", "", "op", "kernel", "calls",
           "ms", "GFLOP/s", "GB/s", "of limit", "share");
    for (uint32_t i = 0; i < p->count; i++) {
        const profile_row_t *r = &p->rows[i];
        const double ns = r->ns > 0 ? (double)r->ns : 1;
        const double limit = engine_profile_of_limit(r, p->limits.peak_flops,
                                                     p->limits.bytes_per_second);
        char of_limit[16] = "-";
        if (limit > 0) (void)snprintf(of_limit, sizeof(of_limit), "%.0f%%", 100 * limit);
        printf("%-7s %-9s %-18s %-42s %6llu %10.3f %9.1f %7.1f %8s %5.1f%%\n", r->part,
               r->backward ? "backward" : "", r->op, r->kernel, (unsigned long long)r->calls,
               ns * 1e-6, r->flops / ns, r->bytes / ns, of_limit, 100 * ns / total);
    }
    if (p->limits.peak_flops <= 0)
        printf("of limit: unknown until longhaul bench device has measured this device\n");
}

/* Why the job ends is to stand in train.log from now on, which a launcher may know better than this
 * process. */
static void note_begin(void *context)
{
    launch_began(context);
}

/* As train_how_t.save_asked, on rank 0: a request that lay in the folder. */
typedef struct asked_saves {
    request_server_t *requests;
    watch_t *watch;
} asked_saves_t;

static bool save_asked(void *context, uint64_t step)
{
    const asked_saves_t *a = context;
    if (!request_take_save(a->requests)) return false;
    watch_asked(a->watch, step);
    return true;
}

/* A rank that a launcher started does not hold the folder: the launcher there hears who wants it to
 * stop, and rank 0 itself who wants a checkpoint. */
static void take_saves(cli_t *cli)
{
    if (cli->requests == NULL &&
        request_serve(cli->job->pipeline.folder, REQUEST_SAVE, &cli->requests) != LH_OK) {
        log_line(LH_LOG_WARN, "%s", fail_reason());
        fail_clear();
    }
    request_accept_saves(cli->requests, true);
}

/* The watch outlives the run, so that the last sentences reach train.log. Every rank makes the
 * pipeline's folder if it is not there. */
static int train_stage(cli_t *cli)
{
    const job_t *job = cli->job;
    model_source_t source;
    watch_t *watch = NULL;
    train_result_t result;
    uint64_t dump, step = UINT64_MAX;
    step_profile_t profile = {.profiler = {on_profiled}, .folder = job->pipeline.folder};
    const world_t *world = launch_world(cli->launch);
    /* Alone, or rank 0. */
    const bool leads = world == NULL || world->row.rank == 0;
    const bool profiled = leads && cli_flag(cli, "profile") != NULL;
    const launch_again_t again = launch_again(cli->launch);

    lh_status_t status = dump_count(cli, &dump);
    if (status == LH_OK) status = resume_step(cli, again.restarts, &step);
    if (status == LH_OK) status = model_source_open(job, cli->plugins, TOKENIZER_IF_NAMED, &source);
    if (status != LH_OK) return status;
    /* How many folders above the pipeline's own are to be made: as many are removed again if the
     * run does not come to anything. */
    const uint32_t missing = folders_missing(job->pipeline.folder);
    status = folder_make(job->pipeline.folder);
    if (status == LH_OK && leads) status = watch_new(job, &watch);
    asked_saves_t asked = {0};
    if (watch != NULL) {
        take_saves(cli);
        asked = (asked_saves_t){cli->requests, watch};
        watch_plugins(watch, cli->plugins);
        watch_opened(watch, note_begin, cli->launch);
    }
    if (status == LH_OK && leads) status = tell_tokenizer(job, source.tokenizer);
    if (status == LH_OK) {
        const train_how_t how = {.job = job,
                                 .registry = cli->plugins,
                                 .vocab = source.vocab,
                                 .given = source.given,
                                 .given_count = source.given_count,
                                 .imported = source.import_checkpoints,
                                 .observer = watch == NULL ? NULL : watch_observer(watch),
                                 .eod = model_source_eod(&source),
                                 .tokenizer = source.tokenizer_digest,
                                 .resume = cli_flag(cli, "resume") != NULL || again.restarts > 0,
                                 .resume_step = step == UINT64_MAX ? NULL : &step,
                                 .restarts = again.restarts,
                                 .restart_reason = again.reason,
                                 .dump_batches = dump,
                                 .predict = predict_step,
                                 .save_asked = watch == NULL ? NULL : save_asked,
                                 .save_context = &asked,
                                 .profiler = profiled ? &profile.profiler : NULL,
                                 .writer = cli->writer,
                                 .control = launch_control(cli->launch),
                                 .world = world};
        cli->writer = NULL;
        status = train_run(&how, &result);
    }
    request_accept_saves(cli->requests, false);
    if (status == LH_OK && profiled) print_profile(&profile);
    mem_free(profile.rows);
    const int code = status == LH_OK ? exit_code(job, &result) : status;
    if (status == LH_OK && result.leaving) launch_leave(cli->launch, result.saved);
    watch_free(watch); /* after the last line that train.log is to have */
    if (status != LH_OK && leads) folders_unmake(job->pipeline.folder, missing);
    model_source_close(&source);
    return code;
}

const command_t command_train = {
    .name = "train",
    .summary = "train, and save checkpoints",
    .needs = CLI_NEEDS_JOB | CLI_NEEDS_PLUGINS | CLI_NEEDS_MODEL | CLI_HAS_RANKS,
    .run = command_run_stage,
    .check = check_job_options,
    .leads = command_run_leads,
    .stage = train_stage,
    .flags = {CLI_FLAG_RESUME,
              CLI_FLAG_HOST,
              {"dump-batches", "N", "also write the first N batches to batches.safetensors"},
              {"profile", NULL,
               "print one step kernel by kernel; also as profile.json and profile.trace.json"}},
};
