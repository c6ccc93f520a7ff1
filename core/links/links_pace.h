/* links/links_pace.h - what a link between sites is paced at while it trains: the part of its border's
 * rate that this rank has, and less where the link has become slower; and the parameters of its connection
 * that a pace decides. */
#ifndef LINKS_LINKS_PACE_H
#define LINKS_LINKS_PACE_H

#include <stdbool.h>
#include <stdint.h>

#include <links/links.h>

/* Between two steps: a link between sites that has become slower or faster is paced anew, and its window
 * and chunk are for that pace. */
void links_follow(links_t *l, uint64_t step);
/* Whether it has a pace, which can be changed. */
bool link_is_paced(const link_t *k);
/* Takes into force what the plugin makes of k's figures (link_t.known, its pace): all that a connection
 * which stands can have, and in a line of the log what is other by it. */
void links_tune_anew(link_t *k, uint64_t step);
/* What each rank had to send to each site so far, [ranks x sites], the same on all ranks: from now
 * on a site's ranks share the rate of its borders by what has come to it since the last call, and by
 * half as much of what was before that; and so do pairs of sites that share a way. */
void links_share(links_t *l, const link_told_t *all, uint64_t step);
/* Until the next links_share: the ranks of a site have equal parts, and so have pairs of sites that share
 * a way, for traffic that is not a step's. */
void links_even(links_t *l, bool even);

/* The parts of a border's rate for a site's ranks, by what each has to send: [count], shares in force on
 * the way in. They add up to 1, and each is a sixteenth of an equal part at least, for what may come
 * of who sends nothing. False: they stay as they are, for there is nothing or too little is
 * other. */
bool pace_shares(const double *sent, uint32_t count, double *shares);

#endif
