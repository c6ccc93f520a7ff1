/* hf_folder.c - a staging folder beside the target, two renames, and locks that tell a live one
 * from what a killed run left.
 *
 * No rename exchanges two folders on every file system, so what stands in the place goes aside
 * first (NAME.tmp-DIGITS.old) and the new one takes its place. Between the two there is nothing
 * under the name; a run that is killed there leaves both beside it, and the next one keeps the old
 * until the name is there again.
 *
 * Locks: each run holds a lock on the folder that it fills, and for the time of the exchange on
 * the folder that it replaces. A lock ends with its process, so whatever of ours lies there
 * unlocked is left over and may be swept. Nobody waits for a second lock with one in hand that the
 * other wants: the lock of a staged folder is only ever tried. */
#include <hf/hf_folder.h>

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <time.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/sys.h>
#include <checkpoint/checkpoint_folder.h>

/* DIGITS: of the random part of a name. NAMES_TRIED: another run's sweep would have to come in
 * between each time. PLACES_TRIED: another run would have to take the place each time. PAUSE_NS:
 * between two tries of a lock. */
enum { DIGITS = 8, NAMES_TRIED = 4, PLACES_TRIED = 100, PAUSE_NS = 20000000 };
#define PATIENCE_NS 10000000000u /* another's two renames take less */

/* Paths are owned. staged is filled; aside is where what stood in the target's place goes. */
struct hf_folder {
    char *parent, *target, *staged, *aside;
    hf_own_files_t own;
    bool placed; /* staged has the target's name by now */
    int fd;      /* holds the lock of staged */
};

/* Tries to lock a folder. 0: held, and *fd gives it back when it is closed; -1 with EWOULDBLOCK:
 * somebody else has it, or the name stands for another folder by now. Where folders have no locks,
 * who only wants to keep others away goes on without (!must): nobody sweeps there. */
static int try_hold(const char *path, bool must, int *fd)
{
    const int got = sys_open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    if (got < 0) return -1;
    const bool locked = sys()->lock(got) == 0;
    const bool taken = !locked && (must || errno == EWOULDBLOCK || errno == EINTR);
    /* Between open and lock somebody may have renamed the folder away: a lock on it would be worth
     * nothing. */
    if (!taken && file_is(got, path)) {
        *fd = got;
        return 0;
    }
    (void)sys()->close(got);
    errno = EWOULDBLOCK;
    return -1;
}

/* Waits for the lock as long as patience says, by trying: the time is that of another run's two
 * renames. */
static lh_status_t folder_hold(const char *path, uint64_t patience_ns, int *fd)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    for (uint64_t waited = 0; try_hold(path, false, fd) != 0; waited += PAUSE_NS) {
        /* ENOENT: the folder is between the two renames of another run and comes back in a
         * moment. */
        if (errno != EWOULDBLOCK && errno != ENOENT) return fail_io(errno, "%s: cannot open", path);
        if (waited >= patience_ns)
            return fail(LH_INVALID, "%s: another import or export works there", path);
        (void)nanosleep(&pause, NULL);
    }
    return LH_OK;
}

/* Fails unless the target holds nothing that is not written here, and the sign of its kind if it
 * holds anything. */
static lh_status_t folder_look(const hf_folder_t *f)
{
    text_t foreign = {0};
    uint64_t count;
    lh_status_t status = hf_own_files_look(f->target, &f->own, &foreign, &count);
    char *sign = path_join(f->target, f->own.sign);
    if (sign == NULL) status = LH_NO_MEMORY;
    if (status == LH_OK && foreign.length > 0)
        status = fail(LH_INVALID,
                      "%s holds %s, which is not written here: the folder is left alone", f->target,
                      foreign.data);
    else if (status == LH_OK && count > 0 && !file_exists(sign))
        status = fail(LH_INVALID, "%s is there and holds no %s: it is left alone", f->target,
                      f->own.sign);
    mem_free(sign);
    text_free(&foreign);
    return status;
}

/* Fails unless the place is empty, *fd is -1 then, or holds a folder that may be replaced. That one
 * is looked at while its lock is held: no other run moves it meanwhile. */
static lh_status_t hold_target(const hf_folder_t *f, int *fd)
{
    struct stat st;
    *fd = -1;
    /* The place is empty, or can't be looked at, which the rename will tell. */
    if (sys()->lstat(f->target, &st) != 0) return LH_OK;
    if (S_ISLNK(st.st_mode))
        return fail(LH_INVALID, "%s: a symbolic link; name the folder itself", f->target);
    if (!S_ISDIR(st.st_mode)) return fail(LH_INVALID, "%s: not a folder", f->target);
    lh_status_t status = folder_hold(f->target, PATIENCE_NS, fd);
    if (status != LH_OK) return status;
    status = folder_look(f);
    if (status == LH_OK) return LH_OK;
    (void)sys()->close(*fd);
    *fd = -1;
    return status;
}

/* -1: nothing was held */
static void let_go(int fd)
{
    if (fd >= 0) (void)sys()->close(fd);
}

/* Without slashes at its end; a name that stands for another is refused. */
static lh_status_t clean_name(const char *folder, char **out)
{
    size_t length = strlen(folder);
    while (length > 1 && folder[length - 1] == '/')
        length--;
    char *clean = mem_text_n(folder, length);
    if (clean == NULL) return LH_NO_MEMORY;
    const char *name = path_name(clean);
    if (*name == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
        mem_free(clean);
        return fail(LH_INVALID, "%s: ends in no name; name the folder itself", folder);
    }
    *out = clean;
    return LH_OK;
}

/* What sweep_entry needs to know of each name in the parent folder. */
typedef struct sweep {
    const hf_folder_t *f;
    bool there; /* the folder is in its place */
} sweep_t;

/* Removes a folder that a killed run left, if it can be locked and holds nothing but ours. Failing
 * is no fault of the run that sweeps. */
static void sweep_folder(const sweep_t *s, const char *path)
{
    int fd;
    text_t foreign = {0};
    uint64_t count;
    if (try_hold(path, true, &fd) != 0) return; /* somebody works there */
    if (hf_own_files_look(path, &s->f->own, &foreign, &count) != LH_OK ||
        (foreign.length == 0 && hf_own_files_remove(path, &s->f->own) != LH_OK))
        fail_clear(); /* the next run tries again */
    text_free(&foreign);
    (void)sys()->close(fd);
}

/* What a run that was killed left: NAME.tmp-01234567, and with .old what stood in its place, which
 * is kept until NAME is there again. */
static int sweep_entry(void *context, const char *entry)
{
    const sweep_t *s = context;
    const char *name = path_name(s->f->target);
    const size_t length = strlen(name);
    if (strncmp(entry, name, length) != 0 || !text_starts(entry + length, ".tmp-")) return 0;
    const char *digits = entry + length + strlen(".tmp-");
    const size_t count = strspn(digits, "0123456789abcdef");
    /* Only names that name_staged makes: the right number of digits, then nothing or ".old". */
    const bool old = strcmp(digits + count, ".old") == 0;
    if (count != DIGITS || (digits[count] != '\0' && !(old && s->there))) return 0;
    char *path = path_join(s->f->parent, entry);
    if (path != NULL)
        sweep_folder(s, path);
    else
        fail_clear();
    mem_free(path);
    return 0;
}

/* Random digits, not the process's number: folders may be shared by machines. */
static lh_status_t name_staged(hf_folder_t *f)
{
    uint32_t random;
    text_t staged = {0}, aside = {0};
    if (sys()->random(&random, sizeof(random)) != 0)
        return fail_io(errno, "%s: no random bytes for a name", f->target);
    text_printf(&staged, "%s.tmp-%0*x", f->target, DIGITS, random);
    text_printf(&aside, "%s.tmp-%0*x.old", f->target, DIGITS, random);
    mem_free(f->staged);
    mem_free(f->aside);
    f->staged = staged.data;
    f->aside = aside.data;
    return staged.failed || aside.failed ? LH_NO_MEMORY : LH_OK;
}

/* Another's sweep may see the folder before it is locked: then a next one is made. */
static lh_status_t make_staged(hf_folder_t *f)
{
    lh_status_t status = LH_OK;
    for (int i = 0; i < NAMES_TRIED; i++) {
        status = name_staged(f);
        if (status != LH_OK) return status;
        if (sys()->mkdir(f->staged, 0755) != 0)
            return fail_io(errno, "%s: cannot make the folder", f->staged);
        /* Locked before anything is in it: from here on no sweep takes it for left over. */
        status = folder_hold(f->staged, 0, &f->fd);
        if (status == LH_OK) return LH_OK;
        (void)sys()->rmdir(f->staged);
    }
    return status;
}

/* Looks at the target before hours of work are put into a new folder; hf_folder_publish looks
 * again. */
static lh_status_t folder_stage(hf_folder_t *f)
{
    int fd;
    lh_status_t status = hold_target(f, &fd);
    if (status != LH_OK) return status;
    let_go(fd);
    sweep_t sweep = {f, fd >= 0};
    status = folder_make(f->parent);
    if (status != LH_OK) return status;
    (void)sys()->list(f->parent, sweep_entry, &sweep);
    return make_staged(f);
}

/* Closing gives the lock back. */
static void free_folder(hf_folder_t *f)
{
    if (f->fd >= 0) (void)sys()->close(f->fd);
    mem_free(f->aside);
    mem_free(f->staged);
    mem_free(f->target);
    mem_free(f->parent);
    mem_free(f);
}

lh_status_t hf_folder_begin(const char *folder, const hf_own_files_t *own, hf_folder_t **out)
{
    lh_assert(own->files != NULL && own->folders != NULL && own->sign != NULL);
    hf_folder_t *f = mem_new(sizeof(*f));
    if (f == NULL) return LH_NO_MEMORY;
    *f = (hf_folder_t){.own = *own, .fd = -1};
    lh_status_t status = clean_name(folder, &f->target);
    if (status == LH_OK) f->parent = path_folder(f->target);
    if (status == LH_OK) status = f->parent == NULL ? LH_NO_MEMORY : folder_stage(f);
    if (status == LH_OK)
        *out = f;
    else
        free_folder(f);
    return status;
}

/* Its name changes with the publishing, so it is asked for before. */
const char *hf_folder_path(const hf_folder_t *f)
{
    return f->staged;
}

/* The folder is this run's alone, so it is removed with all that is in it. */
void hf_folder_abandon(hf_folder_t *f)
{
    checkpoint_discard(f->staged);
    free_folder(f);
}

/* The reason at hand goes on with what is true of a path. */
static lh_status_t reason_go_on(lh_status_t status, const char *what, const char *path)
{
    char *reason = mem_text(fail_reason());
    if (reason != NULL) (void)fail(status, "%s; %s %s", reason, what, path);
    mem_free(reason);
    return status;
}

/* rename(2) replaces an empty folder in one step, and no other. LH_AGAIN: another run's folder came
 * into the empty place first. Any other failure with f->placed: the new folder stands there, and
 * nobody knows whether a loss of power leaves it. */
static lh_status_t put_in_place(hf_folder_t *f)
{
    lh_assert(f->fd >= 0); /* nobody sweeps what is staged */
    if (sys_rename(f->staged, f->target) == 0) {
        f->placed = true;
        const lh_status_t status = folder_sync(f->parent);
        return status == LH_OK
                   ? LH_OK
                   : reason_go_on(status, "a loss of power may undo what stands in", f->target);
    }
    if (errno == ENOTEMPTY || errno == EEXIST) return LH_AGAIN;
    return fail_io(errno, "%s: cannot rename %s to it", f->target, f->staged);
}

/* What stands in the way goes aside first, and comes back where the second rename fails. It is kept
 * until the new one is known to last. Where another run took the place between the two renames, that
 * run's folder is the one to replace, and what went aside is nobody's. The lock that is held keeps it
 * from being swept meanwhile. */
static lh_status_t folder_replace(hf_folder_t *f)
{
    if (sys_rename(f->target, f->aside) != 0)
        return fail_io(errno, "%s: cannot rename %s to it", f->aside, f->target);
    const lh_status_t status = put_in_place(f);
    if (status != LH_OK && status != LH_AGAIN) {
        /* The old folder comes back under its name, if that is free. */
        const bool back = !f->placed && sys_rename(f->aside, f->target) == 0;
        return back ? status : reason_go_on(status, "what stood there before is in", f->aside);
    }
    if (hf_own_files_remove(f->aside, &f->own) != LH_OK) {
        log_line(LH_LOG_WARN, "%s: what stood there before is left behind: %s", f->target,
                 fail_reason());
        fail_clear();
    }
    return status;
}

/* As long as other runs come in between, with the lock of what stands there held for one
 * attempt. */
static lh_status_t folder_take_place(hf_folder_t *f)
{
    /* Each turn looks at the place again: what stands there now may be another run's folder, or
     * none. */
    lh_status_t status = LH_AGAIN;
    for (int i = 0; i < PLACES_TRIED && status == LH_AGAIN; i++) {
        int fd;
        status = hold_target(f, &fd);
        if (status == LH_OK) status = fd >= 0 ? folder_replace(f) : put_in_place(f);
        let_go(fd);
    }
    if (status == LH_AGAIN)
        return fail(LH_INVALID, "%s: other imports or exports work there", f->target);
    return status;
}

/* Synced before it gets its name: a name that survives a loss of power has its files. */
lh_status_t hf_folder_publish(hf_folder_t *f)
{
    lh_status_t status = folder_sync(f->staged);
    if (status == LH_OK) status = folder_take_place(f);
    if (f->placed)
        free_folder(f);
    else
        hf_folder_abandon(f);
    return status;
}

/* Files are copied by a list of known names: nothing else of a stranger's folder is carried along,
 * such as code that Transformers would run. */
enum { FILE_MOST = 256 << 20 };

static const char *const carried[] = {
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer.bin",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
};
/* Files that a tokenizer is not complete without, by the one that is named. */
static const struct {
    const char *file, *with;
} together[] = {
    {"vocab.json", "merges.txt"},
    {"merges.txt", "vocab.json"},
    {"tokenizer.json", "tokenizer_config.json"},
    {"tokenizer.json", "special_tokens_map.json"},
    {"tokenizer.model", "tokenizer_config.json"},
};

/* Follows no link and writes over nothing. */
static lh_status_t write_new(const char *path, const char *data, size_t length)
{
    const int fd = sys_open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0644);
    if (fd < 0) return fail_io(errno, "%s: cannot create", path);
    lh_status_t status = file_write(fd, path, data, length);
    if (status == LH_OK && sys_fsync(fd) != 0) status = fail_io(errno, "%s: cannot sync", path);
    if (sys()->close(fd) != 0 && status == LH_OK) status = fail_io(errno, "%s: cannot close", path);
    return status;
}

/* A file that is there already stays. */
static lh_status_t copy_file(const char *from, const char *to_folder, const char *name)
{
    char *data = NULL, *to = path_join(to_folder, name);
    size_t length;
    lh_status_t status = to == NULL ? LH_NO_MEMORY : file_read(from, FILE_MOST, &data, &length);
    if (status == LH_OK && !file_exists(to)) status = write_new(to, data, length);
    mem_free(data);
    mem_free(to);
    return status;
}

/* None of the carried files is one that a folder must have. */
static lh_status_t copy_if_there(const char *from_folder, const char *to, const char *name)
{
    char *from = path_join(from_folder, name);
    if (from == NULL) return LH_NO_MEMORY;
    const lh_status_t status = file_exists(from) ? copy_file(from, to, name) : LH_OK;
    mem_free(from);
    return status;
}

bool hf_files_carries(const char *name)
{
    for (size_t i = 0; i < sizeof(carried) / sizeof(carried[0]); i++)
        if (strcmp(carried[i], name) == 0) return true;
    return false;
}

lh_status_t hf_files_copy(const char *from, const char *to)
{
    lh_status_t status = LH_OK;
    for (size_t i = 0; i < sizeof(carried) / sizeof(carried[0]) && status == LH_OK; i++)
        status = copy_if_there(from, to, carried[i]);
    return status;
}

/* A folder is asked for all that it may have; a file brings only what belongs to its kind. */
lh_status_t hf_files_copy_tokenizer(const char *file, const char *to)
{
    struct stat st;
    if (sys()->stat(file, &st) == 0 && S_ISDIR(st.st_mode)) return hf_files_copy(file, to);

    lh_status_t status = copy_file(file, to, path_name(file));
    char *folder = path_folder(file);
    if (folder == NULL) return LH_NO_MEMORY;
    for (size_t i = 0; i < sizeof(together) / sizeof(together[0]) && status == LH_OK; i++)
        if (strcmp(together[i].file, path_name(file)) == 0)
            status = copy_if_there(folder, to, together[i].with);
    mem_free(folder);
    return status;
}

lh_status_t hf_files_copy_pair(const char *vocabulary, const char *merges, const char *to)
{
    char *folder = path_folder(vocabulary);
    if (folder == NULL) return LH_NO_MEMORY;
    lh_status_t status = copy_file(vocabulary, to, "vocab.json");
    if (status == LH_OK) status = copy_file(merges, to, "merges.txt");
    if (status == LH_OK) status = copy_if_there(folder, to, "tokenizer_config.json");
    mem_free(folder);
    return status;
}

/* Parts of the patterns below. */
#define NEW ".tmp-*" /* what file_replace writes to */
#define DIGITS_5 "[0-9][0-9][0-9][0-9][0-9]"
#define STEP "checkpoints/step-000000000000"
#define STAGED "checkpoints/.tmp-step-000000000000-*"

/* What an import and an export write, as patterns of paths in the folder. No folder is entered, and
 * no file removed, that none of them names. */
static const char *const none[] = {NULL};
static const char *const export_files[] = {
    "config.json",
    "config.json" NEW,
    "model.safetensors",
    "model-" DIGITS_5 "-of-" DIGITS_5 ".safetensors",
    "model.safetensors.index.json",
    "model.safetensors.index.json" NEW,
    NULL,
};
static const char *const import_files[] = {
    "config.json",
    "config.json" NEW,
    "checkpoints/latest",
    "checkpoints/latest" NEW,
    STEP "/manifest.json",
    STEP "/shard-*.safetensors",
    STAGED "/manifest.json",
    STAGED "/shard-*.safetensors",
    NULL,
};
static const char *const adapter_files[] = {"adapter_model.safetensors", "adapter_config.json",
                                            NULL};
static const char *const import_folders[] = {"checkpoints", STEP, STAGED, NULL};

const hf_own_files_t hf_own_files_of_export = {
    .files = export_files, .folders = none, .sign = "config.json"};
const hf_own_files_t hf_own_files_of_adapter = {
    .files = adapter_files, .folders = none, .sign = "adapter_config.json"};
const hf_own_files_t hf_own_files_of_import = {
    .files = import_files, .folders = import_folders, .sign = "config.json"};

/* One folder on the way down. */
typedef struct walk {
    const char *path, *inside; /* the folder, and its path in the one that was asked for */
    const hf_own_files_t *own;
    text_t *foreign; /* NULL: what is ours is removed */
    uint64_t count;
} walk_t;

/* FNM_PATHNAME: a star does not reach over a slash into a folder. */
static bool files_matches(const char *const *patterns, const char *name)
{
    for (; *patterns != NULL; patterns++)
        if (fnmatch(*patterns, name, FNM_PATHNAME) == 0) return true;
    return false;
}

/* Written here, carried along from a folder that was imported, or the run's own tokenizer. A file that
 * should have lost its name is of a run that was killed before. */
static bool is_own_file(const hf_own_files_t *own, const char *name)
{
    return files_matches(own->files, name) || hf_files_carries(name) ||
           text_equal(own->extra, name) || strcmp(name, HF_FOLDER_NAMELESS) == 0;
}

static int walk_entry(void *context, const char *name);

/* A folder of ours: walked, and removed behind that if the walk removes. rmdir fails where
 * something is left, which then stays, and so do the folders above. */
static int files_enter(const walk_t *above, const char *path, const char *inside, uint64_t *count)
{
    walk_t w = {path, inside, above->own, above->foreign, 0};
    const int result = sys()->list(path, walk_entry, &w);
    *count += w.count;
    if (result == 0 && w.foreign == NULL) return sys()->rmdir(path);
    return result;
}

/* One entry. Looking ends at the first that is not ours, with 1; removing passes over it. */
static int walk_path(walk_t *w, const char *path, const char *inside)
{
    struct stat st;
    if (sys()->lstat(path, &st) != 0) return errno == ENOENT ? 0 : -1; /* gone this moment */
    w->count++;
    if (S_ISDIR(st.st_mode) && files_matches(w->own->folders, inside))
        return files_enter(w, path, inside, &w->count);
    const bool own = S_ISREG(st.st_mode) && is_own_file(w->own, inside);
    if (w->foreign == NULL) return own ? sys()->unlink(path) : 0;
    if (own) return 0;
    text_append_shown(w->foreign, inside, false);
    return 1;
}

/* sys()->list calls this for each name; anything but 0 ends it. */
static int walk_entry(void *context, const char *name)
{
    walk_t *w = context;
    char *path = path_join(w->path, name), *inside = path_join(w->inside, name);
    const int result = path == NULL || inside == NULL ? -1 : walk_path(w, path, inside);
    mem_free(inside);
    mem_free(path);
    return result;
}

/* A walk that changes nothing. */
lh_status_t hf_own_files_look(const char *folder, const hf_own_files_t *own, text_t *foreign,
                              uint64_t *count)
{
    walk_t w = {folder, "", own, foreign, 0};
    if (sys()->list(folder, walk_entry, &w) < 0)
        return fail_io(errno, "%s: cannot look into it", folder);
    *count = w.count;
    return text_status(foreign);
}

lh_status_t hf_own_files_remove(const char *folder, const hf_own_files_t *own)
{
    walk_t w = {folder, "", own, NULL, 0};
    if (sys()->list(folder, walk_entry, &w) != 0 || sys()->rmdir(folder) != 0)
        return fail_io(errno, "%s: cannot remove the folder", folder);
    return LH_OK;
}
