/* shm_check.c - the checksum, compiled once per instruction set (SHM_SUFFIX); all give the same
 * value, so that ends need not agree on one. */
#include "shm_ring.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

uint64_t JOIN(shm_check_, SHM_SUFFIX)(const void *bytes, uint64_t count)
{
    return XXH3_64bits(bytes, count);
}
