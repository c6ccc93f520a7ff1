/* config/document.h - an INI file with all it includes, as sections of entries that know where they
 * stand. Nothing here knows what a key means.
 *
 * An entry keeps the entries that it overrides, as a chain, so that `check` can show where each
 * value has come from: "train.ini:12, overrides base.ini:3". Documents are made by one thread and
 * then only read, by any. */
#ifndef CONFIG_DOCUMENT_H
#define CONFIG_DOCUMENT_H

#include <base/text.h>

enum { DOCUMENT_DEPTH = 8, DOCUMENT_FILES = 64 };

typedef struct document document_t;

/* key and value are owned. The one at the head of the chain is in force. */
typedef struct document_entry {
    char *key, *value;
    const char *file; /* as opened; owned by the document; NULL: the command line */
    uint32_t line;
    struct document_entry *overrides; /* what stood here before, in an included file; or NULL */
} document_entry_t;

/* Owned by the document. An empty section is one, too: some say something by being there. */
typedef struct document_section {
    char *name;
    const char *file; /* where it was first seen; NULL: the command line */
    uint32_t line;
    /* Allocated one by one, so that pointers to entries stay good while the section grows. */
    document_entry_t **entries; /* in order of first appearance */
    uint32_t entry_count;
    size_t entry_capacity;
} document_section_t;

/* `include = a.ini, b.ini` above the first section reads those first, against the folder of the
 * file that says so; what the including file sets itself overrides. A loop, a key or a section
 * twice in one file is refused. Files are taken as they are at this moment; nobody watches them.
 * DOCUMENT_DEPTH and DOCUMENT_FILES bound how deep and how many. */
lh_status_t document_load(const char *path, document_t **out) LH_MUST_CHECK;
void document_free(document_t *d);

/* "section.key=value"; of several dots ahead of '=' the one behind the longest section that exists
 * ends the section, else the last. Makes the section if need be. The entry has no file:
 * document_where calls it the command line. Values are not split at commas or blanks. */
lh_status_t document_set(document_t *d, const char *assignment) LH_MUST_CHECK;

uint32_t document_section_count(const document_t *d);
const document_section_t *document_section(const document_t *d, uint32_t index);
/* The files that it was read from: the INI and what it includes, as opened. */
uint32_t document_file_count(const document_t *d);
const char *document_file(const document_t *d, uint32_t index);
const document_section_t *document_find(const document_t *d, const char *section); /* or NULL */
/* NULL: the section has no such key. */
const document_entry_t *document_entry(const document_section_t *s,
                                       const char *key); /* s may be NULL */

/* Against which a relative path in this entry is taken: the folder of the file in which it stands,
 * as an absolute path, or `otherwise` where that is the command line or e is NULL. mem_free; NULL
 * after fail(). So an included file's relative paths are beside that file, wherever the job that
 * includes it lies. */
char *document_folder(const document_entry_t *e, const char *otherwise);

/* "pipeline.ini:12", or "command line". */
void document_where(const char *file, uint32_t line, char *out, size_t room);

#endif
