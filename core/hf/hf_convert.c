/* hf_convert.c - the two ways between a Hugging Face folder and a checkpoint.
 *
 * The import looks at everything that can be wrong before it writes a byte: every tensor of the
 * model is in the folder with its shape, every tensor of the folder has a use. Then it goes through
 * the tensors in order of their names: each is read, made F32, cut up for the parameters that lie
 * in it, and streamed into a checkpoint of step 0. The dtype that a tensor had is kept in the
 * manifest, so that an export of weights which nobody trained writes the same bytes.
 *
 * The export goes the other way, tensor by tensor into shards of bounded size. Both write into a
 * folder that appears whole or not at all (hf_folder). */
#include <hf/hf_convert.h>

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>

#include <base/dtype.h>
#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <checkpoint/commit.h>
#include <checkpoint/manifest.h>
#include <format/safetensors.h>
#include <format/shard_index.h>
#include <hf/hf_adapter.h>
#include <hf/hf_folder.h>
#include <hf/hf_weights.h>

/* One import. weights.tensors are Hugging Face's, by name; tensors are the checkpoint's, of each
 * parameter with memory of its own, and of each expert's part of one that lies in several tensors of
 * Hugging Face's, as many as it has pieces: experts come in any order. */
typedef struct import {
    const hf_import_how_t *how;
    hf_table_t table;
    hf_weights_t weights;
    shard_index_t *files;
    hf_adapter_files_t adapter;    /* of PEFT's folder; empty: none */
    const shard_tensor_t **source; /* of each of weights.tensors */
    checkpoint_tensor_t *tensors;  /* of the checkpoint          */
    uint32_t *index;               /* [parameters] the first of each in tensors */
    uint32_t *pieces;              /* [parameters] of what a tensor of Hugging Face's gives it */
    uint32_t tensor_count;
    hf_import_result_t result;
} import_t;

/* The tensor of a name, or of the name without the prefix of the model, which old uploads leave
 * out. NULL: neither is there. */
static const shard_tensor_t *find_source(const import_t *im, const char *name)
{
    const shard_tensor_t *t = hf_adapter_find(&im->adapter, name);
    if (t == NULL) t = shard_index_find(im->files, name);
    const char *prefix = im->table.head.prefix;
    if (t != NULL || prefix == NULL || !text_starts(name, prefix)) return t;
    return shard_index_find(im->files, name + strlen(prefix));
}

/* Shape and dtype of a tensor of the folder are ones that this model can take. */
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

/* Elements of one expert of a parameter [experts, rows, columns]. */
static tensor_part_t expert_part(const parameter_t *item, uint32_t expert)
{
    tensor_part_t part = tensor_part_whole(item->rank, item->shape);
    lh_assert(item->rank == 3 && expert < item->shape[0]);
    part.at[0] = expert;
    part.shape[0] = 1;
    part.count = item->elements / item->shape[0];
    return part;
}

/* In pieces of so many elements at least. */
static uint32_t pieces_of(uint64_t elements, uint32_t tensors, uint64_t least)
{
    enum { MOST = 64, MOST_OF_ALL = 4096 };
    const uint64_t fit = elements / least, most = tensors > MOST_OF_ALL / MOST
                                                      ? (MOST_OF_ALL + tensors - 1) / tensors
                                                      : MOST;
    return fit < 1 ? 1 : (uint32_t)(fit < most ? fit : most);
}

/* A hash is of a whole piece: who wants a slice of it, as each of many ranks does, must read all of
 * it. So large ones are cut, into pieces of a MiB; but all of them stand in one header and in the
 * manifest, which are read whole, and so pieces are larger where there would be too many. */
uint64_t hf_import_pieces(const hf_pieces_t *of, uint32_t count, uint32_t *pieces)
{
    enum { LEAST = (1 << 20) / sizeof(float) };
    uint64_t all = 0, tensors = 0;
    for (uint32_t i = 0; i < count; i++)
        tensors += of[i].tensors;
    for (uint64_t least = LEAST; least != 0; least *= 2) {
        all = 0;
        for (uint32_t i = 0; i < count; i++) {
            pieces[i] = of[i].tensors == 0 ? 0 : pieces_of(of[i].elements, of[i].tensors, least);
            all += (uint64_t)of[i].tensors * pieces[i];
        }
        if (all <= HF_PIECES || all == tensors) break;
    }
    return all;
}

/* Elements of the k-th piece of a part. */
static tensor_part_t piece_of(const tensor_part_t *whole, uint32_t k, uint32_t pieces)
{
    tensor_part_t piece = *whole;
    const uint64_t step = (whole->count + pieces - 1) / pieces;
    piece.first = k * step;
    piece.count = k + 1 < pieces ? step : whole->count - piece.first;
    return piece;
}

/* Sets im->source. All are looked for, so that the sentence can say whether more than one is
 * missing: one is a detail, all of them another architecture. */
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
    const bool factor = im->how->parameters->items[missing->users[0].parameter].factor;
    return fail(LH_INVALID, "%s: tensor %s is missing%s", factor ? im->how->adapter : im->how->from,
                missing->name, missing_count > 1 ? ", and others are" : "");
}

/* globs: patterns with commas or blanks between them; NULL: none */
static bool matches_any(const char *globs, const char *name)
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

/* Whether a tensor of the folder is a second copy of one that is tied: some files hold both. */
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
        /* Sources point into the list of the folder's tensors, so their place there is a number. */
        if (!hf_adapter_has(&im->adapter, im->source[i]))
            used[im->source[i] - im->files->tensors] = true;

    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < im->files->count && status == LH_OK; i++) {
        const shard_tensor_t *t = &im->files->tensors[i];
        if (used[i] || matches_any(im->table.head.ignored, t->tensor->name)) continue;
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

/* Appends a tensor for each piece of each of a parameter's experts, which together cover it; or of
 * it. */
static void list_parts(import_t *im, uint32_t parameter, uint32_t experts)
{
    const parameter_t *item = &im->how->parameters->items[parameter];
    const uint32_t pieces = im->pieces[parameter];
    im->index[parameter] = im->tensor_count;
    for (uint32_t i = 0; i < experts * pieces; i++) {
        checkpoint_tensor_t *t = &im->tensors[im->tensor_count++];
        *t = (checkpoint_tensor_t){.name = item->name, .dtype = LH_DTYPE_F32, .rank = item->rank};
        memcpy(t->shape, item->shape, sizeof(t->shape));
        const tensor_part_t whole = experts > 1 ? expert_part(item, i / pieces)
                                                : tensor_part_whole(item->rank, item->shape);
        if (experts * pieces > 1) t->part = piece_of(&whole, i % pieces, pieces);
    }
}

/* Where a user's values go: the first of its pieces. */
static uint32_t user_index(const import_t *im, const hf_user_t *user)
{
    const uint32_t first = im->index[user->parameter], pieces = im->pieces[user->parameter];
    const uint32_t index = user->expert == HF_NO_EXPERT ? first : first + user->expert * pieces;
    lh_assert(index + pieces <= im->tensor_count);
    return index;
}

/* Of each parameter, in how many tensors of Hugging Face's it lies, and how many of the checkpoint's
 * that makes. */
static uint64_t count_tensors(const import_t *im, hf_pieces_t *of)
{
    const parameters_t *p = im->how->parameters;
    for (uint32_t i = 0; i < im->weights.user_count; i++)
        of[im->weights.users[i].parameter].tensors++;
    for (uint32_t i = 0; i < p->count; i++)
        if (of[i].tensors > 0) of[i].elements = p->items[i].elements / of[i].tensors;
    return hf_import_pieces(of, p->count, im->pieces);
}

/* The checkpoint's tensors: tied parameters share one. Each notes the dtype of the tensor that it
 * comes from; the manifest keeps it. */
static lh_status_t list_tensors(import_t *im)
{
    const parameters_t *p = im->how->parameters;
    hf_pieces_t *of = mem_array(p->count, sizeof(*of));
    im->index = mem_array(p->count, sizeof(im->index[0]));
    im->pieces = mem_array(p->count, sizeof(im->pieces[0]));
    const uint64_t count = of == NULL || im->pieces == NULL ? 0 : count_tensors(im, of);
    /* Users that share a tensor count once each, so this is room enough. */
    im->tensors = mem_array(count, sizeof(im->tensors[0]));
    if (of == NULL || im->tensors == NULL || im->index == NULL || im->pieces == NULL) {
        mem_free(of);
        return LH_NO_MEMORY;
    }
    for (uint32_t i = 0; i < p->count; i++)
        if ((uint64_t)of[i].tensors * im->pieces[i] > MANIFEST_PARTS) {
            const uint32_t experts = of[i].tensors;
            mem_free(of);
            return fail(LH_UNSUPPORTED, "parameter %s lies in %u tensors, at most %d are imported",
                        p->items[i].name, experts, MANIFEST_PARTS);
        }
    /* A tied one shares memory with a parameter that is in the list. */
    for (uint32_t i = 0; i < p->count; i++)
        if (p->items[i].storage == i) list_parts(im, i, of[i].tensors);
    mem_free(of);
    lh_assert(im->tensor_count <= count);
    for (uint32_t i = 0; i < im->weights.count; i++)
        for (uint32_t k = 0; k < im->weights.tensors[i].user_count; k++) {
            const hf_user_t *user = &im->weights.tensors[i].users[k];
            checkpoint_tensor_t *first = &im->tensors[user_index(im, user)];
            for (uint32_t n = 0; n < im->pieces[user->parameter]; n++)
                first[n].source = im->source[i]->tensor->dtype->number;
        }
    return LH_OK;
}

/* A user's values, piece by piece. */
static lh_status_t stream_user(const import_t *im, commit_t *c, const hf_user_t *user,
                               const float *values)
{
    const uint32_t first = user_index(im, user), pieces = im->pieces[user->parameter];
    lh_status_t status = LH_OK;
    for (uint32_t k = 0; k < pieces && status == LH_OK; k++)
        status = commit_stream_tensor(
            c, first + k, values + (pieces > 1 ? im->tensors[first + k].part.first : 0));
    return status;
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

/* Norms of the rows of a matrix, in doubles, times `by`, added to out [rows]. */
static void norms_add(const float *matrix, uint64_t rows, uint64_t columns, double by, float *out)
{
    for (uint64_t row = 0; row < rows; row++) {
        double sum = 0;
        for (uint64_t i = 0; i < columns; i++) {
            const double value = (double)matrix[row * columns + i];
            sum += value * value;
        }
        out[row] = (float)((double)out[row] + by * sqrt(sum));
    }
}

/* PEFT's magnitudes are norms, a lora_m the difference to those of the matrix: which is a tensor of
 * its own, or it would have no PEFT name. */
static lh_status_t import_magnitude(const import_t *im, uint32_t parameter, float *values)
{
    const uint32_t matrix = parameter - ADAPTER_FACTORS;
    uint32_t i = 0;
    while (i < im->weights.count && im->weights.tensors[i].users[0].parameter != matrix)
        i++;
    lh_assert(i < im->weights.count);
    const shard_tensor_t *s = im->source[i];
    const parameter_t *item = &im->how->parameters->items[matrix];
    void *raw = mem_new((size_t)s->tensor->bytes);
    float *weight = mem_array((size_t)item->elements, sizeof(*weight));
    lh_status_t status = raw == NULL || weight == NULL ? LH_NO_MEMORY : LH_OK;
    if (status == LH_OK) status = safetensors_read(s->file, s->tensor, 0, raw, s->tensor->bytes);
    if (status == LH_OK)
        status = dtype_convert(LH_DTYPE_F32, weight, s->tensor->dtype->number, raw, item->elements);
    if (status == LH_OK) norms_add(weight, item->rows, item->columns, -1, values);
    mem_free(weight);
    mem_free(raw);
    return status;
}

/* One Hugging Face tensor into all parameters that lie in it. */
static lh_status_t stream_one(import_t *im, commit_t *c, uint32_t tensor)
{
    lh_assert(tensor < im->weights.count && im->source[tensor] != NULL);
    const hf_tensor_t *t = &im->weights.tensors[tensor];
    const shard_tensor_t *s = im->source[tensor];
    const hf_transform_t how = {im->how->parameters, im->how->host, im->how->plugins};
    /* The tensor in three forms: as in the file, as F32, and as the parameter at hand wants it. */
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
        status = hf_transform_import(&how, t, &t->users[i], values, own);
        const uint32_t parameter = t->users[i].parameter;
        if (status == LH_OK && parameter_is_magnitude(&im->how->parameters->items[parameter]))
            status = import_magnitude(im, parameter, own);
        if (status == LH_OK) status = stream_user(im, c, &t->users[i], own);
    }
    im->result.tensors++;
    im->result.bytes += s->tensor->bytes;
free_buffers:
    mem_free(own);
    mem_free(values);
    mem_free(raw);
    return status;
}

/* The checkpoint of step 0 in the folder's checkpoints/, committed. */
static lh_status_t stream_all(import_t *im, const char *folder)
{
    const checkpoint_meta_t meta = {.run = "import", .model = im->how->model_options};
    commit_t *c;
    char *checkpoints = path_join(folder, "checkpoints");
    if (checkpoints == NULL) return LH_NO_MEMORY;
    lh_status_t status = commit_begin(checkpoints, &meta, "", &c);
    mem_free(checkpoints);
    if (status != LH_OK) return status;

    /* The manifest and the shards' headers are known before the first tensor is read. */
    status = commit_stream(c, 0, im->tensors, im->tensor_count);
    for (uint32_t i = 0; i < im->weights.count && status == LH_OK; i++)
        status = stream_one(im, c, i);
    if (status == LH_OK) status = commit_stream_end(c);
    if (status != LH_OK) {
        commit_abandon(c);
        return status;
    }
    return commit_finish(c, NULL, NULL);
}

/* As it is: an export begins with it, so that keys which no table knows come back. */
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

/* What the folder gets: the checkpoint, config.json, the small files that are carried along. */
static lh_status_t import_fill(import_t *im)
{
    hf_folder_t *folder;
    lh_status_t status = hf_folder_begin(im->how->folder, &hf_own_files_of_import, &folder);
    if (status != LH_OK) return status;
    const char *staged = hf_folder_path(folder);
    status = stream_all(im, staged);
    if (status == LH_OK) status = copy_config(im, staged);
    if (status == LH_OK) status = hf_files_copy(im->how->from, staged);
    if (status == LH_OK) return hf_folder_publish(folder);
    hf_folder_abandon(folder);
    return status;
}

/* All checks are before import_fill, which is the first to write. */
lh_status_t hf_import(const hf_import_how_t *how, hf_import_result_t *out)
{
    import_t im = {.how = how};
    lh_status_t status = hf_table_import(how->table, &im.table);
    const uint32_t which = how->adapter == NULL ? HF_OF_MODEL : HF_OF_BOTH;
    if (status == LH_OK) status = hf_weights_new(how->parameters, which, &im.weights);
    if (status == LH_OK && how->adapter != NULL)
        status = hf_adapter_open(how->adapter, &how->adapter_is, how->limits, &im.adapter);
    if (status == LH_OK) status = shard_index_open(how->from, how->limits, &im.files);
    if (status == LH_OK) status = match_sources(&im);
    if (status == LH_OK) status = refuse_extra(&im);
    if (status == LH_OK) status = hf_adapter_refuse_extra(&im.adapter, im.source, im.weights.count);
    if (status == LH_OK) status = list_tensors(&im);
    if (status == LH_OK) status = import_fill(&im);
    if (status == LH_OK && out != NULL) *out = im.result;
    mem_free(im.pieces);
    mem_free(im.index);
    mem_free(im.tensors);
    mem_free(im.source);
    shard_index_close(im.files);
    hf_adapter_close(&im.adapter);
    hf_weights_free(&im.weights);
    hf_table_free(&im.table);
    return status;
}

enum { FILE_NAME = 48 };

/* One export. The arrays are by index into weights.tensors and say for each the dtype and the bytes
 * in the file, and the file. */
typedef struct export
{
    const hf_export_how_t *how;
    hf_weights_t weights;
    checkpoint_t *imported; /* for the dtypes that the tensors had; NULL: none */
    lh_dtype_t *dtype;      /* of each of weights.tensors */
    uint64_t *bytes;
    uint32_t *shard;
    uint32_t shards;
    uint64_t total;
    hf_folder_t *folder;
}
export_t;

/* NONE: the checkpoint is of no import. */
static lh_dtype_t source_dtype(const checkpoint_t *c, const char *name)
{
    const manifest_tensor_t *t = c == NULL ? NULL : checkpoint_find(c, name);
    return t == NULL ? LH_DTYPE_NONE : t->source;
}

/* The dtype that was asked for; else the one that the tensor had when it was imported, as the run's
 * checkpoint knows it or that of the import; else F32. Parameters that share a tensor had one
 * dtype, so the first one tells. */
static lh_dtype_t tensor_dtype(const export_t *ex, const hf_tensor_t *t)
{
    static const lh_dtype_t asked[] = {
        [EXPORT_F32] = LH_DTYPE_F32, [EXPORT_BF16] = LH_DTYPE_BF16, [EXPORT_F16] = LH_DTYPE_F16};
    if (ex->how->dtype != EXPORT_AS_IMPORTED) return asked[ex->how->dtype];
    const char *name = ex->how->parameters->items[t->users[0].parameter].name;
    lh_dtype_t dtype = source_dtype(ex->how->from, name);
    if (dtype == LH_DTYPE_NONE) dtype = source_dtype(ex->imported, name);
    return dtype == LH_DTYPE_NONE ? LH_DTYPE_F32 : dtype;
}

/* A tensor lies whole in one file; files are filled in order of names. A tensor that is larger than
 * a shard may be gets a file of its own. */
static lh_status_t plan_shards(export_t *ex)
{
    const uint32_t count = ex->weights.count;
    ex->dtype = mem_array(count, sizeof(ex->dtype[0]));
    ex->bytes = mem_array(count, sizeof(ex->bytes[0]));
    ex->shard = mem_array(count, sizeof(ex->shard[0]));
    if (ex->dtype == NULL || ex->bytes == NULL || ex->shard == NULL) return LH_NO_MEMORY;

    const bool one = ex->how->shard_bytes == 0 || ex->how->separate != NULL;
    const uint64_t most = one ? UINT64_MAX : ex->how->shard_bytes;
    uint64_t held = 0;
    ex->shards = 1;
    for (uint32_t i = 0; i < count; i++) {
        const hf_tensor_t *t = &ex->weights.tensors[i];
        lh_assert(t->user_count > 0);
        ex->dtype[i] = tensor_dtype(ex, t);
        ex->bytes[i] = t->elements * lh_dtype_bytes(ex->dtype[i]);
        /* A file that holds something is full where the next tensor would go over. */
        if (held > 0 && (held >= most || ex->bytes[i] > most - held)) {
            ex->shards++;
            held = 0;
        }
        ex->shard[i] = ex->shards - 1;
        held += ex->bytes[i];
        ex->total += ex->bytes[i];
    }
    return LH_OK;
}

/* As Transformers names them. */
static void shard_name(const export_t *ex, uint32_t shard, char out[FILE_NAME])
{
    lh_assert(shard < ex->shards);
    if (ex->how->separate != NULL)
        (void)snprintf(out, FILE_NAME, HF_ADAPTER_WEIGHTS);
    else if (ex->shards == 1)
        (void)snprintf(out, FILE_NAME, "model.safetensors");
    else
        (void)snprintf(out, FILE_NAME, "model-%05u-of-%05u.safetensors", shard + 1, ex->shards);
}

/* A tensor of the checkpoint whole, as F32 [elements of item]; the caller frees *out. NULL: the
 * checkpoint has none, as that of an import has no adapter. */
static lh_status_t read_factor(const export_t *ex, const parameter_t *item, float **out)
{
    const tensor_part_t whole = {.count = 0};
    const manifest_tensor_t *t = checkpoint_find(ex->how->from, item->name);
    *out = NULL;
    if (t == NULL) return LH_OK;
    if (t->rank != item->rank || memcmp(t->shape, item->shape, sizeof(t->shape)) != 0) {
        char has[HF_SHAPE_TEXT], wants[HF_SHAPE_TEXT];
        hf_shape_text(t->rank, t->shape, has);
        hf_shape_text(item->rank, item->shape, wants);
        return fail(LH_INVALID, "%s: tensor %s is %s, the [adapter] wants %s", ex->how->from->path,
                    item->name, has, wants);
    }
    float *values = mem_array((size_t)item->elements, sizeof(*values));
    if (values == NULL) return LH_NO_MEMORY;
    const lh_status_t status = checkpoint_read(ex->how->from, t, &whole, values);
    if (status == LH_OK)
        *out = values;
    else
        mem_free(values);
    return status;
}

/* One row of weight += scale B A, b [rank] being B's, and with a magnitude scaled to the norm that it
 * had and `more`. sums [columns]. */
static void row_change(const parameters_t *p, float *row, uint64_t columns, const float *b,
                       const float *a, uint64_t rank, const float *more, double *sums)
{
    double before = 0, after = 0, by = 1;
    memset(sums, 0, columns * sizeof(*sums));
    for (uint64_t k = 0; k < rank; k++)
        for (uint64_t i = 0; i < columns; i++)
            sums[i] += (double)b[k] * (double)a[k * columns + i];
    for (uint64_t i = 0; i < columns; i++) {
        sums[i] = (double)row[i] + p->adapter_scale * sums[i];
        before += (double)row[i] * (double)row[i];
        after += sums[i] * sums[i];
    }
    if (more != NULL) by = after > 0 ? (sqrt(before) + (double)*more) / sqrt(after) : 0;
    for (uint64_t i = 0; i < columns; i++)
        row[i] = (float)(by * sums[i]);
}

/* weight [out, in] as the adapter changes it, in doubles. A checkpoint without the adapter has
 * nothing to add. */
static lh_status_t add_adapter(const export_t *ex, const parameter_t *item, float *weight)
{
    const parameters_t *p = ex->how->parameters;
    const uint64_t rank = p->items[parameter_factor(item, ADAPTER_A)].rows;
    float *factors[ADAPTER_FACTORS] = {NULL};
    double *sums = mem_array((size_t)item->columns, sizeof(*sums));
    lh_status_t status = sums == NULL ? LH_NO_MEMORY : LH_OK;
    bool all = true;
    for (uint32_t k = 0; status == LH_OK && k < p->adapter_factors; k++) {
        status = read_factor(ex, &p->items[parameter_factor(item, k)], &factors[k]);
        all = all && factors[k] != NULL;
    }
    for (uint64_t row = 0; status == LH_OK && all && row < item->rows; row++)
        row_change(p, &weight[row * item->columns], item->columns, factors[ADAPTER_B] + row * rank,
                   factors[ADAPTER_A], rank,
                   factors[ADAPTER_M] == NULL ? NULL : &factors[ADAPTER_M][row], sums);
    for (uint32_t k = 0; k < ADAPTER_FACTORS; k++)
        mem_free(factors[k]);
    mem_free(sums);
    return status;
}

/* A lora_m as PEFT has it: the norms of its matrix's rows are added. */
static lh_status_t export_magnitude(const export_t *ex, uint32_t parameter, float *values)
{
    const parameter_t *matrix = &ex->how->parameters->items[parameter - ADAPTER_FACTORS];
    float *weight = NULL;
    lh_status_t status = read_factor(ex, matrix, &weight);
    if (status == LH_OK && weight == NULL)
        status = fail(LH_INVALID, "%s: tensor %s is missing", ex->how->from->path, matrix->name);
    if (status == LH_OK) norms_add(weight, matrix->rows, matrix->columns, 1, values);
    mem_free(weight);
    return status;
}

/* What a tensor holds of a parameter, from the checkpoint, wherever its shards lie in it. Its shape is
 * compared with the model's, as a checkpoint may be of another one. */
static lh_status_t read_parameter(const export_t *ex, const hf_user_t *user, float *out)
{
    const parameter_t *item = &ex->how->parameters->items[user->parameter];
    const manifest_tensor_t *t = checkpoint_find(ex->how->from, item->name);
    if (t == NULL)
        return fail(LH_INVALID, "%s: tensor %s is missing", ex->how->from->path, item->name);
    if (t->rank != item->rank || memcmp(t->shape, item->shape, sizeof(t->shape)) != 0) {
        char has[HF_SHAPE_TEXT], wants[HF_SHAPE_TEXT];
        hf_shape_text(t->rank, t->shape, has);
        hf_shape_text(item->rank, item->shape, wants);
        return fail(LH_INVALID, "%s: tensor %s is %s, the model wants %s", ex->how->from->path,
                    item->name, has, wants);
    }
    /* no cut: all elements */
    tensor_part_t part = {.count = 0};
    if (user->expert != HF_NO_EXPERT) part = expert_part(item, user->expert);
    lh_status_t status = checkpoint_read(ex->how->from, t, &part, out);
    if (status == LH_OK && parameter_is_magnitude(item))
        status = export_magnitude(ex, user->parameter, out);
    return status == LH_OK && item->adapter != 0 ? add_adapter(ex, item, out) : status;
}

/* Puts a Hugging Face tensor together from its parameters and writes it as one row of a file. */
static lh_status_t write_tensor(const export_t *ex, uint32_t index, safetensors_writer_t *w,
                                uint32_t row)
{
    lh_assert(index < ex->weights.count);
    const hf_tensor_t *t = &ex->weights.tensors[index];
    const hf_transform_t how = {ex->how->parameters, ex->how->host, ex->how->plugins};
    float *own = mem_array((size_t)t->elements, sizeof(*own));
    float *values = mem_array((size_t)t->elements, sizeof(*values));
    void *raw = mem_new((size_t)ex->bytes[index]);
    lh_status_t status = LH_NO_MEMORY;
    if (own == NULL || values == NULL || raw == NULL) goto free_buffers;

    status = LH_OK;
    for (uint32_t i = 0; i < t->user_count && status == LH_OK; i++) {
        status = read_parameter(ex, &t->users[i], own);
        if (status == LH_OK) status = hf_transform_export(&how, t, &t->users[i], own, values);
    }
    if (status == LH_OK)
        status = dtype_convert(ex->dtype[index], raw, LH_DTYPE_F32, values, t->elements);
    if (status == LH_OK) status = safetensors_write(w, row, 0, raw, ex->bytes[index]);
free_buffers:
    mem_free(raw);
    mem_free(values);
    mem_free(own);
    return status;
}

/* Tensors [first, first + count) in one file. */
static lh_status_t write_shard(const export_t *ex, uint32_t first, uint32_t count)
{
    lh_assert(first <= ex->weights.count && count <= ex->weights.count - first);
    char name[FILE_NAME];
    shard_name(ex, ex->shard[first], name);
    char *path = path_join(hf_folder_path(ex->folder), name);
    safetensors_row_t *rows = mem_array(count, sizeof(*rows));
    safetensors_writer_t *w = NULL;
    lh_status_t status = LH_NO_MEMORY;
    if (path == NULL || rows == NULL) goto free_rows;

    for (uint32_t i = 0; i < count; i++) {
        const hf_tensor_t *t = &ex->weights.tensors[first + i];
        rows[i] = (safetensors_row_t){
            .name = t->name, .dtype = ex->dtype[first + i], .rank = t->rank};
        memcpy(rows[i].shape, t->shape, sizeof(rows[i].shape));
    }
    status = safetensors_create(path, rows, count, NULL, 0, &w);
    for (uint32_t i = 0; i < count && status == LH_OK; i++)
        status = write_tensor(ex, first + i, w, i);
    if (status == LH_OK)
        status = safetensors_finish(w, NULL);
    else
        safetensors_abandon(w);
free_rows:
    mem_free(rows);
    mem_free(path);
    return status;
}

/* Tensors of one file follow each other, as files are filled in their order. */
static lh_status_t write_shards(const export_t *ex)
{
    lh_status_t status = LH_OK;
    uint32_t first = 0;
    for (uint32_t i = 1; i <= ex->weights.count && status == LH_OK; i++) {
        if (i < ex->weights.count && ex->shard[i] == ex->shard[first]) continue;
        status = write_shard(ex, first, i - first);
        first = i;
    }
    return status;
}

/* A small file of the folder. */
static lh_status_t write_text(const export_t *ex, const char *name, const text_t *text)
{
    char *path = path_join(hf_folder_path(ex->folder), name);
    if (path == NULL) return LH_NO_MEMORY;
    const lh_status_t status = file_replace(path, text->data, text->length);
    mem_free(path);
    return status;
}

/* Only where there are several files: a single one needs no index. */
static lh_status_t write_index(const export_t *ex)
{
    if (ex->shards == 1) return LH_OK;
    shard_entry_t *entries = mem_array(ex->weights.count, sizeof(*entries));
    char(*names)[FILE_NAME] = mem_array(ex->shards, FILE_NAME);
    text_t text = {0};
    lh_status_t status = LH_NO_MEMORY;
    if (entries == NULL || names == NULL) goto free_entries;
    for (uint32_t i = 0; i < ex->shards; i++)
        shard_name(ex, i, names[i]);
    for (uint32_t i = 0; i < ex->weights.count; i++)
        entries[i] = (shard_entry_t){ex->weights.tensors[i].name, names[ex->shard[i]]};
    shard_index_text(&text, entries, ex->weights.count, ex->total);
    status = text_status(&text);
    if (status == LH_OK) status = write_text(ex, "model.safetensors.index.json", &text);
    text_free(&text);
free_entries:
    mem_free(names);
    mem_free(entries);
    return status;
}

/* As Transformers names the dtype that most weights have; NULL: what the imported file says. */
static const char *config_dtype(const export_t *ex)
{
    static const char *const names[LH_DTYPES] = {
        [LH_DTYPE_F32] = "float32", [LH_DTYPE_BF16] = "bfloat16", [LH_DTYPE_F16] = "float16"};
    uint64_t elements[LH_DTYPES] = {0};
    lh_dtype_t most = LH_DTYPE_F32;
    if (ex->how->dtype == EXPORT_AS_IMPORTED && ex->how->imported != NULL) return NULL;
    for (uint32_t i = 0; i < ex->weights.count; i++) {
        elements[ex->dtype[i]] += ex->weights.tensors[i].elements;
        if (elements[ex->dtype[i]] > elements[most]) most = ex->dtype[i];
    }
    return names[most];
}

/* The imported config.json with the run's values in it, or a new one where nothing was imported. */
static lh_status_t write_config(const export_t *ex)
{
    const hf_export_how_t *how = ex->how;
    char *kept = how->imported == NULL ? NULL : path_join(how->imported, "config.json");
    if (how->imported != NULL && kept == NULL) return LH_NO_MEMORY;
    const hf_config_facts_t facts = {.option = how->option,
                                     .context = how->context,
                                     .vocab = how->parameters->vocab,
                                     .blocks = how->parameters->blocks,
                                     .dtype = config_dtype(ex),
                                     .kept = kept,
                                     .bos = how->bos,
                                     .eos = how->eos};
    text_t text = {0};
    lh_status_t status = hf_config_write(how->table, &facts, &text);
    if (status == LH_OK) status = write_text(ex, "config.json", &text);
    text_free(&text);
    mem_free(kept);
    return status;
}

/* The run's own tokenizer comes before what the import has carried along: a file that is there
 * already is not copied over. */
static lh_status_t export_fill(export_t *ex)
{
    const hf_export_how_t *how = ex->how;
    const char *folder = hf_folder_path(ex->folder);
    lh_status_t status = write_shards(ex);
    if (status == LH_OK && how->separate != NULL)
        return hf_adapter_write_config(how->separate, &ex->weights, folder);
    if (status == LH_OK) status = write_index(ex);
    if (status == LH_OK) status = write_config(ex);
    if (status == LH_OK && how->tokenizer != NULL)
        status = hf_files_copy_tokenizer(how->tokenizer, folder);
    if (status == LH_OK && how->imported != NULL) status = hf_files_copy(how->imported, folder);
    return status;
}

/* The tokenizer's own file belongs to the export as well, whatever it is called. */
static lh_status_t write_folder(export_t *ex)
{
    hf_own_files_t own = ex->how->separate != NULL ? hf_own_files_of_adapter
                                                   : hf_own_files_of_export;
    if (ex->how->tokenizer != NULL) own.extra = path_name(ex->how->tokenizer);
    lh_status_t status = hf_folder_begin(ex->how->folder, &own, &ex->folder);
    if (status != LH_OK) return status;
    status = export_fill(ex);
    if (status == LH_OK) return hf_folder_publish(ex->folder);
    hf_folder_abandon(ex->folder);
    return status;
}

/* The checkpoint that the import has made, which knows the dtypes where the run's own doesn't. */
static lh_status_t open_imported(export_t *ex)
{
    if (ex->how->imported == NULL) return LH_OK;
    char *folder = path_join(ex->how->imported, "checkpoints/step-000000000000");
    if (folder == NULL) return LH_NO_MEMORY;
    const lh_status_t status = checkpoint_open(folder, &ex->imported);
    mem_free(folder);
    return status;
}

/* A checkpoint with tensors that the model lacks is refused first: it is another model's. */
lh_status_t hf_export(const hf_export_how_t *how, hf_export_result_t *out)
{
    export_t ex = {.how = how};
    lh_status_t status = checkpoint_refuse_extra(how->from, how->parameters);
    if (status != LH_OK) return status;
    status = hf_weights_new(how->parameters, how->separate != NULL ? HF_OF_ADAPTER : HF_OF_MODEL,
                            &ex.weights);
    if (status == LH_OK) status = open_imported(&ex);
    if (status == LH_OK) status = plan_shards(&ex);
    if (status == LH_OK) status = write_folder(&ex);
    if (status == LH_OK && out != NULL)
        *out = (hf_export_result_t){
            .tensors = ex.weights.count, .bytes = ex.total, .shards = ex.shards};
    mem_free(ex.shard);
    mem_free(ex.bytes);
    mem_free(ex.dtype);
    checkpoint_close(ex.imported);
    hf_weights_free(&ex.weights);
    return status;
}
