/* confined.c - what the child does and says, and how its end is told. */
#include <cli/confined.h>

#include <errno.h>
#include <signal.h>
#include <stdalign.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/wait.h>

#include <base/child.h>
#include <base/log.h>

enum { REASON_BYTES = 2048 };

typedef struct answer {
    lh_status_t status;
    char reason[REASON_BYTES];
    alignas(max_align_t) unsigned char result[CONFINED_RESULT];
} answer_t;
_Static_assert(sizeof(answer_t) <= CHILD_MESSAGE, "an answer is one message");

static void tell_what_is_missing(const char *what, uint32_t confined)
{
    if ((confined & CONFINE_FILES) == 0)
        log_line(LH_LOG_INFO, "%s may open any file: this kernel gives no Landlock", what);
    if ((confined & CONFINE_CALLS) == 0)
        log_line(LH_LOG_INFO, "%s may make any system call: this kernel gives no filter", what);
}

static int answer(void *context, int to)
{
    const confined_t *c = context;
    answer_t a = {0};
    tell_what_is_missing(c->what, confine_process(&c->may));
    fail_clear();
    a.status = c->work(c->context, a.result);
    (void)snprintf(a.reason, sizeof(a.reason), "%s", fail_reason());
    (void)fflush(stdout);
    return child_say(to, &a, sizeof(a)) ? 0 : 1;
}

static lh_status_t judge(const confined_t *c, int how)
{
    errno = 0;
    if (WIFSIGNALED(how))
        return fail(LH_INVALID, "%s was ended by signal %d (%s)", c->what, WTERMSIG(how),
                    strsignal(WTERMSIG(how)));
    return fail(LH_INVALID, "%s ended with code %d and without a word", c->what, WEXITSTATUS(how));
}

/* Its answer is the last that is wanted of it. */
static lh_status_t hear(const confined_t *c, child_t *child, void *result)
{
    answer_t a;
    const bool answered = child_hear(child, &a, sizeof(a), CHILD_NO_DEADLINE) == CHILD_SAID;
    const int how = child_take_away(child);
    if (!answered || a.status > LH_OK) return judge(c, how);
    a.reason[sizeof(a.reason) - 1] = '\0';
    if (a.status != LH_OK) return fail_again(a.status, a.reason);
    memcpy(result, a.result, c->result_bytes);
    return LH_OK;
}

lh_status_t confined_run(const confined_t *c, void *result)
{
    child_t child;
    (void)fflush(stdout); /* what waits there is for the parent to write */
    switch (child_start(answer, (void *)(uintptr_t)c, &child)) {
    case CHILD_NO_PIPE: return fail(LH_IO, "no pipe to hear of %s", c->what);
    case CHILD_NO_PROCESS: return fail(LH_IO, "no process for %s", c->what);
    default: return hear(c, &child, result);
    }
}
