/* shard_index.c - opens all shards of a folder and checks that they are what the index says.
 *
 * The index file names a shard for every tensor. It is checked against the shards in both
 * directions before any weight is read: a tensor that one of them lacks would else show in the
 * middle of an import, and one too many never. */
#include <format/shard_index.h>

#include <stdlib.h>

#include <base/file.h>
#include <base/memory.h>
#include <format/json.h>

/* Limits of the index file and of names in it. */
enum {
    NAME_MOST = 255,
    SHARDS_USUAL = 100000,
    INDEX_MOST = 256 << 20,
    INDEX_REST = 1 << 16, /* bytes beside the entries, and values */
    ENTRY_BYTES = 1024,
};

#define WHOLE_NAME "model.safetensors"
#define INDEX_NAME "model.safetensors.index.json"

/* The index is a stranger's: a name with a slash could lead out of the folder. */
bool shard_name_is_plain(const char *name)
{
    const size_t length = strlen(name);
    return length > 0 && length <= NAME_MOST && strchr(name, '/') == NULL &&
           strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

/* The order of shard_index_t.tensors. */
static int by_shard_tensor(const void *a, const void *b)
{
    return strcmp(((const shard_tensor_t *)a)->tensor->name,
                  ((const shard_tensor_t *)b)->tensor->name);
}

static int by_file_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Of the whole set. */
static uint64_t most_tensors(const shard_limits_t *limits)
{
    const uint64_t most = limits->file.tensors == 0 ? SAFETENSORS_USUAL : limits->file.tensors;
    return most < UINT32_MAX ? most : UINT32_MAX;
}

/* The limit is one of the whole set. */
static lh_status_t open_shard_file(shard_index_t *s, const char *folder, const char *name,
                                   const shard_limits_t *limits)
{
    char *path = path_join(folder, name);
    if (path == NULL) return LH_NO_MEMORY;
    lh_status_t status = safetensors_open(path, &limits->file, &s->files[s->file_count]);
    if (status == LH_OK) {
        /* The file counts as open from here on, so that it is closed on any failure. */
        const uint64_t count = (uint64_t)s->count + s->files[s->file_count++]->count;
        if (count > most_tensors(limits))
            status = fail(LH_INVALID,
                          "%s: %llu tensors with those of the shards before it, at most %llu are "
                          "allowed",
                          path, (unsigned long long)count,
                          (unsigned long long)most_tensors(limits));
        s->count = (uint32_t)count;
    }
    mem_free(path);
    return status;
}

/* One list over all files, sorted; a tensor in two of them is refused. */
static lh_status_t tensors_gather(shard_index_t *s, const char *folder)
{
    s->tensors = mem_array(s->count, sizeof(s->tensors[0]));
    if (s->tensors == NULL) return LH_NO_MEMORY;
    uint32_t at = 0;
    for (uint32_t i = 0; i < s->file_count; i++)
        for (uint32_t k = 0; k < s->files[i]->count; k++)
            s->tensors[at++] = (shard_tensor_t){s->files[i], &s->files[i]->tensors[k]};
    lh_assert(at == s->count);
    if (s->count > 0) qsort(s->tensors, s->count, sizeof(s->tensors[0]), by_shard_tensor);
    for (uint32_t i = 1; i < s->count; i++)
        if (by_shard_tensor(&s->tensors[i - 1], &s->tensors[i]) == 0)
            return fail(LH_INVALID, "%s: tensor %s lies in %s and in %s", folder,
                        s->tensors[i].tensor->name, path_name(s->tensors[i - 1].file->path),
                        path_name(s->tensors[i].file->path));
    return LH_OK;
}

/* Each name of the map is in the shard that it says, and each tensor of the shards is in the
 * map. */
static lh_status_t check_map(const shard_index_t *s, const char *path, const json_value_t *map)
{
    /* named[i]: the map has tensor i */
    bool *named = mem_array(s->count, sizeof(*named));
    if (named == NULL) return LH_NO_MEMORY;
    lh_status_t status = LH_OK;
    for (json_walk_t w = json_walk(map); status == LH_OK && json_next(&w);) {
        const char *file = json_text(w.value);
        const shard_tensor_t *t = shard_index_find(s, w.key);
        if (t == NULL)
            status = fail(LH_INVALID, "%s: tensor %s is not in %s", path, w.key, file);
        else if (strcmp(path_name(t->file->path), file) != 0)
            status = fail(LH_INVALID, "%s: tensor %s lies in %s, the index says %s", path, w.key,
                          path_name(t->file->path), file);
        else
            named[t - s->tensors] = true;
    }
    for (uint32_t i = 0; status == LH_OK && i < s->count; i++)
        if (!named[i])
            status = fail(LH_INVALID, "%s: tensor %s of %s is not in the index", path,
                          s->tensors[i].tensor->name, path_name(s->tensors[i].file->path));
    mem_free(named);
    return status;
}

/* The distinct file names of the map, sorted: *out holds borrowed strings. */
static lh_status_t distinct_files(const char *path, const json_value_t *map, uint64_t limit,
                                  const char ***out, uint32_t *count)
{
    const char **names = mem_array(json_size(map), sizeof(*names));
    if (names == NULL) return LH_NO_MEMORY;
    size_t all = 0;
    for (json_walk_t w = json_walk(map); json_next(&w);) {
        const char *name = json_text(w.value);
        if (name == NULL || !shard_name_is_plain(name)) {
            char found[JSON_FOUND];
            json_found(w.value, found);
            mem_free(names);
            return fail(LH_INVALID, "%s: tensor %.64s: file %s: a plain file name was expected",
                        path, w.key, found);
        }
        names[all++] = name;
    }
    if (all > 0) qsort(names, all, sizeof(*names), by_file_name);
    /* Sorted, so equal names follow each other and one of them is kept. */
    uint32_t kept = 0;
    for (size_t i = 0; i < all; i++)
        if (kept == 0 || strcmp(names[kept - 1], names[i]) != 0) names[kept++] = names[i];
    if (kept > limit) {
        mem_free(names);
        return fail(LH_INVALID, "%s: %u shards, at most %llu are allowed", path, kept,
                    (unsigned long long)limit);
    }
    *out = names;
    *count = kept;
    return LH_OK;
}

/* Bounded by the tensors that it may name, before any of it is held as values. */
static lh_status_t read_index(const char *path, const shard_limits_t *limits, json_document_t **out)
{
    const uint64_t tensors = most_tensors(limits);
    /* A name and its file in so many bytes each, on the safe side. */
    const uint64_t bytes = INDEX_REST + tensors * ENTRY_BYTES;
    return json_read(path, bytes < INDEX_MOST ? bytes : INDEX_MOST, INDEX_REST + tensors, out);
}

/* Opens every shard that the map names, once. */
static lh_status_t open_sharded(shard_index_t *s, const char *folder, const char *path,
                                const shard_limits_t *limits)
{
    json_document_t *index;
    lh_status_t status = read_index(path, limits, &index);
    if (status != LH_OK) return status;

    const char **names = NULL;
    uint32_t count = 0;
    const json_value_t *map = json_member(json_root(index), "weight_map");
    if (!json_is_map(map)) {
        status = json_refuse(path, "weight_map", map, "an object");
        goto free_index;
    }
    status = distinct_files(path, map, limits->shards == 0 ? SHARDS_USUAL : limits->shards, &names,
                            &count);
    if (status != LH_OK) goto free_index;
    s->files = mem_array(count, sizeof(s->files[0]));
    if (s->files == NULL) status = LH_NO_MEMORY;
    for (uint32_t i = 0; i < count && status == LH_OK; i++)
        status = open_shard_file(s, folder, names[i], limits);
    if (status == LH_OK) status = tensors_gather(s, folder);
    if (status == LH_OK) status = check_map(s, path, map);
    mem_free(names);
free_index:
    json_free(index);
    return status;
}

/* A folder with one file needs no index, and where both stand the file counts. */
static lh_status_t open_whole(shard_index_t *s, const char *folder, const shard_limits_t *limits)
{
    s->files = mem_array(1, sizeof(s->files[0]));
    if (s->files == NULL) return LH_NO_MEMORY;
    lh_status_t status = open_shard_file(s, folder, WHOLE_NAME, limits);
    if (status == LH_OK) status = tensors_gather(s, folder);
    return status;
}

/* Nothing is left open on failure. */
lh_status_t shard_index_open(const char *folder, const shard_limits_t *limits, shard_index_t **out)
{
    const shard_limits_t usual = {0};
    if (limits == NULL) limits = &usual;
    shard_index_t *s = mem_new(sizeof(*s));
    char *whole = path_join(folder, WHOLE_NAME), *index = path_join(folder, INDEX_NAME);
    lh_status_t status = LH_NO_MEMORY;
    if (s == NULL || whole == NULL || index == NULL) goto close_all;

    if (file_exists(whole))
        status = open_whole(s, folder, limits);
    else if (file_exists(index))
        status = open_sharded(s, folder, index, limits);
    else
        status = fail(LH_INVALID, "%s: neither %s nor %s is in it", folder, WHOLE_NAME, INDEX_NAME);
    if (status != LH_OK) goto close_all;
    mem_free(index);
    mem_free(whole);
    *out = s;
    return LH_OK;

close_all:
    mem_free(index);
    mem_free(whole);
    shard_index_close(s);
    return status;
}

void shard_index_close(shard_index_t *s)
{
    if (s == NULL) return;
    for (uint32_t i = 0; i < s->file_count; i++)
        safetensors_close(s->files[i]);
    mem_free(s->files);
    mem_free(s->tensors);
    mem_free(s);
}

/* A binary search; NULL: no shard has it. */
const shard_tensor_t *shard_index_find(const shard_index_t *s, const char *name)
{
    uint32_t low = 0, high = s->count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const int order = strcmp(name, s->tensors[middle].tensor->name);
        if (order == 0) return &s->tensors[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

/* As Transformers writes it: two blanks a level, a new line at the end. */
void shard_index_text(text_t *out, const shard_entry_t *entries, uint32_t count,
                      uint64_t tensor_bytes)
{
    json_writer_t w = {.to = out, .style = 2};
    json_open(&w, NULL, '{');
    json_open(&w, "metadata", '{');
    json_put_u64(&w, "total_size", tensor_bytes);
    json_close(&w);
    json_open(&w, "weight_map", '{');
    for (uint32_t i = 0; i < count; i++)
        json_put_text(&w, entries[i].name, entries[i].file);
    json_close(&w);
    json_close(&w);
    text_append(out, "\n");
}
