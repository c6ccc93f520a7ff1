/* shm_check.c - the checksum of a record, compiled once per instruction set (SHM_SUFFIX); all give
 * the same value. */
#include "shm_ring.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

uint64_t JOIN(shm_check_, SHM_SUFFIX)(const shm_record_t *record, const void *piece);

/* The sequence is checked by itself. */
uint64_t JOIN(shm_check_, SHM_SUFFIX)(const shm_record_t *record, const void *piece)
{
    const uint64_t head = XXH3_64bits(record, offsetof(shm_record_t, sequence));
    if (record->piece == 0) return head;
    return head ^ XXH3_64bits(piece, record->piece);
}
