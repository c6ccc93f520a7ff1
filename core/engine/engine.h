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
 * Everything that can fail for a reason other than the device fails in engine_build or before it,
 * and no step allocates. The price is that all sizes are fixed before the first step. On an
 * asynchronous device program_input and program_run only queue; program_output waits. One thread,
 * the rank's control thread, calls. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include <base/text.h>
#include <engine/program.h>

/* Opens the device that `how` names. `how` is copied; what it points to outlives the engine. */
lh_status_t engine_open(const engine_how_t *how, engine_t **out) LH_MUST_CHECK;
/* Waits for what is queued, even while the job is being stopped, then frees the engine with its
 * weights and programs. No transfer may be under way any more; those that ended in a failure or were
 * never started hold no queue up. NULL does nothing. */
void engine_close(engine_t *e);
/* Sets what moves values between ranks (program/transfer.h). Before the first program_new; x
 * outlives the engine. */
void engine_use_exchange(engine_t *e, exchange_t *x);

/* ---- from flows to memory ---- */

/* Puts transfers between ranks into the programs' flows; works without a device too. Once; later
 * calls do nothing. engine_plan calls it first. LH_INVALID where a model records a transfer and the
 * engine has no exchange. */
lh_status_t engine_arrange(engine_t *e) LH_MUST_CHECK;
/* Chooses kernels and plans memory, but allocates none: engine_memory and program_cost then tell
 * what a build would take. LH_UNSUPPORTED where the device has no kernel for a call. */
lh_status_t engine_plan(engine_t *e) LH_MUST_CHECK;
/* Plans, allocates, fills in places. Once, after all weights and programs are stated. After a failure the
 * engine can only be closed. */
lh_status_t engine_build(engine_t *e) LH_MUST_CHECK;
/* After the last step of a run, so that saving takes no more memory than the run did: waits for
 * what is queued, then frees arenas, scratch, inputs, outputs, constants, caches, gradients, and
 * values that have a master. Weights and states can still be read; no program may run any more. Not
 * while another process may read the memory, as a peer does that has mapped it. */
lh_status_t engine_finish(engine_t *e) LH_MUST_CHECK;

/* ---- reports ---- */

/* In bytes. saved_bytes is a part of the activations: the most that live from a forward pass to the
 * way back. */
typedef struct memory_report {
    uint64_t bytes[MEMORY_KINDS];
    uint64_t saved_bytes;
    uint64_t total_bytes; /* without MEMORY_PINNED, which is the host's */
} memory_report_t;

const char *engine_memory_text(uint32_t kind); /* "parameters" */
/* What the engine takes of each kind, as planned. After engine_plan. */
void engine_memory(const engine_t *e, memory_report_t *out);
/* After engine_build: how much of the plan is there. Where the host reaches the memory, that is the
 * pages that the operating system has in memory; elsewhere, what the device gave. MEMORY_LIBRARY is
 * 0, as it lies in heaps that the engine can't see. */
void engine_memory_measured(const engine_t *e, memory_report_t *out);
/* What the device says of its memory as a whole, other programs' use included. False: the device
 * doesn't tell. */
bool engine_device_memory(const engine_t *e, lh_device_memory_t *out);
/* As kernel_choice_tune; before engine_plan. */
void engine_tune(engine_t *e, const char *known, bool tune);
/* As kernel_choice_bound; before engine_plan, and engine_build is not called. */
void engine_bound(engine_t *e);
/* The lines of engine_variants whose kernels have timed what they chose from. */
void engine_timed(const engine_t *e, text_t *out);
/* One line per distinct call: op, dtypes and shapes, then kernel name and variant. For the
 * fingerprint beside a checkpoint, and for engine_how_t.variants. */
void engine_variants(const engine_t *e, text_t *out);

/* The time of all calls that have part, op, kernel and direction in common, measured while
 * profiling is switched on (which is slower: an event or two clock readings a call). */
typedef struct profile_row {
    char part[24]; /* "embed", "blocks", "head", "update", "inputs" */
    char op[40];
    char kernel[64];
    uint64_t calls, ns;  /* in all runs since profiling was switched on */
    double flops, bytes; /* of those calls; 0 of transfers and fills */
    bool backward;
} profile_row_t;

/* All calls of an op in one block, one direction, one list: a box of a flame chart. */
typedef struct profile_frame {
    const char *list;      /* "first micro-batch", "later micro-batches", "update" */
    const char *part, *op; /* as in profile_row_t; the strings live as long as the engine */
    uint32_t op_flags;     /* LH_OP_* of the op's row */
    uint32_t block;
    bool backward;
    bool waits; /* for other ranks */
    uint64_t ns;
} profile_frame_t;

/* Whether program_run returns before the device has done the work. */
bool engine_queues(const engine_t *e);
/* Whether profiling can be switched on: a device that queues work must tell when events were
 * passed. */
bool engine_can_profile(const engine_t *e);
/* Switches profiling on, with all times 0, or off; waits for what is queued. While it is on, lists
 * are launched call by call, never replayed, and the host waits for each run. */
lh_status_t engine_profile(engine_t *e, bool on) LH_MUST_CHECK;
/* Rows in descending order of time; the caller frees with mem_free. */
lh_status_t engine_profile_rows(engine_t *e, profile_row_t **rows, uint32_t *count) LH_MUST_CHECK;
/* In the order in which they first ran; the caller frees with mem_free. */
lh_status_t engine_profile_frames(engine_t *e, profile_frame_t **frames,
                                  uint32_t *count) LH_MUST_CHECK;
/* The share of its limit that a row reaches, after the roofline model (Williams, Waterman,
 * Patterson, 2009): max(FLOPs / peak_flops, bytes / bytes_per_second) / measured seconds. More than
 * 1 where bytes come out of a cache; 0 where a rate is not known (0). */
double engine_profile_of_limit(const profile_row_t *r, double peak_flops, double bytes_per_second);

#endif
