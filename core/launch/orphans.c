/* orphans.c - waits for what ranks left at work, ends it when its time is over, and gives up what can't be ended.
 *
 * The launcher is the reaper of its ranks' children (launch_start.c), so what a rank left behind is a child of
 * its own once the rank has ended. It knows those processes by the kernel's lists alone: nobody has told it of
 * them. The price is that it looks there each 10 ms as long as there are some. */
#include <launch/orphans.h>

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

#include <base/log.h>
#include <base/sys.h>

enum {
    ORPHANS_MS = 60000, /* what a rank left at work when all ended well */
    /* A process that is still there so long after SIGKILL waits in the kernel, for a driver or a disk, and
     * may do so for ever. To give back hundreds of GB of pinned memory takes tens of seconds. */
    STUCK_MS = 60000,
};

bool orphans_is_stuck(const started_t *r, uint64_t now)
{
    return r->pid != 0 && r->killed && now >= r->killed_at + STUCK_MS * CONTROL_MS;
}

void orphans_leave_rank(const starter_t *s, started_t *r)
{
    lh_assert(r >= s->ranks && r < s->ranks + s->count && r->pid != 0);
    log_line(LH_LOG_WARN, "rank %u (process %d) can't be ended; it is left behind", r->rank,
             (int)r->pid);
    r->stuck = r->pid;
    r->how = r->failed ? s->board[r - s->ranks].code << 8 : SIGKILL;
}

const started_t *orphans_find_rank(const starter_t *s)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (s->ranks[i].stuck != 0) return &s->ranks[i];
    return NULL;
}

/* Ranks start again beside what can't be ended: nobody waits for it a second time. */
static bool orphans_has_left(const starter_t *s, pid_t pid)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (s->ranks[i].stuck == pid) return true;
    for (uint32_t i = 0; i < STARTER_STUCK; i++)
        if (s->stuck[i] == pid) return true;
    return false;
}

/* Where no place is free it is waited for again. */
static void orphans_leave(starter_t *s, pid_t pid)
{
    log_line(LH_LOG_WARN,
             "process %d, which a rank left at work, can't be ended; it is left behind", (int)pid);
    for (uint32_t i = 0; i < STARTER_STUCK; i++) {
        if (s->stuck[i] != 0) continue;
        s->stuck[i] = pid;
        return;
    }
}

/* It has ended: another process may come to have its number. */
static void orphans_forget(starter_t *s, pid_t pid)
{
    for (uint32_t i = 0; i < STARTER_STUCK; i++)
        if (s->stuck[i] == pid) s->stuck[i] = 0;
}

/* What becomes of a process that a rank left behind. */
enum orphan_fate { ORPHAN_WORKS, ORPHAN_ENDS, ORPHAN_IS_LEFT };

/* Processes that ranks left behind are this launcher's now: it took them over. How many there are, but for
 * those that can't be ended. */
static uint32_t orphans_see(starter_t *s, enum orphan_fate fate)
{
    uint32_t count = 0;
    char path[64];
    int child;
    DIR *threads = opendir("/proc/self/task");
    if (threads == NULL) return 0;
    for (const struct dirent *e; (e = readdir(threads)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        (void)snprintf(path, sizeof(path), "/proc/self/task/%.16s/children", e->d_name);
        FILE *f = fopen(path, "re");
        while (f != NULL && fscanf(f, "%d", &child) == 1) {
            if (orphans_has_left(s, (pid_t)child)) continue;
            count++;
            if (fate == ORPHAN_ENDS) (void)kill((pid_t)child, SIGKILL);
            if (fate == ORPHAN_IS_LEFT) orphans_leave(s, (pid_t)child);
        }
        if (f != NULL) (void)fclose(f);
    }
    (void)closedir(threads);
    return count;
}

/* What a rank left at work, such as a saver, may go on for a minute where all went well, until
 * 1500 ms after the first failure where a rank has failed, and not at all after a second signal. On a
 * machine that leaves it has half of the notice's rest, and nothing where ranks were killed for it. */
static uint64_t orphans_end(const starter_t *s, uint64_t began)
{
    const uint64_t half = STARTER_GRACE_MS * CONTROL_MS / 2;
    if (s->stops > 1) return 0;
    if (s->first != NULL) return s->deadline > half ? s->deadline - half : 0;
    const uint64_t rest = s->launch->how.job->launch.notice_ns / STARTER_NOTICE_REST;
    const uint64_t end = began + ORPHANS_MS * CONTROL_MS, left = s->leave_by + rest / 2;
    if (s->leave_by == 0) return end;
    if (s->leave_by < began) return 0;
    return left < end ? left : end;
}

/* Signals are heard while this may take long. A first one asks for nothing more than what is waited for;
 * where ranks are about to start again it waits for them. */
void orphans_reap(starter_t *s, void (*hear)(starter_t *s))
{
    enum { LOOK_MS = 10 };
    const uint64_t began = sys()->now_ns();
    const bool told = s->first_stop != 0;
    uint64_t killed_at = 0;
    for (;;) {
        for (pid_t ended; (ended = waitpid(-1, NULL, WNOHANG)) > 0;)
            orphans_forget(s, ended);
        const uint64_t now = sys()->now_ns();
        const bool at_once = now > orphans_end(s, began);
        const bool stuck = killed_at != 0 && now > killed_at + STUCK_MS * CONTROL_MS;
        const enum orphan_fate fate = stuck ? ORPHAN_IS_LEFT : at_once ? ORPHAN_ENDS : ORPHAN_WORKS;
        if (orphans_see(s, fate) == 0 || stuck) break;
        const bool hears = s->first == NULL || killed_at != 0;
        if (at_once && killed_at == 0) killed_at = now;
        struct pollfd signals = {.fd = hears ? s->signals : -1, .events = POLLIN};
        if (poll(&signals, 1, LOOK_MS) > 0) hear(s);
    }
    s->late = !told && s->first_stop != 0;
}
