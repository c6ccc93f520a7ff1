/* openmp.h - libgomp's thread team, shared with oneDNN. */
#ifndef LH_CPU_OPENMP_H
#define LH_CPU_OPENMP_H

#include "cpu.h"

/* Sets libgomp's variables where the user has not, before anything loads it. */
void openmp_environment(uint32_t threads);
lh_status_t openmp_open(const lh_host_t *host, cpu_openmp_t *out);
/* How many threads libgomp gives when it is asked for so many: as many from now on, whatever
 * OMP_DYNAMIC says, or fewer where OMP_THREAD_LIMIT does. One thread at a time. */
uint32_t openmp_team(const cpu_openmp_t *openmp, uint32_t threads);
/* For lh_threads_t. */
void openmp_run(lh_threads_t *threads, uint32_t parts, void (*work)(void *context, uint32_t part),
                void *context);

#endif
