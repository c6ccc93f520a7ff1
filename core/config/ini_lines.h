/* config/ini_lines.h - reads INI text through a stock inih, and refuses what inih accepts in
 * silence: cut lines and section names, indented keys, "key: value", text behind a section, lines
 * that are nothing.
 *
 * The syntax is decided by inih, which people know from other programs; what is added here are
 * refusals. So whatever this reader takes, another program that uses inih takes in the same sense.
 */
#ifndef CONFIG_INI_LINES_H
#define CONFIG_INI_LINES_H

#include <base/status.h>

enum {
    INI_LINE_LIMIT = 199, /* bytes; inih cuts a longer line                */
    INI_NAME_LIMIT = 49,  /* bytes of a section or key; inih cuts longer ones */
    INI_FILE_LIMIT = 1 << 20,
};

/* Called in the order of the file; a status other than LH_OK ends the reading with it. Comments are
 * gone, "\;" has become ";". Strings live during the call only. */
typedef struct ini_sink {
    lh_status_t (*section)(void *context, const char *name, uint32_t line);
    /* section is "" above the first one. */
    lh_status_t (*pair)(void *context, const char *section, const char *key, const char *value,
                        uint32_t line);
    /* An indented line without '=': belongs to the pair before it. */
    lh_status_t (*more)(void *context, const char *value, uint32_t line);
    void *context;
} ini_sink_t;

/* path is for sentences: "path:line: ...". text need not end with NUL or a line feed. The first
 * line that is wrong ends the reading, with its number; what was handed out before it stays handed
 * out. */
lh_status_t ini_lines_read(const char *path, const char *text, size_t length,
                           const ini_sink_t *sink) LH_MUST_CHECK;

#endif
