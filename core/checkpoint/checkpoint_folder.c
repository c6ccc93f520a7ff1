/* checkpoint_folder.c - names, leftovers and old steps of a folder of checkpoints.
 *
 * Only names that this program makes are ever touched, and each of them says what it is: step-N a
 * checkpoint that is whole, .tmp-step-... one that is being written or was left by a crash, .del-step-... one
 * that is being removed, damaged-..., refused-..., left-... and stale-... what was put aside for a person. So a
 * crash at any moment leaves names that the next run understands, and what somebody else has put into the
 * folder stays.
 *
 * A removal is a rename first: a checkpoint from which files are missing never stands under its own
 * name. */
#include <checkpoint/checkpoint_folder.h>

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <checkpoint/manifest.h>

#define STEP_HEAD "step-"
#define SHARED_HEAD ".tmp-shared-"
#define DIGITS_5 "[0-9][0-9][0-9][0-9][0-9]"
#define SHARDS "shard-" DIGITS_5 "-" DIGITS_5 ".safetensors"
enum { STEP_DIGITS = 12 };

void checkpoint_name(uint64_t step, char out[CHECKPOINT_NAME])
{
    (void)snprintf(out, CHECKPOINT_NAME, STEP_HEAD "%0*llu", STEP_DIGITS, (unsigned long long)step);
}

/* Only what checkpoint_name would write: two names of one step would be two checkpoints of it. */
bool checkpoint_name_parse(const char *name, uint64_t *step)
{
    if (!text_starts(name, STEP_HEAD)) return false;
    const char *digits = name + sizeof(STEP_HEAD) - 1;
    const size_t length = strspn(digits, "0123456789");
    if (length < STEP_DIGITS || length > 19 || digits[length] != '\0') return false;
    const uint64_t value = strtoull(digits, NULL, 10);
    char again[CHECKPOINT_NAME];
    checkpoint_name(value, again);
    if (strcmp(again, name) != 0) return false; /* more zeros than we write */
    *step = value;
    return true;
}

/* Upwards, syncing each folder, until one that can't be read or the top: a folder's name lies in
 * the folder above. With a pointer in it a checkpoint has been committed here, and so that was done
 * before. */
lh_status_t checkpoint_folder_make(const char *folder)
{
    lh_status_t status = folder_make(folder);
    if (status != LH_OK) return status;
    char *pointer = path_join(folder, CHECKPOINT_POINTER), *path = mem_text(folder);
    if (pointer == NULL || path == NULL) status = LH_NO_MEMORY;
    bool top = status != LH_OK || file_exists(pointer);
    while (status == LH_OK && !top) {
        char *above = path_folder(path);
        mem_free(path);
        path = above;
        if (path == NULL) {
            status = LH_NO_MEMORY;
            break;
        }
        top = strcmp(path, "/") == 0 || strcmp(path, ".") == 0;
        status = folder_sync(path);
        /* What we may not read, we did not make. */
        if (status != LH_OK && errno == EACCES) {
            status = LH_OK;
            break;
        }
    }
    mem_free(path);
    mem_free(pointer);
    return status;
}

/* For sys()->list: 0 goes on. */
static int add_step(void *context, const char *name)
{
    checkpoint_steps_t *s = context;
    uint64_t step;
    if (!checkpoint_name_parse(name, &step)) return 0;
    void *grown = mem_grow(s->steps, &s->capacity, s->count + 1, sizeof(s->steps[0]));
    if (grown == NULL) return 1; /* that a folder cannot be read is -1 */
    s->steps = grown;
    s->steps[s->count++] = step;
    return 0;
}

static int newest_first(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x > y ? -1 : x < y;
}

/* A folder that is missing has no checkpoints; one that can't be listed is a failure, as its
 * checkpoints may be there. */
lh_status_t checkpoint_steps(const char *folder, checkpoint_steps_t *out)
{
    *out = (checkpoint_steps_t){0};
    errno = 0;
    const int listed = sys()->list(folder, add_step, out);
    if (listed != 0) {
        const bool missing = errno == ENOENT;
        mem_free(out->steps);
        *out = (checkpoint_steps_t){0};
        if (listed > 0) return LH_NO_MEMORY;
        return missing ? LH_OK : fail_io(errno, "%s: cannot list the folder", folder);
    }
    if (out->count > 0) qsort(out->steps, out->count, sizeof(out->steps[0]), newest_first);
    return LH_OK;
}

/* First out of sight, so that a crash half-way leaves no checkpoint with holes. */
static lh_status_t remove_step(const char *folder, uint64_t step)
{
    char name[CHECKPOINT_NAME], hidden[CHECKPOINT_NAME + 8];
    checkpoint_name(step, name);
    (void)snprintf(hidden, sizeof(hidden), ".del-%s", name);
    char *from = path_join(folder, name), *to = path_join(folder, hidden);
    lh_status_t status = LH_NO_MEMORY;
    if (from == NULL || to == NULL) goto free_paths;

    status = folder_remove(to);
    if (status == LH_OK && sys_rename(from, to) != 0)
        status = fail_io(errno, "%s: cannot rename %s to it", to, from);
    if (status == LH_OK) status = folder_sync(folder);
    if (status == LH_OK) status = folder_remove(to);
free_paths:
    mem_free(from);
    mem_free(to);
    return status;
}

/* A regular file, and no link to one. */
static bool folder_has_plain_file(const char *folder, const char *name)
{
    struct stat st;
    char *path = path_join(folder, name);
    const bool plain = path != NULL && sys()->lstat(path, &st) == 0 && S_ISREG(st.st_mode);
    mem_free(path);
    return plain;
}

/* A look at a step's folder before it is removed. */
typedef struct step_look {
    const char *path;
    text_t *reason; /* why it stays; empty: it may go */
} step_look_t;

/* Stops at the first name that no checkpoint has. */
static int find_foreign(void *context, const char *name)
{
    const step_look_t *look = context;
    const bool own = strcmp(name, MANIFEST_NAME) == 0 || fnmatch(SHARDS, name, 0) == 0;
    if (own && folder_has_plain_file(look->path, name)) return 0;
    text_append(look->reason, "it holds ");
    text_append_shown(look->reason, name, false);
    text_append(look->reason, ", which is not of a checkpoint");
    return 1;
}

/* What was not saved here is not removed either. *counts: it is one of those to keep. reason: why
 * it is not removed though it is old; empty: it may go. A step that vanished in between is neither.
 */
static lh_status_t look_at_step(const char *path, bool old, text_t *reason, bool *counts)
{
    struct stat st;
    step_look_t look = {path, reason};
    *counts = false;
    if (sys()->lstat(path, &st) != 0)
        return errno == ENOENT ? LH_OK : fail_io(errno, "%s: cannot stat", path);
    if (S_ISLNK(st.st_mode)) return LH_OK; /* whoever made it moved the step there */
    if (!S_ISDIR(st.st_mode))
        text_append(reason, "it is not a folder");
    else if (!folder_has_plain_file(path, MANIFEST_NAME))
        text_append(reason, "it holds no " MANIFEST_NAME);
    else
        *counts = true;
    if (*counts && old && sys()->list(path, find_foreign, &look) < 0)
        return fail_io(errno, "%s: cannot list the folder", path);
    return text_status(reason);
}

/* What pruning asks of a manifest, by words that nothing else in it holds. */
typedef struct step_mark {
    bool refused;
    double held_out; /* NAN: not evaluated */
    bool unread;     /* it has a manifest, which the disk or this process can't give now */
} step_mark_t;

/* Read once more where that fails, as when checkpoints are loaded. */
static step_mark_t read_mark(const char *path)
{
    static const char loss[] = "\"" MANIFEST_HELD_OUT "\": \"";
    step_mark_t mark = {false, (double)NAN, true};
    char *manifest = path_join(path, MANIFEST_NAME), *text = NULL;
    size_t length;
    for (int tries = 0; manifest != NULL && mark.unread && tries < 2; tries++)
        mark.unread = file_exists(manifest) &&
                      file_read(manifest, MANIFEST_MOST, &text, &length) != LH_OK;
    if (text != NULL) {
        const char *at = strstr(text, loss);
        mark.refused = strstr(text, "\"" MANIFEST_REFUSED "\": ") != NULL;
        if (at != NULL) mark.held_out = text_real(at + sizeof(loss) - 1, NULL);
    }
    mem_free(text);
    mem_free(manifest);
    return mark;
}

static bool checkpoint_is_refused(const char *path)
{
    return read_mark(path).refused;
}

typedef struct kept { /* of the steps so far, newest first */
    uint64_t good, all;
} kept_t;

/* A refused one stays while it is the newest, and never stands for a good one: a run whose loss is
 * not finite any more must not push out, save by save, the last checkpoint that was good. */
static lh_status_t prune_step(const char *path, bool stays, bool refused, uint64_t keep,
                              kept_t *kept, bool *goes)
{
    const bool old = (kept->good >= keep && !stays) || (refused && kept->all > 0);
    bool counts;
    text_t reason = {0};
    const lh_status_t status = look_at_step(path, old, &reason, &counts);
    if (status == LH_OK && counts) {
        kept->all++;
        kept->good += !refused;
    }
    *goes = status == LH_OK && old && counts && reason.length == 0;
    if (status == LH_OK && old && reason.length > 0)
        log_line(LH_LOG_WARN, "%s is not removed: %s", path, reason.data);
    text_free(&reason);
    return status;
}

/* The mark of each step that can be read, and which has the least held-out loss; UINT64_MAX: none was evaluated.
 * Newest first, so that of two the older one is it. */
static lh_status_t read_marks(const char *folder, const checkpoint_steps_t *steps, uint64_t newest,
                              step_mark_t *marks, uint64_t *best)
{
    double least = INFINITY;
    *best = UINT64_MAX;
    for (size_t i = 0; i < steps->count; i++) {
        char name[CHECKPOINT_NAME];
        checkpoint_name(steps->steps[i], name);
        if (steps->steps[i] > newest) continue;
        char *path = path_join(folder, name);
        if (path == NULL) return LH_NO_MEMORY;
        marks[i] = read_mark(path);
        if (marks[i].unread)
            log_line(LH_LOG_WARN, "%s is neither counted nor removed: %s", path, fail_reason());
        mem_free(path);
        if (marks[i].unread || marks[i].refused || !(marks[i].held_out <= least)) continue;
        least = marks[i].held_out;
        *best = steps->steps[i];
    }
    fail_clear();
    return LH_OK;
}

/* Newest first, counting those that stay. */
lh_status_t checkpoint_prune(const char *folder, uint64_t newest, const checkpoint_keep_t *keep)
{
    checkpoint_steps_t steps;
    uint64_t best;
    kept_t kept = {0};
    lh_status_t status = checkpoint_steps(folder, &steps);
    if (status != LH_OK) return status;
    step_mark_t *marks = mem_array(steps.count, sizeof(*marks));
    status = marks == NULL ? LH_NO_MEMORY : read_marks(folder, &steps, newest, marks, &best);
    for (size_t i = 0; status == LH_OK && i < steps.count; i++) {
        const uint64_t step = steps.steps[i];
        const bool stays = (keep->every > 0 && step % keep->every == 0) ||
                           (keep->best && step == best);
        char name[CHECKPOINT_NAME];
        bool goes;
        /* It may be the best one, or not be good. */
        if (step > newest || marks[i].unread) continue;
        checkpoint_name(step, name);
        char *path = path_join(folder, name);
        if (path == NULL) status = LH_NO_MEMORY;
        if (status == LH_OK)
            status = prune_step(path, stays, marks[i].refused, keep->newest, &kept, &goes);
        mem_free(path);
        if (status == LH_OK && goes) status = remove_step(folder, step);
    }
    mem_free(marks);
    mem_free(steps.steps);
    return status;
}

void checkpoint_displace(const char *folder, uint64_t step, const checkpoint_keep_t *keep)
{
    char name[CHECKPOINT_NAME];
    if (keep->newest == 0 || checkpoint_prune(folder, step, keep) == LH_OK) return;
    checkpoint_name(step, name);
    log_line(LH_LOG_WARN, "%s/%s is saved, but: %s", folder, name, fail_reason());
}

/* What a crash may leave: staging folders, half removed steps, the mark of a shared folder, a pointer
 * before its rename. By all of the name that they have in common: somebody else's may begin with a part of
 * it, and is removed with all that is in it. */
static bool is_leftover(const char *name)
{
    return text_starts(name, ".tmp-" STEP_HEAD) || text_starts(name, ".del-" STEP_HEAD) ||
           text_starts(name, SHARED_HEAD) || text_starts(name, CHECKPOINT_POINTER ".tmp-");
}

/* 1 stops the listing: there is one. */
static int find_leftover(void *context, const char *name)
{
    (void)context;
    return is_leftover(name);
}

/* A saver of an earlier meeting may still be at it, on a machine that the lock does not reach: with
 * another name the folder is no more one that it could rename to a checkpoint, not even in the midst of
 * its removal. NULL: it can't be renamed. */
static char *put_aside(const char *folder, const char *name)
{
    text_t aside = {0};
    text_printf(&aside, ".del-%s", name + sizeof(".tmp-") - 1);
    char *from = path_join(folder, name), *to = aside.failed ? NULL : path_join(folder, aside.data);
    const bool done = from != NULL && to != NULL && folder_remove(to) == LH_OK &&
                      (sys_rename(from, to) == 0 || errno == ENOENT);
    text_free(&aside);
    mem_free(from);
    if (done) return to;
    mem_free(to);
    return NULL;
}

/* A folder of a save, the mark of a shared folder, or a pointer that never came to be one. */
static int remove_leftover(void *context, const char *name)
{
    struct stat st;
    if (!is_leftover(name)) return 0;
    char *path = path_join(context, name);
    if (path == NULL) return -1;
    const bool file = sys()->lstat(path, &st) == 0 && !S_ISDIR(st.st_mode);
    if (!file && text_starts(name, ".tmp-")) {
        mem_free(path);
        path = put_aside(context, name);
    }
    const int result = path == NULL                   ? -1
                       : file                         ? sys()->unlink(path)
                       : folder_remove(path) == LH_OK ? 0
                                                      : -1;
    mem_free(path);
    return result;
}

/* A folder that is not there has no leftovers. A run that was killed right after a rename left that
 * rename unsafe: emptied now, the folder could stand under its old name after a power loss; so the
 * folder is synced before anything in it is removed. */
lh_status_t checkpoint_clean(const char *folder)
{
    struct stat st;
    if (sys()->lstat(folder, &st) != 0) return LH_OK;
    char *copy = mem_text(folder);
    if (copy == NULL) return LH_NO_MEMORY;
    lh_status_t status = LH_OK;
    if (sys()->list(folder, find_leftover, NULL) == 1) status = folder_sync(folder);
    if (status == LH_OK && sys()->list(folder, remove_leftover, copy) != 0)
        status = fail_io(errno, "%s: cannot remove what a run left in it", folder);
    mem_free(copy);
    return status;
}

/* A number behind the name where that name is taken, by an earlier run's. */
static lh_status_t set_aside(const char *folder, uint64_t step, const char *why)
{
    char name[CHECKPOINT_NAME], aside[CHECKPOINT_NAME + 24];
    checkpoint_name(step, name);
    char *from = path_join(folder, name);
    if (from == NULL) return LH_NO_MEMORY;
    lh_status_t status = LH_OK;
    for (uint32_t i = 0;; i++) {
        (void)snprintf(aside, sizeof(aside), i == 0 ? "%s-%s" : "%s-%s.%u", why, name, i);
        char *to = path_join(folder, aside);
        if (to == NULL) {
            status = LH_NO_MEMORY;
            break;
        }
        struct stat st;
        const bool taken = sys()->lstat(to, &st) == 0;
        if (!taken && sys_rename(from, to) != 0)
            status = fail_io(errno, "%s: cannot rename %s to it", to, from);
        mem_free(to);
        if (!taken) break;
    }
    mem_free(from);
    return status == LH_OK ? folder_sync(folder) : status;
}

static lh_status_t set_aside_above(const char *folder, uint64_t step, bool chosen)
{
    char name[CHECKPOINT_NAME];
    checkpoint_name(step, name);
    char *path = path_join(folder, name);
    if (path == NULL) return LH_NO_MEMORY;
    const bool refused = checkpoint_is_refused(path);
    mem_free(path);
    return set_aside(folder, step, refused ? "refused" : chosen ? "left" : "damaged");
}

/* Newest first, so that a crash half-way leaves the older ones where they were. */
void checkpoint_make_way(const char *folder, uint64_t step, bool chosen)
{
    checkpoint_steps_t steps;
    lh_status_t status = checkpoint_steps(folder, &steps);
    for (size_t i = 0; status == LH_OK && i < steps.count && steps.steps[i] > step; i++)
        status = set_aside_above(folder, steps.steps[i], chosen);
    if (status != LH_OK)
        log_line(LH_LOG_WARN, "what is above step %llu is not out of the way: %s",
                 (unsigned long long)step, fail_reason());
    mem_free(steps.steps);
}

/* By the name alone, as a link that leads nowhere is in the way, too. */
static bool step_is_there(const char *folder, uint64_t step)
{
    struct stat st;
    char name[CHECKPOINT_NAME];
    checkpoint_name(step, name);
    char *path = path_join(folder, name);
    const bool taken = path == NULL || sys()->lstat(path, &st) == 0;
    mem_free(path);
    return taken;
}

static void warn_of_in_the_way(uint64_t step)
{
    log_line(LH_LOG_WARN, "step %llu is not out of the way: %s", (unsigned long long)step,
             fail_reason());
}

void checkpoint_set_stale(const char *folder, uint64_t step)
{
    if (step_is_there(folder, step) && set_aside(folder, step, "stale") != LH_OK)
        warn_of_in_the_way(step);
}

void checkpoint_set_damaged(const char *folder, uint64_t step)
{
    if (step_is_there(folder, step) && set_aside_above(folder, step, false) != LH_OK)
        warn_of_in_the_way(step);
}

/* The reason is copied, as a failure of the removal would write over it. */
void checkpoint_discard(const char *path)
{
    char *reason = mem_text(fail_reason());
    if (folder_remove(path) != LH_OK)
        log_line(LH_LOG_WARN, "%s is left behind: %s", path, fail_reason());
    if (reason != NULL) (void)fail(LH_OK, "%s", reason);
    mem_free(reason);
}

/* ---- before the first step ------------------------------------------------------------------- */

/* Room for the mark's name, and the pause between two looks. */
enum { MARK_NAME = 80, LOOK_PAUSE_NS = 20000000, NS_PER_MS = 1000000 };

/* A leftover like any other, should its run be killed. */
static char *mark_path(const char *folder, uint64_t session)
{
    char name[MARK_NAME];
    (void)snprintf(name, sizeof(name), SHARED_HEAD "%016llx", (unsigned long long)session);
    return path_join(folder, name);
}

lh_status_t checkpoint_folder_mark(const char *folder, uint64_t session)
{
    char *path = mark_path(folder, session);
    if (path == NULL) return LH_NO_MEMORY;
    lh_status_t status = LH_OK;
    const int fd = sys_open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0644);
    if (fd < 0 || sys()->close(fd) != 0) status = fail_io(errno, "%s: cannot create", path);
    mem_free(path);
    return status;
}

lh_status_t checkpoint_folder_look(const char *folder, uint64_t session)
{
    const uint64_t until = sys()->now_ns() + (uint64_t)CHECKPOINT_LOOK_MS * NS_PER_MS;
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

void checkpoint_folder_unmark(const char *folder, uint64_t session)
{
    char *path = mark_path(folder, session);
    if (path != NULL) (void)sys()->unlink(path);
    mem_free(path);
}
