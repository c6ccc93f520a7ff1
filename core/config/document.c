/* document.c - files merged into sections; each entry keeps what it overrides.
 *
 * Each file is read into a document of its own first and merged when it is whole: so "twice in one
 * file" is refused while "again in the including file" overrides, and an error leaves nothing half
 * merged. Names are searched one by one, which is quick enough for the 4,096 keys that may be. */
#include <config/document.h>

#include <errno.h>
#include <stdio.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <base/text.h>
#include <config/ini_lines.h>

enum { DOCUMENT_ENTRIES = 4096 }; /* duplicates are searched one by one */

/* Sections are allocated one by one, since entries and callers point at them while the list grows.
 */
struct document {
    document_section_t **sections;
    uint32_t section_count;
    size_t section_capacity;
    char *files[DOCUMENT_FILES];
    uint32_t file_count;
    uint32_t entry_count;
};

/* Lives on the stacks of document_load_file: its length is the depth. */
typedef struct chain { /* the files that are being read, innermost first */
    const struct chain *above;
    dev_t device;
    ino_t inode;
} chain_t;

/* With all that it overrides. */
static void document_entry_free(document_entry_t *e)
{
    while (e != NULL) {
        document_entry_t *older = e->overrides;
        mem_free(e->key);
        mem_free(e->value);
        mem_free(e);
        e = older;
    }
}

/* Entries with all that they override. */
static void section_free(document_section_t *s)
{
    for (uint32_t i = 0; i < s->entry_count; i++)
        document_entry_free(s->entries[i]);
    mem_free(s->entries);
    mem_free(s->name);
    mem_free(s);
}

void document_free(document_t *d)
{
    if (d == NULL) return;
    for (uint32_t i = 0; i < d->section_count; i++)
        section_free(d->sections[i]);
    for (uint32_t i = 0; i < d->file_count; i++)
        mem_free(d->files[i]);
    mem_free(d->sections);
    mem_free(d);
}

uint32_t document_section_count(const document_t *d)
{
    return d->section_count;
}

const document_section_t *document_section(const document_t *d, uint32_t index)
{
    lh_assert(index < d->section_count);
    return d->sections[index];
}

uint32_t document_file_count(const document_t *d)
{
    return d->file_count;
}

const char *document_file(const document_t *d, uint32_t index)
{
    lh_assert(index < d->file_count);
    return d->files[index];
}

/* NULL: there is none of that name. */
static document_section_t *find_section(const document_t *d, const char *name)
{
    for (uint32_t i = 0; i < d->section_count; i++)
        if (strcmp(d->sections[i]->name, name) == 0) return d->sections[i];
    return NULL;
}

const document_section_t *document_find(const document_t *d, const char *section)
{
    return find_section(d, section);
}

/* The place of a key's entry, so that another may be put there; NULL: the section lacks the key. */
static document_entry_t **find_slot(const document_section_t *s, const char *key)
{
    for (uint32_t i = 0; i < s->entry_count; i++)
        if (strcmp(s->entries[i]->key, key) == 0) return &s->entries[i];
    return NULL;
}

const document_entry_t *document_entry(const document_section_t *s, const char *key)
{
    document_entry_t **slot = s == NULL ? NULL : find_slot(s, key);
    return slot == NULL ? NULL : *slot;
}

void document_where(const char *file, uint32_t line, char *out, size_t room)
{
    if (file == NULL)
        (void)snprintf(out, room, "command line");
    else
        (void)snprintf(out, room, "%s:%u", file, line);
}

/* The section of that name, made where there is none. file and line are where it is seen first.
 * *out is the document's own. */
static lh_status_t section_take(document_t *d, const char *name, const char *file, uint32_t line,
                                document_section_t **out)
{
    *out = find_section(d, name);
    if (*out != NULL) return LH_OK;

    document_section_t **sections = mem_grow(d->sections, &d->section_capacity,
                                             d->section_count + 1u, sizeof(*sections));
    if (sections == NULL) return LH_NO_MEMORY;
    d->sections = sections;
    document_section_t *s = mem_new(sizeof(*s));
    if (s == NULL) return LH_NO_MEMORY;
    s->name = mem_text(name);
    if (s->name == NULL) {
        mem_free(s);
        return LH_NO_MEMORY;
    }
    s->file = file;
    s->line = line;
    d->sections[d->section_count++] = s;
    *out = s;
    return LH_OK;
}

/* Copies key and value; file stays the document's string, or NULL for the command line. */
static lh_status_t document_entry_new(const char *key, const char *value, const char *file,
                                      uint32_t line, document_entry_t **out)
{
    document_entry_t *e = mem_new(sizeof(*e));
    if (e == NULL) return LH_NO_MEMORY;
    e->key = mem_text(key);
    e->value = mem_text(value);
    e->file = file;
    e->line = line;
    if (e->key == NULL || e->value == NULL) {
        document_entry_free(e);
        return LH_NO_MEMORY;
    }
    *out = e;
    return LH_OK;
}

/* What stood there before stays known as `overrides`. Room for the entry is made before the entry,
 * so that a lack of memory leaves the section as it was. */
static lh_status_t section_put(document_t *d, document_section_t *s, const char *key,
                               const char *value, const char *file, uint32_t line)
{
    document_entry_t **slot = find_slot(s, key);
    document_entry_t *e;
    if (d->entry_count >= DOCUMENT_ENTRIES)
        return fail(LH_INVALID, "%s:%u: more than %d keys in all",
                    file != NULL ? file : "command line", line, DOCUMENT_ENTRIES);
    document_entry_t **entries = mem_grow(s->entries, &s->entry_capacity, s->entry_count + 1u,
                                          sizeof(*entries));
    if (entries == NULL) return LH_NO_MEMORY;
    const size_t at = slot == NULL ? s->entry_count : (size_t)(slot - s->entries);
    s->entries = entries;
    const lh_status_t status = document_entry_new(key, value, file, line, &e);
    if (status != LH_OK) return status;

    if (at == s->entry_count)
        s->entry_count++;
    else
        e->overrides = s->entries[at];
    lh_assert(at < s->entry_count && s->entry_count <= s->entry_capacity);
    s->entries[at] = e;
    d->entry_count++;
    return LH_OK;
}

/* Of one file: a document of its own, so that "twice in one file" is a question to it alone. What
 * the three callbacks share. last is the pair that an indented line would go on with; NULL right
 * behind a section's head or an include. */
typedef struct one_file {
    document_t *own;
    const char *path; /* owned by the whole document */
    document_section_t *section;
    document_entry_t *last;
    char *include;
    uint32_t include_line;
} one_file_t;

/* From here on: what ini_lines calls for each part of a file. Twice in one file is refused: which
 * of two would count is a question that nobody should have to ask. */
static lh_status_t on_section(void *context, const char *name, uint32_t line)
{
    one_file_t *f = context;
    const document_section_t *before = find_section(f->own, name);
    if (before != NULL)
        return fail(LH_INVALID, "%s:%u: [%s] stands here again; it began at line %u", f->path, line,
                    name, before->line);
    if (f->own->section_count >= DOCUMENT_ENTRIES)
        return fail(LH_INVALID, "%s:%u: more than %d sections", f->path, line, DOCUMENT_ENTRIES);
    f->last = NULL;
    return section_take(f->own, name, f->path, line, &f->section);
}

/* Only kept: files are included when the file that names them has been read. */
static lh_status_t on_include(one_file_t *f, const char *value, uint32_t line)
{
    if (f->section != NULL)
        return fail(LH_INVALID, "%s:%u: include belongs above the first [section]", f->path, line);
    if (f->include != NULL)
        return fail(LH_INVALID,
                    "%s:%u: include stands here again; it is at line %u too: write "
                    "include = a.ini, b.ini",
                    f->path, line, f->include_line);
    f->include = mem_text(value);
    f->include_line = line;
    return f->include == NULL ? LH_NO_MEMORY : LH_OK;
}

/* section_put has put the new entry last, as the key was not there before. */
static lh_status_t on_pair(void *context, const char *section, const char *key, const char *value,
                           uint32_t line)
{
    one_file_t *f = context;
    (void)section; /* on_section said it, uncut */
    if (strcmp(key, "include") == 0) return on_include(f, value, line);
    if (f->section == NULL)
        return fail(LH_INVALID, "%s:%u: '%s' stands above the first [section]", f->path, line, key);
    const document_entry_t *before = document_entry(f->section, key);
    if (before != NULL)
        return fail(LH_INVALID, "%s:%u: '%s' in [%s] again; it is at line %u too", f->path, line,
                    key, f->section->name, before->line);
    const lh_status_t status = section_put(f->own, f->section, key, value, f->path, line);
    if (status == LH_OK) f->last = f->section->entries[f->section->entry_count - 1];
    return status;
}

/* An indented line goes on with the value of the pair above it, behind a blank. include may go on
 * over lines as well. */
static lh_status_t on_more(void *context, const char *value, uint32_t line)
{
    enum { VALUE_LIMIT = 64 * 1024 };
    one_file_t *f = context;
    char **to = f->last != NULL ? &f->last->value : &f->include;
    text_t joined = {0};
    lh_assert(*to != NULL);

    if (strlen(*to) > VALUE_LIMIT)
        return fail(LH_INVALID, "%s:%u: a value of more than %d bytes", f->path, line, VALUE_LIMIT);
    text_printf(&joined, "%s%s%s", *to, **to != '\0' ? " " : "", value);
    if (joined.failed) {
        text_free(&joined);
        return LH_NO_MEMORY;
    }
    mem_free(*to);
    *to = joined.data;
    return LH_OK;
}

/* What `own` sets overrides what stands in d, entry by entry. Entries are copied, as `own` is freed
 * after this. */
static lh_status_t sections_merge(document_t *d, const document_t *own)
{
    for (uint32_t i = 0; i < own->section_count; i++) {
        const document_section_t *from = own->sections[i];
        document_section_t *to;
        lh_status_t status = section_take(d, from->name, from->file, from->line, &to);
        for (uint32_t k = 0; status == LH_OK && k < from->entry_count; k++) {
            const document_entry_t *e = from->entries[k];
            status = section_put(d, to, e->key, e->value, e->file, e->line);
        }
        if (status != LH_OK) return status;
    }
    return LH_OK;
}

static lh_status_t document_load_file(document_t *d, const char *path, const char *said_by,
                                      const chain_t *above, uint32_t depth);

/* Those that the file names, in order, each against the folder of the file that names it. Before
 * the file's own entries are merged, so that these come on top. */
static lh_status_t load_includes(document_t *d, const one_file_t *f, const chain_t *chain,
                                 uint32_t depth)
{
    char said_by[512];
    document_where(f->path, f->include_line, said_by, sizeof(said_by));
    char *folder = path_folder(f->path);
    if (folder == NULL) return LH_NO_MEMORY;

    lh_status_t status = LH_OK;
    char *rest = f->include;
    while (status == LH_OK && rest != NULL) {
        char *name = text_trim(strsep(&rest, ","));
        if (*name == '\0') {
            status = fail(LH_INVALID, "%s: include names no file", said_by);
            break;
        }
        char *path = path_join(folder, name);
        status = path == NULL ? LH_NO_MEMORY
                              : document_load_file(d, path, said_by, chain, depth + 1);
        mem_free(path);
    }
    mem_free(folder);
    return status;
}

/* The file may have been named relative to where the program was started, hence path_absolute. */
char *document_folder(const document_entry_t *e, const char *otherwise)
{
    if (e == NULL || e->file == NULL) return mem_text(otherwise);
    char *folder = path_folder(e->file), *whole = folder == NULL ? NULL : path_absolute(folder);
    mem_free(folder);
    return whole;
}

/* A file is told from others by device and inode: a loop through links is one, too. The same file
 * twice beside itself is allowed: only inside itself it has no end. */
static lh_status_t check_chain(const char *path, const char *said_by, chain_t *link, uint32_t depth)
{
    struct stat st;
    if (sys()->stat(path, &st) != 0)
        return said_by == NULL ? fail_io(errno, "%s: cannot read", path)
                               : fail_io(errno, "%s: cannot include %s", said_by, path);
    link->device = st.st_dev;
    link->inode = st.st_ino;
    for (const chain_t *c = link->above; c != NULL; c = c->above)
        if (c->device == st.st_dev && c->inode == st.st_ino)
            return fail(LH_INVALID, "%s: %s is included by itself", said_by, path);
    if (depth >= DOCUMENT_DEPTH)
        return fail(LH_INVALID, "%s: %s is included more than %d files deep", said_by, path,
                    DOCUMENT_DEPTH);
    return LH_OK;
}

/* The file that is included has said what is wrong with it, not who wants it. */
static lh_status_t fail_include(lh_status_t status, const char *said_by)
{
    char *reason = mem_text(fail_reason());
    if (reason == NULL) return LH_NO_MEMORY;
    (void)fail(status, "%s: include: %s", said_by, reason);
    mem_free(reason);
    return status;
}

/* said_by is who includes it, for sentences; NULL for the INI itself. The name of the file is kept
 * by the document before anything else, as entries point to it. */
static lh_status_t document_load_file(document_t *d, const char *path, const char *said_by,
                                      const chain_t *above, uint32_t depth)
{
    chain_t link = {.above = above};
    one_file_t f = {0};
    char *text = NULL;
    size_t length = 0;

    lh_status_t status = check_chain(path, said_by, &link, depth);
    if (status != LH_OK) return status;
    if (d->file_count == DOCUMENT_FILES)
        return fail(LH_INVALID, "%s: more than %d files are included", said_by, DOCUMENT_FILES);
    char *name = mem_text(path);
    if (name == NULL) return LH_NO_MEMORY;
    lh_assert(d->file_count < DOCUMENT_FILES);
    d->files[d->file_count++] = name;
    f.path = name;

    status = file_read(path, INI_FILE_LIMIT, &text, &length);
    if (status != LH_OK) return said_by == NULL ? status : fail_include(status, said_by);
    f.own = mem_new(sizeof(*f.own));
    const ini_sink_t sink = {on_section, on_pair, on_more, &f};
    status = f.own == NULL ? LH_NO_MEMORY : ini_lines_read(name, text, length, &sink);
    mem_free(text);
    if (status == LH_OK && f.include != NULL) status = load_includes(d, &f, &link, depth);
    if (status == LH_OK) status = sections_merge(d, f.own);
    mem_free(f.include);
    document_free(f.own);
    return status;
}

/* All or nothing: a document that could not be read to its end is freed. */
lh_status_t document_load(const char *path, document_t **out)
{
    document_t *d = mem_new(sizeof(*d));
    if (d == NULL) return LH_NO_MEMORY;
    const lh_status_t status = document_load_file(d, path, NULL, NULL, 0);
    if (status != LH_OK) {
        document_free(d);
        return status;
    }
    *out = d;
    return LH_OK;
}

/* Of a.b.c, the dot behind the longest section that exists; else the last one.
 * "hook.after_step.call" may be key `call` of [hook.after_step] or key `after_step.call` of [hook];
 * a section that is there decides. */
static char *cut_at(const document_t *d, char *name)
{
    char *last = strrchr(name, '.');
    for (char *dot = last; dot != NULL;) {
        *dot = '\0';
        const bool known = find_section(d, name) != NULL;
        *dot = '.';
        if (known) return dot;
        do
            dot = dot == name ? NULL : dot - 1;
        while (dot != NULL && *dot != '.');
    }
    return last;
}

/* As a line of a file: what stands here ends up in JSON and on terminals. */
static lh_status_t check_assignment(const char *text)
{
    for (size_t i = 0, size; text[i] != '\0'; i += size) {
        const unsigned char c = (unsigned char)text[i];
        size = text_utf8_character(text + i);
        if (size == 0)
            return fail(LH_INVALID, "--set %s: byte %zu, 0x%02x, is not UTF-8", text, i + 1, c);
        if (c < 0x20 || c == 0x7f)
            return fail(LH_INVALID, "--set %s: byte %zu is the control character 0x%02x", text,
                        i + 1, c);
    }
    return LH_OK;
}

/* The section may be one that no file has. */
lh_status_t document_set(document_t *d, const char *assignment)
{
    lh_status_t status = check_assignment(assignment);
    if (status != LH_OK) return status;
    char *text = mem_text(assignment);
    if (text == NULL) return LH_NO_MEMORY;

    document_section_t *s;
    char *equals = strchr(text, '=');
    if (equals != NULL) *equals = '\0';
    char *dot = equals == NULL ? NULL : cut_at(d, text_trim(text));
    if (dot == NULL || dot[1] == '\0' || dot == text) {
        status = fail(LH_INVALID, "--set %s: write section.key=value", assignment);
        goto free_text;
    }
    *dot = '\0';
    if (strlen(text) > INI_NAME_LIMIT || strlen(dot + 1) > INI_NAME_LIMIT) {
        status = fail(LH_INVALID, "--set %s.%s: names have at most %d bytes", text, dot + 1,
                      INI_NAME_LIMIT);
        goto free_text;
    }
    status = section_take(d, text_trim(text), NULL, 0, &s);
    if (status == LH_OK) status = section_put(d, s, dot + 1, text_trim(equals + 1), NULL, 0);

free_text:
    mem_free(text);
    return status;
}
