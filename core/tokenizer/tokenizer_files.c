/* tokenizer_json.c - reads a Hugging Face tokenizer.json: its model, which is one of a table, its
 * added tokens, and by tokenizer_stages.c what is done before and behind the model.
 *
 * The file has six parts: normalizer, pre_tokenizer, model, post_processor, decoder and
 * added_tokens. What is not known is refused, as a part left out would give other ids in
 * silence. */
#include <math.h>
#include <stdio.h>

#include <base/memory.h>
#include <tokenizer/tokenizer_json.h>
#include <tokenizer/tokenizer_stages.h>

static bool json_flag(const json_value_t *object, const char *key)
{
    return json_is_yes(json_member(object, key));
}

/* Files say that something is not set in three ways: not at all, null, and "". */
static bool is_absent(const json_value_t *value)
{
    return value == NULL || json_is_nil(value) ||
           (json_is_text(value) && json_text_length(value) == 0);
}

/* {"id": 0, "content": "<s>", "special": true, ...} */
static lh_status_t read_added_token(tokenizer_t *t, const char *path, size_t index,
                                    const json_value_t *entry)
{
    const json_value_t *id = json_member(entry, "id"), *content = json_member(entry, "content");
    if (!json_is_whole(id) || !json_is_text(content))
        return fail(LH_INVALID, "%s: added token %zu lacks an id or a content", path, index);
    const char *text = json_text(content);
    const lh_status_t status = tokenizer_check_id(t, path, json_whole(id), text);
    if (status != LH_OK) return status;

    return tokenizer_read_token(t, path, (int32_t)json_whole(id), text, entry, true);
}

static lh_status_t read_added_tokens(tokenizer_t *t, const char *path, const json_value_t *list)
{
    lh_status_t status = LH_OK;
    if (!json_is_list(list)) return LH_OK;
    for (json_walk_t w = json_walk(list); status == LH_OK && json_next(&w);)
        status = read_added_token(t, path, w.index, w.value);
    return status;
}

/* "a b", or ["a", "b"]. */
static lh_status_t read_merge(tokenizer_t *t, const char *path, size_t index,
                              const json_value_t *merge, uint32_t rank)
{
    char where[512];
    (void)snprintf(where, sizeof(where), "%s: merge %zu", path, index);

    if (json_is_list(merge) && json_size(merge) == 2) {
        const json_value_t *left = json_item(merge, 0), *right = json_item(merge, 1);
        if (json_is_text(left) && json_is_text(right))
            return tokenizer_add_merge(t, where, json_text(left), json_text_length(left),
                                       json_text(right), json_text_length(right), rank);
    }
    const char *text = json_text(merge);
    const char *space = text == NULL ? NULL : strchr(text, ' ');
    if (space == NULL || strchr(space + 1, ' ') != NULL)
        return fail(LH_INVALID, "%s is not two pieces with one space between them", where);
    return tokenizer_add_merge(t, where, text, (size_t)(space - text), space + 1, strlen(space + 1),
                               rank);
}

/* The rank of a merge is its place in the list; a line with a version, which old files were made
 * from, has none. */
static lh_status_t read_merges(tokenizer_t *t, const char *path, const json_value_t *merges)
{
    lh_status_t status = LH_OK;
    uint32_t rank = 0;

    if (!json_is_list(merges)) return fail(LH_INVALID, "%s: model.merges is not a list", path);
    for (json_walk_t w = json_walk(merges); status == LH_OK && json_next(&w);) {
        const char *text = json_text(w.value);
        if (text != NULL && text_starts(text, "#version")) continue;
        status = read_merge(t, path, w.index, w.value, rank++);
    }
    return status;
}

/* What a BPE model may not have. dropout would make encoding random; prefix and suffix are of
 * vocabularies that mark the ends of words. */
static lh_status_t refuse_model(const char *path, const json_value_t *model)
{
    static const char *const unsupported[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const json_value_t *dropout = json_member(model, "dropout");

    if (!json_is_map(json_member(model, "vocab")))
        return fail(LH_INVALID, "%s: model.vocab is not an object of pieces and ids", path);
    if (!is_absent(dropout) && json_number(dropout) != 0.0)
        return fail(LH_UNSUPPORTED, "%s: model.dropout is %g; only text without dropout is encoded",
                    path, json_number(dropout));
    for (size_t i = 0; i < sizeof(unsupported) / sizeof(*unsupported); i++)
        if (!is_absent(json_member(model, unsupported[i])))
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
        bytes.length = 0;
        const bool in_alphabet = piece_append_bytes(piece, &bytes);
        status = text_status(&bytes);
        if (status == LH_OK && in_alphabet && bytes.length > 0)
            status = piece_table_add(&t->raw, path, id, bytes.data, bytes.length);
    }
    text_free(&bytes);
    t->bpe.whole = &t->raw;
    return status;
}

/* The piece that unknown characters are written as. */
static lh_status_t read_unknown(tokenizer_t *t, const char *path, const json_value_t *model)
{
    const json_value_t *name = json_member(model, "unk_token");
    if (is_absent(name)) return LH_OK;

    const char *text = json_text(name);
    const int32_t id = text == NULL ? -1 : piece_table_find(&t->pieces, text, strlen(text));
    if (id < 0)
        return fail(LH_INVALID, "%s: model.unk_token '%s' is not in the vocabulary", path,
                    text == NULL ? "?" : text);
    t->unknown = id;
    t->bpe.unknown = (uint32_t)id;
    t->bpe.fuse_unknown = json_flag(model, "fuse_unk");
    return LH_OK;
}

/* Vocabulary and merges, then the symbols that texts start with: bytes, if the pretokenizer was
 * ByteLevel, else characters. whole comes last, as the cuts into words do not depend on it. */
static lh_status_t read_bpe(tokenizer_t *t, const char *path, const json_value_t *model)
{
    lh_status_t status = refuse_model(path, model);
    if (status == LH_OK) status = tokenizer_read_vocabulary(t, path, json_member(model, "vocab"));
    if (status == LH_OK) status = read_unknown(t, path, model);
    if (status == LH_OK) status = read_merges(t, path, json_member(model, "merges"));
    if (status != LH_OK) return status;

    if (t->spelled == SPELLED_BYTE_LEVEL) {
        status = tokenizer_bytes_from_alphabet(t, path);
    } else {
        t->kind = json_flag(model, "byte_fallback") ? "BPE with byte fallback"
                                                    : "BPE of characters";
        if (json_flag(model, "byte_fallback")) status = tokenizer_bytes_from_fallback(t, path);
        if (status == LH_OK) status = tokenizer_characters(t);
    }
    if (status == LH_OK) status = tokenizer_cut_words(t);
    if (status == LH_OK && json_flag(model, "ignore_merges")) status = take_whole_pieces(t, path);
    return status;
}

/* ["piece", -3.5]. Its id is its place in the list. */
static lh_status_t read_scored_piece(tokenizer_t *t, const char *path, size_t id,
                                     const json_value_t *entry)
{
    const json_value_t *piece = json_item(entry, 0), *score = json_item(entry, 1);
    if (json_size(entry) != 2 || !json_is_text(piece) || !json_is_numeric(score))
        return fail(LH_INVALID, "%s: the entry %zu of model.vocab is not [piece, score]", path, id);
    const lh_status_t status = tokenizer_check_id(t, path, (int64_t)id, json_text(piece));
    if (status != LH_OK) return status;
    t->unigram.scores[id] = json_number(score);
    return tokenizer_add_piece(t, path, (uint32_t)id, json_text(piece), json_text_length(piece));
}

/* Hugging Face's model adds in doubles, lets texts become every piece, special ones too, and counts
 * the lowest score of all. */
static lh_status_t read_unigram(tokenizer_t *t, const char *path, const json_value_t *model)
{
    const json_value_t *list = json_member(model, "vocab"), *unk = json_member(model, "unk_id");
    const size_t count = json_size(list);
    unigram_t *u = &t->unigram;

    if (!json_is_list(list) || count == 0)
        return fail(LH_INVALID, "%s: model.vocab is not a list of [piece, score]", path);
    if (unk != NULL && !json_is_nil(unk) &&
        (!json_is_whole(unk) || json_whole(unk) < 0 || json_whole(unk) >= (int64_t)count))
        return json_refuse(path, "model.unk_id", unk, "an id of model.vocab");
    t->model = MODEL_UNIGRAM;
    t->kind = "unigram";
    t->unknown = json_is_whole(unk) ? (int32_t)json_whole(unk) : -1;
    u->unknown = t->unknown;
    u->score_count = count;
    u->scores = mem_array(count, sizeof(*u->scores));
    if (u->scores == NULL) return LH_NO_MEMORY;

    double lowest = INFINITY;
    lh_status_t status = LH_OK;
    for (json_walk_t w = json_walk(list); status == LH_OK && json_next(&w);) {
        status = read_scored_piece(t, path, w.index, w.value);
        if (status == LH_OK && u->scores[w.index] < lowest) lowest = u->scores[w.index];
    }
    if (status == LH_OK && json_flag(model, "byte_fallback")) {
        t->kind = "unigram with byte fallback";
        status = tokenizer_bytes_from_fallback(t, path);
    }
    return status == LH_OK ? unigram_finish(u, path, &t->pieces, NULL, lowest) : status;
}

/* Words that the pretokenizer has cut, by the longest piece. */
static lh_status_t read_wordpiece(tokenizer_t *t, const char *path, const json_value_t *model)
{
    const json_value_t *prefix = json_member(model, "continuing_subword_prefix");
    const json_value_t *unk = json_member(model, "unk_token");
    const json_value_t *most = json_member(model, "max_input_chars_per_word");
    wordpiece_t *w = &t->wordpiece;

    t->model = MODEL_WORDPIECE;
    t->kind = "WordPiece";
    w->characters = 100;
    if (most != NULL && !json_count(most, &w->characters))
        return json_refuse(path, "model.max_input_chars_per_word", most, "a whole number");
    if (!json_is_map(json_member(model, "vocab")))
        return fail(LH_INVALID, "%s: model.vocab is not an object of pieces and ids", path);
    lh_status_t status = tokenizer_read_vocabulary(t, path, json_member(model, "vocab"));
    if (status != LH_OK) return status;
    const char *unknown = json_is_text(unk) ? json_text(unk) : "[UNK]";
    t->unknown = piece_table_find(&t->pieces, unknown, strlen(unknown));
    w->unknown = t->unknown;
    return wordpiece_finish(w, path, &t->pieces, json_is_text(prefix) ? json_text(prefix) : "##");
}

/* A file without a type has a BPE model, as old ones do. */
static lh_status_t read_model(tokenizer_t *t, const char *path, const json_value_t *model)
{
    static const struct {
        const char *type;
        lh_status_t (*read)(tokenizer_t *t, const char *path, const json_value_t *model);
    } rows[] = {
        {"BPE", read_bpe},
        {"Unigram", read_unigram},
        {"WordPiece", read_wordpiece},
    };
    const char *type = json_text(json_member(model, "type"));

    if (type == NULL) type = "BPE";
    if (t->spelled == SPELLED_BYTE_LEVEL && strcmp(type, "BPE") != 0)
        return fail(LH_UNSUPPORTED, "%s: ByteLevel with a model of type '%s' is not supported",
                    path, type);
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
        if (strcmp(type, rows[i].type) == 0) return rows[i].read(t, path, model);
    return fail(LH_UNSUPPORTED,
                "%s: the model is of type '%s'; BPE, Unigram and WordPiece are supported", path,
                type);
}

/* The model comes behind the pretokenizer, which says how the pieces are spelt, and added tokens
 * behind the model, whose pieces they may repeat. */
lh_status_t tokenizer_read_json(tokenizer_t *t, const char *path, const json_value_t *root)
{
    const json_value_t *model = json_member(root, "model");
    json_document_t *config = NULL;

    if (!json_is_map(model)) return fail(LH_INVALID, "%s has no model", path);
    lh_status_t status = tokenizer_read_normalizer(t, path, json_member(root, "normalizer"));
    if (status == LH_OK)
        status = tokenizer_read_pretokenizer(t, path, json_member(root, "pre_tokenizer"));
    if (status == LH_OK) status = tokenizer_read_decoder(t, path, json_member(root, "decoder"));
    if (status == LH_OK)
        status = tokenizer_read_post_processor(t, path, json_member(root, "post_processor"));
    if (status == LH_OK) status = read_model(t, path, model);
    if (status == LH_OK) status = read_added_tokens(t, path, json_member(root, "added_tokens"));
    if (status == LH_OK) status = tokenizer_load_config(t, path, &config);
    if (status == LH_OK) tokenizer_find_special(t, json_root(config));
    json_free(config);
    return status;
}
