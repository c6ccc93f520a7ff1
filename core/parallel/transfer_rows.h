/* parallel/transfer_rows.h - the transfers of a rank's own lists, in order, and the check that nothing touches
 * values which are on their way. */
#ifndef PARALLEL_TRANSFER_ROWS_H
#define PARALLEL_TRANSFER_ROWS_H

#include <engine/program.h>

/* A start or a wait. Rows travel and are compared as bytes, so whoever makes one clears it
 * first. Both ends of a pair have the same transfer, a SEND. */
typedef struct transfer_row {
    transfer_t transfer;
    bool waits;
    bool receives; /* of a SEND: this rank is its other end */
} transfer_row_t;

/* What the engine's programs start and wait for in some steps, in order. After engine_arrange.
 * *rows: [*count], freed by the caller with mem_free. LH_INVALID: a list uses values that are on
 * their way, or starts a transfer again that nobody has waited for. */
lh_status_t transfer_rows(const engine_t *e, transfer_row_t **rows, uint32_t *count) LH_MUST_CHECK;
/* Whether some rows are of transfers between two ranks: then no other rank has the same list. */
bool transfer_rows_pair(const transfer_row_t *rows, uint32_t count);

#endif
