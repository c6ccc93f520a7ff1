/* plugin/probe.h - a plugin is tried in a child first, so that one that crashes, hangs or leaves
 * when it is loaded costs a sentence, not the run. It is no prison: code that means harm is kept
 * out by who may write the file and by its pinned digest. So what it starts is taken away with the
 * child, but may leave the child's group and live on, as it could once the plugin is loaded. */
#ifndef PLUGIN_PROBE_H
#define PLUGIN_PROBE_H

#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <base/status.h>

enum { PROBE_MS = 5000 }; /* how long an attempt may take where nobody says otherwise */

/* Where the child stands, for the sentence when it dies there. */
enum { PROBE_LOADING = 1, PROBE_TABLES = 2, PROBE_SELFTEST = 3 };

typedef struct prober {
    const char *path;   /* begins every sentence                                          */
    const char *sha256; /* what was found good once in this process is not tried again    */
    uint32_t limit_ms;  /* of the whole attempt, by the parent's clock                    */
    /* Runs in the child only; its sentence becomes the caller's. */
    lh_status_t (*attempt)(void *context);
    void *context;
} prober_t;

/* LH_OK where the attempt ended well; else its status, or LH_ABI and how the child ended. */
lh_status_t probe(const prober_t *p) LH_MUST_CHECK;
/* The attempt says how far it is: PROBE_*. Does nothing where no child tries anything. */
void probe_reached(uint32_t stage);
bool probe_is_child(void); /* this process is one that tries a plugin */

/* ---- the audit ----
 *
 * What of a process the rest of it relies on, so that a plugin which changes it by being loaded is
 * found out: a library built with -ffast-math would change the bits of every sum. The process is
 * compared before and after dlopen; the plugin's code is not searched for calls. So what a library
 * of the plugin does counts as well, and nothing is refused that does no harm. What is looked at
 * costs some hundred system calls, once for each plugin. */

enum { AUDIT_SIGNALS = 65, AUDIT_DESCRIPTORS = 4096, AUDIT_TIMERS = 3 };

typedef struct audit {
    bool alone; /* what follows up to `signals` was looked at, as nobody else can have changed it in
                   between */
    uint32_t threads;
    bool children; /* one at least */
    mode_t umask;
    uint8_t open[AUDIT_DESCRIPTORS / 8]; /* a bit per descriptor */
    struct rlimit limits[RLIM_NLIMITS];
    bool timers[AUDIT_TIMERS]; /* that of real time, of the processor's in the process and with the
                                  kernel: runs */
    uint64_t made_timers;      /* bytes of their list: timer_create */

    struct sigaction signals[AUDIT_SIGNALS];
    sigset_t mask;        /* of this thread                       */
    struct stat folder;   /* the working one                      */
    uint32_t rounding;    /* of floating point in this thread, as are the next two */
    uint32_t subnormals;  /* bits that flush them to zero         */
    uint32_t traps;       /* float exceptions that raise SIGFPE   */
    cpu_set_t processors; /* of this thread                      */
    int priority;
    uint64_t environment, locale; /* hashes */
} audit_t;

/* Looks at the process; much of it is the calling thread's, which is the one that loads. alone:
 * nobody else can change this process until it is looked at again; false: so it is only if it has
 * no other thread. */
void probe_audit(bool alone, audit_t *out);

/* Refuses what differs now from `before`; `path` begins the sentence. */
lh_status_t probe_check_audit(const audit_t *before, const char *path) LH_MUST_CHECK;

#endif
