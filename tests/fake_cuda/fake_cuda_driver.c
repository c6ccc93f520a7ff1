/* fake_cuda_driver.c - starting, devices, contexts, modules, launches; and calls that fail on request. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "fake_cuda.h"

fake_t fake = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local cuda_context_t current;
static char the_context, the_module; /* only their addresses count */

/* ---- what is asked of it ---- */

static uint64_t key_read(const char *text, const char *key, uint64_t fallback)
{
    const size_t length = strlen(key);
    for (const char *p = text; p != NULL && *p != '\0'; p += strcspn(p, " "), p += strspn(p, " "))
        if (strncmp(p, key, length) == 0 && p[length] == '=')
            return strtoull(p + length + 1, NULL, 10);
    return fallback;
}

static void fail_read(const char *text)
{
    const char *at = text != NULL ? strstr(text, "fail=") : NULL;
    unsigned long long number = 0;
    int code = 0;
    fake.fail_number = 0;
    if (at == NULL || sscanf(at, "fail=%63[^:]:%llu:%d", fake.fail_call, &number, &code) != 3)
        return;
    fake.fail_number = number;
    fake.fail_code = code;
}

static void settings_read(void)
{
    const char *text = getenv("LH_FAKE_CUDA");
    fake.gpus = (int)key_read(text, "gpus", 1);
    fake.capability = (int)key_read(text, "capability", 90);
    fake.driver = (int)key_read(text, "driver", 13000);
    fake.cublas = key_read(text, "cublas", 130002);
    fake.cudnn = key_read(text, "cudnn", 92500);
    fake.nccl = key_read(text, "nccl", 22809);
    fake.memory_bytes = key_read(text, "memory_mib", 2048) << 20;
    fake.dmabuf = key_read(text, "dmabuf", 0) != 0;
    fake.registers = key_read(text, "registers", 1) != 0;
    fake.aligned = key_read(text, "aligned", 0) != 0;
    fake.flushes = key_read(text, "flushes", 1) != 0;
    fake.delay_ns = key_read(text, "delay_us", 100) * 1000;
    fake.random = key_read(text, "seed", 1);
    fake.slow_ns = key_read(text, "slow_us", 0) * 1000;
    fake.nccl_ns = key_read(text, "nccl_us", 0) * 1000;
    fake.lazy = key_read(text, "lazy", 0) != 0;
    fake.loaded_count = 0;
    fail_read(text);
}

cuda_result_t fake_fails(const char *name)
{
    if (fake.fail_number == 0 || strcmp(fake.fail_call, name) != 0) return CUDA_OK;
    return --fake.fail_number == 0 ? fake.fail_code : CUDA_OK;
}

cuda_result_t fake_asked(const char *call)
{
    pthread_mutex_lock(&fake.lock);
    const cuda_result_t result = fake_fails(call);
    pthread_mutex_unlock(&fake.lock);
    return result;
}

cuda_result_t fake_begin(const char *call, bool in_context)
{
    pthread_mutex_lock(&fake.lock);
    while (in_context && fake.loading)
        pthread_cond_wait(&fake.changed, &fake.lock);
    cuda_result_t result = fake_fails(call);
    if (result == CUDA_OK && in_context && current == NULL) result = CUDA_INVALID_CONTEXT;
    if (result == CUDA_OK && in_context) result = fake.error;
    if (result != CUDA_OK) pthread_mutex_unlock(&fake.lock);
    return result;
}

cuda_result_t fake_end(cuda_result_t result)
{
    pthread_mutex_unlock(&fake.lock);
    return result;
}

/* ---- starting ---- */

FAKE_EXPORT cuda_result_t cuInit(unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&fake.lock);
    if (fake.contexts == 0) settings_read();
    if (!fake.started) {
        pthread_condattr_t attributes;
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        pthread_cond_init(&fake.changed, &attributes);
        pthread_condattr_destroy(&attributes);
        fake.started = true;
    }
    cuda_result_t result = fake_fails("cuInit");
    if (result == CUDA_OK && fake.gpus == 0) result = CUDA_NO_DEVICE;
    return fake_end(result);
}

FAKE_EXPORT cuda_result_t cuDriverGetVersion(int *version)
{
    FAKE_MAY_FAIL(cuDriverGetVersion);
    *version = fake.driver;
    return CUDA_OK;
}

FAKE_EXPORT cuda_result_t cuGetErrorName(cuda_result_t error, const char **out)
{
    static const struct {
        cuda_result_t code;
        const char *name;
    } rows[] = {{CUDA_NO_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
                {CUDA_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
                {CUDA_ECC, "CUDA_ERROR_ECC_UNCORRECTABLE"},
                {CUDA_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
                {CUDA_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"}};
    *out = "CUDA_ERROR_OF_THE_FAKE";
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].code == error) *out = rows[i].name;
    return CUDA_OK;
}

FAKE_EXPORT cuda_result_t cuGetErrorString(cuda_result_t error, const char **out)
{
    (void)error;
    *out = "as the fake was told";
    return CUDA_OK;
}

FAKE_EXPORT cuda_result_t cuDeviceGetCount(int *count)
{
    FAKE_MAY_FAIL(cuDeviceGetCount);
    *count = fake.gpus;
    return CUDA_OK;
}

FAKE_EXPORT cuda_result_t cuDeviceGet(cuda_ordinal_t *out, int index)
{
    FAKE_MAY_FAIL(cuDeviceGet);
    if (index < 0 || index >= fake.gpus) return CUDA_INVALID_DEVICE;
    *out = index;
    return CUDA_OK;
}

FAKE_EXPORT cuda_result_t cuDeviceGetName(char *name, int bytes, cuda_ordinal_t device)
{
    FAKE_MAY_FAIL(cuDeviceGetName);
    (void)device;
    (void)snprintf(name, (size_t)bytes, "Fake GPU %d.%d", fake.capability / 10,
                   fake.capability % 10);
    return CUDA_OK;
}

FAKE_EXPORT cuda_result_t cuDeviceGetPCIBusId(char *name, int bytes, cuda_ordinal_t device)
{
    FAKE_MAY_FAIL(cuDeviceGetPCIBusId);
    (void)snprintf(name, (size_t)bytes, "0000:%02x:00.0", 0x1b + device);
    return CUDA_OK;
}

/* Of a block, as NVIDIA's programming guide has them by compute capability. */
static int shared_bytes(void)
{
    if (fake.capability == 80) return 163 * 1024;
    return fake.capability >= 90 && fake.capability < 120 ? 227 * 1024 : 99 * 1024;
}

FAKE_EXPORT cuda_result_t cuDeviceGetAttribute(int *value, int attribute, cuda_ordinal_t device)
{
    FAKE_MAY_FAIL(cuDeviceGetAttribute);
    (void)device;
    switch (attribute) {
    case CUDA_ATTRIBUTE_MAJOR: *value = fake.capability / 10; return CUDA_OK;
    case CUDA_ATTRIBUTE_MINOR: *value = fake.capability % 10; return CUDA_OK;
    case CUDA_ATTRIBUTE_CORES: *value = 4; return CUDA_OK;
    case CUDA_ATTRIBUTE_CLOCK_KHZ: *value = 1000; return CUDA_OK;
    case CUDA_ATTRIBUTE_MEMORY_KHZ: *value = 10000; return CUDA_OK;
    case CUDA_ATTRIBUTE_MEMORY_BITS: *value = 512; return CUDA_OK;
    case CUDA_ATTRIBUTE_HOST_POINTER: *value = fake.registers; return CUDA_OK;
    case CUDA_ATTRIBUTE_SHARED_BYTES: *value = shared_bytes(); return CUDA_OK;
    case CUDA_ATTRIBUTE_READ_ONLY: *value = 1; return CUDA_OK;
    case CUDA_ATTRIBUTE_FLUSHES: *value = fake.flushes ? CUDA_FLUSHES_HOST : 0; return CUDA_OK;
    case CUDA_ATTRIBUTE_ORDERS: *value = 0; return CUDA_OK;
    case CUDA_ATTRIBUTE_DMABUF: *value = fake.dmabuf; return CUDA_OK;
    case CUDA_ATTRIBUTE_HOST_NUMA: *value = -1; return CUDA_OK;
    default: return CUDA_INVALID_VALUE;
    }
}

/* ---- contexts ---- */

FAKE_EXPORT cuda_result_t cuDevicePrimaryCtxRetain(cuda_context_t *out, cuda_ordinal_t device)
{
    const cuda_result_t result = fake_begin("cuDevicePrimaryCtxRetain", false);
    if (result != CUDA_OK) return result;
    fake.ordinal = device;
    if (fake.contexts++ == 0) {
        fake.closing = false;
        fake.error = CUDA_OK;
        if (pthread_create(&fake.worker, NULL, fake_worker, NULL) != 0) abort();
    }
    *out = (cuda_context_t)(void *)&the_context;
    return fake_end(CUDA_OK);
}

FAKE_EXPORT cuda_result_t cuDevicePrimaryCtxRelease_v2(cuda_ordinal_t device)
{
    (void)device;
    pthread_mutex_lock(&fake.lock);
    const bool last = --fake.contexts == 0;
    if (last) fake.closing = true;
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
    if (last) pthread_join(fake.worker, NULL);
    current = NULL;
    return CUDA_OK;
}

FAKE_EXPORT cuda_result_t cuCtxSetCurrent(cuda_context_t context)
{
    FAKE_MAY_FAIL(cuCtxSetCurrent);
    current = context;
    return CUDA_OK;
}

/* Contexts of all GPUs are one here. */
FAKE_EXPORT cuda_result_t cuCtxGetDevice(cuda_ordinal_t *out)
{
    FAKE_BEGIN(cuCtxGetDevice);
    *out = fake.ordinal;
    return fake_end(CUDA_OK);
}

FAKE_EXPORT cuda_result_t cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    FAKE_MAY_FAIL(cuCtxGetStreamPriorityRange);
    *least = 0;
    *greatest = -5;
    return CUDA_OK;
}

cuda_context_t fake_context(void)
{
    return (cuda_context_t)(void *)&the_context;
}

/* ---- modules ---- */

/* Any image, also the empty one of a build without nvcc: the host has the kernels. */
FAKE_EXPORT cuda_result_t cuModuleLoadData(cuda_module_t *out, const void *image)
{
    (void)image;
    FAKE_BEGIN(cuModuleLoadData);
    *out = (cuda_module_t)(void *)&the_module;
    return fake_end(CUDA_OK);
}

FAKE_EXPORT cuda_result_t cuModuleUnload(cuda_module_t module)
{
    return module == (cuda_module_t)(void *)&the_module ? CUDA_OK : CUDA_INVALID_VALUE;
}

static void *kernels_symbol(const char *name)
{
    static void *library;
    if (library == NULL) library = dlopen(FAKE_CUDA_KERNELS, RTLD_NOW | RTLD_LOCAL);
    return library != NULL ? dlsym(library, name) : NULL;
}

FAKE_EXPORT cuda_result_t cuModuleGetFunction(cuda_function_t *out, cuda_module_t module,
                                              const char *name)
{
    (void)module;
    FAKE_BEGIN(cuModuleGetFunction);
    for (cuda_function_t f = fake.functions; f != NULL; f = f->next) {
        if (strcmp(f->name, name) != 0) continue;
        *out = f;
        return fake_end(CUDA_OK);
    }
    char symbol[80];
    (void)snprintf(symbol, sizeof(symbol), "%s_host", name);
    void *found = kernels_symbol(symbol);
    cuda_function_t f = found != NULL ? calloc(1, sizeof(*f)) : NULL;
    if (f == NULL) return fake_end(CUDA_NOT_FOUND);
    memcpy(&f->run, &found, sizeof(found));
    (void)snprintf(f->name, sizeof(f->name), "%s", name);
    f->next = fake.functions;
    fake.functions = f;
    *out = f;
    return fake_end(CUDA_OK);
}

FAKE_EXPORT cuda_result_t cuFuncSetAttribute(cuda_function_t function, int attribute, int value)
{
    FAKE_BEGIN(cuFuncSetAttribute);
    const bool known = function != NULL && attribute == CUDA_FUNCTION_DYNAMIC_SHARED &&
                       value >= 0 && value <= shared_bytes();
    return fake_end(known ? CUDA_OK : CUDA_INVALID_VALUE);
}

typedef struct launch {
    cuda_function_t function;
    uint32_t grid[3], block[3], shared_bytes;
    size_t bytes;
    _Alignas(64) unsigned char params[];
} launch_t;

/* Addresses are looked up when the kernel runs: memory that was freed too early shows. */
static cuda_result_t launch_run(const void *data)
{
    const launch_t *l = data;
    void *params = aligned_alloc(64, (l->bytes + 63) / 64 * 64);
    if (params == NULL) return CUDA_NO_MEMORY;
    memcpy(params, l->params, l->bytes);
    pthread_mutex_lock(&fake.lock);
    fake_real_words(params, l->bytes);
    pthread_mutex_unlock(&fake.lock);
    l->function->run(l->grid, l->block, l->shared_bytes, params);
    free(params);
    return CUDA_OK;
}

static bool shape_fits(const launch_t *l)
{
    const uint64_t threads = (uint64_t)l->block[0] * l->block[1] * l->block[2];
    return threads > 0 && threads <= 1024 && l->block[2] <= 64 && l->grid[0] > 0 &&
           l->grid[0] <= INT32_MAX && l->grid[1] > 0 && l->grid[1] <= 65535 && l->grid[2] > 0 &&
           l->grid[2] <= 65535 && l->shared_bytes <= (uint32_t)shared_bytes();
}

FAKE_EXPORT cuda_result_t cuLaunchKernel(cuda_function_t function, unsigned grid_x, unsigned grid_y,
                                         unsigned grid_z, unsigned block_x, unsigned block_y,
                                         unsigned block_z, unsigned shared_bytes,
                                         cuda_stream_t stream, void **parameters, void **extra)
{
    FAKE_BEGIN(cuLaunchKernel);
    size_t bytes = 0;
    const void *params = NULL;
    for (void **p = extra; p != NULL && *p != CUDA_LAUNCH_END; p += 2) {
        if (*p == CUDA_LAUNCH_BUFFER) params = p[1];
        if (*p == CUDA_LAUNCH_BYTES) memcpy(&bytes, p[1], sizeof(bytes));
    }
    if (parameters != NULL || params == NULL || bytes == 0 || bytes > 4096)
        return fake_end(CUDA_INVALID_VALUE);
    launch_t *l = aligned_alloc(64, (sizeof(*l) + bytes + 63) / 64 * 64);
    if (l == NULL) return fake_end(CUDA_NO_MEMORY);
    *l = (launch_t){.function = function,
                    .grid = {grid_x, grid_y, grid_z},
                    .block = {block_x, block_y, block_z},
                    .shared_bytes = shared_bytes,
                    .bytes = bytes};
    memcpy(l->params, params, bytes);
    cuda_result_t result = shape_fits(l) ? CUDA_OK : CUDA_INVALID_VALUE;
    if (result == CUDA_OK) result = fake_load(stream, (uintptr_t)function);
    if (result != CUDA_OK) {
        free(l);
        return fake_end(result);
    }
    const fake_item_t item = {.type = ITEM_WORK, .work = launch_run, .data = l};
    return fake_end(fake_push(stream, &item));
}
