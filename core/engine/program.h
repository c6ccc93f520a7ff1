/* engine/program.h - a program's flow, its inputs and outputs, and the lists it becomes.
 *
 * A program is one of the things that an engine runs over and over: the forward and backward pass
 * of a round of micro-batches, scoring, a step of generation, the optimizer step. It is written
 * into a flow (by model_program.c, or core/parallel/update.c), finished into arenas and lists, and
 * run. Its inputs and outputs lie at fixed places in device memory, behind fixed places in pinned
 * memory, so that each run is the same calls.
 *
 * The upper half of this file is for who writes programs, the lower for who runs them. One thread
 * calls. */
#ifndef ENGINE_PROGRAM_H
#define ENGINE_PROGRAM_H

#include <engine/call_list.h>
#include <engine/weights.h>
#include <program/flow.h>

typedef struct schedule schedule_t; /* program/schedule.h */

/* What a program is for: which inputs and outputs it has, and whether gradients are made. */
enum { USE_TRAIN = 1, USE_SCORE = 2, USE_DECODE = 3, USE_UPDATE = 4 };

/* Sizes of a program. A run has `sequences` x `rows` tokens in each of its micro-batches. */
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

enum {
    OUTPUT_LOSS = 1,  /* F32 [2] TRAIN, SCORE: since micro-batch 0, what is minimised, and of it the
                         cross-entropy: sum of weight x nll; the rest are the model's own losses */
    OUTPUT_STATS = 2, /* F32 [tokens, 3] SCORE, of the last run: max logit, sum of exp(logit - max),
                         the label's logit; nll = log(sum) + max - logit                       */
    OUTPUT_LOGITS = 3, /* F32 [tokens, vocab] SCORE with wants_logits, DECODE: of the last run  */
    OUTPUT_STEP = 4,   /* F32 [groups, LH_STEP_WORDS] UPDATE: norm, factor, applied or not      */
};
enum { OUTPUTS = 6 }; /* room for one that only the engine sees */

/* Of one run, a later one where there is any; useful FLOPs, and bytes if nothing stays in a
 * cache. */
typedef struct program_cost {
    double flops, bytes;
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

/* Inputs are indexed by LH_INPUT_*; two staging slots: one is filled while the other's copy may be
 * queued. */
enum { PROGRAM_INPUTS = 9, STAGING_SLOTS = 2 };
enum { OUTPUT_EXTRA = 5 }; /* [1]: sum of the losses that the model adds; part of OUTPUT_LOSS */

/* A run-time input: bytes in device memory that the program's calls read, [rows of all
 * micro-batches of a run]. */
typedef struct program_input {
    uint64_t bytes; /* 0: not used */
    lh_arg_t arg;
    uint64_t offset;                /* in the engine's inputs */
    uint64_t pinned[STAGING_SLOTS]; /* in the engine's pinned memory: one is filled while the
                                       other's copy may still be queued */
    lh_event_t *copied[STAGING_SLOTS];
    bool busy[STAGING_SLOTS];
    uint32_t slot;  /* filled last */
    bool dirty;     /* not yet copied to the device */
    uint32_t value; /* in the flow */
} program_input_t;

/* An output: copied into pinned memory behind each run, read by the host once that is past. */
typedef struct program_output {
    uint64_t bytes;  /* 0: not made */
    uint64_t offset; /* in the engine's outputs */
    uint64_t pinned;
    uint32_t value;
} program_output_t;

/* The whole values that one part reads in one direction, gathered from all ranks where values are
 * cut (ZeRO 3). They lie in an arena from their gather to their last use; core/parallel/arrange.c
 * puts the gathers in. */
typedef struct gathered_instance {
    uint32_t part, block;
    bool backward;
    uint32_t *parameters, *values; /* [count] */
    uint32_t count;
} gathered_instance_t;

/* The fields are for core/engine and core/parallel; all others call functions. Recordings and maps
 * are needed while the flow is written; recordings stay, as calls point to their attributes. */
struct program {
    engine_t *engine;
    weights_t *weights;
    program_how_t how;      /* use, sizes */
    uint64_t tokens;        /* of a micro-batch */
    uint32_t micro_batches; /* of a run */
    uint32_t rounds;        /* runs of a step; 0: as many as there are */
    uint32_t row_count;     /* of the schedule, in a round */
    uint64_t frame_bytes;   /* the most that a row leaves to others; once the flow is finished */
    flow_t *flow;
    recording_t **recordings; /* kept: the flow points into them */
    const recording_t *block; /* of the first block; one of them */
    uint32_t recording_count;
    size_t recording_capacity;
    uint32_t **maps; /* kept until the flow is finished */
    uint32_t map_count;
    size_t map_capacity;
    uint32_t *store_buffers; /* [stores][parameters] flow buffers of weights, 0: not yet */
    uint32_t store_count;
    gathered_instance_t *instances; /* where weights_t.gathered */
    uint32_t instance_count;
    size_t instance_capacity;
    uint32_t *gradients; /* [parameters] where weights_t.bucketed: whole for a while. 0: not used */

    program_input_t inputs[PROGRAM_INPUTS];
    program_output_t outputs[OUTPUTS];
    call_list_t lists[2];            /* first micro-batch, later ones */
    lh_event_t *done[STAGING_SLOTS]; /* of the runs in flight: the control thread is at most so many
                                        ahead of the device */
    uint64_t runs;
};

/* A program without calls, owned by the engine. */
lh_status_t program_empty(engine_t *e, weights_t *w, const program_how_t *how,
                          program_t **out) LH_MUST_CHECK;
/* Of engine_close. */
void program_free(program_t *p);

/* Below, values are the flow's; a failure is kept in flow->status and 0 is returned. */

/* The program's input `which`, shaped like arg; made at the first call, the same value at later
 * ones. */
uint32_t program_input_value(program_t *p, uint32_t which, const lh_arg_t *arg);
/* An output shaped like arg. accumulates: the first micro-batch of a step writes it, later ones
 * add to it. */
uint32_t program_output_value(program_t *p, uint32_t which, const lh_arg_t *arg, bool accumulates);
/* A parameter's shard in a store: [its own shape] where the shard is whole, else flat, [elements].
 * Refused where the store has nothing of it. */
uint32_t program_store_value(program_t *p, const store_t *store, uint32_t parameter);
/* What kernels of the instance under way read of a parameter, and add its gradient into: its
 * store, or where that is cut, the whole form that other ranks bring, or take. */
uint32_t program_parameter(program_t *p, uint32_t parameter);
uint32_t program_gradient(program_t *p, uint32_t parameter);
/* A recorded constant, [count] F32; equal ones of all programs lie in one place. */
uint32_t program_constant_value(program_t *p, const graph_value_t *v);
/* Owns the recording from here on, whatever it returns. */
lh_status_t program_keep(program_t *p, recording_t *r) LH_MUST_CHECK;
/* A zeroed map for a recording, freed when the flow is finished. NULL after setting
 * flow->status. */
uint32_t *program_map(program_t *p, const recording_t *r);
/* Ends the flow: plans arenas, which grow to the largest program's, and frees maps. Of
 * engine_plan. */
lh_status_t program_finish(program_t *p) LH_MUST_CHECK;

/* Steps of engine_plan and engine_build: kernels for the lists; events, places and replays. */
lh_status_t program_choose(program_t *p) LH_MUST_CHECK;
lh_status_t program_place(program_t *p) LH_MUST_CHECK;

/* False: the program has no such input (gpt2 has no use for STARTS, say); giving it is no error. */
bool program_has_input(const program_t *p, uint32_t which);
/* Bytes of an input or OUTPUT_*; 0 if the program has none. */
uint64_t program_input_bytes(const program_t *p, uint32_t which);
uint64_t program_output_bytes(const program_t *p, uint32_t which);
/* Copies `bytes` (exactly program_input_bytes) from host; the buffer may be reused at once. The
 * value stays until it is given again. */
lh_status_t program_input(program_t *p, uint32_t which, const void *host,
                          uint64_t bytes) LH_MUST_CHECK;
/* Queues one run: copies inputs that were given, launches the list, copies outputs. micro_batch
 * counts the rounds of a step: 0 writes gradients and loss, later ones add to them (TRAIN, SCORE).
 * Waits where the host is two runs ahead. */
lh_status_t program_run(program_t *p, uint32_t micro_batch) LH_MUST_CHECK;
/* Waits for the program's last run and copies. */
lh_status_t program_output(program_t *p, uint32_t which, void *host, uint64_t bytes) LH_MUST_CHECK;
/* The most that a row of the program's schedule leaves in memory to later rows: a frame, and what
 * goes on to the next chunk. After engine_plan. */
uint64_t program_frame_bytes(const program_t *p);
/* The i-th call of the first round's list, or of the later ones'. False: there are fewer. After
 * engine_plan. */
bool program_call(const program_t *p, bool later, uint32_t i, program_call_t *out);
/* The recording of the model's first block. */
const recording_t *program_block(const program_t *p);
void program_cost(const program_t *p, program_cost_t *out);

#endif
