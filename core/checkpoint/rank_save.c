/* rank_save.c - what each rank's saver writes, and how rank 0's makes one checkpoint of it. */
#include <checkpoint/rank_save.h>

#include <fcntl.h>
#include <stdio.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <checkpoint/commit.h>

enum {
    SHARE_MOST = 256 << 20,
    NAME_ROOM = 80,
    PAUSE_NS = 5000000,
    LOOK_PAUSE_NS = 20000000,
    NS_PER_MS = 1000000
};

/* The staging folder's name. */
static void staging_name(const rank_save_t *how, char out[NAME_ROOM])
{
    char name[CHECKPOINT_NAME];
    checkpoint_name(how->meta->step, name);
    (void)snprintf(out, NAME_ROOM, ".tmp-%s-%016llx-%u", name, (unsigned long long)how->session,
                   how->attempt);
}

static lh_status_t staging_open(const rank_save_t *how, commit_t **out)
{
    char name[NAME_ROOM];
    staging_name(how, name);
    return commit_join(how->folder, how->meta, how->parent, name, how->rank == 0, out);
}

static char *share_path(const char *staging, uint32_t rank)
{
    char name[32];
    (void)snprintf(name, sizeof(name), "rank-%05u.json", rank);
    return path_join(staging, name);
}

/* Its shards' names are on the disk before the share says so. */
static lh_status_t hand_in(const rank_save_t *how, commit_t *c)
{
    text_t text = {0};
    char *path = share_path(commit_staging(c), how->rank);
    lh_status_t status = path == NULL ? LH_NO_MEMORY : manifest_text(commit_manifest(c), &text);
    if (status == LH_OK) status = folder_sync(commit_staging(c));
    if (status == LH_OK) status = file_show(path, text.data, text.length);
    mem_free(path);
    text_free(&text);
    return status;
}

lh_status_t rank_save_write(const rank_save_t *how, const checkpoint_tensor_t *tensors,
                            const void *const *data, uint32_t count)
{
    lh_assert(how->rank < how->ranks);
    commit_t *c;
    lh_status_t status = staging_open(how, &c);
    if (status != LH_OK) return status;
    if (count > 0) status = commit_write_all(c, how->rank, tensors, data, count, how->shard_bytes);
    if (status == LH_OK) status = hand_in(how, c);
    commit_leave(c);
    return status;
}

/* ---- rank 0 --------------------------------------------------------------------------------- */

static const char *text_or_empty(const char *text)
{
    return text == NULL ? "" : text;
}

/* A share is of this run and step, and its files are the rank's own and as long as it says. */
static lh_status_t check_share(const rank_save_t *how, const char *staging, uint32_t rank,
                               const char *path, const manifest_t *share)
{
    const checkpoint_meta_t *a = how->meta, *b = &share->meta;
    if (strcmp(text_or_empty(a->run), text_or_empty(b->run)) != 0 || a->step != b->step ||
        a->cursor != b->cursor || a->seed != b->seed)
        return fail(LH_MISMATCH,
                    "%s: of run %s step %llu sample %llu; run %s step %llu sample "
                    "%llu is saved",
                    path, text_or_empty(b->run), (unsigned long long)b->step,
                    (unsigned long long)b->cursor, text_or_empty(a->run),
                    (unsigned long long)a->step, (unsigned long long)a->cursor);
    char own[32];
    (void)snprintf(own, sizeof(own), "shard-%05u-", rank);
    for (uint32_t i = 0; i < share->file_count; i++) {
        struct stat st;
        const manifest_file_t *f = &share->files[i];
        if (!text_starts(f->name, own))
            return fail(LH_INVALID, "%s: file %s is not rank %u's", path, f->name, rank);
        char *file = path_join(staging, f->name);
        if (file == NULL) return LH_NO_MEMORY;
        const bool whole = sys()->lstat(file, &st) == 0 && S_ISREG(st.st_mode) &&
                           (uint64_t)st.st_size == f->bytes;
        mem_free(file);
        if (!whole)
            return fail(LH_CORRUPT, "%s: %s has not the %llu bytes that it should", path, f->name,
                        (unsigned long long)f->bytes);
    }
    return LH_OK;
}

static lh_status_t add_share(manifest_t *all, const manifest_t *share)
{
    const uint32_t first = all->file_count;
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < share->file_count && status == LH_OK; i++) {
        uint32_t index;
        status = manifest_add_file(all, share->files[i].name, &index);
        if (status != LH_OK) return status;
        all->files[index].bytes = share->files[i].bytes;
        all->files[index].header_hash = share->files[i].header_hash;
    }
    for (uint32_t i = 0; i < share->tensor_count; i++) {
        const manifest_tensor_t *t = &share->tensors[i];
        checkpoint_tensor_t row = {
            .name = t->name, .dtype = t->dtype, .source = t->source, .rank = t->rank};
        memcpy(row.shape, t->shape, sizeof(row.shape));
        for (uint32_t k = 0; k < t->part_count && status == LH_OK; k++) {
            row.part = t->parts[k].part;
            status = manifest_add_part(all, &row, first + t->parts[k].file, t->parts[k].stored,
                                       t->parts[k].xxh3);
        }
    }
    return status;
}

static lh_status_t take_share(const rank_save_t *how, commit_t *c, uint32_t rank)
{
    char *text = NULL, *path = share_path(commit_staging(c), rank);
    size_t length;
    manifest_t *share = NULL;
    lh_status_t status = path == NULL ? LH_NO_MEMORY : file_read(path, SHARE_MOST, &text, &length);
    if (status == LH_OK) status = manifest_parse(path, text, length, false, &share);
    if (status == LH_OK) status = check_share(how, commit_staging(c), rank, path, share);
    if (status == LH_OK) status = add_share(commit_manifest(c), share);
    if (status == LH_OK && sys()->unlink(path) != 0)
        status = fail_io(errno, "%s: cannot remove it", path);
    manifest_free(share);
    mem_free(text);
    mem_free(path);
    return status;
}

/* What is committed can be read: its own reader agrees, so the shares cover every tensor once. */
static lh_status_t check_whole(const rank_save_t *how, manifest_t *all)
{
    char name[CHECKPOINT_NAME];
    text_t text = {0};
    manifest_t *again = NULL;
    checkpoint_name(how->meta->step, name);
    lh_status_t status = manifest_text(all, &text);
    if (status == LH_OK) status = manifest_parse(name, text.data, text.length, true, &again);
    manifest_free(again);
    text_free(&text);
    return status;
}

lh_status_t rank_save_commit(const rank_save_t *how, char self[SHA256_TEXT])
{
    lh_assert(how->rank == 0);
    commit_t *c;
    lh_status_t status = staging_open(how, &c);
    if (status != LH_OK) return status;
    for (uint32_t r = 0; r < how->ranks && status == LH_OK; r++)
        status = take_share(how, c, r);
    if (status == LH_OK) status = check_whole(how, commit_manifest(c));
    if (status == LH_OK) return commit_finish(c, how->keep, self);
    commit_leave(c);
    return status;
}

/* A rank may still write, if its trainer is gone or its saver hangs: under another name nothing is
 * added to the folder any more. */
void rank_save_abandon(const rank_save_t *how)
{
    char name[NAME_ROOM], gone[NAME_ROOM + 8];
    struct stat st;
    staging_name(how, name);
    (void)snprintf(gone, sizeof(gone), ".del-%s", name + sizeof(".tmp-") - 1);
    char *path = path_join(how->folder, name), *hidden = path_join(how->folder, gone);
    if (path != NULL && hidden != NULL && sys()->lstat(path, &st) == 0 &&
        sys_rename(path, hidden) != 0)
        log_line(LH_LOG_DEBUG, "%s: cannot rename %s to it", hidden, path);
    mem_free(hidden);
    mem_free(path);
    if (checkpoint_clean(how->folder) != LH_OK) log_line(LH_LOG_WARN, "%s", fail_reason());
}

static bool all_handed_in(const rank_save_t *how)
{
    char name[NAME_ROOM];
    staging_name(how, name);
    char *staging = path_join(how->folder, name);
    bool all = staging != NULL;
    for (uint32_t r = 0; r < how->ranks && all; r++) {
        char *path = share_path(staging, r);
        all = path != NULL && file_exists(path);
        mem_free(path);
    }
    mem_free(staging);
    return all;
}

void rank_save_orphan(const rank_save_t *how, uint64_t until_ns)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    char self[SHA256_TEXT];
    bool all;
    while (!(all = all_handed_in(how)) && sys()->now_ns() < until_ns)
        (void)nanosleep(&pause, NULL);
    if (!all || rank_save_commit(how, self) != LH_OK) rank_save_abandon(how);
}

/* ---- before the first step ------------------------------------------------------------------ */

/* A leftover like any other, should its run be killed. */
static char *mark_path(const char *folder, uint64_t session)
{
    char name[NAME_ROOM];
    (void)snprintf(name, sizeof(name), ".tmp-shared-%016llx", (unsigned long long)session);
    return path_join(folder, name);
}

lh_status_t rank_save_mark(const char *folder, uint64_t session)
{
    char *path = mark_path(folder, session);
    if (path == NULL) return LH_NO_MEMORY;
    lh_status_t status = LH_OK;
    const int fd = sys_open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0644);
    if (fd < 0 || sys()->close(fd) != 0) status = fail_io(errno, "%s: cannot create", path);
    mem_free(path);
    return status;
}

lh_status_t rank_save_look(const char *folder, uint64_t session)
{
    const uint64_t until = sys()->now_ns() + (uint64_t)RANK_SAVE_LOOK_MS * NS_PER_MS;
    const struct timespec pause = {.tv_nsec = LOOK_PAUSE_NS};
    struct stat found;
    char *path = mark_path(folder, session);
    if (path == NULL) return LH_NO_MEMORY;
    bool seen;
    while (!(seen = sys()->stat(path, &found) == 0) && sys()->now_ns() < until)
        (void)nanosleep(&pause, NULL);
    mem_free(path);
    if (seen) return LH_OK;
    return fail(LH_MISMATCH,
                "%s: what rank 0 has just made there is not seen from here; all hosts must see the "
                "same [checkpoint] folder",
                folder);
}

void rank_save_unmark(const char *folder, uint64_t session)
{
    char *path = mark_path(folder, session);
    if (path != NULL) (void)sys()->unlink(path);
    mem_free(path);
}
