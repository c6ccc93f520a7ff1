/* node_run.h - runs a recording node by node on any device, on numbers given as doubles. Nothing of
 * the core's programs, memory plans and call lists is used. */
#ifndef NODE_RUN_H
#define NODE_RUN_H

#include <graph/recording.h>
#include <plugin/registry.h>

typedef struct opened { /* a device and a stream of it */
    const plugin_t *plugin;
    const lh_host_t *host;
    const void *config;
    lh_device_t *device;
    lh_stream_t *stream;
    lh_event_t *event;
    lh_device_properties_t properties;
    lh_native_t queue;
} opened_t;

lh_status_t opened_open(const plugin_t *plugin, const lh_host_t *host, const void *config,
                        opened_t *out) LH_MUST_CHECK;
void opened_close(opened_t *o);
/* Until all that was queued is done. */
lh_status_t opened_wait(opened_t *o) LH_MUST_CHECK;

typedef struct node_run_how {
    opened_t *on;
    const plugin_t *const *others; /* with kernels for that device */
    uint32_t other_count;
    uint64_t pad;   /* elements between the rows of what has two dimensions */
    uint64_t shift; /* bytes that everything lies further on: other places, same bits */
    bool add;       /* gradients of parameters add to what is there, as in later micro-batches */
} node_run_how_t;

typedef struct node_run node_run_t;

/* LH_UNSUPPORTED: a node has no kernel; node_run_lacking tells its op. */
lh_status_t node_run_new(const node_run_how_t *how, const recording_t *r,
                         node_run_t **out) LH_MUST_CHECK;
void node_run_free(node_run_t *n);
const char *node_run_lacking(void);

/* Whether a value lies in memory at all: an output that nobody uses does not. */
bool node_run_has(const node_run_t *n, lh_value_t v);
uint64_t node_run_elements(const node_run_t *n, lh_value_t v);
/* Dense doubles. Set before a run, get after it. */
void node_run_set(node_run_t *n, lh_value_t v, const double *values);
void node_run_get(const node_run_t *n, lh_value_t v, double *values);
/* One run of all nodes or of the forward pass; memory starts as node_run_set left it, all else as
 * not-a-number. */
lh_status_t node_run_go(node_run_t *n, bool forward_only) LH_MUST_CHECK;
/* The last run wrote between no rows. */
bool node_run_kept_between(const node_run_t *n);

#endif
