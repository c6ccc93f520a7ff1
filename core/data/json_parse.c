/* json_parse.c - a guarded door to jansson. */
#include <data/json_parse.h>

#include <pthread.h>

#include <base/memory.h>

/* jansson drops a byte of a string that it has no memory for, and says nothing: the allocator
 * remembers. */
static _Thread_local bool ran_out;

static void *take(size_t bytes)
{
    void *memory = mem_lend(bytes);
    if (memory == NULL) ran_out = true;
    return memory;
}

static void use(void)
{
    json_set_alloc_funcs(take, mem_free);
}

void json_use_memory(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, use);
}

static lh_status_t check_bytes(const char *path, const char *text, size_t length)
{
    uint32_t depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < length; i++) {
        const char c = text[i];
        /* jansson passes over it behind a number */
        if (c == '\0') return fail(LH_INVALID, "%s: byte %zu is NUL, JSON is text", path, i);
        if (quoted) {
            if (c == '\\')
                i++;
            else if (c == '"')
                quoted = false;
        } else if (c == '"') {
            quoted = true;
        } else if (c == '{' || c == '[') {
            if (++depth > JSON_PARSE_DEPTH)
                return fail(LH_INVALID, "%s: nested more than %d deep at byte %zu", path,
                            JSON_PARSE_DEPTH, i);
        } else if ((c == '}' || c == ']') && depth > 0) {
            depth--;
        }
    }
    return LH_OK;
}

lh_status_t json_parse(const char *path, const char *text, size_t length, json_t **out)
{
    const lh_status_t status = check_bytes(path, text, length);
    if (status != LH_OK) return status;

    json_error_t error;
    json_use_memory();
    ran_out = false;
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (ran_out) {
        json_decref(root);
        return fail(LH_NO_MEMORY, "out of memory: %s: %zu bytes of JSON", path, length);
    }
    if (root == NULL)
        return fail(LH_INVALID, "%s: not JSON, line %d column %d: %s", path, error.line,
                    error.column, error.text);
    if (!json_is_object(root)) {
        json_decref(root);
        return fail(LH_INVALID, "%s: a JSON object was expected", path);
    }
    *out = root;
    return LH_OK;
}
