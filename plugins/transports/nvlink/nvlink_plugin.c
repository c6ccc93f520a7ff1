/* nvlink_plugin.c - the nvlink transport: NCCL between the GPUs of one machine, opened at run time. It
 * carries collectives and no messages, so a job names it beside a transport that does:
 * [transport.node] collectives = nvlink. */
#include "nvlink.h"

#include <dlfcn.h>

#define NCCL_NAME "libnccl.so.2"

static const lh_option_t options[] = {
    LH_OPTION_STRING(nvlink_config_t, libraries, "libraries", "",
                     "folders, between colons, to look for libnccl and libcuda in first"),
};

static lh_status_t symbol_take(const lh_transport_t *t, void *library, const char *name, void *slot)
{
    void *found = dlsym(library, name);
    if (found == NULL)
        return t->host->fail(t->host, LH_NO_DEVICE,
                             "%s has no %s: it is older than NCCL 2.14, which is needed", NCCL_NAME,
                             name);
    memcpy(slot, &found, sizeof(found));
    return LH_OK;
}

static lh_status_t version_check(lh_transport_t *t)
{
    int version = 0;
    char places[CUDA_PLACES_BYTES] = "";
    if (t->ncclGetVersion(&version) != NCCL_OK || version < NCCL_VERSION_2_14 ||
        version / 10000 != 2)
        return t->host->fail(
            t->host, LH_NO_DEVICE,
            "%s, looked for %s, is NCCL %d.%d, this plugin knows 2.14 and later of 2: "
            "[transport.node] libraries names folders to look in first",
            NCCL_NAME, cuda_library_places(t->config->libraries, places), version / 10000,
            version / 100 % 100);
    return LH_OK;
}

lh_status_t nvlink_open(lh_transport_t *t)
{
    char error[CUDA_PLACES_BYTES] = "", places[CUDA_PLACES_BYTES];
    const char *folders = t->config->libraries;
    if (t->opened) return LH_OK;
    t->cuda.key = "[transport.node] libraries";
    lh_status_t status = cuda_library_driver(&t->cuda, t->host, folders);
    if (status != LH_OK) return status;
    void *library = cuda_library_open(folders, NCCL_NAME, error);
    if (library == NULL)
        return t->host->fail(
            t->host, LH_NO_DEVICE,
            "the library %s (NCCL, of NVIDIA or of PyTorch's wheels) was looked for %s and not "
            "found: [transport.node] libraries names folders to look in first, and without "
            "[transport.node] collectives ranks exchange through the host",
            NCCL_NAME, cuda_library_places(folders, places));
#define NVLINK_LOAD(name, parameters) \
    if (status == LH_OK) status = symbol_take(t, library, #name, &t->name);
    NCCL_CALLS(NVLINK_LOAD)
#undef NVLINK_LOAD
    if (status == LH_OK)
        status = symbol_take(t, library, "ncclGetErrorString", &t->ncclGetErrorString);
    if (status == LH_OK) status = version_check(t);
    t->opened = status == LH_OK;
    return status;
}

static lh_status_t transport_open(const lh_host_t *host, const void *config, lh_transport_t **out)
{
    lh_transport_t *t = host->alloc(host, sizeof(*t), 64);
    if (t == NULL) return LH_NO_MEMORY;
    t->host = host;
    t->config = config;
    *out = t;
    return LH_OK;
}

/* The module goes with its context, which is the device's. */
static void transport_close(lh_transport_t *t)
{
    t->host->release(t->host, t);
}

static const lh_transport_api_t api = {
    .struct_size = sizeof(api),
    .open = transport_open,
    .close = transport_close,
    .collectives = &nvlink_collectives,
};

LH_PLUGIN = {
    LH_PLUGIN_HEADER,
    .kind = LH_KIND_TRANSPORT,
    .config_size = sizeof(nvlink_config_t),
    .name = "nvlink",
    .version = "0.1.0",
    .summary = "collectives between the GPUs of a machine, by NCCL",
    LH_TABLE_OPTIONS(options),
    .transport = &api,
};
