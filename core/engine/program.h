/* engine/program.h - a program's flow, its inputs and outputs, and the lists it becomes.
 *
 * A program is one of the things that an engine runs over and over: the forward and backward pass
 * of a round of micro-batches, scoring, a step of generation, the optimizer step. It is written
 * into a flow (by model_program.c, or core/parallel/update.c), finished into arenas and lists, and
 * run. Its inputs and outputs lie at fixed places in device memory, behind fixed places in pinned
 * memory, so that each run is the same calls.
 *
 * The upper half of this file is for those who write programs, the lower for those who run them.
 * One thread, the control thread, calls. */
#ifndef ENGINE_PROGRAM_H
#define ENGINE_PROGRAM_H

#include <engine/call_list.h>
#include <engine/weights.h>
#include <program/flow.h>

typedef struct schedule schedule_t; /* program/schedule.h */

/* What a program is for: which inputs and outputs it has, and whether gradients are made. */
enum { USE_TRAIN = 1, USE_SCORE = 2, USE_DECODE = 3, USE_UPDATE = 4 };

/* Sizes of a program. A micro-batch has `sequences` x `rows` tokens. */
typedef struct program_how {
    uint32_t use;       /* USE_* */
    uint64_t sequences; /* of a micro-batch */
    /* Tokens of each sequence: the sequence length; DECODE: 1 for a step of generation, more for a
     * prefill. */
    uint64_t rows;
    uint64_t max_documents; /* of a micro-batch; 0: as many as sequences */
    uint32_t document_rows; /* every document is as many rows, whatever the inputs; 0: not known */
    /* DECODE: tokens of each sequence for which the cache has room. Programs of the same weights,
     * sequences and capacity share the cache. */
    uint64_t capacity;
    uint32_t recompute;     /* TRAIN: RECOMPUTE_*; the bits are the same in all three */
    uint64_t head_chunk;    /* rows whose logits exist at a time; 0: program_new chooses */
    uint32_t micro_batches; /* TRAIN, SCORE: of a step, for the mean of the model's losses; 0: 1 */
    uint32_t replicas;      /* TRAIN: ranks that make as many micro-batches, for that mean; 0: 1 */
    /* TRAIN, SCORE: the order of a step. A run is a round of the schedule; inputs hold its
     * micro-batches one after the other. Read by program_new only. NULL: one chunk, and a run is
     * one micro-batch. */
    const schedule_t *schedule;
    bool narrow_logits; /* TRAIN, SCORE: logits in the compute dtype; statistics and loss are not */
    bool wants_logits;  /* SCORE: OUTPUT_LOGITS as well, which DECODE always has */
    bool unadapted;     /* SCORE: the model as it is without its adapter */
} program_how_t;

enum {
    /* F32 [2] TRAIN, SCORE, summed since round 0: what is minimised; then the part of it that is
     * cross-entropy, the sum of weight x nll. The difference are the model's own losses. */
    OUTPUT_LOSS = 1,
    /* F32 [tokens, 3] SCORE, of the last run: max logit, sum of exp(logit - max), the label's
     * logit; nll = log(sum) + max - logit. */
    OUTPUT_STATS = 2,
    OUTPUT_LOGITS = 3, /* F32 [tokens, vocab] SCORE with wants_logits, DECODE: of the last run */
    OUTPUT_STEP = 4,   /* F32 [groups, LH_STEP_WORDS] UPDATE: norm, factor, applied or not */
    /* F32 [ranks, 1 or 2] UPDATE over several ranks: of each rank's OUTPUT_LOSS the cross-entropy;
     * then the sum of the model's own losses, if it has any. */
    OUTPUT_LOSSES = 6,
};
enum { OUTPUTS = 7 }; /* 1 more than the last; 5 is OUTPUT_EXTRA, which only the engine sees */

/* Of one run, and where rounds differ of a later one: useful FLOPs, and the bytes that kernels
 * would move if nothing stayed in a cache. */
typedef struct program_cost {
    double flops, bytes;
    uint32_t calls;
} program_cost_t;

/* One call of a program, as the device runs it; pointers live as long as the engine. */
typedef struct program_call {
    const op_t *op;             /* NULL: a transfer or a fill */
    const transfer_t *transfer; /* started or waited for; NULL: a kernel or a fill */
    bool waits;                 /* the transfer is waited for here */
    bool last_only;             /* only in the last round of a step */
    const void *attributes;
    const lh_arg_t *args;
    uint32_t arg_count;
    const char *part, *kernel; /* as in profile_row_t */
    uint32_t block;
    bool backward;
    double flops, bytes;
    uint64_t ns; /* in all runs since profiling was switched on */
} program_call_t;

/* Inputs are indexed by LH_INPUT_*. There are two staging slots: one is filled while the other's
 * copy may still be queued. */
enum { PROGRAM_INPUTS = 9, STAGING_SLOTS = 2 };
enum { OUTPUT_EXTRA = 5 }; /* [1]: sum of the losses that the model adds; part of OUTPUT_LOSS */

/* A run-time input: device memory that the program's calls read, with the rows of all micro-batches
 * of a run. */
typedef struct program_input {
    uint64_t bytes; /* 0: not used */
    lh_arg_t arg;
    uint64_t offset;                   /* in the engine's inputs */
    uint64_t pinned[STAGING_SLOTS];    /* offsets in the engine's pinned memory */
    lh_event_t *copied[STAGING_SLOTS]; /* behind the copy from a slot */
    bool busy[STAGING_SLOTS];          /* a slot's copy may be queued */
    uint32_t slot;                     /* filled last */
    bool dirty;                        /* that slot's copy is not yet queued */
    uint32_t value;                    /* of the flow */
} program_input_t;

/* An output: copied into pinned memory behind each run, and read by the host once the copy is
 * there. Figures have two slots, as inputs have: runs of one step share a slot, so that the step
 * before can still be read while the next one is queued. Logits and statistics have one. */
typedef struct program_output {
    uint64_t bytes;                 /* 0: not made */
    uint64_t offset;                /* in the engine's outputs */
    uint64_t pinned[STAGING_SLOTS]; /* offsets in the engine's pinned memory; may be the same */
    uint32_t value;                 /* of the flow */
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
 * are needed while the flow is written; recordings stay longer, as calls point to their
 * attributes. */
struct program {
    engine_t *engine;
    weights_t *weights;
    program_how_t how;            /* without the schedule */
    uint64_t tokens;              /* of a micro-batch */
    uint32_t round_micro_batches; /* of a run */
    uint32_t rounds;              /* runs of a step; 0: the caller makes as many as it likes */
    uint32_t row_count;           /* rows of the schedule in a round */
    uint32_t leg_blocks, legs;    /* program_legs */
    bool halves;                  /* program_halves */
    uint64_t frame_bytes;         /* the most that a row leaves to later rows; after engine_plan */
    flow_t *flow;
    recording_t **recordings; /* owned: the flow points into them */
    const recording_t *block; /* that of the first block; one of `recordings` */
    uint32_t recording_count;
    size_t recording_capacity;
    uint32_t **maps; /* owned until the flow is finished */
    uint32_t map_count;
    size_t map_capacity;
    uint32_t *store_buffers; /* [store_count][parameters] flow buffers of shards; 0: not yet made */
    uint32_t store_count;
    gathered_instance_t *instances; /* where weights_t.gathered */
    uint32_t instance_count;
    size_t instance_capacity;
    uint32_t *gradients; /* [parameters] where weights_t.bucketed: whole gradients; 0: not used */

    program_input_t inputs[PROGRAM_INPUTS];
    program_output_t outputs[OUTPUTS];
    call_list_t lists[2];            /* of the first round, of later rounds */
    lh_event_t *done[STAGING_SLOTS]; /* ends of the runs in flight: at most so many at once */
    uint64_t runs;                   /* queued so far */
    /* Steps begun so far, whose outputs go to slot (steps - 1) % STAGING_SLOTS, and `runs` behind the
     * last run of each slot's step. */
    uint64_t steps, runs_of[STAGING_SLOTS];
};

/* A program without calls, which the engine owns. *how is copied; its schedule is only read. */
lh_status_t program_empty(engine_t *e, weights_t *w, const program_how_t *how,
                          program_t **out) LH_MUST_CHECK;
/* For engine_close; nothing of the program is queued any more. NULL does nothing. */
void program_free(program_t *p);

/* The functions from here to program_constant_value return a value of the flow; after a failure,
 * which flow->status keeps, 0. */

/* The program's input LH_INPUT_*, shaped like arg. Made at the first call; later calls return the
 * same value. */
uint32_t program_input_value(program_t *p, uint32_t which, const lh_arg_t *arg);
/* The program's output OUTPUT_*, shaped like arg; made at the first call. accumulates: the first
 * micro-batch of a step writes the output, later ones add to it. */
uint32_t program_output_value(program_t *p, uint32_t which, const lh_arg_t *arg, bool accumulates);
/* A parameter's shard in a store: in the parameter's shape where the shard is whole, else flat,
 * [elements]. LH_INVALID where the store has no shard of the parameter. */
uint32_t program_store_value(program_t *p, const store_t *store, uint32_t parameter);
/* The value that kernels of the instance under way read of a parameter, and the one that they add
 * its gradient into: whole, in the store; or where stores are cut, in a whole form that is gathered
 * from other ranks, or summed into theirs. */
uint32_t program_parameter(program_t *p, uint32_t parameter);
uint32_t program_gradient(program_t *p, uint32_t parameter);
/* A recorded constant, F32 [count]; equal constants of all programs lie in one place. */
uint32_t program_constant_value(program_t *p, const graph_value_t *v);
/* Takes over a recording, which is freed with the program, or at once after a failure. */
lh_status_t program_keep(program_t *p, recording_t *r) LH_MUST_CHECK;
/* A map for a recording, [r->value_count] zeros, freed when the flow is finished. NULL, with
 * flow->status set, where memory is short. */
uint32_t *program_map(program_t *p, const recording_t *r);
/* Joins products that share an input where the device asks for it (program/packing.h). Once all calls
 * but those of transfers are written. */
lh_status_t program_pack(program_t *p) LH_MUST_CHECK;
/* For engine_plan. Ends the flow: plans its arenas, lets the engine's grow to them, and frees
 * maps. */
lh_status_t program_finish(program_t *p) LH_MUST_CHECK;

/* For engine_plan: makes the lists, with a kernel for each call. For engine_build: makes events,
 * fills in places. */
lh_status_t program_choose(program_t *p) LH_MUST_CHECK;
lh_status_t program_place(program_t *p) LH_MUST_CHECK;

/* Whether the model reads an input: gpt2 has no use for STARTS, say. Giving one that it does not
 * read is no error. */
bool program_has_input(const program_t *p, uint32_t which);
/* Bytes of an input or OUTPUT_*; 0 if the program has none. */
uint64_t program_input_bytes(const program_t *p, uint32_t which);
uint64_t program_output_bytes(const program_t *p, uint32_t which);
/* Copies `bytes`, exactly program_input_bytes, from host, whose memory may be reused at once. The
 * input keeps its value over runs until it is given again. */
lh_status_t program_input(program_t *p, uint32_t which, const void *host,
                          uint64_t bytes) LH_MUST_CHECK;
/* Queues one run: copies inputs that were given, launches the list, copies outputs. micro_batch is
 * the round of the step, from 0: round 0 writes gradients and loss, later rounds add to them
 * (TRAIN, SCORE). Waits where the host is two runs ahead of the device. */
lh_status_t program_run(program_t *p, uint32_t micro_batch) LH_MUST_CHECK;
/* Runs that are queued and not past: at most 2, and then program_run would wait for the first of
 * them. */
uint32_t program_under_way(const program_t *p);
/* Waits for the program's last run, and copies `bytes`, exactly program_output_bytes, to host.
 * LH_INVALID before the first run. */
lh_status_t program_output(program_t *p, uint32_t which, void *host, uint64_t bytes) LH_MUST_CHECK;
/* As program_output, of the step `back` steps before the last one that was begun (0 or 1): waits
 * for that step's last run alone, whatever is queued behind it. Round 0 begins a step; of programs
 * without rounds each run does. LH_INVALID where no such step was begun. */
lh_status_t program_output_of(program_t *p, uint32_t which, uint32_t back, void *host,
                              uint64_t bytes) LH_MUST_CHECK;
/* Bytes that a row of the program's schedule leaves in memory to later rows, at most: a frame, and
 * what goes on to the next chunk. After engine_plan. */
uint64_t program_frame_bytes(const program_t *p);
/* How many blocks are taken in legs (part_legs.h), and in how many at most; 0: all go whole. */
uint32_t program_legs(const program_t *p, uint32_t *most);
/* Whether the first block goes back in halves, the embedding between them (part_halves.h). */
bool program_halves(const program_t *p);
/* The i-th call, from 0, of the first round's list or of the later rounds'. False: the list is
 * shorter. After engine_plan. */
bool program_call(const program_t *p, bool later, uint32_t i, program_call_t *out);
/* The recording of the model's first block; NULL for an update. */
const recording_t *program_block(const program_t *p);
void program_cost(const program_t *p, program_cost_t *out);

#endif
