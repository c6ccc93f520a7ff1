/* plugin.c - a plugin that is loaded, and what one of each kind must bring: a row a kind, with its
 * required functions. A kind is one row here and one api in the SDK's header of that name. */
#include <plugin/plugin.h>

#include <ctype.h>
#include <string.h>

#define NEED(T, f)         \
    {                      \
#f, offsetof(T, f) \
    }
#define MODEL(f) NEED(lh_model_api_t, f)
#define TRANSPORT(f) NEED(lh_transport_api_t, f)
#define OPTIMIZER(f) NEED(lh_optimizer_api_t, f)
#define DEVICE(f) NEED(lh_device_api_t, f)
#define END     \
    {           \
        NULL, 0 \
    }

static const required_t model_required[] = {
    MODEL(open), MODEL(close), MODEL(describe), MODEL(record), END,
};
static const required_t transport_required[] = {
    TRANSPORT(open),
    TRANSPORT(close),
    TRANSPORT(nic_count),
    TRANSPORT(nic_info),
    TRANSPORT(listen),
    TRANSPORT(accept),
    TRANSPORT(admit),
    TRANSPORT(close_listener),
    TRANSPORT(connect),
    TRANSPORT(cancel),
    TRANSPORT(close_conn),
    TRANSPORT(register_memory),
    TRANSPORT(release_memory),
    TRANSPORT(isend),
    TRANSPORT(irecv),
    TRANSPORT(poll),
    END,
};
static const required_t optimizer_required[] = {
    OPTIMIZER(open),
    OPTIMIZER(close),
    OPTIMIZER(describe),
    END,
};
static const required_t device_required[] = {
    DEVICE(count),     DEVICE(open),       DEVICE(close),      DEVICE(properties),
    DEVICE(alloc),     DEVICE(release),    DEVICE(stream_new), DEVICE(stream_free),
    DEVICE(event_new), DEVICE(event_free), DEVICE(record),     DEVICE(wait),
    DEVICE(test),      DEVICE(copy),       DEVICE(fill),       END,
};

#define UP_TO(T, f) (offsetof(T, f) + sizeof(((T *)0)->f))
#define KIND(K, n, T, last) \
    [LH_KIND_##             \
        K] = {#n, #n "s", #n, offsetof(lh_plugin_t, n), sizeof(T), UP_TO(T, last), n##_required}

static const plugin_kind_t kinds[] = {
    KIND(MODEL, model, lh_model_api_t, record),
    KIND(TRANSPORT, transport, lh_transport_api_t, poll),
    KIND(OPTIMIZER, optimizer, lh_optimizer_api_t, describe),
    KIND(DEVICE, device, lh_device_api_t, fill),
    [LH_KIND_PARTS] = {"parts", "parts", NULL, 0, 0, 0, NULL},
};

const plugin_kind_t *plugin_kind(uint32_t kind)
{
    return kind == 0 || kind >= sizeof(kinds) / sizeof(kinds[0]) ? NULL : &kinds[kind];
}

const char *plugin_kind_lacks(const plugin_kind_t *kind, const void *api)
{
    for (const required_t *r = kind->required; r->name != NULL; r++) {
        void (*fn)(void);
        memcpy(&fn, (const char *)api + r->offset, sizeof(fn));
        if (fn == NULL) return r->name;
    }
    return NULL;
}

const char *plugin_kind_text(uint32_t kind)
{
    const plugin_kind_t *k = plugin_kind(kind);
    return k != NULL ? k->name : "unknown";
}

const char *plugin_kind_folder(uint32_t kind)
{
    const plugin_kind_t *k = plugin_kind(kind);
    return k != NULL ? k->folder : "unknown";
}

option_table_t plugin_options(const plugin_t *plugin)
{
    return (option_table_t){.rows = plugin->options,
                            .count = plugin->option_count,
                            .owner = plugin->name,
                            .config_size = plugin->row.config_size};
}

option_table_t plugin_rule_options(const plugin_t *plugin, const lh_rule_t *rule)
{
    (void)plugin;
    return (option_table_t){.rows = rule->options,
                            .count = rule->option_count,
                            .owner = rule->name,
                            .config_size = rule->config_size};
}

const lh_rule_t *plugin_rule(const plugin_t *plugin, const char *name)
{
    text_nearest_t near = {.typed = name};
    for (uint32_t i = 0; i < plugin->rule_count; i++) {
        if (strcmp(plugin->rules[i].name, name) == 0) return &plugin->rules[i];
        text_nearest_offer(&near, plugin->rules[i].name);
    }
    const char *best = text_nearest_name(&near);
    (void)fail(LH_INVALID, "plugin '%s' has no rule '%s'%s%s%s", plugin->name, name,
               best != NULL ? "; did you mean '" : "", best != NULL ? best : "",
               best != NULL ? "'?" : "");
    return NULL;
}

/* [a-z][a-z0-9_]*, at most 31 bytes: decided before a path is made of it. */
bool plugin_name_fits(const char *name)
{
    const size_t length = strlen(name);
    if (length == 0 || length >= sizeof(((lh_plugin_t *)0)->name)) return false;
    if (!islower((unsigned char)name[0])) return false;
    for (size_t i = 0; i < length; i++)
        if (!islower((unsigned char)name[i]) && !isdigit((unsigned char)name[i]) && name[i] != '_')
            return false;
    return true;
}

lh_status_t plugin_refuse_name(const char *name)
{
    return fail(LH_INVALID, "'%s' is no plugin's name: expected [a-z][a-z0-9_]*, at most %zu bytes",
                name, sizeof(((lh_plugin_t *)0)->name) - 1);
}

lh_status_t plugin_name_split(const char *text, char plugin[32], const char **name)
{
    const char *colon = strchr(text, ':');
    const size_t length = colon == NULL ? 0 : (size_t)(colon - text);
    if (length == 0 || length > 31 || colon[1] == '\0')
        return fail(LH_INVALID, "'%s': expected plugin:name", text);
    memcpy(plugin, text, length);
    plugin[length] = '\0';
    if (!plugin_name_fits(plugin)) return plugin_refuse_name(plugin);
    *name = colon + 1;
    return LH_OK;
}
