/* parallel/arrange.h - puts the calls of transfers into the programs' flows. */
#ifndef PARALLEL_ARRANGE_H
#define PARALLEL_ARRANGE_H

#include <parallel/transfers_state.h>

lh_status_t arrange_flows(exchange_t *x) LH_MUST_CHECK; /* exchange_t.arrange */

#endif
