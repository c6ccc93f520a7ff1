/* cli/check_inputs.h - whether a job would write over what it reads. */
#ifndef CLI_CHECK_INPUTS_H
#define CLI_CHECK_INPUTS_H

#include <config/job.h>

/* Refuses a file that the INI names, or that is the INI, and that is one of the job's own; what is
 * not there, or what only a pattern matches, is no matter. */
lh_status_t check_inputs(const job_t *job) LH_MUST_CHECK;

#endif
