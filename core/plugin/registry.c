/* registry.c - from a name to a loaded plugin, once per process.
 *
 * The way of a plugin: the file is copied and sealed (image.c), its digest held against the job's,
 * its head read, then a child loads it, imports its tables and runs its selftest (probe.c), and
 * only if that went well this process loads it, too. Both do it by the same function,
 * `loaded_bring`; the audit around dlopen (probe.c, too) sees in the child what it could not tell
 * here, where other threads run.
 *
 * A plugin stays loaded until the process ends, also where it is refused after dlopen: its threads,
 * handlers and atexit functions may be in its code, and no dlclose could know. */
#include <plugin/registry.h>

#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <unistd.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <plugin/host.h>
#include <plugin/import.h>
#include <plugin/probe.h>

/* One plugin that is loaded, at an address of its own: readers keep pointers to `plugin`. */
typedef struct loaded {
    plugin_t plugin;
    importer_t importer;         /* owns what `plugin` points to */
    void *config;                /* of kind parts, parsed here */
    void (*forget)(void *maker); /* NULL: it was loaded; else made by the core */
    void *maker;
} loaded_t;

struct registry {
    char **folders; /* absolute, in the order that they are searched      */
    uint32_t folder_count;
    size_t folder_capacity;
    text_t folder_text;   /* of all, for sentences                              */
    host_t *host;         /* the caller's                                       */
    const job_t *job;     /* NULL: nothing is pinned, parts get no config       */
    uint32_t patience_ms; /* for the trial of one plugin                        */
    loaded_t **plugins;   /* in the order of loading                            */
    uint32_t count;
    size_t capacity;
};

/* ../lib/longhaul seen from the program's own file: an installed tree can be moved anywhere, and no
 * environment variable decides whose code runs. */
static lh_status_t folder_beside_program(char **out)
{
    char *root;
    const lh_status_t status = path_program_root(&root);
    if (status != LH_OK) return status;
    *out = path_join(root, "lib/longhaul");
    mem_free(root);
    return *out == NULL ? LH_NO_MEMORY : LH_OK;
}

/* Takes the folder, which is NULL without memory. The text is made here, so that sentences need no
 * memory of their own. */
static lh_status_t registry_take_folder(registry_t *r, char *folder)
{
    char **folders = folder == NULL ? NULL
                                    : mem_grow(r->folders, &r->folder_capacity,
                                               r->folder_count + 1u, sizeof(*folders));
    if (folders != NULL) r->folders = folders;
    text_printf(&r->folder_text, "%s%s", r->folder_count > 0 ? ", " : "",
                folder == NULL ? "" : folder);
    if (folders == NULL || r->folder_text.failed) {
        mem_free(folder);
        return LH_NO_MEMORY;
    }
    r->folders[r->folder_count++] = folder;
    return LH_OK;
}

lh_status_t registry_add_folder(registry_t *r, const char *folder)
{
    lh_assert(r->folder_count > 0);
    if (folder[0] != '/')
        return fail(LH_INVALID, "%s: the folder of plugins is not an absolute path", folder);
    return registry_take_folder(r, mem_text(folder));
}

/* Nothing is opened here: a folder that is not there is found out by the first plugin. */
lh_status_t registry_new(const char *folder, host_t *host, registry_t **out)
{
    if (folder != NULL && folder[0] != '/')
        return fail(LH_INVALID, "%s: the folder of plugins is not an absolute path", folder);
    registry_t *r = mem_new(sizeof(*r));
    if (r == NULL) return LH_NO_MEMORY;
    r->host = host;
    r->patience_ms = PROBE_MS;
    lh_status_t status = LH_OK;
    char *first = NULL;
    if (folder == NULL)
        status = folder_beside_program(&first);
    else
        first = mem_text(folder);
    if (status == LH_OK) status = registry_take_folder(r, first);
    if (status != LH_OK) {
        registry_free(r);
        return status;
    }
    *out = r;
    return LH_OK;
}

/* Frees what was copied and what was parsed for it; the code stays mapped, as threads or handlers
 * may still be in it. Also for one that was loaded in part. */
static void loaded_free(loaded_t *l)
{
    if (l == NULL) return;
    const option_table_t options = plugin_options(&l->plugin);
    if (l->config != NULL) job_free_config(&options, l->config);
    import_free(&l->importer);
    plugin_origin_free(&l->plugin.origin);
    mem_free(l->plugin.path);
    if (l->forget != NULL) l->forget(l->maker);
    mem_free(l);
}

/* In the order of loading: nothing of one plugin's tables leads to another's. */
void registry_free(registry_t *r)
{
    if (r == NULL) return;
    for (uint32_t i = 0; i < r->count; i++)
        loaded_free(r->plugins[i]);
    mem_free(r->plugins);
    for (uint32_t i = 0; i < r->folder_count; i++)
        mem_free(r->folders[i]);
    mem_free(r->folders);
    text_free(&r->folder_text);
    mem_free(r);
}

const char *const *registry_folders(const registry_t *r, uint32_t *count)
{
    *count = r->folder_count;
    return (const char *const *)r->folders;
}

const char *registry_folder_text(const registry_t *r)
{
    return r->folder_text.data;
}

host_t *registry_host(const registry_t *r)
{
    return r->host;
}

void registry_use_job(registry_t *r, const job_t *job)
{
    r->job = job;
}

void registry_use_patience(registry_t *r, uint32_t milliseconds)
{
    lh_assert(milliseconds > 0);
    r->patience_ms = milliseconds;
}

uint32_t registry_count(const registry_t *r)
{
    return r->count;
}

const plugin_t *registry_at(const registry_t *r, uint32_t index)
{
    lh_assert(index < r->count);
    return &r->plugins[index]->plugin;
}

/* From the system's listing of files to the caller's of names. */
typedef struct lister {
    lh_status_t (*each)(void *context, const char *name);
    void *context;
    lh_status_t status;
    const registry_t *registry;
    uint32_t kind, folder; /* which of the registry's is listed */
} lister_t;

/* FOLDER/<kind>s/NAME.so into *out, which the caller frees; NULL without memory. */
static char *path_in(const registry_t *r, uint32_t folder, uint32_t kind, const char *name)
{
    text_t path = {0};
    text_printf(&path, "%s/%s/%s.so", r->folders[folder], plugin_kind_folder(kind), name);
    if (path.failed) text_free(&path);
    return path.data;
}

/* *hidden: one of the folders before has a file of that name. */
static lh_status_t look_before(const lister_t *l, const char *name, bool *hidden)
{
    *hidden = false;
    for (uint32_t i = 0; i < l->folder && !*hidden; i++) {
        char *path = path_in(l->registry, i, l->kind, name);
        if (path == NULL) return LH_NO_MEMORY;
        *hidden = file_exists(path);
        mem_free(path);
    }
    return LH_OK;
}

/* Files that are no NAME.so with a name that a plugin may have are passed over. */
static int list_entry(void *context, const char *entry)
{
    lister_t *l = context;
    char name[32];
    const size_t length = strlen(entry);
    if (length < 4 || length - 3 >= sizeof(name) || strcmp(entry + length - 3, ".so") != 0)
        return 0;
    memcpy(name, entry, length - 3);
    name[length - 3] = '\0';
    bool hidden;
    if (!plugin_name_fits(name)) return 0;
    l->status = look_before(l, name, &hidden);
    if (l->status == LH_OK && !hidden) l->status = l->each(l->context, name);
    return l->status == LH_OK ? 0 : 1;
}

/* A folder that can't be listed counts as an empty one: what is in it can't be loaded either. */
lh_status_t registry_list(registry_t *r, uint32_t kind,
                          lh_status_t (*each)(void *context, const char *name), void *context)
{
    lister_t l = {.each = each, .context = context, .registry = r, .kind = kind};
    for (l.folder = 0; l.folder < r->folder_count && l.status == LH_OK; l.folder++) {
        char *folder = path_join(r->folders[l.folder], plugin_kind_folder(kind));
        if (folder == NULL) return LH_NO_MEMORY;
        (void)sys()->list(folder, list_entry, &l);
        mem_free(folder);
    }
    return l.status;
}

/* What registry_each hands to registry_list, kind by kind. */
typedef struct each_usable {
    lh_status_t (*each)(void *context, const plugin_t *plugin);
    void *context;
    registry_t *registry;
    uint32_t kind;
} each_usable_t;

static lh_status_t usable_load(void *context, const char *name)
{
    const each_usable_t *u = context;
    const plugin_t *p;
    const lh_status_t status = registry_load(u->registry, u->kind, name, &p);
    if (status == LH_OK) return u->each(u->context, p);
    if (status == LH_NO_MEMORY) return status;
    fail_clear();
    return LH_OK;
}

lh_status_t registry_each(registry_t *r, lh_status_t (*each)(void *context, const plugin_t *plugin),
                          void *context)
{
    each_usable_t u = {.each = each, .context = context, .registry = r};
    lh_status_t status = LH_OK;
    for (u.kind = LH_KIND_MODEL; u.kind <= LH_KIND_PARTS && status == LH_OK; u.kind++)
        status = registry_list(r, u.kind, usable_load, &u);
    return status;
}

/* The nearest name so far to one that was typed. Names of a listing do not outlive it: so it is
 * copied. */
typedef struct guess {
    const char *typed;
    char best[32]; /* "": none is near enough */
    size_t distance;
} guess_t;

/* For registry_list: keeps the name if it is nearer than the one before. */
static lh_status_t guess_name(void *context, const char *name)
{
    guess_t *g = context;
    text_nearest_t near = {.typed = g->typed};
    text_nearest_offer(&near, name);
    if (text_nearest_name(&near) == NULL) return LH_OK;
    if (g->best[0] != '\0' && near.distance >= g->distance) return LH_OK;
    (void)snprintf(g->best, sizeof(g->best), "%s", name);
    g->distance = near.distance;
    return LH_OK;
}

/* The path and, where one is near, the plugin that may have been meant. */
static lh_status_t refuse_missing_plugin(registry_t *r, uint32_t kind, const char *name,
                                         const char *path)
{
    guess_t guess = {.typed = name};
    if (registry_list(r, kind, guess_name, &guess) != LH_OK || guess.best[0] == '\0')
        return fail(LH_INVALID, "%s: there is no %s plugin '%s'", path, plugin_kind_text(kind),
                    name);
    return fail(LH_INVALID, "%s: there is no %s plugin '%s'; did you mean '%s'?", path,
                plugin_kind_text(kind), name, guess.best);
}

/* Asked of names in an INI that are loaded later, or never: nothing is opened for it. */
lh_status_t registry_has(registry_t *r, const char *name, const char *where)
{
    guess_t guess = {.typed = name};
    for (uint32_t kind = LH_KIND_MODEL; kind <= LH_KIND_PARTS; kind++) {
        const lh_status_t status = registry_list(r, kind, guess_name, &guess);
        if (status != LH_OK) return status;
    }
    if (strcmp(guess.best, name) == 0) return LH_OK;
    return fail(LH_INVALID, "%s: there is no plugin '%s' in %s%s%s%s", where, name,
                registry_folder_text(r), guess.best[0] != '\0' ? "; did you mean '" : "",
                guess.best, guess.best[0] != '\0' ? "'?" : "");
}

/* All that is decided from the image alone: no code of the plugin has run yet. */
static lh_status_t check_head(const image_t *image, const char *path, uint32_t kind,
                              const char *name)
{
    image_head_t head;
    const char *wrong = image_peek(image->map, &head);
    if (wrong != NULL) return fail(LH_ABI, "%s: %s, expected a plugin", path, wrong);
    if (head.abi_version >> 16 != LH_ABI_MAJOR)
        return fail(LH_ABI, "%s: built for ABI %u.%u, this host has %u.%u: build it anew", path,
                    head.abi_version >> 16, head.abi_version & 0xffff, LH_ABI_MAJOR, LH_ABI_MINOR);
    if (head.kind != kind)
        return fail(LH_ABI, "%s: is of kind %s (%u), expected %s", path,
                    plugin_kind_text(head.kind), head.kind, plugin_kind_text(kind));
    if (memchr(head.name, '\0', sizeof(head.name)) == NULL || strcmp(head.name, name) != 0)
        return fail(LH_ABI, "%s: calls itself '%.32s', expected '%s'", path, head.name, name);
    if (head.struct_size < offsetof(lh_plugin_t, options) || head.struct_size % 8 != 0)
        return fail(LH_ABI,
                    "%s: " LH_PLUGIN_SYMBOL " has %u bytes, expected a multiple of 8 from %zu",
                    path, head.struct_size, offsetof(lh_plugin_t, options));
    return LH_OK;
}

/* dlopen between two looks at the process. RTLD_NOW, so that a symbol that lacks is told here and
 * not in the middle of a step; RTLD_LOCAL, so that two plugins may have functions of one name.
 * dlerror's sentence begins with the path in /proc, which says nothing to a user and is cut off. */
static lh_status_t run_loader(const image_t *image, const char *path, void **symbol,
                              uintptr_t *load_base, plugin_origin_t *origin)
{
    char file[64];
    struct link_map *map;
    audit_t before;
    probe_audit(probe_is_child(), &before); /* the child has no other thread */
    (void)snprintf(file, sizeof(file), "/proc/self/fd/%d", image->fd);
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        const char *why = dlerror();
        const size_t prefix = strlen(file);
        if (why != NULL && strncmp(why, file, prefix) == 0)
            why += prefix + strspn(why + prefix, ": ");
        return fail(LH_ABI, "%s: cannot be loaded: %s", path,
                    why != NULL ? why : "no reason given");
    }
    *symbol = dlsym(handle, LH_PLUGIN_SYMBOL);
    if (*symbol == NULL || dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0)
        return fail(LH_ABI, "%s: loaded without " LH_PLUGIN_SYMBOL, path);
    *load_base = (uintptr_t)map->l_addr;
    const lh_status_t status = probe_check_audit(&before, path);
    return status == LH_OK ? plugin_origin_find(map, origin) : status;
}

/* The head in memory must be the one that was read from the file: relocations or a constructor may
 * have changed it, or the loader has read the file in another way. */
static lh_status_t check_same_head(const loaded_t *l, const void *symbol, const char *path)
{
    image_head_t head;
    if (image_peek(l->importer.image, &head) != NULL ||
        image_room(l->importer.image, (uintptr_t)symbol - l->importer.load_base) < sizeof(head) ||
        memcmp(&head, symbol, sizeof(head)) != 0)
        return fail(LH_ABI, "%s: the head of " LH_PLUGIN_SYMBOL " is another one once it is loaded",
                    path);
    return LH_OK;
}

/* dlopen and tables: in the child that tries the plugin, and again here when that went well. */
static lh_status_t loaded_bring(const image_t *image, loaded_t *l)
{
    lh_assert(l->plugin.path != NULL && l->importer.plugin == &l->plugin);
    void *symbol = NULL;
    const char *path = l->plugin.path;
    probe_reached(PROBE_LOADING);
    lh_status_t status = run_loader(image, path, &symbol, &l->importer.load_base,
                                    &l->plugin.origin);
    if (status == LH_OK) status = check_same_head(l, symbol, path);
    probe_reached(PROBE_TABLES);
    if (status == LH_OK) status = import_plugin(&l->importer, symbol);
    return status;
}

/* What the child works on: its copy of the parent's structs. */
typedef struct attempt {
    const image_t *image;
    loaded_t *loaded;
} attempt_t;

/* What the child does. The selftest may start threads and drivers, which no fork survives: it never
 * runs in the parent. A selftest that fails without a sentence gets the text of its status. */
static lh_status_t attempt_run(void *context)
{
    const attempt_t *a = context;
    const plugin_t *p = &a->loaded->plugin;
    const lh_status_t status = loaded_bring(a->image, a->loaded);
    if (status != LH_OK || p->row.selftest == NULL) return status;
    probe_reached(PROBE_SELFTEST);
    fail_clear();
    const lh_status_t tested = p->row.selftest(p->host);
    if (tested == LH_OK) return LH_OK;
    char reason[1024];
    (void)snprintf(reason, sizeof(reason), "%s",
                   fail_reason()[0] != '\0' ? fail_reason() : status_text(tested));
    return fail(LH_UNSUPPORTED, "%s: its selftest fails: %s", p->path, reason);
}

/* A plugin of parts has no section of its own kind in a job: [parts.NAME] sets its options. */
static lh_status_t configure_parts(const registry_t *r, loaded_t *l)
{
    char section[64];
    const plugin_t *p = &l->plugin;
    const option_table_t options = plugin_options(p);
    if (p->kind != LH_KIND_PARTS || p->option_count == 0 || r->job == NULL) return LH_OK;
    (void)snprintf(section, sizeof(section), "parts.%s", p->name);
    const lh_status_t status = job_parse_plugin(r->job, section, &options, NULL, 0, &l->config);
    l->plugin.config = l->config;
    return status;
}

/* All that can be known without running the plugin in this process: pin and head, then the trial in
 * a child. */
static lh_status_t check_image(const registry_t *r, loaded_t *l, const image_t *image,
                               uint32_t kind, const char *name)
{
    plugin_t *p = &l->plugin;
    const attempt_t a = {image, l};
    /* The child gets copies of these by fork. */
    const prober_t prober = {.path = p->path,
                             .sha256 = image->sha256,
                             .limit_ms = r->patience_ms,
                             .attempt = attempt_run,
                             .context = (void *)(uintptr_t)&a};
    lh_status_t status = image_check_pin(r->job, p->path, name, image->sha256);
    if (status == LH_OK) status = check_head(image, p->path, kind, name);
    if (status == LH_OK) status = host_for(r->host, name, &p->host);
    return status == LH_OK ? probe(&prober) : status;
}

/* From the file to the plugin in this process. Before dlopen a refused image is closed; once dlopen
 * has seen it, it stays open, for the reason in image.h. */
static lh_status_t load_image(registry_t *r, loaded_t *l, uint32_t kind, const char *name)
{
    image_t image;
    plugin_t *p = &l->plugin;
    const uint64_t limit = r->job != NULL ? r->job->limits.plugin_bytes : IMAGE_LIMIT;
    lh_status_t status = image_open(p->path, name, limit, &image);
    if (status != LH_OK) return status;
    /* By this a report says which build of a plugin has run: versions are what authors remember to
     * count. */
    memcpy(p->sha256, image.sha256, sizeof(p->sha256));
    l->importer = (importer_t){.path = p->path, .image = image.map, .plugin = p};
    status = check_image(r, l, &image, kind, name);
    if (status != LH_OK) {
        image_close(&image);
        return status;
    }
    status = loaded_bring(&image, l);
    return status == LH_OK ? configure_parts(r, l) : status;
}

/* The first folder's that has it. */
static lh_status_t find_plugin_file(registry_t *r, uint32_t kind, const char *name, char **out)
{
    for (uint32_t i = 0; i < r->folder_count; i++) {
        char *path = path_in(r, i, kind, name);
        if (path == NULL) return LH_NO_MEMORY;
        if (file_exists(path)) {
            *out = path;
            return LH_OK;
        }
        mem_free(path);
    }
    char *path = path_in(r, 0, kind, name);
    if (path == NULL) return LH_NO_MEMORY;
    const lh_status_t status = refuse_missing_plugin(r, kind, name, path);
    mem_free(path);
    return status;
}

/* One that a plugin needs: loaded already, or of kind parts, or of the kind that alone has a file
 * of that name. A job loads its plugins one after the other, and what a model needs may be the
 * optimizer, which comes last. */
static lh_status_t find_needed(registry_t *r, const char *name, const plugin_t **out)
{
    uint32_t kinds = 0, kind = LH_KIND_PARTS;
    bool settled = !plugin_name_fits(name);
    for (uint32_t i = 0; i < r->count; i++)
        settled = settled || strcmp(r->plugins[i]->plugin.name, name) == 0;
    for (uint32_t k = LH_KIND_MODEL; k <= LH_KIND_PARTS && !settled; k++) {
        const lister_t all = {.registry = r, .kind = k, .folder = r->folder_count};
        bool there;
        const lh_status_t status = look_before(&all, name, &there);
        if (status != LH_OK) return status;
        if (!there) continue;
        kinds++;
        kind = k;
        settled = k == LH_KIND_PARTS;
    }
    if (settled || kinds == 0) return registry_find(r, name, out);
    if (kinds == 1) return registry_load(r, kind, name, out);
    return fail(LH_INVALID, "plugins of %u kinds have that name, and none of them is loaded yet",
                kinds);
}

/* "acme_ops, acme_rules". The plugin is in the list by now, so one that needs itself, or two that
 * need each other, are loaded once. A need that fails is told with who has it; the plugin stays
 * loaded, and nobody uses it, as the job is refused. */
static lh_status_t load_needs(registry_t *r, const plugin_t *plugin)
{
    if (plugin->row.needs == NULL) return LH_OK;
    char *list = mem_text(plugin->row.needs), *rest = NULL;
    lh_status_t status = list == NULL ? LH_NO_MEMORY : LH_OK;
    for (char *name = list == NULL ? NULL : strtok_r(list, ",", &rest);
         name != NULL && status == LH_OK; name = strtok_r(NULL, ",", &rest)) {
        const plugin_t *other;
        status = find_needed(r, text_trim(name), &other);
        if (status == LH_OK || status == LH_NO_MEMORY) continue;
        char reason[1024];
        (void)snprintf(reason, sizeof(reason), "%s", fail_reason());
        status = fail(status, "%s needs the plugin '%s': %s", plugin->path, name, reason);
    }
    mem_free(list);
    return status;
}

/* A plugin that no list has yet. The list grows before anything is loaded, so that a plugin that
 * runs can always be entered. */
static lh_status_t registry_load_new(registry_t *r, uint32_t kind, const char *name,
                                     const plugin_t **out)
{
    lh_assert(plugin_kind(kind) != NULL && plugin_name_fits(name));
    char *path = NULL;
    lh_status_t status = find_plugin_file(r, kind, name, &path);
    if (status != LH_OK) return status;
    status = LH_NO_MEMORY;
    loaded_t **plugins = mem_grow(r->plugins, &r->capacity, r->count + 1u, sizeof(*plugins));
    if (plugins != NULL) r->plugins = plugins;
    loaded_t *l = plugins == NULL ? NULL : mem_new(sizeof(*l));
    if (l == NULL) {
        mem_free(path);
        return status;
    }
    l->plugin.path = path; /* the plugin's from here on */
    status = load_image(r, l, kind, name);
    if (status != LH_OK) {
        loaded_free(l);
        return status;
    }
    r->plugins[r->count++] = l;
    *out = &l->plugin;
    return load_needs(r, &l->plugin);
}

/* A plugin is known by kind and name: two kinds may have one name. */
lh_status_t registry_load(registry_t *r, uint32_t kind, const char *name, const plugin_t **out)
{
    if (plugin_kind(kind) == NULL) return fail(LH_INVALID, "%u is no kind of plugin", kind);
    if (!plugin_name_fits(name)) return plugin_refuse_name(name);
    for (uint32_t i = 0; i < r->count; i++) {
        const plugin_t *p = &r->plugins[i]->plugin;
        if (p->kind != kind || strcmp(p->name, name) != 0) continue;
        *out = p;
        return load_needs(r, p); /* some may not have been there the first time */
    }
    return registry_load_new(r, kind, name, out);
}

/* An INI says plugin:name without a kind, so a name that two kinds have is refused. */
lh_status_t registry_find(registry_t *r, const char *name, const plugin_t **out)
{
    const plugin_t *found = NULL;
    for (uint32_t i = 0; i < r->count; i++) {
        const plugin_t *p = &r->plugins[i]->plugin;
        if (strcmp(p->name, name) != 0) continue;
        if (found != NULL)
            return fail(LH_INVALID, "'%s' is the name of two plugins here: %s and %s", name,
                        found->path, p->path);
        found = p;
    }
    /* Nobody has named it yet: functions and rules without a model or transport are a plugin of
     * parts. */
    if (found == NULL) return registry_load(r, LH_KIND_PARTS, name, out);
    *out = found;
    return LH_OK;
}

lh_status_t registry_adopt(registry_t *r, plugin_t *made, void (*forget)(void *maker), void *maker)
{
    lh_assert(made->path != NULL && forget != NULL && plugin_name_fits(made->name));
    for (uint32_t i = 0; i < r->count; i++)
        if (r->plugins[i]->plugin.kind == made->kind &&
            strcmp(r->plugins[i]->plugin.name, made->name) == 0)
            return fail(LH_INVALID, "%s: the plugin %s is there already: %s", made->path,
                        made->name, r->plugins[i]->plugin.path);
    loaded_t **plugins = mem_grow(r->plugins, &r->capacity, r->count + 1u, sizeof(*plugins));
    if (plugins == NULL) return LH_NO_MEMORY;
    r->plugins = plugins;
    loaded_t *l = mem_new(sizeof(*l));
    if (l == NULL) return LH_NO_MEMORY;
    l->plugin = *made;
    l->forget = forget;
    l->maker = maker;
    made->path = NULL;
    r->plugins[r->count++] = l;
    return LH_OK;
}

/* Readers have a const plugin: the one that the registry owns is looked for. */
void registry_configure(registry_t *r, const plugin_t *plugin, const void *config)
{
    uint32_t i = 0;
    while (i < r->count && &r->plugins[i]->plugin != plugin)
        i++;
    lh_assert(i < r->count);
    r->plugins[i]->plugin.config = config;
}
