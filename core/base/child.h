/* base/child.h - work that may crash, hang or end its process is done in a child, which says what
 * came of it in messages of one size. What the child starts is taken away with it.
 *
 * That is, what stays in its group of processes. What leaves it (setsid, setpgid) lives on: the
 * filter of confine.h refuses both, and who goes without runs code that it trusts anyway. */
#ifndef BASE_CHILD_H
#define BASE_CHILD_H

#include <sys/types.h>

#include <longhaul/base.h>

enum { CHILD_MESSAGE = 4096 };         /* at most: a pipe keeps that many bytes together */
#define CHILD_NO_DEADLINE (UINT64_MAX) /* for child_hear */

enum { CHILD_STARTED, CHILD_NO_PIPE, CHILD_NO_PROCESS }; /* errno says why there is none */
enum { CHILD_SAID, CHILD_ENDED, CHILD_LATE };

typedef struct child {
    pid_t pid;
    int from;    /* the read end of its pipe */
    int end;     /* a pidfd, readable once it has ended; -1: this kernel gives none */
    bool silent; /* no message will come any more */
} child_t;

/* work runs in the child; what it returns is the exit code. No handler of exit runs then, and no
 * buffer of stdio is written. [any] */
int child_start(int (*work)(void *context, int to), void *context, child_t *out) LH_MUST_CHECK;
/* In the child: false when the pipe is not there any more. */
bool child_say(int to, const void *message, size_t bytes);
/* The next message, CHILD_ENDED when the child ended without one more, or CHILD_LATE. Whoever else
 * holds the pipe is not waited for. until is of sys()->now_ns. */
int child_hear(child_t *c, void *message, size_t bytes, uint64_t until) LH_MUST_CHECK;
/* By SIGKILL, with its group. Returns how it ended, as waitpid tells it: one that had ended before
 * keeps its own end. */
int child_take_away(child_t *c);

#endif
