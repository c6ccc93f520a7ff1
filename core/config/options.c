/* options.c - tables of options: checked, filled from a section, freed.
 *
 * One parser serves values of the INI, of the command line, defaults and ends of ranges, so a
 * default that its own range refuses is found when a table is validated and not when somebody
 * relies on it. */
#include <config/options.h>

#include <ctype.h>
#include <stdio.h>

#include <base/file.h>
#include <base/memory.h>
#include <config/ini_lines.h>
#include <config/quantity.h>

enum { OPTION_ROWS = 1024, WHERE_BYTES = 600 };

/* Owned strings, which options_free frees; all other types are stored by value. */
static bool row_is_text(const lh_option_t *row)
{
    return row->type == LH_OPT_STRING || row->type == LH_OPT_PATH;
}

/* Length of what stands before the star of "fallback.*"; 0 if the key is an ordinary one. The dot
 * counts, the star does not. */
static size_t prefix_length(const char *key)
{
    const size_t length = strlen(key);
    return length > 2 && strcmp(key + length - 2, ".*") == 0 ? length - 1 : 0;
}

/* "prefix.*" takes every key that begins with the prefix and has more behind it. "prefix." alone is
 * no key of the prefix. */
static bool row_takes(const lh_option_t *row, const char *key)
{
    const size_t prefix = prefix_length(row->key);
    if (prefix == 0) return strcmp(row->key, key) == 0;
    return strncmp(row->key, key, prefix) == 0 && key[prefix] != '\0';
}

/* A value of any type, and where it goes. The row's type says which member counts; CHOICE, BYTES,
 * DURATION and RATE are u64 here. */
typedef union number {
    uint64_t u64;
    double f64;
    bool yes;
} number_t;

/* A u32 is parsed as a u64 and then bounded, so that 5G is refused and not wrapped. */
static bool parse_row_number(const lh_option_t *row, const char *text, number_t *out)
{
    uint32_t index;
    switch (row->type) {
    case LH_OPT_BOOL: return quantity_bool(text, &out->yes);
    case LH_OPT_U64: return quantity_u64(text, &out->u64);
    case LH_OPT_U32: return quantity_u64(text, &out->u64) && out->u64 <= UINT32_MAX;
    case LH_OPT_F64: return quantity_f64(text, &out->f64);
    case LH_OPT_BYTES: return quantity_bytes(text, &out->u64);
    case LH_OPT_DURATION: return quantity_duration(text, &out->u64);
    case LH_OPT_RATE: return quantity_rate(text, &out->u64);
    case LH_OPT_CHOICE:
        if (row->range == NULL || !quantity_choice(text, row->range, &index)) return false;
        out->u64 = index;
        return true;
    default: return false;
    }
}

/* A choice has its names where others have a range; texts and yes or no have none. A range is
 * "low..high", both of the row's own type and either one missing. */
static bool has_range(const lh_option_t *row)
{
    return row->range != NULL && !row_is_text(row) && row->type != LH_OPT_CHOICE &&
           row->type != LH_OPT_BOOL;
}

/* "1..64", "1..", "..64". False if the range itself is none. */
static bool parse_range(const lh_option_t *row, number_t *low, number_t *high)
{
    lh_assert(row->range != NULL);
    char text[128];
    if (strlen(row->range) >= sizeof(text)) return false;
    strcpy(text, row->range);
    char *dots = strstr(text, "..");
    if (dots == NULL) return false;
    *dots = '\0';

    const bool real = row->type == LH_OPT_F64;
    *low = real ? (number_t){.f64 = -__DBL_MAX__} : (number_t){.u64 = 0};
    *high = real ? (number_t){.f64 = __DBL_MAX__} : (number_t){.u64 = UINT64_MAX};
    if (text[0] != '\0' && !parse_row_number(row, text, low)) return false;
    if (dots[2] != '\0' && !parse_row_number(row, dots + 2, high)) return false;
    return real ? low->f64 <= high->f64 : low->u64 <= high->u64;
}

/* Both ends belong to the range. */
static bool in_range(const lh_option_t *row, number_t value)
{
    number_t low, high;
    if (!has_range(row)) return true;
    if (!parse_range(row, &low, &high)) return false;
    if (row->type == LH_OPT_F64) return value.f64 >= low.f64 && value.f64 <= high.f64;
    return value.u64 >= low.u64 && value.u64 <= high.u64;
}

/* With the nearest of the names that are allowed. The choices are listed in full: they are few, and
 * a mistake is then put right at once. */
static lh_status_t refuse_choice(const lh_option_t *row, const char *value, const char *where)
{
    char choices[256], *rest = choices;
    text_nearest_t near = {.typed = value};
    if (row->range != NULL && strlen(row->range) < sizeof(choices)) {
        strcpy(choices, row->range);
        while (rest != NULL)
            text_nearest_offer(&near, strsep(&rest, "|"));
    }
    const char *best = text_nearest_name(&near);
    return fail(LH_INVALID, "%s: %s = %s: expected one of %s%s%s%s", where, row->key, value,
                row->range != NULL ? row->range : "nothing", best != NULL ? "; did you mean '" : "",
                best != NULL ? best : "", best != NULL ? "'?" : "");
}

/* Frees what stood there before: a value may be set again. An empty value is NULL in the struct. */
static lh_status_t set_text(const lh_option_t *row, const char *value, const char *folder,
                            void *config)
{
    char *copy = NULL;
    if (config == NULL) return LH_OK;
    if (*value != '\0') {
        copy = row->type == LH_OPT_PATH && folder != NULL ? path_join(folder, value)
                                                          : mem_text(value);
        if (copy == NULL) return LH_NO_MEMORY;
    }
    char **at = (char **)(void *)((char *)config + row->offset);
    mem_free(*at);
    *at = copy;
    return LH_OK;
}

/* The one writer of config structs: everything that gets into one has passed its row's type and
 * range. */
lh_status_t option_set(const lh_option_t *row, const char *value, const char *where,
                       const char *folder, void *config)
{
    number_t number;
    /* Empty means "not set", which only an option can be whose default is empty. */
    if (row_is_text(row) && *value == '\0' && (row->fallback == NULL || *row->fallback != '\0'))
        return fail(LH_INVALID, "%s: %s is empty (%s)", where, row->key,
                    row->help != NULL ? row->help : "text");
    if (row_is_text(row)) return set_text(row, value, folder, config);
    if (!parse_row_number(row, value, &number)) {
        if (row->type == LH_OPT_CHOICE) return refuse_choice(row, value, where);
        return fail(LH_INVALID, "%s: %s = %s: expected %s", where, row->key, value,
                    quantity_wants(row->type));
    }
    if (!in_range(row, number))
        return fail(LH_INVALID, "%s: %s = %s: expected %s", where, row->key, value, row->range);
    if (config == NULL) return LH_OK;

    char *to = (char *)config + row->offset;
    const uint32_t narrow = (uint32_t)number.u64;
    switch (row->type) {
    case LH_OPT_BOOL: memcpy(to, &number.yes, sizeof(number.yes)); break;
    case LH_OPT_F64: memcpy(to, &number.f64, sizeof(number.f64)); break;
    case LH_OPT_U32:
    case LH_OPT_CHOICE: memcpy(to, &narrow, sizeof(narrow)); break;
    default: memcpy(to, &number.u64, sizeof(number.u64)); break;
    }
    return LH_OK;
}

/* Bytes, and alignment, of a type's field in a config struct; 0: there is no such type. Pointers
 * have 8 bytes wherever this program is built. */
static size_t field_bytes(uint32_t type)
{
    switch (type) {
    case LH_OPT_BOOL: return sizeof(bool);
    case LH_OPT_U32:
    case LH_OPT_CHOICE: return sizeof(uint32_t);
    case LH_OPT_U64:
    case LH_OPT_F64:
    case LH_OPT_BYTES:
    case LH_OPT_DURATION:
    case LH_OPT_RATE:
    case LH_OPT_STRING:
    case LH_OPT_PATH: return 8;
    default: return 0;
    }
}

/* 49 bytes, as the INI's reader cuts longer names. */
static bool snake_case(const char *key)
{
    const size_t prefix = prefix_length(key);
    const size_t length = prefix != 0 ? prefix - 1 : strlen(key);
    if (length == 0 || length > 49 || !islower((unsigned char)key[0])) return false;
    for (size_t i = 0; i < length; i++)
        if (!islower((unsigned char)key[i]) && !isdigit((unsigned char)key[i]) && key[i] != '_')
            return false;
    return true;
}

/* A row comes from a plugin as well as from here: nothing in it is believed. Offsets are checked
 * before anything is written through them, with sums arranged so that none can overflow. */
static lh_status_t validate_row(const option_table_t *table, const lh_option_t *row)
{
    const char *owner = table->owner;
    const size_t bytes = field_bytes(row->type);
    number_t low, high;
    char where[WHERE_BYTES];

    if (row->key == NULL || !snake_case(row->key))
        return fail(LH_ABI, "%s: option '%s': keys are snake_case of at most 49 letters", owner,
                    row->key != NULL ? row->key : "(none)");
    if (row->help == NULL || row->help[0] == '\0')
        return fail(LH_ABI, "%s: option '%s' has no help", owner, row->key);
    if (bytes == 0)
        return fail(LH_ABI, "%s: option '%s' has type %u, which is none", owner, row->key,
                    row->type);
    if (row->offset % bytes != 0 || table->config_size < bytes ||
        row->offset > table->config_size - bytes)
        return fail(LH_ABI,
                    "%s: option '%s' lies at byte %u, which is not an aligned place for %zu "
                    "bytes in a config of %zu",
                    owner, row->key, row->offset, bytes, table->config_size);
    if (row->type == LH_OPT_CHOICE && row->range == NULL)
        return fail(LH_ABI, "%s: option '%s' is a choice among nothing", owner, row->key);
    if (has_range(row) && !parse_range(row, &low, &high))
        return fail(LH_ABI, "%s: option '%s' has the range '%s', which is none", owner, row->key,
                    row->range);
    if (row->fallback == NULL) return LH_OK;
    (void)snprintf(where, sizeof(where), "%s: default of an option", owner);
    return option_set(row, row->fallback, where, NULL, NULL) == LH_OK ? LH_OK : LH_ABI;
}

/* Quadratic in the rows, of which a table has some tens. */
lh_status_t options_validate(const option_table_t *table)
{
    if (table->count > OPTION_ROWS)
        return fail(LH_ABI, "%s: %u options, at most %d are read", table->owner, table->count,
                    OPTION_ROWS);
    for (uint32_t i = 0; i < table->count; i++) {
        const lh_option_t *row = &table->rows[i];
        const lh_status_t status = validate_row(table, row);
        if (status != LH_OK) return status;
        for (uint32_t k = 0; k < i; k++) {
            const lh_option_t *other = &table->rows[k];
            if (strcmp(row->key, other->key) == 0)
                return fail(LH_ABI, "%s: option '%s' stands in the table twice", table->owner,
                            row->key);
            if (row->offset < other->offset + field_bytes(other->type) &&
                other->offset < row->offset + field_bytes(row->type))
                return fail(LH_ABI, "%s: options '%s' and '%s' overlap at byte %u", table->owner,
                            other->key, row->key, row->offset);
        }
    }
    return LH_OK;
}

/* The row that a key belongs to, or NULL. First match; keys of a table differ. */
static const lh_option_t *table_find(const option_table_t *table, const char *key)
{
    for (uint32_t i = 0; i < table->count; i++)
        if (row_takes(&table->rows[i], key)) return &table->rows[i];
    return NULL;
}

/* Fixed and not fixed ones are two lists in one. */
static const option_given_t *given_find(const options_how_t *how, const char *key, bool fixed)
{
    for (uint32_t i = 0; i < how->given_count; i++)
        if (how->given[i].fixed == fixed && strcmp(how->given[i].key, key) == 0)
            return &how->given[i];
    return NULL;
}

/* The INI's text for a key that core and plugin both have is the core's; the plugin's row gets the
 * given. Of [model] vocab the core reads "from_tokenizer", and the plugin's row of the same name
 * the number that came of it. */
static bool fixed_applies(const options_how_t *how, const lh_option_t *row)
{
    const option_table_t *first = &how->tables[0];
    if (row < first->rows || row >= first->rows + first->count) return true;
    for (uint32_t t = 1; t < how->table_count; t++)
        if (table_find(&how->tables[t], row->key) != NULL) return false;
    return true;
}

/* The effective value of a row and where it comes from, without parsing. value is NULL when a
 * required key is missing or a given is known only later. A row "prefix.*" has none here. entry and
 * given are never both set; neither means the row's default. */
typedef struct option_origin {
    const char *value;
    const document_entry_t *entry; /* in the INI or on the command line, or NULL */
    const option_given_t *given;   /* or NULL                                    */
} option_origin_t;

/* The one place where the order of precedence is written down; parsing and explaining both ask it.
 */
static option_origin_t option_origin(const options_how_t *how, const lh_option_t *row)
{
    option_origin_t origin = {0};
    const document_section_t *section = document_find(how->document, how->section);

    const option_given_t *fixed = given_find(how, row->key, true);
    if (fixed != NULL && fixed_applies(how, row)) {
        origin.given = fixed;
        origin.value = fixed->value;
        return origin;
    }
    origin.entry = document_entry(section, row->key);
    if (origin.entry != NULL) {
        origin.value = origin.entry->value;
        return origin;
    }
    origin.given = given_find(how, row->key, false);
    origin.value = origin.given != NULL ? origin.given->value : row->fallback;
    return origin;
}

/* A key of two tables is refused, but for one that the caller gives a value for: the core reads the
 * INI's text of it, the plugin what the core made of that. */
static lh_status_t check_tables(const options_how_t *how)
{
    for (uint32_t t = 1; t < how->table_count; t++) {
        const option_table_t *table = &how->tables[t];
        for (uint32_t i = 0; i < table->count; i++) {
            const char *key = table->rows[i].key;
            for (uint32_t o = 0; o < t; o++)
                if (table_find(&how->tables[o], key) != NULL && given_find(how, key, true) == NULL)
                    return fail(LH_ABI, "[%s]: option '%s' of %s is also one of %s", how->section,
                                key, table->owner, how->tables[o].owner);
        }
    }
    return LH_OK;
}

/* With the nearest key of any table that may stand in the section. */
static lh_status_t refuse_key(const options_how_t *how, const document_entry_t *entry)
{
    char where[WHERE_BYTES];
    text_nearest_t near = {.typed = entry->key};
    for (uint32_t t = 0; t < how->table_count; t++)
        for (uint32_t i = 0; i < how->tables[t].count; i++)
            text_nearest_offer(&near, how->tables[t].rows[i].key);
    for (uint32_t o = 0; o < how->other_count; o++)
        for (uint32_t i = 0; i < how->others[o].count; i++)
            text_nearest_offer(&near, how->others[o].rows[i].key);
    const char *best = text_nearest_name(&near);
    document_where(entry->file, entry->line, where, sizeof(where));
    if (best == NULL)
        return fail(LH_INVALID, "%s: unknown key '%s' in [%s]", where, entry->key, how->section);
    return fail(LH_INVALID, "%s: unknown key '%s' in [%s]; did you mean '%s'?", where, entry->key,
                how->section, best);
}

/* An open section has keys of a plugin that is not loaded yet; whoever loads it checks them. */
static lh_status_t check_keys(const options_how_t *how)
{
    const document_section_t *section = document_find(how->document, how->section);
    if (section == NULL || how->open) return LH_OK;
    for (uint32_t i = 0; i < section->entry_count; i++) {
        bool known = false;
        for (uint32_t o = 0; o < how->other_count && !known; o++)
            known = table_find(&how->others[o], section->entries[i]->key) != NULL;
        for (uint32_t t = 0; t < how->table_count && !known; t++)
            known = table_find(&how->tables[t], section->entries[i]->key) != NULL;
        if (!known) return refuse_key(how, section->entries[i]);
    }
    return LH_OK;
}

/* Says what the key is for, as whoever meets this sentence did not know of it. */
static lh_status_t refuse_missing_key(const options_how_t *how, const lh_option_t *row)
{
    char where[WHERE_BYTES];
    const document_section_t *section = document_find(how->document, how->section);
    if (section == NULL)
        return fail(LH_INVALID, "[%s] is missing; it needs at least '%s' (%s)", how->section,
                    row->key, row->help);
    document_where(section->file, section->line, where, sizeof(where));
    return fail(LH_INVALID, "%s: '%s' is missing in [%s] (%s)", where, row->key, how->section,
                row->help);
}

/* All keys of the prefix as one text, "name = value, ...", which the owner parses. In the order in
 * which the INI has them. */
static lh_status_t set_prefix(const options_how_t *how, const lh_option_t *row, void *config)
{
    const document_section_t *section = document_find(how->document, how->section);
    text_t joined = {0};
    for (uint32_t i = 0; section != NULL && i < section->entry_count; i++) {
        const document_entry_t *e = section->entries[i];
        if (!row_takes(row, e->key)) continue;
        text_printf(&joined, "%s%s = %s", joined.length > 0 ? ", " : "",
                    e->key + prefix_length(row->key), e->value);
    }
    lh_status_t status = text_status(&joined);
    if (status == LH_OK)
        status = set_text(row, joined.data != NULL ? joined.data : "", NULL, config);
    text_free(&joined);
    return status;
}

/* A path in a file is taken against that file's folder, included or not; a path from elsewhere
 * against how->folder. */
static lh_status_t set_path(const options_how_t *how, const lh_option_t *row,
                            const option_origin_t *origin, const char *where, void *config)
{
    char *folder = NULL;
    if (how->folder != NULL && origin->entry != NULL) {
        folder = document_folder(origin->entry, how->folder);
        if (folder == NULL) return LH_NO_MEMORY;
    }
    const lh_status_t status = option_set(row, origin->value, where,
                                          folder != NULL ? folder : how->folder, config);
    mem_free(folder);
    return status;
}

/* A required row that nobody set is refused, unless no stage needs the section or the value is only
 * known later. */
static lh_status_t set_row(const options_how_t *how, const lh_option_t *row, void *config)
{
    char where[WHERE_BYTES];
    if (prefix_length(row->key) != 0) return set_prefix(how, row, config);

    const option_origin_t origin = option_origin(how, row);
    if (origin.value == NULL)
        return origin.given != NULL || how->optional ? LH_OK : refuse_missing_key(how, row);
    if (origin.entry != NULL)
        document_where(origin.entry->file, origin.entry->line, where, sizeof(where));
    else
        (void)snprintf(where, sizeof(where), "[%s], %s", how->section,
                       origin.given != NULL ? origin.given->origin : "default");
    if (row->type == LH_OPT_PATH) return set_path(how, row, &origin, where, config);
    return option_set(row, origin.value, where, how->folder, config);
}

/* On failure every table is freed, also those whose rows came before the one that failed. */
lh_status_t options_parse(const options_how_t *how)
{
    lh_assert(how->document != NULL && how->table_count > 0);
    lh_status_t status = check_tables(how);
    if (status == LH_OK) status = check_keys(how);
    if (status != LH_OK) return status;

    for (uint32_t t = 0; t < how->table_count; t++) {
        const option_table_t *table = &how->tables[t];
        for (uint32_t i = 0; status == LH_OK && i < table->count; i++)
            status = set_row(how, &table->rows[i], table->config);
    }
    for (uint32_t t = 0; status != LH_OK && t < how->table_count; t++)
        options_free(how->tables[t].rows, how->tables[t].count, how->tables[t].config);
    return status;
}

void options_free(const lh_option_t *rows, uint32_t count, void *config)
{
    if (config == NULL) return;
    for (uint32_t i = 0; i < count; i++) {
        if (!row_is_text(&rows[i])) continue;
        char **at = (char **)(void *)((char *)config + rows[i].offset);
        mem_free(*at);
        *at = NULL;
    }
}

lh_status_t options_defaults(const option_table_t *table, void **out)
{
    void *config = mem_new(table->config_size);
    lh_status_t status = config == NULL ? LH_NO_MEMORY : LH_OK;
    for (uint32_t i = 0; status == LH_OK && i < table->count; i++)
        if (table->rows[i].fallback != NULL)
            status = option_set(&table->rows[i], table->rows[i].fallback, "default", NULL, config);
    if (status == LH_OK) {
        *out = config;
        return LH_OK;
    }
    if (config != NULL) options_free(table->rows, table->count, config);
    mem_free(config);
    return status;
}

/* The name that a choice's number stands for, by walking the row's range. */
static const char *choice_text(const char *choices, uint32_t index, char buffer[OPTION_TEXT])
{
    lh_assert(choices != NULL);
    while (index-- > 0 && strchr(choices, '|') != NULL)
        choices = strchr(choices, '|') + 1;
    (void)snprintf(buffer, OPTION_TEXT, "%.*s", (int)strcspn(choices, "|"), choices);
    return buffer;
}

/* 17 digits give a double's bits back (IEEE 754). */
const char *option_text(const lh_option_t *row, const void *config, char buffer[OPTION_TEXT])
{
    lh_assert(config != NULL);
    const void *field = (const char *)config + row->offset;
    switch (row->type) {
    case LH_OPT_BOOL: return *(const bool *)field ? "yes" : "no";
    case LH_OPT_CHOICE: return choice_text(row->range, *(const uint32_t *)field, buffer);
    case LH_OPT_STRING:
    case LH_OPT_PATH: return *(char *const *)field;
    case LH_OPT_F64:
        (void)snprintf(buffer, OPTION_TEXT, "%.17g", *(const double *)field);
        return buffer;
    case LH_OPT_U32:
        (void)snprintf(buffer, OPTION_TEXT, "%u", *(const uint32_t *)field);
        return buffer;
    default:
        (void)snprintf(buffer, OPTION_TEXT, "%llu", (unsigned long long)*(const uint64_t *)field);
        return buffer;
    }
}

/* The default is parsed into a place of its own, as the row's parser alone knows units and words. A
 * row without one, and no text, has a value only because somebody gave it. */
bool option_is_default(const lh_option_t *row, const void *config)
{
    const char *field = (const char *)config + row->offset;
    union {
        bool flag;
        uint32_t narrow;
        uint64_t wide;
    } none = {.wide = 0};
    lh_assert(config != NULL);
    if (row_is_text(row)) {
        lh_assert(row->type != LH_OPT_PATH || row->fallback == NULL || *row->fallback == '\0');
        const char *text = *(char *const *)(const void *)field, *usual = row->fallback;
        return text_equal(text == NULL ? "" : text, usual == NULL ? "" : usual);
    }
    if (row->fallback == NULL) return false;
    lh_option_t alone = *row;
    alone.offset = 0;
    if (option_set(&alone, row->fallback, row->key, NULL, &none) != LH_OK) return false;
    if (row->type == LH_OPT_BOOL) return memcmp(field, &none, sizeof(none.flag)) == 0;
    if (row->type == LH_OPT_U32 || row->type == LH_OPT_CHOICE)
        return memcmp(field, &none, sizeof(none.narrow)) == 0;
    return memcmp(field, &none, sizeof(none.wide)) == 0;
}

/* ---- shown: effective values with their origin, and what a table offers ---- */

enum { KEY_WIDTH = 18, VALUE_WIDTH = 30 };

/* ";" begins a comment when it is read back. inih would end the value at the semicolon. */
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

void options_append_comment(const text_t *what, text_t *out)
{
    enum { ROOM = INI_LINE_LIMIT - 2 }; /* besides "; " */
    const char *at = what->data;
    size_t left = what->length;
    out->failed = out->failed || what->failed;
    if (at == NULL) return;
    while (left > ROOM) {
        size_t cut = ROOM;
        while (cut > 0 && at[cut] != ' ')
            cut--;
        if (cut == 0) cut = text_utf8_prefix(at, ROOM);
        if (cut == 0) cut = ROOM;
        text_printf(out, "; %.*s\n", (int)cut, at);
        at += cut;
        left -= cut;
    }
    text_printf(out, "; %s\n", at);
}

/* Lines that follow each other are read with a blank between them; what begins with one of these
 * would be something else. */
static bool line_may_end(const char *at)
{
    return at[0] == ' ' && at[-1] != ' ' && at[-1] != '\t' && strchr(" \t[;#", at[1]) == NULL;
}

/* "key = value" over as many lines as it takes. Where no blank is, as in a long path, it is one line.
 * head: bytes in front of the value. INDENT is the least, as lines of a file may be as long as any. */
static void append_lines(const char *pair, size_t head, text_t *out)
{
    enum { INDENT = 1 };
    size_t left = strlen(pair), indent = 0;
    while (indent + left > INI_LINE_LIMIT) {
        size_t cut = INI_LINE_LIMIT - indent;
        while (cut > head && !line_may_end(pair + cut))
            cut--;
        if (cut <= head) break;
        text_printf(out, "%*s%.*s\n", (int)indent, "", (int)cut, pair);
        pair += cut + 1;
        left -= cut + 1;
        indent = INDENT;
        head = 0;
    }
    text_printf(out, "%*s%s\n", (int)indent, "", pair);
}

/* The origin stands behind the value, or on a line of its own above it where both together would be
 * longer than INI_LINE_LIMIT, which is refused when it is read back. */
static void append_line(const char *key, const char *value, const document_entry_t *entry,
                        const char *origin, text_t *out)
{
    enum { WIDTH = KEY_WIDTH + 3 + VALUE_WIDTH };
    text_t shown = {0}, line = {0}, where = {0};
    append_value(value, &shown);
    if (entry != NULL)
        append_where(entry, &where);
    else
        text_append(&where, origin);
    text_printf(&line, "%-*s = %s", KEY_WIDTH, key, shown.data == NULL ? "" : shown.data);
    const size_t width = line.length < WIDTH ? WIDTH : line.length;
    out->failed = out->failed || shown.failed || line.failed || where.failed;
    if (!out->failed && width + where.length + 3 > INI_LINE_LIMIT) {
        text_append(&where, ":");
        options_append_comment(&where, out);
        if (line.length > INI_LINE_LIMIT) {
            line.length = 0;
            text_printf(&line, "%s = %s", key, shown.data == NULL ? "" : shown.data);
        }
        out->failed = out->failed || line.failed;
        if (!out->failed) append_lines(line.data, strlen(key) + 3, out);
    } else if (!out->failed) {
        text_printf(out, "%-*s ; %s\n", WIDTH, line.data, where.data);
    }
    text_free(&shown);
    text_free(&line);
    text_free(&where);
}

/* What stands where a path belongs and leads nowhere may be what should lie there. A key that was
 * pasted where its file belongs is not repeated on a terminal. */
static bool is_hidden(const options_how_t *how, const lh_option_t *row, const char *value)
{
    if (how->hidden == NULL || strcmp(row->key, how->hidden) != 0) return false;
    char *path = path_join(how->folder != NULL ? how->folder : ".", value);
    const bool shown = path != NULL && file_exists(path);
    mem_free(path);
    return !shown;
}

/* One of four: from the file, a default, known only later, or not set. */
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

/* Core's keys first, then the plugin's; an option of both once. */
void options_explain(const options_how_t *how, text_t *out)
{
    text_printf(out, "[%s]\n", how->section);
    for (uint32_t t = 0; t < how->table_count; t++)
        for (uint32_t i = 0; i < how->tables[t].count; i++)
            if (!printed_before(how, t, how->tables[t].rows[i].key))
                explain_row(how, &how->tables[t].rows[i], out);
}

/* What a value looks like, in a word, with its range. */
void options_append_kind(const lh_option_t *row, text_t *out)
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

/* For `help`, which has no values: the default stands in their place. */
void options_explain_table(const lh_option_t *rows, uint32_t count, text_t *out)
{
    for (uint32_t i = 0; i < count; i++) {
        const lh_option_t *row = &rows[i];
        const char *value = row->fallback == NULL    ? "(required)"
                            : *row->fallback == '\0' ? "(not set)"
                                                     : row->fallback;
        text_printf(out, "  %-*s %-12s  %s (", KEY_WIDTH, row->key, value, row->help);
        options_append_kind(row, out);
        text_append(out, ")\n");
    }
}
