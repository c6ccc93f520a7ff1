/* cli/privileges.h - what a process of this program gives up at its start. */
#ifndef CLI_PRIVILEGES_H
#define CLI_PRIVILEGES_H

/* A set-user-ID program that it starts gains nothing; a crash leaves no core, which would hold
 * tokens, weights and what was derived from the job's key, unless LONGHAUL_CORE=1 asks for one.
 * Processes that it starts inherit both. */
void privileges_drop(void);

#endif
