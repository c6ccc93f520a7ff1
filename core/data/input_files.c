/* input_files.c - globbing through the seam, one path component at a time. */
#include <data/input_files.h>

#include <fnmatch.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <base/text.h>

typedef struct path_list {
    char **paths;
    size_t count, capacity;
} path_list_t;

static void path_list_free(path_list_t *list)
{
    for (size_t i = 0; i < list->count; i++)
        mem_free(list->paths[i]);
    mem_free(list->paths);
    *list = (path_list_t){0};
}

static lh_status_t path_list_add(path_list_t *list, const char *folder, const char *name)
{
    char **paths = mem_grow(list->paths, &list->capacity, list->count + 1, sizeof(*paths));
    if (paths == NULL) return LH_NO_MEMORY;
    list->paths = paths;
    paths[list->count] = path_join(folder, name);
    if (paths[list->count] == NULL) return LH_NO_MEMORY;
    list->count++;
    return LH_OK;
}

typedef struct match {
    const char *folder, *pattern;
    path_list_t *found;
    lh_status_t status;
} match_t;

static int match_entry(void *context, const char *name)
{
    match_t *m = context;
    if (fnmatch(m->pattern, name, FNM_PERIOD) != 0) return 0;
    m->status = path_list_add(m->found, m->folder, name);
    return m->status == LH_OK ? 0 : -1;
}

bool input_files_is_pattern(const char *path)
{
    return strpbrk(path, "*?[") != NULL;
}

/* Every path of `from`, followed by one component of the pattern. */
static lh_status_t descend(const path_list_t *from, const char *component, path_list_t *to)
{
    const bool wild = input_files_is_pattern(component);
    for (size_t i = 0; i < from->count; i++) {
        lh_status_t status = LH_OK;
        const char *folder = from->paths[i];
        if (wild) {
            match_t m = {.folder = folder, .pattern = component, .found = to};
            (void)sys()->list(folder, match_entry, &m); /* not a folder: nothing matches there */
            status = m.status;
        } else {
            char *path = path_join(folder, component);
            if (path == NULL) return LH_NO_MEMORY;
            if (file_exists(path)) status = path_list_add(to, folder, component);
            mem_free(path);
        }
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

static lh_status_t expand(const char *folder, char *pattern, path_list_t *found)
{
    lh_status_t status = path_list_add(found, pattern[0] == '/' ? "/" : folder, "");
    if (status != LH_OK) return status;

    char *rest = NULL;
    for (char *part = strtok_r(pattern, "/", &rest); part != NULL && status == LH_OK;
         part = strtok_r(NULL, "/", &rest)) {
        path_list_t next = {0};
        status = descend(found, part, &next);
        path_list_free(found);
        *found = next;
    }
    return status;
}

static lh_status_t add_file(input_files_t *files, const char *path, const job_outputs_t *own)
{
    struct stat st;
    for (uint32_t i = 0; i < files->count; i++)
        if (strcmp(files->paths[i], path) == 0)
            return fail(LH_INVALID, "input: %s is named twice", path);
    if (sys()->stat(path, &st) != 0) return fail_io(errno, "%s: cannot stat", path);
    const job_output_t *output = own == NULL ? NULL : job_outputs_at(own, &st);
    if (output != NULL && own->ran) return LH_OK;
    if (output != NULL)
        return fail(LH_INVALID, "[prepare] input: %s would be lost: %s writes over it", path,
                    output->by);
    if (!S_ISREG(st.st_mode)) return fail(LH_INVALID, "%s: not a regular file", path);

    const size_t count = files->count, wanted = count + 1;
    if (wanted > files->capacity) {
        const size_t capacity = wanted * 2;
        size_t paths_room = files->capacity, bytes_room = paths_room, modified_room = paths_room;
        char **paths = mem_grow(files->paths, &paths_room, capacity, sizeof(*paths));
        if (paths == NULL) return LH_NO_MEMORY;
        files->paths = paths;
        uint64_t *bytes = mem_grow(files->bytes, &bytes_room, capacity, sizeof(*bytes));
        if (bytes == NULL) return LH_NO_MEMORY;
        files->bytes = bytes;
        uint64_t *modified = mem_grow(files->modified_ns, &modified_room, capacity, sizeof(*bytes));
        if (modified == NULL) return LH_NO_MEMORY;
        files->modified_ns = modified;
        files->capacity = capacity;
    }
    lh_assert(count < files->capacity);
    files->paths[count] = mem_text(path);
    if (files->paths[count] == NULL) return LH_NO_MEMORY;
    files->bytes[count] = (uint64_t)st.st_size;
    files->modified_ns[count] = (uint64_t)st.st_mtim.tv_sec * 1000000000u +
                                (uint64_t)st.st_mtim.tv_nsec;
    files->count++;
    return LH_OK;
}

static lh_status_t add_pattern(input_files_t *files, const char *folder, const char *pattern,
                               const job_outputs_t *own)
{
    const uint32_t before = files->count;
    const bool wild = input_files_is_pattern(pattern);
    path_list_t found = {0};
    char *copy = mem_text(pattern);
    lh_status_t status = copy == NULL ? LH_NO_MEMORY : expand(folder, copy, &found);
    for (size_t i = 0; i < found.count && status == LH_OK; i++)
        status = add_file(files, found.paths[i], wild ? own : NULL);
    if (status == LH_OK && files->count == before)
        status = fail(LH_INVALID, "input: no file matches '%s' in %s", pattern, folder);
    path_list_free(&found);
    mem_free(copy);
    return status;
}

lh_status_t input_files_find(const char *folder, const char *list, const job_outputs_t *own,
                             input_files_t *out)
{
    *out = (input_files_t){0};
    char *copy = mem_text(list);
    if (copy == NULL) return LH_NO_MEMORY;

    lh_status_t status = LH_OK;
    char *rest = NULL;
    for (char *part = strtok_r(copy, ",", &rest); part != NULL && status == LH_OK;
         part = strtok_r(NULL, ",", &rest)) {
        const char *pattern = text_trim(part);
        if (*pattern != '\0') status = add_pattern(out, folder, pattern, own);
    }
    if (status == LH_OK && out->count == 0) status = fail(LH_INVALID, "input: no file is named");
    mem_free(copy);
    if (status != LH_OK) input_files_free(out);
    return status;
}

void input_files_free(input_files_t *files)
{
    for (uint32_t i = 0; i < files->count; i++)
        mem_free(files->paths[i]);
    mem_free(files->paths);
    mem_free(files->bytes);
    mem_free(files->modified_ns);
    *files = (input_files_t){0};
}
