/* graph/lowering.h - what a recorded op means where its call leaves something open. Inside
 * core/graph only. */
#ifndef GRAPH_LOWERING_H
#define GRAPH_LOWERING_H

#include <graph/recording.h>

/* Fills in attributes that stand for "as the inputs say": all rows of a table, all pairs of a head.
 * Inputs are in args. */
void lowering_complete(const op_t *op, void *attributes, const lh_arg_t *args);

/* True: the op does nothing (communication in a group of one) and its output is its input. */
bool lowering_vanishes(const op_t *op, const void *attributes);

/* The LH_INPUT_* that an input slot of this name takes when it is left out; 0: none. */
uint32_t lowering_input(const char *slot);

#endif
