/* probe.c - forks the child, listens to it, takes it away.
 *
 * A fork and not a fresh program: what matters is what loading does to this process, with the
 * libraries that it has already; and a fork costs less than a millisecond here, an exec several.
 * The core loads its plugins before it starts threads; where a caller did not, glibc still gives
 * the child working locks of malloc and of the dynamic loader, which is all that the core's part of
 * an attempt takes. */
#include <plugin/probe.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <base/digest.h>
#include <base/log.h>
#include <base/sys.h>

enum { KNOWN = 256, REASON_BYTES = 2048 };
enum { MUTE = 113 }; /* exit code of a child that cannot write into its pipe any more */

/* What the child writes, in one piece each: a pipe keeps up to 4096 bytes together. */
enum { SAYS_STAGE = 1, SAYS_EXIT = 2, SAYS_DONE = 3 };
typedef struct message {
    uint32_t says;
    int32_t value; /* the stage, the exit code, the status */
    char reason[REASON_BYTES];
} message_t;

typedef struct heard {
    message_t last; /* SAYS_EXIT or SAYS_DONE; says is 0 if the child came to neither */
    uint32_t stage;
    bool late;
    int how; /* of waitpid */
} heard_t;

static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;
static char known[KNOWN][SHA256_TEXT];
static uint32_t known_count;

static int child_says = -1; /* the pipe, in the child */

static bool is_known(const char *sha256)
{
    bool found = false;
    (void)pthread_mutex_lock(&known_lock);
    for (uint32_t i = 0; !found && i < known_count; i++)
        found = strcmp(known[i], sha256) == 0;
    (void)pthread_mutex_unlock(&known_lock);
    return found;
}

static void remember(const char *sha256)
{
    (void)pthread_mutex_lock(&known_lock);
    if (known_count < KNOWN) memcpy(known[known_count++], sha256, SHA256_TEXT);
    (void)pthread_mutex_unlock(&known_lock);
}

static bool say(uint32_t says, int32_t value, const char *reason)
{
    message_t m = {.says = says, .value = value};
    ssize_t wrote;
    (void)snprintf(m.reason, sizeof(m.reason), "%s", reason);
    do
        wrote = write(child_says, &m, sizeof(m));
    while (wrote < 0 && errno == EINTR);
    return wrote == (ssize_t)sizeof(m);
}

void probe_reached(uint32_t stage)
{
    if (child_says >= 0) (void)say(SAYS_STAGE, (int32_t)stage, "");
}

bool probe_is_child(void)
{
    return child_says >= 0;
}

/* A constructor calls exit. What the parent keeps in stdio's buffers and in its own handlers of
 * that moment is not the child's to deal with: registered last, this runs first. */
static void leave(int code, void *unused)
{
    (void)unused;
    _exit(say(SAYS_EXIT, code, "") ? code : MUTE);
}

/* The parent's handlers are for the parent: one that jumps away would make two of it. */
static void forget_handlers(void)
{
    const struct sigaction by_default = {.sa_handler = SIG_DFL};
    for (int s = 1; s < SIGRTMAX; s++) {
        struct sigaction now;
        if (sigaction(s, NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            (void)sigaction(s, &by_default, NULL);
    }
}

static void run_child(const prober_t *p, int to, pid_t parent)
{
    static const struct rlimit none = {0, 0};
    child_says = to;
    /* A group of its own, so that what a plugin starts is taken away with it. */
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    (void)setrlimit(RLIMIT_CORE, &none);
    forget_handlers();
    log_forked();
    if (getppid() != parent) _exit(1);
    /* stdout may be a result that somebody parses. */
    const int nowhere = sys()->open("/dev/null", O_RDWR | O_CLOEXEC, 0);
    if (nowhere < 0 || dup2(nowhere, STDIN_FILENO) < 0 || dup2(nowhere, STDOUT_FILENO) < 0)
        _exit(1);
    (void)on_exit(leave, NULL);
    fail_clear();
    const lh_status_t status = p->attempt(p->context);
    /* No handlers and no leak check: the memory is a copy of the parent's. */
    _exit(say(SAYS_DONE, status, fail_reason()) ? 0 : MUTE);
}

static int remaining_ms(uint64_t until)
{
    const uint64_t now = sys()->now_ns();
    return now >= until ? 0 : (int)((until - now + 999999) / 1000000);
}

/* Takes one message; false: there is none, or none that is whole. */
static bool take_message(int from, heard_t *h)
{
    message_t m;
    if (read(from, &m, sizeof(m)) != (ssize_t)sizeof(m)) return false;
    m.reason[sizeof(m.reason) - 1] = '\0';
    if (m.says == SAYS_STAGE)
        h->stage = (uint32_t)m.value;
    else
        h->last = m;
    return true;
}

/* The child's own end is seen besides the pipe's: another child of this process, forked meanwhile,
 * may hold the pipe open. */
static void hear(const prober_t *p, int from, int child_fd, heard_t *h)
{
    const uint64_t until = sys()->now_ns() + (uint64_t)p->limit_ms * 1000000u;
    struct pollfd fds[2] = {{.fd = from, .events = POLLIN}, {.fd = child_fd, .events = POLLIN}};
    while (h->last.says == 0) {
        const int ready = poll(fds, 2, remaining_ms(until));
        if (ready < 0 && errno == EINTR) continue;
        h->late = ready == 0;
        if (ready <= 0) return;
        if ((fds[0].revents & POLLIN) != 0 && take_message(from, h)) continue;
        if (fds[1].revents != 0 || child_fd < 0) return;
        fds[0].fd = -1; /* closed: the child is about to end, or a plugin closed it */
    }
}

/* By the clock of this side and by SIGKILL: a plugin can block the signal of an alarm. */
static void take_away(pid_t child, heard_t *h)
{
    (void)kill(-child, SIGKILL);
    (void)kill(child, SIGKILL);
    while (waitpid(child, &h->how, 0) < 0 && errno == EINTR) {
    }
}

static const char *doing(uint32_t stage)
{
    static const char *const texts[] = {
        [PROBE_LOADING] = "loading it",
        [PROBE_TABLES] = "reading its tables",
        [PROBE_SELFTEST] = "its selftest",
    };
    return stage >= PROBE_LOADING && stage <= PROBE_SELFTEST ? texts[stage] : "trying it";
}

static lh_status_t judge(const prober_t *p, const heard_t *h)
{
    const char *what = doing(h->stage);
    if (h->late) return fail(LH_ABI, "%s: %s takes longer than %u ms", p->path, what, p->limit_ms);
    if (h->last.says == SAYS_DONE && h->last.value == LH_OK) return LH_OK;
    if (h->last.says == SAYS_DONE) {
        errno = 0; /* the sentence holds the child's already */
        return fail(h->last.value, "%s", h->last.reason);
    }
    if (h->last.says == SAYS_EXIT)
        return fail(LH_ABI, "%s: %s calls exit with code %d", p->path, what, h->last.value);
    if (WIFEXITED(h->how) && WEXITSTATUS(h->how) == MUTE)
        return fail(LH_ABI, "%s: %s closes descriptors that are not its own", p->path, what);
    if (WIFEXITED(h->how))
        return fail(LH_ABI, "%s: %s ends the process with exit code %d", p->path, what,
                    WEXITSTATUS(h->how));
    const char *name = sigabbrev_np(WTERMSIG(h->how));
    return fail(LH_ABI, "%s: %s ends the process with signal %d%s%s", p->path, what,
                WTERMSIG(h->how), name != NULL ? ", SIG" : "", name != NULL ? name : "");
}

static lh_status_t run(const prober_t *p, int ends[2])
{
    heard_t h = {0};
    const pid_t parent = getpid(), child = fork();
    if (child < 0) return fail(LH_IO, "%s: no process to try it in", p->path);
    if (child == 0) run_child(p, ends[1], parent);
    (void)setpgid(child, child); /* whichever of the two comes first */
    (void)sys()->close(ends[1]);
    ends[1] = -1;
    const int child_fd = (int)syscall(SYS_pidfd_open, child, 0);
    hear(p, ends[0], child_fd, &h);
    take_away(child, &h);
    if (child_fd >= 0) (void)sys()->close(child_fd);
    return judge(p, &h);
}

lh_status_t probe(const prober_t *p)
{
    int ends[2];
    if (is_known(p->sha256)) return LH_OK;
    if (pipe2(ends, O_CLOEXEC) != 0) return fail(LH_IO, "%s: no pipe to try it with", p->path);
    const lh_status_t status = run(p, ends);
    (void)sys()->close(ends[0]);
    if (ends[1] >= 0) (void)sys()->close(ends[1]);
    if (status == LH_OK) remember(p->sha256);
    return status;
}
