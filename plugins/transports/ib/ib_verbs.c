/* ib_verbs.c - finds libibverbs and librdmacm by their sonames, where the loader finds libraries. */
#include "ib_verbs.h"

#include <dlfcn.h>

typedef struct library {
    const char *name, *package;
    void *handle;
} library_t;

static lh_status_t library_open(const lh_host_t *host, library_t *l)
{
    l->handle = dlopen(l->name, RTLD_NOW | RTLD_LOCAL);
    if (l->handle != NULL) return LH_OK;
    return host->fail(host, LH_NO_DEVICE,
                      "RDMA needs %s, which this machine does not have (Debian's package %s)",
                      l->name, l->package);
}

static lh_status_t library_find(const lh_host_t *host, const library_t *l, const char *symbol,
                                void *out)
{
    void *found = dlsym(l->handle, symbol);
    if (found == NULL)
        return host->fail(host, LH_NO_DEVICE, "%s has no %s: it is too old, or another library",
                          l->name, symbol);
    memcpy(out, &found, sizeof(found));
    return LH_OK;
}

/* NULL where it has none. */
static void library_seek(const library_t *l, const char *symbol, void *out)
{
    void *found = dlsym(l->handle, symbol);
    memcpy(out, &found, sizeof(found));
}

lh_status_t ib_verbs_load(const lh_host_t *host, ib_verbs_t *out)
{
    library_t verbs = {"libibverbs.so.1", "libibverbs1", NULL};
    library_t cm = {"librdmacm.so.1", "librdmacm1", NULL};
    lh_status_t status = library_open(host, &verbs);
    if (status == LH_OK) status = library_open(host, &cm);
#define IB_FIND_VERBS(name, symbol, type, arguments) \
    if (status == LH_OK) status = library_find(host, &verbs, symbol, &out->name);
#define IB_FIND_CM(name, symbol, type, arguments) \
    if (status == LH_OK) status = library_find(host, &cm, symbol, &out->name);
    IB_VERBS_MAP(IB_FIND_VERBS)
    IB_CM_MAP(IB_FIND_CM)
#define IB_SEEK_VERBS(name, symbol, type, arguments) \
    if (status == LH_OK) library_seek(&verbs, symbol, &out->name);
#define IB_SEEK_CM(name, symbol, type, arguments) \
    if (status == LH_OK) library_seek(&cm, symbol, &out->name);
    IB_VERBS_LATER_MAP(IB_SEEK_VERBS)
    IB_CM_LATER_MAP(IB_SEEK_CM)
    return status;
}
