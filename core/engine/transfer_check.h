/* engine/transfer_check.h - the transfers of a rank's steps in their order, checked on the way. */
#ifndef ENGINE_TRANSFER_CHECK_H
#define ENGINE_TRANSFER_CHECK_H

#include <program/transfer.h>

typedef struct transfer_row { /* a start or a wait; without gaps, so that rows travel as they are */
    transfer_t transfer;
    bool waits;
} transfer_row_t;

/* After engine_arrange: what its programs start and wait for in some steps, in order; the caller frees
 * with mem_free. LH_INVALID: a list uses values that are on their way, or starts a transfer anew
 * that nobody has waited for. */
lh_status_t transfer_rows(const engine_t *e, transfer_row_t **rows, uint32_t *count) LH_MUST_CHECK;

#endif
