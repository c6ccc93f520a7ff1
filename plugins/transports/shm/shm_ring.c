/* shm_ring.c - records in and out of a ring.
 *
 * Records begin at multiples of SHM_GRAIN, a cache line, and take whole ones: the writer of one and
 * the reader of the one before never share a line. The second mapping behind the first lets a
 * record that reaches over the ring's end be written and read as one piece. */
#include "shm_ring.h"

#include <sys/mman.h>

/* Of the ring that a record takes, with its head. */
static uint64_t record_bytes(uint64_t inline_bytes)
{
    return (sizeof(shm_record_t) + inline_bytes + SHM_GRAIN - 1) / SHM_GRAIN * SHM_GRAIN;
}

/* Of the payload that lies in the ring: none of a direct record or a signal. */
static uint64_t inline_bytes_of(const shm_record_t *record)
{
    return record->kind == SHM_EAGER ? record->piece : 0;
}

/* The address space for both mappings is taken first, so that the second has its place. */
bool shm_ring_map(shm_ring_t *r, shm_lane_t *lane, int fd, uint64_t offset, uint64_t bytes)
{
    char *base = mmap(NULL, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                      0);
    if (base == MAP_FAILED) return false;
    for (int half = 0; half < 2; half++) {
        void *at = mmap(base + (size_t)half * bytes, bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_FIXED, fd, (off_t)offset);
        if (at != MAP_FAILED) continue;
        (void)munmap(base, 2 * bytes);
        return false;
    }
    *r = (shm_ring_t){.lane = lane, .base = base, .bytes = bytes};
    return true;
}

void shm_ring_unmap(shm_ring_t *r)
{
    if (r->base != NULL) (void)munmap(r->base, 2 * r->bytes);
    r->base = NULL;
}

/* An eighth of the ring: the reader copies one piece while the writer makes others. */
uint64_t shm_ring_piece(const shm_ring_t *r)
{
    return r->bytes / 8 - sizeof(shm_record_t);
}

shm_record_t *shm_ring_room(shm_ring_t *r, uint64_t inline_bytes)
{
    const uint64_t wanted = record_bytes(inline_bytes);
    if (r->bytes - (r->at - r->seen) < wanted) {
        const uint64_t tail = atomic_load_explicit(&r->lane->tail, memory_order_acquire);
        if (r->at - tail > r->bytes) return NULL; /* shm_ring_is_wild */
        r->seen = tail;
        if (r->bytes - (r->at - r->seen) < wanted) return NULL;
    }
    return (shm_record_t *)(void *)(r->base + (r->at & (r->bytes - 1)));
}

/* The release makes all of the record visible before the counter that shows it. */
void shm_ring_publish(shm_ring_t *r, shm_record_t *record, uint64_t inline_bytes)
{
    record->sequence = r->sequence++;
    r->at += record_bytes(inline_bytes);
    atomic_store_explicit(&r->lane->head, r->at, memory_order_release);
}

/* The head is copied out before it is checked: the writer could change it between check and use. */
lh_status_t shm_ring_next(shm_ring_t *r, shm_record_t *out, const char **payload)
{
    if (r->seen == r->at) {
        r->seen = atomic_load_explicit(&r->lane->head, memory_order_acquire);
        if (r->seen == r->at) return LH_AGAIN;
    }
    const uint64_t there = r->seen - r->at;
    const char *from = r->base + (r->at & (r->bytes - 1));
    if (there > r->bytes || there < SHM_GRAIN || there % SHM_GRAIN != 0) return LH_CORRUPT;
    memcpy(out, from, sizeof(*out));
    const bool known = out->kind == SHM_EAGER || out->kind == SHM_DIRECT || out->kind == SHM_SIGNAL;
    if (!known || out->sequence != r->sequence || record_bytes(inline_bytes_of(out)) > there ||
        out->piece > out->bytes)
        return LH_CORRUPT;
    *payload = from + sizeof(*out);
    return LH_OK;
}

/* The sequence catches what the counters can't: a record that was written over by a writer gone
 * wild. */
void shm_ring_consume(shm_ring_t *r, const shm_record_t *record)
{
    r->sequence++;
    r->at += record_bytes(inline_bytes_of(record));
    atomic_store_explicit(&r->lane->tail, r->at, memory_order_release);
}

/* The flags that CMakeLists.txt compiles each variant with. */
shm_check_t shm_check_choose(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return shm_check_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") &&
        __builtin_cpu_supports("fma"))
        return shm_check_avx2;
#endif
    return shm_check_baseline;
}
