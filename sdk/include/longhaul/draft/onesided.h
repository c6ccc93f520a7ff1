/* longhaul/draft/onesided.h - a transport's writes into memory that a peer offered once
 * (mapping.h).
 *
 * For parameter servers, asynchronous local-update training and standing windows. A put is done
 * at the sender when PUT says so; the peer learns of it by ARRIVED, if a tag was given. Puts of
 * one connection with tags arrive in order, each after all bytes of the puts before it. */
#ifndef LH_DRAFT_ONESIDED_H
#define LH_DRAFT_ONESIDED_H

#include <longhaul/plugin.h>

#define LH_DRAFT_ONE_SIDED "one_sided" /* api: lh_one_sided_api_t */

enum { LH_REMOTE_WRITE = 1u << 0 }; /* lh_arena_t.access: the peer may put into it at any time */

enum {                      /* lh_wire_event_t.type */
       LH_WIRE_PUT = 3,     /* like SENT, for put                                */
       LH_WIRE_ARRIVED = 4, /* a peer's put with a tag is complete in our memory */
};

typedef struct lh_one_sided_api {
    uint32_t struct_size;
    uint32_t reserved;

    /* [serial] tag 0: the peer is not told. Zero bytes with a tag is a signal. */
    lh_status_t (*put)(lh_conn_t *c, lh_region_t *region, const void *data, lh_remote_t *remote,
                       uint64_t offset, uint64_t bytes, uint32_t tag, uint64_t cookie);
} lh_one_sided_api_t;
LH_BORDER(lh_one_sided_api_t, put);

#endif
