/* device_rig.c - a host for device plugins, small enough to be wrong nowhere. */
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <longhaul/dtype.h>

#include "device_rig.h"

static _Thread_local char reason[512];

struct lh_thread {
    pthread_t id;
    void (*body)(void *);
    void *argument;
};

struct rig_call {
    rig_t *rig;
    const lh_kernel_t *kernel;
    lh_prepared_t *prepared;
    lh_launch_t launch;
    rig_slot_t slots[LH_MAX_SLOTS];
    lh_arg_t args[LH_MAX_SLOTS];
    lh_place_t places[LH_MAX_SLOTS];
    lh_memory_t *memory[LH_MAX_SLOTS];
    lh_memory_t *scratch;
    uint32_t count;
};

/* ---- the host's services ---- */

static void host_log(const lh_host_t *host, int32_t level, const char *fmt, ...)
{
    va_list list;
    (void)host;
    if (level < LH_LOG_WARN) return;
    va_start(list, fmt);
    vfprintf(stderr, fmt, list);
    va_end(list);
    fputc('\n', stderr);
}

static lh_status_t host_fail(const lh_host_t *host, lh_status_t status, const char *fmt, ...)
{
    va_list list;
    (void)host;
    va_start(list, fmt);
    vsnprintf(reason, sizeof(reason), fmt, list);
    va_end(list);
    return status;
}

static void *host_alloc(const lh_host_t *host, size_t bytes, size_t alignment)
{
    void *memory = NULL;
    (void)host;
    if (alignment < 64) alignment = 64;
    if (posix_memalign(&memory, alignment, bytes > 0 ? bytes : 1) != 0) return NULL;
    memset(memory, 0, bytes);
    return memory;
}

static void host_release(const lh_host_t *host, void *memory)
{
    (void)host;
    free(memory);
}

uint64_t rig_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t host_now_ns(const lh_host_t *host)
{
    (void)host;
    return rig_now_ns();
}

static bool host_stopping(const lh_host_t *host)
{
    (void)host;
    return false;
}

static void host_count(const lh_host_t *host, const char *metric, double amount)
{
    (void)host;
    (void)metric;
    (void)amount;
}

static void *thread_main(void *argument)
{
    lh_thread_t *thread = argument;
    thread->body(thread->argument);
    return NULL;
}

static lh_status_t host_thread_start(const lh_host_t *host, const char *name, void (*body)(void *),
                                     void *argument, lh_thread_t **out)
{
    (void)name;
    lh_thread_t *thread = host_alloc(host, sizeof(*thread), 64);
    if (thread == NULL) return LH_NO_MEMORY;
    thread->body = body;
    thread->argument = argument;
    if (pthread_create(&thread->id, NULL, thread_main, thread) != 0) {
        free(thread);
        return LH_IO;
    }
    *out = thread;
    return LH_OK;
}

static void host_thread_join(const lh_host_t *host, lh_thread_t *thread)
{
    (void)host;
    pthread_join(thread->id, NULL);
    free(thread);
}

static lh_status_t host_rank_info(const lh_host_t *host, uint32_t rank, lh_rank_info_t *out)
{
    (void)host;
    LH_FILL(lh_rank_info_t, out, .rank = rank, .host_name = "rig");
    return LH_OK;
}

static const void *host_extension(const lh_host_t *host, const char *id)
{
    (void)host;
    (void)id;
    return NULL;
}

static const lh_world_t world = {.struct_size = sizeof(world), .size = 1, .nodes = 1, .sites = 1};

static const lh_host_t test_host = {
    .struct_size = sizeof(test_host),
    .abi_version = LH_ABI_VERSION,
    .world = &world,
    .log = host_log,
    .fail = host_fail,
    .alloc = host_alloc,
    .release = host_release,
    .now_ns = host_now_ns,
    .stopping = host_stopping,
    .count = host_count,
    .rank_info = host_rank_info,
    .thread_start = host_thread_start,
    .thread_join = host_thread_join,
    .extension = host_extension,
};

const lh_host_t *rig_host(void)
{
    return &test_host;
}

const char *rig_reason(void)
{
    return reason;
}

void rig_forget(void)
{
    reason[0] = '\0';
}

static void must(lh_status_t status, const char *what)
{
    if (status == LH_OK) return;
    fprintf(stderr, "%s: status %d: %s\n", what, status, reason);
    exit(1);
}

/* ---- opening ---- */

const char *rig_plugins(void)
{
    const char *given = getenv("LH_TEST_PLUGINS");
    return given != NULL ? given : LH_TEST_PLUGINS;
}

bool rig_on_gpu(void)
{
    return getenv("LH_TEST_GPU") != NULL;
}

static const lh_plugin_t *plugin_load(const char *name)
{
    char path[512];

    snprintf(path, sizeof(path), "%s/devices/%s.so", rig_plugins(), name);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    const lh_plugin_t *plugin = dlsym(library, LH_PLUGIN_SYMBOL);
    if (plugin == NULL) exit(1);
    return plugin;
}

static void setting_write(const lh_plugin_t *plugin, const rig_setting_t *setting, char *config)
{
    for (uint32_t i = 0; i < plugin->option_count; i++) {
        const lh_option_t *option = &plugin->options[i];
        if (strcmp(option->key, setting->key) != 0) continue;
        const uint32_t narrow = (uint32_t)setting->value;
        const bool yes = setting->value != 0;
        if (option->type == LH_OPT_BOOL) {
            memcpy(config + option->offset, &yes, sizeof(yes));
        } else if (option->type == LH_OPT_CHOICE || option->type == LH_OPT_U32) {
            memcpy(config + option->offset, &narrow, sizeof(narrow));
        } else {
            memcpy(config + option->offset, &setting->value, sizeof(setting->value));
        }
        return;
    }
    fprintf(stderr, "%s has no option %s\n", plugin->name, setting->key);
    exit(1);
}

/* The config must outlive the device: one for each that a test may open. */
static const void *settings_apply(const lh_plugin_t *plugin, const rig_setting_t *settings)
{
    static uint64_t configs[64][32];
    static uint32_t next;
    char *config = (char *)configs[next++ % 64];

    memset(config, 0, sizeof(configs[0]));
    for (; settings->key != NULL; settings++)
        setting_write(plugin, settings, config);
    return config;
}

bool rig_offers(const char *plugin, const rig_setting_t *settings)
{
    const lh_plugin_t *loaded = plugin_load(plugin);
    const void *config = settings_apply(loaded, settings);
    lh_device_t *device;

    if (loaded->device->open(&test_host, config, 0, &device) != LH_OK) return false;
    loaded->device->close(device);
    return true;
}

void rig_open_with(rig_t *rig, const char *plugin, const rig_setting_t *settings)
{
    rig_open(rig, plugin, settings_apply(plugin_load(plugin), settings));
}

void rig_open(rig_t *rig, const char *plugin, const void *config)
{
    static const uint64_t no_config[32];
    const lh_stream_how_t how = {.struct_size = sizeof(how), .role = LH_STREAM_COMPUTE};

    memset(rig, 0, sizeof(*rig));
    rig->plugin = plugin_load(plugin);
    rig->api = rig->plugin->device;
    rig->properties.struct_size = sizeof(rig->properties);
    must(rig->api->open(&test_host, config != NULL ? config : no_config, 0, &rig->device), "open");
    must(rig->api->properties(rig->device, &rig->properties), "properties");
    must(rig->api->stream_new(rig->device, &how, &rig->stream), "stream_new");
    must(rig->api->event_new(rig->device, &rig->event), "event_new");
}

void rig_close(rig_t *rig)
{
    rig->api->event_free(rig->event);
    rig->api->stream_free(rig->stream);
    rig->api->close(rig->device);
}

/* ---- numbers ---- */

static uint64_t bytes_of(lh_dtype_t dtype)
{
    static const uint8_t bytes[LH_DTYPES] = {
        [LH_DTYPE_F32] = 4,    [LH_DTYPE_BF16] = 2, [LH_DTYPE_F16] = 2, [LH_DTYPE_F8E4M3] = 1,
        [LH_DTYPE_F8E5M2] = 1, [LH_DTYPE_F64] = 8,  [LH_DTYPE_I32] = 4, [LH_DTYPE_I64] = 8,
        [LH_DTYPE_U8] = 1,     [LH_DTYPE_I8] = 1};
    return bytes[dtype];
}

static uint16_t bf16_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    if (isnan(value)) return 0x7fc0;
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static void number_write(lh_dtype_t dtype, char *to, double value)
{
    const float single = (float)value;
    int32_t integer;
    uint16_t half;

    switch (dtype) {
    case LH_DTYPE_F32: memcpy(to, &single, 4); break;
    case LH_DTYPE_F64: memcpy(to, &value, 8); break;
    case LH_DTYPE_I32:
        integer = isfinite(value) ? (int32_t)value : -1;
        memcpy(to, &integer, 4);
        break;
    case LH_DTYPE_BF16:
        half = bf16_bits(single);
        memcpy(to, &half, 2);
        break;
    case LH_DTYPE_F16:
        half = lh_f32_to_f16(single);
        memcpy(to, &half, 2);
        break;
    default: memset(to, 0xff, bytes_of(dtype)); break;
    }
}

/* The formats of 8 bits are raw bits for the test. */
static double number_read(lh_dtype_t dtype, const char *from)
{
    float single;
    double value;
    int32_t integer;
    uint32_t bits = 0;
    uint16_t f16;

    switch (dtype) {
    case LH_DTYPE_F16: memcpy(&f16, from, 2); return (double)lh_f16_to_f32(f16);
    case LH_DTYPE_F32: memcpy(&single, from, 4); return (double)single;
    case LH_DTYPE_F64: memcpy(&value, from, 8); return value;
    case LH_DTYPE_I32: memcpy(&integer, from, 4); return integer;
    case LH_DTYPE_BF16:
        memcpy((char *)&bits + 2, from, 2);
        memcpy(&single, &bits, 4);
        return (double)single;
    default: memcpy(&bits, from, bytes_of(dtype)); return bits;
    }
}

double rig_round(lh_dtype_t dtype, double value)
{
    char bytes[8];
    number_write(dtype, bytes, value);
    return number_read(dtype, bytes);
}

void rig_random(uint64_t seed, double *out, uint64_t count)
{
    uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    for (uint64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        out[i] = (double)(state >> 11) / 4503599627370496.0 - 1;
    }
}

double rig_distance(const double *a, const double *b, uint64_t count)
{
    double largest = 0;
    for (uint64_t i = 0; i < count; i++) {
        const double d = a[i] == b[i] ? 0 : fabs(a[i] - b[i]);
        if (isnan(d)) return INFINITY;
        if (d > largest) largest = d;
    }
    return largest;
}

double rig_size(const double *b, uint64_t count)
{
    double largest = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (isfinite(b[i]) && fabs(b[i]) > largest) largest = fabs(b[i]);
    }
    return largest;
}

/* ---- calls ---- */

static void arg_fill(lh_arg_t *arg, const rig_slot_t *slot)
{
    *arg = (lh_arg_t){.dtype = slot->dtype,
                      .rank = slot->rank,
                      .flags = slot->flags,
                      .alias_slot = slot->alias_slot,
                      .count_slot = slot->count_slot,
                      .alignment = slot->alignment};
    uint64_t stride = 1;
    for (uint32_t i = slot->rank; i-- > 0;) {
        arg->shape[i] = slot->shape[i];
        arg->stride[i] = stride;
        stride *= slot->shape[i];
        if (i + 1 == slot->rank && slot->rank > 1) stride += slot->pad;
    }
}

static uint64_t row_width(const rig_slot_t *slot)
{
    return slot->rank > 0 ? slot->shape[slot->rank - 1] : 1;
}

static uint64_t row_count(const rig_slot_t *slot)
{
    uint64_t rows = 1;
    for (uint32_t i = 0; i + 1 < slot->rank; i++)
        rows *= slot->shape[i];
    return rows;
}

static uint64_t slot_bytes(const rig_slot_t *slot)
{
    return row_count(slot) * (row_width(slot) + slot->pad) * bytes_of(slot->dtype);
}

/* Moves bytes through pinned memory, as a device with memory of its own needs. */
static void transfer(rig_t *rig, const lh_place_t *place, char *host, uint64_t bytes, bool up)
{
    lh_memory_t *pinned;
    void *address;

    if (bytes == 0) return;
    must(rig->api->alloc(rig->device, LH_SPACE_PINNED, bytes, &pinned, &address), "alloc");
    const lh_place_t stage = {.memory = pinned, .address = address};
    if (up) memcpy(address, host, bytes);
    must(rig->api->copy(rig->stream, up ? place : &stage, up ? &stage : place, bytes), "copy");
    rig_wait(rig);
    if (!up) memcpy(host, address, bytes);
    rig->api->release(pinned);
}

/* Contents, or not-a-number; the space between rows always is that. */
static void slot_upload(rig_call_t *call, uint32_t i)
{
    const rig_slot_t *slot = &call->slots[i];
    const uint64_t width = row_width(slot), pitch = width + slot->pad;
    const uint64_t size = bytes_of(slot->dtype), bytes = slot_bytes(slot);
    char *host = malloc(bytes > 0 ? bytes : 1);

    if (host == NULL) exit(1);
    for (uint64_t row = 0; row < row_count(slot); row++) {
        for (uint64_t c = 0; c < pitch; c++) {
            const bool known = slot->in != NULL && c < width;
            number_write(slot->dtype, host + (row * pitch + c) * size,
                         known ? slot->in[row * width + c] : NAN);
        }
    }
    transfer(call->rig, &call->places[i], host, bytes, true);
    free(host);
}

static void padding_check(const rig_slot_t *slot, const char *element, uint32_t index)
{
    char expected[8];
    number_write(slot->dtype, expected, NAN);
    if (memcmp(element, expected, bytes_of(slot->dtype)) == 0) return;
    fprintf(stderr, "slot %u: somebody wrote between the rows\n", index + 1);
    exit(1);
}

static void slot_download(rig_call_t *call, uint32_t i)
{
    const rig_slot_t *slot = &call->slots[i];
    const uint64_t width = row_width(slot), pitch = width + slot->pad;
    const uint64_t size = bytes_of(slot->dtype), bytes = slot_bytes(slot);
    char *host = malloc(bytes > 0 ? bytes : 1);

    if (host == NULL) exit(1);
    transfer(call->rig, &call->places[i], host, bytes, false);
    for (uint64_t row = 0; row < row_count(slot); row++) {
        for (uint64_t c = 0; c < pitch; c++) {
            const char *element = host + (row * pitch + c) * size;
            if (c >= width) padding_check(slot, element, i);
            if (c < width) slot->out[row * width + c] = number_read(slot->dtype, element);
        }
    }
    free(host);
}

static void slot_place(rig_call_t *call, uint32_t i)
{
    const rig_slot_t *slot = &call->slots[i];
    void *address;

    if (slot->dtype == LH_DTYPE_NONE) return;
    if (slot->alias_slot != 0) {
        call->places[i] = call->places[slot->alias_slot - 1];
        return;
    }
    const uint64_t bytes = slot_bytes(slot);
    must(call->rig->api->alloc(call->rig->device, LH_SPACE_DEVICE, bytes > 0 ? bytes : 64,
                               &call->memory[i], &address),
         "alloc");
    call->places[i] = (lh_place_t){.memory = call->memory[i], .address = address};
    slot_upload(call, i);
}

static bool row_fits(const lh_kernel_t *kernel, const char *op, const lh_arg_t *args,
                     uint32_t count)
{
    if (strcmp(kernel->op, op) != 0) return false;
    for (uint32_t i = 0; i < count; i++) {
        const lh_dtype_t wanted = kernel->dtypes[i];
        if (wanted != LH_DTYPE_NONE && wanted != args[i].dtype) return false;
    }
    return true;
}

/* The first row that matches and says yes, as the core chooses. */
static lh_status_t kernel_choose(rig_call_t *call, const char *op, const void *attributes,
                                 lh_kernel_plan_t *plan)
{
    const lh_plugin_t *plugin = call->rig->plugin;
    const lh_kernel_desc_t desc = {.struct_size = sizeof(desc),
                                   .flags = LH_KERNEL_ORDERED,
                                   .op = op,
                                   .attributes = attributes,
                                   .args = call->args,
                                   .arg_size = sizeof(lh_arg_t),
                                   .arg_count = call->count,
                                   .scratch_limit_bytes = call->rig->scratch_limit != 0
                                                              ? call->rig->scratch_limit
                                                              : (uint64_t)1 << 32,
                                   .stream = call->rig->stream};
    lh_status_t status = LH_UNSUPPORTED;

    snprintf(reason, sizeof(reason), "no row for %s with these dtypes", op);
    for (uint32_t i = 0; i < plugin->kernel_count; i++) {
        const char *row = (const char *)plugin->kernels + (size_t)i * plugin->kernel_size;
        const lh_kernel_t *kernel = (const lh_kernel_t *)(const void *)row;
        if (!row_fits(kernel, op, call->args, call->count)) continue;
        memset(plan, 0, sizeof(*plan));
        plan->struct_size = sizeof(*plan);
        call->kernel = kernel;
        status = kernel->prepare(&test_host, call->rig->device, &desc, plan, &call->prepared);
        if (status != LH_UNSUPPORTED) break;
    }
    memcpy(call->rig->kernel, plan->name, sizeof(call->rig->kernel));
    return status;
}

lh_status_t rig_prepare(rig_t *rig, const char *op, const void *attributes, const rig_slot_t *slots,
                        uint32_t count, rig_call_t **out)
{
    lh_kernel_plan_t plan;
    void *address = NULL;
    rig_call_t *call = calloc(1, sizeof(*call));

    if (call == NULL) exit(1);
    call->rig = rig;
    call->count = count;
    for (uint32_t i = 0; i < count; i++) {
        call->slots[i] = slots[i];
        arg_fill(&call->args[i], &slots[i]);
    }
    const lh_status_t status = kernel_choose(call, op, attributes, &plan);
    if (status != LH_OK) {
        free(call);
        return status;
    }
    for (uint32_t i = 0; i < count; i++)
        slot_place(call, i);
    if (plan.scratch_bytes > 0) {
        must(rig->api->alloc(rig->device, LH_SPACE_DEVICE, plan.scratch_bytes, &call->scratch,
                             &address),
             "alloc");
    }
    call->launch = (lh_launch_t){.struct_size = sizeof(call->launch),
                                 .arg_count = count,
                                 .args = call->places,
                                 .scratch = {.memory = call->scratch, .address = address},
                                 .stream = rig->stream};
    must(rig_bind(call), "bind");
    *out = call;
    return LH_OK;
}

lh_status_t rig_bind(rig_call_t *call)
{
    call->launch.bound = NULL;
    if (call->kernel->bind == NULL) return LH_OK;
    return call->kernel->bind(call->prepared, &call->launch, &call->launch.bound);
}

lh_status_t rig_try_launch(rig_call_t *call)
{
    return call->kernel->launch(call->prepared, &call->launch);
}

void rig_launch(rig_call_t *call)
{
    must(rig_try_launch(call), "launch");
}

lh_launch_t *rig_block(rig_call_t *call)
{
    return &call->launch;
}

void rig_wait(rig_t *rig)
{
    must(rig->api->record(rig->stream, rig->event), "record");
    must(rig->api->test(rig->event, (uint64_t)60 * 1000000000u), "test");
}

void rig_read(rig_call_t *call)
{
    for (uint32_t i = 0; i < call->count; i++) {
        if (call->slots[i].out != NULL) slot_download(call, i);
    }
}

void rig_free(rig_call_t *call)
{
    call->kernel->release(call->prepared);
    for (uint32_t i = 0; i < call->count; i++) {
        if (call->memory[i] != NULL) call->rig->api->release(call->memory[i]);
    }
    if (call->scratch != NULL) call->rig->api->release(call->scratch);
    free(call);
}

lh_status_t rig_run(rig_t *rig, const char *op, const void *attributes, const rig_slot_t *slots,
                    uint32_t count)
{
    rig_call_t *call;
    const lh_status_t status = rig_prepare(rig, op, attributes, slots, count, &call);

    if (status != LH_OK) return status;
    rig_launch(call);
    rig_wait(rig);
    rig_read(call);
    rig_free(call);
    return LH_OK;
}
