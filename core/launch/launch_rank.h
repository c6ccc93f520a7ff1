/* launch/launch_rank.h - this process as one rank of several: what it is compared by, and its life
 * from the meeting to the goodbye. */
#ifndef LAUNCH_LAUNCH_RANK_H
#define LAUNCH_LAUNCH_RANK_H

#include <control/control_open.h>
#include <launch/launch_state.h>

/* What must be the same on all ranks of a job, as texts that can be compared and shown. */
typedef struct launch_facts {
    control_fact_t *rows;
    uint32_t count;
    size_t capacity;
} launch_facts_t;

/* The program, every plugin that is loaded, and what the INI says of the training itself. */
lh_status_t launch_facts_collect(const job_t *job, const registry_t *plugins,
                                 launch_facts_t *out) LH_MUST_CHECK;
void launch_facts_free(launch_facts_t *f);

/* Meets the others, runs body and says goodbye. Returns an exit code or a negative status. */
int launch_rank_run(launch_t *l, int (*body)(void *context), void *context);

#endif
