/* program/allocation.h - the memory of a device, planned before it is asked for: an allocation,
 * whose size is added up and which is then allocated once; and the offsets of buffers in an arena.
 *
 * Whoever plans takes places (allocation_take), which are offsets; when all is stated the device is
 * asked for the allocation as a whole, and a place becomes memory and an address. No place is freed
 * alone, so what lives for a part of a step lies in an arena instead: an allocation in which nobody
 * takes places, and whose size is what allocation_plan found. The control thread calls all of
 * this. */
#ifndef PROGRAM_ALLOCATION_H
#define PROGRAM_ALLOCATION_H

#include <base/status.h>

#include <longhaul/device.h>

/* Owned by the struct of which it is a field; released before the device is closed. */
typedef struct allocation {
    const char *name; /* for sentences: "activations" */
    uint32_t space;   /* LH_SPACE_* */
    uint32_t kind;    /* MEMORY_* of engine.h */
    uint64_t bytes;
    lh_memory_t *memory; /* NULL until allocated */
    void *address;       /* NULL where the device has no flat addresses */
} allocation_t;

/* Takes a place of `bytes` bytes behind those that were taken: *offset, in bytes, is a multiple of
 * alignment, a power of two. LH_INVALID past 2^64 bytes. */
lh_status_t allocation_take(allocation_t *r, uint64_t bytes, uint64_t alignment,
                            uint64_t *offset) LH_MUST_CHECK;
/* Asks the device for the allocation. Nothing happens for 0 bytes, nor a second time. Fails as the
 * device does, and where it gives nothing that can be used. */
lh_status_t allocation_alloc(allocation_t *r, const lh_device_api_t *api,
                             lh_device_t *device) LH_MUST_CHECK;
/* Gives the memory back to the device, if there is any; nothing uses it any more. */
void allocation_release(allocation_t *r, const lh_device_api_t *api);
/* The place of an offset, in the form that kernels and copies take. Its address is NULL before the
 * allocation is allocated, and where the device has no flat addresses. */
lh_place_t allocation_place(const allocation_t *r, uint64_t offset);

/* ---- arenas ----
 *
 * Buffers that live for a time get fixed offsets, so that buffers which live at the same time do
 * not overlap and little room is left between them. The offsets are found once, before the first
 * step. The alternative, an allocator that hands memory out while a step runs, costs time in every
 * step, fragments, and knows less: here all lifetimes are known. */

/* A buffer on its way to a place. Times are numbers of calls. Two buffers that the same call
 * touches live at the same time. */
typedef struct arena_item {
    uint64_t bytes;
    uint32_t first, last; /* inclusive */
    uint64_t offset;      /* bytes; set by allocation_plan */
} arena_item_t;

/* Sets the offsets of all items, and *bytes to the arena's size. Greedy by size: the largest item
 * first, each into the smallest gap in which it fits; ties go by index, so that the same items
 * always get the same plan. alignment: bytes, a power of two. *work, unless it is NULL: how many
 * spans of bytes were looked at, which is what the time of planning grows with. LH_INVALID past 2^64
 * bytes. */
lh_status_t allocation_plan(arena_item_t *items, uint32_t count, uint64_t alignment,
                            uint64_t *bytes, uint64_t *work) LH_MUST_CHECK;

#endif
