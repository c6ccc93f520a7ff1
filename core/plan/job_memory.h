/* plan/job_memory.h - what every rank of a job will hold, planned without any of them running. */
#ifndef PLAN_JOB_MEMORY_H
#define PLAN_JOB_MEMORY_H

#include <plan/job_programs.h>

/* how->world is left out: each rank of the job's world is planned in turn. The caller frees *out
 * [ranks] with mem_free. */
lh_status_t job_memory_new(const session_how_t *how, memory_report_t **out,
                           uint32_t *ranks) LH_MUST_CHECK;

#endif
