/* cuda_library.c - finds libcuda, libcublasLt and libcudnn at run time, and says in one sentence what is
 * not as it must be: no library of NVIDIA's is needed to build or load the plugin.
 *
 * Folders of the option `libraries` come first, then the loader's own places. No library is ever
 * closed: all keep threads and handlers that outlive a device. cuBLASLt needs a driver of at
 * least its own major version (minor versions mix, by NVIDIA's rule), so an older driver is served
 * by an older library where both lie about. */
#include "cuda_library.h"

#include <dlfcn.h>
#include <stdio.h>

#include "cudnn_sdpa.h"

#define DRIVER_NAME "libcuda.so.1"

enum { PATH_BYTES = 4096, VERSION_BYTES = 24 };

void *cuda_library_open(const char *folders, const char *name, char error[CUDA_PLACES_BYTES])
{
    for (const char *p = folders; p != NULL && *p != '\0';) {
        const size_t length = strcspn(p, ":");
        char path[PATH_BYTES];
        if (length > 0 &&
            snprintf(path, sizeof(path), "%.*s/%s", (int)length, p, name) < (int)sizeof(path)) {
            void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
            if (library != NULL) return library;
        }
        p += length;
        if (*p == ':') p++;
    }
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *said = dlerror();
        (void)snprintf(error, CUDA_PLACES_BYTES, "%s", said != NULL ? said : "not found");
    }
    return library;
}

const char *cuda_library_places(const char *folders, char out[CUDA_PLACES_BYTES])
{
    if (folders == NULL || folders[0] == '\0') return "where the system's loader looks";
    (void)snprintf(out, CUDA_PLACES_BYTES, "in %s, then where the system's loader looks", folders);
    return out;
}

/* Sets *slot, a pointer to a function. */
static lh_status_t symbol_find(const cuda_library_t *l, void *library, const char *file,
                               const char *name, void *slot)
{
    void *found = dlsym(library, name);
    if (found == NULL)
        return l->host->fail(l->host, LH_NO_DEVICE,
                             "%s has no %s: it is older than CUDA 12.0, which is needed", file,
                             name);
    memcpy(slot, &found, sizeof(found));
    return LH_OK;
}

/* The driver says so itself where it can't start. */
static lh_status_t driver_refuse(const cuda_library_t *l, cuda_result_t result, const char *call)
{
    const lh_host_t *host = l->host;
    const char *name = NULL, *text = NULL;
    if (result == CUDA_NO_DEVICE)
        return host->fail(host, LH_NO_DEVICE,
                          "NVIDIA's driver is here and finds no GPU (CUDA_VISIBLE_DEVICES hides "
                          "GPUs, too)");
    if (result == CUDA_STUB)
        return host->fail(host, LH_NO_DEVICE,
                          "%s is the stub that programs are linked with, not the driver's library",
                          DRIVER_NAME);
    if (result == CUDA_DRIVER_MISMATCH)
        return host->fail(host, LH_NO_DEVICE,
                          "%s and the kernel module of NVIDIA's driver are of different versions",
                          DRIVER_NAME);
    (void)l->cuGetErrorName(result, &name);
    (void)l->cuGetErrorString(result, &text);
    return host->fail(host, LH_NO_DEVICE, "NVIDIA's driver fails in %s: %s (%d), %s", call,
                      name != NULL ? name : "error", result, text != NULL ? text : "no text");
}

lh_status_t cuda_library_driver(cuda_library_t *l, const lh_host_t *host, const char *folders)
{
    char error[CUDA_PLACES_BYTES] = "", places[CUDA_PLACES_BYTES];
    l->host = host;
    void *library = cuda_library_open(folders, DRIVER_NAME, error);
    if (library == NULL)
        return host->fail(
            host, LH_NO_DEVICE,
            "no NVIDIA driver: %s was looked for %s (%s names folders to look in first): %s",
            DRIVER_NAME, cuda_library_places(folders, places), l->key, error);

    lh_status_t status = LH_OK;
#define DRIVER_LOAD(name, parameters) \
    if (status == LH_OK) status = symbol_find(l, library, DRIVER_NAME, #name, &l->name);
    CUDA_DRIVER_CALLS(DRIVER_LOAD)
#undef DRIVER_LOAD
    if (status != LH_OK) return status;

    cuda_result_t result = l->cuInit(0);
    if (result != CUDA_OK) return driver_refuse(l, result, "cuInit");
    result = l->cuDriverGetVersion(&l->driver_version);
    if (result != CUDA_OK) return driver_refuse(l, result, "cuDriverGetVersion");
    if (l->driver_version < CUDA_DRIVER_NEEDED)
        return host->fail(host, LH_NO_DEVICE,
                          "NVIDIA's driver supports CUDA %d.%d, %d.%d or later is needed: update "
                          "the driver",
                          l->driver_version / 1000, l->driver_version % 1000 / 10,
                          CUDA_DRIVER_NEEDED / 1000, CUDA_DRIVER_NEEDED % 1000 / 10);
    return LH_OK;
}

/* Whether this library is one that the driver can serve; says why not otherwise. */
static lh_status_t cublas_take(cuda_library_t *l, void *library, const char *name,
                               const char *folders)
{
    const lh_host_t *host = l->host;
    char places[CUDA_PLACES_BYTES] = "";
    lh_status_t status = LH_OK;
#define CUBLAS_LOAD(call, parameters) \
    if (status == LH_OK) status = symbol_find(l, library, name, #call, &l->call);
    CUBLAS_CALLS(CUBLAS_LOAD)
#undef CUBLAS_LOAD
    if (status == LH_OK)
        status = symbol_find(l, library, name, "cublasLtGetVersion", &l->cublasLtGetVersion);
    if (status != LH_OK) return status;

    l->cublas_version = l->cublasLtGetVersion();
    (void)snprintf(l->cublas_name, sizeof(l->cublas_name), "%s", name);
    const size_t major = l->cublas_version / 10000;
    if (major != 12 && major != 13)
        return host->fail(host, LH_NO_DEVICE,
                          "%s, looked for %s, is cuBLASLt %zu.%zu, this plugin knows 12 and 13: "
                          "[device] libraries names folders to look in first",
                          name, cuda_library_places(folders, places), major,
                          l->cublas_version / 100 % 100);
    if ((size_t)l->driver_version / 1000 < major)
        return host->fail(host, LH_NO_DEVICE,
                          "NVIDIA's driver supports CUDA %d.%d, %s (cuBLASLt %zu.%zu) needs %zu.0: "
                          "update the driver, or name a folder with libcublasLt.so.12 in [device] "
                          "libraries",
                          l->driver_version / 1000, l->driver_version % 1000 / 10, name, major,
                          l->cublas_version / 100 % 100, major);
    return LH_OK;
}

/* The newest that the driver can serve; the plain name, a developer's link, where there is no other. */
lh_status_t cuda_library_cublas(cuda_library_t *l, const char *folders)
{
    enum { PLAIN_NAME = 2 };
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
    char error[CUDA_PLACES_BYTES] = "", places[CUDA_PLACES_BYTES];
    lh_status_t status = LH_AGAIN; /* none seen */
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (i == PLAIN_NAME && status != LH_AGAIN) break; /* it would be one of those again */
        void *library = cuda_library_open(folders, names[i], error);
        if (library == NULL) continue;
        status = cublas_take(l, library, names[i], folders);
        if (status == LH_OK) return LH_OK;
    }
    if (status != LH_AGAIN) return status;
    return l->host->fail(
        l->host, LH_NO_DEVICE,
        "the library libcublasLt.so.13 or libcublasLt.so.12 (cuBLASLt, of the CUDA "
        "toolkit or of PyTorch's wheels) was looked for %s and not found: [device] "
        "libraries names folders to look in first",
        cuda_library_places(folders, places));
}

/* The rows for attention are built by headers of cuDNN 9, whose numbers another major version may not
 * share. libcudnn loads parts of its own, by name: from its own folder, as NVIDIA links it. */
lh_status_t cuda_library_cudnn(cuda_library_t *l, const char *folders)
{
    enum { CUDNN_MAJOR = 9 };
    static const char *const names[] = {"libcudnn.so.9", "libcudnn.so"};
    char error[CUDA_PLACES_BYTES] = "", places[CUDA_PLACES_BYTES];
    const lh_host_t *host = l->host;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        void *library = cuda_library_open(folders, names[i], error);
        if (library == NULL) continue;
        l->cudnn_name = names[i];
        l->cudnn_version = cudnn_sdpa_library(library);
        const size_t major = l->cudnn_version / 10000;
        if (l->cudnn_version == 0)
            return host->fail(host, LH_NO_DEVICE,
                              "%s, looked for %s, is no cuDNN: [device] libraries names folders to "
                              "look in first, attention = own does without it",
                              names[i], cuda_library_places(folders, places));
        if (major != CUDNN_MAJOR)
            return host->fail(host, LH_NO_DEVICE,
                              "%s, looked for %s, is cuDNN %zu.%zu, this plugin knows %d: [device] "
                              "libraries names folders to look in first, attention = own does "
                              "without it",
                              names[i], cuda_library_places(folders, places), major,
                              l->cudnn_version / 100 % 100, CUDNN_MAJOR);
        return LH_OK;
    }
    return host->fail(
        host, LH_NO_DEVICE,
        "the library libcudnn.so.9 (cuDNN, of NVIDIA or of PyTorch's wheels) was looked "
        "for %s and not found: [device] libraries names folders to look in first, "
        "attention = own does without it",
        cuda_library_places(folders, places));
}
