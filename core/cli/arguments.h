/* cli/arguments.h - the command line as a cli_t. */
#ifndef CLI_ARGUMENTS_H
#define CLI_ARGUMENTS_H

#include <cli/commands.h>

/* Fills command, name, ini, sets, plugin_folder and values; argv[0] is the program. Strings are
 * argv's; free with arguments_free. A failure here is a question of usage. */
lh_status_t arguments_parse(int argc, char **argv, cli_t *out) LH_MUST_CHECK;
void arguments_free(cli_t *cli);

/* What the command needs: job, host, plugins. */
lh_status_t cli_open(cli_t *cli) LH_MUST_CHECK;
void cli_close(cli_t *cli);

/* "longhaul train PIPELINE.ini [--resume] ..." */
void command_usage(const command_t *command, text_t *out);

#endif
