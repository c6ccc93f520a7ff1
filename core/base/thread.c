/* thread.c - see base/thread.h. */
#include <base/thread.h>

#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>

#include <base/text.h>

/* What a new thread is handed, in memory of the one that starts it, which waits until the thread has begun: a start
 * allocates nothing of its own. */
typedef struct beginning {
    void *(*run)(void *);
    void *argument;
    const char *name;
    sem_t begun;
} beginning_t;

static void *thread_begin(void *given)
{
    enum { SHOWN = 15 }; /* bytes, as many as Linux keeps */
    beginning_t *b = given;
    void *(*const run)(void *) = b->run;
    void *const argument = b->argument;
    char name[SHOWN + 1];
    (void)snprintf(name, sizeof(name), "%.*s", SHOWN, b->name);
    (void)pthread_setname_np(pthread_self(), name);
    text_locale_hold();
    (void)sem_post(&b->begun);
    return run(argument);
}

int thread_start(pthread_t *out, const char *name, void *(*run)(void *), void *argument)
{
    sigset_t all, before;
    beginning_t b = {.run = run, .argument = argument, .name = name};
    (void)sem_init(&b.begun, 0, 0);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(out, NULL, thread_begin, &b);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    while (error == 0 && sem_wait(&b.begun) != 0 && errno == EINTR) {
    }
    (void)sem_destroy(&b.begun);
    return error;
}
