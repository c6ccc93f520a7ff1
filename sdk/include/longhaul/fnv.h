/* longhaul/fnv.h - FNV-1a with 64 bits (Fowler, Noll, Vo): a number by which a short text or struct is
 * known again, such as a kernel's variant by the name of what a library chose. Not against anybody who
 * wants two to be equal, and slow for what is long. */
#ifndef LH_FNV_H
#define LH_FNV_H

#include <stddef.h>
#include <stdint.h>

/* Where a sum begins. */
#define LH_FNV_BEGIN UINT64_C(14695981039346656037)

/* The sum with these bytes behind what it has. */
static inline uint64_t lh_fnv_add(uint64_t sum, const void *bytes, size_t length)
{
    const uint8_t *at = (const uint8_t *)bytes;
    for (size_t i = 0; i < length; i++)
        sum = (sum ^ at[i]) * UINT64_C(1099511628211);
    return sum;
}

#endif
