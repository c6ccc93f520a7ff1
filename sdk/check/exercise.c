/* exercise.c - a short life of each kind of plugin. */
#include "exercise.h"

#include <unistd.h>

#include <base/memory.h>

#include "check.h"
#include "check_host.h"
#include "op_cases.h"

static lh_status_t use_model(subject_t *s, const lh_host_t *host, const void *config)
{
    const lh_model_api_t *api = s->plugin->model;
    lh_model_t *m = NULL;
    lh_model_info_t info = {.struct_size = sizeof(info)};
    check_calls("open()");
    lh_status_t status = api->open(host, config, &m);
    if (status == LH_OK) {
        check_calls("describe()");
        status = api->describe(m, &info);
        check_calls("close()");
        api->close(m);
    }
    check_calls(NULL);
    return status;
}

static lh_status_t use_optimizer(subject_t *s, const lh_host_t *host, const void *config)
{
    const lh_optimizer_api_t *api = s->plugin->optimizer;
    lh_optimizer_t *o = NULL;
    lh_description_t d = {.struct_size = sizeof(d)};
    const lh_train_param_t param = {
        .name = "w", .rows = 8, .columns = 8, .logical_rows = 8, .logical_columns = 8};
    const lh_family_t family = {.size = {1, 1, 1, 1}};
    const lh_rule_t rule = {
        .name = "check", .help = "moves each element by itself", .grain = LH_GRAIN_ELEMENT};
    const lh_train_t train = {.struct_size = sizeof(train),
                              .blocks = 1,
                              .rounds = 1,
                              .param_size = sizeof(param),
                              .param_count = 1,
                              .family_size = sizeof(family),
                              .family_count = 1,
                              .rule_size = sizeof(rule),
                              .rule_count = 1,
                              .params = &param,
                              .families = &family,
                              .rules = &rule};
    lh_status_t status = api->open(host, config, &o);
    if (status != LH_OK) return status;
    status = api->describe(o, &train, &d);
    api->close(o);
    return status;
}

static lh_status_t use_listener(const lh_transport_api_t *api, lh_transport_t *t)
{
    static char memory[8192];
    lh_wire_event_t events[8];
    lh_listener_t *l = NULL;
    lh_region_t *region = NULL;
    lh_address_t address = {0};
    uint32_t count = 0;
    const lh_arena_t arena = {.struct_size = sizeof(arena),
                              .kind = LH_MEM_HOST,
                              .base = memory,
                              .bytes = sizeof(memory),
                              .fd = -1,
                              .numa = -1};
    lh_status_t status = api->listen(t, 0, LH_SECURITY_PLAIN, &address, &l);
    if (status != LH_OK) return status;
    status = api->register_memory(t, 0, &arena, &region);
    for (int i = 0; i < 3 && status == LH_OK; i++)
        status = api->poll(t, events, sizeof(events[0]), 8, &count);
    if (region != NULL) api->release_memory(t, region);
    api->close_listener(l);
    return status;
}

static lh_status_t use_transport(subject_t *s, const lh_host_t *host, const void *config)
{
    const lh_transport_api_t *api = s->plugin->transport;
    lh_transport_t *t = NULL;
    lh_nic_info_t info = {.struct_size = sizeof(info)};
    uint32_t nics = 0;
    lh_status_t status = api->open(host, config, &t);
    if (status != LH_OK) return status;
    if (plugin_is_without_messages(api)) {
        api->close(t);
        return LH_OK;
    }
    status = api->nic_count(t, &nics);
    if (status == LH_OK) status = api->nic_info(t, 0, &info);
    if (status == LH_OK) status = use_listener(api, t);
    api->close(t);
    return status;
}

static lh_status_t use_memory(const lh_device_api_t *api, lh_device_t *d, lh_stream_t *stream,
                              lh_event_t *event)
{
    lh_memory_t *there = NULL, *here = NULL;
    void *a = NULL, *b = NULL;
    lh_status_t status = api->alloc(d, LH_SPACE_DEVICE, 4096, &there, &a);
    if (status == LH_OK) status = api->alloc(d, LH_SPACE_PINNED, 4096, &here, &b);
    if (status == LH_OK) {
        const lh_place_t to = {here, 0, b}, from = {there, 0, a};
        status = api->fill(stream, &from, 3, 4096);
        if (status == LH_OK) status = api->copy(stream, &to, &from, 4096);
        if (status == LH_OK) status = api->record(stream, event);
        if (status == LH_OK) status = api->test(event, 10000000000u);
    }
    if (here != NULL) api->release(here);
    if (there != NULL) api->release(there);
    return status;
}

static lh_status_t use_device(subject_t *s, const lh_host_t *host, const void *config)
{
    const lh_device_api_t *api = s->plugin->device;
    const lh_stream_how_t how = {
        .struct_size = sizeof(how), .role = LH_STREAM_COMPUTE, .threads = 2};
    lh_device_properties_t properties = {.struct_size = sizeof(properties)};
    lh_device_t *d = NULL;
    lh_stream_t *stream = NULL;
    lh_event_t *event = NULL;
    uint32_t count = 0;
    lh_status_t status = api->count(host, config, &count);
    if (status == LH_OK) status = api->open(host, config, 0, &d);
    if (status != LH_OK) return status;
    status = api->properties(d, &properties);
    if (status == LH_OK) status = api->stream_new(d, &how, &stream);
    if (status == LH_OK) status = api->event_new(d, &event);
    if (status == LH_OK) status = use_memory(api, d, stream, event);
    if (status == LH_OK) status = op_cases_prepare(s, host, d, stream);
    if (event != NULL) api->event_free(event);
    if (stream != NULL) api->stream_free(stream);
    api->close(d);
    return status;
}

static lh_status_t use_parts(subject_t *s, const lh_host_t *host)
{
    lh_status_t status = LH_OK;
    for (uint32_t i = 0; i < s->plugin->rule_count && status == LH_OK; i++) {
        const lh_rule_t *rule = &s->plugin->rules[i];
        const option_table_t table = plugin_rule_options(rule);
        void *config = options_default(table.rows, table.count, table.config_size);
        if (rule->check != NULL) status = rule->check(host, config);
        mem_free(config);
    }
    return status;
}

lh_status_t exercise(subject_t *s, const lh_host_t *host, const void *config)
{
    check_alive();
    switch (s->plugin->kind) {
    case LH_KIND_MODEL: return use_model(s, host, config);
    case LH_KIND_OPTIMIZER: return use_optimizer(s, host, config);
    case LH_KIND_TRANSPORT: return use_transport(s, host, config);
    case LH_KIND_DEVICE: return use_device(s, host, config);
    default: return use_parts(s, host);
    }
}
