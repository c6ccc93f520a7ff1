/* subject.c - finds out about a plugin's file and loads it. */
#include "check.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <base/file.h>
#include <base/log.h>
#include <base/memory.h>
#include <base/philox.h>
#include <base/text.h>
#include <config/options.h>
#include <plugin/host.h>
#include <spec/spec.h>

#include "check_host.h"

static bool is_ini(const char *path)
{
    const char *last = path_name(path);
    const size_t length = strlen(last);
    return length > 4 && strcmp(last + length - 4, ".ini") == 0;
}

/* What is wrong with its text is for the first check to say. */
static lh_status_t read_ini(subject_t *s)
{
    const char *last = path_name(s->path);
    s->spec = true;
    s->name = mem_text_n(last, strlen(last) - 4);
    if (s->name == NULL) return LH_NO_MEMORY;
    if (!file_exists(s->path)) return fail_io(ENOENT, "%s", s->path);
    const lh_status_t status = document_load(s->path, &s->document);
    if (status == LH_NO_MEMORY) return status;
    if (status != LH_OK) (void)snprintf(s->peek_fault, sizeof(s->peek_fault), "%s", fail_reason());
    s->head.kind = LH_KIND_MODEL;
    return LH_OK;
}

static lh_status_t read_file(subject_t *s)
{
    const char *last = path_name(s->path);
    const size_t length = strlen(last);
    if (length < 4 || strcmp(last + length - 3, ".so") != 0)
        return fail(LH_INVALID, "%s: a plugin's file is called NAME.so, a spec's NAME.ini",
                    s->path);
    s->name = mem_text_n(last, length - 3);
    if (s->name == NULL) return LH_NO_MEMORY;
    char *bytes;
    const lh_status_t status = file_read(s->path, IMAGE_LIMIT, &bytes, &s->image.map.size);
    if (status != LH_OK) return status;
    s->image.map.bytes = (unsigned char *)bytes;
    const char *wrong = image_peek(s->image.map, &s->head);
    if (wrong == NULL) return LH_OK;
    s->head.kind = 0;
    (void)snprintf(s->peek_fault, sizeof(s->peek_fault), "%s", wrong);
    return LH_OK;
}

/* Where the loader will find it: FOLDER/<kind>s/NAME.so. A file that lies elsewhere is copied. */
static lh_status_t find_folder(subject_t *s, char **out)
{
    if (s->spec || s->head.kind < LH_KIND_MODEL || s->head.kind > LH_KIND_PARTS) return LH_OK;
    const char *kind = plugin_kind_folder(s->head.kind);
    char *folder = path_folder(s->path), *top = folder == NULL ? NULL : path_folder(folder);
    if (top != NULL && strcmp(path_name(folder), kind) == 0) {
        mem_free(folder);
        *out = top;
        return LH_OK;
    }
    mem_free(folder);
    mem_free(top);
    text_t place = {0};
    text_printf(&place, "%s/%s", s->scratch, kind);
    lh_status_t status = text_status(&place);
    if (status == LH_OK) status = folder_make(place.data);
    text_printf(&place, "/%s.so", s->name);
    if (status == LH_OK) status = text_status(&place);
    if (status == LH_OK) status = file_replace(place.data, s->image.map.bytes, s->image.map.size);
    text_free(&place);
    *out = mem_text(s->scratch);
    return *out == NULL ? LH_NO_MEMORY : status;
}

static lh_status_t make_scratch(subject_t *s)
{
    const char *top = getenv("TMPDIR");
    char text[512];
    (void)snprintf(text, sizeof(text), "%s/longhaul-check-XXXXXX", top != NULL ? top : "/tmp");
    if (mkdtemp(text) == NULL) return fail_io(errno, "%s", text);
    s->scratch = mem_text(text);
    return s->scratch == NULL ? LH_NO_MEMORY : LH_OK;
}

/* The plugin's own folder, where it has one, then the others. */
static lh_status_t open_registry(subject_t *s, const char *own, const char *const *folders,
                                 uint32_t count, registry_t **out)
{
    const char *first = own != NULL ? own : count > 0 ? folders[0] : NULL;
    lh_status_t status = registry_new(first, s->host, out);
    for (uint32_t i = own != NULL ? 0 : 1; i < count && status == LH_OK; i++)
        status = registry_add_folder(*out, folders[i]);
    return status;
}

lh_status_t subject_open(const char *path, const char *const *folders, uint32_t folder_count,
                         subject_t *out)
{
    char *own = NULL;
    subject_t s = {.path = path_absolute(path), .image.fd = -1, .seed = 1};
    lh_status_t status = s.path == NULL ? LH_NO_MEMORY
                         : is_ini(path) ? read_ini(&s)
                                        : read_file(&s);
    if (status == LH_OK) status = make_scratch(&s);
    if (status == LH_OK) status = find_folder(&s, &own);
    if (status == LH_OK) status = host_new(&s.host);
    if (status == LH_OK) status = open_registry(&s, NULL, folders, folder_count, &s.installed);
    if (status == LH_OK && (own != NULL || s.spec)) {
        const char *const *others = registry_folders(s.installed, &folder_count);
        status = open_registry(&s, own, others, folder_count, &s.own);
    }
    mem_free(own);
    if (status == LH_OK)
        *out = s;
    else
        subject_close(&s);
    return status;
}

void subject_close(subject_t *s)
{
    if (s->own != NULL) registry_free(s->own);
    if (s->installed != NULL) registry_free(s->installed);
    document_free(s->document);
    if (s->host != NULL) host_free(s->host);
    if (s->scratch != NULL && folder_remove(s->scratch) != LH_OK)
        log_line(LH_LOG_WARN, "%s", fail_reason());
    mem_free((void *)(uintptr_t)s->image.map.bytes);
    mem_free(s->plugins);
    mem_free(s->scratch);
    mem_free(s->name);
    mem_free(s->path);
}

/* ---- a spec ---- */

const lh_host_t *subject_host(const subject_t *s)
{
    return s->spec ? s->plugin->host : check_host();
}

/* Plugins of parts whose ops its lines call, as in a job. */
static lh_status_t load_ops(subject_t *s)
{
    const document_entry_t *e = document_entry(document_find(s->document, "model"), "ops");
    char *list = e == NULL ? NULL : mem_text(e->value), *rest = list;
    lh_status_t status = e != NULL && list == NULL ? LH_NO_MEMORY : LH_OK;
    while (status == LH_OK && rest != NULL) {
        const plugin_t *plugin;
        status = registry_find(s->own, text_trim(strsep(&rest, ",")), &plugin);
    }
    mem_free(list);
    return status;
}

/* Keys of [model] are the spec's options or the core's; texts count, see subject_config. */
static lh_status_t check_model_keys(const subject_t *s)
{
    const document_section_t *model = document_find(s->document, "model");
    const option_table_t table = plugin_options(s->plugin);
    const job_section_t *core = job_section("model");
    for (uint32_t i = 0; model != NULL && i < model->entry_count; i++) {
        const document_entry_t *e = model->entries[i];
        char where[600];
        bool known = false;
        document_where(e->file, e->line, where, sizeof(where));
        for (uint32_t k = 0; k < core->count; k++)
            known = known || strcmp(core->rows[k].key, e->key) == 0;
        for (uint32_t k = 0; k < table.count && !known; k++) {
            if (strcmp(table.rows[k].key, e->key) != 0) continue;
            const lh_status_t status = option_set(&table.rows[k], e->value, where, "/", NULL);
            if (status != LH_OK) return status;
            known = true;
        }
        if (!known)
            return fail(LH_INVALID, "%s: [model] %s is no option of the spec", where, e->key);
    }
    return LH_OK;
}

static lh_status_t load_spec(subject_t *s)
{
    if (s->document == NULL) return fail(LH_INVALID, "%s", s->peek_fault);
    const document_entry_t *e = document_entry(document_find(s->document, "model"), "plugin");
    if (e != NULL && strcmp(e->value, "spec") != 0)
        return fail(LH_INVALID,
                    "%s: [model] plugin is %s; an INI can be checked where it is spec, a plugin by "
                    "its file",
                    s->path, e->value);
    lh_status_t status = load_ops(s);
    if (status == LH_OK) status = spec_adopt_sections(s->document, s->own);
    if (status == LH_OK) status = registry_load(s->own, LH_KIND_MODEL, "spec", &s->plugin);
    return status == LH_OK ? check_model_keys(s) : status;
}

static void set_texts(const subject_t *s, const option_table_t *table, void *config)
{
    const document_section_t *model = document_find(s->document, "model");
    for (uint32_t i = 0; i < table->count; i++) {
        const document_entry_t *e = document_entry(model, table->rows[i].key);
        if (e != NULL && table->rows[i].type == LH_OPT_STRING)
            check_ok(option_set(&table->rows[i], e->value, "[model]", "/", config), e->key);
    }
}

lh_status_t subject_load(subject_t *s)
{
    if (s->plugin != NULL) return LH_OK;
    if (s->spec) return load_spec(s);
    if (s->own == NULL) return fail(LH_ABI, "%s is %s", s->path, s->peek_fault);
    return registry_load(s->own, s->head.kind, s->name, &s->plugin);
}

const plugin_t *const *subject_plugins(subject_t *s, uint32_t *count)
{
    *count = registry_count(s->own);
    mem_free(s->plugins);
    s->plugins = check_memory(*count, sizeof(*s->plugins));
    for (uint32_t i = 0; i < *count; i++)
        s->plugins[i] = registry_at(s->own, i);
    return s->plugins;
}

op_table_t *subject_ops(subject_t *s)
{
    uint32_t count;
    op_table_t *ops;
    const plugin_t *const *plugins = subject_plugins(s, &count);
    check_ok(op_table_new(&ops), "ops");
    for (uint32_t i = 0; i < count; i++)
        check_ok(op_table_add(ops, plugins[i]->ops, sizeof(*plugins[i]->ops), plugins[i]->op_count,
                              plugins[i]->name),
                 "its ops");
    return ops;
}

const plugin_t *subject_reference(subject_t *s)
{
    const plugin_t *device = NULL;
    if (s->plugin->kind == LH_KIND_DEVICE && strcmp(s->plugin->name, "reference") == 0)
        return s->plugin;
    return registry_load(s->installed, LH_KIND_DEVICE, "reference", &device) == LH_OK ? device
                                                                                      : NULL;
}

/* For a required option: the first of some usual values that its range takes, the last choice. */
static void set_something(const lh_option_t *row, void *config)
{
    static const char *const guesses[] = {"16", "1", "0.5", "yes", "1MiB", "1s", "1Gbps", "text"};
    const char *last = row->type == LH_OPT_CHOICE ? strrchr(row->range, '|') : NULL;
    if (last != NULL && option_set(row, last + 1, "default", "/", config) == LH_OK) return;
    for (size_t i = 0; i < sizeof(guesses) / sizeof(guesses[0]); i++)
        if (option_set(row, guesses[i], "default", "/", config) == LH_OK) return;
    check_fault("option '%s' is required, and no usual value is in its range '%s'", row->key,
                row->range != NULL ? row->range : "");
}

void *options_default(const lh_option_t *rows, uint32_t count, uint64_t bytes)
{
    void *config = check_memory(1, bytes + 64);
    for (uint32_t i = 0; i < count; i++) {
        if (rows[i].fallback == NULL)
            set_something(&rows[i], config);
        else
            check_ok(option_set(&rows[i], rows[i].fallback, rows[i].key, "/", config), "default");
    }
    return config;
}

static bool is_open_to_guess(const subject_t *s, const lh_option_t *row)
{
    const size_t length = strlen(row->key);
    for (uint32_t i = 0; i < s->set_count; i++)
        if (strncmp(s->sets[i], row->key, length) == 0 && s->sets[i][length] == '=') return false;
    return row->fallback == NULL && (row->type == LH_OPT_U64 || row->type == LH_OPT_U32);
}

void subject_draw(const subject_t *s, uint64_t draw, void *config)
{
    enum { POWERS = 6 };
    const option_table_t table = plugin_options(s->plugin);
    for (uint32_t k = 0; k < table.count; k++) {
        char text[16];
        const double number = philox_uniform(0, draw, k);
        if (!is_open_to_guess(s, &table.rows[k])) continue;
        (void)snprintf(text, sizeof(text), "%u", 1u << (uint32_t)(number * POWERS));
        if (option_set(&table.rows[k], text, "guess", "/", config) != LH_OK) continue;
    }
}

/* What open() said, each sentence once. Of many draws that said most often which names no number that
 * was drawn: what no draw can help. */
typedef struct said {
    char text[400];
    uint32_t times;
} said_t;
enum { SAID = 32 };

static void said_count(said_t said[SAID], const char *reason)
{
    uint32_t i = 0;
    while (i < SAID && said[i].times != 0 &&
           strncmp(said[i].text, reason, sizeof(said->text) - 1) != 0)
        i++;
    if (i == SAID) return;
    if (said[i].times++ == 0) (void)snprintf(said[i].text, sizeof(said[i].text), "%s", reason);
}

static const char *said_most(const said_t said[SAID])
{
    uint32_t most = 0;
    for (uint32_t i = 1; i < SAID; i++)
        if (said[i].times > said[most].times) most = i;
    return said[most].text;
}

/* What crosses options (heads that divide a width) only open() knows: draws for the required ones
 * until it agrees. */
static void guess_model(const subject_t *s, void *config)
{
    enum { TRIES = 20000 };
    const lh_model_api_t *api = s->plugin->model;
    static said_t said[SAID];
    memset(said, 0, sizeof(said));
    for (uint64_t i = 0; i < TRIES; i++) {
        lh_model_t *m = NULL;
        check_calls("open()");
        const lh_status_t status = api->open(subject_host(s), config, &m);
        check_calls(NULL);
        if (status == LH_OK) {
            api->close(m);
            return;
        }
        said_count(said, s->spec ? fail_reason() : check_host_reason());
        subject_draw(s, i, config);
    }
    check_fault("no values of its required options were found that it takes (%s); give them with "
                "--set",
                said_most(said));
}

/* config: NULL only checks. */
static lh_status_t set_option(const option_table_t *table, const char *assignment, void *config)
{
    const char *value = strchr(assignment, '=') + 1;
    const size_t length = (size_t)(value - assignment) - 1;
    for (uint32_t i = 0; i < table->count; i++) {
        const lh_option_t *row = &table->rows[i];
        if (strlen(row->key) == length && strncmp(row->key, assignment, length) == 0)
            return option_set(row, value, "--set", "/", config);
    }
    return fail(LH_INVALID, "--set %s: the plugin has no such option", assignment);
}

lh_status_t subject_check_sets(const subject_t *s)
{
    const option_table_t table = plugin_options(s->plugin);
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < s->set_count && status == LH_OK; i++)
        status = set_option(&table, s->sets[i], NULL);
    return status;
}

void *subject_config(const subject_t *s, const plugin_t *plugin)
{
    const option_table_t table = plugin_options(plugin);
    void *config = options_default(table.rows, table.count, table.config_size);
    if (plugin == s->plugin && s->spec) set_texts(s, &table, config);
    for (uint32_t i = 0; i < s->set_count && plugin == s->plugin; i++)
        check_ok(set_option(&table, s->sets[i], config), "--set");
    if (plugin == s->plugin && plugin->kind == LH_KIND_MODEL) guess_model(s, config);
    return config;
}

void subject_need_device(const subject_t *s, const void *config)
{
    uint32_t count = 0;
    if (s->plugin->kind != LH_KIND_DEVICE) return;
    check_host_faults(NULL);
    const lh_status_t status = s->plugin->device->count(check_host(), config, &count);
    if (status == LH_OK && count == 0)
        check_fault("it counts 0 devices and says that all is well, expected '%s' and why",
                    status_text(LH_NO_DEVICE));
    if (status != LH_NO_DEVICE) return;
    if (check_host_reason()[0] == '\0') check_fault("it finds no device and does not say why");
    check_skip("it finds no device here: %s", check_host_reason());
}

static uint32_t entries_of(const char *folder)
{
    uint32_t count = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;)
        count += e->d_name[0] != '.';
    if (d != NULL) (void)closedir(d);
    return count;
}

uint32_t subject_descriptors(void)
{
    return entries_of("/proc/self/fd");
}

uint32_t subject_tasks(void)
{
    return entries_of("/proc/self/task");
}
