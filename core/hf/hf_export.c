/* hf_export.c - from a checkpoint to a Hugging Face folder, tensor by tensor into shards of bounded
 * size. Values go from the checkpoint's parts to their place in a file a window at a time, but for
 * tensors whose columns are a parameter's rows, which are put together in the file's dtype, and those
 * that a plugin's own function makes, which lie in mapped files. The folder appears whole or not at all
 * (hf_folder). */
#include <hf/hf_export.h>

#include <math.h>
#include <stdio.h>

#include <base/dtype.h>
#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <checkpoint/tensor_stream.h>
#include <format/safetensors.h>
#include <format/shard_index.h>
#include <hf/hf_folder.h>
#include <hf/hf_transform.h>
#include <hf/hf_weights.h>

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

/* ---- parameters ---- */

/* Elements that are converted at a time. */
enum { WINDOW = 1 << 20 };

/* A parameter's tensor in the checkpoint, which may be of another model: `who` wants it in the
 * parameter's shape. *out NULL: there is none. */
static lh_status_t find_tensor(const export_t *ex, const parameter_t *item, const char *who,
                               const manifest_tensor_t **out)
{
    const manifest_tensor_t *t = *out = checkpoint_find(ex->how->from, item->name);
    if (t == NULL ||
        (t->rank == item->rank && memcmp(t->shape, item->shape, sizeof(t->shape)) == 0))
        return LH_OK;
    char has[HF_SHAPE_TEXT], wants[HF_SHAPE_TEXT];
    hf_shape_text(t->rank, t->shape, has);
    hf_shape_text(item->rank, item->shape, wants);
    return fail(LH_INVALID, "%s: tensor %s is %s, %s wants %s", ex->how->from->path, item->name,
                has, who, wants);
}

/* The same of a parameter that must be there. */
static lh_status_t need_tensor(const export_t *ex, const parameter_t *item,
                               const manifest_tensor_t **out)
{
    const lh_status_t status = find_tensor(ex, item, "the model", out);
    if (status != LH_OK || *out != NULL) return status;
    return fail(LH_INVALID, "%s: tensor %s is missing", ex->how->from->path, item->name);
}

/* A factor of an adapter whole, as F32 [elements of item]; the caller frees *out. NULL: the
 * checkpoint has none, as that of an import has no adapter. */
static lh_status_t read_factor(const export_t *ex, const parameter_t *item, float **out)
{
    const tensor_part_t whole = {.count = 0};
    const manifest_tensor_t *t;
    *out = NULL;
    lh_status_t status = find_tensor(ex, item, "the [adapter]", &t);
    if (status != LH_OK || t == NULL) return status;
    float *values = mem_array((size_t)item->elements, sizeof(*values));
    if (values == NULL) return LH_NO_MEMORY;
    status = checkpoint_read(ex->how->from, t, &whole, values);
    if (status == LH_OK)
        *out = values;
    else
        mem_free(values);
    return status;
}

/* What changes a matrix where it is merged; zeroed, nothing. */
typedef struct merge {
    uint64_t rank, columns;
    float *factors[ADAPTER_FACTORS]; /* A [rank, columns], B [rows, rank], M [rows] or NULL */
    double *sums;                    /* [columns] NULL: the checkpoint has no adapter */
} merge_t;

static void merge_close(merge_t *m)
{
    for (uint32_t k = 0; k < ADAPTER_FACTORS; k++)
        mem_free(m->factors[k]);
    mem_free(m->sums);
}

/* A checkpoint without the adapter has nothing to add. */
static lh_status_t merge_open(const export_t *ex, const parameter_t *item, merge_t *m)
{
    const parameters_t *p = ex->how->parameters;
    bool all = true;
    lh_status_t status = LH_OK;
    m->rank = p->items[parameter_factor(item, ADAPTER_A)].rows;
    m->columns = item->columns;
    for (uint32_t k = 0; status == LH_OK && k < p->adapter_factors; k++) {
        status = read_factor(ex, &p->items[parameter_factor(item, k)], &m->factors[k]);
        all = all && m->factors[k] != NULL;
    }
    if (status != LH_OK || !all) return status;
    m->sums = mem_array((size_t)item->columns, sizeof(*m->sums));
    return m->sums == NULL ? LH_NO_MEMORY : LH_OK;
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

/* Rows [first, first + count) of weight [out, in] as the adapter changes it, in doubles. */
static void merge_rows(const parameters_t *p, const merge_t *m, uint64_t first, uint64_t count,
                       float *rows)
{
    const float *more = m->factors[ADAPTER_M];
    for (uint64_t i = 0; m->sums != NULL && i < count; i++)
        row_change(p, rows + i * m->columns, m->columns,
                   m->factors[ADAPTER_B] + (first + i) * m->rank, m->factors[ADAPTER_A], m->rank,
                   more == NULL ? NULL : &more[first + i], m->sums);
}

/* A lora_m as PEFT has it: the norms of its matrix's rows are added. values: of rows
 * [first, first + count). */
static lh_status_t export_magnitude(const export_t *ex, uint32_t parameter, uint64_t first,
                                    uint64_t count, float *values)
{
    const parameter_t *matrix = &ex->how->parameters->items[parameter - ADAPTER_FACTORS];
    const uint64_t columns = matrix->columns, step = columns < WINDOW ? WINDOW / columns : 1;
    const manifest_tensor_t *t;
    tensor_stream_t *from = NULL;
    float *rows = NULL;
    lh_status_t status = need_tensor(ex, matrix, &t);
    if (status == LH_OK)
        status = tensor_stream_open(ex->how->from, t, first * columns, count * columns, &from);
    if (status == LH_OK) rows = mem_array((size_t)(step * columns), sizeof(*rows));
    if (status == LH_OK && rows == NULL) status = LH_NO_MEMORY;
    for (uint64_t done = 0; done < count && status == LH_OK; done += step) {
        const uint64_t n = count - done < step ? count - done : step;
        status = tensor_stream_next(from, rows, n * columns);
        if (status == LH_OK) hf_adapter_add_norms(rows, n, columns, 1, values + done);
    }
    mem_free(rows);
    tensor_stream_close(from);
    return status;
}

/* What a tensor holds of a parameter, from its first element to its last, with its adapter added. */
typedef struct held {
    const export_t *ex;
    const parameter_t *item;
    uint32_t parameter;
    uint64_t elements, done; /* of the user's */
    uint64_t window; /* elements that are taken at a time: of a matrix that is merged, whole rows */
    tensor_stream_t *from;
    merge_t merge;
} held_t;

static void held_close(held_t *h)
{
    tensor_stream_close(h->from);
    merge_close(&h->merge);
}

static lh_status_t held_open(const export_t *ex, const hf_user_t *user, held_t *h)
{
    const parameter_t *item = &ex->how->parameters->items[user->parameter];
    const manifest_tensor_t *t;
    uint64_t shape[LH_MAX_RANK];
    *h = (held_t){.ex = ex, .item = item, .parameter = user->parameter, .window = WINDOW};
    (void)hf_user_shape(ex->how->parameters, user, shape, &h->elements);
    lh_status_t status = need_tensor(ex, item, &t);
    if (status != LH_OK) return status;
    const uint64_t first = user->expert == HF_NO_EXPERT ? 0 : user->expert * h->elements;
    status = tensor_stream_open(ex->how->from, t, first, h->elements, &h->from);
    if (status != LH_OK || item->adapter == 0) return status;
    if (item->columns < WINDOW) h->window -= WINDOW % item->columns;
    if (item->columns >= WINDOW) h->window = item->columns;
    return merge_open(ex, item, &h->merge);
}

/* The next window's values; *count of them, 0 behind the last. */
static lh_status_t held_next(held_t *h, float *values, uint64_t *count)
{
    const uint64_t left = h->elements - h->done;
    *count = left < h->window ? left : h->window;
    if (*count == 0) return LH_OK;
    lh_status_t status = tensor_stream_next(h->from, values, *count);
    if (status == LH_OK && parameter_is_magnitude(h->item))
        status = export_magnitude(h->ex, h->parameter, h->done, *count, values);
    if (status == LH_OK && h->item->adapter != 0)
        merge_rows(h->ex->how->parameters, &h->merge, h->done / h->item->columns,
                   *count / h->item->columns, values);
    h->done += *count;
    return status;
}

/* ---- tensors ---- */

/* One tensor of Hugging Face's on its way into a file. */
typedef struct target {
    const hf_tensor_t *tensor;
    lh_dtype_t dtype;
    uint64_t size; /* bytes of an element */
    safetensors_writer_t *file;
    uint32_t row;         /* of the file */
    hf_lines_t *lines;    /* [tensor->user_count] */
    unsigned char *whole; /* the file's bytes, where rows become columns; else NULL */
    float *values;        /* F32 of the whole, where a function wants that; else NULL */
    uint64_t lost;        /* values so far that the dtype has no number for */
} target_t;

static void target_close(target_t *t)
{
    for (uint32_t i = 0; t->lines != NULL && i < t->tensor->user_count; i++)
        hf_lines_free(&t->lines[i]);
    mem_free(t->lines);
    mem_free(t->whole);
    hf_whole_free(t->values, t->tensor->elements);
}

static lh_status_t target_open(const hf_transform_t *how, target_t *t)
{
    bool columns = false, whole = false;
    t->lines = mem_array(t->tensor->user_count, sizeof(t->lines[0]));
    if (t->lines == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < t->tensor->user_count; i++) {
        const lh_status_t status = hf_lines_new(how, t->tensor, &t->tensor->users[i], &t->lines[i]);
        if (status != LH_OK) return status;
        columns = columns || t->lines[i].moves == HF_COLUMNS;
        whole = whole || t->lines[i].moves == HF_WHOLE;
    }
    if (whole) return hf_whole_new(how, t->tensor->elements, &t->values);
    if (!columns) return LH_OK;
    t->whole = mem_new((size_t)(t->tensor->elements * t->size));
    return t->whole == NULL ? LH_NO_MEMORY : LH_OK;
}

/* The user's elements [at, at + count), as they are in the file, to where they lie there. */
static lh_status_t target_put(const target_t *t, const hf_lines_t *l, uint64_t at, uint64_t count,
                              const unsigned char *raw)
{
    const uint64_t end = at + count;
    uint64_t n, place;
    lh_status_t status = LH_OK;
    if (t->whole != NULL) {
        hf_lines_scatter(l, at, count, t->size, raw, t->whole);
        return LH_OK;
    }
    for (; at < end && status == LH_OK; at += n, raw += n * t->size) {
        n = hf_lines_run(l, at, end, &place);
        status = safetensors_write(t->file, t->row, place * t->size, raw, n * t->size);
    }
    return status;
}

/* As in the file; what is too large for the dtype is infinite there, and counted. */
static lh_status_t target_narrow(target_t *t, const float *values, uint64_t count,
                                 unsigned char *raw)
{
    const lh_status_t status = dtype_convert(t->dtype, raw, LH_DTYPE_F32, values, count);
    const uint16_t *bits = (const uint16_t *)(const void *)raw;
    const uint16_t exponent = t->dtype == LH_DTYPE_F16 ? 0x7C00 : 0x7F80;
    for (uint64_t i = 0; status == LH_OK && t->size == sizeof(*bits) && i < count; i++)
        t->lost += (bits[i] & exponent) == exponent && isfinite(values[i]) ? 1 : 0;
    return status;
}

/* A user's values, window by window. */
static lh_status_t target_put_user(const export_t *ex, const hf_transform_t *how, target_t *t,
                                   uint32_t user)
{
    const hf_user_t *u = &t->tensor->users[user];
    held_t h;
    float *values = NULL;
    unsigned char *raw = NULL;
    uint64_t count = 1;
    lh_status_t status = held_open(ex, u, &h);
    if (status != LH_OK) goto free_all;
    const uint64_t most = h.elements < h.window ? h.elements : h.window;
    values = mem_array((size_t)most, sizeof(*values));
    raw = mem_new((size_t)(most * t->size));
    if (values == NULL || raw == NULL) status = LH_NO_MEMORY;
    while (status == LH_OK && count > 0) {
        const uint64_t at = h.done;
        status = held_next(&h, values, &count);
        if (status == LH_OK && t->lines[user].moves == HF_EACH)
            status = hf_transform_each(how, u, values, count);
        if (status == LH_OK) status = target_narrow(t, values, count, raw);
        if (status == LH_OK) status = target_put(t, &t->lines[user], at, count, raw);
    }
free_all:
    mem_free(raw);
    mem_free(values);
    held_close(&h);
    return status;
}

/* A user's values by its function into the whole. */
static lh_status_t target_run_user(const export_t *ex, const hf_transform_t *how, const target_t *t,
                                   uint32_t user)
{
    held_t h;
    float *own = NULL;
    uint64_t count = 1;
    lh_status_t status = held_open(ex, &t->tensor->users[user], &h);
    if (status != LH_OK) goto free_all;
    status = hf_whole_new(how, h.elements, &own);
    while (status == LH_OK && count > 0)
        status = held_next(&h, own + h.done, &count);
    if (status == LH_OK)
        status = hf_transform_run(how, t->tensor, &t->tensor->users[user], own, t->values);
free_all:
    hf_whole_free(own, h.elements);
    held_close(&h);
    return status;
}

/* What lies whole as F32, to the file. */
static lh_status_t target_write_values(target_t *t)
{
    const uint64_t elements = t->tensor->elements, most = elements < WINDOW ? elements : WINDOW;
    unsigned char *raw = mem_new((size_t)(most * t->size));
    lh_status_t status = raw == NULL ? LH_NO_MEMORY : LH_OK;
    for (uint64_t at = 0; at < elements && status == LH_OK; at += WINDOW) {
        const uint64_t count = elements - at < WINDOW ? elements - at : WINDOW;
        status = target_narrow(t, t->values + at, count, raw);
        if (status == LH_OK)
            status = safetensors_write(t->file, t->row, at * t->size, raw, count * t->size);
    }
    mem_free(raw);
    return status;
}

/* Puts a Hugging Face tensor together from its parameters and writes it as one row of a file. */
static lh_status_t write_tensor(const export_t *ex, uint32_t index, safetensors_writer_t *w,
                                uint32_t row)
{
    lh_assert(index < ex->weights.count);
    const hf_transform_t how = {.parameters = ex->how->parameters,
                                .host = ex->how->host,
                                .plugins = ex->how->plugins,
                                .folder = hf_folder_path(ex->folder),
                                .exports = true};
    target_t t = {.tensor = &ex->weights.tensors[index],
                  .dtype = ex->dtype[index],
                  .size = lh_dtype_bytes(ex->dtype[index]),
                  .file = w,
                  .row = row};
    lh_status_t status = target_open(&how, &t);
    for (uint32_t i = 0; i < t.tensor->user_count && status == LH_OK; i++)
        status = t.values == NULL ? target_put_user(ex, &how, &t, i)
                                  : target_run_user(ex, &how, &t, i);
    if (status == LH_OK && t.values != NULL) status = target_write_values(&t);
    if (status == LH_OK && t.whole != NULL)
        status = safetensors_write(w, row, 0, t.whole, ex->bytes[index]);
    if (status == LH_OK && t.lost > 0)
        log_line(LH_LOG_WARN,
                 "tensor %s: %llu of %llu values are too large for %s, and infinite in the export",
                 t.tensor->name, (unsigned long long)t.lost, (unsigned long long)t.tensor->elements,
                 lh_dtype_name(t.dtype));
    target_close(&t);
    return status;
}

/* ---- files ---- */

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
static lh_status_t write_text_file(const export_t *ex, const char *name, const text_t *text)
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
    if (status == LH_OK) status = write_text_file(ex, "model.safetensors.index.json", &text);
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
    if (status == LH_OK) status = write_text_file(ex, "config.json", &text);
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
    if (status == LH_OK && how->merges != NULL)
        status = hf_files_copy_pair(how->vocabulary, how->merges, folder);
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
