/* subject.h - what is under test: a plugin's file and what the loader made of it, or an architecture
 * in an INI, which is a model plugin then; its options' values. */
#ifndef SUBJECT_H
#define SUBJECT_H

#include <config/document.h>
#include <graph/op_table.h>
#include <plugin/image.h>
#include <plugin/registry.h>

enum { SUBJECT_SETS = 64 };

typedef struct subject {
    char *path;           /* absolute */
    char *name;           /* of the file, without .so or .ini */
    bool spec;            /* it is an INI */
    document_t *document; /* of an INI; NULL: peek_fault says why */
    image_t image;
    image_head_t head; /* kind 0: peek_fault says why */
    char peek_fault[256];

    char *scratch; /* a folder of its own, removed at the end */
    host_t *host;
    registry_t *own;          /* the folder that the file lies in, or a copy of it; behind it the
                               others, for what the plugin needs */
    registry_t *installed;    /* the other plugins: the reference device, transports */
    const plugin_t *plugin;   /* NULL until subject_load */
    const plugin_t **plugins; /* of subject_plugins */

    const struct fact *fact;            /* of the check at hand; NULL: it has none */
    const char *sets[SUBJECT_SETS + 1]; /* --set key=value; NULL ends them */
    uint32_t set_count;
    uint64_t seed;
} subject_t;

/* path: a plugin's .so, or an .ini with sections [spec.*]. folders: of the other plugins; none:
 * beside the program. Runs nothing of the plugin's. */
lh_status_t subject_open(const char *path, const char *const *folders, uint32_t folder_count,
                         subject_t *out) LH_MUST_CHECK;
void subject_close(subject_t *s);

/* In this process, as a run would. */
lh_status_t subject_load(subject_t *s) LH_MUST_CHECK;

/* The device whose numbers are the truth. NULL after fail(). */
const plugin_t *subject_reference(subject_t *s);

/* The plugin and those that it needs, in the order of loading; valid until subject_close. */
const plugin_t *const *subject_plugins(subject_t *s, uint32_t *count);
/* The core's ops and those plugins'; the caller frees. Ends the check where they are refused. */
op_table_t *subject_ops(subject_t *s);

/* What open() is given: the kit's host, but of a spec the one that keeps it. */
const lh_host_t *subject_host(const subject_t *s);

/* How many descriptors this process has open. */
uint32_t subject_descriptors(void);
/* And threads. */
uint32_t subject_tasks(void);

/* Every --set names an option of the plugin and a value that it takes. */
lh_status_t subject_check_sets(const subject_t *s) LH_MUST_CHECK;

/* A config of options' defaults and what --set says; a required one gets the least that its range
 * allows or 16. Of a spec texts are those of its INI's [model], as nobody could guess them. Ends the
 * check where a value is refused. Freed with mem_free. */
void *subject_config(const subject_t *s, const plugin_t *plugin);
/* Gives required whole numbers that --set does not name other values, powers of two. */
void subject_draw(const subject_t *s, uint64_t draw, void *config);
void *options_default(const lh_option_t *rows, uint32_t count, uint64_t bytes);

/* For checks that use the device of a device plugin: ends the check, skipped with the plugin's
 * sentence, on a machine that has none. */
void subject_need_device(const subject_t *s, const void *config);

#endif
