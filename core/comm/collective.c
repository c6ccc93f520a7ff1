/* collective.c */
#include <comm/collective.h>

const char *const coll_op_names[COLL_OPS] = {
    [0] = "none",
    [COLL_ALL_REDUCE] = "all-reduce",
    [COLL_REDUCE_SCATTER] = "reduce-scatter",
    [COLL_ALL_GATHER] = "all-gather",
    [COLL_BROADCAST] = "broadcast",
    [COLL_REDUCE] = "reduce",
    [COLL_SCATTER] = "scatter",
    [COLL_GATHER] = "gather",
    [COLL_ALL_TO_ALL] = "all-to-all",
    [COLL_BARRIER] = "barrier",
    [COLL_SEND] = "send",
    [COLL_RECV] = "recv",
};
const char *const coll_algorithm_names[COLL_ALGORITHMS] = {
    [COLL_AUTO] = "auto",
    [COLL_DIRECT] = "direct",
    [COLL_RING] = "ring",
    [COLL_HALVING] = "halving",
};
