/* own_files.c - walks a folder by patterns: no folder is entered, and no file removed, that none of
 * them names. */
#include <checkpoint/own_files.h>

#include <errno.h>
#include <fnmatch.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <checkpoint/hf_files.h>

#define NEW ".tmp-*" /* what file_replace writes to */
#define DIGITS_5 "[0-9][0-9][0-9][0-9][0-9]"
#define STEP "checkpoints/step-000000000000"
#define STAGED "checkpoints/.tmp-step-000000000000-*"

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
static const char *const import_folders[] = {"checkpoints", STEP, STAGED, NULL};

const own_files_t own_files_of_export = {.files = export_files, .folders = none};
const own_files_t own_files_of_import = {.files = import_files, .folders = import_folders};

typedef struct walk {
    const char *path, *inside; /* the folder, and its path in the one that was asked for */
    const own_files_t *own;
    text_t *foreign; /* NULL: what is ours is removed */
    uint64_t count;
} walk_t;

static bool matches(const char *const *patterns, const char *name)
{
    for (; *patterns != NULL; patterns++)
        if (fnmatch(*patterns, name, FNM_PATHNAME) == 0) return true;
    return false;
}

static bool is_own_file(const own_files_t *own, const char *name)
{
    return matches(own->files, name) || hf_files_carries(name) || text_equal(own->extra, name);
}

static int visit(void *context, const char *name);

static int enter(const walk_t *above, const char *path, const char *inside, uint64_t *count)
{
    walk_t w = {path, inside, above->own, above->foreign, 0};
    const int result = sys()->list(path, visit, &w);
    *count += w.count;
    if (result == 0 && w.foreign == NULL) return sys()->rmdir(path);
    return result;
}

static int visit_path(walk_t *w, const char *path, const char *inside)
{
    struct stat st;
    if (sys()->lstat(path, &st) != 0) return errno == ENOENT ? 0 : -1; /* gone this moment */
    w->count++;
    if (S_ISDIR(st.st_mode) && matches(w->own->folders, inside))
        return enter(w, path, inside, &w->count);
    const bool own = S_ISREG(st.st_mode) && is_own_file(w->own, inside);
    if (w->foreign == NULL) return own ? sys()->unlink(path) : 0;
    if (own) return 0;
    text_append_shown(w->foreign, inside, false);
    return 1;
}

static int visit(void *context, const char *name)
{
    walk_t *w = context;
    char *path = path_join(w->path, name), *inside = path_join(w->inside, name);
    const int result = path == NULL || inside == NULL ? -1 : visit_path(w, path, inside);
    mem_free(inside);
    mem_free(path);
    return result;
}

lh_status_t own_files_look(const char *folder, const own_files_t *own, text_t *foreign,
                           uint64_t *count)
{
    walk_t w = {folder, "", own, foreign, 0};
    if (sys()->list(folder, visit, &w) < 0) return fail(LH_IO, "%s: cannot look into it", folder);
    *count = w.count;
    return text_status(foreign);
}

lh_status_t own_files_remove(const char *folder, const own_files_t *own)
{
    walk_t w = {folder, "", own, NULL, 0};
    if (sys()->list(folder, visit, &w) != 0 || sys()->rmdir(folder) != 0)
        return fail(LH_IO, "%s: cannot remove the folder", folder);
    return LH_OK;
}
