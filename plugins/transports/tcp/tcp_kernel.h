/* tcp_kernel.h - what the kernel says of TCP on this machine, and of the interfaces under it. */
#ifndef TCP_KERNEL_H
#define TCP_KERNEL_H

#include <longhaul/host.h>

typedef void (*tcp_kernel_line_t)(void *context, const char *text);

/* lh_transport_api_t.cards: the kernel's congestion controls, limits and capabilities, its counters of loss
 * and of memory, and the interfaces with their own. What this kernel does not tell is left out. */
lh_status_t tcp_kernel_tell(const lh_host_t *host, tcp_kernel_line_t line, void *context);

/* A counter of a /proc/net/snmp or netstat: of the group "Tcp:", say, the one called "RetransSegs".
 * UINT64_MAX: there is none. */
uint64_t tcp_kernel_counter(const char *text, const char *group, const char *name);

#endif
