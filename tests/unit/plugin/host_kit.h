/* host_kit.h - the host's services for functions that ask for them, without a plugin around.
 * open_host and close_host are a pair for cmocka_run_group_tests. */
#ifndef TESTS_HOST_KIT_H
#define TESTS_HOST_KIT_H

#include <plugin/host.h>

static const lh_host_t *host; /* between the two */

static inline int open_host(void **state)
{
    host_t *h;
    if (host_new(&h) != LH_OK || host_for(h, "test", &host) != LH_OK) return -1;
    *state = h;
    return 0;
}

static inline int close_host(void **state)
{
    host_free(*state);
    return 0;
}

#endif
