/* manifest.c - builds a manifest, writes it down sealed, and reads it back.
 *
 * One JSON file for people and scripts, with a seal in its last line: the SHA-256 of all bytes
 * before it. The seal is no signature; it finds what a disk or an editor changed. What stands
 * between values is fixed, so that two ranks that write the same manifest write the same bytes.
 *
 * Who reads it takes the file for a stranger's: every count is bounded before memory is asked for,
 * every number is checked when it is read, and that parts cover their tensor is checked in n log n
 * steps, so that no file can make a reader compute for hours. fuzz.manifest feeds it arbitrary
 * files. */
#include <checkpoint/manifest.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <base/file.h>
#include <base/memory.h>
#include <checkpoint/tensor_part.h>
#include <format/json.h>
#include <format/safetensors.h>
#include <format/shard_index.h>

lh_status_t manifest_add_file(manifest_t *m, const char *name, uint32_t *index)
{
    void *grown = mem_grow(m->files, &m->file_capacity, m->file_count + 1, sizeof(m->files[0]));
    if (grown == NULL) return LH_NO_MEMORY;
    m->files = grown;
    char *copy = mem_text(name);
    if (copy == NULL) return LH_NO_MEMORY;
    m->files[m->file_count] = (manifest_file_t){.name = copy};
    *index = m->file_count++;
    return LH_OK;
}

/* A new tensor at the end, without parts. *out is valid until the next one is added. */
static lh_status_t add_tensor(manifest_t *m, const checkpoint_tensor_t *tensor,
                              manifest_tensor_t **out)
{
    void *grown = mem_grow(m->tensors, &m->tensor_capacity, m->tensor_count + 1,
                           sizeof(m->tensors[0]));
    if (grown == NULL) return LH_NO_MEMORY;
    m->tensors = grown;
    manifest_tensor_t *t = &m->tensors[m->tensor_count];
    *t = (manifest_tensor_t){
        .dtype = tensor->dtype, .source = tensor->source, .rank = tensor->rank};
    memcpy(t->shape, tensor->shape, sizeof(t->shape));
    t->name = mem_text(tensor->name);
    if (t->name == NULL) return LH_NO_MEMORY;
    m->tensor_count++;
    *out = t;
    return LH_OK;
}

/* Looks at the last tensor only: parts of one tensor that arrive one after the other come together
 * at once, and those that other ranks add later do so when the text is made. A search here would
 * make adding n tensors quadratic. */
lh_status_t manifest_add_part(manifest_t *m, const checkpoint_tensor_t *tensor, uint32_t file,
                              const char *stored, uint64_t hash)
{
    manifest_tensor_t *t = m->tensor_count == 0 ? NULL : &m->tensors[m->tensor_count - 1];
    if (t == NULL || strcmp(t->name, tensor->name) != 0) {
        const lh_status_t status = add_tensor(m, tensor, &t);
        if (status != LH_OK) return status;
    }
    void *grown = mem_grow(t->parts, &t->part_capacity, t->part_count + 1, sizeof(t->parts[0]));
    if (grown == NULL) return LH_NO_MEMORY;
    t->parts = grown;
    char *copy = mem_text(stored);
    if (copy == NULL) return LH_NO_MEMORY;
    const bool whole = tensor->part.count == 0;
    t->parts[t->part_count++] = (manifest_part_t){
        .stored = copy,
        .file = file,
        .part = whole ? tensor_part_whole(tensor->rank, tensor->shape) : tensor->part,
        .xxh3 = hash,
    };
    return LH_OK;
}

/* The file's bytes have a checksum: what stands between its values is fixed. A line for each file,
 * plugin and part, so that two manifests can be compared with diff. */
static const json_layout_t lines = {"\n", ",\n"}, row_layout = {"", ",\n"},
                           part_rows = {"", ",\n  "};

/* A list of numbers on one line. */
static void put_list(json_writer_t *w, const char *key, uint32_t count, const uint64_t *items)
{
    json_open(w, key, '[');
    for (uint32_t i = 0; i < count; i++)
        json_put_u64(w, NULL, items[i]);
    json_close(w);
}

/* 16 digits in quotes: 64 bits do not fit a JSON number everywhere. */
static void put_hash(json_writer_t *w, const char *key, uint64_t hash)
{
    char digits[17];
    (void)snprintf(digits, sizeof(digits), "%016llx", (unsigned long long)hash);
    json_put_text(w, key, digits);
}

/* NULL is written as "". */
static void put_text_or_empty(json_writer_t *w, const char *key, const char *value)
{
    json_put_text(w, key, value == NULL ? "" : value);
}

/* What the run says about itself, at the head of the file. */
static void put_meta(json_writer_t *w, const checkpoint_meta_t *meta, const char *parent)
{
    char seed[24], value[32];
    json_put_u64(w, "version", MANIFEST_VERSION);
    put_text_or_empty(w, "run", meta->run);
    json_put_u64(w, "step", meta->step);
    put_text_or_empty(w, "parent", parent);
    put_text_or_empty(w, "config", meta->config);
    put_text_or_empty(w, "model", meta->model);
    json_open_as(w, "plugins", '[', &lines);
    for (uint32_t i = 0; i < meta->plugin_count; i++) {
        const checkpoint_plugin_t *p = &meta->plugins[i];
        json_open_as(w, NULL, '{', &row_layout);
        put_text_or_empty(w, "kind", p->kind);
        put_text_or_empty(w, "name", p->name);
        put_text_or_empty(w, "version", p->version);
        put_text_or_empty(w, "sha256", p->sha256);
        json_put_u64(w, "abi", p->abi);
        json_close(w);
    }
    json_close(w);
    put_text_or_empty(w, "variants", meta->variants);
    put_text_or_empty(w, "device", meta->device);
    /* 64 bits do not fit a JSON number everywhere. */
    (void)snprintf(seed, sizeof(seed), "%llu", (unsigned long long)meta->seed);
    json_put_text(w, "seed", seed);
    json_put_u64(w, "cursor", meta->cursor);
    json_put_u64(w, "tokens", meta->tokens);
    json_open_as(w, "scalars", '{', &lines);
    for (uint32_t i = 0; i < meta->scalar_count; i++) {
        (void)snprintf(value, sizeof(value), "%.17g", meta->scalars[i].value);
        json_put_text(w, meta->scalars[i].name, value);
    }
    json_close(w);
}

/* A part that is the whole tensor says only where it lies. */
static void put_part(json_writer_t *w, const manifest_tensor_t *tensor, const manifest_part_t *part)
{
    json_open(w, NULL, '{');
    json_put_u64(w, "file", part->file);
    json_put_text(w, "stored", part->stored);
    if (!tensor_part_is_whole(&part->part, tensor->rank, tensor->shape)) {
        put_list(w, "at", tensor->rank, part->part.at);
        put_list(w, "box", tensor->rank, part->part.shape);
        json_put_u64(w, "first", part->part.first);
        json_put_u64(w, "count", part->part.count);
    }
    put_hash(w, "xxh3", part->xxh3);
    json_close(w);
}

static void put_tensor(json_writer_t *w, const manifest_tensor_t *tensor)
{
    lh_assert(safetensors_dtype(tensor->dtype) != NULL);
    json_open(w, tensor->name, '{');
    json_put_text(w, "dtype", safetensors_dtype(tensor->dtype)->name);
    if (tensor->source != LH_DTYPE_NONE)
        json_put_text(w, "source", safetensors_dtype(tensor->source)->name);
    put_list(w, "shape", tensor->rank, tensor->shape);
    json_open_as(w, "parts", '[', &part_rows);
    for (uint32_t i = 0; i < tensor->part_count; i++)
        put_part(w, tensor, &tensor->parts[i]);
    json_close(w);
    json_close(w);
}

/* Bytes of a tensor's entry, by writing it: no second place knows the format. */
static lh_status_t tensor_bytes(const manifest_tensor_t *tensor, size_t *out)
{
    text_t text = {0};
    json_writer_t w = {.to = &text};
    put_tensor(&w, tensor);
    *out = text.length;
    const lh_status_t status = text_status(&text);
    text_free(&text);
    return status;
}

/* A scalar that counts something; 0: below 1, or none at all. A stranger's may be any number. */
static uint64_t scalar_count_of(const manifest_t *m, const char *name)
{
    const double most = 0x1p53;
    for (uint32_t i = 0; i < m->meta.scalar_count; i++) {
        const double value = m->meta.scalars[i].value;
        if (strcmp(m->meta.scalars[i].name, name) == 0)
            return value >= 1 ? (uint64_t)(value < most ? value : most) : 0;
    }
    return 0;
}

uint64_t manifest_refused(const manifest_t *m)
{
    return scalar_count_of(m, MANIFEST_REFUSED);
}

bool manifest_unevaluated(const manifest_t *m)
{
    return scalar_count_of(m, MANIFEST_UNEVALUATED) > 0;
}

uint64_t manifest_incarnation(const manifest_t *m)
{
    return scalar_count_of(m, MANIFEST_INCARNATION);
}

/* Exactly one part of a tensor has it: the tensor's own line is counted with that part. */
static bool has_first_element(const manifest_tensor_t *tensor)
{
    lh_assert(tensor->part_count > 0);
    const tensor_part_t *part = &tensor->parts[0].part;
    bool first = part->first == 0;
    for (uint32_t i = 0; i < tensor->rank; i++)
        first = first && part->at[i] == 0;
    return first;
}

lh_status_t manifest_part_bytes(const checkpoint_tensor_t *tensor, uint32_t file,
                                const char *stored, uint64_t *bytes)
{
    manifest_t alone = {0};
    size_t line = 0, head = 0;
    lh_status_t status = manifest_add_part(&alone, tensor, file, stored, 0);
    if (status == LH_OK) status = tensor_bytes(&alone.tensors[0], &line);
    if (status == LH_OK && !has_first_element(&alone.tensors[0])) {
        manifest_tensor_t empty = alone.tensors[0];
        empty.part_count = 0;
        status = tensor_bytes(&empty, &head);
    }
    *bytes = line + strlen(part_rows.next) - head;
    manifest_clear(&alone);
    return status;
}

/* Parts of one tensor stay in the order of files, which is that of ranks. */
static int by_name_and_file(const void *a, const void *b)
{
    const manifest_tensor_t *x = a, *y = b;
    const int order = strcmp(x->name, y->name);
    if (order != 0) return order;
    return x->parts[0].file < y->parts[0].file ? -1 : x->parts[0].file > y->parts[0].file;
}

/* Moves the parts; `from` is empty afterwards. Ranks that do not agree on a tensor's shape or dtype
 * do not run the same job. */
static lh_status_t take_parts(manifest_tensor_t *to, manifest_tensor_t *from)
{
    if (to->dtype != from->dtype || to->rank != from->rank ||
        memcmp(to->shape, from->shape, sizeof(to->shape)) != 0)
        return fail(LH_INVALID, "tensor %s: its parts differ in dtype or shape of the whole",
                    to->name);
    const uint32_t count = to->part_count + from->part_count;
    void *grown = mem_grow(to->parts, &to->part_capacity, count, sizeof(to->parts[0]));
    if (grown == NULL) return LH_NO_MEMORY;
    to->parts = grown;
    memcpy(to->parts + to->part_count, from->parts, from->part_count * sizeof(from->parts[0]));
    to->part_count = count;
    mem_free(from->parts);
    mem_free(from->name);
    return LH_OK;
}

/* Every rank adds its share of a tensor: the shares come together under its name. After a failure
 * the tensors that are left are still whole, so that they can be freed. */
static lh_status_t gather_parts(manifest_t *m)
{
    if (m->tensor_count < 2) return LH_OK;
    qsort(m->tensors, m->tensor_count, sizeof(m->tensors[0]), by_name_and_file);
    uint32_t kept = 1;
    lh_status_t status = LH_OK;
    for (uint32_t i = 1; i < m->tensor_count; i++) {
        manifest_tensor_t *last = &m->tensors[kept - 1];
        if (status == LH_OK && strcmp(last->name, m->tensors[i].name) == 0) {
            status = take_parts(last, &m->tensors[i]);
            if (status == LH_OK) continue;
        }
        m->tensors[kept++] = m->tensors[i];
    }
    m->tensor_count = kept;
    return status;
}

/* The seal is written last, over all that came before; so the text is only appended to. A text that
 * is too long to be read again is not written. */
lh_status_t manifest_text(manifest_t *m, text_t *out)
{
    const checkpoint_meta_t *meta = &m->meta;
    if (meta->step > INT64_MAX || meta->cursor > INT64_MAX || meta->tokens > INT64_MAX)
        return fail(LH_INVALID, "a manifest holds counts up to 2^63");
    const lh_status_t gathered = gather_parts(m);
    if (gathered != LH_OK) return gathered;
    for (uint32_t i = 0; i < m->tensor_count; i++)
        if (m->tensors[i].part_count > MANIFEST_PARTS)
            return fail(LH_UNSUPPORTED, "tensor %s: more than %d parts, which are not read again",
                        m->tensors[i].name, MANIFEST_PARTS);
    json_writer_t w = {.to = out};
    json_open_as(&w, NULL, '{', &lines);
    put_meta(&w, meta, m->parent);
    json_open_as(&w, "files", '[', &lines);
    for (uint32_t i = 0; i < m->file_count; i++) {
        json_open_as(&w, NULL, '{', &row_layout);
        put_text_or_empty(&w, "name", m->files[i].name);
        json_put_u64(&w, "bytes", m->files[i].bytes);
        put_hash(&w, "header", m->files[i].header_hash);
        json_close(&w);
    }
    json_close(&w);
    json_open_as(&w, "tensors", '{', &lines);
    for (uint32_t i = 0; i < m->tensor_count; i++)
        put_tensor(&w, &m->tensors[i]);
    json_close(&w);
    text_append(out, lines.next); /* sealed with it, by what comes last */
    if (out->failed) return text_status(out);

    const lh_status_t status = digest_of(out->data, out->length, m->self);
    if (status != LH_OK) return status;
    text_printf(out, "\"self\": \"%s\"\n}\n", m->self);
    if (out->length > MANIFEST_MOST)
        return fail(LH_INVALID, "a manifest of %zu bytes, at most %d are read again", out->length,
                    MANIFEST_MOST);
    return text_status(out);
}

/* meta's strings are borrowed and stay. */
void manifest_clear(manifest_t *m)
{
    for (uint32_t i = 0; i < m->file_count; i++)
        mem_free(m->files[i].name);
    for (uint32_t i = 0; i < m->tensor_count; i++) {
        manifest_tensor_t *t = &m->tensors[i];
        for (uint32_t k = 0; k < t->part_count; k++)
            mem_free(t->parts[k].stored);
        mem_free(t->parts);
        mem_free(t->name);
    }
    mem_free(m->files);
    mem_free(m->tensors);
}

/* By halves: a manifest that was read is sorted by name. */
const manifest_tensor_t *manifest_find(const manifest_t *m, const char *name)
{
    uint32_t low = 0, high = m->tensor_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const int order = strcmp(name, m->tensors[middle].name);
        if (order == 0) return &m->tensors[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

enum {
    /* Limits of a reader. A value of JSON takes more memory than text, so that values are bounded
     * apart from bytes; our own manifests have one in ten bytes, or fewer. */
    VALUES_MOST = MANIFEST_MOST / 8,
};

/* The last line and the closing bracket, of which every byte is known but the digest. */
#define SEAL_HEAD "\"self\": \""
#define SEAL_TAIL "\"\n}\n"
enum { SEAL_BYTES = sizeof(SEAL_HEAD) - 1 + SHA256_TEXT - 1 + sizeof(SEAL_TAIL) - 1 };

/* Mostly a file that was cut; its last bytes tell which. */
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

/* Before anything else of the text is looked at: what passes is what a manifest_text once wrote, or
 * was made to look like it. */
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
    const lh_status_t status = digest_of(text, length - SEAL_BYTES, found);
    if (status != LH_OK) return status;
    if (strcmp(self, found) != 0)
        return fail(LH_CORRUPT, "%s: its lines hash to %s, its seal says %s", path, found, self);
    return LH_OK;
}

/* Digits and nothing else, as they are written. */
static lh_status_t parse_digits(const char *path, const char *what, const char *text, int base,
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

/* Texts point into the JSON document, which the manifest keeps. */
static lh_status_t read_plugins(const char *path, const json_value_t *list, checkpoint_meta_t *meta)
{
    if (!json_is_list(list)) return json_refuse(path, "plugins", list, "a list");
    const size_t count = json_size(list);
    checkpoint_plugin_t *plugins = mem_array(count, sizeof(*plugins));
    if (plugins == NULL) return LH_NO_MEMORY;
    meta->plugins = plugins;
    meta->plugin_count = (uint32_t)count;

    for (json_walk_t w = json_walk(list); json_next(&w);) {
        const json_value_t *row = w.value;
        const size_t i = w.index;
        uint64_t abi = 0;
        lh_status_t status = json_take_text(path, row, "kind", &plugins[i].kind);
        if (status == LH_OK) status = json_take_text(path, row, "name", &plugins[i].name);
        if (status == LH_OK) status = json_take_text(path, row, "version", &plugins[i].version);
        if (status == LH_OK) status = json_take_text(path, row, "sha256", &plugins[i].sha256);
        if (status == LH_OK) status = json_take_count(path, row, "abi", &abi);
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
    *out = text == NULL ? 0 : text_real(text, &end);
    if (text == NULL || *text == '\0' || *end != '\0')
        return fail(LH_INVALID, "%s: scalars: %.64s is not a number in quotes", path, key);
    if (errno == ERANGE && isinf(*out))
        return fail(LH_INVALID,
                    "%s: scalars: %.64s: %.64s was found, a number up to 1e308 was "
                    "expected",
                    path, key, text);
    return LH_OK;
}

/* The count grows with each, so that what is freed after a failure is what there is. */
static lh_status_t read_scalars(const char *path, const json_value_t *object,
                                checkpoint_meta_t *meta)
{
    if (!json_is_map(object)) return json_refuse(path, "scalars", object, "an object");
    checkpoint_scalar_t *scalars = mem_array(json_size(object), sizeof(*scalars));
    if (scalars == NULL) return LH_NO_MEMORY;
    meta->scalars = scalars;

    for (json_walk_t w = json_walk(object); json_next(&w);) {
        checkpoint_scalar_t *s = &scalars[meta->scalar_count++];
        const lh_status_t status = read_scalar(path, w.key, json_text(w.value), &s->value);
        if (status != LH_OK) return status;
        s->name = w.key;
    }
    return LH_OK;
}

/* The version first: of another one nothing else can be relied on. */
static lh_status_t read_meta(const char *path, const json_value_t *root, manifest_t *m)
{
    checkpoint_meta_t *meta = &m->meta;
    uint64_t version = 0;
    const char *parent, *seed;
    lh_status_t status = json_take_count(path, root, "version", &version);
    if (status == LH_OK && version != MANIFEST_VERSION)
        return fail(LH_UNSUPPORTED, "%s: version %llu, this program reads %d", path,
                    (unsigned long long)version, MANIFEST_VERSION);
    if (status == LH_OK) status = json_take_text(path, root, "run", &meta->run);
    if (status == LH_OK) status = json_take_count(path, root, "step", &meta->step);
    if (status == LH_OK) status = json_take_text(path, root, "parent", &parent);
    if (status == LH_OK) status = json_take_text(path, root, "config", &meta->config);
    if (status == LH_OK) status = json_take_text(path, root, "model", &meta->model);
    if (status == LH_OK) status = json_take_text(path, root, "variants", &meta->variants);
    if (status == LH_OK) status = json_take_text(path, root, "device", &meta->device);
    if (status == LH_OK) status = json_take_text(path, root, "seed", &seed);
    if (status == LH_OK) status = parse_digits(path, "seed", seed, 10, &meta->seed);
    if (status == LH_OK) status = json_take_count(path, root, "cursor", &meta->cursor);
    if (status == LH_OK) status = json_take_count(path, root, "tokens", &meta->tokens);
    if (status == LH_OK) status = read_plugins(path, json_member(root, "plugins"), meta);
    if (status == LH_OK) status = read_scalars(path, json_member(root, "scalars"), meta);
    if (status != LH_OK) return status;
    if (strlen(parent) >= SHA256_TEXT)
        return fail(LH_INVALID, "%s: parent: at most 64 digits were expected", path);
    memcpy(m->parent, parent, strlen(parent) + 1);
    return LH_OK;
}

/* Names are plain: a manifest must not lead out of its own folder. */
static lh_status_t read_files(const char *path, const json_value_t *list, manifest_t *m)
{
    if (!json_is_list(list)) return fail(LH_INVALID, "%s: files: a list was expected", path);
    for (json_walk_t w = json_walk(list); json_next(&w);) {
        const json_value_t *row = w.value;
        const char *name, *header;
        uint64_t bytes = 0, hash = 0;
        uint32_t index;
        lh_status_t status = json_take_text(path, row, "name", &name);
        if (status == LH_OK) status = json_take_count(path, row, "bytes", &bytes);
        if (status == LH_OK) status = json_take_text(path, row, "header", &header);
        if (status == LH_OK) status = parse_digits(path, "header", header, 16, &hash);
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

/* A list of exactly so many whole numbers. */
static lh_status_t read_sizes(const char *path, const char *name, const json_value_t *list,
                              uint32_t rank, uint64_t *out)
{
    if (!json_is_list(list) || json_size(list) != rank)
        return fail(LH_INVALID, "%s: tensor %s: a list of %u numbers was expected", path, name,
                    rank);
    for (uint32_t i = 0; i < rank; i++) {
        const json_value_t *item = json_item(list, i);
        if (!json_count(item, &out[i]))
            return fail(LH_INVALID, "%s: tensor %s: a number of 0 or more was expected", path,
                        name);
    }
    return LH_OK;
}

/* A part without a place is the whole tensor. */
static lh_status_t read_tensor_part(const char *path, const json_value_t *row, manifest_t *m,
                                    checkpoint_tensor_t *tensor)
{
    const char *stored, *digits;
    uint64_t file = 0, hash;
    lh_status_t status = json_take_count(path, row, "file", &file);
    if (status == LH_OK) status = json_take_text(path, row, "stored", &stored);
    if (status == LH_OK) status = json_take_text(path, row, "xxh3", &digits);
    if (status == LH_OK) status = parse_digits(path, "xxh3", digits, 16, &hash);
    if (status != LH_OK) return status;
    if (file >= m->file_count)
        return fail(LH_INVALID, "%s: tensor %s: file %llu of %u", path, tensor->name,
                    (unsigned long long)file, m->file_count);

    tensor->part = tensor_part_whole(tensor->rank, tensor->shape);
    if (json_member(row, "at") != NULL) {
        tensor_part_t *p = &tensor->part;
        status = read_sizes(path, tensor->name, json_member(row, "at"), tensor->rank, p->at);
        if (status == LH_OK)
            status = read_sizes(path, tensor->name, json_member(row, "box"), tensor->rank,
                                p->shape);
        if (status == LH_OK) status = json_take_count(path, row, "first", &p->first);
        if (status == LH_OK) status = json_take_count(path, row, "count", &p->count);
        if (status != LH_OK) return status;
        if (!tensor_part_fits(p, tensor->rank, tensor->shape))
            return fail(LH_INVALID, "%s: tensor %s: a part lies outside of it", path, tensor->name);
    }
    return manifest_add_part(m, tensor, (uint32_t)file, stored, hash);
}

/* Which ones: for the sentence, once it is known that something is wrong. */
static lh_status_t refuse_parts(const char *path, const manifest_tensor_t *t, uint64_t elements)
{
    uint64_t held = 0;
    for (uint32_t i = 0; i < t->part_count; i++) {
        if (!checked_add(held, t->parts[i].part.count, &held)) held = UINT64_MAX;
        for (uint32_t k = 0; k < i; k++)
            if (tensor_part_overlaps(&t->parts[i].part, &t->parts[k].part, t->rank))
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

/* The key is the seal's hash, which whoever made the file can't choose freely: it depends on all of
 * the text. */
static lh_status_t check_covers(const char *path, const manifest_t *m)
{
    const uint64_t key = digest_xxh3(m->self, strlen(m->self));
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < m->tensor_count && status == LH_OK; i++)
        status = check_cover(path, &m->tensors[i], key);
    return status;
}

/* The size of the whole is bounded by 2^63 bytes before any part of it is looked at, so that sums
 * and products of its places fit from there on. */
static lh_status_t read_tensor_row(const char *path, const char *name, const json_value_t *row,
                                   manifest_t *m)
{
    checkpoint_tensor_t tensor = {.name = name};
    const char *dtype;
    lh_status_t status = json_take_text(path, row, "dtype", &dtype);
    if (status != LH_OK) return status;
    const safetensors_dtype_t *known = safetensors_dtype_named(dtype);
    const char *source = json_text(json_member(row, "source"));
    const safetensors_dtype_t *origin = source == NULL ? NULL : safetensors_dtype_named(source);
    if (known == NULL || known->number == LH_DTYPE_NONE)
        return safetensors_dtype_refuse(path, name, dtype, true);
    tensor.dtype = known->number;
    tensor.source = origin == NULL ? LH_DTYPE_NONE : origin->number;

    const json_value_t *shape = json_member(row, "shape"), *parts = json_member(row, "parts");
    if (json_size(shape) > LH_MAX_RANK)
        return fail(LH_INVALID, "%s: tensor %s: %zu dimensions, at most %d are allowed", path, name,
                    json_size(shape), LH_MAX_RANK);
    tensor.rank = (uint32_t)json_size(shape);
    status = read_sizes(path, name, shape, tensor.rank, tensor.shape);
    if (status != LH_OK) return status;
    uint64_t bytes = known->bits / 8;
    for (uint32_t i = 0; i < tensor.rank; i++)
        if (!checked_mul(bytes, tensor.shape[i], &bytes) || bytes > INT64_MAX)
            return fail(LH_INVALID, "%s: tensor %s: more than 2^63 bytes", path, name);

    const size_t count = json_is_list(parts) ? json_size(parts) : 0;
    if (count == 0 || count > MANIFEST_PARTS)
        return fail(LH_INVALID, "%s: tensor %s: %zu parts, 1 to %d were expected", path, name,
                    count, MANIFEST_PARTS);
    for (json_walk_t w = json_walk(parts); status == LH_OK && json_next(&w);)
        status = read_tensor_part(path, w.value, m, &tensor);
    return status;
}

static int by_tensor_name(const void *a, const void *b)
{
    return strcmp(((const manifest_tensor_t *)a)->name, ((const manifest_tensor_t *)b)->name);
}

/* Sorted at the end, for manifest_find. */
static lh_status_t read_all(const char *path, const json_value_t *root, manifest_t *m)
{
    lh_status_t status = read_meta(path, root, m);
    if (status == LH_OK) status = read_files(path, json_member(root, "files"), m);
    if (status != LH_OK) return status;

    const json_value_t *tensors = json_member(root, "tensors");
    if (!json_is_map(tensors)) return fail(LH_INVALID, "%s: tensors: an object was expected", path);
    for (json_walk_t w = json_walk(tensors); json_next(&w);) {
        status = read_tensor_row(path, w.key, w.value, m);
        if (status != LH_OK) return status;
    }
    if (m->tensor_count > 0)
        qsort(m->tensors, m->tensor_count, sizeof(m->tensors[0]), by_tensor_name);
    return LH_OK;
}

/* Seal, JSON, fields, cover: each is only looked at once the one before holds. */
lh_status_t manifest_parse(const char *path, const char *text, size_t length, bool whole,
                           manifest_t **out)
{
    manifest_t *m = mem_new(sizeof(*m));
    if (m == NULL) return LH_NO_MEMORY;
    lh_status_t status = check_seal(path, text, length, m->self);
    if (status == LH_OK) status = json_parse(path, text, length, VALUES_MOST, &m->json);
    if (status == LH_OK) status = read_all(path, json_root(m->json), m);
    if (status == LH_OK && whole) status = check_covers(path, m);
    if (status == LH_OK)
        *out = m;
    else
        manifest_free(m);
    return status;
}

/* file_read_plain: no links, no pipes, nothing that is longer than a manifest may be. */
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
    json_free(m->json);
    mem_free(m);
}
