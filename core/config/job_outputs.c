/* job_outputs.c - the files that a job writes over, by device and inode. */
#include <config/job_outputs.h>

#include <fnmatch.h>
#include <string.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <base/text.h>

static const struct {
    const char *name, *by;
} in_folder[] = {
    {"stages.json", "run"},
    {"prepare.json", "prepare"},
    {"prepare.rejected.txt", "prepare"},
    {"prepare.rejected.txt.tmp", "prepare"},
    {"metrics.jsonl", "train"},
    {"train.log", "train"},
    {"rank-[0-9]*.log", "train"},
    {"report.html", "train"},
    {"profile.json", "train"},
    {"profile.trace.json", "train"},
    {"batches.safetensors", "train"},
    {"batches.safetensors.tmp", "train"},
    {"eval.json", "eval"},
    {"generated.json", "generate"},
};
static const char *const of_pair[] = {".bin", ".idx", ".bin.tmp", ".idx.tmp", ".lengths.tmp"};

typedef struct finding {
    const char *folder;
    job_outputs_t *found;
    lh_status_t status;
} finding_t;

/* A file that is not there is no output yet. */
static lh_status_t output_add(job_outputs_t *o, const char *path, const char *by)
{
    struct stat st;
    if (sys()->stat(path, &st) != 0) return LH_OK;
    job_output_t *rows = mem_grow(o->rows, &o->capacity, o->count + 1u, sizeof(*rows));
    if (rows == NULL) return LH_NO_MEMORY;
    o->rows = rows;
    rows[o->count] = (job_output_t){st.st_dev, st.st_ino, by, mem_text(path)};
    return rows[o->count++].path == NULL ? LH_NO_MEMORY : LH_OK;
}

/* sys()->list stops at a result other than 0; the status says why. */
static int output_add_entry(void *context, const char *name)
{
    finding_t *f = context;
    for (size_t i = 0; f->status == LH_OK && i < sizeof(in_folder) / sizeof(in_folder[0]); i++) {
        if (fnmatch(in_folder[i].name, name, 0) != 0) continue;
        char *path = path_join(f->folder, name);
        f->status = path == NULL ? LH_NO_MEMORY : output_add(f->found, path, in_folder[i].by);
        mem_free(path);
    }
    return f->status == LH_OK ? 0 : -1;
}

/* "a/./b//c" is "a/b/c". Also makes "//" one slash; a lone "/" stays. */
static void drop_nothings(char *path)
{
    char *to = path;
    for (const char *from = path; *from != '\0'; from++) {
        if (from[0] == '/' && from[1] == '.' && (from[2] == '/' || from[2] == '\0'))
            from++;
        else if (from[0] != '/' || from[1] != '/')
            *to++ = *from;
    }
    if (to == path && *path == '/') to++;
    *to = '\0';
}

/* A folder that is yet to be made is left again by "..": "out/../a" is "a" then. Each round removes
 * one "name/.." and begins anew, as what is left may hold the next. */
void job_path_drop_missing(char *path)
{
    drop_nothings(path);
    for (char *up = strstr(path, "/.."); up != NULL; up = strstr(up, "/..")) {
        const char *after = up + strlen("/..");
        *up = '\0';
        char *name = strrchr(path, '/');
        const bool missing = (*after == '/' || *after == '\0') && name != NULL && name[1] != '\0' &&
                             !file_exists(path);
        *up = '/';
        if (missing) memmove(name, after, strlen(after) + 1);
        up = missing ? path : up + 1;
    }
}

/* stages.json is written when a stage has ended well, so it tells a folder of this program's from
 * one that merely has files of these names. */
static lh_status_t output_add_folder(const job_t *job, job_outputs_t *o)
{
    char *folder = mem_text(job->pipeline.folder);
    if (folder == NULL) return LH_NO_MEMORY;
    job_path_drop_missing(folder);
    finding_t finding = {.folder = folder, .found = o};
    (void)sys()->list(folder, output_add_entry, &finding); /* not there yet: nothing of it is */
    char *stages = path_join(folder, "stages.json");
    o->ran = stages != NULL && file_exists(stages);
    mem_free(stages);
    mem_free(folder);
    return finding.status;
}

/* prepare may write its pair outside of the pipeline's folder, where output is an absolute path. */
static lh_status_t output_add_pair(const job_t *job, job_outputs_t *o)
{
    char *prefix = path_join(job->pipeline.folder, job->prepare.output);
    lh_status_t status = prefix == NULL ? LH_NO_MEMORY : LH_OK;
    if (status == LH_OK) job_path_drop_missing(prefix);
    for (size_t i = 0; status == LH_OK && i < sizeof(of_pair) / sizeof(of_pair[0]); i++) {
        text_t path = {0};
        text_printf(&path, "%s%s", prefix, of_pair[i]);
        status = text_status(&path);
        if (status == LH_OK) status = output_add(o, path.data, "prepare");
        text_free(&path);
    }
    mem_free(prefix);
    return status;
}

/* Two sources: known names in the pipeline's folder, and the pair of prepare, whose name is an
 * option. */
lh_status_t job_outputs_find(const job_t *job, job_outputs_t *out)
{
    *out = (job_outputs_t){0};
    lh_status_t status = output_add_folder(job, out);
    if (status == LH_OK) status = output_add_pair(job, out);
    if (status != LH_OK) job_outputs_free(out);
    return status;
}

static bool is_output_still(const job_output_t *o)
{
    struct stat now;
    return sys()->stat(o->path, &now) == 0 && now.st_dev == o->device && now.st_ino == o->inode;
}

/* By identity and not by name; the list is short. A file that another process makes may get the number
 * of an output that was replaced since the list was made: stages.json is, right before rank 0's
 * launcher makes the job's key, while those of other machines look here. */
const job_output_t *job_outputs_at(const job_outputs_t *outputs, const struct stat *file)
{
    for (uint32_t i = 0; i < outputs->count; i++) {
        const job_output_t *o = &outputs->rows[i];
        if (o->device == file->st_dev && o->inode == file->st_ino && is_output_still(o)) return o;
    }
    return NULL;
}

void job_outputs_free(job_outputs_t *outputs)
{
    for (uint32_t i = 0; i < outputs->count; i++)
        mem_free(outputs->rows[i].path);
    mem_free(outputs->rows);
    *outputs = (job_outputs_t){0};
}
