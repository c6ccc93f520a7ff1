/* interpreter.h - runs a recording node by node with a synchronous device's kernels, in host memory
 * that tests read and write. Nothing of the programs, memory plans and call lists under test is
 * used. */
#ifndef INTERPRETER_H
#define INTERPRETER_H

#include <graph/recording.h>

#include <longhaul/plugin.h>

typedef struct interpreter_how {
    const lh_host_t *host;
    const lh_plugin_t *device;         /* synchronous, with host access                       */
    const lh_plugin_t *const *plugins; /* others with kernels for that device                 */
    uint32_t plugin_count;
    bool add; /* gradients of parameters add to what lies there, as in later micro-batches   */
} interpreter_how_t;

typedef struct interpreter interpreter_t;

lh_status_t interpreter_new(const interpreter_how_t *how, const recording_t *r,
                            interpreter_t **out) LH_MUST_CHECK;
void interpreter_free(interpreter_t *it);

/* Memory of a value, dense; parameters, inputs and arguments are the test's to fill in, constants
 * are filled. NULL: an output that nobody uses. Values that share memory share it here. */
void *interpreter_at(interpreter_t *it, lh_value_t v);

/* All nodes, or only those of the forward pass. */
lh_status_t interpreter_run(interpreter_t *it, bool forward_only) LH_MUST_CHECK;

/* A plugin's table out of its file, as built. Fails the test that asks when it is not there. */
const lh_plugin_t *test_plugin(const char *folder, const char *name);
/* Services for plugins; failures arrive at fail_reason(). Lives as long as the program. */
const lh_host_t *test_host(void);

#endif
