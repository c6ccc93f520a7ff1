/* explain.c - effective values with their origin, and what a table offers.
 *
 * What is printed can be saved and run again: so a value is escaped as the reader unescapes it, and
 * a line that would be longer than the reader takes is cut in two. */
#include <config/explain.h>

#include <stdio.h>

#include <base/file.h>
#include <base/memory.h>
#include <config/ini_lines.h>

enum { KEY_WIDTH = 18, VALUE_WIDTH = 30 };

/* ";" begins a comment when it is read back. */
static void append_value(const char *value, text_t *out)
{
    for (const char *c = value; *c != '\0'; c++) {
        if (*c == ';') text_append(out, "\\");
        text_append_n(out, c, 1);
    }
}

/* On one line, whatever the file is called. */
static void append_place(const document_entry_t *entry, text_t *out)
{
    char where[600];
    document_where(entry->file, entry->line, where, sizeof(where));
    text_append_shown(out, where, false);
}

static void append_where(const document_entry_t *entry, text_t *out)
{
    append_place(entry, out);
    for (const document_entry_t *e = entry->overrides; e != NULL; e = e->overrides) {
        text_append(out, ", overrides ");
        append_place(e, out);
    }
}

/* The origin stands behind the value, or above it where the line would be too long to be read
 * again. */
static void append_line(const char *key, const char *value, const document_entry_t *entry,
                        const char *origin, text_t *out)
{
    text_t line = {0}, where = {0};
    text_printf(&line, "%-*s = ", KEY_WIDTH, key);
    append_value(value, &line);
    if (entry != NULL)
        append_where(entry, &where);
    else
        text_append(&where, origin);
    out->failed = out->failed || line.failed || where.failed;
    if (!out->failed && line.length + where.length + 3 > INI_LINE_LIMIT)
        text_printf(out, "; %s:\n%s\n", where.data, line.data);
    else if (!out->failed)
        text_printf(out, "%-*s ; %s\n", KEY_WIDTH + 3 + VALUE_WIDTH, line.data, where.data);
    text_free(&line);
    text_free(&where);
}

/* What stands where a path belongs and leads nowhere may be what should lie there. */
static bool is_hidden(const options_how_t *how, const lh_option_t *row, const char *value)
{
    if (how->hidden == NULL || strcmp(row->key, how->hidden) != 0) return false;
    char *path = path_join(how->folder != NULL ? how->folder : ".", value);
    const bool shown = path != NULL && file_exists(path);
    mem_free(path);
    return !shown;
}

static void explain_row(const options_how_t *how, const lh_option_t *row, text_t *out)
{
    const document_section_t *section = document_find(how->document, how->section);
    const size_t length = strlen(row->key);
    if (length > 2 && strcmp(row->key + length - 2, ".*") == 0) {
        for (uint32_t i = 0; section != NULL && i < section->entry_count; i++) {
            const document_entry_t *e = section->entries[i];
            if (strncmp(e->key, row->key, length - 1) == 0)
                append_line(e->key, e->value, e, NULL, out);
        }
        return;
    }
    const option_origin_t origin = option_origin(how, row);
    if (origin.value == NULL && origin.given != NULL)
        text_printf(out, "; %s comes from %s\n", row->key, origin.given->origin);
    else if (origin.value == NULL || (origin.entry == NULL && origin.value[0] == '\0'))
        text_printf(out, "; %s is not set\n", row->key);
    else if (is_hidden(how, row, origin.value))
        text_printf(out, "; %s is set; it is shown once its file is there\n", row->key);
    else
        append_line(row->key, origin.value, origin.entry,
                    origin.given != NULL ? origin.given->origin : "default", out);
}

/* A key of core and plugin both was printed with the core's rows. */
static bool printed_before(const options_how_t *how, uint32_t table, const char *key)
{
    for (uint32_t t = 0; t < table; t++)
        for (uint32_t i = 0; i < how->tables[t].count; i++)
            if (strcmp(how->tables[t].rows[i].key, key) == 0) return true;
    return false;
}

void explain_section(const options_how_t *how, text_t *out)
{
    text_printf(out, "[%s]\n", how->section);
    for (uint32_t t = 0; t < how->table_count; t++)
        for (uint32_t i = 0; i < how->tables[t].count; i++)
            if (!printed_before(how, t, how->tables[t].rows[i].key))
                explain_row(how, &how->tables[t].rows[i], out);
}

static void append_kind(const lh_option_t *row, text_t *out)
{
    static const char *const kinds[] = {
        [LH_OPT_BOOL] = "yes|no",   [LH_OPT_U64] = "whole number", [LH_OPT_F64] = "number",
        [LH_OPT_BYTES] = "size",    [LH_OPT_DURATION] = "time",    [LH_OPT_RATE] = "rate",
        [LH_OPT_CHOICE] = "choice", [LH_OPT_STRING] = "text",      [LH_OPT_U32] = "whole number",
        [LH_OPT_PATH] = "path",
    };
    const char *kind = row->type < sizeof(kinds) / sizeof(kinds[0]) ? kinds[row->type] : "value";
    if (row->range == NULL)
        text_append(out, kind);
    else if (row->type == LH_OPT_CHOICE)
        text_append(out, row->range);
    else
        text_printf(out, "%s, %s", kind, row->range);
}

void explain_table(const lh_option_t *rows, uint32_t count, text_t *out)
{
    for (uint32_t i = 0; i < count; i++) {
        const lh_option_t *row = &rows[i];
        const char *value = row->fallback == NULL    ? "(required)"
                            : *row->fallback == '\0' ? "(not set)"
                                                     : row->fallback;
        text_printf(out, "  %-*s %-12s  %s (", KEY_WIDTH, row->key, value, row->help);
        append_kind(row, out);
        text_append(out, ")\n");
    }
}
