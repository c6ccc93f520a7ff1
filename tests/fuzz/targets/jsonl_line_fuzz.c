/* jsonl_line_fuzz.c - one line of JSON. What is taken is UTF-8 and, written as JSON again,
 * is taken as the same; what jansson takes is taken too, with the same text. */
#include <fuzz/fuzz.h>

#include <string.h>

#include <jansson.h>

#include <base/text.h>
#include <format/json.h>

static uint32_t depth_of(const json_t *value, uint32_t most)
{
    uint32_t deepest = 0;
    size_t index;
    const char *key;
    json_t *item;
    if (most == 0 || (!json_is_object(value) && !json_is_array(value))) return 0;
    json_array_foreach(value, index, item)
    {
        const uint32_t d = depth_of(item, most - 1);
        deepest = d > deepest ? d : deepest;
    }
    json_object_foreach((json_t *)value, key, item)
    {
        const uint32_t d = depth_of(item, most - 1);
        deepest = d > deepest ? d : deepest;
    }
    return deepest + 1;
}

static void same_again(const char *text, size_t length)
{
    const char *again;
    size_t again_length;
    json_document_t *held = NULL;
    json_t *root = json_pack("{s:s%}", "text", text, length);
    FUZZ_ASSERT(root != NULL);
    char *line = json_dumps(root, 0);
    FUZZ_ASSERT(line != NULL);
    FUZZ_ASSERT(json_line_text(line, strlen(line), "text", &held, &again, &again_length) == LH_OK);
    FUZZ_ASSERT(again_length == length && memcmp(again, text, length) == 0);
    free(line);
    json_free(held);
    json_decref(root);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    char *line = malloc(size + 1);
    const char *text = NULL;
    json_document_t *held = NULL;
    size_t length = 0;
    FUZZ_ASSERT(line != NULL);
    char *exact = realloc(line, size == 0 ? 1 : size);
    if (size > 0) memcpy(exact, bytes, size);

    const bool taken = json_line_text(exact, size, "text", &held, &text, &length) == LH_OK;
    FUZZ_ASSERT(taken || fail_reason()[0] != '\0');
    if (taken) {
        FUZZ_ASSERT(text_utf8_valid(text, length));
        same_again(text, length);
    }
    /* jansson passes over a NUL behind a number */
    json_t *root = size > 0 && memchr(bytes, 0, size) != NULL
                       ? NULL
                       : json_loadb((const char *)bytes, size,
                                    JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    const json_t *value = json_object_get(root, "text");
    if (json_is_string(value) && depth_of(root, JSON_DEPTH + 1) <= JSON_DEPTH) {
        FUZZ_ASSERT(taken && length == json_string_length(value));
        FUZZ_ASSERT(memcmp(text, json_string_value(value), length) == 0);
    }
    json_decref(root);
    json_free(held);
    free(exact);
    return 0;
}
