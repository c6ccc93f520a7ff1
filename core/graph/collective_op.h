/* graph/collective_op.h - attributes of the ops that communicate. Parallel passes insert them; with
 * one rank in the group the recorder leaves them out. */
#ifndef GRAPH_COLLECTIVE_OP_H
#define GRAPH_COLLECTIVE_OP_H

#include <longhaul/base.h>

/* all_reduce     "x -> y"  sum over the group, everywhere. Its gradient passes through: what is
 * behind it runs alike on every rank. replicate      "x -> y"  y is x; its gradient is an
 * all_reduce: before a matmul cut by columns. reduce_scatter "x -> y"  [t, w] to [t / ways, w]:
 * this rank's rows of the sum. all_gather     "x -> y"  [t, w] to [t ways, w]: every rank's rows,
 * in order. all_to_all     "x -> y"  row block i goes to rank i of the group, theirs come back in
 * order. send           "x ->"    to rank `peer` of the group. recv           "-> y"    [rows,
 * columns] from rank `peer`. */
typedef struct op_collective {
    uint32_t struct_size;
    uint32_t group; /* which group of ranks: the number that the parallel layout gave it */
    uint32_t ways;  /* ranks in the group; 0 and 1: there is nothing to do, and no node       */
    uint32_t peer;  /* send, recv: rank inside the group                                     */
    uint32_t tag;   /* send, recv: tells transfers between the same two ranks apart           */
    uint32_t reserved;
    uint64_t rows, columns; /* recv: what comes */
    uint64_t bytes;         /* that this rank hands over; 0: the recorder fills it in */
} op_collective_t;
LH_BORDER(op_collective_t, bytes);

#endif
