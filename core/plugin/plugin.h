/* plugin/plugin.h - a plugin that is loaded, as everybody else reads it: its tables imported to this
 * host's row sizes, its functions, where it came from. */
#ifndef PLUGIN_PLUGIN_H
#define PLUGIN_PLUGIN_H

#include <base/digest.h>
#include <config/options.h>
#include <longhaul/plugin.h>
#include <plugin/origin.h>

typedef struct plugin {
    lh_plugin_t row; /* imported; use the pointers below instead of its tables and apis */
    uint32_t kind;   /* LH_KIND_*                                                      */
    const char *name, *version, *summary;

    lh_option_t *options; /* rows of this host's size */
    lh_function_t *functions;
    lh_op_t *ops; /* attributes point to rows of this host's size too; likewise rules' options and
                     states */
    lh_kernel_t *kernels;
    lh_rule_t *rules;
    uint32_t option_count, function_count, op_count, kernel_count, rule_count;

    /* The one that kind names, zero-filled to this host's size; the others are NULL. */
    const lh_model_api_t *model;
    const lh_transport_api_t *transport;
    const lh_optimizer_api_t *optimizer;
    const lh_device_api_t *device;

    const lh_host_t *host; /* the services under its name                                    */
    const void *config; /* given to its functions (lh_call_t.config); set with registry_configure */
    char *path;
    char sha256[SHA256_TEXT];
    origin_t origin;
} plugin_t;

/* Its option table, for job_parse_plugin. */
option_table_t plugin_options(const plugin_t *plugin);
/* The rule `name`, or NULL after fail(). */
const lh_rule_t *plugin_rule(const plugin_t *plugin, const char *name);
option_table_t plugin_rule_options(const plugin_t *plugin, const lh_rule_t *rule);

/* "plugin:name" cut in two. name points into text. */
lh_status_t plugin_name_split(const char *text, char plugin[32], const char **name) LH_MUST_CHECK;

/* [a-z][a-z0-9_]*, at most 31 bytes: asked before a path is made of the name. */
bool plugin_name_fits(const char *name);
lh_status_t plugin_refuse_name(const char *name) LH_MUST_CHECK;

/* What a plugin of each kind must bring. */
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
} plugin_kind_t;

const plugin_kind_t *plugin_kind(uint32_t kind); /* LH_KIND_*; NULL: none */

/* The first required function that is NULL in api, or NULL. */
const char *plugin_kind_lacks(const plugin_kind_t *kind, const void *api);

const char *plugin_kind_text(uint32_t kind);   /* "model"; "parts"         */
const char *plugin_kind_folder(uint32_t kind); /* "models"; "parts"        */

#endif
