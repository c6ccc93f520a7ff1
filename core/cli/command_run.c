/* command_run.c - longhaul run PIPELINE.ini [--resume]: the stages in order, but for those whose
 * inputs have not changed since they ended well. */
#include <cli/commands.h>

#include <base/log.h>
#include <cli/check_inputs.h>
#include <cli/launch.h>
#include <cli/pipeline.h>

static int (*const stage_commands[JOB_STAGES])(cli_t *cli) = {
    [STAGE_PREPARE] = command_prepare, [STAGE_IMPORT] = command_import,
    [STAGE_TRAIN] = command_train,     [STAGE_EVAL] = command_eval,
    [STAGE_EXPORT] = command_export,   [STAGE_GENERATE] = command_generate,
};

static bool has_ranks(uint32_t stage)
{
    return stage == STAGE_TRAIN;
}

/* What a stage has done is remembered by one process of the job. */
int command_stage(cli_t *cli, uint32_t stage)
{
    char digest[SHA256_TEXT];
    const bool remembers = launch_leads(cli) && !launch_is_started(cli);
    lh_status_t status = check_inputs(cli->job);
    if (status == LH_OK && remembers) status = stage_forget(cli->job, stage);
    if (status != LH_OK) return status;

    const int code = has_ranks(stage)
                         ? launch_ranks(cli, job_stage_names[stage], stage_commands[stage])
                         : stage_commands[stage](cli);
    if (code != EXIT_DONE || !remembers) return code;
    status = stage_digest(cli->job, stage, digest);
    if (status == LH_OK) status = stage_mark(cli->job, stage, digest);
    return status;
}

/* What nobody else is to be told of. */
static int skip_stage(cli_t *cli, uint32_t stage)
{
    log_line(LH_LOG_INFO, "-- %s: nothing has changed, skipped", job_stage_names[stage]);
    if (!has_ranks(stage) || !launch_is_spread(cli)) return EXIT_DONE;
    launch_tell_skip(cli, true);
    const int code = launch_ranks(cli, job_stage_names[stage], stage_commands[stage]);
    launch_tell_skip(cli, false);
    return code;
}

static int run_stage(cli_t *cli, uint32_t stage)
{
    char digest[SHA256_TEXT];
    const job_t *job = cli->job;
    if (!launch_leads(cli)) {
        if (has_ranks(stage)) return command_stage(cli, stage);
        launch_waits(cli);
        return EXIT_DONE;
    }
    const lh_status_t status = stage_digest(job, stage, digest);
    if (status != LH_OK) return status;
    if (stage_is_done(job, stage, digest)) return skip_stage(cli, stage);
    log_line(LH_LOG_INFO, "-- %s", job_stage_names[stage]);
    return command_stage(cli, stage);
}

int command_run(cli_t *cli)
{
    /* A mistake in a late stage is told before an early one takes an hour. */
    const lh_status_t checked = cli_check(cli);
    if (checked != LH_OK) return checked;
    for (uint32_t i = 0; i < cli->job->stage_count; i++) {
        const int code = run_stage(cli, cli->job->stages[i]);
        if (code != EXIT_DONE) return code;
    }
    return EXIT_DONE;
}
