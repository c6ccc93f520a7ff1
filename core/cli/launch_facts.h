/* cli/launch_facts.h - what must be the same on all ranks of a job, as texts that can be compared
 * and shown. */
#ifndef CLI_LAUNCH_FACTS_H
#define CLI_LAUNCH_FACTS_H

#include <comm/control.h>
#include <plugin/loader.h>

typedef struct launch_facts {
    control_fact_t *rows;
    uint32_t count;
    size_t capacity;
} launch_facts_t;

/* The program, every plugin that is loaded, and what the INI says of the training itself. */
lh_status_t facts_collect(const job_t *job, const registry_t *plugins,
                          launch_facts_t *out) LH_MUST_CHECK;
void facts_free(launch_facts_t *f);

#endif
