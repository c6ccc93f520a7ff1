/* main.c - the program: arguments, one command, why it failed, the exit code. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <base/file.h>
#include <base/log.h>
#include <cli/arguments.h>
#include <cli/launch.h>
#include <cli/privileges.h>
#include <data/json_parse.h>

static void print_usage(FILE *to)
{
    uint32_t count;
    const command_t *all = commands(&count);
    fprintf(to, "usage: longhaul COMMAND ... ; longhaul help tells more\n");
    for (uint32_t i = 0; i < count; i++)
        fprintf(to, "  %-9s %s\n", all[i].name, all[i].summary);
}

/* Through the log, which shows control characters of a hostile file as \xNN. */
static void print_reason(void)
{
    log_line(LH_LOG_INFO, "longhaul: %s", fail_reason());
}

/* What was asked for on stdout and could not be written is no success. */
static int code_of_stdout(int code)
{
    if (code != EXIT_DONE || stdout_finish() == LH_OK) return code;
    print_reason();
    return EXIT_REFUSED;
}

static int run(cli_t *cli)
{
    int code = cli_open(cli);
    if (code == LH_OK) code = cli->command->run(cli);
    if (code < 0) {
        const int status = code;
        code = status_exit_code(status);
        if (!launch_last_words(cli, code, fail_reason())) print_reason();
    }
    code = code_of_stdout(code);
    cli_close(cli);
    return code;
}

/* The next file would take the number of a stream that is closed, and what is printed would land in
 * it. Opened for reading, so that a print still fails. */
static void fill_streams(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDONLY);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) (void)close(fd);
}

int main(int argc, char **argv)
{
    cli_t cli = {0};
    privileges_drop();
    fill_streams();
    (void)signal(SIGXFSZ, SIG_IGN); /* a limit of files' size is an error of the write */
    json_use_memory();
    /* Results and log lines stay in order when both go to one file. */
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        printf("longhaul %s\n", LH_VERSION);
        return code_of_stdout(EXIT_DONE);
    }
    if (arguments_parse(argc, argv, &cli) != LH_OK) {
        print_reason();
        print_usage(stderr);
        return EXIT_USAGE;
    }
    cli.confines = true;
    const int code = run(&cli);
    arguments_free(&cli);
    return code;
}
