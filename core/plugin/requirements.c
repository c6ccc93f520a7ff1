/* requirements.c - a row per kind, and its required functions. */
#include <plugin/requirements.h>

#include <plugin/loader.h>

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

static const kind_t kinds[] = {
    KIND(MODEL, model, lh_model_api_t, record),
    KIND(TRANSPORT, transport, lh_transport_api_t, poll),
    KIND(OPTIMIZER, optimizer, lh_optimizer_api_t, describe),
    KIND(DEVICE, device, lh_device_api_t, fill),
    [LH_KIND_PARTS] = {"parts", "parts", NULL, 0, 0, 0, NULL},
};

const kind_t *kind_of(uint32_t kind)
{
    return kind == 0 || kind >= sizeof(kinds) / sizeof(kinds[0]) ? NULL : &kinds[kind];
}

const char *kind_lacks(const kind_t *kind, const void *api)
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
    const kind_t *k = kind_of(kind);
    return k != NULL ? k->name : "unknown";
}

const char *plugin_kind_folder(uint32_t kind)
{
    const kind_t *k = kind_of(kind);
    return k != NULL ? k->folder : "unknown";
}
