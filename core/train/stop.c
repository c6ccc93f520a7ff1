/* stop.c - the flag behind SIGTERM and SIGINT. */
#include <train/stop.h>

#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t requests;
static struct sigaction before_term, before_int;

static void on_signal(int number)
{
    requests = requests + 1;
    if (requests > 1) _exit(128 + number);
}

lh_status_t stop_watch(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    (void)sigemptyset(&action.sa_mask);
    requests = 0;
    if (sigaction(SIGTERM, &action, &before_term) != 0 ||
        sigaction(SIGINT, &action, &before_int) != 0)
        return fail(LH_IO, "cannot watch for SIGTERM");
    return LH_OK;
}

void stop_unwatch(void)
{
    (void)sigaction(SIGTERM, &before_term, NULL);
    (void)sigaction(SIGINT, &before_int, NULL);
}

bool stop_requested(void)
{
    return requests > 0;
}
