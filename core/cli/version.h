/* cli/version.h - which build of longhaul this is, for whoever reports a fault or compares machines. */
#ifndef CLI_VERSION_H
#define CLI_VERSION_H

#include <base/text.h>

/* Appends what `longhaul --version` prints: "longhaul 0.1.0" as its first line, then commit,
 * compiler, ABI and libraries. commit: of git, or "unknown". */
void version_append(const char *commit, text_t *out);

#endif
