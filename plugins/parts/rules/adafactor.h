/* adafactor.h - Adafactor's op as a row of tables: text, attributes and functions. */
#ifndef ADAFACTOR_H
#define ADAFACTOR_H

#include "rules.h"

typedef struct adafactor_config {
    double beta2_decay, epsilon, least, clip;
} adafactor_config_t;

typedef struct adafactor_how {
    uint32_t struct_size;
    uint32_t reserved;
    double beta2_decay, epsilon, least, clip, decay;
} adafactor_how_t;

#define ADAFACTOR_TEXT(OP, IN, OUT)                                                          \
    OP("rules.adafactor", "one step of torch.optim.Adafactor on a whole matrix",             \
       "With x = GRAD_SCALE g, N = NUMBER, rate = LEARNING_RATE and mix = N^-beta2_decay:\n" \
       "row = row + mix (mean over columns of x^2 - row)\n"                                  \
       "column = column + mix (mean over rows of x^2 - column)\n"                            \
       "v[i, j] = row[i] column[j] / max(mean of row, epsilon); column[j] of a single row\n" \
       "u = x / max(root of v, epsilon)\n"                                                   \
       "length = max(1, root mean square of u / clip)\n"                                     \
       "pace = max(least, root mean square of master) min(rate, 1 / root of N)\n"            \
       "master = master (1 - rate decay) - pace / length u\n"                                \
       "w = master. With APPLY 0 all stays as it is, w too.",                                \
       "none")                                                                               \
    IN(g, "", "[rows, columns]: the gradient")                                               \
    IN(master, "", "like g")                                                                 \
    IN(row, "", "[rows]: second moment of each row")                                         \
    IN(column, "", "[columns]: second moment of each column")                                \
    IN(step, "", "[LH_STEP_WORDS] F32: the row of the group")                                \
    OUT(master, "", "in place")                                                              \
    OUT(row, "", "in place")                                                                 \
    OUT(column, "", "in place")                                                              \
    OUT(w, "?", "like g: the new value in the compute dtype")

lh_status_t adafactor_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                            uint32_t arg_count);
void adafactor_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count,
                    lh_cost_t *out);
lh_status_t adafactor_prepare(const lh_host_t *host, lh_device_t *d, const lh_kernel_desc_t *desc,
                              lh_kernel_plan_t *plan, lh_prepared_t **out);
lh_value_t adafactor_record(const void *config, lh_graph_t *g, const lh_piece_t *piece,
                            lh_value_t grad, lh_value_t master, lh_value_t *states,
                            lh_value_t *value);

#endif
