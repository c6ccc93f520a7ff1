/* longhaul/mapping.h - optional: a peer's memory as addresses of this process.
 *
 * A rank offers an arena once, the host carries the offer to the peer, and what the peer sends from
 * that arena is then read where it lies: a reduction needs no copy. shm does it over a memfd. */
#ifndef LH_MAPPING_H
#define LH_MAPPING_H

#include <longhaul/transport.h>

typedef struct lh_remote lh_remote_t; /* a peer's region as seen from here */

struct lh_mapping_api {
    uint32_t struct_size;
    uint32_t reserved;

    /* [serial] What the peer needs to know of a region with LH_REMOTE_*; the host carries it. A
     * descriptor travels on the plugin's own connection: take says LH_AGAIN until it is there. */
    lh_status_t (*offer)(lh_conn_t *c, lh_region_t *region, lh_address_t *out);
    lh_status_t (*take)(lh_conn_t *c, const lh_address_t *offer, lh_remote_t **out);
    void (*forget)(lh_remote_t *remote);

    /* [serial] The peer's memory as an address that this process (LH_MEM_HOST) or its device
     * (LH_MEM_CUDA, which the host does not register yet) can load from. Valid until forget. */
    lh_status_t (*map)(lh_remote_t *remote, const void **out);
};
LH_BORDER(lh_mapping_api_t, map);

#endif
