/* base/memory.h - the one door to the heap, so that tests can make the n-th allocation fail and
 * count who allocates in a step; and arithmetic on sizes that come from outside.
 *
 * One function for everything would have been malloc itself; what is asked of this one beyond that
 * is that memory is zeroed, as structs here take zero for "not set", that it is aligned to a cache
 * line, as vector code wants it, and that a failure has its sentence. The price is a memset of what
 * the caller may overwrite at once. Large arrays that a device works on come from the device's
 * plugin, not from here. All functions may be called by any thread. */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

#include <base/status.h>

/* Zeroed, aligned to 64 bytes. NULL after fail(LH_NO_MEMORY, ...). mem_new(0) is a valid pointer.
 * The caller owns what these functions return and gives it back to mem_free. */
void *mem_new(size_t bytes);
/* count * size bytes; a product that does not fit is refused as an allocation that fails. */
void *mem_array(size_t count, size_t size);
/* Grows or shrinks what mem_new gave, by a copy into a new block; what is new is zeroed. NULL
 * leaves the old block as it was. */
void *mem_resize(void *memory, size_t old_bytes, size_t new_bytes);
/* malloc with the same counter and injected failures, for libraries that take an allocator: not
 * zeroed, not aligned beyond what malloc promises. */
void *mem_lend(size_t bytes);
/* A copy of a string; of the first `length` bytes of one, with a NUL behind them. */
char *mem_text(const char *text);
char *mem_text_n(const char *text, size_t length);
void mem_free(void *memory); /* NULL does nothing */

/* What mem_grow, below, does where the room is too small. */
void *mem_enlarge(void *items, size_t *capacity, size_t wanted, size_t size);

/* Makes room for `wanted` items of `size` bytes in an array that grows: items = mem_grow(items,
 * &capacity, count + 1, sizeof(*items)). The capacity grows by half at least, so that n appends
 * copy some 3 n items in all. NULL leaves the old array and its capacity valid. Inline,
 * as texts grow by a character at a time and nearly always have the room. */
static inline void *mem_grow(void *items, size_t *capacity, size_t wanted, size_t size)
{
    return wanted <= *capacity ? items : mem_enlarge(items, capacity, wanted, size);
}

/* For tests: the n-th allocation from now (1 is the next) fails, and every later one if `forever`;
 * 0 switches it off. The count is over all threads of the process. */
void mem_fail_at(uint64_t n, bool forever);
/* Allocations so far, of all threads, those that failed among them. */
uint64_t mem_count(void);

/* Sums and products of sizes, counts and offsets that a file, a user or a plugin names: false when
 * the result does not fit 64 bits, and *out is then not to be used. */
static inline bool checked_add(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

static inline bool checked_mul(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

/* Euclid's algorithm. Of 0 and another number that one. */
static inline uint64_t greatest_divisor(uint64_t a, uint64_t b)
{
    while (b != 0) {
        const uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

#endif
