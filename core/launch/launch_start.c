/* launch_start.c - the launcher: one process for each rank of this machine, none of which outlives
 * it, and one line when one fails.
 *
 * The launcher is a process of its own, and not rank 0, so that somebody who computes nothing
 * watches those who do: it sees a death at once by a descriptor a rank, knows the signal, and can
 * say which of many failures was the first. It makes itself the reaper of what its ranks leave
 * behind. The price is one process a machine that does nothing else.
 *
 * Where a rank or a link was lost (launch_end.c) it starts its ranks again (restart.h): all of them, in a new
 * epoch of the job, on a port that is opened for that meeting alone. Launchers say nothing to each
 * other. That works as no rank outlives the loss of another one: the ranks of every machine end by
 * the same news, within seconds, and each launcher does the same with its own. */
#include <launch/launch_start.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <stdnoreturn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <control/control_conn.h>
#include <control/control_stop.h>
#include <launch/launch.h>
#include <launch/launch_door.h>
#include <launch/launch_end.h>
#include <launch/launch_members.h>
#include <launch/launch_state.h>
#include <launch/machine.h>
#include <launch/orphans.h>
#include <launch/restart.h>

#define LAUNCH_MS UINT64_C(1000000) /* ns */

enum {
    /* How often it looks even if nothing has happened; milliseconds here and below. */
    TICK_MS = 100,
    TELL_MS = 500, /* ranks that are to end at once tell other machines so; and where they have */
    TELL_UNMET_MS = 2000, /* not met yet, but may be about to */
    /* A stop waits so long for a second signal, which makes it an end at once that is told as one; and
     * ranks without steps have so long to tell it, before they are ended without that. */
    SETTLE_MS = 100,
    STOP_MS = 5000,
    /* So long after the first failure ranks are killed that have not met the others: nobody can
     * tell them of it. */
    UNMET_MS = 300,
};

static void starter_hear_signal(starter_t *s);

static bool starter_has_zero(const starter_t *s)
{
    return s->ranks[0].rank == 0;
}

/* Where rank 0 listens. A link that is cut may take the name server along, or the address itself:
 * ranks that have met are not ended for that, but wait as long as they do for each other; and so do those that
 * something starts again (--resume), as a machine in the place of another may be up before the network
 * knows its name and address. A stop that is asked for meanwhile ends it. A launcher that something has
 * started again for one that was killed may find its rank 0 there for a moment, which is about to end. */
static lh_status_t starter_listen(starter_t *s)
{
    enum { PAUSE_MS = 500, TAKEN_MS = 5000 };
    control_wait_t told = {0};
    const uint64_t begin = sys()->now_ns(), end = begin + launch_patience(s->launch);
    const uint64_t taken = s->launch->how.resume ? begin + TAKEN_MS * LAUNCH_MS : begin;
    for (;;) {
        struct pollfd stop = {.fd = s->signals, .events = POLLIN};
        /* Asked first: what comes between the two is tried once more. */
        const bool absent = s->launch->how.resume && control_is_absent(s->place.address);
        const lh_status_t status = control_listen(s->place.address, s->place.port,
                                                  &s->place.listener, &s->place.port);
        const bool is_taken = status == LH_INVALID && sys()->now_ns() < taken;
        const bool later = status == LH_UNREACHABLE || is_taken ||
                           (status != LH_OK && (s->place.epoch > 1 || absent));
        if (!later) return status;
        if (poll(&stop, 1, PAUSE_MS) > 0) starter_hear_signal(s);
        /* A port that is taken has its own time, and its own exit code behind that. */
        if ((sys()->now_ns() > end && !is_taken) || s->first_stop != 0)
            return fail_again(LH_UNREACHABLE, fail_reason());
        if (control_wait_due(&told, sys()->now_ns()))
            log_line(LH_LOG_WARN, "rank 0 can't listen yet: %s", fail_reason());
    }
}

/* Several machines must know where to meet, and share a key. One machine needs neither, whatever
 * sites it plays: nobody else is to come, so it is not to be seen from outside. */
static lh_status_t starter_choose_address(starter_t *s)
{
    const job_launch_t *how = &s->launch->how.job->launch;
    const bool all_here = starter_is_alone(s);
    const char *missing = all_here               ? NULL
                          : how->address == NULL ? "address"
                          : how->port == 0       ? "port"
                          : how->secret == NULL  ? "secret"
                                                 : NULL;
    if (missing != NULL)
        return fail(LH_INVALID,
                    "%u of %u ranks are on other machines: [launch] %s is missing, which says %s",
                    s->place.size - (s->place.herald ? 0 : s->count), s->place.size, missing,
                    strcmp(missing, "secret") == 0 ? "what proves that they belong to this job"
                                                   : "where rank 0 listens");
    (void)snprintf(s->place.address, sizeof(s->place.address), "%s",
                   all_here ? "127.0.0.1" : launch_address(s->launch, s->place.layout));
    s->place.port = (uint16_t)how->port;
    if (!starter_has_zero(s)) return LH_OK;
    return starter_listen(s);
}

/* Rank 0's machine makes the key; the others wait until a shared folder shows it. Once a job: one
 * that rank 0's machine made anew, as its file was gone, the others would not have. */
static lh_status_t starter_share_secret(starter_t *s)
{
    const job_launch_t *how = &s->launch->how.job->launch;
    const bool makes = starter_has_zero(s);
    const uint64_t end = sys()->now_ns() + launch_patience(s->launch);
    secret_t **secret = &s->launch->secret;
    lh_status_t status = *secret != NULL       ? LH_OK
                         : how->secret == NULL ? secret_random(secret)
                         : makes               ? secret_open(how->secret, true, secret)
                                               : secret_await(how->secret, end, secret);
    return status == LH_OK ? secret_share(*secret, &s->place.secret) : status;
}

/* A memfd that ranks inherit: they map their row of it, and it is gone with the last of them. */
static lh_status_t starter_make_board(starter_t *s)
{
    s->place.board = memfd_create("longhaul-ranks", MFD_CLOEXEC);
    if (s->place.board < 0 ||
        sys()->ftruncate(s->place.board, (off_t)(s->most * sizeof(board_row_t))) != 0)
        return fail_io(errno, "cannot share memory between ranks");
    return launch_map_board(s->place.board, s->most, &s->board);
}

/* Memory without pages, which ranks give it: it is here what a rank saves of its last steps, and
 * stays when the rank dies. */
static lh_status_t starter_make_memory(starter_t *s)
{
    /* Also where one rank is left now: the others may be back. */
    const job_t *job = s->launch->how.job;
    const bool wanted = job->checkpoint.memory_every > 0 && job_ranks(job) > 1;
    for (uint32_t i = 0; wanted && i < s->most; i++) {
        s->ranks[i].memory = memfd_create("longhaul-snapshots", MFD_CLOEXEC);
        if (s->ranks[i].memory < 0) return fail_io(errno, "cannot share memory for snapshots");
    }
    return LH_OK;
}

/* Of ranks that ended nothing is left but what their launcher knows. A training counts as started
 * again once it has begun; where rank 0 is, only its own launcher knows. */
static void starter_clear_board(starter_t *s)
{
    const bool goes_on = s->launch->began || s->followed || !starter_has_zero(s);
    const uint32_t made = (uint32_t)s->restarts.made + s->regroups + (s->tells ? 1 : 0);
    memset(s->board, 0, s->most * sizeof(*s->board));
    const bool asks = s->own_loss && !s->tells && !s->place.herald &&
                      members_change(s->launch->how.job);
    s->board[0].asked_ready = asks ? s->count : 0;
    for (uint32_t i = 0; i < s->count; i++)
        s->board[i].follows = s->launch->follows;
    for (uint32_t i = 0; goes_on && made > 0 && i < s->count; i++) {
        s->board[i].restarts = made;
        (void)snprintf(s->board[i].before, BOARD_WORDS, "%s",
                       s->ended.data == NULL ? "" : s->ended.data);
    }
}

/* Between fork and exec a child of a process with threads may call little: all that takes memory is
 * done before the fork. */
static lh_status_t starter_start_rank(starter_t *s, uint32_t index)
{
    lh_assert(index < s->count && s->ranks[index].pid == 0);
    started_t *r = &s->ranks[index];
    text_t place = {0};
    launch_place_t own = s->place;
    const pid_t launcher = getpid();
    own.rank = r->rank;
    own.row = index;
    own.machine = r->machine;
    if (r->rank != 0) own.listener = -1;
    if (own.herald) own.size = JOB_RANKS; /* it is none of them */
    own.memory = r->memory;
    launch_place_write(&own, &place);
    lh_status_t status = text_status(&place);
    if (status != LH_OK) return status;
    s->variables[s->variable_count] = place.data;
    cpu_set_t processors;
    const bool bound = machine_share_of_rank(s->launch->how.job, index, s->count, &processors);
    (void)fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0)
        launch_become(&own, s->words, s->variables, launcher, &s->before,
                      bound ? &processors : NULL);
    text_free(&place);
    if (pid < 0) return fail_io(errno, "cannot start rank %u", r->rank);
    (void)setpgid(pid, pid);
    r->pid = pid;
    s->left++;
    r->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    return r->pidfd < 0 ? fail_io(errno, "cannot watch rank %u", r->rank) : LH_OK;
}

/* A rank that stopped because it was asked to, or because the loss was not finite, has not failed.
 */
static bool code_is_failure(int code)
{
    return code != EXIT_DONE && code != EXIT_TERMINATED && code != EXIT_STOPPED;
}

static bool started_has_failed(const starter_t *s, const started_t *r)
{
    return launch_end_is_death(s, r) || code_is_failure(WEXITSTATUS(r->how));
}

/* A rank that was killed from here does not count as one that failed. */
static void started_kill(started_t *r)
{
    lh_assert(r->pid > 0);
    if (!r->killed) r->killed_at = sys()->now_ns();
    r->killed = true;
    (void)kill(r->pid, SIGKILL);
}

/* Those that still live. */
static void starter_kill_all(starter_t *s, int number)
{
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->ranks[i].pid == 0) continue;
        if (number == SIGKILL)
            started_kill(&s->ranks[i]);
        else
            (void)kill(s->ranks[i].pid, number);
    }
}

/* One that stands still (SIGSTOP) can't end by itself: others have missed its heartbeats. */
static void starter_kill_stopped(starter_t *s)
{
    for (uint32_t i = 0; i < s->count; i++) {
        siginfo_t info = {0};
        started_t *r = &s->ranks[i];
        if (r->pid == 0 || waitid(P_PID, (id_t)r->pid, &info, WSTOPPED | WNOHANG | WNOWAIT) != 0 ||
            info.si_pid == 0)
            continue;
        started_kill(r);
    }
}

/* Ranks that have not met the others yet: they may wait for one that is gone. */
static void starter_kill_unmet(starter_t *s)
{
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->ranks[i].pid == 0 || atomic_load(&s->board[i].met) != 0) continue;
        if (s->ranks[i].failed) continue; /* it is about to end */
        started_kill(&s->ranks[i]);
    }
}

static void starter_note_failure(starter_t *s, started_t *r)
{
    r->failed = true;
    /* A death is nearer to the cause than what the others say of it. */
    if (s->first == NULL || (launch_end_is_death(s, r) && !launch_end_is_death(s, s->first)))
        s->first = r;
    if (s->deadline == 0) s->deadline = sys()->now_ns() + STARTER_GRACE_MS * LAUNCH_MS;
}

/* A rank that has said why it ends counts as one that has failed from then on, though it may take its
 * time to end: one that waits for a disk can't be ended by any signal until the disk has answered. */
static void starter_hear_words(starter_t *s)
{
    for (uint32_t i = 0; i < s->count; i++) {
        started_t *r = &s->ranks[i];
        if (r->pid == 0 || r->failed || r->killed || atomic_load(&s->board[i].has_words) == 0)
            continue;
        if (s->board[i].died || code_is_failure(s->board[i].code)) starter_note_failure(s, r);
    }
}

/* Nothing is waited for any more. */
static void starter_let_go(starter_t *s, started_t *r)
{
    lh_assert(r->pid > 0 && s->left > 0);
    r->pid = 0;
    if (r->pidfd >= 0) (void)close(r->pidfd);
    r->pidfd = -1;
    s->left--;
}

/* A rank that has ended, whose word and signal are kept for the sentence. */
static void starter_reap(starter_t *s, started_t *r)
{
    const board_row_t *row = &s->board[r - s->ranks];
    if (waitpid(r->pid, &r->how, WNOHANG) != r->pid) return;
    starter_let_go(s, r);
    /* Killed from here after its last words, with which it has ended. */
    if (r->failed && r->killed && WIFSIGNALED(r->how)) r->how = row->code << 8;
    if (r->failed || (started_has_failed(s, r) && !r->killed)) starter_note_failure(s, r);
    /* Others of this machine may not have met yet, and would wait for a rank 0 that is gone. */
    if (row->culprit.status == STATUS_STOPPED && s->deadline == 0)
        s->deadline = sys()->now_ns() + STARTER_GRACE_MS * LAUNCH_MS;
}

/* Ranks that SIGKILL has not ended. A launcher that waited for them would never say why the job ended, and
 * nobody would start it elsewhere. */
static void starter_leave_stuck(starter_t *s, uint64_t now)
{
    for (uint32_t i = 0; i < s->count; i++) {
        started_t *r = &s->ranks[i];
        if (!orphans_is_stuck(r, now)) continue;
        starter_reap(s, r); /* the launcher may have stood still itself */
        if (r->pid == 0) continue;
        orphans_leave_rank(s, r);
        starter_let_go(s, r);
    }
}

/* Ctrl-Z: the ranks are in groups of their own, and a launcher that stood still alone would leave
 * them at work. All of this machine stop and go on together, within less than a heartbeat, so that
 * none misses another. Where nobody could wake the launcher (an orphaned group), the kernel does
 * not stop it, and the ranks go on at once. */
static void starter_stand_still(starter_t *s)
{
    sigset_t stop;
    (void)sigemptyset(&stop);
    (void)sigaddset(&stop, SIGTSTP);
    starter_kill_all(s, SIGSTOP);
    (void)raise(SIGTSTP);
    (void)sigprocmask(SIG_UNBLOCK, &stop, NULL); /* it stops here, until SIGCONT */
    (void)sigprocmask(SIG_BLOCK, &stop, NULL);
    starter_kill_all(s, SIGCONT);
}

/* Machines that only saw these ranks die would start theirs again and wait, or go on without this one:
 * ranks tell them first. */
static void starter_end_at_once(starter_t *s)
{
    const bool tells = starter_is_asked_for_all(s) && s->end_by == 0;
    bool met = true;
    for (uint32_t i = 0; tells && i < s->count; i++) {
        met = met && atomic_load(&s->board[i].met) != 0;
        atomic_store(&s->board[i].asked.what, CONTROL_ASKS_END);
    }
    if (tells)
        s->end_by = sys()->now_ns() + (met ? TELL_MS : TELL_UNMET_MS) * LAUNCH_MS;
    else
        starter_kill_all(s, SIGKILL);
}

/* The signal by which ranks that make steps hear of a stop. One that is the whole job's is another than
 * SIGTERM where that would mean this machine alone. */
static int starter_stop_signal(const starter_t *s)
{
    return s->launch->how.job->launch.notice_ns > 0 && !starter_leaves_alone(s) ? SIGINT : SIGTERM;
}

/* Ranks that make steps agree on a last one. Those that do not would die of the signal, and others would take
 * them for lost: they tell all machines instead (control_stop.c), and end by that. */
static void starter_ask_to_stop(starter_t *s)
{
    const uint64_t now = sys()->now_ns();
    if (s->ask_at == 0 || s->stops > 1) return;
    for (uint32_t i = 0; i < s->count; i++) {
        started_t *r = &s->ranks[i];
        if (r->pid == 0 || r->stopped) continue;
        r->stopped = atomic_load(&s->board[i].asked.heeds) != 0 ||
                     now > s->ask_at + STOP_MS * LAUNCH_MS;
        if (r->stopped)
            (void)kill(r->pid, starter_stop_signal(s));
        else if (now >= s->ask_at)
            atomic_store(&s->board[i].asked.what, CONTROL_ASKS_STOP);
    }
}

/* The first is passed on, as a signal or over the board (starter_ask_to_stop); ranks that make steps then
 * agree on a last one. The second ends all. A terminal that closes may say so twice, or beside another
 * signal: it never counts as a second. */
static void starter_hear_signal(starter_t *s)
{
    struct signalfd_siginfo info;
    if (read(s->signals, &info, sizeof(info)) != (ssize_t)sizeof(info)) return;
    if (info.ssi_signo == SIGTSTP) {
        starter_stand_still(s);
        return;
    }
    if (info.ssi_signo == SIGHUP && !sys_has_terminal()) {
        sys_reopen_ask();
        starter_kill_all(s, SIGHUP);
        return;
    }
    const bool told = s->stops > 0 || s->hung_up;
    const uint64_t notice = s->launch->how.job->launch.notice_ns;
    /* `longhaul stop` comes from this process itself (request.c), and means the job; one that does not
     * wait for a save (`--now`) comes as SIGINT and SIGTERM. Whoever asks for a save is never the second
     * who ends all; and behind a first stop `--now` is the second by its SIGINT, and its SIGTERM no third,
     * by which ranks would be killed before they have told other machines. */
    const bool own = info.ssi_pid == (uint32_t)getpid();
    if (own && info.ssi_signo == SIGINT) s->own_end = true;
    s->job_stops = s->job_stops || (own && s->leave_by != 0);
    if (own && info.ssi_signo == SIGTERM && told && (!s->own_end || s->stops > 1)) {
        if (s->own_end) s->last_stop = SIGTERM;
        return;
    }
    const bool leaves = notice > 0 && info.ssi_signo == SIGTERM && !own;
    if (!told) s->first_stop = (int)info.ssi_signo;
    if (!told && leaves) s->leave_by = sys()->now_ns() + notice - notice / STARTER_NOTICE_REST;
    if (info.ssi_signo == SIGHUP) {
        s->hung_up = true;
    } else {
        s->last_stop = (int)info.ssi_signo;
        s->stops++;
    }
    if (!told && starter_is_asked_for_all(s))
        s->ask_at = sys()->now_ns() + SETTLE_MS * LAUNCH_MS;
    else if (!told)
        starter_kill_all(s, starter_stop_signal(s));
    else if (s->stops > 1)
        starter_end_at_once(s);
}

/* Until the last rank of this machine has ended. It looks every TICK_MS even if nothing happens: a
 * deadline may have passed, and a rank whose pidfd could not be had tells nothing. */
static lh_status_t starter_watch(starter_t *s)
{
    struct pollfd *fds = mem_array(s->count + 1u, sizeof(*fds));
    if (fds == NULL) {
        starter_kill_all(s, SIGKILL);
        return LH_NO_MEMORY;
    }
    while (s->left > 0) {
        for (uint32_t i = 0; i < s->count; i++)
            fds[i] = (struct pollfd){.fd = s->ranks[i].pidfd, .events = POLLIN};
        fds[s->count] = (struct pollfd){.fd = s->signals, .events = POLLIN};
        (void)poll(fds, s->count + 1u, TICK_MS);
        if (fds[s->count].revents != 0) starter_hear_signal(s);
        starter_ask_to_stop(s);
        starter_hear_words(s);
        for (uint32_t i = 0; i < s->count; i++)
            if (s->ranks[i].pid != 0 && (fds[i].revents != 0 || fds[i].fd < 0))
                starter_reap(s, &s->ranks[i]);
        const lh_status_t noted = starter_note_met(s);
        if (noted != LH_OK) {
            starter_kill_all(s, SIGKILL);
            mem_free(fds);
            return noted;
        }
        const uint64_t now = sys()->now_ns();
        if (s->leave_by != 0 && now > s->leave_by) starter_kill_all(s, SIGKILL);
        if (s->end_by != 0 && now > s->end_by) starter_kill_all(s, SIGKILL);
        starter_leave_stuck(s, now);
        if (s->deadline == 0) continue;
        if (now > s->deadline) starter_kill_all(s, SIGKILL);
        starter_kill_stopped(s);
        /* A dying rank's connections end before it has ended itself: who died is seen first. */
        if (now + (STARTER_GRACE_MS - UNMET_MS) * LAUNCH_MS > s->deadline) starter_kill_unmet(s);
    }
    mem_free(fds);
    return LH_OK;
}

/* What the ranks that have ended leave to those after them: whether training has begun, and in which
 * epoch they were. */
static lh_status_t starter_keep(starter_t *s)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (s->ranks[i].rank == 0 && atomic_load(&s->board[i].began) != 0) s->launch->began = true;
    if (s->launch->began) launch_note_signals(s->launch, true);
    if (!s->place.herald) s->own_loss = launch_end_is_own(s); /* a herald makes no use of devices */
    return starter_note_met(s);
}

/* From here on signals are read from a descriptor, in the loop that watches ranks, and interrupt
 * nothing. The process becomes the reaper of its ranks' children, so that a saver whose rank has
 * died is waited for and not left to init. */
static lh_status_t starter_catch_signals(starter_t *s)
{
    static const int unless_ignored[] = {SIGHUP, SIGTSTP};
    const bool terminal = sys_has_terminal();
    sigset_t stops;
    struct sigaction old;
    (void)sigemptyset(&stops);
    (void)sigaddset(&stops, SIGTERM);
    (void)sigaddset(&stops, SIGINT);
    /* A signal that is blocked arrives though it is ignored: nohup's wish stands, and a shell's
     * without job control. */
    for (size_t i = 0; i < sizeof(unless_ignored) / sizeof(unless_ignored[0]); i++)
        if (sigaction(unless_ignored[i], NULL, &old) == 0 &&
            (old.sa_handler != SIG_IGN || (unless_ignored[i] == SIGHUP && !terminal)))
            (void)sigaddset(&stops, unless_ignored[i]);
    (void)signal(SIGPIPE, SIG_IGN); /* whoever reads the log may go */
    (void)sigprocmask(SIG_BLOCK, &stops, &s->before);
    s->signals = signalfd(-1, &stops, SFD_CLOEXEC | SFD_NONBLOCK);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    return s->signals < 0 ? fail_io(errno, "cannot watch for SIGTERM") : LH_OK;
}

/* What all epochs have in common. */
static lh_status_t starter_begin(starter_t *s)
{
    lh_status_t status = starter_remember(s);
    if (status == LH_OK) status = starter_make_ranks(s);
    if (status == LH_OK) status = starter_make_board(s);
    if (status == LH_OK) status = starter_make_memory(s);
    if (status == LH_OK) status = launch_copy_environment(&s->variables, &s->variable_count);
    return status;
}

/* All or none: where one can't be started, those that were are killed. Signals are caught before
 * the first fork, so that none is lost between a rank's start and the loop that watches it. */
static lh_status_t starter_start_all(starter_t *s)
{
    s->launch->place.epoch = s->place.epoch; /* by which launch_patience goes */
    lh_status_t status = starter_choose_address(s);
    if (status == LH_OK) status = starter_share_secret(s);
    if (status == LH_OK && s->signals < 0) status = starter_catch_signals(s);
    if (status == LH_OK) starter_clear_board(s);
    if (s->tells) s->ask_at = sys()->now_ns();
    machine_kills_read("/", &s->kills);
    for (uint32_t i = 0; status == LH_OK && i < s->count; i++)
        status = starter_start_rank(s, i);
    if (status != LH_OK) starter_kill_all(s, SIGKILL);
    /* The ranks have theirs: a port or a key that stays open here would outlive them. */
    if (s->place.listener >= 0) (void)close(s->place.listener);
    if (s->place.secret >= 0) (void)close(s->place.secret);
    s->place.listener = s->place.secret = -1;
    return status;
}

static void starter_free(starter_t *s)
{
    mem_free(s->variables);
    for (uint32_t i = 0; s->ranks != NULL && i < s->most; i++)
        if (s->ranks[i].memory >= 0) (void)close(s->ranks[i].memory);
    if (s->board != NULL) (void)munmap(s->board, s->most * sizeof(board_row_t));
    if (s->place.board >= 0) (void)close(s->place.board);
    if (s->signals >= 0) {
        (void)close(s->signals);
        (void)sigprocmask(SIG_SETMASK, &s->before, NULL);
    }
    text_free(&s->ended);
    restart_free(&s->restarts);
    mem_free(s->ranks);
}

/* The ranks of this machine from their start to their end. Ranks that were started are watched to
 * their end also where a later one could not be. */
static int starter_run_epoch(starter_t *s, bool *again)
{
    *again = false;
    lh_status_t status = starter_start_all(s);
    if (status == LH_UNREACHABLE && s->first_stop != 0) {
        launch_end_tell_stop(s);
        return EXIT_TERMINATED;
    }
    const lh_status_t watched = s->left > 0 ? starter_watch(s) : LH_OK;
    if (s->signals >= 0) orphans_reap(s, starter_hear_signal);
    if (status == LH_OK) status = watched;
    if (status != LH_OK) return status;
    status = starter_keep(s);
    return status == LH_OK ? launch_end_code(s, again) : status;
}

/* Nothing of a rank that ended may be taken for the next one's. */
static void starter_forget(starter_t *s)
{
    s->deadline = 0;
    s->first = NULL;
    for (uint32_t i = 0; i < s->count; i++) {
        started_t *r = &s->ranks[i];
        lh_assert(r->stuck == 0);
        r->how = 0;
        r->failed = r->killed = r->stopped = false;
    }
}

/* From here on a stop waits in a descriptor for the ranks that are to tell it: what came to the door comes to
 * rank 0 soon. */
static lh_status_t starter_take_over_door(starter_t *s)
{
    struct signalfd_siginfo info;
    if (s->launch->door.pid == 0) return LH_OK;
    lh_status_t status = starter_catch_signals(s);
    if (status == LH_OK) status = launch_door_pass(s->launch);
    /* The door's own signal, where it has told another machine's stop. */
    while (status != LH_OK && s->signals >= 0 && read(s->signals, &info, sizeof(info)) > 0) {
    }
    return status;
}

int launch_start(launch_t *l, char *const *words)
{
    const job_launch_t *how = &l->how.job->launch;
    starter_t s = {.launch = l, .words = words, .signals = -1, .votes = {.fd = -1}};
    bool again = true;
    s.place = (launch_place_t){.listener = -1,
                               .board = -1,
                               .secret = -1,
                               .memory = -1,
                               .skip = l->skip,
                               .waits = l->waits,
                               .epoch = 1};
    s.own_loss = l->how.resume; /* for all that is known */
    s.restarts = (restarts_t){.most = how->restarts, .window_ns = how->restart_window_ns};
    l->meets = true;
    int code = starter_take_over_door(&s);
    if (code == LH_OK) code = starter_begin(&s);
    while (code >= 0 && again) {
        starter_forget(&s);
        code = starter_run_epoch(&s, &again);
    }
    vote_file_close(&s.votes, code == EXIT_DONE);
    starter_free(&s);
    /* What comes after these ranks, such as another stage, is to hear of it. */
    if (code == EXIT_DONE && s.late) (void)raise(s.first_stop);
    return code;
}
