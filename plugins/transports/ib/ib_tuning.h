/* ib_tuning.h - what a connection takes by its link: queue pairs, chunk, window, ACK timeout. */
#ifndef IB_TUNING_H
#define IB_TUNING_H

#include <longhaul/link.h>

/* All zero: not known, or not set. */
typedef struct ib_wish { /* the INI's, which goes before everything; then what cards are like */
    uint64_t queue_pairs, chunk_bytes, window_bytes, ack_timeout, pace;
    uint64_t ports;      /* of the end that has more of them: a queue pair each at least */
    uint64_t pair_bytes; /* most that this end's card has under way on one queue pair */
} ib_wish_t;

typedef struct ib_rules { /* what the two plugins of this source do differently */
    const char *name;
    uint32_t pairs_least; /* queue pairs of a link between sites whose paths nobody has counted */
    uint32_t timeout_unknown; /* ACK timeout where no round trip is known */
    bool paced;               /* at the ledger's share of the link */
    bool gathers;             /* receives are told of in groups */
    bool seals;               /* it gives `private` */
} ib_rules_t;

typedef struct ib_tuning {
    uint32_t queue_pairs;
    uint32_t ack_timeout; /* t: 4.096 us x 2^t */
    uint64_t chunk_bytes;
    uint64_t window_bytes; /* under way at once, over all queue pairs; one chunk always may be */
    uint64_t window_most;  /* what the receive work requests of all queue pairs have room for */
    uint64_t pace;         /* bytes each second; 0: none */
} ib_tuning_t;

typedef struct ib_bucket { /* lets `rate` bytes each second out, and at most `depth` at once */
    uint64_t rate, depth, at_ns; /* rate 0: everything */
    double tokens;
} ib_bucket_t;

void ib_bucket_set(ib_bucket_t *b, uint64_t rate, uint64_t depth, uint64_t now);
/* From now on another rate: what was let out counts, so that whoever paces anew again and again gets
 * nothing ahead. */
void ib_bucket_change(ib_bucket_t *b, uint64_t rate, uint64_t depth, uint64_t now);
bool ib_bucket_open(ib_bucket_t *b, uint64_t now);
void ib_bucket_take(ib_bucket_t *b, uint64_t bytes);
uint64_t ib_bucket_due(const ib_bucket_t *b); /* when it opens; 0: it is open */

/* rate: of the port, bytes each second, where the link's own is not known. */
ib_tuning_t ib_tuning(const ib_rules_t *rules, const ib_wish_t *wish, const lh_link_t *link,
                      const lh_tuning_t *tuning, uint64_t rate);

/* What the receive work requests of so many queue pairs have room for. */
uint64_t ib_window_most(uint64_t pairs, uint64_t chunk);

/* The smallest t with 4.096 us x 2^t >= 4 round trips + 1 ms + burst, so that a queue on the line is
 * no loss, and a loss costs a few round trips. burst_ns: the time at the link's rate of what is under
 * way beyond what fills it, two chunks at least, as these are acknowledged at their ends only. With
 * a round trip of 0, not known, `unknown` is the least. */
uint32_t ib_ack_timeout(uint64_t round_trip_ns, uint64_t burst_ns, uint32_t unknown);

/* Choice 0 is ib_tuning's own; others change one thing of it that the INI leaves open, the one that
 * promises most first. False: there are no more. */
bool ib_tuning_offer(const ib_rules_t *rules, const ib_wish_t *wish, const lh_link_t *link,
                     uint64_t rate, uint32_t choice, lh_tuning_t *out);

/* Of a port's code: 1 is 256, 5 is 4096; 0: an unknown code. */
static inline uint32_t ib_mtu_bytes(uint32_t code)
{
    return code >= 1 && code <= 5 ? 128u << code : 0;
}

/* Bytes each second of a port, from the codes of its width and speed; 0: unknown codes. */
uint64_t ib_port_rate(uint32_t width, uint32_t speed);

#endif
