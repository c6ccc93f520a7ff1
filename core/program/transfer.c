/* transfer.c - names and sizes of what moves between ranks. */
#include <program/transfer.h>

#include <longhaul/dtype.h>

const char *const collective_names[COLLECTIVES] = {
    [0] = "none",
    [COLLECTIVE_ALL_REDUCE] = "all_reduce",
    [COLLECTIVE_REDUCE_SCATTER] = "reduce_scatter",
    [COLLECTIVE_ALL_GATHER] = "all_gather",
    [COLLECTIVE_ALL_TO_ALL] = "all_to_all",
};

const char *const transfer_groups[LH_GROUPS] = {
    [LH_GROUP_SELF] = "self",
    [LH_GROUP_DATA] = "data",
    [LH_GROUP_SITE] = "site",
    [LH_GROUP_ACROSS] = "across",
};

uint64_t transfer_bytes(const transfer_t *t)
{
    return t->elements * lh_dtype_bytes(t->dtype);
}
