/* json_lines.c - lines and the scanner, put together. */
#include <data/json_lines.h>

#include <base/memory.h>
#include <data/json_record.h>
#include <data/line_reader.h>

struct json_lines {
    line_reader_t *reader;
    const char *const *paths;
    const char *key;
    uint64_t line_bytes, number;
};

lh_status_t json_lines_open(const char *const *paths, uint32_t count, const char *key,
                            uint64_t line_bytes, json_lines_t **out)
{
    json_lines_t *lines = mem_new(sizeof(*lines));
    if (lines == NULL) return LH_NO_MEMORY;
    *lines = (json_lines_t){.paths = paths, .key = key, .line_bytes = line_bytes};
    const lh_status_t status = line_reader_new(paths, count, line_bytes, &lines->reader);
    if (status != LH_OK) {
        mem_free(lines);
        return status;
    }
    *out = lines;
    return LH_OK;
}

void json_lines_close(json_lines_t *lines)
{
    if (lines == NULL) return;
    line_reader_free(lines->reader);
    mem_free(lines);
}

lh_status_t json_lines_next(json_lines_t *lines, const char **text, size_t *length, bool *end)
{
    line_t line;
    do {
        const lh_status_t status = line_reader_next(lines->reader, &line, end);
        if (status != LH_OK || *end) return status;
    } while (!line.too_long && json_record_blank(line.bytes, line.length));

    const char *path = lines->paths[line.file];
    if (line.too_long)
        return fail(LH_INVALID, "%s:%llu: longer than %llu bytes", path,
                    (unsigned long long)line.number, (unsigned long long)lines->line_bytes);
    char reason[JSON_REASON];
    char *value;
    if (!json_record_text(line.bytes, line.length, lines->key, &value, length, reason))
        return fail(LH_INVALID, "%s:%llu: %s", path, (unsigned long long)line.number, reason);
    *text = value;
    lines->number = line.number;
    return LH_OK;
}

uint64_t json_lines_number(const json_lines_t *lines)
{
    return lines->number;
}
