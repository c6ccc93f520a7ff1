/* op_cases.h - small recordings that between them need every op that a model or an update records,
 * and numbers to run them on. */
#ifndef OP_CASES_H
#define OP_CASES_H

#include <graph/op_table.h>

#include "node_run.h"
#include "subject.h"

enum {
    OP_CASE_WIDE = 1u << 0,     /* F32 only: statistics, updates      */
    OP_CASE_FORWARD = 1u << 1,  /* nothing to differentiate           */
    OP_CASE_POSITIVE = 1u << 2, /* numbers from 0.5 to 1.5            */
    OP_CASE_FUSED = 1u << 3,    /* joined before it is differentiated */
};

typedef struct op_case {
    const char *what; /* "attention over a window" */
    lh_value_t (*record)(lh_graph_t *g, lh_value_t x, uint64_t rows, uint64_t width);
    uint32_t flags;
} op_case_t;

extern const op_case_t op_cases[];
extern const uint32_t op_case_count;

/* x is [rows, width]; with its reverse pass. `device` says what may be fused. */
lh_status_t op_case_record(const op_case_t *c, const op_table_t *ops, const plugin_t *device,
                           uint64_t rows, uint64_t width, lh_dtype_t compute,
                           recording_t **out) LH_MUST_CHECK;

/* A parameter whose shape stands in its name; columns or depth 0: there is no such dimension. */
lh_value_t op_case_param(lh_graph_t *g, const char *name, uint64_t rows, uint64_t columns,
                         uint64_t depth);
/* For recording_how_t.param. */
lh_status_t op_case_shape(void *context, const char *name, uint64_t shape[LH_MAX_RANK],
                          uint32_t *rank);
/* For recording_how_t.offers: the plugin `device` lists a kernel for that op. */
bool op_case_listed(void *device, const op_t *o, const void *attributes, const lh_arg_t *args);

/* The same numbers into all runs: what nobody makes, rounded to the dtypes of `r`. */
void op_case_fill(const recording_t *r, uint32_t flags, uint64_t seed, node_run_t *const *runs,
                  uint32_t count);

/* Prepares and releases a few kernels of the plugin, as hosts do before step 0. */
lh_status_t op_cases_prepare(subject_t *s, const lh_host_t *host, lh_device_t *d,
                             lh_stream_t *stream) LH_MUST_CHECK;

#endif
