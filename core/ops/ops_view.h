/* ops/ops_view.h - the ops that say where something lies: what they are in a program, and the copies
 * that they stand for.
 *
 * A device has no kernel for any of them. Where a recording becomes a flow (program/flow_view.h), a
 * value that is a view of another's memory takes an op's place, or calls of the op `copy` between
 * strided views of its arguments do. Those are stated here (op_view_move), for flows as for
 * interpreters of recordings. */
#ifndef OPS_OPS_VIEW_H
#define OPS_OPS_VIEW_H

#include <longhaul/ops.h>

enum {
    VIEW_COLUMNS = 1,
    VIEW_COLUMNS_GRAD, /* zeros come before its copy, unless it adds */
    VIEW_CONCAT,
    VIEW_REPEAT,
    VIEW_REPEAT_GRAD,
    VIEW_HEADS,
};

/* One copy: from and to have one shape, of two or three dimensions, and strides of their own. */
typedef struct op_move {
    uint32_t in, out;        /* slots of the op */
    lh_arg_t from, to;       /* parts of what lies in them */
    uint64_t from_at, to_at; /* elements from the first of each slot to that of its part */
    bool add;                /* adds to what lies there */
} op_move_t;

/* Copy number `index` of an op, from 0, in the order in which they are to be made. False: there are
 * no more. args: [slots] as they lie, whose rows may be apart; attributes as they were completed.
 * Pure. */
bool op_view_move(uint32_t view, const void *attributes, const lh_arg_t *args, uint32_t index,
                  op_move_t *out);

#endif
