/* graph/op_table.h - every op that can be recorded: the core's rows and those of loaded plugins. */
#ifndef GRAPH_OP_TABLE_H
#define GRAPH_OP_TABLE_H

#include <base/status.h>
#include <graph/recording.h>

/* A table that holds the core's ops. */
lh_status_t op_table_new(op_table_t **out) LH_MUST_CHECK;
void op_table_free(op_table_t *t);

/* Adds a plugin's rows, each row_size bytes apart. Refused with a sentence: a name without a dot or
 * one that is taken, slots that don't parse, attributes that don't fit their struct, no shape().
 * Rows before the refused one stay. `rows` and `plugin` must outlive the table, as plugins do. */
lh_status_t op_table_add(op_table_t *t, const lh_op_t *rows, uint32_t row_size, uint32_t count,
                         const char *plugin) LH_MUST_CHECK;

const op_t *op_table_find(const op_table_t *t, const char *name); /* NULL: there is none */
uint32_t op_table_count(const op_table_t *t);
const op_t *op_table_at(const op_table_t *t, uint32_t index); /* in the order they were added */

/* Index of the slot with that name, from 0: inputs before outputs; OP_SLOTS if there is none. */
uint32_t op_slot(const op_t *op, const char *name);

/* An op's slot text, "x w? -> y+ rstd", read into an op_t. */
/* Fills in slot names, counts, marks and aliases from op->row.slots. */
lh_status_t op_slots_parse(op_t *op) LH_MUST_CHECK;

#endif
