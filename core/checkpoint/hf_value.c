/* hf_value.c - values of a config.json by dotted paths. */
#include <checkpoint/hf_value.h>

#include <stdio.h>

json_t *hf_value_find(const json_t *root, const char *path)
{
    const json_t *at = root;
    char name[128];
    while (*path != '\0') {
        const size_t length = strcspn(path, ".");
        (void)snprintf(name, sizeof(name), "%.*s", (int)length, path);
        at = json_object_get(at, name);
        path += length + (path[length] == '.');
    }
    return at == NULL || json_is_null(at) ? NULL : (json_t *)at;
}

lh_status_t hf_value_put(json_t *root, const char *path, json_t *value)
{
    json_t *at = root;
    char name[128];
    for (;;) {
        const size_t length = strcspn(path, ".");
        (void)snprintf(name, sizeof(name), "%.*s", (int)length, path);
        if (path[length] == '\0') break;
        path += length + 1;
        json_t *next = json_object_get(at, name);
        if (!json_is_object(next)) {
            next = json_object();
            if (json_object_set_new(at, name, next) != 0) goto no_memory;
        }
        at = next;
    }
    if (json_object_set_new(at, name, value) == 0) return LH_OK;
    return fail(LH_NO_MEMORY, "out of memory while writing config.json");

no_memory:
    json_decref(value);
    return fail(LH_NO_MEMORY, "out of memory while writing config.json");
}

bool hf_value_text(const json_t *value, text_t *out)
{
    switch (json_typeof(value)) {
    case JSON_TRUE: text_append(out, "yes"); return true;
    case JSON_FALSE: text_append(out, "no"); return true;
    case JSON_STRING: text_append(out, json_string_value(value)); return true;
    case JSON_INTEGER:
    case JSON_REAL: json_text_append(out, value, 0); return true;
    default: return false;
    }
}

lh_status_t hf_value_refuse(const char *file, const char *key, const json_t *value,
                            const char *wanted)
{
    text_t found = {0};
    if (!hf_value_text(value, &found))
        text_append(&found, json_is_null(value)    ? "null"
                            : json_is_array(value) ? "a list"
                                                   : "an object");
    lh_status_t status = text_status(&found);
    if (status == LH_OK)
        status = fail(LH_INVALID, "%s: %s is %.64s, %s was expected", file, key,
                      found.data == NULL ? "''" : found.data, wanted);
    text_free(&found);
    return status;
}

lh_status_t hf_value_check_parents(const char *file, const json_t *root, const char *path)
{
    char parent[128];
    for (const char *dot = strchr(path, '.'); dot != NULL; dot = strchr(dot + 1, '.')) {
        (void)snprintf(parent, sizeof(parent), "%.*s", (int)(dot - path), path);
        const json_t *value = hf_value_find(root, parent);
        if (value != NULL && !json_is_object(value))
            return hf_value_refuse(file, parent, value, "an object");
    }
    return LH_OK;
}
