/* longhaul/draft/memory.h - memory that a device did not allocate: a peer process's, the host's. */
#ifndef LH_DRAFT_MEMORY_H
#define LH_DRAFT_MEMORY_H

#include <longhaul/plugin.h>

#define LH_DRAFT_MEMORY "memory" /* api: lh_memory_api_t */

enum { LH_SHARE_PEER = 1 }; /* lh_share_t.kind: for adopt() by the same plugin in another process */

typedef struct lh_memory_api {
    uint32_t struct_size;
    uint32_t reserved;

    /* [serial] What share() of the same plugin in another process of this machine gave out. NULL:
     * not offered; so of wrap. */
    lh_status_t (*adopt)(lh_device_t *d, const lh_share_t *share, lh_memory_t **out,
                         void **address);
    /* [serial] Host memory that is not the device's (a peer's arena mapped by a transport, a file)
     * as an input of kernels; the device's release() ends it. Otherwise the host copies. */
    lh_status_t (*wrap)(lh_device_t *d, const void *address, uint64_t bytes, lh_memory_t **out);
} lh_memory_api_t;
LH_BORDER(lh_memory_api_t, wrap);

#endif
