/* status.c - the sentence of a failure, kept per thread. */
#include <base/status.h>

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

enum { REASON_BYTES = 2048 };
static _Thread_local char reason[REASON_BYTES];

lh_status_t fail(lh_status_t status, const char *fmt, ...)
{
    const int error = errno;
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(reason, sizeof(reason), fmt, args);
    va_end(args);

    if (length < 0) length = 0;
    if (status == LH_IO && error != 0 && (size_t)length < sizeof(reason))
        (void)snprintf(reason + length, sizeof(reason) - (size_t)length, ": %s", strerror(error));
    return status;
}

lh_status_t fail_again(lh_status_t status, const char *sentence)
{
    errno = 0;
    return fail(status, "%s", sentence);
}

const char *fail_reason(void)
{
    return reason;
}

void fail_clear(void)
{
    reason[0] = '\0';
}

const char *status_text(lh_status_t status)
{
    switch (status) {
#define STATUS_CASE(name, number, text) \
    case LH_##name: return text;
        LH_STATUS_MAP(STATUS_CASE)
#undef STATUS_CASE
    default: return "unknown status";
    }
}

int status_exit_code(lh_status_t status)
{
    switch (status) {
    case LH_OK: return EXIT_DONE;
    case LH_PEER_LOST:
    case LH_UNREACHABLE:
    case LH_TIMED_OUT: return EXIT_LOST;
    case LH_AGAIN: return EXIT_INTERNAL;
    default: return EXIT_REFUSED;
    }
}
