/* cli/check_connect.h - longhaul check --connect: whether the hosts of a job reach each other. */
#ifndef CLI_CHECK_CONNECT_H
#define CLI_CHECK_CONNECT_H

#include <cli/cli.h>

/* Started on every machine, as `run` would be, once the job's options are checked. An exit code, or
 * a negative status; rank 0's machine prints a row a pair of hosts. */
int check_connect(cli_t *cli);

#endif
