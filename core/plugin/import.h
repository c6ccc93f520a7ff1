/* plugin/import.h - structs and tables that a plugin has built, copied to this host's row sizes and
 * checked; nobody else reads what the plugin exported. The plugin may be older or newer than this
 * host: what its struct lacks becomes zero, what this host does not know must be zero. */
#ifndef PLUGIN_IMPORT_H
#define PLUGIN_IMPORT_H

#include <plugin/image.h>
#include <plugin/plugin.h>

enum { IMPORT_MAX_STRUCT = 64 * 1024 };

/* Copies a struct that begins with its size (struct_size). `what` ("acme.so: lh_plugin_v2") begins
 * the sentence of a failure, which is LH_ABI. limit: bytes known to belong to the plugin at src.
 * min_size: up to the last field that every version has. dst is zero-filled to dst_size. */
lh_status_t import_struct(void *dst, size_t dst_size, const void *src, size_t min_size,
                          size_t limit, const char *what) LH_MUST_CHECK;
/* As import_struct, of one row of a table, whose rows have no size of their own: row_size is told
 * beside the table. The caller has seen to it that the row is the plugin's to give. */
lh_status_t import_row(void *dst, size_t dst_size, const void *table, uint32_t row_size,
                       uint32_t index, size_t min_size, const char *what) LH_MUST_CHECK;

/* One plugin's import. The loader keeps it as long as the plugin, which points into its copies. */
typedef struct importer {
    const char *path;    /* for sentences                             */
    image_bytes_t image; /* tells what memory is the plugin's own     */
    uintptr_t load_base; /* difference of addresses as run and as linked */
    plugin_t *plugin;    /* filled                                    */
    void **owned;        /* every copy, for import_free               */
    size_t owned_count, owned_capacity;
} importer_t;

/* Imports all tables and the api; symbol: the address of lh_plugin_v2 as loaded. What was copied
 * before a failure is freed by import_free, too. */
lh_status_t import_plugin(importer_t *i, const void *symbol) LH_MUST_CHECK;
void import_free(importer_t *i);

/* Row k of a model's table of config.json keys: its places, its condition, and that its option
 * is one of the plugin's and takes the values that the row has for it. path begins the sentence. */
lh_status_t import_check_hf_key(const plugin_t *plugin, const char *path, const lh_hf_t *hf,
                                uint32_t k) LH_MUST_CHECK;

#endif
