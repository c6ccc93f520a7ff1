/* cli/command_run.h - a stage of the pipeline as a command of its own runs it. */
#ifndef CLI_COMMAND_RUN_H
#define CLI_COMMAND_RUN_H

#include <cli/cli.h>

/* The `run` of a command that is a stage: its row's `stage`, on all ranks where it has some, and
 * what it was made from is remembered, so that a later `longhaul run` skips it. An exit code, or a
 * negative status with its sentence. */
int command_run_stage(cli_t *cli);
/* The `leads` of commands that train. */
void command_run_leads(void *context, bool here);

#endif
