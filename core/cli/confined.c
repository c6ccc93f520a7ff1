/* confined.c - the child, what it says at its end, and how its end is told. */
#include <cli/confined.h>

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdalign.h>
#include <stddef.h>
#include <stdio.h>
#include <stdnoreturn.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <base/log.h>

enum { REASON_BYTES = 2048 };

typedef struct answer { /* in one piece: a pipe keeps up to 4096 bytes together */
    lh_status_t status;
    char reason[REASON_BYTES];
    alignas(max_align_t) unsigned char result[CONFINED_RESULT];
} answer_t;

static void tell_what_is_missing(const char *what, uint32_t confined)
{
    if ((confined & CONFINE_FILES) == 0)
        log_line(LH_LOG_INFO, "%s may open any file: this kernel gives no Landlock", what);
    if ((confined & CONFINE_CALLS) == 0)
        log_line(LH_LOG_INFO, "%s may make any system call: this kernel gives no filter", what);
}

static noreturn void be_child(const confined_t *c, pid_t parent, int to)
{
    answer_t answer = {0};
    ssize_t wrote;
    /* Whoever ends the parent ends this, too. */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    (void)setpgid(0, 0); /* so that what it starts is taken away with it */
    tell_what_is_missing(c->what, confine_process(&c->may));
    fail_clear();
    answer.status = c->work(c->context, answer.result);
    (void)snprintf(answer.reason, sizeof(answer.reason), "%s", fail_reason());
    (void)fflush(stdout);
    do
        wrote = write(to, &answer, sizeof(answer));
    while (wrote < 0 && errno == EINTR);
    /* No handlers and no leak check: the memory is a copy of the parent's. */
    _exit(wrote == (ssize_t)sizeof(answer) ? 0 : 1);
}

static lh_status_t judge(const confined_t *c, int how)
{
    errno = 0;
    if (WIFSIGNALED(how))
        return fail(LH_INVALID, "%s was ended by signal %d (%s)", c->what, WTERMSIG(how),
                    strsignal(WTERMSIG(how)));
    return fail(LH_INVALID, "%s ended with code %d and without a word", c->what, WEXITSTATUS(how));
}

/* Until it has answered or ended: what it started may hold the pipe open. */
static bool await_answer(int from, int child_fd, answer_t *answer)
{
    struct pollfd fds[2] = {{.fd = from, .events = POLLIN}, {.fd = child_fd, .events = POLLIN}};
    while (poll(fds, 2, -1) < 0 && errno == EINTR) {
    }
    return (fds[0].revents & POLLIN) != 0 &&
           read(from, answer, sizeof(*answer)) == (ssize_t)sizeof(*answer);
}

/* Its answer is the last that is wanted of it. One that has ended keeps the code of its end. */
static int take_away(pid_t child)
{
    int how = 0;
    (void)kill(-child, SIGKILL);
    while (waitpid(child, &how, 0) < 0 && errno == EINTR) {
    }
    return how;
}

static lh_status_t hear(const confined_t *c, int from, pid_t child, void *result)
{
    answer_t answer;
    const int child_fd = (int)syscall(SYS_pidfd_open, child, 0);
    const bool answered = await_answer(from, child_fd, &answer);
    const int how = take_away(child);
    if (child_fd >= 0) (void)close(child_fd);
    if (!answered || answer.status > LH_OK) return judge(c, how);
    answer.reason[sizeof(answer.reason) - 1] = '\0';
    if (answer.status != LH_OK) return fail_again(answer.status, answer.reason);
    memcpy(result, answer.result, c->result_bytes);
    return LH_OK;
}

lh_status_t confined_run(const confined_t *c, void *result)
{
    int ends[2];
    if (pipe(ends) != 0) return fail(LH_IO, "no pipe to hear of %s", c->what);
    (void)fflush(stdout);
    const pid_t parent = getpid(), child = fork();
    if (child == 0) {
        (void)close(ends[0]);
        be_child(c, parent, ends[1]);
    }
    (void)close(ends[1]);
    if (child > 0) (void)setpgid(child, child); /* whichever of the two comes first */
    const lh_status_t status = child < 0 ? fail(LH_IO, "no process for %s", c->what)
                                         : hear(c, ends[0], child, result);
    (void)close(ends[0]);
    return status;
}
