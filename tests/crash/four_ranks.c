/* four_ranks.c - saves and checks the small state. */
#include <crash/four_ranks.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <base/file.h>
#include <base/memory.h>
#include <checkpoint/checkpoint.h>
#include <checkpoint/checkpoint_folder.h>
#include <checkpoint/commit.h>
#include <checkpoint/folder_lock.h>
#include <checkpoint/saver.h>
#include <crash/call_faults.h>
#include <crash/mem_fs_shared.h>

enum { RANKS = 4, TENSORS = 2, ROWS = 16, COLUMNS = 24, PART = ROWS * COLUMNS / RANKS };

static const char *const names[TENSORS] = {"embed", "exp_avg/embed"};

static float value(uint64_t step, uint32_t tensor, uint32_t index)
{
    return (float)step * 4096.0f + (float)tensor * 1024.0f + (float)index + 0.5f;
}

/* Weights by rows, states by ranges, as a sharded optimizer leaves them. */
static checkpoint_tensor_t part_of(uint32_t rank, uint32_t tensor)
{
    static const uint64_t shape[LH_MAX_RANK] = {ROWS, COLUMNS};
    checkpoint_tensor_t t = {
        .name = names[tensor], .dtype = LH_DTYPE_F32, .rank = 2, .shape = {ROWS, COLUMNS}};
    if (tensor == 0)
        t.part = (tensor_part_t){.at = {rank * (ROWS / RANKS), 0},
                                 .shape = {ROWS / RANKS, COLUMNS},
                                 .first = 0,
                                 .count = PART};
    else
        t.part = tensor_part_range(2, shape, rank * PART, PART);
    return t;
}

typedef struct share { /* of one rank */
    checkpoint_tensor_t tensors[TENSORS];
    float values[TENSORS][PART];
    const void *data[TENSORS];
} share_t;

static void fill_share(share_t *s, uint32_t rank, uint64_t step)
{
    for (uint32_t t = 0; t < TENSORS; t++) {
        s->tensors[t] = part_of(rank, t);
        for (uint32_t i = 0; i < PART; i++)
            s->values[t][i] = value(step, t, rank * PART + i);
        s->data[t] = s->values[t];
    }
}

static lh_status_t write_rank(commit_t *c, uint32_t rank, uint64_t step)
{
    share_t share;
    fill_share(&share, rank, step);
    return commit_write_all(c, rank, share.tensors, share.data, TENSORS, 0);
}

/* What a process says that was killed, nobody has heard. */
static void mark(uint64_t number)
{
    const bool killed = call_faults.kind == CALL_FROZEN && call_faults.struck != NULL;
    if (mem_fs_used() != NULL && !killed) mem_fs_mark(mem_fs_used(), number);
}

lh_status_t four_save(uint64_t step, uint64_t keep)
{
    const checkpoint_meta_t meta = {.run = "crash", .step = step, .cursor = step};
    commit_t *c;
    mark(MARK_BEGUN + step);
    lh_status_t status = commit_begin(FOUR_FOLDER, &meta, "", &c);
    if (status != LH_OK) return status;
    for (uint32_t rank = 0; rank < RANKS && status == LH_OK; rank++)
        status = write_rank(c, rank, step);
    if (status != LH_OK) {
        commit_abandon(c);
        return status;
    }
    status = commit_finish(c, NULL);
    if (status != LH_OK) return status;
    mark(MARK_RETURNED + step); /* a saver tells it before it removes others */
    checkpoint_displace(FOUR_FOLDER, step, &(checkpoint_keep_t){.newest = keep});
    return LH_OK;
}

typedef struct attendant {
    uint64_t session, step;
    uint32_t rank;
    lh_status_t status;
    char said[512];
} attendant_t;

static saver_share_t save_of(const attendant_t *a, const checkpoint_meta_t *meta)
{
    return (saver_share_t){.folder = FOUR_FOLDER,
                           .rank = a->rank,
                           .ranks = RANKS,
                           .leads = a->rank == 0,
                           .session = a->session,
                           .attempt = 1,
                           .shard_bytes = PART * sizeof(float), /* a file a tensor */
                           .meta = meta,
                           .parent = ""};
}

static void *attend(void *context)
{
    attendant_t *a = context;
    const checkpoint_meta_t meta = {.run = "crash", .step = a->step, .cursor = a->step};
    const saver_share_t how = save_of(a, &meta);
    share_t share;
    fill_share(&share, a->rank, a->step);
    a->status = saver_share_write(&how, share.tensors, share.data, TENSORS);
    (void)snprintf(a->said, sizeof(a->said), "%s", fail_reason());
    return NULL;
}

/* What the trainers agree on, rank 0's saver does. */
lh_status_t four_meet(uint64_t session, uint64_t step, uint64_t keep)
{
    pthread_t threads[RANKS];
    attendant_t ranks[RANKS];
    mem_shared_mark(MARK_BEGUN + step);
    for (uint32_t r = 0; r < RANKS; r++) {
        ranks[r] = (attendant_t){.session = session, .step = step, .rank = r};
        if (pthread_create(&threads[r], NULL, attend, &ranks[r]) != 0) abort();
    }
    lh_status_t status = LH_OK;
    for (uint32_t r = 0; r < RANKS; r++) {
        (void)pthread_join(threads[r], NULL);
        if (status == LH_OK && ranks[r].status != LH_OK)
            status = fail_again(ranks[r].status, ranks[r].said);
    }
    const checkpoint_meta_t meta = {.run = "crash", .step = step, .cursor = step};
    const saver_share_t how = save_of(&ranks[0], &meta);
    if (status == LH_OK) status = saver_share_commit(&how, NULL);
    if (status == LH_OK)
        mem_shared_mark(MARK_RETURNED + step);
    else
        saver_share_abandon(&how);
    if (status == LH_OK)
        checkpoint_displace(FOUR_FOLDER, step, &(checkpoint_keep_t){.newest = keep});
    return status;
}

/* Each sender's stream from its begin to its end, as a rank of its own writes it. */
static lh_status_t copy_files(const manifest_t *m, const char *from, const char *to)
{
    enum { SENDERS = 2 };
    char piece[700];
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < SENDERS && status == LH_OK; i++) {
        checkpoint_copy_t out, in;
        checkpoint_copy_begin(&out, m, from, i, SENDERS, false);
        checkpoint_copy_begin(&in, m, to, i, SENDERS, true);
        const uint64_t bytes = checkpoint_copy_bytes(&out);
        for (uint64_t at = 0; at < bytes && status == LH_OK; at += sizeof(piece)) {
            status = checkpoint_copy_move(&out, piece, sizeof(piece));
            if (status == LH_OK) status = checkpoint_copy_move(&in, piece, sizeof(piece));
        }
        const lh_status_t end = checkpoint_copy_end(&in);
        (void)checkpoint_copy_end(&out);
        if (status == LH_OK) status = end;
    }
    return status;
}

lh_status_t four_copy(uint64_t step)
{
    const char *from = FOUR_OTHER;
    char *text = NULL;
    size_t length = 0;
    checkpoint_t *c = NULL;
    commit_t *commit = NULL;
    mark(MARK_BEGUN + step);
    lh_status_t status = checkpoint_open(from, &c);
    if (status == LH_OK) status = checkpoint_copy_manifest(from, &text, &length);
    if (status == LH_OK)
        status = commit_join(FOUR_FOLDER, &c->manifest->meta, "", ".tmp-step-copy", COMMIT_FOLLOWS,
                             &commit);
    if (status == LH_OK) status = copy_files(c->manifest, from, commit_staging(commit));
    if (status == LH_OK) {
        status = checkpoint_copy_commit(commit, text, length);
        commit = NULL;
    }
    if (status == LH_OK) mark(MARK_RETURNED + step);
    if (commit != NULL) commit_leave(commit);
    mem_free(text);
    checkpoint_close(c);
    return status;
}

lh_status_t four_run(uint64_t step, uint64_t keep)
{
    folder_lock_t lock;
    checkpoint_t *c = NULL;
    lh_status_t status = folder_lock_take(FOUR_FOLDER, 0, &lock);
    if (status != LH_OK) return status;
    status = checkpoint_clean(FOUR_FOLDER);
    if (status == LH_OK) status = checkpoint_open_latest(FOUR_FOLDER, &c);
    if (status == LH_OK && c != NULL)
        checkpoint_make_way(FOUR_FOLDER, c->manifest->meta.step, false);
    if (status == LH_OK) checkpoint_close(c);
    if (status == LH_OK) status = four_save(step, keep);
    folder_lock_give(&lock);
    return status;
}

mem_fs_t *four_disk(uint64_t steps, uint64_t keep)
{
    mem_fs_t *first = mem_fs_new(NULL);
    mem_fs_use(first);
    sys_use(&mem_table);
    for (uint64_t step = 1; step <= steps; step++) {
        if (four_run(step, keep) == LH_OK) continue;
        (void)fprintf(stderr, "step %d: %s\n", (int)step, fail_reason());
        abort();
    }
    mem_fs_t *fs = mem_fs_new(&first->live);
    mem_fs_free(first);
    mem_fs_use(fs);
    return fs;
}

static bool has_values(checkpoint_t *c, uint64_t step)
{
    const tensor_part_t whole = {.count = 0};
    float values[ROWS * COLUMNS];
    if (c->manifest->meta.cursor != step || c->manifest->tensor_count != TENSORS) return false;
    for (uint32_t t = 0; t < TENSORS; t++) {
        const manifest_tensor_t *m = checkpoint_find(c, names[t]);
        if (m == NULL || checkpoint_read(c, m, &whole, values) != LH_OK) return false;
        for (uint32_t i = 0; i < ROWS * COLUMNS; i++)
            if (values[i] != value(step, t, i)) return false;
    }
    return true;
}

/* The pointer is whole, names a step that is there, and its seal; never what is not yet there. */
static const char *look_at_pointer(four_ranks_t *f, const checkpoint_t *found,
                                   const crash_expect_t *expect)
{
    char *text = NULL, name[CHECKPOINT_NAME], wanted[CHECKPOINT_NAME + SHA256_TEXT + 2];
    size_t length = 0;
    if (!file_exists(FOUR_FOLDER "/latest"))
        return expect->said > 0 && !f->pointer_may_lag ? "no pointer" : NULL;
    if (file_read(FOUR_FOLDER "/latest", 256, &text, &length) != LH_OK)
        return "the pointer cannot be read";
    (void)snprintf(f->said, sizeof(f->said), "the pointer is \"%s\"", text);
    char step_text[CHECKPOINT_NAME];
    uint64_t step = 0;
    (void)snprintf(step_text, sizeof(step_text), "%.*s", (int)strcspn(text, " "), text);
    const bool formed = length == strlen(text) && checkpoint_name_parse(step_text, &step) &&
                        length == strlen(step_text) + SHA256_TEXT + 1 && text[length - 1] == '\n';
    checkpoint_name(found->manifest->meta.step, name);
    (void)snprintf(wanted, sizeof(wanted), "%s %s\n", name, found->manifest->self);
    const bool same = strcmp(text, wanted) == 0;
    mem_free(text);
    if (!formed) return f->said;
    if (same) return NULL;
    /* It may be older than the newest, but not older than what was said to be saved. */
    if (f->pointer_may_lag) return NULL;
    (void)snprintf(wanted, sizeof(wanted), "%s/%.31s", FOUR_FOLDER, step_text);
    if (step >= found->manifest->meta.step || step < expect->said || !file_exists(wanted))
        return f->said;
    return NULL;
}

static const char *look_at_found(four_ranks_t *f, checkpoint_t *c, const crash_expect_t *expect)
{
    checkpoint_steps_t steps;
    const uint64_t step = c->manifest->meta.step;
    if (step < expect->floor || step > expect->newest || !has_values(c, step)) {
        f->losses++;
        (void)snprintf(f->said, sizeof(f->said), "step %llu was found, %llu to %llu were expected",
                       (unsigned long long)step, (unsigned long long)expect->floor,
                       (unsigned long long)expect->newest);
        return f->said;
    }
    /* No half of a checkpoint stands under a checkpoint's name. */
    if (checkpoint_steps(FOUR_FOLDER, &steps) != LH_OK) return fail_reason();
    const char *fault = NULL;
    for (size_t i = 0; i < steps.count && fault == NULL && !f->damage_stands; i++) {
        char name[CHECKPOINT_NAME], path[64];
        checkpoint_name(steps.steps[i], name);
        (void)snprintf(path, sizeof(path), "%s/%s", FOUR_FOLDER, name);
        if (steps.steps[i] != step && checkpoint_verify(path) != LH_OK) {
            (void)snprintf(f->said, sizeof(f->said), "half a checkpoint: %.900s", fail_reason());
            fault = f->said;
        }
    }
    mem_free(steps.steps);
    return fault == NULL ? look_at_pointer(f, c, expect) : fault;
}

const char *four_look(void *context, const crash_expect_t *expect)
{
    four_ranks_t *f = context;
    checkpoint_t *c = NULL;
    if (checkpoint_open_latest(FOUR_FOLDER, &c) != LH_OK) {
        (void)snprintf(f->said, sizeof(f->said), "step %llu is lost: %.900s",
                       (unsigned long long)expect->floor, fail_reason());
        if (expect->floor > 0) f->losses++;
        return f->said;
    }
    if (c == NULL) {
        (void)snprintf(f->said, sizeof(f->said), "step %llu is lost: nothing is there",
                       (unsigned long long)expect->floor);
        if (expect->floor == 0) return NULL;
        f->losses++;
        return f->said;
    }
    const char *fault = look_at_found(f, c, expect);
    checkpoint_close(c);
    return fault;
}

int64_t four_found(four_ranks_t *f)
{
    checkpoint_t *c = NULL;
    if (checkpoint_open_latest(FOUR_FOLDER, &c) != LH_OK) {
        (void)snprintf(f->said, sizeof(f->said), "%.1000s", fail_reason());
        return -1;
    }
    if (c == NULL) return 0;
    const uint64_t step = c->manifest->meta.step;
    const bool right = has_values(c, step);
    checkpoint_close(c);
    if (right) return (int64_t)step;
    (void)snprintf(f->said, sizeof(f->said), "step %llu has wrong values",
                   (unsigned long long)step);
    return -1;
}
