/* base/memory.h - the one door to the heap, so that tests can make the n-th allocation fail and
 * count who allocates in a step. */
#ifndef BASE_MEMORY_H
#define BASE_MEMORY_H

#include <base/status.h>

/* Zeroed, aligned to 64. NULL after fail(LH_NO_MEMORY, ...). mem_new(0) is a valid pointer. */
void *mem_new(size_t bytes);
/* count * size with the product checked. */
void *mem_array(size_t count, size_t size);
/* Grows or shrinks what mem_new gave; what is new is zeroed. NULL leaves the old block as it was.
 */
void *mem_resize(void *memory, size_t old_bytes, size_t new_bytes);
/* malloc with the same counter and injected failures, for libraries that take an allocator: not
 * zeroed. */
void *mem_lend(size_t bytes);
char *mem_text(const char *text);                  /* copy of a string      */
char *mem_text_n(const char *text, size_t length); /* copy of part of one   */
void mem_free(void *memory);                       /* NULL does nothing     */

/* Doubles the capacity of a growing array when needed: items = mem_grow(items, &capacity, count +
 * 1, sizeof(*items)). NULL leaves the old array valid. */
void *mem_grow(void *items, size_t *capacity, size_t wanted, size_t size);

/* Tests: the n-th allocation from now (1 is the next) fails, and every later one if `forever`;
 * 0 switches it off. Allocations made so far by all threads. */
void mem_fail_at(uint64_t n, bool forever);
uint64_t mem_count(void);

#endif
