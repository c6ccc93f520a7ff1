/* hf_import.c - checks a Hugging Face folder against the model, then streams it into a checkpoint.
 */
#include <hf/hf_import.h>

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>

#include <base/dtype.h>
#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <checkpoint/commit.h>
#include <hf/hf_folder.h>
#include <hf/hf_weights.h>

typedef struct import {
    const hf_import_how_t *how;
    hf_table_t table;
    hf_weights_t weights;
    shard_index_t *files;
    const shard_tensor_t **source; /* of each of weights.tensors */
    checkpoint_tensor_t *tensors;  /* of the checkpoint          */
    uint32_t *index;               /* [parameters] into tensors   */
    uint32_t tensor_count;
    hf_import_result_t result;
} import_t;

/* Old uploads leave the prefix out. */
static const shard_tensor_t *find_source(const import_t *im, const char *name)
{
    const shard_tensor_t *t = shard_index_find(im->files, name);
    const char *prefix = im->table.head.prefix;
    if (t != NULL || prefix == NULL || !text_starts(name, prefix)) return t;
    return shard_index_find(im->files, name + strlen(prefix));
}

static lh_status_t check_source(const hf_tensor_t *t, const shard_tensor_t *s)
{
    const safetensor_t *found = s->tensor;
    bool same = found->rank == t->rank;
    for (uint32_t i = 0; same && i < t->rank; i++)
        same = found->shape[i] == t->shape[i];
    if (!same) {
        char has[HF_SHAPE_TEXT], wants[HF_SHAPE_TEXT];
        hf_shape_text(found->rank, found->shape, has);
        hf_shape_text(t->rank, t->shape, wants);
        return fail(LH_INVALID, "%s: tensor %s is %s, the model wants %s", s->file->path,
                    found->name, has, wants);
    }
    const lh_dtype_t d = found->dtype->number;
    if (d != LH_DTYPE_F32 && d != LH_DTYPE_BF16 && d != LH_DTYPE_F16)
        return fail(LH_UNSUPPORTED, "%s: tensor %s is %s; F32, BF16 and F16 are read",
                    s->file->path, found->name, found->dtype->name);
    return LH_OK;
}

static lh_status_t match_sources(import_t *im)
{
    const hf_tensor_t *missing = NULL;
    uint32_t missing_count = 0;
    im->source = mem_array(im->weights.count, sizeof(im->source[0]));
    if (im->source == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < im->weights.count; i++) {
        const hf_tensor_t *t = &im->weights.tensors[i];
        im->source[i] = find_source(im, t->name);
        if (im->source[i] == NULL && missing_count++ == 0) missing = t;
        if (im->source[i] == NULL) continue;
        const lh_status_t status = check_source(t, im->source[i]);
        if (status != LH_OK) return status;
    }
    if (missing_count == 0) return LH_OK;
    return fail(LH_INVALID, "%s: tensor %s is missing%s", im->how->from, missing->name,
                missing_count > 1 ? ", and others are" : "");
}

static bool matches(const char *globs, const char *name)
{
    char glob[256];
    while (globs != NULL && *globs != '\0') {
        globs += strspn(globs, ", ");
        const size_t length = strcspn(globs, ", ");
        (void)snprintf(glob, sizeof(glob), "%.*s", (int)length, globs);
        globs += length;
        if (length > 0 && fnmatch(glob, name, 0) == 0) return true;
    }
    return false;
}

static bool is_tied(const import_t *im, const shard_tensor_t *t)
{
    for (uint32_t i = 0; i < im->weights.tied_count; i++)
        if (find_source(im, im->weights.tied[i].tensor) == t) return true;
    return false;
}

/* Every tensor of the folder is used, known to be no weight, or a copy of a tied one. */
static lh_status_t refuse_extra(const import_t *im)
{
    bool *used = mem_array(im->files->count, sizeof(*used));
    if (used == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < im->weights.count; i++)
        used[im->source[i] - im->files->tensors] = true;

    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < im->files->count && status == LH_OK; i++) {
        const shard_tensor_t *t = &im->files->tensors[i];
        if (used[i] || matches(im->table.head.ignored, t->tensor->name)) continue;
        if (is_tied(im, t))
            log_line(LH_LOG_INFO, "%s: tensor %s is not read: it is tied to another", t->file->path,
                     t->tensor->name);
        else
            status = fail(LH_INVALID, "%s: tensor %s is none of this model's", t->file->path,
                          t->tensor->name);
    }
    mem_free(used);
    return status;
}

static lh_status_t list_tensors(import_t *im)
{
    const parameters_t *p = im->how->parameters;
    im->tensors = mem_array(p->count, sizeof(im->tensors[0]));
    im->index = mem_array(p->count, sizeof(im->index[0]));
    if (im->tensors == NULL || im->index == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < p->count; i++) {
        const parameter_t *item = &p->items[i];
        if (item->storage != i) continue;
        checkpoint_tensor_t *t = &im->tensors[im->tensor_count];
        *t = (checkpoint_tensor_t){.name = item->name, .dtype = LH_DTYPE_F32, .rank = item->rank};
        memcpy(t->shape, item->shape, sizeof(t->shape));
        im->index[i] = im->tensor_count++;
    }
    for (uint32_t i = 0; i < im->weights.count; i++)
        for (uint32_t k = 0; k < im->weights.tensors[i].user_count; k++) {
            const uint32_t parameter = im->weights.tensors[i].users[k].parameter;
            lh_assert(im->index[parameter] < im->tensor_count);
            im->tensors[im->index[parameter]].source = im->source[i]->tensor->dtype->number;
        }
    return LH_OK;
}

/* Training from such weights gives nothing but such values: better to hear of them now. */
static void warn_of_values(const hf_tensor_t *t, const shard_tensor_t *s, const float *values)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < t->elements; i++)
        count += isfinite(values[i]) ? 0 : 1;
    if (count == 0) return;
    log_line(LH_LOG_WARN, "%s: tensor %s: %llu of %llu values are NaN or infinite", s->file->path,
             s->tensor->name, (unsigned long long)count, (unsigned long long)t->elements);
}

static lh_status_t stream_one(import_t *im, commit_t *c, uint32_t tensor)
{
    lh_assert(tensor < im->weights.count && im->source[tensor] != NULL);
    const hf_tensor_t *t = &im->weights.tensors[tensor];
    const shard_tensor_t *s = im->source[tensor];
    const hf_transform_t how = {im->how->parameters, im->how->host, im->how->plugins};
    void *raw = mem_new((size_t)s->tensor->bytes);
    float *values = mem_array((size_t)t->elements, sizeof(*values));
    float *own = mem_array((size_t)t->elements, sizeof(*own));
    lh_status_t status = LH_NO_MEMORY;
    if (raw == NULL || values == NULL || own == NULL) goto free_buffers;

    status = safetensors_read(s->file, s->tensor, 0, raw, s->tensor->bytes);
    if (status == LH_OK)
        status = dtype_convert(LH_DTYPE_F32, values, s->tensor->dtype->number, raw, t->elements);
    if (status == LH_OK) warn_of_values(t, s, values);
    for (uint32_t i = 0; i < t->user_count && status == LH_OK; i++) {
        const uint32_t parameter = t->users[i].parameter;
        status = hf_transform_import(&how, t, parameter, values, own);
        if (status == LH_OK) status = commit_stream_tensor(c, im->index[parameter], own);
    }
    im->result.tensors++;
    im->result.bytes += s->tensor->bytes;
free_buffers:
    mem_free(own);
    mem_free(values);
    mem_free(raw);
    return status;
}

static lh_status_t stream_all(import_t *im, const char *folder)
{
    const checkpoint_meta_t meta = {.run = "import", .model = im->how->model_options};
    commit_t *c;
    char *checkpoints = path_join(folder, "checkpoints");
    if (checkpoints == NULL) return LH_NO_MEMORY;
    lh_status_t status = commit_begin(checkpoints, &meta, "", &c);
    mem_free(checkpoints);
    if (status != LH_OK) return status;

    status = commit_stream(c, 0, im->tensors, im->tensor_count);
    for (uint32_t i = 0; i < im->weights.count && status == LH_OK; i++)
        status = stream_one(im, c, i);
    if (status == LH_OK) status = commit_stream_end(c);
    if (status != LH_OK) {
        commit_abandon(c);
        return status;
    }
    return commit_finish(c, 0, NULL);
}

static lh_status_t copy_config(const import_t *im, const char *folder)
{
    char *from = path_join(im->how->from, "config.json"), *to = path_join(folder, "config.json");
    char *text = NULL;
    size_t length;
    lh_status_t status = LH_NO_MEMORY;
    if (from == NULL || to == NULL) goto free_paths;
    status = file_read(from, 16 << 20, &text, &length);
    if (status == LH_OK) status = file_replace(to, text, length);
    mem_free(text);
free_paths:
    mem_free(from);
    mem_free(to);
    return status;
}

static lh_status_t fill_folder(import_t *im)
{
    hf_folder_t *folder;
    lh_status_t status = hf_folder_begin(im->how->folder, &own_files_of_import, &folder);
    if (status != LH_OK) return status;
    const char *staged = hf_folder_path(folder);
    status = stream_all(im, staged);
    if (status == LH_OK) status = copy_config(im, staged);
    if (status == LH_OK) status = hf_files_copy(im->how->from, staged);
    if (status == LH_OK) return hf_folder_publish(folder);
    hf_folder_abandon(folder);
    return status;
}

lh_status_t hf_import(const hf_import_how_t *how, hf_import_result_t *out)
{
    import_t im = {.how = how};
    lh_status_t status = hf_table_import(how->table, &im.table);
    if (status == LH_OK) status = hf_weights_new(how->parameters, &im.weights);
    if (status == LH_OK) status = shard_index_open(how->from, how->limits, &im.files);
    if (status == LH_OK) status = match_sources(&im);
    if (status == LH_OK) status = refuse_extra(&im);
    if (status == LH_OK) status = list_tensors(&im);
    if (status == LH_OK) status = fill_folder(&im);
    if (status == LH_OK && out != NULL) *out = im.result;
    mem_free(im.index);
    mem_free(im.tensors);
    mem_free(im.source);
    shard_index_close(im.files);
    hf_weights_free(&im.weights);
    hf_table_free(&im.table);
    return status;
}
