/* base/philox.h - counter-based random numbers: the same (key, counter) gives the same bits on
 * every rank, thread and run, so nothing random has a state that a checkpoint could forget.
 * Philox4x32-10, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. */
#ifndef BASE_PHILOX_H
#define BASE_PHILOX_H

#include <stdint.h>

void philox(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]);

/* Uniform in [0, 1) with 53 bits, for (seed, stream, index). */
double philox_uniform(uint64_t seed, uint64_t stream, uint64_t index);
/* Standard normal (Box and Muller) for (seed, stream, index). */
double philox_normal(uint64_t seed, uint64_t stream, uint64_t index);

#endif
