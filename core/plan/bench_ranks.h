/* plan/bench_ranks.h - ranks of a measurement: forked from this process, which meets as rank 0 and
 * tells how they fared. */
#ifndef PLAN_BENCH_RANKS_H
#define PLAN_BENCH_RANKS_H

#include <config/job.h>
#include <control/control.h>
#include <plugin/registry.h>

typedef struct bench_rank {
    registry_t *registry;
    const job_t *job;
    const world_t *world;
    control_t *control; /* NULL in a world of one */
    const void *context;
} bench_rank_t;

/* Runs body on `size` ranks of this machine, which play `sites` sites of as equal a size as can be.
 * The first failure of any is everybody's. */
lh_status_t bench_ranks(registry_t *registry, const job_t *job, uint32_t size, uint32_t sites,
                        lh_status_t (*body)(const bench_rank_t *rank),
                        const void *context) LH_MUST_CHECK;

#endif
