/* rank_program.c - `longhaul train` with another body: ranks that meet at a barrier a step, so that
 * launching can be tested without training. LH_STEPS steps of LH_STEP_MS; the rank LH_FAILS refuses
 * in step 3; LH_SLEEPS sleeps in step 3 without looking at anything; SIGTERM ends all after the
 * next step, with code 75. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <base/log.h>
#include <cli/arguments.h>
#include <cli/launch.h>

static volatile sig_atomic_t stop;

static void on_term(int number)
{
    (void)number;
    stop = 1;
}

static long setting(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text == NULL ? otherwise : atol(text);
}

/* All stop after the same step: the flag of each is gathered. */
static lh_status_t agree_to_stop(cli_t *cli, bool *all_stop)
{
    uint8_t flags[256], mine = stop != 0;
    *all_stop = mine;
    if (cli->control == NULL) return LH_OK;
    const lh_status_t status = control_gather(cli->control, &mine, 1, flags);
    for (uint32_t r = 0; status == LH_OK && r < launch_size(cli); r++)
        *all_stop = *all_stop || flags[r] != 0;
    return status;
}

static int body(cli_t *cli)
{
    const long steps = setting("LH_STEPS", 3), ms = setting("LH_STEP_MS", 10);
    const long rank = (long)launch_rank(cli);
    bool all_stop = false;
    (void)signal(SIGTERM, on_term);
    printf("rank %ld of %u on %s\n", rank, launch_size(cli),
           cli->world == NULL ? "-" : cli->world->ranks[rank].host);
    for (long i = 1; i <= steps && !all_stop; i++) {
        if (cli->control != NULL) control_progress(cli->control, (uint64_t)i, "a test barrier");
        if (i == 3 && rank == setting("LH_FAILS", -1))
            return fail(LH_INVALID, "token 70000 of 512");
        for (unsigned left = 60; i == 3 && rank == setting("LH_SLEEPS", -1) && left > 0;)
            left = sleep(left);
        const lh_status_t status = agree_to_stop(cli, &all_stop);
        if (status != LH_OK) return status;
        (void)usleep((useconds_t)(ms * 1000));
    }
    log_line(LH_LOG_INFO, "rank %ld is done", rank);
    return all_stop ? EXIT_TERMINATED : EXIT_DONE;
}

int main(int argc, char **argv)
{
    cli_t cli = {0};
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    int code = arguments_parse(argc, argv, &cli);
    if (code == LH_OK) code = cli_open(&cli);
    if (code == LH_OK) code = launch_ranks(&cli, "train", body);
    if (code < 0) {
        const int status = code;
        code = status_exit_code(status);
        if (!launch_last_words(&cli, code, fail_reason()))
            log_line(LH_LOG_INFO, "longhaul: %s", fail_reason());
    }
    cli_close(&cli);
    arguments_free(&cli);
    return code;
}
