/* differences.h - compares what a recording's reverse pass computes with central differences of its
 * forward pass, in double precision.
 *
 * What is differentiated is the sum of output times a fixed random weight, plus the losses. Central
 * differences of fourth order with h = 1e-4 err by h^4 / 30 times the fifth derivative and by 1e-16
 * |f| / h, both under 1e-9 at the sizes of these tests; a value passes within 1e-7 (1 +
 * |expected|). */
#ifndef DIFFERENCES_H
#define DIFFERENCES_H

#include "interpreter.h"
#include <graph/op_table.h>

enum {
    TEST_TOKENS = 7,
    TEST_DOCUMENTS = 3
}; /* two documents, of 3 and 4 tokens, and an empty one */
extern const int32_t test_tokens[TEST_TOKENS]; /* in 0..4, some repeat */

/* The core's ops and acme's. */
op_table_t *test_ops(void);

/* F64 throughout; parameters' shapes from param. */
recording_t *test_recording(const op_table_t *ops,
                            lh_status_t (*param)(void *context, const char *name, uint64_t *shape,
                                                 uint32_t *rank),
                            void *context);

typedef struct differentiated {
    recording_t *r;
    lh_value_t input; /* an ARGUMENT whose gradient is checked too; 0: none */
    lh_value_t seed, input_gradient;
    const char *op, *what; /* for the failure's sentence */
} differentiated_t;

/* Appends the reverse pass, all parameters wanted. */
void differentiate(differentiated_t *d);
/* add: parameters' gradients find something in their memory and must add to it. */
void check_differences(const differentiated_t *d, bool add);

uint64_t test_elements(const recording_t *r, lh_value_t v);
/* Random numbers into parameters and arguments, documents into run-time inputs. */
void test_fill(interpreter_t *it, const recording_t *r);
/* d(sum of output times seed, plus losses) / d(*x). */
double central_difference(interpreter_t *it, const recording_t *r, lh_value_t seed, double *x);

#endif
