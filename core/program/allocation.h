/* program/allocation.h - one allocation of a device: its size is added up while plans are made,
 * then it is allocated once.
 *
 * Who plans takes places (allocation_take), which are offsets; when all is stated the allocation
 * is asked of the device as a whole, and a place becomes memory and an address. Nothing in it is
 * freed alone. The other way of using one is an arena: its bytes are set to what arena_plan found,
 * and nobody takes. */
#ifndef PROGRAM_ALLOCATION_H
#define PROGRAM_ALLOCATION_H

#include <base/status.h>

#include <longhaul/device.h>

/* Owned by what it is a field of; allocation_release before the device is closed. */
typedef struct allocation {
    const char *name; /* for sentences: "activations" */
    uint32_t space;   /* LH_SPACE_* */
    uint32_t kind;    /* MEMORY_* of engine.h */
    uint64_t bytes;
    lh_memory_t *memory; /* NULL until allocated */
    void *address;       /* NULL where the device has no flat addresses */
} allocation_t;

/* The offset of `bytes` that nobody else has, aligned to a power of two. Fails only past 2^64
 * bytes, or where that many are asked for by mistake. */
lh_status_t allocation_take(allocation_t *r, uint64_t bytes, uint64_t alignment,
                            uint64_t *offset) LH_MUST_CHECK;
/* Asks the device for it. Nothing happens for 0 bytes, nor a second time. */
lh_status_t allocation_alloc(allocation_t *r, const lh_device_api_t *api,
                             lh_device_t *device) LH_MUST_CHECK;
/* Gives it back, if it was allocated; whoever uses it has come to an end. */
void allocation_release(allocation_t *r, const lh_device_api_t *api);
/* The place of an offset, as kernels and copies take it. Before it is allocated, and where the
 * device has no flat addresses, the address is NULL. */
lh_place_t allocation_place(const allocation_t *r, uint64_t offset);

#endif
