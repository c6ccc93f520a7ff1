/* parallel/arrange.h - puts the calls of transfers into the programs' flows, after all programs are
 * written and before any has memory. All functions run in the control thread, and in the same order
 * on all ranks, as each adds rows to the table of transfers. */
#ifndef PARALLEL_ARRANGE_H
#define PARALLEL_ARRANGE_H

#include <parallel/transfers.h>

/* exchange_t.arrange: arranges all programs, the update last, as the update waits for what the
 * others start. Adds a row to the table for every transfer. Fails with a sentence where a recorded
 * transfer names a group that this world does not have in that size, or a peer that the group does
 * not have. */
lh_status_t arrange_flows(exchange_t *x) LH_MUST_CHECK;

/* For the update while its flow is being written; failures are left in the flow's status.
 * arrange_partials appends the gather of the norm's partial sums: `sums` is a value of the flow,
 * [blocks, PARTIAL_WORDS] in the weights' accumulating dtype, with one row per LH_NORM_BLOCK
 * elements of every updated parameter, in the order of parameters. arrange_value_gather is called
 * behind the update of each parameter in turn, and appends the start of a gather of new values
 * once enough parameters for a bucket have been updated. */
void arrange_partials(transfers_t *t, program_t *update, uint32_t sums);
void arrange_value_gather(transfers_t *t, program_t *update, uint32_t parameter);

#endif
