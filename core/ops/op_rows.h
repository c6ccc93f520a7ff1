/* ops/op_rows.h - what the files ops_*.c share: the core's groups of rows, and how their shape
 * functions check inputs and state outputs. Inside core/graph only. */
#ifndef OPS_OP_ROWS_H
#define OPS_OP_ROWS_H

#include <base/status.h>
#include <longhaul/ops.h>

typedef struct op_rows {
    const lh_op_t *rows;
    uint32_t count;
} op_rows_t;

extern const op_rows_t ops_linear, ops_embed, ops_norm, ops_attention, ops_element, ops_loss;
extern const op_rows_t ops_route, ops_update, ops_cache, ops_collective;
extern const uint32_t ops_collective_kinds[]; /* op_t.collective of each row */

#define COUNT(t) (uint32_t)(sizeof(t) / sizeof((t)[0]))
#define ATTRIBUTES(T, t)                                                              \
    .attributes = (t), .attribute_size = sizeof((t)[0]), .attribute_count = COUNT(t), \
    .attributes_bytes = sizeof(T)

/* Sets of dtypes. */
#define IS(dtype) (1u << (dtype))
#define FLOATS (IS(LH_DTYPE_F32) | IS(LH_DTYPE_BF16) | IS(LH_DTYPE_F16) | IS(LH_DTYPE_F64))
#define WIDE (IS(LH_DTYPE_F32) | IS(LH_DTYPE_F64))
#define INDEX IS(LH_DTYPE_I32)
#define ANY_DTYPE (~0u)

enum { ANY = 0 }; /* a dimension, or a rank, that may be what it likes */

/* What an input must be. Slots are checked in order, one rule each; one left out is passed over. */
typedef struct arg_rule {
    const char *slot;
    uint32_t dtypes;
    uint32_t rank;
    uint64_t shape[LH_MAX_RANK];
} arg_rule_t;

lh_status_t op_args_check(const char *op, const lh_arg_t *args, const arg_rule_t *rules,
                          uint32_t count) LH_MUST_CHECK;
/* Rules for an argument that must be shaped like another. */
arg_rule_t op_rule_like(const char *slot, uint32_t dtypes, const lh_arg_t *like);

/* States an output; strides are the recorder's. rank 1 ignores columns. */
void op_arg_set(lh_arg_t *out, lh_dtype_t dtype, uint32_t rank, uint64_t rows, uint64_t columns);
void op_arg_like(lh_arg_t *out, const lh_arg_t *like);
/* The dtype of statistics and sums beside data of that dtype: F64 beside F64, else F32. */
lh_dtype_t op_dtype_wide(lh_dtype_t dtype);

double op_arg_elements(const lh_arg_t *arg); /* 0: left out */
/* flops as given; bytes: every argument read or written once. */
void op_cost_set(lh_cost_t *out, double flops, const lh_arg_t *args, uint32_t arg_count);

/* An op by name with attributes, one output, from within a gradient. */
lh_value_t op_record(lh_graph_t *g, const char *op, const void *attributes, lh_value_t a,
                     lh_value_t b);

#endif
