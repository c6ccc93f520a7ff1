/* tokenizer_json.c - reads a Hugging Face tokenizer.json with a BPE model.
 *
 * The file has five parts: normalizer, pre_tokenizer, model, decoder and added_tokens. The first
 * two and the decoder are each one stage or a Sequence of them, and a stage has a "type". For each
 * of the three there is a table from types to functions; a type that is not in it is refused, as is
 * a combination of which it is not known what the reference makes: a stage left out would give
 * other ids in silence. */
#include <stdio.h>

#include <base/memory.h>
#include <tokenizer/tokenizer_json.h>
#include <tokenizer/tokenizer_pair.h>
#include <tokenizer/tokenizer_parts.h>

/* Stages of a Sequence; real files have up to five. */
enum { STEPS_MOST = 64 };

/* A type of stage and what reads it. */
typedef struct stage_row {
    const char *type;
    lh_status_t (*read)(tokenizer_t *t, const char *path, const json_value_t *stage);
} stage_row_t;

/* Flags that a file leaves out have the default of the Rust library, which is not always false. */
static bool flag_or(const json_value_t *object, const char *key, bool otherwise)
{
    const json_value_t *value = json_member(object, key);
    return json_is_flag(value) ? json_is_yes(value) : otherwise;
}

static const char *type_of(const json_value_t *stage)
{
    const char *type = json_text(json_member(stage, "type"));
    return type == NULL ? "" : type;
}

/* One stage, by the table that belongs to it. */
static lh_status_t read_one(tokenizer_t *t, const char *path, const char *stage_name,
                            const stage_row_t *rows, const json_value_t *stage)
{
    for (; rows->type != NULL; rows++)
        if (strcmp(rows->type, type_of(stage)) == 0) return rows->read(t, path, stage);
    return fail(LH_UNSUPPORTED, "%s: a %s of type '%s' is not supported", path, stage_name,
                type_of(stage));
}

/* A stage, or a Sequence with its list under `list_key`. */
static lh_status_t read_stage(tokenizer_t *t, const char *path, const char *stage_name,
                              const char *list_key, const stage_row_t *rows,
                              const json_value_t *stage)
{
    if (stage == NULL || json_is_nil(stage)) return LH_OK;
    if (strcmp(type_of(stage), "Sequence") != 0) return read_one(t, path, stage_name, rows, stage);

    const json_value_t *list = json_member(stage, list_key);
    if (!json_is_list(list))
        return fail(LH_INVALID, "%s: the %s's sequence has no list '%s'", path, stage_name,
                    list_key);
    if (json_size(list) > STEPS_MOST)
        return fail(LH_INVALID, "%s: the %s has %zu steps; at most %d are supported", path,
                    stage_name, json_size(list), STEPS_MOST);
    lh_status_t status = LH_OK;
    for (json_walk_t w = json_walk(list); status == LH_OK && json_next(&w);)
        status = read_one(t, path, stage_name, rows, w.value);
    return status;
}

/* {"String": "..."} or {"Regex": "..."}; the strings are borrowed. */
static lh_status_t read_pattern(const char *path, const json_value_t *stage,
                                const json_value_t **string, const json_value_t **regex)
{
    const json_value_t *pattern = json_member(stage, "pattern");
    *string = json_member(pattern, "String");
    *regex = json_member(pattern, "Regex");
    const json_value_t *found = *string != NULL ? *string : *regex;
    if (!json_is_text(found) || json_text_length(found) == 0)
        return fail(LH_INVALID, "%s: the %s has no pattern {\"String\" or \"Regex\": \"...\"}",
                    path, type_of(stage));
    return LH_OK;
}

/* NFC, NFD, NFKC or NFKD: the type's letters say which. */
static lh_status_t read_unicode(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    const char *type = type_of(stage);
    (void)path;
    return normalizer_add(&t->normalizer,
                          (normalize_step_t){.by = NORMALIZE_UNICODE,
                                             .compose = type[strlen(type) - 1] == 'C',
                                             .compatible = strchr(type, 'K') != NULL});
}

static lh_status_t read_prepend(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    const json_value_t *prepend = json_member(stage, "prepend");
    if (!json_is_text(prepend)) return fail(LH_INVALID, "%s: Prepend has no text", path);

    normalize_step_t step = {.by = NORMALIZE_PREPEND,
                             .to = mem_text(json_text(prepend)),
                             .to_length = json_text_length(prepend)};
    if (step.to == NULL) return LH_NO_MEMORY;
    return normalizer_add(&t->normalizer, step);
}

/* Until normalizer_add takes the step over, what it owns is freed here. */
static lh_status_t read_replace(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    const json_value_t *string, *regex, *content = json_member(stage, "content");
    lh_status_t status = read_pattern(path, stage, &string, &regex);
    if (status != LH_OK) return status;
    if (!json_is_text(content)) return fail(LH_INVALID, "%s: Replace has no content", path);

    normalize_step_t step = {.by = NORMALIZE_REPLACE,
                             .to = mem_text(json_text(content)),
                             .to_length = json_text_length(content)};
    if (step.to == NULL) return LH_NO_MEMORY;
    if (string != NULL) {
        step.from = mem_text(json_text(string));
        step.from_length = json_text_length(string);
        status = step.from == NULL ? LH_NO_MEMORY : LH_OK;
    } else {
        status = pattern_regex_new(path, json_text(regex), json_text_length(regex), &step.regex);
    }
    if (status != LH_OK) {
        mem_free(step.to);
        return status;
    }
    return normalizer_add(&t->normalizer, step);
}

/* This and its two siblings take what stands under their key; NULL and null mean that there is no
 * such stage. */
static lh_status_t tokenizer_read_normalizer(tokenizer_t *t, const char *path,
                                             const json_value_t *value)
{
    static const stage_row_t rows[] = {
        {"NFC", read_unicode},  {"NFD", read_unicode},     {"NFKC", read_unicode},
        {"NFKD", read_unicode}, {"Prepend", read_prepend}, {"Replace", read_replace},
        {NULL, NULL},
    };
    return read_stage(t, path, "normalizer", "normalizers", rows, value);
}

/* The Rust library's names for what becomes of a match. */
static lh_status_t read_behaviour(const char *path, const json_value_t *stage,
                                  split_behaviour_t *out)
{
    static const char *const names[] = {
        [SPLIT_ISOLATED] = "Isolated",
        [SPLIT_REMOVED] = "Removed",
        [SPLIT_WITH_PREVIOUS] = "MergedWithPrevious",
        [SPLIT_WITH_NEXT] = "MergedWithNext",
        [SPLIT_CONTIGUOUS] = "Contiguous",
    };
    const char *name = json_text(json_member(stage, "behavior"));

    for (split_behaviour_t i = SPLIT_ISOLATED; name != NULL && i <= SPLIT_CONTIGUOUS; i++) {
        if (strcmp(names[i], name) != 0) continue;
        *out = i;
        return LH_OK;
    }
    return fail(LH_INVALID, "%s: %s has the unknown behavior '%s'", path, type_of(stage),
                name == NULL ? "" : name);
}

/* A step behind ByteLevel sees characters of the alphabet in the place of bytes. Texts are not
 * rewritten here, so such a step must say what it looks for in bytes. */
static bool is_after_bytes(const tokenizer_t *t)
{
    return t->spelled == SPELLED_BYTE_LEVEL;
}

/* Cuts by GPT-2's pattern, if it says so, and makes the pieces byte-level. */
static lh_status_t read_byte_level(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    const bool use_regex = flag_or(stage, "use_regex", true);

    if (is_after_bytes(t)) return fail(LH_UNSUPPORTED, "%s has ByteLevel twice", path);
    if (flag_or(stage, "add_prefix_space", true)) {
        /* The space would have to go in front of what an earlier step has cut. */
        if (t->pretokenizer.count > 0)
            return fail(LH_UNSUPPORTED,
                        "%s: ByteLevel with add_prefix_space after another step is not "
                        "supported",
                        path);
        t->pretokenizer.prefix_space = true;
    }
    t->cuts = true;
    return tokenizer_use_byte_level(t, use_regex ? PATTERN_GPT2 : PATTERN_UNKNOWN);
}

/* Bytes are characters of the alphabet by now: of the patterns that look at them, Falcon's is
 * known. */
static lh_status_t split_bytes(const char *path, const char *pattern, split_step_t *step)
{
    if (strcmp(pattern, "[0-9][0-9][0-9]") != 0)
        return fail(LH_UNSUPPORTED, "%s: Split by '%s' after ByteLevel is not supported", path,
                    pattern);
    step->by = SPLIT_THREE_DIGITS;
    return LH_OK;
}

/* A pattern that is known by its spelling is cut by hand, any other by PCRE2, a string by
 * memmem. */
static lh_status_t read_split(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    split_step_t step = {.invert = flag_or(stage, "invert", false)};
    const json_value_t *string, *regex;

    lh_status_t status = read_behaviour(path, stage, &step.behaviour);
    if (status == LH_OK) status = read_pattern(path, stage, &string, &regex);
    if (status != LH_OK) return status;

    const json_value_t *found = string != NULL ? string : regex;
    const char *pattern = json_text(found);
    const size_t length = json_text_length(found);
    if (is_after_bytes(t)) {
        status = split_bytes(path, pattern, &step);
    } else if (string != NULL) {
        step.by = SPLIT_STRING;
        step.string = mem_text_n(pattern, length);
        step.string_length = length;
        status = step.string == NULL ? LH_NO_MEMORY : LH_OK;
    } else {
        step.pattern = pattern_find(pattern, length);
        step.by = step.pattern == PATTERN_UNKNOWN ? SPLIT_REGEX : SPLIT_PATTERN;
        if (step.by == SPLIT_REGEX) status = pattern_regex_new(path, pattern, length, &step.regex);
    }
    if (status != LH_OK) return status;
    t->cuts = true;
    return pretokenizer_add(&t->pretokenizer, step);
}

/* Each digit alone, or runs of them. */
static lh_status_t read_digits(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    (void)path;
    t->cuts = true;
    return pretokenizer_add(
        &t->pretokenizer,
        (split_step_t){.by = is_after_bytes(t) ? SPLIT_BYTE_DIGITS : SPLIT_DIGITS,
                       .behaviour = flag_or(stage, "individual_digits", false) ? SPLIT_ISOLATED
                                                                               : SPLIT_CONTIGUOUS});
}

/* Isolated unless the file says otherwise, as the library has it. */
static lh_status_t read_punctuation(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    split_step_t step = {.by = SPLIT_PUNCTUATION, .behaviour = SPLIT_ISOLATED};

    if (is_after_bytes(t))
        return fail(LH_UNSUPPORTED, "%s: Punctuation after ByteLevel is not supported", path);
    if (json_member(stage, "behavior") != NULL) {
        const lh_status_t status = read_behaviour(path, stage, &step.behaviour);
        if (status != LH_OK) return status;
    }
    t->cuts = true;
    return pretokenizer_add(&t->pretokenizer, step);
}

/* Spaces become a mark, which goes with the word behind it; older files say with add_prefix_space
 * and newer ones with prepend_scheme whether a mark stands at the start. */
static lh_status_t read_metaspace(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    const char *mark = json_text(json_member(stage, "replacement"));
    const char *scheme = json_text(json_member(stage, "prepend_scheme"));
    pretokenizer_t *p = &t->pretokenizer;

    if (mark == NULL || mark[0] == '\0' || strlen(mark) >= sizeof(p->mark))
        return fail(LH_INVALID, "%s: Metaspace's replacement is not one character", path);
    if (p->count > 0 || is_after_bytes(t) || p->metaspace)
        return fail(LH_UNSUPPORTED, "%s: Metaspace after another step is not supported", path);
    memcpy(p->mark, mark, strlen(mark) + 1);
    p->metaspace = true;
    p->prepend = flag_or(stage, "add_prefix_space", true) ? PREPEND_ALWAYS : PREPEND_NEVER;
    if (scheme != NULL && strcmp(scheme, "first") == 0) p->prepend = PREPEND_FIRST;
    if (scheme != NULL && strcmp(scheme, "never") == 0) p->prepend = PREPEND_NEVER;
    if (!flag_or(stage, "split", true)) return LH_OK;

    split_step_t step = {.by = SPLIT_STRING,
                         .behaviour = SPLIT_WITH_NEXT,
                         .string = mem_text(mark),
                         .string_length = strlen(mark)};
    if (step.string == NULL) return LH_NO_MEMORY;
    t->cuts = true;
    return pretokenizer_add(p, step);
}

/* Decides between bytes and characters too: t->spelled. */
static lh_status_t tokenizer_read_pretokenizer(tokenizer_t *t, const char *path,
                                               const json_value_t *value)
{
    static const stage_row_t rows[] = {
        {"ByteLevel", read_byte_level},    {"Split", read_split},         {"Digits", read_digits},
        {"Punctuation", read_punctuation}, {"Metaspace", read_metaspace}, {NULL, NULL},
    };
    return read_stage(t, path, "pre_tokenizer", "pretokenizers", rows, value);
}

static lh_status_t read_byte_level_decoder(tokenizer_t *t, const char *path,
                                           const json_value_t *stage)
{
    (void)path;
    (void)stage;
    t->decoder.byte_level = true;
    return LH_OK;
}

/* A replacement that every token goes through. */
static lh_status_t add_replace(tokenizer_t *t, const char *path, const char *from, const char *to)
{
    decoder_t *d = &t->decoder;
    if (d->replace_count == DECODE_REPLACES)
        return fail(LH_UNSUPPORTED, "%s: the decoder replaces more than %d strings", path,
                    DECODE_REPLACES);
    decode_replace_t *r = &d->replaces[d->replace_count++];
    r->from = mem_text(from);
    r->to = mem_text(to);
    return r->from == NULL || r->to == NULL ? LH_NO_MEMORY : LH_OK;
}

/* By a string only; real files put a space in the place of the mark. */
static lh_status_t read_replace_decoder(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    const json_value_t *string, *regex;
    const char *content = json_text(json_member(stage, "content"));
    const lh_status_t status = read_pattern(path, stage, &string, &regex);
    if (status != LH_OK) return status;
    if (string == NULL || content == NULL)
        return fail(LH_UNSUPPORTED, "%s: a decoder that replaces by a regex is not supported",
                    path);
    return add_replace(t, path, json_text(string), content);
}

static lh_status_t read_fallback_decoder(tokenizer_t *t, const char *path,
                                         const json_value_t *stage)
{
    (void)path;
    (void)stage;
    t->decoder.byte_fallback = true;
    return LH_OK;
}

/* Tokens are always written one after another. */
static lh_status_t read_fuse_decoder(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    (void)path;
    (void)stage;
    t->decoder.fused = true;
    return LH_OK;
}

/* Behind Fuse it strips the whole text; before, it would strip each token, which is
 * refused. */
static lh_status_t read_strip_decoder(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    const char *content = json_text(json_member(stage, "content"));
    const int64_t start = json_whole(json_member(stage, "start"));
    const int64_t stop = json_whole(json_member(stage, "stop"));
    decoder_t *d = &t->decoder;

    if (content == NULL || strlen(content) >= sizeof(d->strip) || start < 0 || stop < 0 ||
        start > INT32_MAX || stop > INT32_MAX)
        return fail(LH_INVALID, "%s: the decoder's Strip needs a character, start and stop", path);
    if (!d->fused)
        return fail(LH_UNSUPPORTED, "%s: the decoder's Strip before Fuse is not supported", path);
    memcpy(d->strip, content, strlen(content) + 1);
    d->strip_start = (uint32_t)start;
    d->strip_stop = (uint32_t)stop;
    return LH_OK;
}

/* Marks become spaces again, and the one that was put in front is dropped. */
static lh_status_t read_metaspace_decoder(tokenizer_t *t, const char *path,
                                          const json_value_t *stage)
{
    const char *mark = json_text(json_member(stage, "replacement"));
    const char *scheme = json_text(json_member(stage, "prepend_scheme"));
    const bool never = (scheme != NULL && strcmp(scheme, "never") == 0) ||
                       !flag_or(stage, "add_prefix_space", true);

    if (mark == NULL || mark[0] == '\0')
        return fail(LH_INVALID, "%s: the decoder's Metaspace has no replacement", path);
    if (!never) {
        t->decoder.strip[0] = ' ';
        t->decoder.strip_start = 1;
    }
    return add_replace(t, path, mark, " ");
}

/* Without a decoder tokens stand with spaces between them, as the reference joins them. */
static lh_status_t tokenizer_read_decoder(tokenizer_t *t, const char *path,
                                          const json_value_t *value)
{
    static const stage_row_t rows[] = {
        {"ByteLevel", read_byte_level_decoder},
        {"Replace", read_replace_decoder},
        {"ByteFallback", read_fallback_decoder},
        {"Fuse", read_fuse_decoder},
        {"Strip", read_strip_decoder},
        {"Metaspace", read_metaspace_decoder},
        {NULL, NULL},
    };
    if (value == NULL || json_is_nil(value)) {
        t->decoder.join = t->spelled != SPELLED_BYTE_LEVEL;
        return LH_OK;
    }
    return read_stage(t, path, "decoder", "decoders", rows, value);
}

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

/* What a model may not have. dropout would make encoding random; prefix and suffix are of
 * vocabularies that mark the ends of words. */
static lh_status_t refuse_model(const char *path, const json_value_t *model)
{
    static const char *const unsupported[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const char *type = json_text(json_member(model, "type"));
    const json_value_t *dropout = json_member(model, "dropout");

    if (!json_is_map(model)) return fail(LH_INVALID, "%s has no model", path);
    if (type != NULL && strcmp(type, "BPE") != 0)
        return fail(LH_UNSUPPORTED, "%s: the model is of type '%s'; BPE is supported", path, type);
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
    t->bpe.unknown = (uint32_t)id;
    t->bpe.fuse_unknown = json_flag(model, "fuse_unk");
    return LH_OK;
}

/* Vocabulary and merges, then the symbols that texts start with: bytes, if the pretokenizer was
 * ByteLevel, else characters. whole comes last, as the cuts into words do not depend on it. */
static lh_status_t read_model(tokenizer_t *t, const char *path, const json_value_t *model)
{
    lh_status_t status = tokenizer_read_vocabulary(t, path, json_member(model, "vocab"));
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

/* The model comes behind the pretokenizer, which says how the pieces are spelt, and added tokens
 * behind the model, whose pieces they may repeat. */
lh_status_t tokenizer_read_json(tokenizer_t *t, const char *path, const json_value_t *root)
{
    const json_value_t *model = json_member(root, "model");
    json_document_t *config = NULL;

    lh_status_t status = refuse_model(path, model);
    if (status == LH_OK)
        status = tokenizer_read_normalizer(t, path, json_member(root, "normalizer"));
    if (status == LH_OK)
        status = tokenizer_read_pretokenizer(t, path, json_member(root, "pre_tokenizer"));
    if (status == LH_OK) status = tokenizer_read_decoder(t, path, json_member(root, "decoder"));
    if (status == LH_OK) status = read_model(t, path, model);
    if (status == LH_OK) status = read_added_tokens(t, path, json_member(root, "added_tokens"));
    if (status == LH_OK) status = tokenizer_load_config(t, path, &config);
    if (status == LH_OK) tokenizer_find_special(t, json_root(config));
    json_free(config);
    return status;
}
