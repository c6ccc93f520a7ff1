/* my_device.c - a template for device plugins: the host's memory as a device, and one kernel.
 *
 * The 15 functions up to `fill` bring a device up; a table of kernels makes it useful. What is
 * below works at once (LH_DEVICE_SYNCHRONOUS): streams and events have nothing to remember. To
 * train on a device it needs kernels for all base ops of longhaul/ops.h. Rename the file,
 * `my_device` and the name below (all three must agree). */
#include <longhaul/plugin.h>

typedef struct my_config {
    uint64_t memory_bytes;
} my_config_t;

static const lh_option_t options[] = {
    LH_OPTION_BYTES(my_config_t, memory_bytes, "memory", "1GiB", "1MiB..",
                    "memory that the device claims to have"),
};

/* The host holds pointers to these and never looks inside. */
struct lh_device {
    const lh_host_t *host;
    my_config_t config;
};
struct lh_memory {
    lh_device_t *device;
    void *address;
};
struct lh_stream {
    lh_device_t *device;
};
struct lh_event {
    lh_device_t *device;
};

static void *take(lh_device_t *d, size_t bytes)
{
    return d->host->alloc(d->host, bytes, 64); /* zeroed; NULL after saying why */
}

/* Without taking one: `longhaul new` may ask on a machine that trains. */
static lh_status_t my_count(LH_UNUSED const lh_host_t *host, LH_UNUSED const void *config,
                            uint32_t *out)
{
    *out = 1;
    return LH_OK;
}

static lh_status_t my_open(const lh_host_t *host, const void *config, uint32_t index,
                           lh_device_t **out)
{
    if (index != 0)
        return host->fail(host, LH_NO_DEVICE, "there is one device here, not number %u", index);
    lh_device_t *d = host->alloc(host, sizeof(*d), 64);
    if (d == NULL) return LH_NO_MEMORY;
    d->host = host;
    d->config = *(const my_config_t *)config;
    *out = d;
    return LH_OK;
}

static void my_close(lh_device_t *d)
{
    d->host->release(d->host, d);
}

/* fingerprint: equal text promises equal bits. It goes into checkpoints and is compared at resume.
 */
static lh_status_t my_properties(lh_device_t *d, lh_device_properties_t *out)
{
    LH_FILL(lh_device_properties_t, out, .flags = LH_DEVICE_SYNCHRONOUS | LH_DEVICE_HOST_ACCESS,
            .name = "template", .fingerprint = "template 1", .numa_node = -1, .cores = 1,
            .memory_bytes = d->config.memory_bytes, .memory_bytes_per_second = 10000000000ull,
            .host_bytes_per_second = 10000000000ull, .launch_ns = 100, .alignment_bytes = 64,
            .flops_per_second = {[LH_DTYPE_F32] = 1e9});
    return LH_OK;
}

/* Called a handful of times before step 0: the core places everything inside these arenas. */
static lh_status_t my_alloc(lh_device_t *d, LH_UNUSED uint32_t space, uint64_t bytes,
                            lh_memory_t **out, void **address)
{
    lh_memory_t *m = take(d, sizeof(*m));
    if (m == NULL) return LH_NO_MEMORY;
    m->device = d;
    m->address = take(d, bytes);
    if (m->address == NULL) {
        d->host->release(d->host, m);
        return LH_NO_MEMORY;
    }
    *out = m;
    *address = m->address;
    return LH_OK;
}

static void my_release(lh_memory_t *m)
{
    lh_device_t *d = m->device;
    d->host->release(d->host, m->address);
    d->host->release(d->host, m);
}

static lh_status_t my_stream_new(lh_device_t *d, LH_UNUSED const lh_stream_how_t *how,
                                 lh_stream_t **out)
{
    lh_stream_t *s = take(d, sizeof(*s));
    if (s == NULL) return LH_NO_MEMORY;
    s->device = d;
    *out = s;
    return LH_OK;
}

static void my_stream_free(lh_stream_t *s)
{
    s->device->host->release(s->device->host, s);
}

static lh_status_t my_event_new(lh_device_t *d, lh_event_t **out)
{
    lh_event_t *e = take(d, sizeof(*e));
    if (e == NULL) return LH_NO_MEMORY;
    e->device = d;
    *out = e;
    return LH_OK;
}

static void my_event_free(lh_event_t *e)
{
    e->device->host->release(e->device->host, e);
}

/* Everything is done when it returns, so an event is always past. */
static lh_status_t my_record(LH_UNUSED lh_stream_t *s, LH_UNUSED lh_event_t *e)
{
    return LH_OK;
}
static lh_status_t my_wait(LH_UNUSED lh_stream_t *s, LH_UNUSED lh_event_t *e)
{
    return LH_OK;
}
static lh_status_t my_test(LH_UNUSED lh_event_t *e, LH_UNUSED uint64_t timeout_ns)
{
    return LH_OK;
}

static lh_status_t my_copy(LH_UNUSED lh_stream_t *s, const lh_place_t *to, const lh_place_t *from,
                           uint64_t bytes)
{
    memcpy(to->address, from->address, bytes);
    return LH_OK;
}

static lh_status_t my_fill(LH_UNUSED lh_stream_t *s, const lh_place_t *to, uint8_t byte,
                           uint64_t bytes)
{
    memset(to->address, byte, bytes);
    return LH_OK;
}

/* add: y = a + b, [rows, width] each, rows maybe further apart than their width. LH_SLOTS names the slots
 * of an op's text in ops.h. */
struct lh_prepared {
    const lh_host_t *host;
    uint64_t rows, width;
    uint64_t stride[3]; /* by slot */
};

static lh_status_t add_prepare(const lh_host_t *host, LH_UNUSED lh_device_t *d,
                               const lh_kernel_desc_t *desc, lh_kernel_plan_t *plan,
                               lh_prepared_t **out)
{
    LH_SLOTS(LH_ADD_TEXT);
    const lh_arg_t *y = &desc->args[out_y];
    if (y->rank != 2)
        return host->fail(host, LH_UNSUPPORTED, "add of rank %u, this kernel does 2", y->rank);
    lh_prepared_t *k = host->alloc(host, sizeof(*k), 64);
    if (k == NULL) return LH_NO_MEMORY;
    k->host = host;
    k->rows = y->shape[0];
    k->width = y->shape[1];
    for (int i = 0; i < slot_count; i++)
        k->stride[i] = desc->args[i].stride[0];
    LH_FILL(lh_kernel_plan_t, plan, .flags = LH_KERNEL_ORDERED | LH_KERNEL_CAPTURE, .variant = 1,
            .name = "add.f32.template");
    *out = k;
    return LH_OK;
}

static lh_status_t add_launch(lh_prepared_t *k, const lh_launch_t *call)
{
    LH_SLOTS(LH_ADD_TEXT);
    const float *a = call->args[in_a].address, *b = call->args[in_b].address;
    float *y = call->args[out_y].address;
    for (uint64_t row = 0; row < k->rows; row++)
        for (uint64_t i = 0; i < k->width; i++)
            y[row * k->stride[out_y] + i] = a[row * k->stride[in_a] + i] +
                                            b[row * k->stride[in_b] + i];
    return LH_OK;
}

static void add_release(lh_prepared_t *k)
{
    k->host->release(k->host, k);
}

#define F32 LH_DTYPE_F32

static const lh_kernel_t kernels[] = {
    {.op = "add",
     .dtypes = {F32, F32, F32},
     .prepare = add_prepare,
     .launch = add_launch,
     .release = add_release},
};

static const lh_device_api_t api = {
    .struct_size = sizeof(api),
    .count = my_count,
    .open = my_open,
    .close = my_close,
    .properties = my_properties,
    .alloc = my_alloc,
    .release = my_release,
    .stream_new = my_stream_new,
    .stream_free = my_stream_free,
    .event_new = my_event_new,
    .event_free = my_event_free,
    .record = my_record,
    .wait = my_wait,
    .test = my_test,
    .copy = my_copy,
    .fill = my_fill,
};

LH_PLUGIN = {
    LH_PLUGIN_HEADER,
    .kind = LH_KIND_DEVICE,
    .name = "my_device",
    .version = "0.1.0",
    .summary = "a template: host memory and one kernel",
    .config_size = sizeof(my_config_t),
    LH_TABLE_OPTIONS(options),
    LH_TABLE_KERNELS(kernels),
    .device = &api,
};
