/* parallel/transfer_order.h - the check of all ranks' lists of transfers: whether every start meets its
 * partners and every wait ends. It needs only lists, so `plan` and `check` make it for ranks that do
 * not run. All functions are called by the control thread. */
#ifndef PARALLEL_TRANSFER_ORDER_H
#define PARALLEL_TRANSFER_ORDER_H

#include <comm/comm.h>
#include <parallel/transfer_rows.h>

/* What a rank starts and waits for, in order, as transfer_rows returns it. */
typedef struct transfer_list {
    transfer_row_t *rows;
    uint32_t count;
} transfer_list_t;

/* Frees lists [ranks] and the rows of each; NULL does nothing. */
void transfer_lists_free(transfer_list_t *lists, uint32_t ranks);

/* lists: [world->row.size]. Refused (LH_MISMATCH) with a sentence that names two ranks: where they
 * start their common transfers in different orders, where a common transfer differs, where a send
 * or a receive has no partner, and where a wait never ends. A list with sends or receives is of
 * one rank alone. Takes time in proportion to ranks^2 times rows. */
lh_status_t transfer_order_check(const world_t *world, const transfer_list_t *lists) LH_MUST_CHECK;

/* transfer_order_check among the ranks of a run, all of which call it. Ranks exchange a digest of
 * their lists first, which is equal while every rank runs the whole model; only where digests
 * differ do the lists travel, and each rank checks all of them. Lists that are too long to travel
 * are refused as they are, with two ranks whose digests differ. Where ranks send to each other
 * their lists differ in any case: then all of them travel, however long they are. */
lh_status_t transfer_order_agree(const world_t *world, control_t *control,
                                 const transfer_list_t *mine) LH_MUST_CHECK;

#endif
