/* links/links_words.h - what the transport between sites and the kernel say of machines that measure
 * links: cards, limits, counters (lh_transport_api_t.cards), before they measure and afterwards. */
#ifndef LINKS_LINKS_WORDS_H
#define LINKS_LINKS_WORDS_H

#include <links/links.h>

/* Asks this machine's transport, once, before this rank measures for the first time. */
lh_status_t links_words_before(links_t *l) LH_MUST_CHECK;
/* Asks again where this rank has measured, and tells rank 0. All ranks call it, once. */
lh_status_t links_words_collect(links_t *l) LH_MUST_CHECK;
/* On rank 0, what was said where links have just been measured, at most by one machine a site. NULL and 0
 * on all others, and where none was measured. */
const probe_words_t *links_words(const links_t *l, uint32_t *count);

#endif
