/* json.c - the rules that yyjson leaves to its callers: keys that stand twice, how many values, NUL
 * in texts. They are read off the values after these were parsed: yyjson does not recurse, bounds
 * depth (CMakeLists.txt says to how much), and holds 16 bytes a value. The writer is at the end:
 * what stands between values follows from the style and the level. */
#include <format/json.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <yyjson.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/text.h>

/* What yyjson may hold. It begins with room for a value of every few bytes of text, and takes more
 * as values come: that is where too many are found out, before they are held. */
typedef struct budget {
    uint64_t most_bytes;
    bool spent;
} budget_t;

static void *heap_take(void *context, size_t bytes)
{
    (void)context;
    return mem_lend(bytes);
}

/* yyjson asks for more while it reads, so a budget that is spent shows here, long before the whole
 * document is held. */
static void *heap_take_more(void *context, void *memory, size_t old_bytes, size_t bytes)
{
    budget_t *budget = context;
    budget->spent = bytes > old_bytes && bytes > budget->most_bytes;
    void *other = budget->spent ? NULL : mem_lend(bytes);
    if (other == NULL) return NULL;
    memcpy(other, memory, old_bytes < bytes ? old_bytes : bytes);
    mem_free(memory);
    return other;
}

static void heap_give(void *context, void *memory)
{
    (void)context;
    mem_free(memory);
}

/* NULL: *error says why, or budget->spent that there were too many values. A document keeps its
 * allocator, but only frees with it. */
static json_document_t *read_json_bytes(const char *text, size_t length, yyjson_read_flag how,
                                        budget_t *budget, yyjson_read_err *error)
{
    const yyjson_alc heap = {
        .malloc = heap_take, .realloc = heap_take_more, .free = heap_give, .ctx = budget};
    /* Without YYJSON_READ_INSITU the text is only read. */
    return yyjson_read_opts((char *)(uintptr_t)text, length, how, &heap, error);
}

/* yyjson's questions take no const, and change nothing. */
static yyjson_val *as_yyjson(const json_value_t *v)
{
    return (yyjson_val *)(uintptr_t)v;
}

static bool is_container(const json_value_t *v)
{
    return unsafe_yyjson_is_ctn(as_yyjson(v));
}

/* The byte that yyjson stopped at as a person can read it, behind a comma; nothing at the end. */
enum { BYTE_FOUND = 8 };
static const char *byte_at(const char *text, size_t length, size_t at, char out[BYTE_FOUND])
{
    const unsigned char c = at < length ? (unsigned char)text[at] : 0;
    (void)snprintf(out, BYTE_FOUND, c > 0x20 && c < 0x7f ? ", '%c'" : ", 0x%02x", c);
    return at < length ? out : "";
}

_Static_assert(JSON_DEPTH == 64 && YYJSON_READER_DEPTH_LIMIT == JSON_DEPTH, "one limit of depth");

/* yyjson's own words, but for the limit that is ours. */
static const char *error_sentence(const yyjson_read_err *error)
{
    return error->code == YYJSON_READ_ERROR_DEPTH ? "nested deeper than 64 levels" : error->msg;
}

static int by_key_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* *twice: a key of the object that stands there more than once, or NULL. Keys are sorted for this,
 * so an object of a million is no reason for 10^12 comparisons. keys: room that grows from object
 * to object, the caller's to free. */
static lh_status_t find_twice(const json_value_t *map, const char ***keys, size_t *capacity,
                              const char **twice)
{
    const size_t count = json_size(map);
    *twice = NULL;
    if (count < 2) return LH_OK;
    const char **all = mem_grow(*keys, capacity, count, sizeof(*all));
    if (all == NULL) return LH_NO_MEMORY;
    *keys = all;
    for (json_walk_t w = json_walk(map); json_next(&w);) {
        lh_assert(w.index < count && w.key != NULL);
        all[w.index] = w.key;
    }
    qsort(all, count, sizeof(*all), by_key_text);
    for (size_t i = 1; i < count && *twice == NULL; i++)
        if (strcmp(all[i - 1], all[i]) == 0) *twice = all[i];
    return LH_OK;
}

static lh_status_t refuse_most(const char *path, uint64_t most)
{
    return fail(LH_INVALID, "%s: more than %llu values in its JSON", path,
                (unsigned long long)most);
}

/* yyjson keeps all values of a document in one array, in the order of the text: a check of each is
 * a walk over it, without recursion. Texts come first, as keys are compared up to their NUL. */
static lh_status_t check_values(const char *path, const json_document_t *d, uint64_t most)
{
    const json_value_t *end = d->root + yyjson_doc_get_val_count((void *)d);
    const char **keys = NULL, *twice = NULL;
    size_t capacity = 0;
    uint64_t held = 0;
    lh_status_t status = LH_OK;
    for (const json_value_t *v = d->root; v < end; v++) {
        /* Values are counted by their containers: that leaves keys out. */
        if (is_container(v)) held += json_size(v);
        if (json_is_text(v) && memchr(json_text(v), '\0', json_text_length(v)) != NULL)
            return fail(LH_INVALID, "%s: \\u0000 is not allowed in its texts", path);
    }
    if (held > most) return refuse_most(path, most);
    for (const json_value_t *v = d->root; status == LH_OK && twice == NULL && v < end; v++)
        if (json_is_map(v)) status = find_twice(v, &keys, &capacity, &twice);
    if (twice != NULL) status = fail(LH_INVALID, "%s: key '%.64s' stands twice", path, twice);
    mem_free(keys);
    return status;
}

static lh_status_t check_json_document(const char *path, const json_document_t *d, uint64_t most)
{
    if (!json_is_map(d->root)) {
        char found[JSON_FOUND];
        json_found(d->root, found);
        return fail(LH_INVALID, "%s: %s found, a JSON object was expected", path, found);
    }
    return check_values(path, d, most);
}

/* An empty text has a sentence of its own, as yyjson's speaks of the input's length. */
lh_status_t json_parse(const char *path, const char *text, size_t length, uint64_t most,
                       json_document_t **out)
{
    /* A first bound, in bytes and while yyjson reads, keeps a small file from taking much memory;
     * the exact number is counted afterwards. */
    enum { VALUE_BYTES = sizeof(yyjson_val), ROOM = 1 << 16 };
    yyjson_read_err error;
    /* A member is two values, and yyjson takes half as much again as it needs. */
    budget_t budget = {.most_bytes = most < UINT32_MAX ? 3 * VALUE_BYTES * most + ROOM
                                                       : UINT64_MAX};
    if (length == 0) return fail(LH_INVALID, "%s: not JSON: nothing stands there", path);
    json_document_t *d = read_json_bytes(text, length, YYJSON_READ_NOFLAG, &budget, &error);
    /* The sentence is that of the limit, and not that memory is missing. */
    if (d == NULL && budget.spent) return refuse_most(path, most);
    if (d == NULL && error.code == YYJSON_READ_ERROR_MEMORY_ALLOCATION)
        return fail(LH_NO_MEMORY, "out of memory: %s: %zu bytes of JSON", path, length);
    if (d == NULL) {
        char found[BYTE_FOUND];
        size_t line = 0, column = 0, character;
        (void)yyjson_locate_pos(text, length, error.pos, &line, &column, &character);
        return fail(LH_INVALID, "%s: not JSON, line %zu column %zu%s: %s", path, line, column,
                    byte_at(text, length, error.pos, found), error_sentence(&error));
    }
    const lh_status_t status = check_json_document(path, d, most);
    if (status == LH_OK)
        *out = d;
    else
        json_free(d);
    return status;
}

lh_status_t json_read(const char *path, uint64_t limit, uint64_t most, json_document_t **out)
{
    char *text;
    size_t length;
    lh_status_t status = file_read(path, limit, &text, &length);
    if (status != LH_OK) return status;
    status = json_parse(path, text, length, most, out);
    mem_free(text);
    return status;
}

void json_free(json_document_t *document)
{
    yyjson_doc_free(document);
}

const json_value_t *json_root(const json_document_t *document)
{
    return document == NULL ? NULL : document->root;
}

bool json_is_map(const json_value_t *v)
{
    return yyjson_is_obj(as_yyjson(v));
}

bool json_is_list(const json_value_t *v)
{
    return yyjson_is_arr(as_yyjson(v));
}

/* yyjson's questions take NULL and say no, so a chain of json_member needs no check in between. */
bool json_is_text(const json_value_t *v)
{
    return yyjson_is_str(as_yyjson(v));
}

/* yyjson holds an integer above 2^63 - 1 as an unsigned one; no field of a
 * file here is as large. */
bool json_is_whole(const json_value_t *v)
{
    return yyjson_is_sint(as_yyjson(v)) ||
           (yyjson_is_uint(as_yyjson(v)) && yyjson_get_uint(as_yyjson(v)) <= INT64_MAX);
}

bool json_is_numeric(const json_value_t *v)
{
    return yyjson_is_num(as_yyjson(v));
}

bool json_is_flag(const json_value_t *v)
{
    return yyjson_is_bool(as_yyjson(v));
}

bool json_is_yes(const json_value_t *v)
{
    return yyjson_is_true(as_yyjson(v));
}

bool json_is_nil(const json_value_t *v)
{
    return yyjson_is_null(as_yyjson(v));
}

const char *json_text(const json_value_t *v)
{
    return yyjson_get_str(as_yyjson(v));
}

size_t json_text_length(const json_value_t *v)
{
    return json_is_text(v) ? yyjson_get_len(as_yyjson(v)) : 0;
}

int64_t json_whole(const json_value_t *v)
{
    return json_is_whole(v) ? yyjson_get_sint(as_yyjson(v)) : 0;
}

/* For writing a number as it was read, also one above 2^63 - 1. */
bool json_whole_text(const json_value_t *v, char out[JSON_WHOLE_TEXT])
{
    if (yyjson_is_uint(as_yyjson(v)))
        (void)snprintf(out, JSON_WHOLE_TEXT, "%" PRIu64, yyjson_get_uint(as_yyjson(v)));
    else
        (void)snprintf(out, JSON_WHOLE_TEXT, "%" PRId64, yyjson_get_sint(as_yyjson(v)));
    return yyjson_is_int(as_yyjson(v));
}

double json_number(const json_value_t *v)
{
    return yyjson_get_num(as_yyjson(v));
}

/* Numbers of lines stand as they were written. */
static bool count_of_digits(const char *text, size_t length, uint64_t *out)
{
    if (length == 0 || length > 18) return false;
    for (size_t i = 0; i < length; i++)
        if (text[i] < '0' || text[i] > '9') return false;
    *out = strtoull(text, NULL, 10);
    return true;
}

bool json_count(const json_value_t *v, uint64_t *out)
{
    if (v != NULL && yyjson_is_raw(as_yyjson(v)))
        return count_of_digits(yyjson_get_raw(as_yyjson(v)), yyjson_get_len(as_yyjson(v)), out);
    if (!json_is_whole(v) || json_whole(v) < 0) return false;
    *out = (uint64_t)json_whole(v);
    return true;
}

size_t json_size(const json_value_t *v)
{
    return v != NULL && is_container(v) ? unsafe_yyjson_get_len(as_yyjson(v)) : 0;
}

/* Walks over the members: the objects that are read this way are small. */
const json_value_t *json_member(const json_value_t *map, const char *key)
{
    return yyjson_obj_get(as_yyjson(map), key);
}

const json_value_t *json_item(const json_value_t *list, size_t index)
{
    return yyjson_arr_get(as_yyjson(list), index);
}

json_walk_t json_walk(const json_value_t *v)
{
    json_walk_t w = {.left = json_size(v), .keyed = json_is_map(v)};
    if (w.left > 0) w.follows = unsafe_yyjson_get_first(as_yyjson(v));
    return w;
}

/* In memory a key lies right before its value, and yyjson knows from a value where the next one
 * is. */
bool json_next(json_walk_t *w)
{
    if (w->left == 0) return false;
    lh_assert(w->follows != NULL);
    w->index = w->value == NULL ? 0 : w->index + 1;
    w->key = w->keyed ? unsafe_yyjson_get_str(as_yyjson(w->follows)) : NULL;
    w->value = w->keyed ? w->follows + 1 : w->follows;
    w->follows = unsafe_yyjson_get_next(as_yyjson(w->value));
    w->left--;
    return true;
}

/* Texts are shown in quotes and anything else as the JSON that it is, cut off where it is long. */
void json_found(const json_value_t *v, char out[JSON_FOUND])
{
    enum { SHOWN = JSON_FOUND - 8 };
    if (v == NULL || json_is_text(v)) {
        const char *text = v == NULL ? NULL : json_text(v);
        (void)snprintf(out, JSON_FOUND, text == NULL ? "nothing" : "\"%.*s\"%s", SHOWN, text,
                       text != NULL && strlen(text) > SHOWN ? "..." : "");
        return;
    }
    text_t text = {0};
    json_writer_t w = {.to = &text, .style = JSON_TIGHT};
    json_put_value(&w, NULL, v);
    (void)snprintf(out, JSON_FOUND, "%.*s%s", SHOWN, text.data == NULL ? "a value" : text.data,
                   text.length > SHOWN ? "..." : "");
    text_free(&text);
}

lh_status_t json_refuse(const char *path, const char *key, const json_value_t *v,
                        const char *wanted)
{
    char found[JSON_FOUND];
    json_found(v, found);
    return fail(LH_INVALID, "%s: %s is %s, %s was expected", path, key, found, wanted);
}

lh_status_t json_take_count(const char *path, const json_value_t *map, const char *key,
                            uint64_t *out)
{
    const json_value_t *v = json_member(map, key);
    return json_count(v, out) ? LH_OK : json_refuse(path, key, v, "a number of 0 or more");
}

lh_status_t json_take_text(const char *path, const json_value_t *map, const char *key,
                           const char **out)
{
    const json_value_t *v = json_member(map, key);
    if (!json_is_text(v)) return json_refuse(path, key, v, "a text");
    *out = json_text(v);
    return LH_OK;
}

/* For sentences about a line; texts are left out, as no sentence is about one that stands there. */
static const char *value_kind_text(const json_value_t *v)
{
    if (json_is_map(v)) return "an object";
    if (json_is_list(v)) return "a list";
    if (json_is_flag(v)) return "true or false";
    return json_is_nil(v) ? "null" : "a number";
}

/* yyjson takes NaN and Infinity in any case and abbreviated; Python only as it writes them itself.
 * Numbers are left as they stand: whether any type could hold them does not matter here. */
static bool is_pythons(const json_value_t *raw)
{
    const char *text = yyjson_get_raw(as_yyjson(raw));
    const size_t length = yyjson_get_len(as_yyjson(raw)), sign = text[0] == '-';
    if (text[sign] >= '0' && text[sign] <= '9') return true;
    const char *word = text[sign] == 'N' && sign == 0 ? "NaN" : "Infinity";
    return length - sign == strlen(word) && memcmp(text + sign, word, length - sign) == 0;
}

/* What a line may be: any JSON that Python's json module reads, as long as it is one object. */
static lh_status_t check_json_line(const json_document_t *d)
{
    const json_value_t *end = d->root + yyjson_doc_get_val_count((void *)d);
    for (const json_value_t *v = d->root; v < end; v++)
        if (yyjson_is_raw(as_yyjson(v)) && !is_pythons(v))
            return fail(LH_INVALID, "'%.12s' is no number", yyjson_get_raw(as_yyjson(v)));
    if (json_is_map(d->root)) return LH_OK;
    return fail(LH_INVALID, "%s found, an object was expected",
                json_is_text(d->root) ? "a text" : value_kind_text(d->root));
}

/* Numbers are not converted: a line of a corpus is read for one text, and its numbers cost time and
 * may be larger than any type holds. */
lh_status_t json_line_read(const char *bytes, size_t length, json_document_t **line)
{
    yyjson_read_err error;
    budget_t budget = {.most_bytes = UINT64_MAX};
    json_free(*line);
    *line = read_json_bytes(
        bytes, length, YYJSON_READ_NUMBER_AS_RAW | YYJSON_READ_ALLOW_INF_AND_NAN, &budget, &error);
    if (*line == NULL && error.code == YYJSON_READ_ERROR_MEMORY_ALLOCATION)
        return fail(LH_NO_MEMORY, "out of memory: a line of %zu bytes of JSON", length);
    if (*line == NULL) {
        char found[BYTE_FOUND];
        return fail(LH_INVALID, "at byte %zu%s: %s", error.pos + 1,
                    byte_at(bytes, length, error.pos, found), error_sentence(&error));
    }
    return check_json_line(*line);
}

lh_status_t json_line_text(const char *bytes, size_t length, const char *key,
                           json_document_t **line, const char **text, size_t *text_length)
{
    const lh_status_t status = json_line_read(bytes, length, line);
    if (status != LH_OK) return status;

    /* All members are looked at, as a key that stands twice at the top makes the line a bad one. */
    const size_t key_length = strlen(key);
    const json_value_t *found = NULL;
    yyjson_obj_iter members = yyjson_obj_iter_with((*line)->root);
    for (yyjson_val *k; (k = yyjson_obj_iter_next(&members)) != NULL;) {
        if (!yyjson_equals_strn(k, key, key_length)) continue;
        if (found != NULL) return fail(LH_INVALID, "key '%.64s' stands twice", key);
        found = yyjson_obj_iter_get_val(k);
    }
    if (found == NULL) return fail(LH_INVALID, "key '%.64s' is missing", key);
    if (!json_is_text(found))
        return fail(LH_INVALID, "key '%.64s' holds %s, a text was expected", key,
                    value_kind_text(found));
    *text = json_text(found);
    *text_length = json_text_length(found);
    return LH_OK;
}

bool json_line_blank(const char *bytes, size_t length)
{
    size_t at = 0;
    while (at < length && memchr(" \t\r\n", bytes[at], 4) != NULL)
        at++;
    return at == length;
}

/* A text as a JSON string. Only what JSON wants escaped is: other characters stand as they are, in
 * UTF-8. */
static void append_quoted(text_t *t, const char *bytes, size_t length)
{
    text_append(t, "\"");
    for (size_t at = 0; at < length;) {
        uint32_t size;
        const unsigned char *p = (const unsigned char *)bytes + at;
        const uint32_t c = text_utf8_decode(p, (const unsigned char *)bytes + length, &size);
        if (c == '"' || c == '\\')
            text_printf(t, "\\%c", (int)c);
        else if (c == '\n')
            text_append(t, "\\n");
        else if (c < 0x20)
            text_printf(t, "\\u%04x", c);
        else if (c == TEXT_UTF8_BAD)
            text_append(t, "\\ufffd");
        else
            text_append_n(t, bytes + at, size);
        at += size;
    }
    text_append(t, "\"");
}

/* A new line, moved in by the level, where the style has lines. */
static void new_line(json_writer_t *w)
{
    if (w->style > 0) text_printf(w->to, "\n%*s", w->style * (int)w->depth, "");
}

/* What stands before a value: the comma behind the one before, its line, its key. */
static void value_begin(json_writer_t *w, const char *key)
{
    /* The container that this value comes into; NULL: it is the whole text. */
    struct json_level *level = w->depth > 0 ? &w->levels[w->depth - 1] : NULL;
    lh_assert(level == NULL || (key != NULL) == (level->end == '}'));
    /* A layout says everything; without one the style does, by comma and new line. */
    if (level != NULL && level->layout != NULL) {
        text_append(w->to, level->begun ? level->layout->next : level->layout->first);
    } else if (level != NULL) {
        if (level->begun) text_append(w->to, w->style == JSON_SPACED ? ", " : ",");
        new_line(w);
    }
    if (level != NULL) level->begun = true;
    if (key == NULL) return;
    append_quoted(w->to, key, strlen(key));
    text_append(w->to, w->style == JSON_TIGHT ? ":" : ": ");
}

void json_open_as(json_writer_t *w, const char *key, char bracket, const json_layout_t *layout)
{
    lh_assert(w->depth < JSON_WRITER_DEPTH && (bracket == '{' || bracket == '['));
    value_begin(w, key);
    text_append_n(w->to, &bracket, 1);
    w->levels[w->depth++] = (struct json_level){.layout = layout,
                                                .end = bracket == '{' ? '}' : ']'};
}

void json_open(json_writer_t *w, const char *key, char bracket)
{
    json_open_as(w, key, bracket, NULL);
}

/* An empty container stays on one line: {} and []. */
void json_close(json_writer_t *w)
{
    lh_assert(w->depth > 0);
    w->depth--;
    const struct json_level *level = &w->levels[w->depth];
    if (level->begun && level->layout == NULL) new_line(w);
    text_append_n(w->to, &level->end, 1);
}

void json_put_text_n(json_writer_t *w, const char *key, const char *bytes, size_t length)
{
    value_begin(w, key);
    append_quoted(w->to, bytes, length);
}

void json_put_text(json_writer_t *w, const char *key, const char *text)
{
    json_put_text_n(w, key, text, strlen(text));
}

/* Nothing looks at the JSON: whoever gives it answers for it. */
void json_put_as_is(json_writer_t *w, const char *key, const char *json)
{
    value_begin(w, key);
    text_append(w->to, json);
}

void json_put_u64(json_writer_t *w, const char *key, uint64_t value)
{
    value_begin(w, key);
    text_printf(w->to, "%" PRIu64, value);
}

/* JSON has neither NaN nor infinity. */
void json_put_real(json_writer_t *w, const char *key, double value)
{
    char digits[JSON_REAL_TEXT] = "null";
    if (isfinite(value)) json_real_text(value, digits);
    json_put_as_is(w, key, digits);
}

void json_put_flag(json_writer_t *w, const char *key, bool value)
{
    json_put_as_is(w, key, value ? "true" : "false");
}

void json_put_nil(json_writer_t *w, const char *key)
{
    json_put_as_is(w, key, "null");
}

/* Recurses, but not deeper than JSON_DEPTH, as a document's depth was bounded when it was
 * parsed. */
void json_put_value(json_writer_t *w, const char *key, const json_value_t *v)
{
    char digits[JSON_WHOLE_TEXT];
    if (json_is_map(v) || json_is_list(v)) {
        json_open(w, key, json_is_map(v) ? '{' : '[');
        for (json_walk_t items = json_walk(v); json_next(&items);)
            json_put_value(w, items.key, items.value);
        json_close(w);
    } else if (json_is_text(v)) {
        json_put_text_n(w, key, json_text(v), json_text_length(v));
    } else if (json_whole_text(v, digits)) {
        json_put_as_is(w, key, digits);
    } else if (json_is_numeric(v)) {
        json_put_real(w, key, json_number(v));
    } else if (json_is_flag(v)) {
        json_put_flag(w, key, json_is_yes(v));
    } else if (yyjson_is_raw(as_yyjson(v))) {
        json_put_as_is(w, key, yyjson_get_raw(as_yyjson(v))); /* a number of a line */
    } else {
        json_put_nil(w, key);
    }
}

/* Digits are added until the number reads back as it was, which 17 always do. Then the place of the
 * point is as Python's repr has it: an exponent below -4 and from 16 on. */
void json_real_text(double x, char out[JSON_REAL_TEXT])
{
    lh_assert(isfinite(x));
    int precision = 0;
    do
        (void)snprintf(out, JSON_REAL_TEXT, "%.*e", precision, x);
    while (text_real(out, NULL) != x && ++precision < 17);

    const char *mark = strchr(out, 'e');
    /* No mark: inf or nan would have none. */
    const int exponent = mark == NULL ? 0 : atoi(mark + 1);
    if (mark == NULL || exponent < -4 || exponent >= 16) return;
    const int decimals = precision - exponent;
    /* Stays a real when read again. */
    (void)snprintf(out, JSON_REAL_TEXT, "%.*f", decimals > 0 ? decimals : 1, x);
}
