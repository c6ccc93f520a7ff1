/* cli/bench_ranks.h - ranks of a measurement: forked from this process, which meets as rank 0 and
 * tells how they fared. */
#ifndef CLI_BENCH_RANKS_H
#define CLI_BENCH_RANKS_H

#include <cli/commands.h>
#include <comm/control.h>

typedef struct bench_rank {
    cli_t *cli;
    const job_t *job;
    const world_t *world;
    control_t *control; /* NULL in a world of one */
    const void *context;
} bench_rank_t;

/* Runs body on `size` ranks of this machine, which play `sites` sites of as equal a size as can be.
 * The first failure of any is everybody's. */
lh_status_t bench_ranks(cli_t *cli, const job_t *job, uint32_t size, uint32_t sites,
                        lh_status_t (*body)(const bench_rank_t *rank),
                        const void *context) LH_MUST_CHECK;

/* longhaul bench collectives */
int bench_collectives(cli_t *cli);

#endif
