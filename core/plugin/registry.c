/* registry.c - from a name to a loaded plugin, once per process. */
#include <plugin/registry.h>

#include <ctype.h>
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <unistd.h>

#include <base/file.h>
#include <base/memory.h>
#include <base/sys.h>
#include <plugin/audit.h>
#include <plugin/host.h>
#include <plugin/import.h>
#include <plugin/probe.h>

typedef struct loaded {
    plugin_t plugin;
    importer_t importer;
    void *config; /* of kind parts, parsed here */
} loaded_t;

struct registry {
    char *folder;
    host_t *host;
    const job_t *job;
    uint32_t patience_ms;
    loaded_t **plugins;
    uint32_t count;
    size_t capacity;
};

/* ../lib/longhaul seen from the program's own file, wherever it was moved to. */
static char *folder_beside_program(void)
{
    char program[4096];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
    if (length <= 0 || (size_t)length >= sizeof(program) - 1) {
        (void)fail_io(errno, "/proc/self/exe: cannot tell where the program lies");
        return NULL;
    }
    program[length] = '\0';
    char *bin = path_folder(program);
    char *root = bin == NULL ? NULL : path_folder(bin);
    char *folder = root == NULL ? NULL : path_join(root, "lib/longhaul");
    mem_free(bin);
    mem_free(root);
    return folder;
}

lh_status_t registry_new(const char *folder, host_t *host, registry_t **out)
{
    if (folder != NULL && folder[0] != '/')
        return fail(LH_INVALID, "%s: the folder of plugins is not an absolute path", folder);
    registry_t *r = mem_new(sizeof(*r));
    if (r == NULL) return LH_NO_MEMORY;
    r->host = host;
    r->patience_ms = PROBE_MS;
    r->folder = folder != NULL ? mem_text(folder) : folder_beside_program();
    if (r->folder == NULL) {
        mem_free(r);
        return LH_NO_MEMORY;
    }
    *out = r;
    return LH_OK;
}

/* Frees what was copied; the code stays mapped, as threads or handlers may still be in it. */
static void loaded_free(loaded_t *l)
{
    if (l == NULL) return;
    const option_table_t options = plugin_options(&l->plugin);
    if (l->config != NULL) job_free_config(&options, l->config);
    import_free(&l->importer);
    plugin_origin_free(&l->plugin.origin);
    mem_free(l->plugin.path);
    mem_free(l);
}

void registry_free(registry_t *r)
{
    if (r == NULL) return;
    for (uint32_t i = 0; i < r->count; i++)
        loaded_free(r->plugins[i]);
    mem_free(r->plugins);
    mem_free(r->folder);
    mem_free(r);
}

const char *registry_folder(const registry_t *r)
{
    return r->folder;
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

typedef struct lister {
    lh_status_t (*each)(void *context, const char *name);
    void *context;
    lh_status_t status;
} lister_t;

static int list_entry(void *context, const char *entry)
{
    lister_t *l = context;
    char name[32];
    const size_t length = strlen(entry);
    if (length < 4 || length - 3 >= sizeof(name) || strcmp(entry + length - 3, ".so") != 0)
        return 0;
    memcpy(name, entry, length - 3);
    name[length - 3] = '\0';
    if (!plugin_name_fits(name)) return 0;
    l->status = l->each(l->context, name);
    return l->status == LH_OK ? 0 : 1;
}

lh_status_t registry_list(registry_t *r, uint32_t kind,
                          lh_status_t (*each)(void *context, const char *name), void *context)
{
    lister_t l = {each, context, LH_OK};
    char *folder = path_join(r->folder, plugin_kind_folder(kind));
    if (folder == NULL) return LH_NO_MEMORY;
    (void)sys()->list(folder, list_entry, &l);
    mem_free(folder);
    return l.status;
}

typedef struct guess {
    const char *typed;
    char best[32];
    size_t distance;
} guess_t;

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

static lh_status_t refuse_missing(registry_t *r, uint32_t kind, const char *name, const char *path)
{
    guess_t guess = {.typed = name};
    if (registry_list(r, kind, guess_name, &guess) != LH_OK || guess.best[0] == '\0')
        return fail(LH_INVALID, "%s: there is no %s plugin '%s'", path, plugin_kind_text(kind),
                    name);
    return fail(LH_INVALID, "%s: there is no %s plugin '%s'; did you mean '%s'?", path,
                plugin_kind_text(kind), name, guess.best);
}

lh_status_t registry_has(registry_t *r, const char *name, const char *where)
{
    guess_t guess = {.typed = name};
    for (uint32_t kind = LH_KIND_MODEL; kind <= LH_KIND_PARTS; kind++) {
        const lh_status_t status = registry_list(r, kind, guess_name, &guess);
        if (status != LH_OK) return status;
    }
    if (strcmp(guess.best, name) == 0) return LH_OK;
    return fail(LH_INVALID, "%s: there is no plugin '%s' in %s%s%s%s", where, name, r->folder,
                guess.best[0] != '\0' ? "; did you mean '" : "", guess.best,
                guess.best[0] != '\0' ? "'?" : "");
}

/* All that is decided from the file, before any of its code runs. */
/* Of the image alone: no byte of the plugin has run yet. */
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

static lh_status_t run_loader(const image_t *image, const char *path, void **symbol,
                              uintptr_t *load_base, plugin_origin_t *origin)
{
    char file[64];
    struct link_map *map;
    audit_t before;
    audit_take(probe_is_child(), &before);
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
    const lh_status_t status = audit_check(&before, path);
    return status == LH_OK ? plugin_origin_find(map, origin) : status;
}

/* Relocations or a constructor may have changed what peek saw. */
/* The head that dlopen sees must be the one that was peeked at: another would mean that the file was
 * read in two ways. */
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

/* dlopen, tables, selftest: in the child that tries the plugin, and again here when that went well. */
static lh_status_t bring(const image_t *image, loaded_t *l)
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

typedef struct attempt {
    const image_t *image;
    loaded_t *loaded;
} attempt_t;

/* In the child. The selftest may start threads and drivers: it never runs in the parent. */
static lh_status_t attempt_run(void *context)
{
    const attempt_t *a = context;
    const plugin_t *p = &a->loaded->plugin;
    const lh_status_t status = bring(a->image, a->loaded);
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

/* All that can be known without running the plugin in this process. */
/* What can be known before any of its code runs, then the trial in a child. */
static lh_status_t check_image(const registry_t *r, loaded_t *l, const image_t *image,
                               uint32_t kind, const char *name)
{
    plugin_t *p = &l->plugin;
    const attempt_t a = {image, l};
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

/* The image is not closed once dlopen has seen it: see image.h. */
static lh_status_t load_image(registry_t *r, loaded_t *l, uint32_t kind, const char *name)
{
    image_t image;
    plugin_t *p = &l->plugin;
    const uint64_t limit = r->job != NULL ? r->job->limits.plugin_bytes : IMAGE_LIMIT;
    lh_status_t status = image_open(p->path, name, limit, &image);
    if (status != LH_OK) return status;
    memcpy(p->sha256, image.sha256, sizeof(p->sha256));
    l->importer = (importer_t){.path = p->path, .image = image.map, .plugin = p};
    status = check_image(r, l, &image, kind, name);
    if (status != LH_OK) {
        image_close(&image);
        return status;
    }
    status = bring(&image, l);
    return status == LH_OK ? configure_parts(r, l) : status;
}

static lh_status_t load(registry_t *r, uint32_t kind, const char *name, const plugin_t **out)
{
    lh_assert(plugin_kind(kind) != NULL);
    text_t path = {0};
    text_printf(&path, "%s/%s/%s.so", r->folder, plugin_kind_folder(kind), name);
    if (path.failed) {
        text_free(&path);
        return LH_NO_MEMORY;
    }
    lh_status_t status = LH_NO_MEMORY;
    loaded_t **plugins = mem_grow(r->plugins, &r->capacity, r->count + 1u, sizeof(*plugins));
    if (plugins != NULL) r->plugins = plugins;
    loaded_t *l = plugins == NULL ? NULL : mem_new(sizeof(*l));
    if (l == NULL) goto free_path;
    if (!file_exists(path.data)) {
        status = refuse_missing(r, kind, name, path.data);
        goto free_loaded;
    }
    l->plugin.path = path.data;
    path = (text_t){0};
    status = load_image(r, l, kind, name);
    if (status != LH_OK) goto free_loaded;
    r->plugins[r->count++] = l;
    *out = &l->plugin;
    return LH_OK;

free_loaded:
    loaded_free(l);
free_path:
    text_free(&path);
    return status;
}

lh_status_t registry_load(registry_t *r, uint32_t kind, const char *name, const plugin_t **out)
{
    if (plugin_kind(kind) == NULL) return fail(LH_INVALID, "%u is no kind of plugin", kind);
    if (!plugin_name_fits(name)) return plugin_refuse_name(name);
    for (uint32_t i = 0; i < r->count; i++) {
        const plugin_t *p = &r->plugins[i]->plugin;
        if (p->kind != kind || strcmp(p->name, name) != 0) continue;
        *out = p;
        return LH_OK;
    }
    return load(r, kind, name, out);
}

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
    if (found == NULL) return registry_load(r, LH_KIND_PARTS, name, out);
    *out = found;
    return LH_OK;
}

void registry_configure(registry_t *r, const plugin_t *plugin, const void *config)
{
    for (uint32_t i = 0; i < r->count; i++)
        if (&r->plugins[i]->plugin == plugin) r->plugins[i]->plugin.config = config;
}
