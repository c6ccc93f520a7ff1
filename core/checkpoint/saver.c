/* saver.c - the life of a process that saves, and how the trainer starts and ends one.
 *
 * A saver has one thread, no signal that ends it but SIGKILL, and no open file but its socket, the
 * arena, the folder's lock and the standard three. It reads requests until its socket ends.
 * Everything that takes long, or may hang, is done here and never in the trainer; the trainer waits
 * for an answer with a deadline, and kills a saver that has passed it.
 *
 * When the trainer dies, its savers finish what was asked for. A save of one rank is committed as
 * if nothing had happened; of several ranks rank 0's saver waits a while for the shares of the
 * others, whose trainers mostly die at the same moment. */
#include <checkpoint/saver.h>

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdnoreturn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <checkpoint/checkpoint_folder.h>
#include <checkpoint/commit.h>
#include <checkpoint/folder_lock.h>
#include <checkpoint/memory_image.h>

/* SAVER_NICE: training's threads come first. SAVER_FDS: descriptors that a saver keeps at its fork,
 * besides the first three. PASSED: how many come with a request, at most. REAP_MS: what
 * saver_end gives a process whose socket has ended. */
enum { SAVER_NICE = 5, SAVER_FDS = 2, PASSED = 2, REAP_MS = 1000 };

/* The saver's own state, in the process itself. */
typedef struct saver_life {
    const saver_how_t *how;
    int socket;
    int lock_fd, folder_fd; /* of the folder's lock, once the trainer has taken it; -1: none */
    int before; /* a pidfd of the saver whose reserve this is; -1: none, or it is the saver */
    bool wrote; /* a share, which is neither committed nor abandoned */
    uint64_t write_ns; /* how long it took to write that */
    /* Of the task at hand: the folder's room was asked for, what came of that. */
    bool looked, has_room;
    uint64_t free_bytes;
} saver_life_t;

/* ---- a save ---------------------------------------------------------------------------------- */

/* What is left where checkpoints lie. Asked here and not in the trainer, as the folder's file system may hang;
 * and before a commit, as what is committed would be told as failed else. Older checkpoints go behind that: it
 * is the least that there is. */
static void saver_look_at_room(saver_life_t *l)
{
    struct statvfs room;
    l->looked = true;
    l->has_room = l->folder_fd >= 0 && sys()->fstatvfs(l->folder_fd, &room) == 0;
    l->free_bytes = l->has_room ? (uint64_t)room.f_bavail * room.f_frsize : 0;
}

/* The whole checkpoint of a job of one rank. Leftovers of a saver that died are removed first: they
 * may hold as much of the disk as this save needs. */
static lh_status_t saver_write_alone(saver_life_t *l, const void *const *data,
                                     char self[SHA256_TEXT])
{
    const saver_how_t *how = l->how;
    const save_job_t *job = how->job;
    commit_t *c;
    lh_status_t status = job->leftovers ? checkpoint_clean(how->folder) : LH_OK;
    if (status == LH_OK) status = commit_begin(how->folder, &job->meta, job->parent, &c);
    if (status != LH_OK) return status;
    status = commit_write_all(c, 0, job->tensors, data, job->count, how->shard_bytes);
    if (status == LH_OK) {
        saver_look_at_room(l);
        return commit_finish(c, self);
    }
    commit_abandon(c);
    return status;
}

/* What is asked for at the moment, as the functions of several ranks take it. */
static saver_share_t saver_ranks(const saver_how_t *how)
{
    return (saver_share_t){.folder = how->folder,
                           .rank = how->rank,
                           .ranks = how->ranks,
                           .leads = how->leads,
                           .apart = how->apart,
                           .session = how->job->session,
                           .attempt = how->job->attempt,
                           .shard_bytes = how->shard_bytes,
                           .meta = &how->job->meta,
                           .parent = how->job->parent};
}

/* Parts of the arena in the order of the job's tensors. */
static lh_status_t saver_write(saver_life_t *l, const char *arena, char self[SHA256_TEXT])
{
    const saver_how_t *how = l->how;
    const save_job_t *job = how->job;
    const void **data = mem_array(job->count, sizeof(*data));
    if (data == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < job->count; i++)
        data[i] = arena + job->base + job->offset[i];
    const saver_share_t ranks = saver_ranks(how);
    const lh_status_t status = how->ranks <= 1
                                   ? saver_write_alone(l, data, self)
                                   : saver_share_write(&ranks, job->tensors, data, job->count);
    mem_free(data);
    return status;
}

/* Of this rank, and what ranks of other sites have sent: checked to the last byte before any of it is on the
 * disk. All sites write by images, so that their files are the same. */
static lh_status_t saver_write_images(const saver_how_t *how, const char *arena)
{
    const save_job_t *job = how->job;
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < job->image_count && status == LH_OK; i++) {
        memory_image_t image;
        status = memory_image_open(arena + job->images[i].begin, job->images[i].bytes, &image);
        if (status == LH_AGAIN)
            return fail(LH_CORRUPT, "a snapshot of another site did not come whole");
        if (status != LH_OK) return status;
        if (image.key.session != job->session || image.key.step != job->meta.step)
            status = fail(LH_MISMATCH, "rank %u of another site sent step %llu, step %llu is saved",
                          image.key.rank, (unsigned long long)image.key.step,
                          (unsigned long long)job->meta.step);
        if (status == LH_OK)
            status = memory_image_write(&image, how->folder, job->attempt, how->shard_bytes);
        memory_image_close(&image);
    }
    return status;
}

/* Here and not in the trainer: a file system that hangs does not answer this either. */
static lh_status_t saver_check_folder(const saver_life_t *l)
{
    const folder_lock_t lock = {.fd = l->lock_fd, .folder_fd = l->folder_fd};
    return folder_lock_check(&lock, l->how->folder);
}

/* The arena is mapped for this save alone: its size may be another one at the next. Read-only: a
 * mistake here can't change what the trainer copies. */
static lh_status_t saver_save(saver_life_t *l, char self[SHA256_TEXT])
{
    const saver_how_t *how = l->how;
    lh_status_t status = saver_check_folder(l);
    if (status != LH_OK) return status;
    const uint64_t bytes = how->job->arena_bytes;
    void *arena = mmap(NULL, bytes, PROT_READ, MAP_SHARED, how->arena_fd, 0);
    if (arena == MAP_FAILED) return fail_io(errno, "cannot map the snapshot");
    status = how->job->image_count > 0 ? saver_write_images(how, arena)
                                       : saver_write(l, arena, self);
    (void)munmap(arena, bytes);
    return status;
}

/* Nothing of the disk: only what the trainer has copied is hashed, and described behind it. Mapped from
 * its begin, as a slot need not begin at a page of this machine. */
static lh_status_t saver_describe(const saver_how_t *how)
{
    const save_job_t *job = how->job;
    char *arena = mmap(NULL, job->arena_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, how->arena_fd,
                       0);
    if (arena == MAP_FAILED) return fail_io(errno, "cannot map the snapshot");
    const memory_key_t key = {job->session, job->meta.step, how->rank, how->ranks};
    const lh_status_t status = memory_describe(job, &key, arena + job->base - MEMORY_PAGE,
                                               job->slot_bytes);
    (void)munmap(arena, job->arena_bytes);
    return status;
}

static lh_status_t saver_do(saver_life_t *l, uint32_t task, char self[SHA256_TEXT])
{
    const saver_share_t ranks = saver_ranks(l->how);
    const uint64_t since = sys()->now_ns();
    lh_status_t status;
    if (task == SAVER_DESCRIBE) return saver_describe(l->how);
    if (task == SAVER_COMMIT) {
        l->wrote = false;
        saver_look_at_room(l);
        status = saver_share_commit(&ranks, self);
    } else {
        status = saver_save(l, self);
        l->wrote = status == LH_OK && l->how->ranks > 1 && l->how->leads;
        l->write_ns = sys()->now_ns() - since;
    }
    /* A folder that went away in the middle of a save fails some call or other; this is why. */
    if (status == LH_IO) (void)saver_check_folder(l);
    return status;
}

/* Once its trainer is gone, nobody is there to be told. */
static void saver_tell(const saver_life_t *l, saver_answer_t *answer)
{
    answer->has_room = l->has_room;
    answer->free_bytes = l->free_bytes;
    (void)send(l->socket, answer, sizeof(*answer), MSG_NOSIGNAL);
}

/* What the checkpoint that was just committed displaces. To remove a large one may take longer than the save
 * did, or for ever: the commit is told first, and stands whatever becomes of this process. */
static void saver_remove_older(const saver_life_t *l, saver_answer_t *answer)
{
    const saver_how_t *how = l->how;
    if (how->keep.newest == 0) return;
    answer->goes_on = true;
    saver_tell(l, answer);
    answer->goes_on = false;
    checkpoint_displace(how->folder, how->job->meta.step, &how->keep);
}

/* Does a task and says how it ended. From now on this process is the one that saves: it is nobody's
 * reserve any more. */
static void saver_answer(saver_life_t *l, uint32_t task)
{
    saver_answer_t answer = {.status = LH_OK};
    if (l->before >= 0) (void)close(l->before);
    l->before = -1;
    (void)prctl(PR_SET_NAME, "longhaul-save");
    l->looked = l->has_room = false;
    answer.status = saver_do(l, task, answer.self);
    if (answer.status != LH_OK)
        (void)snprintf(answer.reason, sizeof(answer.reason), "%s", fail_reason());
    if (task != SAVER_DESCRIBE && !l->looked) saver_look_at_room(l); /* nothing was committed */
    const bool commits = task == SAVER_COMMIT || (task == SAVER_SAVE && l->how->ranks <= 1);
    if (answer.status == LH_OK && commits) saver_remove_older(l, &answer);
    saver_tell(l, &answer);
}

/* The save failed on some rank; nobody is told how this went. The others do not wait for it, and may write
 * in the folder of the next one already: the save at hand need not be the one that is given up. */
static void saver_abandon(saver_life_t *l)
{
    const checkpoint_meta_t meta = {.step = l->how->job->abandoned_step};
    saver_share_t ranks = saver_ranks(l->how);
    ranks.meta = &meta;
    ranks.attempt = l->how->job->abandoned_attempt;
    l->wrote = false;
    saver_share_abandon(&ranks);
}

/* The trainer is gone in the middle of a save; the others' shares come soon, if at all. */
static void saver_finish_orphan(const saver_life_t *l)
{
    if (!l->wrote) return;
    const saver_how_t *how = l->how;
    const saver_share_t ranks = saver_ranks(how);
    const uint64_t until = sys()->now_ns() + l->write_ns + (uint64_t)SAVER_ORPHAN_MS * 1000000;
    if (saver_share_orphan(&ranks, until))
        checkpoint_displace(how->folder, how->job->meta.step, &how->keep);
}

/* ---- its life -------------------------------------------------------------------------------- */

/* Everything else that the trainer had open is not the saver's: sockets whose end would not be
 * seen, devices, its log. Ranges between the descriptors that are kept. */
static void saver_close_others(const saver_life_t *l)
{
    const int kept[SAVER_FDS] = {l->socket, l->how->arena_fd};
    unsigned from = STDERR_FILENO + 1;
    for (;;) {
        unsigned next = ~0u;
        for (int i = 0; i < SAVER_FDS; i++)
            if (kept[i] >= (int)from && (unsigned)kept[i] < next) next = (unsigned)kept[i];
        if (next > from) (void)close_range(from, next - 1, 0);
        if (next == ~0u) return;
        from = next + 1;
    }
}

/* The lock goes first: whoever sees the socket's end may take it. */
static noreturn void saver_exit(const saver_life_t *l)
{
    if (l->lock_fd >= 0) (void)close(l->lock_fd);
    if (l->folder_fd >= 0) (void)close(l->folder_fd);
    _exit(0);
}

/* A trainer that is gone can't give a save up, and a saver that hangs must not hold the folder for
 * ever: its reserve outlasts it. One that the trainer has given up is outlasted no more (saver_fork_reserve). */
static void saver_outlast(const saver_life_t *l)
{
    const uint64_t until = sys()->now_ns() + l->how->deadline_ns +
                           (uint64_t)SAVER_ORPHAN_MS * 1000000;
    struct pollfd fd = {.fd = l->before, .events = POLLIN};
    while (l->before >= 0) {
        const uint64_t now = sys()->now_ns();
        const uint64_t ms = now >= until ? 0 : (until - now) / 1000000 + 1;
        const int ended = poll(&fd, 1, ms > INT_MAX ? INT_MAX : (int)ms);
        if (ended > 0) return;
        if (ended == 0 && ms == 0) {
            (void)syscall(SYS_pidfd_send_signal, l->before, SIGKILL, NULL, 0);
            return;
        }
    }
}

/* The next request and the descriptors that come with it: of SAVER_FORK the new saver's socket, of
 * SAVER_LOCK those of the lock; else -1. False: the trainer is gone. */
static bool saver_hear(const saver_life_t *l, uint32_t *task, int passed[PASSED])
{
    char room[CMSG_SPACE(PASSED * sizeof(int))] = {0};
    struct iovec body = {.iov_base = task, .iov_len = sizeof(*task)};
    struct msghdr m = {
        .msg_iov = &body, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room)};
    ssize_t got;
    do
        got = recvmsg(l->socket, &m, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    const struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    for (int i = 0; i < PASSED; i++)
        passed[i] = -1;
    if (c != NULL && c->cmsg_type == SCM_RIGHTS) {
        lh_assert(c->cmsg_len <= CMSG_LEN(PASSED * sizeof(int)));
        memcpy(passed, CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0));
    }
    return got == (ssize_t)sizeof(*task);
}

/* The lock is on an open file, which this process has now too: it lasts until both have closed it.
 */
static void saver_take_lock(saver_life_t *l, const int passed[PASSED])
{
    lh_assert(l->lock_fd < 0 && l->folder_fd < 0);
    l->lock_fd = passed[0];
    l->folder_fd = passed[1];
}

/* The child goes on as the reserve of its parent, with its lock. It says who it is, as the trainer
 * can't know the number of another process's child.
 *
 * Whoever is asked for a reserve is the saver. The one before it is gone, or was killed at its deadline and is
 * not let go by its file system: it holds the folder's lock itself until it has ended, and nothing is won by
 * waiting for it any more. */
static void saver_fork_reserve(saver_life_t *l, int socket)
{
    const pid_t parent = getpid();
    if (l->before >= 0) (void)close(l->before);
    l->before = -1;
    if (fork() != 0) {
        (void)close(socket);
        return;
    }
    const saver_answer_t hello = {.pid = getpid()};
    (void)close(l->socket);
    l->socket = socket;
    l->wrote = false;
    l->write_ns = 0;
    l->before = (int)syscall(SYS_pidfd_open, parent, 0);
    (void)prctl(PR_SET_NAME, "longhaul-spare");
    (void)send(l->socket, &hello, sizeof(hello), MSG_NOSIGNAL);
}

/* Until the trainer is gone. Then what is left to do without it. */
static noreturn void saver_live(saver_life_t *l)
{
    uint32_t task;
    int passed[PASSED];
    while (saver_hear(l, &task, passed)) {
        if (task == SAVER_SAVE || task == SAVER_COMMIT || task == SAVER_DESCRIBE)
            saver_answer(l, task);
        if (task == SAVER_ABANDON) saver_abandon(l);
        if (task == SAVER_FORK && passed[0] >= 0) saver_fork_reserve(l, passed[0]);
        if (task == SAVER_LOCK) saver_take_lock(l, passed);
    }
    saver_finish_orphan(l);
    saver_outlast(l);
    saver_exit(l);
}

/* The child of a fork becomes a saver. Ctrl-C or SIGTERM to the group is the trainer's to answer;
 * the last save must outlive it. A reserve's end is nobody's to be waited for. */
static noreturn void saver_be(const saver_how_t *how, int socket, const saver_t *before)
{
    saver_life_t l = {.how = how, .socket = socket, .lock_fd = -1, .folder_fd = -1, .before = -1};
    static const int ignored[] = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,
                                  SIGPIPE, SIGUSR1, SIGUSR2, SIGCHLD};
    for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
        (void)signal(ignored[i], SIG_IGN);
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)prctl(PR_SET_NAME, before == NULL ? "longhaul-save" : "longhaul-spare");
    (void)!nice(SAVER_NICE); /* training's threads come first */
    log_forked();
    if (how->rank > 0) log_as_rank(how->rank, -1, ""); /* its warnings say whose they are */
    status_assert_tell(NULL); /* the trainer's last words are not this process's to say */
    saver_close_others(&l);
    if (before != NULL) l.before = (int)syscall(SYS_pidfd_open, before->pid, 0);
    saver_live(&l);
}

/* ---- the trainer's side ---------------------------------------------------------------------- */

/* SOCK_SEQPACKET: messages stay whole, their order too, and an end is seen at once. The child's end
 * is closed here, or the trainer would never see it end. */
lh_status_t saver_start(const saver_how_t *how, const saver_t *before, saver_t *out)
{
    int pair[2];
    *out = (saver_t){.socket = -1};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return fail_io(errno, "a socket pair for the process that saves");
    const pid_t pid = fork();
    const int error = errno;
    if (pid == 0) {
        (void)close(pair[0]);
        saver_be(how, pair[1], before);
    }
    (void)close(pair[1]);
    if (pid < 0) {
        (void)close(pair[0]);
        return fail_io(error, "cannot start the process that saves");
    }
    *out = (saver_t){.socket = pair[0], .pid = pid, .child = true};
    return LH_OK;
}

/* Never blocks: a saver that does not read its requests is one that hangs, and its deadline is the
 * answer to that. */
static bool saver_send(const saver_t *s, uint32_t task, const int *pass, size_t count)
{
    lh_assert(count <= PASSED);
    char room[CMSG_SPACE(PASSED * sizeof(int))] = {0};
    struct iovec body = {.iov_base = &task, .iov_len = sizeof(task)};
    struct msghdr m = {.msg_iov = &body, .msg_iovlen = 1};
    if (count > 0) {
        m.msg_control = room;
        m.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
                              .cmsg_type = SCM_RIGHTS,
                              .cmsg_len = CMSG_LEN(count * sizeof(int))};
        memcpy(CMSG_DATA(c), pass, count * sizeof(int));
    }
    return sendmsg(s->socket, &m, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof(task);
}

bool saver_ask(const saver_t *s, uint32_t task)
{
    return saver_send(s, task, NULL, 0);
}

void saver_lock(const saver_t *s, int lock_fd, int folder_fd)
{
    const int fds[PASSED] = {lock_fd, folder_fd};
    lh_assert(lock_fd >= 0);
    (void)saver_send(s, SAVER_LOCK, fds, folder_fd >= 0 ? 2 : 1);
}

/* The trainer must not fork any more; its saver can. Where it can't, there is no reserve for now,
 * and the next save asks again. */
void saver_fork(const saver_t *s, saver_t *out)
{
    int pair[2];
    *out = (saver_t){.socket = -1};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return;
    if (saver_send(s, SAVER_FORK, &pair[1], 1))
        out->socket = pair[0];
    else
        (void)close(pair[0]);
    (void)close(pair[1]);
}

/* Without asking it anything: the kernel says that the other end is closed, or that it has ended. The
 * second comes first where it died while it forked a reserve, which holds that end for a moment. */
bool saver_gone(const saver_t *s)
{
    struct pollfd fd = {.fd = s->socket};
    siginfo_t info = {.si_pid = 0};
    if (s->child && waitid(P_PID, (id_t)s->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid != 0)
        return true;
    return s->socket < 0 || (poll(&fd, 1, 0) == 1 && (fd.revents & (POLLHUP | POLLERR)) != 0);
}

/* By a descriptor, as waitpid can only wait without end. Where there is none, a child that has ended is reaped all
 * the same. */
bool saver_reap(saver_t *s, int timeout_ms, int *how)
{
    if (!s->child) return false;
    struct pollfd fd = {.fd = (int)syscall(SYS_pidfd_open, s->pid, 0), .events = POLLIN};
    while (fd.fd >= 0 && poll(&fd, 1, timeout_ms) < 0 && errno == EINTR) {
    }
    if (fd.fd >= 0) (void)close(fd.fd);
    if (waitpid(s->pid, how, WNOHANG) != s->pid) return false;
    s->child = false;
    return true;
}

/* A child that has ended already is reaped; one that still writes is left, and init reaps it. */
void saver_leave(saver_t *s)
{
    if (s->socket >= 0) (void)close(s->socket);
    if (s->child) (void)waitpid(s->pid, NULL, WNOHANG);
    *s = (saver_t){.socket = -1};
}

/* Half closed, the saver reads an end and does what is left; then its socket ends. What is left may be what a file
 * system that hangs does not let it do, such as to give up a save. */
void saver_end(saver_t *s, uint64_t most_ns)
{
    saver_answer_t last;
    int how;
    const uint64_t until = sys()->now_ns() + most_ns;
    bool ended = s->socket < 0;
    if (!ended) (void)shutdown(s->socket, SHUT_WR);
    for (uint64_t now = 0; !ended && now < until;) {
        struct pollfd fd = {.fd = s->socket, .events = POLLIN};
        now = sys()->now_ns();
        const uint64_t ms = now >= until ? 0 : (until - now) / 1000000 + 1;
        if (poll(&fd, 1, ms > INT_MAX ? INT_MAX : (int)ms) <= 0) continue;
        const ssize_t got = recv(s->socket, &last, sizeof(last), MSG_DONTWAIT);
        ended = got == 0 || (got < 0 && errno != EINTR && errno != EAGAIN);
        if (got == (ssize_t)sizeof(last) && last.pid > 0) s->pid = last.pid; /* its first words */
    }
    if (!ended && s->pid > 0) (void)kill(s->pid, SIGKILL);
    (void)saver_reap(s, REAP_MS, &how);
    saver_leave(s);
}
