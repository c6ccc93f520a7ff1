/* parallel/arrange.h - puts the calls of transfers into the programs' flows, after all programs are
 * written and before any has memory. */
#ifndef PARALLEL_ARRANGE_H
#define PARALLEL_ARRANGE_H

#include <parallel/transfers.h>

/* exchange_t.arrange: all programs of the weights, the update last, as it waits for what the others
 * start. Adds a row to the table for every transfer. */
lh_status_t arrange_flows(exchange_t *x) LH_MUST_CHECK; /* exchange_t.arrange */

/* For the update's flow: gathers the norm's partial sums (F32 [sums, PARTIAL_WORDS], one row per
 * LH_NORM_BLOCK elements of every updated parameter, in order); starts to gather the new values of
 * what was updated up to and with a parameter. */
void arrange_partials(transfers_t *t, program_t *update, uint32_t sums);
void arrange_value_gather(transfers_t *t, program_t *update, uint32_t parameter);

#endif
