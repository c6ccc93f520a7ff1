/* cpu.h - the cpu device as its own files see it: device, stream, the part runner and the base of
 * every prepared kernel.
 *
 * A kernel source (norm_kernels.c, attention_kernels.c, ...) is compiled once per instruction set and ends
 * in a table CPU_ISA(<noun>_ops); the one that fits the processor is taken when the device opens.
 * An op has a plan() that looks at shapes, sets scratch and up to CPU_PHASES phases, each a number
 * of parts; launch() runs part after part on the stream's threads. How work is cut into parts
 * depends on shapes only, so the bits are the same for any number of threads.
 *
 * The life of a call: cpu_prepare() checks dtypes against the op's row, folds each argument into
 * rows (cpu_view_t), and has the op of this instruction set plan its phases; that is before step 0.
 * cpu_launch() fills in addresses and runs phase after phase, with a barrier in between; it returns
 * when all is done. A part gets the prepared kernel and its number, and works out from these alone
 * which rows or elements are its own: no part knows which thread it is on, but where it needs
 * scratch of a thread's (attention, products block by block), and no two parts write to one place.
 *
 * Who adds an op writes a part function and a plan in the kernel source of its kind and a row in
 * that source's table; the selftest finds an op of ops.h that has none. */
#ifndef LH_CPU_H
#define LH_CPU_H

#include <longhaul/dtype.h>
#include <longhaul/plugin.h>

#include "../op_slots.h"

/* Instruction sets that the kernel sources are compiled for, weakest first. On processors other
 * than x86-64 there is only the first. */
enum { CPU_BASELINE = 0, CPU_AVX2 = 1, CPU_AVX512 = 2, CPU_AVX512_BF16 = 3, CPU_ISAS = 4 };

/* Those that kernels were compiled for, from the first on. */
#if !defined(CPU_SETS) && defined(__x86_64__)
#define CPU_SETS 4
#elif !defined(CPU_SETS)
#define CPU_SETS 1
#endif

/* Of one prepared kernel: phases at most, and numbers that its plan keeps for its parts. */
enum { CPU_PHASES = 4, CPU_NUMBERS = 12 };

/* The options of cpu_plugin.c, as the host fills them in. */
typedef struct cpu_config {
    uint64_t threads; /* 0: as many as the host says that are to be kept busy            */
    uint32_t isa;     /* 0: the best there is; else CPU_* + 1                              */
    bool huge_pages;
} cpu_config_t;

typedef struct onednn onednn_t;               /* onednn.c */
typedef struct onednn_matmul onednn_matmul_t; /* onednn.c */

/* libgomp's entry points; its team is shared with oneDNN, as two awake pools fight for the cores.
 */
typedef struct cpu_openmp {
    void (*parallel)(void (*body)(void *), void *data, unsigned threads, unsigned flags);
    int (*thread_number)(void);
    int (*team_size)(void);
    void (*set_threads)(int threads); /* for parallel regions that the caller enters */
    void (*set_dynamic)(int dynamic);
} cpu_openmp_t;

/* One open device. Nothing in it changes once it is open, so kernels of all streams read it without
 * a lock; oneDNN's pool of threads is libgomp's, which belongs to the process. */
struct lh_device {
    const lh_host_t *host;
    cpu_config_t config;
    cpu_openmp_t openmp;
    onednn_t *onednn;
    /* lh_threads_t.run of its streams */
    void (*run)(lh_threads_t *threads, uint32_t parts, void (*work)(void *context, uint32_t part),
                void *context);
    uint32_t threads; /* of a compute stream */
    uint32_t isa;     /* CPU_*               */
    char model[64];   /* the processor's name */
};

struct lh_stream {
    lh_threads_t threads; /* first: lh_native_t hands out a pointer to it */
    lh_device_t *device;
};

/* An argument as rows of equal width: leading dimensions are folded into one. A vector [n] is one
 * row, a scalar one row of one element. */
typedef struct cpu_view {
    uint64_t rows, width;
    uint64_t pitch; /* elements from row to row; the last stride is 1 */
    lh_dtype_t dtype;
    uint32_t flags; /* LH_ARG_* */
} cpu_view_t;

typedef void (*cpu_work_t)(const lh_prepared_t *k, uint32_t part);

typedef struct cpu_phase { /* all of it ends before the next begins */
    cpu_work_t work;
    uint32_t parts;
    /* Instead of parts: on the launching thread, outside any parallel region. */
    lh_status_t (*alone)(const lh_prepared_t *k);
} cpu_phase_t;

/* A kernel call that is ready to be launched: made once before step 0, launched every step. plan()
 * fills in what shapes decide, cpu_launch() the addresses, and parts read all of it and write
 * nothing here. */
struct lh_prepared {
    const lh_host_t *host;
    lh_device_t *device;
    uint32_t arg_count;
    lh_arg_t arg[LH_MAX_SLOTS];    /* by slot from 0: inputs, then outputs, as in ops.h           */
    cpu_view_t view[LH_MAX_SLOTS]; /* the same, folded; rows 0 where the slot is left out */
    op_attributes_t how;           /* zero where the desc had none */
    cpu_phase_t phase[CPU_PHASES];
    uint32_t phases;
    uint64_t number[CPU_NUMBERS]; /* what plan() worked out for its parts: chunk sizes, offsets */
    onednn_matmul_t *matmul[8]; /* of matmul and the experts' products; freed by release()       */

    /* Set at every launch. */
    void *at[LH_MAX_SLOTS]; /* NULL where the slot is left out */
    void *scratch;          /* 64-aligned; plan->scratch_bytes */
    lh_stream_t *stream;
};

/* An op as one instruction set computes it. plan() has slots, dtypes and attributes checked
 * against `slots`; it checks shapes, sets phase[], phases and plan->scratch_bytes. A shape it
 * can't do: LH_UNSUPPORTED after host->fail(). Rows of a table end with name NULL. */
typedef struct cpu_op {
    const char *name; /* in LH_OPS_BASE or LH_OPS_MORE, which list what the device offers */
    /* The dtypes of its slots, in slot order, "->" left out:
     *   x F32 or BF16, the same one for every x     f F32       i I32
     *   y F32 or BF16, the same one for every y     m F32, BF16 or F16, each its own
     *   v F32, BF16, F16, F64 or I32, rows that lie unevenly too     - must be left out
     *   ? behind a slot: may be left out */
    const char *slots;
    lh_status_t (*plan)(lh_prepared_t *k, const lh_kernel_desc_t *desc, lh_kernel_plan_t *plan);
} cpu_op_t;

/* The tables of the kernel sources. A new source adds its table here. */
#define CPU_TABLES(X)     \
    X(copy_ops)           \
    X(matmul_ops)         \
    X(element_ops)        \
    X(norm_ops)           \
    X(route_ops)          \
    X(grouped_ops)        \
    X(rope_ops)           \
    X(rows_ops)           \
    X(loss_ops)           \
    X(update_ops)         \
    X(attention_ops)      \
    X(attention_grad_ops) \
    X(cache_ops)

/* Where a row of an argument begins. */
static inline void *cpu_row(const lh_prepared_t *k, uint32_t slot, uint64_t row)
{
    const cpu_view_t *v = &k->view[slot];
    return (char *)k->at[slot] + row * v->pitch * lh_dtype_bytes(v->dtype);
}

/* True where the slot was given. */
static inline bool cpu_has(const lh_prepared_t *k, uint32_t slot)
{
    return slot < k->arg_count && k->view[slot].rows != 0;
}

/* Cuts `items` into chunks of at least `grain`, at most `most` of them: a matter of shape only. */
static inline uint64_t cpu_chunk(uint64_t items, uint64_t grain, uint64_t most)
{
    const uint64_t even = (items + most - 1) / most;
    return even > grain ? even : grain;
}

/* The items [*begin, *end) of a part that takes `chunk` of them. */
static inline void cpu_range(uint32_t part, uint64_t chunk, uint64_t items, uint64_t *begin,
                             uint64_t *end)
{
    *begin = part * chunk;
    *end = items - *begin < chunk ? items : *begin + chunk;
}

/* Adds a phase of ceil(items / chunk) parts. */
static inline void cpu_phase_add(lh_prepared_t *k, cpu_work_t work, uint64_t items, uint64_t chunk)
{
    k->phase[k->phases].work = work;
    k->phase[k->phases].parts = (uint32_t)((items + chunk - 1) / chunk);
    k->phases++;
}

/* Runs work(k, part) for every part on the stream's threads; thread t of n takes the parts
 * [t parts / n, (t + 1) parts / n). */
void cpu_run(lh_stream_t *s, const lh_prepared_t *k, cpu_work_t work, uint32_t parts);

/* Frees what is in k->matmul. */
void cpu_matmuls_free(lh_prepared_t *k);

#endif
