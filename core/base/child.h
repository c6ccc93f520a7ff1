/* base/child.h - work that may crash, hang, end its process or be taken over by what it reads is
 * done in a child, which says what came of it in messages of one size and may give up rights first.
 *
 * A fork and not a program of its own: the child has what the parent has read and set up, and costs
 * less than a millisecond. The price is that it has the parent's memory and descriptors as well,
 * which is what child_confine is for.
 *
 * What the child starts is taken away with it: that is, what stays in its group of processes. What
 * leaves it (setsid, setpgid) lives on. The filter of child_confine refuses both calls; a child
 * that is not confined is for code that is trusted anyway. */
#ifndef BASE_CHILD_H
#define BASE_CHILD_H

#include <sys/types.h>

#include <base/status.h>

enum { CHILD_MESSAGE = 4096 };         /* at most: a pipe keeps that many bytes together */
#define CHILD_NO_DEADLINE (UINT64_MAX) /* for child_hear */

/* What child_start returns; errno says why there is no pipe or process. */
enum { CHILD_STARTED, CHILD_NO_PIPE, CHILD_NO_PROCESS };
/* What child_hear returns. */
enum { CHILD_SAID, CHILD_ENDED, CHILD_LATE };

/* The parent's side of a child; one thread at a time. child_take_away ends it. */
typedef struct child {
    pid_t pid;
    int from;    /* the read end of its pipe */
    int end;     /* a pidfd, readable once it has ended; -1: this kernel gives none */
    bool silent; /* no message will come any more */
} child_t;

/* work runs in the child and says its messages into `to`; what it returns is the exit code. No
 * handler of exit runs then, and no buffer of stdio is written. The child ends with the thread that
 * calls this. [any thread] */
int child_start(int (*work)(void *context, int to), void *context, child_t *out) LH_MUST_CHECK;
/* In the child: one message of at most CHILD_MESSAGE bytes. False when the pipe is not there any
 * more. */
bool child_say(int to, const void *message, size_t bytes);
/* In the parent: the next message, of exactly `bytes` bytes; CHILD_ENDED when the child ended
 * without one more; or CHILD_LATE at `until`, a time of sys()->now_ns. Whoever else holds the pipe
 * is not waited for. */
int child_hear(child_t *c, void *message, size_t bytes, uint64_t until) LH_MUST_CHECK;
/* Ends the child by SIGKILL, with its group, and waits for it. Returns how it ended, as waitpid
 * tells it: one that had ended before keeps its own end. */
int child_take_away(child_t *c);

/* What a process that reads files of strangers gives up, for good, so that a file that takes it
 * over gets nothing else: Landlock for files, a filter of system calls for the rest. Both are
 * Linux's; neither needs rights. */

/* What the kernel took: older ones, and some containers, refuse either. */
enum { CONFINE_FILES = 1u << 0, CONFINE_CALLS = 1u << 1 };

/* Files and folders, each list ended by NULL. What is not there, or a link that leads nowhere, is
 * left out; what is open already stays open. */
typedef struct confine {
    const char *const *read;
    const char *const *write; /* also made, renamed and removed there; read, too */
} confine_t;

/* For this thread and what it starts; call it where there is no other thread. Returns the CONFINE_*
 * that are in force now; the caller decides whether that is enough. */
uint32_t child_confine(const confine_t *c);

/* Work on files of strangers in a process of its own, which can read and write what it needs and do
 * little else. */
enum { CONFINE_RESULT = 256 };

typedef struct confine_work {
    const char *what; /* for a sentence: "the import" */
    confine_t may;
    lh_status_t (*work)(void *context, void *result); /* runs in the child */
    void *context;
    size_t result_bytes; /* at most CONFINE_RESULT; plain data, as it goes through a pipe */
} confine_work_t;

/* Runs the work in a child that is forked, confined and waited for. result is written if the work
 * ends well; else its sentence is this thread's. All that the child changed in memory is gone with
 * it. Where the kernel refuses to confine it the work is done all the same, and a line of the log
 * says so. */
lh_status_t child_run_confined(const confine_work_t *c, void *result) LH_MUST_CHECK;

#endif
