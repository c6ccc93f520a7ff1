/* probe_cards.c - see probe_cards.h. */
#include <links/probe_cards.h>

#include <stdio.h>
#include <string.h>

#include <links/carrier.h>

enum { WATCH_NONE, WATCH_SEEN, WATCH_OVER };

/* By a transport that does not pace its streams itself the first that has room would take all, which
 * says nothing of the others. */
static uint32_t cards_look(const link_t *k, lh_card_stats_t out[PROBE_CARDS])
{
    uint32_t count = 0;
    const lh_transport_api_t *api = k->carrier->api;
    memset(out, 0, PROBE_CARDS * sizeof(*out));
    if (api->card_stats == NULL || api->retune == NULL) return 0;
    if (api->card_stats(k->conn, out, sizeof(*out), PROBE_CARDS, &count) != LH_OK) {
        fail_clear();
        return 0;
    }
    return count < PROBE_CARDS ? count : PROBE_CARDS;
}

/* A stream that is dialled anew begins to count anew: it has told of less then. */
static uint64_t card_grown(uint64_t now, uint64_t before)
{
    return now > before ? now - before : 0;
}

void probe_cards_begin(probe_cards_t *c, const link_t *k)
{
    c->watched = WATCH_NONE;
    (void)cards_look(k, c->before);
}

void probe_cards_watch(probe_cards_t *c, const link_t *k)
{
    lh_card_stats_t now[PROBE_CARDS];
    bool is_over = false;
    if (c->watched == WATCH_OVER) return;
    const uint32_t count = cards_look(k, now);
    for (uint32_t i = 0; i < count; i++)
        is_over = is_over || now[i].bytes_unsent == 0;
    if (!is_over || c->watched == WATCH_NONE) memcpy(c->now, now, sizeof(c->now));
    c->watched = is_over ? WATCH_OVER : WATCH_SEEN;
}

void probe_cards_end(probe_cards_t *c, const link_t *k)
{
    lh_card_stats_t after[PROBE_CARDS];
    c->count = cards_look(k, after);
    for (uint32_t i = 0; i < c->count; i++) {
        const lh_card_stats_t *busy = &c->now[i], *before = &c->before[i];
        c->busy[i] += card_grown(card_grown(busy->bytes_sent, busy->bytes_unsent),
                                 before->bytes_sent);
        c->sent[i] += card_grown(after[i].bytes_sent, before->bytes_sent);
        c->lost[i] += card_grown(after[i].bytes_retransmitted, before->bytes_retransmitted);
    }
    memcpy(c->now, after, sizeof(c->now));
}

void probe_cards_tell(const probe_cards_t *c, double rate, double burst, probe_figures_t *out,
                      uint32_t end)
{
    probe_card_t *cards = out->cards[end];
    uint32_t paths[PROBE_CARDS] = {0};
    out->card_count[end] = c->count;
    for (uint32_t i = 0; i < c->count; i++) {
        const double sent = (double)c->sent[i], lost = (double)c->lost[i];
        (void)snprintf(cards[i].name, sizeof(cards[i].name), "%.15s", c->now[i].name);
        paths[i] = c->now[i].paths;
        cards[i].round_trip_ns = c->now[i].round_trip_min_ns;
        cards[i].loss = lost <= 0 ? 0 : lost < sent ? lost / sent : 1;
    }
    link_probe_cards(cards, c->busy, paths, c->count, rate, burst);
}
