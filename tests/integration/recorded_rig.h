/* recorded_rig.h - a model whose blocks record what the test wants behind the plugin's own recording, a batch of it,
 * and the gradients that a rank holds. */
#ifndef RECORDED_RIG_H
#define RECORDED_RIG_H

#include "golden.h"

#include <engine/model_program.h>

enum { RECORDED_TOKENS = GOLDEN_BATCH * GOLDEN_SEQUENCE };

typedef struct recorded { /* what a rig made of a batch */
    rig_t rig;
    program_t *train;
    float loss;
    float **gradients; /* [parameters] what the rank holds of each */
    lh_slice_t *held;
} recorded_t;

typedef lh_value_t recorded_part_t(lh_model_t *m, lh_graph_t *g, uint32_t part, uint32_t block,
                                   lh_value_t input);

/* The plugin's own functions, which `part` calls; of the last recorded_open. */
extern const lh_model_api_t *recorded_plain;

/* The first golden model in F32, recorded by `part`. The caller closes r->rig. */
void recorded_open(recorded_t *r, recorded_part_t *part);
void recorded_train(recorded_t *r, uint32_t recompute);
/* Runs batch `number` of the model's and keeps its loss. */
void recorded_run(recorded_t *r, uint32_t number);
/* Of the memory that recorded_free frees. */
void recorded_gradients(recorded_t *r);
void recorded_free(recorded_t *r);
/* The gradients of two ranks are summed: twice those of one. */
void recorded_compare(const recorded_t *alone, const recorded_t *together);

#endif
