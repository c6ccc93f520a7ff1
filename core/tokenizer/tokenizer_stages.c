/* tokenizer_stages.c - reads what a tokenizer.json has around its model: normalizer, pre_tokenizer,
 * post_processor and decoder.
 *
 * Each is one stage or a Sequence of them, and a stage has a "type". For each of the four there is
 * a table from types to functions; a type that is not in it is refused, as is a combination of
 * which it is not known what the reference makes. */
#include <tokenizer/tokenizer_stages.h>

#include <base/memory.h>
#include <base/text.h>

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

/* With the types that the table has. */
static lh_status_t refuse_stage_type(const char *path, const char *stage_name,
                                     const stage_row_t *rows, const char *type)
{
    text_t known = {0};
    for (const stage_row_t *row = rows; row->type != NULL; row++)
        text_printf(&known, "%s%s", row == rows ? "" : ", ", row->type);
    lh_status_t status = text_status(&known);
    if (status == LH_OK)
        status = fail(LH_UNSUPPORTED,
                      "%s: a %s of type '%s' is not supported; expected %s, or a Sequence of them",
                      path, stage_name, type, known.data);
    text_free(&known);
    return status;
}

/* One stage, by the table that belongs to it. */
static lh_status_t read_one(tokenizer_t *t, const char *path, const char *stage_name,
                            const stage_row_t *rows, const json_value_t *stage)
{
    /* Only the pretokenizer's steps know what to do about bytes that are characters by now. */
    if (t->spelled == SPELLED_BYTE_LEVEL && strcmp(stage_name, "normalizer") == 0)
        return fail(LH_UNSUPPORTED, "%s: the normalizer %s behind ByteLevel is not supported", path,
                    type_of(stage));
    for (const stage_row_t *row = rows; row->type != NULL; row++)
        if (strcmp(row->type, type_of(stage)) == 0) return row->read(t, path, stage);
    return refuse_stage_type(path, stage_name, rows, type_of(stage));
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

static lh_status_t add_rule(tokenizer_t *t, character_rule_t rule)
{
    return normalizer_add(&t->normalizer,
                          (normalize_step_t){.by = NORMALIZE_CHARACTERS, .rule = rule});
}

static lh_status_t read_lowercase(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    (void)path;
    (void)stage;
    return add_rule(t, RULE_LOWER);
}

static lh_status_t read_strip_accents(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    (void)path;
    (void)stage;
    return add_rule(t, RULE_NO_MARKS);
}

static lh_status_t read_nmt(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    (void)path;
    (void)stage;
    return add_rule(t, RULE_NMT);
}

static lh_status_t read_strip(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    (void)path;
    return normalizer_add(&t->normalizer,
                          (normalize_step_t){.by = NORMALIZE_STRIP,
                                             .left = flag_or(stage, "strip_left", true),
                                             .right = flag_or(stage, "strip_right", true)});
}

/* Four steps in this order. strip_accents is what lowercase is, unless the file says otherwise. */
static lh_status_t read_bert(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    const bool lower = flag_or(stage, "lowercase", true);
    lh_status_t status = LH_OK;
    (void)path;

    if (flag_or(stage, "clean_text", true)) status = add_rule(t, RULE_CLEAN);
    if (status == LH_OK && flag_or(stage, "handle_chinese_chars", true))
        status = add_rule(t, RULE_CHINESE);
    if (status == LH_OK && flag_or(stage, "strip_accents", lower)) {
        status = normalizer_add(&t->normalizer, (normalize_step_t){.by = NORMALIZE_UNICODE});
        if (status == LH_OK) status = add_rule(t, RULE_NO_ACCENTS);
    }
    if (status == LH_OK && lower) status = add_rule(t, RULE_LOWER);
    return status;
}

/* sentencepiece's charsmap, in base64. */
static lh_status_t read_precompiled(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    const json_value_t *text = json_member(stage, "precompiled_charsmap");
    const size_t length = json_text_length(text);
    if (!json_is_text(text) || length == 0)
        return fail(LH_INVALID, "%s: Precompiled has no precompiled_charsmap", path);

    char *bytes = mem_new(length);
    if (bytes == NULL) return LH_NO_MEMORY;
    normalize_step_t step = {.by = NORMALIZE_PRECOMPILED};
    const long size = tokenizer_base64(json_text(text), length, bytes);
    lh_status_t status = LH_OK;
    if (size < 0)
        status = fail(LH_INVALID, "%s: the precompiled_charsmap is not base64", path);
    else
        status = normalize_charsmap_read(path, bytes, (size_t)size, &step.spaces.charsmap);
    mem_free(bytes);
    if (status != LH_OK) return status;
    normalize_find_plain(&step.spaces, true);
    return normalizer_add(&t->normalizer, step);
}

/* Characters become those of the alphabet of bytes: as the pretokenizer of that name, which neither
 * cuts nor puts a space in front. What came behind it would see the alphabet. */
static lh_status_t read_byte_normalizer(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    (void)path;
    (void)stage;
    t->cuts = true;
    return tokenizer_use_byte_level(t, PATTERN_UNKNOWN);
}

lh_status_t tokenizer_read_normalizer(tokenizer_t *t, const char *path, const json_value_t *value)
{
    static const stage_row_t rows[] = {
        {"NFC", read_unicode},
        {"NFD", read_unicode},
        {"NFKC", read_unicode},
        {"NFKD", read_unicode},
        {"Prepend", read_prepend},
        {"Replace", read_replace},
        {"Lowercase", read_lowercase},
        {"Strip", read_strip},
        {"StripAccents", read_strip_accents},
        {"Nmt", read_nmt},
        {"BertNormalizer", read_bert},
        {"Bert", read_bert},
        {"Precompiled", read_precompiled},
        {"ByteLevel", read_byte_normalizer},
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
static lh_status_t read_byte_split(const char *path, const char *pattern, split_step_t *step)
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
        status = read_byte_split(path, pattern, &step);
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
    if (is_after_bytes(t) || p->mark[0] != '\0')
        return fail(LH_UNSUPPORTED, "%s: Metaspace after %s is not supported", path,
                    p->mark[0] != '\0' ? "another one" : "ByteLevel");
    memcpy(p->mark, mark, strlen(mark) + 1);
    p->prepend = flag_or(stage, "add_prefix_space", true) ? PREPEND_ALWAYS : PREPEND_NEVER;
    if (scheme != NULL && strcmp(scheme, "first") == 0) p->prepend = PREPEND_FIRST;
    if (scheme != NULL && strcmp(scheme, "never") == 0) p->prepend = PREPEND_NEVER;
    /* As the first step it is done before the text is cut, else it is a step that rewrites. */
    p->metaspace = p->count == 0 && !p->prefix_space;
    const bool splits = flag_or(stage, "split", true);
    if (p->metaspace && !splits) return LH_OK;

    split_step_t step = {.by = p->metaspace ? SPLIT_STRING : SPLIT_METASPACE,
                         .behaviour = SPLIT_WITH_NEXT,
                         .string = splits ? mem_text(mark) : NULL,
                         .string_length = strlen(mark)};
    if (splits && step.string == NULL) return LH_NO_MEMORY;
    t->cuts = true;
    return pretokenizer_add(p, step);
}

/* A step without fields, by what it looks for. */
static lh_status_t add_split(tokenizer_t *t, const char *path, const json_value_t *stage,
                             split_step_t step)
{
    if (is_after_bytes(t))
        return fail(LH_UNSUPPORTED, "%s: %s after ByteLevel is not supported", path,
                    type_of(stage));
    t->cuts = true;
    return pretokenizer_add(&t->pretokenizer, step);
}

static lh_status_t read_white_space_split(tokenizer_t *t, const char *path,
                                          const json_value_t *stage)
{
    return add_split(t, path, stage,
                     (split_step_t){.by = SPLIT_SPACES, .behaviour = SPLIT_REMOVED});
}

static lh_status_t read_white_space(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    return add_split(t, path, stage, (split_step_t){.by = SPLIT_WORDS, .behaviour = SPLIT_REMOVED});
}

static lh_status_t read_bert_split(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    const lh_status_t status = read_white_space_split(t, path, stage);
    if (status != LH_OK) return status;
    return add_split(t, path, stage,
                     (split_step_t){.by = SPLIT_PUNCTUATION, .behaviour = SPLIT_ISOLATED});
}

static lh_status_t read_delimiter(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    const json_value_t *delimiter = json_member(stage, "delimiter");
    split_step_t step = {.by = SPLIT_STRING,
                         .behaviour = SPLIT_REMOVED,
                         .string_length = json_text_length(delimiter)};
    if (!json_is_text(delimiter) || step.string_length == 0)
        return json_refuse(path, "CharDelimiterSplit.delimiter", delimiter, "a character");
    if (is_after_bytes(t)) return add_split(t, path, stage, step); /* which refuses */
    step.string = mem_text(json_text(delimiter));
    return step.string == NULL ? LH_NO_MEMORY : add_split(t, path, stage, step);
}

static lh_status_t read_fixed_length(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    const json_value_t *value = json_member(stage, "length");
    uint64_t length = 5;
    if (value != NULL && (!json_count(value, &length) || length == 0))
        return json_refuse(path, "FixedLength.length", value, "a whole number above 0");
    return add_split(t, path, stage,
                     (split_step_t){.by = SPLIT_LENGTH,
                                    .behaviour = SPLIT_ISOLATED,
                                    .characters = (size_t)length});
}

lh_status_t tokenizer_read_pretokenizer(tokenizer_t *t, const char *path, const json_value_t *value)
{
    static const stage_row_t rows[] = {
        {"ByteLevel", read_byte_level},
        {"Split", read_split},
        {"Digits", read_digits},
        {"Punctuation", read_punctuation},
        {"Metaspace", read_metaspace},
        {"WhitespaceSplit", read_white_space_split},
        {"Whitespace", read_white_space},
        {"BertPreTokenizer", read_bert_split},
        {"CharDelimiterSplit", read_delimiter},
        {"FixedLength", read_fixed_length},
        {NULL, NULL},
    };
    return read_stage(t, path, "pre_tokenizer", "pretokenizers", rows, value);
}

static lh_status_t read_byte_level_decoder(tokenizer_t *t, const char *path,
                                           const json_value_t *stage)
{
    (void)path;
    (void)stage;
    return decode_steps_add(&t->decoder.steps, (decode_step_t){.by = DECODE_BYTE_LEVEL});
}

/* Takes the two texts over into a step. A hostile file's would make a text of any size, so they are
 * no longer than a piece may be. */
static lh_status_t add_decode_step(tokenizer_t *t, const char *path, const json_value_t *stage,
                                   decode_step_t step, const json_value_t *from,
                                   const json_value_t *to)
{
    const size_t most = t->limits.token_bytes;
    lh_status_t status = LH_OK;

    step.from_length = json_text_length(from);
    step.to_length = json_text_length(to);
    if (step.from_length > most || step.to_length > most)
        status = fail(LH_INVALID, "%s: a text of the decoder %s has more than %zu bytes", path,
                      type_of(stage), most);
    if (status == LH_OK) {
        step.from = mem_text(from == NULL ? "" : json_text(from));
        step.to = mem_text(to == NULL ? "" : json_text(to));
        if (step.from == NULL || step.to == NULL) status = LH_NO_MEMORY;
    }
    if (status == LH_OK) return decode_steps_add(&t->decoder.steps, step);
    mem_free(step.from);
    mem_free(step.to);
    pattern_regex_free(step.regex);
    return status;
}

static lh_status_t read_replace_decoder(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    const json_value_t *string, *regex, *content = json_member(stage, "content");
    decode_step_t step = {.by = DECODE_REPLACE};
    lh_status_t status = read_pattern(path, stage, &string, &regex);
    if (status != LH_OK) return status;
    if (!json_is_text(content)) return fail(LH_INVALID, "%s: Replace has no content", path);
    if (string == NULL)
        status = pattern_regex_new(path, json_text(regex), json_text_length(regex), &step.regex);
    if (status != LH_OK) return status;
    return add_decode_step(t, path, stage, step, string, content);
}

static lh_status_t read_fallback_decoder(tokenizer_t *t, const char *path,
                                         const json_value_t *stage)
{
    (void)path;
    (void)stage;
    t->decoder.byte_fallback = true;
    return decode_steps_add(&t->decoder.steps, (decode_step_t){.by = DECODE_BYTE_FALLBACK});
}

static lh_status_t read_fuse_decoder(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    (void)path;
    (void)stage;
    return decode_steps_add(&t->decoder.steps, (decode_step_t){.by = DECODE_FUSE});
}

static lh_status_t read_strip_decoder(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    const json_value_t *content = json_member(stage, "content");
    uint64_t start, stop;

    if (!json_is_text(content) || json_text_length(content) == 0 ||
        !json_count(json_member(stage, "start"), &start) ||
        !json_count(json_member(stage, "stop"), &stop))
        return fail(LH_INVALID, "%s: the decoder's Strip needs a character, start and stop", path);
    return add_decode_step(
        t, path, stage,
        (decode_step_t){.by = DECODE_STRIP, .start = (size_t)start, .stop = (size_t)stop}, content,
        NULL);
}

/* Marks become spaces again, and those of the first token, one of which was put in front, go. */
static lh_status_t read_metaspace_decoder(tokenizer_t *t, const char *path,
                                          const json_value_t *stage)
{
    const json_value_t *mark = json_member(stage, "replacement");
    const char *scheme = json_text(json_member(stage, "prepend_scheme"));
    const bool never = (scheme != NULL && strcmp(scheme, "never") == 0) ||
                       !flag_or(stage, "add_prefix_space", true);

    if (!json_is_text(mark) || json_text_length(mark) == 0)
        return fail(LH_INVALID, "%s: the decoder's Metaspace has no replacement", path);
    return add_decode_step(t, path, stage, (decode_step_t){.by = DECODE_METASPACE, .first = !never},
                           mark, NULL);
}

static lh_status_t read_wordpiece_decoder(tokenizer_t *t, const char *path,
                                          const json_value_t *stage)
{
    const json_value_t *prefix = json_member(stage, "prefix");
    if (!json_is_text(prefix)) return json_refuse(path, "WordPiece.prefix", prefix, "a text");
    return add_decode_step(
        t, path, stage,
        (decode_step_t){.by = DECODE_WORDPIECE, .cleanup = flag_or(stage, "cleanup", true)}, prefix,
        NULL);
}

static lh_status_t read_suffix_decoder(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    const json_value_t *suffix = json_member(stage, "suffix");
    if (!json_is_text(suffix)) return json_refuse(path, "BPEDecoder.suffix", suffix, "a text");
    return add_decode_step(t, path, stage, (decode_step_t){.by = DECODE_SUFFIX}, suffix, NULL);
}

static lh_status_t read_ctc_decoder(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    const json_value_t *pad = json_member(stage, "pad_token");
    const json_value_t *delimiter = json_member(stage, "word_delimiter_token");
    if (!json_is_text(pad)) return json_refuse(path, "CTC.pad_token", pad, "a text");
    if (!json_is_text(delimiter))
        return json_refuse(path, "CTC.word_delimiter_token", delimiter, "a text");
    return add_decode_step(
        t, path, stage,
        (decode_step_t){.by = DECODE_CTC, .cleanup = flag_or(stage, "cleanup", true)}, pad,
        delimiter);
}

/* Without a decoder tokens stand with spaces between them, as the reference joins them. ByteLevel
 * alone is what the flag says, which needs no list. */
lh_status_t tokenizer_read_decoder(tokenizer_t *t, const char *path, const json_value_t *value)
{
    static const stage_row_t rows[] = {
        {"ByteLevel", read_byte_level_decoder},
        {"Replace", read_replace_decoder},
        {"ByteFallback", read_fallback_decoder},
        {"Fuse", read_fuse_decoder},
        {"Strip", read_strip_decoder},
        {"Metaspace", read_metaspace_decoder},
        {"WordPiece", read_wordpiece_decoder},
        {"BPEDecoder", read_suffix_decoder},
        {"CTC", read_ctc_decoder},
        {NULL, NULL},
    };
    decoder_t *d = &t->decoder;
    d->byte_level = false;
    if (value == NULL || json_is_nil(value)) {
        d->join = true;
        return LH_OK;
    }
    const lh_status_t status = read_stage(t, path, "decoder", "decoders", rows, value);
    if (status != LH_OK) return status;
    if (d->steps.count == 1 && d->steps.steps[0].by == DECODE_BYTE_LEVEL) {
        decode_steps_free(&d->steps);
        d->byte_level = true;
    }
    return LH_OK;
}

static lh_status_t frame_put(int32_t **ids, size_t *count, size_t at, int32_t id)
{
    int32_t *grown = mem_resize(*ids, *count * sizeof(**ids), (*count + 1) * sizeof(**ids));
    if (grown == NULL) return LH_NO_MEMORY;
    memmove(grown + at + 1, grown + at, (*count - at) * sizeof(*grown));
    grown[at] = id;
    *ids = grown;
    (*count)++;
    return LH_OK;
}

/* A processor goes around what those before it have made, so its ids lie further out: `at` of those
 * that it has put in front. */
static lh_status_t frame_add(tokenizer_t *t, const char *path, const json_value_t *id, bool behind,
                             size_t *at)
{
    enum { FRAME_MOST = 1024 };
    tokenizer_frame_t *f = &t->frame;

    if (!json_is_whole(id)) return json_refuse(path, "an id of the post_processor", id, "an id");
    const lh_status_t status = tokenizer_check_id(t, path, json_whole(id), "a post_processor's id");
    if (status != LH_OK) return status;
    if (f->before_count + f->after_count == FRAME_MOST)
        return fail(LH_INVALID, "%s: the post_processor adds more than %d ids", path, FRAME_MOST);
    if (behind)
        return frame_put(&f->after, &f->after_count, f->after_count, (int32_t)json_whole(id));
    return frame_put(&f->before, &f->before_count, (*at)++, (int32_t)json_whole(id));
}

/* ["[SEP]", 102] */
static lh_status_t read_framing(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    size_t at = 0;
    const lh_status_t status = frame_add(t, path, json_item(json_member(stage, "cls"), 1), false,
                                         &at);
    if (status != LH_OK) return status;
    return frame_add(t, path, json_item(json_member(stage, "sep"), 1), true, &at);
}

/* The ids of one special token of a template. */
static lh_status_t frame_add_special(tokenizer_t *t, const char *path, const json_value_t *stage,
                                     const char *name, bool behind, size_t *at)
{
    const json_value_t *specials = json_member(stage, "special_tokens");
    const json_value_t *ids = json_member(json_member(specials, name), "ids");
    lh_status_t status = LH_OK;
    if (!json_is_list(ids))
        return fail(LH_INVALID, "%s: the template's '%s' is not in its special_tokens", path, name);
    for (json_walk_t w = json_walk(ids); status == LH_OK && json_next(&w);)
        status = frame_add(t, path, w.value, behind, at);
    return status;
}

/* {"single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}], ...}; what is said of
 * pairs of texts is not asked for. */
static lh_status_t read_template(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    bool behind = false;
    size_t at = 0;
    lh_status_t status = LH_OK;

    for (json_walk_t w = json_walk(json_member(stage, "single"));
         status == LH_OK && json_next(&w);) {
        const char *special = json_text(json_member(json_member(w.value, "SpecialToken"), "id"));
        const char *sequence = json_text(json_member(json_member(w.value, "Sequence"), "id"));
        if (special != NULL)
            status = frame_add_special(t, path, stage, special, behind, &at);
        else if (sequence != NULL && strcmp(sequence, "A") == 0 && !behind)
            behind = true;
        else
            status = fail(LH_UNSUPPORTED,
                          "%s: item %zu of the template is neither a special token nor the one "
                          "sequence A",
                          path, w.index);
    }
    if (status == LH_OK && !behind)
        status = fail(LH_INVALID, "%s: the template has no sequence A", path);
    return status;
}

/* It says where in a text tokens stand, which nobody asks here. */
static lh_status_t read_offsets(tokenizer_t *t, const char *path, const json_value_t *stage)
{
    (void)t;
    (void)path;
    (void)stage;
    return LH_OK;
}

lh_status_t tokenizer_read_post_processor(tokenizer_t *t, const char *path,
                                          const json_value_t *value)
{
    static const stage_row_t rows[] = {
        {"TemplateProcessing", read_template},
        {"BertProcessing", read_framing},
        {"RobertaProcessing", read_framing},
        {"ByteLevel", read_offsets},
        {NULL, NULL},
    };
    return read_stage(t, path, "post_processor", "processors", rows, value);
}

/* As Transformers makes a template of the two. A token that the tokenizer lacks is not added. */
lh_status_t tokenizer_frame_by_config(tokenizer_t *t, const json_value_t *config)
{
    tokenizer_frame_t *f = &t->frame;
    lh_status_t status = LH_OK;

    lh_assert(f->before_count + f->after_count == 0);
    if (json_is_yes(json_member(config, "add_bos_token")) && t->special.bos >= 0)
        status = frame_put(&f->before, &f->before_count, 0, t->special.bos);
    if (status == LH_OK && json_is_yes(json_member(config, "add_eos_token")) && t->special.eos >= 0)
        status = frame_put(&f->after, &f->after_count, 0, t->special.eos);
    return status;
}
