/* launch_start.c - the launcher: one process for each rank of this machine, none of which outlives
 * it, and one line when one fails. */
#include <cli/launch_state.h>
#include <cli/processors.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <stdnoreturn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <comm/control_socket.h>

#define LAUNCH_MS UINT64_C(1000000) /* ns */

extern char **environ;

enum {
    TICK_MS = 100,
    GRACE_MS = 3000, /* ranks end by themselves after the first has failed */
    UNMET_MS = 300,
    ORPHANS_MS = 60000, /* what a rank left at work when all ended well        */
    WORDS = 32,         /* of the command line, but for --set                  */
};

typedef struct started {
    uint32_t rank;
    const char *host, *site;
    pid_t pid; /* 0: it has ended */
    int pidfd, how;
    bool failed, killed; /* killed: by this launcher */
} started_t;

typedef struct starter {
    cli_t *cli;
    const char *command;
    launch_place_t place; /* as each rank is told, but for its own numbers */
    started_t *ranks;
    uint32_t count, left;
    board_row_t *board;
    int signals; /* signalfd */
    sigset_t before;
    uint32_t stops;     /* signals that ask to stop, but for SIGHUP */
    bool hung_up;       /* that came */
    int first_stop;     /* which signal came first  */
    int last_stop;      /* which but SIGHUP came last */
    uint64_t deadline;  /* 0: none has failed      */
    started_t *first;   /* that failed              */
    const char **words; /* of the command line */
    uint32_t word_count;
    text_t flags[CLI_FLAGS];
    char **variables; /* the environment; the last but one is the rank's own */
    uint32_t variable_count;
} starter_t;

static lh_status_t add_rank(starter_t *s, size_t *capacity, uint32_t rank, const char *host,
                            const char *site)
{
    started_t *ranks = mem_grow(s->ranks, capacity, s->count + 1u, sizeof(*ranks));
    if (ranks == NULL) return LH_NO_MEMORY;
    s->ranks = ranks;
    ranks[s->count++] = (started_t){.rank = rank, .host = host, .site = site, .pidfd = -1};
    return LH_OK;
}

/* Which ranks are this machine's. */
static lh_status_t find_ranks(starter_t *s)
{
    const job_t *job = s->cli->job;
    const launch_t *l = s->cli->launch;
    const bool asked = cli_flag(s->cli, "host") != NULL;
    size_t capacity = 0;
    lh_status_t status = LH_OK;
    s->place.size = job_ranks(job);
    for (uint32_t r = 0; status == LH_OK && r < s->place.size; r++) {
        const job_site_t *site;
        const job_host_t *host;
        job_rank_place(job, r, &site, &host);
        if (host == NULL)
            status = add_rank(s, &capacity, r, l->host, "");
        else if (launch_is_here(l, host->name, asked))
            status = add_rank(s, &capacity, r, host->name, site->name);
    }
    if (status == LH_OK && s->count == 0)
        status = fail(LH_INVALID,
                      "this machine is '%s', which no [site.*] hosts names; --host NAME says which "
                      "one it is",
                      l->host);
    return status;
}

/* Several machines must know where to meet, and share a key; one machine needs neither. */
static lh_status_t choose_address(starter_t *s)
{
    const job_launch_t *how = &s->cli->job->launch;
    const bool all_here = s->count == s->place.size;
    const char *missing = all_here               ? NULL
                          : how->address == NULL ? "address"
                          : how->port == 0       ? "port"
                          : how->secret == NULL  ? "secret"
                                                 : NULL;
    if (missing != NULL)
        return fail(LH_INVALID,
                    "%u of %u ranks are on other machines: [launch] %s is missing, which says %s",
                    s->place.size - s->count, s->place.size, missing,
                    strcmp(missing, "secret") == 0 ? "what proves that they belong to this job"
                                                   : "where rank 0 listens");
    (void)snprintf(s->place.address, sizeof(s->place.address), "%s",
                   how->address != NULL ? how->address : "127.0.0.1");
    s->place.port = (uint16_t)how->port;
    if (s->ranks[0].rank != 0) return LH_OK;
    return control_listen(s->place.address, s->place.port, &s->place.listener, &s->place.port);
}

/* Rank 0's machine makes the key; the others wait until a shared folder shows it. */
static lh_status_t share_secret(starter_t *s)
{
    secret_t *secret = NULL;
    const job_launch_t *how = &s->cli->job->launch;
    const bool makes = s->ranks[0].rank == 0;
    const uint64_t end = sys()->now_ns() + how->join_timeout_ns;
    lh_status_t status = how->secret == NULL ? secret_random(&secret)
                         : makes             ? secret_open(how->secret, true, &secret)
                                             : secret_await(how->secret, end, &secret);
    if (status == LH_OK) status = secret_share(secret, &s->place.secret);
    secret_free(secret);
    return status;
}

lh_status_t launch_map_board(int fd, uint32_t rows, board_row_t **out)
{
    void *memory = mmap(NULL, rows * sizeof(board_row_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                        0);
    if (memory == MAP_FAILED) return fail(LH_IO, "cannot share memory between ranks");
    *out = memory;
    return LH_OK;
}

static lh_status_t make_board(starter_t *s)
{
    s->place.board = memfd_create("longhaul-ranks", MFD_CLOEXEC);
    if (s->place.board < 0 ||
        sys()->ftruncate(s->place.board, (off_t)(s->count * sizeof(board_row_t))) != 0)
        return fail(LH_IO, "cannot share memory between ranks");
    return launch_map_board(s->place.board, s->count, &s->board);
}

static void add_word(starter_t *s, const char *word)
{
    s->words[s->word_count++] = word;
}

/* The same program, INI and flags; flags that the command does not have were the launcher's. */
static lh_status_t write_words(starter_t *s)
{
    const cli_t *cli = s->cli;
    uint32_t count;
    const command_t *all = commands(&count), *command = cli->command;
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(all[i].name, s->command) == 0) command = &all[i];
    s->words = mem_array(WORDS + 2u * cli->set_count, sizeof(*s->words));
    if (s->words == NULL) return LH_NO_MEMORY;
    add_word(s, "longhaul");
    add_word(s, s->command);
    for (uint32_t i = 0; i < cli->set_count; i++) {
        add_word(s, "--set");
        add_word(s, cli->sets[i]);
    }
    if (cli->plugin_folder != NULL) {
        add_word(s, "--plugins");
        add_word(s, cli->plugin_folder);
    }
    for (uint32_t i = 0; i < CLI_FLAGS && command->flags[i].name != NULL; i++) {
        const char *value = cli_flag(cli, command->flags[i].name);
        if (value == NULL) continue;
        text_printf(&s->flags[i], "--%s%s%s", command->flags[i].name,
                    command->flags[i].value != NULL ? "=" : "", value);
        if (s->flags[i].failed) return LH_NO_MEMORY;
        add_word(s, s->flags[i].data);
    }
    add_word(s, "--");
    if (cli->name != NULL) add_word(s, cli->name);
    if (cli->ini != NULL) add_word(s, cli->ini);
    return LH_OK;
}

static lh_status_t copy_environment(starter_t *s)
{
    while (environ[s->variable_count] != NULL)
        s->variable_count++;
    s->variables = mem_array(s->variable_count + 2u, sizeof(*s->variables));
    if (s->variables == NULL) return LH_NO_MEMORY;
    memcpy(s->variables, environ, s->variable_count * sizeof(*s->variables));
    return LH_OK;
}

/* Between fork and exec: only what is safe there. */
static noreturn void become_rank(const starter_t *s, pid_t launcher, const cpu_set_t *processors)
{
    const int kept[] = {s->place.board, s->place.secret, s->place.listener};
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(EXIT_INTERNAL);
    /* Ctrl-C in a terminal is the launcher's to pass on, once. */
    (void)setpgid(0, 0);
    (void)sigprocmask(SIG_SETMASK, &s->before, NULL);
    if (nothing >= 0) (void)dup2(nothing, STDIN_FILENO);
    if (processors != NULL) (void)sched_setaffinity(0, sizeof(*processors), processors);
    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
        if (kept[i] >= 0) (void)fcntl(kept[i], F_SETFD, 0);
    (void)execve("/proc/self/exe", (char *const *)(uintptr_t)s->words, s->variables);
    _exit(EXIT_INTERNAL);
}

static lh_status_t start_rank(starter_t *s, uint32_t index)
{
    started_t *r = &s->ranks[index];
    text_t place = {0};
    launch_place_t own = s->place;
    const pid_t launcher = getpid();
    own.rank = r->rank;
    own.row = index;
    if (r->rank != 0) own.listener = -1;
    place_write(&own, &place);
    lh_status_t status = text_status(&place);
    if (status != LH_OK) return status;
    s->variables[s->variable_count] = place.data;
    cpu_set_t processors;
    const bool bound = processors_of_rank(s->cli->job, index, s->count, &processors);
    (void)fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) become_rank(s, launcher, bound ? &processors : NULL);
    text_free(&place);
    if (pid < 0) return fail(LH_IO, "cannot start rank %u", r->rank);
    (void)setpgid(pid, pid);
    r->pid = pid;
    s->left++;
    r->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    return r->pidfd < 0 ? fail(LH_IO, "cannot watch rank %u", r->rank) : LH_OK;
}

/* A rank that stopped because it was asked to, or because the loss was not finite, has not failed.
 */
static bool is_failure(int how)
{
    if (!WIFEXITED(how)) return true;
    const int code = WEXITSTATUS(how);
    return code != EXIT_DONE && code != EXIT_TERMINATED && code != EXIT_STOPPED;
}

static void kill_all(starter_t *s, int number)
{
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->ranks[i].pid == 0) continue;
        if (number == SIGKILL) s->ranks[i].killed = true;
        (void)kill(s->ranks[i].pid, number);
    }
}

/* Those that wait for one to come that is gone would wait in vain. */
static void kill_unmet(starter_t *s)
{
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->ranks[i].pid == 0 || atomic_load(&s->board[i].met) != 0) continue;
        s->ranks[i].killed = true;
        (void)kill(s->ranks[i].pid, SIGKILL);
    }
}

static void reap(starter_t *s, started_t *r)
{
    if (waitpid(r->pid, &r->how, WNOHANG) != r->pid) return;
    r->pid = 0;
    (void)close(r->pidfd);
    r->pidfd = -1;
    s->left--;
    r->failed = is_failure(r->how) && !r->killed;
    if (!r->failed) return;
    /* A death is nearer to the cause than what the others say of it. */
    const bool died = WIFSIGNALED(r->how);
    if (s->first == NULL || (died && !WIFSIGNALED(s->first->how))) s->first = r;
    if (s->deadline == 0) s->deadline = sys()->now_ns() + GRACE_MS * LAUNCH_MS;
}

/* The first is passed on; ranks then agree on a last step. The second ends all. A terminal that
 * closes may say so twice, or beside another signal: it never counts as a second. */
static void hear_signal(starter_t *s)
{
    struct signalfd_siginfo info;
    if (read(s->signals, &info, sizeof(info)) != (ssize_t)sizeof(info)) return;
    const bool told = s->stops > 0 || s->hung_up;
    if (!told) s->first_stop = (int)info.ssi_signo;
    if (info.ssi_signo == SIGHUP) {
        s->hung_up = true;
    } else {
        s->last_stop = (int)info.ssi_signo;
        s->stops++;
    }
    if (!told)
        kill_all(s, SIGTERM);
    else if (s->stops > 1)
        kill_all(s, SIGKILL);
}

static lh_status_t watch(starter_t *s)
{
    struct pollfd *fds = mem_array(s->count + 1u, sizeof(*fds));
    if (fds == NULL) {
        kill_all(s, SIGKILL);
        return LH_NO_MEMORY;
    }
    while (s->left > 0) {
        for (uint32_t i = 0; i < s->count; i++)
            fds[i] = (struct pollfd){.fd = s->ranks[i].pidfd, .events = POLLIN};
        fds[s->count] = (struct pollfd){.fd = s->signals, .events = POLLIN};
        (void)poll(fds, s->count + 1u, TICK_MS);
        if (fds[s->count].revents != 0) hear_signal(s);
        for (uint32_t i = 0; i < s->count; i++)
            if (s->ranks[i].pid != 0 && (fds[i].revents != 0 || fds[i].fd < 0))
                reap(s, &s->ranks[i]);
        if (s->deadline == 0) continue;
        const uint64_t now = sys()->now_ns();
        if (now > s->deadline) kill_all(s, SIGKILL);
        /* A dying rank's connections end before it has ended itself: who died is seen first. */
        if (now + (GRACE_MS - UNMET_MS) * LAUNCH_MS > s->deadline) kill_unmet(s);
    }
    mem_free(fds);
    return LH_OK;
}

/* Processes that ranks left behind are this launcher's now: it took them over. */
static uint32_t kill_children(bool at_once)
{
    uint32_t count = 0;
    char path[64], line[4096];
    DIR *threads = opendir("/proc/self/task");
    if (threads == NULL) return 0;
    for (const struct dirent *e; (e = readdir(threads)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        (void)snprintf(path, sizeof(path), "/proc/self/task/%.16s/children", e->d_name);
        FILE *f = fopen(path, "re");
        if (f != NULL && fgets(line, sizeof(line), f) != NULL)
            for (char *rest = line, *word; (word = strsep(&rest, " \n")) != NULL;)
                if (*word != '\0') {
                    if (at_once) (void)kill((pid_t)atoi(word), SIGKILL);
                    count++;
                }
        if (f != NULL) (void)fclose(f);
    }
    (void)closedir(threads);
    return count;
}

static void reap_orphans(const starter_t *s)
{
    enum { LOOK_US = 10000 };
    const bool well = s->first == NULL && s->stops < 2;
    const uint64_t end = well ? sys()->now_ns() + ORPHANS_MS * LAUNCH_MS
                         : s->deadline > GRACE_MS * LAUNCH_MS / 2
                             ? s->deadline - GRACE_MS * LAUNCH_MS / 2
                             : 0;
    for (;;) {
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
        if (kill_children(sys()->now_ns() > end) == 0) return;
        (void)usleep(LOOK_US);
    }
}

/* "rank 2 on tokyo/t1 (process 4711) was killed by signal 9 (Killed) in step 41, all-reduce ..." */
static void tell_death(const starter_t *s, const started_t *r, text_t *out)
{
    progress_t progress;
    char phrase[PROGRESS_PHRASE];
    progress_read(&s->board[r - s->ranks].word, &progress);
    progress_phrase(&progress, phrase);
    text_printf(out, "rank %u on %s%s%s ", r->rank, r->site, r->site[0] != '\0' ? "/" : "",
                r->host);
    if (WIFSIGNALED(r->how))
        text_printf(out, "was killed by signal %d (%s)%s", WTERMSIG(r->how),
                    strsignal(WTERMSIG(r->how)), phrase);
    else
        text_printf(out, "ended with code %d and without a word%s", WEXITSTATUS(r->how), phrase);
}

static int tell_end(const starter_t *s)
{
    text_t line = {0};
    const started_t *r = s->first;
    const board_row_t *row = &s->board[r - s->ranks];
    const int code = WIFSIGNALED(r->how) ? EXIT_LOST : WEXITSTATUS(r->how);
    if (!WIFSIGNALED(r->how) && atomic_load(&row->has_words) != 0)
        text_printf(&line, "%.*s", BOARD_WORDS - 1, row->words);
    else
        tell_death(s, r, &line);
    log_line(LH_LOG_INFO, "longhaul: %s", line.failed ? "a rank has ended" : line.data);
    text_free(&line);
    return code;
}

/* Ranks that make no steps, as they start, end by the SIGTERM that was passed on. */
static bool ended_as_asked(const starter_t *s)
{
    return s->first_stop != 0 && s->first != NULL && WIFSIGNALED(s->first->how) &&
           WTERMSIG(s->first->how) == SIGTERM;
}

static int end_code(const starter_t *s)
{
    if (s->stops > 1) return 128 + s->last_stop;
    if (ended_as_asked(s)) {
        log_line(LH_LOG_INFO, "longhaul: stopped by signal %d (%s) while no step was under way",
                 s->first_stop, strsignal(s->first_stop));
        return EXIT_TERMINATED;
    }
    if (s->first != NULL) return tell_end(s);
    int code = EXIT_DONE;
    for (uint32_t i = 0; i < s->count; i++)
        if (s->ranks[i].how != 0) code = WEXITSTATUS(s->ranks[i].how);
    return code;
}

static lh_status_t catch_signals(starter_t *s)
{
    sigset_t stops;
    struct sigaction hang_up;
    (void)sigemptyset(&stops);
    (void)sigaddset(&stops, SIGTERM);
    (void)sigaddset(&stops, SIGINT);
    /* A signal that is blocked arrives though it is ignored: nohup's wish stands. */
    if (sigaction(SIGHUP, NULL, &hang_up) == 0 && hang_up.sa_handler != SIG_IGN)
        (void)sigaddset(&stops, SIGHUP);
    (void)signal(SIGPIPE, SIG_IGN); /* whoever reads the log may go */
    (void)sigprocmask(SIG_BLOCK, &stops, &s->before);
    s->signals = signalfd(-1, &stops, SFD_CLOEXEC | SFD_NONBLOCK);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    return s->signals < 0 ? fail(LH_IO, "cannot watch for SIGTERM") : LH_OK;
}

static lh_status_t start_all(starter_t *s)
{
    lh_status_t status = find_ranks(s);
    if (status == LH_OK) status = choose_address(s);
    if (status == LH_OK) status = share_secret(s);
    if (status == LH_OK) status = make_board(s);
    if (status == LH_OK) status = write_words(s);
    if (status == LH_OK) status = copy_environment(s);
    if (status == LH_OK) status = catch_signals(s);
    for (uint32_t i = 0; status == LH_OK && i < s->count; i++)
        status = start_rank(s, i);
    if (status != LH_OK) kill_all(s, SIGKILL);
    /* The ranks have theirs: a port or a key that stays open here would outlive them. */
    if (s->place.listener >= 0) (void)close(s->place.listener);
    if (s->place.secret >= 0) (void)close(s->place.secret);
    return status;
}

static void free_starter(starter_t *s)
{
    for (uint32_t i = 0; i < CLI_FLAGS; i++)
        text_free(&s->flags[i]);
    mem_free(s->words);
    mem_free(s->variables);
    if (s->board != NULL) (void)munmap(s->board, s->count * sizeof(board_row_t));
    if (s->place.board >= 0) (void)close(s->place.board);
    if (s->signals >= 0) {
        (void)close(s->signals);
        (void)sigprocmask(SIG_SETMASK, &s->before, NULL);
    }
    mem_free(s->ranks);
}

int launch_start(cli_t *cli, const char *command)
{
    starter_t s = {.cli = cli, .command = command, .signals = -1};
    s.place = (launch_place_t){
        .listener = -1, .board = -1, .secret = -1, .skip = cli->launch->skip};
    lh_status_t status = start_all(&s);
    const lh_status_t watched = s.left > 0 ? watch(&s) : LH_OK;
    if (s.signals >= 0) reap_orphans(&s);
    if (status == LH_OK) status = watched;
    const int code = status == LH_OK ? end_code(&s) : status;
    free_starter(&s);
    return code;
}
