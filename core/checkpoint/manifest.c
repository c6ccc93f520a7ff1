/* manifest.c - builds a manifest and writes it down, sealed. */
#include <checkpoint/manifest.h>

#include <stdlib.h>

#include <base/memory.h>
#include <checkpoint/json_text.h>
#include <checkpoint/safetensors.h>
#include <checkpoint/shard_index.h>

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

/* Parts of one tensor that arrive one after the other come together at once; those that other ranks
 * add later do so when the text is made. */
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

static void key_text(text_t *t, const char *key, const char *value)
{
    text_printf(t, "\"%s\": ", key);
    json_text_quote(t, value == NULL ? "" : value);
    text_append(t, ",\n");
}

static void key_u64(text_t *t, const char *key, uint64_t value)
{
    text_printf(t, "\"%s\": %llu,\n", key, (unsigned long long)value);
}

static void list(text_t *t, const char *key, uint32_t count, const uint64_t *items)
{
    text_printf(t, "\"%s\": [", key);
    for (uint32_t i = 0; i < count; i++)
        text_printf(t, "%s%llu", i > 0 ? ", " : "", (unsigned long long)items[i]);
    text_append(t, "]");
}

static void append_meta(text_t *t, const checkpoint_meta_t *meta, const char *parent)
{
    key_u64(t, "version", MANIFEST_VERSION);
    key_text(t, "run", meta->run);
    key_u64(t, "step", meta->step);
    key_text(t, "parent", parent);
    key_text(t, "config", meta->config);
    key_text(t, "model", meta->model);
    text_append(t, "\"plugins\": [");
    for (uint32_t i = 0; i < meta->plugin_count; i++) {
        const checkpoint_plugin_t *p = &meta->plugins[i];
        text_append(t, i > 0 ? ",\n{" : "\n{");
        key_text(t, "kind", p->kind);
        key_text(t, "name", p->name);
        key_text(t, "version", p->version);
        key_text(t, "sha256", p->sha256);
        text_printf(t, "\"abi\": %u}", p->abi);
    }
    text_append(t, "],\n");
    key_text(t, "variants", meta->variants);
    key_text(t, "device", meta->device);
    /* 64 bits do not fit a JSON number everywhere. */
    text_printf(t, "\"seed\": \"%llu\",\n", (unsigned long long)meta->seed);
    key_u64(t, "cursor", meta->cursor);
    key_u64(t, "tokens", meta->tokens);
    text_append(t, "\"scalars\": {");
    for (uint32_t i = 0; i < meta->scalar_count; i++) {
        text_append(t, i > 0 ? ",\n" : "\n");
        json_text_quote(t, meta->scalars[i].name);
        text_printf(t, ": \"%.17g\"", meta->scalars[i].value);
    }
    text_append(t, "},\n");
}

static void append_tensor(text_t *t, const manifest_tensor_t *tensor)
{
    json_text_quote(t, tensor->name);
    text_printf(t, ": {\"dtype\": \"%s\", ", safetensors_dtype(tensor->dtype)->name);
    if (tensor->source != LH_DTYPE_NONE)
        text_printf(t, "\"source\": \"%s\", ", safetensors_dtype(tensor->source)->name);
    list(t, "shape", tensor->rank, tensor->shape);
    text_append(t, ", \"parts\": [");
    for (uint32_t i = 0; i < tensor->part_count; i++) {
        const manifest_part_t *part = &tensor->parts[i];
        text_printf(t, "%s{\"file\": %u, \"stored\": ", i > 0 ? ",\n  " : "", part->file);
        json_text_quote(t, part->stored);
        text_append(t, ", ");
        if (!tensor_part_is_whole(&part->part, tensor->rank, tensor->shape)) {
            list(t, "at", tensor->rank, part->part.at);
            text_append(t, ", ");
            list(t, "box", tensor->rank, part->part.shape);
            text_printf(t, ", \"first\": %llu, \"count\": %llu, ",
                        (unsigned long long)part->part.first, (unsigned long long)part->part.count);
        }
        text_printf(t, "\"xxh3\": \"%016llx\"}", (unsigned long long)part->xxh3);
    }
    text_append(t, "]}");
}

static bool has_first_element(const manifest_tensor_t *tensor)
{
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
    text_t line = {0}, head = {0};
    lh_status_t status = manifest_add_part(&alone, tensor, file, stored, 0);
    if (status == LH_OK) {
        manifest_tensor_t empty = alone.tensors[0];
        empty.part_count = 0;
        text_append(&line, ",\n  ");
        append_tensor(&line, &alone.tensors[0]);
        if (!has_first_element(&alone.tensors[0])) append_tensor(&head, &empty);
        status = head.failed ? text_status(&head) : text_status(&line);
    }
    *bytes = line.length - head.length;
    text_free(&head);
    text_free(&line);
    manifest_clear(&alone);
    return status;
}

static int by_name_and_file(const void *a, const void *b)
{
    const manifest_tensor_t *x = a, *y = b;
    const int order = strcmp(x->name, y->name);
    if (order != 0) return order;
    return x->parts[0].file < y->parts[0].file ? -1 : x->parts[0].file > y->parts[0].file;
}

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

/* Every rank adds its share of a tensor: the shares come together under its name. */
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

lh_status_t manifest_text(manifest_t *m, text_t *out)
{
    const checkpoint_meta_t *meta = &m->meta;
    if (meta->step > INT64_MAX || meta->cursor > INT64_MAX || meta->tokens > INT64_MAX)
        return fail(LH_INVALID, "a manifest holds counts up to 2^63");
    const lh_status_t gathered = gather_parts(m);
    if (gathered != LH_OK) return gathered;
    text_append(out, "{\n");
    append_meta(out, meta, m->parent);
    text_append(out, "\"files\": [");
    for (uint32_t i = 0; i < m->file_count; i++) {
        text_append(out, i > 0 ? ",\n{" : "\n{");
        key_text(out, "name", m->files[i].name);
        text_printf(out, "\"bytes\": %llu,\n\"header\": \"%016llx\"}",
                    (unsigned long long)m->files[i].bytes,
                    (unsigned long long)m->files[i].header_hash);
    }
    text_append(out, "],\n\"tensors\": {");
    for (uint32_t i = 0; i < m->tensor_count; i++) {
        text_append(out, i > 0 ? ",\n" : "\n");
        append_tensor(out, &m->tensors[i]);
    }
    text_append(out, "},\n");
    if (out->failed) return text_status(out);

    const lh_status_t status = sha256_of(out->data, out->length, m->self);
    if (status != LH_OK) return status;
    text_printf(out, "\"self\": \"%s\"\n}\n", m->self);
    if (out->length > MANIFEST_MOST)
        return fail(LH_INVALID, "a manifest of %zu bytes, at most %d are read again", out->length,
                    MANIFEST_MOST);
    return text_status(out);
}

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
