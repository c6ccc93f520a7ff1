/* cuda_digest.h - the number by which a choice of a library is known again: a variant of a kernel that
 * cuBLASLt or cuDNN makes. For C and C++. */
#ifndef CUDA_DIGEST_H
#define CUDA_DIGEST_H

#include <stddef.h>
#include <stdint.h>

/* FNV-1a, folded to 32 bits; never 0. */
static inline uint32_t cuda_digest(const void *bytes, size_t length)
{
    uint64_t sum = 14695981039346656037u;
    for (size_t i = 0; i < length; i++)
        sum = (sum ^ ((const uint8_t *)bytes)[i]) * 1099511628211u;
    const uint32_t folded = (uint32_t)(sum ^ sum >> 32);
    return folded != 0 ? folded : 1;
}

#endif
