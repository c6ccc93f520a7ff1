/* config/job_sites.h - the machines of a job: each [site.NAME], with its hosts and spares. */
#ifndef CONFIG_JOB_SITES_H
#define CONFIG_JOB_SITES_H

#include <config/job.h>

/* Reads all [site.NAME] of job->document into job->sites, once [launch] is there; site_ranks grows with
 * every host. What is read before a failure is job_sites_free's. */
lh_status_t job_sites_parse(job_t *job) LH_MUST_CHECK;
/* Sites may be half made, or narrowed to those that take part now (members.h). */
void job_sites_free(job_t *job);

#endif
