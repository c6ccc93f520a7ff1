/* shm_ring.h - a ring of records from one process to another, in memory that both have mapped.
 *
 * The writer owns head, the reader tail; both only grow, so head - tail is what is in the ring. The
 * ring is mapped twice in a row, so that no record is cut by its end. Nothing that the other side
 * wrote is believed before it is checked: it may be dead, or gone wild.
 *
 * One writer and one reader, so there is no lock and no compare-and-swap: each side has a counter
 * of its own on cache lines of its own, stores it with release when bytes are in place, and reads
 * the other's with acquire. `seen` is the other's counter as it was last read: while that suffices,
 * the other side's cache line is left alone. */
#ifndef SHM_RING_H
#define SHM_RING_H

#include <stdatomic.h>

#include <longhaul/base.h>

enum {
    SHM_LINE = 128, /* two cache lines: processors fetch them in pairs */
    SHM_TAKEN_WORDS = 4,
    SHM_HEAD_BYTES = 4096, /* of shm_shared_t in the memfd; the rings follow */
    SHM_GRAIN = 64,        /* records begin at multiples of it               */
    SHM_RING_LEAST = 64 << 10,
    SHM_RING_MOST = 64 << 20,
};

/* The counters of one direction, each on lines of its own: they are written by different
 * processes. */
typedef struct shm_lane {
    _Alignas(SHM_LINE) _Atomic uint64_t head;
    _Alignas(SHM_LINE) _Atomic uint64_t tail;
    _Atomic uint64_t copied; /* direct records whose memory the reader needs no more */
} shm_lane_t;

/* What one end says of itself; only it writes here, but for `asleep`, which its peer clears to wake
 * it. */
typedef struct shm_side {
    _Alignas(SHM_LINE) _Atomic uint32_t asleep;
    _Atomic uint32_t gone; /* its buffers are no longer what they were when it sent them */
    _Atomic uint64_t taken[SHM_TAKEN_WORDS]; /* the other end's regions that it has mapped */
} shm_side_t;

/* The head of the memfd; behind it the two rings, in the order of lanes. */
typedef struct shm_shared {
    shm_lane_t lanes[2]; /* 0: from the end that dialed */
    shm_side_t sides[2]; /* 0: the end that dialed      */
} shm_shared_t;
LH_STATIC_ASSERT(sizeof(shm_shared_t) <= SHM_HEAD_BYTES, "the rings begin behind it");

/* shm_record_t.kind. */
enum { SHM_EAGER = 1, SHM_DIRECT = 2, SHM_SIGNAL = 3 };

/* What stands at the head of each record in a ring. A message is one record or several, one after
 * the other: a direction of a connection carries one message at a time. */
typedef struct shm_record {
    uint32_t kind; /* EAGER: the bytes follow. DIRECT: they lie in a region. SIGNAL: of a put */
    uint32_t tag;
    uint64_t bytes;  /* of the whole message                */
    uint64_t offset; /* DIRECT: in the sender's region      */
    uint32_t piece;  /* bytes of it that this record brings */
    uint32_t region; /* DIRECT */
    uint32_t sequence;
    uint32_t head_check; /* of what stands above sequence; 0 without checksums */
    uint64_t check;      /* of the piece; 0 without checksums                  */
} shm_record_t;

/* One end's view of a ring: the same struct for its writer and its reader. */
typedef struct shm_ring {
    shm_lane_t *lane;
    char *base;     /* mapped twice */
    uint64_t bytes; /* a power of two */
    uint64_t at;    /* the own counter: head of a writer, tail of a reader */
    uint64_t seen;  /* the other's, when it was last looked at             */
    uint32_t sequence;
} shm_ring_t;

/* Maps `bytes` of fd at offset twice; false with errno. */
bool shm_ring_map(shm_ring_t *r, shm_lane_t *lane, int fd, uint64_t offset, uint64_t bytes);
void shm_ring_unmap(shm_ring_t *r);

/* Writer: room for a record with `inline_bytes` behind it, or NULL while there is none. */
shm_record_t *shm_ring_room(shm_ring_t *r, uint64_t inline_bytes);
/* Writer: numbers the record and shows it to the reader. */
void shm_ring_publish(shm_ring_t *r, shm_record_t *record, uint64_t inline_bytes);

/* Reader: copies the next record's head to *out and points payload at what follows it. LH_AGAIN:
 * none. LH_CORRUPT: it can't be one that the writer made. */
lh_status_t shm_ring_next(shm_ring_t *r, shm_record_t *out, const char **payload);
/* Reader: gives the record's room back; its payload may not be looked at any more. */
void shm_ring_consume(shm_ring_t *r, const shm_record_t *record);

/* The most that one EAGER record carries. */
uint64_t shm_ring_piece(const shm_ring_t *r);

/* The checksum of records and pieces (XXH3), compiled for each instruction set with one result. */
typedef uint64_t (*shm_check_t)(const void *bytes, uint64_t count);
uint64_t shm_check_baseline(const void *bytes, uint64_t count);
uint64_t shm_check_avx2(const void *bytes, uint64_t count);
uint64_t shm_check_avx512(const void *bytes, uint64_t count);
shm_check_t shm_check_choose(void); /* the fastest that runs here */

/* The thread sanitizer knows no fences: there an operation on a word of one's own stands for them.
 */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SHM_NO_FENCES
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define SHM_NO_FENCES
#endif

/* Orders plain accesses to the peer's memory with the atomics beside them. */
static inline void shm_fence(memory_order order)
{
#ifdef SHM_NO_FENCES
    _Atomic uint32_t word = 0;
    (void)order;
    (void)atomic_fetch_add(&word, 1);
#else
    atomic_thread_fence(order);
#endif
}

/* Whether there is a record to be read. */
static inline bool shm_ring_any(const shm_ring_t *r)
{
    return atomic_load_explicit(&r->lane->head, memory_order_acquire) != r->at;
}

/* Writer: the reader's counter says that it has read what was never written. It has gone wild, and there will
 * be no room any more. */
static inline bool shm_ring_is_wild(const shm_ring_t *r)
{
    return r->at - atomic_load_explicit(&r->lane->tail, memory_order_acquire) > r->bytes;
}

/* What the next record is, where there is one: as its writer says, and not checked. */
static inline uint32_t shm_ring_kind(const shm_ring_t *r)
{
    return ((const shm_record_t *)(const void *)(r->base + (r->at & (r->bytes - 1))))->kind;
}

#endif
