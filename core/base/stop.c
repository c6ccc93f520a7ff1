/* stop.c - the flag behind SIGTERM, SIGINT and SIGHUP. */
#include <base/stop.h>

#include <signal.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t requests, hung_up;

/* A terminal that closes may say so twice, or beside another signal: it never counts as a second.
 */
static void on_signal(int number)
{
    if (number == SIGHUP) {
        hung_up = 1;
        return;
    }
    requests = requests + 1;
    if (requests > 1) _exit(128 + number);
}

enum { WATCHED = 3 };
static const int watched[WATCHED] = {SIGTERM, SIGINT, SIGHUP};
static struct sigaction before[WATCHED];

lh_status_t stop_watch(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    (void)sigemptyset(&action.sa_mask);
    requests = hung_up = 0;
    for (int i = 0; i < WATCHED; i++) {
        if (sigaction(watched[i], &action, &before[i]) != 0)
            return fail_io(errno, "cannot watch for signal %d", watched[i]);
        /* nohup's wish stands. */
        if (watched[i] == SIGHUP && before[i].sa_handler == SIG_IGN)
            (void)sigaction(SIGHUP, &before[i], NULL);
    }
    return LH_OK;
}

void stop_unwatch(void)
{
    for (int i = 0; i < WATCHED; i++)
        (void)sigaction(watched[i], &before[i], NULL);
}

bool stop_requested(void)
{
    return requests > 0 || hung_up != 0;
}

static int code_at_once;
static pid_t owner;

/* Only what is safe in a handler. */
static void end_at_once(int number)
{
    const char *line = number == SIGTERM  ? "longhaul: stopped by signal 15 (Terminated) while no "
                                            "step was under way\n"
                       : number == SIGINT ? "longhaul: stopped by signal 2 (Interrupt) while no "
                                            "step was under way\n"
                                          : "longhaul: stopped by signal 1 (Hangup) while no step "
                                            "was under way\n";
    if (getpid() != owner) {
        (void)signal(number, SIG_DFL);
        (void)raise(number);
        return;
    }
    if (number == SIGHUP && stop_requested()) return;
    if (requests > 0) _exit(128 + number);
    (void)!write(STDERR_FILENO, line, strlen(line));
    _exit(code_at_once);
}

void stop_at_once(int code)
{
    struct sigaction action = {.sa_handler = end_at_once, .sa_flags = SA_RESTART}, old;
    (void)sigemptyset(&action.sa_mask);
    code_at_once = code;
    owner = getpid();
    for (int i = 0; i < WATCHED; i++)
        if (sigaction(watched[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            (void)sigaction(watched[i], &action, NULL);
}
