/* ib_tuning.h - what a connection takes by its link: queue pairs, chunk, window, ACK timeout. */
#ifndef IB_TUNING_H
#define IB_TUNING_H

#include <longhaul/link.h>

/* All zero: not known, or not set. */
typedef struct ib_wish { /* the INI's, which goes before everything */
    uint64_t queue_pairs, chunk_bytes, window_bytes, ack_timeout;
} ib_wish_t;

typedef struct ib_tuning {
    uint32_t queue_pairs;
    uint32_t ack_timeout; /* t: 4.096 us x 2^t */
    uint64_t chunk_bytes;
    uint64_t window_bytes; /* under way at once, over all queue pairs; one chunk always may be */
} ib_tuning_t;

/* rate: of the port, bytes each second, where the link's own is not known. */
ib_tuning_t ib_tuning(const ib_wish_t *wish, const lh_link_t *link, const lh_tuning_t *tuning,
                      uint64_t rate);

/* The smallest t with 4.096 us x 2^t >= 4 round trips + 1 ms + burst, so that a queue behind a burst
 * is no loss, and a loss costs a few round trips. burst_ns: the time of two chunks on the line, which
 * are acknowledged at their ends only; it matters on slow ones. */
uint32_t ib_ack_timeout(uint64_t round_trip_ns, uint64_t burst_ns);

/* Bytes each second of a port, from the codes of its width and speed; 0: unknown codes. */
uint64_t ib_port_rate(uint32_t width, uint32_t speed);

#endif
