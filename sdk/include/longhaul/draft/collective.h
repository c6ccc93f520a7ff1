/* longhaul/draft/collective.h - a transport's whole-group operations, where a library or a switch
 * does them better than the host's own over isend and irecv (NCCL on NVLink, in-network reduction).
 * queue is the device's own stream (tensor.h); NULL means: starts now, ends with an event. */
#ifndef LH_DRAFT_COLLECTIVE_H
#define LH_DRAFT_COLLECTIVE_H

#include <longhaul/plugin.h>

#define LH_DRAFT_COLLECTIVES "collectives" /* api: lh_native_api_t */

typedef struct lh_group lh_group_t; /* a group joined through this plugin */

enum {
    LH_COLL_ALL_REDUCE = 1,
    LH_COLL_REDUCE_SCATTER = 2, /* elements: of one rank's piece */
    LH_COLL_ALL_GATHER = 3,     /* elements: of one rank's piece */
    LH_COLL_BROADCAST = 4,
    LH_COLL_REDUCE = 5,
    LH_COLL_ALL_TO_ALL = 6, /* counts and displacements, in elements, per rank */
    LH_COLL_SEND = 7,
    LH_COLL_RECV = 8,
};

typedef struct lh_coll { /* rows of enqueue; may grow */
    uint32_t op;         /* LH_COLL_*                                   */
    uint32_t reduce;     /* LH_REDUCE_*                                 */
    lh_dtype_t dtype;
    uint32_t root; /* or the peer of SEND and RECV                */
    const void *in;
    void *out; /* may be in                                    */
    uint64_t elements;
    lh_region_t *in_region, *out_region; /* may be NULL                                  */
    const uint64_t *counts;              /* 4 rows of size: send, at, receive, at         */
    uint64_t cookie;
} lh_coll_t;
LH_BORDER(lh_coll_t, cookie);

typedef struct lh_native_api {
    uint32_t struct_size;
    uint32_t coll_size; /* sizeof(lh_coll_t) the plugin was built with */

    /* [serial] On the group's rank 0 only; the host carries the token to the others. */
    lh_status_t (*new_token)(lh_transport_t *t, lh_address_t *token);

    /* [serial] Returns at once; LH_WIRE_UP or _DOWN with cookie follows. queue names the device
     * that the group will use. share is a hint how much of the device it may take, 0..1. */
    lh_status_t (*join)(lh_transport_t *t, const lh_address_t *token, uint32_t rank, uint32_t size,
                        const lh_native_t *queue, double share, uint64_t cookie, lh_group_t **out);

    /* [any] Pure: whether this can be done, and with the same bits every time. */
    bool (*offers)(lh_transport_t *t, uint32_t op, uint32_t reduce, lh_dtype_t dtype);
    bool (*deterministic)(lh_group_t *r, uint32_t op, uint32_t reduce, lh_dtype_t dtype);

    /* [serial] Calls of one enqueue run as one (ncclGroupStart/End). All ranks enqueue the same
     * calls in the same order. May be captured into a device graph if capturable says so. */
    lh_status_t (*enqueue)(lh_group_t *r, const lh_coll_t *calls, uint32_t count,
                           const lh_native_t *queue);
    bool (*capturable)(lh_group_t *r);

    /* [serial] Makes work in flight end, on this rank, within 100 ms; LH_WIRE_DRAINED follows,
     * then leave. A peer's death comes as LH_WIRE_DOWN from the transport's poll. */
    void (*cancel)(lh_group_t *r);
    void (*leave)(lh_group_t *r);
} lh_native_api_t;
LH_BORDER(lh_native_api_t, leave);

#endif
