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

/* The halves, in confine_files.c and confine_calls.c. */
bool confine_files(const confine_t *c);
bool confine_calls(void);

#endif
