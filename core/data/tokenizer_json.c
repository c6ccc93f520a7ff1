/* tokenizer_json.c - reads a Hugging Face tokenizer.json with a BPE model. What it does not know it
 * refuses: a stage left out would give other ids in silence. */
#include <stdio.h>

#include <base/memory.h>
#include <data/tokenizer_inside.h>
#include <data/tokenizer_stages.h>

static bool flag(const json_t *object, const char *key)
{
    return json_is_true(json_object_get(object, key));
}

static bool is_absent(const json_t *value)
{
    return value == NULL || json_is_null(value) ||
           (json_is_string(value) && json_string_length(value) == 0);
}

static lh_status_t read_added_token(tokenizer_t *t, const char *path, size_t index, json_t *entry)
{
    json_t *id = json_object_get(entry, "id"), *content = json_object_get(entry, "content");
    if (!json_is_integer(id) || !json_is_string(content))
        return fail(LH_INVALID, "%s: added token %zu lacks an id or a content", path, index);
    const char *text = json_string_value(content);
    const lh_status_t status = tokenizer_check_id(t, path, json_integer_value(id), text);
    if (status != LH_OK) return status;

    json_t *normalized = json_object_get(entry, "normalized");
    added_token_t token = {
        .id = (int32_t)json_integer_value(id),
        .content = mem_text(text),
        .length = strlen(text),
        .special = flag(entry, "special"),
        .single_word = flag(entry, "single_word"),
        .lstrip = flag(entry, "lstrip"),
        .rstrip = flag(entry, "rstrip"),
    };
    token.normalized = normalized == NULL ? !token.special : json_is_true(normalized);
    if (token.content == NULL) return LH_NO_MEMORY;
    return tokenizer_add_token(t, path, token);
}

static lh_status_t read_added_tokens(tokenizer_t *t, const char *path, json_t *list)
{
    lh_status_t status = LH_OK;
    for (size_t i = 0; i < json_array_size(list) && status == LH_OK; i++)
        status = read_added_token(t, path, i, json_array_get(list, i));
    return status;
}

/* "a b", or ["a", "b"]. */
static lh_status_t read_merge(tokenizer_t *t, const char *path, size_t index, const json_t *merge,
                              uint32_t rank)
{
    char where[512];
    (void)snprintf(where, sizeof(where), "%s: merge %zu", path, index);

    if (json_is_array(merge) && json_array_size(merge) == 2) {
        const json_t *left = json_array_get(merge, 0), *right = json_array_get(merge, 1);
        if (json_is_string(left) && json_is_string(right))
            return tokenizer_add_merge(t, where, json_string_value(left), json_string_length(left),
                                       json_string_value(right), json_string_length(right), rank);
    }
    const char *text = json_string_value(merge);
    const char *space = text == NULL ? NULL : strchr(text, ' ');
    if (space == NULL || strchr(space + 1, ' ') != NULL)
        return fail(LH_INVALID, "%s is not two pieces with one space between them", where);
    return tokenizer_add_merge(t, where, text, (size_t)(space - text), space + 1, strlen(space + 1),
                               rank);
}

static lh_status_t read_merges(tokenizer_t *t, const char *path, const json_t *merges)
{
    lh_status_t status = LH_OK;
    uint32_t rank = 0;

    if (!json_is_array(merges)) return fail(LH_INVALID, "%s: model.merges is not a list", path);
    for (size_t i = 0; i < json_array_size(merges) && status == LH_OK; i++) {
        const json_t *merge = json_array_get(merges, i);
        if (json_is_string(merge) && strncmp(json_string_value(merge), "#version", 8) == 0)
            continue;
        status = read_merge(t, path, i, merge, rank++);
    }
    return status;
}

static lh_status_t refuse_model(const char *path, const json_t *model)
{
    static const char *const unsupported[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const char *type = json_string_value(json_object_get(model, "type"));
    const json_t *dropout = json_object_get(model, "dropout");

    if (!json_is_object(model)) return fail(LH_INVALID, "%s has no model", path);
    if (type != NULL && strcmp(type, "BPE") != 0)
        return fail(LH_UNSUPPORTED, "%s: the model is of type '%s'; BPE is supported", path, type);
    if (!json_is_object(json_object_get(model, "vocab")))
        return fail(LH_INVALID, "%s: model.vocab is not an object of pieces and ids", path);
    if (!is_absent(dropout) && json_number_value(dropout) != 0.0)
        return fail(LH_UNSUPPORTED, "%s: model.dropout is %g; only text without dropout is encoded",
                    path, json_number_value(dropout));
    for (size_t i = 0; i < sizeof(unsupported) / sizeof(*unsupported); i++)
        if (!is_absent(json_object_get(model, unsupported[i])))
            return fail(LH_UNSUPPORTED, "%s: model.%s is set, which is not supported", path,
                        unsupported[i]);
    return LH_OK;
}

/* ignore_merges takes pieces by the bytes of the text, so byte-level ones are needed as bytes. */
static lh_status_t take_whole_pieces(tokenizer_t *t, const char *path)
{
    if (t->spelled != SPELLED_BYTE_LEVEL) {
        t->bpe.whole = &t->pieces;
        return LH_OK;
    }
    text_t bytes = {0};
    lh_status_t status = LH_OK;
    for (uint32_t id = 0; id < t->pieces.count && status == LH_OK; id++) {
        piece_t piece;
        if (!piece_table_get(&t->pieces, id, &piece)) continue;
        const bool in_alphabet = tokenizer_piece_bytes(piece, &bytes);
        status = text_status(&bytes);
        if (status == LH_OK && in_alphabet && bytes.length > 0)
            status = piece_table_add(&t->raw, path, id, bytes.data, bytes.length);
    }
    text_free(&bytes);
    t->bpe.whole = &t->raw;
    return status;
}

static lh_status_t read_unknown(tokenizer_t *t, const char *path, const json_t *model)
{
    const json_t *name = json_object_get(model, "unk_token");
    if (is_absent(name)) return LH_OK;

    const char *text = json_string_value(name);
    const int32_t id = text == NULL ? -1 : piece_table_find(&t->pieces, text, strlen(text));
    if (id < 0)
        return fail(LH_INVALID, "%s: model.unk_token '%s' is not in the vocabulary", path,
                    text == NULL ? "?" : text);
    t->bpe.unknown = (uint32_t)id;
    t->bpe.fuse_unknown = flag(model, "fuse_unk");
    return LH_OK;
}

static lh_status_t read_model(tokenizer_t *t, const char *path, json_t *model)
{
    lh_status_t status = tokenizer_read_vocabulary(t, path, json_object_get(model, "vocab"));
    if (status == LH_OK) status = read_unknown(t, path, model);
    if (status == LH_OK) status = read_merges(t, path, json_object_get(model, "merges"));
    if (status != LH_OK) return status;

    if (t->spelled == SPELLED_BYTE_LEVEL) {
        status = tokenizer_bytes_from_alphabet(t, path);
    } else {
        t->kind = flag(model, "byte_fallback") ? "BPE with byte fallback" : "BPE of characters";
        if (flag(model, "byte_fallback")) status = tokenizer_bytes_from_fallback(t, path);
        if (status == LH_OK) status = tokenizer_characters(t);
    }
    if (status == LH_OK) status = tokenizer_cut_words(t);
    if (status == LH_OK && flag(model, "ignore_merges")) status = take_whole_pieces(t, path);
    return status;
}

lh_status_t tokenizer_read_json(tokenizer_t *t, const char *path, json_t *root)
{
    json_t *model = json_object_get(root, "model"), *config = NULL;

    lh_status_t status = refuse_model(path, model);
    if (status == LH_OK)
        status = tokenizer_read_normalizer(t, path, json_object_get(root, "normalizer"));
    if (status == LH_OK)
        status = tokenizer_read_pretokenizer(t, path, json_object_get(root, "pre_tokenizer"));
    if (status == LH_OK) status = tokenizer_read_decoder(t, path, json_object_get(root, "decoder"));
    if (status == LH_OK) status = read_model(t, path, model);
    if (status == LH_OK) status = read_added_tokens(t, path, json_object_get(root, "added_tokens"));
    if (status == LH_OK) status = tokenizer_load_config(t, path, &config);
    if (status == LH_OK) tokenizer_find_special(t, config);
    json_decref(config);
    return status;
}
