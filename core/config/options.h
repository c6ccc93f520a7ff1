/* config/options.h - a section of the INI parsed by tables of lh_option_t into config structs.
 *
 * A value comes, in this order, from: the caller (`fixed` given), the INI or command line, the
 * caller (given, not fixed: e.g. an imported config.json), the row's default. Defaults go through
 * the same parser. Rows here always have this host's lh_option_t size (the loader imports a
 * plugin's).
 *
 * A STRING or PATH whose value is empty is NULL in the config struct: not set.
 *
 * A table of rows is the only description of an option: its parser, its range, its default, its
 * line in `help`, its place in a struct. Tables of the core and of plugins are alike; a section may
 * be read by two of them, as [device] is by the core's and by the plugin's. */
#ifndef CONFIG_OPTIONS_H
#define CONFIG_OPTIONS_H

#include <longhaul/option.h>

#include <config/document.h>

/* Borrowed: rows belong to the core's constants or to a loaded plugin. */
typedef struct option_table {
    const lh_option_t *rows;
    uint32_t count;
    const char *owner; /* "the core", or the plugin: for sentences                           */
    size_t config_size;
    void *config; /* zeroed; NULL: values are only checked                              */
} option_table_t;

/* A value that does not come from the INI. How an import says what the model's shape is, and a
 * tokenizer its vocabulary. */
typedef struct option_given {
    const char *key;
    const char *value;  /* NULL: known only later (check): neither parsed nor missed        */
    const char *origin; /* "hf/config.json", "tokenizer"                                     */
    bool fixed;         /* beats the INI, where the same key belongs to the core's table     */
} option_given_t;

/* One section and everything that may say something about it. Used for parsing and, unchanged, for
 * explaining what was parsed. */
typedef struct options_how {
    const document_t *document;
    const char *section;
    const option_table_t *tables; /* core's, then the plugin's: a key in two of them is refused,
                                     unless a fixed given covers it                          */
    uint32_t table_count;
    /* [other_count] whose keys may stand here too and are not parsed */
    const option_table_t *others;
    uint32_t other_count;
    const option_given_t *given;
    uint32_t given_count;
    /* How strict the parsing is: what may be missing, and whether keys of no table are left alone.
     */
    bool optional;      /* required keys may be missing: no stage needs this section        */
    bool open;          /* keys of no table are left: they belong to a plugin not known yet   */
    const char *folder; /* PATH values are taken against the folder of the file in which they stand,
                           those of the command line against this one; NULL: against none   */
    const char *hidden; /* NULL, or the key of a PATH that is shown only where a file is there */
} options_how_t;

/* Checks a table itself: keys are snake_case (or "prefix.*": a STRING that collects "name = value,
 * ..." of all keys with that prefix) and differ, types known, offsets inside config_size, aligned,
 * not overlapping, help there, default inside its own range. Called once for each plugin that is
 * loaded (LH_ABI: the plugin is to blame), and for the core's own tables in a test. */
lh_status_t options_validate(const option_table_t *table) LH_MUST_CHECK;

/* Fills the tables' configs. On failure nothing is owned by them. Checks in this order: tables
 * against each other, keys against tables, then values row by row. The first that is wrong is told.
 */
lh_status_t options_parse(const options_how_t *how) LH_MUST_CHECK;
/* Frees the strings in config (not config itself) and sets them to NULL. config NULL does nothing.
 */
void options_free(const lh_option_t *rows, uint32_t count, void *config);
/* A new config struct with every row's default, for who has no section to parse. The caller frees *out
 * with options_free and mem_free. */
lh_status_t options_defaults(const option_table_t *table, void **out) LH_MUST_CHECK;

/* One value. where ("file:line", or what stands for it) begins the sentence. config NULL: the value
 * is only checked. */
lh_status_t option_set(const lh_option_t *row, const char *value, const char *where,
                       const char *folder, void *config) LH_MUST_CHECK;

/* The value that a parsed config holds, as it could be typed; NULL: not set. Numbers are written
 * into buffer, reals so that they read back as the same bits. */
enum { OPTION_TEXT = 64 };
/* A STRING's text is the config's own. */
const char *option_text(const lh_option_t *row, const void *config, char buffer[OPTION_TEXT]);
/* Whether the value that a parsed config holds is the one that the row has where nobody sets it, by
 * value: 1e-1 is 0.1. A text without a default has it where it is not set, any other never. A path
 * whose default is one may not be asked: it is against some folder. */
bool option_is_default(const lh_option_t *row, const void *config);

/* ---- shown ---- */

/* Appends "[section]" and a line a key: "batch = 8   ; pipeline.ini:12, overrides base.ini:3". Also
 * reads as an INI again: escaped, and cut into lines that the reader takes. */
void options_explain(const options_how_t *how, text_t *out);

/* Appends "; TEXT", over as many lines as it takes: a comment, too, is refused where its line is longer
 * than the reader takes. */
void options_append_comment(const text_t *what, text_t *out);

/* Appends what a value of this row looks like: "whole number, 1..64", "ring|tree". */
void options_append_kind(const lh_option_t *row, text_t *out);

/* Appends what a table offers: "key = default   range   help", aligned. */
void options_explain_table(const lh_option_t *rows, uint32_t count, text_t *out);

#endif
