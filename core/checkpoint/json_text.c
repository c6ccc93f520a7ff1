/* json_text.c - typed values, and JSON that people can read. */
#include <checkpoint/json_text.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <base/memory.h>

lh_status_t json_text_refuse(const char *path, const char *key, const json_t *value,
                             const char *wanted)
{
    char found[JSON_FOUND];
    json_found(value, found);
    return fail(LH_INVALID, "%s: %s is %s, %s was expected", path, key, found, wanted);
}

lh_status_t json_text_u64(const char *path, const json_t *object, const char *key, uint64_t *out)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return json_text_refuse(path, key, value, "a number of 0 or more");
    *out = (uint64_t)json_integer_value(value);
    return LH_OK;
}

lh_status_t json_text_string(const char *path, const json_t *object, const char *key,
                             const char **out)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_string(value)) return json_text_refuse(path, key, value, "a text");
    *out = json_string_value(value);
    return LH_OK;
}

void json_text_quote(text_t *t, const char *text)
{
    text_append(t, "\"");
    for (size_t size; *text != '\0'; text += size == 0 ? 1 : size) {
        const unsigned char c = (unsigned char)*text;
        size = text_character(text);
        if (c == '"' || c == '\\')
            text_printf(t, "\\%c", c);
        else if (c == '\n')
            text_append(t, "\\n");
        else if (c < 0x20)
            text_printf(t, "\\u%04x", c);
        else if (size == 0) /* a file with it could not be read again */
            text_append(t, "\\ufffd");
        else
            text_append_n(t, text, size);
    }
    text_append(t, "\"");
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

void json_text_real(text_t *t, double x)
{
    char digits[JSON_REAL_TEXT];
    json_real_text(x, digits);
    text_append(t, digits);
}

static void indent(text_t *t, uint32_t level)
{
    text_append(t, "\n");
    for (uint32_t i = 0; i < level; i++)
        text_append(t, "  ");
}

/* Depth was bounded when the value was parsed. */
void json_text_append(text_t *t, const json_t *value, uint32_t level)
{
    const char *key;
    json_t *item;
    size_t index, count = 0;
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        text_append(t, "{");
        json_object_foreach((json_t *)value, key, item)
        {
            if (count++ > 0) text_append(t, ",");
            indent(t, level + 1);
            json_text_quote(t, key);
            text_append(t, ": ");
            json_text_append(t, item, level + 1);
        }
        if (count > 0) indent(t, level);
        text_append(t, "}");
        return;
    case JSON_ARRAY:
        text_append(t, "[");
        json_array_foreach(value, index, item)
        {
            if (count++ > 0) text_append(t, ",");
            indent(t, level + 1);
            json_text_append(t, item, level + 1);
        }
        if (count > 0) indent(t, level);
        text_append(t, "]");
        return;
    case JSON_STRING: json_text_quote(t, json_string_value(value)); return;
    case JSON_INTEGER: text_printf(t, "%" JSON_INTEGER_FORMAT, json_integer_value(value)); return;
    case JSON_REAL: json_text_real(t, json_real_value(value)); return;
    case JSON_TRUE: text_append(t, "true"); return;
    case JSON_FALSE: text_append(t, "false"); return;
    case JSON_NULL: text_append(t, "null"); return;
    }
}
