/* plugin/host.h - the services that plugins call: one host_t for a job, one lh_host_t for each
 * plugin, so that log lines carry its name.
 *
 * Plugins link against nothing: this table of functions is all that they have of the host. What it
 * does is described, with threads and ownership, in longhaul/host.h; here is the host's side. */
#ifndef PLUGIN_HOST_H
#define PLUGIN_HOST_H

#include <base/status.h>
#include <longhaul/host.h>

typedef struct host host_t;

/* A host of a world of one rank, with a random number for its job. */
lh_status_t host_new(host_t **out) LH_MUST_CHECK;
/* Everything that host_for gave ends with it. Threads must have been joined. */
void host_free(host_t *h);

/* The services as `plugin` sees them; the same name gives the same pointer. Valid until host_free.
 */
lh_status_t host_for(host_t *h, const char *plugin, const lh_host_t **out) LH_MUST_CHECK;

/* A pointer of the core's own beside the services of that name, for a plugin that is none: its
 * functions get nothing else by which to know whose they are. NULL at first. */
void host_keep(const lh_host_t *host, const void *kept);
const void *host_kept(const lh_host_t *host);

/* The ranks of the job, as host->world, rank_info and derive_key tell of them. Before any transport
 * is open; what it points to lives until the next call. NULL: this process is alone, as at first.
 */
typedef struct host_world {
    lh_world_t row;              /* what plugins see; copied */
    const lh_rank_info_t *ranks; /* [row.size] */
    /* NULL: the job has no secret. [any] */
    lh_status_t (*derive)(const void *context, const char *purpose, uint32_t peer, void *out,
                          size_t bytes);
    const void *context;
} host_world_t;
void host_set_world(host_t *h, const host_world_t *world);
/* Where this process' device is, as host->world tells plugins until host_set_world is called
 * again. */
void host_set_device(host_t *h, const char *pci_path);

/* Makes host->stopping() true for all plugins, for good; may be called from a signal handler. */
void host_stop(host_t *h);
bool host_stopping(const host_t *h); /* [any thread] */

/* Counters that plugins name as they add to them; those beyond HOST_METRICS are not counted. */
enum { HOST_METRICS = 64, HOST_METRIC_NAME = 48 };
typedef struct host_metric {
    char name[HOST_METRIC_NAME]; /* "tcp.retransmits" */
    double value;                /* sum of all counts */
} host_metric_t;
/* Copies up to max metrics, in the order they first came; returns how many there are. [any
 * thread] */
uint32_t host_metrics(host_t *h, host_metric_t *out, uint32_t max);

#endif
