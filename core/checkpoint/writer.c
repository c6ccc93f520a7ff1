/* writer.c - the trainer's side: shared memory, requests, results, deadlines. */
#include <checkpoint/writer.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <checkpoint/commit.h>
#include <checkpoint/folder_lock.h>
#include <checkpoint/safetensors_writer.h>
#include <checkpoint/save_arena.h>
#include <checkpoint/save_process.h>

enum { PLACE_ALIGNMENT = 64, KILL_WAIT_MS = 3000 /* longer than the keeper waits */ };
#define SECOND_NS ((uint64_t)1000000000)

struct writer {
    char *folder;
    uint64_t deadline_ns;
    writer_shared_t shared; /* what the helper has as well */
    folder_lock_t lock;     /* of rank 0 */
    int socket;             /* to the keeper */
    pid_t keeper;
    bool keeper_lost;

    save_arena_t arena;
    checkpoint_tensor_t *tensors;
    uint64_t *offset, *bytes;
    uint32_t count;

    bool begun, busy, killed;
    uint64_t step, started_ns;
    uint64_t session;
    uint32_t attempt;         /* saves submitted */
    char parent[SHA256_TEXT]; /* of the last checkpoint that was committed */
};

/* Two processes: the keeper, which does nothing but fork a helper for each save and tell how it
 * ended, and so can lose one without harm; and that helper. */
static lh_status_t start_keeper(writer_t *w)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return fail(LH_IO, "a socket pair for the checkpoint writer");
    w->keeper = fork();
    if (w->keeper < 0) {
        (void)close(pair[0]);
        (void)close(pair[1]);
        return fail(LH_IO, "cannot start the checkpoint writer");
    }
    if (w->keeper == 0) {
        (void)close(pair[0]);
        writer_keep(&w->shared, pair[1]);
    }
    (void)close(pair[1]);
    w->socket = pair[0];
    return LH_OK;
}

lh_status_t writer_open(const writer_how_t *how, writer_t **out)
{
    writer_t *w = mem_new(sizeof(*w));
    if (w == NULL) return LH_NO_MEMORY;
    w->socket = w->arena.fd = w->shared.job_fd = w->shared.lock_fd = w->lock.fd = -1;
    w->deadline_ns = how->deadline_ns == 0 ? 600 * SECOND_NS : how->deadline_ns;
    w->shared.keep = how->keep;
    w->shared.shard_bytes = how->shard_bytes;
    w->shared.rank = how->rank;
    w->shared.ranks = how->ranks;
    w->shared.deadline_ns = w->deadline_ns;
    w->folder = mem_text(how->folder);
    lh_status_t status = w->folder == NULL ? LH_NO_MEMORY : LH_OK;
    w->shared.folder = w->folder;

    const uint64_t patience = how->lock_ns == 0 ? 30 * SECOND_NS : how->lock_ns;
    if (status == LH_OK && how->rank == 0) status = folder_lock_take(w->folder, patience, &w->lock);
    w->shared.lock_fd = w->lock.fd;
    if (status == LH_OK && how->rank == 0) status = checkpoint_clean(w->folder);
    if (status == LH_OK) status = save_arena_open(&w->arena);
    w->shared.arena_fd = w->arena.fd;
    if (status == LH_OK) w->shared.job_fd = memfd_create("longhaul-checkpoint-job", MFD_CLOEXEC);
    if (status == LH_OK && w->shared.job_fd < 0)
        status = fail(LH_IO, "shared memory for checkpoints");
    if (status == LH_OK) status = start_keeper(w);
    if (status != LH_OK) {
        writer_close(w);
        return status;
    }
    *out = w;
    return LH_OK;
}

static void forget_layout(writer_t *w)
{
    save_arena_unsize(&w->arena);
    for (uint32_t i = 0; w->tensors != NULL && i < w->count; i++)
        mem_free((void *)w->tensors[i].name);
    mem_free(w->tensors);
    mem_free(w->offset);
    mem_free(w->bytes);
    w->tensors = NULL;
    w->offset = w->bytes = NULL;
    w->count = 0;
}

/* Behind what takes *bytes. */
static lh_status_t place_tensor(writer_t *w, uint32_t i, const checkpoint_tensor_t *tensor,
                                uint64_t *bytes)
{
    w->tensors[i] = *tensor;
    w->tensors[i].name = mem_text(tensor->name);
    if (w->tensors[i].name == NULL) return LH_NO_MEMORY;
    if (tensor->part.count == 0)
        w->tensors[i].part = tensor_part_whole(tensor->rank, tensor->shape);
    else if (!tensor_part_fits(&tensor->part, tensor->rank, tensor->shape))
        return fail(LH_INVALID, "tensor %s: a part lies outside of it", tensor->name);

    const safetensors_row_t row = {.name = tensor->name,
                                   .dtype = tensor->dtype,
                                   .rank = 1,
                                   .shape = {w->tensors[i].part.count}};
    if (safetensors_dtype(tensor->dtype) == NULL || !safetensors_row_bytes(&row, &w->bytes[i]))
        return fail(LH_INVALID, "tensor %s: cannot be stored", tensor->name);
    w->offset[i] = *bytes;
    *bytes += (w->bytes[i] + PLACE_ALIGNMENT - 1) / PLACE_ALIGNMENT * PLACE_ALIGNMENT;
    return LH_OK;
}

lh_status_t writer_layout(writer_t *w, const checkpoint_tensor_t *tensors, uint32_t count)
{
    if (w->busy) return fail(LH_INVALID, "the layout of checkpoints changes while one is written");
    forget_layout(w);
    uint64_t bytes = 0;
    w->count = count;
    w->tensors = mem_array(count, sizeof(w->tensors[0]));
    w->offset = mem_array(count, sizeof(w->offset[0]));
    w->bytes = mem_array(count, sizeof(w->bytes[0]));
    lh_status_t status = LH_OK;
    if (w->tensors == NULL || w->offset == NULL || w->bytes == NULL) status = LH_NO_MEMORY;
    for (uint32_t i = 0; i < count && status == LH_OK; i++)
        status = place_tensor(w, i, &tensors[i], &bytes);
    if (status == LH_OK) status = save_arena_size(&w->arena, bytes == 0 ? PLACE_ALIGNMENT : bytes);
    if (status != LH_OK) forget_layout(w);
    return status;
}

lh_status_t writer_manifest_bytes(const writer_t *w, uint64_t *bytes)
{
    const uint32_t ranks = w->shared.ranks == 0 ? 1 : w->shared.ranks;
    return commit_manifest_bytes(w->tensors, w->count, w->shared.shard_bytes, ranks, bytes);
}

void writer_ahead(writer_t *w)
{
    save_arena_ahead(&w->arena);
}

lh_status_t writer_reserve(writer_t *w)
{
    return save_arena_take(&w->arena);
}

lh_status_t writer_place(writer_t *w, uint32_t index, void **out)
{
    const lh_status_t status = save_arena_take_part(&w->arena, w->offset[index], w->bytes[index]);
    if (status != LH_OK) return status;
    *out = w->arena.memory + w->offset[index];
    return LH_OK;
}

uint64_t writer_place_bytes(const writer_t *w, uint32_t index)
{
    return w->bytes[index];
}

void writer_session(writer_t *w, uint64_t session)
{
    w->session = session;
}

void writer_parent(writer_t *w, const char *self)
{
    (void)snprintf(w->parent, sizeof(w->parent), "%s", self);
}

bool writer_busy(const writer_t *w)
{
    return w->busy;
}

lh_status_t writer_begin(writer_t *w)
{
    if (w->busy) return LH_AGAIN;
    /* A helper that outlived its keeper may still be reading the shared memory. */
    if (w->keeper_lost)
        return fail(LH_IO, "the checkpoint writer is gone: checkpoints can't be saved any more");
    if (w->arena.memory == NULL) return fail(LH_INVALID, "a checkpoint without a layout");
    w->begun = true;
    return LH_OK;
}

lh_status_t writer_submit(writer_t *w, const checkpoint_meta_t *meta)
{
    if (!w->begun) return fail(LH_INVALID, "a checkpoint that was not begun");
    w->begun = false;
    w->attempt++;
    text_t job = {0};
    lh_status_t status = writer_job_text(&job, meta, w->parent, w->tensors, w->offset, w->count);
    if (status != LH_OK) goto free_job;
    if (ftruncate(w->shared.job_fd, 0) != 0 ||
        pwrite(w->shared.job_fd, job.data, job.length, 0) != (ssize_t)job.length) {
        status = fail(LH_IO, "%zu bytes for the checkpoint writer", job.length);
        goto free_job;
    }
    const writer_request_t request = {.job_bytes = job.length,
                                      .arena_bytes = w->arena.bytes,
                                      .session = w->session,
                                      .attempt = w->attempt};
    if (send(w->socket, &request, sizeof(request), MSG_NOSIGNAL | MSG_DONTWAIT) !=
        (ssize_t)sizeof(request)) {
        w->keeper_lost = true;
        status = fail(LH_IO, "the checkpoint writer does not answer");
        goto free_job;
    }
    w->busy = true;
    w->killed = false;
    w->step = meta->step;
    w->started_ns = sys()->now_ns();
free_job:
    text_free(&job);
    return status;
}

static void ended(writer_t *w, lh_status_t status, const char *reason, writer_result_t *out)
{
    w->busy = false;
    *out = (writer_result_t){
        .status = status, .step = w->step, .ns = sys()->now_ns() - w->started_ns};
    (void)snprintf(out->reason, sizeof(out->reason), "%s", reason);
}

/* The keeper kills the helper that it forked; only when it has, the shared memory may be filled
 * anew. */
static void give_up(writer_t *w)
{
    const writer_request_t request = {.kill = true};
    if (w->killed) return;
    w->killed = true;
    if (send(w->socket, &request, sizeof(request), MSG_NOSIGNAL | MSG_DONTWAIT) !=
        (ssize_t)sizeof(request))
        w->keeper_lost = true;
}

static void deadline_text(const writer_t *w, char *to, size_t bytes)
{
    (void)snprintf(to, bytes, "step %llu was not written within %.1f s and is given up",
                   (unsigned long long)w->step, (double)w->deadline_ns / 1e9);
}

/* Waits at most timeout_ms for the keeper's word. */
static lh_status_t hear(writer_t *w, int timeout_ms, writer_result_t *out)
{
    struct pollfd fd = {.fd = w->socket, .events = POLLIN};
    const int ready = poll(&fd, 1, timeout_ms);
    if (ready < 0 && errno == EINTR) return LH_AGAIN;
    if (ready == 0) return LH_AGAIN;

    writer_answer_t answer;
    const ssize_t got = recv(w->socket, &answer, sizeof(answer), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return LH_AGAIN;
    if (got != (ssize_t)sizeof(answer)) {
        w->keeper_lost = true;
        ended(w, LH_IO, "the checkpoint writer died", out);
        return LH_OK;
    }
    answer.reason[sizeof(answer.reason) - 1] = '\0';
    if (w->killed && answer.status != LH_OK) deadline_text(w, answer.reason, sizeof(answer.reason));
    if (answer.status == LH_OK) memcpy(w->parent, answer.self, sizeof(w->parent));
    ended(w, answer.status, answer.reason, out);
    return LH_OK;
}

/* Not even the keeper answers: its memory can't be used again. */
static void keeper_silent(writer_t *w, writer_result_t *out)
{
    char reason[128];
    deadline_text(w, reason, sizeof(reason));
    w->keeper_lost = true;
    ended(w, LH_TIMED_OUT, reason, out);
}

lh_status_t writer_poll(writer_t *w, writer_result_t *out)
{
    if (!w->busy) return LH_INVALID;
    const lh_status_t status = hear(w, 0, out);
    const uint64_t spent = sys()->now_ns() - w->started_ns;
    if (status != LH_AGAIN || spent < w->deadline_ns) return status;
    give_up(w);
    if (spent - w->deadline_ns < (uint64_t)KILL_WAIT_MS * 1000000) return LH_AGAIN;
    keeper_silent(w, out);
    return LH_OK;
}

lh_status_t writer_wait(writer_t *w, writer_result_t *out)
{
    if (!w->busy) return LH_INVALID;
    for (;;) {
        const uint64_t spent = sys()->now_ns() - w->started_ns;
        const uint64_t left = spent >= w->deadline_ns ? 0 : w->deadline_ns - spent;
        const uint64_t ms = left / 1000000 + 1;
        int timeout_ms = ms > 100 ? 100 : (int)ms;
        if (left == 0) timeout_ms = w->killed ? KILL_WAIT_MS : 0;
        lh_status_t status = hear(w, timeout_ms, out);
        if (status == LH_OK) return LH_OK;
        if (left > 0) continue;
        if (!w->killed) {
            give_up(w);
            continue;
        }
        keeper_silent(w, out);
        return LH_OK;
    }
}

/* `wait` for the keeper to end, or leave it to itself. */
static void end_writer(writer_t *w, bool wait)
{
    if (w->socket >= 0) (void)close(w->socket);
    if (w->keeper > 0) {
        if (w->keeper_lost) (void)kill(w->keeper, SIGKILL);
        while ((wait || w->keeper_lost) && waitpid(w->keeper, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    forget_layout(w);
    save_arena_close(&w->arena);
    if (w->shared.job_fd >= 0) (void)close(w->shared.job_fd);
    /* A helper may still write under the lock; without a submit there was none. */
    if (w->attempt == 0)
        folder_lock_undo(&w->lock, w->folder);
    else
        folder_lock_give(&w->lock);
    mem_free(w->folder);
    mem_free(w);
}

void writer_close(writer_t *w)
{
    if (w == NULL) return;
    writer_result_t result;
    if (w->busy && writer_wait(w, &result) != LH_OK) w->keeper_lost = true;
    end_writer(w, true);
}

void writer_leave(writer_t *w)
{
    if (w != NULL) end_writer(w, !w->busy);
}
