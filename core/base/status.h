/* base/status.h - why a call failed: one sentence, said once, by the function that knows it. */
#ifndef BASE_STATUS_H
#define BASE_STATUS_H

#include <longhaul/base.h>

/* Keeps the sentence for the calling thread and returns status, so that
 * `return fail(LH_INVALID, "%s:%d: ...", path, line);` is the whole error path. Lower case, no full
 * stop; names the thing, the value found and the value expected. With LH_IO what errno says is
 * appended. Callers above pass the status on and add nothing. */
lh_status_t fail(lh_status_t status, const char *fmt, ...) LH_PRINTF(2, 3);
/* With a sentence that is whole already, of another thread or rank: errno has nothing to add. */
lh_status_t fail_again(lh_status_t status, const char *sentence);

/* The sentence of this thread's last failure; "" if there was none. Valid until its next one. */
const char *fail_reason(void);
void fail_clear(void);

/* The text of LH_STATUS_MAP. */
const char *status_text(lh_status_t status);

/* Exit codes of the command line. */
enum {
    EXIT_DONE = 0,
    EXIT_REFUSED = 1, /* input or configuration refused  */
    EXIT_USAGE = 2,
    EXIT_LOST = 3,        /* a rank or link was lost         */
    EXIT_STOPPED = 4,     /* training stopped: not finite too often */
    EXIT_INTERNAL = 5,    /* internal error                  */
    EXIT_TERMINATED = 75, /* stopped by SIGTERM after a save */
};
int status_exit_code(lh_status_t status);

#endif
