/* fake_cuda.h - libcuda, libcublasLt, libcudnn and libnccl in host memory: one shared object that is all of
 * them, so that the real plugins cuda and nvlink run where there is no GPU.
 *
 * What it keeps of the real ones is what a plugin may get wrong: calls need the context to be current
 * in their thread; work is queued and done later, by one worker that takes it from the streams after
 * random delays; device memory has addresses behind which the host finds nothing, and begins as
 * not-a-number; kernels get their parameters by value; captures must be joined and closed in
 * themselves; an error of queued work shows at a later call and ends the context. Kernels are those of
 * the plugin, compiled for the host (libcuda_host_kernels.so), found by their names.
 *
 * LH_FAKE_CUDA holds words `key=value`, read at cuInit():
 *   gpus=1 capability=90 driver=13000 cublas=130002 cudnn=92500 nccl=22809 memory_mib=2048 dmabuf=0
 *   registers=1                memory that is registered has one address for host and GPU
 *   flushes=1                  what network cards write can be made seen; it is in no order by itself
 *   delay_us=100 seed=1        most that an operation waits, and the seed of that
 *   fail=CALL:N:CODE           the Nth call of that name from here on returns CODE: any call of any of the
 *                              libraries but those that give something back; `work` is the Nth
 *                              operation that the worker does, and CODE then ends the context
 *   aligned=0                  1: cuBLASLt has algorithms for places on 16 bytes alone
 *   slow_us=0                  more that cuBLASLt's first candidate takes than its second, below 1 s
 *   nccl_us=0                  more that an operation of NCCL's takes; other streams go on meanwhile
 *   lazy=0                     1: what runs for the first time loads its code. No capture takes that; outside of
 *                              one all that is queued is done first, and other threads' calls wait as long */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "cuda_api.h"

#define FAKE_EXPORT __attribute__((visibility("default")))

typedef void fake_kernel_t(const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes,
                           const void *params);

enum {
    ITEM_WORK,   /* work(data), free(data) where it ran once */
    ITEM_RECORD, /* event, ticket */
    ITEM_WAIT,   /* event, ticket */
    ITEM_EDGE,   /* of a graph: `ticket` items of lane `lane` are done */
    ITEM_AWAIT,  /* *word - value >= 0 */
    ITEM_WRITE,  /* *word = value */
    ITEM_GRAPH,  /* exec */
};

typedef struct fake_item {
    uint32_t type; /* ITEM_* */
    uint32_t lane;
    cuda_result_t (*work)(const void *data);
    bool (*ready)(const void *data); /* asked with the lock; NULL: it is */
    void *data;                      /* of malloc; with `ready`, fake.kept's */
    cuda_event_t event;
    uint64_t ticket;
    uint32_t *word;
    uint32_t value;
    cuda_exec_t exec;
} fake_item_t;

/* What is done in order: a stream, or one stream's share of a graph. */
typedef struct fake_lane {
    struct fake_lane *next; /* of all that may have work */
    cuda_exec_t part_of;    /* NULL: a stream's own */
    fake_item_t *items;     /* grows; a stream's begins anew when it is empty */
    uint64_t capacity, done, queued;
    uint64_t due_ns; /* when the next one may run; 0: not thrown yet */
} fake_lane_t;

enum { GRAPH_LANES = 8 };

struct CUstream_st {
    fake_lane_t lane;
    cuda_graph_t graph; /* that it is captured into; NULL: none */
    uint32_t graph_lane;
    bool loose; /* captured work that nobody has waited for yet */
    cuda_stream_t next;
};

struct CUevent_st {
    uint64_t recorded, passed; /* tickets */
    uint64_t passed_ns;
    cuda_graph_t graph; /* of the capture it was last recorded in */
    cuda_stream_t stream;
    uint32_t graph_lane;
    uint64_t graph_ticket;
    cuda_event_t next;
};

struct CUgraph_st {
    fake_lane_t lanes[GRAPH_LANES];
    uint32_t lane_count;
    cuda_stream_t origin;
    bool broken; /* by a call that no capture takes */
};

struct CUgraphExec_st {
    fake_lane_t lanes[GRAPH_LANES];
    uint32_t lane_count;
    const fake_lane_t *runs_in; /* the stream whose turn it is; NULL: does not run */
    uint32_t launches;          /* queued and not past */
};

struct CUfunc_st {
    fake_kernel_t *run;
    char name[64];
    cuda_function_t next;
};

/* One for the process. */
typedef struct fake {
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t changed;
    int gpus, capability, driver;
    cuda_ordinal_t ordinal; /* of the context */
    bool dmabuf, registers, aligned, flushes;
    uint64_t cublas, cudnn, nccl, memory_bytes, used_bytes;
    uint64_t delay_ns, random;
    uint64_t slow_ns; /* that the library's first candidate takes longer than the second */
    uint64_t nccl_ns; /* that an operation of NCCL's takes longer */
    bool lazy;
    bool loading;     /* a thread waits for all queues to run dry */
    uint64_t *loaded; /* [loaded_count] what has run since the settings were read */
    size_t loaded_count;
    char fail_call[64];
    uint64_t fail_number;
    cuda_result_t fail_code;
    bool started; /* cuInit() */
    uint32_t contexts;
    bool closing, working; /* working: the worker does an item, without the lock */
    pthread_t worker;
    fake_lane_t *lanes;
    cuda_stream_t streams;
    cuda_event_t events; /* kept to the end: queued work may still name them */
    cuda_function_t functions;
    struct fake_kept *kept; /* what lives as long as the process: queued work and graphs name it */
    cuda_result_t error;    /* of queued work: the context is lost */
} fake_t;

extern fake_t fake;

/* fake_cuda_driver.c: begins a call: whether it shall fail, whether a context is current where it must be,
 * and the error that work has left. Takes the lock where all is well. */
cuda_result_t fake_begin(const char *call, bool in_context);
cuda_result_t fake_end(cuda_result_t result);
cuda_context_t fake_context(void);
/* With the lock: counts a call or an operation of that name; its code where it is to fail. */
cuda_result_t fake_fails(const char *name);

/* Without the lock: what a call that needs no context begins with. */
cuda_result_t fake_asked(const char *call);
#define FAKE_MAY_FAIL(call) FAKE_MAY_FAIL_AS(cuda_result_t, #call)
/* The same for a library whose answers are of another type. */
#define FAKE_MAY_FAIL_AS(type, name)                   \
    do {                                               \
        const cuda_result_t asked_ = fake_asked(name); \
        if (asked_ != 0) return (type)asked_;          \
    } while (0)

#define FAKE_BEGIN(call)                                      \
    do {                                                      \
        const cuda_result_t begun_ = fake_begin(#call, true); \
        if (begun_ != CUDA_OK) return begun_;                 \
    } while (0)

/* fake_cuda_memory.c: with the lock. The address as the worker may use it; NULL: not `bytes` of one
 * allocation. */
void *fake_real(cuda_address_t address, uint64_t bytes);
/* The same for every word of a kernel's parameters that points into device memory. */
void fake_real_words(void *params, size_t bytes);

/* fake_cuda_queue.c: with the lock. Data is freed by whoever takes the item. */
cuda_result_t fake_push(cuda_stream_t s, const fake_item_t *item);
cuda_result_t fake_push_work(cuda_stream_t s, cuda_result_t (*work)(const void *data),
                             const void *data, size_t bytes);

/* The same for work that begins once `ready` says so; data is of fake_keep(). */
cuda_result_t fake_push_polled(cuda_stream_t s, cuda_result_t (*work)(const void *data),
                               bool (*ready)(const void *data), void *data);
/* With the lock, before work is queued: `code` names what it runs. Where that must be loaded first this
 * waits for all queues, and is refused if the stream is captured. */
cuda_result_t fake_load(cuda_stream_t s, uint64_t code);
/* A copy that is never freed, and is found from `fake`; NULL: no memory. */
void *fake_keep(const void *data, size_t bytes);

/* fake_cuda_worker.c */
/* With the lock: waits for the item that the worker does. */
void fake_idle(void);
void *fake_worker(void *unused);
void fake_lane_link(fake_lane_t *lane);
void fake_lane_unlink(const fake_lane_t *lane);
uint64_t fake_now_ns(void);

#endif
