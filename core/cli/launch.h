/* cli/launch.h - the ranks of a job: who starts them, which one this process is, how they meet and
 * how they end.
 *
 * A command that runs on several ranks is one call: launch_ranks(cli, "train", body). In a job of
 * one rank it calls body. Where the INI asks for ranks and nobody else has started them, it starts
 * those of this machine (the same program, the same INI), watches them and ends all with one reason
 * when one fails. In a rank - started so, or by torchrun, Open MPI, PMIx or Slurm - it meets the
 * others, calls body and says goodbye. */
#ifndef CLI_LAUNCH_H
#define CLI_LAUNCH_H

#include <cli/commands.h>
#include <comm/control.h>

/* body finds cli->control and cli->world; both are NULL in a job of one rank. Returns its exit code
 * or negative status; in the launcher that of the first rank that failed. command: what a started
 * rank runs. */
int launch_ranks(cli_t *cli, const char *command, int (*body)(cli_t *cli));

/* Stages that run once are for rank 0 and the launcher on its machine; false on all others. */
bool launch_leads(const cli_t *cli);
/* Whether other processes decide for themselves which stages there are: launchers of other
 * machines, or ranks that somebody else started. They skip what launch_leads() is for, and are told
 * through launch_ranks when its stage need not run. */
bool launch_is_spread(const cli_t *cli);
void launch_tell_skip(cli_t *cli, bool skip);
/* Stages run before the next launch_ranks, on rank 0's machine: the others wait as long as it
 * takes. */
void launch_waits(cli_t *cli);
/* In a rank that a launcher of ours started: only the launcher remembers stages. */
bool launch_is_started(const cli_t *cli);
/* Of this process; 0 and 1 when it is alone or the launcher. */
uint32_t launch_rank(const cli_t *cli);
uint32_t launch_size(const cli_t *cli);

/* Whether the job may have links of this class, LH_LINK_*, as far as INI and starter tell. */
bool launch_has_links(const cli_t *cli, uint32_t scope);

/* Why this process ends, for the launcher, which prints one line for all. False: nobody listens,
 * print it. */
bool launch_last_words(const cli_t *cli, int code, const char *sentence);

/* Reads the environment and the INI; cli_open calls it. */
lh_status_t launch_open(cli_t *cli) LH_MUST_CHECK;
void launch_close(cli_t *cli);

#endif
