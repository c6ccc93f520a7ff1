/* cli/command_check.h - what can be known of a job before a device, a tokenizer or a network is
 * touched. */
#ifndef CLI_COMMAND_CHECK_H
#define CLI_COMMAND_CHECK_H

#include <cli/cli.h>

/* Checks all that `longhaul check` knows, without a word when it is well. For `run`, before the
 * first stage. */
lh_status_t check_job(cli_t *cli) LH_MUST_CHECK;
/* As check_job, without files and training step, for a rank that opens at once what its stage needs
 * of them. Options of all plugins, calls, transports, the key's file, and that no input is an
 * output. */
lh_status_t check_job_options(cli_t *cli) LH_MUST_CHECK;

#endif
