/* reference.h - what the plainest possible device is made of: tensors read and written as doubles.
 *
 * This plugin states what each op of longhaul/ops.h means. It is the truth that fast devices are
 * compared with and runs F64 graphs for finite differences; speed is no aim, but for what half the
 * time of many tests went into: elements of plain matrices are read inline, and a product reads each
 * of them once for a tile of sums. An op of ops.h is one function, op_NAME: `at` holds its inputs and
 * outputs, by the slots that LH_SLOTS names. */
#ifndef REFERENCE_H
#define REFERENCE_H

#include <longhaul/dtype.h>
#include <longhaul/plugin.h>

#include "../op_slots.h"

/* A view of one argument: rank 0 and 1 are one row; of higher ranks all dimensions but the last are
 * counted through as rows. */
typedef struct tensor {
    const lh_arg_t *arg;
    char *address; /* NULL: an optional slot left out */
    uint64_t rows, width;
    uint64_t element_bytes;
} tensor_t;

typedef op_attributes_t attributes_t;

typedef void (*op_function_t)(const attributes_t *how, const tensor_t *at);

typedef struct reference_op {
    const char *name;
    uint32_t slots;
    op_function_t run;
} reference_op_t;

#define OP_DECLARE(name, text) void op_##name(const attributes_t *how, const tensor_t *at);
LH_OPS_BASE(OP_DECLARE)
LH_OPS_MORE(OP_DECLARE)

/* reference_number.c: a dtype's element as a double, and rounded back to the nearest, ties to even. */
double element_load(lh_dtype_t dtype, const char *at);
void element_store(lh_dtype_t dtype, char *at, double value);

tensor_t tensor_view(const lh_arg_t *arg, void *address, uint64_t valid_rows);
bool given(const tensor_t *x);
double element_get(const tensor_t *x, uint64_t row, uint64_t column);
/* Adds to what is there where the argument says LH_ARG_ADD; so call it once per element. Does
 * nothing for an output that was left out. */
void put(const tensor_t *y, uint64_t row, uint64_t column, double value);

/* An element, in elements from the first one, of a matrix of F32 or F64. */
static inline double element_of_f32(const tensor_t *x, uint64_t offset)
{
    float value;
    memcpy(&value, x->address + offset * sizeof(value), sizeof(value));
    return (double)value;
}

static inline double element_of_f64(const tensor_t *x, uint64_t offset)
{
    double value;
    memcpy(&value, x->address + offset * sizeof(value), sizeof(value));
    return value;
}

/* As element_get, without a call for what most elements are of that tests ask for. */
static inline double get(const tensor_t *x, uint64_t row, uint64_t column)
{
    const lh_arg_t *arg = x->arg;
    if (arg->rank == 2 && arg->dtype == LH_DTYPE_F32)
        return element_of_f32(x, row * arg->stride[0] + column * arg->stride[1]);
    if (arg->rank == 2 && arg->dtype == LH_DTYPE_F64)
        return element_of_f64(x, row * arg->stride[0] + column * arg->stride[1]);
    return element_get(x, row, column);
}

/* For tensors of integers. */
int64_t get_integer(const tensor_t *x, uint64_t row, uint64_t column);

/* reference_element.c */
double act(uint32_t function, double x);
double act_slope(uint32_t function, double x);

#endif
