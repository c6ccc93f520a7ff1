/* base/status.h - why a call failed: one sentence, said once, by the function that knows it; and
 * assertions, for what can't fail but by a mistake of ours.
 *
 * A status travels as the return value, the sentence beside it in memory of the thread. So no
 * function needs a parameter for it, a failure allocates nothing, and out of memory can be told as
 * everything else is. The price: a sentence that nobody has printed is gone with the thread's next
 * failure, and it has to be carried by hand to another thread or rank (fail_again). */
#ifndef BASE_STATUS_H
#define BASE_STATUS_H

#include <errno.h> /* for fail_io(errno, ...) */

#include <longhaul/base.h>

/* Keeps the sentence for the calling thread and returns status, so that
 * `return fail(LH_INVALID, "%s:%d: ...", path, line);` is the whole error path. Lower case, no full
 * stop; names the thing, the value found and the value expected. Callers above pass the status on
 * and add nothing. errno stays as it is. A sentence is cut at 2,047 bytes. */
lh_status_t fail(lh_status_t status, const char *fmt, ...) LH_PRINTF(2, 3);
/* LH_IO, with the system's name for that error at the sentence's end; an error of 0 adds nothing.
 * errno is `error` afterwards, for callers who decide by it: damage is for ever, a full disk is
 * not. */
lh_status_t fail_io(int error, const char *fmt, ...) LH_PRINTF(2, 3);
/* With a sentence that another thread, process or rank has made. */
lh_status_t fail_again(lh_status_t status, const char *sentence);

/* The sentence of this thread's last failure; "" if there was none. The thread owns it: it is valid
 * until the thread's next failure or fail_clear. */
const char *fail_reason(void);
/* Forgets it, before a call whose own sentence is to be told from an older one. */
void fail_clear(void);

/* Statuses of the host's own, beside those of LH_STATUS_MAP: a process of ours ended by an
 * assertion; a machine of the job was told to end at once; one was asked to stop before there was a
 * step to end behind. */
enum { STATUS_INTERNAL = -1000, STATUS_ENDED = -1001, STATUS_STOPPED = -1002 };
/* The text of LH_STATUS_MAP, or of a status of the host's own; "unknown status" for any other
 * number. */
const char *status_text(lh_status_t status);

/* Exit codes of the command line. */
enum {
    EXIT_DONE = 0,
    EXIT_REFUSED = 1, /* input or configuration refused  */
    EXIT_USAGE = 2,
    EXIT_LOST = 3,        /* a rank, link or device was lost, or did not come */
    EXIT_STOPPED = 4,     /* training stopped: not finite too often */
    EXIT_INTERNAL = 5,    /* internal error                  */
    EXIT_TERMINATED = 75, /* stopped as asked: after a save, or before there was anything to save */
    EXIT_ENDED = 143,     /* as after a second SIGTERM: 128 and its number */
};
/* The code with which a command ends that failed with this status. LH_AGAIN, which some caller
 * should have dealt with, is an internal error. */
int status_exit_code(lh_status_t status);

/* What holds unless longhaul itself is wrong: the order of calls, states, indexes, sizes. What a
 * user, a file, a peer or a plugin can cause is refused by fail() instead. It stays on in release,
 * so it costs a comparison, and stands outside of loops over elements.
 *
 * Where it does not hold, the process ends at once with EXIT_INTERNAL: no destructor runs, nothing
 * is saved or flushed, for what memory holds is not to be trusted any more. Other ranks see a rank
 * that is lost. The sentence "internal error at FILE:LINE: 'CONDITION' does not hold" goes to
 * stderr and to the files of log.h, or to the process that status_assert_tell names. [any
 * thread] */
#define lh_assert(condition)                 \
    (__builtin_expect(!!(condition), 1) != 0 \
         ? (void)0                           \
         : status_assert_failed(#condition, __FILE_NAME__, __LINE__))

/* What lh_assert calls; nobody else does. */
_Noreturn void status_assert_failed(const char *condition, const char *file, int line)
    __attribute__((cold));
/* told gets the sentence first, in the thread that fails; it must neither allocate nor wait. Where
 * it returns true another process prints the sentence, and stderr stays silent. NULL: nobody is
 * told, as at the start. A process made by fork has its parent's until it sets its own. */
void status_assert_tell(bool (*told)(const char *sentence));
/* Who prints the sentence, on stderr where `shown` says so, and in files of its own. log.c sets it
 * when it opens a file: this folder's lowest header knows nothing of logs. */
void status_assert_print(void (*print)(const char *sentence, bool shown));

#endif
