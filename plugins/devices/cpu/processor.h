/* processor.h - what this machine's processor is and can. */
#ifndef LH_CPU_PROCESSOR_H
#define LH_CPU_PROCESSOR_H

#include "cpu.h"

/* Of threads that this process may run at once, as the host says; by affinity where an older one says nothing. */
uint32_t processor_count(const lh_host_t *host);
/* The best CPU_* that kernels were compiled for and the processor can run. */
uint32_t processor_isa(void);
const char *processor_isa_name(uint32_t isa);
/* Its name, as in "AMD EPYC 9654 96-Core Processor"; "unknown processor" where the machine hides
 * it. */
void processor_model(char *out, size_t bytes);
/* From /proc/meminfo. 0: unknown. */
void processor_memory(uint64_t *total_bytes, uint64_t *available_bytes);
/* Memory this process has in use. */
uint64_t processor_process_bytes(void);

#endif
