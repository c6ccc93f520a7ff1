/* check_host.h - the host that a plugin meets under test: it counts what it hands out, and can be
 * made to fail, to be slow and to stop. One a process. */
#ifndef CHECK_HOST_H
#define CHECK_HOST_H

#include <longhaul/host.h>

const lh_host_t *check_host(void);

typedef struct host_faults {
    uint64_t failing_alloc; /* the n-th from now returns NULL, 1 is the next; 0: none */
    uint64_t stops_after;   /* stopping() is true from its n-th call on; 0: never     */
    uint32_t slow_ns;       /* every call takes this much longer                    */
    bool no_secret;         /* derive_key says LH_UNSUPPORTED                       */
} host_faults_t;
/* NULL: none. Counts start anew. */
void check_host_faults(const host_faults_t *faults);

uint64_t check_host_allocs(void); /* since check_host_faults */
int64_t check_host_blocks(void);  /* handed out and not released */
int64_t check_host_threads(void); /* started and not joined */
/* What the plugin's last fail() said on any thread; "" since check_host_faults. */
const char *check_host_reason(void);
void check_host_world(uint32_t rank, uint32_t size);
/* The sum of a metric's counts. */
double check_host_metric(const char *metric);

uint64_t check_now_ns(void);

#endif
