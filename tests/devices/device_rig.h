/* device_rig.h - runs one kernel of a device plugin on numbers given as doubles: for tests that
 * compare a device with values from outside or with the reference device. */
#ifndef DEVICE_RIG_H
#define DEVICE_RIG_H

#include <longhaul/plugin.h>

typedef struct rig {
    const lh_plugin_t *plugin;
    const lh_device_api_t *api;
    lh_device_t *device;
    lh_stream_t *stream;
    lh_event_t *event;
    lh_device_properties_t properties;
    uint64_t scratch_limit; /* bytes of scratch that a kernel is allowed; 0: 4 GiB */
    char kernel[64];        /* what the plan of the last one prepared calls it */
} rig_t;

/* What the test passes for one slot. Zero: left out. */
typedef struct rig_slot {
    lh_dtype_t dtype;
    uint32_t rank;
    uint64_t shape[LH_MAX_RANK];
    const double *in;    /* contents before; NULL: not numbers */
    double *out;         /* gets the contents after; NULL: of no interest */
    uint64_t pad;        /* elements between the rows; the rig checks that nobody writes there */
    uint32_t flags;      /* LH_ARG_*  */
    uint32_t alias_slot; /* from 1: lies in the memory of that slot */
    uint32_t count_slot; /* from 1: holds the number of valid rows  */
    uint32_t alignment;  /* of its place, as prepare is told; 0: not told */
} rig_slot_t;

#define RIG_NONE ((rig_slot_t){0})
#define RIG_IN(type, data, ...)                                                 \
    ((rig_slot_t){.dtype = LH_DTYPE_##type,                                     \
                  .rank = sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t), \
                  .shape = {__VA_ARGS__},                                       \
                  .in = (data)})
#define RIG_OUT(type, data, ...)                                                \
    ((rig_slot_t){.dtype = LH_DTYPE_##type,                                     \
                  .rank = sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t), \
                  .shape = {__VA_ARGS__},                                       \
                  .out = (data)})

typedef struct rig_call rig_call_t;

/* Ends the program with a sentence where the device can't be opened. config is the plugin's struct.
 */
void rig_open(rig_t *rig, const char *plugin, const void *config);

/* Where plugins lie: LH_TEST_PLUGINS of the environment, else the build's. */
const char *rig_plugins(void);
/* Whether the test is to run on a GPU (LH_TEST_GPU): what only the stand-ins of NVIDIA's libraries can
 * show is then left out. */
bool rig_on_gpu(void);

typedef struct rig_setting {
    const char *key; /* an option of the plugin; NULL ends the list */
    uint64_t value;  /* of a choice: its index */
} rig_setting_t;

/* The same by the option's names; what is not set is 0. rig_offers: opens and closes again, and
 * says whether that went well. */
void rig_open_with(rig_t *rig, const char *plugin, const rig_setting_t *settings);
bool rig_offers(const char *plugin, const rig_setting_t *settings);
void rig_close(rig_t *rig);
const lh_host_t *rig_host(void);
/* What the last host->fail() of this thread said. */
const char *rig_reason(void);
/* Makes it say nothing. */
void rig_forget(void);

/* prepare, one launch, and the results read back: LH_OK, or what prepare() said. */
lh_status_t rig_run(rig_t *rig, const char *op, const void *attributes, const rig_slot_t *slots,
                    uint32_t count);

/* The same in steps, for measuring and for launching again. */
lh_status_t rig_prepare(rig_t *rig, const char *op, const void *attributes, const rig_slot_t *slots,
                        uint32_t count, rig_call_t **out);
void rig_launch(rig_call_t *call);
/* Binds the call anew, where the test has changed its block. */
lh_status_t rig_bind(rig_call_t *call);
lh_status_t rig_try_launch(rig_call_t *call);
void rig_wait(rig_t *rig);
/* The block that rig_launch() hands over. */
lh_launch_t *rig_block(rig_call_t *call);
/* Reads the outputs into the slots' out. */
void rig_read(rig_call_t *call);
void rig_free(rig_call_t *call);

uint64_t rig_now_ns(void);
/* Numbers between -1 and 1, the same for the same seed. */
void rig_random(uint64_t seed, double *out, uint64_t count);
/* Rounded as the dtype would be. */
double rig_round(lh_dtype_t dtype, double value);
/* Largest |a - b|, and largest |b|; not-a-number counts as infinite. */
double rig_distance(const double *a, const double *b, uint64_t count);
double rig_size(const double *b, uint64_t count);

#endif
