/* check_inputs.c - each file that a job reads against those that it writes. */
#include <cli/check_inputs.h>

#include <base/memory.h>
#include <base/sys.h>
#include <config/job_outputs.h>
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
