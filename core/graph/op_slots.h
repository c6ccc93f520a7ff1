/* graph/op_slots.h - an op's slot text, "x w? -> y+ rstd", read into an op_t. */
#ifndef GRAPH_OP_SLOTS_H
#define GRAPH_OP_SLOTS_H

#include <base/status.h>
#include <graph/recording.h>

/* Fills in slot names, counts, marks and aliases from op->row.slots. */
lh_status_t op_slots_parse(op_t *op) LH_MUST_CHECK;

#endif
