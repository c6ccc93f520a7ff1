/* hf_import.c - from a Hugging Face folder to a checkpoint.
 *
 * The import looks at everything that can be wrong before it writes a byte: every tensor of the
 * model is in the folder with its shape, every tensor of the folder has a use. Then it goes through
 * the tensors in order of their names: each is read in pieces, made F32, cut up for the parameters
 * that lie in it, and streamed into a checkpoint of step 0. The dtype that a tensor had is kept in
 * the manifest, so that an export of weights which nobody trained writes the same bytes. The folder
 * appears whole or not at all (hf_folder). */
#include <hf/hf_import.h>

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
#include <hf/hf_folder.h>
#include <hf/hf_transform.h>
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
    const char *staged; /* the new folder, until it is published */
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
static uint32_t import_piece_count(uint64_t elements, uint32_t tensors, uint64_t least)
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
            pieces[i] = of[i].tensors == 0
                            ? 0
                            : import_piece_count(of[i].elements, of[i].tensors, least);
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

/* The tensor that is read where `copy` is a second one of a tied parameter. */
static uint32_t tied_source(const import_t *im, const shard_tensor_t *copy)
{
    uint32_t i = 0, k = 0;
    while (find_source(im, im->weights.tied[i].tensor) != copy)
        i++;
    const uint32_t storage = im->how->parameters->items[im->weights.tied[i].parameter].storage;
    while (k < im->weights.count && im->weights.tensors[k].users[0].parameter != storage)
        k++;
    return k;
}

/* Elements [at, at + count) as F32; raw has room for as many. */
static lh_status_t shard_values(const shard_tensor_t *t, uint64_t at, uint64_t count, void *raw,
                                float *out)
{
    const lh_dtype_t dtype = t->tensor->dtype->number;
    const uint64_t size = lh_dtype_bytes(dtype);
    const lh_status_t status = safetensors_read(t->file, t->tensor, at * size, raw, count * size);
    return status != LH_OK ? status : dtype_convert(LH_DTYPE_F32, out, dtype, raw, count);
}

/* Transformers ties what is equal only: where a file has both tensors with other values, each is one
 * of its own to it, whatever tie_word_embeddings says. */
static lh_status_t check_copy(const import_t *im, const shard_tensor_t *copy)
{
    enum { PIECE = 1 << 16 };
    const uint32_t of = tied_source(im, copy);
    if (of == im->weights.count || im->source[of] == NULL) return LH_OK;
    const hf_tensor_t *tensor = &im->weights.tensors[of];
    lh_status_t status = check_source(tensor, copy);
    if (status != LH_OK) return status;
    float *values = mem_array((size_t)3 * PIECE, sizeof(*values));
    if (values == NULL) return LH_NO_MEMORY;
    bool same = true;
    for (uint64_t at = 0; at < tensor->elements && same && status == LH_OK; at += PIECE) {
        const uint64_t left = tensor->elements - at, n = left < PIECE ? left : PIECE;
        status = shard_values(im->source[of], at, n, values + 2 * PIECE, values);
        if (status == LH_OK) status = shard_values(copy, at, n, values + 2 * PIECE, values + PIECE);
        for (uint64_t i = 0; i < n && status == LH_OK; i++)
            same = same && (values[i] == values[PIECE + i] ||
                            (isnan(values[i]) && isnan(values[PIECE + i])));
    }
    mem_free(values);
    if (status != LH_OK || same) return status;
    return fail(
        LH_INVALID,
        "%s: tensor %s has other values than %s, to which it is tied: Transformers would not "
        "tie them; expected equal ones, or tie_word_embeddings = false",
        copy->file->path, copy->tensor->name, im->source[of]->tensor->name);
}

/* The first tensor of the folder that nobody has a use for: that no parameter lies in, that the table
 * does not ignore, and that is no copy of a tied one. *out NULL: there is none. Sources may be missing.
 * tell: a line for each copy on the way. */
static lh_status_t import_find_unread(const import_t *im, bool tell, const shard_tensor_t **out)
{
    *out = NULL;
    lh_status_t status = LH_OK;
    bool *used = mem_array(im->files->count, sizeof(*used));
    if (used == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < im->weights.count; i++)
        /* Sources point into the list of the folder's tensors, so their place there is a number. */
        if (im->source[i] != NULL && !hf_adapter_has(&im->adapter, im->source[i]))
            used[im->source[i] - im->files->tensors] = true;

    for (uint32_t i = 0; i < im->files->count && *out == NULL && status == LH_OK; i++) {
        const shard_tensor_t *t = &im->files->tensors[i];
        if (used[i] || matches_any(im->table.head.ignored, t->tensor->name)) continue;
        if (!is_tied(im, t))
            *out = t;
        else if (tell)
            status = check_copy(im, t);
        if (tell && *out == NULL && status == LH_OK)
            log_line(LH_LOG_INFO, "%s: tensor %s is not read: it is tied to another", t->file->path,
                     t->tensor->name);
    }
    mem_free(used);
    return status;
}

/* Says of a tensor that is missing how many others are, and what the folder has that no row reads: one
 * is a name misspelled in the plugin's table, all of them another architecture. */
static lh_status_t refuse_missing(const import_t *im, const hf_tensor_t *missing, uint32_t count)
{
    const bool factor = im->how->parameters->items[missing->users[0].parameter].factor;
    const shard_tensor_t *unread = NULL;
    lh_status_t status = LH_OK;
    if (factor)
        unread = hf_adapter_unread(&im->adapter, im->source, im->weights.count);
    else
        status = import_find_unread(im, false, &unread);
    if (status != LH_OK) return status;

    text_t more = {0};
    if (count > 1)
        text_printf(&more, ", and so %s %u other%s", count == 2 ? "is" : "are", count - 1,
                    count == 2 ? "" : "s");
    if (unread != NULL)
        text_printf(&more, "; tensor %s of the folder is read by no row", unread->tensor->name);
    status = text_status(&more);
    if (status == LH_OK)
        status = fail(LH_INVALID, "%s: tensor %s is missing%s",
                      factor ? im->how->adapter : im->how->from, missing->name,
                      more.data == NULL ? "" : more.data);
    text_free(&more);
    return status;
}

/* Sets im->source. All are looked for, so that the sentence can say how many are missing. */
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
    return missing_count == 0 ? LH_OK : refuse_missing(im, missing, missing_count);
}

/* Every tensor of the folder is used, known to be no weight, or a copy of a tied one. */
static lh_status_t refuse_extra(const import_t *im)
{
    const shard_tensor_t *unread;
    const lh_status_t status = import_find_unread(im, true, &unread);
    if (status != LH_OK || unread == NULL) return status;
    return fail(LH_INVALID, "%s: tensor %s is none of this model's", unread->file->path,
                unread->tensor->name);
}

/* Marks the lines of a tensor that one of its parts takes; taken: [rows + columns], 1 + the user. */
static lh_status_t lines_take(const import_t *im, const hf_tensor_t *t, uint32_t user,
                              const hf_lines_t *l, uint32_t *taken)
{
    const parameter_t *items = im->how->parameters->items;
    const bool columns = l->moves == HF_COLUMNS;
    for (uint64_t i = 0; l->line != NULL && i < l->own.rows; i++) {
        uint32_t *by = &taken[(columns ? l->tensor.rows : 0) + l->line[i]];
        if (*by != 0)
            return fail(LH_INVALID,
                        "tensor %s: its %s %llu is of parameter %s and of %s; expected parts that "
                        "have none in common",
                        t->name, columns ? "column" : "row", (unsigned long long)l->line[i],
                        items[t->users[*by - 1].parameter].name,
                        items[t->users[user].parameter].name);
        *by = user + 1;
    }
    return LH_OK;
}

/* Parts of a tensor have as many elements as it has (hf_weights_new). Where two of them are the same
 * rows, others are nobody's: not read here, and 0 in an export. */
static lh_status_t refuse_overlap(const import_t *im, const hf_tensor_t *t)
{
    const hf_transform_t how = {
        .parameters = im->how->parameters, .host = im->how->host, .plugins = im->how->plugins};
    uint32_t *taken = NULL;
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; t->user_count > 1 && i < t->user_count && status == LH_OK; i++) {
        hf_lines_t l;
        status = hf_lines_new(&how, t, &t->users[i], &l);
        if (status != LH_OK) break;
        if (taken == NULL)
            taken = mem_array((size_t)(l.tensor.rows + l.tensor.columns), sizeof(*taken));
        status = taken == NULL ? LH_NO_MEMORY : lines_take(im, t, i, &l, taken);
        hf_lines_free(&l);
    }
    mem_free(taken);
    return status;
}

static lh_status_t refuse_overlaps(const import_t *im)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < im->weights.count && status == LH_OK; i++)
        status = refuse_overlap(im, &im->weights.tensors[i]);
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
static uint64_t import_count_tensors(const import_t *im, hf_pieces_t *of)
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
    const uint64_t count = of == NULL || im->pieces == NULL ? 0 : import_count_tensors(im, of);
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

/* ---- tensors ---- */

/* Elements that are converted at a time. */
enum { WINDOW = 1 << 20 };

/* One tensor on its way: where its users' values lie in it, and what is held of it. */
typedef struct source {
    const hf_tensor_t *tensor;
    const shard_tensor_t *stored;
    hf_lines_t *lines;    /* [tensor->user_count] */
    unsigned char *whole; /* as in the file, where columns become rows; else NULL */
    unsigned char *raw;   /* a window as in the file */
    float *values;        /* F32 of the whole, where a function wants that; else NULL */
    uint64_t odd;         /* values so far that are NaN or infinite */
} source_t;

static uint64_t source_size(const source_t *s)
{
    return lh_dtype_bytes(s->stored->tensor->dtype->number);
}

/* The tensor's elements from `at` on, as in the file. */
static lh_status_t source_raw(const source_t *s, uint64_t at, uint64_t count, void *to)
{
    return safetensors_read(s->stored->file, s->stored->tensor, at * source_size(s), to,
                            count * source_size(s));
}

/* The same as F32, a window at most. */
static lh_status_t source_values(const source_t *s, uint64_t at, uint64_t count, float *to)
{
    const lh_status_t status = source_raw(s, at, count, s->raw);
    if (status != LH_OK) return status;
    return dtype_convert(LH_DTYPE_F32, to, s->stored->tensor->dtype->number, s->raw, count);
}

static void source_close(source_t *s)
{
    for (uint32_t i = 0; s->lines != NULL && i < s->tensor->user_count; i++)
        hf_lines_free(&s->lines[i]);
    mem_free(s->lines);
    mem_free(s->whole);
    hf_whole_free(s->values, s->tensor->elements);
    mem_free(s->raw);
}

/* Holds of the tensor what its functions need. */
static lh_status_t source_hold(source_t *s, const hf_transform_t *how, bool columns, bool whole)
{
    const uint64_t elements = s->tensor->elements;
    if (!whole && !columns) return LH_OK;
    if (!whole) {
        s->whole = mem_new((size_t)s->stored->tensor->bytes);
        return s->whole == NULL ? LH_NO_MEMORY : source_raw(s, 0, elements, s->whole);
    }
    lh_status_t status = hf_whole_new(how, elements, &s->values);
    for (uint64_t at = 0; at < elements && status == LH_OK; at += WINDOW)
        status = source_values(s, at, elements - at < WINDOW ? elements - at : WINDOW,
                               s->values + at);
    return status;
}

static lh_status_t source_open(const import_t *im, const hf_transform_t *how, uint32_t tensor,
                               source_t *s)
{
    lh_assert(tensor < im->weights.count && im->source[tensor] != NULL);
    *s = (source_t){.tensor = &im->weights.tensors[tensor], .stored = im->source[tensor]};
    const uint64_t elements = s->tensor->elements, window = elements < WINDOW ? elements : WINDOW;
    bool columns = false, whole = false;
    s->lines = mem_array(s->tensor->user_count, sizeof(s->lines[0]));
    s->raw = mem_new((size_t)(window * source_size(s)));
    if (s->lines == NULL || s->raw == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < s->tensor->user_count; i++) {
        const lh_status_t status = hf_lines_new(how, s->tensor, &s->tensor->users[i], &s->lines[i]);
        if (status != LH_OK) return status;
        columns = columns || s->lines[i].moves == HF_COLUMNS;
        whole = whole || s->lines[i].moves == HF_WHOLE;
    }
    return source_hold(s, how, columns, whole);
}

/* Training from such weights gives nothing but such values: better to hear of them. */
static uint64_t count_odd(const float *values, uint64_t count)
{
    uint64_t odd = 0;
    for (uint64_t i = 0; i < count; i++)
        odd += isfinite(values[i]) ? 0 : 1;
    return odd;
}

static void warn_of_values(const source_t *s)
{
    if (s->odd == 0) return;
    log_line(LH_LOG_WARN, "%s: tensor %s: %llu of %llu values are NaN or infinite",
             s->stored->file->path, s->stored->tensor->name, (unsigned long long)s->odd,
             (unsigned long long)s->tensor->elements);
}

/* PEFT's magnitudes are norms, a lora_m the difference to those of the matrix: which is a tensor of
 * its own, or it would have no PEFT name. values: of rows [first, first + count). */
static lh_status_t import_magnitude(const import_t *im, uint32_t parameter, uint64_t first,
                                    uint64_t count, float *values)
{
    const uint32_t matrix = parameter - ADAPTER_FACTORS;
    uint32_t i = 0;
    while (i < im->weights.count && im->weights.tensors[i].users[0].parameter != matrix)
        i++;
    lh_assert(i < im->weights.count);
    const uint64_t columns = im->how->parameters->items[matrix].columns;
    const uint64_t step = columns < WINDOW ? WINDOW / columns : 1;
    source_t s = {.tensor = &im->weights.tensors[i], .stored = im->source[i]};
    s.raw = mem_new((size_t)(step * columns * source_size(&s)));
    float *rows = mem_array((size_t)(step * columns), sizeof(*rows));
    lh_status_t status = s.raw == NULL || rows == NULL ? LH_NO_MEMORY : LH_OK;
    for (uint64_t done = 0; done < count && status == LH_OK; done += step) {
        const uint64_t n = count - done < step ? count - done : step;
        status = source_values(&s, (first + done) * columns, n * columns, rows);
        if (status == LH_OK) hf_adapter_add_norms(rows, n, columns, -1, values + done);
    }
    mem_free(rows);
    mem_free(s.raw);
    return status;
}

/* Elements [at, at + count) of a user, a window at most, whose tensor is in pieces. */
static lh_status_t window_values(source_t *s, const hf_lines_t *l, uint64_t at, uint64_t count,
                                 float *out)
{
    const uint64_t end = at + count, size = source_size(s);
    uint64_t n, place;
    lh_status_t status = LH_OK;
    if (s->whole != NULL) {
        hf_lines_gather(l, at, count, size, s->whole, s->raw);
    } else {
        for (unsigned char *to = s->raw; at < end && status == LH_OK; at += n, to += n * size) {
            n = hf_lines_run(l, at, end, &place);
            status = source_raw(s, place, n, to);
        }
    }
    if (status == LH_OK)
        status = dtype_convert(LH_DTYPE_F32, out, s->stored->tensor->dtype->number, s->raw, count);
    if (status == LH_OK) s->odd += count_odd(out, count);
    return status;
}

/* A piece of the checkpoint: elements [at, at + count) of a user. */
static lh_status_t piece_values(const import_t *im, const hf_transform_t *how, source_t *s,
                                uint32_t user, uint64_t at, uint64_t count, float *out)
{
    const hf_user_t *u = &s->tensor->users[user];
    const hf_lines_t *l = &s->lines[user];
    const parameter_t *item = &im->how->parameters->items[u->parameter];
    lh_status_t status = LH_OK;
    for (uint64_t done = 0; done < count && status == LH_OK; done += WINDOW)
        status = window_values(s, l, at + done, count - done < WINDOW ? count - done : WINDOW,
                               out + done);
    if (status == LH_OK && l->moves == HF_EACH) status = hf_transform_each(how, u, out, count);
    if (status == LH_OK && parameter_is_magnitude(item))
        status = import_magnitude(im, u->parameter, at, count, out);
    return status;
}

/* A user's values, piece by piece; whole: where a function has made them of the whole tensor. */
static lh_status_t stream_user(const import_t *im, const hf_transform_t *how, commit_t *c,
                               source_t *s, uint32_t user, const float *whole)
{
    const hf_user_t *u = &s->tensor->users[user];
    const uint32_t first = user_index(im, u), pieces = im->pieces[u->parameter];
    uint64_t shape[LH_MAX_RANK], elements;
    (void)hf_user_shape(im->how->parameters, u, shape, &elements);
    const tensor_part_t all = {.count = elements};
    const uint64_t most = piece_of(&all, 0, pieces).count;
    float *values = whole != NULL ? NULL : mem_array((size_t)most, sizeof(*values));
    lh_status_t status = whole == NULL && values == NULL ? LH_NO_MEMORY : LH_OK;
    for (uint32_t k = 0; k < pieces && status == LH_OK; k++) {
        const tensor_part_t piece = piece_of(&all, k, pieces);
        if (whole == NULL)
            status = piece_values(im, how, s, user, piece.first, piece.count, values);
        if (status == LH_OK)
            status = commit_stream_tensor(c, first + k,
                                          whole == NULL ? values : whole + piece.first);
    }
    mem_free(values);
    return status;
}

/* A user of a tensor that lies whole as F32; so does what the function makes of it, one user's at a
 * time. */
static lh_status_t stream_whole_user(const import_t *im, const hf_transform_t *how, commit_t *c,
                                     source_t *s, uint32_t user)
{
    uint64_t shape[LH_MAX_RANK], elements;
    (void)hf_user_shape(im->how->parameters, &s->tensor->users[user], shape, &elements);
    float *own;
    lh_status_t status = hf_whole_new(how, elements, &own);
    if (status != LH_OK) return status;
    status = hf_transform_run(how, s->tensor, &s->tensor->users[user], s->values, own);
    if (status == LH_OK) status = stream_user(im, how, c, s, user, own);
    hf_whole_free(own, elements);
    return status;
}

/* One Hugging Face tensor into all parameters that lie in it. */
static lh_status_t stream_one(import_t *im, commit_t *c, uint32_t tensor)
{
    const hf_transform_t how = {.parameters = im->how->parameters,
                                .host = im->how->host,
                                .plugins = im->how->plugins,
                                .folder = im->staged};
    source_t s;
    lh_status_t status = source_open(im, &how, tensor, &s);
    if (status == LH_OK && s.values != NULL) s.odd = count_odd(s.values, s.tensor->elements);
    for (uint32_t i = 0; i < s.tensor->user_count && status == LH_OK; i++)
        status = s.values == NULL ? stream_user(im, &how, c, &s, i, NULL)
                                  : stream_whole_user(im, &how, c, &s, i);
    if (status == LH_OK) warn_of_values(&s);
    im->result.tensors++;
    im->result.bytes += s.stored->tensor->bytes;
    source_close(&s);
    return status;
}

/* The checkpoint of step 0 in the folder's checkpoints/, committed. */
static lh_status_t stream_all(import_t *im)
{
    const checkpoint_meta_t meta = {.run = "import", .model = im->how->model_options};
    commit_t *c;
    char *checkpoints = path_join(im->staged, "checkpoints");
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
    return commit_finish(c, NULL);
}

/* As it is: an export begins with it, so that keys which no table knows come back. */
static lh_status_t copy_config(const import_t *im)
{
    char *from = path_join(im->how->from, "config.json");
    char *to = path_join(im->staged, "config.json");
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
    im->staged = hf_folder_path(folder);
    status = stream_all(im);
    if (status == LH_OK) status = copy_config(im);
    if (status == LH_OK) status = hf_files_copy(im->how->from, im->staged);
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
    if (status == LH_OK) status = refuse_overlaps(&im);
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
