/* tcp_silence.c - the wait begins with what is sent, and again with each acknowledgement. A stream
 * with nothing on its way waits for nothing: keepalive watches that one.
 *
 * A packet that this machine drops itself (a link that is down), or that has no room in the peer's
 * window, is not on its way for the kernel: it tries again by probes, which count as well. With the
 * first that leaves the packet is on its way and the wait goes on, or a cut would be seen later by
 * as long as the probes took. */
#include "tcp_silence.h"

uint64_t silence_at(uint64_t *since, uint64_t now, uint32_t in_flight, uint32_t probes,
                    uint64_t age, bool was_away)
{
    const uint64_t heard = age < now ? now - age : 0;
    const bool waits = in_flight > 0 || probes > 0;
    if (!waits) *since = 0;
    if (!waits) return 0;
    if (*since == 0 || was_away) *since = now;
    if (*since < heard) *since = heard;
    return now - *since;
}
