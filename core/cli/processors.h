/* cli/processors.h - shares of a machine's processors for the ranks that are started on it. */
#ifndef CLI_PROCESSORS_H
#define CLI_PROCESSORS_H

#include <sched.h>

#include <config/job.h>

#define PROCESSORS_FOLDER "/sys/devices/system/cpu"

/* The share of rank `index` of `count`: as many for each, so that all compute alike (up to count -
 * 1 processors are left out), none twice, and neighbours in `all`: threads of a core, then cores of
 * a package, as `folder` (Linux's) says; by number where it says nothing. false: fewer processors
 * than ranks. */
bool processors_share(const cpu_set_t *all, const char *folder, uint32_t index, uint32_t count,
                      cpu_set_t *out);
/* The share of this process's processors for one of the ranks started here. false: none, as
 * [launch] bind or their number says. */
bool processors_of_rank(const job_t *job, uint32_t index, uint32_t count, cpu_set_t *out);
/* Binds this process as the launcher would bind rank 0 of the job on this machine, so that what is
 * planned and measured is a rank's device. */
void processors_take_share(const job_t *job);

#endif
