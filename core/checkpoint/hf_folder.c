/* hf_folder.c - a staging folder beside the target, two renames, and locks that tell a live one
 * from what a killed run left. */
#include <checkpoint/hf_folder.h>

#include <errno.h>
#include <fcntl.h>
#include <time.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <checkpoint/checkpoint_folder.h>

enum { DIGITS = 8, NAMES_TRIED = 4, PAUSE_NS = 20000000 };
#define PATIENCE_NS 10000000000u /* another's two renames take less */

struct hf_folder {
    char *parent, *target, *staged, *aside;
    own_files_t own;
    int fd; /* holds the lock of staged */
};

/* 0: held, and *fd gives it back when closed. Where folders have no locks, who only wants to keep
 * others away goes on without (!must): nobody sweeps there. */
static int try_hold(const char *path, bool must, int *fd)
{
    const int got = sys_open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0);
    if (got < 0) return -1;
    const bool locked = sys()->lock(got) == 0;
    const bool taken = !locked && (must || errno == EWOULDBLOCK || errno == EINTR);
    if (!taken && file_is(got, path)) {
        *fd = got;
        return 0;
    }
    (void)sys()->close(got);
    errno = EWOULDBLOCK;
    return -1;
}

static lh_status_t hold(const char *path, uint64_t patience_ns, int *fd)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    for (uint64_t waited = 0; try_hold(path, false, fd) != 0; waited += PAUSE_NS) {
        if (errno != EWOULDBLOCK && errno != ENOENT) return fail(LH_IO, "%s: cannot open", path);
        if (waited >= patience_ns)
            return fail(LH_INVALID, "%s: another import or export works there", path);
        (void)nanosleep(&pause, NULL);
    }
    return LH_OK;
}

/* Fails unless the folder is missing or may be replaced. */
static lh_status_t look(const hf_folder_t *f, bool *there)
{
    struct stat st;
    *there = sys()->lstat(f->target, &st) == 0;
    if (!*there) return LH_OK;
    if (S_ISLNK(st.st_mode))
        return fail(LH_INVALID, "%s: a symbolic link; name the folder itself", f->target);
    if (!S_ISDIR(st.st_mode)) return fail(LH_INVALID, "%s: not a folder", f->target);

    text_t foreign = {0};
    uint64_t count;
    lh_status_t status = own_files_look(f->target, &f->own, &foreign, &count);
    char *config = path_join(f->target, "config.json");
    if (config == NULL) status = LH_NO_MEMORY;
    if (status == LH_OK && foreign.length > 0)
        status = fail(LH_INVALID,
                      "%s holds %s, which is not written here: the folder is left alone", f->target,
                      foreign.data);
    else if (status == LH_OK && count > 0 && !file_exists(config))
        status = fail(LH_INVALID, "%s is there and holds no config.json: it is left alone",
                      f->target);
    mem_free(config);
    text_free(&foreign);
    return status;
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

typedef struct sweep {
    const hf_folder_t *f;
    bool there; /* the folder is in its place */
} sweep_t;

static void sweep_folder(const sweep_t *s, const char *path)
{
    int fd;
    text_t foreign = {0};
    uint64_t count;
    if (try_hold(path, true, &fd) != 0) return; /* somebody works there */
    if (own_files_look(path, &s->f->own, &foreign, &count) != LH_OK ||
        (foreign.length == 0 && own_files_remove(path, &s->f->own) != LH_OK))
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

static lh_status_t name_staged(hf_folder_t *f)
{
    uint32_t random;
    text_t staged = {0}, aside = {0};
    if (sys()->random(&random, sizeof(random)) != 0)
        return fail(LH_IO, "%s: no random bytes for a name", f->target);
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
            return fail(LH_IO, "%s: cannot make the folder", f->staged);
        status = hold(f->staged, 0, &f->fd);
        if (status == LH_OK) return LH_OK;
        (void)sys()->rmdir(f->staged);
    }
    return status;
}

static lh_status_t stage(hf_folder_t *f)
{
    bool there;
    lh_status_t status = look(f, &there);
    if (status != LH_OK) return status;
    sweep_t sweep = {f, there};
    status = folder_make(f->parent);
    if (status != LH_OK) return status;
    (void)sys()->list(f->parent, sweep_entry, &sweep);
    return make_staged(f);
}

static void free_folder(hf_folder_t *f)
{
    if (f->fd >= 0) (void)sys()->close(f->fd);
    mem_free(f->aside);
    mem_free(f->staged);
    mem_free(f->target);
    mem_free(f->parent);
    mem_free(f);
}

lh_status_t hf_folder_begin(const char *folder, const own_files_t *own, hf_folder_t **out)
{
    hf_folder_t *f = mem_new(sizeof(*f));
    if (f == NULL) return LH_NO_MEMORY;
    *f = (hf_folder_t){.own = *own, .fd = -1};
    lh_status_t status = clean_name(folder, &f->target);
    if (status == LH_OK) f->parent = path_folder(f->target);
    if (status == LH_OK) status = f->parent == NULL ? LH_NO_MEMORY : stage(f);
    if (status == LH_OK)
        *out = f;
    else
        free_folder(f);
    return status;
}

const char *hf_folder_path(const hf_folder_t *f)
{
    return f->staged;
}

void hf_folder_abandon(hf_folder_t *f)
{
    checkpoint_discard(f->staged);
    free_folder(f);
}

/* What stands in the way goes aside first, and comes back if the second rename fails. Its lock
 * keeps it from being swept meanwhile. */
static lh_status_t swap(const hf_folder_t *f)
{
    if (sys_rename(f->target, f->aside) != 0)
        return fail(LH_IO, "%s: cannot rename %s to it", f->aside, f->target);
    if (sys_rename(f->staged, f->target) == 0) return LH_OK;
    const lh_status_t status = fail(LH_IO, "%s: cannot rename %s to it", f->target, f->staged);
    (void)sys_rename(f->aside, f->target);
    return status;
}

static lh_status_t replace(const hf_folder_t *f)
{
    int fd;
    bool there;
    lh_status_t status = hold(f->target, PATIENCE_NS, &fd);
    if (status != LH_OK) return status;
    status = look(f, &there);
    if (status == LH_OK) status = swap(f);
    if (status == LH_OK) status = folder_sync(f->parent);
    if (status == LH_OK) status = own_files_remove(f->aside, &f->own);
    (void)sys()->close(fd);
    return status;
}

static lh_status_t put_in_place(const hf_folder_t *f)
{
    bool there;
    lh_status_t status = look(f, &there);
    if (status != LH_OK) return status;
    if (there) return replace(f);
    if (sys_rename(f->staged, f->target) == 0) return folder_sync(f->parent);
    if (errno == ENOTEMPTY || errno == EEXIST) return replace(f); /* another came first */
    return fail(LH_IO, "%s: cannot rename %s to it", f->target, f->staged);
}

lh_status_t hf_folder_publish(hf_folder_t *f)
{
    lh_status_t status = folder_sync(f->staged);
    if (status == LH_OK) status = put_in_place(f);
    if (status == LH_OK)
        free_folder(f);
    else
        hf_folder_abandon(f);
    return status;
}
