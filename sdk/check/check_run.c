/* check_run.c - runs a check in a child of its own, with a time limit, and learns how it ended. */
#include "check.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <base/memory.h>
#include <base/sys.h>

/* Shared by all processes of a check; the first to end it is heard. */
typedef struct report {
    _Atomic int taken;
    _Atomic uint64_t alive_ns; /* when check_alive was called last */
    _Atomic int finished;      /* the check came to its end */
    uint32_t result;
    char sentence[2048];
    /* What check_about and check_calls said last: of a process that is gone they are all there is. */
    char about[512], calls[64];
} report_t;

static report_t *report;
static jmp_buf back;
static pid_t jumper; /* the process that `back` leads back in; 0: none */

const char *result_text(uint32_t result)
{
    static const char *const texts[RESULTS] = {"pass", "warn", "skip", "FAIL", "CRASH", "TIMEOUT"};
    return texts[result];
}

static void end_with(uint32_t result, const char *fmt, va_list args) __attribute__((noreturn));
static void end_with(uint32_t result, const char *fmt, va_list args)
{
    if (atomic_exchange(&report->taken, 1) == 0) {
        const int length = vsnprintf(report->sentence, sizeof(report->sentence), fmt, args);
        if (result == RESULT_FAIL && report->about[0] != '\0' && length > 0 &&
            (size_t)length < sizeof(report->sentence))
            (void)snprintf(report->sentence + length, sizeof(report->sentence) - (size_t)length,
                           " (%s)", report->about);
        report->result = result;
    }
    if (jumper == getpid()) longjmp(back, 1);
    _exit(1);
}

void check_fault(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    end_with(RESULT_FAIL, fmt, args);
}

void check_skip(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    end_with(RESULT_SKIP, fmt, args);
}

void check_warn(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    end_with(RESULT_WARN, fmt, args);
}

void check_about(const char *text)
{
    (void)snprintf(report->about, sizeof(report->about), "%s", text == NULL ? "" : text);
}

void check_calls(const char *function)
{
    (void)snprintf(report->calls, sizeof(report->calls), "%s", function == NULL ? "" : function);
}

void check_alive(void)
{
    atomic_store(&report->alive_ns, sys()->now_ns());
}

void check_ok(lh_status_t status, const char *what)
{
    check_alive();
    if (status == LH_OK) return;
    check_fault("%s: %s%s%s", what, status_text(status), fail_reason()[0] != '\0' ? ": " : "",
                fail_reason());
}

void *check_memory(size_t count, size_t size)
{
    void *memory = mem_array(count, size);
    if (memory == NULL) check_fault("%s", fail_reason());
    return memory;
}

static void run_here(const check_t *c, subject_t *s)
{
    jumper = getpid();
    if (setjmp(back) == 0) c->run(s);
    atomic_store(&report->finished, 1);
    jumper = 0;
}

static void be_child(const check_t *c, subject_t *s, int said)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)setpgid(0, 0);
    (void)dup2(said, STDOUT_FILENO);
    (void)dup2(said, STDERR_FILENO);
    c->run(s);
    atomic_store(&report->finished, 1);
    (void)fflush(NULL);
    _exit(0); /* what the plugin leaks the host has counted; the kit frees little */
}

/* A sanitizer makes every call of a plugin's slower. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOWNESS = 3 };
#else
enum { SLOWNESS = 1 };
#endif

/* 0: it ended. Else the seconds after which it was stopped: all that it has, or those in which
 * nothing came back from the plugin. */
static uint32_t wait_for(pid_t pid, const check_t *c, int *how)
{
    const uint64_t second = 1000000000u * (uint64_t)SLOWNESS, begin = sys()->now_ns();
    for (uint64_t pause = 200000; waitpid(pid, how, WNOHANG) == 0; pause += pause / 8) {
        const uint64_t now = sys()->now_ns(), alive = atomic_load(&report->alive_ns);
        /* The others, of optimizers and transports, wait for peers. */
        const bool watched = (c->kinds & (CHECK_KIND(MODEL) | CHECK_KIND(DEVICE))) != 0;
        const bool hangs = watched && now > alive && now - alive > CHECK_HANGS_SECONDS * second;
        if (hangs || now - begin > c->seconds * second) {
            (void)kill(-pid, SIGKILL);
            (void)kill(pid, SIGKILL);
            (void)waitpid(pid, how, 0);
            return (hangs ? CHECK_HANGS_SECONDS : c->seconds) * SLOWNESS;
        }
        if (pause > 20000000) pause = 20000000;
        (void)nanosleep(&(struct timespec){.tv_nsec = (long)pause}, NULL);
    }
    (void)kill(-pid, SIGKILL); /* whatever it started and left */
    return 0;
}

static void read_tail(int said, char *out, size_t room)
{
    const off_t end = lseek(said, 0, SEEK_END);
    const off_t from = end > (off_t)room - 1 ? end - (off_t)room + 1 : 0;
    const ssize_t got = end > 0 ? pread(said, out, room - 1, from) : 0;
    out[got > 0 ? got : 0] = '\0';
}

/* ", in record() of block 1 (with blocks=2 heads=4)": where the process was that ended or was
 * stopped. */
static void append_place(outcome_t *out)
{
    const size_t length = strlen(out->sentence);
    if (report->calls[0] == '\0') return;
    (void)snprintf(out->sentence + length, sizeof(out->sentence) - length, ", in %s%s%s%s",
                   report->calls, report->about[0] != '\0' ? " (" : "", report->about,
                   report->about[0] != '\0' ? ")" : "");
}

/* stopped: after so many seconds, or 0. */
static void judge(outcome_t *out, uint32_t stopped, int how)
{
    if (atomic_load(&report->taken) != 0) {
        out->result = report->result;
        (void)snprintf(out->sentence, sizeof(out->sentence), "%s", report->sentence);
    } else if (stopped > 0) {
        out->result = RESULT_TIMEOUT;
        (void)snprintf(out->sentence, sizeof(out->sentence),
                       stopped == CHECK_HANGS_SECONDS * SLOWNESS
                           ? "it hangs: nothing came back from the plugin for %u s"
                           : "not done after %u s",
                       stopped);
    } else if (WIFSIGNALED(how)) {
        out->result = RESULT_CRASH;
        (void)snprintf(out->sentence, sizeof(out->sentence), "killed by signal %d (%s)",
                       WTERMSIG(how), strsignal(WTERMSIG(how)));
    } else if (WEXITSTATUS(how) != 0 || atomic_load(&report->finished) == 0) {
        out->result = RESULT_CRASH;
        (void)snprintf(out->sentence, sizeof(out->sentence),
                       "the process ended with exit code %d before the check was done",
                       WEXITSTATUS(how));
    }
    if (out->result >= RESULT_CRASH) append_place(out);
}

static void run_in_child(const check_t *c, subject_t *s, outcome_t *out)
{
    int how = 0;
    const int said = memfd_create("said", MFD_CLOEXEC);
    const pid_t pid = said < 0 ? -1 : fork();
    if (pid == 0) be_child(c, s, said);
    if (pid < 0) {
        out->result = RESULT_CRASH;
        (void)snprintf(out->sentence, sizeof(out->sentence), "no child to run it in");
    } else {
        const uint32_t stopped = wait_for(pid, c, &how);
        judge(out, stopped, how);
        if (out->result > RESULT_SKIP) read_tail(said, out->said, sizeof(out->said));
    }
    if (said >= 0) (void)close(said);
}

void check_run(const check_t *c, subject_t *s, bool in_process, outcome_t *out)
{
    const uint64_t begin = sys()->now_ns();
    *out = (outcome_t){.result = RESULT_PASS};
    if (report == NULL)
        report = mmap(NULL, sizeof(*report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                      0);
    if (report == MAP_FAILED) abort();
    memset(report, 0, sizeof(*report));
    atomic_store(&report->alive_ns, begin);
    s->fact = c->fact;
    if (in_process) {
        run_here(c, s);
        judge(out, 0, 0);
    } else {
        run_in_child(c, s, out);
    }
    out->seconds = (double)(sys()->now_ns() - begin) * 1e-9;
}
