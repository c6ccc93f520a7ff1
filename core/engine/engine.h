/* engine/engine.h - one open device and the programs that run on it.
 *
 * Order of use: engine_open, weights_new, program_new (and update_new of parallel/update.h for the
 * optimizer step), engine_build, then weights_write or weights_initialize, then steps:
 *
 *     for each round i of the schedule:
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
#include <engine/program.h>

/* Opens the device of `how`, which is copied; what it points to outlives the engine. */
lh_status_t engine_open(const engine_how_t *how, engine_t **out) LH_MUST_CHECK;
/* Waits for what is queued, then frees the engine with its weights and programs. NULL does
 * nothing. */
void engine_close(engine_t *e);
/* What moves values between ranks, transfer.h. Before the first program_new; x outlives the
 * engine. */
void engine_use_exchange(engine_t *e, exchange_t *x);

/* ---- from flows to memory ---- */

/* Puts what moves between ranks into the programs' flows, of an engine without a device too.
 * engine_plan does it, where nobody has. */
lh_status_t engine_arrange(engine_t *e) LH_MUST_CHECK;
/* Chooses kernels and plans memory, but allocates none: engine_memory and program_cost tell what a
 * build would take. */
lh_status_t engine_plan(engine_t *e) LH_MUST_CHECK;
/* Plans, allocates, prepares. Once, after all weights and programs are stated. */
lh_status_t engine_build(engine_t *e) LH_MUST_CHECK;
/* Once the last step of a run is made, so that saving it takes no more memory than the run did:
 * waits for what is queued, then frees arenas, scratch, inputs, outputs, constants, caches,
 * gradients, and values that have a master. Weights and states can still be read; no program runs
 * any more. Not where another process may read the memory. */
lh_status_t engine_finish(engine_t *e) LH_MUST_CHECK;

/* ---- reports ---- */

typedef struct memory_report {
    uint64_t bytes[MEMORY_KINDS];
    uint64_t
        saved_bytes; /* of the activations: those that live from forward to backward, at most */
    uint64_t total_bytes; /* without PINNED */
} memory_report_t;

const char *engine_memory_text(uint32_t kind); /* "parameters" */
/* What the engine takes of each kind, as planned. After engine_plan. */
void engine_memory(const engine_t *e, memory_report_t *out);
/* After engine_build, what of it is there: the pages that the kernel says are in memory where the
 * host reaches them, elsewhere what the device gave. 0 of LIBRARY, which lies in the heap of
 * others. */
void engine_memory_measured(const engine_t *e, memory_report_t *out);
/* What the device says of its memory as a whole. False: the device doesn't tell. */
bool engine_device_memory(const engine_t *e, lh_device_memory_t *out);
/* One line per distinct call: op, dtypes and shapes, then kernel name and variant. For the
 * fingerprint beside a checkpoint, and for engine_how_t.variants. */
void engine_variants(const engine_t *e, text_t *out);

/* Time per call, measured while switched on (slower: an event pair or two clock readings a
 * call). */
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

/* Whether it can be switched on: a device that queues work must tell when events were passed. */
bool engine_can_profile(const engine_t *e);
/* Switches it on, from zero, or off; waits for what is queued. Lists are launched call by call
 * while it is on, never replayed. */
lh_status_t engine_profile(engine_t *e, bool on) LH_MUST_CHECK;
/* Rows in descending order of time; the caller frees with mem_free. */
lh_status_t engine_profile_rows(engine_t *e, profile_row_t **rows, uint32_t *count) LH_MUST_CHECK;
/* In the order in which they first ran; the caller frees with mem_free. */
lh_status_t engine_profile_frames(engine_t *e, profile_frame_t **frames,
                                  uint32_t *count) LH_MUST_CHECK;
/* The share that a row reaches of what bounds it: the device's matrix rate or its memory bandwidth,
 * whichever takes longer. Over 1: out of a cache. 0 where a rate is not known (0). */
double engine_profile_of_limit(const profile_row_t *r, double peak_flops, double bytes_per_second);

#endif
