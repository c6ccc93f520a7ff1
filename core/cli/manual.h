/* cli/manual.h - what describes the program: which build it is; and, installed beside it, man pages and completion for
 * shells, made of the tables by which the program itself reads its command line and its INI. */
#ifndef CLI_MANUAL_H
#define CLI_MANUAL_H

#include <cli/cli.h>

/* Appends one of the forms that `longhaul help --as FORM` knows: man (longhaul.1), man-ini
 * (longhaul.ini.5), bash, zsh. LH_INVALID for another. The INI's page and completion load every
 * plugin that is installed. */
lh_status_t manual_append(cli_t *cli, const char *form, text_t *out) LH_MUST_CHECK;

/* Appends what `longhaul --version` prints: "longhaul 0.1.0" as its first line, then commit,
 * compiler, ABI and libraries. commit: of git, or "unknown". */
void manual_append_version(const char *commit, text_t *out);

/* Appends what a value of this command line's flag looks like in usage: " N", " [STEP]" or
 * nothing. */
void manual_flag_value(const cli_flag_t *flag, text_t *out);

#endif
