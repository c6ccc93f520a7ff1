/* tokenizer_stages.c - normalizer, pre_tokenizer and decoder of a tokenizer.json: one row per type.
 */
#include <data/tokenizer_stages.h>

#include <stdio.h>

#include <base/memory.h>

enum { STEPS_MOST = 64 }; /* real files have up to five */

typedef struct stage_row {
    const char *type;
    lh_status_t (*read)(tokenizer_t *t, const char *path, json_t *stage);
} stage_row_t;

static bool flag_or(const json_t *object, const char *key, bool otherwise)
{
    const json_t *value = json_object_get(object, key);
    return json_is_boolean(value) ? json_is_true(value) : otherwise;
}

static const char *type_of(const json_t *stage)
{
    const char *type = json_string_value(json_object_get(stage, "type"));
    return type == NULL ? "" : type;
}

static lh_status_t read_one(tokenizer_t *t, const char *path, const char *stage_name,
                            const stage_row_t *rows, json_t *stage)
{
    for (; rows->type != NULL; rows++)
        if (strcmp(rows->type, type_of(stage)) == 0) return rows->read(t, path, stage);
    return fail(LH_UNSUPPORTED, "%s: a %s of type '%s' is not supported", path, stage_name,
                type_of(stage));
}

/* A stage, or a Sequence with its list under `list_key`. */
static lh_status_t read_stage(tokenizer_t *t, const char *path, const char *stage_name,
                              const char *list_key, const stage_row_t *rows, json_t *stage)
{
    if (stage == NULL || json_is_null(stage)) return LH_OK;
    if (strcmp(type_of(stage), "Sequence") != 0) return read_one(t, path, stage_name, rows, stage);

    json_t *list = json_object_get(stage, list_key);
    if (!json_is_array(list))
        return fail(LH_INVALID, "%s: the %s's sequence has no list '%s'", path, stage_name,
                    list_key);
    if (json_array_size(list) > STEPS_MOST)
        return fail(LH_INVALID, "%s: the %s has %zu steps; at most %d are supported", path,
                    stage_name, json_array_size(list), STEPS_MOST);
    lh_status_t status = LH_OK;
    for (size_t i = 0; i < json_array_size(list) && status == LH_OK; i++)
        status = read_one(t, path, stage_name, rows, json_array_get(list, i));
    return status;
}

/* {"String": "..."} or {"Regex": "..."}; the strings are borrowed. */
static lh_status_t read_pattern(const char *path, const json_t *stage, const json_t **string,
                                const json_t **regex)
{
    const json_t *pattern = json_object_get(stage, "pattern");
    *string = json_object_get(pattern, "String");
    *regex = json_object_get(pattern, "Regex");
    const json_t *found = *string != NULL ? *string : *regex;
    if (!json_is_string(found) || json_string_length(found) == 0)
        return fail(LH_INVALID, "%s: the %s has no pattern {\"String\" or \"Regex\": \"...\"}",
                    path, type_of(stage));
    return LH_OK;
}

/* ---- normalizer ---- */

static lh_status_t read_unicode(tokenizer_t *t, const char *path, json_t *stage)
{
    const char *type = type_of(stage);
    (void)path;
    return normalizer_add(&t->normalizer,
                          (normalize_step_t){.by = NORMALIZE_UNICODE,
                                             .compose = type[strlen(type) - 1] == 'C',
                                             .compatible = strchr(type, 'K') != NULL});
}

static lh_status_t read_prepend(tokenizer_t *t, const char *path, json_t *stage)
{
    const json_t *prepend = json_object_get(stage, "prepend");
    if (!json_is_string(prepend)) return fail(LH_INVALID, "%s: Prepend has no text", path);

    normalize_step_t step = {.by = NORMALIZE_PREPEND,
                             .to = mem_text(json_string_value(prepend)),
                             .to_length = json_string_length(prepend)};
    if (step.to == NULL) return LH_NO_MEMORY;
    return normalizer_add(&t->normalizer, step);
}

static lh_status_t read_replace(tokenizer_t *t, const char *path, json_t *stage)
{
    const json_t *string, *regex, *content = json_object_get(stage, "content");
    lh_status_t status = read_pattern(path, stage, &string, &regex);
    if (status != LH_OK) return status;
    if (!json_is_string(content)) return fail(LH_INVALID, "%s: Replace has no content", path);

    normalize_step_t step = {.by = NORMALIZE_REPLACE,
                             .to = mem_text(json_string_value(content)),
                             .to_length = json_string_length(content)};
    if (step.to == NULL) return LH_NO_MEMORY;
    if (string != NULL) {
        step.from = mem_text(json_string_value(string));
        step.from_length = json_string_length(string);
        status = step.from == NULL ? LH_NO_MEMORY : LH_OK;
    } else {
        status = regex_new(path, json_string_value(regex), json_string_length(regex), &step.regex);
    }
    if (status != LH_OK) {
        mem_free(step.to);
        return status;
    }
    return normalizer_add(&t->normalizer, step);
}

lh_status_t tokenizer_read_normalizer(tokenizer_t *t, const char *path, json_t *value)
{
    static const stage_row_t rows[] = {
        {"NFC", read_unicode},  {"NFD", read_unicode},     {"NFKC", read_unicode},
        {"NFKD", read_unicode}, {"Prepend", read_prepend}, {"Replace", read_replace},
        {NULL, NULL},
    };
    return read_stage(t, path, "normalizer", "normalizers", rows, value);
}

/* ---- pre_tokenizer ---- */

static lh_status_t read_behaviour(const char *path, const json_t *stage, split_behaviour_t *out)
{
    static const char *const names[] = {
        [SPLIT_ISOLATED] = "Isolated",
        [SPLIT_REMOVED] = "Removed",
        [SPLIT_WITH_PREVIOUS] = "MergedWithPrevious",
        [SPLIT_WITH_NEXT] = "MergedWithNext",
        [SPLIT_CONTIGUOUS] = "Contiguous",
    };
    const char *name = json_string_value(json_object_get(stage, "behavior"));

    for (split_behaviour_t i = SPLIT_ISOLATED; name != NULL && i <= SPLIT_CONTIGUOUS; i++) {
        if (strcmp(names[i], name) != 0) continue;
        *out = i;
        return LH_OK;
    }
    return fail(LH_INVALID, "%s: %s has the unknown behavior '%s'", path, type_of(stage),
                name == NULL ? "" : name);
}

static bool is_after_bytes(const tokenizer_t *t)
{
    return t->spelled == SPELLED_BYTE_LEVEL;
}

static lh_status_t read_byte_level(tokenizer_t *t, const char *path, json_t *stage)
{
    const bool use_regex = flag_or(stage, "use_regex", true);

    if (is_after_bytes(t)) return fail(LH_UNSUPPORTED, "%s has ByteLevel twice", path);
    if (flag_or(stage, "add_prefix_space", true)) {
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

static lh_status_t read_split(tokenizer_t *t, const char *path, json_t *stage)
{
    split_step_t step = {.invert = flag_or(stage, "invert", false)};
    const json_t *string, *regex;

    lh_status_t status = read_behaviour(path, stage, &step.behaviour);
    if (status == LH_OK) status = read_pattern(path, stage, &string, &regex);
    if (status != LH_OK) return status;

    const json_t *found = string != NULL ? string : regex;
    const char *pattern = json_string_value(found);
    const size_t length = json_string_length(found);
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
        if (step.by == SPLIT_REGEX) status = regex_new(path, pattern, length, &step.regex);
    }
    if (status != LH_OK) return status;
    t->cuts = true;
    return pretokenizer_add(&t->pretokenizer, step);
}

static lh_status_t read_digits(tokenizer_t *t, const char *path, json_t *stage)
{
    (void)path;
    t->cuts = true;
    return pretokenizer_add(
        &t->pretokenizer,
        (split_step_t){.by = is_after_bytes(t) ? SPLIT_BYTE_DIGITS : SPLIT_DIGITS,
                       .behaviour = flag_or(stage, "individual_digits", false) ? SPLIT_ISOLATED
                                                                               : SPLIT_CONTIGUOUS});
}

static lh_status_t read_punctuation(tokenizer_t *t, const char *path, json_t *stage)
{
    split_step_t step = {.by = SPLIT_PUNCTUATION, .behaviour = SPLIT_ISOLATED};

    if (is_after_bytes(t))
        return fail(LH_UNSUPPORTED, "%s: Punctuation after ByteLevel is not supported", path);
    if (json_object_get(stage, "behavior") != NULL) {
        const lh_status_t status = read_behaviour(path, stage, &step.behaviour);
        if (status != LH_OK) return status;
    }
    t->cuts = true;
    return pretokenizer_add(&t->pretokenizer, step);
}

static lh_status_t read_metaspace(tokenizer_t *t, const char *path, json_t *stage)
{
    const char *mark = json_string_value(json_object_get(stage, "replacement"));
    const char *scheme = json_string_value(json_object_get(stage, "prepend_scheme"));
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

lh_status_t tokenizer_read_pretokenizer(tokenizer_t *t, const char *path, json_t *value)
{
    static const stage_row_t rows[] = {
        {"ByteLevel", read_byte_level},    {"Split", read_split},         {"Digits", read_digits},
        {"Punctuation", read_punctuation}, {"Metaspace", read_metaspace}, {NULL, NULL},
    };
    return read_stage(t, path, "pre_tokenizer", "pretokenizers", rows, value);
}

/* ---- decoder ---- */

static lh_status_t read_byte_level_decoder(tokenizer_t *t, const char *path, json_t *stage)
{
    (void)path;
    (void)stage;
    t->decoder.byte_level = true;
    return LH_OK;
}

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

static lh_status_t read_replace_decoder(tokenizer_t *t, const char *path, json_t *stage)
{
    const json_t *string, *regex;
    const char *content = json_string_value(json_object_get(stage, "content"));
    const lh_status_t status = read_pattern(path, stage, &string, &regex);
    if (status != LH_OK) return status;
    if (string == NULL || content == NULL)
        return fail(LH_UNSUPPORTED, "%s: a decoder that replaces by a regex is not supported",
                    path);
    return add_replace(t, path, json_string_value(string), content);
}

static lh_status_t read_fallback_decoder(tokenizer_t *t, const char *path, json_t *stage)
{
    (void)path;
    (void)stage;
    t->decoder.byte_fallback = true;
    return LH_OK;
}

/* Tokens are always written one after another. */
static lh_status_t read_fuse_decoder(tokenizer_t *t, const char *path, json_t *stage)
{
    (void)path;
    (void)stage;
    t->decoder.fused = true;
    return LH_OK;
}

static lh_status_t read_strip_decoder(tokenizer_t *t, const char *path, json_t *stage)
{
    const char *content = json_string_value(json_object_get(stage, "content"));
    const json_int_t start = json_integer_value(json_object_get(stage, "start"));
    const json_int_t stop = json_integer_value(json_object_get(stage, "stop"));
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

static lh_status_t read_metaspace_decoder(tokenizer_t *t, const char *path, json_t *stage)
{
    const char *mark = json_string_value(json_object_get(stage, "replacement"));
    const char *scheme = json_string_value(json_object_get(stage, "prepend_scheme"));
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

lh_status_t tokenizer_read_decoder(tokenizer_t *t, const char *path, json_t *value)
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
    if (value == NULL || json_is_null(value)) {
        t->decoder.join = t->spelled != SPELLED_BYTE_LEVEL;
        return LH_OK;
    }
    return read_stage(t, path, "decoder", "decoders", rows, value);
}
