/* transport_wan.h - the check of a transport between sites, by delay and loss that the kernel
 * makes. */
#ifndef TRANSPORT_WAN_H
#define TRANSPORT_WAN_H

#include "transport_rig.h"

extern const fact_t wan_fact;
/* check_t.run; skips where the caller or the kernel can't. */
void wan_run(subject_t *s);

#endif
