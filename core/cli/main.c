/* main.c - the program: arguments, one command, why it failed, the exit code. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <base/log.h>
#include <cli/arguments.h>
#include <cli/launch.h>
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

/* A file that is opened while one of the three is closed would take its place, and with it what is
 * printed. What holds the place fails as a closed one does. */
static void hold_standard_files(void)
{
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0) (void)open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
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
    /* What was asked for on stdout and could not be written is no success. */
    const bool unwritten = fflush(stdout) != 0 || ferror(stdout) != 0;
    if (unwritten && code == EXIT_DONE) {
        (void)fail(LH_IO, "cannot write to stdout");
        print_reason();
        code = EXIT_REFUSED;
    }
    cli_close(cli);
    return code;
}

int main(int argc, char **argv)
{
    cli_t cli = {0};
    hold_standard_files();
    (void)signal(SIGXFSZ, SIG_IGN); /* a limit of files' size is an error of the write */
    json_use_memory();
    /* Results and log lines stay in order when both go to one file. */
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        printf("longhaul %s\n", LH_VERSION);
        return EXIT_DONE;
    }
    if (arguments_parse(argc, argv, &cli) != LH_OK) {
        print_reason();
        print_usage(stderr);
        return EXIT_USAGE;
    }
    const int code = run(&cli);
    arguments_free(&cli);
    return code;
}
