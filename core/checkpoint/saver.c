/* saver.c - the life of a process that saves, and how the trainer starts and ends one. */
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
#include <unistd.h>

#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <checkpoint/commit.h>
#include <checkpoint/folder_lock.h>
#include <checkpoint/rank_save.h>

enum { SAVER_NICE = 5, SAVER_FDS = 4, ORPHAN_MS = 1000 };

typedef struct saver_life { /* in the process itself */
    const saver_how_t *how;
    int socket;
    int before; /* a pidfd of the saver whose reserve this is; -1: none, or it saves itself */
    bool wrote; /* a share, which is neither committed nor abandoned */
    uint64_t write_ns; /* how long it took to write that */
} saver_life_t;

/* ---- a save --------------------------------------------------------------------------------- */

static lh_status_t saver_write_alone(const saver_how_t *how, const void *const *data,
                                     char self[SHA256_TEXT])
{
    const save_job_t *job = how->job;
    commit_t *c;
    lh_status_t status = job->leftovers ? checkpoint_clean(how->folder) : LH_OK;
    if (status == LH_OK) status = commit_begin(how->folder, &job->meta, job->parent, &c);
    if (status != LH_OK) return status;
    status = commit_write_all(c, 0, job->tensors, data, job->count, how->shard_bytes);
    if (status == LH_OK) return commit_finish(c, how->keep, self);
    commit_abandon(c);
    return status;
}

static rank_save_t saver_ranks(const saver_how_t *how)
{
    return (rank_save_t){.folder = how->folder,
                         .rank = how->rank,
                         .ranks = how->ranks,
                         .session = how->job->session,
                         .attempt = how->job->attempt,
                         .keep = how->keep,
                         .shard_bytes = how->shard_bytes,
                         .meta = &how->job->meta,
                         .parent = how->job->parent};
}

static lh_status_t saver_write(const saver_how_t *how, const char *arena, char self[SHA256_TEXT])
{
    const save_job_t *job = how->job;
    const void **data = mem_array(job->count, sizeof(*data));
    if (data == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < job->count; i++)
        data[i] = arena + job->offset[i];
    const rank_save_t ranks = saver_ranks(how);
    const lh_status_t status = how->ranks <= 1
                                   ? saver_write_alone(how, data, self)
                                   : rank_save_write(&ranks, job->tensors, data, job->count);
    mem_free(data);
    return status;
}

/* Here and not in the trainer: a file system that hangs does not answer this either. */
static lh_status_t saver_check_folder(const saver_how_t *how)
{
    const folder_lock_t lock = {.fd = how->lock_fd, .folder_fd = how->folder_fd};
    return folder_lock_check(&lock, how->folder);
}

static lh_status_t saver_save(const saver_how_t *how, char self[SHA256_TEXT])
{
    lh_status_t status = saver_check_folder(how);
    if (status != LH_OK) return status;
    const uint64_t bytes = how->job->arena_bytes;
    void *arena = mmap(NULL, bytes, PROT_READ, MAP_SHARED, how->arena_fd, 0);
    if (arena == MAP_FAILED) return fail_io(errno, "cannot map the snapshot");
    status = saver_write(how, arena, self);
    (void)munmap(arena, bytes);
    return status;
}

static lh_status_t saver_do(saver_life_t *l, uint32_t task, char self[SHA256_TEXT])
{
    const rank_save_t ranks = saver_ranks(l->how);
    const uint64_t since = sys()->now_ns();
    lh_status_t status;
    if (task == SAVER_COMMIT) {
        l->wrote = false;
        status = rank_save_commit(&ranks, self);
    } else {
        status = saver_save(l->how, self);
        l->wrote = status == LH_OK && l->how->ranks > 1 && l->how->rank == 0;
        l->write_ns = sys()->now_ns() - since;
    }
    /* A folder that went away in the middle of a save fails some call or other; this is why. */
    if (status == LH_IO) (void)saver_check_folder(l->how);
    return status;
}

/* From now on this process is the one that saves. */
static void saver_answer(saver_life_t *l, uint32_t task)
{
    saver_answer_t answer = {.status = LH_OK};
    if (l->before >= 0) (void)close(l->before);
    l->before = -1;
    (void)prctl(PR_SET_NAME, "longhaul-save");
    answer.status = saver_do(l, task, answer.self);
    if (answer.status != LH_OK)
        (void)snprintf(answer.reason, sizeof(answer.reason), "%s", fail_reason());
    /* Once its trainer is gone, nobody is there to be told. */
    (void)send(l->socket, &answer, sizeof(answer), MSG_NOSIGNAL);
}

static void saver_abandon(saver_life_t *l)
{
    const rank_save_t ranks = saver_ranks(l->how);
    l->wrote = false;
    rank_save_abandon(&ranks);
}

/* The trainer is gone in the middle of a save; the others' shares come soon, if at all. */
static void saver_finish_orphan(const saver_life_t *l)
{
    if (!l->wrote) return;
    const rank_save_t ranks = saver_ranks(l->how);
    rank_save_orphan(&ranks, sys()->now_ns() + l->write_ns + (uint64_t)ORPHAN_MS * 1000000);
}

/* ---- its life ------------------------------------------------------------------------------- */

/* Everything else that the trainer had open is not the saver's: sockets, devices, its log. */
static void saver_close_others(const saver_life_t *l)
{
    const int kept[SAVER_FDS] = {l->socket, l->how->arena_fd, l->how->lock_fd, l->how->folder_fd};
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
    if (l->how->lock_fd >= 0) (void)close(l->how->lock_fd);
    if (l->how->folder_fd >= 0) (void)close(l->how->folder_fd);
    _exit(0);
}

/* A trainer that is gone can't give a save up, and a saver that hangs must not hold the folder for
 * ever: its reserve outlasts it. */
static void saver_outlast(const saver_life_t *l)
{
    const uint64_t until = sys()->now_ns() + l->how->deadline_ns + (uint64_t)ORPHAN_MS * 1000000;
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

/* The next request, and with SAVER_FORK the new saver's socket. False: the trainer is gone. */
static bool saver_hear(const saver_life_t *l, uint32_t *task, int *passed)
{
    char room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec body = {.iov_base = task, .iov_len = sizeof(*task)};
    struct msghdr m = {
        .msg_iov = &body, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room)};
    ssize_t got;
    do
        got = recvmsg(l->socket, &m, 0);
    while (got < 0 && errno == EINTR);
    const struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    *passed = -1;
    if (c != NULL && c->cmsg_type == SCM_RIGHTS) memcpy(passed, CMSG_DATA(c), sizeof(*passed));
    return got == (ssize_t)sizeof(*task);
}

/* The child goes on as the reserve of its parent. */
static void saver_fork_reserve(saver_life_t *l, int socket)
{
    const pid_t parent = getpid();
    if (fork() != 0) {
        (void)close(socket);
        return;
    }
    const saver_answer_t hello = {.pid = getpid()};
    (void)close(l->socket);
    if (l->before >= 0) (void)close(l->before);
    *l = (saver_life_t){.how = l->how, .socket = socket};
    l->before = (int)syscall(SYS_pidfd_open, parent, 0);
    (void)prctl(PR_SET_NAME, "longhaul-spare");
    (void)send(l->socket, &hello, sizeof(hello), MSG_NOSIGNAL);
}

static noreturn void saver_live(saver_life_t *l)
{
    uint32_t task;
    int passed;
    while (saver_hear(l, &task, &passed)) {
        if (task == SAVER_SAVE || task == SAVER_COMMIT) saver_answer(l, task);
        if (task == SAVER_ABANDON) saver_abandon(l);
        if (task == SAVER_FORK && passed >= 0) saver_fork_reserve(l, passed);
    }
    saver_finish_orphan(l);
    saver_outlast(l);
    saver_exit(l);
}

static noreturn void saver_be(const saver_how_t *how, int socket, const saver_t *before)
{
    saver_life_t l = {.how = how, .socket = socket, .before = -1};
    /* A Ctrl-C or SIGTERM to the group is the trainer's to answer; the last save must outlive it.
     * A reserve's end is nobody's to be waited for. */
    static const int ignored[] = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,
                                  SIGPIPE, SIGUSR1, SIGUSR2, SIGCHLD};
    for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
        (void)signal(ignored[i], SIG_IGN);
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)!nice(SAVER_NICE); /* training's threads come first */
    (void)prctl(PR_SET_NAME, before == NULL ? "longhaul-save" : "longhaul-spare");
    log_forked();
    status_assert_tell(NULL); /* the trainer's last words are not this process's to say */
    saver_close_others(&l);
    if (before != NULL) l.before = (int)syscall(SYS_pidfd_open, before->pid, 0);
    saver_live(&l);
}

/* ---- the trainer's side --------------------------------------------------------------------- */

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

static bool saver_send(const saver_t *s, uint32_t task, int pass)
{
    char room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec body = {.iov_base = &task, .iov_len = sizeof(task)};
    struct msghdr m = {.msg_iov = &body, .msg_iovlen = 1};
    if (pass >= 0) {
        m.msg_control = room;
        m.msg_controllen = sizeof(room);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        *c = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
        memcpy(CMSG_DATA(c), &pass, sizeof(pass));
    }
    return sendmsg(s->socket, &m, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof(task);
}

bool saver_ask(const saver_t *s, uint32_t task)
{
    return saver_send(s, task, -1);
}

void saver_fork(const saver_t *s, saver_t *out)
{
    int pair[2];
    *out = (saver_t){.socket = -1};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return;
    if (saver_send(s, SAVER_FORK, pair[1]))
        out->socket = pair[0];
    else
        (void)close(pair[0]);
    (void)close(pair[1]);
}

bool saver_gone(const saver_t *s)
{
    struct pollfd fd = {.fd = s->socket};
    return s->socket < 0 || (poll(&fd, 1, 0) == 1 && (fd.revents & (POLLHUP | POLLERR)) != 0);
}

void saver_leave(saver_t *s)
{
    if (s->socket >= 0) (void)close(s->socket);
    if (s->child) (void)waitpid(s->pid, NULL, WNOHANG);
    *s = (saver_t){.socket = -1};
}

void saver_end(saver_t *s)
{
    saver_answer_t last;
    if (s->socket >= 0) {
        (void)shutdown(s->socket, SHUT_WR);
        for (;;) {
            const ssize_t got = recv(s->socket, &last, sizeof(last), 0);
            if (got == 0 || (got < 0 && errno != EINTR)) break;
        }
    }
    while (s->child && waitpid(s->pid, NULL, 0) < 0 && errno == EINTR) {
    }
    s->child = false;
    saver_leave(s);
}
