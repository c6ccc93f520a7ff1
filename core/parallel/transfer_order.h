/* parallel/transfer_order.h - the check of all ranks' transfers: whether every start meets its
 * partners and every wait ends. */
#ifndef PARALLEL_TRANSFER_ORDER_H
#define PARALLEL_TRANSFER_ORDER_H

#include <comm/comm.h>
#include <engine/transfer_check.h>

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
