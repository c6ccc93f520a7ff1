/* links/links_pace.h - what a link between sites is paced at while it trains: the part of its border's
 * rate that this rank has, and less where the link has become slower (links_follow, links_share in
 * links.h). */
#ifndef LINKS_LINKS_PACE_H
#define LINKS_LINKS_PACE_H

#include <stdbool.h>
#include <stdint.h>

/* The parts of a border's rate for a site's ranks, by what each has to send: [count], shares in force on
 * the way in. They add up to 1, and each is a sixteenth of an equal part at least, for what may come
 * of who sends nothing. False: they stay as they are, for there is nothing or too little is
 * other. */
bool pace_shares(const double *sent, uint32_t count, double *shares);

#endif
