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
    uint32_t result;
    char sentence[2048];
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
        (void)vsnprintf(report->sentence, sizeof(report->sentence), fmt, args);
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

void check_ok(lh_status_t status, const char *what)
{
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
    jumper = 0;
}

static void be_child(const check_t *c, subject_t *s, int said)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)setpgid(0, 0);
    (void)dup2(said, STDOUT_FILENO);
    (void)dup2(said, STDERR_FILENO);
    c->run(s);
    (void)fflush(NULL);
    _exit(0); /* what the plugin leaks the host has counted; the kit frees little */
}

/* False: it is still running when its time is over, or was then stopped. */
static bool wait_for(pid_t pid, uint32_t seconds, int *how)
{
    const uint64_t until = sys()->now_ns() + (uint64_t)seconds * 1000000000u;
    for (uint64_t pause = 200000; waitpid(pid, how, WNOHANG) == 0; pause += pause / 8) {
        if (sys()->now_ns() > until) {
            (void)kill(-pid, SIGKILL);
            (void)kill(pid, SIGKILL);
            (void)waitpid(pid, how, 0);
            return false;
        }
        if (pause > 20000000) pause = 20000000;
        (void)nanosleep(&(struct timespec){.tv_nsec = (long)pause}, NULL);
    }
    (void)kill(-pid, SIGKILL); /* whatever it started and left */
    return true;
}

static void read_tail(int said, char *out, size_t room)
{
    const off_t end = lseek(said, 0, SEEK_END);
    const off_t from = end > (off_t)room - 1 ? end - (off_t)room + 1 : 0;
    const ssize_t got = end > 0 ? pread(said, out, room - 1, from) : 0;
    out[got > 0 ? got : 0] = '\0';
}

static void judge(outcome_t *out, bool in_time, int how, uint32_t seconds)
{
    if (atomic_load(&report->taken) != 0) {
        out->result = report->result;
        (void)snprintf(out->sentence, sizeof(out->sentence), "%s", report->sentence);
    } else if (!in_time) {
        out->result = RESULT_TIMEOUT;
        (void)snprintf(out->sentence, sizeof(out->sentence), "not done after %u s", seconds);
    } else if (WIFSIGNALED(how)) {
        out->result = RESULT_CRASH;
        (void)snprintf(out->sentence, sizeof(out->sentence), "killed by signal %d (%s)",
                       WTERMSIG(how), strsignal(WTERMSIG(how)));
    } else if (WEXITSTATUS(how) != 0) {
        out->result = RESULT_CRASH;
        (void)snprintf(out->sentence, sizeof(out->sentence), "the process ended with exit code %d",
                       WEXITSTATUS(how));
    }
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
        const bool in_time = wait_for(pid, c->seconds, &how);
        judge(out, in_time, how, c->seconds);
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
    s->fact = c->fact;
    if (in_process) {
        run_here(c, s);
        judge(out, true, 0, c->seconds);
    } else {
        run_in_child(c, s, out);
    }
    out->seconds = (double)(sys()->now_ns() - begin) * 1e-9;
}
