/* base/processors.h - how many processors this process may keep busy: what threads are counted by.
 *
 * Two things bound that. Its affinity (taskset, cpusets, a launcher that deals processors out) says on
 * which it may run. The quota of its control group (a container's limit: Kubernetes' limits.cpu, docker
 * run --cpus) says how much time all processes of the group have together, on whichever processors: who
 * computes with more threads than that is stopped for the rest of each period, all of them at once, and
 * those that wait for one another wait for the next period. A process that is one of several in the
 * group takes its share. */
#ifndef BASE_PROCESSORS_H
#define BASE_PROCESSORS_H

#include <stdbool.h>
#include <stdint.h>

#include <base/text.h>

#define PROCESSORS_NO_QUOTA UINT32_MAX

typedef struct processors {
    uint32_t allowed; /* that this process may run on; 1 at least */
    /* The least of its control group's and of those above it, rounded up to whole processors; 1 at
     * least. PROCESSORS_NO_QUOTA where none is set, or to be read. */
    uint32_t quota;
    uint32_t sharers; /* processes that have the quota together; 1 at least */
    uint32_t count; /* to keep busy: the least of allowed and of a share of the quota; 1 at least */
} processors_t;

/* root: the folder under which proc and the control groups lie, "/" but for tests. */
void processors_read(const char *root, uint32_t sharers, processors_t *out);

/* From here on this process is one of so many (1 at first) that compute side by side in its control
 * group. As affinity, this holds for the process. [any thread] */
void processors_share(uint32_t sharers);
/* As they are now: affinity and quotas may change while a process runs. Some small files are read,
 * and nothing is allocated through base/memory.h. [any thread] */
void processors_here(processors_t *out);
uint32_t processors_count(void);

/* Appends what the quota leaves, "2 processors of the 64 that ...". false: it bounds nothing, and
 * nothing is appended. */
bool processors_tell(const processors_t *p, text_t *out);

#endif
