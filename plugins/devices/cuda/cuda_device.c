/* cuda_device.c - which GPU, whether it will do, and what it is: opening, closing, properties. */
#include "cuda_device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "cudnn_sdpa.h"
#include "kernels/cuda_fatbin.h"

/* The oldest GPU: BF16 on tensor cores and asynchronous copies came with the A100. */
enum { CAPABILITY_NEEDED = 80 };

/* Any kernel of the plugin's own: whether the image that was loaded has them. */
#define KNOWN_KERNEL "cuda_copy"

/* ---- errors ---- */

/* Answers after which every call into the context fails: faults of kernels, Xids, broken memory, and
 * a server of MPS that has ended this process's work. */
static bool result_is_end(cuda_result_t result)
{
    switch (result) {
    case CUDA_UNAVAILABLE:
    case CUDA_ECC:
    case CUDA_NVLINK:
    case CUDA_CONTAINED:
    case CUDA_ILLEGAL_ADDRESS:
    case CUDA_LAUNCH_TIMEOUT:
    case CUDA_CONTEXT_DESTROYED:
    case CUDA_ASSERT:
    case CUDA_STACK_ERROR:
    case CUDA_ILLEGAL_INSTRUCTION:
    case CUDA_MISALIGNED:
    case CUDA_INVALID_SPACE:
    case CUDA_INVALID_PC:
    case CUDA_LAUNCH_FAILED:
    case CUDA_TENSOR_LEAK:
    case CUDA_MPS_TERMINATED:
    case CUDA_EXTERNAL_DEVICE:
    case CUDA_UNKNOWN: return true;
    default: return false;
    }
}

static lh_status_t device_lost(lh_device_t *d, cuda_result_t result, const char *name,
                               const char *text)
{
    const char *last = atomic_load_explicit(&d->last, memory_order_relaxed);
    lh_rank_info_t where = {.struct_size = sizeof(where)};
    atomic_store(&d->lost, true);
    if (d->host->rank_info(d->host, d->host->world->rank, &where) != LH_OK)
        where.host_name[0] = '\0';
    return d->host->fail(d->host, LH_DEVICE_LOST,
                         "GPU %u (%s, %s) of rank %u%s%s failed: %s (%d), %s; last queued: %s. "
                         "The kernel's log (dmesg, NVRM: Xid) may say more",
                         d->index, d->name, d->pci_path, d->host->world->rank,
                         where.host_name[0] != '\0' ? " on " : "", where.host_name, name, result,
                         text, last != NULL ? last : "nothing");
}

lh_status_t cuda_check(lh_device_t *d, cuda_result_t result, const char *call)
{
    if (result == CUDA_OK) return LH_OK;
    const char *name = NULL, *text = NULL;
    (void)d->library.cuGetErrorName(result, &name);
    (void)d->library.cuGetErrorString(result, &text);
    if (name == NULL) name = "error";
    if (text == NULL) text = "no text";
    if (result_is_end(result)) return device_lost(d, result, name, text);
    errno = 0; /* the sentence ends with what errno says */
    lh_status_t ours = LH_IO;
    if (result == CUDA_NO_MEMORY) ours = LH_NO_MEMORY;
    if (result > CUDA_CAPTURE_UNSUPPORTED && result <= CUDA_CAPTURED_EVENT) ours = LH_INVALID;
    if (result == CUDA_CAPTURE_UNSUPPORTED) ours = LH_UNSUPPORTED; /* the host launches the list */
    return d->host->fail(d->host, ours, "GPU %u (%s): %s says %s (%d), %s", d->index, d->name, call,
                         name, result, text);
}

lh_status_t cuda_check_cublas(lh_device_t *d, cublas_status_t status, const char *call)
{
    if (status == CUBLAS_OK) return LH_OK;
    lh_status_t ours = LH_IO;
    if (status == CUBLAS_NO_MEMORY) ours = LH_NO_MEMORY;
    if (status == CUBLAS_NOT_SUPPORTED || status == CUBLAS_INVALID_VALUE) ours = LH_UNSUPPORTED;
    errno = 0;
    return d->host->fail(d->host, ours, "%s of %s says %d", call, d->library.cublas_name, status);
}

/* Any call that works with the context tells of a lost one; no capture knows the anchor. */
lh_status_t cuda_launch_failure(lh_stream_t *s, const char *call)
{
    lh_device_t *d = s->device;
    const cuda_result_t result = d->library.cuEventQuery(d->anchor);
    if (result_is_end(result)) return cuda_check(d, result, call);
    return s->captures ? LH_UNSUPPORTED : LH_IO;
}

lh_status_t cuda_enter(lh_device_t *d)
{
    return cuda_check(d, d->library.cuCtxSetCurrent(d->context), "cuCtxSetCurrent");
}

/* ---- which one ---- */

/* Of a device that is not open yet. */
static lh_status_t attribute_read(const cuda_library_t *l, cuda_ordinal_t ordinal, int attribute,
                                  int *out)
{
    const cuda_result_t result = l->cuDeviceGetAttribute(out, attribute, ordinal);
    if (result == CUDA_OK) return LH_OK;
    return l->host->fail(l->host, LH_NO_DEVICE, "cuDeviceGetAttribute(%d) says %d", attribute,
                         result);
}

static lh_status_t capability_read(const cuda_library_t *l, cuda_ordinal_t ordinal, int *out)
{
    int major = 0, minor = 0;
    lh_status_t status = attribute_read(l, ordinal, CUDA_ATTRIBUTE_MAJOR, &major);
    if (status == LH_OK) status = attribute_read(l, ordinal, CUDA_ATTRIBUTE_MINOR, &minor);
    *out = 10 * major + minor;
    return status;
}

static lh_status_t count_read(const cuda_library_t *l, int *out)
{
    const cuda_result_t result = l->cuDeviceGetCount(out);
    if (result == CUDA_OK && *out > 0) return LH_OK;
    return l->host->fail(
        l->host, LH_NO_DEVICE,
        "NVIDIA's driver is here and finds no GPU (CUDA_VISIBLE_DEVICES hides GPUs, "
        "too)");
}

static lh_status_t capability_refuse(const lh_host_t *host, int index, const char *name,
                                     int capability)
{
    return host->fail(host, LH_NO_DEVICE,
                      "GPU %d (%s) has compute capability %d.%d, %d.%d (A100) or later is needed",
                      index, name, capability / 10, capability % 10, CAPABILITY_NEEDED / 10,
                      CAPABILITY_NEEDED % 10);
}

/* GPUs that can be opened; where none can, why not the first. */
static lh_status_t device_count(const lh_host_t *host, const void *config, uint32_t *out)
{
    const cuda_config_t *c = config;
    cuda_library_t l = {.key = "[device] libraries"};
    int count = 0;
    lh_status_t status = cuda_library_driver(&l, host, c->libraries);
    if (status == LH_OK) status = count_read(&l, &count);
    if (status != LH_OK) return status;

    uint32_t usable = 0;
    for (int i = 0; i < count; i++) {
        cuda_ordinal_t ordinal = 0;
        int capability = 0;
        const cuda_result_t result = l.cuDeviceGet(&ordinal, i);
        if (result != CUDA_OK) {
            (void)host->fail(host, LH_NO_DEVICE, "cuDeviceGet(%d) says %d", i, result);
            continue;
        }
        status = capability_read(&l, ordinal, &capability);
        if (status != LH_OK) return status;
        if (capability >= CAPABILITY_NEEDED) usable++;
        if (i > 0 || capability >= CAPABILITY_NEEDED) continue;
        char name[64] = "?";
        (void)l.cuDeviceGetName(name, sizeof(name), ordinal);
        (void)capability_refuse(host, i, name, capability);
    }
    if (usable == 0) return LH_NO_DEVICE;
    *out = usable;
    return LH_OK;
}

/* auto: the rank's number among those of its machine; else the number, for all ranks. */
static lh_status_t index_choose(lh_device_t *d, const char *text, uint32_t from, int count)
{
    const lh_host_t *host = d->host;
    if (text == NULL || strcmp(text, "auto") == 0) {
        lh_rank_info_t info = {.struct_size = sizeof(info)};
        if (host->world != NULL && host->world->size > 1) {
            const lh_status_t status = host->rank_info(host, host->world->rank, &info);
            if (status != LH_OK) return status;
        }
        d->index = from + info.local_rank;
        if (d->index < (uint32_t)count) return LH_OK;
        return host->fail(host, LH_NO_DEVICE,
                          "this machine has %d GPU%s and rank %u would be the one to use number %u "
                          "(counted from 0): run fewer ranks on it, or let them share one with "
                          "[device] index = 0",
                          count, count == 1 ? "" : "s", host->world->rank, d->index);
    }
    char *end;
    errno = 0;
    const unsigned long index = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0)
        return host->fail(host, LH_INVALID,
                          "[device] index is '%s', expected auto or the number of a GPU", text);
    if (index >= (unsigned long)count)
        return host->fail(host, LH_NO_DEVICE,
                          "[device] index is %lu, this machine has %d GPU%s (counted from 0)",
                          index, count, count == 1 ? "" : "s");
    d->index = (uint32_t)index;
    return LH_OK;
}

static lh_status_t device_choose(lh_device_t *d, const cuda_config_t *c, uint32_t index)
{
    const cuda_library_t *l = &d->library;
    int count = 0;
    lh_status_t status = count_read(l, &count);
    if (status == LH_OK) status = index_choose(d, c->index, index, count);
    if (status != LH_OK) return status;
    status = cuda_check(d, l->cuDeviceGet(&d->ordinal, (int)d->index), "cuDeviceGet");
    if (status != LH_OK) return status;
    (void)l->cuDeviceGetName(d->name, sizeof(d->name), d->ordinal);
    (void)l->cuDeviceGetPCIBusId(d->pci_path, sizeof(d->pci_path), d->ordinal);
    status = capability_read(l, d->ordinal, &d->capability);
    if (status == LH_OK)
        status = attribute_read(l, d->ordinal, CUDA_ATTRIBUTE_SHARED_BYTES, &d->shared_bytes);
    if (status != LH_OK) return status;
    if (d->capability < CAPABILITY_NEEDED)
        return capability_refuse(d->host, (int)d->index, d->name, d->capability);
    return LH_OK;
}

/* ---- opening ---- */

/* The image holds code for the GPUs that it was compiled for, and PTX that the driver compiles for
 * later ones; a driver older than the compiler may know neither, or not even how the image is packed. One
 * without any is what a build without nvcc leaves. */
static lh_status_t module_load(lh_device_t *d)
{
    const cuda_library_t *l = &d->library;
    cuda_function_t known;
    cuda_result_t result = l->cuModuleLoadData(&d->module, cuda_fatbin);
    if (result == CUDA_OK) result = l->cuModuleGetFunction(&known, d->module, KNOWN_KERNEL);
    if (result == CUDA_OK) return LH_OK;
    if (cuda_fatbin_bytes == 0)
        return d->host->fail(d->host, LH_NO_DEVICE,
                             "this build has no GPU kernels: nvcc was not found when it was "
                             "configured");
    if (result == CUDA_NO_BINARY || result == CUDA_UNSUPPORTED_PTX || result == CUDA_INVALID_IMAGE)
        return d->host->fail(d->host, LH_NO_DEVICE,
                             "the plugin's kernels have no code for GPU %u (%s, compute capability "
                             "%d.%d) that a driver for CUDA %d.%d takes: update the driver",
                             d->index, d->name, d->capability / 10, d->capability % 10,
                             l->driver_version / 1000, l->driver_version % 1000 / 10);
    return cuda_check(d, result, "cuModuleLoadData");
}

static lh_status_t clock_start(lh_device_t *d)
{
    const cuda_library_t *l = &d->library;
    lh_status_t status = cuda_check(
        d, l->cuStreamCreateWithPriority(&d->anchor_stream, CUDA_STREAM_NON_BLOCKING, 0),
        "cuStreamCreateWithPriority");
    if (status == LH_OK)
        status = cuda_check(d, l->cuEventCreate(&d->anchor, CUDA_EVENT_DEFAULT), "cuEventCreate");
    return status;
}

static void device_close(lh_device_t *d)
{
    const cuda_library_t *l = &d->library;
    if (d->context != NULL) {
        (void)l->cuCtxSetCurrent(d->context);
        if (d->anchor != NULL) (void)l->cuEventDestroy_v2(d->anchor);
        if (d->anchor_stream != NULL) (void)l->cuStreamDestroy_v2(d->anchor_stream);
        if (d->cublas != NULL) (void)l->cublasLtDestroy(d->cublas);
        if (d->cudnn != NULL) cudnn_sdpa_handle_free(d->cudnn);
        if (d->module != NULL) (void)l->cuModuleUnload(d->module);
        (void)l->cuDevicePrimaryCtxRelease_v2(d->ordinal);
    }
    pthread_mutex_destroy(&d->cudnn_lock);
    pthread_mutex_destroy(&d->lock);
    d->host->release(d->host, d);
}

static bool cudnn_wanted(const cuda_config_t *c)
{
    return CUDNN_SDPA_BUILT && c->attention == CUDA_ATTENTION_CUDNN;
}

static lh_status_t cudnn_start(lh_device_t *d)
{
    char error[CUDNN_SDPA_ERROR_BYTES] = "";
    d->cudnn = cudnn_sdpa_handle_new(error);
    if (d->cudnn != NULL) return LH_OK;
    return d->host->fail(d->host, LH_NO_DEVICE,
                         "GPU %u (%s): %s does not start: %s. [device] libraries names folders to "
                         "look in first, attention = own does without it",
                         d->index, d->name, d->library.cudnn_name, error);
}

static lh_status_t device_start(lh_device_t *d, const cuda_config_t *c, uint32_t index)
{
    cuda_library_t *l = &d->library;
    size_t before = 0, after = 0, total = 0;
    l->key = "[device] libraries";
    lh_status_t status = cuda_library_driver(l, d->host, c->libraries);
    if (status == LH_OK) status = device_choose(d, c, index);
    if (status == LH_OK) status = cuda_library_cublas(l, c->libraries);
    if (status == LH_OK && cudnn_wanted(c)) status = cuda_library_cudnn(l, c->libraries);
    if (status != LH_OK) return status;

    status = cuda_check(d, l->cuDevicePrimaryCtxRetain(&d->context, d->ordinal),
                        "cuDevicePrimaryCtxRetain");
    if (status == LH_OK) status = cuda_enter(d);
    if (status == LH_OK)
        status = cuda_check(d, l->cuMemGetInfo_v2(&before, &total), "cuMemGetInfo");
    if (status == LH_OK) status = module_load(d);
    if (status == LH_OK)
        status = cuda_check_cublas(d, l->cublasLtCreate(&d->cublas), "cublasLtCreate");
    if (status == LH_OK && cudnn_wanted(c)) status = cudnn_start(d);
    if (status == LH_OK) status = clock_start(d);
    if (status == LH_OK) status = cuda_check(d, l->cuMemGetInfo_v2(&after, &total), "cuMemGetInfo");
    if (status == LH_OK && before > after) d->library_bytes = before - after;
    return status;
}

static lh_status_t device_open(const lh_host_t *host, const void *config, uint32_t index,
                               lh_device_t **out)
{
    const cuda_config_t *c = config;
    lh_device_t *d = host->alloc(host, sizeof(*d), 64);
    if (d == NULL) return LH_NO_MEMORY;
    d->host = host;
    d->tf32 = c->tf32;
    d->capture = c->capture;
    pthread_mutex_init(&d->lock, NULL);
    pthread_mutex_init(&d->cudnn_lock, NULL);
    const lh_status_t status = device_start(d, c, index);
    if (status != LH_OK) {
        device_close(d);
        return status;
    }
    *out = d;
    return LH_OK;
}

/* What open takes first: the driver alone, and no context. */
static lh_status_t device_where(const lh_host_t *host, const void *config, uint32_t index,
                                char *pci_path, size_t room)
{
    const cuda_config_t *c = config;
    lh_device_t *d = host->alloc(host, sizeof(*d), 64);
    if (d == NULL) return LH_NO_MEMORY;
    d->host = host;
    d->library.key = "[device] libraries";
    lh_status_t status = cuda_library_driver(&d->library, host, c->libraries);
    if (status == LH_OK) status = device_choose(d, c, index);
    if (status == LH_OK) (void)snprintf(pci_path, room, "%s", d->pci_path);
    host->release(host, d);
    return status;
}

/* ---- properties ---- */

/* Floating-point operations that a multiprocessor's tensor cores do in a clock, BF16 or F16 in and
 * F32 out, dense: NVIDIA's architecture papers, e.g. 4096 x 132 x 1.83 GHz = 989 TFLOP/s of an H100. */
static double tensor_flops(int capability)
{
    if (capability == 80) return 2048;
    if (capability == 90) return 4096;
    if (capability >= 100 && capability < 110) return 8192;
    return 512; /* cards for desktops, at F32 sums */
}

static int attribute_or_zero(const lh_device_t *d, int attribute)
{
    int value = 0;
    return d->library.cuDeviceGetAttribute(&value, attribute, d->ordinal) == CUDA_OK ? value : 0;
}

static lh_status_t device_properties(lh_device_t *d, lh_device_properties_t *out)
{
    const cuda_library_t *l = &d->library;
    size_t free_bytes = 0, total_bytes = 0;
    lh_status_t status = cuda_enter(d);
    if (status == LH_OK)
        status = cuda_check(d, l->cuMemGetInfo_v2(&free_bytes, &total_bytes), "cuMemGetInfo");
    if (status != LH_OK) return status;

    const int cores = attribute_or_zero(d, CUDA_ATTRIBUTE_CORES);
    const double hertz = 1e3 * attribute_or_zero(d, CUDA_ATTRIBUTE_CLOCK_KHZ);
    const double per_clock = cores * hertz;
    lh_device_properties_t mine = {
        .flags = LH_DEVICE_WORDS | LH_DEVICE_PACKS | (d->capture ? (uint32_t)LH_DEVICE_CAPTURE : 0),
        .native = "cuda",
        .numa_node = -1,
        .cores = cores > 0 ? (uint32_t)cores : 1,
        .memory_bytes = free_bytes,
        .reserve_bytes = d->library_bytes,
        /* Two transfers a clock of the memory. */
        .memory_bytes_per_second = (uint64_t)(2e3 *
                                              attribute_or_zero(d, CUDA_ATTRIBUTE_MEMORY_KHZ) *
                                              attribute_or_zero(d, CUDA_ATTRIBUTE_MEMORY_BITS) / 8),
        /* PCIe 4.0 and 5.0 with 16 lanes, of which some 80 % arrive. */
        .host_bytes_per_second = d->capability >= 90 ? 50000000000u : 25000000000u,
        .launch_ns = 4000,
        .alignment_bytes = 256,
        .flops_per_second = {[LH_DTYPE_F32] = (d->tf32 ? tensor_flops(d->capability) / 2
                                               : d->capability == 80 ? 128
                                                                     : 256) *
                                              per_clock,
                             [LH_DTYPE_BF16] = tensor_flops(d->capability) * per_clock,
                             [LH_DTYPE_F16] = tensor_flops(d->capability) * per_clock}};
    int node = -1;
    if (l->cuDeviceGetAttribute(&node, CUDA_ATTRIBUTE_HOST_NUMA, d->ordinal) == CUDA_OK)
        mine.numa_node = node;
    memcpy(mine.name, d->name, sizeof(mine.name));
    memcpy(mine.pci_path, d->pci_path, sizeof(mine.pci_path));
    char cudnn[32] = "";
    if (d->cudnn != NULL) (void)snprintf(cudnn, sizeof(cudnn), ", cuDNN %zu", l->cudnn_version);
    (void)snprintf(mine.fingerprint, sizeof(mine.fingerprint),
                   "%s, compute capability %d.%d, driver for CUDA %d.%d, cuBLASLt %zu%s%s", d->name,
                   d->capability / 10, d->capability % 10, l->driver_version / 1000,
                   l->driver_version % 1000 / 10, l->cublas_version, cudnn,
                   d->tf32 ? ", TF32" : "");
    lh_fill(out, &mine, sizeof(mine));
    return LH_OK;
}

const lh_device_api_t cuda_device_api = {
    .struct_size = sizeof(lh_device_api_t),
    .count = device_count,
    .open = device_open,
    .close = device_close,
    .properties = device_properties,
    .alloc = cuda_alloc,
    .release = cuda_release,
    .stream_new = cuda_stream_new,
    .stream_free = cuda_stream_free,
    .event_new = cuda_event_new,
    .event_free = cuda_event_free,
    .record = cuda_record,
    .wait = cuda_wait,
    .test = cuda_test,
    .copy = cuda_copy,
    .fill = cuda_fill,
    .native = cuda_native,
    .event_time = cuda_event_time,
    .memory = cuda_memory,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .replay = cuda_replay,
    .replay_free = cuda_replay_free,
    .await = cuda_await,
    .signal = cuda_signal,
    .share = cuda_share,
    .arrived = cuda_arrived,
    .where = device_where,
};
