/* parallel/transfer_order.h - the check of transfers: of a rank's own lists, that nothing touches
 * values which are on their way, and of all ranks' lists, whether every start meets its partners
 * and every wait ends. It needs only lists, so `plan` and `check` make it for ranks that do not
 * run. */
#ifndef PARALLEL_TRANSFER_ORDER_H
#define PARALLEL_TRANSFER_ORDER_H

#include <comm/comm.h>
#include <engine/program.h>

typedef struct transfer_row { /* a start or a wait; without gaps, so that rows travel as they are */
    transfer_t transfer;
    bool waits;
} transfer_row_t;

/* After engine_arrange: what its programs start and wait for in some steps, in order; the caller
 * frees with mem_free. LH_INVALID: a list uses values that are on their way, or starts a transfer
 * anew that nobody has waited for. */
lh_status_t transfer_rows(const engine_t *e, transfer_row_t **rows, uint32_t *count) LH_MUST_CHECK;

/* What a rank starts and waits for, in order; of transfer_rows. */
typedef struct transfer_list {
    transfer_row_t *rows;
    uint32_t count;
} transfer_list_t;

void transfer_lists_free(transfer_list_t *lists, uint32_t ranks);

/* lists: [world->row.size]. Refused with a sentence: two ranks that start the transfers which both
 * take part in in different order, transfers that differ, and waits that no rank can end. */
lh_status_t transfer_order_check(const world_t *world, const transfer_list_t *lists) LH_MUST_CHECK;

/* Among the ranks of a run, all of which call it: one number a rank where all have the same list,
 * as they do while every rank runs the whole model; else the lists travel and each rank checks all.
 */
lh_status_t transfer_order_agree(const world_t *world, control_t *control,
                                 const transfer_list_t *mine) LH_MUST_CHECK;

#endif
