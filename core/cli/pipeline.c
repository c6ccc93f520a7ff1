/* pipeline.c - digests of stages and the file that keeps them. */
#include <cli/pipeline.h>

#include <fnmatch.h>
#include <jansson.h>
#include <stdio.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <checkpoint/commit.h>
#include <data/blend.h>
#include <data/input_files.h>
#include <data/json_parse.h>

enum { STATE_LIMIT = 1 << 20 };

typedef struct stage_facts {
    const char *sections; /* globs of the sections it reads                   */
    const char *output;   /* in the pipeline's folder: there when it is done  */
} stage_facts_t;

static const stage_facts_t facts[JOB_STAGES] = {
    [STAGE_PREPARE] = {"prepare,limits", "prepare.json"},
    [STAGE_IMPORT] = {"import,model,limits", "import"},
    [STAGE_TRAIN] = {"data,model,train,optimizer,group.*,rule.*,hook.*,device,checkpoint", NULL},
    [STAGE_EVAL] = {"eval,device", "eval.json"},
    [STAGE_EXPORT] = {"export", NULL},
    [STAGE_GENERATE] = {"generate,device", "generated.json"},
};

static bool reads(const char *globs, const char *section)
{
    char list[256], *rest = NULL;
    (void)snprintf(list, sizeof(list), "%s", globs);
    for (char *glob = strtok_r(list, ",", &rest); glob != NULL; glob = strtok_r(NULL, ",", &rest))
        if (fnmatch(glob, section, 0) == 0) return true;
    return false;
}

static void add_sections(const job_t *job, const char *globs, text_t *out)
{
    for (uint32_t i = 0; i < document_section_count(job->document); i++) {
        const document_section_t *s = document_section(job->document, i);
        if (!reads(globs, s->name)) continue;
        for (uint32_t k = 0; k < s->entry_count; k++)
            text_printf(out, "%s.%s=%s\n", s->name, s->entries[k]->key, s->entries[k]->value);
    }
}

static int add_file(void *context, const char *path)
{
    struct stat st;
    text_t *out = context;
    if (sys()->stat(path, &st) != 0) return 0;
    if (S_ISDIR(st.st_mode)) {
        text_printf(out, "folder %s\n", path);
        return 0;
    }
    text_printf(out, "file %s %lld %lld.%09ld\n", path, (long long)st.st_size,
                (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
    return 0;
}

typedef struct listing {
    const char *folder;
    text_t *out;
} listing_t;

static int add_entry(void *context, const char *name)
{
    const listing_t *l = context;
    char *path = path_join(l->folder, name);
    if (path == NULL) return -1;
    (void)add_file(l->out, path);
    mem_free(path);
    return 0;
}

/* A file, or every file of a folder. */
static void add_input(const char *path, text_t *out)
{
    struct stat st;
    if (path == NULL || sys()->stat(path, &st) != 0) return;
    if (!S_ISDIR(st.st_mode)) {
        (void)add_file(out, path);
        return;
    }
    listing_t listing = {path, out};
    (void)sys()->list(path, add_entry, &listing);
}

/* Token files that no stage of this pipeline makes. */
static lh_status_t add_data(const job_t *job, const char *list, text_t *out)
{
    blend_list_t sets;
    if (list == NULL || job_has_stage(job, STAGE_PREPARE)) return LH_OK;
    lh_status_t status = blend_parse(list, &sets);
    if (status != LH_OK) return status;
    for (uint32_t i = 0; i < sets.count && status == LH_OK; i++) {
        text_t index = {0};
        char *path = job_path(job, sets.parts[i].name);
        text_printf(&index, "%s.idx", path == NULL ? "" : path);
        status = path == NULL ? LH_NO_MEMORY : text_status(&index);
        if (status == LH_OK) add_input(index.data, out);
        text_free(&index);
        mem_free(path);
    }
    blend_list_free(&sets);
    return status;
}

static lh_status_t add_inputs(const job_t *job, uint32_t stage, text_t *out)
{
    if (stage == STAGE_IMPORT) add_input(job->import.from, out);
    if (stage == STAGE_EVAL) add_input(job->eval.data, out);
    if (stage == STAGE_EVAL) add_input(job->eval.tokenizer, out);
    if (stage == STAGE_TRAIN) {
        lh_status_t status = add_data(job, job->data.train, out);
        if (status == LH_OK) status = add_data(job, job->data.valid, out);
        if (status == LH_OK) status = add_data(job, job->data.test, out);
        return status;
    }
    if (stage != STAGE_PREPARE) return LH_OK;

    add_input(job->prepare.tokenizer, out);
    input_files_t files = {0};
    job_outputs_t own;
    lh_status_t status = job_outputs_find(job, &own);
    if (status != LH_OK) return status;
    status = input_files_find(job->base, job->prepare.input, &own, &files);
    job_outputs_free(&own);
    if (status != LH_OK) return status;
    for (uint32_t i = 0; i < files.count; i++)
        (void)add_file(out, files.paths[i]);
    input_files_free(&files);
    return LH_OK;
}

lh_status_t stage_digest(const job_t *job, uint32_t stage, char out[SHA256_TEXT])
{
    text_t all = {0};
    lh_status_t status = LH_OK;
    text_printf(&all, "longhaul %s %s\n", LH_VERSION, job_stage_names[stage]);
    for (uint32_t i = 0; i < job->stage_count && job->stages[i] != stage && status == LH_OK; i++) {
        char before[SHA256_TEXT];
        /* What one stage makes of the data, the model or the weights the next ones read;
         * evaluation, export and generation leave nothing behind that another stage reads. */
        if (job->stages[i] >= STAGE_EVAL) continue;
        status = stage_digest(job, job->stages[i], before);
        text_printf(&all, "after %s %s\n", job_stage_names[job->stages[i]], before);
    }
    if (status == LH_OK) {
        add_sections(job, facts[stage].sections, &all);
        status = add_inputs(job, stage, &all);
    }
    if (status == LH_OK) status = text_status(&all);
    if (status == LH_OK) status = sha256_of(all.data, all.length, out);
    text_free(&all);
    return status;
}

static char *state_path(const job_t *job)
{
    return path_join(job->pipeline.folder, "stages.json");
}

static json_t *read_state(const char *path)
{
    char *data;
    size_t length;
    if (!file_exists(path) || file_read(path, STATE_LIMIT, &data, &length) != LH_OK)
        return json_object();
    json_t *root;
    if (json_parse("a stage", data, length, &root) != LH_OK) root = NULL;
    mem_free(data);
    if (json_is_object(root)) return root;
    json_decref(root);
    return json_object();
}

/* What a run ended with is the step that the pointer names: an older one is not its result. */
static bool last_step_is_there(const char *folder)
{
    enum { POINTER_MOST = 256 };
    uint64_t step;
    size_t length;
    char *latest = path_join(folder, CHECKPOINT_POINTER), *text = NULL;
    if (latest == NULL || !file_exists(latest) ||
        file_read(latest, POINTER_MOST, &text, &length) != LH_OK) {
        mem_free(latest);
        return false;
    }
    text[strcspn(text, " \n")] = '\0';
    char *path = checkpoint_name_parse(text, &step) ? path_join(folder, text) : NULL;
    char *manifest = path == NULL ? NULL : path_join(path, MANIFEST_NAME);
    const bool there = manifest != NULL && file_exists(manifest);
    mem_free(manifest);
    mem_free(path);
    mem_free(text);
    mem_free(latest);
    return there;
}

static bool output_is_there(const job_t *job, uint32_t stage)
{
    if (stage == STAGE_TRAIN) return last_step_is_there(job->checkpoint.folder);
    char *path = stage == STAGE_EXPORT ? path_join(job->export.folder, "config.json")
                                       : path_join(job->pipeline.folder, facts[stage].output);
    const bool there = path != NULL && file_exists(path);
    mem_free(path);
    if (stage != STAGE_PREPARE || !there) return there;

    text_t index = {0};
    text_printf(&index, "%s.idx", job->prepare.output);
    const bool corpus = !index.failed && file_exists(index.data);
    text_free(&index);
    return corpus;
}

bool stage_is_done(const job_t *job, uint32_t stage, const char *digest)
{
    char *path = state_path(job);
    if (path == NULL) return false;
    json_t *state = read_state(path);
    const json_t *entry = json_object_get(state, job_stage_names[stage]);
    const bool done = json_is_string(entry) && text_equal(json_string_value(entry), digest) &&
                      output_is_there(job, stage);
    json_decref(state);
    mem_free(path);
    return done;
}

static lh_status_t write_state(const char *path, const json_t *state)
{
    char *text = json_dumps(state, JSON_INDENT(1) | JSON_SORT_KEYS);
    const lh_status_t status = text == NULL ? fail(LH_NO_MEMORY, "out of memory: %s", path)
                                            : file_replace(path, text, strlen(text));
    free(text);
    return status;
}

lh_status_t stage_forget(const job_t *job, uint32_t stage)
{
    char *path = state_path(job);
    if (path == NULL) return LH_NO_MEMORY;
    json_t *state = read_state(path);
    const bool known = json_object_del(state, job_stage_names[stage]) == 0;
    const lh_status_t status = known ? write_state(path, state) : LH_OK;
    json_decref(state);
    mem_free(path);
    return status;
}

lh_status_t stage_mark(const job_t *job, uint32_t stage, const char *digest)
{
    char *path = state_path(job);
    if (path == NULL) return LH_NO_MEMORY;
    json_t *state = read_state(path);
    lh_status_t status = folder_make(job->pipeline.folder);
    if (status == LH_OK &&
        json_object_set_new(state, job_stage_names[stage], json_string(digest)) != 0)
        status = fail(LH_NO_MEMORY, "out of memory: %s", path);
    if (status == LH_OK) status = write_state(path, state);
    json_decref(state);
    mem_free(path);
    return status;
}
