/* program/flow_view.h - columns, concatenation, repetition and heads in a flow: values that are views
 * of others' memory, and copies between strided parts where a view won't do.
 *
 * flow_node calls both, and flow_view appends to the flow: program/flow and program/flow_view are one table in two
 * chapters, and call each other. Nothing else calls these, but for who appends kernels of its own to values that
 * recordings made. */
#ifndef PROGRAM_FLOW_VIEW_H
#define PROGRAM_FLOW_VIEW_H

#include <program/flow.h>

/* Appends a node whose op is a view (op_t.view). */
void flow_view_node(flow_source_t *s, uint32_t node);

/* Before a kernel is appended: where the device has none for rows that lie apart as those of its
 * inputs do, but has one for dense rows, those inputs become dense copies. slots: [op's inputs]
 * values; made: [op's outputs] recorded values. */
void flow_view_settle(flow_source_t *s, const op_t *op, const void *attributes, uint32_t *slots,
                      const lh_value_t *made);

/* The value, or a dense copy of it where its rows lie apart. 0 after a failure. */
uint32_t flow_view_dense(flow_source_t *s, uint32_t value);

#endif
