/* links/links_probe.h - measures the links between sites before training opens its connections. */
#ifndef LINKS_LINKS_PROBE_H
#define LINKS_LINKS_PROBE_H

#include <links/links.h>

/* Measures the links between sites, pair by pair: one rank of each site, the others wait. What is
 * known already (the same list on all ranks; it may be NULL) is taken over, as [comm] probe says. Sites
 * of one machine have no link. Before links_connect, whose connections are told what was found. All
 * ranks call it, and all know the same figures after it (links_pairs). links_early.h has it done in a thread
 * beside other work. */
lh_status_t links_probe(links_t *l, const probe_pair_t *known, uint32_t count) LH_MUST_CHECK;
/* Whether the transport between sites takes the messages of a stage at once, without which its links are not
 * measured; else a sentence with what it takes and what is expected. LH_OK where nothing is between sites. */
lh_status_t links_probe_fits(const links_t *l) LH_MUST_CHECK;

#endif
