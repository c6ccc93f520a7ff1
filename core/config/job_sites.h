/* config/job_sites.h - [site.NAME] hosts, as job_load reads them. */
#ifndef CONFIG_JOB_SITES_H
#define CONFIG_JOB_SITES_H

#include <config/job.h>

/* After [launch], whose ranks_per_node a host has that names no number. */
lh_status_t job_sites_parse(job_t *job) LH_MUST_CHECK;
void job_sites_free(job_t *job);

#endif
