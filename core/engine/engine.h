/* engine/engine.h - one open device and the programs that run on it.
 *
 * Order of use: engine_open, weights_new, program_new (and update_new of parallel/update.h for the
 * optimizer step), engine_build, then weights_write or weights_initialize, then steps:
 *
 *     for each micro-batch i:
 *         program_input(train, LH_INPUT_TOKENS, ...); and the other inputs
 *         program_run(train, i);
 *     program_input(update, LH_INPUT_STEP, ...);
 *     program_run(update, 0);
 *     program_output(train, OUTPUT_LOSS, &loss, sizeof(loss));
 *     program_output(update, OUTPUT_STEP, step, sizeof(step));
 *
 * Everything that can fail for a reason other than the device fails in engine_build or before it.
 * After it no step allocates. input and run only queue (on an asynchronous device); output waits.
 * One thread calls. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include <base/text.h>
#include <config/job.h>
#include <graph/parameters.h>
#include <graph/recording.h>
#include <plugin/registry.h>

typedef struct engine engine_t;
typedef struct weights
    weights_t; /* a model's parameters in memory, and their gradients and states */
typedef struct program program_t;   /* a call list */
typedef struct transfer transfer_t; /* transfer.h */
typedef struct schedule schedule_t; /* schedule.h */

typedef struct engine_how {
    const lh_host_t *host;     /* given to recorders and ops                                     */
    const plugin_t *device;    /* its own kernels come first; NULL: none is opened. Programs are
                                  recorded then, with nothing fused, but not planned or built                                     */
    const void *device_config; /* its parsed options                                             */
    uint32_t device_index;
    const plugin_t *const
        *plugins; /* others whose kernels may serve this device; may hold `device` */
    uint32_t plugin_count;
    const op_table_t *ops;
    bool no_capture;      /* true: launches every step even where the device offers capture      */
    const char *variants; /* NULL, or what engine_variants said before: kernels choose the same
                             again, or the build is refused                                      */
} engine_how_t;

lh_status_t engine_open(const engine_how_t *how, engine_t **out) LH_MUST_CHECK;
/* What moves values between ranks, transfer.h. Before the first program_new; x outlives the engine.
 */
typedef struct exchange exchange_t;
void engine_use_exchange(engine_t *e, exchange_t *x);
/* Frees its weights and programs too. NULL does nothing. */
void engine_close(engine_t *e);

typedef struct weights_how {
    const lh_model_api_t *api;
    lh_model_t *model;  /* opened; closed by the caller after engine_close      */
    lh_dtype_t compute; /* BF16, F32 (F64 in tests)                             */
} weights_how_t;

enum { USE_TRAIN = 1, USE_SCORE = 2, USE_DECODE = 3, USE_UPDATE = 4 };

typedef struct program_how {
    uint32_t use;           /* USE_TRAIN, USE_SCORE or USE_DECODE                              */
    uint64_t sequences;     /* in one run                                                      */
    uint64_t rows;          /* tokens of each sequence in one run: the sequence length; DECODE: 1
                               for a step of generation, more for a prefill                      */
    uint64_t max_documents; /* 0: as many as sequences                                         */
    uint64_t capacity;   /* DECODE: rows of the cache. Programs of the same weights, sequences and
                            capacity share it                                               */
    uint32_t recompute;  /* TRAIN: RECOMPUTE_*; same bits in all three                      */
    uint64_t head_chunk; /* rows whose logits exist at a time; 0: choose                     */
    uint32_t micro_batches; /* TRAIN, SCORE: in a step; losses of the model's own are averaged over
                               them. 0: 1 */
    uint32_t replicas;      /* TRAIN: ranks that each make so many; the same average. 0: 1 */
    const schedule_t
        *schedule;     /* TRAIN, SCORE: the order of a step; a run is one of its rounds, whose
                                   micro-batches inputs hold one after the other. Read by program_new
                                   only. NULL: one chunk, and a micro-batch a run */
    bool wants_logits; /* SCORE: OUTPUT_LOGITS as well (DECODE always has them)           */
} program_how_t;

/* Inputs by use. TRAIN: TOKENS, POSITIONS, STARTS, LABELS, WEIGHTS. SCORE: TOKENS, POSITIONS,
 * STARTS, LABELS, WEIGHTS. DECODE: TOKENS, POSITIONS, LENGTHS (rows already in the cache, before
 * these). UPDATE: STEP. All of them: SEED. */
lh_status_t program_new(engine_t *e, weights_t *w, const program_how_t *how,
                        program_t **out) LH_MUST_CHECK;

/* Puts what moves between ranks into the programs' flows, of an engine without a device too.
 * engine_plan does it, where nobody has. */
lh_status_t engine_arrange(engine_t *e) LH_MUST_CHECK;
/* Chooses kernels and plans memory, but allocates none: engine_memory and program_cost tell what a
 * build would take. */
lh_status_t engine_plan(engine_t *e) LH_MUST_CHECK;
/* Plans, allocates, prepares. Once, after all weights and programs are stated. */
lh_status_t engine_build(engine_t *e) LH_MUST_CHECK;

enum {
    OUTPUT_LOSS = 1,  /* F32 [2] TRAIN, SCORE: since micro-batch 0, what is minimised, and of it the
                         cross-entropy: sum of weight x nll; the rest are the model's own losses */
    OUTPUT_STATS = 2, /* F32 [tokens, 3] SCORE, of the last run: max logit, sum of exp(logit - max),
                         the label's logit; nll = log(sum) + max - logit                       */
    OUTPUT_LOGITS = 3, /* F32 [tokens, vocab] SCORE with wants_logits, DECODE: of the last run  */
    OUTPUT_STEP = 4,   /* F32 [groups, LH_STEP_WORDS] UPDATE: norm, factor, applied or not      */
};
enum { OUTPUTS = 6 }; /* room for one that only the engine sees */

/* Waits for everything queued so far. */
lh_status_t engine_wait(engine_t *e) LH_MUST_CHECK;

/* Spaces of a parameter's data. */
enum {
    SPACE_PARAMETER = 1, /* the master where there is one, else the value; writing renews both   */
    SPACE_VALUE = 2,     /* what kernels read, in the compute dtype                             */
    SPACE_GRAD = 3,
    SPACE_STATE = 16, /* + k: the rule's k-th state                                         */
};

/* What this rank holds: dtype, elements [begin, end) and, for states, the number of elements of the
 * state. False: the space does not exist for this parameter (frozen, no optimizer). */
typedef struct weights_extent {
    lh_dtype_t dtype;
    lh_slice_t slice;
    uint64_t elements;
    const char *name; /* of a state: "exp_avg"; else NULL */
} weights_extent_t;

/* Reports. */
enum {
    MEMORY_PARAMETERS,
    MEMORY_GRADIENTS,
    MEMORY_MASTER,
    MEMORY_STATE,
    MEMORY_ACTIVATIONS,
    MEMORY_GATHERED, /* values of the blocks that are visited, where they are cut */
    MEMORY_BUCKETS,  /* gradients on their way, where they are cut               */
    MEMORY_SCRATCH,
    MEMORY_INPUTS,
    MEMORY_OUTPUTS,
    MEMORY_CACHES,
    MEMORY_CONSTANTS,
    MEMORY_PINNED,
    MEMORY_LIBRARY,   /* what the device keeps for itself, weights packed for kernels */
    MEMORY_TRANSFERS, /* staging and plans between ranks; the engine knows of none */
    MEMORY_KINDS
};
typedef struct memory_report {
    uint64_t bytes[MEMORY_KINDS];
    uint64_t
        saved_bytes; /* of the activations: those that live from forward to backward, at most */
    uint64_t total_bytes; /* without PINNED */
} memory_report_t;
enum { ENGINE_ALIGNMENT = 64 }; /* of pieces in memory, unless the device asks for more */

const lh_device_properties_t *engine_properties(const engine_t *e);
/* One line per distinct call: op, dtypes and shapes, then kernel name and variant. For the
 * fingerprint beside a checkpoint, and for engine_how_t.variants. */
void engine_variants(const engine_t *e, text_t *out);

typedef struct program_cost {
    double flops, bytes; /* of one run (a later micro-batch's); useful FLOPs              */
    uint32_t calls;
} program_cost_t;

/* One call of a program, as the device runs it; pointers live as long as the engine. */
typedef struct program_call {
    const op_t *op;             /* NULL: a transfer, or memory is set to zero */
    const transfer_t *transfer; /* NULL: none; else it is started here, or waited for */
    bool waits;                 /* for the transfer */
    bool last_only;             /* left out but in the last run of a step */
    const void *attributes;
    const lh_arg_t *args;
    uint32_t arg_count;
    const char *part, *kernel; /* as in profile_row_t */
    uint32_t block;
    bool backward;
    double flops, bytes;
    uint64_t ns; /* in all runs since profiling was switched on */
} program_call_t;

/* Time per call, measured while switched on (slower: an event pair or two clock readings a call).
 */
typedef struct profile_row {
    char part[24]; /* "embed", "blocks", "head", "update", "inputs" */
    char op[40];
    char kernel[64];
    uint64_t calls, ns; /* in all runs since it was switched on */
    double flops, bytes;
    bool backward;
} profile_row_t;

typedef struct profile_frame { /* all calls of an op in one block, one direction, one list */
    const char *list;          /* "first micro-batch", "later micro-batches", "update" */
    const char *part, *op;     /* as in profile_row_t; they live as long as the engine */
    uint32_t block;
    bool backward;
    uint64_t ns;
} profile_frame_t;

#endif
