/* plugin/registry.h - brings a plugin into the process: exactly the named file of a folder, checked
 * before any of its code runs, tried in a child, its tables imported to this host's row sizes,
 * never unloaded.
 *
 * Folders are those that were given and no others: the file is the first folder's that has one of
 * that kind and name, and what lies there is the plugin or refused. A plugin brings along those
 * that it names in `needs`. All functions are for one thread, that which sets a job up; loaded plugins may be read
 * by all threads afterwards. */
#ifndef PLUGIN_REGISTRY_H
#define PLUGIN_REGISTRY_H

#include <config/job.h>
#include <plugin/plugin.h>

/* All plugins of a process, each loaded once. */
typedef struct registry registry_t;
typedef struct host host_t;

/* folder: absolute, holds models/, transports/, optimizers/, devices/, parts/. NULL:
 * ../lib/longhaul seen from the program. host must outlive the registry. */
lh_status_t registry_new(const char *folder, host_t *host, registry_t **out) LH_MUST_CHECK;
/* Frees the tables; what was loaded stays mapped for ever. */
void registry_free(registry_t *r);
/* One folder more, absolute, behind those that are there; registry_new's must have been given. */
lh_status_t registry_add_folder(registry_t *r, const char *folder) LH_MUST_CHECK;
/* Absolute, in the order they are searched; valid until registry_free, or one more is added. */
const char *const *registry_folders(const registry_t *r, uint32_t *count);
/* "FOLDER, FOLDER" for a sentence; likewise. */
const char *registry_folder_text(const registry_t *r);
host_t *registry_host(const registry_t *r); /* the one that registry_new was given */

/* Plugins of kind parts take their options from [parts.NAME] of this job, which outlives the
 * registry, when they are loaded; without a job they get none, and functions of a plugin that has
 * options are then refused when they are called from a text. Files are compared with the digests of
 * [plugin.NAME] and with [limits] plugin_bytes. */
void registry_use_job(registry_t *r, const job_t *job);

/* The plugin NAME of a kind (LH_KIND_*); loaded at the first call, with those that it needs. Valid
 * until registry_free. A name that no file has is LH_INVALID, with the nearest that is there. */
lh_status_t registry_load(registry_t *r, uint32_t kind, const char *name,
                          const plugin_t **out) LH_MUST_CHECK;
/* As `name:function` and `name:rule` mean it: one that is loaded already, of any kind; else of kind
 * parts. */
lh_status_t registry_find(registry_t *r, const char *name, const plugin_t **out) LH_MUST_CHECK;
/* Refuses a name that is no plugin's of any kind here; where ("a.ini:3") begins the sentence. */
lh_status_t registry_has(registry_t *r, const char *name, const char *where) LH_MUST_CHECK;
/* How long the child may take in which a plugin is tried; PROBE_MS at first. */
void registry_use_patience(registry_t *r, uint32_t milliseconds);
/* Calls each(context, name) for NAME.so of a kind's folders, in order and each name once; stops at
 * the first status that is not LH_OK. A folder that is not there is empty. */
lh_status_t registry_list(registry_t *r, uint32_t kind,
                          lh_status_t (*each)(void *context, const char *name),
                          void *context) LH_MUST_CHECK;
/* Loads all plugins that are there, kind by kind and in the order of registry_list, and calls
 * each(context, plugin) for those that can be used. One that is refused is passed over without a word:
 * `longhaul plugins` tells why. Stops at the first status that is not LH_OK, or where memory is short. */
lh_status_t registry_each(registry_t *r, lh_status_t (*each)(void *context, const plugin_t *plugin),
                          void *context) LH_MUST_CHECK;
/* All loaded so far, in the order of their loading. */
uint32_t registry_count(const registry_t *r);
const plugin_t *registry_at(const registry_t *r, uint32_t index);

/* Takes a plugin that the core has made of something else than a file, as if it had been loaded:
 * it is copied, but what it points to is the maker's, who frees it in forget(maker) at
 * registry_free. path goes over to the registry's copy. A kind and name that are there already
 * are refused. */
lh_status_t registry_adopt(registry_t *r, plugin_t *made, void (*forget)(void *maker),
                           void *maker) LH_MUST_CHECK;

/* What its functions get as call->config; must live as long as they are called. */
void registry_configure(registry_t *r, const plugin_t *plugin, const void *config);

#endif
