/* child.c - a pipe to be told by, a group to take away, and a descriptor of the child's end: the
 * pipe's end tells nothing while somebody else holds it open. */
#include <base/child.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdnoreturn.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <base/status.h>
#include <base/sys.h>

/* How long to wait before the child is looked at again, in ms: with a descriptor of its end there
 * is no need to. */
enum { LOOK_SELDOM = 60000, LOOK_OFTEN = 20 };

static noreturn void be_child(int (*work)(void *context, int to), void *context, int to,
                              pid_t parent)
{
    (void)setpgid(0, 0);
    /* Whoever ends the parent ends this, too. */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    /* No handlers and no leak check: the memory is a copy of the parent's. */
    _exit(work(context, to));
}

/* Neither end outlives an exec; only the parent's does not block. */
static bool open_pipe(int ends[2])
{
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    (void)fcntl(ends[0], F_SETFL, O_NONBLOCK);
    return true;
}

int child_start(int (*work)(void *context, int to), void *context, child_t *out)
{
    int ends[2];
    if (!open_pipe(ends)) return CHILD_NO_PIPE;
    const pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        (void)close(ends[0]);
        be_child(work, context, ends[1], parent);
    }
    (void)close(ends[1]);
    if (pid < 0) {
        (void)close(ends[0]);
        return CHILD_NO_PROCESS;
    }
    (void)setpgid(pid, pid); /* whichever of the two comes first */
    const int end = (int)syscall(SYS_pidfd_open, pid, 0);
    *out = (child_t){.pid = pid, .from = ends[0], .end = end};
    return CHILD_STARTED;
}

bool child_say(int to, const void *message, size_t bytes)
{
    lh_assert(bytes <= CHILD_MESSAGE);
    ssize_t wrote;
    do
        wrote = write(to, message, bytes);
    while (wrote < 0 && errno == EINTR);
    return wrote == (ssize_t)bytes;
}

/* Its end stays to be waited for. */
static bool has_ended(const child_t *c)
{
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0;
}

/* False: nothing yet, or nothing any more. Half a message, which is no child's of this program, is
 * the last that is read; the pipe stays open, as closing it could end the child. */
static bool take_message(child_t *c, void *message, size_t bytes)
{
    if (c->silent) return false;
    const ssize_t got = read(c->from, message, bytes);
    c->silent = got >= 0 && got != (ssize_t)bytes;
    return got == (ssize_t)bytes;
}

static int pause_ms(const child_t *c, uint64_t now, uint64_t until)
{
    const uint64_t most = c->end < 0 ? LOOK_OFTEN : LOOK_SELDOM;
    const uint64_t left = now >= until ? 0 : (until - now) / 1000000 + 1;
    return (int)(left < most ? left : most);
}

int child_hear(child_t *c, void *message, size_t bytes, uint64_t until)
{
    lh_assert(bytes <= CHILD_MESSAGE && c->pid > 0);
    for (;;) {
        struct pollfd fds[2] = {{.fd = c->silent ? -1 : c->from, .events = POLLIN},
                                {.fd = c->end, .events = POLLIN}};
        const uint64_t now = sys()->now_ns();
        (void)poll(fds, 2, pause_ms(c, now, until));
        /* In this order: all that it said is in the pipe when it has ended. */
        const bool ended = has_ended(c);
        if (take_message(c, message, bytes)) return CHILD_SAID;
        if (ended) return CHILD_ENDED;
        if (now >= until) return CHILD_LATE;
    }
}

int child_take_away(child_t *c)
{
    lh_assert(c->pid > 0);
    int how = 0;
    (void)kill(-c->pid, SIGKILL);
    (void)kill(c->pid, SIGKILL); /* it may have left its group */
    while (waitpid(c->pid, &how, 0) < 0 && errno == EINTR) {
    }
    (void)close(c->from);
    if (c->end >= 0) (void)close(c->end);
    return how;
}
