/* links/link_crowd.h - what is left of a link between two sites while others send, too: rules on what
 * links_crowd.h has measured, functions of numbers alone.
 *
 * Pairs of sites need not have cables of their own: those of one site may share its border, and over a
 * chain the outer sites' traffic takes the inner ones' cables. Nobody says so; it is seen by pairs that
 * are slower while others are busy than they are alone. */
#ifndef LINKS_LINK_CROWD_H
#define LINKS_LINK_CROWD_H

#include <links/link_probe.h>

/* Which pairs are busy: a site's number for all of that site, or one of these. */
#define CROWD_NONE UINT32_MAX
#define CROWD_ALL (UINT32_MAX - 1)

/* Sites that are measured all at once, at most: each has a turn, and ranks tell each other of all
 * pairs. */
enum { CROWD_SITES = 8 };

/* Whether the pair of two sites is one of those that are busy. */
bool link_crowd_has(uint32_t site, uint32_t other, uint32_t busy);
/* Which of probe_figures_t.beside has what the pair of `site` and `other` carried while those were busy. */
uint32_t link_crowd_beside(uint32_t site, uint32_t other, uint32_t busy);
/* How long all send at once, where the longest round trip of those pairs is this. What came in the
 * second half counts. */
uint64_t link_crowd_ns(uint64_t round_trip_ns);

/* Makes of what many ranks had at once, as a record has it, what so many of each site can have of it: no
 * more than each has alone. What more ranks than were measured would have is not known, and it stays. */
void link_crowd_scale(probe_figures_t *f, uint32_t ranks);

/* Bytes a second of a pair alone, by all ranks of both sites: what the ramp has found between two of
 * them, but where all together got clearly more. way: as in probe_figures_t. */
uint64_t link_crowd_border(const probe_figures_t *f, int way);
/* From site to site while those pairs are busy in both directions; as alone where that was not measured
 * of so many sites, or is hardly less. pairs: of all sites, as links_pair counts them. */
double link_crowd_rate(const probe_pair_t *pairs, uint32_t sites, uint32_t from, uint32_t to,
                       uint32_t busy);

/* The part, above 0 and 1 at most, of its rate alone that all ranks of `from` send to `to` with, so that
 * pairs which share a way have no more together than it carries. Such a way is what leaves a site, or
 * what comes to it, where one pair takes from another while those of this site alone are busy: the
 * site's border, or a cable of a chain. demand: [sites x sites] bytes that a site has to send to another,
 * of which parts follow: who sends nothing keeps a sixteenth of an equal part. NULL: all send alike. */
double link_crowd_part(const probe_pair_t *pairs, uint32_t sites, const double *demand,
                       uint32_t from, uint32_t to);

/* What pairs of sites take from each other. CHAIN: those of *middle alone take nothing. */
enum { CROWD_UNKNOWN, CROWD_APART, CROWD_CHAIN, CROWD_SHARED };
uint32_t link_crowd_layout(const probe_pair_t *pairs, uint32_t sites, uint32_t *middle);
/* That as a sentence; false: it is not known. */
bool link_crowd_text(const probe_pair_t *pairs, uint32_t sites, char *out, size_t room);
/* What so many ranks of each site of a pair got together. */
void link_crowd_together_text(const probe_pair_t *p, uint32_t ranks, char *out, size_t room);

#endif
