/* json_parse.c - a guarded door to jansson. */
#include <data/json_parse.h>

#include <pthread.h>

#include <base/file.h>
#include <base/memory.h>

/* jansson does not survive every failed allocation: its scanner drops bytes of a string that it has
 * no memory for, in silence or with an assertion. So what fails while it reads is given from a
 * reserve instead, and the text ends there; all is then thrown away. */
typedef struct reading {
    const char *text;
    size_t length, at;
    bool ran_out;
    char *reserve;
    size_t reserve_bytes, reserved;
} reading_t;

enum {
    PIECE = 1024,               /* jansson asks for so much text at once      */
    PIECE_RESERVE = 192 * 1024, /* what the values of one piece may still need */
    ALIGNED = 16,
};

static _Thread_local reading_t *reading;

static void *from_reserve(reading_t *r, size_t bytes)
{
    const size_t rounded = (bytes + ALIGNED - 1) / ALIGNED * ALIGNED;
    r->ran_out = true;
    if (rounded < bytes || rounded > r->reserve_bytes - r->reserved) return NULL;
    void *memory = r->reserve + r->reserved;
    r->reserved += rounded;
    return memory;
}

static void *take(size_t bytes)
{
    void *memory = mem_lend(bytes);
    return memory == NULL && reading != NULL ? from_reserve(reading, bytes) : memory;
}

static void give(void *memory)
{
    const uintptr_t at = (uintptr_t)memory;
    const uintptr_t begin = reading == NULL ? 0 : (uintptr_t)reading->reserve;
    if (begin == 0 || at < begin || at >= begin + reading->reserve_bytes) mem_free(memory);
}

static void use(void)
{
    json_set_alloc_funcs(take, give);
}

void json_use_memory(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, use);
}

static size_t next_piece(void *buffer, size_t room, void *context)
{
    reading_t *r = context;
    size_t bytes = r->length - r->at < room ? r->length - r->at : room;
    if (r->ran_out) bytes = 0;
    memcpy(buffer, r->text + r->at, bytes);
    r->at += bytes;
    return bytes;
}

/* *longest: bytes of the longest string or number. A value follows each comma and each bracket. */
static lh_status_t check_bytes(const char *path, const char *text, size_t length, uint64_t most,
                               size_t *longest)
{
    uint32_t depth = 0;
    uint64_t values = 0;
    bool quoted = false;
    size_t token = 0;
    *longest = 0;
    for (size_t i = 0; i < length; i++) {
        const char c = text[i];
        /* jansson passes over it behind a number */
        if (c == '\0') return fail(LH_INVALID, "%s: byte %zu is NUL, JSON is text", path, i);
        token = !quoted && strchr(" \t\r\n,:[]{}\"", c) != NULL ? 0 : token + 1;
        if (token > *longest) *longest = token;
        if (!quoted && (c == ',' || c == '{' || c == '[') && ++values > most)
            return fail(LH_INVALID, "%s: more than %llu values at byte %zu of its JSON", path,
                        (unsigned long long)most, i);
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
    return json_parse_most(path, text, length, UINT64_MAX, out);
}

lh_status_t json_parse_most(const char *path, const char *text, size_t length, uint64_t most,
                            json_t **out)
{
    size_t longest;
    const lh_status_t status = check_bytes(path, text, length, most, &longest);
    if (status != LH_OK) return status;

    reading_t r = {.text = text, .length = length, .reserve_bytes = PIECE_RESERVE + 8 * longest};
    r.reserve = mem_lend(r.reserve_bytes);
    if (r.reserve == NULL) return LH_NO_MEMORY;
    json_error_t error;
    json_use_memory();
    reading = &r;
    json_t *root = json_load_callback(next_piece, &r, JSON_REJECT_DUPLICATES, &error);
    if (r.ran_out) {
        json_decref(root);
        root = NULL;
    }
    reading = NULL;
    mem_free(r.reserve);
    if (r.ran_out) return fail(LH_NO_MEMORY, "out of memory: %s: %zu bytes of JSON", path, length);
    if (root == NULL && json_error_code(&error) == json_error_null_character)
        return fail(LH_INVALID, "%s: not JSON, line %d column %d: \\u0000 is not allowed", path,
                    error.line, error.column);
    if (root == NULL)
        return fail(LH_INVALID, "%s: not JSON, line %d column %d: %s", path, error.line,
                    error.column, error.text);
    if (!json_is_object(root)) {
        char found[JSON_FOUND];
        json_found(root, found);
        json_decref(root);
        return fail(LH_INVALID, "%s: %s found, a JSON object was expected", path, found);
    }
    *out = root;
    return LH_OK;
}

void json_found(const json_t *value, char out[JSON_FOUND])
{
    enum { SHOWN = JSON_FOUND - 8 };
    char text[SHOWN + 1] = "";
    if (value == NULL || json_is_string(value)) {
        const char *is = value == NULL ? NULL : json_string_value(value);
        (void)snprintf(out, JSON_FOUND, is == NULL ? "nothing" : "\"%.*s\"%s", SHOWN, is,
                       is != NULL && strlen(is) > SHOWN ? "..." : "");
        return;
    }
    const size_t length = json_dumpb(value, text, SHOWN, JSON_ENCODE_ANY | JSON_COMPACT);
    (void)snprintf(out, JSON_FOUND, "%s%s", text, length > SHOWN ? "..." : "");
}

lh_status_t json_read(const char *path, uint64_t limit, uint64_t most, json_t **out)
{
    char *text;
    size_t length;
    lh_status_t status = file_read(path, limit, &text, &length);
    if (status != LH_OK) return status;
    status = json_parse_most(path, text, length, most, out);
    mem_free(text);
    return status;
}
