/* ini_lines.c - feeds a stock inih one checked line at a time.
 *
 * inih stops at nothing: it cuts lines at 199 and names at 49 bytes, takes an indented "key =
 * value" as more of the line above and "a: b" as a pair, and never mentions an empty section. So
 * each line is looked at before inih sees it, and the first one that is wrong ends the reading. */
#include <config/ini_lines.h>

#include <ctype.h>
#include <ini.h>
#include <stdio.h>

#include <base/text.h>

/* One pass over the text. status is what check_ini_line or the sink said; once it is not LH_OK
 * nothing more is read. */
typedef struct reader {
    const char *path;
    const char *text, *end;
    const ini_sink_t *sink;
    uint32_t line;
    bool continued; /* the line at hand belongs to the pair before it */
    bool has_pair;  /* since the last section                          */
    lh_status_t status;
} reader_t;

/* Letters of ASCII only, as keys of options are. */
static bool name_char(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '.' || c == '-';
}

/* 'x', or "byte 0xc3" where a letter would break the terminal's line. out is the caller's, and what
 * is returned. */
static const char *character_shown(char c, char out[12])
{
    const unsigned char byte = (unsigned char)c;
    if (isprint(byte))
        (void)snprintf(out, 12, "'%c'", c);
    else
        (void)snprintf(out, 12, "byte 0x%02x", byte);
    return out;
}

/* inih cuts a longer line in silence, and a control character steers the terminal that shows it. A
 * NUL inside the line counts as a control character, so strings are safe from here on. */
static lh_status_t check_line_bytes(const reader_t *r, const char *line, size_t length)
{
    if (length > INI_LINE_LIMIT)
        return fail(
            LH_INVALID,
            "%s:%u: the line has %zu bytes, more than %d; continue a list on indented lines",
            r->path, r->line, length, INI_LINE_LIMIT);
    for (size_t i = 0; i < length; i++) {
        const unsigned char c = (unsigned char)line[i];
        if ((c < 0x20 && c != '\t') || c == 0x7f)
            return fail(LH_INVALID, "%s:%u: byte %zu is the control character 0x%02x", r->path,
                        r->line, i + 1, c);
    }
    return LH_OK;
}

/* What stands here ends up in JSON, which is UTF-8 or unreadable. */
static lh_status_t check_utf8(const reader_t *r, const char *line)
{
    const size_t length = strlen(line), good = text_utf8_prefix(line, length);
    if (good == length) return LH_OK;
    return fail(LH_INVALID, "%s:%u: byte %zu, 0x%02x, is not UTF-8", r->path, r->line, good + 1,
                (unsigned char)line[good]);
}

/* The name goes to the sink from here and not from inih, which would cut it and says nothing of a
 * section without keys. */
static lh_status_t check_section(reader_t *r, const char *line)
{
    char name[INI_NAME_LIMIT + 1], odd[12];
    const size_t width = strcspn(line + 1, "]");
    if (line[1 + width] != ']') return fail(LH_INVALID, "%s:%u: '[' without ']'", r->path, r->line);
    if (width == 0) return fail(LH_INVALID, "%s:%u: a section without a name", r->path, r->line);
    if (width > INI_NAME_LIMIT)
        return fail(LH_INVALID, "%s:%u: the section name has %zu bytes, at most %d are read",
                    r->path, r->line, width, INI_NAME_LIMIT);

    memcpy(name, line + 1, width);
    name[width] = '\0';
    for (size_t i = 0; i < width; i++)
        if (!name_char(name[i]))
            return fail(LH_INVALID,
                        "%s:%u: [%s] holds %s; names are of letters, digits, '_', '.' and '-'",
                        r->path, r->line, name, character_shown(name[i], odd));

    const char *rest = line + 2 + width;
    while (isspace((unsigned char)*rest))
        rest++;
    if (*rest != '\0' && *rest != ';')
        return fail(LH_INVALID, "%s:%u: '%s' stands behind [%s]", r->path, r->line, rest, name);
    r->has_pair = false;
    return r->sink->section(r->sink->context, name, r->line);
}

/* Only refuses: key and value themselves come through inih (inih_on_pair). */
static lh_status_t check_ini_pair(reader_t *r, const char *line)
{
    char odd[12];
    const size_t at = strcspn(line, "=:");
    if (line[at] == '\0')
        return fail(LH_INVALID, "%s:%u: '%s' is neither [section] nor key = value", r->path,
                    r->line, line);
    size_t width = at;
    while (width > 0 && isspace((unsigned char)line[width - 1]))
        width--;
    if (line[at] == ':')
        return fail(LH_INVALID, "%s:%u: '%.*s:' is not read as a key; write %.*s = value", r->path,
                    r->line, (int)width, line, (int)width, line);
    if (width == 0) return fail(LH_INVALID, "%s:%u: a value without a key", r->path, r->line);
    if (width > INI_NAME_LIMIT)
        return fail(LH_INVALID, "%s:%u: the key has %zu bytes, at most %d are read", r->path,
                    r->line, width, INI_NAME_LIMIT);
    for (size_t i = 0; i < width; i++)
        if (!name_char(line[i]))
            return fail(LH_INVALID,
                        "%s:%u: key '%.*s' holds %s; keys are of letters, digits, '_', '.' and '-'",
                        r->path, r->line, (int)width, line, character_shown(line[i], odd));
    r->has_pair = true;
    return LH_OK;
}

/* inih takes any indented line as more of the value above. Here that is allowed for what can't be
 * meant otherwise. */
static lh_status_t check_indented(reader_t *r, const char *line)
{
    if (*line == '[')
        return fail(LH_INVALID,
                    "%s:%u: an indented [section] would continue the line above; "
                    "remove the indent",
                    r->path, r->line);
    if (strchr(line, '=') != NULL)
        return fail(LH_INVALID,
                    "%s:%u: an indented 'key = value' would continue the line above; "
                    "remove the indent",
                    r->path, r->line);
    if (!r->has_pair)
        return fail(LH_INVALID, "%s:%u: '%s' continues nothing: no key = value stands above it",
                    r->path, r->line, line);
    r->continued = true;
    return LH_OK;
}

/* Blank lines and comments are nothing; all else is one of three kinds. */
static lh_status_t check_ini_line(reader_t *r, const char *line)
{
    const char *start = line;
    while (isspace((unsigned char)*start))
        start++;
    r->continued = false;
    if (*start == '\0' || *start == ';' || *start == '#') return LH_OK;
    if (start > line) return check_indented(r, start);
    return *line == '[' ? check_section(r, line) : check_ini_pair(r, line);
}

/* What inih calls for each line: NULL ends the reading, for good or because a line is wrong. inih's
 * reader callback, in the place of fgets. A carriage return before the line feed is dropped. */
static char *next_line(char *buffer, int size, void *stream)
{
    reader_t *r = stream;
    if (r->status != LH_OK || r->text == r->end) return NULL;

    const char *stop = memchr(r->text, '\n', (size_t)(r->end - r->text));
    size_t length = (size_t)((stop != NULL ? stop : r->end) - r->text);
    const char *line = r->text;
    r->text = stop != NULL ? stop + 1 : r->end;
    r->line++;
    if (length > 0 && line[length - 1] == '\r') length--;

    r->status = check_line_bytes(r, line, length);
    if (r->status != LH_OK) return NULL;
    if (size <= INI_LINE_LIMIT) { /* an inih that was built with shorter lines would cut them */
        r->status = fail(LH_UNSUPPORTED, "%s: inih reads lines of %d bytes only, %d are needed",
                         r->path, size - 1, INI_LINE_LIMIT);
        return NULL;
    }
    memcpy(buffer, line, length);
    buffer[length] = '\0';
    r->status = check_utf8(r, buffer);
    if (r->status == LH_OK) r->status = check_ini_line(r, buffer);
    return r->status == LH_OK ? buffer : NULL;
}

/* "\;" stands for ";": a bare one behind a blank begins a comment. A backslash before anything else
 * stays as it is. */
static void value_unescape(const char *from, char to[INI_LINE_LIMIT + 1])
{
    size_t length = 0;
    for (; *from != '\0' && length < INI_LINE_LIMIT; from++) {
        if (from[0] == '\\' && from[1] == ';') from++;
        to[length++] = *from;
    }
    to[length] = '\0';
}

/* inih's handler callback: 0 tells it to note an error, 1 to go on. The status is kept apart, as
 * inih knows only line numbers. */
static int inih_on_pair(void *user, const char *section, const char *key, const char *value)
{
    reader_t *r = user;
    char text[INI_LINE_LIMIT + 1];
    if (r->status != LH_OK) return 0;

    value_unescape(value, text);
    r->status = r->continued ? r->sink->more(r->sink->context, text, r->line)
                             : r->sink->pair(r->sink->context, section, key, text, r->line);
    return r->status == LH_OK;
}

/* Status first: inih notes an error wherever the callbacks have stopped it, and theirs is the
 * better sentence. */
lh_status_t ini_lines_read(const char *path, const char *text, size_t length,
                           const ini_sink_t *sink)
{
    static const char mark[] = "\xef\xbb\xbf"; /* some editors begin UTF-8 with it */
    reader_t r = {.path = path, .text = text, .end = text + length, .sink = sink};
    if (length > INI_FILE_LIMIT)
        return fail(LH_INVALID, "%s: has %zu bytes, at most %d are read", path, length,
                    INI_FILE_LIMIT);
    if (length >= 3 && memcmp(text, mark, 3) == 0) r.text += 3;

    const int wrong = ini_parse_stream(next_line, &r, inih_on_pair, &r);
    if (r.status != LH_OK) return r.status;
    if (wrong != 0) return fail(LH_INVALID, "%s:%d: not understood by inih", path, wrong);
    return LH_OK;
}
