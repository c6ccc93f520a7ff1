/* carrier.c - from a section [transport.*] to a transport that listens.
 *
 * What a link needs of a transport is asked for here, before any peer is known: both directions on
 * a connection, memory of the host, and the security that the section names. A transport that lacks
 * one of them is refused with a sentence that names the section. */
#include <links/carrier.h>

#include <stdio.h>
#include <string.h>

#include <base/file.h>
#include <base/memory.h>
#include <plugin/host.h>

const char *const carrier_levels[] = {"plain", "known", "proven", "private"};

/* The value of an entry of defaults.ini as the plugin's name; `path` is for the sentences. */
static lh_status_t copy_name(const char *path, const char *section, const document_entry_t *e,
                             char name[32])
{
    if (e == NULL || e->value == NULL || e->value[0] == '\0')
        return fail(LH_INVALID,
                    "[%s] names no plugin, and %s has none for it either: set plugin = ...",
                    section, path);
    if ((size_t)snprintf(name, 32, "%s", e->value) >= 32)
        return fail(LH_INVALID, "%s: [%s] plugin = %s is longer than 31 bytes", path, section,
                    e->value);
    return LH_OK;
}

/* transports/defaults.ini of the first folder of plugins that has one, or where it would lie; the
 * caller frees. */
static char *defaults_path(const registry_t *r)
{
    uint32_t count;
    const char *const *folders = registry_folders(r, &count);
    for (uint32_t i = 0; i < count; i++) {
        char *path = path_join(folders[i], "transports/defaults.ini");
        if (path == NULL || file_exists(path)) return path;
        mem_free(path);
    }
    return path_join(folders[0], "transports/defaults.ini");
}

/* Which plugin is usual depends on what is installed, so that is written where plugins lie, and not
 * in the core, which knows no plugin's name. */
static lh_status_t read_default(const registry_t *r, uint32_t scope, char name[32])
{
    char section[32];
    document_t *defaults = NULL;
    char *path = defaults_path(r);
    if (path == NULL) return LH_NO_MEMORY;
    (void)snprintf(section, sizeof(section), "transport.%s", job_scope_names[scope]);
    lh_status_t status;
    if (!file_exists(path))
        status = fail(LH_INVALID, "[%s] names no plugin, and there is no %s: set plugin = ...",
                      section, path);
    else
        status = document_load(path, &defaults);
    if (status == LH_OK)
        status = copy_name(path, section,
                           document_entry(document_find(defaults, section), "plugin"), name);
    document_free(defaults);
    mem_free(path);
    return status;
}

const char *carrier_plugin(const job_t *job, const registry_t *r, uint32_t scope, char name[32])
{
    const char *named = job->transports[scope].plugin;
    if (named != NULL) return named;
    return read_default(r, scope, name) == LH_OK ? name : NULL;
}

lh_status_t carrier_parse(const job_t *job, registry_t *r, uint32_t scope, const plugin_t *plugin,
                          const char *const names[2], void **config)
{
    option_table_t others[2];
    uint32_t count = 0;
    const option_table_t own = plugin_options(plugin);
    for (uint32_t i = 0; i < 2; i++) {
        const plugin_t *other;
        if (names[i] == NULL) continue;
        /* Only its option names are wanted; where it can't be loaded its keys are unknown. */
        if (registry_load(r, LH_KIND_TRANSPORT, names[i], &other) == LH_OK)
            others[count++] = plugin_options(other);
        else
            fail_clear();
    }
    return job_parse_transport(job, scope, &own, others, count, config);
}

/* What was asked for and can't be given is refused, never lowered. levels: those that can be, a bit
 * each. */
static lh_status_t check_level(uint32_t scope, uint32_t security, uint64_t levels,
                               const char *plugin)
{
    char names[64] = "";
    if (security > LH_SECURITY_PRIVATE)
        return fail(LH_INVALID, "security %u, expected plain, known, proven or private", security);
    if ((levels >> security & 1) != 0) return LH_OK;
    for (uint32_t i = 0; i <= LH_SECURITY_PRIVATE; i++)
        if ((levels >> i & 1) != 0)
            (void)snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s",
                           names[0] != '\0' ? " or " : "", carrier_levels[i]);
    return fail(LH_UNSUPPORTED,
                "[transport.%s] security = %s: the transport '%s' cannot give it; write security = "
                "%s, or another plugin",
                job_scope_names[scope], carrier_levels[security], plugin, names);
}

lh_status_t carrier_check_level(const job_t *job, uint32_t scope, const plugin_t *plugin)
{
    const uint64_t levels = plugin->transport->security_levels;
    lh_assert(scope >= LH_LINK_NODE && scope <= LH_LINK_WAN);
    if (levels == 0) return LH_OK; /* only its card tells */
    return check_level(scope, job->transports[scope].security, levels, plugin->name);
}

static lh_status_t check_security(const carrier_t *c)
{
    static const uint32_t needs[] = {0, LH_CAN_KNOW, LH_CAN_PROVE, LH_CAN_ENCRYPT};
    uint64_t levels = 0;
    for (uint32_t i = 0; i <= LH_SECURITY_PRIVATE; i++)
        if ((c->nic.flags & needs[i]) == needs[i]) levels |= 1u << i;
    return check_level(c->scope, c->security, levels, c->plugin->name);
}

/* Asks for the figures of the first card. */
static lh_status_t check_card(carrier_t *c)
{
    uint32_t count = 0;
    const lh_transport_api_t *api = c->api;
    lh_status_t status = api->nic_count(c->transport, &count);
    if (status != LH_OK) return status;
    if (count == 0)
        return fail(LH_NO_DEVICE, "[transport.%s]: '%s' finds no card on this machine",
                    job_scope_names[c->scope], c->plugin->name);
    c->nic.struct_size = sizeof(c->nic);
    status = api->nic_info(c->transport, 0, &c->nic);
    if (status != LH_OK) return status;
    c->nic.name[sizeof(c->nic.name) - 1] = '\0';
    const uint32_t both = LH_CAN_DIAL_TO_SEND | LH_CAN_DIAL_TO_RECEIVE | LH_CAN_DUPLEX;
    if ((c->nic.flags & both) != both)
        return fail(LH_UNSUPPORTED,
                    "[transport.%s]: connections of '%s' carry one direction only; links need both",
                    job_scope_names[c->scope], c->plugin->name);
    if ((c->nic.memory_kinds & LH_MEM_HOST) == 0)
        return fail(LH_UNSUPPORTED, "[transport.%s]: '%s' takes no memory of the host",
                    job_scope_names[c->scope], c->plugin->name);
    if (c->nic.max_message_bytes != 0 && c->nic.max_message_bytes < LH_MESSAGE_LEAST)
        return fail(LH_UNSUPPORTED,
                    "[transport.%s]: a message of '%s' has at most %llu bytes, expected %llu or "
                    "more; cutting it is the transport's business",
                    job_scope_names[c->scope], c->plugin->name,
                    (unsigned long long)c->nic.max_message_bytes,
                    (unsigned long long)LH_MESSAGE_LEAST);
    return check_security(c);
}

/* After a failure the caller closes the carrier, which closes what was opened. */
static lh_status_t open_transport(const job_t *job, registry_t *r, carrier_t *c, const char *name,
                                  const char *other)
{
    lh_status_t status = registry_load(r, LH_KIND_TRANSPORT, name, &c->plugin);
    if (status != LH_OK) return status;
    c->api = c->plugin->transport;
    if (plugin_is_without_messages(c->api))
        return fail(LH_UNSUPPORTED,
                    "[transport.%s] plugin = %s: it carries no messages; name it as collectives = "
                    "%s in [transport.node], beside a plugin that does",
                    job_scope_names[c->scope], name, name);
    status = carrier_check_level(job, c->scope, c->plugin);
    if (status != LH_OK) return status;
    const char *const others[2] = {other, job->transports[c->scope].collectives};
    status = carrier_parse(job, r, c->scope, c->plugin, others, &c->config);
    return status == LH_OK ? c->api->open(c->plugin->host, c->config, &c->transport) : status;
}

/* wait_fd stays -1 unless the plugin has both functions that a sleep needs. The listener's address
 * is what other ranks are told. */
static lh_status_t carrier_listen(const job_t *job, registry_t *r, carrier_t *c, const char *name,
                                  const char *other)
{
    lh_status_t status = open_transport(job, r, c, name, other);
    if (status == LH_OK) status = check_card(c);
    if (status == LH_OK && c->api->wait_fd != NULL && c->api->arm != NULL)
        status = c->api->wait_fd(c->transport, &c->wait_fd);
    if (status == LH_OK)
        status = c->api->listen(c->transport, 0, c->security, &c->address, &c->listener);
    if (status == LH_OK && (c->address.length == 0 || c->address.length > sizeof(c->address.bytes)))
        status = fail(LH_ABI, "'%s' listens at an address of %u bytes, expected 1 to %zu", name,
                      c->address.length, sizeof(c->address.bytes));
    return status;
}

/* Nothing is open yet; carrier_close may be called from here on. */
static carrier_t *carrier_new(const job_t *job, uint32_t scope)
{
    lh_assert(scope >= LH_LINK_NODE && scope <= LH_LINK_WAN);
    carrier_t *c = mem_new(sizeof(*c));
    if (c == NULL) return NULL;
    c->scope = scope;
    c->security = job->transports[scope].security;
    c->wait_fd = -1;
    return c;
}

/* Any other failure is forgotten, as it may be this machine's alone. */
lh_status_t carrier_check(const job_t *job, registry_t *r, uint32_t scope, const char *name,
                          const char *other)
{
    carrier_t *c = carrier_new(job, scope);
    if (c == NULL) return LH_NO_MEMORY;
    lh_status_t status = open_transport(job, r, c, name, other);
    if (status == LH_OK) status = check_card(c);
    carrier_close(c);
    if (status == LH_UNSUPPORTED || status == LH_NO_MEMORY) return status;
    fail_clear();
    return LH_OK;
}

lh_status_t carrier_open(const job_t *job, registry_t *r, uint32_t scope, const char *name,
                         const char *other, carrier_t **out)
{
    carrier_t *c = carrier_new(job, scope);
    if (c == NULL) return LH_NO_MEMORY;
    const lh_status_t status = carrier_listen(job, r, c, name, other);
    if (status != LH_OK) {
        carrier_close(c);
        return status;
    }
    *out = c;
    return LH_OK;
}

bool carrier_takes_device(const carrier_t *c)
{
    return (c->nic.memory_kinds & LH_MEM_DMABUF) != 0 && c->security != LH_SECURITY_PRIVATE;
}

void carrier_close(carrier_t *c)
{
    if (c == NULL) return;
    if (c->listener != NULL) c->api->close_listener(c->listener);
    if (c->transport != NULL) c->api->close(c->transport);
    if (c->config != NULL) {
        const option_table_t options = plugin_options(c->plugin);
        job_free_config(&options, c->config);
    }
    mem_free(c);
}

/* ---- where the device is ---- */

/* Leaves what is in *path where the plugin does not tell. */
static lh_status_t place_ask(const job_t *job, const plugin_t *plugin, char *path, size_t room)
{
    void *config = NULL;
    const option_table_t options = plugin_options(plugin);
    if (plugin->device->where == NULL) return LH_OK;
    lh_status_t status = job_parse_plugin(job, "device", &options, NULL, 0, &config);
    if (status == LH_OK) status = plugin->device->where(plugin->host, config, 0, path, room);
    if (config != NULL) job_free_config(&options, config);
    return status;
}

/* What is wrong with the plugin, its options or the device is told when that is opened. */
lh_status_t carrier_tell_place(const job_t *job, registry_t *r)
{
    char path[32] = "";
    const plugin_t *plugin;
    if (job->device.plugin == NULL) return LH_OK;
    lh_status_t status = registry_load(r, LH_KIND_DEVICE, job->device.plugin, &plugin);
    if (status == LH_OK) status = place_ask(job, plugin, path, sizeof(path));
    if (status == LH_NO_MEMORY) return status;
    if (status != LH_OK) {
        fail_clear();
        path[0] = '\0';
    }
    path[sizeof(path) - 1] = '\0';
    host_set_device(registry_host(r), path);
    return LH_OK;
}
