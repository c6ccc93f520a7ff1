/* fake_plugin.c - the fake's options, and a row for every op that the cpu has. Handles are opaque
 * here: cpu.h names the ops. */
#include "cpu.h"

typedef struct fake_options { /* as fake_config_t of fake.h */
    uint64_t threads, delay_ns, seed;
    bool words, host_access;
    uint64_t memory_bytes;
    bool packs;
    uint64_t misplaced;
    uint64_t devices;
    char *index;
    uint64_t candidates;
    bool unordered;
    char *lacks;
    bool tells;
    bool shares;
    bool capture;
    bool dmabuf;
    char *pci_path;
} fake_options_t;

extern const lh_device_api_t fake_device_api;
lh_status_t fake_fits(const lh_host_t *host, const lh_device_t *d, const void *config,
                      const lh_kernel_desc_t *desc);
lh_status_t fake_prepare(const lh_host_t *host, lh_device_t *d, const lh_kernel_desc_t *desc,
                         lh_kernel_plan_t *plan, lh_prepared_t **out);
lh_status_t fake_launch(lh_prepared_t *k, const lh_launch_t *call);
lh_status_t fake_bind(lh_prepared_t *k, const lh_launch_t *call, void **bound);
void fake_kernel_free(lh_prepared_t *k);

static const lh_option_t options[] = {
    LH_OPTION_U64(fake_options_t, threads, "threads", "0", "0..1024",
                  "threads that compute; 0: as many as there are processors"),
    LH_OPTION_DURATION(fake_options_t, delay_ns, "delay", "300us", "0s..1s",
                       "most that an operation waits before it runs"),
    LH_OPTION_U64(fake_options_t, seed, "seed", "1", NULL, "of the delays"),
    LH_OPTION_BOOL(fake_options_t, words, "words", "yes", "streams await words in pinned memory"),
    LH_OPTION_BOOL(fake_options_t, host_access, "host_access", "no",
                   "the host reaches device memory"),
    LH_OPTION_BYTES(fake_options_t, memory_bytes, "memory", "0", NULL,
                    "that the device says it has in all; 0: it does not say"),
    LH_OPTION_BOOL(fake_options_t, packs, "packs", "no",
                   "products that share an input come as one"),
    LH_OPTION_U64(fake_options_t, misplaced, "misplaced", "0", "0..4095",
                  "bytes by which device memory misses its alignment: a fault"),
    LH_OPTION_U64(fake_options_t, devices, "devices", "0", NULL,
                  "that the machine has; 0: as many as are asked for"),
    LH_OPTION_STRING(fake_options_t, index, "index", "auto",
                     "which device; auto: a rank's number on its machine"),
    LH_OPTION_U64(fake_options_t, candidates, "candidates", "1", "1..8",
                  "ways to make a product, of which the last is the fastest"),
    LH_OPTION_BOOL(fake_options_t, unordered, "unordered", "no",
                   "products have other last bits each time where that is allowed"),
    LH_OPTION_STRING(fake_options_t, lacks, "lacks", "", "an op that has no kernel"),
    LH_OPTION_BOOL(fake_options_t, tells, "tells", "no", "logs what it has seen when it is closed"),
    LH_OPTION_BOOL(fake_options_t, shares, "shares", "yes",
                   "ranks of a machine may map each other's pinned memory"),
    LH_OPTION_BOOL(fake_options_t, capture, "capture", "yes",
                   "lists are captured once and replayed; no: launched call by call"),
    LH_OPTION_BOOL(fake_options_t, dmabuf, "dmabuf", "no",
                   "cards may reach device memory where it lies"),
    LH_OPTION_STRING(fake_options_t, pci_path, "pci_path", "",
                     "where it says that it is; empty: nowhere"),
};

static const lh_kernel_t kernels[] = {
#define KERNEL_ROW(name, text)    \
    {.op = #name,                 \
     .fits = fake_fits,           \
     .prepare = fake_prepare,     \
     .launch = fake_launch,       \
     .release = fake_kernel_free, \
     .bind = fake_bind},
    LH_OPS_BASE(KERNEL_ROW) LH_OPS_MORE(KERNEL_ROW)
#undef KERNEL_ROW
};

LH_PLUGIN = {
    LH_PLUGIN_HEADER,
    .kind = LH_KIND_DEVICE,
    .config_size = sizeof(fake_options_t),
    .name = "fake",
    .version = "0.1.0",
    .summary = "the cpu's kernels behind queues with delays, and memory out of the host's reach",
    LH_TABLE_OPTIONS(options),
    LH_TABLE_KERNELS(kernels),
    .device = &fake_device_api,
};
