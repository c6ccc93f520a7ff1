/* save_process.c - the keeper, which forks and watches, and the helper, which writes one
 * checkpoint. */
#include <checkpoint/save_process.h>

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <checkpoint/commit.h>
#include <checkpoint/rank_save.h>

enum { HELPER_NICE = 5, KEPT = 4, KILL_WAIT_MS = 1000 };

lh_status_t writer_job_text(text_t *out, const checkpoint_meta_t *meta, const char *parent,
                            const checkpoint_tensor_t *tensors, const uint64_t *offset,
                            uint32_t count)
{
    manifest_t job = {.meta = *meta};
    (void)snprintf(job.parent, sizeof(job.parent), "%s", parent);
    uint32_t arena;
    lh_status_t status = manifest_add_file(&job, "arena", &arena);
    for (uint32_t i = 0; i < count && status == LH_OK; i++)
        status = manifest_add_part(&job, &tensors[i], arena, tensors[i].name, offset[i]);
    if (status == LH_OK) status = manifest_text(&job, out);
    manifest_clear(&job);
    return status;
}

typedef struct parts { /* of a job, and where their elements lie */
    checkpoint_tensor_t *tensors;
    const void **data;
    uint32_t count;
} parts_t;

static lh_status_t list_parts(const manifest_t *job, const char *arena, parts_t *out)
{
    uint32_t count = 0, at = 0;
    for (uint32_t i = 0; i < job->tensor_count; i++)
        count += job->tensors[i].part_count;
    out->tensors = mem_array(count, sizeof(*out->tensors));
    out->data = mem_array(count, sizeof(*out->data));
    if (out->tensors == NULL || out->data == NULL) return LH_NO_MEMORY;

    for (uint32_t i = 0; i < job->tensor_count; i++)
        for (uint32_t k = 0; k < job->tensors[i].part_count; k++) {
            const manifest_tensor_t *t = &job->tensors[i];
            checkpoint_tensor_t *row = &out->tensors[at];
            *row = (checkpoint_tensor_t){.name = t->name,
                                         .dtype = t->dtype,
                                         .source = t->source,
                                         .rank = t->rank,
                                         .part = t->parts[k].part};
            memcpy(row->shape, t->shape, sizeof(t->shape));
            out->data[at++] = arena + t->parts[k].xxh3; /* a job keeps the place where a hash
                                                           will be */
        }
    out->count = count;
    return LH_OK;
}

static lh_status_t write_alone(const writer_shared_t *shared, const manifest_t *job,
                               const parts_t *parts, char self[SHA256_TEXT])
{
    commit_t *c;
    lh_status_t status = commit_begin(shared->folder, &job->meta, job->parent, &c);
    if (status != LH_OK) return status;
    status = commit_write_all(c, 0, parts->tensors, parts->data, parts->count, shared->shard_bytes);
    if (status == LH_OK) return commit_finish(c, shared->keep, self);
    commit_abandon(c);
    return status;
}

static rank_save_t rank_save_of(const writer_shared_t *shared, const writer_request_t *request,
                                int socket)
{
    return (rank_save_t){.folder = shared->folder,
                         .rank = shared->rank,
                         .ranks = shared->ranks,
                         .session = request->session,
                         .attempt = request->attempt,
                         .keep = shared->keep,
                         .shard_bytes = shared->shard_bytes,
                         .deadline_ns = shared->deadline_ns,
                         .trainer = socket};
}

static lh_status_t write_job(const writer_shared_t *shared, const manifest_t *job,
                             const writer_request_t *request, int socket, char self[SHA256_TEXT])
{
    parts_t parts = {0};
    const char *arena = mmap(NULL, (size_t)request->arena_bytes, PROT_READ, MAP_SHARED,
                             shared->arena_fd, 0);
    if (arena == MAP_FAILED) return fail(LH_IO, "cannot map the snapshot");
    const lh_status_t status = list_parts(job, arena, &parts);
    if (status != LH_OK) return status;
    if (shared->ranks <= 1) return write_alone(shared, job, &parts, self);
    const rank_save_t how = rank_save_of(shared, request, socket);
    return rank_save(&how, &job->meta, job->parent, parts.tensors, parts.data, parts.count, self);
}

static lh_status_t run_job(const writer_shared_t *shared, const writer_request_t *request,
                           int socket, char self[SHA256_TEXT])
{
    char *text = mem_new((size_t)request->job_bytes + 1);
    if (text == NULL) return LH_NO_MEMORY;
    if (pread(shared->job_fd, text, (size_t)request->job_bytes, 0) != (ssize_t)request->job_bytes)
        return fail(LH_IO, "cannot read the job of the checkpoint writer");
    manifest_t *job;
    lh_status_t status = manifest_parse("checkpoint job", text, (size_t)request->job_bytes, false,
                                        &job);
    if (status == LH_OK) status = write_job(shared, job, request, socket, self);
    return status; /* the process ends: nothing is freed */
}

static noreturn void be_helper(const writer_shared_t *shared, const writer_request_t *request,
                               int socket, int pipe_end)
{
    (void)prctl(PR_SET_NAME, "longhaul-save");
    (void)!nice(HELPER_NICE); /* training's threads come first */
    writer_answer_t answer = {0};
    answer.status = run_job(shared, request, socket, answer.self);
    if (answer.status != LH_OK)
        (void)snprintf(answer.reason, sizeof(answer.reason), "%s", fail_reason());
    _exit(write(pipe_end, &answer, sizeof(answer)) == (ssize_t)sizeof(answer) ? 0 : 1);
}

typedef struct keeper {
    const writer_shared_t *shared;
    int socket;
    bool trainer_gone;
    pid_t helper;             /* 0: none at work */
    writer_request_t request; /* its last */
    int pipe;                 /* from it */
    uint64_t started_ns;      /* when it was */
    uint64_t killed_ns;       /* when it was; 0: it was not */
} keeper_t;

static void answer_trainer(const keeper_t *k, const writer_answer_t *answer)
{
    if (!k->trainer_gone)
        (void)send(k->socket, answer, sizeof(*answer), MSG_NOSIGNAL); /* gone: nobody to tell */
}

/* Rank 0's helper is gone without a word, and all others wait for it. A file system that hangs must
 * not take the keeper too: a process of its own tells them. */
static void tell_ranks(const keeper_t *k, const char *reason)
{
    if (k->shared->ranks <= 1 || k->shared->rank != 0) return;
    while (waitpid(-1, NULL, WNOHANG) > 0) { /* of earlier ones */
    }
    if (fork() != 0) return;
    (void)close(k->socket);
    const rank_save_t how = rank_save_of(k->shared, &k->request, -1);
    rank_save_failed(&how, reason);
    _exit(0);
}

static void start_helper(keeper_t *k, const writer_request_t *request)
{
    int ends[2];
    k->request = *request;
    k->killed_ns = 0;
    k->started_ns = sys()->now_ns();
    while (waitpid(-1, NULL, WNOHANG) > 0) { /* of those that were left to themselves */
    }
    writer_answer_t failed = {.status = LH_IO, .reason = "cannot start a checkpoint helper"};
    if (pipe(ends) != 0) {
        answer_trainer(k, &failed);
        tell_ranks(k, failed.reason);
        return;
    }
    k->helper = fork();
    if (k->helper == 0) {
        (void)close(ends[0]);
        be_helper(k->shared, request, k->socket, ends[1]);
    }
    (void)close(ends[1]);
    k->pipe = ends[0];
    if (k->helper > 0) return;
    k->helper = 0;
    (void)close(ends[0]);
    answer_trainer(k, &failed);
    tell_ranks(k, failed.reason);
}

static void finish_helper(keeper_t *k)
{
    writer_answer_t answer;
    const ssize_t got = read(k->pipe, &answer, sizeof(answer));
    if (got < 0 && errno == EINTR) return;
    int how = 0;
    while (waitpid(k->helper, &how, 0) < 0 && errno == EINTR) {
    }
    if (got != (ssize_t)sizeof(answer)) {
        answer = (writer_answer_t){.status = LH_IO};
        (void)snprintf(answer.reason, sizeof(answer.reason),
                       WIFSIGNALED(how) ? "the checkpoint helper was ended by signal %d"
                                        : "the checkpoint helper ended with code %d",
                       WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
    }
    (void)close(k->pipe);
    k->helper = 0;
    answer_trainer(k, &answer);
    if (got != (ssize_t)sizeof(answer)) tell_ranks(k, answer.reason);
}

/* Killed and yet there: its file system does not let it go. It will not run again but to end, so
 * that the shared memory is free; what it holds of the disk is in its staging folder. */
static void leave_helper(keeper_t *k)
{
    writer_answer_t answer = {.status = LH_TIMED_OUT,
                              .reason = "the checkpoint helper hangs in the file system"};
    (void)close(k->pipe);
    k->helper = 0;
    answer_trainer(k, &answer);
    tell_ranks(k, answer.reason);
}

static void kill_helper(keeper_t *k)
{
    (void)kill(k->helper, SIGKILL);
    if (k->killed_ns == 0) k->killed_ns = sys()->now_ns();
}

/* Milliseconds until something is to be done about the helper; -1: never. It is the trainer that
 * gives a save up; without one a helper must not hold the folder for ever. */
static int patience_ms(const keeper_t *k)
{
    if (k->helper == 0) return -1;
    const uint64_t killed = k->killed_ns + (uint64_t)KILL_WAIT_MS * 1000000;
    const uint64_t late = k->started_ns + k->shared->deadline_ns + (uint64_t)KILL_WAIT_MS * 1000000;
    const uint64_t until = k->killed_ns != 0 ? killed : late, now = sys()->now_ns();
    if (now >= until) return 0;
    const uint64_t ms = (until - now) / 1000000 + 1;
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

static void hear_trainer(keeper_t *k)
{
    writer_request_t request;
    const ssize_t got = recv(k->socket, &request, sizeof(request), 0);
    if (got < 0 && errno == EINTR) return;
    if (got != (ssize_t)sizeof(request))
        k->trainer_gone = true;
    else if (request.kill && k->helper > 0)
        kill_helper(k);
    else if (!request.kill && k->helper == 0)
        start_helper(k, &request);
}

/* Everything else that the trainer had open is not ours: sockets, devices, its log. */
static void close_others(const writer_shared_t *shared, int socket)
{
    log_forked();
    unsigned from = STDERR_FILENO + 1;
    const int kept[KEPT] = {socket, shared->arena_fd, shared->job_fd, shared->lock_fd};
    for (;;) {
        unsigned next = ~0u;
        for (int i = 0; i < KEPT; i++)
            if ((unsigned)kept[i] >= from && (unsigned)kept[i] < next) next = (unsigned)kept[i];
        if (next > from) (void)close_range(from, next - 1, 0);
        if (next == ~0u) return;
        from = next + 1;
    }
}

noreturn void writer_keep(const writer_shared_t *shared, int socket)
{
    (void)prctl(PR_SET_NAME, "longhaul-keeper");
    /* A Ctrl-C or SIGTERM to the group is the trainer's to answer; the last save must outlive it.
     */
    static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGUSR1, SIGUSR2};
    for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
        (void)signal(ignored[i], SIG_IGN);
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    close_others(shared, socket);

    keeper_t k = {.shared = shared, .socket = socket};
    while (!k.trainer_gone || k.helper > 0) {
        struct pollfd fds[2] = {
            {.fd = k.trainer_gone ? -1 : socket, .events = POLLIN},
            {.fd = k.helper > 0 ? k.pipe : -1, .events = POLLIN},
        };
        if (poll(fds, 2, patience_ms(&k)) < 0) continue;
        if (fds[1].revents != 0)
            finish_helper(&k);
        else if (patience_ms(&k) == 0 && k.killed_ns == 0)
            kill_helper(&k);
        else if (patience_ms(&k) == 0)
            leave_helper(&k);
        if (fds[0].revents != 0) hear_trainer(&k);
    }
    _exit(0);
}
