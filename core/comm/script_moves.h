/* comm/script_moves.h - how what one member has reaches others. */
#ifndef COMM_SCRIPT_MOVES_H
#define COMM_SCRIPT_MOVES_H

#include <comm/script_build.h>

void moves_spread(builder_t *b, phases_t *p); /* gathers, broadcasts, the end of an all-reduce */
void moves_phases(builder_t *b, phases_t *p); /* scatter, gather to a root, all-to-all, a pair */
void moves_barrier(builder_t *b);

#endif
