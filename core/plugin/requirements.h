/* plugin/requirements.h - what a plugin of each kind must bring, as tables. */
#ifndef PLUGIN_REQUIREMENTS_H
#define PLUGIN_REQUIREMENTS_H

#include <longhaul/plugin.h>

typedef struct required { /* a function that may not be NULL */
    const char *name;
    size_t offset;
} required_t;

typedef struct kind {   /* row */
    const char *name;   /* "model"  */
    const char *folder; /* "models" */
    const char *field;  /* of lh_plugin_t; NULL: brings no api of its own */
    size_t pointer_at;  /* offset of that field in lh_plugin_t            */
    size_t api_size;    /* of this host                                   */
    size_t api_min;     /* up to the last required function               */
    const required_t *required;
} kind_t;

const kind_t *kind_of(uint32_t kind); /* LH_KIND_*; NULL: none */

/* The first required function that is NULL in api, or NULL. */
const char *kind_lacks(const kind_t *kind, const void *api);

#endif
