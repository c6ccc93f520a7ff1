/* check_inputs.c - each file that a job reads against those that are there and those that it writes.
 */
#include <cli/check_inputs.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <config/job_check.h>
#include <config/job_outputs.h>
#include <data/batches.h>
#include <data/input_files.h>

static lh_status_t check_file(const job_outputs_t *outputs, const char *key, const char *path)
{
    struct stat st;
    if (path == NULL || sys()->stat(path, &st) != 0) return LH_OK;
    const job_output_t *o = job_outputs_at(outputs, &st);
    if (o == NULL) return LH_OK;
    return fail(LH_INVALID, "%s: %s would be lost: %s writes over it, as %s", key, path, o->by,
                o->path);
}

static lh_status_t check_list(const job_outputs_t *outputs, const char *key, const char *list)
{
    if (list == NULL) return LH_OK;
    char *copy = mem_text(list), *rest = copy;
    lh_status_t status = copy == NULL ? LH_NO_MEMORY : LH_OK;
    while (status == LH_OK && rest != NULL) {
        const char *path = text_trim(strsep(&rest, ","));
        if (!input_files_is_pattern(path)) status = check_file(outputs, key, path);
    }
    mem_free(copy);
    return status;
}

static lh_status_t check_document(const job_outputs_t *outputs, const document_t *document)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < document_file_count(document); i++)
        status = check_file(outputs, "[pipeline] folder", document_file(document, i));
    return status;
}

lh_status_t check_inputs(const job_t *job)
{
    job_outputs_t outputs;
    lh_status_t status = job_outputs_find(job, &outputs);
    if (status != LH_OK) return status;
    const struct {
        const char *key, *path;
    } files[] = {
        {"[prepare] tokenizer", job->prepare.tokenizer},
        {"[eval] data", job->eval.data},
        {"[eval] tokenizer", job->eval.tokenizer},
        {"[launch] secret", job->launch.secret},
    };
    status = check_document(&outputs, job->document);
    if (status == LH_OK) status = check_list(&outputs, "[prepare] input", job->prepare.input);
    for (size_t i = 0; status == LH_OK && i < sizeof(files) / sizeof(files[0]); i++)
        status = check_file(&outputs, files[i].key, files[i].path);
    job_outputs_free(&outputs);
    return status;
}

/* ---- there, or made before ---- */

static lh_status_t need_file(const job_t *job, const char *section, const char *key,
                             const char *path)
{
    if (path == NULL || file_exists(path)) return LH_OK;
    JOB_REFUSE(job, section, key, "%s: not there", path);
}

/* Position among the stages; stage_count: not one of them. */
static uint32_t turn_of(const job_t *job, uint32_t stage)
{
    uint32_t i = 0;
    while (i < job->stage_count && job->stages[i] != stage)
        i++;
    return i;
}

/* A data set that `reader` reads: the pair is there, or prepare makes it before. */
static lh_status_t need_set(const job_t *job, const char *key, const char *name, uint32_t reader)
{
    char *path = path_join(job->pipeline.folder, name);
    char *made = path_join(job->pipeline.folder, job->prepare.output);
    text_t index = {0};
    char where[JOB_WHERE_BYTES];
    text_printf(&index, "%s.idx", path);
    lh_status_t status = path == NULL || made == NULL ? LH_NO_MEMORY : text_status(&index);
    if (status == LH_OK) job_where(job, "data", key, where);
    const bool is_made = status == LH_OK && strcmp(path, made) == 0 &&
                         job_has_stage(job, STAGE_PREPARE);
    if (is_made && turn_of(job, STAGE_PREPARE) > turn_of(job, reader) && !file_exists(index.data))
        status = fail(LH_INVALID, "%s: %s = %s is read by %s, which comes before prepare", where,
                      key, name, job_stage_names[reader]);
    else if (status == LH_OK && !is_made && !file_exists(index.data))
        status = fail(LH_INVALID, "%s: %s = %s: %s is not there, and no stage makes it", where, key,
                      name, index.data);
    text_free(&index);
    mem_free(made);
    mem_free(path);
    return status;
}

static lh_status_t need_sets(const job_t *job, const char *key, const char *list, uint32_t reader)
{
    blend_list_t parts;
    if (list == NULL) return LH_OK;
    lh_status_t status = blend_parse(list, &parts);
    if (status != LH_OK) return status;
    for (uint32_t i = 0; status == LH_OK && i < parts.count; i++)
        status = need_set(job, key, parts.parts[i].name, reader);
    blend_list_free(&parts);
    return status;
}

static lh_status_t need_split(const job_t *job, const char *split, uint32_t reader)
{
    const job_data_t *data = &job->data;
    if (strcmp(split, "valid") == 0 && data->valid != NULL)
        return need_sets(job, "valid", data->valid, reader);
    if (strcmp(split, "test") == 0 && data->test != NULL)
        return need_sets(job, "test", data->test, reader);
    return need_sets(job, "train", data->train, reader);
}

static lh_status_t need_prepare(const job_t *job)
{
    input_files_t files;
    job_outputs_t own;
    lh_status_t status = job_outputs_find(job, &own);
    if (status != LH_OK) return status;
    status = input_files_find(job->base, job->prepare.input, &own, &files);
    job_outputs_free(&own);
    if (status != LH_OK) return status;
    input_files_free(&files);
    return need_file(job, "prepare", "tokenizer", job->prepare.tokenizer);
}

static lh_status_t need_train(const job_t *job)
{
    lh_status_t status = need_file(job, "prepare", "tokenizer", job->prepare.tokenizer);
    if (status == LH_OK) status = need_split(job, "train", STAGE_TRAIN);
    if (status == LH_OK && job->train.evaluate_every > 0)
        status = need_split(job, "valid", STAGE_TRAIN);
    return status;
}

static lh_status_t need_eval(const job_t *job)
{
    const char *data = job->eval.data;
    const bool split = text_equal(data, "train") || text_equal(data, "valid") ||
                       text_equal(data, "test");
    const lh_status_t status = need_file(job, "eval", "tokenizer", job->eval.tokenizer);
    if (status != LH_OK || data == NULL) return status;
    return split ? need_split(job, data, STAGE_EVAL) : need_file(job, "eval", "data", data);
}

lh_status_t check_inputs_there(const job_t *job)
{
    lh_status_t status = LH_OK;
    if (job_has_stage(job, STAGE_PREPARE)) status = need_prepare(job);
    if (status == LH_OK && job_has_stage(job, STAGE_TRAIN)) status = need_train(job);
    if (status == LH_OK && job_has_stage(job, STAGE_EVAL)) status = need_eval(job);
    return status;
}

/* ---- an export ---- */

/* Neither may be there yet. */
static bool holds(const char *above, const char *below)
{
    if (folder_holds(above, below)) return true;
    char *a = mem_text(above), *b = mem_text(below);
    bool held = false;
    if (a != NULL && b != NULL) {
        path_drop_missing(a);
        path_drop_missing(b);
        const size_t length = strlen(a);
        held = strncmp(a, b, length) == 0 && (b[length] == '\0' || b[length] == '/');
    }
    mem_free(a);
    mem_free(b);
    return held;
}

static lh_status_t refuse_holding(const char *target, const char *folder, const char *what)
{
    if (folder == NULL || !holds(target, folder)) return LH_OK;
    return fail(LH_INVALID, "[export] folder %s is or holds %s, %s: name a folder of its own",
                target, what, folder);
}

lh_status_t check_export_target(const job_t *job, const char *import_folder)
{
    const char *target = job->export.folder;
    const struct {
        const char *folder, *what;
    } kept[] = {
        {job->pipeline.folder, "the pipeline's folder"},
        {job->checkpoint.folder, "the checkpoints"},
        {import_folder, "what was imported"},
        {job->import.from, "the model that is imported"},
    };
    lh_status_t status = LH_OK;
    for (size_t i = 0; status == LH_OK && i < sizeof(kept) / sizeof(kept[0]); i++)
        status = refuse_holding(target, kept[i].folder, kept[i].what);
    if (status != LH_OK || job->prepare.tokenizer == NULL) return status;

    char *folder = path_folder(job->prepare.tokenizer);
    if (folder == NULL) return LH_NO_MEMORY;
    status = refuse_holding(target, folder, "the folder of the tokenizer");
    mem_free(folder);
    return status == LH_OK ? refuse_holding(target, job->prepare.tokenizer, "the tokenizer")
                           : status;
}
