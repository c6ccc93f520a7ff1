/* bare_host.h - the least that a transport's own files ask of a host, where a test or a fuzz target
 * calls them without a plugin's life around: failures are their status alone, memory is libc's, and
 * nothing is counted. */
#ifndef BARE_HOST_H
#define BARE_HOST_H

#include <stdlib.h>

#include <longhaul/plugin.h>

static inline lh_status_t bare_fail(LH_UNUSED const lh_host_t *host, lh_status_t status,
                                    LH_UNUSED const char *fmt, ...)
{
    return status;
}

static inline void *bare_alloc(LH_UNUSED const lh_host_t *host, size_t bytes,
                               LH_UNUSED size_t alignment)
{
    return calloc(1, bytes);
}

static inline void bare_release(LH_UNUSED const lh_host_t *host, void *memory)
{
    free(memory);
}

static inline void bare_count(LH_UNUSED const lh_host_t *host, LH_UNUSED const char *metric,
                              LH_UNUSED double amount)
{
}

#endif
