/* tcp_warm.c - padding before a burst.
 *
 * A socket begins with ten packets on their way and doubles them each round trip: over 50 ms and 5 Gb/s
 * a first burst of 64 MB took 3.5 times as long as the next. Under cubic it begins anew after each
 * pause; bbr goes on at the rate that it knows. A step sends bursts with pauses between them, so what
 * could be learnt in the pause is: when the peer has posted a receive of a message that this end has not
 * got yet, a burst is to come, and a window of zeroes leaves, at the pace, after which the sockets hold
 * as much on their way as the link does. A window is enough, as each packet that arrives lets one more
 * leave. Zeroes wait while a message is posted, which counts as well; what the kernel has of them by then
 * is bounded (TCP_NOTSENT_LOWAT).
 *
 * Connections for bulk data are left alone: nobody waits for those, and probes measure over them. */
#include "tcp_warm.h"

#include "tcp_tuning.h"

/* A pause after which a connection is taken for slow; what a stream sends at once when it is new. */
enum { PAUSE_NS = 1000000000, FIRST_BYTES = 16 << 10 };

/* A receive is posted over there for a message that was not posted here. */
static bool is_awaited(const lh_conn_t *c)
{
    return (int32_t)(c->granted - c->send_end) > 0 && c->send_next == c->send_end;
}

/* Of a link that nobody has measured nothing says what a window is. Until the first message was posted the
 * host may still be connecting, and for seconds nobody over there reads what would fill its socket. */
static bool has_slow_start(const lh_conn_t *c)
{
    return c->link.scope == LH_LINK_WAN && c->link.bytes_per_second > 0 &&
           c->service != LH_SERVICE_BULK && c->send_end > 0 &&
           c->tuning.inflight_bytes > (uint64_t)FIRST_BYTES * c->stream_count;
}

void warm_settle(lh_conn_t *c)
{
    if (c->pad_left > 0 || !is_awaited(c) || !has_slow_start(c)) return;
    const bool paused = c->transport->now - c->busy_ns > PAUSE_NS;
    if (c->is_warmed && (!paused || conn_keeps_speed(c))) return;
    c->is_warmed = true;
    c->pad_left = c->tuning.inflight_bytes;
}

bool warm_may_push(const lh_conn_t *c)
{
    return c->pad_left > 0 && is_awaited(c);
}

void warm_sent(lh_conn_t *c, uint64_t bytes)
{
    c->busy_ns = c->transport->now;
    c->pad_left -= bytes < c->pad_left ? bytes : c->pad_left;
}

bool warm_push(lh_conn_t *c, size_t *bytes)
{
    static const uint8_t zeroes[PAD_BYTES];
    for (uint32_t i = 0; i < c->stream_count && c->pad_left > 0; i++) {
        stream_t *s = c->streams[i];
        if (s->vector_done != s->vector_count) continue;
        const uint64_t length = c->pad_left < PAD_BYTES ? c->pad_left : PAD_BYTES;
        frame_t f = {.type = FRAME_PAD, .length = (uint32_t)length};
        if (!stream_add(s, &f, zeroes))
            return stream_fail(s, LH_NO_MEMORY, "no memory to seal a frame");
        warm_sent(c, length);
        if (!stream_push(s, bytes)) return false;
    }
    return true;
}
