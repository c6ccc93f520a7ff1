/* saver_share.c - files and a share by each rank's saver, and one manifest of all shares.
 *
 * Each one's saver writes that rank's files and a share, which is a manifest of them, and renames
 * the share into place when all of it is on the disk. Rank 0's saver makes one manifest of all
 * shares. The savers themselves never talk: that all have written is agreed by the trainers, who
 * have the collectives for it. */
#include <checkpoint/saver_share.h>

#include <stdio.h>
#include <time.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <checkpoint/commit.h>

/* Bytes of a share, room for a staging folder's name, and the pause between two looks for shares.
 */
enum { SHARE_MOST = 256 << 20, NAME_ROOM = 80, PAUSE_NS = 5000000 };

/* The staging folder's name: the same on all ranks, as it is made of what all know, and another one
 * for each attempt, so that a saver that hangs in an older one can't write into a new save. */
static void staging_name(const saver_share_t *how, char out[NAME_ROOM])
{
    char name[CHECKPOINT_NAME];
    checkpoint_name(how->meta->step, name);
    (void)snprintf(out, NAME_ROOM, ".tmp-%s-%016llx-%u", name, (unsigned long long)how->session,
                   how->attempt);
}

/* Who leads looks whether the step is there already: of several folders one may have it of a save that
 * failed in another. */
static lh_status_t staging_open(const saver_share_t *how, commit_t **out)
{
    char name[NAME_ROOM];
    const uint32_t leads = how->apart ? COMMIT_LEADS_AGAIN : COMMIT_LEADS;
    staging_name(how, name);
    return commit_join(how->folder, how->meta, how->parent, name,
                       how->leads ? leads : COMMIT_FOLLOWS, out);
}

static char *share_path(const char *staging, uint32_t rank)
{
    char name[32];
    (void)snprintf(name, sizeof(name), "rank-%05u.json", rank);
    return path_join(staging, name);
}

/* A rank's shards, and their names, are on the disk before its share says so. */
static lh_status_t hand_in(const saver_share_t *how, commit_t *c)
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

/* The staging folder stays whatever happens: others write in it, too, and rank 0 removes it. */
lh_status_t saver_share_write(const saver_share_t *how, const checkpoint_tensor_t *tensors,
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

/* ---- rank 0 ---------------------------------------------------------------------------------- */

static const char *text_or_empty(const char *text)
{
    return text == NULL ? "" : text;
}

/* A share is of this run and step, and its files are the rank's own and as long as it says. Another
 * rank's file in a share, or another run's share in the folder, would give a checkpoint that is
 * whole and wrong. */
static lh_status_t check_share(const saver_share_t *how, const char *staging, uint32_t rank,
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

/* File numbers of a share begin at 0; those of the whole go on where the ranks before ended. */
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

/* Reads, checks, adds and removes it: a committed checkpoint holds no shares. */
static lh_status_t take_share(const saver_share_t *how, commit_t *c, uint32_t rank,
                              manifest_t **first)
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
    /* Ranks say of themselves what they are, such as their kernels, and each leader knows what it has
     * committed: of several folders all say what rank 0 does. Its strings are the share's. */
    if (status == LH_OK && how->apart && rank == 0) {
        commit_manifest(c)->meta = share->meta;
        memcpy(commit_manifest(c)->parent, share->parent, sizeof(share->parent));
        *first = share;
        share = NULL;
    }
    manifest_free(share);
    mem_free(text);
    mem_free(path);
    return status;
}

/* What is committed can be read: the manifest's own reader agrees, so that the shares cover every
 * tensor once. Costs a parse; a checkpoint that is found out to be incomplete when it is needed
 * costs a run. */
static lh_status_t shares_check_whole(const saver_share_t *how, manifest_t *all)
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

lh_status_t saver_share_commit(const saver_share_t *how, char self[SHA256_TEXT])
{
    lh_assert(how->leads);
    commit_t *c;
    manifest_t *first = NULL;
    lh_status_t status = staging_open(how, &c);
    if (status != LH_OK) return status;
    for (uint32_t r = 0; r < how->ranks && status == LH_OK; r++)
        status = take_share(how, c, r, &first);
    if (status == LH_OK) status = shares_check_whole(how, commit_manifest(c));
    if (status == LH_OK)
        status = commit_finish(c, self);
    else
        commit_leave(c);
    manifest_free(first);
    return status;
}

/* A rank may still write, if its trainer is gone or its saver hangs: under another name nothing is
 * added to the folder any more. No other save is touched: where this one comes late, the next may be
 * under way already. */
void saver_share_abandon(const saver_share_t *how)
{
    char name[NAME_ROOM], gone[NAME_ROOM + 8];
    struct stat st;
    staging_name(how, name);
    (void)snprintf(gone, sizeof(gone), ".del-%s", name + sizeof(".tmp-") - 1);
    char *path = path_join(how->folder, name), *hidden = path_join(how->folder, gone);
    if (path != NULL && hidden != NULL && sys()->lstat(path, &st) == 0 &&
        sys_rename(path, hidden) != 0)
        log_line(LH_LOG_DEBUG, "%s: cannot rename %s to it", hidden, path);
    if (hidden == NULL || folder_remove(hidden) != LH_OK)
        log_line(LH_LOG_WARN, "%s", fail_reason());
    mem_free(hidden);
    mem_free(path);
}

/* Shares come into place by a rename, so that one that is there is whole. */
static bool all_handed_in(const saver_share_t *how)
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

bool saver_share_orphan(const saver_share_t *how, uint64_t until_ns)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    char self[SHA256_TEXT];
    bool all;
    while (!(all = all_handed_in(how)) && sys()->now_ns() < until_ns)
        (void)nanosleep(&pause, NULL);
    if (all && saver_share_commit(how, self) == LH_OK) return true;
    saver_share_abandon(how);
    return false;
}
