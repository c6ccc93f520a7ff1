/* fake.h - a device that behaves as an accelerator does, made of the cpu's kernels.
 *
 * Work is queued and done later, by one worker thread that takes it from the streams after random
 * delays; the host gets addresses of device memory that it must not touch; launch blocks are read
 * when the kernel runs, and must be what they were at their first launch. So a missing wait, a host
 * access to device memory and an argument that changes between steps show without an accelerator.
 *
 * In these files lh_device_t and its kind are the fake's; handles of the cpu device within are
 * called inner and are never looked into. */
#ifndef FAKE_H
#define FAKE_H

#include <pthread.h>

#include <longhaul/plugin.h>

typedef struct fake_config {
    uint64_t threads;      /* of the kernels; 0: all processors */
    uint64_t delay_ns;     /* most that an operation waits before it runs */
    uint64_t seed;         /* of the delays */
    bool words;            /* streams await and signal them */
    bool host_access;      /* the host reaches device memory, while work is queued too */
    uint64_t memory_bytes; /* in all, as the device says; 0: it does not */
    bool packs;            /* LH_DEVICE_PACKS */
    uint64_t misplaced;    /* bytes by which device memory misses its alignment */
    uint64_t devices;      /* that the machine has; 0: as many as are asked for */
    char *index;           /* "auto": a rank's number on its machine; or a number */
    uint64_t candidates;   /* ways to make a product, of which a clock takes the last */
    bool unordered;        /* products need not be ordered where that is not asked for */
    char *lacks;           /* an op without a kernel; "": none */
    bool tells;            /* logs what it has seen when it is closed */
    bool shares;           /* pinned memory, as a memfd */
    bool capture;          /* LH_DEVICE_CAPTURE */
    bool dmabuf;           /* device memory, as a memfd that stands for a dma-buf */
    char *pci_path;        /* where it is; "": nowhere */
} fake_config_t;

/* What `tells` tells. */
typedef struct tally {
    uint32_t bound, launched;
    uint32_t misaligned; /* launches of a slot that lies on less than the device's alignment */
    uint32_t whole_rows; /* launches of attention whose documents are whole rows, or its gradient */
    uint32_t timed;      /* kernels */
    uint32_t ups, downs; /* copies of the first stream of role COPY */
    uint32_t beside;     /* downs with kernels queued on other streams */
    uint32_t slots;      /* places in pinned memory of these copies; SLOTS_COUNTED: or more */
    uint32_t replays;    /* of captured lists */
    uint32_t arrivals;   /* it was told that cards have written into its memory */
} tally_t;
enum { SLOTS_COUNTED = 8 };

enum { LANE_ITEMS = 4096, REPLAY_LANES = 8 };

enum {
    ITEM_KERNEL,
    ITEM_COPY,
    ITEM_FILL,
    ITEM_RECORD, /* event, ticket */
    ITEM_WAIT,   /* event, ticket */
    ITEM_EDGE,   /* of a replay: `ticket` items of lane `lane` are done */
    ITEM_AWAIT,
    ITEM_SIGNAL,
    ITEM_REPLAY,
};

typedef struct item {
    uint32_t type; /* ITEM_* */
    uint32_t lane;
    lh_prepared_t *kernel;
    const lh_launch_t *call;
    lh_place_t to, from;
    uint64_t bytes;
    lh_event_t *event;
    uint64_t ticket;
    uint32_t *word;
    lh_replay_t *replay;
    uint8_t byte;
} item_t;

/* What is done in order: a stream, or one stream's share of a replay. */
typedef struct lane {
    struct lane *next; /* of all that may have work */
    lh_stream_t *inner;
    lh_replay_t *part_of; /* NULL: a stream's own */
    bool slots;           /* its copies go through slots: the first stream of role COPY */
    item_t *items;        /* item n lies at n % capacity */
    uint64_t capacity;
    uint64_t done, queued; /* items so far */
    uint64_t due_ns;       /* when the next one may run; 0: not thrown yet */
} lane_t;

struct lh_device {
    const lh_host_t *host;
    fake_config_t config;
    uint64_t inner_config[32];
    lh_device_t *inner;
    lh_thread_t *worker;
    pthread_mutex_t lock;       /* of everything below, of lanes and events */
    pthread_mutex_t inner_lock; /* of calls into the cpu device */
    pthread_cond_t changed;
    bool closing;
    lane_t *lanes;
    uint64_t random;
    lh_replay_t *capture; /* being recorded */
    uint64_t capture_count;
    tally_t tally;
    bool has_slots;
    const char *slots[SLOTS_COUNTED]; /* places in pinned memory */
    uint32_t index;                   /* of this rank's device on its machine */
    lh_status_t error;                /* of queued work: the device is lost */
    char reason[256];
};

struct lh_memory {
    lh_device_t *device;
    char *shown; /* what the host gets to know: no access where space is DEVICE */
    char *real;
    uint64_t bytes;
    bool on_device; /* not the host's */
    int fd;         /* memfd behind pinned memory, and behind a device's that is shared; else -1 */
};

struct lh_stream {
    lh_device_t *device;
    lh_stream_t *inner;
    lane_t lane;
    bool captured;
    uint32_t capture_lane;
    bool loose; /* captured work that nobody has waited for yet */
};

struct lh_event {
    lh_device_t *device;
    uint64_t recorded, passed; /* tickets */
    uint64_t passed_ns;
    uint64_t capture_id; /* of the capture it was last recorded in; 0: none */
    lh_stream_t *stream;
    uint32_t capture_lane;
    uint64_t capture_ticket;
};

struct lh_replay {
    lh_device_t *device;
    lane_t lanes[REPLAY_LANES];
    uint32_t lane_count;
    lh_stream_t *origin;
    uint64_t id;
    const lane_t *runs_in; /* the stream whose turn it is; NULL: does not run */
};

typedef struct launch_mark {
    const lh_launch_t *call;
    uint64_t sum;
} launch_mark_t;

struct lh_prepared {
    lh_device_t *device;
    const lh_kernel_t *kernel; /* the cpu's row */
    lh_prepared_t *inner;
    uint64_t scratch_bytes;
    uint32_t alignment[LH_MAX_SLOTS]; /* of each slot, as it was said to prepare */
    bool misaligned, whole_rows;      /* as in tally_t */
    bool unordered;                   /* its last bits are a matter of chance */
    lh_dtype_t dtype;                 /* of the first output */
    uint32_t output;                  /* its slot, if it has at least an element; 0: none */
    char name[64];
    launch_mark_t *marks; /* of each launch block, from its first launch */
    uint32_t mark_count, mark_capacity;
};

/* fake_inner.c: the cpu device */
extern const lh_plugin_t fake_inner_plugin;
void fake_inner_configure(uint64_t config[32], uint64_t threads);
/* To be called by the thread that runs the kernels, once. */
void fake_inner_thread(lh_device_t *inner);

/* fake_memory.c */
lh_status_t fake_alloc(lh_device_t *d, uint32_t space, uint64_t bytes, lh_memory_t **out,
                       void **address);
void fake_release(lh_memory_t *memory);
lh_status_t fake_share(lh_memory_t *memory, uint32_t kind, lh_share_t *out);
lh_status_t fake_arrived(lh_device_t *d);
/* The place as the worker may use it. */
lh_status_t fake_place(lh_device_t *d, const lh_place_t *place, lh_place_t *out);

/* fake_kernel.c */
lh_status_t fake_fits(const lh_host_t *host, const lh_device_t *d, const void *config,
                      const lh_kernel_desc_t *desc);
lh_status_t fake_prepare(const lh_host_t *host, lh_device_t *d, const lh_kernel_desc_t *desc,
                         lh_kernel_plan_t *plan, lh_prepared_t **out);
lh_status_t fake_launch(lh_prepared_t *k, const lh_launch_t *call);
/* The block's own address: a launch of a block that was never bound shows. */
lh_status_t fake_bind(lh_prepared_t *k, const lh_launch_t *call, void **bound);
void fake_kernel_free(lh_prepared_t *k);
lh_status_t fake_kernel_run(lh_prepared_t *k, const lh_launch_t *call, lh_stream_t *inner);

/* fake_worker.c */
void fake_worker(void *device);
/* Remembers the first failure of queued work. */
lh_status_t fake_error(lh_device_t *d, lh_status_t status, const char *fmt, ...) LH_PRINTF(3, 4);
void lane_link(lh_device_t *d, lane_t *lane);
void lane_unlink(lh_device_t *d, lane_t *lane);

/* fake_queue.c: with the device's lock free */
lh_status_t fake_push(lh_stream_t *s, const item_t *item);
lh_status_t fake_record(lh_stream_t *s, lh_event_t *e);
lh_status_t fake_wait(lh_stream_t *s, lh_event_t *e);
lh_status_t fake_test(lh_event_t *e, uint64_t timeout_ns);
lh_status_t fake_copy(lh_stream_t *s, const lh_place_t *to, const lh_place_t *from, uint64_t bytes);
lh_status_t fake_fill(lh_stream_t *s, const lh_place_t *to, uint8_t byte, uint64_t bytes);
lh_status_t fake_await(lh_stream_t *s, const lh_place_t *word);
lh_status_t fake_signal(lh_stream_t *s, const lh_place_t *word);
lh_status_t fake_event_time(lh_event_t *e, uint64_t *ns);

/* fake_replay.c */
lh_status_t fake_capture_begin(lh_stream_t *s);
lh_status_t fake_capture_end(lh_stream_t *s, lh_replay_t **out);
lh_status_t fake_replay(lh_replay_t *r, lh_stream_t *s);
void fake_replay_free(lh_replay_t *r);
/* With the lock held: takes an item into the capture. */
lh_status_t replay_append(lh_stream_t *s, const item_t *item);
/* With the lock held: s joins the capture in which e was recorded. */
lh_status_t replay_join(lh_stream_t *s, lh_event_t *e);

/* fake_device.c */
extern const lh_device_api_t fake_device_api;

#endif
