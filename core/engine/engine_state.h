/* engine/engine_state.h - what an engine holds; for the files that make up the engine, and for
 * parallel/, which adds stores and programs. */
#ifndef ENGINE_ENGINE_STATE_H
#define ENGINE_ENGINE_STATE_H

#include <engine/engine.h>
#include <engine/kernel_choice.h>
#include <engine/weights.h>
#include <program/allocation.h>
#include <program/flow.h>
#include <program/transfer.h>

typedef struct engine_constant {
    float *values;
    uint64_t count;
    uint64_t offset;
} engine_constant_t;

typedef struct handover handover_t; /* handover.h */

typedef struct mirror_extent { /* bytes of an allocation that travel */
    uint64_t begin, end;       /* there         */
    uint64_t at;               /* in the mirror */
} mirror_extent_t;

typedef struct mirror { /* where the host finds what travels of an allocation that it can't reach */
    const allocation_t *of;
    allocation_t pinned;      /* the extents, one after the other */
    mirror_extent_t *extents; /* ascending, apart */
    uint32_t count;
    size_t capacity;
} mirror_t;

struct engine {
    engine_how_t how;
    const lh_device_api_t *api;
    lh_device_t *device;
    lh_device_properties_t properties;
    lh_stream_t *stream;
    lh_native_t native; /* kind is empty where the device offers none */
    kernel_choice_t *kernels;

    weights_t **weights;
    program_t **programs;
    uint32_t weights_count, program_count;
    size_t weights_capacity, program_capacity;

    /* Programs run one after the other, so they share arenas and scratch. */
    allocation_t arenas[ARENAS];
    allocation_t scratch, inputs, outputs, constants, caches, pinned;
    engine_constant_t *constant_list;
    uint32_t constant_count;
    size_t constant_capacity;

    uint64_t transfer_at, transfer_bytes; /* of the pinned allocation: weights_read and _write */
    lh_event_t *event;
    exchange_t *exchange;   /* NULL: alone */
    handover_t **handovers; /* by transfer_t.number; none where nothing is handed over */
    uint32_t handover_count;
    size_t handover_capacity;
    mirror_t *mirrors; /* none where the host reaches all memory */
    uint32_t mirror_count;
    size_t mirror_capacity;
    lh_stream_t *leaving, *coming; /* copies to mirrors and from them; NULL: none */
    uint32_t micro_batch;          /* of the run under way */
    bool last_micro;               /* it is the last of its step */
    bool arranged, planned, built, profiling, capturing;
};

uint64_t engine_alignment(const engine_t *e);
/* Waits for an event: timed tests in a loop that looks at `stopping`. */
lh_status_t engine_await(engine_t *e, lh_event_t *event) LH_MUST_CHECK;
lh_status_t engine_upload(engine_t *e, const allocation_t *to, uint64_t offset, const void *host,
                          uint64_t bytes) LH_MUST_CHECK;
lh_status_t engine_download(engine_t *e, const allocation_t *from, uint64_t offset, void *host,
                            uint64_t bytes) LH_MUST_CHECK;
lh_status_t engine_zero(engine_t *e, const allocation_t *allocation) LH_MUST_CHECK;
/* Offset of equal values in the constants' allocation; uploaded by engine_build. */
lh_status_t engine_constant(engine_t *e, const float *values, uint64_t count,
                            uint64_t *offset) LH_MUST_CHECK;
lh_status_t engine_program_add(engine_t *e, program_t *p) LH_MUST_CHECK;

#endif
