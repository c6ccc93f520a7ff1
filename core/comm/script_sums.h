/* comm/script_sums.h - the phases of sums: how contributions are added inside a site, and what sites
 * have summed over all sites. For script_make.c. */
#ifndef COMM_SCRIPT_SUMS_H
#define COMM_SCRIPT_SUMS_H

#include <comm/script_phases.h>

/* Phases of the way up. p->lag grows by what the last phase lags behind, so that what follows counts
 * from there. */
void sums_phases(builder_t *b, phases_t *p);
/* All of an all-reduce of little, without phases. */
void sums_at_once(builder_t *b);

#endif
