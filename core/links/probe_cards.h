/* links/probe_cards.h - what each of the cards of an end carries in the bursts of a probe.
 *
 * Counted while all of them are busy: once one has nothing left the others catch up, by which a slow
 * one would look like them. Where there is one card, or the transport does not tell, there are none. */
#ifndef LINKS_PROBE_CARDS_H
#define LINKS_PROBE_CARDS_H

#include <links/link_probe.h>
#include <links/links.h>

/* Zeroed at first. */
typedef struct probe_cards {
    lh_card_stats_t before[PROBE_CARDS]; /* when the burst began */
    lh_card_stats_t now[PROBE_CARDS];    /* while all were busy; behind a burst, when it was over */
    uint32_t count;
    uint32_t watched; /* of this burst: not yet, all are busy, one has nothing left */
    /* In all bursts: sent, sent again, and of the former while all were busy. */
    uint64_t sent[PROBE_CARDS], lost[PROBE_CARDS], busy[PROBE_CARDS];
} probe_cards_t;

void probe_cards_begin(probe_cards_t *c, const link_t *k);
/* Called while a burst leaves, as often as there is time. */
void probe_cards_watch(probe_cards_t *c, const link_t *k);
void probe_cards_end(probe_cards_t *c, const link_t *k);
/* Into the figures of site[end]; bursts were at 97 % of `rate`, of which `burst` bytes a second came. */
void probe_cards_tell(const probe_cards_t *c, double rate, double burst, probe_figures_t *out,
                      uint32_t end);

#endif
