/* shown_text_fuzz.c - text of strangers on its way to a page, a terminal and a JSON file: the page
 * gets no mark-up of theirs, the terminal no control character, the file reads back as the same. */
#include <fuzz/fuzz.h>

#include <string.h>

#include <jansson.h>

#include <base/text.h>
#include <format/json.h>
#include <watch/chart.h>

static void check_page(const char *text)
{
    text_t page = {0};
    chart_escape(&page, text);
    if (page.data != NULL) {
        FUZZ_ASSERT(strpbrk(page.data, "<>\"'") == NULL);
        for (const char *c = page.data; *c != '\0'; c++)
            FUZZ_ASSERT((unsigned char)*c >= 0x20);
    }
    text_free(&page);
}

static void check_terminal(const char *text)
{
    text_t shown = {0};
    text_append_shown(&shown, text, true);
    for (const char *c = shown.data; c != NULL && *c != '\0'; c += text_utf8_character(c))
        FUZZ_ASSERT(*c == '\n' || *c == '\t' || text_control(c) == 0);
    text_free(&shown);
}

static void check_json(const char *text, size_t size)
{
    text_t quoted = {0};
    json_writer_t w = {.to = &quoted};
    json_put_text(&w, NULL, text);
    json_t *value = json_loadb(quoted.data, quoted.length, JSON_DECODE_ANY, NULL);
    FUZZ_ASSERT(value != NULL);
    if (text_utf8_valid(text, size)) FUZZ_ASSERT(strcmp(json_string_value(value), text) == 0);
    json_decref(value);
    text_free(&quoted);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    fuzz_part_t text;
    fuzz_cut(bytes, size, 0, &text, 1);
    check_page(text.bytes);
    check_terminal(text.bytes);
    check_json(text.bytes, strlen(text.bytes));
    fuzz_parts_free(&text, 1);
    return 0;
}
