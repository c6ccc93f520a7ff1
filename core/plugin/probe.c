/* probe.c - what the child does to itself first, what it says, and the sentence of its end.
 *
 * A fork and not a fresh program: what matters is what loading does to this process, with the
 * libraries that it has already; and a fork costs less than a millisecond here, an exec several.
 * The core loads its plugins before it starts threads; where a caller did not, glibc still gives
 * the child working locks of malloc and of the dynamic loader, which is all that the core's part of
 * an attempt takes. */
#include <plugin/probe.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
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
static void remember(const char *sha256)
{
    (void)pthread_mutex_lock(&known_lock);
    if (known_count < KNOWN) memcpy(known[known_count++], sha256, SHA256_TEXT);
    (void)pthread_mutex_unlock(&known_lock);
}

/* A child that cannot write any more has lost its pipe to the plugin: see MUTE. */
static bool say(uint32_t says, int32_t value, const char *reason)
{
    message_t m = {.says = says, .value = value};
    (void)snprintf(m.reason, sizeof(m.reason), "%s", reason);
    return child_say(child_says, &m, sizeof(m));
}

void probe_reached(uint32_t stage)
{
    if (child_says >= 0) (void)say(SAYS_STAGE, (int32_t)stage, "");
}

/* For an assertion in the child: the parent says the sentence. */
static bool tell_parent(const char *sentence)
{
    return say(SAYS_DONE, STATUS_INTERNAL, sentence);
}

/* Whoever loads in a child may look at more of the process: nobody else can change it. */
bool probe_is_child(void)
{
    return child_says >= 0;
}

/* What a constructor left at work, in whatever group or session, is this child's: it takes over
 * orphans. One that lived on would keep what the parent has open, its locks among it. */
static void end_children(void)
{
    for (bool found = true; found;) {
        char path[64], line[4096];
        (void)snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
        FILE *f = fopen(path, "re");
        found = f != NULL && fgets(line, sizeof(line), f) != NULL;
        if (f != NULL) (void)fclose(f);
        for (char *rest = line, *word; found && (word = strsep(&rest, " \n")) != NULL;)
            if (*word != '\0') (void)kill((pid_t)atoi(word), SIGKILL);
        while (waitpid(-1, NULL, 0) > 0) {
        }
    }
}

/* A constructor calls exit. What the parent keeps in stdio's buffers and in its own handlers of
 * that moment is not the child's to deal with: registered last, this runs first. */
static void leave(int code, void *unused)
{
    (void)unused;
    end_children();
    _exit(say(SAYS_EXIT, code, "") ? code : MUTE);
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
    (void)on_exit(leave, NULL);
    fail_clear();
    const lh_status_t status = p->attempt(p->context);
    end_children();
    return say(SAYS_DONE, status, fail_reason()) ? 0 : MUTE;
}

/* Listens until the child says its last word, ends or is late: by the clock of this side, as a
 * plugin can block the signal of an alarm. */
static void hear(const prober_t *p, child_t *child, heard_t *h)
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
static const char *doing(uint32_t stage)
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
static lh_status_t judge(const prober_t *p, const heard_t *h)
{
    const char *what = doing(h->stage);
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
static lh_status_t run(const prober_t *p)
{
    child_t child;
    heard_t h = {0};
    switch (child_start(try_it, (void *)(uintptr_t)p, &child)) {
    case CHILD_NO_PIPE: return fail_io(errno, "%s: no pipe to try it with", p->path);
    case CHILD_NO_PROCESS: return fail_io(errno, "%s: no process to try it in", p->path);
    default:
        hear(p, &child, &h);
        h.how = child_take_away(&child);
        return judge(p, &h);
    }
}

/* A plugin that is found good is not tried again in this process, nor by its children, which
 * inherit the list. */
lh_status_t probe(const prober_t *p)
{
    lh_assert(p->attempt != NULL && p->limit_ms > 0);
    lh_assert(p->path != NULL && p->sha256 != NULL && strlen(p->sha256) < SHA256_TEXT);
    if (is_known(p->sha256)) return LH_OK;
    const lh_status_t status = run(p);
    if (status == LH_OK) remember(p->sha256);
    return status;
}
