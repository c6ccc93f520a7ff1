/* muon.h - Muon's two ops as rows of tables: text, attributes and functions. */
#ifndef MUON_H
#define MUON_H

#include "rules.h"

typedef struct muon_config {
    double momentum, epsilon;
    uint64_t steps;
    uint32_t scale; /* MUON_SCALE_* */
    bool nesterov;
} muon_config_t;

enum { MUON_SCALE_SHAPE, MUON_SCALE_ADAMW, MUON_SCALE_NONE };

typedef struct muon_direction {
    uint32_t struct_size;
    uint32_t nesterov;
    double momentum, epsilon;
    uint64_t matrices; /* in g, one below the other */
} muon_direction_t;

typedef struct muon_move {
    uint32_t struct_size;
    uint32_t reserved;
    double decay, ratio;
} muon_move_t;

#define MUON_DIRECTION_TEXT(OP, IN, OUT)                                                      \
    OP("rules.muon_direction", "Muon, before the iterations: the momentum and its direction", \
       "With x = GRAD_SCALE g: m1 = momentum m1 + (1 - momentum) x\n"                         \
       "u = momentum m1 + (1 - momentum) x where nesterov, else m1\n"                         \
       "y = u / max(root of the sum of squares of u, epsilon), matrix by matrix\n"            \
       "With APPLY 0 m1 stays as it is and y is 0.",                                          \
       "none")                                                                                \
    IN(g, "", "[rows, columns]: the gradient of a matrix, or of several; each has rows")      \
    IN(m1, "", "like g: the momentum")                                                        \
    IN(step, "", "[LH_STEP_WORDS] F32: the row of the group")                                 \
    OUT(m1, "", "in place")                                                                   \
    OUT(y, "", "like g")

#define MUON_MOVE_TEXT(OP, IN, OUT)                                          \
    OP("rules.muon_move", "Muon, after the iterations: the step along y",    \
       "master = master (1 - LEARNING_RATE decay) - LEARNING_RATE ratio y\n" \
       "w = master. With APPLY 0 all stays as it is, w too.",                \
       "none")                                                               \
    IN(y, "", "[rows, columns]")                                             \
    IN(master, "", "like y")                                                 \
    IN(step, "", "[LH_STEP_WORDS] F32: the row of the group")                \
    OUT(master, "", "in place")                                              \
    OUT(w, "?", "like y: the new value in the compute dtype")

lh_status_t muon_direction_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                                 uint32_t arg_count);
lh_status_t muon_move_shape(const lh_host_t *host, const void *attributes, lh_arg_t *args,
                            uint32_t arg_count);
void muon_cost(const void *attributes, const lh_arg_t *args, uint32_t arg_count, lh_cost_t *out);
lh_status_t muon_direction_prepare(const lh_host_t *host, lh_device_t *d,
                                   const lh_kernel_desc_t *desc, lh_kernel_plan_t *plan,
                                   lh_prepared_t **out);
lh_status_t muon_move_prepare(const lh_host_t *host, lh_device_t *d, const lh_kernel_desc_t *desc,
                              lh_kernel_plan_t *plan, lh_prepared_t **out);
lh_value_t muon_record(const void *config, lh_graph_t *g, const lh_piece_t *piece, lh_value_t grad,
                       lh_value_t master, lh_value_t *states, lh_value_t *value);

#endif
