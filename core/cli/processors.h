/* cli/processors.h - shares of a machine's processors for the ranks that are started on it. */
#ifndef CLI_PROCESSORS_H
#define CLI_PROCESSORS_H

#include <sched.h>

#include <base/status.h>

#define PROCESSORS_FOLDER "/sys/devices/system/cpu"

/* The share of rank `index` of `count`: whole and without overlap, and neighbours in `all`: threads
 * of a core, then cores of a package, as `folder` (Linux's) says; by number where it says nothing.
 * false: fewer processors than ranks. */
bool processors_share(const cpu_set_t *all, const char *folder, uint32_t index, uint32_t count,
                      cpu_set_t *out);

#endif
