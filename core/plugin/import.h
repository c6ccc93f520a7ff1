/* plugin/import.h - a loaded plugin's structs and tables copied to this host's row sizes and
 * checked; nobody else reads what the plugin exported. */
#ifndef PLUGIN_IMPORT_H
#define PLUGIN_IMPORT_H

#include <plugin/image.h>
#include <plugin/plugin.h>

typedef struct importer {
    const char *path;    /* for sentences                             */
    peek_image_t image;  /* tells what memory is the plugin's own     */
    uintptr_t load_base; /* difference of addresses as run and as linked */
    plugin_t *plugin;    /* filled                                    */
    void **owned;        /* every copy, for import_free               */
    size_t owned_count, owned_capacity;
} importer_t;

/* symbol: the address of lh_plugin_v2. */
lh_status_t import_plugin(importer_t *i, const void *symbol) LH_MUST_CHECK;
void import_free(importer_t *i);

#endif
