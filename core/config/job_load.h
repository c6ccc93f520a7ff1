/* config/job_load.h - reads a pipeline's INI, with include and --set, into a job_t. */
#ifndef CONFIG_JOB_LOAD_H
#define CONFIG_JOB_LOAD_H

#include <config/job.h>

/* sets: "section.key=value" from the command line, applied last. Opens no other files than the INI
 * and what it includes. Every refusal begins with file and line. */
lh_status_t job_load(const char *path, const char *const *sets, uint32_t set_count,
                     job_t **out) LH_MUST_CHECK;
/* As job_load, of a job whose only stage is this one (STAGE_*), whatever [pipeline] stages names:
 * keys that only the others need may be missing. */
lh_status_t job_load_for(const char *path, const char *const *sets, uint32_t set_count,
                         uint32_t stage, job_t **out) LH_MUST_CHECK;
/* NULL does nothing; a job that was half loaded is freed as well. */
void job_free(job_t *job);

/* A command that runs one stage alone, which [pipeline] stages may not name: checks that the keys
 * which it needs are there. */
lh_status_t job_require(const job_t *job, uint32_t stage) LH_MUST_CHECK;

#endif
