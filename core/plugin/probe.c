/* probe.c - what the child does to itself first, what it says, and the sentence of its end; then
 * the audit of a process around dlopen.
 *
 * A fork and not a fresh program: what matters is what loading does to this process, with the
 * libraries that it has already; and a fork costs less than a millisecond here, an exec several.
 * The core loads its plugins before it starts threads; where a caller did not, glibc still gives
 * the child working locks of malloc and of the dynamic loader, which is all that the core's part of
 * an attempt takes. */
#include <plugin/probe.h>

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <base/child.h>
#include <base/digest.h>
#include <base/log.h>
#include <base/sys.h>

enum { KNOWN = 256, REASON_BYTES = 2048 /* as a sentence of status.h */ };
enum { MUTE = 113 }; /* exit code of a child that cannot write into its pipe any more */

/* What the child says: any number of stages, then at most one last word. A child that ends without
 * one was killed, by itself or by the plugin. */
enum { SAYS_STAGE = 1, SAYS_EXIT = 2, SAYS_DONE = 3 };
/* One write and one read each: CHILD_MESSAGE is what a pipe keeps together. */
typedef struct message {
    uint32_t says;
    int32_t value; /* the stage, the exit code, the status */
    char reason[REASON_BYTES];
} message_t;
_Static_assert(sizeof(message_t) <= CHILD_MESSAGE, "it is said in one piece");

/* What the parent knows of the child when it has ended. */
typedef struct heard {
    message_t last; /* SAYS_EXIT or SAYS_DONE, unless the child came to neither */
    uint32_t stage; /* PROBE_*, the last that it told; 0: none          */
    bool late;      /* it was still at work when its time was over      */
    int how;        /* of waitpid                                       */
} heard_t;

/* Digests of plugins that were found good, so that a process that loads one again (a test, a
 * command of several stages) tries it once. Those beyond KNOWN are tried each time. */
static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;
static char known[KNOWN][SHA256_TEXT];
static uint32_t known_count;

static int child_says = -1; /* the pipe, in the child */

/* The lock is for a process whose threads load plugins; a child gets a copy of the list as it
 * is. */
static bool is_known(const char *sha256)
{
    bool found = false;
    (void)pthread_mutex_lock(&known_lock);
    for (uint32_t i = 0; !found && i < known_count; i++)
        found = strcmp(known[i], sha256) == 0;
    (void)pthread_mutex_unlock(&known_lock);
    return found;
}

/* Beyond KNOWN nothing is forgotten in return: a job has a handful of plugins. */
static void remember_known(const char *sha256)
{
    (void)pthread_mutex_lock(&known_lock);
    if (known_count < KNOWN) memcpy(known[known_count++], sha256, SHA256_TEXT);
    (void)pthread_mutex_unlock(&known_lock);
}

/* A child that cannot write any more has lost its pipe to the plugin: see MUTE. */
static bool probe_say(uint32_t says, int32_t value, const char *reason)
{
    message_t m = {.says = says, .value = value};
    (void)snprintf(m.reason, sizeof(m.reason), "%s", reason);
    return child_say(child_says, &m, sizeof(m));
}

void probe_reached(uint32_t stage)
{
    if (child_says >= 0) (void)probe_say(SAYS_STAGE, (int32_t)stage, "");
}

/* For an assertion in the child: the parent says the sentence. */
static bool tell_parent(const char *sentence)
{
    return probe_say(SAYS_DONE, STATUS_INTERNAL, sentence);
}

/* Whoever loads in a child may look at more of the process: nobody else can change it. */
bool probe_is_child(void)
{
    return child_says >= 0;
}

/* SIGKILL to each child that there is at this moment. */
static void kill_children(void)
{
    char path[64];
    int child;
    (void)snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
    FILE *f = fopen(path, "re");
    while (f != NULL && fscanf(f, "%d", &child) == 1)
        (void)kill((pid_t)child, SIGKILL);
    if (f != NULL) (void)fclose(f);
}

/* What a constructor left at work, in whatever group or session, is this child's: it takes over
 * orphans, of which there may be new ones by the end of each that is killed. One that lived on would
 * keep what the parent has open, its locks among it. */
static void end_children(void)
{
    for (;;) {
        pid_t ended;
        kill_children();
        while ((ended = waitpid(-1, NULL, WNOHANG)) > 0) {
        }
        if (ended < 0) return; /* there is none */
        (void)usleep(1000);
    }
}

/* A constructor calls exit. What the parent keeps in stdio's buffers and in its own handlers of
 * that moment is not the child's to deal with: registered last, this runs first. */
static void probe_leave(int code, void *unused)
{
    (void)unused;
    end_children();
    _exit(probe_say(SAYS_EXIT, code, "") ? code : MUTE);
}

/* The parent's handlers are for the parent: one that jumps away would make two of it. */
static void forget_handlers(void)
{
    const struct sigaction by_default = {.sa_handler = SIG_DFL};
    for (int s = 1; s <= SIGRTMAX; s++) {
        struct sigaction now;
        if (sigaction(s, NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            (void)sigaction(s, &by_default, NULL);
    }
}

/* The child. It gives up what it does not need before any code of the plugin runs: new rights, a
 * core file, the parent's handlers, stdin and stdout. */
static int try_it(void *context, int to)
{
    static const struct rlimit none = {0, 0};
    const prober_t *p = context;
    child_says = to;
    status_assert_tell(tell_parent);
    (void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    (void)setrlimit(RLIMIT_CORE, &none);
    forget_handlers();
    log_forked();
    /* stdout may be a result that somebody parses. */
    const int nowhere = sys()->open("/dev/null", O_RDWR | O_CLOEXEC, 0);
    if (nowhere < 0 || dup2(nowhere, STDIN_FILENO) < 0 || dup2(nowhere, STDOUT_FILENO) < 0)
        return 1;
    (void)on_exit(probe_leave, NULL);
    fail_clear();
    const lh_status_t status = p->attempt(p->context);
    end_children();
    return probe_say(SAYS_DONE, status, fail_reason()) ? 0 : MUTE;
}

/* Listens until the child says its last word, ends or is late: by the clock of this side, as a
 * plugin can block the signal of an alarm. */
static void probe_hear(const prober_t *p, child_t *child, heard_t *h)
{
    const uint64_t until = sys()->now_ns() + (uint64_t)p->limit_ms * 1000000u;
    message_t m;
    int heard;
    while ((heard = child_hear(child, &m, sizeof(m), until)) == CHILD_SAID) {
        m.reason[sizeof(m.reason) - 1] = '\0';
        h->last = m;
        if (m.says != SAYS_STAGE) return;
        h->stage = (uint32_t)m.value;
    }
    h->late = heard == CHILD_LATE;
}

/* For "x.so: loading it takes longer than 5000 ms". */
static const char *stage_doing(uint32_t stage)
{
    static const char *const texts[] = {
        [PROBE_LOADING] = "loading it",
        [PROBE_TABLES] = "reading its tables",
        [PROBE_SELFTEST] = "its selftest",
    };
    return stage >= PROBE_LOADING && stage <= PROBE_SELFTEST ? texts[stage] : "trying it";
}

/* One sentence for each way in which a trial ends. The order matters: a child that was late is
 * killed, and one that said its last word may end with any code. */
static lh_status_t probe_judge(const prober_t *p, const heard_t *h)
{
    const char *what = stage_doing(h->stage);
    if (h->late) return fail(LH_ABI, "%s: %s takes longer than %u ms", p->path, what, p->limit_ms);
    if (h->last.says == SAYS_DONE && h->last.value == LH_OK) return LH_OK;
    if (h->last.says == SAYS_DONE) return fail_again(h->last.value, h->last.reason);
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

/* One trial, from fork to verdict. The child and its group are gone when it returns. */
static lh_status_t trial_run(const prober_t *p)
{
    child_t child;
    heard_t h = {0};
    switch (child_start(try_it, (void *)(uintptr_t)p, &child)) {
    case CHILD_NO_PIPE: return fail_io(errno, "%s: no pipe to try it with", p->path);
    case CHILD_NO_PROCESS: return fail_io(errno, "%s: no process to try it in", p->path);
    default:
        probe_hear(p, &child, &h);
        h.how = child_take_away(&child);
        return probe_judge(p, &h);
    }
}

/* A plugin that is found good is not tried again in this process, nor by its children, which
 * inherit the list. */
lh_status_t probe(const prober_t *p)
{
    lh_assert(p->attempt != NULL && p->limit_ms > 0);
    lh_assert(p->path != NULL && p->sha256 != NULL && strlen(p->sha256) < SHA256_TEXT);
    if (is_known(p->sha256)) return LH_OK;
    const lh_status_t status = trial_run(p);
    if (status == LH_OK) remember_known(p->sha256);
    return status;
}

/* ---- the audit ----
 *
 * The process is looked at twice, and what has changed is told.
 *
 * What others may change meanwhile can't be held against the plugin. So descriptors, limits,
 * timers, children and the umask are compared only where this thread is alone, which the child that
 * tries a plugin is; there a first load of every plugin happens. Threads are counted there alone,
 * too. Compared everywhere is what belongs to the loading thread (signal mask, floating point,
 * processors), and of the process its signal handlers, working folder, environment and locale.
 *
 * Adding something to look at takes a field of audit_t, a line in probe_audit and one in
 * probe_check_audit. */

/* The end of every sentence here. */
#define EXPECTED "a plugin must leave this process as it was"

/* The control bits of floating point, without the flags that any sum may raise: MXCSR and the x87
 * control word of x86-64, FPCR of AArch64. */
#if defined(__x86_64__)
static void take_float(audit_t *a)
{
    uint32_t vector;
    uint16_t x87;
    __asm__ volatile("stmxcsr %0" : "=m"(vector));
    __asm__ volatile("fnstcw %0" : "=m"(x87));
    a->rounding = (vector & 0x6000u) | (x87 & 0x0f00u); /* x87: precision too */
    a->subnormals = vector & 0x8040u;                   /* FTZ and DAZ        */
    a->traps = (vector & 0x1f80u) | (x87 & 0x3fu);
}
#else
static void take_float(audit_t *a)
{
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    a->rounding = (uint32_t)control & (3u << 22);
    a->subnormals = (uint32_t)control & ((1u << 24) | (1u << 19)); /* FZ and FZ16 */
    a->traps = (uint32_t)control & 0x9f00u;
}
#endif

/* The kernel counts a folder's links as its subfolders: one for each thread. */
static uint32_t count_threads(void)
{
    struct stat st;
    return sys()->stat("/proc/self/task", &st) == 0 ? (uint32_t)st.st_nlink - 2 : 0;
}

/* For sys()->list of /proc/self/fd. */
static int note_descriptor(void *context, const char *name)
{
    audit_t *a = context;
    const long fd = strtol(name, NULL, 10);
    if (fd >= AUDIT_DESCRIPTORS) return 0;
    /* The listing's own is closed by now. */
    if (fcntl((int)fd, F_GETFD) >= 0) a->open[fd / 8] |= (uint8_t)(1u << (fd % 8));
    return 0;
}

/* WNOWAIT: a child that has ended stays to be waited for by whoever started it. */
static bool has_children(void)
{
    siginfo_t info;
    return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

/* How long /proc's list of the timers that were made is; 0 where the kernel has no such list. */
static uint64_t list_timers(void)
{
    char bytes[4096];
    uint64_t length = 0;
    const int fd = sys_open("/proc/self/timers", O_RDONLY, 0);
    for (ssize_t got; fd >= 0 && (got = sys()->read(fd, bytes, sizeof(bytes))) > 0;)
        length += (uint64_t)got;
    if (fd >= 0) (void)sys()->close(fd);
    return length;
}

/* Limits and timers of the whole process. */
static void take_limits(audit_t *a)
{
    struct itimerval timer;
    for (int i = 0; i < RLIM_NLIMITS; i++)
        (void)getrlimit((__rlimit_resource_t)i, &a->limits[i]);
    for (int i = 0; i < AUDIT_TIMERS; i++) /* ITIMER_REAL, _VIRTUAL, _PROF are 0, 1, 2 */
        a->timers[i] = getitimer((__itimer_which_t)i, &timer) == 0 &&
                       (timer.it_value.tv_sec != 0 || timer.it_value.tv_usec != 0);
    a->made_timers = list_timers();
}

/* All that is looked at where nobody else can change it. The umask can only be read by setting
 * it. */
static void take_alone(audit_t *a)
{
    take_limits(a);
    a->children = has_children();
    a->umask = umask(077);
    (void)umask(a->umask);
    (void)sys()->list("/proc/self/fd", note_descriptor, a);
}

/* In the order of the table: a variable that was put back elsewhere counts as a change. */
static uint64_t hash_environment(void)
{
    uint64_t hash = 0;
    for (char **e = environ; e != NULL && *e != NULL; e++)
        hash = hash * 31 + digest_xxh3(*e, strlen(*e));
    return hash;
}

/* What is not looked at counts as zero in both, so that it never differs. */
void probe_audit(bool alone, audit_t *out)
{
    memset(out, 0, sizeof(*out));
    out->threads = count_threads();
    out->alone = alone || out->threads == 1;
    if (out->alone) take_alone(out);
    for (int s = 1; s < AUDIT_SIGNALS; s++)
        (void)sigaction(s, NULL, &out->signals[s]);
    (void)pthread_sigmask(SIG_SETMASK, NULL, &out->mask);
    (void)sys()->stat(".", &out->folder);
    (void)sched_getaffinity(0, sizeof(out->processors), &out->processors);
    out->priority = getpriority(PRIO_PROCESS, 0);
    take_float(out);
    out->environment = hash_environment();
    const char *locale = setlocale(LC_ALL, NULL);
    out->locale = locale == NULL ? 0 : digest_xxh3(locale, strlen(locale));
}

/* The kernel fills 64 bits of a set that has room for more. */
static bool same_set(const sigset_t *a, const sigset_t *b)
{
    return memcmp(a, b, (AUDIT_SIGNALS - 1) / 8) == 0;
}

/* Flags and mask, too: SA_RESTART decides whether calls of ours return EINTR. */
static bool same_signal(const struct sigaction *a, const struct sigaction *b)
{
    return a->sa_handler == b->sa_handler && a->sa_flags == b->sa_flags &&
           same_set(&a->sa_mask, &b->sa_mask);
}

/* The handlers are compared by address and not called: one that a plugin sets would run for a
 * signal of the host's. */
static lh_status_t check_signals(const audit_t *before, const audit_t *now, const char *path)
{
    for (int s = 1; s < AUDIT_SIGNALS; s++) {
        if (same_signal(&before->signals[s], &now->signals[s])) continue;
        const char *name = sigabbrev_np(s);
        return fail(LH_ABI, "%s: loading it changes what happens at signal %d%s%s; " EXPECTED, path,
                    s, name != NULL ? ", SIG" : "", name != NULL ? name : "");
    }
    if (!same_set(&before->mask, &now->mask))
        return fail(LH_ABI, "%s: loading it changes which signals are blocked; " EXPECTED, path);
    return LH_OK;
}

/* Rounding and subnormals decide the bits of results, traps whether there are any. */
static lh_status_t check_float(const audit_t *before, const audit_t *now, const char *path)
{
    if (before->subnormals != now->subnormals)
        return fail(LH_ABI,
                    "%s: loading it changes whether tiny floats are flushed to zero (is it linked "
                    "with -ffast-math?); " EXPECTED,
                    path);
    if (before->rounding != now->rounding)
        return fail(LH_ABI, "%s: loading it changes how floats are rounded; " EXPECTED, path);
    if (before->traps != now->traps)
        return fail(LH_ABI, "%s: loading it changes which float exceptions trap; " EXPECTED, path);
    return LH_OK;
}

/* One left open is a leak, one closed is somebody's file: both are named by number. */
static lh_status_t check_descriptors(const audit_t *before, const audit_t *now, const char *path)
{
    for (int fd = 0; fd < AUDIT_DESCRIPTORS; fd++) {
        const unsigned bit = 1u << (fd % 8), was = before->open[fd / 8] & bit;
        if (was == (now->open[fd / 8] & bit)) continue;
        return fail(LH_ABI, "%s: loading it %s descriptor %d; " EXPECTED, path,
                    was != 0 ? "closes" : "leaves open", fd);
    }
    return LH_OK;
}

/* Whether there are more threads than before, a tenth of a second long: one that was joined may be
 * counted for some microseconds more. */
static bool threads_stay(uint32_t before)
{
    enum { TRIES = 100 };
    for (int i = 0; i < TRIES && count_threads() > before; i++)
        (void)usleep(1000);
    return count_threads() > before;
}

/* A timer that ran before may have run out; one that runs now and did not before was set. */
static lh_status_t check_limits(const audit_t *before, const audit_t *now, const char *path)
{
    for (int i = 0; i < AUDIT_TIMERS; i++)
        if (!before->timers[i] && now->timers[i])
            return fail(LH_ABI, "%s: loading it sets a timer; " EXPECTED, path);
    if (before->made_timers != now->made_timers)
        return fail(LH_ABI, "%s: loading it makes a timer; " EXPECTED, path);
    for (int i = 0; i < RLIM_NLIMITS; i++)
        if (before->limits[i].rlim_cur != now->limits[i].rlim_cur ||
            before->limits[i].rlim_max != now->limits[i].rlim_max)
            return fail(LH_ABI, "%s: loading it changes limit %d of getrlimit; " EXPECTED, path, i);
    return LH_OK;
}

/* Of a process that was alone at both looks. */
static lh_status_t check_alone(const audit_t *before, const audit_t *now, const char *path)
{
    if (before->umask != now->umask)
        return fail(LH_ABI, "%s: loading it changes the umask from %04o to %04o; " EXPECTED, path,
                    (unsigned)before->umask, (unsigned)now->umask);
    if (!before->children && now->children)
        return fail(LH_ABI, "%s: loading it starts a process; " EXPECTED, path);
    const lh_status_t status = check_limits(before, now, path);
    return status == LH_OK ? check_descriptors(before, now, path) : status;
}

/* Threads are counted before the rest is looked at, as one that is about to end may still change
 * it. The first difference is the sentence. */
lh_status_t probe_check_audit(const audit_t *before, const char *path)
{
    audit_t now;
    if (before->alone && threads_stay(before->threads))
        return fail(LH_ABI, "%s: loading it starts a thread; " EXPECTED, path);
    probe_audit(before->alone, &now);
    lh_status_t status = check_signals(before, &now, path);
    if (status == LH_OK) status = check_float(before, &now, path);
    if (status == LH_OK && before->alone) status = check_alone(before, &now, path);
    if (status != LH_OK) return status;
    if (before->folder.st_ino != now.folder.st_ino || before->folder.st_dev != now.folder.st_dev)
        return fail(LH_ABI, "%s: loading it changes the working folder; " EXPECTED, path);
    if (!CPU_EQUAL(&before->processors, &now.processors))
        return fail(LH_ABI, "%s: loading it changes on which processors it runs; " EXPECTED, path);
    if (before->priority != now.priority)
        return fail(LH_ABI, "%s: loading it changes its priority; " EXPECTED, path);
    if (before->environment != now.environment)
        return fail(LH_ABI, "%s: loading it changes the environment; " EXPECTED, path);
    if (before->locale != now.locale)
        return fail(LH_ABI, "%s: loading it changes the locale; " EXPECTED, path);
    return LH_OK;
}
