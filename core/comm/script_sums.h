/* comm/script_sums.h - how contributions reach the owner of a piece, in the order of the sum. */
#ifndef COMM_SCRIPT_SUMS_H
#define COMM_SCRIPT_SUMS_H

#include <comm/script_build.h>

void sums_phases(builder_t *b, phases_t *p);
/* Of little: everybody sends all it has to everybody. */
void sums_at_once(builder_t *b);

#endif
