/* memory.c - heap allocation with a counter and an injected failure.
 *
 * The counter is one atomic addition for each allocation. That is cheap because a step of training
 * allocates nothing; a test holds the core to that by this counter. */
#include <base/memory.h>

#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>

static _Atomic uint64_t allocations; /* asked for so far, by all threads */
static _Atomic uint64_t fail_at;     /* value of `allocations` at which to fail; 0: never */
static _Atomic bool fail_on;         /* and every one behind it */

static void *refuse_bytes(size_t bytes)
{
    (void)fail(LH_NO_MEMORY, "out of memory: %zu bytes asked for", bytes);
    return NULL;
}

/* False after fail(), where count * size is more than an address can tell. */
static bool product_fits(size_t count, size_t size, size_t *bytes)
{
    if (!__builtin_mul_overflow(count, size, bytes)) return true;
    (void)fail(LH_NO_MEMORY, "out of memory: %zu times %zu bytes asked for", count, size);
    return false;
}

/* Counts an allocation; true where it is one that a test wants to fail. */
static bool allocation_is_refused(size_t bytes)
{
    const uint64_t at = atomic_load(&fail_at);
    const uint64_t now = atomic_fetch_add(&allocations, 1) + 1;
    if (at == 0 || now < at || (now > at && !atomic_load(&fail_on))) return false;
    (void)refuse_bytes(bytes);
    return true;
}

void *mem_new(size_t bytes)
{
    if (allocation_is_refused(bytes)) return NULL;

    /* Rounded up, as aligned_alloc wants it, and by one at least, so that 0 bytes have an
     * address. */
    const size_t rounded = bytes > SIZE_MAX - 127 ? SIZE_MAX : (bytes + 64) / 64 * 64;
    void *memory = rounded == SIZE_MAX ? NULL : aligned_alloc(64, rounded);
    if (memory == NULL) return refuse_bytes(bytes);
    lh_assert((uintptr_t)memory % 64 == 0);
    memset(memory, 0, rounded);
    return memory;
}

void *mem_lend(size_t bytes)
{
    return allocation_is_refused(bytes) ? NULL : malloc(bytes);
}

void *mem_array(size_t count, size_t size)
{
    size_t bytes;
    return product_fits(count, size, &bytes) ? mem_new(bytes) : NULL;
}

/* Not realloc: that keeps neither the alignment nor the zeros. */
void *mem_resize(void *memory, size_t old_bytes, size_t new_bytes)
{
    void *bigger = mem_new(new_bytes);
    if (bigger == NULL) return NULL;
    if (memory != NULL) memcpy(bigger, memory, old_bytes < new_bytes ? old_bytes : new_bytes);
    mem_free(memory);
    return bigger;
}

char *mem_text_n(const char *text, size_t length)
{
    char *copy = mem_new(length + 1);
    if (copy != NULL) memcpy(copy, text, length);
    return copy;
}

char *mem_text(const char *text)
{
    return mem_text_n(text, strlen(text));
}

void mem_free(void *memory)
{
    free(memory);
}

void *mem_enlarge(void *items, size_t *capacity, size_t wanted, size_t size)
{
    lh_assert(wanted > *capacity && size > 0 && (items != NULL || *capacity == 0));

    size_t next = *capacity < 8 ? 8 : *capacity + *capacity / 2;
    if (next < wanted) next = wanted;
    size_t bytes;
    if (!product_fits(next, size, &bytes)) return NULL;
    void *bigger = mem_resize(items, *capacity * size, bytes);
    if (bigger != NULL) *capacity = next;
    return bigger;
}

void mem_fail_at(uint64_t n, bool forever)
{
    atomic_store(&fail_on, forever);
    atomic_store(&fail_at, n == 0 ? 0 : atomic_load(&allocations) + n);
}

uint64_t mem_count(void)
{
    return atomic_load(&allocations);
}
