/* comm/crossings.h - what all members of a group send over borders in a run of a collective.
 *
 * A script says it of one member. A large job has as many as it has ranks, and each goes through the
 * pieces of all: so what all send together is counted here from the pieces, by the rules of
 * script_make.c and script_sums.c. Tests hold the two against each other. */
#ifndef COMM_CROSSINGS_H
#define COMM_CROSSINGS_H

#include <comm/script.h>

/* Adds the bytes of so many runs to by_rank[ranks of the world], of what each member sends to other sites,
 * and to between[sites * sites], of what a site's members send to another's at from * sites + to. Looks
 * at how->how, between and middle. */
void crossings_add(const script_how_t *how, uint64_t runs, const world_t *w, uint64_t *by_rank,
                   uint64_t *between);

#endif
