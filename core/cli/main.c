/* main.c - the program: arguments, one command, why it failed, the exit code.
 *
 * What is done here once holds for every command: descriptors 0 to 2 exist, a write beyond a limit
 * is an error and no signal, a plugin that calls exit does not end a job in silence, and the last
 * sentence of a failure is printed by one process alone.
 *
 * Exit codes are those of base/status.h: 0 done, 1 refused, 2 usage, 3 a rank or link lost or not
 * come, 4 stopped as not finite, 5 internal, 75 terminated after a save. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <base/file.h>
#include <base/log.h>
#include <base/sys.h>
#include <base/text.h>
#include <cli/cli.h>
#include <cli/manual.h>
#include <commit.h>

/* Only the list of commands: `help` tells flags. */
static void print_usage(FILE *to)
{
    uint32_t count;
    const command_t *const *all = cli_commands(&count);
    fprintf(to, "usage: longhaul COMMAND ... ; longhaul help tells more\n");
    for (uint32_t i = 0; i < count; i++)
        fprintf(to, "  %-9s %s\n", all[i]->name, all[i]->summary);
}

/* Through the log, which shows control characters of a hostile file as \xNN. As the last line of
 * the program. */
static void print_reason(void)
{
    log_end(fail_reason());
}

/* Where a launcher does not print it for all. A rank leaves its words to the launcher that started
 * it, which prints one sentence for all of them. */
static void last_words_tell(const cli_t *cli, int code)
{
    if (launch_last_words(cli->launch, code, fail_reason())) return;
    print_reason();
    launch_note_end(cli->launch, fail_reason());
}

/* What was asked for on stdout and could not be written is no success. A full disk behind a
 * redirection is seen only when the stream is flushed. */
static int code_of_stdout(int code)
{
    if (code != EXIT_DONE || file_finish_stdout() == LH_OK) return code;
    print_reason();
    return EXIT_REFUSED;
}

/* Its first line stays "longhaul VERSION", for scripts. */
static int print_version(void)
{
    text_t out = {0};
    manual_append_version(LH_COMMIT, &out);
    const lh_status_t status = text_status(&out);
    if (status == LH_OK) (void)fputs(out.data, stdout);
    text_free(&out);
    if (status == LH_OK) return EXIT_DONE;
    print_reason();
    return status_exit_code(status);
}

/* From a parsed command line to an exit code. */
static int command_line_run(cli_t *cli)
{
    /* What it needs may be refused, too, and then its function is not called. */
    int code = cli_open(cli);
    if (code == LH_OK) code = cli->command->run(cli);
    if (code < 0) {
        const int status = code;
        /* Of a stage that ended early as it was asked to, such as prepare. */
        const bool as_asked = status == LH_CANCELLED && sys_stop_requested();
        code = as_asked ? EXIT_TERMINATED : status_exit_code(status);
        last_words_tell(cli, code);
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

/* For whoever looks for a crash and knows what a core file holds. */
static bool wants_core(void)
{
    const char *value = getenv("LONGHAUL_CORE");
    return value != NULL && strcmp(value, "1") == 0;
}

/* A set-user-ID program that it starts gains nothing; a crash leaves no core, which would hold
 * tokens, weights and what was derived from the job's key, unless LONGHAUL_CORE=1 asks for one.
 * Processes that it starts inherit both. Where the kernel refuses one, the program goes on: they
 * guard against mistakes elsewhere. */
static void drop_privileges(void)
{
    static const struct rlimit none = {0, 0};
    (void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (!wants_core()) (void)setrlimit(RLIMIT_CORE, &none);
}

/* A checkpoint has a file of each rank that made it, at least, and whoever reads it has all of them open,
 * beside a socket to each rank: more than the 1024 descriptors that a process gets where it does not ask.
 * Without them the program goes on, and says what it could not open. */
static void allow_descriptors(void)
{
    static const rlim_t most = 1 << 20;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= most) return;
    files.rlim_cur = files.rlim_max < most ? files.rlim_max : most;
    (void)setrlimit(RLIMIT_NOFILE, &files);
}

/* Globals, since an exit handler is given nothing that belongs to this call. */
static cli_t *running; /* NULL once its end is main's own */
static pid_t self;     /* what a child does is its parent's to tell */

/* No code of ours calls exit: a plugin does, or a library of its. That is no end of a job, whatever
 * the code says. It runs inside of exit(), on whatever thread called that; the stack tells whose
 * code is on it. */
static void refuse_exit(int code, void *unused)
{
    const cli_t *cli = running;
    const char *who = "a library";
    (void)unused;
    if (cli == NULL || getpid() != self) return;
    for (uint32_t i = 0; cli->plugins != NULL && i < registry_count(cli->plugins); i++) {
        const plugin_t *p = registry_at(cli->plugins, i);
        if (plugin_is_on_stack(p)) who = p->path;
    }
    const lh_status_t status = fail(LH_ABI, "%s: calls exit with code %d", who, code);
    if (!launch_died(cli->launch, status_exit_code(status), fail_reason())) print_reason();
    _exit(status_exit_code(status));
}

/* The order matters: streams before anything is opened, privileges before anything is read, the
 * exit handler before a plugin is loaded. */
int main(int argc, char **argv)
{
    cli_t cli = {0};
    text_locale_hold();
    drop_privileges();
    allow_descriptors();
    fill_streams();
    (void)signal(SIGXFSZ, SIG_IGN); /* a limit of files' size is an error of the write */
    (void)signal(SIGCHLD, SIG_DFL); /* one that is ignored is inherited: no child is waited for */
    /* Results and log lines stay in order when both go to one file. */
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    /* Without a command, for scripts that only ask which version this is. */
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        return code_of_stdout(print_version());
    }
    if (cli_parse(argc, argv, &cli) != LH_OK) {
        print_reason();
        print_usage(stderr);
        return EXIT_USAGE;
    }
    /* Only the program: tests that call a command in their own process leave it off. */
    cli.confines = true;
    running = &cli;
    self = getpid();
    /* From here to `running = NULL` an exit is somebody else's. */
    (void)on_exit(refuse_exit, NULL);
    const int code = command_line_run(&cli);
    running = NULL;
    cli_free(&cli);
    return code;
}
