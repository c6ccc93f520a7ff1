/* tokenizer_speed.c - how fast a tokenizer encodes the documents of a JSONL file on one core.
 *
 *     tokenizer_speed FILE.jsonl TOKENIZER...
 *
 * Prints one line per tokenizer: MB/s of text for the first pass with an empty cache and for the
 * best of the later ones, and the tokens of one pass. */
#include <stdio.h>
#include <stdlib.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <jansson.h>
#include <tokenizer/tokenizer.h>

enum { PASSES = 7 };

typedef struct documents {
    json_t **lines;
    size_t count, room, bytes;
} documents_t;

static lh_status_t read_documents(const char *path, documents_t *out)
{
    char *bytes;
    size_t length;
    const lh_status_t status = file_read(path, 1u << 30, &bytes, &length);
    if (status != LH_OK) return status;

    for (size_t at = 0; at < length;) {
        const char *end = memchr(bytes + at, '\n', length - at);
        const size_t size = end == NULL ? length - at : (size_t)(end - bytes) - at;
        json_error_t error;
        json_t *line = json_loadb(bytes + at, size, 0, &error);
        at += size + 1;
        json_t *text = json_object_get(line, "text");
        if (!json_is_string(text)) continue;
        json_t **lines = mem_grow(out->lines, &out->room, out->count + 1, sizeof(json_t *));
        if (lines == NULL) return LH_NO_MEMORY;
        out->lines = lines;
        out->lines[out->count++] = text;
        out->bytes += json_string_length(text);
    }
    mem_free(bytes);
    return LH_OK;
}

static lh_status_t encode_all(const tokenizer_t *t, tokenizer_scratch_t *scratch,
                              const documents_t *documents, token_ids_t *ids, size_t *tokens)
{
    *tokens = 0;
    for (size_t i = 0; i < documents->count; i++) {
        ids->count = 0;
        const json_t *line = documents->lines[i];
        const lh_status_t status = tokenizer_encode(t, scratch, json_string_value(line),
                                                    json_string_length(line), SPELLING_AS_REFERENCE,
                                                    ids);
        if (status != LH_OK) return status;
        *tokens += ids->count;
    }
    return LH_OK;
}

static lh_status_t measure(const char *path, const documents_t *documents)
{
    tokenizer_t *t = NULL;
    tokenizer_scratch_t *scratch = NULL;
    token_ids_t ids = {0};
    size_t tokens = 0;
    double first = 0, best = 0;

    const uint64_t start = sys()->now_ns();
    lh_status_t status = tokenizer_load(path, NULL, &t);
    const double load_ms = (double)(sys()->now_ns() - start) / 1e6;
    if (status == LH_OK) status = tokenizer_scratch_new(t, &scratch);
    for (int pass = 0; pass < PASSES && status == LH_OK; pass++) {
        const uint64_t from = sys()->now_ns();
        status = encode_all(t, scratch, documents, &ids, &tokens);
        const double rate = (double)documents->bytes * 1e3 / (double)(sys()->now_ns() - from);
        if (pass == 0) first = rate;
        if (rate > best) best = rate;
    }
    if (status == LH_OK)
        printf("%-56s load %6.0f ms  first %7.2f MB/s  best %7.2f MB/s  %zu tokens\n", path,
               load_ms, first, best, tokens);
    token_ids_free(&ids);
    tokenizer_scratch_free(scratch);
    tokenizer_free(t);
    return status;
}

int main(int argc, char **argv)
{
    documents_t documents = {0};
    lh_status_t status = LH_OK;

    if (argc < 3) {
        fprintf(stderr, "usage: tokenizer_speed FILE.jsonl TOKENIZER...\n");
        return EXIT_USAGE;
    }
    status = read_documents(argv[1], &documents);
    for (int i = 2; i < argc && status == LH_OK; i++)
        status = measure(argv[i], &documents);
    if (status != LH_OK) fprintf(stderr, "%s\n", fail_reason());
    return status_exit_code(status);
}
