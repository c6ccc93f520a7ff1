/* ops/ops_collective.h - attributes and texts of the ops that communicate.
 *
 * A model that is cut over ranks records these ops between its others. A device has no kernel for
 * any of them: where a recording becomes a flow (program/flow.h), a call that starts a transfer and
 * a call that waits for it take an op's place. With one rank in the group there is nothing to do,
 * and the recorder leaves the op out. Their texts are here and not in longhaul/ops.h, as no device
 * computes them. */
#ifndef OPS_OPS_COLLECTIVE_H
#define OPS_OPS_COLLECTIVE_H

#include <longhaul/graph.h>
#include <longhaul/train.h>

/* What a transfer does. The numbers travel when ranks compare their lists
 * (parallel/transfer_order.h). */
enum {
    COLLECTIVE_ALL_REDUCE = 1,
    COLLECTIVE_REDUCE_SCATTER,
    COLLECTIVE_ALL_GATHER,
    COLLECTIVE_ALL_TO_ALL,
    COLLECTIVE_SEND, /* these two are a pair: each of two ranks of a group records its end */
    COLLECTIVE_RECEIVE,
    COLLECTIVES,                        /* those before are transfers; this is recorded only: */
    COLLECTIVE_REPLICATE = COLLECTIVES, /* moves nothing forward, and is an all-reduce back */
};

/* Whether two ranks of the group take part, and not all. */
static inline bool collective_is_pair(uint32_t op)
{
    return op == COLLECTIVE_SEND || op == COLLECTIVE_RECEIVE;
}

/* Names for sentences, reports and JSON, by COLLECTIVE_* and by LH_GROUP_*. */
extern const char *const collective_names[COLLECTIVES]; /* "all_reduce" */
extern const char *const collective_groups[LH_GROUPS];  /* "site" */

#define OP_ALL_REDUCE_TEXT(OP, IN, OUT)                                                      \
    OP("all_reduce", "the sum over a group of ranks, on every one of them",                  \
       "y = sum over the group of x", "gx = gy: what is behind it runs alike on every rank") \
    IN(x, "", "any shape")                                                                   \
    OUT(y, "", "like x")

#define OP_REPLICATE_TEXT(OP, IN, OUT)                                         \
    OP("replicate", "before a matmul whose weight is cut by columns", "y = x", \
       "gx = all_reduce(gy)")                                                  \
    IN(x, "", "any shape")                                                     \
    OUT(y, "", "like x")

#define OP_REDUCE_SCATTER_TEXT(OP, IN, OUT)                                            \
    OP("reduce_scatter", "this rank's rows of the sum over a group",                   \
       "y = rows [rank t / ways, (rank + 1) t / ways) of the sum over the group of x", \
       "gx = all_gather(gy)")                                                          \
    IN(x, "", "[t, w]")                                                                \
    OUT(y, "", "[t / ways, w]")

#define OP_ALL_GATHER_TEXT(OP, IN, OUT)                                                    \
    OP("all_gather", "every rank's rows",                                                  \
       "y = the x of every rank of the group, one after the other, in the order of ranks", \
       "gx = reduce_scatter(gy)")                                                          \
    IN(x, "", "[t, w]")                                                                    \
    OUT(y, "", "[t ways, w]")

#define OP_ALL_TO_ALL_TEXT(OP, IN, OUT)                                                      \
    OP("all_to_all", "block i of the rows goes to rank i of a group",                        \
       "y = the blocks that the ranks sent here, in the order of ranks; t / ways rows each", \
       "gx = all_to_all(gy)")                                                                \
    IN(x, "", "[t, w]")                                                                      \
    OUT(y, "", "[t, w]")

#define OP_SEND_TEXT(OP, IN, OUT)                                                            \
    OP("send", "hands a value to one rank of a group", "x goes to rank `peer` of the group", \
       "gx = recv: what rank `peer` sends back")                                             \
    IN(x, "", "[t, w]")

#define OP_RECV_TEXT(OP, IN, OUT)                                                               \
    OP("recv", "takes a value from one rank of a group",                                        \
       "y = the x that rank `peer` of the group sent", "send(gy): it goes back to rank `peer`") \
    OUT(y, "", "[rows, columns]")

/* The attributes of all these ops. The struct has no holes, so equal attributes are equal bytes. */
typedef struct op_collective {
    uint32_t struct_size;
    uint32_t group; /* LH_GROUP_* */
    uint32_t ways;  /* ranks in the group; 0 and 1: there is nothing to do, and no node */
    uint32_t peer;  /* send, recv: the other rank's number inside the group */
    uint32_t tag;   /* send, recv: the same at both ends, or the two are refused */
    uint32_t reserved;
    uint64_t rows, columns; /* recv: the shape of what comes */
    uint64_t bytes;         /* what this rank hands over; 0: complete() fills it in */
} op_collective_t;
LH_BORDER(op_collective_t, bytes);

#endif
