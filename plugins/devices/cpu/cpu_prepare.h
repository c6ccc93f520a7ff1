/* cpu_prepare.h - what all kernel rows of the cpu have in common: the four functions of
 * lh_kernel_t, as longhaul/kernel.h describes them, and the plugin's selftest. */
#ifndef LH_CPU_PREPARE_H
#define LH_CPU_PREPARE_H

#include "cpu.h"

lh_status_t cpu_fits(const lh_host_t *host, const lh_device_t *d, const void *config,
                     const lh_kernel_desc_t *desc);
lh_status_t cpu_prepare(const lh_host_t *host, lh_device_t *d, const lh_kernel_desc_t *desc,
                        lh_kernel_plan_t *plan, lh_prepared_t **out);
lh_status_t cpu_launch(lh_prepared_t *k, const lh_launch_t *call);
void cpu_kernel_free(lh_prepared_t *k);
/* Every op that ops.h lists is here, with a dtype for each of its slots. */
lh_status_t cpu_selftest(const lh_host_t *host);

#endif
