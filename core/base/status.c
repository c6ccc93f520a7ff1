/* status.c - the sentence of a failure, kept per thread; the end by an assertion.
 *
 * The sentence lies in an array of the thread and not on the heap: out of memory has a sentence,
 * too, and nobody has to free one. Its size bounds what a caller can say; a longer one is cut. */
#include <base/status.h>

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

enum { REASON_BYTES = 2048 };
static _Thread_local char reason[REASON_BYTES];

/* Returns how long the sentence would be if it had room, as vsnprintf does; 0 for a format that
 * cannot be written. */
static int keep_reason(const char *fmt, va_list args)
{
    const int length = vsnprintf(reason, sizeof(reason), fmt, args);
    return length < 0 ? 0 : length;
}

lh_status_t fail(lh_status_t status, const char *fmt, ...)
{
    const int error = errno;
    va_list args;
    va_start(args, fmt);
    (void)keep_reason(fmt, args);
    va_end(args);
    errno = error;
    return status;
}

lh_status_t fail_io(int error, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const int length = keep_reason(fmt, args);
    va_end(args);
    if (error != 0 && (size_t)length < sizeof(reason))
        (void)snprintf(reason + length, sizeof(reason) - (size_t)length, ": %s", strerror(error));
    errno = error;
    return LH_IO;
}

lh_status_t fail_again(lh_status_t status, const char *sentence)
{
    return sentence == reason ? status : fail(status, "%s", sentence);
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
    case STATUS_INTERNAL: return "internal error";
    case STATUS_ENDED: return "ended at once";
    case STATUS_STOPPED: return "stopped as asked";
    default: return "unknown status";
    }
}

int status_exit_code(lh_status_t status)
{
    switch (status) {
    case LH_OK: return EXIT_DONE;
    case LH_PEER_LOST:
    case LH_UNREACHABLE:
    case LH_DEVICE_LOST:
    case LH_TIMED_OUT: return EXIT_LOST;
    case LH_AGAIN:
    case STATUS_INTERNAL: return EXIT_INTERNAL;
    case STATUS_ENDED: return EXIT_ENDED;
    case STATUS_STOPPED: return EXIT_TERMINATED;
    default: return EXIT_REFUSED;
    }
}

/* Prints an assertion's sentence as long as log.c does not: by one write, without stdio, whose
 * locks another thread may hold for ever. */
static void print_plainly(const char *sentence, bool shown)
{
    char line[600];
    const int length = snprintf(line, sizeof(line), "longhaul: %s\n", sentence);
    if (shown && length > 0) (void)!write(STDERR_FILENO, line, (size_t)length);
}

/* Atomic, as one thread may fail while another sets them. */
static bool (*_Atomic teller)(const char *sentence);
static void (*_Atomic printer)(const char *sentence, bool shown) = print_plainly;

void status_assert_tell(bool (*told)(const char *sentence))
{
    atomic_store(&teller, told);
}

void status_assert_print(void (*print)(const char *sentence, bool shown))
{
    atomic_store(&printer, print);
}

/* Two threads may fail at once, and the function that is told may fail itself: the first sentence
 * counts. A second thread sleeps until the first has ended the process; a second failure of the
 * same thread ends it at once. */
_Noreturn void status_assert_failed(const char *condition, const char *file, int line)
{
    static atomic_flag taken = ATOMIC_FLAG_INIT;
    static _Thread_local bool failing;
    char sentence[512];
    if (failing) _exit(EXIT_INTERNAL);
    failing = true;
    while (atomic_flag_test_and_set(&taken))
        (void)pause(); /* the other thread ends the process */

    (void)snprintf(sentence, sizeof(sentence), "internal error at %s:%d: '%s' does not hold", file,
                   line, condition);
    bool (*const told)(const char *) = atomic_load(&teller);
    const bool shown = told == NULL || !told(sentence);
    atomic_load (&printer)(sentence, shown);
    _exit(EXIT_INTERNAL);
}
