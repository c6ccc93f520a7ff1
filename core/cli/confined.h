/* cli/confined.h - work on files of strangers in a process of its own, which can read and write
 * what it needs and do little else (base/confine.h). */
#ifndef CLI_CONFINED_H
#define CLI_CONFINED_H

#include <base/confine.h>

enum { CONFINED_RESULT = 256 };

typedef struct confined {
    const char *what; /* for a sentence: "the import" */
    confine_t may;
    lh_status_t (*work)(void *context, void *result);
    void *context;
    size_t result_bytes; /* at most CONFINED_RESULT */
} confined_t;

/* Runs the work in a child that is forked and waited for. result is written if the work ends well;
 * else its sentence is this thread's. All that the child changed in memory is gone with it. */
lh_status_t confined_run(const confined_t *c, void *result) LH_MUST_CHECK;

#endif
