/* cli/import_paths.h - what an import may open: its model's folder, and what plugins need. */
#ifndef CLI_IMPORT_PATHS_H
#define CLI_IMPORT_PATHS_H

#include <cli/commands.h>

typedef struct import_paths { /* ended by NULL, as confine.h takes them */
    const char **read;
    const char *write[3];
    char **links; /* of `read`: what is to be freed */
    uint32_t link_count;
    size_t link_room;
} import_paths_t;

lh_status_t import_paths_find(const cli_t *cli, import_paths_t *out) LH_MUST_CHECK;
void import_paths_free(import_paths_t *p);

#endif
