/* longhaul/draft/memory.h - memory that a device did not allocate: a peer process's, the host's.
 *
 * cuda offers both, cpu wrap; longhaul-check holds them to what is said here, and the host calls neither.
 * Ranks of a machine read each other's memory through their transport, which maps what share() gives
 * out as a memfd, a device's pinned memory too; sums of device memory are a library's (collective.h).
 * adopt leaves draft with the first exchange that reads a peer's device memory without a library, wrap
 * with the first transfer that a device copies in from a peer's memory as it is mapped: today the host
 * copies it into memory of this rank before. */
#ifndef LH_DRAFT_MEMORY_H
#define LH_DRAFT_MEMORY_H

#include <longhaul/plugin.h>

#define LH_DRAFT_MEMORY "memory" /* api: lh_memory_api_t */

enum { LH_SHARE_PEER = 1 }; /* lh_share_t.kind: for adopt() by the same plugin in another process */

typedef struct lh_memory_api {
    uint32_t struct_size;
    uint32_t reserved;

    /* [serial] What share() of the same plugin in another process of this machine gave out: of device
     * memory as LH_SHARE_PEER, of pinned memory as LH_SHARE_MEMFD, whose descriptor stays the
     * caller's. Both processes read and write it; release() of each ends its own, the maker's last.
     * NULL: not offered; so of wrap. */
    lh_status_t (*adopt)(lh_device_t *d, const lh_share_t *share, lh_memory_t **out,
                         void **address);
    /* [serial] Host memory that is not the device's (a peer's arena mapped by a transport, a file)
     * as an input of kernels and copies; it begins on a page. The device's release() ends it, before
     * whoever owns the memory lets go of it. */
    lh_status_t (*wrap)(lh_device_t *d, const void *address, uint64_t bytes, lh_memory_t **out);
} lh_memory_api_t;
LH_BORDER(lh_memory_api_t, wrap);

#endif
