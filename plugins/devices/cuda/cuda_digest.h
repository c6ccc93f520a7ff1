/* cuda_digest.h - the number by which a choice of a library is known again: a variant of a kernel that
 * cuBLASLt or cuDNN makes. For C and C++. */
#ifndef CUDA_DIGEST_H
#define CUDA_DIGEST_H

#include <longhaul/fnv.h>

/* Folded to 32 bits; never 0. */
static inline uint32_t cuda_digest(const void *bytes, size_t length)
{
    const uint64_t sum = lh_fnv_add(LH_FNV_BEGIN, bytes, length);
    const uint32_t folded = (uint32_t)(sum ^ sum >> 32);
    return folded != 0 ? folded : 1;
}

#endif
