/* plan/collective_bench.h - time of collectives by size, with every result checked: on the ranks of
 * a job, on all of its machines, or on ranks that are forked from this process, which meets as rank
 * 0. Rank 0 hears of every size.
 *
 * The figures are laid out like those of nccl-tests, so that they can be put side by side: time,
 * algorithm bandwidth (bytes over time), and bus bandwidth, which takes out how often an op sends
 * each byte. */
#ifndef PLAN_COLLECTIVE_BENCH_H
#define PLAN_COLLECTIVE_BENCH_H

#include <longhaul/tensor.h>

#include <config/job.h>
#include <control/control.h>
#include <plugin/registry.h>

enum { COLLECTIVE_BENCH_SIZES = 32 };

typedef struct collective_bench_row { /* of one size */
    /* bytes is the size of the whole form; what a rank sends follows from the op. */
    uint64_t bytes, elements, wrong; /* wrong: elements of all ranks */
    uint32_t algorithm;              /* COLL_*: the one that ran */
    double seconds, least;           /* median and least over runs, as rank 0 saw them */
    /* what of the bytes crosses the busiest link: figures of all ops compare by it */
    double bus_bytes;
} collective_bench_row_t;

/* What stands above the table. */
typedef struct collective_bench_facts { /* the same for all sizes */
    uint32_t ranks, sites;
    const char *transport; /* the farthest link's */
} collective_bench_facts_t;

/* Read by every rank, in a copy that fork made, or made by each from the same command line; begin
 * and row are called on rank 0. ranks and sites: of collective_bench alone. */
typedef struct collective_bench_how {
    const job_t *job;
    registry_t *registry;
    uint32_t ranks, sites;  /* processes of this machine; sites of as equal a size as can be */
    uint32_t op, algorithm; /* COLL_* */
    lh_dtype_t dtype;       /* F32 or BF16 */
    uint64_t sizes[COLLECTIVE_BENCH_SIZES];
    uint32_t size_count;
    bool quick;
    /* On rank 0: once before the first size, then after each. */
    void (*begin)(void *context, const collective_bench_facts_t *facts);
    void (*row)(void *context, const collective_bench_row_t *row);
    void *context;
} collective_bench_how_t;

/* What a rank's body is given. registry and job are this process's own, or the fork's copy of them.
 */
typedef struct bench_rank {
    registry_t *registry;
    const job_t *job;
    const world_t *world;
    control_t *control; /* NULL in a world of one */
    const void *context;
} bench_rank_t;

/* The first failure of any rank is everybody's. LH_CORRUPT where an element of any rank was wrong,
 * after all sizes were told. */
lh_status_t collective_bench(const collective_bench_how_t *how) LH_MUST_CHECK;
/* In each rank of a job that has met: its context is a collective_bench_how_t. */
lh_status_t collective_bench_rank(const bench_rank_t *rank) LH_MUST_CHECK;

/* Runs body on `size` ranks of this machine, which play `sites` sites of as equal a size as can be.
 * The first failure of any is everybody's. Forks, so what the caller has open is open in each rank.
 * Returns when all ranks have ended. */
lh_status_t bench_ranks(registry_t *registry, const job_t *job, uint32_t size, uint32_t sites,
                        lh_status_t (*body)(const bench_rank_t *rank),
                        const void *context) LH_MUST_CHECK;

#endif
