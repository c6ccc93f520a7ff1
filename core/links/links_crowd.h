/* links/links_crowd.h - measures what links between sites carry while others are busy: several ranks of
 * the same two sites, and several pairs of sites (link_crowd.h). */
#ifndef LINKS_LINKS_CROWD_H
#define LINKS_LINKS_CROWD_H

#include <links/links.h>

/* Adds to the pairs' figures what came while many sent at once. All ranks call it, after each pair was
 * measured alone or found in the record. fresh: [pair_count] which have just been measured, the same on
 * all ranks. Without any nothing is done, but where sites have more ranks now than a record's row is of. */
lh_status_t links_crowd(links_t *l, const bool *fresh) LH_MUST_CHECK;
/* How many ranks of each of two sites send to one another in it; 1: that is the pair alone. */
uint32_t links_crowd_ranks(const links_t *l, uint32_t site, uint32_t other);

#endif
