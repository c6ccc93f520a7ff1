/* json_lines_dump.c - FILE KEY: prints, line by line, the text as hexadecimal or "-" where the line
 * is refused; json_lines.py compares that with Python's json. */
#include <stdio.h>

#include <data/input_lines.h>
#include <format/json.h>

static void dump(const line_t *line, const char *key)
{
    const char *text;
    size_t length;
    json_document_t *held = NULL;
    if (line->too_long ||
        json_line_text(line->bytes, line->length, key, &held, &text, &length) != LH_OK) {
        (void)puts("-");
        json_free(held);
        return;
    }
    (void)putchar('=');
    for (size_t i = 0; i < length; i++)
        (void)printf("%02x", (unsigned char)text[i]);
    (void)putchar('\n');
    json_free(held);
}

int main(int argc, char **argv)
{
    line_reader_t *reader;
    if (argc != 3) return 2;
    const char *path = argv[1];
    if (line_reader_new(&path, 1, 1 << 20, 1 << 20, &reader) != LH_OK) return 1;
    for (bool end = false;;) {
        line_t line;
        if (line_reader_next(reader, &line, &end) != LH_OK) return 1;
        if (end) break;
        dump(&line, argv[2]);
    }
    line_reader_free(reader);
    return 0;
}
