/* base/confine.h - what a process that reads files of strangers gives up, for good, so that a file
 * that takes it over gets nothing else: Landlock for files, a filter of system calls for the rest.
 * Both are Linux's; neither needs rights. */
#ifndef BASE_CONFINE_H
#define BASE_CONFINE_H

#include <base/status.h>

/* What the kernel took: older ones, and some containers, refuse either. */
enum { CONFINE_FILES = 1u << 0, CONFINE_CALLS = 1u << 1 };

/* Files and folders, each list ended by NULL. What is not there, or a link that leads nowhere, is
 * left out; what is open already stays open. */
typedef struct confine {
    const char *const *read;
    const char *const *write; /* also made, renamed and removed there; read, too */
} confine_t;

/* For this thread and what it starts; call it where there is no other. */
uint32_t confine_process(const confine_t *c);

/* Work on files of strangers in a process of its own, which can read and write what it needs and do
 * little else. */
enum { CONFINE_RESULT = 256 };

typedef struct confine_work {
    const char *what; /* for a sentence: "the import" */
    confine_t may;
    lh_status_t (*work)(void *context, void *result);
    void *context;
    size_t result_bytes; /* at most CONFINE_RESULT */
} confine_work_t;

/* Runs the work in a child that is forked and waited for. result is written if the work ends well;
 * else its sentence is this thread's. All that the child changed in memory is gone with it. */
lh_status_t confine_run(const confine_work_t *c, void *result) LH_MUST_CHECK;

#endif
