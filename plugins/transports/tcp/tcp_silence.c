/* tcp_silence.c - the wait begins with what is sent, and again with each acknowledgement. A stream
 * with nothing on its way waits for nothing: keepalive watches that one. */
#include "tcp_silence.h"

uint64_t silence_at(uint64_t *since, uint64_t now, uint32_t in_flight, uint64_t age, bool was_away)
{
    const uint64_t heard = age < now ? now - age : 0;
    if (in_flight == 0) *since = 0;
    if (in_flight == 0) return 0;
    if (*since == 0 || was_away) *since = now;
    if (*since < heard) *since = heard;
    return now - *since;
}
