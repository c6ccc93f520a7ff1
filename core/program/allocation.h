/* program/allocation.h - one allocation of a device: its size is added up while plans are made, then it
 * is allocated once. */
#ifndef PROGRAM_ALLOCATION_H
#define PROGRAM_ALLOCATION_H

#include <base/status.h>

#include <longhaul/device.h>

typedef struct allocation {
    const char *name; /* for sentences: "activations" */
    uint32_t space;   /* LH_SPACE_* */
    uint32_t kind;    /* MEMORY_* of engine.h */
    uint64_t bytes;
    lh_memory_t *memory; /* NULL until allocated */
    void *address;       /* NULL where the device has no flat addresses */
} allocation_t;

/* Offset of a new piece. alignment is a power of two. */
lh_status_t allocation_take(allocation_t *r, uint64_t bytes, uint64_t alignment,
                            uint64_t *offset) LH_MUST_CHECK;
/* Nothing happens for 0 bytes. */
lh_status_t allocation_alloc(allocation_t *r, const lh_device_api_t *api,
                             lh_device_t *device) LH_MUST_CHECK;
void allocation_release(allocation_t *r, const lh_device_api_t *api);
lh_place_t allocation_place(const allocation_t *r, uint64_t offset);

#endif
