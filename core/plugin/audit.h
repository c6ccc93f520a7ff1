/* plugin/audit.h - what of a process the rest of it relies on, so that a plugin which changes it by
 * being loaded is found out: a library built with -ffast-math would change the bits of every sum.
 *
 * It compares the process before and after dlopen instead of looking for calls in the plugin's
 * code: what a library of the plugin does counts as well, and nothing is refused that does no harm.
 * What is looked at costs some hundred system calls, once for each plugin. */
#ifndef PLUGIN_AUDIT_H
#define PLUGIN_AUDIT_H

#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <base/status.h>

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
void audit_take(bool alone, audit_t *out);

/* Refuses what differs now from `before`; `path` begins the sentence. */
lh_status_t audit_check(const audit_t *before, const char *path) LH_MUST_CHECK;

#endif
