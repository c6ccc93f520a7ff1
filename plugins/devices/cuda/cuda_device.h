/* cuda_device.h - the cuda device: its options and what lies behind the core's handles.
 *
 * One GPU a process, in its primary context. The driver keeps the current context for each thread,
 * and the core may call from any: every function sets it (cuda_enter), which costs some 50 ns. */
#ifndef CUDA_DEVICE_H
#define CUDA_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>

#include <longhaul/draft/memory.h>
#include <longhaul/plugin.h>

#include "cuda_launch.h"
#include "cuda_library.h"

typedef struct cuda_config {
    char *libraries;    /* folders, between colons; NULL: none */
    char *index;        /* "auto" or a number */
    bool capture;       /* lists are captured and replayed */
    bool tf32;          /* F32 products may round their inputs to TF32 */
    uint32_t attention; /* CUDA_ATTENTION_* */
} cuda_config_t;

enum { CUDA_ATTENTION_CUDNN, CUDA_ATTENTION_OWN };

/* A kernel by its name. Found at its first launch, for ever after without a lock: a list is captured
 * only once it has run. */
typedef struct cuda_kernel {
    const char *name; /* the caller's, which is constant */
    cuda_function_t function;
    uint32_t shared_bytes; /* that it may take */
} cuda_kernel_t;

enum { CUDA_KERNELS = 256 };

/* The context has as many users as devices are open; the core opens one. */
struct lh_device {
    const lh_host_t *host;
    cuda_library_t library;
    cuda_context_t context;
    cuda_ordinal_t ordinal;
    uint32_t index;    /* that the driver counts it by */
    int capability;    /* 10 major + minor */
    int shared_bytes;  /* of shared memory that a block may have */
    char name[64];     /* "NVIDIA H200" */
    char pci_path[32]; /* "0000:1b:00.0" */
    bool tf32, capture;
    cublas_handle_t cublas;
    void *cudnn; /* its handle; NULL: this build has none, or attention = own */
    pthread_mutex_t cudnn_lock;
    cuda_module_t module;   /* of the own kernels; NULL: built without nvcc */
    uint64_t library_bytes; /* of device memory that module and handle took */

    pthread_mutex_t lock; /* of kernels that are looked up, and of the clock */
    cuda_kernel_t kernels[CUDA_KERNELS];
    atomic_uint kernel_count;
    _Atomic(const char *) last; /* queued; for the sentence of a lost device */
    atomic_bool lost;

    /* The common clock: when `anchor` was passed, by the host's. */
    cuda_stream_t anchor_stream;
    cuda_event_t anchor;
    uint64_t anchor_ns;
};

/* Where memory is from, and so how it is given back. */
enum {
    CUDA_MEMORY_DEVICE = 1, /* cuMemAlloc */
    CUDA_MEMORY_HOST,       /* cuMemHostAlloc */
    CUDA_MEMORY_MAPPED,     /* a memfd that this process mapped and registered with the driver */
    CUDA_MEMORY_WRAPPED,    /* somebody else's host memory, registered */
    CUDA_MEMORY_PEER,       /* another process's device memory, by CUDA IPC */
};

struct lh_memory {
    lh_device_t *device;
    uint32_t space;  /* LH_SPACE_* */
    uint32_t source; /* CUDA_MEMORY_* */
    uint64_t bytes;
    void *address;
    int fd; /* of CUDA_MEMORY_MAPPED: the memfd; else -1 */
};

struct lh_stream {
    lh_device_t *device;
    cuda_stream_t stream;
    bool captures; /* between capture_begin and capture_end */
};

struct lh_event {
    lh_device_t *device;
    cuda_event_t event;
    bool recorded; /* since it was made */
};

struct lh_replay {
    lh_device_t *device;
    cuda_exec_t exec;
};

/* Names what is queued now, for the sentence that a lost device ends with. */
static inline void cuda_queued(lh_device_t *d, const char *what)
{
    atomic_store_explicit(&d->last, what, memory_order_relaxed);
}

/* Makes the device's context the calling thread's. */
lh_status_t cuda_enter(lh_device_t *d);
/* The driver's answer to `call` as ours, after host->fail(). An answer that leaves the context useless
 * is LH_DEVICE_LOST: GPU, rank, host and the last call queued are named. */
lh_status_t cuda_check(lh_device_t *d, cuda_result_t result, const char *call);
lh_status_t cuda_check_cublas(lh_device_t *d, cublas_status_t status, const char *call);
/* Why a library's launch on s has failed, which it does not tell: LH_DEVICE_LOST where the driver
 * says so, after host->fail(); LH_UNSUPPORTED in a capture; else LH_IO. */
lh_status_t cuda_launch_failure(lh_stream_t *s, const char *call);

static inline cuda_address_t cuda_address(const void *p)
{
    return (cuda_address_t)(uintptr_t)p;
}

/* cuda_memory.c */
lh_status_t cuda_alloc(lh_device_t *d, uint32_t space, uint64_t bytes, lh_memory_t **out,
                       void **address);
void cuda_release(lh_memory_t *memory);
lh_status_t cuda_memory(lh_device_t *d, lh_device_memory_t *out);
lh_status_t cuda_share(lh_memory_t *memory, uint32_t kind, lh_share_t *out);
lh_status_t cuda_arrived(lh_device_t *d);
extern const lh_memory_api_t cuda_memory_api;

/* cuda_queue.c */
lh_status_t cuda_stream_new(lh_device_t *d, const lh_stream_how_t *how, lh_stream_t **out);
void cuda_stream_free(lh_stream_t *s);
lh_status_t cuda_native(lh_stream_t *s, lh_native_t *out);
lh_status_t cuda_event_new(lh_device_t *d, lh_event_t **out);
void cuda_event_free(lh_event_t *e);
lh_status_t cuda_record(lh_stream_t *s, lh_event_t *e);
lh_status_t cuda_wait(lh_stream_t *s, lh_event_t *e);
lh_status_t cuda_test(lh_event_t *e, uint64_t timeout_ns);
lh_status_t cuda_event_time(lh_event_t *e, uint64_t *ns);
lh_status_t cuda_copy(lh_stream_t *s, const lh_place_t *to, const lh_place_t *from, uint64_t bytes);
lh_status_t cuda_fill(lh_stream_t *s, const lh_place_t *to, uint8_t byte, uint64_t bytes);
lh_status_t cuda_await(lh_stream_t *s, const lh_place_t *word);
lh_status_t cuda_signal(lh_stream_t *s, const lh_place_t *word);
lh_status_t cuda_capture_begin(lh_stream_t *s);
lh_status_t cuda_capture_end(lh_stream_t *s, lh_replay_t **out);
lh_status_t cuda_replay(lh_replay_t *r, lh_stream_t *s);
void cuda_replay_free(lh_replay_t *r);

/* cuda_product.c: matmul by cuBLASLt. */
lh_status_t cuda_product_fits(const lh_host_t *host, const lh_device_t *d, const void *config,
                              const lh_kernel_desc_t *desc);
lh_status_t cuda_product_prepare(const lh_host_t *host, lh_device_t *d,
                                 const lh_kernel_desc_t *desc, lh_kernel_plan_t *plan,
                                 lh_prepared_t **out);
lh_status_t cuda_product_bind(lh_prepared_t *k, const lh_launch_t *call, void **bound);
lh_status_t cuda_product_launch(lh_prepared_t *k, const lh_launch_t *call);
void cuda_product_release(lh_prepared_t *k);

/* cuda_sdpa.c: attention by cuDNN, in builds that have it. */
lh_status_t cuda_sdpa_fits(const lh_host_t *host, const lh_device_t *d, const void *config,
                           const lh_kernel_desc_t *desc);
lh_status_t cuda_sdpa_prepare(const lh_host_t *host, lh_device_t *d, const lh_kernel_desc_t *desc,
                              lh_kernel_plan_t *plan, lh_prepared_t **out);
lh_status_t cuda_sdpa_bind(lh_prepared_t *k, const lh_launch_t *call, void **bound);
lh_status_t cuda_sdpa_launch(lh_prepared_t *k, const lh_launch_t *call);
void cuda_sdpa_release(lh_prepared_t *k);

/* cuda_device.c */
extern const lh_device_api_t cuda_device_api;

#endif
