/* command_run.c - longhaul run PIPELINE.ini [--resume]: the stages in order, but for those whose
 * inputs have not changed since they ended well; and one stage alone, as its own command runs it.
 *
 * Where several processes start the same pipeline (a launcher a machine, or ranks that somebody else
 * started), one of them decides which stages need run; the others go through the same list and meet
 * it where ranks meet. */
#include <cli/command_run.h>

#include <base/log.h>
#include <base/memory.h>
#include <cli/check_inputs.h>
#include <cli/command_check.h>

static const command_t *command_of_stage(uint32_t stage)
{
    uint32_t count;
    const command_t *const *all = commands(&count);
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(all[i]->name, job_stage_names[stage]) == 0) return all[i];
    return NULL;
}

static bool has_ranks(const command_t *c)
{
    return (c->needs & CLI_HAS_RANKS) != 0;
}

typedef struct stage_run {
    cli_t *cli;
    const command_t *command;
} stage_run_t;

static int stage_body(void *context)
{
    const stage_run_t *s = context;
    return s->command->stage(s->cli);
}

/* In this process, or in the ranks that it starts or is one of. */
static int run_body(cli_t *cli, const command_t *c)
{
    char **words;
    stage_run_t run = {cli, c};
    if (!has_ranks(c)) return c->stage(cli);
    const lh_status_t status = cli_words(cli, c, &words);
    if (status != LH_OK) return status;
    const int code = launch_ranks(cli->launch, words, stage_body, &run);
    cli_words_free(words);
    return code;
}

/* What a launcher has started does not take the folder: the launcher has it, as rank 0's process has
 * it for launchers of other machines. */
static lh_status_t hold_folder(cli_t *cli)
{
    if (!launch_leads(cli->launch) || launch_is_started(cli->launch)) return LH_OK;
    return pipeline_hold(&cli->hold, cli->job, cli->command->name);
}

/* What a stage has done is remembered by one process of the job. */
static int run_stage(cli_t *cli, const command_t *c, uint32_t stage)
{
    char digest[SHA256_TEXT];
    const bool remembers = launch_leads(cli->launch) && !launch_is_started(cli->launch);
    lh_status_t status = check_inputs(cli->job);
    /* What evaluation, export and generation read, and where they write, others may too. */
    if (status == LH_OK && stage < STAGE_EVAL) status = hold_folder(cli);
    if (status == LH_OK && remembers) status = stage_forget(cli->job, stage);
    if (status != LH_OK) return status;

    const int code = run_body(cli, c);
    if (code != EXIT_DONE || !remembers) return code;
    status = stage_digest(cli->job, stage, digest);
    if (status == LH_OK) status = stage_mark(cli->job, stage, digest);
    return status;
}

int command_run_stage(cli_t *cli)
{
    uint32_t stage = 0;
    while (strcmp(job_stage_names[stage], cli->command->name) != 0)
        stage++;
    return run_stage(cli, cli->command, stage);
}

/* What nobody else is to be told of. */
static int skip_stage(cli_t *cli, const command_t *c)
{
    log_line(LH_LOG_INFO, "-- %s: nothing has changed, skipped", c->name);
    if (!has_ranks(c) || !launch_is_spread(cli->launch)) return EXIT_DONE;
    launch_tell_skip(cli->launch, true);
    const int code = run_body(cli, c);
    launch_tell_skip(cli->launch, false);
    return code;
}

static int run_or_skip(cli_t *cli, uint32_t stage)
{
    char digest[SHA256_TEXT];
    const command_t *c = command_of_stage(stage);
    if (!launch_leads(cli->launch)) {
        if (has_ranks(c)) return run_stage(cli, c, stage);
        launch_waits(cli->launch);
        return EXIT_DONE;
    }
    const lh_status_t status = stage_digest(cli->job, stage, digest);
    if (status != LH_OK) return status;
    if (stage_is_done(cli->job, stage, digest)) return skip_stage(cli, c);
    log_line(LH_LOG_INFO, "-- %s", c->name);
    return run_stage(cli, c, stage);
}

static int run_pipeline(cli_t *cli)
{
    /* A mistake in a late stage is told before an early one takes an hour. */
    lh_status_t status = check_job(cli);
    if (status == LH_OK) status = hold_folder(cli);
    if (status != LH_OK) return status;
    for (uint32_t i = 0; i < cli->job->stage_count; i++) {
        const int code = run_or_skip(cli, cli->job->stages[i]);
        if (code != EXIT_DONE) return code;
    }
    return EXIT_DONE;
}

const command_t command_run = {
    .name = "run",
    .summary = "run the pipeline's stages in order; skip those whose inputs have not changed",
    .needs = CLI_NEEDS_JOB | CLI_NEEDS_PLUGINS | CLI_HAS_RANKS,
    .run = run_pipeline,
    .check = check_job_options,
    .flags = {CLI_FLAG_RESUME, CLI_FLAG_HOST},
};
