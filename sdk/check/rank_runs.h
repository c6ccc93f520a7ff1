/* rank_runs.h - the kit's model trained for some steps by ranks of this machine under an optimizer,
 * and what came of every weight. */
#ifndef RANK_RUNS_H
#define RANK_RUNS_H

#include <longhaul/optimizer.h>

#include "subject.h"

typedef struct rank_run {
    const lh_optimizer_api_t *api;
    const lh_host_t *host; /* of the optimizer */
    const void *config;
    uint32_t ranks, sites;
    uint32_t first, steps; /* runs steps first + 1 to first + steps */
    uint64_t bucket_bytes; /* 0: chosen */
    const char *load;      /* folder of checkpoints to begin with; NULL: fresh weights */
    const char *save;      /* folder to save in after the last step; NULL: none */
} rank_run_t;

/* Weights after the last step, in the order of the model's table; the caller frees with mem_free.
 * Ends the check where something fails. */
float *rank_run(subject_t *s, const rank_run_t *run, uint64_t *count);

#endif
