/* links/links_connect.h - connections by service: the lower rank dials, the higher one admits whom
 * it asked for; then both offer each other the arenas that can be mapped. And what both ends of a connection are
 * told of it: a tuning, and their part of the border that it crosses. */
#ifndef LINKS_LINKS_CONNECT_H
#define LINKS_LINKS_CONNECT_H

#include <links/links.h>

/* Connects to these peers (asked for on both sides) for a service, waits until all are up, and
 * offers them all arenas, so that link_map can answer. Waits for [launch] join_timeout at most. On
 * failure all links are to be closed, and what this call has posted is cancelled (link_drain). */
lh_status_t links_connect(links_t *l, const uint32_t *peers, uint32_t count,
                          uint32_t service) LH_MUST_CHECK;

/* The plugin's tuning number `choice` for a link, and its words on it; false: it has none, and why. A
 * plugin that offers no tunings has one, of zeroes. */
bool links_tune(const carrier_t *c, const lh_link_t *link, uint32_t choice, lh_tuning_t *out,
                char tuned[PROBE_TUNED]);

/* Bytes a second from site to site, for all ranks together: the INI's, or as measured; 0: not known. */
uint64_t links_border(const links_t *l, uint32_t from, uint32_t to);
/* The part of that which all ranks of a site have, 1 where the pair shares its way with no other
 * (link_crowd_part) or the transport can't pace anew; and what it is where all that share a way send
 * alike. */
double links_part_of(const links_t *l, uint32_t from, uint32_t to);
double links_even_part(const links_t *l, uint32_t from, uint32_t to);
/* The part of links_border which a rank has. */
double links_share_of(const links_t *l, uint32_t rank, uint32_t to);

#endif
