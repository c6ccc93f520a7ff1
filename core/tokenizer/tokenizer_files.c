/* tokenizer_files.c - reads a Hugging Face tokenizer.json: its model, which is one of a table, its
 * added tokens, and by tokenizer_stages.c what is done before and behind the model.
 *
 * The file has six parts: normalizer, pre_tokenizer, model, post_processor, decoder and
 * added_tokens. What is not known is refused, as a part left out would give other ids in
 * silence. */
#include <tokenizer/tokenizer_files.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <base/file.h>
#include <base/memory.h>
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

/* What a BPE model may not have: dropout would make encoding random. */
static lh_status_t refuse_model(const char *path, const json_value_t *model)
{
    const json_value_t *dropout = json_member(model, "dropout");

    if (!json_is_map(json_member(model, "vocab")))
        return fail(LH_INVALID, "%s: model.vocab is not an object of pieces and ids", path);
    if (!is_absent(dropout) && json_number(dropout) != 0.0)
        return fail(LH_UNSUPPORTED, "%s: model.dropout is %g; only text without dropout is encoded",
                    path, json_number(dropout));
    return LH_OK;
}

/* What a vocabulary that marks the places of a word has under `key`. With byte_fallback the
 * reference would write its bytes as well. */
static lh_status_t read_place_mark(tokenizer_t *t, const char *path, const json_value_t *model,
                                   const char *key, char **out)
{
    const json_value_t *mark = json_member(model, key);
    char name[40];

    if (is_absent(mark)) return LH_OK;
    (void)snprintf(name, sizeof(name), "model.%s", key);
    if (!json_is_text(mark)) return json_refuse(path, name, mark, "a text");
    if (json_text_length(mark) > t->limits.token_bytes)
        return fail(LH_INVALID, "%s: %s has %zu bytes; at most %u are supported", path, name,
                    json_text_length(mark), t->limits.token_bytes);
    if (json_flag(model, "byte_fallback"))
        return fail(LH_UNSUPPORTED, "%s: model.byte_fallback with %s is not supported", path, name);
    *out = mem_text(json_text(mark));
    return *out == NULL ? LH_NO_MEMORY : LH_OK;
}

/* ByteLevel alone would leave what ends a word in the text. Transformers' class of such tokenizers
 * (CLIP's) writes a space for it, and none at the ends of a text. */
static lh_status_t decode_word_ends(tokenizer_t *t)
{
    decode_step_t replace = {.by = DECODE_REPLACE,
                             .from = mem_text(t->ending),
                             .from_length = strlen(t->ending),
                             .to = mem_text(" "),
                             .to_length = 1};
    decode_step_t strip = {.by = DECODE_STRIP,
                           .from = mem_text(" "),
                           .from_length = 1,
                           .start = SIZE_MAX,
                           .stop = SIZE_MAX};
    if (replace.from == NULL || replace.to == NULL || strip.from == NULL) {
        mem_free(replace.from);
        mem_free(replace.to);
        mem_free(strip.from);
        return LH_NO_MEMORY;
    }
    /* Each of the three is taken over, also on failure. */
    decode_steps_t *steps = &t->decoder.steps;
    const lh_status_t first = decode_steps_add(steps, (decode_step_t){.by = DECODE_BYTE_LEVEL});
    const lh_status_t second = decode_steps_add(steps, replace);
    const lh_status_t third = decode_steps_add(steps, strip);
    t->decoder.byte_level = false;
    return first != LH_OK ? first : second != LH_OK ? second : third;
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
    if (status == LH_OK)
        status = read_place_mark(t, path, model, "continuing_subword_prefix", &t->continuing);
    if (status == LH_OK) status = read_place_mark(t, path, model, "end_of_word_suffix", &t->ending);
    if (status == LH_OK) status = tokenizer_read_vocabulary(t, path, json_member(model, "vocab"));
    if (status == LH_OK) status = read_unknown(t, path, model);
    if (status == LH_OK) status = read_merges(t, path, json_member(model, "merges"));
    if (status != LH_OK) return status;

    if (t->continuing != NULL || t->ending != NULL) {
        if (t->spelled != SPELLED_BYTE_LEVEL) t->kind = "BPE of characters";
        status = tokenizer_placed_characters(t);
        if (status == LH_OK && t->ending != NULL && t->decoder.byte_level)
            status = decode_word_ends(t);
    } else if (t->spelled == SPELLED_BYTE_LEVEL) {
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

/* Old files leave the type out: then it is known by what the models don't share, in the order in which
 * Hugging Face's library tries them. NULL: by nothing. */
static const char *model_type(const json_value_t *model)
{
    const json_value_t *type = json_member(model, "type");
    if (json_is_text(type)) return json_text(type);
    if (json_member(model, "merges") != NULL) return "BPE";
    if (json_member(model, "max_input_chars_per_word") != NULL) return "WordPiece";
    return json_is_list(json_member(model, "vocab")) ? "Unigram" : NULL;
}

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
    const char *type = model_type(model);
    const json_value_t *said = json_member(model, "type");

    if (said != NULL && !json_is_text(said))
        return json_refuse(path, "model.type", said, "BPE, Unigram or WordPiece");
    if (type == NULL)
        return fail(
            LH_UNSUPPORTED,
            "%s: model.type is missing, and the model is none that is known without it; BPE, "
            "Unigram and WordPiece are supported",
            path);
    if (t->spelled == SPELLED_BYTE_LEVEL && strcmp(type, "BPE") != 0)
        return fail(LH_UNSUPPORTED,
                    "%s: ByteLevel with a model of type '%s' is not supported; expected BPE", path,
                    type);
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
    const json_value_t *processor = json_member(root, "post_processor");
    if (status == LH_OK && (processor == NULL || json_is_nil(processor)))
        status = tokenizer_frame_by_config(t, json_root(config));
    json_free(config);
    return status;
}

/* ---- GPT-2's two files, tiktoken's one ------------------------------------------------------- */

/* GPT-2's pair of files, and tiktoken's ranks.
 *
 * Neither says how a text is cut before it is encoded: that is in the program of whoever made them.
 * For a pair the class of tokenizer in a tokenizer_config.json beside it tells, and without one it
 * is GPT-2's; ranks are taken for Llama 3's, as are the numbers of its special tokens. */

/* "a b": two pieces; the rank is the line's place among the merges. */
static lh_status_t pair_read_merge(tokenizer_t *t, const char *path, size_t line_number,
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

/* The lines of a text one after the other, without their "\n" or "\r\n". */
typedef struct lines {
    const char *next, *end; /* what is still to come; the caller sets both, the rest is zero */
    const char *line;
    size_t size, number; /* of the line: its bytes, and its place from 1 */
} lines_t;

static bool lines_next(lines_t *l)
{
    if (l->next == l->end) return false;
    const char *newline = memchr(l->next, '\n', (size_t)(l->end - l->next));
    l->line = l->next;
    l->size = (size_t)((newline == NULL ? l->end : newline) - l->line);
    l->next = newline == NULL ? l->end : newline + 1;
    l->number++;
    if (l->size > 0 && l->line[l->size - 1] == '\r') l->size--;
    return true;
}

static lh_status_t pair_read_merges(tokenizer_t *t, const char *path, const char *bytes,
                                    size_t length)
{
    lines_t l = {.next = bytes, .end = bytes + length};
    lh_status_t status = LH_OK;
    uint32_t rank = 0;

    while (status == LH_OK && lines_next(&l))
        if (l.size > 0 && !(l.size >= 8 && memcmp(l.line, "#version", 8) == 0))
            status = pair_read_merge(t, path, l.number, l.line, l.size, rank++);
    return status;
}

/* The caller frees *out: NAME-merges.txt beside NAME-vocab.json, else merges.txt or vocab.bpe
 * beside the vocabulary. */
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

/* Finds, notes and reads the merges of a vocabulary. */
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
    status = pair_read_merges(t, path, bytes, length);
    mem_free(bytes);

free_path:
    mem_free(path);
    return status;
}

/* "added_tokens_decoder": {"151643": {"content": ..., ...}, ...} */
static lh_status_t read_config_tokens(tokenizer_t *t, const char *path, const json_value_t *config)
{
    const json_value_t *decoder = json_member(config, "added_tokens_decoder");
    if (!json_is_map(decoder)) return LH_OK;
    for (json_walk_t w = json_walk(decoder); json_next(&w);) {
        const char *key = w.key;
        const json_value_t *entry = w.value;
        char *end;
        const long long id = strtoll(key, &end, 10);
        const char *content = json_text(json_member(entry, "content"));
        if (*end != '\0' || end == key || content == NULL)
            return fail(LH_INVALID,
                        "%s: its tokenizer_config.json has the added token '%s' without a "
                        "number or content",
                        path, key);
        lh_status_t status = tokenizer_check_id(t, path, id, content);
        if (status != LH_OK) return status;
        status = tokenizer_read_token(t, path, (int32_t)id, content, entry, false);
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

    return tokenizer_add_special(t, path, (uint32_t)id, end, strlen(end));
}

/* The end of a document is added last, as the config may have it already. */
lh_status_t tokenizer_read_pair(tokenizer_t *t, const char *path, const json_value_t *vocabulary)
{
    json_document_t *file = NULL;
    lh_status_t status = tokenizer_read_vocabulary(t, path, vocabulary);
    if (status == LH_OK) status = load_merges(t, path);
    if (status == LH_OK) status = tokenizer_bytes_from_alphabet(t, path);
    if (status == LH_OK) status = tokenizer_load_config(t, path, &file);
    if (status != LH_OK) return status;

    const json_value_t *config = json_root(file);
    /* the files don't say how text is cut: the class of the tokenizer does */
    const char *class = json_text(json_member(config, "tokenizer_class"));
    const bool qwen2 = class != NULL && text_starts(class, "Qwen2Tokenizer");
    if (qwen2)
        status = normalizer_add(&t->normalizer,
                                (normalize_step_t){.by = NORMALIZE_UNICODE, .compose = true});
    if (status == LH_OK) status = tokenizer_use_byte_level(t, qwen2 ? PATTERN_QWEN2 : PATTERN_GPT2);
    if (status == LH_OK) status = tokenizer_cut_words(t);
    t->cuts = true;
    t->pretokenizer.prefix_space = json_is_yes(json_member(config, "add_prefix_space"));
    if (status == LH_OK) status = read_config_tokens(t, path, config);
    if (status == LH_OK) status = add_end_token(t, path);
    if (status == LH_OK) tokenizer_find_special(t, config);
    if (status == LH_OK) status = tokenizer_frame_by_config(t, config);
    json_free(file);
    return status;
}

/* tiktoken's ranks: lines of base64(bytes), a space and a rank, which is the id and the order in
 * which pieces are joined. Text is cut and special tokens are numbered as Llama 3 does: 256 behind
 * the ranks. */
enum { SPECIAL_TOKENS = 256, LINE_MOST = 4096 };

/* A line's piece. Ranks of more than 18 digits are no numbers here, so the sum can't overflow. */
static lh_status_t read_piece_line(tokenizer_t *t, const char *path, size_t number,
                                   const char *line, size_t length)
{
    char bytes[LINE_MOST];
    const char *space = memchr(line, ' ', length);
    const size_t text = space == NULL ? 0 : (size_t)(space - line);
    uint64_t rank = 0;
    bool is_number = space != NULL && length > text + 1 && length < text + 20;

    for (size_t i = text + 1; is_number && i < length; i++) {
        is_number = line[i] >= '0' && line[i] <= '9';
        rank = rank * 10 + (uint64_t)(line[i] - '0');
    }
    if (text > LINE_MOST)
        return fail(LH_INVALID, "%s:%zu: a piece of %zu base64 digits; at most %d are supported",
                    path, number, text, LINE_MOST);
    const long size = tokenizer_base64(line, text, bytes);
    if (size <= 0 || !is_number)
        return fail(LH_INVALID,
                    "%s:%zu: '%.*s' found, base64 text, a space and a rank are expected", path,
                    number, length > 40 ? 40 : (int)length, line);
    if (rank >= t->limits.vocabulary)
        return fail(LH_INVALID, "%s:%zu: the rank is %llu; below %u is supported", path, number,
                    (unsigned long long)rank, t->limits.vocabulary);
    return tokenizer_add_piece(t, path, (uint32_t)rank, bytes, (size_t)size);
}

static lh_status_t read_lines(tokenizer_t *t, const char *path, const char *bytes, size_t length)
{
    lines_t l = {.next = bytes, .end = bytes + length};
    lh_status_t status = LH_OK;

    while (status == LH_OK && lines_next(&l))
        if (l.size > 0) status = read_piece_line(t, path, l.number, l.line, l.size);
    return status;
}

/* Joining two neighbours whose bytes together are a piece is a merge of that piece's rank,
 * whichever two they are. */
static lh_status_t make_ranked_merges(tokenizer_t *t, const char *path)
{
    for (uint32_t id = 0; id < t->pieces.count; id++) {
        piece_t piece;
        if (!piece_table_get(&t->pieces, id, &piece)) continue;
        for (size_t cut = 1; cut < piece.length; cut++) {
            const int32_t left = piece_table_find(&t->pieces, piece.bytes, cut);
            if (left < 0) continue;
            const int32_t right = piece_table_find(&t->pieces, piece.bytes + cut,
                                                   piece.length - cut);
            if (right < 0) continue;
            const lh_status_t status = tokenizer_join(t, path, (uint32_t)left, (uint32_t)right, id,
                                                      id);
            if (status != LH_OK) return status;
        }
    }
    return LH_OK;
}

/* The names of Llama 3 in its order; the rest of the 256 are reserved ones with a running
 * number. */
static lh_status_t add_specials(tokenizer_t *t, const char *path)
{
    static const char *const names[] = {
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|reserved_special_token_0|>",
        "<|reserved_special_token_1|>",
        "<|finetune_right_pad_id|>",
        "<|step_id|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|python_tag|>",
        "<|image|>",
    };
    enum { NAMED = sizeof(names) / sizeof(*names) };
    const uint32_t first = (uint32_t)t->pieces.count;
    lh_status_t status = LH_OK;

    if ((uint64_t)first + SPECIAL_TOKENS > t->limits.vocabulary)
        return fail(LH_INVALID, "%s: %u ranks leave no room for %d special tokens below %u", path,
                    first, SPECIAL_TOKENS, t->limits.vocabulary);
    for (uint32_t i = 0; i < SPECIAL_TOKENS && status == LH_OK; i++) {
        char reserved[48];
        (void)snprintf(reserved, sizeof(reserved), "<|reserved_special_token_%u|>", i - NAMED + 2);
        const char *name = i < NAMED ? names[i] : reserved;
        status = tokenizer_add_special(t, path, first + i, name, strlen(name));
    }
    return status;
}

/* All 256 bytes must have a rank, or a text might not be encodable. A piece that is in the
 * vocabulary as it stands is taken whole, as tiktoken does. */
lh_status_t tokenizer_read_ranks(tokenizer_t *t, const char *path, const char *bytes, size_t length)
{
    t->spelled = SPELLED_AS_BYTES;
    t->kind = "tiktoken";
    lh_status_t status = read_lines(t, path, bytes, length);
    for (unsigned byte = 0; byte < 256 && status == LH_OK; byte++) {
        const int32_t id = piece_table_find(&t->pieces, &(char){(char)byte}, 1);
        if (id < 0)
            status = fail(
                LH_INVALID,
                "%s: the byte 0x%02X has no rank; each of the 256 is expected to have one", path,
                byte);
        else
            t->bpe.bytes[byte] = (uint32_t)id;
    }
    if (status != LH_OK) return status;

    t->bpe.first_alias = (uint32_t)t->pieces.count;
    t->bpe.whole = &t->pieces;
    t->cuts = true;
    status = make_ranked_merges(t, path);
    if (status == LH_OK) status = tokenizer_cut_words(t);
    if (status == LH_OK)
        status = pretokenizer_add(&t->pretokenizer,
                                  (split_step_t){.by = SPLIT_PATTERN, .pattern = PATTERN_LLAMA3});
    if (status == LH_OK) status = add_specials(t, path);
    if (status == LH_OK) tokenizer_find_special(t, NULL);
    return status;
}
