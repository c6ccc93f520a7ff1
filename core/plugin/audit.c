/* audit.c - looks at the process twice and says what has changed.
 *
 * What others may change meanwhile can't be held against the plugin. So descriptors, limits,
 * timers, children and the umask are compared only where this thread is alone, which the child that
 * tries a plugin is; there a first load of every plugin happens. Threads are counted there alone,
 * too. Compared everywhere is what belongs to the loading thread (signal mask, floating point,
 * processors), and of the process its signal handlers, working folder, environment and locale.
 *
 * Adding something to look at takes a field of audit_t, a line in audit_take and one in
 * audit_check. */
#include <plugin/audit.h>

#include <fcntl.h>
#include <locale.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <base/digest.h>
#include <base/sys.h>

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
void audit_take(bool alone, audit_t *out)
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
lh_status_t audit_check(const audit_t *before, const char *path)
{
    audit_t now;
    if (before->alone && threads_stay(before->threads))
        return fail(LH_ABI, "%s: loading it starts a thread; " EXPECTED, path);
    audit_take(before->alone, &now);
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
