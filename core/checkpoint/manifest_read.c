/* manifest_read.c - believes a manifest only after its seal, its types and its arithmetic hold. */
#include <checkpoint/manifest.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include <base/checked.h>
#include <base/file.h>
#include <base/memory.h>
#include <checkpoint/json_text.h>
#include <checkpoint/safetensors.h>
#include <checkpoint/shard_index.h>
#include <checkpoint/tensor_cover.h>

enum {
    VALUES_MOST = MANIFEST_MOST / 8, /* our own have one in ten bytes, or fewer */
    PARTS_MOST = 8192,
};

#define SEAL_HEAD "\"self\": \""
#define SEAL_TAIL "\"\n}\n"
enum { SEAL_BYTES = sizeof(SEAL_HEAD) - 1 + SHA256_TEXT - 1 + sizeof(SEAL_TAIL) - 1 };

static lh_status_t refuse_end(const char *path, const char *text, size_t length)
{
    enum { SHOWN = 16 };
    char end[SHOWN + 1];
    const size_t count = length < SHOWN ? length : SHOWN;
    for (size_t i = 0; i < count; i++) {
        const char c = text[length - count + i];
        end[i] = c >= ' ' && c <= '~' ? c : ' ';
    }
    end[count] = '\0';
    return fail(LH_CORRUPT,
                "%s: no seal at its end, byte %zu: '%s', a line \"self\": \"SHA-256\" and } was "
                "expected",
                path, length, end);
}

static lh_status_t check_seal(const char *path, const char *text, size_t length,
                              char self[SHA256_TEXT])
{
    const char *seal = length <= SEAL_BYTES ? NULL : text + length - SEAL_BYTES;
    if (seal == NULL || memcmp(seal, SEAL_HEAD, sizeof(SEAL_HEAD) - 1) != 0 ||
        memcmp(text + length - (sizeof(SEAL_TAIL) - 1), SEAL_TAIL, sizeof(SEAL_TAIL) - 1) != 0)
        return refuse_end(path, text, length);

    char found[SHA256_TEXT];
    memcpy(self, seal + sizeof(SEAL_HEAD) - 1, SHA256_TEXT - 1);
    self[SHA256_TEXT - 1] = '\0';
    const lh_status_t status = sha256_of(text, length - SEAL_BYTES, found);
    if (status != LH_OK) return status;
    if (strcmp(self, found) != 0)
        return fail(LH_CORRUPT, "%s: its lines hash to %s, its seal says %s", path, found, self);
    return LH_OK;
}

/* Digits and nothing else, as they are written. */
static lh_status_t read_number(const char *path, const char *what, const char *text, int base,
                               uint64_t *out)
{
    const bool hexadecimal = base == 16;
    const size_t digits = strspn(text, hexadecimal ? "0123456789abcdef" : "0123456789");
    errno = 0;
    *out = strtoull(text, NULL, base);
    if (digits > 0 && text[digits] == '\0' && errno == 0) return LH_OK;
    return fail(LH_INVALID, "%s: %s: %.64s was found, %s was expected", path, what, text,
                hexadecimal ? "a hash of 1 to 16 digits" : "a whole number below 2^64");
}

static lh_status_t read_plugins(const char *path, const json_t *list, checkpoint_meta_t *meta)
{
    if (!json_is_array(list)) return json_text_refuse(path, "plugins", list, "a list");
    const size_t count = json_array_size(list);
    checkpoint_plugin_t *plugins = mem_array(count, sizeof(*plugins));
    if (plugins == NULL) return LH_NO_MEMORY;
    meta->plugins = plugins;
    meta->plugin_count = (uint32_t)count;

    for (uint32_t i = 0; i < count; i++) {
        const json_t *row = json_array_get(list, i);
        uint64_t abi = 0;
        lh_status_t status = json_text_string(path, row, "kind", &plugins[i].kind);
        if (status == LH_OK) status = json_text_string(path, row, "name", &plugins[i].name);
        if (status == LH_OK) status = json_text_string(path, row, "version", &plugins[i].version);
        if (status == LH_OK) status = json_text_string(path, row, "sha256", &plugins[i].sha256);
        if (status == LH_OK) status = json_text_u64(path, row, "abi", &abi);
        if (status != LH_OK) return status;
        if (abi > UINT32_MAX)
            return fail(LH_INVALID, "%s: plugins: abi %llu was found, at most %u was expected",
                        path, (unsigned long long)abi, UINT32_MAX);
        plugins[i].abi = (uint32_t)abi;
    }
    return LH_OK;
}

/* What was infinite when it was written says so; what no double can hold is not taken for it. */
static lh_status_t read_scalar(const char *path, const char *key, const char *text, double *out)
{
    char *end = NULL;
    errno = 0;
    *out = text == NULL ? 0 : strtod(text, &end);
    if (text == NULL || *text == '\0' || *end != '\0')
        return fail(LH_INVALID, "%s: scalars: %.64s is not a number in quotes", path, key);
    if (errno == ERANGE && isinf(*out))
        return fail(LH_INVALID,
                    "%s: scalars: %.64s: %.64s was found, a number up to 1e308 was "
                    "expected",
                    path, key, text);
    return LH_OK;
}

static lh_status_t read_scalars(const char *path, const json_t *object, checkpoint_meta_t *meta)
{
    if (!json_is_object(object)) return json_text_refuse(path, "scalars", object, "an object");
    checkpoint_scalar_t *scalars = mem_array(json_object_size(object), sizeof(*scalars));
    if (scalars == NULL) return LH_NO_MEMORY;
    meta->scalars = scalars;

    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        checkpoint_scalar_t *s = &scalars[meta->scalar_count++];
        const lh_status_t status = read_scalar(path, key, json_string_value(value), &s->value);
        if (status != LH_OK) return status;
        s->name = key;
    }
    return LH_OK;
}

static lh_status_t read_meta(const char *path, const json_t *root, manifest_t *m)
{
    checkpoint_meta_t *meta = &m->meta;
    uint64_t version = 0;
    const char *parent, *seed;
    lh_status_t status = json_text_u64(path, root, "version", &version);
    if (status == LH_OK && version != MANIFEST_VERSION)
        return fail(LH_UNSUPPORTED, "%s: version %llu, this program reads %d", path,
                    (unsigned long long)version, MANIFEST_VERSION);
    if (status == LH_OK) status = json_text_string(path, root, "run", &meta->run);
    if (status == LH_OK) status = json_text_u64(path, root, "step", &meta->step);
    if (status == LH_OK) status = json_text_string(path, root, "parent", &parent);
    if (status == LH_OK) status = json_text_string(path, root, "config", &meta->config);
    if (status == LH_OK) status = json_text_string(path, root, "model", &meta->model);
    if (status == LH_OK) status = json_text_string(path, root, "variants", &meta->variants);
    if (status == LH_OK) status = json_text_string(path, root, "device", &meta->device);
    if (status == LH_OK) status = json_text_string(path, root, "seed", &seed);
    if (status == LH_OK) status = read_number(path, "seed", seed, 10, &meta->seed);
    if (status == LH_OK) status = json_text_u64(path, root, "cursor", &meta->cursor);
    if (status == LH_OK) status = json_text_u64(path, root, "tokens", &meta->tokens);
    if (status == LH_OK) status = read_plugins(path, json_object_get(root, "plugins"), meta);
    if (status == LH_OK) status = read_scalars(path, json_object_get(root, "scalars"), meta);
    if (status != LH_OK) return status;
    if (strlen(parent) >= SHA256_TEXT)
        return fail(LH_INVALID, "%s: parent: at most 64 digits were expected", path);
    memcpy(m->parent, parent, strlen(parent) + 1);
    return LH_OK;
}

static lh_status_t read_files(const char *path, const json_t *list, manifest_t *m)
{
    if (!json_is_array(list)) return fail(LH_INVALID, "%s: files: a list was expected", path);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *row = json_array_get(list, i);
        const char *name, *header;
        uint64_t bytes = 0, hash = 0;
        uint32_t index;
        lh_status_t status = json_text_string(path, row, "name", &name);
        if (status == LH_OK) status = json_text_u64(path, row, "bytes", &bytes);
        if (status == LH_OK) status = json_text_string(path, row, "header", &header);
        if (status == LH_OK) status = read_number(path, "header", header, 16, &hash);
        if (status != LH_OK) return status;
        if (!shard_name_is_plain(name))
            return fail(LH_INVALID, "%s: file %.64s: a plain name was expected", path, name);
        status = manifest_add_file(m, name, &index);
        if (status != LH_OK) return status;
        m->files[index].bytes = bytes;
        m->files[index].header_hash = hash;
    }
    return LH_OK;
}

static lh_status_t read_list(const char *path, const char *name, const json_t *list, uint32_t rank,
                             uint64_t *out)
{
    if (!json_is_array(list) || json_array_size(list) != rank)
        return fail(LH_INVALID, "%s: tensor %s: a list of %u numbers was expected", path, name,
                    rank);
    for (uint32_t i = 0; i < rank; i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_integer(item) || json_integer_value(item) < 0)
            return fail(LH_INVALID, "%s: tensor %s: a number of 0 or more was expected", path,
                        name);
        out[i] = (uint64_t)json_integer_value(item);
    }
    return LH_OK;
}

static lh_status_t read_part(const char *path, const json_t *row, manifest_t *m,
                             checkpoint_tensor_t *tensor)
{
    const char *stored, *digits;
    uint64_t file = 0, hash;
    lh_status_t status = json_text_u64(path, row, "file", &file);
    if (status == LH_OK) status = json_text_string(path, row, "stored", &stored);
    if (status == LH_OK) status = json_text_string(path, row, "xxh3", &digits);
    if (status == LH_OK) status = read_number(path, "xxh3", digits, 16, &hash);
    if (status != LH_OK) return status;
    if (file >= m->file_count)
        return fail(LH_INVALID, "%s: tensor %s: file %llu of %u", path, tensor->name,
                    (unsigned long long)file, m->file_count);

    tensor->part = tensor_part_whole(tensor->rank, tensor->shape);
    if (json_object_get(row, "at") != NULL) {
        tensor_part_t *p = &tensor->part;
        status = read_list(path, tensor->name, json_object_get(row, "at"), tensor->rank, p->at);
        if (status == LH_OK)
            status = read_list(path, tensor->name, json_object_get(row, "box"), tensor->rank,
                               p->shape);
        if (status == LH_OK) status = json_text_u64(path, row, "first", &p->first);
        if (status == LH_OK) status = json_text_u64(path, row, "count", &p->count);
        if (status != LH_OK) return status;
        if (!tensor_part_fits(p, tensor->rank, tensor->shape))
            return fail(LH_INVALID, "%s: tensor %s: a part lies outside of it", path, tensor->name);
    }
    return manifest_add_part(m, tensor, (uint32_t)file, stored, hash);
}

static bool parts_overlap(const tensor_part_t *a, const tensor_part_t *b, uint32_t rank)
{
    if (memcmp(a->at, b->at, sizeof(a->at)) == 0 &&
        memcmp(a->shape, b->shape, sizeof(a->shape)) == 0)
        return a->first < b->first + b->count && b->first < a->first + a->count;
    for (uint32_t i = 0; i < rank; i++)
        if (a->at[i] + a->shape[i] <= b->at[i] || b->at[i] + b->shape[i] <= a->at[i]) return false;
    return true;
}

/* Which ones: for the sentence, once it is known that something is wrong. */
static lh_status_t refuse_parts(const char *path, const manifest_tensor_t *t, uint64_t elements)
{
    uint64_t held = 0;
    for (uint32_t i = 0; i < t->part_count; i++) {
        if (!checked_add(held, t->parts[i].part.count, &held)) held = UINT64_MAX;
        for (uint32_t k = 0; k < i; k++)
            if (parts_overlap(&t->parts[i].part, &t->parts[k].part, t->rank))
                return fail(LH_INVALID, "%s: tensor %s: parts %u and %u overlap", path, t->name, k,
                            i);
    }
    return fail(LH_INVALID, "%s: tensor %s: its parts hold %llu elements of %llu", path, t->name,
                (unsigned long long)held, (unsigned long long)elements);
}

static lh_status_t check_cover(const char *path, const manifest_tensor_t *t, uint64_t key)
{
    const tensor_part_t whole = tensor_part_whole(t->rank, t->shape);
    const tensor_part_t **parts = mem_array(t->part_count, sizeof(*parts));
    if (parts == NULL) return LH_NO_MEMORY;
    for (uint32_t i = 0; i < t->part_count; i++)
        parts[i] = &t->parts[i].part;
    const bool once = tensor_cover_once(parts, t->part_count, t->rank, t->shape, key);
    mem_free(parts);
    return once ? LH_OK : refuse_parts(path, t, whole.count);
}

static lh_status_t check_covers(const char *path, const manifest_t *m)
{
    const uint64_t key = xxh3(m->self, strlen(m->self));
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < m->tensor_count && status == LH_OK; i++)
        status = check_cover(path, &m->tensors[i], key);
    return status;
}

static lh_status_t read_tensor(const char *path, const char *name, const json_t *row, manifest_t *m)
{
    checkpoint_tensor_t tensor = {.name = name};
    const char *dtype;
    lh_status_t status = json_text_string(path, row, "dtype", &dtype);
    if (status != LH_OK) return status;
    const safetensors_dtype_t *known = safetensors_dtype_named(dtype);
    const char *source = json_string_value(json_object_get(row, "source"));
    const safetensors_dtype_t *origin = source == NULL ? NULL : safetensors_dtype_named(source);
    if (known == NULL || known->number == LH_DTYPE_NONE)
        return safetensors_dtype_refuse(path, name, dtype, true);
    tensor.dtype = known->number;
    tensor.source = origin == NULL ? LH_DTYPE_NONE : origin->number;

    const json_t *shape = json_object_get(row, "shape"), *parts = json_object_get(row, "parts");
    if (json_array_size(shape) > LH_MAX_RANK)
        return fail(LH_INVALID, "%s: tensor %s: %zu dimensions, at most %d are allowed", path, name,
                    json_array_size(shape), LH_MAX_RANK);
    tensor.rank = (uint32_t)json_array_size(shape);
    status = read_list(path, name, shape, tensor.rank, tensor.shape);
    if (status != LH_OK) return status;
    uint64_t bytes = known->bits / 8;
    for (uint32_t i = 0; i < tensor.rank; i++)
        if (!checked_mul(bytes, tensor.shape[i], &bytes) || bytes > INT64_MAX)
            return fail(LH_INVALID, "%s: tensor %s: more than 2^63 bytes", path, name);

    const size_t count = json_array_size(parts);
    if (count == 0 || count > PARTS_MOST)
        return fail(LH_INVALID, "%s: tensor %s: %zu parts, 1 to %d were expected", path, name,
                    count, PARTS_MOST);
    for (size_t i = 0; i < count && status == LH_OK; i++)
        status = read_part(path, json_array_get(parts, i), m, &tensor);
    return status;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const manifest_tensor_t *)a)->name, ((const manifest_tensor_t *)b)->name);
}

static lh_status_t read_all(const char *path, const json_t *root, manifest_t *m)
{
    lh_status_t status = read_meta(path, root, m);
    if (status == LH_OK) status = read_files(path, json_object_get(root, "files"), m);
    if (status != LH_OK) return status;

    const json_t *tensors = json_object_get(root, "tensors");
    if (!json_is_object(tensors))
        return fail(LH_INVALID, "%s: tensors: an object was expected", path);
    const char *name;
    json_t *row;
    json_object_foreach((json_t *)tensors, name, row)
    {
        status = read_tensor(path, name, row, m);
        if (status != LH_OK) return status;
    }
    if (m->tensor_count > 0) qsort(m->tensors, m->tensor_count, sizeof(m->tensors[0]), by_name);
    return LH_OK;
}

lh_status_t manifest_parse(const char *path, const char *text, size_t length, bool whole,
                           manifest_t **out)
{
    manifest_t *m = mem_new(sizeof(*m));
    if (m == NULL) return LH_NO_MEMORY;
    json_t *root = NULL;
    lh_status_t status = check_seal(path, text, length, m->self);
    if (status == LH_OK) status = json_parse_most(path, text, length, VALUES_MOST, &root);
    m->json = root;
    if (status == LH_OK) status = read_all(path, root, m);
    if (status == LH_OK && whole) status = check_covers(path, m);
    if (status == LH_OK)
        *out = m;
    else
        manifest_free(m);
    return status;
}

lh_status_t manifest_read(const char *path, manifest_t **out)
{
    char *text;
    size_t length;
    lh_status_t status = file_read_plain(path, MANIFEST_MOST, &text, &length);
    if (status != LH_OK) return status;
    status = manifest_parse(path, text, length, true, out);
    mem_free(text);
    return status;
}

void manifest_free(manifest_t *m)
{
    if (m == NULL) return;
    manifest_clear(m);
    mem_free((void *)m->meta.plugins);
    mem_free((void *)m->meta.scalars);
    json_decref(m->json);
    mem_free(m);
}
