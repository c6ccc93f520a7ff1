/* cpu_memory.h - the device's arenas, and copies between places. The functions are members of
 * lh_device_api_t (longhaul/device.h), which says what they promise; cpu_wrap is of
 * longhaul/draft/memory.h. */
#ifndef LH_CPU_MEMORY_H
#define LH_CPU_MEMORY_H

#include "cpu.h"

lh_status_t cpu_alloc(lh_device_t *d, uint32_t space, uint64_t bytes, lh_memory_t **out,
                      void **address);
void cpu_release(lh_memory_t *memory);
/* An arena becomes shared in place: its address stays what it was, and so do plans that name it. */
lh_status_t cpu_share(lh_memory_t *memory, uint32_t kind, lh_share_t *out);
lh_status_t cpu_wrap(lh_device_t *d, const void *address, uint64_t bytes, lh_memory_t **out);
lh_status_t cpu_copy(lh_stream_t *s, const lh_place_t *to, const lh_place_t *from, uint64_t bytes);
lh_status_t cpu_fill(lh_stream_t *s, const lh_place_t *to, uint8_t byte, uint64_t bytes);

#endif
