/* tokenizer_pair.c - reads GPT-2's two files: a vocabulary as JSON and merges as lines of text. */
#include <stdio.h>
#include <stdlib.h>

#include <base/file.h>
#include <base/memory.h>
#include <data/tokenizer_inside.h>

static lh_status_t read_merge_line(tokenizer_t *t, const char *path, size_t line_number,
                                   const char *line, size_t length, uint32_t rank)
{
    char where[512];
    (void)snprintf(where, sizeof(where), "%s:%zu:", path, line_number);

    const char *space = memchr(line, ' ', length);
    const size_t left = space == NULL ? 0 : (size_t)(space - line), right = length - left - 1;
    if (space == NULL || memchr(space + 1, ' ', right) != NULL || left == 0 || right == 0)
        return fail(LH_INVALID, "%s '%.*s' is not two pieces with one space between them", where,
                    (int)length, line);
    return tokenizer_add_merge(t, where, line, left, space + 1, right, rank);
}

static lh_status_t read_merges(tokenizer_t *t, const char *path, const char *bytes, size_t length)
{
    lh_status_t status = LH_OK;
    uint32_t rank = 0;
    size_t number = 1;

    for (size_t at = 0; at < length && status == LH_OK; number++) {
        const char *line = bytes + at, *end = memchr(line, '\n', length - at);
        size_t size = end == NULL ? length - at : (size_t)(end - line);
        at += size + 1;
        if (size > 0 && line[size - 1] == '\r') size--;
        if (size == 0 || (size >= 8 && memcmp(line, "#version", 8) == 0)) continue;
        status = read_merge_line(t, path, number, line, size, rank++);
    }
    return status;
}

/* merges.txt or vocab.bpe beside the vocabulary, or NAME-merges.txt beside NAME-vocab.json. */
static lh_status_t find_merges(const char *vocabulary, char **out)
{
    static const char *const names[] = {"merges.txt", "vocab.bpe"};
    static const char suffix[] = "-vocab.json";
    lh_status_t status = LH_NO_MEMORY;
    char *found = NULL, *folder = path_folder(vocabulary);
    if (folder == NULL) return status;

    if (text_ends(vocabulary, suffix)) {
        text_t name = {0};
        text_append_n(&name, vocabulary, strlen(vocabulary) - strlen(suffix));
        text_append(&name, "-merges.txt");
        if (text_status(&name) != LH_OK) {
            text_free(&name);
            goto free_folder;
        }
        if (file_exists(name.data)) found = name.data;
        if (found == NULL) text_free(&name);
    }
    for (size_t i = 0; i < 2 && found == NULL; i++) {
        char *path = path_join(folder, names[i]);
        if (path == NULL) goto free_folder;
        if (file_exists(path))
            found = path;
        else
            mem_free(path);
    }
    status = LH_OK;
    if (found == NULL)
        status = fail(LH_INVALID,
                      "%s is a vocabulary, but its merges are missing: merges.txt, vocab.bpe "
                      "or NAME-merges.txt is expected beside it",
                      vocabulary);
    else
        *out = found;

free_folder:
    mem_free(folder);
    return status;
}

static lh_status_t load_merges(tokenizer_t *t, const char *vocabulary)
{
    char *path = NULL, *bytes = NULL;
    size_t length;
    lh_status_t status = find_merges(vocabulary, &path);
    if (status != LH_OK) return status;

    status = tokenizer_add_file(t, path);
    if (status != LH_OK) goto free_path;
    status = file_read(path, t->limits.file_bytes, &bytes, &length);
    if (status != LH_OK) goto free_path;
    status = read_merges(t, path, bytes, length);
    mem_free(bytes);

free_path:
    mem_free(path);
    return status;
}

/* "added_tokens_decoder": {"151643": {"content": ..., ...}, ...} */
static lh_status_t read_config_tokens(tokenizer_t *t, const char *path, json_t *config)
{
    const char *key;
    json_t *entry;

    json_object_foreach(json_object_get(config, "added_tokens_decoder"), key, entry)
    {
        char *end;
        const long long id = strtoll(key, &end, 10);
        const char *content = json_string_value(json_object_get(entry, "content"));
        if (*end != '\0' || end == key || content == NULL)
            return fail(LH_INVALID,
                        "%s: its tokenizer_config.json has the added token '%s' without a "
                        "number or content",
                        path, key);
        lh_status_t status = tokenizer_check_id(t, path, id, content);
        if (status != LH_OK) return status;
        added_token_t token = {
            .id = (int32_t)id,
            .content = mem_text(content),
            .length = strlen(content),
            .special = json_is_true(json_object_get(entry, "special")),
            .normalized = json_is_true(json_object_get(entry, "normalized")),
            .single_word = json_is_true(json_object_get(entry, "single_word")),
            .lstrip = json_is_true(json_object_get(entry, "lstrip")),
            .rstrip = json_is_true(json_object_get(entry, "rstrip")),
        };
        if (token.content == NULL) return LH_NO_MEMORY;
        status = tokenizer_add_token(t, path, token);
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

/* Without a config, the end of a document is a token in decoding, and in text only when asked for.
 */
static lh_status_t add_end_token(tokenizer_t *t, const char *path)
{
    static const char end[] = "<|endoftext|>";
    piece_t known;
    const int32_t id = piece_table_find(&t->pieces, end, strlen(end));
    if (id < 0 || piece_table_get(&t->added_pieces, (uint32_t)id, &known)) return LH_OK;

    added_token_t token = {.id = id,
                           .content = mem_text(end),
                           .length = strlen(end),
                           .special = true,
                           .implicit = true};
    if (token.content == NULL) return LH_NO_MEMORY;
    return tokenizer_add_token(t, path, token);
}

lh_status_t tokenizer_read_pair(tokenizer_t *t, const char *path, json_t *vocabulary)
{
    json_t *config = NULL;
    lh_status_t status = tokenizer_read_vocabulary(t, path, vocabulary);
    if (status == LH_OK) status = load_merges(t, path);
    if (status == LH_OK) status = tokenizer_bytes_from_alphabet(t, path);
    if (status == LH_OK) status = tokenizer_load_config(t, path, &config);
    if (status != LH_OK) return status;

    /* the files don't say how text is cut: the class of the tokenizer does */
    const char *class = json_string_value(json_object_get(config, "tokenizer_class"));
    const bool qwen2 = class != NULL && text_starts(class, "Qwen2Tokenizer");
    if (qwen2)
        status = normalizer_add(&t->normalizer,
                                (normalize_step_t){.by = NORMALIZE_UNICODE, .compose = true});
    if (status == LH_OK) status = tokenizer_use_byte_level(t, qwen2 ? PATTERN_QWEN2 : PATTERN_GPT2);
    if (status == LH_OK) status = tokenizer_cut_words(t);
    t->cuts = true;
    t->pretokenizer.prefix_space = json_is_true(json_object_get(config, "add_prefix_space"));
    if (status == LH_OK) status = read_config_tokens(t, path, config);
    if (status == LH_OK) status = add_end_token(t, path);
    if (status == LH_OK) tokenizer_find_special(t, config);
    json_decref(config);
    return status;
}
