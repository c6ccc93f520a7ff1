/* ops/op_rows.h - what the files ops_*.c share: the core's groups of rows, and how their shape
 * functions check inputs and state outputs.
 *
 * A row (lh_op_t of longhaul/graph.h) is all that the core knows of an op. Its functions are pure:
 * they see shapes and dtypes, never data, and run while a model is recorded, before any memory is
 * there. So any thread may call them; what depends on data is left to kernels.
 *
 * A shape function gets an array of arguments in slot order. Inputs are filled in (an input that is
 * left out has dtype NONE), and the function fills in the outputs. Dimensions are row-major, [rows,
 * columns] for most values; the recorder adds strides. A cost function states FLOPs and bytes of
 * one call. A split function states the attributes of one of `ways` equal parts, for an op that is
 * cut over ranks.
 *
 * A gradient function records with the same recorder as a model. It gets the values of the op's
 * inputs and outputs (forward), the gradients of the outputs (from; 0 where none arrives) and which
 * inputs want one (wanted; a frozen parameter does not), and writes the gradient of each into
 * `into`, by input slot; 0 stands for none. What it uses of forward stays in memory for the way
 * back.
 *
 * The macros below have short names without a prefix, so only core/ops and the op table of
 * core/graph include this file. */
#ifndef OPS_OP_ROWS_H
#define OPS_OP_ROWS_H

#include <base/status.h>
#include <longhaul/ops.h>

/* A group of rows as one file states it. The op table takes the groups in a fixed order; of fused
 * ops that would match the same nodes, the later row is tried first. */
typedef struct op_rows {
    const lh_op_t *rows;
    uint32_t count;
} op_rows_t;

extern const op_rows_t ops_linear, ops_embed, ops_norm, ops_attention, ops_element, ops_loss;
extern const op_rows_t ops_route, ops_view, ops_update, ops_cache, ops_collective;
/* What each row of ops_collective is in a program, in the order of those rows: a COLLECTIVE_* of
 * ops_collective.h, which becomes op_t.collective. */
extern const uint32_t ops_collective_kinds[];
/* Likewise of ops_view: a VIEW_* of ops_view.h, which becomes op_t.view. */
extern const uint32_t ops_view_kinds[];

/* Rows of an array whose size is known here. */
#define COUNT(t) (uint32_t)(sizeof(t) / sizeof((t)[0]))
/* The fields of a row for a struct of attributes T of longhaul/ops.h with the table t of its options:
 * the table parses `name(x, beta=2)` in an INI, and prints what the attributes are. */
#define ATTRIBUTES(T, t) TABLE(t), .attributes_bytes = LISTED_BYTES(T), .attributes_struct = #T
/* Likewise, where T is the core's own and no plugin fills it in. */
#define OWN_ATTRIBUTES(T, t) TABLE(t), .attributes_bytes = sizeof(T)
#define TABLE(t) .attributes = (t), .attribute_size = sizeof((t)[0]), .attribute_count = COUNT(t)
/* sizeof(T). A T that LH_OP_STRUCTS lacks, for which devices would have no room, is an error of the compiler. */
#define LISTED_BYTES(T) _Generic((T *)NULL LH_OP_STRUCTS(LISTED_STRUCT))
#define LISTED_STRUCT(name, T) , T * : sizeof(T)

/* Sets of dtypes, as bits: what a rule allows an input to be. */
#define IS(dtype) (1u << (dtype))
#define FLOATS (IS(LH_DTYPE_F32) | IS(LH_DTYPE_BF16) | IS(LH_DTYPE_F16) | IS(LH_DTYPE_F64))
#define WIDE (IS(LH_DTYPE_F32) | IS(LH_DTYPE_F64))
#define INDEX IS(LH_DTYPE_I32)
#define ANY_DTYPE (~0u)

enum { ANY = 0 }; /* a dimension, or a rank, that is not checked */

/* What an input must be. Slots are checked in order, one rule for each; an input that is left out
 * is passed over. */
typedef struct arg_rule {
    const char *slot; /* for the sentence */
    uint32_t dtypes;  /* a set, by IS() */
    uint32_t rank;    /* or ANY, and then the shape is not checked either */
    uint64_t shape[LH_MAX_RANK];
} arg_rule_t;

/* Refuses (LH_INVALID) the first input that does not fit its rule, with a sentence that states what
 * was found and what was expected: "matmul: input b is F32 [8, 4], expected F32 [16, any]". args
 * and rules: [count], in slot order. */
lh_status_t op_args_check(const char *op, const lh_arg_t *args, const arg_rule_t *rules,
                          uint32_t count) LH_MUST_CHECK;
/* A rule for an argument that must be shaped like another, of one of `dtypes`. */
arg_rule_t op_rule_like(const char *slot, uint32_t dtypes, const lh_arg_t *like);

/* States an output: [rows] of rank 1, which ignores columns, or [rows, columns] of rank 2. dtype
 * NONE leaves the choice to the recorder, which takes the compute dtype. */
void op_arg_set(lh_arg_t *out, lh_dtype_t dtype, uint32_t rank, uint64_t rows, uint64_t columns);
/* States an output with the dtype and shape of an input. */
void op_arg_like(lh_arg_t *out, const lh_arg_t *like);
/* The dtype of statistics and sums of data of a dtype: F64 of F64, else F32. */
lh_dtype_t op_dtype_wide(lh_dtype_t dtype);

/* How many elements an argument has; 0 where it is left out. A double, as costs are. */
double op_arg_elements(const lh_arg_t *arg);
/* Fills in a cost: FLOPs as given, and as bytes each argument read or written once, as if nothing
 * stayed in a cache from one call to the next. */
void op_cost_set(lh_cost_t *out, double flops, const lh_arg_t *args, uint32_t arg_count);

/* Records an op of one input (b 0) or two, and returns its first output; 0 after a failure, which
 * the recording keeps. For gradients, and for ops that are recorded as other ops. */
lh_value_t op_record(lh_graph_t *g, const char *op, const void *attributes, lh_value_t a,
                     lh_value_t b);

#endif
