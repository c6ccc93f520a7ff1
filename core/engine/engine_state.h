/* engine/engine_state.h - what an open engine holds: a device, its memory, one stream.
 *
 * The lowest file of the folder: weights, lists, programs and handovers are built on what stands
 * here, and engine.h on top of them opens, builds and closes the whole. The fields are for
 * core/engine and core/parallel, which adds stores and programs; all others call functions.
 *
 * Memory is counted first and allocated once: while weights and programs are stated, each takes
 * its places in one of the allocations below, which only adds up sizes; engine_build then asks the
 * device for each allocation as a whole. So `plan` can say what a run would take without taking it,
 * and no step allocates.
 *
 * One thread, the rank's control thread, calls everything here. The progress thread of core/comm
 * asks and tells handovers only, through the gates of handover.c. */
#ifndef ENGINE_ENGINE_STATE_H
#define ENGINE_ENGINE_STATE_H

#include <engine/kernel_choice.h>
#include <program/allocation.h>
#include <program/flow.h>
#include <program/transfer.h>

typedef struct weights weights_t;   /* weights.h */
typedef struct program program_t;   /* program.h */
typedef struct handover handover_t; /* handover.h */
typedef struct mirror mirror_t;     /* handover.h */

/* Borrowed from engine_open to engine_close. */
typedef struct engine_how {
    const lh_host_t *host; /* given to recorders and ops */
    /* The device to open, whose own kernels come first. NULL: none is opened; programs are then
     * recorded, with nothing fused, but neither planned nor built. */
    const plugin_t *device;
    const void *device_config; /* its parsed options */
    uint32_t device_index;     /* which of the machine's devices of that kind */
    /* [plugin_count] plugins whose kernels may serve this device, too; `device` may be among
     * them. */
    const plugin_t *const *plugins;
    uint32_t plugin_count;
    const op_table_t *ops;
    bool no_capture; /* every step is launched call by call, even where the device offers capture */
    bool unordered;  /* kernels may give other bits each time: as kernel_choice_how_t.unordered */
    /* NULL, or what engine_variants said of an earlier run: kernels choose the same variants again,
     * or the plan is refused. */
    const char *variants;
} engine_how_t;

/* What an allocation is for; reports of memory have a row for each. */
enum {
    MEMORY_PARAMETERS,
    MEMORY_GRADIENTS,
    MEMORY_MASTER,
    MEMORY_STATE,
    MEMORY_REFERENCE, /* values of a frozen model beside the one that trains */
    MEMORY_ACTIVATIONS,
    MEMORY_GATHERED, /* whole values of the block instances under way, where values are cut */
    MEMORY_BUCKETS,  /* whole gradients on their way to their owners, where they are cut    */
    MEMORY_SCRATCH,
    MEMORY_INPUTS,
    MEMORY_OUTPUTS,
    MEMORY_CACHES,
    MEMORY_CONSTANTS,
    MEMORY_PINNED,
    MEMORY_LIBRARY, /* what the device keeps for itself, weights packed for kernels */
    MEMORY_TRANSFERS, /* staging and plans between ranks, of which the engine knows its workspace alone */
    MEMORY_KINDS
};

/* Bytes to which places in memory are aligned, unless the device asks for more: a cache line. */
enum { ENGINE_ALIGNMENT = 64 };
/* Scratch, inputs, outputs, constants, caches, workspace, pinned, and the arenas. */
enum { ENGINE_ALLOCATIONS = 7 + ARENAS };
/* One slot is filled or emptied while the other's copy is under way. */
enum { COPY_SLOTS = 2 };

/* F32 [count], shared by all calls that name equal values. */
typedef struct engine_constant {
    float *values; /* owned; uploaded by engine_build */
    uint64_t count;
    uint64_t offset; /* bytes, in the engine's constants */
} engine_constant_t;

/* Everything is NULL or zero until engine_open, or a step of the build, sets it. `arranged`,
 * `planned` and `built` say how far the build is; none of them becomes false again. */
typedef struct engine {
    engine_how_t how;
    const lh_device_api_t *api; /* NULL without a device, as are device, stream, event, kernels */
    lh_device_t *device;
    lh_device_properties_t properties;
    lh_stream_t *stream; /* the computing one: kernels, fills, copies of inputs and outputs */
    lh_native_t native;  /* the stream's native queue; kind is empty where the device offers none */
    kernel_choice_t *kernels;

    /* Owned, freed by engine_close. */
    weights_t **weights;
    program_t **programs;
    flow_t **flows; /* [program_count] each program's; owned by the program */
    uint32_t weights_count, program_count;
    size_t weights_capacity, program_capacity, flow_capacity;

    /* Programs run one after the other on one stream, so they share the arenas and the scratch:
     * each of these is as large as the program that needs most of it, and holds nothing from one
     * run to the next. In the other allocations every program has places of its own. */
    union {
        struct {
            allocation_t scratch, inputs, outputs, constants, caches, workspace, pinned;
            allocation_t arenas[ARENAS]; /* ARENA_* */
        };
        allocation_t allocations[ENGINE_ALLOCATIONS];
    };
    engine_constant_t *constant_list;
    uint32_t constant_count;
    size_t constant_capacity;

    lh_event_t *event; /* of engine_wait; recorded anew each time */
    /* Of engine_upload and engine_download, where the host can't reach the memory: a stream of their
     * own, and pinned slots of slot_bytes each, of which the host fills or empties one while the
     * device copies the other. */
    lh_stream_t *copying; /* `stream` itself where the host reaches all memory */
    struct {
        uint64_t at;        /* in `pinned` */
        lh_event_t *copied; /* behind the last copy from it or to it */
    } slots[COPY_SLOTS];
    uint64_t slot_bytes;
    uint32_t slot;      /* the one that is used next */
    lh_event_t *fed;    /* on `stream`: what a copy comes behind */
    lh_event_t *marked; /* on `stream`: what downloads come behind while `marks` */
    bool marks;

    exchange_t *exchange;   /* what moves values between ranks; borrowed. NULL: the rank is alone */
    handover_t **handovers; /* by transfer_t.number; NULL where a transfer needs none */
    uint32_t handover_count;
    size_t handover_capacity;
    mirror_t *mirrors; /* [mirror_count] 0 where the host reaches all memory */
    uint32_t mirror_count;
    size_t mirror_capacity;
    lh_stream_t *leaving, *coming; /* copies to mirrors and from them; NULL: none */
    /* Of transfers that the device makes on a queue of its own (exchange_t.native). They share the
     * workspace, as one is done before the next begins. */
    lh_stream_t *exchanging; /* NULL: none is */
    lh_native_t exchanging_native;
    lh_event_t *exchanged; /* behind the last of them; not owned. NULL: none has been queued */
    bool exchanges;        /* some transfer is native */

    uint32_t micro_batch; /* the round of the schedule that is queued, from 0 */
    bool last_micro;      /* that round is the last of its step */
    bool loaded;          /* what is launched has run before: its code is there */
    bool arranged, planned, built, profiling, capturing;
} engine_t;

/* Bytes, a power of two: the larger of ENGINE_ALIGNMENT and what the device asks for. */
uint64_t engine_alignment(const engine_t *e);
const lh_device_properties_t *engine_properties(const engine_t *e);
/* Whether lists may be captured at all: the device says that it can, and has the functions for it. */
bool engine_captures(const engine_t *e);

/* Waits for an event that was recorded. LH_CANCELLED at most 0.1 s after the host's `stopping` says
 * that the job ends. */
lh_status_t engine_await(engine_t *e, lh_event_t *event) LH_MUST_CHECK;
/* Waits for everything that is queued on the computing stream so far. */
lh_status_t engine_wait(engine_t *e) LH_MUST_CHECK;
/* Elements in host memory, dense. */
typedef struct engine_elements {
    void *at; /* an upload only reads it */
    lh_dtype_t dtype;
    uint64_t count;
} engine_elements_t;

/* Copy elements between host memory and an allocation, in which they are of `dtype` and begin at
 * `offset` bytes, behind all that is queued. What is queued after an upload finds the elements there,
 * and the host's memory may be reused when it returns; a download returns once all have come. For
 * setting up, saving and tests: a step has faster ways. */
lh_status_t engine_upload(engine_t *e, const allocation_t *to, uint64_t offset, lh_dtype_t dtype,
                          engine_elements_t host) LH_MUST_CHECK;
lh_status_t engine_download(engine_t *e, const allocation_t *from, uint64_t offset,
                            lh_dtype_t dtype, engine_elements_t host) LH_MUST_CHECK;
/* From here to engine_unmark downloads come behind what is queued now, and beside what is queued
 * later: the caller knows that nothing of the latter writes what it reads. No uploads meanwhile. */
lh_status_t engine_mark(engine_t *e) LH_MUST_CHECK;
void engine_unmark(engine_t *e);
/* Queues zeros over all of an allocation. */
lh_status_t engine_zero(engine_t *e, const allocation_t *allocation) LH_MUST_CHECK;
/* Room for a constant, F32 [count]: its offset, in bytes, in the constants' allocation. Equal
 * values get one place; the values are copied. Before engine_build. */
lh_status_t engine_constant(engine_t *e, const float *values, uint64_t count,
                            uint64_t *offset) LH_MUST_CHECK;
/* Lists a program, which the engine then owns; on failure it stays the caller's. Before
 * engine_arrange. */
lh_status_t engine_program_add(engine_t *e, program_t *p, flow_t *flow) LH_MUST_CHECK;

#endif
