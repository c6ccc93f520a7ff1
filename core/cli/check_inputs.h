/* cli/check_inputs.h - whether what a job reads is there or made before it is read, and whether the
 * job would write over it. */
#ifndef CLI_CHECK_INPUTS_H
#define CLI_CHECK_INPUTS_H

#include <config/job.h>

/* Refuses a file that the INI names, or that is the INI, and that is one of the job's own; what is
 * not there, or what only a pattern matches, is no matter. */
lh_status_t check_inputs(const job_t *job) LH_MUST_CHECK;
/* Refuses an input, tokenizer or data set of the job's stages that is neither there nor made by an
 * earlier stage. Where the first rank is: others may see other files. */
lh_status_t check_inputs_there(const job_t *job) LH_MUST_CHECK;
/* Refuses an [export] folder that is or holds what the job keeps elsewhere. import_folder: of the
 * import stage, NULL: none. */
lh_status_t check_export_target(const job_t *job, const char *import_folder) LH_MUST_CHECK;

#endif
