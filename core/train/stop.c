/* stop.c - the flag behind SIGTERM, SIGINT and SIGHUP. */
#include <train/stop.h>

#include <signal.h>
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
            return fail(LH_IO, "cannot watch for signal %d", watched[i]);
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
