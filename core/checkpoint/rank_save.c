/* rank_save.c - what each rank's helper does, and how they wait for one another. */
#include <checkpoint/rank_save.h>

#include <errno.h>
#include <poll.h>
#include <stdio.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <checkpoint/checkpoint_folder.h>
#include <checkpoint/commit.h>

#define SECOND_NS ((uint64_t)1000000000)
#define PAUSE_LEAST_NS ((uint64_t)2000000)
#define PAUSE_MOST_NS ((uint64_t)100000000)
/* From the rename to the pointer, and from a removed staging folder to its reason. */
#define AFTER_NS (2 * SECOND_NS)
/* Without a trainer: as long again as this rank has written, and this. */
#define ORPHAN_NS SECOND_NS

enum { SHARE_MOST = 256 << 20, REASON_MOST = 1024, NAME_ROOM = 80 };

typedef struct meeting {
    const rank_save_t *how;
    const checkpoint_meta_t *meta;
    char staging[NAME_ROOM]; /* name in the folder */
    char *path;              /* of the staging folder */
    char *target;
    char *note; /* .../reason of a save that failed */
    uint64_t started_ns, limit_ns, pause_ns;
    uint64_t wrote_ns;  /* how long this rank took for its own share; 0: it is not done */
    uint64_t orphan_ns; /* when the trainer was first found gone; 0: it lives */
} meeting_t;

static void note_name(const rank_save_t *how, char name[NAME_ROOM])
{
    (void)snprintf(name, NAME_ROOM, ".tmp-failed-%016llx-%u", (unsigned long long)how->session,
                   how->attempt);
}

static char *join_twice(const char *folder, const char *name, const char *inner)
{
    char *path = path_join(folder, name);
    char *full = path == NULL ? NULL : path_join(path, inner);
    mem_free(path);
    return full;
}

static void meeting_end(meeting_t *m)
{
    mem_free(m->note);
    mem_free(m->target);
    mem_free(m->path);
}

static lh_status_t meeting_begin(const rank_save_t *how, const checkpoint_meta_t *meta,
                                 meeting_t *m)
{
    *m = (meeting_t){.how = how, .meta = meta, .pause_ns = PAUSE_LEAST_NS};
    m->started_ns = sys()->now_ns();
    m->limit_ns = how->rank == 0 ? how->deadline_ns / 4 * 3 : how->deadline_ns;
    char name[CHECKPOINT_NAME], note[NAME_ROOM];
    checkpoint_name(meta->step, name);
    note_name(how, note);
    (void)snprintf(m->staging, sizeof(m->staging), ".tmp-%s-%016llx-%u", name,
                   (unsigned long long)how->session, how->attempt);
    m->path = path_join(how->folder, m->staging);
    m->target = path_join(how->folder, name);
    m->note = join_twice(how->folder, note, "reason");
    if (m->path != NULL && m->target != NULL && m->note != NULL) return LH_OK;
    meeting_end(m);
    return LH_NO_MEMORY;
}

/* Nobody writes to the socket of a trainer that is gone; poll says so without reading. */
static bool trainer_gone(const rank_save_t *how)
{
    struct pollfd fd = {.fd = how->trainer};
    return how->trainer >= 0 && poll(&fd, 1, 0) == 1 && (fd.revents & (POLLHUP | POLLERR)) != 0;
}

/* Sleeps a little; false: this rank has waited long enough. */
static bool patience(meeting_t *m)
{
    const uint64_t now = sys()->now_ns();
    if (m->orphan_ns == 0 && trainer_gone(m->how)) m->orphan_ns = now;
    uint64_t until = m->started_ns + m->limit_ns;
    if (m->orphan_ns != 0) {
        const uint64_t alone = m->orphan_ns + m->wrote_ns + ORPHAN_NS;
        if (alone < until) until = alone;
    }
    if (now >= until) return false;
    const struct timespec nap = {.tv_nsec = (long)m->pause_ns};
    (void)nanosleep(&nap, NULL);
    if (m->pause_ns < PAUSE_MOST_NS) m->pause_ns += m->pause_ns / 4;
    return true;
}

static void share_done(meeting_t *m)
{
    m->wrote_ns = sys()->now_ns() - m->started_ns;
    m->pause_ns = PAUSE_LEAST_NS;
}

static double waited_s(const meeting_t *m)
{
    return (double)(sys()->now_ns() - m->started_ns) * 1e-9;
}

/* The reason that somebody left in a file, as this process's own. False: there is none. */
static bool heard(const char *path, const char *who, lh_status_t *status)
{
    char *text;
    size_t length;
    if (!file_exists(path) || file_read(path, REASON_MOST, &text, &length) != LH_OK) return false;
    errno = 0; /* the sentence is complete */
    *status = fail(LH_IO, "%s%s", who, text);
    mem_free(text);
    return true;
}

/* ---- every rank but the first --------------------------------------------------------------- */

static lh_status_t find_staging(meeting_t *m)
{
    lh_status_t status;
    struct stat st;
    while (sys()->lstat(m->path, &st) != 0) {
        if (heard(m->note, "", &status)) return status;
        if (!patience(m))
            return fail(LH_TIMED_OUT,
                        "%s: rank 0 has not made it within %.1f s; all hosts must see the same "
                        "folder",
                        m->path, waited_s(m));
    }
    return LH_OK;
}

/* The other ranks, who wait for this one, end at once. */
static void refuse(const meeting_t *m)
{
    char name[32], *reason = mem_text(fail_reason());
    (void)snprintf(name, sizeof(name), "failed-%05u", m->how->rank);
    char *path = path_join(m->path, name);
    if (path != NULL && reason != NULL &&
        file_replace(path, reason, strnlen(reason, REASON_MOST)) != LH_OK)
        log_line(LH_LOG_DEBUG, "%s", fail_reason());
    errno = 0;
    if (reason != NULL) (void)fail(LH_OK, "%s", reason);
    mem_free(path);
    mem_free(reason);
}

/* Its shards' names are on the disk before it says so. Rank 0 may rename the folder at once. */
static lh_status_t hand_in(const meeting_t *m, commit_t *c)
{
    text_t text = {0};
    char name[32];
    (void)snprintf(name, sizeof(name), "rank-%05u.json", m->how->rank);
    char *path = path_join(m->path, name);
    lh_status_t status = path == NULL ? LH_NO_MEMORY : manifest_text(commit_manifest(c), &text);
    if (status == LH_OK) status = folder_sync(m->path);
    if (status == LH_OK) status = file_show(path, text.data, text.length);
    mem_free(path);
    text_free(&text);
    return status;
}

static bool is_latest(const meeting_t *m)
{
    char *path = path_join(m->how->folder, CHECKPOINT_POINTER), *text = NULL;
    size_t length;
    bool found = false;
    if (path != NULL && file_exists(path) && file_read(path, 256, &text, &length) == LH_OK) {
        text[strcspn(text, " \n")] = '\0';
        found = strcmp(text, path_name(m->target)) == 0;
    }
    mem_free(text);
    mem_free(path);
    return found;
}

/* The step's folder is the answer; the pointer behind it says that the folder is safe on disk. */
static lh_status_t await_commit(meeting_t *m)
{
    uint64_t target_ns = 0, removed_ns = 0;
    lh_status_t status;
    struct stat st;
    share_done(m);
    for (;;) {
        const uint64_t now = sys()->now_ns();
        const bool there = sys()->lstat(m->target, &st) == 0;
        if (!there && heard(m->note, "", &status)) return status;
        if (there && target_ns == 0) target_ns = now;
        if (there && (is_latest(m) || now - target_ns >= AFTER_NS)) return LH_OK;
        if (!there && sys()->lstat(m->path, &st) != 0) {
            if (removed_ns == 0) removed_ns = now;
            if (now - removed_ns >= AFTER_NS)
                return fail(LH_IO, "rank 0 has given step %llu up",
                            (unsigned long long)m->meta->step);
        }
        if (!patience(m))
            return fail(LH_TIMED_OUT, "rank 0 has not committed step %llu within %.1f s",
                        (unsigned long long)m->meta->step, waited_s(m));
    }
}

static lh_status_t take_part(meeting_t *m, const char *parent, const checkpoint_tensor_t *tensors,
                             const void *const *data, uint32_t count)
{
    commit_t *c;
    lh_status_t status = find_staging(m);
    if (status == LH_OK)
        status = commit_join(m->how->folder, m->meta, parent, m->staging, false, &c);
    if (status != LH_OK) return status;
    if (count > 0)
        status = commit_write_all(c, m->how->rank, tensors, data, count, m->how->shard_bytes);
    if (status == LH_OK) status = hand_in(m, c);
    commit_leave(c);
    if (status == LH_OK) return await_commit(m);
    /* What failed here is what rank 0 has told all, or the cause. */
    if (!heard(m->note, "", &status)) refuse(m);
    return status;
}

/* ---- rank 0 --------------------------------------------------------------------------------- */

typedef struct roll { /* who has handed in, by the names in the staging folder */
    bool *present;
    uint32_t ranks, missing, refused; /* refused: a rank, 0: none */
} roll_t;

static int call_name(void *context, const char *name)
{
    roll_t *roll = context;
    unsigned rank;
    int length = 0;
    if (sscanf(name, "rank-%5u.json%n", &rank, &length) == 1 && name[length] == '\0' &&
        length > 0 && rank > 0 && rank < roll->ranks && !roll->present[rank]) {
        roll->present[rank] = true;
        roll->missing--;
    }
    length = 0;
    if (sscanf(name, "failed-%5u%n", &rank, &length) == 1 && name[length] == '\0' && length > 0 &&
        rank > 0 && rank < roll->ranks)
        roll->refused = rank;
    return 0;
}

static lh_status_t refused(const meeting_t *m, uint32_t rank)
{
    char name[32], who[32];
    (void)snprintf(name, sizeof(name), "failed-%05u", rank);
    (void)snprintf(who, sizeof(who), "rank %u: ", rank);
    char *path = path_join(m->path, name);
    if (path == NULL) return LH_NO_MEMORY;
    lh_status_t status;
    if (!heard(path, who, &status)) status = fail(LH_IO, "rank %u could not save its share", rank);
    mem_free(path);
    return status;
}

static lh_status_t await_shares(meeting_t *m)
{
    roll_t roll = {.ranks = m->how->ranks, .missing = m->how->ranks - 1};
    roll.present = mem_array(roll.ranks, sizeof(*roll.present));
    if (roll.present == NULL) return LH_NO_MEMORY;
    lh_status_t status = LH_OK;
    share_done(m);
    while (status == LH_OK) {
        if (sys()->list(m->path, call_name, &roll) != 0)
            status = fail(LH_IO, "%s: cannot list the folder", m->path);
        else if (roll.refused > 0)
            status = refused(m, roll.refused);
        else if (roll.missing == 0)
            break;
        else if (!patience(m)) {
            uint32_t first = 1;
            while (first + 1 < roll.ranks && roll.present[first])
                first++;
            status = fail(LH_TIMED_OUT,
                          "step %llu: %u of %u ranks, first rank %u, have not written their share "
                          "within %.1f s; all hosts must see the same folder",
                          (unsigned long long)m->meta->step, roll.missing, roll.ranks, first,
                          waited_s(m));
        }
    }
    mem_free(roll.present);
    return status;
}

static const char *text_or_empty(const char *text)
{
    return text == NULL ? "" : text;
}

/* A share is of this run and step, and its files are the rank's own and as long as it says. */
static lh_status_t check_share(const meeting_t *m, uint32_t rank, const char *path,
                               const manifest_t *share)
{
    const checkpoint_meta_t *a = m->meta, *b = &share->meta;
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
        char *file = path_join(m->path, f->name);
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

static lh_status_t take_share(const meeting_t *m, uint32_t rank, manifest_t *all)
{
    char name[32], *text = NULL;
    size_t length;
    manifest_t *share = NULL;
    (void)snprintf(name, sizeof(name), "rank-%05u.json", rank);
    char *path = path_join(m->path, name);
    lh_status_t status = path == NULL ? LH_NO_MEMORY : file_read(path, SHARE_MOST, &text, &length);
    if (status == LH_OK) status = manifest_parse(path, text, length, false, &share);
    if (status == LH_OK) status = check_share(m, rank, path, share);
    if (status == LH_OK) status = add_share(all, share);
    if (status == LH_OK && sys()->unlink(path) != 0)
        status = fail(LH_IO, "%s: cannot remove it", path);
    manifest_free(share);
    mem_free(text);
    mem_free(path);
    return status;
}

/* What is committed can be read: its own reader agrees, so the shares cover every tensor once. */
static lh_status_t check_whole(const meeting_t *m, manifest_t *all)
{
    text_t text = {0};
    manifest_t *again = NULL;
    lh_status_t status = manifest_text(all, &text);
    if (status == LH_OK)
        status = manifest_parse(path_name(m->target), text.data, text.length, true, &again);
    manifest_free(again);
    text_free(&text);
    return status;
}

static void leave_note(const rank_save_t *how, const char *reason)
{
    char name[NAME_ROOM];
    note_name(how, name);
    char *folder = path_join(how->folder, name);
    char *path = folder == NULL ? NULL : path_join(folder, "reason");
    lh_status_t status = path == NULL ? LH_NO_MEMORY : LH_OK;
    if (status == LH_OK && sys()->mkdir(folder, 0700) != 0 && errno != EEXIST)
        status = fail(LH_IO, "%s: cannot make the folder", folder);
    if (status == LH_OK) status = file_replace(path, reason, strnlen(reason, REASON_MOST));
    if (status != LH_OK)
        log_line(LH_LOG_WARN, "the other ranks learn late that a save failed: %s", fail_reason());
    mem_free(path);
    mem_free(folder);
}

/* Others may still write: under another name nothing is added to the folder any more. */
static void remove_staging(const meeting_t *m)
{
    char name[NAME_ROOM + 8];
    (void)snprintf(name, sizeof(name), ".del-%s", m->staging + sizeof(".tmp-") - 1);
    char *hidden = path_join(m->how->folder, name);
    if (hidden != NULL && sys_rename(m->path, hidden) == 0)
        checkpoint_discard(hidden);
    else
        checkpoint_discard(m->path);
    mem_free(hidden);
}

static lh_status_t write_and_gather(meeting_t *m, commit_t *c, const checkpoint_tensor_t *tensors,
                                    const void *const *data, uint32_t count)
{
    lh_status_t status = LH_OK;
    if (count > 0) status = commit_write_all(c, 0, tensors, data, count, m->how->shard_bytes);
    if (status == LH_OK) status = await_shares(m);
    for (uint32_t r = 1; r < m->how->ranks && status == LH_OK; r++)
        status = take_share(m, r, commit_manifest(c));
    return status == LH_OK ? check_whole(m, commit_manifest(c)) : status;
}

static lh_status_t lead(meeting_t *m, const char *parent, const checkpoint_tensor_t *tensors,
                        const void *const *data, uint32_t count, char self[SHA256_TEXT])
{
    commit_t *c = NULL;
    /* The last save of this session has ended everywhere: what it left can go. */
    lh_status_t status = checkpoint_clean(m->how->folder);
    if (status == LH_OK)
        status = commit_join(m->how->folder, m->meta, parent, m->staging, true, &c);
    const bool made = status == LH_OK;
    if (made) status = write_and_gather(m, c, tensors, data, count);
    const bool ready = status == LH_OK;
    if (ready) status = commit_finish(c, m->how->keep, self);
    if (status == LH_OK) return LH_OK;

    char *reason = mem_text(fail_reason());
    leave_note(m->how, reason == NULL ? "rank 0 could not save" : reason);
    if (made && !ready) {
        commit_leave(c);
        remove_staging(m);
    }
    errno = 0; /* the sentence is complete */
    if (reason != NULL) status = fail(status, "%s", reason);
    mem_free(reason);
    return status;
}

void rank_save_failed(const rank_save_t *how, const char *reason)
{
    if (checkpoint_clean(how->folder) != LH_OK) log_line(LH_LOG_WARN, "%s", fail_reason());
    leave_note(how, reason);
}

lh_status_t rank_save(const rank_save_t *how, const checkpoint_meta_t *meta, const char *parent,
                      const checkpoint_tensor_t *tensors, const void *const *data, uint32_t count,
                      char self[SHA256_TEXT])
{
    meeting_t m;
    lh_status_t status = meeting_begin(how, meta, &m);
    if (status != LH_OK) return status;
    status = how->rank == 0 ? lead(&m, parent, tensors, data, count, self)
                            : take_part(&m, parent, tensors, data, count);
    meeting_end(&m);
    return status;
}
