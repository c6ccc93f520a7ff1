/* tcp_silence.h - how long a peer has acknowledged nothing of what is on its way to it. */
#ifndef TCP_SILENCE_H
#define TCP_SILENCE_H

#include <stdbool.h>
#include <stdint.h>

/* All times in ns. since: the stream's own, 0 at first; from when it waits, 0 while it need not.
 * in_flight: segments that are sent and not acknowledged; probes: those of the kernel that nothing
 * has answered; age: since the last acknowledgement came.
 * was_away: nobody has looked for so long that the machine may have slept, and the wait begins
 * anew. Returns for how long it has waited by now. */
uint64_t silence_at(uint64_t *since, uint64_t now, uint32_t in_flight, uint32_t probes,
                    uint64_t age, bool was_away);

#endif
