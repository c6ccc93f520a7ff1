/* fact_main.h - runs facts over a transport plugin of this build, as longhaul-check does its own.
 */
#ifndef FACT_MAIN_H
#define FACT_MAIN_H

#include <stdio.h>

#include <transport_rig.h>

/* Where facts print figures: the stdout of this program. Their own is kept, and shown when they fail. */
extern FILE *fact_out;

/* All facts, or the one that is named; prints a line for each. The exit code of a test. */
int fact_main(const char *plugin, const fact_t *facts, uint32_t count, const char *only);

/* How many descriptors this process has open, of the first thousand. */
uint32_t fact_open_files(void);

#endif
