/* plugin/plugin.h - a plugin that is loaded, as everybody else reads it: its tables imported to
 * this host's row sizes, its functions and their signatures, where it came from.
 *
 * Readers see structs and no accessors: all is filled in by import.c and registry.c before anybody
 * else sees it, and stays as it is (`config` apart) until registry_free. So any thread may read it
 * without a lock. */
#ifndef PLUGIN_PLUGIN_H
#define PLUGIN_PLUGIN_H

#include <link.h>

#include <base/digest.h>
#include <config/options.h>
#include <longhaul/plugin.h>

enum { PLUGIN_BUILD = 2 * 32 + 1 }; /* hexadecimal digits of a build id, and NUL */

/* What of a plugin's file no table says: the id of its build, and the libraries that came into the
 * process with it. Both are for reports: which code has made these weights. */
typedef struct plugin_origin {
    uintptr_t base;           /* where the file is mapped                      */
    char build[PLUGIN_BUILD]; /* "" where the linker wrote none                */
    char *libraries;          /* ", " between; NULL where there was nothing new */
} plugin_origin_t;

typedef struct plugin {
    lh_plugin_t row; /* imported; use the pointers below instead of its tables and apis */
    uint32_t kind;   /* LH_KIND_*                                                      */
    const char *name, *version, *summary; /* the last two fit to be shown on one line  */

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
    char *path;         /* of the file, absolute; owned                                      */
    char sha256[SHA256_TEXT]; /* of the file's bytes */
    /* Of a model that the core made: a digest of what it computes, by which checkpoints are told from
     * those of another. "" of a file. */
    char architecture[SHA256_TEXT];
    plugin_origin_t origin;
} plugin_t;

/* The plugin's option table, for job_parse_plugin. */
option_table_t plugin_options(const plugin_t *plugin);
/* The rule `name`, or NULL after fail(). */
const lh_rule_t *plugin_rule(const plugin_t *plugin, const char *name);
option_table_t plugin_rule_options(const lh_rule_t *rule);

/* "plugin:name" cut in two. name points into text. */
lh_status_t plugin_name_split(const char *text, char plugin[32], const char **name) LH_MUST_CHECK;

/* [a-z][a-z0-9_]*, at most `most` bytes: what an INI can name without quotes. NULL is none. */
bool plugin_is_name(const char *text, size_t most);
/* plugin_is_name of at most 31 bytes: asked before a path is made of a plugin's name. */
bool plugin_name_fits(const char *name);
lh_status_t plugin_refuse_name(const char *name) LH_MUST_CHECK;

/* What a plugin of each kind must bring: a row a kind. */
typedef struct required { /* a function of an api that may not be NULL */
    const char *name;
    size_t offset; /* in the api */
} required_t;

typedef struct kind {
    const char *name;           /* "model"  */
    const char *folder;         /* "models", below the folder of plugins */
    const char *field;          /* of lh_plugin_t; NULL: brings no api of its own */
    size_t pointer_at;          /* offset of that field in lh_plugin_t            */
    size_t api_size;            /* of this host                                   */
    size_t api_min;             /* up to the last required function               */
    const required_t *required; /* ended by a name of NULL                */
} plugin_kind_t;

const plugin_kind_t *plugin_kind(uint32_t kind); /* LH_KIND_*; NULL: none */
/* A transport that brings collectives and no messages. */
bool plugin_is_without_messages(const lh_transport_api_t *t);
/* The first required function that is NULL in api, or NULL. */
const char *plugin_kind_lacks(const plugin_kind_t *kind, const void *api);
const char *plugin_kind_text(uint32_t kind);   /* "model"; "parts"; else "unknown" */
const char *plugin_kind_folder(uint32_t kind); /* "models"; "parts"; likewise      */

/* What a parameter or a result of a function is. */
enum { CALL_STATUS = 1, CALL_I64 = 2, CALL_U64 = 3, CALL_F64 = 4, CALL_STR = 5, CALL_TENSOR = 6 };
enum { CALL_PARAMS = 16 };

/* "f64(u64 step, f64 peak)", the text that LH_FUNCTION writes, as a struct. */
typedef struct plugin_signature {
    uint32_t result; /* CALL_* */
    uint32_t count;  /* of params */
    struct {
        uint32_t type; /* CALL_*, never STATUS */
        char name[32];
    } params[CALL_PARAMS];
} plugin_signature_t;

/* NULL, or what is wrong with a signature; out may be NULL. */
const char *plugin_signature_parse(const char *text, plugin_signature_t *out);
const char *plugin_type_text(uint32_t type); /* "f64" of CALL_F64 */

/* Fills in an origin; loaded: the plugin, the last that was loaded but for its libraries, as the
 * loader's list ends with what the latest dlopen brought. */
lh_status_t plugin_origin_find(const struct link_map *loaded, plugin_origin_t *out) LH_MUST_CHECK;
void plugin_origin_free(plugin_origin_t *o);
/* Whether this thread is in code of the plugin's file, or was called by it. It walks the stack, so
 * it is for the end of a process, to name who ends it. */
bool plugin_is_on_stack(const plugin_t *plugin);

#endif
