/* documents.c - JSONL lines through the tokenizer. */
#include <data/documents.h>

#include <base/memory.h>
#include <data/line_reader.h>
#include <format/json.h>

struct documents {
    documents_how_t how;
    json_lines_t *lines;
    tokenizer_scratch_t *scratch;
    token_ids_t ids;
};

lh_status_t documents_open(const documents_how_t *how, documents_t **out)
{
    if (how->bos && tokenizer_special(how->tokenizer)->bos < 0)
        return fail(LH_INVALID, "%s is to begin with BOS, but the tokenizer has none", how->path);
    documents_t *d = mem_new(sizeof(*d));
    if (d == NULL) return LH_NO_MEMORY;
    d->how = *how;
    lh_status_t status = tokenizer_scratch_new(how->tokenizer, &d->scratch);
    if (status == LH_OK)
        status = json_lines_open(&d->how.path, 1, how->key, how->line_bytes, how->window_bytes,
                                 &d->lines);
    if (status != LH_OK) {
        documents_close(d);
        return status;
    }
    *out = d;
    return LH_OK;
}

void documents_close(documents_t *d)
{
    if (d == NULL) return;
    json_lines_close(d->lines);
    tokenizer_scratch_free(d->scratch);
    token_ids_free(&d->ids);
    mem_free(d);
}

static lh_status_t bos_put(documents_t *d)
{
    int32_t *ids = mem_grow(d->ids.ids, &d->ids.capacity, 1, sizeof(*ids));
    if (ids == NULL) return LH_NO_MEMORY;
    d->ids.ids = ids;
    ids[0] = tokenizer_special(d->how.tokenizer)->bos;
    d->ids.count = 1;
    return LH_OK;
}

/* The tokenizer knows what is wrong with a text, not where it stands. */
static lh_status_t fail_here(const documents_t *d)
{
    char *reason = mem_text(fail_reason());
    if (reason == NULL) return LH_NO_MEMORY;
    (void)fail(LH_INVALID, "%s:%llu: %s", d->how.path,
               (unsigned long long)json_lines_number(d->lines), reason);
    mem_free(reason);
    return LH_INVALID;
}

lh_status_t documents_next(documents_t *d, const int32_t **ids, size_t *count, bool *end)
{
    const char *text;
    size_t length;
    lh_status_t status = json_lines_next(d->lines, &text, &length, end);
    if (status != LH_OK || *end) return status;

    d->ids.count = 0;
    if (d->how.bos) status = bos_put(d);
    if (status == LH_OK)
        status = tokenizer_encode(d->how.tokenizer, d->scratch, text, length, SPELLING_AS_REFERENCE,
                                  &d->ids);
    if (status == LH_INVALID) return fail_here(d);
    if (status != LH_OK) return status;
    *ids = d->ids.ids;
    *count = d->how.tokens != 0 && d->ids.count > d->how.tokens ? d->how.tokens : d->ids.count;
    return LH_OK;
}

/* Lines and the scanner, put together. */
struct json_lines {
    line_reader_t *reader;
    json_document_t *document; /* of the last line */
    const char *const *paths;
    const char *key;
    uint64_t line_bytes, number;
};

lh_status_t json_lines_open(const char *const *paths, uint32_t count, const char *key,
                            uint64_t line_bytes, uint64_t window_bytes, json_lines_t **out)
{
    json_lines_t *lines = mem_new(sizeof(*lines));
    if (lines == NULL) return LH_NO_MEMORY;
    *lines = (json_lines_t){.paths = paths, .key = key, .line_bytes = line_bytes};
    const lh_status_t status = line_reader_new(paths, count, line_bytes, window_bytes,
                                               &lines->reader);
    if (status != LH_OK) {
        mem_free(lines);
        return status;
    }
    *out = lines;
    return LH_OK;
}

void json_lines_close(json_lines_t *lines)
{
    if (lines == NULL) return;
    json_free(lines->document);
    line_reader_free(lines->reader);
    mem_free(lines);
}

/* What the reader of JSON says of a line, with its place. */
static lh_status_t fail_at(const char *path, uint64_t number, lh_status_t status)
{
    if (status != LH_INVALID) return status;
    char *reason = mem_text(fail_reason());
    if (reason == NULL) return LH_NO_MEMORY;
    status = fail(LH_INVALID, "%s:%llu: %s", path, (unsigned long long)number, reason);
    mem_free(reason);
    return status;
}

lh_status_t json_lines_next(json_lines_t *lines, const char **text, size_t *length, bool *end)
{
    line_t line;
    do {
        const lh_status_t status = line_reader_next(lines->reader, &line, end);
        if (status != LH_OK || *end) return status;
    } while (!line.too_long && json_line_blank(line.bytes, line.length));

    const char *path = lines->paths[line.file];
    if (line.too_long)
        return fail(LH_INVALID, "%s:%llu: longer than %llu bytes", path,
                    (unsigned long long)line.number, (unsigned long long)lines->line_bytes);
    lines->number = line.number;
    return fail_at(
        path, line.number,
        json_line_text(line.bytes, line.length, lines->key, &lines->document, text, length));
}

uint64_t json_lines_number(const json_lines_t *lines)
{
    return lines->number;
}
