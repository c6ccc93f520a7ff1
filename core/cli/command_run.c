/* command_run.c - longhaul run PIPELINE.ini [--resume]: the stages in order, but for those whose
 * inputs have not changed since they ended well. */
#include <cli/commands.h>

#include <base/log.h>
#include <cli/pipeline.h>

static int (*const stage_commands[JOB_STAGES])(cli_t *cli) = {
    [STAGE_PREPARE] = command_prepare, [STAGE_IMPORT] = command_import,
    [STAGE_TRAIN] = command_train,     [STAGE_EVAL] = command_eval,
    [STAGE_EXPORT] = command_export,   [STAGE_GENERATE] = command_generate,
};

int command_stage(cli_t *cli, uint32_t stage)
{
    char digest[SHA256_TEXT];
    lh_status_t status = stage_mark(cli->job, stage, "");
    if (status != LH_OK) return status;

    const int code = stage_commands[stage](cli);
    if (code != EXIT_DONE) return code;
    status = stage_digest(cli->job, stage, digest);
    if (status == LH_OK) status = stage_mark(cli->job, stage, digest);
    return status;
}

int command_run(cli_t *cli)
{
    const job_t *job = cli->job;
    /* A mistake in a late stage is told before an early one takes an hour. */
    const lh_status_t checked = cli_check(cli);
    if (checked != LH_OK) return checked;
    for (uint32_t i = 0; i < job->stage_count; i++) {
        const uint32_t stage = job->stages[i];
        char digest[SHA256_TEXT];
        const lh_status_t status = stage_digest(job, stage, digest);
        if (status != LH_OK) return status;
        if (stage_is_done(job, stage, digest)) {
            log_line(LH_LOG_INFO, "-- %s: nothing has changed, skipped", job_stage_names[stage]);
            continue;
        }
        log_line(LH_LOG_INFO, "-- %s", job_stage_names[stage]);
        const int code = command_stage(cli, stage);
        if (code != EXIT_DONE) return code;
    }
    return EXIT_DONE;
}
