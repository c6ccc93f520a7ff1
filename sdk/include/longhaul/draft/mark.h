/* longhaul/draft/mark.h - names for what a device's stream runs, in the vendor's profiler. */
#ifndef LH_DRAFT_MARK_H
#define LH_DRAFT_MARK_H

#include <longhaul/plugin.h>

#define LH_DRAFT_MARK "mark" /* api: lh_mark_api_t */

typedef struct lh_mark_api {
    uint32_t struct_size;
    uint32_t reserved;
    /* [queue] A name for what follows; NULL ends it. */
    void (*mark)(lh_stream_t *s, const char *name);
} lh_mark_api_t;
LH_BORDER(lh_mark_api_t, mark);

#endif
