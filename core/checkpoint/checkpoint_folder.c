/* checkpoint_folder.c - names, leftovers, old steps and locks of a folder of checkpoints.
 *
 * Only names that this program makes are ever touched, and each of them says what it is: step-N a
 * checkpoint that is whole, .tmp-... one that is being written or was left by a crash, .del-... one
 * that is being removed, damaged-..., refused-..., left-... and stale-... what was put aside for a person. So a
 * crash at any moment leaves names that the next run understands, and what somebody else has put into the
 * folder stays.
 *
 * A removal is a rename first: a checkpoint from which files are missing never stands under its own
 * name.
 *
 * Locks are flock and not fcntl: they belong to the open file, so that savers that have the
 * descriptor hold the lock on after their trainer has died, and another library's close of the same
 * file does not give it back. */
#include <checkpoint/checkpoint_folder.h>

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <checkpoint/manifest.h>

#define STEP_HEAD "step-"
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
} step_mark_t;

/* What can't be read is good, and not the best. */
static step_mark_t read_mark(const char *path)
{
    static const char loss[] = "\"" MANIFEST_HELD_OUT "\": \"";
    step_mark_t mark = {false, (double)NAN};
    char *manifest = path_join(path, MANIFEST_NAME), *text = NULL;
    size_t length;
    if (manifest != NULL && file_read(manifest, MANIFEST_MOST, &text, &length) == LH_OK) {
        const char *at = strstr(text, loss);
        mark.refused = strstr(text, "\"" MANIFEST_REFUSED "\": ") != NULL;
        if (at != NULL) mark.held_out = strtod(at + sizeof(loss) - 1, NULL);
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

/* The mark of each step, and which has the least held-out loss; UINT64_MAX: none was evaluated.
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
        mem_free(path);
        if (marks[i].refused || !(marks[i].held_out <= least)) continue;
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
        if (step > newest) continue;
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

/* What a crash may leave: staging folders, half removed steps, a pointer before its rename. */
static bool is_leftover(const char *name)
{
    return text_starts(name, ".tmp-") || text_starts(name, ".del-") ||
           text_starts(name, CHECKPOINT_POINTER ".tmp-");
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

void checkpoint_set_stale(const char *folder, uint64_t step)
{
    struct stat st;
    char name[CHECKPOINT_NAME];
    checkpoint_name(step, name);
    char *path = path_join(folder, name);
    if (path == NULL || (sys()->lstat(path, &st) == 0 && set_aside(folder, step, "stale") != LH_OK))
        log_line(LH_LOG_WARN, "step %llu is not out of the way: %s", (unsigned long long)step,
                 fail_reason());
    mem_free(path);
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

/* ---- who may write --------------------------------------------------------------------------- */

/* PAUSE_NS: between two looks at a lock that another process has; a blocking lock has no timeout.
 * TRIES: names that vanish between two looks. HOLD_NS: a run that is just ending may have the
 * pipeline's lock. HOLDER_BYTES: of the sentence about who has it. */
enum { PAUSE_NS = 20000000, TRIES = 100, HOLD_NS = 300000000, HOLDER_BYTES = 512 };

/* What is to be locked, and how long has been waited so far, for file and folder together. */
typedef struct wanted {
    const char *folder, *name;
    bool with_folder;
    uint64_t timeout_ns, waited_ns;
} wanted_t;

/* LH_AGAIN: the file or its folder went between two looks. O_EXCL first tells who made the file:
 * only what was made for a lock may be removed with it. */
static lh_status_t open_lock_file(const wanted_t *w, const char *path, folder_lock_t *lock)
{
    lock->name = w->name;
    lock->folder_fd = -1;
    lock->folders = folders_missing(w->folder);
    const lh_status_t status = folder_make(w->folder);
    if (status == LH_IO && errno == ENOENT && lock->folders > 0) return LH_AGAIN;
    if (status != LH_OK) return status;
    lock->fd = sys_open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    lock->made = lock->fd >= 0;
    if (!lock->made && errno == EEXIST) lock->fd = sys_open(path, O_RDWR | O_NOFOLLOW, 0);
    if (lock->fd >= 0) return LH_OK;
    return errno == ENOENT ? LH_AGAIN : fail_io(errno, "%s: cannot open", path);
}

/* ": process 4711 on t1 ...", as the one that has the lock has written into its file. */
static void read_holder(int fd, char out[HOLDER_BYTES])
{
    char text[HOLDER_BYTES - 2] = "";
    const ssize_t got = sys()->pread(fd, text, sizeof(text) - 1, 0);
    out[0] = '\0';
    if (got > 0) (void)snprintf(out, HOLDER_BYTES, ": %s", text);
}

/* holder: NULL where the file says who has the lock. LH_UNSUPPORTED: this file system has no locks.
 */
static lh_status_t await_lock(int fd, const char *path, const char *holder, wanted_t *w)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    for (; sys()->lock(fd) != 0; w->waited_ns += PAUSE_NS) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return fail(LH_UNSUPPORTED, "%s: cannot lock: %s", path, strerror(errno));
        if (w->waited_ns >= w->timeout_ns) {
            char said[HOLDER_BYTES] = "";
            if (holder == NULL) read_holder(fd, said);
            return fail(LH_INVALID, "%s: another run still writes in this folder%s", path, said);
        }
        (void)nanosleep(&pause, NULL);
    }
    return LH_OK;
}

/* Where a folder can't be locked, what is open of it still tells it from another one. */
static lh_status_t take_folder(const char *path, folder_lock_t *lock, wanted_t *w)
{
    lock->folder_fd = sys_open(w->folder, O_RDONLY | O_DIRECTORY, 0);
    if (lock->folder_fd < 0 || !w->with_folder) return LH_OK;
    const lh_status_t status = await_lock(lock->folder_fd, path, "", w);
    if (status != LH_UNSUPPORTED) return status;
    fail_clear();
    return LH_OK;
}

/* The file is locked, then it is looked whether its name still leads to it: the one who had the
 * lock before may have removed the name, and another process may have locked a new file under it.
 * Then it begins again. */
static lh_status_t wanted_lock_take(wanted_t *w, folder_lock_t *out)
{
    char *path = path_join(w->folder, w->name);
    if (path == NULL) return LH_NO_MEMORY;
    folder_lock_t lock;
    lh_status_t status = LH_AGAIN;
    for (int i = 0; i < TRIES && status == LH_AGAIN; i++) {
        status = open_lock_file(w, path, &lock);
        if (status != LH_OK) continue;
        status = await_lock(lock.fd, path, NULL, w);
        if (status == LH_OK && !file_is(lock.fd, path)) status = LH_AGAIN;
        bool ours = status == LH_OK || status == LH_UNSUPPORTED; /* nobody else can lock it */
        if (status == LH_OK) status = take_folder(path, &lock, w);
        if (status != LH_OK && ours) folder_lock_undo(&lock, w->folder);
        if (status != LH_OK) folder_lock_give(&lock);
    }
    if (status == LH_AGAIN) status = fail_io(errno, "%s: cannot lock", path);
    if (status == LH_OK) *out = lock;
    mem_free(path);
    return status;
}

/* A folder of checkpoints without locks is refused: two runs that write there would destroy each
 * other's. */
lh_status_t folder_lock_take(const char *folder, uint64_t timeout_ns, folder_lock_t *out)
{
    wanted_t w = {folder, ".lock", true, timeout_ns, 0};
    char reason[2048]; /* fail_reason() is written anew */
    const lh_status_t status = wanted_lock_take(&w, out);
    if (status != LH_UNSUPPORTED) return status;
    (void)snprintf(reason, sizeof(reason), "%s", fail_reason());
    return fail_again(LH_IO, reason);
}

/* Whoever holds it says so in the file, for the sentence of the next one alone: a full disk is no
 * reason to fail. */
lh_status_t folder_lock_hold(const char *folder, const char *holder, bool with_folder,
                             folder_lock_t *out)
{
    wanted_t w = {folder, ".run.lock", with_folder, HOLD_NS, 0};
    const lh_status_t status = wanted_lock_take(&w, out);
    if (status != LH_OK) return status;
    out->made = true; /* what a killed run left is ours to remove */
    if (sys_ftruncate(out->fd, 0) == 0) (void)!sys()->pwrite(out->fd, holder, strlen(holder), 0);
    return LH_OK;
}

/* A shared lock for a moment keeps no other onlooker out, and who is just starting waits longer
 * than that (HOLD_NS). Not by sys(): this is no part of a save, whose every call fails in tests. */
static uint32_t look_at_lock(int fd)
{
    if (flock(fd, LOCK_SH | LOCK_NB) == 0) return FOLDER_FREE;
    return errno == EWOULDBLOCK ? FOLDER_HELD : FOLDER_UNKNOWN;
}

/* By the file; where somebody has removed that, by the folder itself. */
uint32_t folder_lock_look(const char *folder, char holder[FOLDER_HOLDER])
{
    holder[0] = '\0';
    char *path = path_join(folder, ".run.lock");
    if (path == NULL) return FOLDER_UNKNOWN;
    int fd = sys_open(path, O_RDONLY | O_NOFOLLOW, 0);
    const bool file = fd >= 0;
    if (fd < 0 && errno == ENOENT) fd = sys_open(folder, O_RDONLY | O_DIRECTORY, 0);
    mem_free(path);
    if (fd < 0) return FOLDER_UNKNOWN;
    const uint32_t found = look_at_lock(fd);
    const ssize_t got = file && found == FOLDER_HELD
                            ? sys()->pread(fd, holder, FOLDER_HOLDER - 1, 0)
                            : 0;
    holder[got > 0 ? got : 0] = '\0';
    (void)sys()->close(fd);
    return found;
}

/* By device and inode: a folder that was moved and made anew has the same name. Without a lock
 * there is nothing to compare. */
lh_status_t folder_lock_check(const folder_lock_t *lock, const char *folder)
{
    struct stat named, held;
    if (lock->fd < 0 || lock->folder_fd < 0 || sys()->fstat(lock->folder_fd, &held) != 0)
        return LH_OK;
    if (sys()->stat(folder, &named) == 0 && named.st_dev == held.st_dev &&
        named.st_ino == held.st_ino)
        return LH_OK;
    return fail_io(0, "%s: this folder was removed or replaced while a run writes in it", folder);
}

/* The lock itself goes when the last process that has the descriptor closes it. */
void folder_lock_give(folder_lock_t *lock)
{
    if (lock->fd >= 0) {
        (void)sys()->close(lock->fd);
        if (lock->folder_fd >= 0) (void)sys()->close(lock->folder_fd);
    }
    lock->fd = -1;
}

/* Only what still is the locked file is removed. */
void folder_lock_undo(folder_lock_t *lock, const char *folder)
{
    char *path = lock->fd >= 0 && lock->made ? path_join(folder, lock->name) : NULL;
    if (path != NULL && file_is(lock->fd, path) && sys()->unlink(path) == 0)
        folders_unmake(folder, lock->folders);
    mem_free(path);
    folder_lock_give(lock);
}

/* ---- before the first step ------------------------------------------------------------------- */

/* Room for the mark's name, and the pause between two looks. */
enum { MARK_NAME = 80, LOOK_PAUSE_NS = 20000000, NS_PER_MS = 1000000 };

/* A leftover like any other, should its run be killed: its name begins with .tmp-. */
static char *mark_path(const char *folder, uint64_t session)
{
    char name[MARK_NAME];
    (void)snprintf(name, sizeof(name), ".tmp-shared-%016llx", (unsigned long long)session);
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
