/* json_writer.c - what stands between values follows from the style and the level. */
#include <format/json_writer.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <base/utf8.h>
#include <format/json.h>

static void quote(text_t *t, const char *bytes, size_t length)
{
    text_append(t, "\"");
    for (size_t at = 0; at < length;) {
        uint32_t size;
        const unsigned char *p = (const unsigned char *)bytes + at;
        const uint32_t c = utf8_decode(p, (const unsigned char *)bytes + length, &size);
        if (c == '"' || c == '\\')
            text_printf(t, "\\%c", (int)c);
        else if (c == '\n')
            text_append(t, "\\n");
        else if (c < 0x20)
            text_printf(t, "\\u%04x", c);
        else if (c == UTF8_BAD)
            text_append(t, "\\ufffd");
        else
            text_append_n(t, bytes + at, size);
        at += size;
    }
    text_append(t, "\"");
}

static void new_line(json_writer_t *w)
{
    if (w->style > 0) text_printf(w->to, "\n%*s", w->style * (int)w->depth, "");
}

/* What stands before a value: the comma behind the one before, its line, its key. */
static void begin(json_writer_t *w, const char *key)
{
    struct json_level *level = w->depth > 0 ? &w->levels[w->depth - 1] : NULL;
    lh_assert(level == NULL || (key != NULL) == (level->end == '}'));
    if (level != NULL && level->layout != NULL) {
        text_append(w->to, level->begun ? level->layout->next : level->layout->first);
    } else if (level != NULL) {
        if (level->begun) text_append(w->to, w->style == JSON_SPACED ? ", " : ",");
        new_line(w);
    }
    if (level != NULL) level->begun = true;
    if (key == NULL) return;
    quote(w->to, key, strlen(key));
    text_append(w->to, w->style == JSON_TIGHT ? ":" : ": ");
}

void json_open_as(json_writer_t *w, const char *key, char bracket, const json_layout_t *layout)
{
    lh_assert(w->depth < JSON_WRITER_DEPTH && (bracket == '{' || bracket == '['));
    begin(w, key);
    text_append_n(w->to, &bracket, 1);
    w->levels[w->depth++] = (struct json_level){.layout = layout,
                                                .end = bracket == '{' ? '}' : ']'};
}

void json_open(json_writer_t *w, const char *key, char bracket)
{
    json_open_as(w, key, bracket, NULL);
}

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
    begin(w, key);
    quote(w->to, bytes, length);
}

void json_put_text(json_writer_t *w, const char *key, const char *text)
{
    json_put_text_n(w, key, text, strlen(text));
}

void json_put_as_is(json_writer_t *w, const char *key, const char *json)
{
    begin(w, key);
    text_append(w->to, json);
}

void json_put_u64(json_writer_t *w, const char *key, uint64_t value)
{
    begin(w, key);
    text_printf(w->to, "%" PRIu64, value);
}

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

/* A document's depth was bounded when it was parsed. */
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
    } else {
        json_put_nil(w, key);
    }
}

void json_real_text(double x, char out[JSON_REAL_TEXT])
{
    int precision = 0;
    do
        (void)snprintf(out, JSON_REAL_TEXT, "%.*e", precision, x);
    while (strtod(out, NULL) != x && ++precision < 17);

    const char *mark = strchr(out, 'e');
    const int exponent = mark == NULL ? 0 : atoi(mark + 1);
    if (mark == NULL || exponent < -4 || exponent >= 16) return;
    const int decimals = precision - exponent;
    /* Stays a real when read again. */
    (void)snprintf(out, JSON_REAL_TEXT, "%.*f", decimals > 0 ? decimals : 1, x);
}
