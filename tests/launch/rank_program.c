/* rank_program.c - `longhaul train` with another body: ranks that meet at a barrier a step, so that
 * launching can be tested without training. LH_STEPS steps of LH_STEP_MS after a start of
 * LH_START_MS; in step 3 the rank LH_FAILS refuses, an assertion of LH_ASSERTS does not hold,
 * LH_DIES is killed by its own hand once a heartbeat has told of the step, LH_SLEEPS sleeps without
 * looking at anything and LH_EATS takes LH_EATS_MIB of memory; LH_LINGERS does not end after its last
 * words; LH_LEAVES leaves a process at work, in the first epoch; SIGTERM and SIGINT end all after the next
 * step, with code 75, unless LH_DEAF is 1. With LH_SERVES 1 rank 0's launcher takes what `longhaul stop`
 * leaves in the folder. With LH_SAVES ranks that end so wait until that file is there, as for a save, and
 * by SIGTERM alone their machine leaves the others the job. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <base/log.h>
#include <base/sys.h>
#include <cli/cli.h>
#include <control/control_state.h>
#include <launch/request.h>

enum { STOP_MACHINE = 1, STOP_JOB = 2 };

static _Atomic uint8_t stop; /* 0: nobody has asked for one */

static void on_signal(int number)
{
    if (stop != STOP_JOB) stop = number == SIGINT ? STOP_JOB : STOP_MACHINE;
}

static long setting(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text == NULL ? otherwise : atol(text);
}

/* The clock of a rank that dies stands but for its steps. So heartbeats that come by the clock are due no more
 * after the first, and what its control plane sends in a step tells of that step, however late it comes to it on
 * a busy machine. 0: it does not stand. */
static _Atomic uint64_t stood_at;

static uint64_t now_by_steps(void)
{
    const uint64_t at = atomic_load(&stood_at);
    return at == 0 ? sys_real.now_ns() : at;
}

/* Before the first step: a heartbeat is due by then. */
static void clock_stands(void)
{
    atomic_store(&stood_at, sys_real.now_ns() + CONTROL_BEAT_MS * CONTROL_MS);
}

/* By so much that a step is told at once. */
static void clock_goes_on(void)
{
    if (atomic_load(&stood_at) != 0)
        (void)atomic_fetch_add(&stood_at, CONTROL_STEP_MS * CONTROL_MS);
}

static uint64_t bytes_sent(const control_t *control)
{
    control_counts_t counts = {.bytes_sent = 0};
    if (control != NULL) control_counts(control, &counts);
    return counts.bytes_sent;
}

/* before: bytes_sent as the step began. */
static int die(const control_t *control, uint64_t before)
{
    enum { MOST_MS = 2500 }; /* less than others wait for a heartbeat */
    for (int ms = 0; control != NULL && bytes_sent(control) == before; ms++) {
        if (ms == MOST_MS) return fail(LH_INVALID, "the step was not told");
        (void)usleep(1000);
    }
    return raise(SIGKILL);
}

/* All stop after the same step: the word of each is gathered, and the greatest counts. */
static lh_status_t agree_to_stop(const launch_t *launch, uint8_t *all_stop)
{
    uint8_t words[256], mine = stop;
    *all_stop = mine;
    if (launch_control(launch) == NULL) return LH_OK;
    const lh_status_t status = control_gather(launch_control(launch), &mine, 1, words);
    for (uint32_t r = 0; status == LH_OK && r < launch_size(launch); r++)
        if (words[r] > *all_stop) *all_stop = words[r];
    return status;
}

/* As ranks save before they end. */
static void save(launch_t *launch, uint8_t all_stop)
{
    const char *file = getenv("LH_SAVES");
    if (file == NULL) return;
    printf("saving\n");
    while (access(file, F_OK) != 0)
        (void)usleep(5000);
    if (all_stop == STOP_MACHINE) launch_leave(launch, true);
}

static void start_slowly(void)
{
    if (setting("LH_START_MS", 0) == 0) return;
    printf("starting\n");
    (void)usleep((useconds_t)(setting("LH_START_MS", 0) * 1000));
}

static void eat(size_t mib)
{
    /* The kernel is to choose this process, which under a sanitizer is not the largest by much. */
    FILE *score = fopen("/proc/self/oom_score_adj", "w");
    if (score != NULL) {
        (void)fputs("500", score);
        (void)fclose(score);
    }
    volatile unsigned char *bytes = malloc(mib << 20);
    for (size_t i = 0; bytes != NULL && i < mib << 20; i += 4096)
        bytes[i] = 1;
    free((void *)(uintptr_t)bytes);
}

/* As a saver that waits for a disk. */
static void leave_a_process(void)
{
    if (fork() != 0) return;
    for (unsigned left = 60; left > 0;)
        left = sleep(left);
    _exit(0);
}

static int body(void *context)
{
    launch_t *launch = context;
    const world_t *world = launch_world(launch);
    control_t *control = launch_control(launch);
    const long steps = setting("LH_STEPS", 3), ms = setting("LH_STEP_MS", 10);
    const long rank = (long)launch_rank(launch);
    uint8_t all_stop = 0;
    start_slowly();
    (void)signal(SIGTERM, setting("LH_DEAF", 0) != 0 ? SIG_IGN : on_signal);
    if (setting("LH_DEAF", 0) == 0) (void)signal(SIGINT, on_signal);
    if (control != NULL) control_heeds(control);
    if (rank == setting("LH_LEAVES", -1) && (world == NULL || world->row.epoch <= 1))
        leave_a_process();
    printf("rank %ld of %u on %s\n", rank, launch_size(launch),
           world == NULL ? "-" : world->ranks[rank].host);
    if (rank == setting("LH_DIES", -1)) clock_stands();
    for (long i = 1; i <= steps && all_stop == 0; i++) {
        const uint64_t sent = bytes_sent(control);
        clock_goes_on();
        if (control != NULL) control_progress(control, (uint64_t)i, "a test barrier");
        if (i == 3 && rank == setting("LH_FAILS", -1))
            return fail(LH_INVALID, "token 70000 of 512");
        if (i == 3 && rank == setting("LH_DIES", -1)) return die(control, sent);
        const bool rank_is_well = i != 3 || rank != setting("LH_ASSERTS", -1);
        lh_assert(rank_is_well);
        if (i == 3 && rank == setting("LH_EATS", -1)) eat((size_t)setting("LH_EATS_MIB", 0));
        const bool sleeps = i == 3 && rank == setting("LH_SLEEPS", -1);
        if (sleeps) printf("rank %ld sleeps\n", rank);
        for (unsigned left = 60; sleeps && left > 0;)
            left = sleep(left);
        const lh_status_t status = agree_to_stop(launch, &all_stop);
        if (status != LH_OK) return status;
        (void)usleep((useconds_t)(ms * 1000));
    }
    if (all_stop != 0) save(launch, all_stop);
    log_line(LH_LOG_INFO, "rank %ld is done", rank);
    if (setting("LH_PRINTS", 0) != 0) printf("rank %ld prints\n", rank); /* as a plugin may */
    return all_stop != 0 ? EXIT_TERMINATED : EXIT_DONE;
}

int main(int argc, char **argv)
{
    cli_t cli = {0};
    char **words;
    request_server_t *requests = NULL;
    sys_t table = sys_real;
    table.now_ns = now_by_steps;
    sys_use(&table);
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    int code = cli_parse(argc, argv, &cli);
    if (code == LH_OK) code = cli_open(&cli);
    if (code == LH_OK) code = cli_words(&cli, cli.command, &words);
    if (code == LH_OK && setting("LH_SERVES", 0) != 0 && launch_starts(cli.launch) &&
        launch_leads(cli.launch))
        code = request_serve(cli.job->pipeline.folder, REQUEST_STOP | REQUEST_PASSES, &requests);
    if (code == LH_OK) {
        code = launch_ranks(cli.launch, words, body, cli.launch);
        cli_words_free(words);
    }
    if (code < 0) {
        const int status = code;
        code = status_exit_code(status);
        if (!launch_last_words(cli.launch, code, fail_reason()))
            log_line(LH_LOG_INFO, "longhaul: %s", fail_reason());
        if (launch_is_started(cli.launch) &&
            (long)launch_rank(cli.launch) == setting("LH_LINGERS", -1))
            (void)sleep(60);
    }
    request_end(requests);
    cli_close(&cli);
    cli_free(&cli);
    return code;
}
